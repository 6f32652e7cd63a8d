//! Exact times of threads, in nanoseconds, from the founder's `threads.jsonl`.
//!
//! A thread without a line at the last sample has stayed in the state of its last line, and gets
//! the rest of the time in that state; on a CPU, as user time. Experiments of other collectors have
//! no such file.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use experiment_format::Error;
use experiment_format::cause::{Cause, WaitKind};
use experiment_format::ids::{Pid, Tid};
use experiment_format::microstate::Microstate;
use experiment_format::reader::Experiment;
use experiment_format::units::Nanos;
use rustc_hash::FxHashMap;
use serde::Deserialize;

/// The file's name in the founder's directory.
const THREADS_FILE: &str = "threads.jsonl";

/// Nanoseconds by state, indexed by the state's number.
pub type States = [Nanos; Microstate::PER_THREAD];

/// Details of the times in some states, in nanoseconds; the fields are keys of `threads.jsonl`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct DetailTimes {
    /// The part of the time blocked, in any state, that was block I/O.
    #[serde(rename = "block_io")]
    pub block_io_ns: Nanos,
    /// The part of the wait for a CPU that began with preemption or a yield.
    #[serde(rename = "preempted")]
    pub preempted_ns: Nanos,
    /// The part of the wait for a CPU that began because a cgroup's quota was used up.
    #[serde(rename = "throttled")]
    pub throttled_ns: Nanos,
    /// The part of the wait for a CPU in which the hypervisor ran something else.
    #[serde(rename = "stolen")]
    pub stolen_ns: Nanos,
}

impl DetailTimes {
    /// Adds other details.
    pub fn add(&mut self, other: &DetailTimes) {
        for (own, other) in [
            (&mut self.block_io_ns, other.block_io_ns),
            (&mut self.preempted_ns, other.preempted_ns),
            (&mut self.throttled_ns, other.throttled_ns),
            (&mut self.stolen_ns, other.stolen_ns),
        ] {
            *own = own.saturating_add(other);
        }
    }
}

/// Blocked times by cause, nanoseconds, indexed by [`Cause::number`].
pub type Causes = [Nanos; Cause::COUNT];

/// Exact times of a thread, or the sum of several.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ExactSums {
    /// Nanoseconds by state, since the recording began.
    pub states: States,
    /// Details of the times in some states.
    pub detail: DetailTimes,
    /// Blocked times by cause, in the state lock.
    pub lock_causes: Causes,
    /// Blocked times by cause, in sleep and in page faults.
    pub other_causes: Causes,
}

impl ExactSums {
    /// Adds other times.
    pub fn add(&mut self, other: &ExactSums) {
        add(&mut self.states, &other.states);
        self.detail.add(&other.detail);
        add(&mut self.lock_causes, &other.lock_causes);
        add(&mut self.other_causes, &other.other_causes);
    }

    /// Returns the time blocked for a cause, in any state, nanoseconds.
    #[must_use]
    pub fn of_cause(&self, cause: Cause) -> Nanos {
        let at = cause as usize;
        self.lock_causes[at].saturating_add(self.other_causes[at])
    }

    /// Returns the time blocked in waits of one kind, nanoseconds. The three kinds add up to the
    /// states lock, sleep and the page faults.
    #[must_use]
    pub fn of_kind(&self, kind: WaitKind) -> Nanos {
        let causes = Cause::ALL.into_iter().filter(|cause| cause.kind() == kind);
        sum(causes.map(|cause| self.of_cause(cause)))
    }

    /// Adds time in the state at a position, which had not ended and had lasted for `open_ns`. Only
    /// the account of its cause can have as much: if there is one alone, it gets the rest.
    fn continue_in(&mut self, slot: usize, open_ns: Nanos, ns: Nanos) {
        use Microstate::{DataFault, KernelFault, Sleep, TextFault, UserLock};
        let state = &mut self.states[slot];
        *state = state.saturating_add(ns);
        let is = |states: &[Microstate]| states.iter().any(|state| *state as usize == slot);
        let causes = if is(&[UserLock]) {
            &mut self.lock_causes
        } else if is(&[Sleep, TextFault, DataFault, KernelFault]) {
            &mut self.other_causes
        } else {
            return;
        };
        let mut holders = (0..).zip(causes.iter()).filter(|(_, ns)| **ns >= open_ns);
        let cause = match (holders.next(), holders.next()) {
            (Some((at, _)), None) if open_ns > Nanos::ZERO => at,
            _ => Cause::NotEnded as usize,
        };
        causes[cause] = causes[cause].saturating_add(ns);
    }

