//! The kernel's code that came during the run: BPF programs and modules.

use experiment_format::Error;
use experiment_format::log::LogEvent;
use experiment_format::losses::Losses;
use experiment_format::map::MapEvent;

use super::Founder;
use crate::plan::Archive;

impl Founder {
    /// Writes where the BPF programs are that came since the last time, and which are gone. Returns
    /// the same for the subexperiments.
    ///
    /// # Errors
    /// When the experiment can't be written.
    pub fn write_programs(&mut self) -> Result<Vec<MapEvent>, Error> {
        if self.archive == Archive::Off {
            return Ok(Vec::new());
        }
        let maps = self.kernel.archive_programs(self.writer.dir())?;
        self.place(maps)
    }

    /// Writes the kernel's load objects that came during the run. `give_up` is asked before each.
    /// Returns where they are, for the subexperiments.
    ///
    /// # Errors
    /// When the experiment can't be written.
    pub fn write_late_objects(
        &mut self,
        give_up: &mut impl FnMut() -> bool,
    ) -> Result<Vec<MapEvent>, Error> {
        let used = &self.used_addresses;
        let maps = self.kernel.archive_late(self.writer.dir(), used, give_up)?;
        self.place(maps)
    }

    fn place(&mut self, maps: Vec<MapEvent>) -> Result<Vec<MapEvent>, Error> {
        maps.iter().try_for_each(|event| self.writer.map(event))?;
        Ok(maps)
    }

    /// Writes the losses into the header that every report shows: zeros as a comment, anything else
    /// as a warning.
    ///
    /// # Errors
    /// When the log can't be written.
    pub fn log_losses(&mut self, now: u64, losses: &Losses) -> Result<(), Error> {
        let text = losses.line();
        self.log_at(now, |at_ns| match losses.none() {
            true => LogEvent::Comment { at_ns, text },
            false => LogEvent::Warning { at_ns, text },
        })
    }
}
