//! Compares the account of the thread with what it knows.

use std::time::Duration;

use bpf_abi::ThreadRecord;
use experiment_format::microstate::Microstate;
use experiment_format::units::Nanos;

use super::{Expected, Known, Seen, SeenStack};
use crate::record::problem::{Problem, Subject};

/// A time in the account is at least this part of what the thread asked for.
const MIN_PART: u64 = 10;
/// The scheduler's clock and CLOCK_MONOTONIC differ by less.
const CLOCK_SLACK: Duration = Duration::from_millis(5);
/// Page faults of the thread before it runs and while it exits.
const MORE_FAULTS: u64 = 1000;
/// The number of ticks from which on some must have come.
const ENOUGH_TICKS: u64 = 20;

/// The result of one comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The account is plausible.
    Passed,
    /// The account is wrong, whatever else the machine does.
    Failed,
    /// Nothing can be said.
    Inconclusive,
}

/// One comparison of the account with what the thread knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// The name of the finding in `kcollect doctor`.
    pub name: &'static str,
    /// What was expected, and what is in the account; or why nothing can be said.
    pub text: String,
    /// The result.
    pub outcome: Outcome,
    pub(super) subject: Subject,
}

/// Counts of the BPF programs since they were loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Times that a thread could not be tracked.
    pub untracked: u64,
    /// Records that found a ring full.
    pub lost: u64,
    /// User stacks that could not be captured or sent.
    pub user_returns_lost: u64,
    /// The hook on context switches has run.
    pub has_seen_switches: bool,
}

/// The result of the self-test.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The comparisons.
    pub checks: Vec<Check>,
    /// What is wrong with the recording, the cause first.
    pub problems: Vec<Problem>,
}

impl Report {
    /// The result of an inconclusive test.
    pub(super) fn inconclusive(why: String) -> Report {
        Report {
            checks: vec![Check {
                name: "self-test",
                text: why,
                outcome: Outcome::Inconclusive,
                subject: Subject::Accounts,
            }],
            problems: Vec::new(),
        }
    }

    /// Whether a user stack has arrived as it should.
    #[must_use]
    pub fn has_user_stack(&self) -> bool {
        let of = |check: &&Check| check.subject == Subject::UserStacks;
        let check = self.checks.iter().find(of);
        check.is_some_and(|check| check.outcome == Outcome::Passed)
    }
}

pub(super) fn judge(
    expected: &Expected,
    known: &Known,
    seen: &Seen,
    started_ns: Nanos,
    counts: Counts,
) -> Report {
    let Some(account) = &seen.account else {
        return without_account(counts);
    };
    let passed = Duration::from(Nanos(account.header.time_ns).saturating_sub(started_ns));
    let mut checks = times(expected, known, account, passed);
    checks.extend([
        faults(known, account),
        kernel_faults(expected, known, account),
        user_stacks(expected, seen, counts),
        ticks(expected, known, seen),
    ]);
    if counts.lost > 0 {
        let failed = |check: &&mut Check| {
            check.outcome == Outcome::Failed
                && [Subject::UserStacks, Subject::Ticks].contains(&check.subject)
        };
        for check in checks.iter_mut().filter(failed) {
            check.outcome = Outcome::Inconclusive;
            check.text += &format!("; {} records found a ring full", counts.lost);
        }
    }
    let failed = checks
        .iter()
        .filter(|check| check.outcome == Outcome::Failed);
    let mut problems: Vec<Problem> = Vec::new();
    for check in failed {
        if !problems.iter().any(|known| known.subject == check.subject) {
            let found = format!("{}: {}", check.name, check.text);
            problems.push(Problem::new(check.subject, found));
        }
    }
    Report { checks, problems }
}

