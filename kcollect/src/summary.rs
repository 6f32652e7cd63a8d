//! The summary at the end of a run, fit for triage without opening anything else; for people as
//! text, for machines as JSON. The JSON is also in the experiment, as `kcollect.json`.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;

use bpf::CpuBooks;
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use serde::Serialize;

use crate::cli::Plan;
use crate::exit::Failure;
use crate::kernel::founder::Founder;
use crate::kernel::recorder::TRUNCATED;
use crate::losses::Losses;
use crate::sources::{CpuTime, Sources};

/// Rows of a table on the terminal.
const TOP: usize = 10;
/// Rows of a table in the JSON.
const TOP_JSON: usize = 200;

/// The whole summary. Times are seconds unless the name says otherwise; ticks are intervals.
#[derive(Debug, Serialize)]
pub struct Summary {
    /// Version of kcollect.
    pub version: &'static str,
    /// Path of the experiment.
    pub experiment: String,
    /// The clock interval, microseconds.
    pub interval_us: u32,
    /// From the first to the last instant of the run.
    pub elapsed_s: f64,
    /// Ticks of the idle task are in the experiment.
    pub idle_recorded: bool,
    /// What each CPU lived through.
    pub cpus: Vec<Cpu>,
    /// Where CPU time went, all CPUs together.
    pub cpu_time: CpuSeconds,
    /// Ticks in the experiment.
    pub ticks: u64,
    /// Packets in the experiment.
    pub packets: u64,
    /// What is missing or impaired, by cause.
    pub losses: Losses,
    /// Processes by CPU time, most first.
    pub processes: Vec<Process>,
    /// Processes and threads named with `-T`.
    pub targets: Vec<Process>,
    /// Kernel functions by their own ticks, most first.
    pub functions: Vec<Function>,
    /// What kcollect itself took.
    pub cost: Cost,
    /// Commands to type next.
    pub next: Vec<String>,
}

/// One CPU's books.
#[derive(Debug, Serialize)]
pub struct Cpu {
    /// Its id.
    pub cpu: u32,
    /// For how long its ticks were taken, nanoseconds.
    pub recorded_ns: u64,
    /// Ticks in user mode.
    pub user: u64,
    /// Ticks in the kernel.
    pub kernel: u64,
    /// Ticks in the idle task.
    pub idle: u64,
    /// Ticks that found the ring full.
    pub lost: u64,
    /// Ticks made up for firings that the kernel skipped.
    pub made_up: u64,
}

/// CPU time in seconds.
#[derive(Debug, Serialize)]
pub struct CpuSeconds {
    /// In user mode.
    pub user: f64,
    /// In the kernel.
    pub kernel: f64,
    /// Of that, interrupts and softirqs on top of whatever ran.
    pub interrupts: f64,
    /// In the idle task.
    pub idle: f64,
}

/// A process's CPU time.
#[derive(Debug, Clone, Serialize)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// The thread of it that this is about; all of them where there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tid: Option<u32>,
    /// Its last name.
    pub name: String,
    /// Seconds in user mode.
    pub user: f64,
    /// Seconds in the kernel.
    pub kernel: f64,
    /// Ticks of both.
    pub ticks: u64,
}

/// A kernel function's CPU time.
#[derive(Debug, Serialize)]
pub struct Function {
    /// Its name; an address where it has none.
    pub name: String,
    /// The load object.
    pub object: String,
    /// Seconds in the function itself.
    #[serde(rename = "self")]
    pub own: f64,
    /// Seconds in it and what it called.
    pub total: f64,
    /// Ticks in the function itself.
    pub self_ticks: u64,
    /// Ticks in it and what it called.
    pub total_ticks: u64,
}

/// What kcollect itself took.
#[derive(Debug, Serialize)]
pub struct Cost {
    /// CPU seconds of its process, from start to here.
    pub cpu_s: f64,
    /// The same as a share of one CPU over the run.
    pub cpu_percent: f64,
    /// The most memory it had resident, bytes.
    pub peak_rss_bytes: u64,
    /// Bytes written for data and logs.
    pub bytes_written: u64,
}

