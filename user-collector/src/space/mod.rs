//! What is mapped in processes, as a function of time.

mod address_space;
mod mapping;

pub use address_space::{
    AddressSpace, MappedCode, MappingChange, MappingEvent, mapping_at, mappings_between,
};
pub use mapping::{FileIdentity, MappedFile, Mapping, Mappings};
