//! Finds where a hypervisor writes how much time it stole from each CPU: see `c/steal.h`.

use std::ffi::OsStr;

use libbpf_rs::btf::types::DataSec;
use libbpf_rs::btf::{Btf, BtfType};

/// The section of the kernel's variables of which each CPU has its own.
const PER_CPU: &str = ".data..percpu";

/// Returns the distance from a CPU's run queue to the sum of its stolen time, bytes, modulo 2^64; 0
/// on a kernel without that sum. KVM's is known (`struct kvm_steal_time`, which begins with it).
pub(crate) fn distance_from_run_queue() -> u64 {
    let btf = Btf::from_vmlinux().ok();
    btf.and_then(|btf| distance(&btf)).unwrap_or(0)
}

fn distance(btf: &Btf<'_>) -> Option<u64> {
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
