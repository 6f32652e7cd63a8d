//! One process, from its fork (or from the snapshot) until its number is free again.

use experiment_format::ids::Pid;
use experiment_format::units::Nanos;
use user_collector::follow::{Candidate, FollowPolicy, FollowState};
use user_collector::io_calls::ProcessDescriptors;
use user_collector::memory::Memory;
use user_collector::process::{ExitFacts, ParentMap, ProcessInstance};
use user_collector::space::AddressSpace;

use crate::record::user_stacks::process_stacks::ProcessStacks;

/// A process's name as the kernel has it: bytes, not text, without the final NUL.
pub type ProcessName = Box<[u8]>;

/// How long a forked process that was chosen may take to execute its own program before its
/// experiment is named for its parent's, nanoseconds.
const EXEC_WAIT_NS: Nanos = Nanos::from_millis(50);

/// A process. Most processes are never followed, so that what only followed ones have is boxed.
#[derive(Debug)]
pub struct Process {
    /// The instance, which distinguishes it from other processes with the same pid.
    pub instance: ProcessInstance,
    /// The parent's pid, where known.
    pub parent: Option<Pid>,
    /// The name; `None` if neither side-band nor snapshot has reported it.
    pub name: Option<ProcessName>,
    /// The file that it executes, if an exec was seen.
    pub executable: Option<Box<ExecutableFile>>,
    expects_executable: bool,
    life: Life,
    /// What the policy keeps of it.
    pub follow: FollowState,
    /// What its user stacks need. `None` if nothing is known, or if no process can be followed.
    pub stacks: Option<Box<ProcessStacks>>,
    /// Its descriptors, once a call of it was traced (`-i`).
    pub descriptors: Option<Box<ProcessDescriptors>>,
    /// The memory that it may use, once a call that changes it was traced (`-H growth`).
    pub memory: Option<Box<Memory>>,
    /// What it did in user space. `None` if nothing yet, if its experiment is closed, or if no
    /// process can be followed.
    pub tracked: Option<Box<TrackedProcess>>,
}

/// The file that a process executes: the first executable mapping after its exec.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecutableFile {
    /// Path as the process saw it; it may not be UTF-8.
    pub path: Box<[u8]>,
    /// The build id that the kernel read from the mapped file; empty when it has none.
    pub build_id: Box<[u8]>,
}

/// Whether the threads of a process live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Alive,
    /// The leading thread has exited; another one has not. The time is of the last exit.
    Leaderless(Nanos),
    /// The last thread exited.
    Exited(Nanos),
}

/// What is known of a process that did anything in user space.
#[derive(Debug, Default)]
pub struct TrackedProcess {
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
    /// What is known from the exit of the last thread that has exited so far.
    pub at_exit: Option<ExitFacts>,
}

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

impl Process {
    pub(super) fn new(instance: ProcessInstance) -> Process {
        Process {
            instance,
            parent: None,
            name: None,
            executable: None,
            expects_executable: false,
            life: Life::Alive,
            follow: FollowState::default(),
            stacks: None,
            descriptors: None,
            memory: None,
            tracked: None,
        }
    }

    /// A child that this process forks. It begins with its parent's name, file and mappings.
    pub(super) fn fork(&mut self, child: ProcessInstance, at_ns: Nanos) -> Process {
        let stacks = self.stacks.as_ref();
        Process {
            stacks: stacks.map(|stacks| Box::new(stacks.fork(at_ns))),
            name: self.name.clone(),
            executable: self.executable.clone(),
            follow: self.follow.fork(),
            ..Process::new(child)
        }
    }

    /// The pid.
    #[must_use]
    pub fn pid(&self) -> Pid {
        self.instance.pid()
    }

    /// The name, empty if it is not known.
    #[must_use]
    pub fn name_bytes(&self) -> &[u8] {
        self.name.as_deref().unwrap_or_default()
    }

    /// What its user stacks need; empty if nothing is known yet.
    pub fn stacks_mut(&mut self) -> &mut ProcessStacks {
        self.stacks.get_or_insert_default()
    }

    /// What it has mapped, if anything is known of it.
    pub fn space_mut(&mut self) -> Option<&mut AddressSpace> {
        self.stacks.as_mut().map(|stacks| &mut stacks.space)
    }

    /// The number of the execution of its program, if a record has had it.
    #[must_use]
    pub fn execution(&self) -> Option<u32> {
        self.stacks.as_ref()?.space.execution
    }

    /// Whether any of its stacks waits for its mappings.
    #[must_use]
    pub fn awaits_mappings(&self) -> bool {
        let stacks = self.stacks.as_ref();
        let unmapped = stacks.and_then(|stacks| stacks.unmapped.as_ref());
        unmapped.is_some_and(|unmapped| unmapped.is_waiting())
    }

    /// Sets the name of its leading thread, which shows in `ps` as the name of the process.
    pub fn renamed(&mut self, name: &[u8]) {
        self.name = Some(name.into());
    }

