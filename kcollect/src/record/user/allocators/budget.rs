//! How much the probes of an allocator may take of a traced process (`--trace-budget`).
//!
//! Pure: what was used is an argument. A process has a reserve. The budget's share of its CPU time
//! is added to it, and the time that its probes took is subtracted. When the reserve is used up,
//! the process is no longer probed. After a while it is probed again, less and less often: programs
//! that allocate much at their start are calm later. Blocks allocated before that point are
//! dropped: their frees were not observed.

use experiment_format::units::Nanos;

/// What a process may use at once, nanoseconds: a program allocates more when it starts than later.
const MAX_RESERVE_NS: f64 = 20e6;

/// The time between two checks of what the probes of a process took, and so the longest time until
/// it is noticed that an idle program begins to allocate much.
const CHECK_INTERVAL_NS: Nanos = Nanos::from_secs(1);
/// The same where the reserve would be used up before.
const URGENT_INTERVAL_NS: Nanos = Nanos::from_millis(100);
/// The number of urgent checks in the usual time between two.
const URGENT_CHECKS: f64 = 10.0;

/// How long a process is not probed: the first time, and at most.
const FIRST_WAIT_NS: Nanos = Nanos::from_secs(10);
const LONGEST_WAIT_NS: Nanos = Nanos::from_secs(600);

/// A process whose probes exceeded the budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OverBudget {
    /// When it is probed again. None: it is probed.
    again_ns: Option<Nanos>,
    wait_ns: Nanos,
    /// It was probed in this experiment before.
    pub(super) was_probed: bool,
}

impl OverBudget {
    /// A process that is no longer probed from now on, and perhaps was not probed `before`.
    pub(super) fn new(before: Option<&OverBudget>, now_ns: Nanos) -> OverBudget {
        let wait_ns = before.map_or(FIRST_WAIT_NS, |before| {
            Nanos(2 * before.wait_ns.0).min(LONGEST_WAIT_NS)
        });
        OverBudget {
            again_ns: Some(now_ns + wait_ns),
            wait_ns,
            was_probed: true,
        }
    }

    /// A child that such a process forks.
    pub(super) fn child(self) -> OverBudget {
        OverBudget {
            was_probed: false,
            ..self
        }
    }

    /// The process when it is probed again.
    pub(super) fn probed_again(self) -> OverBudget {
        OverBudget {
            again_ns: None,
            ..self
        }
    }

    pub(super) fn is_unprobed(&self) -> bool {
        self.again_ns.is_some()
    }

    /// Whether it is not probed, and was in this experiment.
    pub(super) fn was_probed_before(&self) -> bool {
        self.is_unprobed() && self.was_probed
    }

    /// Whether it is time to probe it again.
    pub(super) fn is_due(&self, now_ns: Nanos) -> bool {
        self.again_ns.is_some_and(|again_ns| again_ns <= now_ns)
    }
}

/// The budget of one process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ProcessBudget {
    reserve_ns: f64,
    taken_ns: u64,
    cpu_ns: Nanos,
    /// When the next check is due.
    pub(super) next_check_ns: Nanos,
    /// The next check must not be late.
    pub(super) is_urgent: bool,
}

impl ProcessBudget {
    /// Returns the budget of a process whose probes have not been used, and its CPU time now.
    pub(super) fn new(cpu_ns: Nanos, now_ns: Nanos) -> ProcessBudget {
        ProcessBudget {
            reserve_ns: MAX_RESERVE_NS,
            taken_ns: 0,
            cpu_ns,
            next_check_ns: now_ns + URGENT_INTERVAL_NS,
            is_urgent: true,
        }
    }

    /// Plans the next check.
    pub(super) fn plan_check(&mut self, now_ns: Nanos, is_urgent: bool) {
        let interval = if is_urgent {
            URGENT_INTERVAL_NS
        } else {
            CHECK_INTERVAL_NS
        };
        (self.next_check_ns, self.is_urgent) = (now_ns + interval, is_urgent);
    }

