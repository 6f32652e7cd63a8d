//! The results, as text within 100 columns or as Markdown.

use std::fmt::Write as _;

use comfy_table::{CellAlignment, Table, presets};
use tests::oracle::paired::{Spread, ratios};

use crate::load::{Load, Ran};
use crate::setting::Setting;
use crate::took::{Followed, Own, Took};
use crate::watched::Watched;

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
    /// Whether it runs on this machine.
    pub(crate) works: bool,
    /// The measurement of each round; `None` where it failed.
    pub(crate) rounds: Vec<Option<Measured>>,
    /// Why it did not run, or not in every round.
    pub(crate) failure: Option<String>,
}

impl Row {
    /// Returns the row for one load, which not every setting can record.
    pub(crate) fn on(&self, load: Load) -> Self {
        let mut row = self.clone();
        if row.works && row.setting.kind.is_starter() && !load.is_command() {
            row.works = false;
            row.failure = Some("watches only a command that it starts".into());
        }
        row
    }
}

/// All runs of a load. The first row is the run without a profiler.
#[derive(Clone, Debug)]
pub(crate) struct Results {
    pub(crate) load: Load,
    /// How many times as long it runs.
    pub(crate) length: u32,
    /// What ran, or why it did not.
    pub(crate) what: Result<String, String>,
    pub(crate) rows: Vec<Row>,
}