impl Summary {
    /// Sums up a run that has stopped. `started` and `stopped` are CLOCK_MONOTONIC nanoseconds.
    ///
    /// # Errors
    /// When the books can't be read.
    pub fn new(
        plan: &Plan,
        path: &str,
        sources: &Sources,
        founder: &Founder,
        (started, stopped): (u64, u64),
    ) -> Result<Summary, Failure> {
        let books = sources.books()?;
        let interval = f64::from(plan.period_us) / 1e6;
        let seconds = |ticks: u64| ticks as f64 * interval;
        let sum =
            |of: fn(&CpuBooks) -> u64| books.iter().map(|(_, books, _)| of(books)).sum::<u64>();
        let recorded = founder.recorder.recorded;
        let sent = sum(CpuBooks::boundaries) - sum(|books| books.unsent) - sum(|books| books.lost);
        let elapsed_s = stopped.saturating_sub(started) as f64 / 1e9;
        let processes: Vec<_> = founder
            .recorder
            .accounts
            .by_process()
            .into_iter()
            .map(|row| Process {
                pid: row.pid,
                tid: None,
                user: seconds(row.user),
                kernel: seconds(row.kernel),
                ticks: row.ticks(),
                name: row.name,
            })
            .collect();
        Ok(Summary {
            version: env!("CARGO_PKG_VERSION"),
            experiment: path.to_owned(),
            interval_us: plan.period_us,
            elapsed_s,
            idle_recorded: plan.record_idle,
            cpus: books.iter().map(cpu).collect(),
            cpu_time: CpuSeconds {
                user: seconds(sum(|books| books.user)),
                kernel: seconds(sum(|books| books.kernel)),
                interrupts: seconds(recorded.irq_work),
                idle: seconds(sum(|books| books.idle)),
            },
            ticks: recorded.ticks,
            packets: recorded.packets,
            losses: Losses {
                ring_full: sum(|books| books.lost),
                not_written: founder.not_written,
                unaccounted: sent as i64 - (recorded.ticks + founder.not_written) as i64,
                sideband: founder.sideband_lost,
                unnamed: recorded.unnamed,
                truncated_stacks: recorded.truncated,
                missing_stacks: recorded.no_stack,
                made_up: sum(|books| books.made_up),
                late_events: sources.late(),
            },
            targets: founder
                .recorder
                .accounts
                .targets
                .iter()
                .map(|row| Process {
                    pid: row.target.pid,
                    tid: row.target.tid,
                    name: row.name.clone().unwrap_or_else(|| "(no tick)".to_owned()),
                    user: seconds(row.user),
                    kernel: seconds(row.kernel),
                    ticks: row.user + row.kernel,
                })
                .collect(),
            processes: processes.into_iter().take(TOP_JSON).collect(),
            functions: functions(founder, interval),
            cost: cost(elapsed_s, founder.bytes_written()),
            next: next_commands(path),
        })
    }

