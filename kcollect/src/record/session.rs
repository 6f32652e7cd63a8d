//! One recording: open everything, run until it is time to stop, close everything.
//!
//! The order at the start matters. Whatever can refuse comes first, so that a start that fails
//! leaves nothing behind; the side-band is open before the snapshot of what runs, the snapshot is
//! taken before the first tick, and the experiment can be opened before it holds one.

use std::path::PathBuf;
use std::time::Duration;
use std::{io, iter};

use bpf::UserStackCapture;
use counters::names::event::CounterRequest;
use experiment_format::log::LogEvent;
use host::exit::{Failure, Kind, spawn_code};
use host::load::{self, Starter};
use host::machine::{self, now};
use host::output::Output;
use host::signals::{self, Signals};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::gettid;

use super::directory::{add_to_group, create, creation_failure, shown_path, writing_failure};
use super::dispatch::Dispatcher;
use super::hardening::privileges::{self, Requirements};
use super::hardening::rt_priority::RtPriority;
use super::input::inputs::Inputs;
use super::kernel::code::KernelCode;
use super::kernel::founder::Founder;
use super::load_phase::{LoadPhase, LoadStep, cannot_start};
use super::pause::PauseReasons;
use super::route::Router;
use super::summary::Summary;
use super::targets::check_targets;
use super::{archiving, dry_run};
use crate::doctor;
use crate::plan::Plan;

/// From one round of maintenance to the next, nanoseconds.
const ROUND_NS: u64 = 200_000_000;

/// The longest time for which events are applied without publishing what they changed, nanoseconds.
/// Until a process is published the BPF programs copy its stacks.
const PUBLISH_INTERVAL_NS: u64 = 20_000_000;

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

