//! Pictures of a profile, for people.

pub mod view;
