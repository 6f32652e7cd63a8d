//! The groups that processes belong to: unit, container, pod, control group, user.

use experiment_format::groups::{is_container, is_in_cgroup, is_unit};
use experiment_format::reader::Experiment;

use super::ProcessInfo;

/// A kind of groups of processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupKind {
    /// A unit of systemd.
    Unit,
    /// A container, by its id or name.
    Container,
    /// A pod of Kubernetes, by its UID.
    Pod,
    /// A control group, by its path.
    Cgroup,
    /// A user, by number.
    User,
}

impl GroupKind {
    /// All kinds with their names.
    pub const ALL: [(GroupKind, &'static str); 5] = [
        (GroupKind::Unit, "unit"),
        (GroupKind::Container, "container"),
        (GroupKind::Pod, "pod"),
        (GroupKind::Cgroup, "cgroup"),
        (GroupKind::User, "user"),
    ];

    /// Returns its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        let mut all = GroupKind::ALL.iter();
        all.find(|(kind, _)| *kind == self)
            .map_or("", |(_, name)| name)
    }

    /// Returns the kind of a name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<GroupKind> {
        let mut all = GroupKind::ALL.iter();
        all.find(|(_, own)| *own == name).map(|(kind, _)| *kind)
    }

    /// Returns whether a group of this kind is the wanted one: a control group also by one above
    /// it, a container also by the beginning of its id, a service also without its ending.
    #[must_use]
    pub fn is(self, group: &str, wanted: &str) -> bool {
        match self {
            GroupKind::Unit => is_unit(group, wanted),
            GroupKind::Container => is_container(group, wanted),
            GroupKind::Cgroup => is_in_cgroup(group, wanted),
            GroupKind::Pod | GroupKind::User => group == wanted,
        }
    }
}

/// The groups that a process belongs to, by the header and the comments of its experiment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProcessGroups([Option<String>; GroupKind::ALL.len()]);

impl ProcessGroups {
    /// Returns the groups of a subexperiment's process.
    #[must_use]
    pub fn of(source: &Experiment) -> ProcessGroups {
        let comment = |key| source.comment(key).map(str::to_owned);
        let container = || match &source.header().container {
            Some(container) => Some(container.id.clone()),
            // A container that was identified later: its runtime comes first, then its id.
            None => Some(comment("container: ")?.split_once(' ')?.1.to_owned()),
        };
        ProcessGroups(GroupKind::ALL.map(|(kind, _)| match kind {
            GroupKind::Unit => comment("unit: "),
            GroupKind::Container => container(),
            GroupKind::Pod => comment("pod: "),
            GroupKind::Cgroup => comment("cgroup: "),
            GroupKind::User => comment("user id: "),
        }))
    }

    /// Returns the group of a kind.
    #[must_use]
    pub fn get(&self, kind: GroupKind) -> Option<&str> {
        self.0[kind as usize].as_deref()
    }
}

impl ProcessInfo {
    /// Returns the group that the process belongs to, or words for none and for an unknown one.
    #[must_use]
    pub fn group(&self, kind: GroupKind) -> String {
        match self.groups.get(kind) {
            Some(name) => name.to_owned(),
            None if self.followed => format!("(no {})", kind.name()),
            None => "(not followed)".to_owned(),
        }
    }
}
