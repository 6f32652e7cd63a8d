//! The processes of the recording, each of all those that have had its number: when it was forked
//! and exited, whether it is to be followed, and what it was called when that was decided.

use std::collections::BTreeMap;

use experiment_format::ids::Pid;
use experiment_format::units::Nanos;
use rustc_hash::FxHashMap;

use super::{ExitFacts, ParentMap, ProcessInstance, ProcessTable};

/// A process instance that did anything.
#[derive(Debug, Default)]
pub struct TrackedProcess {
    /// Its number.
    pub pid: Pid,
    /// It is to be followed, whatever else it does.
    pub chosen: bool,
    /// It was on a CPU at a tick.
    pub ticked: bool,
    /// When it was forked, nanoseconds. None once it has executed a program, and for processes that
    /// ran before the recording.
    pub forked_ns: Option<Nanos>,
    /// The perf maps of the processes that it was forked from, the oldest first; None if its fork
    /// was not seen.
    pub parent_maps: Option<Vec<ParentMap>>,
    /// The first record that belongs into its experiment, once it was chosen.
    pub first: Option<FirstRecord>,
    /// When its last thread exited, nanoseconds.
    pub exited_ns: Option<Nanos>,
    /// What is known from the exit of the last thread that has exited so far.
    pub at_exit: Option<ExitFacts>,
}

impl TrackedProcess {
    /// Returns whether it may still execute its own program, which names its experiment: it was
    /// forked no longer ago than `EXEC_WAIT_NS`.
    #[must_use]
    pub fn may_execute(&self, now_ns: Nanos) -> bool {
        self.exited_ns.is_none() && self.waits_for_exec(now_ns)
    }

    /// Notes that it executes a program. Returns whether that is its own, which names its
    /// experiment.
    pub fn executed(&mut self, now_ns: Nanos) -> bool {
        let own = self.waits_for_exec(now_ns);
        self.forked_ns = None;
        self.parent_maps = Some(Vec::new());
        // The thread that executes takes the place of the leading one, which was reported to have
        // exited.
        self.exited_ns = None;
        own
    }

    fn waits_for_exec(&self, now_ns: Nanos) -> bool {
        self.forked_ns
            .is_some_and(|forked| now_ns < forked.saturating_add(EXEC_WAIT_NS))
    }
}

/// How long a forked process that was chosen may take to execute its own program before its
/// experiment is named for its parent's, nanoseconds.
const EXEC_WAIT_NS: Nanos = Nanos::from_millis(50);

/// A chosen process at the first record that belongs into its experiment.
#[derive(Clone, Debug)]
pub struct FirstRecord {
    /// The record's time, nanoseconds.
    pub at_ns: Nanos,
    /// The process's name then.
    pub name: Vec<u8>,
    /// Its line of descent from the load, where it has one.
    pub descent: Option<String>,
}

/// All tracked processes, and which of them has which number now.
#[derive(Debug, Default)]
pub struct ProcessTracker {
    tracked: BTreeMap<ProcessInstance, TrackedProcess>,
    instances: FxHashMap<Pid, ProcessInstance>,
}

impl ProcessTracker {
    /// Returns the process that has a number at the instant of the last event, tracked from now on.
    pub fn track(
        &mut self,
        processes: &ProcessTable,
        pid: Pid,
    ) -> (ProcessInstance, &mut TrackedProcess) {
        let instance = instance_of(processes, pid);
        self.instances.insert(pid, instance);
        let process = self.tracked.entry(instance).or_default();
        process.pid = pid;
        (instance, process)
    }

    /// Returns the instance that has a number.
    #[must_use]
    pub fn instance(&self, pid: Pid) -> Option<ProcessInstance> {
        self.instances.get(&pid).copied()
    }

    /// Returns the process that has a number.
    #[must_use]
    pub fn with_pid(&self, pid: Pid) -> Option<&TrackedProcess> {
        self.tracked.get(self.instances.get(&pid)?)
    }

    /// Returns a process instance.
    #[must_use]
    pub fn get(&self, instance: ProcessInstance) -> Option<&TrackedProcess> {
        self.tracked.get(&instance)
    }

    /// Returns a process instance.
    pub fn get_mut(&mut self, instance: ProcessInstance) -> Option<&mut TrackedProcess> {
        self.tracked.get_mut(&instance)
    }

    /// Returns whether a process instance has its number still.
    #[must_use]
    pub fn has_its_number(&self, instance: ProcessInstance) -> bool {
        self.instances.get(&instance.pid()) == Some(&instance)
    }

    /// Takes a number from the process that has it: another one gets it.
    pub fn take_number(&mut self, pid: Pid) -> Option<ProcessInstance> {
        self.instances.remove(&pid)
    }

    /// Drops a process instance.
    pub fn evict(&mut self, instance: ProcessInstance) {
        self.tracked.remove(&instance);
    }

    /// Begins another experiment, in which no process has done anything yet.
    pub fn on_rotation(&mut self) {
        for process in self.tracked.values_mut() {
            process.first = None;
            process.ticked = false;
        }
    }

    /// Returns all tracked processes by instance.
    pub fn iter(&self) -> impl Iterator<Item = (ProcessInstance, &TrackedProcess)> {
        self.tracked
            .iter()
            .map(|(instance, process)| (*instance, process))
    }
}

/// Returns the instance that has a number at the instant of the last event.
#[must_use]
pub fn instance_of(processes: &ProcessTable, pid: Pid) -> ProcessInstance {
    processes
        .get(pid)
        .map_or(ProcessInstance::unknown(pid), |process| process.instance)
}
