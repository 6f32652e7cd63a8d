//! The probes in processes: which functions of which files are probed, and how probes are removed.

use std::collections::{BTreeSet, VecDeque};
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::thread;

use bpf::{AllocatorProbe, AttachedProbes, ProbedProcess, Programs, UsdtProbe};
use bpf_abi::layout::{MAX_PROBE_USES, MAX_USDT_OPERANDS, USDT_OPERANDS, UsdtOperand};
use experiment_format::ids::{Pid, Tid};
use experiment_format::units::Nanos;
use host::machine;
use nix::time::{ClockId, clock_getcpuclockid};
use user_collector::allocators::{Allocator, FoundUsdt};
use user_collector::objects::{self, ObjectId};
use user_collector::process::thread_with_memory;
use user_collector::space::Mapping;

use super::TracedAllocators;
use super::budget::ProcessBudget;

/// Max files with an allocator that are kept open.
const MAX_FILES: usize = 64;

/// The free indexes of [`bpf_abi::ProbeUse`]. The one that was free for longest is used first: a
/// probe that is being removed may still count there.
#[derive(Debug)]
pub(super) struct ProbeUses(VecDeque<u32>);

impl Default for ProbeUses {
    fn default() -> ProbeUses {
        ProbeUses((0..MAX_PROBE_USES).collect())
    }
}

/// The probes in a process.
#[derive(Debug)]
pub(super) struct ProbedAllocators {
    pub(super) use_index: u32,
    pub(super) budget: ProcessBudget,
    files: Vec<ProbedFile>,
}

impl ProbedAllocators {
    /// Returns whether its allocator samples blocks itself.
    pub(super) fn samples(&self) -> bool {
        self.files.iter().any(|file| file.set == ProbeSet::Samples)
    }
}

#[derive(Debug)]
pub(super) struct AllocatorFile {
    file: File,
    pub(super) allocator: Allocator,
    /// It has been probed in some process.
    pub(super) used: bool,
    /// It could not be probed in some process, which has been said.
    failed: bool,
}

/// What to probe of a file in a process.
struct WantedFile {
    id: ObjectId,
    set: ProbeSet,
    probes: Vec<AllocatorProbe>,
    usdts: Vec<FoundUsdt>,
}

impl WantedFile {
    fn has_any(&self) -> bool {
        !self.probes.is_empty() || !self.usdts.is_empty()
    }
}

/// Which probes of a file are set, which depends on the other files of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProbeSet {
    /// All functions.
    All,
    /// The functions for which no other file has one of the same name.
    WithPrefix,
    /// The allocator's own samples.
    Samples,
}

#[derive(Debug)]
struct ProbedFile {
    id: ObjectId,
    set: ProbeSet,
    /// By which the kernel found the memory of the process.
    thread: Tid,
    probes: AttachedProbes,
}

/// The operands of USDTs that differ, by their index in the BPF programs.
#[derive(Debug, Default)]
pub(super) struct KnownOperands(Vec<[UsdtOperand; USDT_OPERANDS]>);

impl KnownOperands {
    /// Returns how a USDT is probed. None: there is no space for its operands.
    fn probe(&mut self, programs: &Programs, usdt: &FoundUsdt) -> Option<UsdtProbe> {
        let known = self
            .0
            .iter()
            .position(|operands| *operands == usdt.operands);
        let index = known.unwrap_or(self.0.len());
        let operands = u32::try_from(index).ok()?;
        if known.is_none() {
            if index >= MAX_USDT_OPERANDS {
                return None;
            }
            programs.set_usdt_operands(operands, &usdt.operands).ok()?;
            self.0.push(usdt.operands);
        }
        Some(UsdtProbe {
            offset: usdt.offset,
            function: usdt.function,
            emulated: usdt.emulated,
            semaphore: usdt.semaphore,
            operands,
        })
    }
}

