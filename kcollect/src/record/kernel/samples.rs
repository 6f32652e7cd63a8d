//! Samples: exact times of the whole machine and of every thread, once a second (`-S`).
//!
//! The machine's go into `overview`, where gprofng looks for them, as what all threads did since
//! the recording began. The threads' go into `threads.jsonl`, a file of our own, one JSON object a
//! line, blank lines between them:
//!
//! * a thread that has ended, or changed its state since the last sample, or is told of for the
//!   first time. It has its `pid`, `tid` and `name`; `at_ns`, until when its sums are; `ended`, or
//!   else the `state` it is in and `since_ns`; `tracked_ns`; `states_ns` by state; `detail_ns` and
//!   `counts`. All sums are since it was watched first, those that are 0 are left out. A thread
//!   that has no line at a sample has been in the state of its last line ever since.
//! * `brief`: the number of threads that lived for less than a clock interval and have ended since
//!   the last sample, with their sums. They have no lines of their own: a storm of them would fill
//!   the disk.
//! * `sample`: number, `label`, `at_ns`, the number of `threads` that live, and the sums of all
//!   threads, those that ended included. It follows the lines of its threads.
//!
//! So at each sample the sums of the last lines of all threads and of all `brief` ones are those of
//! the `sample` line, but for the time since the last line, which is in the thread's state. Times
//! are nanoseconds, `at_ns` and `since_ns` since the start of the experiment. The time on a CPU is
//! exact as a whole and split into user, system and trap by ticks.

use std::collections::HashMap;

use bpf_abi::ThreadRecord;
use experiment_format::microstate::Microstate;
use experiment_format::text::printable;
use experiment_format::usage::UsageRecord;
use experiment_format::writer::ExperimentWriter;
use serde::Serialize;
use serde_json::{Map, Value};
use user_collector::process::ProcessInstance;

use super::accounts::Accounts;
use super::times::{Ticks, Times};

/// The file.
const FILE: &str = "threads.jsonl";

/// What samples need to know of each other.
#[derive(Debug)]
pub struct Samples {
    start: u64,
    interval_ns: u64,
    /// Threads that live and have had a line.
    told: HashMap<u64, Told>,
    brief: (u64, Times),
    taken: u32,
    split: Split,
    splits: HashMap<ProcessInstance, Split>,
}

/// What a thread's last line has said.
#[derive(Clone, Copy, Debug)]
struct Told {
    as_of: u64,
    elsewhere: u64,
}

impl Told {
    fn of(thread: &ThreadRecord, times: &Times) -> Told {
        Told {
            as_of: thread.as_of_ns,
            elsewhere: times
                .lived
                .saturating_sub(times.ns[usize::from(thread.state)]),
        }
    }

    /// Whether a thread has done anything but stay in its state since. A change that nobody saw,
    /// and that the scheduler's own sums told of later, does not move the time that its state is
    /// known since.
    fn is_of(self, thread: &ThreadRecord, times: &Times) -> bool {
        thread.since_ns < self.as_of && Told::of(thread, times).elsewhere == self.elsewhere
    }
}

/// Time on a CPU until a sample, split by the ticks of each span between two samples, so that none
/// of the parts shrinks.
#[derive(Debug, Default)]
struct Split {
    on_cpu: u64,
    ticks: Ticks,
    parts: [u64; 3],
}

impl Split {
    fn until(&mut self, times: &Times) -> [u64; 3] {
        let on_cpu = times.ns[Microstate::User.number() as usize];
        let span = Ticks {
            user: times.ticks.user.saturating_sub(self.ticks.user),
            kernel: times.ticks.kernel.saturating_sub(self.ticks.kernel),
            trap: times.ticks.trap.saturating_sub(self.ticks.trap),
        };
        let parts = span.split(on_cpu.saturating_sub(self.on_cpu));
        for (sum, part) in self.parts.iter_mut().zip(parts) {
            *sum += part;
        }
        (self.on_cpu, self.ticks) = (on_cpu.max(self.on_cpu), times.ticks);
        self.parts
    }
}

impl Samples {
    /// `start` is the zero of the experiment's times, CLOCK_MONOTONIC nanoseconds.
    #[must_use]
    pub fn new(start: u64, interval_ns: u64) -> Samples {
        Samples {
            start,
            interval_ns,
            told: HashMap::new(),
            brief: (0, Times::default()),
            taken: 0,
            split: Split::default(),
            splits: HashMap::new(),
        }
    }

    /// Writes what a thread did that has ended.
    ///
    /// # Errors
    /// When the experiment can't be written.
    pub fn ended(
        &mut self,
        writer: &mut ExperimentWriter,
        thread: &ThreadRecord,
        times: &Times,
    ) -> experiment_format::Result<()> {
        let told = self.told.remove(&thread.task).is_some();
        if thread.exited && !told && thread.tracked_ns < self.interval_ns {
            self.brief.0 += 1;
            self.brief.1.add(times);
            return Ok(());
        }
        self.thread(writer, thread, times)
    }