    /// Checks what the probes of a process have taken by now, and how much CPU time the process has
    /// used. The probes may take `share` of the process's own part of that time. If the budget is
    /// used up, returns what they took since the last check, as a share of that part.
    pub(super) fn check(
        &mut self,
        share: f64,
        taken_ns: u64,
        cpu_ns: Nanos,
        now_ns: Nanos,
    ) -> Option<f64> {
        let taken = taken_ns.saturating_sub(self.taken_ns) as f64;
        let passed = cpu_ns.saturating_sub(self.cpu_ns).0 as f64;
        (self.taken_ns, self.cpu_ns) = (taken_ns, cpu_ns);
        let own = (passed - taken).max(0.0);
        let change = share * own - taken;
        self.reserve_ns = (self.reserve_ns + change).min(MAX_RESERVE_NS);
        self.plan_check(now_ns, self.reserve_ns + URGENT_CHECKS * change < 0.0);
        (self.reserve_ns < 0.0).then(|| taken / own.max(1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks a process once in 100 ms of its CPU time, of which its probes may take 2 %. A digit
    /// is how many milliseconds they take. Returns whether it is probed after each check: `p` or
    /// `-`.
    fn drawing(milliseconds: &str) -> String {
        let mut budget = ProcessBudget::new(Nanos::from_millis(7), Nanos::ZERO);
        let (mut taken_ns, mut cpu_ns) = (0, Nanos::from_millis(7));
        let mut is_over = false;
        let check = |digit: char| {
            taken_ns += u64::from(digit.to_digit(10).unwrap()) * 1_000_000;
            cpu_ns += Nanos::from_millis(100);
            is_over |= budget.check(0.02, taken_ns, cpu_ns, cpu_ns).is_some();
            if is_over { '-' } else { 'p' }
        };
        milliseconds.chars().map(check).collect()
    }

    #[test]
    fn attempts_become_rarer() {
        let now_ns = Nanos::from_secs(1000);
        let mut process: Option<OverBudget> = None;
        let mut waits = Vec::new();
        for _ in 0..9 {
            let over = OverBudget::new(process.as_ref(), now_ns);
            let again_ns = over.again_ns.unwrap();
            assert!(!over.is_due(again_ns.saturating_sub(Nanos(1))) && over.is_due(again_ns));
            waits.push(again_ns.saturating_sub(now_ns).0 / Nanos::from_secs(1).0);
            let again = over.probed_again();
            assert!(!again.is_due(Nanos::MAX) && !again.is_unprobed());
            process = Some(again);
        }
        assert_eq!(waits, [10, 20, 40, 80, 160, 320, 600, 600, 600]);
    }

    #[test]
    fn a_reserve_is_used_up() {
        // 2 ms of 100 are allowed.
        assert_eq!(drawing("1111111111"), "pppppppppp");
        // 3 ms of 97 are 1.06 ms more than allowed, of the reserve of 20 ms.
        let slowly = format!("{}----", "p".repeat(18));
        assert_eq!(drawing(&"3".repeat(22)), slowly);
        assert_eq!(drawing("9999"), "pp--");
    }

    #[test]
    fn a_start_may_take_more() {
        assert_eq!(drawing("900000000000"), "pppppppppppp");
        // And later again, once the reserve is there.
        let again = format!("9{}9{}", "0".repeat(8), "0".repeat(8));
        assert_eq!(drawing(&again), "p".repeat(18));
    }

    #[test]
    fn a_reserve_that_falls_fast_is_checked_soon() {
        let mut budget = ProcessBudget::new(Nanos::ZERO, Nanos::ZERO);
        let mut taken_ns = 0;
        let next_ms = |(at_ms, taken_ms): (u64, u64)| {
            taken_ns += 1_000_000 * taken_ms;
            let now_ns = Nanos::from_millis(at_ms);
            budget.check(0.02, taken_ns, now_ns, now_ns);
            budget.next_check_ns.0 / 1_000_000
        };
        // They take nothing, less than 2 %, more, again nothing, and a little more than 2 %.
        let checks = [(100, 0), (1100, 12), (2100, 24), (2200, 0), (3200, 20)];
        assert_eq!(checks.map(next_ms), [1100, 2100, 2200, 3200, 4200]);
    }

    #[test]
    fn the_share_is_of_the_own_time() {
        let mut budget = ProcessBudget::new(Nanos::ZERO, Nanos::ZERO);
        let now_ns = Nanos::from_millis(100);
        let share = budget.check(0.02, 30_000_000, now_ns, now_ns).unwrap();
        assert!((share - 30.0 / 70.0).abs() < 1e-9, "{share}");
    }
}
