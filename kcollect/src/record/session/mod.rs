//! One recording: open everything, run until it is time to stop, close everything.
//!
//! The order at the start matters. Whatever can fail comes first, so that a failed start leaves
//! nothing behind. The side-band is open before the snapshot of what runs, the snapshot is taken
//! before the first tick, and the experiment can be opened before it holds one.

mod archiving;
mod budget;
mod control;
mod directory;
mod finish;
mod keep;
mod load_phase;
mod pause;
mod problems;
mod process_limits;
mod rotate;
mod round;
mod schedule;
mod wall_clock;

use std::iter;
use std::path::PathBuf;

use bpf::{KernelTypes, UserStackCapture};
use counters::names::event::CounterRequest;
use experiment_format::ids::Tid;
use experiment_format::units::Nanos;
use host::exit::{ExitKind, Failure, spawn_code};
use host::load;
use host::machine::{self, after, now};
use host::output::Output;
use host::service::Service;
use host::signals::{SignalRequest, Signals};
use nix::unistd::gettid;

use self::budget::Budget;
use self::control::Control;
use self::directory::{create, creation_failure, shown_path};
use self::load_phase::{LoadPhase, cannot_start, starter};
use self::pause::PauseReasons;
use self::problems::Problems;
use self::process_limits::{enough_address_space, enough_descriptors};
use self::schedule::Schedule;
use self::wall_clock::WallClock;
use crate::doctor;
use crate::plan::Plan;
use crate::record::dispatch::Dispatcher;
use crate::record::dry_run;
use crate::record::hardening::priority::{RaisedPriority, no_priority};
use crate::record::hardening::privileges::{self, Requirements};
use crate::record::input::inputs::Inputs;
use crate::record::input::totals::Totals;
use crate::record::kernel::code::KernelCode;
use crate::record::packing::Packer;
use crate::record::route::{Beginning, Router};
use crate::record::summary::OwnStart;
use crate::record::targets::check_targets;

/// From one round of maintenance to the next, nanoseconds.
const ROUND_NS: Nanos = Nanos::from_millis(200);

/// The shortest round, nanoseconds: after a stack copy, or while unwind tables are made.
const SHORTEST_ROUND_NS: Nanos = Nanos::from_millis(10);

/// Records as planned, with these counters. Returns the exit code: the load's, or 0.
///
/// # Errors
/// A [`Failure`] with its hint; what was recorded until then is a valid experiment, or nothing is
/// left over.
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
    // A recording that was killed may have left some.
    session.prune_and_pack_older(output);
    let run = session.run(output);
    session.control.stopping();
    // Whatever ended the run, what it recorded is closed and shown.
    let finished = session.finish(output);
    run.and(finished)
}

struct Session<'a> {
    plan: &'a Plan,
    path: PathBuf,
    control: Control,
    inputs: Inputs,
    dispatcher: Dispatcher,
    pause: PauseReasons,
    /// Packs experiments that are complete (`--pack`).
    packer: Option<Packer>,
    budget: Budget,
    load: LoadPhase,
    /// When recording could first start, nanoseconds of CLOCK_MONOTONIC.
    started_ns: Nanos,
    /// When user stacks are captured, if any process is followed.
    capture: Option<UserStackCapture>,
    /// The state at the start of the current experiment.
    began: Began,
    schedule: Schedule,
    /// When recording into the current experiment ended, if everything but its end is written and
    /// no next experiment could be created.
    concluded_ns: Option<Nanos>,
    wall_clock: WallClock,
    stopped: bool,
    /// When recording stopped for good, nanoseconds of CLOCK_MONOTONIC.
    stopped_ns: Option<Nanos>,
    said_closing: bool,
    problems: Problems,
}

/// The state at the start of an experiment.
#[derive(Debug)]
struct Began {
    /// When, CLOCK_MONOTONIC nanoseconds.
    at_ns: Nanos,
    /// What had been counted by then.
    totals: Totals,
    /// From when kcollect's own CPU time counts as its own.
    own: OwnStart,
}

impl Began {
    /// The state at the start of a recording's first experiment.
    fn first(at_ns: Nanos, own: OwnStart) -> Began {
        Began {
            at_ns,
            totals: Totals::default(),
            own,
        }
    }
}

impl<'a> Session<'a> {
    fn start(
        plan: &'a Plan,
        counters: &[CounterRequest],
        output: &mut Output,
    ) -> Result<Session<'a>, Failure> {
        let own = OwnStart::of_the_recording();
        if let Some(obstacle) = doctor::first_obstacle(&doctor::examine(&host::Root::machine())) {
            return Err(obstacle);
        }
        check_targets(&plan.targets)?;
        machine::give_memory_back();
        let descriptors = machine::raise_descriptors();
        enough_descriptors(counters.len())?;
        enough_address_space()?;
        let pause_signal = plan.pause_signal.map(|pause| pause.signal);
        let signals = Signals::listen(pause_signal, plan.sample_signal, hang_up(plan))
            .map_err(|error| Failure::of_system("signals", &error))?;
        let kernel = KernelCode::read(|text| output.say(text))
            .map_err(|error| unavailable(error.to_string()))?;
        let types = KernelTypes::read();
        let follows = plan.follow.follows();
        let capture = follows.then(|| UserStackCapture::of(&types));
        let mut inputs = Inputs::open(plan, kernel.page_fault(), (&types, capture), counters)?;
        // Megabytes.
        drop(types);

