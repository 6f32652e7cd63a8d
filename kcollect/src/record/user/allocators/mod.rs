//! The allocators of the processes that are traced (`-H on`): which functions of which files are
//! probed in which process, and the blocks that were sampled.
//!
//! A process is looked at when it is found, forks, or maps a file for execution. The functions of a
//! C library are probed unless another file that the process maps stands in for them. Probes stay
//! when the process executes another program: the kernel has them wherever the process maps the
//! file. If an allocator samples blocks itself, its USDTs are probed instead of functions.
//!
//! If probes have a [budget], a process whose probes take more is not probed for some time, and
//! neither are the children that it then forks.

mod blocks;
mod budget;
mod go;
mod probes;
mod watch;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use bpf::{AttachedProbes, Programs};
use experiment_format::ids::Pid;
use experiment_format::units::Nanos;
use serde::Serialize;
use user_collector::allocators::{BlockChange, Blocks};
use user_collector::files::TimedOpener;
use user_collector::objects::{Backing, ObjectId};
use user_collector::space::{FileIdentity, MappedFile, Mapping};

use self::budget::OverBudget;
use self::go::GoHeaps;
use self::probes::{AllocatorFile, KnownOperands, ProbeUses, ProbedAllocators};
use super::UserSpace;
use crate::record::input::snapshot;
use crate::record::processes::Processes;

/// How many blocks the BPF programs forget at once: each is a system call.
const FORGOTTEN_AT_ONCE: usize = 10_000;

/// Which blocks are sampled, and what that may take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BlockSampling {
    /// Mean number of bytes per sampled byte; 0: each block is sampled.
    pub mean_bytes: u64,
    /// The time that its probes may add to a process, as a share of its CPU time. None: no limit.
    pub budget: Option<f64>,
}

/// The probes of a recording, for its summary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ProbeCounts {
    /// Processes whose allocators were probed.
    pub probed_processes: u64,
    /// Those among them whose allocator samples blocks itself, and says which.
    pub sampling_processes: u64,
    /// Processes in which no function of an allocator was found, or none could be probed.
    pub unprobed_processes: u64,
    /// Functions that were probed at an instruction which the kernel single-steps: each call takes
    /// several microseconds more.
    pub slow_functions: u64,
    /// Go programs whose own profile of their memory was read.
    pub go_profiles: u64,
    /// Go programs without a profile that can be read: most of these never ask for it.
    pub go_without: u64,
    /// How often a process was not probed for some time, since its probes, or its parent's, took
    /// more than the budget (`--trace-budget`).
    pub over_budget: u64,
}

/// The allocators of the processes that are traced.
#[derive(Debug, Default)]
pub(super) struct TracedAllocators {
    /// None: nothing is traced.
    sampling: Option<BlockSampling>,
    opener: TimedOpener,
    /// Files that were read. None: the file has no functions of an allocator.
    files: HashMap<ObjectId, Option<AllocatorFile>>,
    probed: HashMap<Pid, ProbedAllocators>,
    uses: ProbeUses,
    operands: KnownOperands,
    /// Processes that exceeded the budget, and their children.
    over_budget: HashMap<Pid, OverBudget>,
    /// How often these were not probed.
    over_budget_count: u64,
    /// Processes that have to be looked at.
    due: BTreeSet<Pid>,
    blocks: HashMap<Pid, Blocks>,
    /// Blocks that are recorded as ended, and that BPF still knows.
    ended: Vec<(Pid, Blocks)>,
    go: GoHeaps,
    /// Removes probes from processes that exited: the kernel waits for probes that run.
    detacher: Option<Sender<AttachedProbes>>,
    /// Processes that live and have no probes.
    unprobed: HashSet<Pid>,
    /// Processes that had probes, and have none any more.
    previously_probed: u64,
    /// Of these, processes whose allocator sampled blocks itself.
    previously_sampling: u64,
    /// Processes that exited without.
    never_probed: u64,
    warnings: Vec<String>,
}

impl TracedAllocators {
    pub(super) fn new(sampling: Option<BlockSampling>) -> TracedAllocators {
        TracedAllocators {
            sampling,
            ..TracedAllocators::default()
        }
    }

    /// Records that `parent` forked `pid`.
    pub(super) fn forked(&mut self, pid: Pid, parent: Pid) {
        if let Some(over_budget) = self.over_budget.get(&parent).copied()
            && over_budget.is_unprobed()
        {
            self.set_over_budget(pid, over_budget.child());
        }
        self.changed(pid);
    }

    fn set_over_budget(&mut self, pid: Pid, over_budget: OverBudget) {
        self.over_budget.insert(pid, over_budget);
        self.over_budget_count += 1;
    }

    /// Returns whether a process is not probed, since its probes exceeded the budget.
    fn is_over_budget(&self, pid: Pid) -> bool {
        let over_budget = self.over_budget.get(&pid);
        over_budget.is_some_and(OverBudget::is_unprobed)
    }

    /// Records that a process is new, or maps another file.
    pub(super) fn changed(&mut self, pid: Pid) {
        if self.sampling.is_some() {
            self.due.insert(pid);
        }
    }

    /// Records that a process executed a program.
    pub(super) fn executed(&mut self, pid: Pid) {
        if self.sampling.is_some() {
            self.go.executed(pid);
        }
        self.changed(pid);
    }

    /// Begins another experiment.
    pub(super) fn on_rotation(&mut self) {
        (self.previously_probed, self.never_probed) = (0, 0);
        self.previously_sampling = 0;
        self.go.on_rotation();
        self.over_budget_count = 0;
        for process in self.over_budget.values_mut() {
            process.was_probed = false;
            self.over_budget_count += u64::from(process.is_unprobed());
        }
    }

