//! Checks of times on a machine with other load.
//!
//! A check that judges times needs the CPUs. If a hypervisor gives them to other machines, or
//! another load runs at the same time, a correct profiler can look wrong. So a check that fails is
//! repeated if the machine was disturbed meanwhile, and never if it was not. One that is disturbed
//! each time is reported on a line of its own ([`not_judged`]): it has not failed, and has not
//! passed silently. The same goes for a workload that cannot explain its own time ([`NoTruth`]):
//! there is nothing to judge by.
//!
//! Before a check all files are synced, such as the output of a build: a program that starts or
//! ends while they are written waits for the file system's journal, and that wait is in no clock of
//! its own and is no block I/O of its own.

use std::fmt;
use std::fs::OpenOptions;
use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::Result;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;

use crate::machine::{Exclusive, busy_everywhere, stolen_everywhere};

/// Maximum number of tries of a check on a machine that is disturbed each time.
const MAX_TRIES: usize = 3;
/// Maximum share of one CPU that may be stolen. Checks allow for stolen time; with more than this
/// they are repeated if they fail all the same.
const MAX_STOLEN_SHARE: f64 = 0.01;
/// Maximum share of one CPU that other programs, and the kernel's own threads, may use.
const MAX_OTHERS_SHARE: f64 = 0.1;

/// The error of a check whose workload cannot explain its own time.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct NoTruth(pub String);

/// The CPU time from an instant on, of all programs and of this one with its children.
#[derive(Debug)]
struct Watch {
    start: Instant,
    stolen_ns: f64,
    others_ns: f64,
}

/// The CPU time of others meanwhile, as shares of one CPU.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Disturbance {
    stolen: f64,
    others: f64,
}

impl Watch {
    fn start() -> Result<Self> {
        Ok(Self {
            start: Instant::now(),
            stolen_ns: stolen_everywhere()?,
            others_ns: busy_everywhere()? - own_ns()?,
        })
    }

    fn end(&self) -> Result<Disturbance> {
        let elapsed_ns = self.start.elapsed().as_nanos() as f64;
        let stolen_ns = stolen_everywhere()? - self.stolen_ns;
        let others_ns = busy_everywhere()? - own_ns()? - self.others_ns;
        Ok(Disturbance {
            stolen: stolen_ns / elapsed_ns,
            others: others_ns / elapsed_ns,
        })
    }
}

impl Disturbance {
    fn matters(self) -> bool {
        self.stolen > MAX_STOLEN_SHARE || self.others > MAX_OTHERS_SHARE
    }
}

impl fmt::Display for Disturbance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:.1} % of a CPU was stolen, and others used {:.0} %",
            self.stolen * 100.0,
            self.others * 100.0
        )
    }
}

/// Returns the CPU time of this process and of its children that have ended, nanoseconds.
fn own_ns() -> Result<f64> {
    let mut sum = 0;
    for who in [UsageWho::RUSAGE_SELF, UsageWho::RUSAGE_CHILDREN] {
        let usage = getrusage(who)?;
        sum += usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    }
    Ok(sum as f64 * 1e3)
}

/// Takes the machine for a check that judges times, and runs it, again if it failed on a disturbed
/// machine.
///
/// # Errors
/// When the check fails on a machine that was not disturbed, by a workload that explains its time.
pub fn judge_times(check: impl Fn() -> Result<()>) -> Result<()> {
    let _machine = Exclusive::take()?;
    let watch = || {
        let watch = Watch::start()?;
        Ok(move || watch.end())
    };
    repeat(check, watch, note)
}

fn repeat<End: FnOnce() -> Result<Disturbance>>(
    check: impl Fn() -> Result<()>,
    watch: impl Fn() -> Result<End>,
    report: impl Fn(Outcome, fmt::Arguments<'_>),
) -> Result<()> {
    for number in 1..=MAX_TRIES {
        nix::unistd::sync();
        let end = watch()?;
        let Err(error) = check() else {
            report(Outcome::Judged, format_args!("passed"));
            return Ok(());
        };
        let disturbance = end()?;
        if !disturbance.matters() && !error.is::<NoTruth>() {
            return Err(error);
        }
        let outcome = if number < MAX_TRIES {
            Outcome::Repeated
        } else {
            Outcome::Inconclusive
        };
        report(
            outcome,
            format_args!("try {number} of {MAX_TRIES}, {disturbance}: {error:#}"),
        );
    }
    Ok(())
}

/// How a check ended that judges times, or that needs what a machine may not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// It passed.
    Judged,
    /// The machine was disturbed, and the check is repeated.
    Repeated,
    /// The machine was disturbed each time: neither passed nor failed.
    Inconclusive,
    /// This machine does not have what it needs.
    Impossible,
}

