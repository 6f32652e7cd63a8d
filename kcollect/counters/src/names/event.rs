//! Events that can be counted, as `perf_event_open(2)` takes them.

use perf_event_open_sys::bindings as sys;

use crate::names::sysfs::format::ConfigWords;

/// The part of `perf_event_attr` that selects what is counted, without how it is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Encoding {
    /// `type`: one of `PERF_TYPE_*`, or the number of a PMU from its directory in sysfs.
    pub kind: u32,
    /// `config`: for a tracepoint, its id.
    pub config: u64,
    /// `config1`: for a breakpoint, its address.
    pub config1: u64,
    /// `config2`: for a breakpoint, its length in bytes.
    pub config2: u64,
    /// `config3`, since Linux 6.3.
    pub config3: u64,
    /// For a breakpoint, the kinds of access: `HW_BREAKPOINT_*`.
    pub breakpoint: u32,
    /// Whether it is counted in user mode.
    pub user: bool,
    /// Whether it is counted in the kernel.
    pub kernel: bool,
    /// Whether it is counted in a hypervisor, where the CPU can distinguish that.
    pub hypervisor: bool,
    /// `precise_ip`: how exact the address of an overflow has to be, 0 to 3.
    pub precise: u8,
}

impl Encoding {
    /// Returns the encoding of a software event of the kernel, `PERF_COUNT_SW_*`, which is counted
    /// in all modes.
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

    /// Returns `config`, `config1`, `config2` and `config3`.
    #[must_use]
    pub fn config_words(&self) -> ConfigWords {
        [self.config, self.config1, self.config2, self.config3]
    }

    /// Replaces `config`, `config1`, `config2` and `config3`.
    pub fn set_config_words(&mut self, words: ConfigWords) {
        [self.config, self.config1, self.config2, self.config3] = words;
    }

    /// Returns an attribute for `perf_event_open(2)` that selects this event, disabled.
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

/// An event with its name, title and unit.
#[derive(Clone, Debug, PartialEq)]
pub struct PerfEvent {
    /// The name as typed, without the interval: `cycles`, `cycles:u`, `r01c2~edge=1`,
    /// `cpu/event=0x3c/`, `sched:sched_switch`. Where a name means an event of several PMUs, the
    /// name with one of the PMUs: `cpu_core/cycles/u`.
    pub name: String,
    /// A column's title: `CPU Cycles`.
    pub title: String,
    /// The event as the kernel takes it.
    pub encoding: Encoding,
    /// The CPUs on which the event is counted. None: all. Events of uncore PMUs and of hybrid cores
    /// are counted on some only.
    pub cpus: Option<Vec<u32>>,
    /// The factor, from sysfs, that converts a count to [`PerfEvent::unit`]; 1 for plain counts.
    pub scale: f64,
    /// The unit of a converted count, such as `Joules`; empty for plain counts.
    pub unit: String,
    /// Whether a count is a time in nanoseconds: `cpu-clock`, `task-clock`.
    pub is_time: bool,
}

impl PerfEvent {
    /// Whether it is a kernel tracepoint: every hit is recorded, not overflows.
    #[must_use]
    pub fn is_tracepoint(&self) -> bool {
        self.encoding.kind == sys::PERF_TYPE_TRACEPOINT
    }
}

/// An event to record, with its interval: one counter of `-h`.
#[derive(Clone, Debug, PartialEq)]
pub struct CounterRequest {
    /// The event.
    pub event: PerfEvent,
    /// The number of events between two overflows.
    pub interval: u64,
}