    /// Drops a process that exited.
    pub(super) fn exited(&mut self, pid: Pid) {
        self.due.remove(&pid);
        let over_budget = self.over_budget.remove(&pid);
        let was_probed = over_budget.is_some_and(|process| process.was_probed_before());
        self.go.ended(pid, Nanos::ZERO);
        self.never_probed += u64::from(self.unprobed.remove(&pid));
        self.previously_probed += u64::from(self.take_out(pid) || was_probed);
        if let Some(blocks) = self.blocks.remove(&pid) {
            self.ended.push((pid, blocks));
        }
    }

    /// Returns the ends of all blocks of a process, as changes.
    fn end_blocks(&mut self, pid: Pid, at_ns: Nanos) -> Vec<BlockChange> {
        let Some(blocks) = self.blocks.remove(&pid) else {
            return Vec::new();
        };
        let ends = blocks.ends(at_ns);
        self.ended.push((pid, blocks));
        ends
    }

    /// Makes the BPF programs forget blocks that have ended, so that there is space for others.
    fn forget_ended(&mut self, programs: &Programs) {
        let mut left = FORGOTTEN_AT_ONCE;
        while left > 0
            && let Some((pid, blocks)) = self.ended.last_mut()
        {
            let mut addresses = blocks.take(left);
            if addresses.is_empty() {
                self.ended.pop();
                continue;
            }
            left -= addresses.len();
            // After an exec without randomized addresses the same ones may be in use.
            if let Some(live) = self.blocks.get(pid) {
                addresses.retain(|address| !live.has(*address));
            }
            programs.forget_blocks(pid.0, &addresses);
        }
    }

    fn counts(&self) -> ProbeCounts {
        let used = self.files.values().flatten().filter(|file| file.used);
        let slow = used
            .flat_map(|file| &file.allocator.functions)
            .filter(|found| !found.emulated);
        let (go_profiles, go_without) = self.go.counts();
        let sampling = self.probed.values().filter(|process| process.samples());
        let over_budget = self.over_budget.values();
        let probed_before = over_budget.filter(|process| process.was_probed_before());
        let probed = self.probed.len() + probed_before.count();
        ProbeCounts {
            go_profiles,
            go_without,
            probed_processes: self.previously_probed + probed as u64,
            sampling_processes: self.previously_sampling + sampling.count() as u64,
            unprobed_processes: self.never_probed + self.unprobed.len() as u64,
            slow_functions: slow.count() as u64,
            over_budget: self.over_budget_count,
        }
    }
}

/// Returns a mapping of a file that is nowhere mapped yet.
fn mapping_of(path: &Path) -> Option<Mapping> {
    let path = path.canonicalize().ok()?;
    let metadata = path.metadata().ok()?;
    Some(Mapping {
        start: 0,
        end: 0,
        offset: 0,
        file: Arc::new(MappedFile {
            path: path.as_os_str().as_bytes().into(),
            build_id: Box::default(),
            identity: FileIdentity {
                device: metadata.dev(),
                inode: metadata.ino(),
                generation: 0,
            },
        }),
    })
}

impl UserSpace {
    /// Probes the allocators of the processes that are traced, where something has changed.
    pub(super) fn probe_allocators(&mut self, programs: &Programs, processes: &Processes) {
        for pid in std::mem::take(&mut self.allocators.due) {
            if !processes.may_follow(&self.policy, pid) {
                continue;
            }
            let mappings: Vec<_> = match processes
                .get(pid)
                .and_then(|process| process.stacks.as_ref())
            {
                Some(stacks) => stacks.space.mappings().cloned().collect(),
                None => continue,
            };
            let mapped = self.mapped_files(processes, pid, &mappings);
            if !mapped.is_empty() {
                self.allocators.probe(programs, pid, &mapped);
            }
        }
        self.allocators.forget_ended(programs);
    }

    /// Probes the load before it executes its program: the program and the libraries of kcollect
    /// itself, since the load will most likely map the same C library. The kernel inserts the
    /// probes wherever the process maps these files later.
    pub fn probe_load(
        &mut self,
        programs: &Programs,
        processes: &Processes,
        (pid, program): (Pid, &OsStr),
    ) {
        if self.allocators.sampling.is_none() {
            return;
        }
        let mut mappings = snapshot::mappings(pid);
        mappings.extend(
            host::load::find(program)
                .ok()
                .and_then(|path| mapping_of(&path)),
        );
        let mapped = self.mapped_files(processes, pid, &mappings);
        self.allocators.probe(programs, pid, &mapped);
    }

    /// Returns the files among the mappings of a process, whose functions are known then.
    fn mapped_files(
        &mut self,
        processes: &Processes,
        pid: Pid,
        mappings: &[Mapping],
    ) -> BTreeSet<ObjectId> {
        let relatives = processes.relatives(pid);
        let mut mapped = BTreeSet::new();
        for mapping in mappings {
            let id = self.code.objects.object_of(pid, &relatives, mapping);
            let object = self.code.objects.get(id);
            if object.is_some_and(|object| object.backing == Backing::File) {
                self.allocators.read(id, pid, mapping);
                self.allocators.find_go_profile(id, pid, mapping);
                mapped.insert(id);
            }
        }
        mapped
    }

    /// Records that the leader of a process has exited, or another thread after it: its probes may
    /// have gone with that thread.
    pub fn lost_a_thread(&mut self, pid: Pid) {
        self.allocators.changed(pid);
    }

    /// Takes the log's warnings about what could not be probed.
    pub fn take_probe_warnings(&mut self) -> Vec<String> {
        std::mem::take(&mut self.allocators.warnings)
    }

    /// Returns the probes of the recording.
    #[must_use]
    pub fn probed(&self) -> ProbeCounts {
        self.allocators.counts()
    }
}