impl Outcome {
    fn name(self) -> &'static str {
        match self {
            Outcome::Judged => "judged",
            Outcome::Repeated => "repeated",
            Outcome::Inconclusive => "inconclusive",
            Outcome::Impossible => "impossible",
        }
    }
}

/// The environment variable with the path of the file to which outcomes are appended, one a line:
/// outcome, check and reason between tabs, or `took`, check and seconds. `scripts/outcomes.sh`
/// counts them.
const OUTCOMES: &str = "KCOLLECT_OUTCOMES";

/// Notes that a check was not made because this machine does not have what it needs.
pub fn not_judged(why: impl fmt::Display) {
    note(Outcome::Impossible, format_args!("{why}"));
}

/// Keeps how long a check had the machine, alone or with others.
pub(super) fn took(time: Duration) {
    keep("took", &format!("{:.1}", time.as_secs_f64()));
}

/// Prints and keeps the outcome of a check. The test harness keeps back what a passing test prints
/// by `eprintln!`, but not this.
#[expect(clippy::disallowed_methods, reason = "eprintln! would be kept back")]
fn note(outcome: Outcome, why: fmt::Arguments<'_>) {
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("a check");
    if outcome != Outcome::Judged {
        let line = format!("{}: {name}: {why}\n", outcome.name());
        // Standard error is closed: there is nowhere to print to.
        let _ = std::io::stderr().write_all(line.as_bytes());
    }
    keep(outcome.name(), &why.to_string());
}

/// Appends a line on the current check to the file of outcomes, if there is one.
fn keep(what: &str, text: &str) {
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("a check");
    if let Some(path) = std::env::var_os(OUTCOMES).filter(|path| !path.is_empty()) {
        let text = text.replace(['\n', '\t'], " ");
        let line = format!("{what}\t{name}\t{text}\n");
        let file = OpenOptions::new().create(true).append(true).open(path);
        // What cannot be written is missing in the list, and was printed.
        let _ = file.and_then(|mut file| file.write_all(line.as_bytes()));
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use anyhow::ensure;

    use super::*;

    const QUIET: Disturbance = Disturbance {
        stolen: 0.0,
        others: 0.02,
    };
    const LOUD: Disturbance = Disturbance {
        stolen: 0.0,
        others: 0.9,
    };

    /// Runs a check that fails `failures` times, on a machine in this condition. Returns how often
    /// it ran, and whether it passed.
    fn runs(failures: usize, machine: Disturbance) -> (usize, bool, Outcome) {
        let count = Cell::new(0);
        let last = Cell::new(Outcome::Impossible);
        let check = || {
            count.set(count.get() + 1);
            ensure!(count.get() > failures, "it is wrong");
            Ok(())
        };
        let passed = repeat(
            check,
            || Ok(move || Ok(machine)),
            |outcome, _| last.set(outcome),
        );
        (count.get(), passed.is_ok(), last.get())
    }

    #[test]
    fn only_a_disturbed_check_is_repeated() {
        use Outcome::{Impossible, Inconclusive, Judged};
        assert_eq!(runs(0, LOUD), (1, true, Judged));
        assert_eq!(runs(1, QUIET), (1, false, Impossible));
        assert_eq!(runs(1, LOUD), (2, true, Judged));
        let inconclusive = (MAX_TRIES, true, Inconclusive);
        assert_eq!(runs(usize::MAX, LOUD), inconclusive);
    }

    #[test]
    fn a_workload_without_truth_is_not_judged() {
        let count = Cell::new(0);
        let check = || {
            count.set(count.get() + 1);
            Err(NoTruth("it slept".to_owned()).into())
        };
        assert!(repeat(check, || Ok(move || Ok(QUIET)), |_, _| {}).is_ok());
        assert_eq!(count.get(), MAX_TRIES);
    }

    #[test]
    fn own_work_is_no_disturbance() {
        let before = own_ns().unwrap();
        crate::workload::truth::spin_for_cpu(50_000_000).unwrap();
        assert!(own_ns().unwrap() - before >= 4e7);
    }
}
