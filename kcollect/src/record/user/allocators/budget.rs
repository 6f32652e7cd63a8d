//! How much the probes of allocators may take of the processes that are traced (`--trace-budget`).
//!
//! Pure: what was used is an argument. A process has a reserve. The budget's share of its CPU time
//! is added to it, and the time that its probes took is subtracted. When the reserve is used up,
//! less is traced:
//!
//! 1. frees are no longer traced, if the rest keeps within the budget;
//! 2. otherwise no blocks are traced, only what the process gets from the kernel;
//! 3. if that is too much, nothing is traced, for good.
//!
//! After a while everything is tried again, less and less often: programs that allocate much at
//! their start are calm later. Blocks allocated before that point are dropped: their frees were not
//! observed.

use std::fmt;

use bpf_abi::ProbeUse;
use bpf_abi::layout::{AllocatorFunction, PROBE_CLASSES, PROBE_FREES};
use experiment_format::units::Nanos;

/// What a process may use at once, nanoseconds: a program allocates more when it starts than later.
const MAX_RESERVE_NS: f64 = 20e6;

/// The usual time between two checks of what the probes of a process took, and so the longest time
/// until it is noticed that an idle program begins to allocate much.
pub(super) const CHECK_INTERVAL_NS: Nanos = Nanos::from_secs(1);
/// The shortest time between two checks.
const SHORTEST_LOOK_NS: Nanos = Nanos::from_millis(100);

/// The cost of a function's probe, nanoseconds, by class of its calls ([`ProbeUse::calls`]).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct ProbeCosts(pub(super) [f64; PROBE_CLASSES]);

impl ProbeCosts {
    /// Returns what the calls of classes took, nanoseconds.
    fn of(&self, used: &ProbeUse, classes: impl Fn(usize) -> bool) -> f64 {
        let calls = self.0.iter().zip(used.calls).enumerate();
        calls
            .filter(|(class, _)| classes(*class))
            .map(|(_, (each, calls))| each * calls as f64)
            .sum()
    }

    /// Returns what allocations took, nanoseconds. The return of a sampled one is a probe too.
    fn of_allocations(&self, used: &ProbeUse) -> f64 {
        let sampled = used.sampled as f64 * self.0[0] + used.sampled_ns as f64;
        self.of(used, |class| class & PROBE_FREES == 0) + sampled
    }

    /// Returns what all probes took, nanoseconds.
    fn of_all(&self, used: &ProbeUse) -> f64 {
        self.of_allocations(used) + self.of(used, |class| class & PROBE_FREES != 0)
    }
}

/// How much is traced of a process's allocator; each level is less than the one before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum TraceLevel {
    /// What is allocated and freed.
    #[default]
    Blocks,
    /// What is allocated.
    Allocations,
    /// What the process gets from the kernel.
    Growth,
    /// Nothing.
    Nothing,
}

impl TraceLevel {
    /// Returns whether a function is probed.
    pub(super) fn has(self, function: AllocatorFunction) -> bool {
        match self {
            TraceLevel::Blocks => !function.grows(),
            TraceLevel::Allocations => {
                use AllocatorFunction::{Free, SampledFree};
                !function.grows() && !matches!(function, Free | SampledFree)
            }
            TraceLevel::Growth => function.grows(),
            TraceLevel::Nothing => false,
        }
    }
}

/// What is traced from then on, as a part of a sentence.
impl fmt::Display for TraceLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TraceLevel::Blocks => "its blocks are recorded",
            TraceLevel::Allocations => {
                "its allocations are recorded, and no more what it frees: no block counts as live"
            }
            TraceLevel::Growth => "only the growth of its memory is recorded",
            TraceLevel::Nothing => "nothing of its memory is recorded",
        })
    }
}

/// How long tracing of a process is reduced: the first time, and at most.
const FIRST_WAIT_NS: Nanos = Nanos::from_secs(10);
const LONGEST_WAIT_NS: Nanos = Nanos::from_secs(600);

