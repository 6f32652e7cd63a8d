//! The rule of `-F`, `-T` and `--descendants` applied to the processes of a recording, and how
//! these descend from the load.
//!
//! Whether a process belongs to a group is read when it is found and when it executes a program:
//! until then it is where its parent is. One that is moved while its program runs stays what it
//! was.

use std::collections::HashMap;

use experiment_format::ids::Pid;

use super::{Candidate, Follow, FollowRule};
use crate::process::{Lineages, ProcessTable, TrackedProcess};

/// The policy by which processes are followed.
#[derive(Debug)]
pub struct FollowPolicy {
    rule: FollowRule,
    /// The load until it executes its program: its line of descent begins there.
    load: Option<Pid>,
    lineages: Option<Lineages>,
    /// Whether each process belongs to the group of the rule, if it has one.
    members: HashMap<Pid, bool>,
}

impl FollowPolicy {
    /// Returns the policy of a rule.
    #[must_use]
    pub fn new(rule: FollowRule) -> FollowPolicy {
        FollowPolicy {
            rule,
            load: None,
            lineages: None,
            members: HashMap::new(),
        }
    }

    /// Adds the load, which is followed unless a pattern decides, and which begins a line of
    /// descent.
    pub fn add_load(&mut self, pid: Pid) {
        if matches!(self.rule.follow, Follow::On | Follow::All | Follow::Load) {
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
            in_group: self.is_member(pid),
        })
    }

    /// Whether the rule chooses a process of which only the name is known.
    #[must_use]
    pub fn chooses_name(&self, pid: Pid, name: &[u8]) -> bool {
        self.rule.follow.wants(&Candidate {
            pid,
            name: Some(name),
            executable: None,
            ticked: false,
            in_group: self.is_member(pid),
        })
    }

    fn is_member(&self, pid: Pid) -> bool {
        self.members.get(&pid).copied().unwrap_or(false)
    }

    /// Records a process that the snapshot found.
    pub fn found(&mut self, pid: Pid) {
        if let Follow::Group(group) = &self.rule.follow {
            self.members
                .insert(pid, group.has_process(pid).unwrap_or(false));
        }
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
            || self.names_pid(pid)
            || tracked.is_some_and(|process| process.chosen)
            || self.chooses(processes, pid, false)
    }

    /// Records that `parent` forked `pid`.
    pub fn forked(&mut self, pid: Pid, parent: Pid) {
        if matches!(self.rule.follow, Follow::Group(_)) {
            self.members.insert(pid, self.is_member(parent));
        }
        if let Some(lineages) = &mut self.lineages {
            lineages.forked(pid, parent);
        }
    }

    /// Records that `pid` executed a program.
    pub fn executed(&mut self, pid: Pid) {
        if let Follow::Group(group) = &self.rule.follow
            && let Some(is_member) = group.has_process(pid)
        {
            self.members.insert(pid, is_member);
        }
        if self.load == Some(pid) {
            self.load = None;
            self.lineages = Some(Lineages::new(pid));
        } else if let Some(lineages) = &mut self.lineages {
            lineages.executed(pid);
        }
    }

    /// Drops a process that is gone.
    pub fn exited(&mut self, pid: Pid) {
        self.members.remove(&pid);
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
