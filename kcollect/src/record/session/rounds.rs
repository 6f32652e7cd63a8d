//! The rounds of a recording: wait, handle signals, keep time, apply events, watch limits.

use std::iter;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use experiment_format::ids::Tid;
use experiment_format::units::Nanos;
use host::exit::Failure;
use host::load::Starter;
use host::machine::{after, now};
use host::output::Output;
use host::signals::SignalRequest;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::gettid;

use super::control::Control;
use super::finish::Finish;
use super::load_phase::{LoadPhase, LoadStep};
use super::recording::Recording;
use super::schedule::Schedule;
use super::series::Series;
use super::wall_clock::WallClock;
use crate::plan::Plan;
use crate::record::hardening::priority::{RaisedPriority, no_priority};
use crate::record::input::event::InputEvent;
use crate::record::kernel::periodic::PERIODIC;
use crate::record::user::UserSpace;

/// From one round of maintenance to the next, nanoseconds.
const ROUND_NS: Nanos = Nanos::from_millis(200);

/// The shortest round, nanoseconds: after a stack copy, or while unwind tables are made.
const SHORTEST_ROUND_NS: Nanos = Nanos::from_millis(10);

/// The longest time for which events are applied without publishing what they changed, nanoseconds.
/// Until a process is published the BPF programs copy its stacks.
const PUBLISH_INTERVAL_NS: Nanos = Nanos::from_millis(20);

/// The loop: a recording, and what it is driven by.
#[derive(Debug)]
pub(super) struct Rounds<'a> {
    plan: &'a Plan,
    recording: Recording<'a>,
    series: Series<'a>,
    control: Control,
    schedule: Schedule,
    load: LoadPhase,
    wall_clock: WallClock,
    /// It is time to stop, for whatever reason.
    is_over: bool,
}

