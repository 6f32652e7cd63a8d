//! The summary as text.

use std::fmt::Write as _;

use bpf_abi::unwind::UnwindEnd;
use host::table::{Align, TextTable};

use super::{CounterSummary, FollowSummary, KernelFunction, ProcessSummary, Summary, WaitingPlace};

/// The largest number of rows of a table.
const MAX_TEXT_ROWS: usize = 10;

/// The headings of the states, in the order of [`Summary::states`].
const STATES: [&str; 10] = [
    "user", "system", "trap", "tfault", "dfault", "kfault", "lock", "sleep", "wait", "stop",
];

impl Summary {
    /// Returns the summary as text, in `width` columns if that is known.
    #[must_use]
    pub fn text(&self, width: Option<u16>) -> String {
        let mut text = String::new();
        let _ = self.write(&mut text, width);
        text.truncate(text.trim_end().len());
        text
    }

    fn write(&self, out: &mut String, width: Option<u16>) -> std::fmt::Result {
        let capacity: f64 = self.cpu_time.user + self.cpu_time.kernel + self.cpu_time.idle;
        let share = |seconds: f64| percent(seconds, capacity);
        writeln!(out, "{}", self.experiment)?;
        writeln!(
            out,
            "  {:.3} s on {} CPU{}: {} ticks of {} recorded{}",
            self.elapsed_s,
            self.cpus.len(),
            if self.cpus.len() == 1 { "" } else { "s" },
            self.ticks,
            self.interval,
            if self.idle_recorded {
                ""
            } else {
                " (ticks of idle CPUs left out)"
            },
        )?;
        writeln!(out, "  {}", self.losses.line())?;
        for counter in &self.counters {
            writeln!(out, "  {}", counter.line())?;
        }
        if let Some(followed) = &self.followed {
            writeln!(out, "  {}", followed.line())?;
            if let Some(line) = followed.jit_line() {
                writeln!(out, "  {line}")?;
            }
        }
        writeln!(out)?;
        writeln!(
            out,
            "CPU time: user {:.3} s ({}), kernel {:.3} s ({}; interrupts {:.3} s), idle {:.3} s ({})",
            self.cpu_time.user,
            share(self.cpu_time.user),
            self.cpu_time.kernel,
            share(self.cpu_time.kernel),
            self.cpu_time.interrupts,
            self.cpu_time.idle,
            share(self.cpu_time.idle),
        )?;
        writeln!(out)?;
        let top = || self.processes.iter().take(MAX_TEXT_ROWS);
        let shown = |target: &&ProcessSummary| {
            target.tid.is_none() && top().any(|row| row.pid == target.pid)
        };
        let targets = self.targets.iter().filter(|target| !shown(target));
        let processes: Vec<_> = top().chain(targets).collect();
        if !processes.is_empty() {
            writeln!(out, "{}\n", process_table(&processes, width))?;
            let detail = self.detail_s;
            writeln!(
                out,
                "All threads together: block I/O {:.3} s of the time blocked; preempted {:.3} s and throttled by a quota \
                 {:.3} s of the wait for a CPU\n",
                detail.block_io, detail.preempted, detail.throttled
            )?;
        }
        if !self.functions.is_empty() {
            writeln!(
                out,
                "{}\n",
                function_table(&self.functions, self.cpu_time.kernel, width)
            )?;
        }
        if !self.waiting.is_empty() {
            writeln!(out, "{}\n", waiting_table(&self.waiting, width))?;
        }
        writeln!(
            out,
            "kcollect itself used {:.3} s of CPU ({:.2} % of one CPU) and {} of memory, and wrote {}",
            self.cost.cpu_s,
            self.cost.cpu_percent,
            bytes(self.cost.peak_rss_bytes),
            bytes(self.cost.bytes_written),
        )?;
        writeln!(out, "\nNext:")?;
        self.next
            .iter()
            .try_for_each(|command| writeln!(out, "  {command}"))
    }
}

impl CounterSummary {
    fn line(&self) -> String {
        let mut line = format!(
            "{}: {} events, {} of them recorded (one overflow every {} events)",
            self.name, self.events, self.recorded, self.interval
        );
        let missing = self.lost + self.unreported;
        if missing > 0 {
            let share = percent(missing as f64, self.events as f64);
            line += &format!(
                ", {share} missing: {} found the ring full, {} were not reported by the kernel",
                self.lost, self.unreported
            );
        }
        if self.share_of_time < 0.9995 {
            line += &format!(
                ", counted for {:.1} % of the time",
                100.0 * self.share_of_time
            );
        }
        line
    }
}

