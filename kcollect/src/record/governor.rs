//! The budget (`--budget`): what is given up when kcollect takes more of a CPU than it may, and
//! when that is taken up again.
//!
//! Pure: time and use are arguments. A decision is made every five seconds. One that finds too much
//! use gives up one thing more, in the order of [`Economy`]; twelve in a row that find less than
//! half of the budget take the last one up again. So a short burst costs at most one thing, and
//! nothing flickers.
//!
//! The use is the CPU time of kcollect's own process. What its programs take inside of other
//! threads is not in it: the kernel counts that for a process with CAP_SYS_ADMIN alone, which a
//! recording has given up by then.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

/// The time between two decisions, nanoseconds.
const DECISION_NS: u64 = 5_000_000_000;
/// Below this share of the budget there is room for what was given up.
const ROOM: f64 = 0.5;
/// Decisions in a row that have to find room.
const DECISIONS_WITH_ROOM: u32 = 12;

/// What is given up; each includes those before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Economy {
    /// Nothing.
    #[default]
    None,
    /// Stacks are copied only to find out which unwind table is missing. Others end where it is.
    FewCopies,
    /// A process has an experiment of its own only from its tenth interval on; those of shorter
    /// ones are in the founder.
    FewExperiments,
    /// Clocks fire at every second boundary: a tick stands for two, with one stack.
    HalfRate,
    /// Clocks fire at every fourth boundary.
    QuarterRate,
}

impl Economy {
    const ALL: [Economy; 5] = [
        Economy::None,
        Economy::FewCopies,
        Economy::FewExperiments,
        Economy::HalfRate,
        Economy::QuarterRate,
    ];

    /// Returns the intervals that a process needs for an experiment of its own.
    #[must_use]
    pub fn least_intervals(self) -> usize {
        match self >= Economy::FewExperiments {
            true => 10,
            false => 0,
        }
    }

    /// Returns of how many boundaries of its grid a clock fires at one.
    #[must_use]
    pub fn boundaries_per_firing(self) -> u32 {
        match self {
            Economy::HalfRate => 2,
            Economy::QuarterRate => 4,
            _ => 1,
        }
    }

    fn next(self) -> Option<Economy> {
        Economy::ALL.get(self as usize + 1).copied()
    }

    fn previous(self) -> Option<Economy> {
        Economy::ALL.get((self as usize).checked_sub(1)?).copied()
    }
}

/// What is given up, as a part of a sentence.
impl fmt::Display for Economy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Economy::None => "nothing is given up",
            Economy::FewCopies => "stacks of files that are new are not copied",
            Economy::FewExperiments => {
                "stacks of files that are new are not copied, and short processes have no experiment"
            }
            Economy::HalfRate => {
                "stacks of files that are new are not copied, short processes have no experiment, and every \
                 second tick has a stack of its own"
            }
            Economy::QuarterRate => {
                "stacks of files that are new are not copied, short processes have no experiment, and every \
                 fourth tick has a stack of its own"
            }
        })
    }
}

/// A change of what is given up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Change {
    /// When, nanoseconds.
    pub at_ns: u64,
    /// What is given up from then on.
    pub economy: Economy,
    /// The share of a CPU that was taken in the five seconds before, which decided it. None: it was
    /// given up before the experiment began.
    pub share: Option<f64>,
}

/// Watches the use.
#[derive(Debug)]
pub struct Governor {
    budget: f64,
    economy: Economy,
    /// When the last decision was made, and what was used by then.
    last: Option<(u64, Duration)>,
    with_room: u32,
    changes: Vec<Change>,
}