    /// Takes a sample at an instant, of which `accounts` know.
    ///
    /// # Errors
    /// When the experiment can't be written.
    pub fn take(
        &mut self,
        writer: &mut ExperimentWriter,
        accounts: &Accounts,
        at: u64,
        label: &str,
    ) -> experiment_format::Result<()> {
        let mut changed: Vec<_> = accounts
            .living()
            .filter(|(thread, times)| {
                let told = self.told.get(&thread.task);
                told.is_none_or(|told| !told.is_of(thread, times))
            })
            .collect();
        changed.sort_by_key(|(thread, _)| (thread.header.pid, thread.header.tid));
        for (thread, times) in &changed {
            self.told.insert(thread.task, Told::of(thread, times));
            self.thread(writer, thread, times)?;
        }
        let (brief, times) = std::mem::take(&mut self.brief);
        if brief > 0 {
            let mut line = Map::new();
            line.insert("brief".into(), brief.into());
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
        line.insert("at_ns".into(), self.at(at).into());
        line.insert("threads".into(), living.into());
        sums(&mut line, &system, states);
        write(writer, line)?;
        self.taken += 1;
        writer.sample(self.at(at), label, &self.usage(at, &system, states, living))
    }

    /// The records of each process of an instant, for gprofng, by process.
    pub fn of_processes(
        &mut self,
        accounts: &Accounts,
        at: u64,
        instance: impl Fn(u32) -> ProcessInstance,
    ) -> HashMap<ProcessInstance, UsageRecord> {
        let now = accounts.processes_now(instance);
        self.splits.retain(|key, _| now.contains_key(key));
        let mut records = HashMap::new();
        for (key, (times, living)) in now {
            let mut states = times.ns;
            let split = self.splits.entry(key).or_default();
            for (part, ns) in split.until(&times).into_iter().enumerate() {
                states[part] = ns;
            }
            records.insert(key, self.usage(at, &times, states, living));
        }
        records
    }

    /// The record for gprofng. What Linux counts for no thread stays 0: messages, signals, swaps.
    /// Of the system calls it counts those that read and write.
    fn usage(
        &self,
        at: u64,
        system: &Times,
        states: [u64; Microstate::PER_THREAD],
        living: usize,
    ) -> UsageRecord {
        const BLOCK: u64 = 512;
        let counts = system.counts;
        UsageRecord {
            threads: u32::try_from(living).unwrap_or(u32::MAX),
            // A reader assigns ticks to samples by this, not by the time of the sample's event.
            time: at,
            created: self.start,
            real: system.lived,
            states,
            minor_faults: counts.minor_faults,
            major_faults: counts.major_faults,
            blocks_in: counts.read_bytes / BLOCK,
            blocks_out: counts.written_bytes / BLOCK,
            voluntary_switches: counts.voluntary_switches,
            involuntary_switches: counts.involuntary_switches,
            system_calls: counts.read_calls + counts.write_calls,
            io_chars: counts.read_chars + counts.written_chars,
            ..UsageRecord::default()
        }
    }

    fn thread(
        &self,
        writer: &mut ExperimentWriter,
        thread: &ThreadRecord,
        times: &Times,
    ) -> experiment_format::Result<()> {
        let mut line = Map::new();
        line.insert("pid".into(), thread.header.pid.into());
        line.insert("tid".into(), thread.header.tid.into());
        line.insert("name".into(), printable(thread.header.name.bytes()).into());
        line.insert("at_ns".into(), self.at(thread.as_of_ns).into());
        if thread.exited {
            line.insert("ended".into(), true.into());
        } else {
            let on_cpu = u32::from(thread.state) == Microstate::User.number();
            let state = Microstate::ALL[usize::from(thread.state)].metric();
            let state = if on_cpu { Some("cpu") } else { state };
            line.insert("state".into(), state.into());
            line.insert("since_ns".into(), self.at(thread.since_ns).into());
        }
        sums(&mut line, times, times.states());
        write(writer, line)
    }

    fn at(&self, time: u64) -> u64 {
        time.saturating_sub(self.start)
    }
}

fn sums(line: &mut Map<String, Value>, times: &Times, states: [u64; Microstate::PER_THREAD]) {
    let states = Microstate::ALL
        .iter()
        .zip(states)
        .filter(|(_, ns)| *ns > 0)
        .filter_map(|(state, ns)| Some((state.metric()?.to_owned(), ns.into())));
    line.insert("tracked_ns".into(), times.lived.into());
    line.insert("states_ns".into(), Value::Object(states.collect()));
    line.insert("detail_ns".into(), without_zeros(&times.details));
    line.insert("counts".into(), without_zeros(&times.counts));
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

#[cfg(test)]
mod tests {
    use super::*;

    fn until(user: u64, kernel: u64, on_cpu: u64) -> Times {
        let mut times = Times {
            ticks: Ticks {
                user,
                kernel,
                trap: 0,
            },
            ..Times::default()
        };
        times.ns[0] = on_cpu;
        times
    }

    #[test]
    fn no_part_of_the_time_on_a_cpu_shrinks_and_the_sum_is_exact() {
        let mut split = Split::default();
        assert_eq!(split.until(&until(10, 0, 1000)), [1000, 0, 0]);
        // All ticks of this span are in the kernel: by the ticks of the whole run user time would
        // shrink.
        assert_eq!(split.until(&until(10, 30, 1100)), [1000, 100, 0]);
        assert_eq!(split.until(&until(10, 30, 1107)), [1000, 107, 0]);
    }
}
