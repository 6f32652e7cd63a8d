//! The tracing of allocators (`bpf/c/heap.bpf.c`): how it is loaded, and the probes in a process.

use std::path::Path;

use bpf_abi::ProbeUse;
use bpf_abi::layout::{
    AllocatorFunction, LOG2_BITS, LOG2_STEPS, MAX_BLOCKS, MAX_MEAN_BYTES, PROBE_COST_SHIFT,
    PROBE_OPERANDS_SHIFT, PROBE_USE_SHIFT, SCALE_BITS, USDT_OPERANDS, UsdtOperand,
};
use libbpf_rs::{Link, MapCore as _, MapFlags, OpenProgramMut, UprobeMultiOpts, UprobeOpts};
use zerocopy::{FromBytes as _, IntoBytes as _};

use crate::error::step;
use crate::kernel_types::Feature;
use crate::skeleton::OpenKcollectSkel;
use crate::{Error, KernelTypes, Programs};

/// Min number of blocks that the programs have space for.
const MIN_BLOCKS: u32 = 65_536;

/// What a call takes longer by a probe, nanoseconds, on machines of 2026. What it takes on this one
/// may be half or twice as much; `docs/heap.md` says so.
const PROBE_NS: u16 = 500;
/// The same if the kernel single-steps the probed instruction.
const STEPPED_PROBE_NS: u16 = 5000;
/// What the probe of a return adds.
const RETURN_NS: u16 = 2000;

/// Max allocated bytes, of all traced processes together, whose sampled blocks fit.
const MAX_ALLOCATED_BYTES: u64 = 64 << 30;

/// How blocks are chosen, and probes attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocationSampling {
    /// The mean of the bytes that a thread allocates between two samples. 0: each block is sampled.
    pub mean_bytes: u64,
    /// How the return of functions is probed.
    pub returns: ReturnProbes,
}

/// How the return of a probed function is probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReturnProbes {
    /// Where the program at the function's entry asks for it.
    Session,
    /// Always.
    Always,
}

impl ReturnProbes {
    /// What the running kernel supports: sessions if its types have them
    /// (`BPF_TRACE_UPROBE_SESSION`, Linux 6.13), and a prototype of the function that tells their
    /// programs apart that `c/kernel.h` declares.
    #[must_use]
    pub fn of(types: &KernelTypes) -> ReturnProbes {
        let attachable = types
            .enumerator("bpf_attach_type", "BPF_TRACE_UPROBE_SESSION")
            .is_some();
        let told_apart = matches!(types.parameters("bpf_session_is_return"), Some(0 | 1));
        if attachable && told_apart && types.permits(Feature::UprobeSession) {
            ReturnProbes::Session
        } else {
            ReturnProbes::Always
        }
    }
}

impl AllocationSampling {
    /// Returns how many blocks may be sampled and not freed.
    fn blocks(self) -> u32 {
        let blocks = MAX_ALLOCATED_BYTES
            .checked_div(self.mean_bytes)
            .unwrap_or(MAX_BLOCKS.into());
        let blocks = u32::try_from(blocks).unwrap_or(MAX_BLOCKS);
        blocks.clamp(MIN_BLOCKS, MAX_BLOCKS)
    }
}

/// Returns a mean times log(2), as the programs need it.
pub(crate) fn draw_scale(mean_bytes: u64) -> u64 {
    let scale = mean_bytes.min(MAX_MEAN_BYTES) as f64 * std::f64::consts::LN_2;
    (scale * f64::from(1_u32 << SCALE_BITS)).round() as u64
}

/// Returns the programs' table of logarithms, in units of 2^-[`LOG2_BITS`].
pub(crate) fn log2_table() -> [u32; LOG2_STEPS + 1] {
    std::array::from_fn(|step| {
        let log = (1.0 + step as f64 / LOG2_STEPS as f64).log2();
        (log * f64::from(1_u32 << LOG2_BITS)).round() as u32
    })
}

/// Chooses what is loaded.
pub(crate) fn prepare(
    open: &mut OpenKcollectSkel<'_>,
    sampling: Option<AllocationSampling>,
) -> libbpf_rs::Result<()> {
    if let (Some(rodata), Some(sampling)) = (open.maps.rodata_data.as_deref_mut(), sampling) {
        rodata.draw_scale = draw_scale(sampling.mean_bytes);
        rodata.log2_table = log2_table();
    }
    let returns = sampling.map(|sampling| sampling.returns);
    let load = |program: &mut OpenProgramMut<'_>, with: ReturnProbes| {
        program.set_autoload(returns == Some(with));
    };
    load(&mut open.progs.kc_allocator, ReturnProbes::Session);
    load(&mut open.progs.kc_allocator_in, ReturnProbes::Always);
    load(&mut open.progs.kc_allocator_out, ReturnProbes::Always);
    open.maps
        .kc_usdt_operands
        .set_autocreate(sampling.is_some())?;
    open.maps.kc_blocks.set_autocreate(sampling.is_some())?;
    open.maps.kc_allocating.set_autocreate(sampling.is_some())?;
    open.maps.kc_probe_uses.set_autocreate(sampling.is_some())?;
    if let Some(sampling) = sampling {
        open.maps.kc_blocks.set_max_entries(sampling.blocks())?;
    }
    Ok(())
}

