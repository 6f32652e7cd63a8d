//! An event that can be counted, as `perf_event_open(2)` wants it.

use perf_event_open_sys::bindings as sys;

/// What the kernel is told of an event: the part of `perf_event_attr` that says what is counted,
/// and nothing of how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Encoding {
    /// `type`: one of `PERF_TYPE_*`, or the number of a PMU from its directory in sysfs.
    pub kind: u32,
    /// `config`; of a tracepoint its id.
    pub config: u64,
    /// `config1`; of a breakpoint its address.
    pub config1: u64,
    /// `config2`; of a breakpoint its length, bytes.
    pub config2: u64,
    /// `config3`, since Linux 6.3.
    pub config3: u64,
    /// Of a breakpoint: what is waited for, `HW_BREAKPOINT_*`.
    pub breakpoint: u32,
    /// Count in user mode.
    pub user: bool,
    /// Count in the kernel.
    pub kernel: bool,
    /// Count in a hypervisor, where the CPU knows of one.
    pub hypervisor: bool,
    /// `precise_ip`: how exact the place of an overflow has to be, 0 to 3.
    pub precise: u8,
}

impl Encoding {
    /// A software event of the kernel, `PERF_COUNT_SW_*`, counted everywhere.
    #[must_use]
    pub fn software(config: sys::perf_sw_ids) -> Encoding {
        Encoding {
            kind: sys::PERF_TYPE_SOFTWARE,
            config: config.into(),
            user: true,
            kernel: true,
            hypervisor: true,
            ..Encoding::default()
        }
    }

    /// An attribute for `perf_event_open(2)` with this event in it, disabled, and nothing else.
    #[must_use]
    pub fn attribute(&self) -> sys::perf_event_attr {
        let mut attr = sys::perf_event_attr {
            type_: self.kind,
            size: size_of::<sys::perf_event_attr>() as u32,
            config: self.config,
            bp_type: self.breakpoint,
            config3: self.config3,
            ..Default::default()
        };
        attr.__bindgen_anon_3.config1 = self.config1;
        attr.__bindgen_anon_4.config2 = self.config2;
        attr.set_disabled(1);
        attr.set_exclude_user((!self.user).into());
        attr.set_exclude_kernel((!self.kernel).into());
        attr.set_exclude_hv((!self.hypervisor).into());
        attr.set_precise_ip(self.precise.into());
        attr
    }
}

/// An event with what people call it.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// As it was typed, without the interval: `cycles`, `cycles:u`, `r01c2~edge=1`,
    /// `cpu/event=0x3c/`, `sched:sched_switch`. Where a name means an event of several PMUs, that
    /// of one: `cpu_core/cycles/u`.
    pub name: String,
    /// What it counts, a column's title in plain words: `CPU Cycles`.
    pub title: String,
    /// What the kernel is told.
    pub encoding: Encoding,
    /// Of a PMU that does not count on every CPU (uncore, hybrid cores): where it does.
    pub cpus: Option<Vec<u32>>,
    /// By what a count is multiplied to be in [`Event::unit`], from sysfs; 1 where it is a plain
    /// count.
    pub scale: f64,
    /// The unit of a scaled count, such as `Joules`; empty for plain counts.
    pub unit: String,
    /// A count of it is a time, nanoseconds: `cpu-clock`, `task-clock`.
    pub is_time: bool,
}

impl Event {
    /// Whether it is a tracepoint of the kernel, which has hits and no overflows of its own.
    #[must_use]
    pub fn is_tracepoint(&self) -> bool {
        self.encoding.kind == sys::PERF_TYPE_TRACEPOINT
    }
}

/// An event with when it overflows: what `-h` says.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// The event.
    pub event: Event,
    /// After how many it overflows.
    pub interval: u64,
}
