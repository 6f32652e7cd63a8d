//! The gprofng experiment format: a directory that `gprofng display text` opens.

mod append;
pub mod archive;
mod block;
pub mod error;
pub mod functions;
pub mod image;
pub mod layout;
pub mod log;
pub mod map;
pub mod microstate;
pub mod packet;
pub mod reader;
pub mod space;
pub mod stacks;
pub mod usage;
mod walk;
pub mod writer;
mod xml;

pub use error::Error;

/// What a fallible call of this crate returns.
pub type Result<T> = std::result::Result<T, Error>;
