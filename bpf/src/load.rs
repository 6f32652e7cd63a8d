//! Loads the programs and attaches those that run all the time.

use std::collections::BTreeMap;
use std::fmt;
use std::mem::MaybeUninit;
use std::time::Duration;

use bpf_abi::layout::{
    CPUS_PER_RING, MAX_COUNTERS, MAX_KERNEL_FRAMES, NO_LOCK_WAITS, SCRATCHES_PER_CPU, TracedCall,
};
use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};
use libbpf_rs::{Link, ProgramMut, ProgramType};
use nix::sys::signal::{SigSet, SigmaskHow};

use crate::allocations;
use crate::causes::{self, CpuVariables, can_watch_wakers};
use crate::counters::Attached;
use crate::error::step;
use crate::io_uring;
use crate::kernel_types::Feature;
use crate::rings::Rings;
use crate::sabotage::Sabotage;
use crate::skeleton::{KcollectSkel, KcollectSkelBuilder};
use crate::tables::{TableUse, Tables, UnwindTables};
use crate::verifier::{Refusal, with_log};
use crate::{
    AllocationSampling, Clocks, CodeLookup, Error, KernelTypes, OverflowCounters, ReturnProbes,
    UserStackCapture,
};

/// Eight busy CPUs at 1000 Hz with 25 frames each fill a ring in a second and a half; the reader
/// drains it five times a second, and is woken when an eighth is full.
const RING_BYTES: u32 = 2 << 20;
/// The same with user stacks. The stacks of short-lived processes are copied into the ring.
const RING_BYTES_WITH_USER_STACKS: u32 = 4 << 20;

/// CLOCK_MONOTONIC: an end of recording before every boundary. 0 would mean no end.
const BEFORE_ALL_DATA_NS: u64 = 1;

/// The scheduler's clock of the CPU that loads is known after a context switch there; without run
/// queues, after a thread has come and left.
const CONTEXT_SWITCH: Duration = Duration::from_millis(1);

/// What is fixed when the programs are loaded.
#[derive(Debug)]
pub struct Settings<'a> {
    /// The types of the running kernel.
    pub types: &'a KernelTypes,
    /// The clock interval.
    pub period_ns: u64,
    /// Send the ticks of the idle task too (`-x off`).
    pub record_idle: bool,
    /// `kernel.perf_event_max_stack`: a stack with this number of frames counts as truncated.
    pub max_kernel_frames: u32,
    /// Functions of the kernel that the programs look for.
    pub functions: KernelFunctions,
    /// One more than the largest CPU id that this machine can have.
    pub cpu_ids: u32,
    /// How user stacks are captured, if they are.
    pub user_stacks: Option<UserStackCapture>,
    /// How long a thread of a followed process has to be blocked in a futex for a
    /// [`bpf_abi::LockWaitRecord`], nanoseconds. None: there are no such records.
    pub lock_threshold_ns: Option<u64>,
    /// What wakes each thread is watched (`-W on`). Otherwise the causes of waits are known as far
    /// as the waiting thread's own state says them.
    pub watch_wakers: bool,
    /// The calls of followed processes that are sent as [`bpf_abi::IoCallRecord`], by number, in
    /// [`IO_CALLS`](bpf_abi::layout::IO_CALLS) elements for each
    /// [`CallTable`](bpf_abi::layout::CallTable). Empty: none is, and no system call of any process
    /// is slower.
    pub traced_calls: Vec<TracedCall>,
    /// How blocks of probed allocators are sampled. None: no allocator can be probed.
    pub allocations: Option<AllocationSampling>,
    /// For counters: the number of hits after which a tracepoint overflows; 0 for other counters.
    pub hit_intervals: Option<[u64; MAX_COUNTERS]>,
    /// Which part is switched off, so that a test sees that this is noticed.
    pub sabotage: Option<Sabotage>,
}

/// Addresses of functions of the kernel; 0: not found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelFunctions {
    /// First address and end of the page fault handler.
    pub page_fault: (u64, u64),
    /// `hrtimer_wakeup`, which ends a wait by its time-out.
    pub hrtimer_wakeup: u64,
    /// `process_timeout`, which does the same.
    pub process_timeout: u64,
}

