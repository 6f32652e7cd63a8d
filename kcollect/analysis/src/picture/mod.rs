//! Pictures of a profile, for people.

pub mod flame;
mod show;
pub mod view;

pub use show::{Request, Wish, show};
