//! Why data are not taken.

/// The reasons for which data are paused. They are taken when there is none.
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
    /// Returns whether data are taken.
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
