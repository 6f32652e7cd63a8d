//! Code that a process has inherited from its parent: prefork servers generate code in the parent
//! and run it in their workers.
//!
//! A fork copies the parent's memory, so that its functions are at the same addresses in the child,
//! and the child's own map does not list them. They are named by the parent's file as it was at the
//! fork: what the parent generates later is in memory of its own. That is the part of a perf map
//! that was written by then, or the earlier records of a jitdump. If the child lists a function of
//! its own at the same addresses, it replaces the parent's.
//!
//! For a process that was forked before the recording began, it is not known how long its parent's
//! map was. The whole map is used then, as perf does.

use std::fs;
use std::path::{Path, PathBuf};

use experiment_format::ids::Pid;

use super::proc_dir::{MAX_PROC_FILE_BYTES, ProcDir, process_directory};
use super::proc_files::{numbers_of, relatives_of, start_ticks_of};

/// Max generations whose maps are used.
const MAX_GENERATIONS: usize = 8;

/// The perf map of a process from which another one was forked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParentMap {
    /// The number of the process in its own pid namespace.
    pub(crate) own_pid: Pid,
    /// When it started, clock ticks since boot: an older file is not its own.
    pub(crate) start_ticks: u64,
    /// The size of the map at the fork; None if that was not seen.
    pub(crate) bytes: Option<u64>,
}

impl ParentMap {
    /// Returns the map of a process that forks now; None if it is gone.
    fn at_fork(parent: Pid) -> Option<ParentMap> {
        let map = ParentMap::of(&ProcDir::open(parent).ok()?)?;
        let root = process_directory(Path::new("/proc"), parent).join("root/tmp");
        let file = fs::metadata(root.join(format!("perf-{}.map", map.own_pid)));
        Some(ParentMap {
            bytes: Some(file.map_or(0, |found| found.len())),
            ..map
        })
    }

    fn of(dir: &ProcDir) -> Option<ParentMap> {
        let (status, _) = dir.read("status", MAX_PROC_FILE_BYTES).ok()?;
        let own_pid = numbers_of(&status, "NStgid:").last()?;
        Some(ParentMap {
            own_pid: Pid(own_pid),
            start_ticks: start_ticks_of(&dir.leader_stat().ok()?)?,
            bytes: None,
        })
    }

    pub(crate) fn path(&self) -> PathBuf {
        format!("/tmp/perf-{}.map", self.own_pid).into()
    }
}

/// The maps that a child inherits from a process which forks it now, the oldest first. `known` are
/// the maps that the parent inherited itself.
#[must_use]
pub fn maps_at_fork(parent: Pid, known: Option<&[ParentMap]>) -> Vec<ParentMap> {
    let mut maps = known.map_or_else(|| maps_of_ancestors(parent), <[ParentMap]>::to_vec);
    maps.extend(ParentMap::at_fork(parent));
    let beyond = maps.len().saturating_sub(MAX_GENERATIONS);
    maps.drain(..beyond);
    maps
}

/// The maps of the ancestors of a process whose fork was not seen: the ancestors that execute the
/// same program.
#[must_use]
pub fn maps_of_ancestors(pid: Pid) -> Vec<ParentMap> {
    let mut maps = Vec::new();
    let Ok(mut dir) = ProcDir::open(pid) else {
        return maps;
    };
    let Ok(program) = dir.link("exe") else {
        return maps;
    };
    while maps.len() < MAX_GENERATIONS {
        let stat = dir.leader_stat().ok();
        let parent = stat.and_then(|stat| relatives_of(&stat)[0]);
        let Some(above) = parent.and_then(|parent| ProcDir::open(parent).ok()) else {
            break;
        };
        if above.link("exe").ok().as_ref() != Some(&program) {
            break;
        }
        maps.extend(ParentMap::of(&above));
        dir = above;
    }
    maps.reverse();
    maps
}
