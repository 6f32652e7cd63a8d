//! Counters are exact: what programs of known truth did is what is counted, by the library and by
//! `kcollect track` and `kcollect stat`; and what cannot be counted is refused with its reason.
//!
//! Only events of the kernel and breakpoints: they exist on every machine. What needs a PMU says
//! that it did not run.

mod events;
mod library;
mod overflows;
mod refusals;
mod stat;
mod track;