/// The result if the thread has exited and no record of it came.
fn without_account(counts: Counts) -> Report {
    let problem = if !counts.has_seen_switches {
        Problem::new(
            Subject::ContextSwitches,
            "the hook on context switches (sched_switch) never ran",
        )
    } else if counts.untracked > 0 {
        Problem::no_storage(counts.untracked)
    } else if counts.lost > 0 {
        return Report::inconclusive(format!(
            "the account of the thread did not arrive; {} records found a ring full",
            counts.lost
        ));
    } else {
        Problem::new(
            Subject::Accounts,
            "the self-test's thread has exited, and no account of it arrived",
        )
    };
    Report {
        checks: vec![Check {
            name: "self-test: accounts",
            text: problem.line(),
            outcome: Outcome::Failed,
            subject: problem.subject,
        }],
        problems: vec![problem],
    }
}

/// Compares the times. `passed` is the time from before the thread was made until it exited.
fn times(
    expected: &Expected,
    known: &Known,
    account: &ThreadRecord,
    passed: Duration,
) -> Vec<Check> {
    let phases = expected.phases;
    let in_state = |state: Microstate| Duration::from_nanos(account.ns[state as usize]);
    let on_cpu = in_state(Microstate::User) + Duration::from_nanos(account.details.stolen);
    let tracked = Duration::from_nanos(account.tracked_ns);
    [
        (
            "self-test: tracked time",
            "lived",
            known.lived,
            known.lived,
            tracked,
        ),
        ("self-test: CPU time", "ran", known.cpu, known.cpu, on_cpu),
        (
            "self-test: sleep",
            "slept",
            phases.sleep,
            known.slept,
            in_state(Microstate::Sleep),
        ),
        (
            "self-test: lock",
            "waited",
            phases.lock,
            known.waited,
            in_state(Microstate::UserLock),
        ),
    ]
    .into_iter()
    .map(|(name, did, least, measured, counted)| {
        let is_plausible = counted * MIN_PART as u32 >= least && counted <= passed + CLOCK_SLACK;
        Check {
            name,
            text: format!(
                "the thread {did} for {:.1} ms, the account has {:.1} ms",
                millis(measured),
                millis(counted)
            ),
            outcome: outcome(is_plausible),
            subject: Subject::Accounts,
        }
    })
    .collect()
}

fn faults(known: &Known, account: &ThreadRecord) -> Check {
    let counted = account.counts.minor_faults;
    let is_plausible = counted * MIN_PART >= known.minor_faults
        && counted <= MIN_PART * known.minor_faults + MORE_FAULTS;
    Check {
        name: "self-test: page faults",
        text: format!(
            "the thread had {} or more, the account has {counted}",
            known.minor_faults
        ),
        outcome: outcome(is_plausible),
        subject: Subject::Accounts,
    }
}

fn kernel_faults(expected: &Expected, known: &Known, account: &ThreadRecord) -> Check {
    let (text, outcome) = match (known.faulted_in_kernel, account.faulted_in_kernel) {
        _ if !expected.kernel_faults => (
            "looked for in stacks: this kernel has no hook for them",
            Outcome::Inconclusive,
        ),
        (_, true) => ("the hook ran in the thread", Outcome::Passed),
        (true, false) => (
            "the thread had a page fault in a system call, and the hook (page_fault_kernel) did not run",
            Outcome::Failed,
        ),
        (false, false) => (
            "the thread had no page fault in a system call",
            Outcome::Inconclusive,
        ),
    };
    Check {
        name: "self-test: kernel faults",
        text: text.to_owned(),
        outcome,
        subject: Subject::KernelFaults,
    }
}

