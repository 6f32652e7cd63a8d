//! The summary for people: a page for a terminal, plain text in a pipe.

use std::fmt::Write as _;

use bpf::unwind::End;
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

use super::{Counter, Followed, Function, Process, Summary, WaitingPlace};

/// Rows of a table.
const TOP: usize = 10;

/// The states as they head a column, in the order of [`Summary::states`].
const STATES: [&str; 10] = [
    "user", "system", "trap", "tfault", "dfault", "kfault", "lock", "sleep", "wait", "stop",
];

impl Summary {
    /// For people, within `width` columns where that is known.
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
            "  {:.3} s on {} CPU{}, {} ticks of {} recorded{}",
            self.elapsed_s,
            self.cpus.len(),
            if self.cpus.len() == 1 { "" } else { "s" },
            self.ticks,
            self.interval,
            if self.idle_recorded {
                ""
            } else {
                " (idle left out)"
            },
        )?;
        writeln!(out, "  {}", self.losses.line())?;
        for counter in &self.counters {
            writeln!(out, "  {}", counter.line())?;
        }
        if let Some(followed) = &self.followed {
            writeln!(out, "  {}", followed.line())?;
            if let Some(line) = followed.made_line() {
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
        let top = || self.processes.iter().take(TOP);
        let shown =
            |target: &&Process| target.tid.is_none() && top().any(|row| row.pid == target.pid);
        let targets = self.targets.iter().filter(|target| !shown(target));
        let processes: Vec<_> = top().chain(targets).collect();
        if !processes.is_empty() {
            writeln!(out, "{}\n", process_table(&processes, width))?;
            let more = self.of_which_s;
            writeln!(
                out,
                "Of all threads' time blocked, for block I/O {:.3} s; of their wait for a CPU, preempted {:.3} s, throttled \
                 by a quota {:.3} s\n",
                more.block_io, more.preempted, more.throttled
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
            "kcollect itself: {:.3} s of CPU ({:.2} % of one), {} resident, {} written",
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

impl Counter {
    fn line(&self) -> String {
        let mut line = format!(
            "{}: {} events, {} recorded (every {})",
            self.name, self.events, self.recorded, self.interval
        );
        if self.lost + self.untold > 0 {
            line += &format!(", {} lost, {} untold", self.lost, self.untold);
        }
        if self.share_of_time < 0.9995 {
            line += &format!(", in {:.1} % of the time", 100.0 * self.share_of_time);
        }
        line
    }
}

impl Followed {
    fn line(&self) -> String {
        let stacks = &self.user_stacks;
        let walked: u64 = stacks.by_end.values().sum();
        let complete = stacks.by_end.get(&End::Complete).copied().unwrap_or(0);
        format!(
            "{} process{} followed: of {} ticks {} have their complete user stack, {} a part of it, {} none; {} more fell on threads without memory, which ended",
            self.processes.len(),
            if self.processes.len() == 1 { "" } else { "es" },
            walked + stacks.missing,
            complete,
            walked - complete,
            stacks.missing,
            stacks.exiting,
        )
    }

    /// What is missing of the names of code that processes made as they ran.
    fn made_line(&self) -> Option<String> {
        let made = || self.processes.iter().filter_map(|row| row.made.as_ref());
        let functions: u64 = made()
            .map(|made| made.counts.bad + made.counts.refused)
            .sum();
        let files = made()
            .filter(|made| made.refusal.is_some() || made.counts.unread > 0)
            .count();
        (functions > 0 || files > 0).then(|| {
            format!(
                "Of code that processes made as they ran {functions} functions could not be taken, and {files} \
                 files with their names were not read, or not to the end: kcollect.json says why"
            )
        })
    }
}

fn table(width: Option<u16>, header: &[&str], numbers: usize) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header);
    match width {
        Some(width) => {
            table
                .set_content_arrangement(ContentArrangement::Dynamic)
                .set_width(width);
        }
        None => {
            table.set_content_arrangement(ContentArrangement::Disabled);
        }
    }
    for column in table.column_iter_mut().take(numbers) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// One column for each state that any of the rows was in.
fn process_table(rows: &[&Process], width: Option<u16>) -> String {
    let in_state = |row: &Process, state: usize| row.states_s.get(state).copied().unwrap_or(0.0);
    let shown: Vec<usize> = (0..STATES.len())
        .filter(|state| rows.iter().any(|row| in_state(row, *state) >= 0.0005))
        .collect();
    let mut header = vec!["thread s"];
    header.extend(shown.iter().map(|state| STATES[*state]));
    header.extend(["PID", "Process"]);
    let mut table = table(width, &header, header.len() - 1);
    for row in rows {
        let mut cells = vec![format!("{:.3}", row.lived_s)];
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
        table.add_row(cells);
    }
    table.trim_fmt()
}

fn waiting_table(rows: &[WaitingPlace], width: Option<u16>) -> String {
    let mut table = table(
        width,
        &["away s", "state", "Kernel function that waited"],
        1,
    );
    for row in rows.iter().take(TOP) {
        table.add_row([
            format!("{:.3}", row.seconds),
            row.state.to_owned(),
            row.name.clone(),
        ]);
    }
    table.trim_fmt()
}

fn function_table(rows: &[Function], kernel: f64, width: Option<u16>) -> String {
    let mut table = table(
        width,
        &["self s", "%", "total s", "Kernel function", "Object"],
        3,
    );
    for row in rows.iter().take(TOP) {
        table.add_row([
            format!("{:.3}", row.own),
            percent(row.own, kernel),
            format!("{:.3}", row.total),
            row.name.clone(),
            row.object.clone(),
        ]);
    }
    table.trim_fmt()
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
