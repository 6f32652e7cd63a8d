//! Groups of processes: a control group, a container, a unit, a pod or a user.

use std::fmt;
use std::fs::File;
use std::io::Read as _;

use experiment_format::groups::{is_container, is_in_cgroup, is_unit};
use experiment_format::ids::Pid;

use crate::process::{Cgroup, effective_uid_of};

/// Max bytes that are read of a file below `/proc`.
const MAX_PROC_FILE_BYTES: u64 = 16 * 1024;

/// What the processes of a group have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupRule {
    /// The control group of this path, or one below it.
    Cgroup(String),
    /// The container of this name, or whose id begins with this.
    Container(String),
    /// The unit of systemd with this name; without a suffix it is a service.
    Unit(String),
    /// The pod with this UID.
    Pod(String),
    /// The effective user id.
    User(u32),
}

impl fmt::Display for GroupRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GroupRule::Cgroup(path) => write!(f, "control group {path}"),
            GroupRule::Container(id) => write!(f, "container {id}"),
            GroupRule::Unit(name) => write!(f, "unit {name}"),
            GroupRule::Pod(uid) => write!(f, "pod {uid}"),
            GroupRule::User(uid) => write!(f, "user {uid}"),
        }
    }
}

impl GroupRule {
    /// Returns whether a process belongs to the group; `None` if that can't be read, as after its
    /// exit.
    #[must_use]
    pub fn has_process(&self, pid: Pid) -> Option<bool> {
        let read = |name: &str| {
            let file = File::open(format!("/proc/{pid}/{name}")).ok()?;
            let mut bytes = Vec::new();
            file.take(MAX_PROC_FILE_BYTES)
                .read_to_end(&mut bytes)
                .ok()?;
            Some(bytes)
        };
        match self {
            GroupRule::User(uid) => Some(effective_uid_of(&read("status")?)? == *uid),
            _ => Some(self.has(&Cgroup::of(&read("cgroup")?)?)),
        }
    }

    /// Returns whether the processes of a control group belong to the group.
    #[must_use]
    pub fn has(&self, cgroup: &Cgroup) -> bool {
        match self {
            GroupRule::Cgroup(path) => is_in_cgroup(&cgroup.path, path),
            GroupRule::Container(id) => {
                let container = cgroup.container.as_ref();
                container.is_some_and(|container| is_container(&container.id, id))
            }
            GroupRule::Unit(name) => {
                let unit = cgroup.unit.as_deref();
                unit.is_some_and(|unit| is_unit(unit, name))
            }
            GroupRule::Pod(uid) => cgroup.pod.as_ref() == Some(uid),
            GroupRule::User(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "3f4e0c1de4f24f0c8d26f8b3a1f36d53e6f0a6c27b9f0c2a5b3c4d5e6f708192";

    #[test]
    fn processes_belong_to_what_their_control_group_names() {
        use GroupRule::{Container, Pod, Unit, User};
        let has = |rule: GroupRule, cgroup: &str| {
            let text = format!("0::{}", cgroup.replace("ID", ID));
            rule.has(&Cgroup::of(text.as_bytes()).unwrap())
        };
        let cgroup = |path: &str| GroupRule::Cgroup(path.to_owned());
        let nginx = "/system.slice/nginx.service/worker";
        for path in ["/", "/system.slice", "/system.slice/", nginx] {
            assert!(has(cgroup(path), nginx), "{path}");
        }
        for path in [
            "/system",
            "/user.slice",
            "/system.slice/nginx.service/worker/1",
        ] {
            assert!(!has(cgroup(path), nginx), "{path}");
        }
        assert!(has(Unit("nginx".into()), nginx) && has(Unit("nginx.service".into()), nginx));
        assert!(!has(Unit("ngin".into()), nginx) && !has(User(0), nginx));
        let pod = "/kubepods.slice/kubepods-pod1_2.slice/crio-ID.scope";
        assert!(has(Pod("1-2".into()), pod) && !has(Pod("1".into()), pod));
        assert!(has(Container(ID[..12].into()), pod));
        assert!(!has(Container(ID[1..].into()), pod) && !has(Container(ID.into()), nginx));
    }

    #[test]
    fn a_running_process_is_asked_and_none_is_unknown() {
        let own = Pid(std::process::id());
        assert_eq!(GroupRule::Cgroup("/".into()).has_process(own), Some(true));
        let uid = nix::unistd::geteuid().as_raw();
        assert_eq!(GroupRule::User(uid).has_process(own), Some(true));
        assert_eq!(GroupRule::User(uid + 1).has_process(own), Some(false));
        assert_eq!(GroupRule::User(uid).has_process(Pid(u32::MAX)), None);
    }
}
