//! The load's part of a recording: the quiet time before it, its run, and the quiet time after it.

use std::ffi::{OsStr, OsString};
use std::io;
use std::time::Duration;

use experiment_format::ids::Pid;
use experiment_format::units::Nanos;
use host::exit::{ExitKind, Failure, load_code, spawn_code};
use host::load::{Load, Starter};
use host::machine::after;
use host::output::Output;

use crate::plan::Plan;

/// The phases of the load.
#[derive(Debug)]
pub(super) enum LoadPhase {
    /// There is no load.
    None,
    /// The load is started at a time, CLOCK_MONOTONIC nanoseconds.
    QuietUntil(Nanos, Starter),
    /// The load runs.
    Running(Load),
    /// The load exited.
    Exited {
        /// The load, with its status.
        load: Load,
        /// When the quiet time after it ends.
        quiet_until_ns: Nanos,
    },
    /// The load could not be started: the exit code for that.
    Refused(u8),
}

/// The consequence of a step of the load for the recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LoadStep {
    /// No consequence.
    None,
    /// The load was started, with this process id.
    Started(Pid),
    /// The recording is over.
    Over,
}

impl LoadPhase {
    /// Returns the time of the next change that the clock brings.
    pub(super) fn deadline(&self) -> Option<Nanos> {
        match self {
            LoadPhase::QuietUntil(time, _)
            | LoadPhase::Exited {
                quiet_until_ns: time,
                ..
            } => Some(*time),
            _ => None,
        }
    }

    /// Starts the load when it is time, and notices when it exited. `before_exec` is called when
    /// its process is there and waits before it executes the program.
    ///
    /// # Errors
    /// When the load can't be waited for.
    pub(super) fn step(
        &mut self,
        time_ns: Nanos,
        plan: &Plan,
        output: &mut Output,
        before_exec: impl FnOnce(Pid),
    ) -> Result<LoadStep, Failure> {
        let (next, step) = match std::mem::replace(self, LoadPhase::None) {
            LoadPhase::QuietUntil(start, starter) if time_ns >= start => {
                match starter.start(before_exec) {
                    Ok(load) => {
                        output.detail(&format!("load started (Process ID: {})", load.pid()));
                        let pid = load.pid();
                        (LoadPhase::Running(load), LoadStep::Started(pid))
                    }
                    Err(error) => {
                        output.say(&cannot_start(&plan.load[0], &error));
                        (LoadPhase::Refused(spawn_code(&error)), LoadStep::Over)
                    }
                }
            }
            LoadPhase::Running(mut load) => {
                if exited(&mut load)? {
                    let quiet_until_ns = after(time_ns, plan.timing.quiet);
                    let step = match plan.timing.quiet {
                        Duration::ZERO => LoadStep::Over,
                        _ => LoadStep::None,
                    };
                    (
                        LoadPhase::Exited {
                            load,
                            quiet_until_ns,
                        },
                        step,
                    )
                } else {
                    (LoadPhase::Running(load), LoadStep::None)
                }
            }
            LoadPhase::Exited {
                load,
                quiet_until_ns,
            } if time_ns >= quiet_until_ns => (
                LoadPhase::Exited {
                    load,
                    quiet_until_ns,
                },
                LoadStep::Over,
            ),
            other => (other, LoadStep::None),
        };
        *self = next;
        Ok(step)
    }

    /// Returns the exit code that the load has for the recording.
    pub(super) fn exit_code(&self) -> u8 {
        match self {
            LoadPhase::Exited { load, .. } => load.status.map_or(0, load_code),
            LoadPhase::Refused(code) => *code,
            _ => 0,
        }
    }
}

/// The thread that starts the load, if there is a load, with the privileges that kcollect was
/// started with.
pub(super) fn starter(
    load: &[OsString],
    descriptors: Option<(u64, u64)>,
    ignored_signals: &[i32],
) -> Result<Option<Starter>, Failure> {
    if load.is_empty() {
        return Ok(None);
    }
    let starter = Starter::wait(load, descriptors, ignored_signals);
    starter.map(Some).map_err(|error| {
        Failure::new(
            ExitKind::Unavailable,
            format!("no thread can be made to start the load: {error}"),
            "raise the limit of processes (ulimit -u, or pids.max of the control group)",
        )
    })
}

fn exited(load: &mut Load) -> Result<bool, Failure> {
    load.ended()
        .map_err(|error| Failure::of_system("cannot wait for the load", &error))
}

/// Returns the message for a load that can't be started.
pub(super) fn cannot_start(program: &OsStr, error: &io::Error) -> String {
    format!("cannot start the load {}: {error}", program.display())
}
