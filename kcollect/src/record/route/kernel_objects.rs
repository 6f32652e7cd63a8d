//! Kernel code that is loaded during the run, BPF programs and modules: its images are archived,
//! and each experiment records where it is.

use experiment_format::Result;
use experiment_format::map::MapEvent;

use super::{ProcessOutput, Router};
use crate::plan::Archive;

impl Router {
    /// Once a round: writes where the BPF programs are that came since the last time, and which are
    /// gone.
    pub fn maintain_kernel(&mut self) {
        if self.founder.archive() != Archive::Off && self.failed.is_none() {
            let maps = self.kernel.maintain_programs(self.founder.dir());
            self.kernel_objects(maps);
        }
    }

    /// Archives the kernel code that was loaded during the run. `give_up` is called before each
    /// object, and ends the archiving when it returns true.
    pub fn archive_kernel(&mut self, mut give_up: impl FnMut() -> bool) {
        if self.founder.archive() != Archive::Off && self.failed.is_none() {
            let (dir, used) = (self.founder.dir(), self.founder.used_addresses());
            let maps = self.kernel.archive_late(dir, used, &mut give_up);
            self.kernel_objects(maps);
        }
    }

    /// Writes where load objects of the kernel are, into all experiments.
    fn kernel_objects(&mut self, maps: Result<Vec<MapEvent>>) {
        let written = maps.and_then(|maps| self.founder.kernel_objects(&maps).map(|()| maps));
        let maps = match written {
            Ok(maps) if maps.is_empty() => return,
            Ok(maps) => maps,
            Err(error) => return self.note(Err(error)),
        };
        self.inherited.kernel.extend(maps);
        let kernel = &self.inherited.kernel;
        let mut result = Ok(());
        for writer in self
            .outputs
            .values_mut()
            .filter_map(ProcessOutput::writer_mut)
        {
            result = result.and(writer.kernel_objects(kernel));
        }
        self.note(result);
    }
}
