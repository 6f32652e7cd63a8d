//! Why recording is paused.

use crate::plan::{PauseSignal, Plan};

/// The reasons for a pause. Without a reason, recording is on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PauseReasons {
    /// `-t a-b`: the time has not come.
    pub waiting: bool,
    /// `-y`: paused by a signal.
    pub paused: bool,
    /// `-L`: the limit is reached.
    pub limited: bool,
    /// Writing failed.
    pub failed: bool,
}

impl PauseReasons {
    /// Returns the reasons for which a recording begins paused.
    pub(super) fn at_start(plan: &Plan) -> PauseReasons {
        let begins_paused = |signal: PauseSignal| !signal.start_recording;
        PauseReasons {
            waiting: !plan.timing.start.is_zero(),
            paused: plan.pause_signal.is_some_and(begins_paused),
            ..PauseReasons::default()
        }
    }

    /// Whether recording is on.
    pub(super) fn none(self) -> bool {
        self == PauseReasons::default()
    }

    /// The state as the progress line shows it.
    pub(super) fn state(self) -> &'static str {
        match self {
            reasons if reasons.none() => "recording",
            PauseReasons { limited: true, .. } => "limit reached",
            _ => "paused",
        }
    }
}
