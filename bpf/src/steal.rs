//! Finds where a hypervisor writes how much time it stole from each CPU: see `c/steal.h`.

use crate::{KernelTypes, Programs};

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
    let left_out = types.offset("rq", "prev_steal_time_rq");
    let distance = left_out.and_then(|_| types.distance_from_run_queue("steal_time"));
    distance.unwrap_or(0)
}
