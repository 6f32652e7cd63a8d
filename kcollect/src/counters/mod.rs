//! Counters of the hardware and of the kernel: which there are, what they are called, and what they count.
//!
//! [`event`] is what both sides speak of.

pub mod event;
