//! Experiments read again: reports, pictures and exports.
//!
//! [`report`] loads an experiment, filters and aggregates it and prints views of it, [`symbol`]
//! finds names and source lines, [`picture`] draws the page and flame graphs, [`export`] writes
//! other profilers' formats. It needs neither libbpf nor root.

pub mod export;
pub mod picture;
pub mod report;
pub mod symbol;