impl<'a> Rounds<'a> {
    /// The rounds of a recording that has started; `starter` starts the load, if there is one.
    pub(super) fn new(
        plan: &'a Plan,
        recording: Recording<'a>,
        series: Series<'a>,
        control: Control,
        starter: Option<Starter>,
    ) -> Rounds<'a> {
        let started_ns = recording.started_ns();
        Rounds {
            plan,
            recording,
            series,
            control,
            schedule: Schedule::new(plan.timing, plan.series.rotate, started_ns),
            load: starter.map_or(LoadPhase::None, |starter| {
                LoadPhase::QuietUntil(after(started_ns, plan.timing.quiet), starter)
            }),
            wall_clock: WallClock::look(),
            is_over: false,
        }
    }

    /// Runs rounds until it is time to stop.
    ///
    /// # Errors
    /// Whatever ends the recording early. [`Rounds::finish`] follows all the same.
    pub(super) fn run(&mut self, output: &mut Output) -> Result<(), Failure> {
        // A recording that was killed may have left some.
        self.series
            .prune_and_pack_older(&mut self.recording, output);
        let this_thread = Tid::from_raw(gettid().as_raw());
        let threads = iter::once(this_thread).chain(self.recording.dispatcher().table_maker());
        let _raised = RaisedPriority::of(threads.collect())
            .inspect_err(|error| output.detail(&no_priority(&(*error).into())))
            .ok();
        let mut time = self.recording.started_ns();
        let mut next_round = time + ROUND_NS;
        while !self.is_over {
            self.wait(time, next_round);
            self.handle_signals()?;
            time = now();
            self.control.alive(time);
            self.keep_time(time, output)?;
            self.apply_events(output)?;
            self.recording.watch_self_test(false, output)?;
            if time >= next_round {
                next_round = time + ROUND_NS;
                self.recording.inputs().follow_hotplug()?;
                while self.recording.dispatcher().write_some_mappings() {
                    self.keep_up(output)?;
                }
                self.recording.maintain(time, output)?;
                output.progress(|| self.recording.progress(time));
            }
            self.is_over |= self.recording.watch_limits(output)?;
        }
        Ok(())
    }

    /// The step that follows, whatever ended the rounds.
    pub(super) fn finish(mut self) -> Finish<'a> {
        self.control.stopping();
        Finish::new(
            &self.plan.printing,
            self.recording,
            self.series,
            self.control,
            self.load.exit_code(),
        )
    }

    /// Waits, after a round that began at `began`, until something is due, a signal arrives, or the
    /// inputs wake it, which they do not before the shortest round is over.
    fn wait(&mut self, began: Nanos, next_round: Nanos) {
        let earliest = began + SHORTEST_ROUND_NS;
        let user = self.recording.dispatcher().user.as_ref();
        let tables = user
            .is_some_and(UserSpace::makes_tables)
            .then_some(earliest);
        let probes = user.and_then(UserSpace::next_budget_look);
        let due = [
            self.schedule.deadline(),
            self.load.deadline(),
            tables,
            probes,
        ];
        let deadline = due.into_iter().flatten().fold(next_round, Nanos::min);
        let signals = self.control.fd();
        let [signal, _] = wait_for([signals, self.recording.inputs().wake_fd()], deadline);
        if !signal {
            wait_for([signals], earliest.min(deadline));
        }
    }

    fn handle_signals(&mut self) -> Result<(), Failure> {
        for request in self.control.take_requests() {
            match request {
                SignalRequest::Stop => self.is_over = true,
                // Several at once ask for one rotation.
                SignalRequest::Rotate => {
                    self.schedule.rotate_at(now());
                }
                SignalRequest::Toggle => self
                    .recording
                    .change_pause(|reasons| reasons.paused = !reasons.paused)?,
                SignalRequest::Sample => self.recording.inputs().sample("signal")?,
                SignalRequest::Wake => {}
            }
        }
        Ok(())
    }

    /// Does what is due by the clock.
    fn keep_time(&mut self, time_ns: Nanos, output: &mut Output) -> Result<(), Failure> {
        if self.schedule.take_start(time_ns) {
            self.recording
                .change_pause(|reasons| reasons.waiting = false)?;
        }
        self.is_over |= self.schedule.is_over(time_ns);
        if self.schedule.take_sample(time_ns) {
            self.recording.inputs().sample(PERIODIC)?;
        }
        if let Some(seconds) = self.wall_clock.step(WallClock::look()) {
            self.clock_was_set(seconds, output);
        }
        if !self.is_over && self.schedule.take_rotation(time_ns) {
            self.recording.inputs().rotate()?;
        }
        let before_exec = |pid| self.recording.probe_load(pid);
        match self.load.step(time_ns, self.plan, output, before_exec)? {
            LoadStep::Started(pid) => self.recording.dispatcher().load_started(pid),
            LoadStep::Over => self.is_over = true,
            LoadStep::None => {}
        }
        Ok(())
    }

    /// Makes a series continue in the next experiment, since times of the day in this one are by
    /// the clock as it was before.
    fn clock_was_set(&mut self, seconds: f64, output: &mut Output) {
        let direction = if seconds < 0.0 { "back" } else { "forward" };
        let rotates = self.schedule.rotate_at(now());
        let text = format!(
            "the clock of the day was set {direction} by {:.1} s, or the machine slept: {}",
            seconds.abs(),
            if rotates {
                "the next experiment begins"
            } else {
                "times of the day in this experiment are by the clock at its start"
            }
        );
        output.say(&text);
        self.recording.dispatcher().router.warn(now(), text);
    }

    /// Applies the events that are complete, and publishes what they changed.
    fn apply_events(&mut self, output: &mut Output) -> Result<(), Failure> {
        let mut published = now();
        for (time, event) in self.recording.take_events()? {
            match event {
                InputEvent::Rotation(rotation) => {
                    self.series.rotate(
                        &rotation,
                        &mut self.recording,
                        &mut self.control,
                        output,
                    )?;
                }
                event => self.recording.dispatcher().apply(time, event),
            }
            if now() > published + PUBLISH_INTERVAL_NS {
                self.recording.publish()?;
                self.recording.dispatcher().router.measure();
                self.keep_up(output)?;
                published = now();
            }
        }
        self.recording.publish()?;
        self.recording.read_mappings();
        Ok(())
    }

    /// Does in the middle of a round what cannot wait for its end: a round may take seconds, and
    /// recording has to stop on time.
    fn keep_up(&mut self, output: &mut Output) -> Result<(), Failure> {
        if !self.recording.is_stopped() {
            self.handle_signals()?;
            self.keep_time(now(), output)?;
            self.is_over |= self.recording.watch_limits(output)?;
        }
        if self.is_over {
            self.recording.stop()?;
            self.recording.say_closing(output);
        }
        Ok(())
    }
}

/// Waits until a descriptor is readable, or until a deadline. Returns which are.
fn wait_for<const N: usize>(descriptors: [BorrowedFd<'_>; N], deadline: Nanos) -> [bool; N] {
    let left = Duration::from(deadline.saturating_sub(now()));
    if left.is_zero() {
        return [false; N];
    }
    let mut fds = descriptors.map(|fd| PollFd::new(fd, PollFlags::POLLIN));
    // Rounded up, or the last fraction of a millisecond is spent spinning.
    let timeout =
        PollTimeout::try_from(left + Duration::from_micros(999)).unwrap_or(PollTimeout::MAX);
    // An interrupted wait is a signal, which is handled next.
    let _ = poll(&mut fds, timeout);
    fds.map(|fd| fd.any().unwrap_or(false))
}
