//! The processes of a recording, each with all its state, as they are at the last event.
//!
//! A process has the name of its leading thread: what `ps` shows, at most 15 bytes, changed by exec
//! and by `prctl(PR_SET_NAME)`. Events must come in time order. A process that has exited keeps its
//! name until its number is used again, because its last time in the kernel comes after the exit
//! record.
//!
//! The side-band comes before the snapshot: its records have exact times. A snapshot entry only
//! adds what the side-band has not reported.

mod process;

use std::collections::BTreeMap;

use experiment_format::ids::Pid;
use experiment_format::units::Nanos;
use rustc_hash::FxHashMap;
use user_collector::follow::{Candidate, FollowPolicy};
use user_collector::process::ProcessInstance;
use user_collector::space::{AddressSpace, Mapping};

pub use self::process::{FirstRecord, Process, ProcessName, TrackedProcess};

/// Max parents that count as relatives of a process.
const MAX_RELATIVES: usize = 3;

/// All processes of the recording.
#[derive(Debug, Default)]
pub struct Processes {
    by_pid: FxHashMap<Pid, Box<Process>>,
    /// Processes whose pid another one has by now, with the time since when: records of what they
    /// did may still come.
    previous: BTreeMap<ProcessInstance, (Nanos, Box<Process>)>,
    last_instance_number: u64,
}

impl Processes {
    /// Returns the process that had the number `pid` at the last event.
    #[must_use]
    pub fn get(&self, pid: Pid) -> Option<&Process> {
        self.by_pid.get(&pid).map(|process| &**process)
    }

    /// Returns the process that had the number `pid` at the last event.
    pub fn get_mut(&mut self, pid: Pid) -> Option<&mut Process> {
        self.by_pid.get_mut(&pid).map(|process| &mut **process)
    }

    /// Returns the process that had the number `pid` at the last event. Creates one with nothing
    /// but the number if there is none.
    pub fn known(&mut self, pid: Pid) -> &mut Process {
        let last_instance_number = &mut self.last_instance_number;
        self.by_pid.entry(pid).or_insert_with(|| {
            *last_instance_number += 1;
            Box::new(Process::new(ProcessInstance::new(
                pid,
                *last_instance_number,
            )))
        })
    }

    /// Returns the instance that had the number `pid` at the last event.
    #[must_use]
    pub fn instance_of(&self, pid: Pid) -> ProcessInstance {
        instance_of(self.get(pid), pid)
    }

    /// Returns the process of an instance, also if another process has its pid by now.
    #[must_use]
    pub fn instance(&self, instance: ProcessInstance) -> Option<&Process> {
        let holder = self.get(instance.pid());
        let previous = || self.previous.get(&instance).map(|(_, process)| &**process);
        holder
            .filter(|process| process.instance == instance)
            .or_else(previous)
    }

    /// Returns the process of an instance, also if another process has its pid by now.
    pub fn instance_mut(&mut self, instance: ProcessInstance) -> Option<&mut Process> {
        if let Some(holder) = self.by_pid.get_mut(&instance.pid())
            && holder.instance == instance
        {
            return Some(holder);
        }
        let previous = self.previous.get_mut(&instance);
        previous.map(|(_, process)| &mut **process)
    }

    /// Returns what an instance has mapped, if anything is known of it.
    pub fn space_mut(&mut self, instance: ProcessInstance) -> Option<&mut AddressSpace> {
        self.instance_mut(instance)?.space_mut()
    }

    /// Whether an instance has its number still.
    #[must_use]
    pub fn has_its_number(&self, instance: ProcessInstance) -> bool {
        let holder = self.get(instance.pid());
        holder.is_some_and(|process| process.instance == instance)
    }

    /// Whether the process that had the number `pid` at the last event is followed, or may be
    /// without another name.
    #[must_use]
    pub fn may_follow(&self, policy: &FollowPolicy, pid: Pid) -> bool {
        match self.get(pid) {
            Some(process) => process.may_be_followed(policy),
            None => policy.may_follow(&Candidate::unknown(pid), false),
        }
    }

    /// Returns what the processes have mapped.
    pub fn mappings(&self) -> impl Iterator<Item = (Pid, &Mapping)> {
        self.iter().flat_map(|process| {
            let stacks = process.stacks.iter();
            let mappings = stacks.flat_map(|stacks| stacks.space.mappings());
            mappings.map(|mapping| (process.pid(), mapping))
        })
    }

    /// Returns the numbers of the processes that are likely to see the same files: the parents.
    #[must_use]
    pub fn relatives(&self, pid: Pid) -> Vec<Pid> {
        let parent = |pid: Pid| self.get(pid).and_then(|process| process.parent);
        std::iter::successors(parent(pid), |pid| parent(*pid))
            .take(MAX_RELATIVES)
            .collect()
    }

    /// Returns all processes.
    pub fn iter(&self) -> impl Iterator<Item = &Process> {
        let previous = self.previous.values().map(|(_, process)| &**process);
        let holders = self.by_pid.values().map(|process| &**process);
        holders.chain(previous)
    }

    /// Returns all processes.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Process> {
        let previous = self.previous.values_mut();
        let previous = previous.map(|(_, process)| &mut **process);
        let holders = self.by_pid.values_mut().map(|process| &mut **process);
        holders.chain(previous)
    }

    /// Records that `parent` forked `pid`. Returns the child.
    pub fn forked(&mut self, pid: Pid, parent: Pid, at_ns: Nanos) -> &mut Process {
        self.last_instance_number += 1;
        let instance = ProcessInstance::new(pid, self.last_instance_number);
        let mut child = match self.get_mut(parent) {
            Some(parent) => parent.fork(instance, at_ns),
            None => Process::new(instance),
        };
        child.parent = Some(parent);
        if let Some(mut previous) = self.by_pid.remove(&pid) {
            previous.replaced(at_ns);
            let instance = previous.instance;
            self.previous.insert(instance, (at_ns, previous));
        }
        self.by_pid.entry(pid).or_insert_with(|| Box::new(child))
    }

    /// Removes the processes that exited before `at_ns`, or whose number was used again by then,
    /// and whose experiments are closed. A process whose leading thread exited first lives in its
    /// other threads: one with a number that is `still_there` stays. Returns those that had their
    /// numbers until now.
    pub fn evict(
        &mut self,
        at_ns: Nanos,
        mut still_there: impl FnMut(Pid) -> bool,
    ) -> Vec<Box<Process>> {
        let is_over = |process: &Process| {
            let exited_ns = process.exited_ns();
            process.tracked.is_none() && exited_ns.is_some_and(|exited_ns| exited_ns < at_ns)
        };
        let evicted = self
            .by_pid
            .extract_if(|pid, process| is_over(process) && !still_there(*pid));
        let evicted = evicted.map(|(_, process)| process).collect();
        self.previous
            .retain(|_, (since_ns, process)| *since_ns >= at_ns || process.tracked.is_some());
        evicted
    }
}

/// Returns the instance of the process with a pid, of which nothing may be known.
#[must_use]
pub fn instance_of(process: Option<&Process>, pid: Pid) -> ProcessInstance {
    process.map_or(ProcessInstance::unknown(pid), |process| process.instance)
}

#[cfg(test)]
mod tests;