fn user_stacks(expected: &Expected, seen: &Seen, counts: Counts) -> Check {
    let phases = expected.phases;
    let interval = Duration::from(expected.interval);
    let arrived = || seen.stacks.values().flatten();
    let usable = |stack: &&SeenStack| match stack {
        SeenStack::Complete => true,
        SeenStack::Copied { found } => *found,
        SeenStack::Partial { .. } => false,
    };
    let (text, outcome) = if !expected.user_stacks {
        (
            "kcollect itself is not followed".to_owned(),
            Outcome::Inconclusive,
        )
    } else if interval >= phases.sleep.min(phases.lock) {
        (
            format!("{interval:?} between two ticks are longer than the waits of the thread"),
            Outcome::Inconclusive,
        )
    } else if seen.off_cpu_records == 0 {
        (
            "the thread waited for longer than a tick, and no record of that arrived".to_owned(),
            Outcome::Failed,
        )
    } else if let Some(stack) = arrived().find(usable) {
        let text = match stack {
            SeenStack::Copied { .. } => "the stack of the thread's sleep arrived as a copy",
            _ => "the stack of the thread's sleep arrived, complete",
        };
        (text.to_owned(), Outcome::Passed)
    } else if arrived().next().is_none() {
        let text = format!(
            "none of the {} stacks of the thread arrived; {} stacks were lost in all",
            seen.stacks.len() as u64 + seen.unnumbered,
            counts.user_returns_lost
        );
        (text, Outcome::Failed)
    } else {
        let frames = arrived().map(|stack| match stack {
            SeenStack::Partial { frames } => *frames,
            _ => 0,
        });
        let frames = frames.max().unwrap_or(0);
        // A library without unwind information may end a stack, but not at its first frame.
        let outcome = match frames {
            0 | 1 => Outcome::Failed,
            _ => Outcome::Inconclusive,
        };
        let text = format!("no stack of the thread is complete; the longest has {frames} frames");
        (text, outcome)
    };
    Check {
        name: "self-test: user stacks",
        text,
        outcome,
        subject: Subject::UserStacks,
    }
}

fn ticks(expected: &Expected, known: &Known, seen: &Seen) -> Check {
    let wanted = Nanos::from(known.cpu) / expected.interval.max(Nanos(1));
    let (text, outcome) = if wanted < ENOUGH_TICKS {
        (
            "the thread ran for too short a time".to_owned(),
            Outcome::Inconclusive,
        )
    } else {
        (
            format!(
                "about {wanted} were expected on a CPU, {} arrived",
                seen.on_cpu_ticks
            ),
            outcome(seen.on_cpu_ticks * MIN_PART >= wanted),
        )
    };
    Check {
        name: "self-test: ticks",
        text,
        outcome,
        subject: Subject::Ticks,
    }
}

