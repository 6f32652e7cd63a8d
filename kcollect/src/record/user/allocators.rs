//! The allocators of the processes that are traced (`-H on`): which functions of which files are
//! probed in which process, and the blocks that were sampled.
//!
//! A process is looked at when it is found, forks, or maps a file for execution. The functions of a
//! C library are probed unless another file that the process maps stands in for them. Probes stay
//! when the process executes another program: the kernel has them wherever the process maps the
//! file.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread;

use bpf::{AllocatorProbe, AttachedProbes, Programs};
use bpf_abi::{BlockRecord, RecordHeader, ThreadName};
use experiment_format::ids::Pid;
use experiment_format::units::Nanos;
use user_collector::allocators::{Allocator, BlockChange, Blocks};
use user_collector::files::TimedOpener;
use user_collector::objects::{self, Backing, ObjectId};
use user_collector::process::{ProcessInstance, ProcessTable, instance_of};
use user_collector::space::{FileIdentity, MappedFile, Mapping};

use super::UserSpace;
use crate::record::activity::{ThreadEvent, TypedHeader};
use crate::record::input::snapshot;
use crate::record::route::Router;
use crate::record::user_stacks::resolve_stack::relatives;

/// The most files with an allocator that are kept open.
const MAX_FILES: usize = 64;

/// How many blocks of processes that exited are dropped at once.
const FORGOTTEN_AT_ONCE: usize = 10_000;

/// The probes of a recording, for its summary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProbeCounts {
    /// Processes with probes.
    pub processes: u64,
    /// Processes in which no function of an allocator was found, or none could be probed.
    pub unprobed: u64,
    /// Functions that are probed at an instruction which the kernel single-steps.
    pub slow_functions: u64,
}

/// The allocators of the processes that are traced.
#[derive(Debug, Default)]
pub(super) struct TracedAllocators {
    /// One of so many bytes is sampled; 0: each block is. None: nothing is traced.
    mean_bytes: Option<u64>,
    opener: TimedOpener,
    /// Files that were read. None: the file has no functions of an allocator.
    files: HashMap<ObjectId, Option<AllocatorFile>>,
    probed: HashMap<Pid, Vec<ProbedFile>>,
    /// Processes that have to be looked at.
    due: BTreeSet<Pid>,
    blocks: HashMap<Pid, Blocks>,
    /// Blocks that processes had when they exited.
    left: Vec<(Pid, Blocks)>,
    /// Takes probes out of processes that exited: the kernel waits for those that run.
    detacher: Option<Sender<AttachedProbes>>,
    /// Processes that live and have no probes.
    unprobed: HashSet<Pid>,
    /// Of those that exited, with probes and without.
    exited: (u64, u64),
    warnings: Vec<String>,
}

#[derive(Debug)]
struct AllocatorFile {
    file: File,
    allocator: Allocator,
    /// It has been probed in some process.
    used: bool,
    /// It could not be probed in some process, which has been said.
    failed: bool,
}

#[derive(Debug)]
struct ProbedFile {
    id: ObjectId,
    /// The functions that may stand in for those of another file.
    plain: bool,
    probes: AttachedProbes,
}

impl TracedAllocators {
    pub(super) fn new(mean_bytes: Option<u64>) -> TracedAllocators {
        TracedAllocators {
            mean_bytes,
            ..TracedAllocators::default()
        }
    }

    /// Records that a process is new, or maps another file.
    pub(super) fn changed(&mut self, pid: Pid) {
        if self.mean_bytes.is_some() {
            self.due.insert(pid);
        }
    }

    /// Begins another experiment.
    pub(super) fn begin_again(&mut self) {
        self.exited = (0, 0);
    }

    /// Drops a process that exited.
    pub(super) fn exited(&mut self, pid: Pid) {
        self.due.remove(&pid);
        self.exited.1 += u64::from(self.unprobed.remove(&pid));
        if let Some(files) = self.probed.remove(&pid) {
            self.exited.0 += 1;
            files.into_iter().for_each(|file| self.detach(file.probes));
        }
        if let Some(blocks) = self.blocks.remove(&pid) {
            self.left.push((pid, blocks));
        }
    }

