//! One recording: open everything, run until it is time to stop, close everything.
//!
//! The order at the start matters. Whatever can refuse comes first, so that a start that fails
//! leaves nothing behind; the side-band is open before the snapshot of what runs, the snapshot is
//! taken before the first tick, and the experiment can be opened before it holds one.

use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::iter;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bpf::Emission;
use counters::event::Request;
use experiment_format::layout::{ExperimentDir, NameRequest};
use experiment_format::log::LogEvent;
use host::exit::{Failure, Kind, load_code, spawn_code};
use host::load::{self, Load, Starter};
use host::machine::{self, now};
use host::output::Output;
use host::signals::{self, Signals};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::gettid;

use crate::doctor;
use crate::plan::Plan;
use crate::record::dry_run;
use crate::record::hardening::privileges::{self, Requirements};
use crate::record::hardening::rt_priority::RtPriority;
use crate::record::input::sources::Sources;
use crate::record::kernel::code::Kernel;
use crate::record::kernel::founder::Founder;
use crate::record::summary::Summary;
use crate::record::targets::check_targets;

/// From one application of what has come to the next, nanoseconds: five rounds a second cost next
/// to nothing.
const ROUND: u64 = 200_000_000;

/// Where many processes begin at once, applying that takes its time: the programs in the kernel
/// learn of the first ones after so long, nanoseconds, or they go on copying their stacks.
const LONGEST_APPLICATION: u64 = 20_000_000;

/// How often it is looked whether the user has given up on archiving.
const ARCHIVE_ROUND: Duration = Duration::from_millis(100);
/// The longest that one load object may take of the time in which somebody waits. The largest that
/// is copied, 1 GiB, takes so long at 36 MB/s.
const ARCHIVE_PATIENCE: Duration = Duration::from_secs(30);

/// Records as planned, with these counters. Gives the exit code: the load's, or 0.
///
/// # Errors
/// A [`Failure`] with its cure; what was recorded until then is a valid experiment, or nothing is
/// left behind.
pub fn record(plan: &Plan, counters: &[Request], output: &mut Output) -> Result<u8, Failure> {
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
    sources: Sources,
    founder: Founder,
    gate: Gate,
    load: LoadPhase,
    /// Nanoseconds of CLOCK_MONOTONIC, as all times here.
    started: u64,
    next_sample: Option<u64>,
    stopped: bool,
}

/// Why data are not taken; they are when nothing is set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Gate {
    /// `-t a-b`: not yet.
    waiting: bool,
    /// `-y`: toggled off.
    paused: bool,
    /// `-L`: enough.
    limited: bool,
    /// Writing failed.
    failed: bool,
}

impl Gate {
    fn open(self) -> bool {
        self == Gate::default()
    }
}

enum LoadPhase {
    None,
    QuietUntil(u64, Starter),
    Running(Load),
    Ended {
        load: Load,
        quiet_until: u64,
    },
    /// It could not be started: the exit code for that.
    Refused(u8),
}

impl<'a> Session<'a> {
    fn start(
        plan: &'a Plan,
        counters: &[Request],
        output: &mut Output,
    ) -> Result<Session<'a>, Failure> {
        if let Some(obstacle) = doctor::first_obstacle(&doctor::examine(&host::Root::machine())) {
            return Err(obstacle);
        }
        check_targets(&plan.targets)?;
        machine::give_memory_back();
        let descriptors = machine::raise_descriptors();
        let signals = Signals::listen(
            plan.pause_signal.map(|pause| pause.signal),
            plan.sample_signal,
        )
        .map_err(|error| Failure::new(Kind::Software, error.to_string(), "report it"))?;
        let kernel = Kernel::read(|text| output.say(text)).map_err(|error| {
            Failure::new(
                Kind::Unavailable,
                error.to_string(),
                "`kcollect doctor` says what is missing",
            )
        })?;
        let period = plan.interval.nanos();
        let emission = plan.follow.follows().then(Emission::probe);
        let mut sources = Sources::open(
            period,
            plan.record_idle,
            kernel.page_fault(),
            emission,
            counters,
        )?;