impl FollowSummary {
    fn line(&self) -> String {
        let stacks = &self.user_stacks;
        let unwound: u64 = stacks.by_end.values().sum();
        let complete = stacks
            .by_end
            .get(&UnwindEnd::Complete)
            .copied()
            .unwrap_or(0);
        let ticks = unwound + stacks.missing;
        format!(
            "{} process{} followed: {complete} of {ticks} ticks ({}) have a complete user stack, {} a part of it, {} none; {} \
             ticks of exiting threads have none by nature",
            self.processes.len(),
            if self.processes.len() == 1 { "" } else { "es" },
            percent(complete as f64, ticks as f64),
            unwound - complete,
            stacks.missing,
            stacks.exiting,
        )
    }

    /// Returns what is missing of the names of JIT code. None: nothing.
    fn jit_line(&self) -> Option<String> {
        let jit = || self.processes.iter().filter_map(|row| row.jit.as_ref());
        let functions: u64 = jit().map(|jit| jit.counts.bad + jit.counts.refused).sum();
        let files = jit()
            .filter(|jit| jit.refusal.is_some() || jit.counts.unread > 0)
            .count();
        (functions > 0 || files > 0).then(|| {
            format!(
                "JIT code: {functions} functions could not be recorded, and {files} files of names were not read, or not to \
                 their end; the reasons are in kcollect.json"
            )
        })
    }
}

/// A table with this header, of which the first columns, `numbers` of them, stand on the right.
fn table(header: &[&str], numbers: usize) -> TextTable {
    let align = |column| match column < numbers {
        true => Align::Right,
        false => Align::Left,
    };
    let mut table = TextTable::new((0..header.len()).map(align)).indented(1);
    table.titles(header.iter().copied());
    table
}

/// Returns the lines of a table.
fn lines(table: &TextTable, width: Option<u16>) -> String {
    let mut text = table.text(width.map(usize::from));
    text.truncate(text.trim_end().len());
    text
}

/// Returns the table of processes, with a column for each state that any of them was in.
fn process_table(rows: &[&ProcessSummary], width: Option<u16>) -> String {
    let in_state =
        |row: &ProcessSummary, state: usize| row.states_s.get(state).copied().unwrap_or(0.0);
    let shown: Vec<usize> = (0..STATES.len())
        .filter(|state| rows.iter().any(|row| in_state(row, *state) >= 0.0005))
        .collect();
    let mut header = vec!["thread s"];
    header.extend(shown.iter().map(|state| STATES[*state]));
    header.extend(["PID", "Process"]);
    let mut table = table(&header, header.len() - 1);
    for row in rows {
        let mut cells = vec![format!("{:.3}", row.tracked_s)];
        cells.extend(
            shown
                .iter()
                .map(|state| format!("{:.3}", in_state(row, *state))),
        );
        cells.push(match row.tid {
            Some(tid) => format!("{}/{tid}", row.pid),
            None => row.pid.to_string(),
        });
        cells.push(row.name.clone());
        table.row(cells);
    }
    lines(&table, width)
}

fn waiting_table(rows: &[WaitingPlace], width: Option<u16>) -> String {
    let mut table = table(&["off-CPU s", "state", "Kernel function that waited"], 1);
    for row in rows.iter().take(MAX_TEXT_ROWS) {
        table.row([
            format!("{:.3}", row.seconds),
            row.state.to_owned(),
            row.name.clone(),
        ]);
    }
    lines(&table, width)
}

fn function_table(rows: &[KernelFunction], kernel: f64, width: Option<u16>) -> String {
    let mut table = table(&["self s", "%", "total s", "Kernel function", "Object"], 3);
    for row in rows.iter().take(MAX_TEXT_ROWS) {
        table.row([
            format!("{:.3}", row.own),
            percent(row.own, kernel),
            format!("{:.3}", row.total),
            row.name.clone(),
            row.object.clone(),
        ]);
    }
    lines(&table, width)
}

fn percent(part: f64, whole: f64) -> String {
    if whole > 0.0 {
        format!("{:.1}%", 100.0 * part / whole)
    } else {
        "-".to_owned()
    }
}

fn bytes(count: u64) -> String {
    match count {
        0..=9_999 => format!("{count} B"),
        10_000..=9_999_999 => format!("{:.1} kB", count as f64 / 1e3),
        _ => format!("{:.1} MB", count as f64 / 1e6),
    }
}
