//! One recording. Data go one way: [`input`] → [`dispatch`] → [`route`] → the writers in [`kernel`]
//! and [`user`]; [`session`] starts, runs and stops it.

mod archiving;
mod directory;
pub mod dispatch;
pub mod dry_run;
pub mod hardening;
pub mod input;
pub mod interval;
pub mod kernel;
mod load_phase;
mod pause;
mod round;
pub mod route;
pub mod session;
pub mod summary;
pub mod targets;
pub mod user;