impl TracedAllocators {
    /// Takes the probes out of a process. Returns whether there were any.
    pub(super) fn take_out(&mut self, pid: Pid) -> bool {
        let Some(process) = self.probed.remove(&pid) else {
            return false;
        };
        self.uses.0.push_back(process.use_index);
        self.previously_sampling += u64::from(process.samples());
        let files = process.files.into_iter();
        files.for_each(|file| self.detach(file.probes));
        true
    }

    /// Removes probes in a thread of its own, or in this thread if that one cannot be spawned.
    pub(super) fn detach(&mut self, probes: AttachedProbes) {
        let detacher = self.detacher.get_or_insert_with(|| {
            let (sender, receiver) = channel();
            let thread = thread::Builder::new().name("detach".to_owned());
            let _ = thread.spawn(move || receiver.into_iter().for_each(drop));
            sender
        });
        let _ = detacher.send(probes);
    }

    /// Reads a file that a process maps, if it is new.
    pub(super) fn read(&mut self, id: ObjectId, pid: Pid, mapping: &Mapping) {
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
        let found = found.filter(|(_, allocator)| !allocator.is_empty());
        let file = found.map(|(file, allocator)| AllocatorFile {
            file,
            allocator,
            used: false,
            failed: false,
        });
        self.files.insert(id, file);
    }

    /// Probes the allocators of a process that maps these files, as far as that is not done.
    pub(super) fn probe(&mut self, programs: &Programs, pid: Pid, mapped: &BTreeSet<ObjectId>) {
        if self.is_over_budget(pid) {
            return;
        }
        let wanted = self.wanted(mapped);
        let any = wanted.iter().any(WantedFile::has_any);
        if any || self.probed.contains_key(&pid) {
            self.attach(programs, pid, wanted);
        } else if !self.go.has(pid) && cpu_time(pid).is_some() {
            self.unprobed.insert(pid);
        }
    }

    /// Finds the memory profile of a Go program, whose file was read.
    pub(super) fn find_go_profile(&mut self, id: ObjectId, pid: Pid, mapping: &Mapping) {
        let file = self.files.get(&id).and_then(Option::as_ref);
        let program = file.and_then(|file| file.allocator.go);
        if let Some(symbols) = program.and_then(|program| program.mapped(mapping)) {
            self.go.found(pid, symbols);
        }
    }

    /// Returns the functions to probe of the files that a process maps.
    fn wanted(&self, mapped: &BTreeSet<ObjectId>) -> Vec<WantedFile> {
        let file = |id: &ObjectId| Some((*id, &self.files.get(id)?.as_ref()?.allocator));
        let allocators: Vec<_> = mapped.iter().filter_map(file).collect();
        let replaced = allocators
            .iter()
            .any(|(_, allocator)| allocator.stands_in());
        // It reports its own samples as often as it wants, and not each block.
        let all = self
            .sampling
            .is_some_and(|sampling| sampling.mean_bytes == 0);
        let samples = !all && allocators.iter().any(|(_, allocator)| allocator.samples());
        let wanted = |(id, allocator): (ObjectId, &Allocator)| {
            if samples {
                return WantedFile {
                    id,
                    set: ProbeSet::Samples,
                    probes: Vec::new(),
                    usdts: allocator.usdts.clone(),
                };
            }
            let plain = !(replaced && allocator.is_c_library);
            let functions = allocator.functions.iter();
            let probes = functions
                .filter(|found| plain || !found.plain)
                .map(|found| AllocatorProbe {
                    offset: found.offset,
                    function: found.function,
                    emulated: found.emulated,
                });
            WantedFile {
                id,
                set: if plain {
                    ProbeSet::All
                } else {
                    ProbeSet::WithPrefix
                },
                probes: probes.collect(),
                usdts: Vec::new(),
            }
        };
        allocators.into_iter().map(wanted).collect()
    }

