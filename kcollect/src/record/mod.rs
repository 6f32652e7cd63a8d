//! One recording: inputs in time order, a dispatcher, and the writers of founder and
//! subexperiments.

pub mod dry_run;
pub mod hardening;
pub mod input;
pub mod kernel;
pub mod session;
pub mod summary;
pub mod targets;
pub mod user;
