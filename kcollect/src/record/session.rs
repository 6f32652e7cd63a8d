//! One recording: open everything, run until it is time to stop, close everything.
//!
//! The order at the start matters. Whatever can refuse comes first, so that a start that fails
//! leaves nothing behind; the side-band is open before the snapshot of what runs, the snapshot is
//! taken before the first tick, and the experiment can be opened before it holds one.

use std::iter;
use std::path::PathBuf;

use bpf::UserStackCapture;
use counters::names::event::CounterRequest;
use experiment_format::directory::Place;
use experiment_format::ids::Tid;
use host::exit::{Failure, spawn_code};
use host::load;
use host::machine::{self, now};
use host::output::Output;
use host::signals::Signals;
use nix::unistd::gettid;

use super::directory::{
    add_to_group, create, creation_failure, empty_failure, moved_failure, shown_path,
    writing_failure,
};
use super::dispatch::{Dispatcher, LAST_SAMPLE};
use super::hardening::privileges::{self, Requirements};
use super::hardening::rt_priority::{RtPriority, no_rt_priority};
use super::input::event::Event;
use super::input::inputs::Inputs;
use super::kernel::code::KernelCode;
use super::kernel::founder::Founder;
use super::limits::{enough_address_space, enough_descriptors};
use super::load_phase::{LoadPhase, cannot_start, starter};
use super::pause::PauseReasons;
use super::round::{SHORTEST_ROUND_NS, after, not_published, unavailable};
use super::route::Router;
use super::summary::first_tables::FirstTables;
use super::summary::{RecordingTimes, Summary};
use super::targets::check_targets;
use super::{archiving, dry_run};
use crate::doctor;
use crate::plan::Plan;

/// So many events are applied at the end without a look at the clock.
const EVENTS_AT_ONCE: usize = 1000;
/// From one round of maintenance to the next, nanoseconds.
const ROUND_NS: u64 = 200_000_000;

/// Records as planned, with these counters. Returns the exit code: the load's, or 0.
///
/// # Errors
/// A [`Failure`] with its cure; what was recorded until then is a valid experiment, or nothing is
/// left behind.
pub fn record(
    plan: &Plan,
    counters: &[CounterRequest],
    output: &mut Output,
) -> Result<u8, Failure> {
    for line in dry_run::describe(plan) {
        output.detail(&line);
    }
    if let Some((program, error)) = load::refused(&plan.load) {
        output.say(&cannot_start(program, &error));
        return Ok(spawn_code(&error));
    }
    let mut session = Session::start(plan, counters, output)?;
    let run = session.run(output);
    // Whatever ended the run, what it recorded is closed and shown.
    let finished = session.finish(output);
    run.and(finished)
}

pub(super) struct Session<'a> {
    pub(super) plan: &'a Plan,
    path: PathBuf,
    pub(super) signals: Signals,
    pub(super) inputs: Inputs,
    pub(super) dispatcher: Dispatcher,
    pub(super) pause: PauseReasons,
    pub(super) load: LoadPhase,
    /// When data could first be taken, nanoseconds of CLOCK_MONOTONIC.
    pub(super) started_ns: u64,
    pub(super) next_sample_ns: Option<u64>,
    pub(super) stopped: bool,
    /// When data stopped for good, nanoseconds of CLOCK_MONOTONIC.
    pub(super) stopped_ns: Option<u64>,
    pub(super) said_closing: bool,
}

impl<'a> Session<'a> {
    fn start(
        plan: &'a Plan,
        counters: &[CounterRequest],
        output: &mut Output,
    ) -> Result<Session<'a>, Failure> {
        if let Some(obstacle) = doctor::first_obstacle(&doctor::examine(&host::Root::machine())) {
            return Err(obstacle);
        }
        check_targets(&plan.targets)?;
        machine::give_memory_back();
        let descriptors = machine::raise_descriptors();
        enough_descriptors(counters.len())?;
        enough_address_space()?;
        let pause_signal = plan.pause_signal.map(|pause| pause.signal);
        let signals = Signals::listen(pause_signal, plan.sample_signal)
            .map_err(|error| Failure::of_system("signals", &error))?;
        let kernel = KernelCode::read(|text| output.say(text))
            .map_err(|error| unavailable(error.to_string()))?;
        let rule = plan.follow.clone();
        let capture = rule.follows().then(UserStackCapture::probe);
        let page_fault = kernel.page_fault();
        let period = plan.interval.nanos();
        let mut inputs = Inputs::open(period, plan.record_idle, page_fault, capture, counters)?;

        let starter = starter(plan, descriptors, &signals)?;
        let dir = create(plan, output)?;
        let path = shown_path(plan, &dir);
        if let Err(error) = privileges::drop_privileges(Requirements::of(plan)) {
            output.say(&format!(
                "privileges that are not needed any more could not be given up: {error}"
            ));
        }
        if let Err(error) = inputs.start_reader() {
            output.detail(&no_rt_priority(&error));
        }
        let detail = |text: &str| output.detail(text);
        let (founder, inherited) = Founder::create(dir, (plan, counters), kernel, capture, detail)
            .map_err(|error| creation_failure(&error))?;
        let router = Router::new(founder, inherited, plan.limit);
        let mut dispatcher = Dispatcher::new(router, rule, |text| output.detail(text));
        output.say(&format!(
            "Creating experiment directory {} (Process ID: {}) ...",
            path.display(),
            std::process::id()
        ));
        let pause = PauseReasons::at_start(plan);
        let started_ns = match begin(&mut inputs, &mut dispatcher, pause.none()) {
            Ok(started_ns) => started_ns,
            Err(failure) => {
                // The first failure is the one to report.
                let _ = dispatcher.router.founder.discard();
                return Err(failure);
            }
        };

