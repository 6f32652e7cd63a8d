//! The results, as text within 100 columns or as Markdown.

use std::fmt::Write as _;

use comfy_table::{CellAlignment, Table, presets};
use tests::paired::{Spread, ratios};

use crate::load::{Load, Ran};
use crate::setting::{Setting, Took};

/// One run of a load under a setting.
#[derive(Clone, Debug)]
pub(crate) struct Measured {
    pub(crate) ran: Ran,
    /// CPU time of the profiler's process while the load ran, seconds.
    pub(crate) cpu_meanwhile_s: Option<f64>,
    pub(crate) took: Took,
}

/// All runs of a load under a setting.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) setting: Setting,
    /// Whether it has been seen to run here.
    pub(crate) works: bool,
    /// One a round; `None` where it failed.
    pub(crate) rounds: Vec<Option<Measured>>,
    /// Why it did not run, or not in every round.
    pub(crate) failure: Option<String>,
}

/// All runs of a load. The first row is that of nothing running.
#[derive(Clone, Debug)]
pub(crate) struct Results {
    pub(crate) load: Load,
    /// What ran, or why it could not.
    pub(crate) what: Result<String, String>,
    pub(crate) rows: Vec<Row>,
}

impl Measured {
    /// Of one CPU, what programs took that are neither the load nor the profiler, the kernel's own threads included.
    pub(crate) fn besides(&self) -> f64 {
        let besides_s = self.ran.besides_s - self.cpu_meanwhile_s.unwrap_or(0.0);
        besides_s.max(0.0) / self.ran.elapsed.as_secs_f64()
    }
}

impl Row {
    fn each(&self, of: impl Fn(&Measured) -> Option<f64>) -> Vec<Option<f64>> {
        self.rounds
            .iter()
            .map(|round| of(round.as_ref()?))
            .collect()
    }

    fn spread(&self, of: impl Fn(&Measured) -> Option<f64>) -> Option<Spread> {
        let values: Vec<f64> = self.each(of).into_iter().flatten().collect();
        Spread::of(&values)
    }

    fn median(&self, of: impl Fn(&Measured) -> Option<f64>) -> Option<f64> {
        self.spread(of).map(|spread| spread.median)
    }

    /// Of all rounds: one loss in one of them is to be seen.
    fn lost(&self) -> Option<u64> {
        let measured = || self.rounds.iter().flatten();
        measured()
            .any(|measured| measured.took.lost.is_some())
            .then(|| measured().filter_map(|measured| measured.took.lost).sum())
    }
}

/// How tables are drawn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Style {
    pub(crate) markdown: bool,
}

impl Style {
    /// Names and what they stand for, after an empty line.
    pub(crate) fn list(self, lines: &[(String, String)]) -> String {
        let width = lines.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        let mut out = String::from("\n");
        for (name, text) in lines {
            let _ = if self.markdown {
                writeln!(out, "* {name}: {text}")
            } else {
                writeln!(out, "{name:width$}  {text}")
            };
        }
        out
    }

