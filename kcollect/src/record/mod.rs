//! One recording. Data go one way: [`input`] → [`dispatch`] → [`user`] → [`route`] → the writers,
//! [`kernel::founder`] and [`subexperiment`]; [`session`] starts, runs and stops it.

pub mod activity;
pub mod archives;
mod archiving;
mod directory;
pub mod dispatch;
pub mod dry_run;
mod finish;
pub mod governor;
pub mod hardening;
pub mod input;
mod keep;
pub mod kernel;
mod load_phase;
mod packing;
mod pause;
pub mod problem;
mod process_limits;
mod rotate;
mod round;
pub mod route;
pub mod session;
pub mod subexperiment;
pub mod summary;
pub mod targets;
pub mod user;
pub mod user_stacks;
mod wall_clock;
