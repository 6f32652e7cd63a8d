//! User space: the processes, what they have mapped, and the user stacks of what their threads did.
//!
//! A state interval waits in the [join](user_collector::join) for the user stack that is captured
//! when its thread returns to user mode, and so does an event. Complete ones go to the
//! [router](super::route), which chooses the experiment. Three parts have one task each: the
//! [policy] decides which [processes](super::processes) are followed, the [resolver] unwinds their
//! stacks, and the [publisher] writes the BPF maps.
//!
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
use bpf_abi::{CapturedStack, CodeFile, RecordHeader, ThreadRecord, UserReturnRecord};
use experiment_format::ids::{Pid, Tid};
use experiment_format::units::Nanos;
use host::machine;
use user_collector::files::TimedOpener;
use user_collector::follow::{Candidate, FollowPolicy, FollowRule};
use user_collector::join::{Join, JoinCounts};
use user_collector::loaded_code::LoadedCode;
use user_collector::objects::{CopiedCode, LoadObjects, copied_code};
use user_collector::process::{CgroupNames, ExitFacts};

use self::allocators::TracedAllocators;
pub use self::allocators::{BlockSampling, ProbeCounts};
use self::traced_calls::TracedProcesses;
use super::activity::ThreadActivity;
use super::input::inputs::MissingTable;
use super::input::snapshot;
use super::processes::{FirstRecord, Process, Processes};
use super::route::{ProcessContext, Router};
use super::user_stacks::copied_code::AnonymousCode;
use super::user_stacks::process_stacks::ProcessStacks;
use super::user_stacks::publish::{StackUse, TablePublisher};
use super::user_stacks::resolve_stack::{StackLosses, StackResolver, UnwindCounts};
use super::user_stacks::user_stack::UserStack;
use crate::record::activity::TypedHeader;

/// Max wait for the unwind tables of running code before recording starts.
const MAX_TABLES_WAIT: Duration = Duration::from_millis(500);

/// Max processes whose anonymous memory is searched in a round.
const MAX_ANONYMOUS_SEARCHES: usize = 8;