struct Session<'a> {
    plan: &'a Plan,
    path: PathBuf,
    signals: Signals,
    inputs: Inputs,
    dispatcher: Dispatcher,
    pause: PauseReasons,
    load: LoadPhase,
    /// Nanoseconds of CLOCK_MONOTONIC, as all times here.
    started: u64,
    next_sample: Option<u64>,
    stopped: bool,
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
        let pause_signal = plan.pause_signal.map(|pause| pause.signal);
        let signals = Signals::listen(pause_signal, plan.sample_signal)
            .map_err(|error| Failure::new(Kind::Software, error.to_string(), "report it"))?;
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
        let router = Router::new(founder, inherited);
        let mut dispatcher = Dispatcher::new(router, rule, |text| output.detail(text));
        output.say(&format!(
            "Creating experiment directory {} (Process ID: {}) ...",
            path.display(),
            std::process::id()
        ));
        let pause = PauseReasons {
            waiting: !plan.start.is_zero(),
            paused: plan
                .pause_signal
                .is_some_and(|pause| !pause.start_recording),
            ..PauseReasons::default()
        };
        let started = match begin(&mut inputs, &mut dispatcher, pause.none()) {
            Ok(started) => started,
            Err(failure) => {
                // The first failure is the one to report.
                let _ = dispatcher.router.founder.discard();
                return Err(failure);
            }
        };

        let load = starter.map_or(LoadPhase::None, |starter| {
            LoadPhase::QuietUntil(after(started, plan.quiet), starter)
        });
        Ok(Session {
            plan,
            path,
            signals,
            inputs,
            dispatcher,
            pause,
            load,
            started,
            next_sample: plan.sample_period.map(|period| after(started, period)),
            stopped: false,
        })
    }

    fn run(&mut self, output: &mut Output) -> Result<(), Failure> {
        let threads = iter::once(gettid()).chain(self.dispatcher.table_maker());
        let _rt_priority = RtPriority::duty_cycled(threads.collect())
            .inspect_err(|error| output.detail(&no_rt_priority(error)))
            .ok();
        let mut next_round = self.started + ROUND_NS;
        while !self.stopped {
            self.wait(self.next_deadline(next_round));
            self.handle_signals()?;
            let time = now();
            self.keep_time(time, output)?;
            self.inputs.programs.tables().maintain();
            self.apply_events()?;
            if time >= next_round {
                next_round = time + ROUND_NS;
                self.follow_hotplug()?;
                self.dispatcher.maintain(time);
                output.progress(|| self.progress(time));
            }
            self.watch_limits(output)?;
        }
        Ok(())
    }

    fn finish(mut self, output: &mut Output) -> Result<u8, Failure> {
        let stop = self.stop();
        let stopped = stop.as_ref().copied().unwrap_or_else(|_| now());
        self.dispatcher.sample(stopped, "stop");
        self.dispatcher.finish();

        let path = self.path.display().to_string();
        let times = (self.started, stopped);
        let mut summary = Summary::new(self.plan, &path, &self.inputs, &self.dispatcher, times);
        // Shown at once; the last copies may take a while.
        if let Ok(summary) = &summary
            && !self.plan.json
        {
            let width = output.width();
            output.result(&summary.text(width));
        }
        archiving::finish(&mut self.dispatcher, &mut self.signals, output);
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
            output.result(&summary.json());
        }
        closed.map_err(|error| writing_failure(&error))?;
        if let Some(group) = &self.plan.group {
            add_to_group(group, &self.path)?;
        }
        let code = self.load.exit_code();
        if summary.ticks > 0 || summary.arrays > 0 {
            return Ok(code);
        }
        let failure = empty_failure(&summary);
        if code == 0 {
            return Err(failure);
        }
        output.say(&failure.to_string());
        Ok(code)
    }

    /// Stops the data and applies what is on its way. Returns the time of the last tick that
    /// counts.
    fn stop(&mut self) -> Result<u64, Failure> {
        let stopped = self.inputs.set_recording(false)?;
        for (time, event) in self.inputs.finish()? {
            self.dispatcher.apply(time, event.not_after(stopped));
        }
        Ok(stopped)
    }

    fn wait(&self, deadline: u64) {
        let fds = self.signals.fds().chain([self.inputs.wake_fd()]);
        let mut fds: Vec<_> = fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        let left = Duration::from_nanos(deadline.saturating_sub(now()));
        // Rounded up, or the last fraction of a millisecond is spent spinning.
        let timeout =
            PollTimeout::try_from(left + Duration::from_micros(999)).unwrap_or(PollTimeout::MAX);
        // An interrupted wait is a signal, which is handled next.
        let _ = poll(&mut fds, timeout);
    }

    fn next_deadline(&self, next_round: u64) -> u64 {
        let start = self
            .pause
            .waiting
            .then(|| after(self.started, self.plan.start));
        let end = self.plan.end.map(|end| after(self.started, end));
        [self.next_sample, self.load.deadline(), start, end]
            .into_iter()
            .flatten()
            .fold(next_round, u64::min)
    }

    fn handle_signals(&mut self) -> Result<(), Failure> {
        for request in self.signals.take() {
            match request {
                signals::SignalRequest::Stop => self.stopped = true,
                signals::SignalRequest::Toggle => {
                    self.pause(|reasons| reasons.paused = !reasons.paused)?
                }
                signals::SignalRequest::Sample => self.inputs.sample("signal")?,
                signals::SignalRequest::Wake => {}
            }
        }
        Ok(())
    }

    /// Does what is due by the clock.
    fn keep_time(&mut self, time: u64, output: &mut Output) -> Result<(), Failure> {
        let (plan, started) = (self.plan, self.started);
        if self.pause.waiting && time >= after(started, plan.start) {
            self.pause(|reasons| reasons.waiting = false)?;
        }
        self.stopped |= plan.end.is_some_and(|end| time >= after(started, end));
        if let (Some(due), Some(period)) = (self.next_sample, plan.sample_period)
            && time >= due
        {
            self.inputs.sample("periodic")?;
            // The next one on the grid of the first, however late this one is.
            let period = period.as_nanos() as u64;
            self.next_sample = Some(due + (1 + (time - due) / period) * period);
        }
        match self.load.step(time, plan, output)? {
            LoadStep::Started(pid) => self.dispatcher.load_started(pid),
            LoadStep::Over => self.stopped = true,
            LoadStep::None => {}
        }
        Ok(())
    }

    /// Applies the events that are complete, and publishes what they changed.
    fn apply_events(&mut self) -> Result<(), Failure> {
        let mut published = now();
        for (time, event) in self.inputs.round()? {
            self.dispatcher.apply(time, event);
            if now() > published + PUBLISH_INTERVAL_NS {
                self.publish()?;
                published = now();
            }
        }
        self.publish()?;
        for pid in self.dispatcher.take_unmapped() {
            self.inputs.read_mappings(pid);
        }
        Ok(())
    }

    fn publish(&mut self) -> Result<(), Failure> {
        let published = self.dispatcher.publish(&mut self.inputs.programs);
        published.map_err(not_published)
    }

    fn watch_limits(&mut self, output: &mut Output) -> Result<(), Failure> {
        if self.dispatcher.router.failed.is_some() && !self.pause.failed {
            self.pause(|reasons| reasons.failed = true)?;
            self.stopped = true;
        }
        if let Some(limit) = self.plan.limit
            && !self.pause.limited
            && self.dispatcher.router.bytes_written() >= limit
        {
            self.pause(|reasons| reasons.limited = true)?;
            let text = format!(
                "the limit of {} MB (-L) is reached: data stop, samples go on",
                limit >> 20
            );
            output.say(&text);
            self.warn(now(), text);
        }
        Ok(())
    }

    /// Changes the reasons for a pause, and with them whether data are taken.
    fn pause(&mut self, change: impl FnOnce(&mut PauseReasons)) -> Result<(), Failure> {
        let before = self.pause.none();
        change(&mut self.pause);
        let recording = self.pause.none();
        if before != recording {
            let changed = self.inputs.set_recording(recording)?;
            self.inputs.push_recording(recording, changed);
        }
        Ok(())
    }

    fn follow_hotplug(&mut self) -> Result<(), Failure> {
        for change in self.inputs.follow_hotplug()? {
            let text = match change.online {
                true => format!(
                    "CPU {} came online; it is recorded from here on",
                    change.cpu
                ),
                false => format!("CPU {} went offline", change.cpu),
            };
            self.warn(change.at, text);
        }
        Ok(())
    }

    fn warn(&mut self, time: u64, text: String) {
        let router = &mut self.dispatcher.router;
        router.log(time, |at| LogEvent::Warning { at, text });
    }

    fn progress(&self, time: u64) -> String {
        let seconds = time.saturating_sub(self.started) / 1_000_000_000;
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

/// Returns the time `span` after `time`.
pub(super) fn after(time: u64, span: Duration) -> u64 {
    time.saturating_add(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX))
}

