//! One pass of the session's loop: wait, handle signals, keep time, apply events, watch limits.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use experiment_format::units::Nanos;
use host::exit::Failure;
use host::machine::now;
use host::output::Output;
use host::signals::SignalRequest;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::load_phase::LoadStep;
use super::pause::PauseReasons;
use super::wall_clock::WallClock;
use super::{SHORTEST_ROUND_NS, Session, not_published};
use crate::record::dispatch::Dispatcher;
use crate::record::input::event::InputEvent;
use crate::record::kernel::periodic::PERIODIC;
use crate::record::user::UserSpace;

/// The longest time for which events are applied without publishing what they changed, nanoseconds.
/// Until a process is published the BPF programs copy its stacks.
const PUBLISH_INTERVAL_NS: Nanos = Nanos::from_millis(20);

/// Closing that takes longer than this is reported, nanoseconds.
const CLOSING_NS: Nanos = Nanos::from_millis(500);

impl Session<'_> {
    /// Waits until a deadline, a signal, or the inputs wake it, which they do not before
    /// `earliest`.
    pub(super) fn wait(&self, earliest: Nanos, deadline: Nanos) {
        let signals = self.control.fd();
        let [signal, _] = wait_for([signals, self.inputs.wake_fd()], deadline);
        if !signal {
            wait_for([signals], earliest.min(deadline));
        }
    }

    /// When the next round begins at the latest, after a round that began at `began`.
    pub(super) fn next_deadline(&self, began: Nanos, next_round: Nanos) -> Nanos {
        let user = self.dispatcher.user.as_ref();
        let tables = user
            .is_some_and(UserSpace::makes_tables)
            .then_some(began + SHORTEST_ROUND_NS);
        let probes = user.and_then(UserSpace::next_budget_look);
        let due = [
            self.schedule.deadline(),
            self.load.deadline(),
            tables,
            probes,
        ];
        due.into_iter().flatten().fold(next_round, Nanos::min)
    }

    pub(super) fn handle_signals(&mut self) -> Result<(), Failure> {
        for request in self.control.take_requests() {
            match request {
                SignalRequest::Stop => self.stopped = true,
                // Several at once ask for one rotation.
                SignalRequest::Rotate => {
                    self.schedule.rotate_at(now());
                }
                SignalRequest::Toggle => {
                    self.change_pause(|reasons| reasons.paused = !reasons.paused)?
                }
                SignalRequest::Sample => self.inputs.sample("signal")?,
                SignalRequest::Wake => {}
            }
        }
        Ok(())
    }

    /// Does what is due by the clock.
    pub(super) fn keep_time(&mut self, time_ns: Nanos, output: &mut Output) -> Result<(), Failure> {
        let plan = self.plan;
        if self.schedule.take_start(time_ns) {
            self.change_pause(|reasons| reasons.waiting = false)?;
        }
        self.stopped |= self.schedule.is_over(time_ns);
        if self.schedule.take_sample(time_ns) {
            self.inputs.sample(PERIODIC)?;
        }
        if let Some(seconds) = self.wall_clock.step(WallClock::look()) {
            self.clock_was_set(seconds, output);
        }
        if !self.stopped && self.schedule.take_rotation(time_ns) {
            self.inputs.rotate()?;
        }
        let (dispatcher, programs) = (&mut self.dispatcher, &self.inputs.programs);
        let before_exec = |pid| dispatcher.probe_load(programs, plan, pid);
        match self.load.step(time_ns, plan, output, before_exec)? {
            LoadStep::Started(pid) => self.dispatcher.load_started(pid),
            LoadStep::Over => self.stopped = true,
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
        self.dispatcher.router.warn(now(), text);
    }

    /// Applies the events that are complete, and publishes what they changed.
    pub(super) fn apply_events(&mut self, output: &mut Output) -> Result<(), Failure> {
        let mut published = now();
        let events = self.inputs.round()?;
        self.make_tables();
        self.dispatcher.router.measure();
        for (time, event) in events {
            match event {
                InputEvent::Rotation(rotation) => self.next_experiment(&rotation, output)?,
                event => self.dispatcher.apply(time, event),
            }
            if now() > published + PUBLISH_INTERVAL_NS {
                self.publish()?;
                self.dispatcher.router.measure();
                self.keep_up(output)?;
                published = now();
            }
        }
        self.publish()?;
        for pid in self.dispatcher.take_unmapped() {
            self.inputs.read_mappings(pid);
        }
        Ok(())
    }

    /// Does in the middle of a round what cannot wait for its end: a round may take seconds, and
    /// recording has to stop on time.
    pub(super) fn keep_up(&mut self, output: &mut Output) -> Result<(), Failure> {
        if self.stopped_ns.is_none() {
            self.handle_signals()?;
            self.keep_time(now(), output)?;
            self.watch_limits(output)?;
        }
        if self.stopped {
            self.stop_data()?;
            self.say_closing(output);
        }
        Ok(())
    }

    /// Stops recording, once. Returns the time of the last tick that counts.
    pub(super) fn stop_data(&mut self) -> Result<Nanos, Failure> {
        if let Some(stopped) = self.stopped_ns {
            return Ok(stopped);
        }
        let stopped = self.inputs.set_recording(false)?;
        self.stopped_ns = Some(stopped);
        Ok(stopped)
    }

    /// Says that the recording has ended and is being closed, where that takes a while.
    pub(super) fn say_closing(&mut self, output: &mut Output) {
        let Some(stopped) = self.stopped_ns else {
            return;
        };
        if !self.said_closing && now() > stopped + CLOSING_NS {
            self.said_closing = true;
            let seconds = stopped.saturating_sub(self.started_ns).as_secs_f64();
            output.say(&format!(
                "data have stopped after {seconds:.3} s; what was recorded until then is being written"
            ));
        }
    }

    /// Starts building the tables that the BPF programs missed, before the stack copies that need
    /// them are applied: these wait until no record of an earlier time can come.
    fn make_tables(&mut self) {
        let Dispatcher {
            user, processes, ..
        } = &mut self.dispatcher;
        let Some(user) = user else {
            return;
        };
        for found in self
            .inputs
            .take_missing_tables(|file| user.is_table_missing(file))
        {
            user.make_table(&*processes, &found);
        }
    }

    pub(super) fn publish(&mut self) -> Result<(), Failure> {
        let published = self.dispatcher.publish(&mut self.inputs.programs);
        published.map_err(not_published)
    }

    pub(super) fn watch_limits(&mut self, output: &mut Output) -> Result<(), Failure> {
        if self.dispatcher.router.failed.is_some() && !self.pause.failed {
            self.change_pause(|reasons| reasons.failed = true)?;
            self.stopped = true;
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
        Ok(())
    }

    pub(super) fn watch_self_test(
        &mut self,
        last: bool,
        output: &mut Output,
    ) -> Result<(), Failure> {
        let router = &mut self.dispatcher.router;
        self.problems
            .poll_self_test(last, &mut self.inputs, router, output)
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