    /// Takes probes out, in a thread for that. If there can be none, they are taken out here.
    fn detach(&mut self, probes: AttachedProbes) {
        let detacher = self.detacher.get_or_insert_with(|| {
            let (sender, receiver) = channel();
            let thread = thread::Builder::new().name("detach".to_owned());
            let _ = thread.spawn(move || receiver.into_iter().for_each(drop));
            sender
        });
        let _ = detacher.send(probes);
    }

    /// Reads a file that a process maps, if it is new.
    fn read(&mut self, id: ObjectId, pid: Pid, mapping: &Mapping) {
        let full = self.files.values().flatten().count() >= MAX_FILES;
        if self.files.contains_key(&id) || full {
            return;
        }
        let path = Path::new(OsStr::from_bytes(&mapping.file.path));
        let directory = path.parent().unwrap_or(path).to_owned();
        let mapping = mapping.clone();
        let read = self.opener.run(&directory, move || {
            let opened = objects::open(Path::new("/proc"), pid, &mapping).ok()?;
            let allocator = Allocator::read(&opened.file).ok()?;
            Some((opened.file, allocator))
        });
        let found = read.ok().flatten();
        let found = found.filter(|(_, allocator)| !allocator.functions.is_empty());
        let file = found.map(|(file, allocator)| AllocatorFile {
            file,
            allocator,
            used: false,
            failed: false,
        });
        self.files.insert(id, file);
    }

    /// Probes the allocators of a process that maps these files, as far as that is not done.
    fn probe(&mut self, programs: &Programs, pid: Pid, mapped: &BTreeSet<ObjectId>) {
        let stands_in = |id: &ObjectId| {
            let file = self.files.get(id).and_then(Option::as_ref);
            file.is_some_and(|file| file.allocator.stands_in())
        };
        let replaced = mapped.iter().any(stands_in);
        let probed = self.probed.entry(pid).or_default();
        let mut detached = Vec::new();
        for id in mapped {
            let Some(Some(found)) = self.files.get_mut(id) else {
                continue;
            };
            let plain = !(replaced && found.allocator.is_c_library);
            let known = probed.iter().position(|file| file.id == *id);
            match known {
                Some(known) if probed[known].plain == plain => continue,
                Some(known) => detached.push(probed.swap_remove(known).probes),
                None => {}
            }
            let functions = found.allocator.functions.iter();
            let probes: Vec<AllocatorProbe> = functions
                .filter(|function| plain || !function.plain)
                .map(|function| AllocatorProbe {
                    offset: function.offset,
                    function: function.function,
                })
                .collect();
            if probes.is_empty() {
                continue;
            }
            match programs.probe_allocator(pid.0, &open_path(&found.file), &probes) {
                Ok(probes) => {
                    found.used = true;
                    probed.push(ProbedFile {
                        id: *id,
                        plain,
                        probes,
                    });
                }
                // One that has exited is no failure.
                Err(error) if Path::new(&format!("/proc/{pid}")).exists() && !found.failed => {
                    found.failed = true;
                    self.warnings.push(format!("allocations: {error}"));
                }
                Err(_) => {}
            }
        }
        let none = probed.is_empty();
        detached.into_iter().for_each(|probes| self.detach(probes));
        if none {
            self.probed.remove(&pid);
            self.unprobed.insert(pid);
        } else {
            self.unprobed.remove(&pid);
        }
    }