/// The loaded programs.
///
/// Dropping this value detaches and unloads everything.
pub struct Programs {
    // Before the skeleton, so that no tick comes while that is dropped.
    pub(crate) clocks: BTreeMap<u32, Link>,
    pub(crate) attached: Attached,
    _hooks: Vec<Link>,
    pub(crate) skel: KcollectSkel<'static>,
    tables: Tables,
    pub(crate) cpu_ids: u32,
    pub(crate) returns: ReturnProbes,
}

impl fmt::Debug for Programs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Programs")
            .field("cpus", &self.clocks.keys())
            .finish_non_exhaustive()
    }
}

impl Programs {
    /// Loads the programs and makes their rings. No clock runs yet, and nothing is recorded before
    /// [`Programs::set_recording`].
    ///
    /// # Errors
    /// [`Error::Load`] with the reason and libbpf's log when the kernel refuses them,
    /// [`Error::Step`] when a ring can't be made.
    pub fn load(settings: &Settings<'_>) -> Result<(Programs, Rings), Error> {
        let (loaded, log) = with_log(|| without_signals(|| open_and_load(settings)));
        let skel = loaded.map_err(|source| Error::Load(Box::new(Refusal::new(&source, log))))?;

        let bytes = match settings.user_stacks {
            Some(_) => RING_BYTES_WITH_USER_STACKS,
            None => RING_BYTES,
        };
        let rings = Rings::make(&skel, settings.cpu_ids.div_ceil(CPUS_PER_RING), bytes)?;
        let progs = &skel.progs;
        let mut hooks = Vec::new();
        // A program that was not loaded is left out.
        let mut attach = |programs: &[&ProgramMut<'_>], what: &str| -> Result<(), Error> {
            for program in programs.iter().filter(|program| program.autoload()) {
                hooks.push(program.attach().map_err(step(what))?);
            }
            Ok(())
        };
        attach(&[&progs.kc_cpu_idle], "watch idle CPUs")?;
        attach(&[&progs.kc_exec_rename], "watch exec")?;
        if settings.sabotage != Some(Sabotage::SchedSwitch) {
            let programs = [&progs.kc_sched_switch, &progs.kc_sched_switch_alone];
            attach(&programs, "watch context switches")?;
        }
        let wake_ups = [
            &progs.kc_wakeup,
            &progs.kc_wakeup_new,
            &progs.kc_waking,
            &progs.kc_waking_new,
        ];
        attach(&wake_ups, "watch wake-ups")?;
        if settings.sabotage != Some(Sabotage::PageFault) {
            attach(&[&progs.kc_kernel_fault], "watch page faults of the kernel")?;
        }
        if !settings.traced_calls.is_empty() {
            // Ends first: a call of which only the beginning was seen does not count.
            let programs = [
                &progs.kc_sys_exit,
                &progs.kc_sys_exit_again,
                &progs.kc_sys_enter,
                &progs.kc_sys_enter_again,
            ];
            attach(&programs, "watch system calls")?;
        }
        let operations = [
            &progs.kc_io_overflow,
            &progs.kc_io_fail_link,
            &progs.kc_io_complete,
            &progs.kc_io_submit,
        ];
        attach(&operations, "watch io_uring")?;
        let switches = if has_run_queues(settings.types) { 1 } else { 3 };
        for _ in 0..switches {
            std::thread::sleep(CONTEXT_SWITCH);
        }
        let programs = Programs {
            clocks: BTreeMap::new(),
            attached: Attached::default(),
            _hooks: hooks,
            skel,
            tables: Tables::default(),
            cpu_ids: settings.cpu_ids,
            returns: settings
                .allocations
                .map_or(ReturnProbes::Always, |sampling| sampling.returns),
        };
        Ok((programs, rings))
    }

    /// Whether allocators are probed by perf events that only `CAP_SYS_ADMIN` opens: the kernel
    /// asks for it since Linux 6.15, as old as the functions that turn interrupts off.
    #[must_use]
    pub fn probes_need_sys_admin(&self) -> bool {
        let settings = self.skel.maps.rodata_data.as_ref();
        self.returns == ReturnProbes::Always
            && settings.is_some_and(|settings| settings.turn_interrupts_off)
    }

    /// Whether a process is probed by any thread of it, and not by its first one alone.
    #[must_use]
    pub fn finds_processes_by_any_thread(&self) -> bool {
        self.returns == ReturnProbes::Always
    }

    /// Whether page faults in the kernel are noted as they happen.
    #[must_use]
    pub fn notes_kernel_faults(&self) -> bool {
        self.skel.progs.kc_kernel_fault.autoload()
    }

