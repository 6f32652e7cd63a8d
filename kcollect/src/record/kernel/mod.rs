//! The kernel's side of a recording: its symbols, and the experiment of the whole machine.

pub mod accounts;
pub mod archive;
pub mod code;
pub mod counter_tags;
pub mod decode;
pub mod header;
pub mod kcore;
pub(super) mod machine_description;
pub mod machine_writer;
pub mod periodic;
pub mod process_usage;
pub mod samples;
pub mod shown_names;
pub mod symbols;
pub mod times;