/// A process with reduced tracing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reduced {
    /// What is traced.
    pub(super) level: TraceLevel,
    /// The least that was.
    pub(super) least: TraceLevel,
    /// When everything is tried again.
    again_ns: Nanos,
    wait_ns: Nanos,
}

impl Reduced {
    /// A process whose tracing is reduced from now on.
    pub(super) fn to(level: TraceLevel, before: Option<&Reduced>, now_ns: Nanos) -> Reduced {
        let wait_ns = match before {
            None => FIRST_WAIT_NS,
            // The last try failed.
            Some(before) if before.level == TraceLevel::Blocks => {
                Nanos(2 * before.wait_ns.0).min(LONGEST_WAIT_NS)
            }
            Some(before) => before.wait_ns,
        };
        Reduced {
            level,
            least: before.map_or(level, |before| before.least.max(level)),
            again_ns: now_ns + wait_ns,
            wait_ns,
        }
    }

    /// Returns the process when everything is tried again.
    pub(super) fn tried_again(self) -> Reduced {
        Reduced {
            level: TraceLevel::Blocks,
            ..self
        }
    }

    /// Whether it is time to try everything again.
    pub(super) fn is_due(&self, now_ns: Nanos) -> bool {
        matches!(self.level, TraceLevel::Allocations | TraceLevel::Growth)
            && self.again_ns <= now_ns
    }
}

/// A budget that is used up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct UsedUp {
    /// What is traced from now on.
    pub(super) level: TraceLevel,
    /// What the probes took since the last check, as a share of the process's own CPU time.
    pub(super) share: f64,
}

/// The budget of one process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ProcessBudget {
    reserve_ns: f64,
    used: ProbeUse,
    cpu_ns: Nanos,
    checked_ns: Nanos,
    /// How long the reserve lasts from then on, at the rate until then; at most
    /// [`CHECK_INTERVAL_NS`].
    lasts_ns: Nanos,
}

impl ProcessBudget {
    /// Returns the budget of a process whose probes have not been used, and its CPU time now.
    pub(super) fn new(cpu_ns: Nanos, now_ns: Nanos) -> ProcessBudget {
        ProcessBudget {
            reserve_ns: MAX_RESERVE_NS,
            used: ProbeUse::default(),
            cpu_ns,
            checked_ns: now_ns,
            // That is not known yet.
            lasts_ns: Nanos::ZERO,
        }
    }

    /// When the next check is due: before the reserve is used up, but not at once, and no later
    /// than usual.
    pub(super) fn next_check(&self) -> Nanos {
        self.checked_ns + self.lasts_ns.max(SHORTEST_LOOK_NS)
    }

