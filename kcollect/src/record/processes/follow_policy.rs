//! Which processes are followed: the rule of `-F`, `-T` and `--descendants`, and how processes
//! descend from the load.

use experiment_format::ids::Pid;
use user_collector::follow::{Candidate, Follow, FollowRule};
use user_collector::process::Lineages;
use user_collector::process::ProcessTable;

use super::tracker::TrackedProcess;

/// Decides which processes are followed.
#[derive(Debug)]
pub struct FollowPolicy {
    rule: FollowRule,
    /// The load until it executes its program: its line of descent begins there.
    load: Option<Pid>,
    lineages: Option<Lineages>,
}

impl FollowPolicy {
    /// Returns the policy of a rule.
    #[must_use]
    pub fn new(rule: FollowRule) -> FollowPolicy {
        FollowPolicy {
            rule,
            load: None,
            lineages: None,
        }
    }

    /// Adds the load, which is followed unless a pattern decides, and which begins a line of
    /// descent.
    pub fn add_load(&mut self, pid: Pid) {
        if matches!(self.rule.follow, Follow::On | Follow::All) {
            self.rule.pids.push(pid);
        }
        if self.rule.descendants {
            self.load = Some(pid);
        }
    }

    /// Returns whether the children of a followed process are followed.
    #[must_use]
    pub fn descendants(&self) -> bool {
        self.rule.descendants
    }

    /// Returns whether a process is followed by its number.
    #[must_use]
    pub fn names_pid(&self, pid: Pid) -> bool {
        self.rule.pids.contains(&pid)
    }

    /// Returns whether a process may still be chosen for what it does, without another name.
    #[must_use]
    pub fn waits_for_ticks(&self) -> bool {
        matches!(self.rule.follow, Follow::On)
    }

    /// Returns whether the rule chooses a process as it is now.
    #[must_use]
    pub fn chooses(&self, processes: &ProcessTable, pid: Pid, ticked: bool) -> bool {
        let process = processes.get(pid);
        self.rule.follow.wants(&Candidate {
            pid,
            name: process.and_then(|process| process.name.as_deref()),
            executable: process
                .and_then(|process| process.executable.as_deref())
                .map(|executable| &*executable.path),
            ticked,
        })
    }

    /// Returns whether the rule chooses a process of which nothing but a name is known.
    #[must_use]
    pub fn chooses_name(&self, pid: Pid, name: &[u8]) -> bool {
        self.rule.follow.wants(&Candidate {
            pid,
            name: Some(name),
            executable: None,
            ticked: false,
        })
    }

    /// Returns whether a process is followed, or may be without another name.
    #[must_use]
    pub fn may_follow(
        &self,
        processes: &ProcessTable,
        tracked: Option<&TrackedProcess>,
        pid: Pid,
    ) -> bool {
        matches!(self.rule.follow, Follow::On | Follow::All)
            || tracked.is_some_and(|process| process.chosen)
            || self.chooses(processes, pid, false)
    }

    /// The parent of the process that is forked next with this number waits for its exec.
    pub fn vfork_started(&mut self, pid: Pid) {
        if let Some(lineages) = &mut self.lineages {
            lineages.combined(pid);
        }
    }

    /// `parent` forked `pid`.
    pub fn forked(&mut self, pid: Pid, parent: Pid) {
        if let Some(lineages) = &mut self.lineages {
            lineages.forked(pid, parent);
        }
    }

    /// `pid` executed a program.
    pub fn executed(&mut self, pid: Pid) {
        if self.load == Some(pid) {
            self.load = None;
            self.lineages = Some(Lineages::new(pid));
        } else if let Some(lineages) = &mut self.lineages {
            lineages.executed(pid);
        }
    }

    /// `pid` is gone.
    pub fn exited(&mut self, pid: Pid) {
        if let Some(lineages) = &mut self.lineages {
            lineages.ended(pid);
        }
    }

    /// Returns how a process descends from the load, if it does and is not the load.
    #[must_use]
    pub fn descent(&self, pid: Pid) -> Option<String> {
        let descent = self.lineages.as_ref()?.get(pid)?;
        (!descent.is_empty()).then(|| descent.to_owned())
    }
}