    /// Returns the nanoseconds of a state.
    #[must_use]
    pub fn of(&self, state: Microstate) -> Nanos {
        self.states[state as usize]
    }

    /// Returns the part of the wait for a CPU that began with a wake-up, nanoseconds.
    #[must_use]
    pub fn after_wakeup(&self) -> Nanos {
        let detail = &self.detail;
        let others = sum([detail.preempted_ns, detail.throttled_ns, detail.stolen_ns]);
        self.of(Microstate::WaitCpu).saturating_sub(others)
    }

    /// Returns the time by which rows are ordered, nanoseconds: on a CPU, waiting for one, in page
    /// faults, and for block I/O. Locks and sleep are mostly intended: a thousand idle threads
    /// would come before the one that has work.
    #[must_use]
    pub fn busy_ns(&self) -> Nanos {
        use Microstate::{DataFault, KernelFault, System, TextFault, Trap, User, WaitCpu};
        let of = |states: &[Microstate]| sum(states.iter().map(|state| self.of(*state)));
        let faults = of(&[TextFault, DataFault, KernelFault]);
        // Most of the time of a page fault that blocks is block I/O.
        sum([
            of(&[User, System, Trap, WaitCpu]),
            faults.max(self.detail.block_io_ns),
        ])
    }

    /// Returns why threads that had work did not run, in seconds, the largest part first: parts of
    /// at least a twentieth of the busy time.
    #[must_use]
    pub fn held_up(&self) -> String {
        let mut parts = [
            (self.detail.throttled_ns, "throttled"),
            (self.detail.preempted_ns, "preempted"),
            (self.detail.stolen_ns, "stolen"),
            (self.after_wakeup(), "after wake-up"),
            (self.detail.block_io_ns, "block I/O"),
        ];
        parts.sort_by_key(|(ns, _)| Reverse(*ns));
        let least = (self.busy_ns() / 20).max(Nanos::from_millis(1));
        let parts = parts.iter().filter(|(ns, _)| *ns >= least);
        let parts = parts.map(|(ns, why)| format!("{why} {:.3}", ns.as_secs_f64()));
        parts.collect::<Vec<_>>().join(", ")
    }
}

/// The exact times of one thread.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ThreadTimes {
    /// Its pid.
    pub pid: Pid,
    /// Its tid.
    pub tid: Tid,
    /// Its last name.
    pub name: String,
    /// The name of its process.
    pub process: String,
    /// Its times.
    pub times: ExactSums,
    /// Whether it exited during the recording.
    pub ended: bool,
}

/// The threads of processes of one name that lasted for less than an interval, and so have no line
/// of their own.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ShortLived {
    /// The name of the processes. Empty: several.
    pub process: String,
    /// The number of threads.
    pub threads: u64,
    /// The number of main threads among them.
    pub processes: u64,
    /// Their times, all together.
    pub times: ExactSums,
}

/// The exact times of all threads of an experiment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExactTimes {
    /// The threads, in the order of their first lines.
    pub threads: Vec<ThreadTimes>,
    /// The short-lived threads, by the name of their process.
    pub short_lived: Vec<ShortLived>,
}

/// A line of the file: of a thread, of short-lived threads, or of a sample.
#[derive(Deserialize)]
pub(super) struct ThreadLine<'a> {
    pub(super) pid: Option<Pid>,
    pub(super) tid: Option<Tid>,
    #[serde(borrow)]
    name: Option<std::borrow::Cow<'a, str>>,
    pub(super) at_ns: Option<Nanos>,
    /// When the state that it is in began.
    since_ns: Option<Nanos>,
    #[serde(default)]
    pub(super) ended: bool,
    #[serde(borrow)]
    state: Option<std::borrow::Cow<'a, str>>,
    pub(super) short_lived: Option<u64>,
    #[serde(default)]
    processes: u64,
    #[serde(borrow)]
    process: Option<std::borrow::Cow<'a, str>>,
    /// The number of a sample.
    pub(super) sample: Option<u64>,
    #[serde(default)]
    states_ns: StateTimes,
    #[serde(default)]
    detail_ns: DetailTimes,
    #[serde(default)]
    lock_cause_ns: CauseTimes,
    #[serde(default)]
    cause_ns: CauseTimes,
}

/// Nanoseconds by cause; the fields are the keywords of the causes.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
struct CauseTimes {
    undecided: Nanos,
    device: Nanos,
    kernel: Nanos,
    lock: Nanos,
    child: Nanos,
    write: Nanos,
    thread_end: Nanos,
    answer: Nanos,
    middle: Nanos,
    timer: Nanos,
    outside: Nanos,
    new_work: Nanos,
    not_ended: Nanos,
}

