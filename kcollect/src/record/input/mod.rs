//! Inputs of a recording: the BPF rings, the side-band, the snapshot and CPU hotplug, merged in
//! time order.

pub mod reader;
pub mod sideband;
pub mod sources;
