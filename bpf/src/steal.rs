//! Finds where a hypervisor writes how much time it stole from each CPU: see `c/steal.h`.

use std::ffi::OsStr;

use libbpf_rs::btf::types::{DataSec, Struct};
use libbpf_rs::btf::{Btf, BtfType};

use crate::{KernelTypes, Programs};

/// The section of the kernel's variables of which each CPU has its own.
const PER_CPU: &str = ".data..percpu";

impl Programs {
    /// Returns whether this kernel counts the time that a hypervisor steals from threads. If not,
    /// that is time on a CPU, and none is stolen.
    #[must_use]
    pub fn has_stolen_time(&self) -> bool {
        let settings = self.skel.maps.rodata_data.as_ref();
        settings.is_some_and(|settings| settings.steal_from_rq != 0)
    }
}

/// Returns the distance from a CPU's run queue to the sum of its stolen time, bytes, modulo 2^64; 0
/// on a kernel without that sum. KVM's is known (`struct kvm_steal_time`, which begins with it).
pub(crate) fn distance_from_run_queue(types: &KernelTypes) -> u64 {
    types.btf().and_then(distance).unwrap_or(0)
}

fn distance(btf: &Btf<'_>) -> Option<u64> {
    let run_queue = btf.type_by_name::<Struct<'_>>("rq")?;
    let left_out = Some(OsStr::new("prev_steal_time_rq"));
    run_queue.iter().find(|member| member.name == left_out)?;
    let variables = btf.type_by_name::<DataSec<'_>>(PER_CPU)?;
    let offset = |name: &str| {
        let found = variables.iter().find(|variable| {
            let variable = btf.type_by_id::<BtfType<'_>>(variable.ty);
            variable.and_then(|variable| variable.name()) == Some(OsStr::new(name))
        });
        found.map(|variable| u64::from(variable.offset))
    };
    Some(offset("steal_time")?.wrapping_sub(offset("runqueues")?))
}
