//! Counters of the hardware and of the kernel: which there are, what they are called, and what they count.
//!
//! [`event`] is what both sides speak of. As a library: a [`set`] of requests is bound to a thread, a process or a CPU
//! ([`binding`] is the system call), gives [`sample`]s, tells [`overflow`]s, and is refused for reasons that
//! [`refusal`] names, one of which [`retry`] waits for. [`track`] and [`stat`] are the commands made of it: [`follow`] and
//! [`records`] are how no thread is missed, [`lives`] what that means, [`rows`] what is said of it, [`style`] how.

pub mod binding;
pub mod bound;
pub mod event;
pub mod follow;
pub mod gate;
pub mod last_words;
pub mod lives;
pub mod overflow;
pub mod records;
pub mod refusal;
pub mod retry;
pub mod rows;
pub mod sample;
pub mod set;
pub mod sink;
pub mod software;
pub mod stat;
pub mod style;
pub mod track;