    /// Records that it executes another program, which names it.
    pub fn executed(&mut self, name: &[u8], at_ns: Nanos, has_experiment: bool) {
        self.renamed(name);
        self.executable = None;
        self.expects_executable = true;
        let is_own_program = self.waits_for_exec(at_ns);
        // The thread that executes becomes the leading one, whose exit was reported.
        self.life = Life::Alive;
        if let Some(space) = self.space_mut() {
            space.executed(at_ns);
        }
        if let Some(tracked) = &mut self.tracked {
            tracked.forked_ns = None;
            tracked.parent_maps = Some(Vec::new());
            if let Some(first) = &mut tracked.first
                && is_own_program
                && !has_experiment
            {
                first.name = name.to_vec();
                first.descent = self.follow.descent();
            }
        }
    }

    /// Records that it mapped a file for execution; the first one after an exec is its program.
    pub fn mapped(&mut self, path: &[u8], build_id: &[u8]) {
        if std::mem::take(&mut self.expects_executable) {
            self.executable = Some(Box::new(ExecutableFile {
                path: path.into(),
                build_id: build_id.into(),
            }));
        }
    }

    /// Records that a snapshot found it with this name, executing this file. What the side-band has
    /// reported stays, since a read of `/proc` has no exact time.
    pub fn found(&mut self, name: &[u8], executable: Option<&[u8]>) {
        if self.name.is_none() {
            self.renamed(name);
        }
        if let Some(path) = executable
            && self.executable.is_none()
            && !self.expects_executable
        {
            self.executable = Some(Box::new(ExecutableFile {
                path: path.into(),
                build_id: Box::default(),
            }));
        }
    }

    /// Records that its leading thread exited, or another thread after it. Returns whether it did:
    /// other threads' exits change nothing while the leading one lives.
    pub fn lost_a_thread(&mut self, leader: bool, at_ns: Nanos) -> bool {
        let lost = leader || self.leaderless_ns().is_some();
        if lost {
            self.life = Life::Leaderless(at_ns);
        }
        lost
    }

    /// Records that its last thread exited.
    pub fn exited(&mut self, at_ns: Nanos) {
        self.life = Life::Exited(at_ns);
    }

    /// When a thread exited last, of a process whose leading thread has exited while another one
    /// has not.
    #[must_use]
    pub fn leaderless_ns(&self) -> Option<Nanos> {
        match self.life {
            Life::Leaderless(at_ns) => Some(at_ns),
            Life::Alive | Life::Exited(_) => None,
        }
    }

    /// When its last thread exited, nanoseconds of the events' clock.
    #[must_use]
    pub fn exited_ns(&self) -> Option<Nanos> {
        match self.life {
            Life::Exited(at_ns) => Some(at_ns),
            Life::Alive | Life::Leaderless(_) => None,
        }
    }

    /// Records that another process has its number: its exit was missed if it was not seen.
    pub(super) fn replaced(&mut self, at_ns: Nanos) {
        if self.exited_ns().is_none() {
            self.exited(at_ns);
        }
    }

    /// Whether it may still execute its own program, which names its experiment: it was forked no
    /// longer ago than `EXEC_WAIT_NS`.
    #[must_use]
    pub fn may_execute(&self, now_ns: Nanos) -> bool {
        self.exited_ns().is_none() && self.waits_for_exec(now_ns)
    }

    fn waits_for_exec(&self, now_ns: Nanos) -> bool {
        let tracked = self.tracked.as_ref();
        let forked_ns = tracked.and_then(|tracked| tracked.forked_ns);
        forked_ns.is_some_and(|forked| now_ns < forked.saturating_add(EXEC_WAIT_NS))
    }

    /// Begins another experiment, in which it has done nothing yet.
    pub fn on_rotation(&mut self, at_ns: Nanos) {
        if let Some(space) = self.space_mut() {
            space.on_rotation(at_ns);
        }
        if let Some(descriptors) = &mut self.descriptors {
            descriptors.on_rotation();
        }
        if let Some(tracked) = &mut self.tracked {
            tracked.first = None;
            tracked.ticked = false;
        }
    }

    /// Whether its experiment may be created at an instant: it was chosen, and does not execute its
    /// own program soon.
    #[must_use]
    pub fn is_due(&self, now_ns: Nanos) -> bool {
        let tracked = self.tracked.as_ref();
        tracked.is_some_and(|tracked| tracked.first.is_some()) && !self.may_execute(now_ns)
    }

    /// Whether it is to be followed, whatever else it does.
    #[must_use]
    pub fn is_chosen(&self) -> bool {
        self.tracked.as_ref().is_some_and(|process| process.chosen)
    }

    /// Whether it is followed, or may be without another name.
    #[must_use]
    pub fn may_be_followed(&self, policy: &FollowPolicy) -> bool {
        policy.may_follow(&self.candidate(false), self.is_chosen())
    }

    /// What the rule of `-F` needs of it.
    #[must_use]
    pub fn candidate(&self, ticked: bool) -> Candidate<'_> {
        Candidate {
            pid: self.pid(),
            name: self.name.as_deref(),
            executable: self.executable.as_ref().map(|executable| &*executable.path),
            ticked,
            in_group: self.follow.in_group,
        }
    }
}
