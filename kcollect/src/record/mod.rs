//! One recording. Data go one way: [`input`] → [`dispatch`] → [`user`] → [`route`] → the writers,
//! [`kernel::machine_writer`] and [`process_writer`]; [`session`] starts, runs and stops it.

pub mod activity;
pub mod archives;
pub mod dispatch;
pub mod dry_run;
pub mod governor;
pub mod hardening;
pub mod input;
pub mod kernel;
mod packing;
pub mod problem;
pub mod process_writer;
pub mod processes;
pub mod route;
pub mod session;
pub mod summary;
pub mod targets;
pub mod user;
pub mod user_stacks;
