//! Events of processes: forks, programs that are executed, files that are mapped, exits.

use std::collections::HashSet;

use experiment_format::ids::{Pid, Tid};
use experiment_format::units::Nanos;
use user_collector::jit::is_anonymous;
use user_collector::process::{ProcessInstance, ProcessTable, maps_at_fork};
use user_collector::space::Mapping;

use super::UserSpace;
use crate::record::route::Router;

impl UserSpace {
    /// Records that the load was started.
    pub fn load_started(&mut self, pid: Pid) {
        self.policy.add_load(pid);
        self.traced.load_started(pid);
    }

    /// Records that `parent` forked `pid`, which is in `processes` already.
    pub fn forked(
        &mut self,
        router: &mut Router,
        processes: &ProcessTable,
        (pid, parent): (Pid, Pid),
        at_ns: Nanos,
    ) {
        let parent_is_followed = self.policy.descendants()
            && self
                .tracker
                .with_pid(parent)
                .is_some_and(|process| process.chosen);
        if let Some(previous) = self.tracker.take_number(pid) {
            self.lost_its_number(router, processes, previous, at_ns);
        }
        self.stop_waiting(pid);
        self.code.spaces.forked(pid, parent, at_ns);
        self.policy.forked(pid, parent);
        self.traced.forked(pid, parent);
        self.allocators.forked(pid, parent);
        self.publisher.changed(pid);
        let by_pid = self.policy.names_pid(pid);
        let mapped = self.code.code_areas(pid);
        let makes_code = mapped.iter().any(|mapping| is_anonymous(&mapping.file));
        let known = self.tracker.with_pid(parent);
        let known = known.and_then(|parent| parent.parent_maps.as_deref());
        let parent_maps = if makes_code {
            maps_at_fork(parent, known)
        } else {
            Vec::new()
        };
        let (_, process) = self.tracker.track(processes, pid);
        process.chosen |= by_pid || parent_is_followed;
        process.forked_ns = Some(at_ns);
        process.parent_maps = Some(parent_maps);
    }

    /// Records that another process gets the number of this one. What it did may still wait for its
    /// user stacks; but its mappings are replaced now, so they are written first.
    fn lost_its_number(
        &mut self,
        router: &mut Router,
        processes: &ProcessTable,
        instance: ProcessInstance,
        at_ns: Nanos,
    ) {
        router.begin_if_due(&mut self.process_context(processes), instance, Nanos::MAX);
        if let Some(process) = self.tracker.get_mut(instance) {
            process.exited_ns.get_or_insert(at_ns);
        }
        router.write_mappings(instance, &mut self.code);
    }

    /// Records that `pid` executes another program and has its name.
    pub fn executed(&mut self, router: &mut Router, pid: Pid, name: &[u8], at_ns: Nanos) {
        self.stop_waiting(pid);
        self.code.spaces.executed(pid, at_ns);
        self.policy.executed(pid);
        self.traced.executed(pid);
        self.allocators.executed(pid);
        self.publisher.changed(pid);
        let descent = self.policy.descent(pid);
        let Some(instance) = self.tracker.instance(pid) else {
            return;
        };
        let begun = router.has_subexperiment(instance);
        if let Some(process) = self.tracker.get_mut(instance) {
            let own = process.executed(at_ns);
            if own
                && !begun
                && let Some(first) = &mut process.first
            {
                first.name = name.to_vec();
                first.descent = descent;
            }
        }
        router.executed(instance, at_ns, &self.code.jit);
    }

    /// Records that `pid` maps a file for execution.
    pub fn mapped(&mut self, router: &mut Router, pid: Pid, mapping: Mapping, at_ns: Nanos) {
        // The kernel reports such a file again when its protection changes, with the code in it.
        let made_code = self.code.objects.is_made_code(&mapping.file);
        if let Some(instance) = self.tracker.instance(pid).filter(|_| !made_code) {
            router.mapped(instance, at_ns, &mapping);
        }
        self.code.spaces.mapped(pid, mapping, at_ns);
        self.allocators.changed(pid);
        self.publisher.changed(pid);
    }