/// A place in a file where a function of an allocator is probed: where its arguments are in their
/// registers, and the stack pointer is at its return address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AllocatorProbe {
    /// Offset in the file.
    pub offset: u64,
    /// What the function does.
    pub function: AllocatorFunction,
    /// The kernel emulates the instruction there. Others are single-stepped.
    pub emulated: bool,
}

impl AllocatorProbe {
    /// Whether the address of a block is known when the function returns.
    fn has_return(&self) -> bool {
        self.function != AllocatorFunction::Free
    }
}

/// A USDT of an allocator that samples blocks itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UsdtProbe {
    /// Offset in the file.
    pub offset: u64,
    /// [`AllocatorFunction::Sampled`] or [`AllocatorFunction::SampledFree`].
    pub function: AllocatorFunction,
    /// The kernel emulates the instruction there. Others are single-stepped.
    pub emulated: bool,
    /// Offset in the file of its semaphore, 16 bits that count the watchers; 0: no semaphore.
    pub semaphore: u64,
    /// The index of its operands: see [`Programs::set_usdt_operands`].
    pub operands: u32,
}

/// The process in which an allocator is probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbedProcess {
    /// Its number.
    pub pid: u32,
    /// A thread of it that has not exited, by which the kernel finds its memory: any of them where
    /// [returns are always probed](Programs::finds_processes_by_any_thread), else the first one.
    pub thread: u32,
    /// In which [`ProbeUse`] its probes are counted, of
    /// [`MAX_PROBE_USES`](bpf_abi::layout::MAX_PROBE_USES).
    pub use_index: u32,
}

impl ProbedProcess {
    fn cookie(self, function: AllocatorFunction, cost_ns: u16, operands: u32) -> u64 {
        let use_index = u64::from(self.use_index) << PROBE_USE_SHIFT;
        let cost = u64::from(cost_ns) << PROBE_COST_SHIFT;
        let operands = u64::from(operands) << PROBE_OPERANDS_SHIFT;
        u64::from(u8::from(function)) | use_index | cost | operands
    }

    /// Returns the cookie of a function's probe.
    fn function_cookie(self, probe: &AllocatorProbe, returns: ReturnProbes) -> u64 {
        let return_ns = match returns {
            ReturnProbes::Always if probe.has_return() => RETURN_NS,
            _ => 0,
        };
        self.cookie(probe.function, entry_ns(probe.emulated) + return_ns, 0)
    }
}

/// What the probe at a function's entry takes, nanoseconds.
fn entry_ns(emulated: bool) -> u16 {
    if emulated { PROBE_NS } else { STEPPED_PROBE_NS }
}

/// Returns the error of probes that the kernel refuses.
fn refused(process: ProbedProcess, file: &Path) -> impl FnOnce(libbpf_rs::Error) -> Error {
    step(format!(
        "probe {} in process {}",
        file.display(),
        process.pid
    ))
}

/// The probes in one file of one process.
///
/// Dropping this value takes them out, which may take some tens of milliseconds.
#[derive(Debug)]
pub struct AttachedProbes {
    _links: Vec<Link>,
}

impl Programs {
    /// Probes functions of an allocator in one process, wherever it maps the file.
    ///
    /// # Errors
    /// [`Error::Step`] when the kernel refuses: the process is gone, or an offset is not in code.
    pub fn probe_allocator(
        &self,
        process: ProbedProcess,
        file: &Path,
        probes: &[AllocatorProbe],
    ) -> Result<AttachedProbes, Error> {
        let links = match self.returns {
            ReturnProbes::Session => self.attach_session(process, file, probes).map(Vec::from),
            ReturnProbes::Always => probes
                .iter()
                .flat_map(|probe| self.attach_both(process, file, *probe))
                .collect(),
        };
        Ok(AttachedProbes {
            _links: links.map_err(refused(process, file))?,
        })
    }

    /// Probes USDTs of an allocator in one process, wherever it maps the file.
    ///
    /// # Errors
    /// As [`Programs::probe_allocator`].
    pub fn probe_usdts(
        &self,
        process: ProbedProcess,
        file: &Path,
        probes: &[UsdtProbe],
    ) -> Result<AttachedProbes, Error> {
        let cookie = |probe: &UsdtProbe| {
            process.cookie(probe.function, entry_ns(probe.emulated), probe.operands)
        };
        let pid = process.thread.cast_signed();
        let links: Result<Vec<Link>, _> = match self.returns {
            ReturnProbes::Session => {
                let each = probes.iter();
                let options = UprobeMultiOpts {
                    offsets: each.clone().map(|probe| probe.offset as usize).collect(),
                    ref_ctr_offsets: each.clone().map(|probe| probe.semaphore as usize).collect(),
                    cookies: each.map(cookie).collect(),
                    session: true,
                    ..UprobeMultiOpts::default()
                };
                let program = &self.skel.progs.kc_allocator;
                let link = program.attach_uprobe_multi_with_opts(pid, file, "", options);
                link.map(|link| vec![link])
            }
            ReturnProbes::Always => {
                let attach = |probe: &UsdtProbe| {
                    let options = UprobeOpts {
                        cookie: cookie(probe),
                        ref_ctr_offset: probe.semaphore as usize,
                        ..UprobeOpts::default()
                    };
                    let program = &self.skel.progs.kc_allocator_in;
                    program.attach_uprobe_with_opts(pid, file, probe.offset as usize, options)
                };
                probes.iter().map(attach).collect()
            }
        };
        Ok(AttachedProbes {
            _links: links.map_err(refused(process, file))?,
        })
    }

