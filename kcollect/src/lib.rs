//! kcollect

pub mod cli;
pub mod doctor;
pub mod exit;
