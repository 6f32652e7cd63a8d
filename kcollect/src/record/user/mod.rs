//! User space: the processes, what they have mapped, and the user stacks of what their threads did.
//!
//! A state interval waits in the [join](user_collector::join) for the user stack that is captured
//! when its thread returns to user mode, and so does an event. Complete ones go to the
//! [router](super::route), which chooses the experiment. Four parts have one task each: the
//! [tracker] has the processes, the [policy] decides which of them are followed, the [resolver]
//! unwinds their stacks, and the [publisher] writes the BPF maps.
//!
//! [tracker]: user_collector::process::ProcessTracker
//! [policy]: user_collector::follow::FollowPolicy
//! [resolver]: super::user_stacks::resolve_stack
//! [publisher]: super::user_stacks::publish

mod allocators;
mod process_events;
mod traced_calls;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bpf::Programs;
use bpf_abi::layout::COPIED_CODE_DEVICE;
use bpf_abi::unwind::UnwindEnd;
use bpf_abi::{CodeFile, ThreadRecord, UserReturnRecord};
use experiment_format::ids::{Pid, Tid};
use experiment_format::units::Nanos;
use host::machine;
use user_collector::files::TimedOpener;
use user_collector::follow::FollowPolicy;
use user_collector::follow::FollowRule;
use user_collector::join::{Join, JoinCounts};
use user_collector::loaded_code::LoadedCode;
use user_collector::objects::{CopiedCode, LoadObjects, copied_code};
use user_collector::process::{CgroupNames, ExitFacts, FirstRecord, ProcessTracker, instance_of};
use user_collector::process::{ProcessInstance, ProcessTable};

use self::allocators::TracedAllocators;
pub use self::allocators::{BlockSampling, ProbeCounts};
use self::traced_calls::TracedProcesses;
use super::activity::ThreadActivity;
use super::input::inputs::MissingTable;
use super::input::snapshot;
use super::route::{ProcessContext, Router};
use super::user_stacks::copied_code::AnonymousCode;
use super::user_stacks::publish::TablePublisher;
use super::user_stacks::resolve_stack::{StackLosses, StackResolver, UnwindCounts, relatives};
use super::user_stacks::user_stack::UserStack;
use crate::record::activity::TypedHeader;

/// Max wait for the unwind tables of running code before recording starts.
const MAX_TABLES_WAIT: Duration = Duration::from_millis(500);

/// The processes, what they have mapped, and what waits for user stacks.
#[derive(Debug)]
pub struct UserSpace {
    tracker: ProcessTracker,
    /// Control groups, for processes that exit before their own is read.
    cgroups: CgroupNames,
    policy: FollowPolicy,
    /// What is mapped.
    pub code: LoadedCode,
    /// User stacks.
    pub resolver: StackResolver,
    publisher: TablePublisher,
    anonymous: AnonymousCode,
    /// Reads the memory of processes and the files of their code.
    opener: TimedOpener,
    join: Join<ThreadActivity, UserStack>,
    traced: TracedProcesses,
    allocators: TracedAllocators,
}

impl UserSpace {
    /// Returns user space without a process. Without `sampling` allocators are not traced.
    #[must_use]
    pub fn new(
        rule: FollowRule,
        objects: LoadObjects,
        sampling: Option<BlockSampling>,
    ) -> UserSpace {
        UserSpace {
            tracker: ProcessTracker::default(),
            cgroups: CgroupNames::default(),
            policy: FollowPolicy::new(rule),
            code: LoadedCode::new(objects),
            resolver: StackResolver::default(),
            publisher: TablePublisher::default(),
            anonymous: AnonymousCode::default(),
            opener: TimedOpener::default(),
            join: Join::default(),
            traced: TracedProcesses::default(),
            allocators: TracedAllocators::new(sampling),
        }
    }