        let starter = starter(plan, descriptors, &signals)?;
        let dir = create_directory(plan, output)?;
        let path = shown_path(plan, &dir);
        if let Err(error) = privileges::drop_privileges(Requirements::of(plan)) {
            output.say(&format!(
                "privileges that are not needed any more could not be given up: {error}"
            ));
        }
        if let Err(error) = sources.read_apart() {
            output.detail(&no_precedence(&error));
        }
        let founder = Founder::create(dir, (plan, counters), kernel, emission, |text| {
            output.detail(text);
        });
        let mut founder = founder.map_err(|error| creation_failure(&error))?;
        output.say(&format!(
            "Creating experiment directory {} (Process ID: {}) ...",
            path.display(),
            std::process::id()
        ));
        let gate = Gate {
            waiting: !plan.start.is_zero(),
            paused: plan
                .pause_signal
                .is_some_and(|pause| !pause.start_recording),
            ..Gate::default()
        };
        let started = prepare(&mut sources, &mut founder).and_then(|()| {
            // Before the first tick, or it would be of no sample.
            sources.sample("start")?;
            sources.set_recording(gate.open())
        });
        let started = match started {
            Ok(started) => started,
            Err(failure) => {
                // The first failure is the one to tell.
                let _ = founder.discard();
                return Err(failure);
            }
        };
        if gate.open() {
            sources.tell_recording(true, started);
        }