    /// For machines.
    #[must_use]
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

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
            interval(self.interval_us),
            if self.idle_recorded {
                ""
            } else {
                " (idle left out)"
            },
        )?;
        writeln!(out, "  {}", self.losses.line())?;
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
            writeln!(out, "{}\n", process_table(&processes, capacity, width))?;
        }
        if !self.functions.is_empty() {
            writeln!(
                out,
                "{}\n",
                function_table(&self.functions, self.cpu_time.kernel, width)
            )?;
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

fn cpu((cpu, books, time): &(u32, CpuBooks, CpuTime)) -> Cpu {
    Cpu {
        cpu: *cpu,
        recorded_ns: time.recorded,
        user: books.user,
        kernel: books.kernel,
        idle: books.idle,
        lost: books.lost,
        made_up: books.made_up,
    }
}

/// Self is charged to the leaf, total once to each function of a stack.
fn functions(founder: &Founder, interval: f64) -> Vec<Function> {
    let mut by_function: HashMap<(&str, &str), (u64, u64)> = HashMap::new();
    let mut nameless: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    let mut seen = Vec::new();
    for (frames, stack) in &founder.recorder.accounts.stacks {
        seen.clear();
        for (depth, pc) in frames
            .iter()
            .enumerate()
            .filter(|(_, pc)| **pc != TRUNCATED)
        {
            let own = if depth == 0 { stack.ticks } else { 0 };
            let place = founder.symbols.find(*pc);
            let key = place.map(|place| (place.object, &*place.symbol.name));
            let identity = key.map_or((*pc, 0), |(_, name)| (name.as_ptr() as u64, 1));
            let total = if seen.contains(&identity) {
                0
            } else {
                stack.ticks
            };
            seen.push(identity);
            let sums = match key {
                Some(key) => by_function.entry(key).or_default(),
                None => nameless.entry(*pc).or_default(),
            };
            sums.0 += own;
            sums.1 += total;
        }
    }
    let named = by_function
        .into_iter()
        .map(|((object, name), sums)| (object.to_owned(), name.to_owned(), sums));
    let nameless = nameless
        .into_iter()
        .map(|(pc, sums)| ("?".to_owned(), format!("{pc:#x}"), sums));
    let mut rows: Vec<_> = named
        .chain(nameless)
        .map(|(object, name, (own, total))| Function {
            name,
            object,
            own: own as f64 * interval,
            total: total as f64 * interval,
            self_ticks: own,
            total_ticks: total,
        })
        .collect();
    rows.sort_by(|a, b| {
        (b.self_ticks, b.total_ticks, &a.name).cmp(&(a.self_ticks, a.total_ticks, &b.name))
    });
    rows.truncate(TOP_JSON);
    rows
}

fn cost(elapsed_s: f64, bytes_written: u64) -> Cost {
    let usage = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_SELF);
    let (cpu_s, peak_rss_bytes) = usage.map_or((0.0, 0), |usage| {
        let seconds =
            |time: nix::sys::time::TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
        let cpu = seconds(usage.user_time()) + seconds(usage.system_time());
        (cpu, usage.max_rss().max(0) as u64 * 1024)
    });
    Cost {
        cpu_s,
        cpu_percent: if elapsed_s > 0.0 {
            100.0 * cpu_s / elapsed_s
        } else {
            0.0
        },
        peak_rss_bytes,
        bytes_written,
    }
}

fn next_commands(path: &str) -> Vec<String> {
    let views = "e.kcpu:e.%kcpu:i.kcpu:name";
    vec![
        format!("gprofng display text -metrics {views} -limit 20 -functions {path}"),
        format!("gprofng display text -metrics i.kcpu:e.kcpu:name -limit 40 -calltree {path}"),
        format!("gprofng display text -metrics e.kcpu:name -cpus -threads {path}"),
    ]
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

fn process_table(rows: &[&Process], capacity: f64, width: Option<u16>) -> String {
    let mut table = table(
        width,
        &["CPU s", "%", "user s", "kernel s", "PID", "Process"],
        5,
    );
    for row in rows {
        let all = row.user + row.kernel;
        table.add_row([
            format!("{all:.3}"),
            percent(all, capacity),
            format!("{:.3}", row.user),
            format!("{:.3}", row.kernel),
            match row.tid {
                Some(tid) => format!("{}/{tid}", row.pid),
                None => row.pid.to_string(),
            },
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

fn interval(us: u32) -> String {
    if us >= 1000 {
        format!("{} ms", f64::from(us) / 1000.0)
    } else {
        format!("{us} µs")
    }
}

fn bytes(count: u64) -> String {
    match count {
        0..=9_999 => format!("{count} B"),
        10_000..=9_999_999 => format!("{:.1} kB", count as f64 / 1e3),
        _ => format!("{:.1} MB", count as f64 / 1e6),
    }
}
