//! The code that processes have mapped, in which files, and how far these are archived.

use std::sync::Arc;
use std::time::Duration;

use experiment_format::ids::Pid;

use crate::archive::ArchiveStats;
use crate::jit::SharedJit;
use crate::objects::LoadObjects;
use crate::space::{AddressSpaces, MappedCode, MappedFile, Mapping};

/// The mapped code of all processes, and the files in which it is.
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
    /// Returns the state without a mapping, with these load objects.
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

    /// Returns the same for JIT code: files that hold no ELF image count as anonymous memory.
    #[must_use]
    pub fn code_areas(&mut self, pid: Pid) -> MappedCode {
        let mapped = self.mapped_by(pid);
        let is_made = |mapping: &Mapping| self.objects.is_made_code(&mapping.file);
        if !mapped.iter().any(is_made) {
            return mapped;
        }
        let anonymous = MappedFile::named(b"//anon");
        let areas = mapped.iter().map(|mapping| Mapping {
            file: Arc::clone(if is_made(mapping) {
                &anonymous
            } else {
                &mapping.file
            }),
            ..mapping.clone()
        });
        Arc::new(areas.collect())
    }

    /// Waits at most `at_most` until everything is archived. Returns the progress; None once all is
    /// done.
    pub fn archiving(&mut self, at_most: Duration) -> Option<ArchiveProgress> {
        let archiver = self.objects.archiver()?;
        let (done, all) = (!archiver.wait(at_most)).then(|| archiver.progress())?;
        Some(ArchiveProgress {
            done,
            all,
            left: archiver.left(),
        })
    }

    /// Leaves out what is not archived by now.
    pub fn give_up_archiving(&mut self) {
        if let Some(archiver) = self.objects.archiver() {
            archiver.give_up();
        }
    }

    /// The result of archiving; None if nothing was to be archived.
    #[must_use]
    pub fn archived(&self) -> Option<&ArchiveStats> {
        self.objects.archive_stats()
    }
}

/// The archiver's progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArchiveProgress {
    /// Load objects archived.
    pub done: usize,
    /// All load objects.
    pub all: usize,
    /// Files left to be read, those for their sources included.
    pub left: usize,
}