        let load = starter.map_or(LoadPhase::None, |starter| {
            LoadPhase::QuietUntil(after(started, plan.quiet), starter)
        });
        Ok(Session {
            plan,
            path,
            signals,
            sources,
            founder,
            gate,
            load,
            started,
            next_sample: plan.sample_period.map(|period| after(started, period)),
            stopped: false,
        })
    }

    fn run(&mut self, output: &mut Output) -> Result<(), Failure> {
        let threads = iter::once(gettid()).chain(self.founder.table_maker());
        let _rt_priority = RtPriority::duty_cycled(threads.collect())
            .inspect_err(|error| output.detail(&no_precedence(error)))
            .ok();
        let mut next_round = self.started + ROUND;
        while !self.stopped {
            self.wait(self.next_deadline(next_round));
            self.heed_signals()?;
            let time = now();
            self.keep_time(time, output)?;
            self.sources.collector.tidy_tables();
            let mut handed_over = now();
            for (time, event) in self.sources.round()? {
                self.founder.apply(time, event);
                if now() > handed_over + LONGEST_APPLICATION {
                    self.hand_over()?;
                    handed_over = now();
                }
            }
            self.hand_over()?;
            for pid in self.founder.take_unmapped() {
                self.sources.read_again(pid);
            }
            if time >= next_round {
                next_round = time + ROUND;
                self.sources.follow_hotplug()?;
                self.tell_hotplug();
                self.founder.tidy(time);
                output.progress(|| self.progress(time));
            }
            self.watch_limits(output)?;
        }
        Ok(())
    }

    /// Lets the programs in the kernel know what was learnt of processes.
    fn hand_over(&mut self) -> Result<(), Failure> {
        let handed_over = self.founder.hand_over(&mut self.sources.collector);
        handed_over.map_err(no_hand_over)
    }

    fn finish(mut self, output: &mut Output) -> Result<u8, Failure> {
        let stop = self.stop();
        let stopped = stop.as_ref().copied().unwrap_or_else(|_| now());
        self.founder.sample(stopped, "stop");
        self.founder.close_threads();

        let path = self.path.display().to_string();
        let times = (self.started, stopped);
        let mut summary = Summary::new(self.plan, &path, &self.sources, &self.founder, times);
        // People see what they have at once; the last copies may take a while.
        if let Ok(summary) = &summary
            && !self.plan.json
        {
            let width = output.width();
            output.result(&summary.text(width));
        }
        self.archive(output);
        self.founder.tell_archived(stopped);
        if let Ok(summary) = &mut summary {
            summary.archive = self.founder.archived().cloned();
            self.founder.tell_losses(stopped, &summary.losses);
            self.founder.side_file("kcollect.json", &summary.json());
        }
        // The experiment is closed whatever went wrong, and the first thing that did is told.
        let failed = self.founder.failed.take();
        let failed = failed.or(self.founder.close(stopped).err());
        stop?;
        let summary = summary?;

        if self.plan.json {
            output.result(&summary.json());
        }
        if let Some(error) = failed {
            return Err(writing_failure(&error));
        }
        if let Some(group) = &self.plan.group {
            add_to_group(group, &self.path)?;
        }
        let code = match self.load {
            LoadPhase::Ended { load, .. } => load.status.map_or(0, load_code),
            LoadPhase::Refused(code) => code,
            _ => 0,
        };
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

    /// Archives what is not archived yet. Another Ctrl-C gives up on that, and so does a file that
    /// takes too long.
    fn archive(&mut self, output: &mut Output) {
        let (signals, mut given_up) = (&mut self.signals, false);
        let mut give_up = || {
            given_up |= signals.take().contains(&signals::SignalRequest::Stop);
            given_up
        };
        self.founder.archive_late(&mut give_up);
        let (mut before, mut since) = (0, Instant::now());
        while let Some((done, all, left)) = self.founder.archiving(ARCHIVE_ROUND) {
            if left != before {
                (before, since) = (left, Instant::now());
            }
            let still = since.elapsed() > ARCHIVE_PATIENCE;
            if still {
                output.say(&format!(
                    "Archiving is given up: one load object has taken {} s, as on a file system that does not answer",
                    ARCHIVE_PATIENCE.as_secs()
                ));
            }
            if still || give_up() {
                self.founder.give_up_archiving();
                break;
            }
            output
                .progress(|| format!("archiving {done} of {all} load objects  (Ctrl-C gives up)"));
        }
        output.end_progress();
        let Some(archived) = self.founder.archived() else {
            return;
        };
        output.detail(&format!(
            "archived {} load objects and {} sources of processes, {:.1} MB",
            archived.objects,
            archived.sources,
            archived.bytes as f64 / 1e6
        ));
        if let missing @ 1.. = archived.left_out.len() {
            output.say(&format!(
                "{missing} load object{} of processes not archived: the experiment's log names them",
                if missing == 1 { "" } else { "s" },
            ));
        }
    }

    /// Stops the data and applies what is on its way. Gives the time of the last tick that counts.
    fn stop(&mut self) -> Result<u64, Failure> {
        let stopped = self.sources.set_recording(false)?;
        for (time, event) in self.sources.finish()? {
            self.founder.apply(time, event.not_after(stopped));
        }
        Ok(stopped)
    }

    fn wait(&self, deadline: u64) {
        let fds = self.signals.fds().chain([self.sources.wake_fd()]);
        let mut fds: Vec<_> = fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        let left = Duration::from_nanos(deadline.saturating_sub(now()));
        // Rounded up, or the last fraction of a millisecond is spent spinning.
        let timeout =
            PollTimeout::try_from(left + Duration::from_micros(999)).unwrap_or(PollTimeout::MAX);
        // An interrupted wait is a signal, which is looked for next.
        let _ = poll(&mut fds, timeout);
    }

    fn next_deadline(&self, next_round: u64) -> u64 {
        let load = match &self.load {
            LoadPhase::QuietUntil(time, _)
            | LoadPhase::Ended {
                quiet_until: time, ..
            } => Some(*time),
            _ => None,
        };
        let start = self
            .gate
            .waiting
            .then(|| after(self.started, self.plan.start));
        let end = self.plan.end.map(|end| after(self.started, end));
        [Some(next_round), self.next_sample, load, start, end]
            .into_iter()
            .flatten()
            .min()
            .unwrap_or(next_round)
    }

    fn heed_signals(&mut self) -> Result<(), Failure> {
        for request in self.signals.take() {
            match request {
                signals::SignalRequest::Stop => self.stopped = true,
                signals::SignalRequest::Toggle => {
                    self.change_gate(|gate| gate.paused = !gate.paused)?
                }
                signals::SignalRequest::Sample => self.sources.sample("signal")?,
                signals::SignalRequest::Wake => {}
            }
        }
        Ok(())
    }

    /// Does what is due by the clock.
    fn keep_time(&mut self, time: u64, output: &mut Output) -> Result<(), Failure> {
        if self.gate.waiting && time >= after(self.started, self.plan.start) {
            self.change_gate(|gate| gate.waiting = false)?;
        }
        if self
            .plan
            .end
            .is_some_and(|end| time >= after(self.started, end))
        {
            self.stopped = true;
        }
        if let (Some(due), Some(period)) = (self.next_sample, self.plan.sample_period)
            && time >= due
        {
            self.sources.sample("periodic")?;
            // The next one on the grid of the first, however late this one is.
            let period = period.as_nanos() as u64;
            self.next_sample = Some(due + (1 + (time - due) / period) * period);
        }
        self.follow_load(time, output)
    }

    fn follow_load(&mut self, time: u64, output: &mut Output) -> Result<(), Failure> {
        match &mut self.load {
            LoadPhase::QuietUntil(start, _) if time >= *start => {
                let LoadPhase::QuietUntil(_, starter) =
                    std::mem::replace(&mut self.load, LoadPhase::None)
                else {
                    return Ok(());
                };
                match starter.start() {
                    Ok(load) => {
                        output.detail(&format!("load started (Process ID: {})", load.pid()));
                        self.founder.follow(load.pid());
                        self.load = LoadPhase::Running(load);
                    }
                    Err(error) => {
                        output.say(&cannot_start(&self.plan.load[0], &error));
                        self.load = LoadPhase::Refused(spawn_code(&error));
                        self.stopped = true;
                    }
                }
            }
            LoadPhase::Running(load) => {
                let ended = load.ended().map_err(|error| {
                    Failure::new(
                        Kind::Software,
                        format!("cannot wait for the load: {error}"),
                        "report it",
                    )
                })?;
                if ended
                    && let LoadPhase::Running(load) =
                        std::mem::replace(&mut self.load, LoadPhase::None)
                {
                    let quiet_until = after(time, self.plan.quiet);
                    self.load = LoadPhase::Ended { load, quiet_until };
                    self.stopped |= self.plan.quiet.is_zero();
                }
            }
            LoadPhase::Ended { quiet_until, .. } if time >= *quiet_until => self.stopped = true,
            _ => {}
        }
        Ok(())
    }

    fn watch_limits(&mut self, output: &mut Output) -> Result<(), Failure> {
        if self.founder.failed.is_some() && !self.gate.failed {
            self.change_gate(|gate| gate.failed = true)?;
            self.stopped = true;
        }
        if let Some(limit) = self.plan.limit
            && !self.gate.limited
            && self.founder.bytes_written() >= limit
        {
            self.change_gate(|gate| gate.limited = true)?;
            let text = format!(
                "the limit of {} MB (-L) is reached: data stop, samples go on",
                limit >> 20
            );
            output.say(&text);
            self.founder
                .log_at(now(), |at| LogEvent::Warning { at, text });
        }
        Ok(())
    }

    fn change_gate(&mut self, change: impl FnOnce(&mut Gate)) -> Result<(), Failure> {
        let before = self.gate.open();
        change(&mut self.gate);
        let open = self.gate.open();
        if before == open {
            return Ok(());
        }
        let changed = self.sources.set_recording(open)?;
        self.sources.tell_recording(open, changed);
        Ok(())
    }

    fn tell_hotplug(&mut self) {
        for (time, cpu, online) in std::mem::take(&mut self.sources.hotplug) {
            let text = match online {
                true => format!("CPU {cpu} came online; it is recorded from here on"),
                false => format!("CPU {cpu} went offline"),
            };
            self.founder
                .log_at(time, |at| LogEvent::Warning { at, text });
        }
    }

    fn progress(&self, time: u64) -> String {
        let seconds = time.saturating_sub(self.started) / 1_000_000_000;
        let state = match self.gate {
            gate if gate.open() => "recording",
            Gate { limited: true, .. } => "limit reached",
            _ => "paused",
        };
        format!(
            "{state} {}:{:02}  {} ticks  {:.1} MB  (Ctrl-C ends)",
            seconds / 60,
            seconds % 60,
            self.founder.recorder.recorded.ticks,
            self.founder.bytes_written() as f64 / 1e6,
        )
    }
}

