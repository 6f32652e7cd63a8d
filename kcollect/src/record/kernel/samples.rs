//! Samples: exact times of the whole machine and of every thread, once a second (`-S`).
//!
//! The machine's are written to `overview`, where gprofng reads them, as the sums of all threads
//! since the experiment began. The threads' are written to `threads.jsonl`, a file that gprofng
//! does not read, one JSON object a line, with blank lines between them:
//!
//! * A thread that has exited, has changed its state since its last line, or has no line yet. A
//!   periodic sample skips the line, at most nine times in succession, while the thread has spent
//!   less than 10 ms outside the state of its last line since then ([`PeriodicSamples`]). A line
//!   has its `pid`, `tid` and `name`; `at_ns`, the time up to which its sums reach; `ended`, or
//!   else its `state` and `since_ns`; `tracked_ns`; `states_ns` by state; `detail_ns`; the
//!   blocked times by cause, `lock_cause_ns` of the state lock and `cause_ns` of the others; and
//!   `counts`. All sums are since the thread was first recorded; those that are 0 are left out. A
//!   thread that has no line at a sample is still in the state of its last line, except for these
//!   10 ms. `process` is the name of its process, if it is not the thread's.
//! * `short_lived`: the number of threads that lasted for less than a clock interval and have
//!   exited since the last sample, with their sums: one line for each `process` name, and
//!   `processes`, how many of the threads were the main ones of their processes. They have no
//!   lines of their own, which could fill the disk when a machine starts thousands a second. For
//!   the same reason the line without `process` has all that do not fit into 64 names.
//! * `sample`: number, `label`, `at_ns`, the number of `threads` that have not exited, and the
//!   sums of all threads, exited ones included. It follows the lines of its threads.
//!
//! So at each sample that is not a periodic one, the last lines of all threads and all
//! `short_lived` lines add up to the `sample` line, except for the time since a thread's last
//! line, which is in the state of that line. Times are nanoseconds; `at_ns` and `since_ns`
//! are since the start of the experiment. On-CPU time is exact as a whole and split into user,
//! system and trap by ticks.

use std::collections::{BTreeMap, HashMap};

use bpf_abi::ThreadRecord;
use bpf_abi::layout::CAUSES;
use experiment_format::cause::Cause;
use experiment_format::ids::Pid;
use experiment_format::microstate::Microstate;
use experiment_format::text::printable;
use experiment_format::units::Nanos;
use experiment_format::writer::ExperimentWriter;
use serde::Serialize;
use serde_json::{Map, Value};

use super::accounts::{Accounts, TaskId};
use super::periodic::{PERIODIC, PeriodicSamples};
use super::process_usage::{Split, usage_record};
use super::times::Times;
use crate::record::activity::TypedHeader;

/// The file of the threads' samples.
const FILE: &str = "threads.jsonl";
/// Max number of process names with a line of short-lived threads at one sample.
const MAX_SHORT_LIVED_NAMES: usize = 64;

/// The state of the sample writer: what the previous samples wrote.
#[derive(Debug)]
pub struct Samples {
    start_ns: Nanos,
    tick_interval_ns: Nanos,
    /// Threads that have a line and have not exited.
    last_written: HashMap<TaskId, LastWritten>,
    /// The short-lived threads since the last sample, by the name of their process; the empty name
    /// stands for all others.
    short_lived: BTreeMap<String, ShortLived>,
    taken: u32,
    split: Split,
}

/// The sums of short-lived threads.
#[derive(Debug, Default)]
struct ShortLived {
    threads: u64,
    /// The main threads among them.
    processes: u64,
    times: Times,
}

/// The part of a thread's last line that decides whether it needs another.
#[derive(Clone, Copy, Debug)]
struct LastWritten {
    as_of_ns: Nanos,
    /// The position of the line's state.
    state: usize,
    /// Time in all states but that one.
    other_states_ns: Nanos,
    periodic: PeriodicSamples,
}

impl LastWritten {
    fn of(thread: &ThreadRecord, times: &Times) -> LastWritten {
        let state = usize::from(thread.state);
        let other_states_ns = outside(times, state);
        LastWritten {
            as_of_ns: Nanos(thread.as_of_ns),
            state,
            other_states_ns,
            periodic: PeriodicSamples::written(other_states_ns),
        }
    }

    /// Returns whether the thread has stayed in its state since the line was written. `since_ns`
    /// alone does not show that: a change that was found later, in the scheduler's own sums, does
    /// not move it.
    fn still_holds(&self, thread: &ThreadRecord, times: &Times) -> bool {
        usize::from(thread.state) == self.state
            && Nanos(thread.since_ns) < self.as_of_ns
            && outside(times, self.state) == self.other_states_ns
    }

    /// Returns whether a sample has a line of the thread.
    fn needs_another(&mut self, thread: &ThreadRecord, times: &Times, label: &str) -> bool {
        !self.still_holds(thread, times)
            && (label != PERIODIC || self.periodic.is_due(outside(times, self.state)))
    }
}

/// Returns the time in all states but one.
fn outside(times: &Times, state: usize) -> Nanos {
    times.tracked_ns.saturating_sub(times.ns[state])
}

impl Samples {
    /// Returns the state before the first sample. `start_ns` is the experiment's start,
    /// CLOCK_MONOTONIC nanoseconds.
    #[must_use]
    pub fn new(start_ns: Nanos, tick_interval_ns: Nanos) -> Samples {
        Samples {
            start_ns,
            tick_interval_ns,
            last_written: HashMap::new(),
            short_lived: BTreeMap::new(),
            taken: 0,
            split: Split::default(),
        }
    }