impl Governor {
    /// Returns a governor for a budget: a share of one CPU.
    #[must_use]
    pub fn new(budget: f64) -> Governor {
        Governor {
            budget,
            economy: Economy::None,
            last: None,
            with_room: 0,
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
    pub fn changes(&self) -> &[Change] {
        &self.changes
    }

    /// Another experiment begins at a time.
    pub fn begin_again(&mut self, at_ns: u64) {
        self.changes.clear();
        if self.economy != Economy::None {
            self.changes.push(Change {
                at_ns,
                economy: self.economy,
                share: None,
            });
        }
    }

    /// Returns what is given up now.
    #[must_use]
    pub fn economy(&self) -> Economy {
        self.economy
    }

    /// Decides, if it is time; `used` is the CPU time so far. The first call begins the watch: what
    /// the start took does not count. Returns a change.
    pub fn decide(&mut self, now_ns: u64, used: Duration) -> Option<Change> {
        let Some((then_ns, before)) = self.last else {
            self.last = Some((now_ns, used));
            return None;
        };
        let passed_ns = now_ns.saturating_sub(then_ns);
        if passed_ns < DECISION_NS {
            return None;
        }
        self.last = Some((now_ns, used));
        let share = used.saturating_sub(before).as_nanos() as f64 / passed_ns as f64;
        self.with_room = match share < ROOM * self.budget {
            true => self.with_room + 1,
            false => 0,
        };
        let economy = if share > self.budget {
            self.economy.next()?
        } else if self.with_room >= DECISIONS_WITH_ROOM {
            self.with_room = 0;
            self.economy.previous()?
        } else {
            return None;
        };
        self.economy = economy;
        let change = Change {
            at_ns: now_ns,
            economy,
            share: Some(share),
        };
        self.changes.push(change);
        Some(change)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds a governor of 1 % with shares of a CPU in thousandths, one for each decision: a digit,
    /// or `x` for eleven. Returns what is given up after each.
    fn drawing(shares: &str) -> String {
        let mut governor = Governor::new(0.01);
        let mut used = Duration::from_millis(700);
        assert_eq!(governor.decide(5, used), None);
        let mut drawn = String::new();
        for (turn, share) in (1..).zip(shares.chars()) {
            let thousandths = u64::from(share.to_digit(10).unwrap_or(11));
            used += Duration::from_nanos(DECISION_NS / 1000 * thousandths);
            // A look in between decides nothing.
            let now = 5 + turn * DECISION_NS;
            assert_eq!(governor.decide(now - 1, used), None);
            let before = governor.economy();
            let change = governor.decide(now, used);
            assert_eq!(change.is_some(), governor.economy() != before);
            drawn.push(char::from(b'0' + governor.economy() as u8));
        }
        drawn
    }

    #[test]
    fn one_thing_more_is_given_up_while_it_is_too_much() {
        assert_eq!(drawing("99xxxxxxx"), "001234444");
    }

    #[test]
    fn what_was_given_up_comes_back_when_there_is_room_for_long() {
        assert_eq!(
            drawing("xx444444444444444444444444"),
            "12222222222221111111111110",
            "twelve with room for each step"
        );
        assert_eq!(drawing("x44444444444x444"), "1111111111112222");
        assert_eq!(drawing("x444444444446444"), "1111111111111111");
    }

    #[test]
    fn the_changes_are_those_of_the_experiment() {
        let mut governor = Governor::new(0.01);
        governor.begin_again(3);
        assert_eq!(governor.changes(), []);
        governor.decide(5, Duration::ZERO);
        let now = 5 + DECISION_NS;
        let change = governor.decide(now, Duration::from_millis(100)).unwrap();
        assert_eq!((change.at_ns, change.share), (now, Some(0.02)));
        assert_eq!(governor.changes(), [change]);
        governor.begin_again(now + 7);
        let began = Change {
            at_ns: now + 7,
            share: None,
            ..change
        };
        assert_eq!(governor.changes(), [began]);
    }

    #[test]
    fn each_step_has_its_measures() {
        let all = Economy::ALL.map(|economy| {
            (
                economy >= Economy::FewCopies,
                economy.least_intervals(),
                economy.boundaries_per_firing(),
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
        let words: std::collections::BTreeSet<_> = Economy::ALL.map(|e| e.to_string()).into();
        assert_eq!(words.len(), Economy::ALL.len());
    }
}
