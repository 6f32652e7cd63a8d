//! What is mapped in processes, as a function of time.

mod address_space;
mod mapping;

pub use address_space::{Change, Code, Space, Spaces, What, find, touching};
pub use mapping::{MappedFile, Mapping, Mappings};