    /// Whether what wakes each thread is watched.
    #[must_use]
    pub fn watches_wakers(&self) -> bool {
        self.skel.progs.kc_waking.autoload()
    }

    /// Returns the clocks of the CPUs.
    pub fn clocks(&mut self) -> Clocks<'_> {
        Clocks { programs: self }
    }

    /// Returns the unwind tables.
    pub fn tables(&mut self) -> UnwindTables<'_> {
        UnwindTables {
            tables: &mut self.tables,
            maps: &mut self.skel.maps,
        }
    }

    /// Returns the counters that overflow.
    pub fn counters(&mut self) -> OverflowCounters<'_> {
        OverflowCounters { programs: self }
    }

    /// Returns how much the tables take.
    #[must_use]
    pub fn table_use(&self) -> TableUse {
        self.tables.in_use()
    }
}

/// Whether page faults in the kernel can be noted as they happen; if not, they are looked for in
/// the stack of each thread that blocks.
pub(crate) fn has_fault_tracepoint(types: &KernelTypes) -> bool {
    types.has_tracepoint("page_fault_kernel") && types.permits(Feature::FaultTracepoint)
}

/// Whether the scheduler keeps since when a thread waits for a CPU, and how long it has waited.
pub(crate) fn has_sched_info(types: &KernelTypes) -> bool {
    types.offset("task_struct", "sched_info").is_some()
        && ["last_arrival", "last_queued", "run_delay"]
            .iter()
            .all(|field| types.offset("sched_info", field).is_some())
        && types.permits(Feature::SchedInfo)
}

/// Whether a thread leads to its run queue, which has the scheduler's clock. Without `sched_info`
/// nothing else has times of that clock.
pub(crate) fn has_run_queues(types: &KernelTypes) -> bool {
    has_sched_info(types)
        && types.offset("sched_entity", "cfs_rq").is_some()
        && types.offset("cfs_rq", "rq").is_some()
        && types.offset("rq", "clock").is_some()
        && types.permits(Feature::RunQueues)
}

/// Whether programs can turn interrupts off, and call global functions meanwhile (Linux 6.15, the
/// first with resilient spin locks).
fn may_turn_interrupts_off(types: &KernelTypes) -> bool {
    types.parameters("bpf_local_irq_save") == Some(1)
        && types.parameters("bpf_res_spin_unlock").is_some()
}

/// Whether a thread can be preempted inside a program at a system call (Linux 7.2). Meanwhile the
/// kernel skips that program for the other threads of the CPU.
fn preempts_programs_at_calls(types: &KernelTypes) -> bool {
    types.parameters("trace_call_bpf_faultable").is_some()
}

/// Runs `load` with all signals blocked: the kernel's verifier gives up when one is pending, and
/// libbpf tries again only a few times. They arrive afterwards.
fn without_signals<T>(load: impl FnOnce() -> libbpf_rs::Result<T>) -> libbpf_rs::Result<T> {
    let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK);
    let before = before.map_err(std::io::Error::from)?;
    let loaded = load();
    before.thread_set_mask().map_err(std::io::Error::from)?;
    loaded
}

/// Whether wake-ups are watched: if that is wanted and this kernel allows it.
fn watches_wakers(settings: &Settings<'_>) -> bool {
    settings.watch_wakers && has_run_queues(settings.types) && can_watch_wakers(settings.types)
}

