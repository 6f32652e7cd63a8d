//! Opening per-CPU perf events.
//!
//! Clock and side-band are software events, so they exist on every machine, virtual ones too.

use std::io;
use std::os::fd::{FromRawFd as _, OwnedFd};

use perf_event_open_sys::bindings as sys;

use crate::names::event::Request;

/// Opens the clock of one CPU: it fires every `period_ns`, on an hrtimer, whether the CPU is busy
/// or idle, and is disabled until a BPF program is attached.
///
/// # Errors
/// What the kernel says; ENODEV is a CPU that is offline.
pub fn open_clock(cpu: u32, period_ns: u64) -> io::Result<OwnedFd> {
    let mut attr = software(sys::PERF_COUNT_SW_CPU_CLOCK);
    attr.__bindgen_anon_1.sample_period = period_ns;
    attr.set_disabled(1);
    open(&mut attr, cpu)
}

/// Opens a counter on one CPU, in whatever runs there. It overflows every so often, but for a
/// tracepoint, whose program sees every hit. It is disabled, and reads as its count, for how long
/// it was enabled and for how long it counted.
///
/// # Errors
/// What the kernel says; ENODEV is a CPU that is offline.
pub fn open_overflow(request: &Request, cpu: u32) -> io::Result<OwnedFd> {
    let mut attr = request.event.encoding.attribute();
    attr.read_format =
        u64::from(sys::PERF_FORMAT_TOTAL_TIME_ENABLED | sys::PERF_FORMAT_TOTAL_TIME_RUNNING);
    if !request.event.is_tracepoint() {
        attr.__bindgen_anon_1.sample_period = request.interval;
    }
    open(&mut attr, cpu)
}

/// Opens the side-band of one CPU: records of fork, exit, exec and renaming, of executable mappings
/// with their build ids, and of kernel code that comes and goes. Times are CLOCK_MONOTONIC.
///
/// It is enabled at once. `watermark` is how many unread bytes make it readable.
///
/// # Errors
/// What the kernel says; ENODEV is a CPU that is offline.
pub fn open_sideband(cpu: u32, watermark: u32) -> io::Result<OwnedFd> {
    let mut attr = software(sys::PERF_COUNT_SW_DUMMY);
    attr.sample_type = sys::PERF_SAMPLE_TIME.into();
    attr.clockid = libc::CLOCK_MONOTONIC;
    attr.__bindgen_anon_2.wakeup_watermark = watermark;
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
    open(&mut attr, cpu)
}

fn software(config: sys::perf_sw_ids) -> sys::perf_event_attr {
    sys::perf_event_attr {
        type_: sys::PERF_TYPE_SOFTWARE,
        size: size_of::<sys::perf_event_attr>() as u32,
        config: config.into(),
        ..Default::default()
    }
}

fn open(attr: &mut sys::perf_event_attr, cpu: u32) -> io::Result<OwnedFd> {
    let cpu = i32::try_from(cpu).map_err(|_| io::Error::from_raw_os_error(libc::ENODEV))?;
    // SAFETY: `attr` is an initialised perf_event_attr that lives through the call.
    let fd = unsafe {
        perf_event_open_sys::perf_event_open(attr, -1, cpu, -1, sys::PERF_FLAG_FD_CLOEXEC.into())
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just given us this descriptor; nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