impl CauseTimes {
    fn by_number(&self) -> Causes {
        [
            self.undecided,
            self.device,
            self.kernel,
            self.lock,
            self.child,
            self.write,
            self.thread_end,
            self.answer,
            self.middle,
            self.timer,
            self.outside,
            self.new_work,
            self.not_ended,
        ]
    }
}

/// Nanoseconds by state; the fields are the keywords of the states' metrics.
#[derive(Default, Deserialize)]
#[serde(default)]
struct StateTimes {
    user: Nanos,
    system: Nanos,
    trap: Nanos,
    textpfault: Nanos,
    datapfault: Nanos,
    kernelpfault: Nanos,
    lock: Nanos,
    sleep: Nanos,
    wait: Nanos,
    stop: Nanos,
}

impl ThreadLine<'_> {
    /// Returns the nanoseconds of each state.
    pub(super) fn states(&self) -> States {
        let of = &self.states_ns;
        [
            of.user,
            of.system,
            of.trap,
            of.textpfault,
            of.datapfault,
            of.kernelpfault,
            of.lock,
            of.sleep,
            of.wait,
            of.stop,
        ]
    }

    /// Returns the times of the line.
    fn times(&self) -> ExactSums {
        ExactSums {
            states: self.states(),
            detail: self.detail_ns,
            lock_causes: self.lock_cause_ns.by_number(),
            other_causes: self.cause_ns.by_number(),
        }
    }

    /// Returns the name of the process.
    pub(super) fn process(&self) -> &str {
        let own = self.process.as_deref();
        own.or(self.name.as_deref()).unwrap_or_default()
    }

    /// Returns the position of the state that the thread is in.
    pub(super) fn slot(&self) -> usize {
        let states = &Microstate::ALL[..Microstate::PER_THREAD];
        let found = states
            .iter()
            .position(|state| state.metric() == self.state.as_deref());
        found.unwrap_or(Microstate::User as usize)
    }
}

/// Reads the file. None: the experiment has none.
///
/// # Errors
/// When the file cannot be read.
pub(super) fn read(source: &Experiment) -> Result<Option<Vec<u8>>, Error> {
    source.side_file(THREADS_FILE)
}

/// Returns the lines of the file. Those that do not parse are skipped, since the last may be cut.
pub(super) fn lines(bytes: &[u8]) -> impl Iterator<Item = ThreadLine<'_>> {
    let lines = bytes.split(|byte| *byte == b'\n');
    lines.filter_map(|line| serde_json::from_slice(line).ok())
}

impl ExactTimes {
    /// Reads the times of an experiment. None: it has none.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn read(source: &Experiment) -> Result<Option<ExactTimes>, Error> {
        let bytes = read(source)?;
        Ok(bytes.map(|bytes| ExactTimes::parse(&bytes)))
    }

    fn parse(bytes: &[u8]) -> ExactTimes {
        let mut times = ExactTimes::default();
        // Threads that have not exited: position, state, for how long they have been in it, and the
        // time of their last line.
        let mut running: FxHashMap<(Pid, Tid), (usize, usize, Nanos, Nanos)> = FxHashMap::default();
        let mut short_lived: BTreeMap<String, ShortLived> = BTreeMap::new();
        let mut end_ns = Nanos::ZERO;
        for line in lines(bytes) {
            let at_ns = line.at_ns.unwrap_or_default();
            end_ns = end_ns.max(at_ns);
            let sums = line.times();
            let process = line.process.as_deref();
            if let Some(threads) = line.short_lived {
                let process = process.unwrap_or_default();
                let known = short_lived.entry(process.to_owned()).or_default();
                known.threads = known.threads.saturating_add(threads);
                known.processes = known.processes.saturating_add(line.processes);
                known.times.add(&sums);
            }
            let (Some(pid), Some(tid)) = (line.pid, line.tid) else {
                continue;
            };
            let next = times.threads.len();
            let known = running.remove(&(pid, tid));
            let position = known.map_or(next, |(position, ..)| position);
            if position == next {
                times.threads.push(ThreadTimes::default());
            }
            let name = line.name.as_deref().unwrap_or_default();
            times.threads[position] = ThreadTimes {
                pid,
                tid,
                name: name.to_owned(),
                process: process.unwrap_or(name).to_owned(),
                times: sums,
                ended: line.ended,
            };
            if !line.ended {
                let open_ns = at_ns.saturating_sub(line.since_ns.unwrap_or(at_ns));
                running.insert((pid, tid), (position, line.slot(), open_ns, at_ns));
            }
        }
        for (position, slot, open_ns, at_ns) in running.into_values() {
            let left_ns = end_ns.saturating_sub(at_ns);
            let times = &mut times.threads[position].times;
            times.continue_in(slot, open_ns, left_ns);
        }
        let named = |(process, sums)| ShortLived { process, ..sums };
        times.short_lived = short_lived.into_iter().map(named).collect();
        times
    }
}

