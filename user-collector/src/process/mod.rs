//! Processes: which there are, and what is known of each.

mod facts;
mod lineage;
mod table;
mod thread_names;

pub use facts::{Container, Facts, MAX_TEXT, Runtime, container_of, quoted, rank_of};
pub use lineage::{DirectoryNames, Lineages};
pub use table::{Executable, Name, Process, Processes};
pub use thread_names::ThreadNames;
