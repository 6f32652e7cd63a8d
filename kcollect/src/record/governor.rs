//! The budget (`--budget`): how much detail is recorded, by the CPU time that kcollect takes.
//!
//! Pure: time and use are arguments. A decision is made every five seconds. If it finds more use
//! than the budget, detail is reduced to the next [`BudgetLevel`]; after twelve in a row that find
//! less than half of the budget, the level before is restored. So a short burst costs at most one
//! level, and the level does not alternate.
//!
//! The use is the CPU time of kcollect's own process as a share of one CPU, or what its programs in
//! the kernel take as a share of all CPUs, whichever is greater: a budget of 1 % means that threads
//! are slowed down by 1 %, too. The programs measure themselves. The kernel's own statistics of
//! programs need CAP_SYS_ADMIN, which a service does not have, and take time in each run.

use std::fmt;
use std::time::Duration;

use experiment_format::units::Nanos;
use serde::Serialize;

/// The time between two decisions, nanoseconds.
const DECISION_NS: Nanos = Nanos::from_secs(5);
/// The share of the budget below which detail is restored.
const RESTORE_BELOW_SHARE: f64 = 0.5;
/// Decisions in a row that have to find less use than that.
const DECISIONS_TO_RESTORE: u32 = 12;

/// How far detail is reduced; each level includes those before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BudgetLevel {
    /// Full detail.
    #[default]
    None,
    /// Stacks are copied only to find out which unwind table is missing. Others end where it is.
    FewCopies,
    /// A process has an experiment of its own only from its tenth interval on; processes with fewer
    /// intervals are recorded in the founder.
    FewExperiments,
    /// Clocks fire at every second boundary: a tick stands for two, with one stack.
    HalfRate,
    /// Clocks fire at every fourth boundary.
    QuarterRate,
}

impl BudgetLevel {
    const ALL: [BudgetLevel; 5] = [
        BudgetLevel::None,
        BudgetLevel::FewCopies,
        BudgetLevel::FewExperiments,
        BudgetLevel::HalfRate,
        BudgetLevel::QuarterRate,
    ];

    /// Number of intervals that a process needs for an experiment of its own.
    #[must_use]
    pub fn min_intervals(self) -> usize {
        if self >= BudgetLevel::FewExperiments {
            10
        } else {
            0
        }
    }

    /// Number of tick boundaries per timer interrupt (1 = every boundary).
    #[must_use]
    pub fn boundaries_per_firing(self) -> u32 {
        match self {
            BudgetLevel::HalfRate => 2,
            BudgetLevel::QuarterRate => 4,
            _ => 1,
        }
    }

    fn next(self) -> Option<BudgetLevel> {
        BudgetLevel::ALL.get(self as usize + 1).copied()
    }

    fn previous(self) -> Option<BudgetLevel> {
        BudgetLevel::ALL
            .get((self as usize).checked_sub(1)?)
            .copied()
    }
}

/// What is reduced, as a part of a sentence.
impl fmt::Display for BudgetLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BudgetLevel::None => "detail is complete",
            BudgetLevel::FewCopies => "stacks of files that are new are not copied",
            BudgetLevel::FewExperiments => {
                "stacks of files that are new are not copied, and short processes have no experiment"
            }
            BudgetLevel::HalfRate => {
                "stacks of files that are new are not copied, short processes have no experiment, and every \
                 second tick has a stack of its own"
            }
            BudgetLevel::QuarterRate => {
                "stacks of files that are new are not copied, short processes have no experiment, and every \
                 fourth tick has a stack of its own"
            }
        })
    }
}

/// A change of the level.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BudgetChange {
    /// When, nanoseconds.
    pub at_ns: Nanos,
    /// The level from then on.
    pub level: BudgetLevel,
    /// What was used in the five seconds before, which decided it. None: the level was reached
    /// before the experiment began.
    pub shares: Option<UsedShares>,
}

/// CPU time that was used until an instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UsedTime {
    /// By kcollect's own process.
    pub own: Duration,
    /// By its programs in the kernel, the mean of all CPUs.
    pub programs: Duration,
}

/// CPU time that was used, as shares of the time that passed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UsedShares {
    /// By kcollect's own process, of one CPU.
    pub own: f64,
    /// By its programs in the kernel, of all CPUs.
    pub programs: f64,
}

impl UsedTime {
    /// Returns what was used since an earlier instant, as shares of the time that passed.
    fn since(self, before: UsedTime, passed_ns: Nanos) -> UsedShares {
        let share = |now: Duration, before: Duration| {
            now.saturating_sub(before).as_nanos() as f64 / passed_ns.0 as f64
        };
        UsedShares {
            own: share(self.own, before.own),
            programs: share(self.programs, before.programs),
        }
    }
}

/// The level in force, and what decides about the next one.
#[derive(Debug)]
pub struct Governor {
    budget: f64,
    level: BudgetLevel,
    /// When the last decision was made, and what was used by then.
    last: Option<(Nanos, UsedTime)>,
    /// Decisions in a row that found less use than detail is restored at.
    low_use: u32,
    changes: Vec<BudgetChange>,
}

impl Governor {
    /// Returns a governor for a budget: a share of one CPU.
    #[must_use]
    pub fn new(budget: f64) -> Governor {
        Governor {
            budget,
            level: BudgetLevel::None,
            last: None,
            low_use: 0,
            changes: Vec::new(),
        }
    }

    /// Returns the budget.
    #[must_use]
    pub fn budget(&self) -> f64 {
        self.budget
    }

