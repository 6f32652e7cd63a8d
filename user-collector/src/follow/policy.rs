//! The rule of `-F`, `-T` and `--descendants` applied to the processes of a recording, and how
//! these descend from the load.
//!
//! Whether a process belongs to a group is read when it is found and when it executes a program:
//! until then it is where its parent is. One that is moved while its program runs stays what it
//! was.

use experiment_format::ids::Pid;

use super::{Candidate, Follow, FollowRule};
use crate::process::Descent;

/// The policy by which processes are followed.
#[derive(Debug)]
pub struct FollowPolicy {
    rule: FollowRule,
    /// The load until it executes its program: its line of descent begins there.
    load: Option<Pid>,
}

/// What the policy keeps of a process.
#[derive(Debug, Default)]
pub struct FollowState {
    /// It belongs to the group of the rule, if that has one.
    pub in_group: bool,
    /// How it descends from the load, if it does.
    descent: Option<Box<Descent>>,
}

impl FollowState {
    /// The state of a child that the process forks.
    pub fn fork(&mut self) -> FollowState {
        let descent = self.descent.as_mut();
        FollowState {
            in_group: self.in_group,
            descent: descent.map(|descent| Box::new(descent.fork())),
        }
    }

    /// How the process descends from the load, if it does and is not the load.
    #[must_use]
    pub fn descent(&self) -> Option<String> {
        let lineage = self.descent.as_ref()?.lineage()?;
        (!lineage.is_empty()).then(|| lineage.to_owned())
    }
}

impl FollowPolicy {
    /// Returns the policy of a rule.
    #[must_use]
    pub fn new(rule: FollowRule) -> FollowPolicy {
        FollowPolicy { rule, load: None }
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
    pub fn chooses(&self, candidate: &Candidate<'_>) -> bool {
        self.rule.follow.wants(candidate)
    }

    /// Returns whether a process is followed, or may be without another name. `is_chosen` is
    /// whether it was chosen before.
    #[must_use]
    pub fn may_follow(&self, candidate: &Candidate<'_>, is_chosen: bool) -> bool {
        matches!(self.rule.follow, Follow::On | Follow::All)
            || self.names_pid(candidate.pid)
            || is_chosen
            || self.chooses(candidate)
    }

    /// Records a process that the snapshot found.
    pub fn found(&self, pid: Pid, process: &mut FollowState) {
        if let Follow::Group(group) = &self.rule.follow {
            process.in_group = group.has_process(pid).unwrap_or(false);
        }
    }

    /// Records that a process executed a program.
    pub fn executed(&mut self, pid: Pid, process: &mut FollowState) {
        if let Follow::Group(group) = &self.rule.follow
            && let Some(in_group) = group.has_process(pid)
        {
            process.in_group = in_group;
        }
        if self.load == Some(pid) {
            self.load = None;
            process.descent = Some(Box::new(Descent::of_load()));
        } else if let Some(descent) = &mut process.descent {
            descent.executed();
        }
    }
}