    /// Records a process that the snapshot found, with its mappings.
    pub fn found(&mut self, pid: Pid, mappings: Vec<Mapping>, at_ns: Nanos) {
        self.policy.found(pid);
        if !mappings.is_empty() {
            self.code.spaces.found(pid, mappings, at_ns);
            self.allocators.changed(pid);
            self.publisher.changed(pid);
        }
    }

    /// The processes whose mappings have to be read, because stacks have an address in no known
    /// mapping.
    pub fn take_unmapped(&mut self) -> Vec<Pid> {
        self.resolver.unmapped.take_asked()
    }

    /// Adds the mappings of a process that were read from `began_ns` until `now_ns`; None if the
    /// process is gone.
    pub fn mappings_read(
        &mut self,
        pid: Pid,
        began_ns: Nanos,
        now_ns: Nanos,
        mappings: Option<Vec<Mapping>>,
    ) {
        let changed =
            self.resolver
                .mappings_read(&mut self.code, pid, (began_ns, now_ns), mappings);
        if changed {
            self.publisher.changed(pid);
        }
    }

    fn stop_waiting(&mut self, pid: Pid) {
        self.resolver.stop_waiting(pid);
    }

    /// Records that the last thread of `pid` exited.
    pub fn exited(
        &mut self,
        router: &mut Router,
        processes: &ProcessTable,
        pid: Pid,
        at_ns: Nanos,
    ) {
        // While the descriptors of the process are known.
        self.thread_calls_end(router, processes, Tid(pid.0));
        if let Some(instance) = self.tracker.instance(pid)
            && let Some(process) = self.tracker.get_mut(instance)
        {
            process.exited_ns = Some(at_ns);
            router.exited(instance, at_ns, &mut self.code);
        }
        self.traced.exited(pid);
        self.allocators.exited(pid);
    }

    /// Closes the experiments of processes that can have no more records, and drops their state:
    /// they exited before `known_ns`, and all records until that instant have been applied. `lives`
    /// returns whether a process with a number has threads.
    pub fn evict(
        &mut self,
        router: &mut Router,
        processes: &ProcessTable,
        (now_ns, known_ns): (Nanos, Nanos),
        lives: impl Fn(Pid) -> bool,
    ) {
        let finished = self.finished(processes, known_ns, lives);
        for instance in &finished {
            router.begin_if_due(&mut self.process_context(processes), *instance, Nanos::MAX);
        }
        let instances = finished.iter().copied();
        router.sample_exits(&self.tracker, processes, instances, now_ns);
        for instance in finished {
            let exited = self
                .tracker
                .get(instance)
                .and_then(|process| process.exited_ns);
            router.close_subexperiment(
                &mut self.process_context(processes),
                instance,
                exited.unwrap_or(Nanos::ZERO),
            );
            if self.tracker.has_its_number(instance) {
                self.tracker.take_number(instance.pid());
                self.policy.exited(instance.pid());
            }
            self.tracker.evict(instance);
        }
        self.evict_mappings(processes);
    }

    /// Returns the processes that are finished.
    fn finished(
        &self,
        processes: &ProcessTable,
        known_ns: Nanos,
        lives: impl Fn(Pid) -> bool,
    ) -> Vec<ProcessInstance> {
        let awaited: HashSet<Pid> = self.resolver.awaited().collect();
        let may_do_more = |instance: ProcessInstance| {
            let pid = instance.pid();
            let has_number = processes
                .get(pid)
                .is_some_and(|process| process.instance == instance);
            // Its leading thread has exited; the others may live on.
            awaited.contains(&pid) || has_number && lives(pid)
        };
        self.tracker
            .iter()
            .filter(|(_, process)| process.exited_ns.is_some_and(|exited| exited < known_ns))
            .map(|(instance, _)| instance)
            .filter(|instance| !may_do_more(*instance))
            .collect()
    }

    /// Drops the mappings of processes that are no longer tracked, nor in the table.
    fn evict_mappings(&mut self, processes: &ProcessTable) {
        let tracker = &self.tracker;
        let evicted = self
            .code
            .spaces
            .retain(|pid| tracker.instance(pid).is_some() || processes.get(pid).is_some());
        for pid in evicted {
            self.publisher.exited(pid);
            self.anonymous.evict(pid);
            self.stop_waiting(pid);
        }
    }
}