    fn counts(&self) -> ProbeCounts {
        let used = self.files.values().flatten().filter(|file| file.used);
        let slow = used
            .flat_map(|file| &file.allocator.functions)
            .filter(|function| !function.emulated);
        ProbeCounts {
            processes: self.exited.0 + self.probed.len() as u64,
            unprobed: self.exited.1 + self.unprobed.len() as u64,
            slow_functions: slow.count() as u64,
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

/// Returns a path of an open file by which the kernel finds the file itself.
fn open_path(file: &File) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

impl UserSpace {
    /// Probes the allocators of the processes that are traced, where something has changed.
    pub(super) fn probe_allocators(&mut self, programs: &Programs, processes: &ProcessTable) {
        for pid in std::mem::take(&mut self.allocators.due) {
            let tracked = self.tracker.with_pid(pid);
            if !self.policy.may_follow(processes, tracked, pid) {
                continue;
            }
            let mappings = self.code.mapped_by(pid);
            let mapped = self.mapped_files(processes, pid, &mappings);
            if !mapped.is_empty() {
                self.allocators.probe(programs, pid, &mapped);
            }
        }
        // A few at a time: each is a system call.
        if let Some((pid, blocks)) = self.allocators.left.last_mut() {
            let addresses = blocks.take(FORGOTTEN_AT_ONCE);
            if addresses.is_empty() {
                self.allocators.left.pop();
            } else {
                programs.forget_blocks(pid.0, &addresses);
            }
        }
    }

    /// Probes the load before it executes its program: that, and the libraries of kcollect itself,
    /// of which it most likely will map the same C library. The kernel has the probes wherever the
    /// process maps these files later.
    pub fn probe_load(
        &mut self,
        programs: &Programs,
        processes: &ProcessTable,
        (pid, program): (Pid, &OsStr),
    ) {
        if self.allocators.mean_bytes.is_none() {
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
        processes: &ProcessTable,
        pid: Pid,
        mappings: &[Mapping],
    ) -> BTreeSet<ObjectId> {
        let relatives = relatives(processes, pid);
        let mut mapped = BTreeSet::new();
        for mapping in mappings {
            let id = self.code.objects.object_of(pid, &relatives, mapping);
            let object = self.code.objects.get(id);
            if object.is_some_and(|object| object.backing == Backing::File) {
                self.allocators.read(id, pid, mapping);
                mapped.insert(id);
            }
        }
        mapped
    }

    /// Takes what could not be probed, for the log.
    pub fn take_probe_warnings(&mut self) -> Vec<String> {
        std::mem::take(&mut self.allocators.warnings)
    }

    /// Returns the probes of the recording.
    #[must_use]
    pub fn probed(&self) -> ProbeCounts {
        self.allocators.counts()
    }

    /// Adds that a thread allocated or freed a block, if its process may be followed.
    pub fn block(&mut self, router: &mut Router, processes: &ProcessTable, record: &BlockRecord) {
        let pid = record.header.pid();
        let tracked = self.tracker.with_pid(pid);
        let Some(mean_bytes) = self.allocators.mean_bytes else {
            return;
        };
        let before_exec = self.traced.is_before_exec(&record.header);
        if before_exec || !self.policy.may_follow(processes, tracked, pid) {
            return;
        }
        let instance = instance_of(processes, pid);
        let blocks = self.allocators.blocks.entry(pid).or_default();
        for change in blocks.apply(record, mean_bytes) {
            self.block_change(router, processes, (record.header, instance), change);
        }
    }

    /// Records that the blocks of a process are gone, since it executed another program.
    pub fn blocks_end(
        &mut self,
        router: &mut Router,
        processes: &ProcessTable,
        (pid, name): (Pid, &[u8]),
        at_ns: Nanos,
    ) {
        let Some(blocks) = self.allocators.blocks.get_mut(&pid) else {
            return;
        };
        let instance = instance_of(processes, pid);
        let header = RecordHeader {
            pid: pid.0,
            tid: pid.0,
            name: ThreadName::of(name),
            ..RecordHeader::default()
        };
        for change in blocks.executed(at_ns) {
            self.block_change(router, processes, (header, instance), change);
        }
    }

    fn block_change(
        &mut self,
        router: &mut Router,
        processes: &ProcessTable,
        (header, instance): (RecordHeader, ProcessInstance),
        change: BlockChange,
    ) {
        let header = RecordHeader {
            time_ns: change.at_ns.0,
            user_return: if change.freed { 0 } else { header.user_return },
            ..header
        };
        let event = ThreadEvent::Block(change);
        self.traced_event(router, processes, header, instance, event);
    }
}
