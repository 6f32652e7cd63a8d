//! The start of a recording.
//!
//! The order matters. Whatever can fail comes first, so that a failed start leaves nothing behind.
//! The side-band is open before the snapshot of what runs, the snapshot is taken before the first
//! tick, and the experiment can be opened before it holds one.

use bpf::{KernelTypes, UserStackCapture};
use counters::names::event::CounterRequest;
use experiment_format::units::Nanos;
use host::exit::{ExitKind, Failure};
use host::load::Starter;
use host::machine::{self, now};
use host::output::Output;
use host::service::Service;
use host::signals::{SignalRequest, Signals};

use super::control::Control;
use super::directory::{create, creation_failure, shown_path};
use super::load_phase::starter;
use super::pause::PauseReasons;
use super::process_limits::{enough_address_space, enough_descriptors};
use super::recording::{Recording, not_published};
use super::rounds::Rounds;
use super::series::Series;
use crate::doctor;
use crate::plan::{Plan, SeriesPlan};
use crate::record::dispatch::Dispatcher;
use crate::record::hardening::priority::no_priority;
use crate::record::hardening::privileges::{self, Requirements};
use crate::record::input::inputs::Inputs;
use crate::record::kernel::code::KernelCode;
use crate::record::route::{Beginning, Router};
use crate::record::summary::OwnStart;
use crate::record::targets::check_targets;

/// What a recording needs, open. Nothing is on disk yet.
#[derive(Debug)]
pub(super) struct Start<'a> {
    plan: &'a Plan,
    /// From when kcollect's own CPU time counts.
    own: OwnStart,
    control: Control,
    kernel: KernelCode,
    inputs: Inputs,
    /// The thread that starts the load, if there is a load.
    starter: Option<Starter>,
}

impl<'a> Start<'a> {
    /// Opens everything with the privileges that kcollect was started with.
    ///
    /// # Errors
    /// This machine, the limits of this process or the plan's targets do not permit the recording.
    pub(super) fn open(
        plan: &'a Plan,
        counters: &[CounterRequest],
        output: &mut Output,
    ) -> Result<Start<'a>, Failure> {
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
        let signals = Signals::listen(pause_signal, plan.sample_signal, hang_up(plan.series))
            .map_err(|error| Failure::of_system("signals", &error))?;
        let kernel = KernelCode::read(|text| output.say(text))
            .map_err(|error| unavailable(error.to_string()))?;
        let types = KernelTypes::read();
        let follows = plan.follow.follows();
        let capture = follows.then(|| UserStackCapture::of(&types));
        let inputs = Inputs::open(plan, kernel.sought(), &types, capture, counters)?;
        // Megabytes.
        drop(types);

        let service = Service::connect()
            .map_err(|error| Failure::of_system("NOTIFY_SOCKET of systemd", &error))?;
        let starter = starter(&plan.load, descriptors, &signals.ignored)?;
        Ok(Start {
            plan,
            own,
            control: Control::new(signals, service),
            kernel,
            inputs,
            starter,
        })
    }

    /// Creates the experiment, drops privileges, and starts recording.
    ///
    /// # Errors
    /// The experiment can't be written, or the kernel has no memory for what runs. Nothing is left
    /// on disk.
    pub(super) fn begin(mut self, output: &mut Output) -> Result<Rounds<'a>, Failure> {
        let plan = self.plan;
        let dir = create(&plan.place, output)?;
        let path = shown_path(&plan.place, &dir);
        self.drop_privileges(output);
        if let Err(error) = self.inputs.start_reader() {
            output.detail(&no_priority(&error));
        }
        let beginning = Beginning {
            at_ns: now(),
            ..Beginning::default()
        };
        let router = Router::create(
            dir,
            (plan, &self.inputs.counters),
            (self.kernel, None),
            (self.inputs.capture, beginning),
            |text| output.detail(text),
        )
        .map_err(|error| creation_failure(&error))?;
        let mut dispatcher = Dispatcher::new(router, plan, |text| output.detail(text));
        output.say(&format!(
            "Creating experiment directory {} (Process ID: {}) ...",
            path.display(),
            std::process::id()
        ));
        let begun = Series::start(plan).and_then(|series| {
            let recording = PauseReasons::at_start(plan).none();
            let started_ns = start_recording(&mut self.inputs, &mut dispatcher, recording)?;
            Ok((series, started_ns))
        });
        let (series, started_ns) = match begun {
            Ok(begun) => begun,
            Err(failure) => {
                // The first failure is the one to report.
                let _ = dispatcher.router.founder.discard();
                return Err(failure);
            }
        };
        self.control.ready(&path);
        let recording = Recording::new(plan, self.inputs, dispatcher, path, started_ns, self.own);
        Ok(Rounds::new(
            plan,
            recording,
            series,
            self.control,
            self.starter,
        ))
    }

    fn drop_privileges(&self, output: &mut Output) {
        let probes_blocks = self.plan.tracing.heap.mean_bytes().is_some();
        let probes_need_sys_admin = probes_blocks && self.inputs.programs.probes_need_sys_admin();
        let requirements = Requirements::of(&self.plan.place, probes_need_sys_admin);
        if let Err(error) = privileges::drop_privileges(requirements) {
            output.say(&format!(
                "privileges that are not needed any more could not be given up: {error}"
            ));
        }
    }
}

/// Publishes what runs to the BPF programs, then starts recording if `recording`. Returns when that
/// was.
fn start_recording(
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
fn hang_up(series: SeriesPlan) -> SignalRequest {
    if series.rotate.is_some() && !machine::has_terminal() {
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
