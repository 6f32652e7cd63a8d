//! Reports, exports, flame graphs and the page of `kcollect view`, made from experiments.
//!
//! Data flow one way. [`load`] reads experiments into a [`model`]; [`filter`] selects ticks of it,
//! [`aggregate`] adds them up, [`metric`] names what is added up. Then each of [`report`]
//! (tables), [`export`] (other profilers' formats), [`flame`] (flame graphs) and [`view`] (the
//! page) shows the result; they do not use each other's views. [`symbol`] finds names, source lines
//! and instructions in ELF files, and knows nothing of experiments' models.
//!
//! It needs neither libbpf nor root.

pub mod aggregate;
pub mod export;
pub mod filter;
pub mod flame;
pub mod load;
pub mod metric;
pub mod model;
pub mod report;
pub mod symbol;
pub mod view;