/// The processes, what they have mapped, and what waits for user stacks.
#[derive(Debug)]
pub struct UserSpace {
    /// Control groups, for processes that exit before their own is read.
    cgroups: CgroupNames,
    policy: FollowPolicy,
    /// What is mapped.
    pub code: LoadedCode,
    /// User stacks.
    pub resolver: StackResolver,
    publisher: TablePublisher,
    /// Processes whose anonymous memory is to be searched for code of files.
    anonymous_due: Vec<Pid>,
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
            cgroups: CgroupNames::default(),
            policy: FollowPolicy::new(rule),
            code: LoadedCode::new(objects),
            resolver: StackResolver::default(),
            publisher: TablePublisher::default(),
            anonymous_due: Vec::new(),
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
        processes: &mut Processes,
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
        processes: &mut Processes,
        activity: ThreadActivity,
        stack: Option<Arc<UserStack>>,
    ) {
        self.note_activity(processes, &activity);
        self.route(router, processes, vec![(activity, stack)]);
    }

    /// Follows the process of an activity, if the policy says so.
    fn note_activity(&mut self, processes: &mut Processes, activity: &ThreadActivity) {
        let header = activity.header;
        let process = processes.known(header.pid());
        let mut tracked = process.tracked.take().unwrap_or_default();
        tracked.chosen |= self.policy.names_pid(header.pid());
        tracked.ticked |= activity.is_on_cpu();
        if tracked.first.is_none() && !self.traced.is_before_exec(&header) {
            let candidate = process.candidate(tracked.ticked);
            if tracked.chosen || self.policy.chooses(&candidate) {
                tracked.chosen = true;
                tracked.first = Some(first_record(process, &header));
                if let Some(space) = process.space_mut() {
                    space.keep_all_changes();
                }
            }
        }
        process.tracked = Some(tracked);
        if let Some(space) = process.space_mut() {
            space.note_use();
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
        processes: &mut Processes,
        record: UserReturnRecord,
    ) {
        let (header, pid) = (record.header, record.header.pid());
        let (slot, mut complete) = self
            .join
            .announced((header.tid(), record.call_site), header.user_return);
        let relatives = match record.stack {
            CapturedStack::StackCopy { .. } => processes.relatives(pid),
            CapturedStack::Unwound { .. } => Vec::new(),
        };
        let process = processes.known(pid);
        let followed = process.may_be_followed(&self.policy);
        let stacks = process.stacks_mut();
        stacks.space.note_use();
        if stacks.space.set_execution(record.execution) {
            self.publisher.changed(pid);
        }
        if followed && let Some(code) = record.anonymous {
            let new = || Box::new(AnonymousCode::new(code.generation));
            if stacks
                .anonymous
                .get_or_insert_with(new)
                .seen(code, header.time_ns())
            {
                self.anonymous_due.push(pid);
            }
        }
        let stack = if followed {
            let process = (stacks, &*relatives);
            let (code, publisher) = (&mut self.code, &mut self.publisher);
            self.resolver
                .resolve(code, publisher, process, slot, record)
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
        self.route(router, processes, complete);
    }

    /// Notes what the record of a thread says of its process. If the thread has exited, routes what
    /// it did, since no more user stacks can come.
    pub fn thread(
        &mut self,
        router: &mut Router,
        processes: &mut Processes,
        thread: &ThreadRecord,
    ) {
        // Of a living thread too: the group may be gone when its last thread has exited.
        let cgroup = self.cgroups.get(thread.cgroup);
        if !thread.exited {
            return;
        }
        if let Some(process) = processes.get_mut(thread.header.pid())
            && let Some(tracked) = &mut process.tracked
        {
            let user = thread.user;
            let at_exit = ExitFacts { user, cgroup };
            router.exit_facts(process.instance, &at_exit);
            tracked.at_exit = Some(at_exit);
        }
        self.thread_calls_end(router, processes, thread.header.tid());
        let complete = self.join.ended(thread.header.tid());
        self.route(router, processes, complete);
    }

    /// Unwinds the stack copies whose tables are ready; all copies when `last`.
    pub fn unwind_copies(&mut self, router: &mut Router, processes: &mut Processes, last: bool) {
        let relatives = |pid| processes.relatives(pid);
        let resolved =
            self.resolver
                .unwind_copies(&mut self.code, &mut self.publisher, &relatives, last);
        for (slot, stack) in resolved {
            let complete = self.join.resolved(slot, Arc::new(stack));
            self.route(router, processes, complete);
        }
    }

    /// Routes all that waits: no record follows.
    pub fn finish(&mut self, router: &mut Router, processes: &mut Processes) {
        for process in processes.iter_mut() {
            self.stop_waiting(process);
        }
        self.unwind_copies(router, processes, true);
        let complete = self.join.close();
        self.route(router, processes, complete);
        router.finish(&mut self.process_context(processes));
    }

    fn route(
        &mut self,
        router: &mut Router,
        processes: &mut Processes,
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
        processes: &'a mut Processes,
    ) -> ProcessContext<'a> {
        ProcessContext {
            processes,
            policy: &self.policy,
            code: &mut self.code,
        }
    }

    /// Writes a sample of each followed process.
    pub fn sample(&self, router: &mut Router, processes: &Processes, sample: (Nanos, &str)) {
        router.sample_followed(processes, sample);
    }

    /// Writes a part of what changed in mappings. Returns whether the rest waits.
    pub fn write_some_mappings(&mut self, router: &mut Router, processes: &mut Processes) -> bool {
        router.write_some_mappings(processes, &mut self.code)
    }

    /// Once a round: writes what is due.
    pub fn maintain(&mut self, router: &mut Router, processes: &mut Processes, now_ns: Nanos) {
        router.maintain(processes, &mut self.code, now_ns);
    }

    /// Archives the rest as fast as possible: the recording is over.
    pub fn archive_rest(&mut self, router: &mut Router, processes: &mut Processes) {
        router.archive_rest(processes, &mut self.code);
    }

    /// Begins another experiment: its processes are chosen, and their mappings written, anew.
    /// Processes that were chosen for what they are stay chosen.
    pub fn on_rotation(&mut self, processes: &mut Processes, at_ns: Nanos) {
        let processes = processes.iter_mut();
        processes.for_each(|process| process.on_rotation(at_ns));
        self.code.objects.on_rotation();
        self.resolver.losses = StackLosses::default();
        self.resolver.unwound = UnwindCounts::default();
        self.join.on_rotation();
        self.allocators.on_rotation();
    }

    /// Returns whether no load object is known for a file that the kernel found.
    #[must_use]
    pub fn is_table_missing(&self, file: CodeFile) -> bool {
        self.publisher.is_table_missing(file)
    }

    /// Starts building the table of a file that the kernel found in a mapping of a process, before
    /// the records of that mapping are applied: the process may exit soon.
    pub fn make_table(&mut self, processes: &Processes, missing: &MissingTable) {
        let pid = missing.pid;
        let process = processes.get(pid);
        let candidate = process.map(|process| process.candidate(false));
        // That it executed a program may not be applied yet.
        let next_program = Candidate {
            name: Some(missing.name.bytes()),
            executable: None,
            ..candidate.unwrap_or(Candidate::unknown(pid))
        };
        if processes.may_follow(&self.policy, pid) || self.policy.chooses(&next_program) {
            let relatives = processes.relatives(pid);
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
        processes: &mut Processes,
    ) -> Result<(), bpf::Error> {
        self.probe_allocators(programs, processes);
        self.find_copied_code(processes);
        let state = |pid| {
            if processes.may_follow(&self.policy, pid) {
                return StackUse::Wanted;
            }
            let execution = processes.get(pid).and_then(Process::execution);
            execution.map_or(StackUse::Unknown, StackUse::Unwanted)
        };
        let tables = &mut programs.tables();
        self.publisher.publish_processes(tables, state)?;
        self.publisher
            .publish_tables(tables, &mut self.code, || processes.mappings())
    }

    /// Looks for code of files in the anonymous memory of processes, where stacks have shown that
    /// there is code. That memory counts as a mapping of the file.
    fn find_copied_code(&mut self, processes: &mut Processes) {
        let due = self.anonymous_due.len().min(MAX_ANONYMOUS_SEARCHES);
        for pid in self.anonymous_due.drain(..due) {
            let relatives = processes.relatives(pid);
            let stacks = processes
                .get_mut(pid)
                .and_then(|process| process.stacks.as_mut());
            let Some(ProcessStacks {
                space,
                anonymous: Some(anonymous),
                ..
            }) = stacks.map(|stacks| &mut **stacks)
            else {
                continue;
            };
            let proc = Path::new("/proc");
            let looked = self.opener.run(&proc.join(pid.to_string()), move || {
                copied_code(proc, pid, &snapshot::ranges(pid))
            });
            let found = looked.unwrap_or_default();
            let starts = found.iter().map(|copied| copied.range_start);
            let new = anonymous.found(starts, machine::now());
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
                    generation: anonymous.execution,
                };
                let process = (pid, &*relatives);
                let mapped = mapping.clone();
                self.publisher
                    .copied_code(&mut self.code, process, file, mapped);
                space.copied(mapping);
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
        processes: &mut Processes,
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
    fn open_mapped(&mut self, processes: &Processes) {
        for process in processes.iter() {
            if let Some(stacks) = &process.stacks
                && process.may_be_followed(&self.policy)
            {
                let relatives = processes.relatives(process.pid());
                for mapping in stacks.space.mappings() {
                    let pid = process.pid();
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

/// The first record of a process that is followed from now on.
fn first_record(process: &Process, header: &RecordHeader) -> FirstRecord {
    let name = process.name.as_deref().unwrap_or(header.name.bytes());
    let name = if name.is_empty() { b"unknown" } else { name };
    FirstRecord {
        at_ns: header.time_ns(),
        name: name.to_vec(),
        descent: process.follow.descent(),
    }
}
