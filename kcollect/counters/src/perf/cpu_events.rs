//! The events that a recording opens on each CPU: clock, side-band, and the counters of `-h`.
//!
//! Clock and side-band are software events, so every machine has them, virtual ones too.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};

use perf_event_open_sys::{bindings as sys, ioctls};
use types::units::Nanos;

use crate::names::event::CounterRequest;
use crate::perf::counter::open_event;
use crate::perf::scope::CounterScope;

/// Opens the clock of one CPU. It fires every `period_ns`, on an hrtimer, whether the CPU is busy
/// or idle. It is disabled until a BPF program is attached.
///
/// # Errors
/// The error of the kernel; ENODEV where the CPU is offline.
pub fn open_clock(cpu: u32, period_ns: Nanos) -> io::Result<OwnedFd> {
    let mut attr = software(sys::PERF_COUNT_SW_CPU_CLOCK);
    attr.__bindgen_anon_1.sample_period = period_ns.0;
    attr.set_disabled(1);
    open_event(&mut attr, CounterScope::Cpu(cpu), None)
}

/// Sets the time between two firings of a clock, counted from its last firing.
///
/// # Errors
/// The error of the kernel.
pub fn set_clock_period(event: BorrowedFd<'_>, period_ns: Nanos) -> io::Result<()> {
    // The kernel wants the address of the number.
    let address = (&raw const period_ns.0).expose_provenance() as u64;
    // SAFETY: the descriptor is open, and the kernel reads the number, which lives until it
    // returns.
    match unsafe { ioctls::PERIOD(event.as_raw_fd(), address) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Opens a counter on one CPU, for all threads that run there. It overflows at its interval; a
/// tracepoint does not, since its program runs at every hit. It is disabled. A reading has the
/// count, how long the counter was enabled and how long it counted.
///
/// # Errors
/// The error of the kernel; ENODEV where the CPU is offline.
pub fn open_overflow(request: &CounterRequest, cpu: u32) -> io::Result<OwnedFd> {
    let mut attr = request.event.encoding.attribute();
    attr.read_format =
        u64::from(sys::PERF_FORMAT_TOTAL_TIME_ENABLED | sys::PERF_FORMAT_TOTAL_TIME_RUNNING);
    if !request.event.is_tracepoint() {
        attr.__bindgen_anon_1.sample_period = request.interval;
    }
    open_event(&mut attr, CounterScope::Cpu(cpu), None)
}

/// Opens the side-band of one CPU: records of fork, exit, exec and comm, of executable mappings
/// with their build ids, and of kernel code that is added or removed. Times are CLOCK_MONOTONIC.
///
/// The event is enabled. It becomes readable at `watermark_bytes` of unread records.
///
/// # Errors
/// The error of the kernel; ENODEV where the CPU is offline.
pub fn open_sideband(cpu: u32, watermark_bytes: u32) -> io::Result<OwnedFd> {
    let mut attr = software(sys::PERF_COUNT_SW_DUMMY);
    attr.sample_type = sys::PERF_SAMPLE_TIME.into();
    attr.clockid = libc::CLOCK_MONOTONIC;
    attr.__bindgen_anon_2.wakeup_watermark = watermark_bytes;
    attr.set_watermark(1);
    attr.set_use_clockid(1);
    attr.set_sample_id_all(1);
    attr.set_mmap(1);
    attr.set_mmap2(1);
    attr.set_build_id(1);
    attr.set_comm(1);
    attr.set_comm_exec(1);
    attr.set_task(1);
    attr.set_ksymbol(1);
    open_event(&mut attr, CounterScope::Cpu(cpu), None)
}

fn software(config: sys::perf_sw_ids) -> sys::perf_event_attr {
    sys::perf_event_attr {
        type_: sys::PERF_TYPE_SOFTWARE,
        size: size_of::<sys::perf_event_attr>() as u32,
        config: config.into(),
        ..Default::default()
    }
}
