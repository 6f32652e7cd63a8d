//! The summary at the end of a run, fit for triage without opening anything else; for people as
//! text ([`Summary::text`]), for machines as JSON. The JSON is also in the experiment, as
//! `kcollect.json`.

mod text;

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use bpf::TableUse;
use bpf::{Counts, CpuBooks, Details};
use counters::event::Request;
use experiment_format::kernel::is_scheduler;
use experiment_format::losses::Losses;
use experiment_format::microstate::Microstate;
use host::exit::Failure;
use serde::Serialize;
use user_collector::archive::Account;
use user_collector::join::Joined;
use user_collector::objects::TableCounts;

use crate::plan::{Interval, Plan};
use crate::record::dispatch::Dispatcher;
use crate::record::input::inputs::{CpuTime, Inputs};
use crate::record::kernel::accounts::ProcessTimes;
use crate::record::kernel::founder::{Founder, TRUNCATED};
use crate::record::user::resolve_stack::{StackLosses, UnwindCounts};
use crate::record::user::subexperiment::FollowedProcess;
use crate::record::user::user_stack::StackCounts;

/// Rows of a table in the JSON.
const TOP_JSON: usize = 200;

/// The whole summary. Times are seconds unless the name says otherwise; ticks are intervals.
#[derive(Debug, Serialize)]
pub struct Summary {
    /// Version of kcollect.
    pub version: &'static str,
    /// Path of the experiment.
    pub experiment: String,
    /// Build id of the kernel, hexadecimal.
    pub kernel_build_id: Option<String>,
    /// The time between two ticks.
    #[serde(rename = "interval_us")]
    pub interval: Interval,
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
    /// Tick arrays of threads in the experiment, on a CPU or away from it.
    pub arrays: u64,
    /// Ticks in them.
    pub thread_ticks: u64,
    /// The counters that were profiled, in the order in which they were asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub counters: Vec<Counter>,
    /// What is missing or impaired, by cause.
    pub losses: Losses,
    /// The states of a thread, as gprofng calls their metrics.
    pub states: Vec<&'static str>,
    /// All processes, those with most time awake first.
    pub processes: Vec<Process>,
    /// What more is known of some of the time of all threads.
    pub of_which_s: OfWhich,
    /// What came of following processes, where any could be followed.
    pub followed: Option<Followed>,
    /// What came of archiving the files of followed processes (`-A`). It is known last.
    pub archive: Option<Account>,
    /// Processes and threads named with `-T`.
    pub targets: Vec<Process>,
    /// Where threads were away from the CPUs, by ticks, most first; sleep and stop come after all
    /// else.
    pub waiting: Vec<WaitingPlace>,
    /// Kernel functions by their own ticks, most first.
    pub functions: Vec<Function>,
    /// What kcollect itself took.
    pub cost: Cost,
    /// Commands to type next.
    pub next: Vec<String>,
}

/// A counter that was profiled.
#[derive(Debug, Serialize)]
pub struct Counter {
    /// As it was typed.
    pub name: String,
    /// After how many events it overflowed.
    pub interval: u64,
    /// All events while data were taken, of all CPUs together.
    pub events: u64,
    /// Those that the experiment holds: overflows times the interval.
    pub recorded: u64,
    /// Those of overflows that found the ring full.
    pub lost: u64,
    /// Those of overflows that the kernel did not tell, because they came in the middle of another
    /// program of ours.
    pub untold: u64,
    /// How much of the time it was counted: less than 1 where more counters were asked for than the
    /// hardware has. `events` and `recorded` are not scaled by it.
    pub share_of_time: f64,
}

/// What came of following processes into their user code.
#[derive(Debug, Serialize)]
pub struct Followed {
    /// The followed processes, by the number of their ticks.
    pub processes: Vec<FollowedProcess>,
    /// Ticks of all of them by how their user stack ended.
    pub user_stacks: StackCounts,
    /// Ticks of all threads by what became of their user side.
    pub entries: Joined,
    /// User stacks by who walked them.
    pub walks: UnwindCounts,
    /// How much of the kernel's memory the unwind tables took.
    pub table_use: TableUse,
    /// How load objects got their unwind tables.
    pub tables: TableCounts,
    /// What was lost.
    pub losses: FollowLosses,
}

