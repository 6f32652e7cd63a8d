//! What kcollect says of the processes that it followed: the part `followed` of `kcollect.json`, and their subexperiments.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

/// The followed processes.
#[derive(Clone, Debug, Deserialize)]
pub struct Followed {
    /// One by one.
    pub processes: Vec<Process>,
    /// Ticks of all of them by how their user stack ended; `guessed` and `missing` among them.
    pub user_stacks: BTreeMap<String, u64>,
    /// What was lost.
    pub losses: BTreeMap<String, u64>,
}

/// One followed process.
#[derive(Clone, Debug, Deserialize)]
pub struct Process {
    /// Its number.
    pub pid: i32,
    /// The name of its experiment's directory, in the founder's.
    pub experiment: String,
    /// Ticks of its threads that are in there.
    pub ticks: u64,
    /// How their user stacks ended.
    pub user_stacks: BTreeMap<String, u64>,
}

impl Followed {
    /// Those of an experiment.
    ///
    /// # Errors
    /// When nobody was followed.
    pub fn of(experiment: &Path) -> Result<Self> {
        #[derive(Deserialize)]
        struct Books {
            followed: Option<Followed>,
        }
        let path = experiment.join("kcollect.json");
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let books: Books =
            serde_json::from_str(&text).with_context(|| path.display().to_string())?;
        books
            .followed
            .with_context(|| format!("nobody is followed in {}", path.display()))
    }

    /// All that a number stands for: of a number that was given again there are several.
    pub fn all(&self, pid: i32) -> impl Iterator<Item = &Process> {
        self.processes
            .iter()
            .filter(move |process| process.pid == pid)
    }

    /// The one of a number, and its subexperiment.
    ///
    /// # Errors
    /// When there is none, or more than one.
    pub fn one(&self, experiment: &Path, pid: i32) -> Result<(&Process, PathBuf)> {
        let found: Vec<_> = self.all(pid).collect();
        match found.as_slice() {
            [one] => Ok((one, experiment.join(&one.experiment))),
            found => bail!("{} followed processes {pid}: {found:?}", found.len()),
        }
    }
}

/// Ticks by how their user stack ended, and which part is complete of those that can have one.
pub fn complete(user_stacks: &BTreeMap<String, u64>) -> f64 {
    let of = |end: &str| user_stacks.get(end).copied().unwrap_or_default();
    let all: u64 = user_stacks
        .iter()
        .filter(|(end, _)| !["guessed", "exiting"].contains(&end.as_str()))
        .map(|(_, ticks)| ticks)
        .sum();
    if all == 0 {
        return 1.0;
    }
    of("complete") as f64 / all as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn books_are_read_and_shares_are_of_what_has_a_stack() {
        let directory = tempfile::tempdir().unwrap();
        let text = r#"{"ticks": 3, "followed": {"processes": [{"pid": 7, "experiment": "_a_PID_7.1.er", "ticks": 11,
            "user_stacks": {"complete": 9, "deep": 1, "missing": 1, "guessed": 2}}],
            "user_stacks": {"complete": 9, "deep": 1, "missing": 1, "guessed": 2}, "losses": {"copies": 0}}}"#;
        fs::write(directory.path().join("kcollect.json"), text).unwrap();
        let followed = Followed::of(directory.path()).unwrap();
        let (process, path) = followed.one(directory.path(), 7).unwrap();
        assert!(path.ends_with("_a_PID_7.1.er"));
        assert_eq!(complete(&process.user_stacks), 0.9);
        assert!(followed.one(directory.path(), 8).is_err());
        assert_eq!(complete(&BTreeMap::new()), 1.0);
    }
}
