//! The code that processes have mapped, in which files it is, and how far these are archived.

use std::sync::Arc;
use std::time::Duration;

use crate::archive::ArchiveStats;
use crate::jit::SharedJit;
use crate::objects::LoadObjects;
use crate::space::{AddressSpace, MappedCode, MappedFile, Mapping};

/// The files in which the code of all processes is, and what these share that make functions at
/// run time.
#[derive(Debug)]
pub struct LoadedCode {
    /// Load objects, with their unwind tables and archives.
    pub objects: LoadObjects,
    /// What all processes share that make functions at run time.
    pub jit: SharedJit,
}

/// The code that one process has mapped.
#[derive(Debug)]
pub struct ProcessCode<'a> {
    /// Its address space, if anything is known of it.
    pub space: Option<&'a mut AddressSpace>,
    /// The load objects of all processes.
    pub objects: &'a mut LoadObjects,
    /// What all processes share that make functions at run time.
    pub jit: &'a SharedJit,
}

impl ProcessCode<'_> {
    /// Returns what the process has mapped for execution.
    #[must_use]
    pub fn mapped(&mut self) -> MappedCode {
        let space = self.space.as_deref_mut();
        space.map(AddressSpace::code).unwrap_or_default()
    }

    /// Returns the same for JIT code: files that hold no ELF image count as anonymous memory.
    #[must_use]
    pub fn areas(&mut self) -> MappedCode {
        let mapped = self.mapped();
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
}

impl LoadedCode {
    /// Returns the state with these load objects.
    #[must_use]
    pub fn new(objects: LoadObjects) -> LoadedCode {
        LoadedCode {
            objects,
            jit: SharedJit::default(),
        }
    }

    /// Returns the code of a process with this address space.
    #[must_use]
    pub fn of_process<'a>(&'a mut self, space: Option<&'a mut AddressSpace>) -> ProcessCode<'a> {
        ProcessCode {
            space,
            objects: &mut self.objects,
            jit: &self.jit,
        }
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
