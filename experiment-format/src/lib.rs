//! The gprofng experiment format: a directory that `gprofng display text` opens.

pub mod archive;
pub mod error;
pub mod image;
pub mod layout;
pub mod log;
pub mod map;
pub mod microstate;
pub mod packet;
pub mod stacks;
pub mod usage;
pub mod writer;

pub use error::Error;

/// What a fallible call of this crate returns.
pub type Result<T> = std::result::Result<T, Error>;
