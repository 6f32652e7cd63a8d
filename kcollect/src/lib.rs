//! kcollect profiles the whole machine, kernel and user, and writes an experiment that gprofng
//! opens.
//!
//! [`app`] runs one command: [`cli`] makes a [`plan`] of what was typed, [`record`] carries it out,
//! [`doctor`] reports what this machine does not have. The package `analysis` reads experiments,
//! and the package `counters` counts events.

#![warn(clippy::print_stdout, clippy::print_stderr)]

pub mod app;
pub mod cli;
pub mod doctor;
pub mod plan;
pub mod record;

pub use app::main;
