//! The control group of a process, and the unit, pod and container that it belongs to.

use experiment_format::text::printable;
use serde::Serialize;

use super::container::{Container, container_of, without_escape};

/// The control group of a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cgroup {
    /// The path: of version 2, or else of systemd's hierarchy, or else the longest one.
    #[serde(rename = "cgroup")]
    pub path: String,
    /// The unit of systemd that it belongs to: the innermost service, or else the innermost scope,
    /// or else the innermost mount, socket or swap, whose helper programs have groups too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unit: Option<String>,
    /// The UID of the Kubernetes pod that it belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// The container that it belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<Container>,
}

impl Cgroup {
    /// Parses a `/proc/PID/cgroup`: lines of `number:controllers:path`.
    #[must_use]
    pub fn of(cgroup: &[u8]) -> Option<Cgroup> {
        let text = String::from_utf8_lossy(cgroup);
        let lines = || {
            text.lines().filter_map(|line| {
                let mut parts = line.splitn(3, ':');
                Some((parts.next()?, parts.next()?, parts.next()?))
            })
        };
        let in_version_2 = lines().find(|(number, _, path)| *number == "0" && *path != "/");
        let in_systemd = || lines().find(|(_, name, path)| *name == "name=systemd" && *path != "/");
        let (_, _, path) = in_version_2
            .or_else(in_systemd)
            .or_else(|| lines().max_by_key(|(_, _, path)| path.len()))?;
        let parts = || path.rsplit('/');
        let ends = |with: &str| parts().find(|part| part.ends_with(with));
        let helped = || {
            let kinds = [".mount", ".socket", ".swap"];
            parts().find(|part| kinds.iter().any(|kind| part.ends_with(kind)))
        };
        let unit = ends(".service").or_else(|| ends(".scope")).or_else(helped);
        let unit = unit.map(without_escape);
        Some(Cgroup {
            path: printable(path.as_bytes()),
            unit: unit.map(|unit| printable(unit.as_bytes())),
            pod: lines().find_map(|(_, _, path)| pod_of(path)),
            container: container_of(cgroup),
        })
    }

    /// Whether it is the root of all groups, which says nothing. With groups of version 1, zombies
    /// are in it.
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.path == "/"
    }
}

/// Returns the UID of the pod that a path names: `kubepods/burstable/podUID`, or with the systemd
/// driver `kubepods-burstable-podUID.slice`, in which hyphens of the UID are underscores.
fn pod_of(path: &str) -> Option<String> {
    let parts = path.split('/').flat_map(|part| part.split(':'));
    parts.rev().find_map(|part| {
        let slice = part.strip_suffix(".slice");
        let uid = match slice {
            Some(slice) if slice.contains("kubepods-") => slice.rsplit_once("-pod")?.1,
            Some(_) => return None,
            None if path.contains("kubepods") => part.strip_prefix("pod")?,
            None => return None,
        };
        let is_uid = |byte: u8| byte.is_ascii_hexdigit() || matches!(byte, b'-' | b'_');
        let fits = !uid.is_empty() && uid.len() <= 64 && uid.bytes().all(is_uid);
        fits.then(|| uid.replace('_', "-"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "3f4e0c1de4f24f0c8d26f8b3a1f36d53e6f0a6c27b9f0c2a5b3c4d5e6f708192";

    fn shown(text: &str) -> String {
        let Some(cgroup) = Cgroup::of(text.replace("ID", ID).as_bytes()) else {
            return "none".to_owned();
        };
        let word = |word: &Option<String>| word.clone().unwrap_or_else(|| "-".to_owned());
        let (unit, pod) = (word(&cgroup.unit), word(&cgroup.pod));
        let container = word(&cgroup.container.map(|container| container.id));
        format!("{} {unit} {pod} {container}", cgroup.path).replace(ID, "ID")
    }

    #[test]
    fn a_path_names_unit_pod_and_container() {
        for (text, expected) in [
            (
                "0::/system.slice/nginx.service\n",
                "/system.slice/nginx.service nginx.service - -",
            ),
            (
                "0::/system.slice/nginx.service/worker\n",
                "/system.slice/nginx.service/worker nginx.service - -",
            ),
            (
                "0::/user.slice/user-1000.slice/user@1000.service/app.slice/vim.scope",
                "/user.slice/user-1000.slice/user@1000.service/app.slice/vim.scope user@1000.service - -",
            ),
            (
                "0::/system.slice/_cpu.service",
                "/system.slice/_cpu.service cpu.service - -",
            ),
            (
                "0::/system.slice/system-getty.slice/getty@tty1.service",
                "/system.slice/system-getty.slice/getty@tty1.service getty@tty1.service - -",
            ),
            (
                "0::/system.slice/srv-my\\x2ddata.mount",
                "/system.slice/srv-my\\x2ddata.mount srv-my\\x2ddata.mount - -",
            ),
            (
                "0::/system.slice/web.service/libpod-payload-ID",
                "/system.slice/web.service/libpod-payload-ID web.service - ID",
            ),
            (
                "0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod8d2a_1c.slice/cri-containerd-ID.scope",
                "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod8d2a_1c.slice/cri-containerd-ID.scope cri-containerd-ID.scope 8d2a-1c ID",
            ),
            (
                "0::/user.slice/user-0.slice/session-3.scope",
                "/user.slice/user-0.slice/session-3.scope session-3.scope - -",
            ),
            (
                "0::/system.slice/docker-ID.scope",
                "/system.slice/docker-ID.scope docker-ID.scope - ID",
            ),
            (
                "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod8d2a_1c.slice/cri-containerd-ID.scope",
                "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod8d2a_1c.slice/cri-containerd-ID.scope cri-containerd-ID.scope 8d2a-1c ID",
            ),
            (
                "4:cpu:/kubepods/besteffort/pod8d2a2b1c-0d1e/ID\n0::/\n",
                "/kubepods/besteffort/pod8d2a2b1c-0d1e/ID - 8d2a2b1c-0d1e ID",
            ),
            (
                "5:memory:/system.slice/containerd.service/kubepods-pod1.slice:cri-containerd:ID",
                "/system.slice/containerd.service/kubepods-pod1.slice:cri-containerd:ID containerd.service 1 ID",
            ),
            (
                "9:name=systemd:/system.slice/ssh.service\n4:memory:/a/very/long/path/without/meaning\n0::/\n",
                "/system.slice/ssh.service ssh.service - -",
            ),
            ("1:name=systemd:/\n0::/\n", "/ - - -"),
            ("0::/podman/poda1", "/podman/poda1 - - -"),
            ("", "none"),
            ("garbage", "none"),
        ] {
            assert_eq!(shown(text), expected, "{text}");
        }
    }
}