    /// Sets the probes of a process that are wanted and not set yet.
    fn attach(&mut self, programs: &Programs, pid: Pid, wanted: Vec<WantedFile>) {
        if !self.open(programs, pid) {
            return;
        }
        let Some(process) = self.probed.get_mut(&pid) else {
            return;
        };
        // The kernel finds a process's memory by a thread, and one that has exited has none.
        let proc = Path::new("/proc");
        let target = ProbedProcess {
            pid: pid.0,
            thread: thread_with_memory(proc, pid, Tid(pid.0)).0,
            use_index: process.use_index,
        };
        let by_any_thread = programs.finds_processes_by_any_thread();
        let can_be_found = by_any_thread || target.thread == pid.0;
        // Probes of a session stay when the thread exits by which they were set.
        let is_set = |file: &ProbedFile| {
            !by_any_thread || thread_with_memory(proc, pid, file.thread) == file.thread
        };
        let probed = &mut process.files;
        let mut detached = Vec::new();
        for wanted in wanted {
            let (id, set) = (wanted.id, wanted.set);
            match probed.iter().position(|file| file.id == id) {
                Some(known) if probed[known].set == set && is_set(&probed[known]) => continue,
                Some(known) => detached.push(probed.swap_remove(known).probes),
                None => {}
            }
            let Some(Some(found)) = self.files.get_mut(&id) else {
                continue;
            };
            if !wanted.has_any() {
                continue;
            }
            if !can_be_found {
                if !found.failed {
                    found.failed = true;
                    self.warnings.push(format!(
                        "allocations: process {pid} is not probed: its first thread has exited, by which \
                         the kernel finds it; start the recording again"
                    ));
                }
                continue;
            }
            let file = open_path(&found.file);
            let probes = match set {
                ProbeSet::Samples => {
                    let usdts = wanted.usdts.iter();
                    let usdts = usdts.filter_map(|usdt| self.operands.probe(programs, usdt));
                    let usdts: Vec<_> = usdts.collect();
                    let left_out = wanted.usdts.len() - usdts.len();
                    if left_out > 0 {
                        self.warnings.push(format!(
                            "allocations: {left_out} of the places where process {pid} samples blocks are \
                             not recorded: there are too many forms of their arguments"
                        ));
                    }
                    programs.probe_usdts(target, &file, &usdts)
                }
                _ => programs.probe_allocator(target, &file, &wanted.probes),
            };
            match probes {
                Ok(probes) => {
                    found.used = true;
                    let thread = Tid(target.thread);
                    probed.push(ProbedFile {
                        id,
                        set,
                        thread,
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
            self.take_out(pid);
        }
        // One that has exited meanwhile is not counted.
        if none && cpu_time(pid).is_some() {
            self.unprobed.insert(pid);
        } else {
            self.unprobed.remove(&pid);
        }
    }

    /// Makes what a process with probes needs, if it is not there. Returns whether it is.
    fn open(&mut self, programs: &Programs, pid: Pid) -> bool {
        if self.probed.contains_key(&pid) {
            return true;
        }
        let free = cpu_time(pid).and_then(|cpu_ns| Some((cpu_ns, self.uses.0.pop_front()?)));
        let Some((cpu_ns, use_index)) = free else {
            self.unprobed.insert(pid);
            return false;
        };
        if let Err(error) = programs.open_probe_use(use_index) {
            self.warnings.push(format!("allocations: {error}"));
        }
        let process = ProbedAllocators {
            use_index,
            budget: ProcessBudget::new(cpu_ns, machine::now()),
            files: Vec::new(),
        };
        self.probed.insert(pid, process);
        true
    }
}

/// Returns a path of an open file by which the kernel finds the file itself.
fn open_path(file: &File) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

/// Returns the CPU time of a process. None: it is gone.
pub(super) fn cpu_time(pid: Pid) -> Option<Nanos> {
    let clock = clock_getcpuclockid(nix::unistd::Pid::from_raw(pid.as_raw())).ok()?;
    let time = ClockId::now(clock).ok()?;
    Some(Nanos::from(std::time::Duration::from(time)))
}