impl Measured {
    /// Returns the share of one CPU that others than the load and the profiler took, the kernel's
    /// own threads included.
    pub(crate) fn others(&self) -> f64 {
        let others_s = self.ran.others_s - self.cpu_meanwhile_s.unwrap_or(0.0);
        others_s.max(0.0) / self.ran.elapsed.as_secs_f64()
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

    /// Returns the losses of all rounds: one in one round is shown.
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
    /// Returns a list of names and their meanings, after an empty line.
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

    /// Returns the tables of a load: what it took under each setting, and what the setting took.
    pub(crate) fn load(self, results: &Results) -> String {
        let Results {
            load, what, rows, ..
        } = results;
        let title = match what {
            Ok(what) => what.clone(),
            Err(reason) => format!("{load:?} cannot run here: {reason}"),
        };
        let mut out = self.heading(&title);
        let Some(nothing) = rows.first() else {
            return out;
        };
        let base = nothing.each(|measured| Some(measured.ran.value));
        let mut table = self.table(&["", load.unit(), "min..max", "ratio", "min..max", "others %"]);
        for row in rows {
            let value = |measured: &Measured| Some(measured.ran.value);
            let Some(values) = row.spread(value) else {
                let mut cells = vec![row.setting.name.clone(), "did not run".into()];
                cells.resize(6, "-".into());
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
                    row.median(|measured| Some(100.0 * measured.others())),
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
        let mut table = self.table(&TAKEN);
        for row in rows {
            let of = |of: fn(&Took) -> Option<f64>| row.median(|measured| of(&measured.took));
            if of(|took| took.cpu_s).is_none() {
                continue;
            }
            let percent = row.median(|measured| {
                Some(100.0 * measured.cpu_meanwhile_s? / measured.ran.elapsed.as_secs_f64())
            });
            let percent = or_dash(percent, |percent| format!("{percent:.2}"));
            table.add_row(taken(row.setting.name.clone(), percent, row.lost(), of));
        }
        if table.row_count() > 0 {
            out.push('\n');
            finish(&mut out, &table);
        }
        out
    }

    /// Returns the table of a load that was watched for a time, if it was measured.
    pub(crate) fn watched(self, title: &str, all: &[Watched]) -> String {
        if all.is_empty() {
            return String::new();
        }
        let mut out = self.heading(title);
        let mut table = self.table(&TAKEN);
        let mut tables = self.table(&UNWINDING);
        for Watched {
            setting,
            rounds,
            percent,
            failure,
        } in all
        {
            if let Some(failure) = failure {
                table.add_row([setting.clone(), format!("did not run: {failure}")]);
            }
            let Some(last) = rounds.last() else { continue };
            let of = |of: fn(&Took) -> Option<f64>| {
                let values: Vec<f64> = rounds.iter().filter_map(of).collect();
                Spread::of(&values).map(|spread| spread.median)
            };
            let lost = rounds.iter().filter_map(|took| took.lost);
            let lost = last.lost.map(|_| lost.sum());
            let percent = or_dash(Spread::of(percent), |percent| match rounds.len() {
                1 => format!("{:.2}", percent.median),
                _ => format!(
                    "{:.2} ({:.2}..{:.2})",
                    percent.median, percent.min, percent.max
                ),
            });
            table.add_row(taken(setting.clone(), percent, lost, of));
            if let Some(followed) = followed(last) {
                tables.add_row(unwinding([String::new(), setting.clone()], followed));
            }
        }
        finish(&mut out, &table);
        if tables.row_count() > 0 {
            out.push('\n');
            finish(&mut out, &tables);
        }
        out
    }

    /// Returns the table of what kcollect writes, next to the context switches meanwhile.
    pub(crate) fn traffic(self, all: &[Results]) -> String {
        let mut out = self.heading("What kcollect wrote, and the context switches meanwhile");
        let mut table = self.table(&[
            "",
            "",
            "switches/s",
            "ticks",
            "of threads",
            "packets",
            "impaired",
            "CPU s, own figure",
        ]);
        for results in all {
            for row in &results.rows {
                let own =
                    |of: fn(&Own) -> u64| row.median(|run| Some(of(run.took.own.as_ref()?) as f64));
                let Some(ticks) = row.median(|run| {
                    run.took.own.as_ref()?;
                    Some(run.took.ticks? as f64)
                }) else {
                    continue;
                };
                let whole = |value: Option<f64>| or_dash(value, |value| format!("{value:.0}"));
                table.add_row([
                    format!("{:?}", results.load).to_lowercase(),
                    row.setting.name.clone(),
                    whole(row.median(|run| {
                        Some(run.ran.switches as f64 / run.ran.elapsed.as_secs_f64())
                    })),
                    whole(Some(ticks)),
                    whole(own(|own| own.thread_ticks)),
                    whole(own(|own| own.packets)),
                    whole(own(|own| own.impaired)),
                    or_dash(
                        row.median(|run| Some(run.took.own.as_ref()?.cpu_s)),
                        |seconds| format!("{seconds:.2}"),
                    ),
                ]);
            }
        }
        if table.row_count() == 0 {
            return String::new();
        }
        finish(&mut out, &table);
        let mut table = self.table(&UNWINDING);
        for results in all {
            for row in &results.rows {
                let last = row.rounds.iter().flatten().next_back();
                if let Some(followed) = last.and_then(|last| followed(&last.took)) {
                    let load = format!("{:?}", results.load).to_lowercase();
                    table.add_row(unwinding([load, row.setting.name.clone()], followed));
                }
            }
        }
        if table.row_count() > 0 {
            out.push_str(
                &self.heading("Unwind tables of the followed processes, in the last round"),
            );
            finish(&mut out, &table);
        }
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

/// The columns of what a profiler took. Bytes are for a tick of a CPU, which all have, and for a
/// tick of a thread, on-CPU or off-CPU.
const TAKEN: [&str; 12] = [
    "",
    "CPU %",
    "CPU s",
    "RSS",
    "written",
    "ticks",
    "B/tick",
    "B/thread tick",
    "lost",
    "time to summary, ms",
    "complete %",
    "complete off-CPU %",
];

fn taken(
    name: String,
    percent: String,
    lost: Option<u64>,
    of: impl Fn(fn(&Took) -> Option<f64>) -> Option<f64>,
) -> [String; 12] {
    let (written, ticks) = (
        of(|took| Some(took.bytes? as f64)),
        of(|took| Some(took.ticks? as f64)),
    );
    let digits =
        |value: Option<f64>, digits: usize| or_dash(value, |value| format!("{value:.digits$}"));
    [
        name,
        percent,
        digits(of(|took| took.cpu_s), 2),
        or_dash(of(|took| Some(took.rss? as f64)), bytes),
        or_dash(written, bytes),
        digits(ticks, 0),
        digits(per(written, ticks), 0),
        digits(
            per(
                written,
                of(|took| Some(took.own.as_ref()?.thread_ticks as f64)),
            ),
            1,
        ),
        or_dash(lost, |lost| lost.to_string()),
        digits(of(|took| Some(1e3 * took.answer?.as_secs_f64())), 0),
        digits(of(|took| Some(100.0 * took.complete?)), 2),
        digits(of(|took| Some(100.0 * followed(took)?.asleep)), 2),
    ]
}

/// The columns of what unwinding took.
const UNWINDING: [&str; 6] = ["", "", "text", "tables", "B/MB of text", "kernel's memory"];

fn unwinding([load, setting]: [String; 2], followed: &Followed) -> [String; 6] {
    let (text, tables) = (followed.text as f64, followed.tables as f64);
    [
        load,
        setting,
        bytes(text),
        bytes(tables),
        or_dash(per(Some(tables * 1e6), Some(text)), bytes),
        bytes(followed.kernel as f64),
    ]
}

fn followed(took: &Took) -> Option<&Followed> {
    took.own.as_ref()?.followed.as_ref()
}

/// Returns a ratio, if both values are known.
fn per(value: Option<f64>, of: Option<f64>) -> Option<f64> {
    Some(value? / of.filter(|of| *of > 0.0)?)
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