    /// Returns the changes since the experiment began.
    #[must_use]
    pub fn changes(&self) -> &[BudgetChange] {
        &self.changes
    }

    /// Another experiment begins at a time.
    pub fn on_rotation(&mut self, at_ns: Nanos) {
        self.changes.clear();
        if self.level != BudgetLevel::None {
            self.changes.push(BudgetChange {
                at_ns,
                level: self.level,
                shares: None,
            });
        }
    }

    /// Returns the level in force.
    #[must_use]
    pub fn level(&self) -> BudgetLevel {
        self.level
    }

    /// Returns whether it is time to decide.
    #[must_use]
    pub fn is_due(&self, now_ns: Nanos) -> bool {
        let last = self.last;
        last.is_none_or(|(then_ns, _)| now_ns.saturating_sub(then_ns) >= DECISION_NS)
    }

    /// Decides, if it is time; `used` is the CPU time used so far. The first call starts the
    /// measurement: what the start used does not count. Returns a change.
    pub fn decide(&mut self, now_ns: Nanos, used: UsedTime) -> Option<BudgetChange> {
        let Some((then_ns, before)) = self.last else {
            self.last = Some((now_ns, used));
            return None;
        };
        if !self.is_due(now_ns) {
            return None;
        }
        let passed_ns = now_ns.saturating_sub(then_ns);
        self.last = Some((now_ns, used));
        let shares = used.since(before, passed_ns);
        let share = shares.own.max(shares.programs);
        self.low_use = if share < RESTORE_BELOW_SHARE * self.budget {
            self.low_use + 1
        } else {
            0
        };
        let level = if share > self.budget {
            self.level.next()?
        } else if self.low_use >= DECISIONS_TO_RESTORE {
            self.low_use = 0;
            self.level.previous()?
        } else {
            return None;
        };
        self.level = level;
        let change = BudgetChange {
            at_ns: now_ns,
            level,
            shares: Some(shares),
        };
        self.changes.push(change);
        Some(change)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds a governor of 1 % with shares of a CPU in thousandths, one for each decision: a digit,
    /// or `x` for eleven. Returns the level after each.
    fn drawing(shares: &str) -> String {
        drawing_of(shares, |own| UsedTime {
            own,
            ..UsedTime::default()
        })
    }

    fn drawing_of(shares: &str, used_time: impl Fn(Duration) -> UsedTime) -> String {
        let mut governor = Governor::new(0.01);
        let mut used = Duration::from_millis(700);
        assert_eq!(governor.decide(Nanos(5), used_time(used)), None);
        let mut drawn = String::new();
        for (turn, share) in (1..).zip(shares.chars()) {
            let thousandths = u64::from(share.to_digit(10).unwrap_or(11));
            used += Duration::from(DECISION_NS / 1000 * thousandths);
            // A check in between decides nothing.
            let now = Nanos(5) + DECISION_NS * turn;
            assert_eq!(governor.decide(now - Nanos(1), used_time(used)), None);
            let before = governor.level();
            let change = governor.decide(now, used_time(used));
            assert_eq!(change.is_some(), governor.level() != before);
            drawn.push(char::from(b'0' + governor.level() as u8));
        }
        drawn
    }

    #[test]
    fn detail_is_reduced_while_too_much_is_used() {
        assert_eq!(drawing("99xxxxxxx"), "001234444");
        let programs = |programs| UsedTime {
            programs,
            ..UsedTime::default()
        };
        assert_eq!(drawing_of("99xxxxxxx", programs), "001234444");
    }

    #[test]
    fn detail_is_restored_after_a_minute_below_half_of_the_budget() {
        assert_eq!(
            drawing("xx444444444444444444444444"),
            "12222222222221111111111110",
            "twelve decisions for each level"
        );
        assert_eq!(drawing("x44444444444x444"), "1111111111112222");
        assert_eq!(drawing("x444444444446444"), "1111111111111111");
    }

    #[test]
    fn the_changes_are_those_of_the_experiment() {
        let mut governor = Governor::new(0.01);
        governor.on_rotation(Nanos(3));
        assert_eq!(governor.changes(), []);
        governor.decide(Nanos(5), UsedTime::default());
        let now = Nanos(5) + DECISION_NS;
        let used = UsedTime {
            own: Duration::from_millis(100),
            programs: Duration::from_millis(15),
        };
        let change = governor.decide(now, used).unwrap();
        let shares = UsedShares {
            own: 0.02,
            programs: 0.003,
        };
        assert_eq!((change.at_ns, change.shares), (now, Some(shares)));
        assert_eq!(governor.changes(), [change]);
        governor.on_rotation(now + Nanos(7));
        let began = BudgetChange {
            at_ns: now + Nanos(7),
            shares: None,
            ..change
        };
        assert_eq!(governor.changes(), [began]);
    }

    #[test]
    fn each_level_has_its_measures() {
        let all = BudgetLevel::ALL.map(|level| {
            (
                level >= BudgetLevel::FewCopies,
                level.min_intervals(),
                level.boundaries_per_firing(),
            )
        });
        assert_eq!(
            all,
            [
                (false, 0, 1),
                (true, 0, 1),
                (true, 10, 1),
                (true, 10, 2),
                (true, 10, 4)
            ]
        );
        let words: std::collections::BTreeSet<_> =
            BudgetLevel::ALL.map(|level| level.to_string()).into();
        assert_eq!(words.len(), BudgetLevel::ALL.len());
    }
}
