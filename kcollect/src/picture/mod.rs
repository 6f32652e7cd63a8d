//! Pictures of a profile, for people.

mod show;
pub mod view;

pub use show::{Request, Wish, show};
