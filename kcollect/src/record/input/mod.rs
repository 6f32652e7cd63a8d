//! Inputs of a recording: the rings of the BPF programs, the side-band, the snapshot of what runs,
//! and CPU hotplug, merged in time order.

pub mod event;
pub mod hotplug;
pub mod inputs;
pub mod load_failure;
pub mod reader;
pub mod rotation;
pub mod self_test;
pub mod sideband;
pub mod snapshot;
pub mod totals;