        let load = starter.map_or(LoadPhase::None, |starter| {
            LoadPhase::QuietUntil(after(started_ns, plan.quiet), starter)
        });
        Ok(Session {
            plan,
            path,
            signals,
            inputs,
            dispatcher,
            pause,
            load,
            started_ns,
            next_sample_ns: plan.sample_period.map(|period| after(started_ns, period)),
            stopped: false,
            stopped_ns: None,
            said_closing: false,
        })
    }

    fn run(&mut self, output: &mut Output) -> Result<(), Failure> {
        let threads =
            iter::once(Tid::from_raw(gettid().as_raw())).chain(self.dispatcher.table_maker());
        let _rt_priority = RtPriority::duty_cycled(threads.collect())
            .inspect_err(|error| output.detail(&no_rt_priority(error)))
            .ok();
        let mut next_round = self.started_ns + ROUND_NS;
        let mut time = self.started_ns;
        while !self.stopped {
            self.wait(
                time + SHORTEST_ROUND_NS,
                self.next_deadline(time, next_round),
            );
            self.handle_signals()?;
            time = now();
            self.keep_time(time, output)?;
            self.inputs.programs.tables().maintain();
            self.apply_events(output)?;
            if time >= next_round {
                next_round = time + ROUND_NS;
                self.follow_hotplug()?;
                self.dispatcher.maintain(time);
                // One that was deleted ends the recording.
                let _ = self.dispatcher.router.place();
                output.progress(|| self.progress(time));
            }
            self.watch_limits(output)?;
        }
        Ok(())
    }

    fn finish(mut self, output: &mut Output) -> Result<u8, Failure> {
        let stop = self.stop(output);
        let stopped = stop.as_ref().copied().unwrap_or_else(|_| now());
        self.dispatcher.sample(stopped, LAST_SAMPLE);
        self.dispatcher.finish();

        let moved = match self.dispatcher.router.place() {
            Place::Moved(path) => Some(path),
            Place::Here | Place::Gone => None,
        };
        let was = moved.map(|moved| std::mem::replace(&mut self.path, moved));
        let path = self.path.display().to_string();
        let times = RecordingTimes {
            started_ns: self.started_ns,
            stopped_ns: stopped,
        };
        let mut summary = Summary::new(self.plan, &path, &self.inputs, &self.dispatcher, times);
        let mut given_up = false;
        // Shown at once; the last copies may take a while.
        if let Ok(summary) = &summary
            && !self.plan.json
        {
            let bytes = self.dispatcher.router.bytes_written();
            let directory = self.dispatcher.router.founder.dir().path();
            let directory = was.as_ref().map_or(directory, |_| &self.path);
            output.result(&summary.head());
            let first = FirstTables::read(directory, bytes, &mut self.signals, output);
            output.result(&summary.rest(&first, output.width()));
            given_up = first.given_up;
        }
        archiving::finish(&mut self.dispatcher, &mut self.signals, given_up, output);
        self.dispatcher.log_archived(stopped);
        if let Ok(summary) = &mut summary {
            summary.archive = self.dispatcher.archived().cloned();
            self.dispatcher.log_losses(stopped, &summary.losses);
            let router = &mut self.dispatcher.router;
            router.side_file("kcollect.json", &summary.json());
        }
        // The experiment is closed whatever failed, and the first failure is reported.
        let closed = self.dispatcher.close(stopped);
        stop?;
        let summary = summary?;

        if self.plan.json {
            output.json(&summary.json());
        }
        closed.map_err(|error| writing_failure(&error))?;
        if let Some(group) = &self.plan.group {
            add_to_group(group, &self.path)?;
        }
        let code = self.load.exit_code();
        let failure = match was {
            Some(was) => moved_failure(&was, &self.path),
            None if summary.ticks > 0 || summary.arrays > 0 => return Ok(code),
            None => empty_failure(&summary),
        };
        if code == 0 {
            return Err(failure);
        }
        output.say(&failure.to_string());
        Ok(code)
    }

    /// Stops the data and applies what is on its way. Returns the time of the last tick that
    /// counts.
    fn stop(&mut self, output: &mut Output) -> Result<u64, Failure> {
        let stopped = self.stop_data()?;
        for (count, (time, event)) in self.inputs.finish()?.into_iter().enumerate() {
            // What processes did later is no part of the recording.
            if time > stopped && matches!(event, Event::Sideband(_)) {
                continue;
            }
            self.dispatcher.apply(time, event.not_after(stopped));
            if count % EVENTS_AT_ONCE == 0 {
                self.say_closing(output);
            }
        }
        Ok(stopped)
    }
}

/// Publishes what runs to the BPF programs, then takes data if `recording`. Returns when that was.
fn begin(
    inputs: &mut Inputs,
    dispatcher: &mut Dispatcher,
    recording: bool,
) -> Result<u64, Failure> {
    for (time, event) in inputs.round()? {
        dispatcher.apply(time, event);
    }
    dispatcher
        .publish_snapshot(&mut inputs.programs)
        .map_err(not_published)?;
    // Before the first tick, or it would belong to no sample.
    inputs.sample("start")?;
    let started = inputs.set_recording(recording)?;
    if recording {
        inputs.push_recording(true, started);
    }
    Ok(started)
}