    /// The table of a load: what it took under each setting, and what the setting took.
    pub(crate) fn load(self, results: &Results) -> String {
        let Results { load, what, rows } = results;
        let title = match what {
            Ok(what) => what.clone(),
            Err(reason) => format!("{load:?} cannot run here: {reason}"),
        };
        let mut out = self.heading(&title);
        let Some(nothing) = rows.first() else {
            return out;
        };
        let base = nothing.each(|measured| Some(measured.ran.value));
        let mut table = self.table(&[
            "",
            load.unit(),
            "min..max",
            "ratio",
            "min..max",
            "CPU %",
            "CPU s",
            "written",
            "lost",
            "others %",
        ]);
        for row in rows {
            let value = |measured: &Measured| Some(measured.ran.value);
            let Some(values) = row.spread(value) else {
                let mut cells = vec![row.setting.name.clone(), "did not run".into()];
                cells.resize(10, "-".into());
                table.add_row(cells);
                continue;
            };
            let digits = load.digits();
            let ratio = Spread::of(&ratios(&row.each(value), &base));
            table.add_row([
                row.setting.name.clone(),
                format!("{:.digits$}", values.median),
                format!("{:.digits$}..{:.digits$}", values.min, values.max),
                or_dash(ratio, |ratio| format!("{:.3}", ratio.median)),
                or_dash(ratio, |ratio| format!("{:.3}..{:.3}", ratio.min, ratio.max)),
                or_dash(
                    row.median(|measured| {
                        Some(100.0 * measured.cpu_meanwhile_s? / measured.ran.elapsed.as_secs_f64())
                    }),
                    |percent| format!("{percent:.2}"),
                ),
                or_dash(row.median(|measured| measured.took.cpu_s), |seconds| {
                    format!("{seconds:.2}")
                }),
                or_dash(
                    row.median(|measured| Some(measured.took.bytes? as f64)),
                    bytes,
                ),
                or_dash(row.lost(), |lost| lost.to_string()),
                or_dash(
                    row.median(|measured| Some(100.0 * measured.besides())),
                    |percent| format!("{percent:.1}"),
                ),
            ]);
        }
        finish(&mut out, &table);
        if self.markdown && rows.iter().any(|row| row.failure.is_some()) {
            out.push('\n');
        }
        for row in rows {
            if let Some(failure) = &row.failure {
                let (mark, name) = (if self.markdown { "* " } else { "" }, &row.setting.name);
                let _ = writeln!(out, "{mark}{name}: {failure}");
            }
        }
        out
    }

    /// What kcollect writes, next to the switches that were made while it watched.
    pub(crate) fn traffic(self, all: &[Results]) -> String {
        let mut out =
            self.heading("What kcollect writes, next to the switches that were made meanwhile");
        let mut table = self.table(&[
            "",
            "",
            "switches/s",
            "ticks",
            "packets",
            "written",
            "bytes a tick",
            "impaired",
            "CPU s, own figure",
        ]);
        for results in all {
            for row in &results.rows {
                let own = |measured: &Measured| measured.took.own.clone();
                let median = |of: &dyn Fn(&Measured) -> Option<f64>| row.median(of);
                let Some(ticks) = median(&|run| Some(own(run)?.ticks as f64)) else {
                    continue;
                };
                let written = median(&|run| Some(run.took.bytes? as f64));
                table.add_row([
                    format!("{:?}", results.load).to_lowercase(),
                    row.setting.name.clone(),
                    or_dash(
                        median(&|run| {
                            Some(run.ran.switches as f64 / run.ran.elapsed.as_secs_f64())
                        }),
                        |rate| format!("{rate:.0}"),
                    ),
                    format!("{ticks:.0}"),
                    or_dash(median(&|run| Some(own(run)?.packets as f64)), |packets| {
                        format!("{packets:.0}")
                    }),
                    or_dash(written, bytes),
                    or_dash(written, |written| format!("{:.0}", written / ticks)),
                    or_dash(median(&|run| Some(own(run)?.impaired as f64)), |impaired| {
                        format!("{impaired:.0}")
                    }),
                    or_dash(median(&|run| Some(own(run)?.cpu_s)), |seconds| {
                        format!("{seconds:.2}")
                    }),
                ]);
            }
        }
        if table.row_count() == 0 {
            return String::new();
        }
        finish(&mut out, &table);
        out
    }

    fn heading(self, title: &str) -> String {
        if self.markdown {
            format!("\n### {title}\n\n")
        } else {
            format!("\n{title}\n")
        }
    }

    fn table(self, head: &[&str]) -> Table {
        let mut table = Table::new();
        table.load_style(if self.markdown {
            presets::ASCII_MARKDOWN
        } else {
            presets::NOTHING
        });
        table.set_header(head.iter().copied());
        for (index, column) in table.column_iter_mut().enumerate() {
            if index > 0 {
                column.set_cell_alignment(CellAlignment::Right);
            }
            if !self.markdown {
                column.set_padding((0, 2));
            }
        }
        table
    }
}

fn finish(out: &mut String, table: &Table) {
    for line in table.lines() {
        let _ = writeln!(out, "{}", line.trim_end());
    }
}

fn or_dash<T>(value: Option<T>, format: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| "-".into(), format)
}

fn bytes(bytes: f64) -> String {
    if bytes < 1e6 {
        format!("{:.1} kB", bytes / 1e3)
    } else {
        format!("{:.1} MB", bytes / 1e6)
    }
}