    /// Checks how much the probes of a process were used by now, and how much CPU time the process
    /// has used. The probes may take `share` of the process's own part of that time. Returns
    /// whether the budget is used up, at a level.
    pub(super) fn look(
        &mut self,
        level: TraceLevel,
        (share, costs): (f64, &ProbeCosts),
        (used, cpu_ns, now_ns): (ProbeUse, Nanos, Nanos),
    ) -> Option<UsedUp> {
        let before_ns = self.reserve_ns;
        let elapsed = now_ns.saturating_sub(std::mem::replace(&mut self.checked_ns, now_ns));
        let since = used.since(self.used);
        let passed = cpu_ns.saturating_sub(self.cpu_ns).0 as f64;
        (self.used, self.cpu_ns) = (used, cpu_ns);
        let taken = costs.of_all(&since);
        let own = (passed - taken).max(0.0);
        self.reserve_ns = (self.reserve_ns + share * own - taken).min(MAX_RESERVE_NS);
        let lost_ns = before_ns - self.reserve_ns;
        self.lasts_ns = if lost_ns > 0.0 {
            CHECK_INTERVAL_NS.min(Nanos((self.reserve_ns / lost_ns * elapsed.0 as f64) as u64))
        } else {
            CHECK_INTERVAL_NS
        };
        if self.reserve_ns >= 0.0 {
            return None;
        }
        let within = costs.of_allocations(&since) <= share * own;
        let next = match level {
            TraceLevel::Blocks if within => TraceLevel::Allocations,
            TraceLevel::Blocks | TraceLevel::Allocations => TraceLevel::Growth,
            TraceLevel::Growth | TraceLevel::Nothing => TraceLevel::Nothing,
        };
        Some(UsedUp {
            level: next,
            share: taken / own.max(1.0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An allocation takes 600 ns, a free 400.
    const COSTS: ProbeCosts = ProbeCosts([600.0, 400.0, 20_000.0, 20_000.0]);

    /// Checks a process once in 100 ms of its CPU time, of which its probes may take 2 %. A digit
    /// is how many thousand blocks it allocates and frees in that time, `a` how many it only
    /// allocates. Returns what is traced after each check: Blocks, Allocations, Growth.
    fn drawing(thousands: &str) -> String {
        let mut budget = ProcessBudget::new(Nanos::from_millis(7), Nanos::ZERO);
        let (mut used, mut cpu_ns) = (ProbeUse::default(), Nanos::from_millis(7));
        let mut level = TraceLevel::Blocks;
        let mut drawn = String::new();
        let mut digits = thousands.chars().peekable();
        while let Some(digit) = digits.next() {
            let blocks = u64::from(digit.to_digit(10).unwrap()) * 1000;
            let frees = digits.next_if_eq(&'a').is_none();
            if level < TraceLevel::Growth {
                used.calls[0] += blocks;
            }
            if level == TraceLevel::Blocks && frees {
                used.calls[PROBE_FREES] += blocks;
            }
            cpu_ns += Nanos::from_millis(100);
            if let Some(over) = budget.look(level, (0.02, &COSTS), (used, cpu_ns, cpu_ns)) {
                assert!(over.level > level, "{over:?}");
                level = over.level;
                budget = ProcessBudget::new(cpu_ns, cpu_ns);
                used = ProbeUse::default();
            }
            drawn.push(['B', 'A', 'G'][level as usize]);
        }
        drawn
    }

    /// Returns after how many seconds everything is tried again, if a process is reduced to levels
    /// one after the other: Allocations, Growth; B is a try.
    fn waits(levels: &str) -> Vec<u64> {
        let now_ns = Nanos::from_secs(1000);
        let mut process: Option<Reduced> = None;
        let mut waits = Vec::new();
        for level in levels.chars() {
            let level = match level {
                'A' => TraceLevel::Allocations,
                'G' => TraceLevel::Growth,
                _ => {
                    process = process.map(Reduced::tried_again);
                    continue;
                }
            };
            let reduced = Reduced::to(level, process.as_ref(), now_ns);
            let wait_ns = reduced.again_ns.saturating_sub(now_ns);
            assert!(!reduced.is_due(reduced.again_ns.saturating_sub(Nanos(1))));
            assert!(reduced.is_due(reduced.again_ns));
            waits.push(wait_ns.0 / Nanos::from_secs(1).0);
            process = Some(reduced);
        }
        waits
    }

    #[test]
    fn tries_are_ever_more_seldom() {
        assert_eq!(waits("AGBG"), [10, 10, 20]);
        let long = waits(&"GB".repeat(9));
        assert_eq!(long, [10, 20, 40, 80, 160, 320, 600, 600, 600]);
    }

    #[test]
    fn smallest_level_is_kept_and_nothing_is_final() {
        let growth = Reduced::to(TraceLevel::Growth, None, Nanos::ZERO);
        let again = growth.tried_again();
        assert!(!again.is_due(Nanos::MAX));
        let later = Reduced::to(TraceLevel::Allocations, Some(&again), Nanos::ZERO);
        assert_eq!(later.least, TraceLevel::Growth);
        let nothing = Reduced::to(TraceLevel::Nothing, Some(&later), Nanos::ZERO);
        assert!(!nothing.is_due(Nanos::MAX) && nothing.least == TraceLevel::Nothing);
    }

    #[test]
    fn a_reserve_is_used_up() {
        // 2 ms of 100 are allowed: 1,960 blocks of 1 µs.
        assert_eq!(drawing("1111111111"), "BBBBBBBBBB");
        // 3 ms of 97 are 1.06 ms more than allowed. Allocations alone are 1.8 ms, which is allowed.
        assert_eq!(
            drawing(&"3".repeat(22)),
            format!("{}AAAA", "B".repeat(18)),
            "the reserve of 20 ms"
        );
        // Allocations alone are too much, too.
        assert_eq!(drawing("9999999"), "BBGGGGG");
        assert_eq!(drawing("9a9a9a9a9a9a9a9a"), "BBBBBGGG");
    }

    #[test]
    fn a_start_may_take_more() {
        assert_eq!(drawing("900000000000"), "BBBBBBBBBBBB");
        // And later again, once the reserve is there.
        let again = format!("9{}9{}", "0".repeat(8), "0".repeat(8));
        assert_eq!(drawing(&again), "B".repeat(18));
    }

    /// When the next check is due, in milliseconds, after checks at these times. With each, how
    /// many thousand blocks a process on a CPU has allocated since the previous check.
    fn looks(looks: &[(u64, u64)]) -> Vec<u64> {
        let mut budget = ProcessBudget::new(Nanos::ZERO, Nanos::ZERO);
        let mut used = ProbeUse::default();
        let next = |(at_ms, thousands): &(u64, u64)| {
            used.calls[0] += 1000 * thousands;
            let now_ns = Nanos::from_millis(*at_ms);
            budget.look(TraceLevel::Blocks, (0.02, &COSTS), (used, now_ns, now_ns));
            budget.next_check().0 / 1_000_000
        };
        looks.iter().map(next).collect()
    }

    #[test]
    fn a_look_comes_before_the_reserve_is_used_up() {
        // Nothing is allocated, or less than 2 %.
        assert_eq!(looks(&[(100, 0), (1100, 20)]), [1100, 2100]);
        // 12 ms of 100, of which 1.76 were allowed: 9.76 are left.
        assert_eq!(looks(&[(100, 20)]), [200]);
        // 6 ms of 100, of which 1.88 were allowed: 15.88 last for 385 more.
        assert_eq!(looks(&[(100, 10)]), [485]);
        // More than there is.
        assert_eq!(looks(&[(100, 90)]), [200]);
    }

    #[test]
    fn what_is_sampled_counts() {
        let mut budget = ProcessBudget::new(Nanos::ZERO, Nanos::ZERO);
        let used = ProbeUse {
            sampled: 1000,
            sampled_ns: 30_000_000,
            ..ProbeUse::default()
        };
        let look = budget.look(
            TraceLevel::Blocks,
            (0.02, &COSTS),
            (used, Nanos::from_millis(100), Nanos::from_millis(100)),
        );
        let over = look.unwrap();
        assert_eq!(over.level, TraceLevel::Growth);
        // 0.6 ms of returns and 30 of programs, of 69.4 ms.
        assert!((over.share - 30.6 / 69.4).abs() < 1e-9, "{over:?}");
    }

    #[test]
    fn single_stepped_calls_count_as_such() {
        let mut budget = ProcessBudget::new(Nanos::ZERO, Nanos::ZERO);
        let mut used = ProbeUse::default();
        used.calls[2 | PROBE_FREES] = 1200;
        let cpu_ns = Nanos::from_millis(100);
        let look = budget.look(TraceLevel::Blocks, (0.02, &COSTS), (used, cpu_ns, cpu_ns));
        assert_eq!(look.unwrap().level, TraceLevel::Allocations);
    }
}
