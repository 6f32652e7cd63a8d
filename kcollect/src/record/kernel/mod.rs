//! The kernel's side of an experiment: its symbols, and the founder.

pub mod accounts;
pub mod archive;
pub mod code;
pub mod counter_tags;
pub mod decode;
pub mod founder;
pub mod header;
pub mod kcore;
pub(super) mod machine_description;
pub mod periodic;
pub mod process_usage;
pub mod samples;
pub mod shown_names;
pub mod symbols;
pub mod times;