/// Lets the programs in the kernel know what runs, before they take data.
fn prepare(sources: &mut Sources, founder: &mut Founder) -> Result<(), Failure> {
    for (time, event) in sources.round()? {
        founder.apply(time, event);
    }
    founder
        .prepare(&mut sources.collector)
        .map_err(no_hand_over)
}

fn after(time: u64, span: Duration) -> u64 {
    time.saturating_add(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX))
}

/// The thread that starts the load, if there is one, with the privileges that kcollect was started
/// with.
fn starter(
    plan: &Plan,
    descriptors: Option<(u64, u64)>,
    signals: &Signals,
) -> Result<Option<Starter>, Failure> {
    if plan.load.is_empty() {
        return Ok(None);
    }
    let starter = Starter::wait(&plan.load, descriptors, &signals.ignored);
    starter.map(Some).map_err(no_thread)
}

fn no_precedence(error: &io::Error) -> String {
    format!(
        "no precedence over other programs ({error}): on an overloaded machine, data may be lost"
    )
}

fn no_thread(error: io::Error) -> Failure {
    Failure::new(
        Kind::Unavailable,
        format!("no thread can be made to start the load: {error}"),
        "raise the limit of processes (ulimit -u, or pids.max of the control group)",
    )
}

/// Makes the experiment's directory, for the user behind sudo.
fn create_directory(plan: &Plan, output: &mut Output) -> Result<ExperimentDir, Failure> {
    let request = match &plan.name {
        NameRequest::Series { stem } => NameRequest::Series { stem: stem.clone() },
        NameRequest::Exactly(name) => NameRequest::Exactly(name.clone()),
    };
    let (dir, renamed) = ExperimentDir::create(&plan.directory, &request, machine::sudo_user())
        .map_err(|error| creation_failure(&error))?;
    if let Some(renamed) = renamed {
        output.say(&format!(
            "name {} is in use; changed to {}",
            renamed.wanted, renamed.used
        ));
    }
    if let Some(kind) = machine::remote_file_system(&plan.directory) {
        output.say(&format!(
            "{} is on {kind}, which is slow to write: results may be distorted; -d names a local directory",
            plan.directory.display()
        ));
    }
    Ok(dir)
}

