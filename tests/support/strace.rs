//! strace, which runs while kcollect records I/O (`-i`): both count each call that a program makes,
//! and how often it failed.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bpf_abi::layout::{CallTable, IO_CALLS};
use experiment_format::calls::{Action, is_transfer, name_of};
use tempfile::TempDir;
use user_collector::io_calls::calls::call_of;

use crate::experiment::io_records;
use crate::experiment::summary::RunSummary;
use crate::kcollect::{experiments_in, record};

const LIMIT: Duration = Duration::from_secs(120);
/// More than the calls that strace's child makes before it executes the program.
const MAX_CALLS_BEFORE: i64 = 30;

/// Calls by name, and those that failed.
pub type Counts = BTreeMap<String, [i64; 2]>;

/// What strace has of a run.
#[derive(Debug, Default)]
pub struct Traced {
    /// Paths of the programs that threads executed last.
    pub programs: BTreeMap<u32, String>,
    /// The calls of each thread.
    pub counts: BTreeMap<u32, Counts>,
    /// Calls that a signal interrupted, by thread.
    interrupted: BTreeMap<u32, Vec<String>>,
}

impl Traced {
    /// Number of calls of all threads.
    #[must_use]
    pub fn calls(&self) -> i64 {
        let counts = self.counts.values().flat_map(BTreeMap::values);
        counts.map(|[calls, _]| calls).sum()
    }

    fn add(&mut self, tid: u32, name: &str, failed: bool) {
        let counts = self.counts.entry(tid).or_default();
        let [calls, errors] = counts.entry(name.to_owned()).or_default();
        *calls += 1;
        *errors += i64::from(failed);
    }

    /// Adds a line of its output: `TID NAME(…) = RESULT`, which may be in two parts.
    fn line(&mut self, line: &str) -> Option<()> {
        let (tid, text) = line.split_once(' ')?;
        let (tid, text) = (tid.parse().ok()?, text.trim_start());
        if text.starts_with("+++") {
            for name in self.interrupted.remove(&tid).unwrap_or_default() {
                self.add(tid, &name, true);
            }
            return None;
        }
        let (call, result) = text.rsplit_once(" = ")?;
        let name = match call.strip_prefix("<... ") {
            Some(rest) => rest.split_once(' ')?.0,
            None => call.split_once('(')?.0,
        };
        if name == "execve" && result.starts_with('0') {
            let path = call.split('"').nth(1).unwrap_or_default();
            self.programs.insert(tid, path.to_owned());
        }
        let interrupted = self.interrupted.entry(tid).or_default();
        if result.starts_with("? ERESTART") {
            interrupted.push(name.to_owned());
        } else if name == "rt_sigreturn" && result.contains("EINTR") {
            let name = interrupted.pop()?;
            self.add(tid, &name, true);
        } else {
            // The kernel makes it again.
            interrupted.retain(|before| before != name);
            let failed = result.starts_with('-') || result.starts_with('?');
            self.add(tid, name, failed);
        }
        Some(())
    }
}

/// Returns whether a call is traced by `-i`.
fn is_traced(name: &str) -> bool {
    let calls = (0..IO_CALLS as u32).filter_map(|number| call_of(number, CallTable::Native));
    let mut io = calls.filter(|call| !matches!(call.action, Action::Memory(_)));
    io.any(|call| call.name == name)
}

/// Runs a command under strace under kcollect. Returns what differs, by thread: how much more often
/// kcollect has each call, and as failed.
///
/// # Errors
/// When either fails, or kcollect loses something.
pub fn differences(command: &[&str]) -> Result<(Traced, BTreeMap<u32, Counts>)> {
    let directory = TempDir::new()?;
    let log = directory.path().join("strace");
    let log = log.to_str().context("no UTF-8")?;
    let options = ["-i", "on", "-F", "load", "--descendants", "-A", "off"];
    let load = [&["strace", "-f", "-s", "0", "-o", log], command].concat();
    let recorded = record(&options, &load, LIMIT)?;
    RunSummary::of(&recorded.experiment()?)?.complete()?;
    let mut traced = Traced::default();
    for line in fs::read_to_string(log)?.lines() {
        traced.line(line);
    }
    let mut differences: BTreeMap<u32, Counts> = BTreeMap::new();
    for experiment in experiments_in(&recorded.experiment()?)? {
        for call in io_records(&experiment)? {
            let tid = u32::try_from(call.shared.thread)?;
            let name = call.call.and_then(name_of);
            let Some(name) = name.filter(|_| traced.counts.contains_key(&tid)) else {
                continue;
            };
            // A transfer has two packets, and operations of io_uring are no system calls.
            let second = is_transfer(name) && call.requested_ns == call.shared.time_ns;
            if second || name.starts_with("IORING") {
                continue;
            }
            let counts = differences.entry(tid).or_default();
            let [calls, errors] = counts.entry(name.to_owned()).or_default();
            *calls += 1;
            *errors += i64::from(call.failed);
        }
    }
    for (tid, counts) in &traced.counts {
        let own = differences.entry(*tid).or_default();
        for (name, [calls, errors]) in counts {
            if is_traced(name) {
                let [own_calls, own_errors] = own.entry(name.clone()).or_default();
                *own_calls -= calls;
                *own_errors -= errors;
            }
        }
    }
    for counts in differences.values_mut() {
        counts.retain(|_, difference| *difference != [0, 0]);
    }
    differences.retain(|_, counts| !counts.is_empty());
    Ok((traced, differences))
}

/// Returns the calls of the first process, which strace's child makes before it executes a program:
/// they are not in strace's own log.
///
/// # Errors
/// Those of [`differences`].
pub fn calls_before() -> Result<Counts> {
    let (_, mut before) = differences(&["true"])?;
    ensure!(before.len() <= 1, "{before:?}");
    let before = before.pop_first().map(|(_, counts)| counts);
    let before = before.unwrap_or_default();
    let calls: i64 = before.values().map(|[calls, _]| calls).sum();
    ensure!(calls <= MAX_CALLS_BEFORE, "{before:?}");
    Ok(before)
}
