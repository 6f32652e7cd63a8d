//! What is known of processes: which there are, which of them are followed, what they have mapped.

pub mod archives;
pub mod follow_policy;
pub mod tracker;

use experiment_format::ids::Pid;
use user_collector::jit::SharedJit;
use user_collector::objects::LoadObjects;
use user_collector::space::{AddressSpaces, MappedCode};

/// What is mapped where, in which files, and what is known of the files.
#[derive(Debug)]
pub struct LoadedCode {
    /// Address spaces by process.
    pub spaces: AddressSpaces,
    /// Load objects, with their unwind tables and archives.
    pub objects: LoadObjects,
    /// What all processes share that make functions at run time.
    pub jit: SharedJit,
}

impl LoadedCode {
    /// Returns nothing mapped, with these load objects.
    #[must_use]
    pub fn new(objects: LoadObjects) -> LoadedCode {
        LoadedCode {
            spaces: AddressSpaces::default(),
            objects,
            jit: SharedJit::default(),
        }
    }

    /// Returns what a process has mapped for execution.
    #[must_use]
    pub fn mapped_by(&mut self, pid: Pid) -> MappedCode {
        let space = self.spaces.get_mut(pid);
        space.map(|space| space.code()).unwrap_or_default()
    }
}