    /// Adds what a thread did. It waits for its user stack or goes to the router.
    pub fn activity(
        &mut self,
        router: &mut Router,
        processes: &ProcessTable,
        activity: ThreadActivity,
    ) {
        self.note_activity(processes, &activity);
        let (series, ticks) = (activity.stack_series(), activity.ticks());
        let user_return = activity.header.user_return;
        let complete = self.join.recorded(series, user_return, ticks, activity);
        self.route(router, processes, complete);
    }

    /// Adds what a thread did, whose user stack is known.
    fn activity_with_stack(
        &mut self,
        router: &mut Router,
        processes: &ProcessTable,
        activity: ThreadActivity,
        stack: Option<Arc<UserStack>>,
    ) {
        self.note_activity(processes, &activity);
        self.route(router, processes, vec![(activity, stack)]);
    }

    /// Follows the process of an activity, if the policy says so.
    fn note_activity(&mut self, processes: &ProcessTable, activity: &ThreadActivity) {
        let header = activity.header;
        let by_pid = self.policy.names_pid(header.pid());
        let (instance, process) = self.tracker.track(processes, header.pid());
        process.chosen |= by_pid;
        process.ticked |= activity.is_on_cpu();
        if process.first.is_none() && !self.traced.is_before_exec(&header) {
            let (chosen, ticked) = (process.chosen, process.ticked);
            if chosen || self.policy.chooses(processes, header.pid(), ticked) {
                self.choose(processes, instance, activity);
            }
        }
        if let Some(space) = self.code.spaces.get_mut(header.pid()) {
            space.note_use();
        }
    }

    /// Follows the process from this activity on.
    fn choose(
        &mut self,
        processes: &ProcessTable,
        instance: ProcessInstance,
        activity: &ThreadActivity,
    ) {
        let header = &activity.header;
        let name = processes
            .get(header.pid())
            .and_then(|process| process.name.as_deref())
            .unwrap_or(header.name.bytes());
        let name = if name.is_empty() { b"unknown" } else { name };
        let first = FirstRecord {
            at_ns: header.time_ns(),
            name: name.to_vec(),
            descent: self.policy.descent(header.pid()),
        };
        if let Some(process) = self.tracker.get_mut(instance) {
            process.chosen = true;
            process.first = Some(first);
        }
        if let Some(space) = self.code.spaces.get_mut(header.pid()) {
            space.keep_all_changes();
        }
    }

    /// Returns whether something waits for a user stack.
    #[must_use]
    pub fn awaits(&self, record: &UserReturnRecord) -> bool {
        let series = (record.header.tid(), record.call_site);
        self.join.awaits(series, record.header.user_return)
    }

    /// Adds the user stack that was captured when a thread returned to user mode.
    pub fn user_return(
        &mut self,
        router: &mut Router,
        processes: &ProcessTable,
        record: UserReturnRecord,
    ) {
        let (header, pid) = (record.header, record.header.pid());
        let (slot, mut complete) = self
            .join
            .announced((header.tid(), record.call_site), header.user_return);
        if self.code.spaces.get_mut(pid).is_none() {
            self.code.spaces.found(pid, [], header.time_ns());
        }
        if let Some(space) = self.code.spaces.get_mut(pid) {
            space.note_use();
            if space.set_execution(record.execution) {
                self.publisher.changed(pid);
            }
            let followed = self
                .policy
                .may_follow(processes, self.tracker.with_pid(pid), pid);
            if followed && let Some(code) = record.anonymous {
                self.anonymous.seen(pid, code, header.time_ns());
            }
            let stack = if followed {
                self.resolver
                    .resolve(&mut self.code, &mut self.publisher, processes, slot, record)
            } else {
                Some(UserStack {
                    frames: Vec::new(),
                    end: UnwindEnd::NoTable,
                    via_frame_pointer: false,
                    via_scan: false,
                })
            };
            if let Some(stack) = stack {
                complete.extend(self.join.resolved(slot, Arc::new(stack)));
            }
        }
        self.route(router, processes, complete);
    }

