//! What is needed of ELF files.

mod segments;

pub(crate) use segments::segments;
pub use segments::{MAX_BUILD_ID, Segment, build_id};
