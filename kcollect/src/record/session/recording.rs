//! What is recorded: the inputs, the dispatcher that applies their events, and the experiment that
//! it writes now.
//!
//! Events go from the inputs to the dispatcher. Control goes the other way: what the dispatcher
//! publishes to the BPF programs, a pause, and less detail.

use std::mem;
use std::path::{Path, PathBuf};

use experiment_format::directory::{DirectoryState, ExperimentDir};
use experiment_format::ids::Pid;
use experiment_format::units::Nanos;
use host::exit::{ExitKind, Failure};
use host::machine::now;
use host::output::Output;

use super::budget::Budget;
use super::directory::{creation_failure, shown_path, writing_failure};
use super::pause::PauseReasons;
use super::problems::Problems;
use crate::plan::Plan;
use crate::record::dispatch::Dispatcher;
use crate::record::input::event::{InputEvent, Rotation};
use crate::record::input::inputs::Inputs;
use crate::record::input::totals::Totals;
use crate::record::route::{Beginning, Router};
use crate::record::summary::{OwnStart, RecordingTimes, Summary};

/// Closing that takes longer than this is reported, nanoseconds.
const CLOSING_NS: Nanos = Nanos::from_millis(500);

/// A recording that has started.
#[derive(Debug)]
pub(super) struct Recording<'a> {
    plan: &'a Plan,
    inputs: Inputs,
    dispatcher: Dispatcher,
    experiment: CurrentExperiment,
    pause: PauseReasons,
    budget: Budget,
    problems: Problems,
    /// When recording could first start, nanoseconds of CLOCK_MONOTONIC.
    started_ns: Nanos,
    /// When recording stopped for good, nanoseconds of CLOCK_MONOTONIC.
    stopped_ns: Option<Nanos>,
    said_closing: bool,
}

/// The experiment that is recorded into, and the state at its start.
#[derive(Debug)]
struct CurrentExperiment {
    path: PathBuf,
    /// When it started, CLOCK_MONOTONIC nanoseconds.
    start_ns: Nanos,
    /// What had been counted by then.
    totals: Totals,
    /// From when kcollect's own CPU time counts as its own.
    own: OwnStart,
    /// When recording into it ended, if everything but its end is written and no next experiment
    /// could be created.
    concluded_ns: Option<Nanos>,
}