    /// Notes what the record of a thread says of its process. If the thread has exited, routes what
    /// it did, since no more user stacks can come.
    pub fn thread(&mut self, router: &mut Router, processes: &ProcessTable, thread: &ThreadRecord) {
        // Of a living thread too: the group may be gone when its last thread has exited.
        let cgroup = self.cgroups.get(thread.cgroup);
        if !thread.exited {
            return;
        }
        let instance = instance_of(processes, thread.header.pid());
        if let Some(process) = self.tracker.get_mut(instance) {
            let user = thread.user;
            let at_exit = ExitFacts { user, cgroup };
            router.exit_facts(instance, &at_exit);
            process.at_exit = Some(at_exit);
        }
        self.thread_calls_end(router, processes, thread.header.tid());
        let complete = self.join.ended(thread.header.tid());
        self.route(router, processes, complete);
    }

    /// Unwinds the stack copies whose tables are ready; all copies when `last`.
    pub fn unwind_copies(&mut self, router: &mut Router, processes: &ProcessTable, last: bool) {
        let resolved =
            self.resolver
                .unwind_copies(&mut self.code, &mut self.publisher, processes, last);
        for (slot, stack) in resolved {
            let complete = self.join.resolved(slot, Arc::new(stack));
            self.route(router, processes, complete);
        }
    }

    /// Routes all that waits: no record follows.
    pub fn finish(&mut self, router: &mut Router, processes: &ProcessTable) {
        self.unwind_copies(router, processes, true);
        let complete = self.join.close();
        self.route(router, processes, complete);
        router.finish(&mut self.process_context(processes));
    }

    fn route(
        &mut self,
        router: &mut Router,
        processes: &ProcessTable,
        complete: Vec<(ThreadActivity, Option<Arc<UserStack>>)>,
    ) {
        let mut context = self.process_context(processes);
        for (activity, stack) in complete {
            router.route(&mut context, activity, stack);
        }
    }