/// Adds times to others by position.
pub fn add<const COUNT: usize>(to: &mut [Nanos; COUNT], others: &[Nanos; COUNT]) {
    for (to, ns) in to.iter_mut().zip(others) {
        *to = to.saturating_add(*ns);
    }
}

/// Returns the sum of numbers that a file may claim, at most the largest number.
#[must_use]
pub fn sum(parts: impl IntoIterator<Item = Nanos>) -> Nanos {
    parts.into_iter().fold(Nanos::ZERO, Nanos::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_last_line_of_a_thread_counts_and_the_rest_is_in_its_state() {
        let times = ExactTimes::parse(
            br#"
{"pid":7,"tid":7,"name":"a","at_ns":100,"state":"sleep","since_ns":40,"states_ns":{"user":60,"sleep":40}}

{"sample":0,"at_ns":100}
{"pid":7,"tid":8,"name":"b","process":"p","at_ns":150,"ended":true,"states_ns":{"lock":50}}
{"short_lived":3,"states_ns":{"user":5}}
{"short_lived":2,"processes":1,"process":"true","states_ns":{"user":7},"detail_ns":{"preempted":2}}
{"sample":1,"at_ns":200}
{"short_lived":1,"processes":1,"process":"true","states_ns":{"user":1}}
{"pid":7,"tid":8,"name":"again","at_ns":210,"state":"cpu","states_ns":{"wait":1}}
{"sample":2,"at_ns":300}
{"pid":7,"tid":"#,
        );
        let rows: Vec<_> = times
            .threads
            .iter()
            .map(|thread| {
                (
                    thread.name.as_str(),
                    thread.process.as_str(),
                    thread.times.states,
                )
            })
            .collect();
        let mut states = [[Nanos::ZERO; 10]; 3];
        (states[0][0], states[0][7]) = (Nanos(60), Nanos(240));
        states[1][6] = Nanos(50);
        (states[2][0], states[2][8]) = (Nanos(90), Nanos(1));
        assert_eq!(
            rows,
            [
                ("a", "a", states[0]),
                ("b", "p", states[1]),
                ("again", "again", states[2])
            ]
        );
        let short_lived: Vec<_> = times
            .short_lived
            .iter()
            .map(|row| {
                (
                    &*row.process,
                    row.threads,
                    row.processes,
                    row.times.states[0],
                )
            })
            .collect();
        assert_eq!(
            short_lived,
            [("", 3, 0, Nanos(5)), ("true", 3, 2, Nanos(8))]
        );
        assert_eq!(times.short_lived[1].times.detail.preempted_ns, Nanos(2));
    }

    #[test]
    fn a_wait_that_goes_on_keeps_its_cause_if_only_one_can_be_it() {
        let times = ExactTimes::parse(
            br#"
{"pid":7,"tid":7,"at_ns":100,"state":"sleep","since_ns":40,"states_ns":{"sleep":90},"cause_ns":{"timer":30,"child":60}}
{"pid":7,"tid":8,"at_ns":100,"state":"sleep","since_ns":80,"states_ns":{"sleep":90},"cause_ns":{"timer":30,"child":60}}
{"pid":7,"tid":9,"at_ns":100,"state":"lock","since_ns":50,"states_ns":{"lock":50},"lock_cause_ns":{"lock":50}}
{"sample":1,"at_ns":200}
"#,
        );
        let of = |thread: usize, cause| times.threads[thread].times.of_cause(cause);
        assert_eq!(
            (of(0, Cause::Child), of(0, Cause::Timer)),
            (Nanos(160), Nanos(30))
        );
        assert_eq!(
            (of(1, Cause::Child), of(1, Cause::NotEnded)),
            (Nanos(60), Nanos(100))
        );
        assert_eq!(of(2, Cause::Lock), Nanos(150));
    }

    proptest! {
        #[test]
        fn any_bytes_are_taken(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = ExactTimes::parse(&bytes);
        }
    }
}