/// What following lost.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct FollowLosses {
    /// Of user stacks.
    #[serde(flatten)]
    pub stacks: StackLosses,
    /// Intervals that are in the founder because too many were held while it was open whether their
    /// processes would be followed.
    pub unheld: u64,
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
    /// Exact seconds of all its threads by state, in the order of [`Summary::states`].
    pub states_s: Vec<f64>,
    /// What more is known of some of that time.
    pub of_which_s: OfWhich,
    /// What the kernel counted of them.
    pub counts: Counts,
    /// Threads that lived.
    pub threads: u64,
    /// For how long they lived during the run, all together, seconds.
    pub lived_s: f64,
}

/// What more is known of some of the time of threads, seconds.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct OfWhich {
    /// Of the time blocked, in whatever state: waiting for block I/O.
    pub block_io: f64,
    /// Of the wait for a CPU: it was taken away or given up. The rest is from a wake-up on.
    pub preempted: f64,
    /// Of the wait for a CPU: it was taken away because a cgroup's quota was used up.
    pub throttled: f64,
}

impl OfWhich {
    fn new(details: &Details) -> OfWhich {
        let seconds = |ns: u64| ns as f64 / 1e9;
        OfWhich {
            block_io: seconds(details.block_io),
            preempted: seconds(details.preempted),
            throttled: seconds(details.throttled),
        }
    }
}

/// A place in the kernel where threads waited.
#[derive(Debug, Serialize)]
pub struct WaitingPlace {
    /// The function that waited: the innermost that is not the scheduler's own.
    pub name: String,
    /// The state, as gprofng calls its metric.
    pub state: &'static str,
    /// Seconds, by ticks.
    pub seconds: f64,
    /// Ticks.
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
        inputs: &Inputs,
        dispatcher: &Dispatcher,
        (started, stopped): (u64, u64),
    ) -> Result<Summary, Failure> {
        let founder = &dispatcher.router.founder;
        let books = inputs.books()?;
        let interval = plan.interval;
        let seconds = |ticks: u64| interval.seconds_of(ticks);
        let sum =
            |of: fn(&CpuBooks) -> u64| books.iter().map(|(_, books, _)| of(books)).sum::<u64>();
        let recorded = founder.recorded;
        let sent = sum(CpuBooks::boundaries) - sum(|books| books.unsent) - sum(|books| books.lost);
        let elapsed_s = stopped.saturating_sub(started) as f64 / 1e9;
        let accounts = &founder.accounts;
        let row = |times: &ProcessTimes, tid| Process {
            pid: times.pid,
            tid,
            name: times.name.clone(),
            user: seconds(times.times.ticks.user),
            kernel: seconds(times.times.ticks.kernel),
            ticks: times.times.ticks.sum(),
            states_s: times.times.states().map(|ns| ns as f64 / 1e9).to_vec(),
            of_which_s: OfWhich::new(&times.times.details),
            counts: times.times.counts,
            threads: times.threads,
            lived_s: times.times.lived as f64 / 1e9,
        };
        let (system, _) = accounts.system();
        let followed = user(dispatcher, inputs.collector.table_use());
        let counters = counters(inputs)?;
        Ok(Summary {
            version: env!("CARGO_PKG_VERSION"),
            experiment: path.to_owned(),
            kernel_build_id: host::machine::kernel_build_id(),
            interval,
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
            arrays: recorded.arrays + followed.as_ref().map_or(0, Followed::arrays),
            thread_ticks: recorded.array_ticks + followed.as_ref().map_or(0, Followed::ticks),
            losses: Losses {
                overflows: counters
                    .iter()
                    .map(|counter| counter.lost + counter.untold)
                    .sum(),
                ring_full: sum(|books| books.lost),
                not_written: dispatcher.not_written,
                unaccounted: sent as i64 - (recorded.ticks + dispatcher.not_written) as i64,
                absences: sum(|books| books.absences_lost),
                threads: sum(|books| books.threads_lost),
                sideband: dispatcher.sideband_lost,
                unnamed: recorded.unnamed,
                truncated_stacks: recorded.truncated,
                missing_stacks: recorded.no_stack,
                made_up: sum(|books| books.made_up),
                entries: sum(|books| books.entries_lost),
                births: sum(|books| books.births_lost),
                late_events: inputs.late(),
            },
            counters,
            targets: accounts
                .targets
                .iter()
                .map(|(target, times)| row(times, target.tid))
                .collect(),
            states: Microstate::ALL[..Microstate::PER_THREAD]
                .iter()
                .filter_map(|state| state.metric())
                .collect(),
            processes: accounts
                .by_process()
                .iter()
                .map(|times| row(times, None))
                .collect(),
            of_which_s: OfWhich::new(&system.details),
            followed,
            archive: None,
            waiting: waiting(founder, interval),
            functions: functions(founder, interval),
            cost: cost(elapsed_s, dispatcher.router.bytes_written()),
            next: next_commands(path),
        })
    }

    /// For machines.
    #[must_use]
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }
}