    /// Writes the line of a thread that is no longer recorded, or adds it to the short-lived ones.
    /// `process` is the name of its process.
    ///
    /// # Errors
    /// When the experiment can't be written.
    pub fn ended(
        &mut self,
        writer: &mut ExperimentWriter,
        process: &str,
        thread: &ThreadRecord,
        times: &Times,
    ) -> experiment_format::Result<()> {
        let has_line = self.last_written.remove(&TaskId::of(thread)).is_some();
        if thread.exited && !has_line && Nanos(thread.tracked_ns) < self.tick_interval_ns {
            let fits = self.short_lived.len() < MAX_SHORT_LIVED_NAMES
                || self.short_lived.contains_key(process);
            let name = if fits { process } else { "" };
            let sums = self.short_lived.entry(name.to_owned()).or_default();
            sums.threads += 1;
            sums.processes += u64::from(thread.header.pid().leader() == thread.header.tid());
            sums.times.add(times);
            return Ok(());
        }
        self.thread(writer, process, thread, times)
    }

    /// Writes the sample of an instant; `accounts` are complete up to it. `process` returns the
    /// name of the process that has a pid now.
    ///
    /// # Errors
    /// When the experiment can't be written.
    pub fn take(
        &mut self,
        writer: &mut ExperimentWriter,
        accounts: &Accounts,
        process: impl Fn(Pid) -> String,
        at_ns: Nanos,
        label: &str,
    ) -> experiment_format::Result<()> {
        let mut changed: Vec<_> = accounts
            .living()
            .filter(|(thread, times)| {
                let last = self.last_written.get_mut(&TaskId::of(thread));
                last.is_none_or(|last| last.needs_another(thread, times, label))
            })
            .collect();
        changed.sort_by_key(|(thread, _)| (thread.header.pid(), thread.header.tid()));
        for (thread, times) in &changed {
            self.last_written
                .insert(TaskId::of(thread), LastWritten::of(thread, times));
            self.thread(writer, &process(thread.header.pid()), thread, times)?;
        }
        for (process, short_lived) in std::mem::take(&mut self.short_lived) {
            let mut line = Map::new();
            line.insert("short_lived".into(), short_lived.threads.into());
            line.insert("processes".into(), short_lived.processes.into());
            if !process.is_empty() {
                line.insert("process".into(), process.into());
            }
            let times = short_lived.times;
            sums(&mut line, &times, times.states());
            write(writer, line)?;
        }

        let (system, living) = accounts.system();
        let mut states = system.ns;
        for (part, ns) in self.split.until(&system).into_iter().enumerate() {
            states[part] = ns;
        }
        let mut line = Map::new();
        line.insert("sample".into(), self.taken.into());
        line.insert("label".into(), label.into());
        line.insert("at_ns".into(), self.at(at_ns).0.into());
        line.insert("threads".into(), living.into());
        sums(&mut line, &system, states);
        write(writer, line)?;
        self.taken += 1;
        let usage = usage_record(self.start_ns, at_ns, &system, states, living);
        writer.sample(self.at(at_ns), label, &usage)
    }

    fn thread(
        &self,
        writer: &mut ExperimentWriter,
        process: &str,
        thread: &ThreadRecord,
        times: &Times,
    ) -> experiment_format::Result<()> {
        let mut line = Map::new();
        line.insert("pid".into(), thread.header.pid().0.into());
        line.insert("tid".into(), thread.header.tid().0.into());
        let name = printable(thread.header.name.bytes());
        if process != name {
            line.insert("process".into(), process.into());
        }
        line.insert("name".into(), name.into());
        line.insert("at_ns".into(), self.at(Nanos(thread.as_of_ns)).0.into());
        if thread.exited {
            line.insert("ended".into(), true.into());
        } else {
            let on_cpu = u32::from(thread.state) == Microstate::User.number();
            let state = Microstate::ALL[usize::from(thread.state)].metric();
            let state = if on_cpu { Some("cpu") } else { state };
            line.insert("state".into(), state.into());
            line.insert("since_ns".into(), self.at(Nanos(thread.since_ns)).0.into());
        }
        sums(&mut line, times, times.states());
        write(writer, line)
    }

    fn at(&self, time_ns: Nanos) -> Nanos {
        time_ns.saturating_sub(self.start_ns)
    }
}

fn sums(line: &mut Map<String, Value>, times: &Times, states: [Nanos; Microstate::PER_THREAD]) {
    let states = Microstate::ALL
        .iter()
        .zip(states)
        .filter(|(_, ns)| *ns > Nanos::ZERO)
        .filter_map(|(state, ns)| Some((state.metric()?.to_owned(), ns.0.into())));
    line.insert("tracked_ns".into(), times.tracked_ns.0.into());
    line.insert("states_ns".into(), Value::Object(states.collect()));
    line.insert("detail_ns".into(), without_zeros(&times.details));
    line.insert("cause_ns".into(), by_cause(&times.causes.other));
    line.insert("lock_cause_ns".into(), by_cause(&times.causes.lock));
    line.insert("counts".into(), without_zeros(&times.counts));
}

/// Returns the times that are not 0 by the keywords of their causes.
fn by_cause(times: &[u64; CAUSES]) -> Value {
    let times = Cause::ALL.iter().zip(times).filter(|(_, ns)| **ns > 0);
    Value::Object(
        times
            .map(|(cause, ns)| (cause.keyword().to_owned(), (*ns).into()))
            .collect(),
    )
}

fn without_zeros(sums: &impl Serialize) -> Value {
    let mut value = serde_json::to_value(sums).unwrap_or_default();
    if let Value::Object(sums) = &mut value {
        sums.retain(|_, sum| sum != 0);
    }
    value
}

fn write(writer: &mut ExperimentWriter, line: Map<String, Value>) -> experiment_format::Result<()> {
    writer.side_line(FILE, &format!("{}\n", Value::Object(line)))
}