fn outcome(is_plausible: bool) -> Outcome {
    if is_plausible {
        Outcome::Passed
    } else {
        Outcome::Failed
    }
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use bpf_abi::RecordHeader;

    use super::super::Phases;
    use super::*;

    const EXPECTED: Expected = Expected {
        phases: Phases::AT_START,
        interval: Nanos::from_millis(10),
        user_stacks: true,
        kernel_faults: true,
    };

    /// What a thread knows and what is in its account, where all is well.
    fn good() -> (Known, Seen, Counts) {
        let ms = Duration::from_millis;
        let known = Known {
            end_ns: Nanos::from_millis(1032),
            lived: ms(32),
            cpu: ms(3),
            slept: ms(14),
            waited: ms(14),
            minor_faults: 12,
            faulted_in_kernel: true,
        };
        let mut account = ThreadRecord {
            header: RecordHeader {
                time_ns: 1_033_000_000,
                ..RecordHeader::default()
            },
            exited: true,
            tracked_ns: 32_500_000,
            faulted_in_kernel: true,
            ..ThreadRecord::default()
        };
        account.counts.minor_faults = 14;
        account.ns[Microstate::User as usize] = 3_100_000;
        account.ns[Microstate::Sleep as usize] = 14_000_000;
        account.ns[Microstate::UserLock as usize] = 14_000_000;
        let seen = Seen {
            off_cpu_records: 2,
            stacks: [(1, Some(SeenStack::Complete)), (2, None)].into(),
            account: Some(Box::new(account)),
            ..Seen::default()
        };
        let counts = Counts {
            has_seen_switches: true,
            ..Counts::default()
        };
        (known, seen, counts)
    }

    /// The subjects of the problems after a change of what is good.
    fn problems(change: impl FnOnce(&mut Known, &mut Seen, &mut Counts)) -> Vec<Subject> {
        let (mut known, mut seen, mut counts) = good();
        change(&mut known, &mut seen, &mut counts);
        let report = judge(&EXPECTED, &known, &seen, Nanos::from_millis(1000), counts);
        report
            .problems
            .iter()
            .map(|problem| problem.subject)
            .collect()
    }

    fn in_account(seen: &mut Seen, change: impl FnOnce(&mut ThreadRecord)) {
        change(seen.account.as_mut().unwrap());
    }

    #[test]
    fn a_plausible_account_is_no_problem() {
        assert_eq!(problems(|_, _, _| ()), []);
        let (known, seen, counts) = good();
        let report = judge(&EXPECTED, &known, &seen, Nanos::from_millis(1000), counts);
        assert!(report.has_user_stack());
    }

    #[test]
    fn waits_for_a_cpu_are_no_problem() {
        // A second went by between any two steps; the account has that as a wait for a CPU.
        let busy = problems(|known, seen, _| {
            known.lived = Duration::from_secs(5);
            known.slept = Duration::from_secs(1);
            known.waited = Duration::from_secs(1);
            in_account(seen, |account| {
                account.header.time_ns = 6_500_000_000;
                account.tracked_ns = 5_100_000_000;
                account.ns[Microstate::WaitCpu as usize] = 5_000_000_000;
            });
        });
        assert_eq!(busy, []);
    }

    #[test]
    fn each_time_that_is_missing_or_too_long_is_a_problem() {
        for state in [Microstate::User, Microstate::Sleep, Microstate::UserLock] {
            for wrong_ns in [100_000, 500_000_000] {
                let found = problems(|_, seen, _| {
                    in_account(seen, |account| account.ns[state as usize] = wrong_ns);
                });
                assert_eq!(found, [Subject::Accounts], "{state:?} {wrong_ns}");
            }
        }
        let found = problems(|_, seen, _| in_account(seen, |account| account.tracked_ns = 0));
        assert_eq!(found, [Subject::Accounts]);
    }

    #[test]
    fn a_hook_that_does_not_run_is_a_problem() {
        let found = problems(|_, seen, _| {
            in_account(seen, |account| account.faulted_in_kernel = false);
        });
        assert_eq!(found, [Subject::KernelFaults]);
        let found = problems(|_, seen, counts| {
            seen.account = None;
            counts.has_seen_switches = false;
        });
        assert_eq!(found, [Subject::ContextSwitches]);
    }

    #[test]
    fn a_missing_account_is_explained() {
        let found = problems(|_, seen, counts| {
            seen.account = None;
            counts.untracked = 1;
        });
        assert_eq!(found, [Subject::Storage]);
        let lost = problems(|_, seen, counts| {
            seen.account = None;
            counts.lost = 1;
        });
        assert_eq!(lost, []);
        assert_eq!(
            problems(|_, seen, _| seen.account = None),
            [Subject::Accounts]
        );
    }

    #[test]
    fn user_stacks_have_to_arrive() {
        let stacks = |stacks: &[Option<SeenStack>]| {
            let numbered = (1..).zip(stacks.iter().copied()).collect();
            problems(|_, seen, _| seen.stacks = numbered)
        };
        assert_eq!(stacks(&[None, None]), [Subject::UserStacks]);
        assert_eq!(stacks(&[]), [Subject::UserStacks]);
        assert_eq!(stacks(&[Some(SeenStack::Copied { found: true })]), []);
        assert_eq!(
            stacks(&[Some(SeenStack::Copied { found: false })]),
            [Subject::UserStacks]
        );
        let partial = |frames| stacks(&[Some(SeenStack::Partial { frames })]);
        assert_eq!(
            (partial(1), partial(5)),
            (vec![Subject::UserStacks], vec![])
        );
        let lost = problems(|_, seen, counts| {
            seen.stacks.clear();
            counts.lost = 3;
        });
        assert_eq!(lost, []);
    }

    #[test]
    fn ticks_have_to_arrive_if_it_ran_long_enough() {
        let found = problems(|known, seen, _| {
            known.cpu = Duration::from_millis(20_000 / 100 + 100);
            known.lived = Duration::from_millis(400);
            in_account(seen, |account| {
                account.header.time_ns = 1_500_000_000;
                account.tracked_ns = 400_000_000;
                account.ns[Microstate::User as usize] = 300_000_000;
            });
        });
        assert_eq!(found, [Subject::Ticks]);
    }
}
