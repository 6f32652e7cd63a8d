//! `waits` and `sick` (`workloads/`): programs whose threads say of themselves what their waits
//! are, and that line.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use experiment_format::ids::{Pid, Tid};
use serde::Deserialize;

/// The path of the program whose loads a person can judge.
pub const WAITS: &str = env!("WAITS_PROGRAM");
/// The path of the program whose loads are sick.
pub const SICK: &str = env!("SICK_PROGRAM");

/// The modes of [`WAITS`].
pub const MODES: [&str; 20] = [
    "pingpong",
    "pool-fire",
    "pool-future",
    "pool-stages",
    "pool-busy",
    "mutex",
    "condlock",
    "semlock",
    "rwlock",
    "mmap-lock",
    "rpc",
    "rpc-tcp",
    "hub",
    "hub-tcp",
    "push",
    "timers",
    "children",
    "pipeline",
    "join",
    "fsync",
];

/// What a person says of a wait.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// The thread needed something in the middle of work.
    Suffered,
    /// It had nothing to do.
    Idle,
}

/// A thread, as it says itself.
#[derive(Clone, Debug, Deserialize)]
pub struct Subject {
    /// Its name.
    pub thread: String,
    /// Its process.
    pub pid: Pid,
    /// Its number.
    pub tid: Tid,
    /// What its waits are, by the function that waits.
    pub waits: BTreeMap<String, Verdict>,
}

impl Subject {
    /// Returns all threads in the output of a program.
    pub fn all(stdout: &str) -> Vec<Subject> {
        let lines = stdout.lines();
        lines
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect()
    }

    /// Returns the first thread of a name.
    ///
    /// # Errors
    /// When there is none.
    pub fn find<'s>(subjects: &'s [Subject], name: &str) -> Result<&'s Subject> {
        let found = subjects.iter().find(|subject| subject.thread == name);
        found.with_context(|| format!("no thread {name}: {subjects:?}"))
    }
}