/// The experiment's path as it would be typed: without the `./` of the current directory.
fn shown_path(plan: &Plan, dir: &ExperimentDir) -> PathBuf {
    match plan.directory == Path::new(".") {
        true => PathBuf::from(dir.name()),
        false => dir.path().to_owned(),
    }
}

fn creation_failure(error: &experiment_format::Error) -> Failure {
    let cure = match error {
        _ if error.is_disk_full() => "free some space, or name another directory with -d",
        experiment_format::Error::NameInUse { .. } => "choose another name with -o, or remove it",
        experiment_format::Error::BadName { .. } => "give -o a name like ktest.1.er",
        _ => "name a directory that can be written with -d",
    };
    Failure::new(Kind::CantCreate, error.to_string(), cure)
}

fn writing_failure(error: &experiment_format::Error) -> Failure {
    let cure = match error.is_disk_full() {
        true => "the experiment is valid up to there; free some space, or limit the data with -L",
        false => "the experiment is valid up to there",
    };
    Failure::new(Kind::IoErr, error.to_string(), cure)
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

fn cannot_start(program: &OsStr, error: &io::Error) -> String {
    format!("cannot start the load {}: {error}", program.display())
}

fn no_hand_over(error: bpf::Error) -> Failure {
    Failure::new(
        Kind::Unavailable,
        error.to_string(),
        "`kcollect doctor` says what is missing; -F off follows nobody",
    )
}

/// Adds the experiment to a group file, `#analyzer experiment group` and then a path a line.
fn add_to_group(group: &Path, experiment: &Path) -> Result<(), Failure> {
    let add = || {
        let mut file = OpenOptions::new().append(true).create(true).open(group)?;
        let line = match file.metadata()?.len() {
            0 => format!("#analyzer experiment group\n{}\n", experiment.display()),
            _ => format!("{}\n", experiment.display()),
        };
        file.write_all(line.as_bytes())
    };
    add().map_err(|error| {
        Failure::new(
            Kind::CantCreate,
            format!("cannot add the experiment to {}: {error}", group.display()),
            "name a group that can be written with -g",
        )
    })
}
