//! Programs that are hard to follow: `workloads/proctorture.c`, which describes their actions, and
//! others with the same actions.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use experiment_format::ids::Pid;

use crate::command::{Finished, Running};

/// A program that performs one action after the other, as its arguments say.
pub const PROCTORTURE: &str = env!("PROCTORTURE_PROGRAM");
/// A program of 32 bits without libraries, which has the action `one`: `burn_narrow`, called by
/// `call_narrow`.
pub const NARROW: &str = env!("NARROW_PROGRAM");
/// The same of 64 bits: `burn_inside`, called by `call_inside`.
pub const INSIDE: &str = env!("INSIDE_PROGRAM");
/// The same again: `burn_outside`, called by `call_outside`.
pub const OUTSIDE: &str = env!("OUTSIDE_PROGRAM");
/// Two libraries that differ in nothing but names: `leaf_one`, called by `middle_one`; and
/// `leaf_two`, `middle_two`.
pub const SWAPPED: [&str; 2] = [env!("SWAPPED_ONE_PROGRAM"), env!("SWAPPED_TWO_PROGRAM")];

/// Maximum share of a proctorture's CPU time that the kernel, with its interrupts, the C library
/// and the loader have.
pub const MAX_OUTSIDE_ACTION_SHARE: f64 = 0.12;

/// Maximum time that a proctorture takes for its actions, also on a busy machine.
const LIMIT: Duration = Duration::from_secs(30);

/// A line that a proctorture printed: `PID WORD NUMBER...`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActionReport {
    /// The process that printed it, by `getpid`.
    pub pid: Pid,
    /// The word.
    pub word: String,
    /// The numbers: for `say` the time, `CLOCK_MONOTONIC` nanoseconds.
    pub numbers: Vec<u64>,
}

/// Starts a program with actions.
///
/// # Errors
/// When it cannot be started.
pub fn start<A: AsRef<OsStr>>(program: impl AsRef<Path>, actions: &[A]) -> Result<Running> {
    Running::start(Command::new(program.as_ref()).args(actions), LIMIT)
}

/// Returns its process id.
pub fn pid(running: &Running) -> Pid {
    Pid::from_raw(running.pid().as_raw())
}

/// Waits for the end of all programs.
///
/// # Errors
/// When one does not end in time. How they ended is the caller's to judge.
pub fn finish(all: Vec<Running>) -> Result<Vec<Finished>> {
    all.into_iter().map(Running::finish).collect()
}

/// Returns the action reports in a program's output.
pub fn action_reports(output: &str) -> Vec<ActionReport> {
    output.lines().filter_map(word).collect()
}

/// Returns the first action report with a word.
///
/// # Errors
/// No report has this word.
pub fn find_report(output: &str, wanted: &str) -> Result<ActionReport> {
    action_reports(output)
        .into_iter()
        .find(|word| word.word == wanted)
        .with_context(|| format!("no process printed {wanted}: {output:?}"))
}

fn word(line: &str) -> Option<ActionReport> {
    let mut parts = line.split(' ');
    Some(ActionReport {
        pid: Pid(parts.next()?.parse().ok()?),
        word: parts.next()?.to_owned(),
        numbers: parts.map(str::parse).collect::<Result<_, _>>().ok()?,
    })
}

/// Returns the action that gives a process this name.
pub fn name_action(name: &[u8]) -> String {
    format!("name:{}", hex::encode(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_found_among_other_lines() {
        let output = "run time 3 s\n7 first 123\n8 swapped 1 2 3\n";
        let word = find_report(output, "swapped").unwrap();
        assert_eq!((word.pid, word.numbers), (Pid(8), vec![1, 2, 3]));
        assert_eq!(action_reports(output).len(), 2);
        assert!(find_report(output, "second").is_err());
    }

    #[test]
    fn a_name_is_spelled_in_hexadecimal_digits() {
        assert_eq!(name_action(b"a\n\xff"), "name:610aff");
    }
}
