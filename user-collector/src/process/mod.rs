//! Processes: which there are, and what is known of each.

mod facts;
mod lineage;
mod table;
mod thread_names;

pub use facts::{Container, MAX_TEXT_BYTES, ProcessFacts, Runtime, container_of, quoted, rank_of};
pub use lineage::{DirectoryNames, Lineages};
pub use table::{ExecutableFile, ProcessInfo, ProcessName, ProcessTable};
pub use thread_names::ThreadNames;