fn open_and_load(settings: &Settings<'_>) -> libbpf_rs::Result<KcollectSkel<'static>> {
    // One object for the life of the process: a leak of a few words makes a skeleton without a
    // borrowed owner next to it.
    let object = Box::leak(Box::new(MaybeUninit::uninit()));
    let mut open = KcollectSkelBuilder::default().open(object)?;
    if let Some(bss) = open.maps.bss_data.as_deref_mut() {
        bss.until_ns = BEFORE_ALL_DATA_NS;
    }
    let traces_calls = !settings.traced_calls.is_empty();
    let calls_are_preempted = traces_calls && preempts_programs_at_calls(settings.types);
    if let Some(rodata) = open.maps.rodata_data.as_deref_mut() {
        rodata.period_ns = settings.period_ns;
        rodata.record_idle = settings.record_idle;
        rodata.capture_user_stacks =
            settings.user_stacks.is_some() && settings.sabotage != Some(Sabotage::Unwinder);
        if settings.sabotage == Some(Sabotage::Storage) {
            rodata.create_storage = 0;
        }
        rodata.capture_on_return = settings.user_stacks == Some(UserStackCapture::OnReturn);
        (rodata.page_fault_from, rodata.page_fault_to) = settings.functions.page_fault;
        rodata.use_maple_tree = CodeLookup::of(settings.types) == CodeLookup::MapleTree;
        rodata.kernel_faults_are_noted = has_fault_tracepoint(settings.types);
        rodata.use_run_queues = has_run_queues(settings.types);
        rodata.use_sched_info = has_sched_info(settings.types);
        rodata.turn_interrupts_off = may_turn_interrupts_off(settings.types);
        rodata.calls_are_preempted = calls_are_preempted;
        rodata.counters_overflow = settings.hit_intervals.is_some();
        rodata.own_pid = std::process::id();
        rodata.hit_interval = settings.hit_intervals.unwrap_or_default();
        if has_run_queues(settings.types) {
            rodata.steal_from_rq = crate::steal::distance_from_run_queue(settings.types);
        }
        rodata.call_causes = causes::of_calls();
        if watches_wakers(settings) {
            let variables = CpuVariables::of(settings.types);
            rodata.watch_wakers = true;
            rodata.preempt_count_from_rq = variables.preempt_count;
            rodata.hrtimers_from_rq = variables.hrtimers;
            rodata.timers_from_rq = variables.timers;
            rodata.hrtimer_wakeup_address = settings.functions.hrtimer_wakeup;
            rodata.process_timeout_address = settings.functions.process_timeout;
        }
        rodata.lock_threshold_ns = settings.lock_threshold_ns.unwrap_or(NO_LOCK_WAITS);
        for (entry, call) in rodata.traced_calls.iter_mut().zip(&settings.traced_calls) {
            (entry.traced, entry.extra) = (call.traced, call.extra);
            entry.extra_argument = call.extra_argument;
        }
        rodata.max_kernel_frames = settings.max_kernel_frames.min(MAX_KERNEL_FRAMES as u32);
    }
    open.progs
        .kc_kernel_fault
        .set_autoload(has_fault_tracepoint(settings.types));
    let run_queues = has_run_queues(settings.types);
    open.progs.kc_sched_switch.set_autoload(run_queues);
    open.progs.kc_sched_switch_alone.set_autoload(!run_queues);
    let sched_info = has_sched_info(settings.types);
    open.progs.kc_wakeup.set_autoload(!sched_info);
    open.progs.kc_wakeup_new.set_autoload(!sched_info);
    let watch_wakers = watches_wakers(settings);
    open.progs.kc_waking.set_autoload(watch_wakers);
    open.progs.kc_waking_new.set_autoload(watch_wakers);
    if settings.sabotage == Some(Sabotage::Load) {
        // No program of this type may call what this one does: the verifier refuses it.
        let program = &mut open.progs.kc_sched_switch;
        program.set_prog_type(ProgramType::SocketFilter);
    }
    let counters_overflow = settings.hit_intervals.is_some();
    open.progs.kc_overflow.set_autoload(counters_overflow);
    open.progs.kc_tracepoint.set_autoload(counters_overflow);
    open.progs.kc_sys_enter.set_autoload(traces_calls);
    open.progs.kc_sys_exit.set_autoload(traces_calls);
    open.progs
        .kc_sys_enter_again
        .set_autoload(calls_are_preempted);
    open.progs
        .kc_sys_exit_again
        .set_autoload(calls_are_preempted);
    open.maps.kc_io_scratch.set_autocreate(traces_calls)?;
    open.maps.kc_io_threads.set_autocreate(traces_calls)?;
    open.maps.kc_io_stack.set_autocreate(traces_calls)?;
    let traced = io_uring::is_traced(&settings.traced_calls);
    io_uring::prepare(&mut open, traced, settings.types)?;
    allocations::prepare(&mut open, settings.allocations)?;
    open.maps.kc_cpu_stats.set_max_entries(settings.cpu_ids)?;
    open.maps.kc_ended_stats.set_max_entries(settings.cpu_ids)?;
    if settings.user_stacks.is_some() {
        open.maps
            .kc_user_scratch
            .set_max_entries(1 + settings.cpu_ids * SCRATCHES_PER_CPU)?;
    }
    open.maps
        .kc_rings
        .set_max_entries(settings.cpu_ids.div_ceil(CPUS_PER_RING))?;
    open.load()
}
