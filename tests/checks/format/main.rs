//! Experiments are what stock gprofng reads, while they are written and on another machine.

mod archives;
mod gprofng_views;
mod live_reading;
