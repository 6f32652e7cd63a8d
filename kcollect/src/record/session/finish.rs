//! The end of a recording: recording stops, pending records are applied, the result is shown, load
//! objects are archived and the experiment is closed.

use std::mem;
use std::thread::sleep;
use std::time::{Duration, Instant};

use experiment_format::directory::DirectoryState;
use experiment_format::units::{Nanos, Ticks};
use host::exit::Failure;
use host::machine::now;
use host::output::Output;

use super::Session;
use super::archiving;
use super::directory::{add_to_group, empty_failure, moved_failure, writing_failure};
use crate::record::input::event::InputEvent;
use crate::record::input::totals::Totals;
use crate::record::summary::first_tables::FirstTables;
use crate::record::summary::{RecordingTimes, Summary};

/// Number of events that are applied at the end without checking the clock.
const EVENTS_AT_ONCE: usize = 1000;

/// How long threads may take to leave their CPU for the last time, after the kernel has removed
/// them from its list of threads. Others may be before them.
const MAX_EXIT_TIME: Duration = Duration::from_millis(500);
/// How often it is checked whether they have.
const EXIT_CHECK: Duration = Duration::from_millis(2);

impl Session<'_> {
    /// Stops, shows what was recorded, archives the rest and closes the experiment, whatever ended
    /// the run. Returns the exit code: the load's, or 0.
    pub(super) fn finish(mut self, output: &mut Output) -> Result<u8, Failure> {
        if let Some(packer) = self.packer.take() {
            packer.end(output);
        }
        if let Some(at_ns) = self.concluded_ns {
            return self
                .dispatcher
                .close(at_ns)
                .map(|()| self.load.exit_code())
                .map_err(|error| writing_failure(&error));
        }
        let stop = self.stop(output);
        let tested = self.watch_self_test(true, output);
        let stopped = stop.as_ref().copied().unwrap_or_else(|_| now());
        self.dispatcher.end_calls();
        self.dispatcher.finish(stopped);

        let moved_from = match self.dispatcher.router.directory_state() {
            DirectoryState::Moved(path) => Some(mem::replace(&mut self.path, path)),
            DirectoryState::Unmoved | DirectoryState::Deleted => None,
        };
        let path = self.path.display().to_string();
        let totals = self.inputs.totals();
        let mut summary = totals.map(|totals| self.summary(&path, &totals, stopped));
        if let Ok(summary) = &mut summary {
            let router = &mut self.dispatcher.router;
            self.problems.add_to(summary, &self.inputs, router, output);
        }
        // What is shown next names the kernel's functions by it.
        if let Ok(summary) = &summary
            && !summary.kernel_functions.is_empty()
        {
            let router = &mut self.dispatcher.router;
            router.side_file("kcollect.json", &summary.json());
        }
        // Shown at once; the last copies may take a while.
        if let Ok(summary) = &summary
            && !self.plan.json
        {
            self.show(summary, moved_from.is_some(), output);
        }
        archiving::finish(&mut self.dispatcher, &mut self.control, output);
        self.write_summary(stopped, summary.as_mut().ok());
        // The experiment is closed whatever failed, and the first failure is reported.
        let closed = self.dispatcher.close(stopped);
        stop?;
        tested?;
        let summary = summary?;

        if self.plan.json {
            output.json(&summary.json());
        }
        closed.map_err(|error| writing_failure(&error))?;
        if let Some(group) = &self.plan.group {
            add_to_group(group, &self.path)?;
        }
        let code = self.load.exit_code();
        let follows_another = self.began.at_ns > self.started_ns;
        let failure = match (moved_from, self.problems.failure()) {
            (Some(from), _) => moved_failure(&from, &self.path),
            (None, Some(failure)) => failure,
            (None, None)
                if summary.ticks > Ticks::ZERO || summary.thread_packets > 0 || follows_another =>
            {
                return Ok(code);
            }
            (None, None) => empty_failure(&summary),
        };
        if code == 0 {
            return Err(failure);
        }
        output.say(&failure.to_string());
        Ok(code)
    }

    /// The summary of the experiment. Everything but the end of the experiment is written.
    pub(super) fn summary(&self, path: &str, totals: &Totals, stopped_ns: Nanos) -> Summary {
        let times = RecordingTimes {
            started_ns: self.began.at_ns,
            stopped_ns,
            own: self.began.own,
        };
        let totals = totals.since(&self.began.totals);
        let counted = (&self.inputs, &totals);
        let mut summary = Summary::new(self.plan, path, counted, &self.dispatcher, times);
        summary.budget = self.budget.summary(self.began.at_ns);
        summary
    }

    /// Writes the result of archiving, the losses, and the summary.
    pub(super) fn write_summary(&mut self, stopped_ns: Nanos, summary: Option<&mut Summary>) {
        self.dispatcher.log_archived(stopped_ns);
        if let Some(summary) = summary {
            summary.archive = self.dispatcher.archived().cloned();
            self.dispatcher.log_losses(stopped_ns, &summary.losses);
            let router = &mut self.dispatcher.router;
            router.side_file("kcollect.json", &summary.json());
        }
    }

    /// Shows the summary of an experiment that is where it was made, or `moved`.
    fn show(&mut self, summary: &Summary, moved: bool, output: &mut Output) {
        let router = &self.dispatcher.router;
        let directory = if moved {
            &self.path
        } else {
            router.founder.dir().path()
        };
        output.result(&summary.head());
        let bytes = router.bytes_written();
        let give_up = || self.control.stop_requested();
        let first = FirstTables::read(directory, bytes, give_up, output);
        output.result(&summary.rest(&first, output.width()));
    }

    /// Stops recording and applies pending records. Returns the time of the last tick that counts.
    fn stop(&mut self, output: &mut Output) -> Result<Nanos, Failure> {
        let stopped = self.stop_data()?;
        self.inputs.stop_clocks();
        self.apply_rest(stopped, output)?;
        let give_up = Instant::now() + MAX_EXIT_TIME;
        while self.dispatcher.router.accounts.unclosed().next().is_some()
            && Instant::now() < give_up
        {
            sleep(EXIT_CHECK);
            self.apply_rest(stopped, output)?;
        }
        Ok(stopped)
    }

    fn apply_rest(&mut self, stopped: Nanos, output: &mut Output) -> Result<(), Failure> {
        for (count, (time, event)) in self.inputs.rest()?.into_iter().enumerate() {
            // What processes did later is no part of the recording.
            if time > stopped && matches!(event, InputEvent::Sideband(_)) {
                continue;
            }
            self.dispatcher.apply(time, event);
            if count % EVENTS_AT_ONCE == 0 {
                self.say_closing(output);
            }
        }
        Ok(())
    }
}