    /// Returns the process state that routing reads.
    pub(super) fn process_context<'a>(
        &'a mut self,
        processes: &'a ProcessTable,
    ) -> ProcessContext<'a> {
        ProcessContext {
            processes,
            tracker: &mut self.tracker,
            policy: &self.policy,
            code: &mut self.code,
        }
    }

    /// Writes a sample of each followed process.
    pub fn sample(&self, router: &mut Router, processes: &ProcessTable, sample: (Nanos, &str)) {
        router.sample_followed(&self.tracker, processes, sample);
    }

    /// Writes a part of what changed in mappings. Returns whether the rest waits.
    pub fn write_some_mappings(&mut self, router: &mut Router) -> bool {
        router.write_some_mappings(&self.tracker, &mut self.code)
    }

    /// Once a round: writes what is due.
    pub fn maintain(&mut self, router: &mut Router, now_ns: Nanos) {
        router.maintain(&self.tracker, &mut self.code, now_ns);
    }

    /// Archives the rest as fast as possible: the recording is over.
    pub fn archive_rest(&mut self, router: &mut Router) {
        router.archive_rest(&self.tracker, &mut self.code);
    }

    /// Begins another experiment: its processes are chosen, and their mappings written, anew.
    /// Processes that were chosen for what they are stay chosen.
    pub fn on_rotation(&mut self, at_ns: Nanos) {
        self.tracker.on_rotation();
        self.code.spaces.on_rotation(at_ns);
        self.code.objects.on_rotation();
        self.resolver.losses = StackLosses::default();
        self.resolver.unwound = UnwindCounts::default();
        self.join.on_rotation();
        self.traced.on_rotation();
        self.allocators.on_rotation();
    }

    /// Returns whether no load object is known for a file that the kernel found.
    #[must_use]
    pub fn is_table_missing(&self, file: CodeFile) -> bool {
        self.publisher.is_table_missing(file)
    }

    /// Starts building the table of a file that the kernel found in a mapping of a process, before
    /// the records of that mapping are applied: the process may exit soon.
    pub fn make_table(&mut self, processes: &ProcessTable, missing: &MissingTable) {
        let pid = missing.pid;
        let tracked = self.tracker.with_pid(pid);
        // That it executed a program may not be applied yet.
        if self.policy.may_follow(processes, tracked, pid)
            || self.policy.chooses_name(pid, missing.name.bytes())
        {
            let relatives = relatives(processes, pid);
            let process = (pid, &*relatives);
            self.publisher.on_missing_table(
                &mut self.code,
                process,
                &missing.mapping,
                missing.file,
            );
        }
    }

    /// Whether tables are being built.
    #[must_use]
    pub fn makes_tables(&self) -> bool {
        self.code.objects.waiting() > 0
    }

    /// Publishes what changed to the BPF programs.
    ///
    /// # Errors
    /// When the kernel has no memory for it.
    pub fn publish(
        &mut self,
        programs: &mut Programs,
        processes: &ProcessTable,
    ) -> Result<(), bpf::Error> {
        self.probe_allocators(programs, processes);
        self.find_copied_code(processes);
        let (policy, tracker) = (&self.policy, &self.tracker);
        let may_follow = |pid| policy.may_follow(processes, tracker.with_pid(pid), pid);
        self.publisher
            .publish(&mut programs.tables(), &mut self.code, may_follow)
    }

    /// Looks for code of files in the anonymous memory of processes, where stacks have shown that
    /// there is code. That memory counts as a mapping of the file.
    fn find_copied_code(&mut self, processes: &ProcessTable) {
        for (pid, execution) in self.anonymous.take_due() {
            let proc = Path::new("/proc");
            let looked = self.opener.run(&proc.join(pid.to_string()), move || {
                copied_code(proc, pid, &snapshot::ranges(pid))
            });
            let found = looked.unwrap_or_default();
            let starts = found.iter().map(|copied| copied.range_start);
            let new = self.anonymous.found(pid, starts, machine::now());
            let relatives = relatives(processes, pid);
            for CopiedCode {
                range_start,
                mapping,
            } in found
            {
                if !new.contains(&range_start) {
                    continue;
                }
                let file = CodeFile {
                    inode: pid.0.into(),
                    modified_ns: range_start,
                    device: COPIED_CODE_DEVICE,
                    generation: execution,
                };
                let process = (pid, &*relatives);
                let mapped = mapping.clone();
                self.publisher
                    .copied_code(&mut self.code, process, file, mapped);
                self.code.spaces.copied(pid, mapping);
            }
        }
    }

    /// Publishes all that the snapshot found, with its unwind tables, so that stacks are unwound
    /// from the first tick on.
    ///
    /// # Errors
    /// When the kernel has no memory for it.
    pub fn publish_snapshot(
        &mut self,
        programs: &mut Programs,
        processes: &ProcessTable,
    ) -> Result<(), bpf::Error> {
        self.open_mapped(processes);
        self.publish(programs, processes)?;
        let began = Instant::now();
        while self.code.objects.waiting() > 0
            && let Some(left) = MAX_TABLES_WAIT.checked_sub(began.elapsed())
        {
            let ready = self.code.objects.wait(left);
            self.publisher.tables_ready(&ready);
        }
        self.publish(programs, processes)
    }

    /// Opens the files that are mapped by processes which may be followed, so that their tables are
    /// built.
    fn open_mapped(&mut self, processes: &ProcessTable) {
        let pids: Vec<Pid> = self.code.spaces.iter_mut().map(|(pid, _)| pid).collect();
        for pid in pids {
            if self
                .policy
                .may_follow(processes, self.tracker.with_pid(pid), pid)
            {
                let relatives = relatives(processes, pid);
                for mapping in self.code.mapped_by(pid).iter() {
                    self.code.objects.object_of(pid, &relatives, mapping);
                }
            }
        }
    }

    /// Returns the thread that makes unwind tables.
    #[must_use]
    pub fn table_maker(&self) -> Tid {
        self.code.objects.table_builder_thread()
    }

    /// Returns the counts of ticks by what became of their user stacks.
    #[must_use]
    pub fn joined(&self) -> JoinCounts {
        self.join.counts()
    }
}
