//! The end of a recording: recording stops, pending records are applied, the result is shown, load
//! objects are archived and the experiment is closed.

use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use experiment_format::units::{Nanos, Ticks};
use host::exit::Failure;
use host::machine::now;
use host::output::Output;

use super::archiving;
use super::control::Control;
use super::directory::{empty_failure, moved_failure};
use super::recording::Recording;
use super::series::Series;
use crate::plan::Printing;
use crate::record::input::event::InputEvent;
use crate::record::summary::Summary;
use crate::record::summary::first_tables::FirstTables;

/// Number of events that are applied at the end without checking the clock.
const EVENTS_AT_ONCE: usize = 1000;

/// How long threads may take to leave their CPU for the last time, after the kernel has removed
/// them from its list of threads. Others may be before them.
const MAX_EXIT_TIME: Duration = Duration::from_millis(500);
/// How often it is checked whether they have.
const EXIT_CHECK: Duration = Duration::from_millis(2);

/// A recording that is over.
#[derive(Debug)]
pub(super) struct Finish<'a> {
    printing: &'a Printing,
    recording: Recording<'a>,
    series: Series<'a>,
    control: Control,
    load_code: u8,
}

impl<'a> Finish<'a> {
    /// `load_code` is the exit code that the load has for the recording.
    pub(super) fn new(
        printing: &'a Printing,
        recording: Recording<'a>,
        series: Series<'a>,
        control: Control,
        load_code: u8,
    ) -> Finish<'a> {
        Finish {
            printing,
            recording,
            series,
            control,
            load_code,
        }
    }

    /// Stops, shows what was recorded, archives the rest and closes the experiment, whatever ended
    /// the rounds. Returns the exit code: the load's, or 0.
    pub(super) fn run(mut self, output: &mut Output) -> Result<u8, Failure> {
        self.series.end_packing(output);
        if let Some(at_ns) = self.recording.concluded_ns() {
            let (closed, _inputs) = self.recording.close(at_ns);
            return closed.map(|()| self.load_code);
        }
        let stop = self.stop(output);
        let tested = self.recording.watch_self_test(true, output);
        let stopped = stop.as_ref().copied().unwrap_or_else(|_| now());
        self.recording.dispatcher().end_calls();
        self.recording.dispatcher().finish(stopped);

        let moved_from = self.recording.follow_move();
        let totals = self.recording.inputs().totals();
        let mut summary = totals.map(|totals| self.recording.summary(&totals, stopped, output));
        // What is shown next names the kernel's functions by it.
        if let Ok(summary) = &summary
            && !summary.kernel_functions.is_empty()
        {
            let router = &mut self.recording.dispatcher().router;
            router.side_file("kcollect.json", &summary.json());
        }
        // Shown at once; the last copies may take a while.
        if let Ok(summary) = &summary
            && !self.printing.json
        {
            self.show(summary, moved_from.is_some(), output);
        }
        archiving::finish(self.recording.dispatcher(), &mut self.control, output);
        self.recording.write_summary(stopped, summary.as_mut().ok());
        let path = self.recording.path().to_owned();
        let is_first = !self.recording.has_older_experiment();
        let problem = self.recording.problem();
        // The experiment is closed whatever failed, and the first failure is reported.
        let (closed, _inputs) = self.recording.close(stopped);
        stop?;
        tested?;
        let summary = summary?;

        if self.printing.json {
            output.json(&summary.json());
        }
        closed?;
        self.series.add_to_group(&path)?;
        let is_empty = || summary.ticks == Ticks::ZERO && summary.thread_packets == 0;
        let failure = match (moved_from, problem) {
            (Some(from), _) => moved_failure(&from, &path),
            (None, Some(problem)) => problem,
            (None, None) if is_first && is_empty() => empty_failure(&summary),
            (None, None) => return Ok(self.load_code),
        };
        if self.load_code == 0 {
            return Err(failure);
        }
        output.say(&failure.to_string());
        Ok(self.load_code)
    }

    /// Stops recording and applies pending records. Returns the time of the last tick that counts.
    fn stop(&mut self, output: &mut Output) -> Result<Nanos, Failure> {
        let stopped = self.recording.stop()?;
        self.recording.inputs().stop_clocks();
        self.apply_rest(stopped, output)?;
        let give_up = Instant::now() + MAX_EXIT_TIME;
        while self.has_unclosed_threads() && Instant::now() < give_up {
            sleep(EXIT_CHECK);
            self.apply_rest(stopped, output)?;
        }
        Ok(stopped)
    }

    fn has_unclosed_threads(&mut self) -> bool {
        let accounts = &self.recording.dispatcher().router.accounts;
        accounts.unclosed().next().is_some()
    }

    fn apply_rest(&mut self, stopped: Nanos, output: &mut Output) -> Result<(), Failure> {
        let events = self.recording.inputs().rest()?;
        for (count, (time, event)) in events.into_iter().enumerate() {
            // What processes did later is no part of the recording.
            if time > stopped && matches!(event, InputEvent::Sideband(_)) {
                continue;
            }
            self.recording.dispatcher().apply(time, event);
            if count % EVENTS_AT_ONCE == 0 {
                self.recording.say_closing(output);
            }
        }
        Ok(())
    }

    /// Shows the summary of an experiment that is where it was made, or `moved`.
    fn show(&mut self, summary: &Summary, moved: bool, output: &mut Output) {
        let path = self.recording.path().to_owned();
        let router = &self.recording.dispatcher().router;
        let directory: &Path = if moved {
            &path
        } else {
            router.founder.dir().path()
        };
        output.result(&summary.head());
        let bytes = router.bytes_written();
        let give_up = || self.control.stop_requested();
        let first = FirstTables::read(directory, bytes, give_up, output);
        output.result(&summary.rest(&first, output.width()));
    }
}