    /// Sets where the arguments of USDTs are that have this index, below
    /// [`MAX_USDT_OPERANDS`](bpf_abi::layout::MAX_USDT_OPERANDS).
    ///
    /// # Errors
    /// [`Error::Step`] when the map can't be written.
    pub fn set_usdt_operands(
        &self,
        index: u32,
        operands: &[UsdtOperand; USDT_OPERANDS],
    ) -> Result<(), Error> {
        let map = &self.skel.maps.kc_usdt_operands;
        map.update(&index.to_ne_bytes(), operands.as_bytes(), MapFlags::ANY)
            .map_err(step("set where the arguments of a probe are"))
    }

    /// Begins to count what the probes of a process take that is probed next.
    ///
    /// # Errors
    /// [`Error::Step`] when the map can't be written.
    pub fn open_probe_use(&self, index: u32) -> Result<(), Error> {
        self.set_probe_use(index, ProbeUse::default())
    }

    /// Makes the probes of a process do nothing. Removing them takes longer.
    ///
    /// # Errors
    /// [`Error::Step`] when the map can't be written.
    pub fn close_probe_use(&self, index: u32) -> Result<(), Error> {
        let closed = ProbeUse {
            closed: 1,
            ..ProbeUse::default()
        };
        self.set_probe_use(index, closed)
    }

    fn set_probe_use(&self, index: u32, value: ProbeUse) -> Result<(), Error> {
        let cpus = libbpf_rs::num_possible_cpus().map_err(step("count CPUs"))?;
        let values = vec![value.as_bytes().to_vec(); cpus];
        let map = &self.skel.maps.kc_probe_uses;
        map.update_percpu(&index.to_ne_bytes(), &values, MapFlags::ANY)
            .map_err(step("reset what the probes of a process took"))
    }

    /// Returns what the probes of a process took, nanoseconds, on all CPUs.
    ///
    /// # Errors
    /// [`Error::Step`] when the map can't be read.
    pub fn probes_took(&self, index: u32) -> Result<u64, Error> {
        let map = &self.skel.maps.kc_probe_uses;
        let of_cpus = map
            .lookup_percpu(&index.to_ne_bytes(), MapFlags::ANY)
            .map_err(step("read what the probes of a process took"))?;
        let uses = of_cpus.into_iter().flatten();
        Ok(uses
            .filter_map(|bytes| ProbeUse::read_from_bytes(&bytes).ok())
            .map(|probe_use| probe_use.taken_ns)
            .sum())
    }

    /// Drops blocks of a process that have ended, so that there is space for others.
    pub fn forget_blocks(&self, pid: u32, addresses: &[u64]) {
        for address in addresses {
            let mut key = [0; 16];
            key[..8].copy_from_slice(&address.to_ne_bytes());
            key[8..12].copy_from_slice(&pid.to_ne_bytes());
            // It may have been freed since.
            let _ = self.skel.maps.kc_blocks.delete(&key);
        }
    }

    fn attach_session(
        &self,
        process: ProbedProcess,
        file: &Path,
        probes: &[AllocatorProbe],
    ) -> libbpf_rs::Result<[Link; 1]> {
        let options = UprobeMultiOpts {
            offsets: probes.iter().map(|probe| probe.offset as usize).collect(),
            cookies: probes
                .iter()
                .map(|probe| process.function_cookie(probe, self.returns))
                .collect(),
            session: true,
            ..UprobeMultiOpts::default()
        };
        let program = &self.skel.progs.kc_allocator;
        let pid = process.thread.cast_signed();
        Ok([program.attach_uprobe_multi_with_opts(pid, file, "", options)?])
    }

    fn attach_both(
        &self,
        process: ProbedProcess,
        file: &Path,
        probe: AllocatorProbe,
    ) -> impl Iterator<Item = libbpf_rs::Result<Link>> {
        let returns = probe.has_return().then_some(true);
        // Returns first: a call of which only the return was seen does not count.
        returns.into_iter().chain([false]).map(move |retprobe| {
            let program = if retprobe {
                &self.skel.progs.kc_allocator_out
            } else {
                &self.skel.progs.kc_allocator_in
            };
            let options = UprobeOpts {
                cookie: process.function_cookie(&probe, self.returns),
                retprobe,
                ..UprobeOpts::default()
            };
            let (pid, offset) = (process.thread.cast_signed(), probe.offset as usize);
            program.attach_uprobe_with_opts(pid, file, offset, options)
        })
    }
}
