//! Why a thread waited: the cause of a blocked state, or the wait for a CPU.

use experiment_format::cause::{Cause, WaitKind};
use experiment_format::microstate::Microstate;

use super::TickRow;

/// Why a thread waited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WaitReason {
    /// It was blocked.
    Blocked(Cause),
    /// It was runnable, and no CPU was free.
    Cpu,
}

impl WaitReason {
    /// The number of reasons.
    pub const COUNT: usize = Cause::COUNT + 1;

    /// Returns all reasons, in the order of their positions.
    pub fn all() -> impl Iterator<Item = WaitReason> {
        let blocked = Cause::ALL.into_iter().map(WaitReason::Blocked);
        blocked.chain([WaitReason::Cpu])
    }

    /// Returns the position among all reasons.
    #[must_use]
    pub const fn index(self) -> usize {
        match self {
            WaitReason::Blocked(cause) => cause as usize,
            WaitReason::Cpu => Cause::COUNT,
        }
    }

    /// Returns whether the thread suffered or was idle. A wait for a CPU is always suffered.
    #[must_use]
    pub const fn kind(self) -> WaitKind {
        match self {
            WaitReason::Blocked(cause) => cause.kind(),
            WaitReason::Cpu => WaitKind::Suffered,
        }
    }

    /// Returns the keyword of options, CSV and JSON.
    #[must_use]
    pub const fn keyword(self) -> &'static str {
        match self {
            WaitReason::Blocked(cause) => cause.keyword(),
            WaitReason::Cpu => "cpu",
        }
    }

    /// Returns what the thread waited for, in a few words.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            WaitReason::Blocked(cause) => cause.title(),
            WaitReason::Cpu => "a CPU",
        }
    }

    /// Returns the reason of a keyword.
    #[must_use]
    pub fn of_keyword(keyword: &str) -> Option<WaitReason> {
        Self::all().find(|reason| reason.keyword() == keyword)
    }
}

/// The states in which a thread waits: blocked for a cause, or for a CPU.
pub const WAIT_STATES: [Microstate; 6] = [
    Microstate::TextFault,
    Microstate::DataFault,
    Microstate::KernelFault,
    Microstate::UserLock,
    Microstate::Sleep,
    Microstate::WaitCpu,
];

impl TickRow {
    /// Returns why the thread waited. None: it was on a CPU or stopped, or it is a CPU's row.
    #[must_use]
    pub fn wait_reason(&self) -> Option<WaitReason> {
        if self.state == Microstate::WaitCpu as u8 {
            return Some(WaitReason::Cpu);
        }
        let is_blocked = WAIT_STATES.iter().any(|state| *state as u8 == self.state);
        // Causes of a later version are not known here.
        is_blocked.then(|| WaitReason::Blocked(Cause::try_from(self.cause).unwrap_or_default()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_have_positions_and_keywords_of_their_own() {
        for (index, reason) in WaitReason::all().enumerate() {
            assert_eq!(reason.index(), index);
            assert_eq!(WaitReason::of_keyword(reason.keyword()), Some(reason));
        }
        assert_eq!(WaitReason::all().count(), WaitReason::COUNT);
    }
}
