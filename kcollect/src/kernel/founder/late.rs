//! What is added when all is recorded: what came of the kernel, the files of followed processes,
//! and what is missing.

use std::time::Duration;

use experiment_format::Error;
use experiment_format::log::LogEvent;
use experiment_format::map::MapEvent;
use user_collector::archive::ArchiveStats;

use super::Founder;
use crate::cli::plan::Archive;
use crate::losses::Losses;

impl Founder {
    /// Adds what came of the kernel during the run: BPF programs, modules. `give_up` is asked
    /// before each object. Of the files of followed processes it asks for the rest, for which
    /// [`Founder::archiving`] waits.
    pub fn archive_late(&mut self, mut give_up: impl FnMut() -> bool) {
        if self.archive == Archive::Off {
            return;
        }
        if self.failed.is_none()
            && let Err(error) = self.write_late(&mut give_up)
        {
            self.failed = Some(error);
        }
        if let Some(user) = &mut self.user {
            user.archive_rest();
        }
        if self.failed.is_some() {
            self.give_up_archiving();
        }
    }

    /// Waits until the files of followed processes are archived, at most so long. Gives how many
    /// are, of how many, and how many are left to be read; nothing once all is done.
    pub fn archiving(&mut self, at_most: Duration) -> Option<(usize, usize, usize)> {
        self.user.as_mut()?.archiving(at_most)
    }

    /// What is not archived by now is left out.
    pub fn give_up_archiving(&mut self) {
        if let Some(user) = &mut self.user {
            user.give_up_archiving();
        }
    }

    /// What came of archiving the files of followed processes; nothing where none were to be.
    #[must_use]
    pub fn archived(&self) -> Option<&ArchiveStats> {
        self.user.as_ref()?.archived()
    }

    /// Names in the log what is not archived.
    pub fn tell_archived(&mut self, now: u64) {
        let warnings = self
            .archived()
            .map(ArchiveStats::warnings)
            .unwrap_or_default();
        for text in warnings {
            self.log_at(now, |at| LogEvent::Warning { at, text });
        }
    }

    fn write_late(&mut self, give_up: &mut impl FnMut() -> bool) -> Result<(), Error> {
        let stacks = self.recorder.accounts.stacks.keys();
        let maps = self.kernel.archive_late(
            self.writer.dir(),
            self.archive,
            stacks.map(|frames| &**frames),
            give_up,
        )?;
        self.place(&maps)
    }

    /// Tells of the BPF programs that came and went since the last time.
    pub(super) fn tell_programs(&mut self) {
        if self.archive == Archive::Off || self.failed.is_some() {
            return;
        }
        let maps = self.kernel.archive_programs(self.writer.dir());
        let result = maps.and_then(|maps| self.place(&maps));
        self.note_failure(result);
    }

    /// Tells all experiments where more of the kernel's load objects lie.
    fn place(&mut self, maps: &[MapEvent]) -> Result<(), Error> {
        maps.iter().try_for_each(|event| self.writer.map(event))?;
        if let Some(user) = &mut self.user
            && !maps.is_empty()
        {
            user.kernel_objects(maps);
        }
        Ok(())
    }

    /// Puts the losses into the header of every report: zeros as a comment, anything else as a
    /// warning.
    pub fn tell_losses(&mut self, now: u64, losses: &Losses) {
        let text = losses.line();
        self.log_at(now, |at| match losses.none() {
            true => LogEvent::Comment { at, text },
            false => LogEvent::Warning { at, text },
        });
    }
}