/// Returns the thread that starts the load, if there is one, with the privileges that kcollect was
/// started with.
fn starter(
    plan: &Plan,
    descriptors: Option<(u64, u64)>,
    signals: &Signals,
) -> Result<Option<Starter>, Failure> {
    if plan.load.is_empty() {
        return Ok(None);
    }
    let starter = Starter::wait(&plan.load, descriptors, &signals.ignored);
    starter.map(Some).map_err(|error| {
        Failure::new(
            Kind::Unavailable,
            format!("no thread can be made to start the load: {error}"),
            "raise the limit of processes (ulimit -u, or pids.max of the control group)",
        )
    })
}

fn no_rt_priority(error: &io::Error) -> String {
    format!("no real-time priority ({error}): on an overloaded machine, data may be lost")
}

fn unavailable(message: String) -> Failure {
    let cure = "`kcollect doctor` says what is missing";
    Failure::new(Kind::Unavailable, message, cure)
}

fn not_published(error: bpf::Error) -> Failure {
    let cure = "`kcollect doctor` says what is missing; -F off follows no process";
    Failure::new(Kind::Unavailable, error.to_string(), cure)
}

fn empty_failure(summary: &Summary) -> Failure {
    Failure::new(
        Kind::Empty,
        format!(
            "no tick was recorded in {:.3} s, on a CPU or away from it",
            summary.elapsed_s
        ),
        "run longer, or with -p hi",
    )
}