/// What became of the counters' events.
fn counters(inputs: &Inputs) -> Result<Vec<Counter>, Failure> {
    let counter = |(number, request): (u32, &Request)| {
        let counted = inputs.counted(number)?;
        // Each CPU is somewhere between two overflows.
        let left = (request.interval - 1) * inputs.cpus() as u64;
        let told = counted.recorded + counted.lost;
        Ok(Counter {
            name: request.event.name.clone(),
            interval: request.interval,
            events: counted.events,
            recorded: counted.recorded,
            lost: counted.lost,
            untold: counted.events.saturating_sub(told + left),
            share_of_time: match counted.enabled_ns {
                0 => 1.0,
                enabled => counted.running_ns as f64 / enabled as f64,
            },
        })
    };
    (0..).zip(&inputs.counters).map(counter).collect()
}

impl Followed {
    fn arrays(&self) -> u64 {
        self.processes.iter().map(|process| process.arrays).sum()
    }

    fn ticks(&self) -> u64 {
        self.processes.iter().map(|process| process.ticks).sum()
    }
}

/// What came of following processes, where any could be.
fn user(dispatcher: &Dispatcher, table_use: TableUse) -> Option<Followed> {
    let user = dispatcher.user.as_ref()?;
    let processes = dispatcher.router.followed();
    let mut user_stacks = StackCounts::default();
    for process in &processes {
        user_stacks.merge(&process.user_stacks);
    }
    Some(Followed {
        processes,
        user_stacks,
        entries: user.joined(),
        walks: user.resolver.walks,
        table_use,
        tables: user.code.objects.counts,
        losses: FollowLosses {
            stacks: user.resolver.losses,
            unheld: dispatcher.router.not_held,
        },
    })
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
fn functions(founder: &Founder, interval: Interval) -> Vec<Function> {
    let mut by_function: HashMap<(&str, &str), (u64, u64)> = HashMap::new();
    let mut nameless: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    let mut seen = Vec::new();
    for (frames, stack) in &founder.accounts.stacks {
        seen.clear();
        for (depth, pc) in frames
            .iter()
            .enumerate()
            .filter(|(_, pc)| **pc != TRUNCATED)
        {
            let own = if depth == 0 { stack.ticks } else { 0 };
            let place = founder.kernel.symbols.find(*pc);
            let key = place.map(|place| (place.object, place.symbol.name));
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
            own: interval.seconds_of(own),
            total: interval.seconds_of(total),
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

/// Ticks of absences by the function that waited, and the state.
fn waiting(founder: &Founder, interval: Interval) -> Vec<WaitingPlace> {
    let mut places: HashMap<(&str, Microstate), u64> = HashMap::new();
    for (frames, stack) in &founder.accounts.stacks {
        let names = frames
            .iter()
            .filter_map(|pc| founder.kernel.symbols.find(*pc));
        let mut names = names.map(|place| place.symbol.name);
        let name = names.find(|name| !is_scheduler(name)).unwrap_or("?");
        for state in &Microstate::ALL[..Microstate::PER_THREAD] {
            let ticks = stack.away[state.number() as usize];
            if ticks > 0 {
                *places.entry((name, *state)).or_default() += ticks;
            }
        }
    }
    let quiet = |state: Microstate| matches!(state, Microstate::Sleep | Microstate::Stopped);
    let mut places: Vec<_> = places.into_iter().collect();
    places.sort_by_key(|((name, state), ticks)| (quiet(*state), Reverse(*ticks), *name));
    places
        .into_iter()
        .take(TOP_JSON)
        .map(|((name, state), ticks)| WaitingPlace {
            name: name.to_owned(),
            state: state.metric().unwrap_or_default(),
            seconds: interval.seconds_of(ticks),
            ticks,
        })
        .collect()
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
    let states = "e.total:e.user:e.system:e.trap:e.lock:e.sleep:e.wait:e.datapfault:e.kernelpfault";
    vec![
        format!(
            "gprofng display text -metrics e.kcpu:e.%kcpu:i.kcpu:name -limit 20 -functions {path}"
        ),
        format!("gprofng display text -metrics i.kcpu:e.kcpu:name -limit 40 -calltree {path}"),
        format!(
            "gprofng display text -metrics {states}:name -sort e.wait -limit 20 -functions -threads {path}"
        ),
    ]
}