        let service = Service::connect()
            .map_err(|error| Failure::of_system("NOTIFY_SOCKET of systemd", &error))?;
        let starter = starter(plan, descriptors, &signals.ignored)?;
        let control = Control::new(signals, service);
        let dir = create(plan, output)?;
        let path = shown_path(plan, &dir);
        let requirements = Requirements::of(plan, inputs.programs.probes_need_sys_admin());
        if let Err(error) = privileges::drop_privileges(requirements) {
            output.say(&format!(
                "privileges that are not needed any more could not be given up: {error}"
            ));
        }
        if let Err(error) = inputs.start_reader() {
            output.detail(&no_priority(&error));
        }
        let detail = |text: &str| output.detail(text);
        let beginning = Beginning {
            at_ns: now(),
            ..Beginning::default()
        };
        let beginning = (capture, beginning);
        let kernel = (kernel, None);
        let router = Router::create(dir, (plan, counters), kernel, beginning, detail)
            .map_err(|error| creation_failure(&error))?;
        let mut dispatcher = Dispatcher::new(router, plan, |text| output.detail(text));
        output.say(&format!(
            "Creating experiment directory {} (Process ID: {}) ...",
            path.display(),
            std::process::id()
        ));
        let pause = PauseReasons::at_start(plan);
        let packer = plan.pack.then(|| Packer::start(plan.budget)).transpose();
        let packer = packer.map_err(|error| Failure::of_system("a thread", &error))?;
        let started_ns = match begin(&mut inputs, &mut dispatcher, pause.none()) {
            Ok(started_ns) => started_ns,
            Err(failure) => {
                // The first failure is the one to report.
                let _ = dispatcher.router.founder.discard();
                return Err(failure);
            }
        };

        control.ready(&path);
        let load = starter.map_or(LoadPhase::None, |starter| {
            LoadPhase::QuietUntil(after(started_ns, plan.quiet), starter)
        });
        Ok(Session {
            plan,
            path,
            control,
            inputs,
            dispatcher,
            pause,
            packer,
            budget: Budget::new(plan.budget),
            load,
            started_ns,
            capture,
            began: Began::first(started_ns, own),
            schedule: Schedule::new(plan, started_ns),
            concluded_ns: None,
            wall_clock: WallClock::look(),
            stopped: false,
            stopped_ns: None,
            said_closing: false,
            problems: Problems::default(),
        })
    }

    fn run(&mut self, output: &mut Output) -> Result<(), Failure> {
        let threads =
            iter::once(Tid::from_raw(gettid().as_raw())).chain(self.dispatcher.table_maker());
        let _raised = RaisedPriority::of(threads.collect())
            .inspect_err(|error| output.detail(&no_priority(&(*error).into())))
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
            self.control.alive(time);
            self.keep_time(time, output)?;
            self.inputs.programs.tables().maintain();
            self.apply_events(output)?;
            self.watch_self_test(false, output)?;
            if time >= next_round {
                next_round = time + ROUND_NS;
                self.inputs.follow_hotplug()?;
                while self.dispatcher.write_some_mappings() {
                    self.keep_up(output)?;
                }
                self.dispatcher.maintain(time);
                let router = &mut self.dispatcher.router;
                self.budget.keep(time, &mut self.inputs, router, output)?;
                // One that was deleted ends the recording.
                let _ = self.dispatcher.router.directory_state();
                output.progress(|| self.progress(time));
            }
            self.watch_limits(output)?;
        }
        Ok(())
    }
}

/// Publishes what runs to the BPF programs, then starts recording if `recording`. Returns when that
/// was.
fn begin(
    inputs: &mut Inputs,
    dispatcher: &mut Dispatcher,
    recording: bool,
) -> Result<Nanos, Failure> {
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

/// The request that SIGHUP stands for. It makes a service begin a new experiment, as other services
/// reopen their logs; with a terminal, SIGHUP means that the terminal is gone.
fn hang_up(plan: &Plan) -> SignalRequest {
    if plan.rotate.is_some() && !machine::has_terminal() {
        SignalRequest::Rotate
    } else {
        SignalRequest::Stop
    }
}

/// The failure if this machine does not have something.
fn unavailable(message: String) -> Failure {
    let hint = "`kcollect doctor` says what is missing";
    Failure::new(ExitKind::Unavailable, message, hint)
}

/// Returns the failure of what could not be published to the BPF programs.
fn not_published(error: bpf::Error) -> Failure {
    let hint = "`kcollect doctor` says what is missing; -F off follows no process";
    Failure::new(ExitKind::Unavailable, error.to_string(), hint)
}
