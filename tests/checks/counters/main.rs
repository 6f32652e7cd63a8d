//! Counters: their names, what they count, and where they overflow.

mod counter_names;
mod counting;
mod overflows;
