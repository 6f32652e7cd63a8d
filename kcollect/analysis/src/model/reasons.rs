//! Why a thread waited: the cause of a blocked state, or the wait for a CPU.

use experiment_format::cause::{Cause, WaitKind};
use experiment_format::microstate::Microstate;

use super::{Model, TickRow};

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

impl Model {
    /// Returns why the thread of a row was blocked. None: it was not, or the row is of a traced
    /// event, which has no cause.
    #[must_use]
    pub fn cause(&self, row: &TickRow) -> Option<Cause> {
        match row.wait_reason() {
            Some(WaitReason::Blocked(cause)) if self.shows.is_none() => Some(cause),
            _ => None,
        }
    }

    /// Returns whether it was recorded what wakes threads (`-W`), in all experiments. None: it is
    /// not known. While a recording lasts, there is no summary.
    #[must_use]
    pub fn wakers_watched(&self) -> Option<bool> {
        let summaries = self.founders().filter_map(|(_, info)| info.summary());
        let watched = summaries.filter_map(|summary| summary["wakers_watched"].as_bool());
        watched.reduce(|all, one| all && one)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::TracedEvents;
    use crate::model::tests::row;

    #[test]
    fn blocked_threads_have_causes_and_wait_for_a_cpu_without_one() {
        use Microstate::{Sleep, Stopped, User, UserLock, WaitCpu};
        let reason = |state: Microstate, cause| {
            let row = TickRow {
                state: state as u8,
                cause,
                ..row(0, 0)
            };
            (row.wait_reason(), Model::default().cause(&row))
        };
        let blocked = |cause| (Some(WaitReason::Blocked(cause)), Some(cause));
        assert_eq!(reason(Sleep, Cause::Timer as u8), blocked(Cause::Timer));
        assert_eq!(reason(UserLock, Cause::Lock as u8), blocked(Cause::Lock));
        assert_eq!(reason(Sleep, 77), blocked(Cause::Undecided));
        assert_eq!(reason(WaitCpu, 0), (Some(WaitReason::Cpu), None));
        assert_eq!(reason(Stopped, 0), (None, None));
        assert_eq!(reason(User, Cause::Lock as u8), (None, None));
        let traced = Model {
            shows: Some(TracedEvents::Locks),
            ..Model::default()
        };
        let lock = TickRow {
            state: UserLock as u8,
            ..row(0, 0)
        };
        assert_eq!(traced.cause(&lock), None);
    }

    #[test]
    fn reasons_have_positions_and_keywords_of_their_own() {
        for (index, reason) in WaitReason::all().enumerate() {
            assert_eq!(reason.index(), index);
            assert_eq!(WaitReason::of_keyword(reason.keyword()), Some(reason));
        }
        assert_eq!(WaitReason::all().count(), WaitReason::COUNT);
    }
}
