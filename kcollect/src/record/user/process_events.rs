//! Events of processes: forks, programs that are executed, files that are mapped, exits.

use std::collections::HashSet;

use experiment_format::ids::{Pid, Tid};
use experiment_format::units::Nanos;
use user_collector::follow::FollowState;
use user_collector::jit::is_anonymous;
use user_collector::process::maps_at_fork;
use user_collector::space::Mapping;

use super::UserSpace;
use crate::record::processes::{Process, Processes, TrackedProcess};
use crate::record::route::Router;

impl UserSpace {
    /// Records that the load was started.
    pub fn load_started(&mut self, pid: Pid) {
        self.policy.add_load(pid);
        self.traced.load_started(pid);
    }

    /// Records that `parent` forked `pid`.
    pub fn forked(&mut self, processes: &mut Processes, (pid, parent): (Pid, Pid), at_ns: Nanos) {
        if let Some(previous) = processes.get_mut(pid) {
            self.traced.exited(previous);
            self.stop_waiting(previous);
        }
        self.allocators.forked(pid, parent);
        self.publisher.changed(pid);
        let mut tracked = TrackedProcess {
            chosen: self.policy.names_pid(pid),
            forked_ns: Some(at_ns),
            parent_maps: Some(Vec::new()),
            ..TrackedProcess::default()
        };
        let mut descriptors = None;
        if let Some(parent) = processes.get_mut(parent) {
            tracked.chosen |= self.policy.descendants() && parent.is_chosen();
            descriptors = self.traced.fork(parent);
            let mapped = self.code.of_process(parent.space_mut()).areas();
            if mapped.iter().any(|mapping| is_anonymous(&mapping.file)) {
                let known = parent.tracked.as_ref();
                let known = known.and_then(|parent| parent.parent_maps.as_deref());
                tracked.parent_maps = Some(maps_at_fork(parent.pid(), known));
            }
        }
        let child = processes.forked(pid, parent, at_ns);
        child.tracked = Some(Box::new(tracked));
        child.descriptors = descriptors;
    }

    /// Records that `pid` executes another program and has its name.
    pub fn executed(
        &mut self,
        router: &mut Router,
        processes: &mut Processes,
        (pid, name): (Pid, &[u8]),
        at_ns: Nanos,
    ) {
        self.memory_ends(router, processes, (pid, name), at_ns);
        self.blocks_end(router, processes, (pid, name), at_ns);
        self.allocators.executed(pid);
        self.publisher.changed(pid);
        let process = processes.known(pid);
        self.traced.executed(process);
        process.stacks.get_or_insert_default();
        self.stop_waiting(process);
        self.policy.executed(pid, &mut process.follow);
        process.executed(name, at_ns, router.has_subexperiment(process.instance));
        router.executed(process.instance, at_ns, &self.code.jit);
    }

    /// Records that `pid` maps a file for execution.
    pub fn mapped(
        &mut self,
        router: &mut Router,
        process: &mut Process,
        mapping: Mapping,
        at_ns: Nanos,
    ) {
        let pid = process.pid();
        // The kernel reports such a file again when its protection changes, with the code in it.
        if !self.code.objects.is_made_code(&mapping.file) {
            router.mapped(process.instance, at_ns, &mapping);
        }
        process.stacks_mut().space.mapped(mapping, at_ns);
        self.allocators.changed(pid);
        self.publisher.changed(pid);
    }

    /// Records a process that the snapshot found, with its mappings.
    pub fn found(&mut self, process: &mut Process, mappings: Vec<Mapping>, at_ns: Nanos) {
        let pid = process.pid();
        self.policy.found(pid, &mut process.follow);
        if !mappings.is_empty() {
            process.stacks_mut().space.found(mappings, at_ns);
            self.allocators.changed(pid);
            self.publisher.changed(pid);
        }
    }

    /// The processes whose mappings have to be read, because stacks have an address in no known
    /// mapping.
    pub fn take_unmapped(&mut self) -> Vec<Pid> {
        self.resolver.take_unread()
    }

    /// Adds the mappings of a process that were read from `began_ns` until `now_ns`; None if the
    /// process is gone.
    pub fn mappings_read(
        &mut self,
        process: &mut Process,
        (began_ns, now_ns): (Nanos, Nanos),
        mappings: Option<Vec<Mapping>>,
    ) {
        let stacks = process.stacks_mut();
        if self
            .resolver
            .mappings_read(stacks, (began_ns, now_ns), mappings)
        {
            self.publisher.changed(process.pid());
        }
    }

    /// Ends the wait of a process's stacks for its mappings.
    pub(super) fn stop_waiting(&mut self, process: &mut Process) {
        let pid = process.pid();
        if let Some(stacks) = &mut process.stacks {
            self.resolver.stop_waiting(pid, stacks);
        }
    }

    /// Records that the last thread of a process exited.
    pub fn exited(
        &mut self,
        router: &mut Router,
        processes: &mut Processes,
        pid: Pid,
        at_ns: Nanos,
    ) {
        // While the descriptors of the process are known.
        self.thread_calls_end(router, processes, Tid(pid.0));
        let process = processes.known(pid);
        process.exited(at_ns);
        if process.tracked.is_some() {
            router.exited(process, at_ns, &mut self.code);
        }
        self.traced.exited(process);
        self.allocators.exited(pid);
    }

    /// Closes the experiments of processes that can have no more records: they exited before
    /// `known_ns`, and all records until that instant have been applied. `lives` returns whether a
    /// process that still has its number has threads.
    pub fn close_exited(
        &mut self,
        router: &mut Router,
        processes: &mut Processes,
        known_ns: Nanos,
        lives: impl Fn(&Process) -> bool,
    ) {
        let awaited: HashSet<Pid> = self.resolver.awaited().collect();
        let is_over = |process: &&Process| {
            let exited_ns = process.exited_ns();
            process.tracked.is_some()
                && exited_ns.is_some_and(|exited_ns| exited_ns < known_ns)
                && !process.awaits_mappings()
                && !awaited.contains(&process.pid())
                // Its leading thread has exited; the others may live on.
                && !(processes.has_its_number(process.instance) && lives(process))
        };
        let over = processes.iter().filter(is_over);
        let mut over: Vec<_> = over.map(|process| process.instance).collect();
        over.sort_unstable();
        for instance in &over {
            router.begin_if_due(&mut self.process_context(processes), *instance, Nanos::MAX);
        }
        router.sample_exits(processes, &over);
        for instance in over {
            let process = processes.instance(instance);
            let exited_ns = process.and_then(Process::exited_ns).unwrap_or(Nanos::ZERO);
            let context = &mut self.process_context(processes);
            router.close_subexperiment(context, instance, exited_ns);
            if let Some(process) = processes.instance_mut(instance) {
                process.tracked = None;
                process.follow = FollowState::default();
            }
        }
    }

    /// Drops what is kept elsewhere of a process that is gone.
    pub fn evicted(&mut self, process: &mut Process) {
        self.publisher.exited(process.pid());
        self.stop_waiting(process);
    }
}