impl<'a> Recording<'a> {
    /// A recording whose first experiment started at `started_ns`.
    pub(super) fn new(
        plan: &'a Plan,
        inputs: Inputs,
        dispatcher: Dispatcher,
        path: PathBuf,
        started_ns: Nanos,
        own: OwnStart,
    ) -> Recording<'a> {
        Recording {
            plan,
            inputs,
            dispatcher,
            experiment: CurrentExperiment {
                path,
                start_ns: started_ns,
                totals: Totals::default(),
                own,
                concluded_ns: None,
            },
            pause: PauseReasons::at_start(plan),
            budget: Budget::new(plan.budget),
            problems: Problems::default(),
            started_ns,
            stopped_ns: None,
            said_closing: false,
        }
    }

    pub(super) fn inputs(&mut self) -> &mut Inputs {
        &mut self.inputs
    }

    pub(super) fn dispatcher(&mut self) -> &mut Dispatcher {
        &mut self.dispatcher
    }

    /// When recording could first start, nanoseconds of CLOCK_MONOTONIC.
    pub(super) fn started_ns(&self) -> Nanos {
        self.started_ns
    }

    /// The path of the current experiment, as it is shown.
    pub(super) fn path(&self) -> &Path {
        &self.experiment.path
    }

    /// Takes the events that are complete, to be applied. The tables that the BPF programs missed
    /// are begun before the stack copies that need them are applied: these wait until no record of
    /// an earlier time can come.
    pub(super) fn take_events(&mut self) -> Result<Vec<(Nanos, InputEvent)>, Failure> {
        self.inputs.programs.tables().maintain();
        let events = self.inputs.round()?;
        let Dispatcher {
            user,
            processes,
            router,
            ..
        } = &mut self.dispatcher;
        if let Some(user) = user {
            let missing = self
                .inputs
                .take_missing_tables(|file| user.is_table_missing(file));
            for found in missing {
                user.make_table(&*processes, &found);
            }
        }
        router.measure();
        Ok(events)
    }

    /// Publishes to the BPF programs what the applied events have changed.
    pub(super) fn publish(&mut self) -> Result<(), Failure> {
        let published = self.dispatcher.publish(&mut self.inputs.programs);
        published.map_err(not_published)
    }

    /// Reads the mappings again of processes that have stacks in unknown ones.
    pub(super) fn read_mappings(&mut self) {
        for pid in self.dispatcher.take_unmapped() {
            self.inputs.read_mappings(pid);
        }
    }

    /// Probes the allocators of the load, whose process waits before it executes its program.
    pub(super) fn probe_load(&mut self, pid: Pid) {
        self.dispatcher
            .probe_load(&self.inputs.programs, self.plan, pid);
    }

    /// Once a round: writes what is due, and keeps kcollect within its budget.
    pub(super) fn maintain(&mut self, time_ns: Nanos, output: &mut Output) -> Result<(), Failure> {
        self.dispatcher.maintain(time_ns);
        let router = &mut self.dispatcher.router;
        self.budget
            .keep(time_ns, &mut self.inputs, router, output)?;
        // One that was deleted ends the recording.
        let _ = router.directory_state();
        Ok(())
    }

    /// Changes the reasons for a pause, and so whether recording is on.
    pub(super) fn change_pause(
        &mut self,
        change: impl FnOnce(&mut PauseReasons),
    ) -> Result<(), Failure> {
        let before = self.pause.none();
        change(&mut self.pause);
        let recording = self.pause.none();
        if before != recording {
            let changed = self.inputs.set_recording(recording)?;
            self.inputs.push_recording(recording, changed);
        }
        Ok(())
    }

    /// Pauses at the limit (`-L`), and when writing has failed. Returns whether it has: the
    /// recording is over then.
    pub(super) fn watch_limits(&mut self, output: &mut Output) -> Result<bool, Failure> {
        let has_failed = self.dispatcher.router.failed.is_some() && !self.pause.failed;
        if has_failed {
            self.change_pause(|reasons| reasons.failed = true)?;
        }
        if let Some(limit) = self.plan.limit
            && !self.pause.limited
            && self.dispatcher.router.reached_limit()
        {
            self.change_pause(|reasons| reasons.limited = true)?;
            let text = format!(
                "the limit of {} MiB (-L) is reached: recording stops, samples continue",
                limit >> 20
            );
            output.say(&text);
            self.dispatcher.router.warn(now(), text);
        }
        Ok(has_failed)
    }

    /// Reports what the self-test has found, once it is over; `last`: no record follows.
    pub(super) fn watch_self_test(
        &mut self,
        last: bool,
        output: &mut Output,
    ) -> Result<(), Failure> {
        let router = &mut self.dispatcher.router;
        self.problems
            .poll_self_test(last, &mut self.inputs, router, output)
    }

    /// The line that shows how far it is.
    pub(super) fn progress(&self, time_ns: Nanos) -> String {
        let seconds = time_ns.saturating_sub(self.started_ns) / Nanos::from_secs(1);
        let router = &self.dispatcher.router;
        format!(
            "{} {}:{:02}  {} ticks  {:.1} MB  (Ctrl-C ends)",
            self.pause.state(),
            seconds / 60,
            seconds % 60,
            router.founder.recorded.ticks,
            router.bytes_written() as f64 / 1e6,
        )
    }

    /// Stops recording for good, once. Returns the time of the last tick that counts.
    pub(super) fn stop(&mut self) -> Result<Nanos, Failure> {
        if let Some(stopped_ns) = self.stopped_ns {
            return Ok(stopped_ns);
        }
        let stopped_ns = self.inputs.set_recording(false)?;
        self.stopped_ns = Some(stopped_ns);
        Ok(stopped_ns)
    }

    /// Whether recording has stopped for good.
    pub(super) fn is_stopped(&self) -> bool {
        self.stopped_ns.is_some()
    }

    /// Says that the recording has ended and is being closed, where that takes a while.
    pub(super) fn say_closing(&mut self, output: &mut Output) {
        let Some(stopped_ns) = self.stopped_ns else {
            return;
        };
        if !self.said_closing && now() > stopped_ns + CLOSING_NS {
            self.said_closing = true;
            let seconds = stopped_ns.saturating_sub(self.started_ns).as_secs_f64();
            output.say(&format!(
                "data have stopped after {seconds:.3} s; what was recorded until then is being written"
            ));
        }
    }

    /// Closes the current experiment, of which everything but its end is written, and continues in
    /// the next one. If that can't be created, the current one stays open.
    pub(super) fn continue_in(
        &mut self,
        dir: ExperimentDir,
        rotation: &Rotation,
        output: &mut Output,
    ) -> Result<(), Failure> {
        let at_ns = rotation.at_ns;
        let path = shown_path(&self.plan.place, &dir);
        let (kernel, threads) = self.dispatcher.router.take_carryover();
        let mut detail = |text: &str| output.detail(text);
        let router = Router::create(
            dir,
            (self.plan, &self.inputs.counters),
            (kernel, Some(self.dispatcher.router.founder.dir())),
            (self.inputs.capture, Beginning { at_ns, threads }),
            &mut detail,
        )
        .map_err(|error| {
            self.experiment.concluded_ns = Some(at_ns);
            creation_failure(&error)
        })?;
        let closed = self.dispatcher.switch_router(router, at_ns, &mut detail);
        self.budget.on_rotation(at_ns, &mut self.dispatcher.router);
        self.experiment = CurrentExperiment {
            path,
            start_ns: at_ns,
            totals: rotation.totals.clone(),
            own: OwnStart::now(),
            concluded_ns: None,
        };
        if rotation.recording {
            self.dispatcher.router.recording(at_ns, true);
        }
        self.dispatcher.sample(at_ns, "start");
        closed.map_err(|error| writing_failure(&error))
    }

    /// Ends the pause that the limit of the experiment before has begun (`-L`).
    pub(super) fn resume_below_limit(&mut self) -> Result<(), Failure> {
        if self.pause.limited {
            self.change_pause(|reasons| reasons.limited = false)?;
        }
        Ok(())
    }

    /// When recording into the current experiment ended, if only [`Recording::close`] may follow.
    pub(super) fn concluded_ns(&self) -> Option<Nanos> {
        self.experiment.concluded_ns
    }

    /// Whether the current experiment is not the first of the recording.
    pub(super) fn has_older_experiment(&self) -> bool {
        self.experiment.start_ns > self.started_ns
    }

    /// Notes where the experiment is, if it was moved. Returns where it was.
    pub(super) fn follow_move(&mut self) -> Option<PathBuf> {
        match self.dispatcher.router.directory_state() {
            DirectoryState::Moved(path) => Some(mem::replace(&mut self.experiment.path, path)),
            DirectoryState::Unmoved | DirectoryState::Deleted => None,
        }
    }

    /// The summary of the experiment, of which everything but its end is written, with all
    /// problems. `totals` are what was counted until it ended.
    pub(super) fn summary(
        &mut self,
        totals: &Totals,
        stopped_ns: Nanos,
        output: &mut Output,
    ) -> Summary {
        let experiment = &self.experiment;
        let mut summary = Summary::new(
            self.plan,
            &experiment.path.display().to_string(),
            &self.inputs,
            &totals.since(&experiment.totals),
            &self.dispatcher,
            RecordingTimes {
                started_ns: experiment.start_ns,
                stopped_ns,
                own: experiment.own,
            },
        );
        summary.budget = self.budget.summary(experiment.start_ns);
        let router = &mut self.dispatcher.router;
        self.problems
            .add_to(&mut summary, &self.inputs, router, output);
        summary
    }

    /// The failure with which the recording ends if it has problems.
    pub(super) fn problem(&self) -> Option<Failure> {
        self.problems.failure()
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

    /// Closes the experiment. Returns the inputs too: to close them takes a while, and the result
    /// need not wait for it.
    pub(super) fn close(self, stopped_ns: Nanos) -> (Result<(), Failure>, Inputs) {
        let closed = self.dispatcher.close(stopped_ns);
        let closed = closed.map_err(|error| writing_failure(&error));
        (closed, self.inputs)
    }
}

/// The failure if something could not be published to the BPF programs.
pub(super) fn not_published(error: bpf::Error) -> Failure {
    let hint = "`kcollect doctor` says what is missing; -F off follows no process";
    Failure::new(ExitKind::Unavailable, error.to_string(), hint)
}
