//! The container that a process runs in, found by its control group.

use experiment_format::text::printable;
use serde::Serialize;

/// Longest name that can be a container's, bytes.
const MAX_CONTAINER_NAME_BYTES: usize = 128;

/// The container of a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Container {
    /// The software that runs it.
    pub runtime: ContainerRuntime,
    /// Its id, 64 hexadecimal digits; or its name.
    pub id: String,
}

impl From<Container> for experiment_format::log::Container {
    fn from(container: Container) -> Self {
        Self {
            runtime: container.runtime.name().to_owned(),
            id: container.id,
        }
    }
}

/// The software that runs a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum ContainerRuntime {
    /// Docker.
    Docker,
    /// containerd, by the Kubernetes interface.
    Containerd,
    /// CRI-O.
    Crio,
    /// Podman, and others that use libpod.
    Podman,
    /// LXC and LXD; the id is a name.
    Lxc,
    /// systemd-nspawn and virtual machines that are registered with machined; the id is a name.
    Machine,
    /// A pod of Kubernetes, whose runtime is not known.
    Kubernetes,
    /// Amazon ECS on Fargate; the id is the task's and a number.
    Ecs,
}

impl ContainerRuntime {
    /// Returns the name in an experiment.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            ContainerRuntime::Docker => "docker",
            ContainerRuntime::Containerd => "containerd",
            ContainerRuntime::Crio => "crio",
            ContainerRuntime::Podman => "podman",
            ContainerRuntime::Lxc => "lxc",
            ContainerRuntime::Machine => "machine",
            ContainerRuntime::Kubernetes => "kubernetes",
            ContainerRuntime::Ecs => "ecs",
        }
    }
}

/// Returns the container of a `/proc/PID/cgroup`: lines of `number:controllers:path`.
///
/// Of several parts of a path that name one, the innermost counts: a container may be in a pod, or
/// in another container.
#[must_use]
pub fn container_of(cgroup: &[u8]) -> Option<Container> {
    let text = String::from_utf8_lossy(cgroup);
    let paths = text.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    let mut pod = None;
    for path in paths {
        let parts: Vec<&str> = path.split('/').collect();
        for index in (0..parts.len()).rev() {
            let parent = index.checked_sub(1).map_or("", |before| parts[before]);
            match container_in(parent, parts[index], path) {
                Some(Container {
                    runtime: ContainerRuntime::Kubernetes,
                    id,
                }) => {
                    pod.get_or_insert(Container {
                        runtime: ContainerRuntime::Kubernetes,
                        id,
                    });
                }
                Some(container) => return Some(container),
                None => {}
            }
        }
    }
    pod
}

/// Returns the container that a part of a path names, if it does. `parent` is the part before it.
fn container_in(parent: &str, part: &str, path: &str) -> Option<Container> {
    let named = |runtime, id: &str| {
        let fits = !id.is_empty() && id.len() <= MAX_CONTAINER_NAME_BYTES;
        fits.then(|| Container {
            runtime,
            id: printable(id.as_bytes()),
        })
    };
    let part = without_escape(part);
    let stem = part
        .strip_suffix(".scope")
        .or_else(|| part.strip_suffix(".service"))
        .unwrap_or(part);
    // With `libpod-payload` the container is in the group of the unit that runs Podman (Quadlet).
    const PREFIXES: [(&str, ContainerRuntime); 6] = [
        ("docker", ContainerRuntime::Docker),
        ("cri-containerd", ContainerRuntime::Containerd),
        ("nerdctl", ContainerRuntime::Containerd),
        ("crio", ContainerRuntime::Crio),
        ("libpod", ContainerRuntime::Podman),
        ("libpod-payload", ContainerRuntime::Podman),
    ];
    let runtime_of = |prefix: &str| {
        let known = PREFIXES.iter().find(|(known, _)| *known == prefix);
        known.map(|(_, runtime)| *runtime)
    };
    if let Some((prefix, id)) = stem.rsplit_once('-')
        && is_id(id)
        && let Some(runtime) = runtime_of(prefix)
    {
        return named(runtime, id);
    }
    // What a runtime without systemd's driver makes of a name for systemd: `SLICE:PREFIX:ID`.
    if let Some((before, id)) = stem.rsplit_once(':')
        && is_id(id)
        && let Some((_, prefix)) = before.rsplit_once(':')
        && let Some(runtime) = runtime_of(prefix)
    {
        return named(runtime, id);
    }
    if let Some(name) = stem.strip_prefix("machine-")
        && part.ends_with(".scope")
    {
        return named(ContainerRuntime::Machine, &unescaped(name));
    }
    if let Some(name) = stem.strip_prefix("systemd-nspawn@") {
        return named(ContainerRuntime::Machine, &unescaped(name));
    }
    for prefix in ["lxc.payload.", "lxc.monitor."] {
        if let Some(name) = part.strip_prefix(prefix) {
            return named(ContainerRuntime::Lxc, name);
        }
    }
    match parent {
        "lxc" | "lxc.payload" => return named(ContainerRuntime::Lxc, part),
        "docker" if is_id(part) => return named(ContainerRuntime::Docker, part),
        _ => {}
    }
    // `ecs/TASK/ID`: on an instance the id is Docker's, on Fargate it begins with the task's.
    if path.contains("/ecs/") {
        if is_id(part) {
            return named(ContainerRuntime::Docker, part);
        }
        if let Some((task, number)) = part.rsplit_once('-')
            && task == parent
            && number.bytes().all(|byte| byte.is_ascii_digit())
        {
            return named(ContainerRuntime::Ecs, part);
        }
    }
    // `kubepods/burstable/podUID/ID` names the pod and the container, but not the runtime.
    let in_pod = path.contains("kubepods");
    if in_pod && is_id(part) {
        return named(ContainerRuntime::Kubernetes, part);
    }
    None
}

/// A group's name without the underscore with which systemd escapes names that the kernel may use
/// for a file, such as `cpu.service`.
pub(super) fn without_escape(name: &str) -> &str {
    name.strip_prefix('_').unwrap_or(name)
}

/// Returns whether a text is 64 hexadecimal digits.
fn is_id(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Returns a unit's name without systemd's escapes, as `\x2d`.
fn unescaped(name: &str) -> String {
    let mut out = Vec::new();
    let mut rest = name.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let byte = rest
            .strip_prefix(b"\\x")
            .and_then(|digits| std::str::from_utf8(digits.get(..2)?).ok())
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        rest = if byte.is_some() { &rest[4..] } else { after };
        out.push(byte.unwrap_or(*first));
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "3f4e0c1de4f24f0c8d26f8b3a1f36d53e6f0a6c27b9f0c2a5b3c4d5e6f708192";

    fn container(line: &str) -> Option<(ContainerRuntime, String)> {
        let line = line.replace("ID", ID);
        container_of(line.as_bytes()).map(|container| (container.runtime, container.id))
    }

    #[test]
    fn containers_are_known_by_their_control_groups() {
        use ContainerRuntime::{Containerd, Crio, Docker, Ecs, Kubernetes, Lxc, Machine, Podman};
        // Those that are named by the 64 digits of their id.
        let by_id: [(_, &[&str]); 5] = [
            (
                Docker,
                &[
                    "0::/system.slice/docker-ID.scope\n",
                    "0::/system.slice/docker-ID.scope/init.scope\n",
                    "0::/user.slice/user-1000.slice/user@1000.service/user.slice/docker-ID.scope",
                    "12:pids:/docker/ID\n11:cpu,cpuacct:/docker/ID\n1:name=systemd:/docker/ID\n",
                    "0::/docker/ID/docker/ID/init",
                    "0::/custom.slice/docker-ID.scope",
                    "3:cpu:/system.slice:docker:ID\n",
                    "0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod1.slice/docker-ID.scope",
                    "9:memory:/ecs/cb4f1b7a-9e2c-4b5e-8d8f-0b4f6f1e2d3c/ID\n",
                    "0::/ecstasks.slice/ecstasks-34dc0b5e626f2c5c4c5170e34b10e765.slice/docker-ID.scope",
                ],
            ),
            (
                Containerd,
                &[
                    "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1b2c.slice/cri-containerd-ID.scope",
                    "5:memory:/system.slice/containerd.service/kubepods-besteffort-pod1.slice:cri-containerd:ID",
                    "0::/user.slice/user-1000.slice/user@1000.service/user.slice/nerdctl-ID.scope",
                    "3:cpu:/system.slice:nerdctl:ID\n",
                    "0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/kubelet-kubepods-besteffort-pod1.slice/cri-containerd-ID.scope",
                ],
            ),
            (
                Kubernetes,
                &["4:cpu:/kubepods/burstable/pod8d2a2b1c-0d1e/ID"],
            ),
            (
                Crio,
                &[
                    "0::/kubepods.slice/kubepods-pod1.slice/crio-ID.scope/container",
                    "4:cpu:/kubepods/burstable/pod1/crio-ID\n",
                    "0::/kubepods.slice/kubepods-pod1.slice:crio:ID",
                ],
            ),
            (
                Podman,
                &[
                    "0::/machine.slice/libpod-ID.scope/container",
                    "0::/user.slice/user-0.slice/session-3.scope/libpod_parent/libpod-ID",
                    "0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-ID.scope/container",
                    "0::/system.slice/web.service/libpod-payload-ID",
                    "0::/user.slice/user-1000.slice/user@1000.service/app.slice/web.service/libpod-payload-ID/container",
                    "0::/machine.slice/machine-libpod_pod_ID.slice/libpod-ID.scope",
                    "4:memory:/libpod_parent/libpod-ID\n",
                ],
            ),
        ];
        for (runtime, lines) in by_id {
            for line in lines {
                assert_eq!(container(line), Some((runtime, ID.to_owned())), "{line}");
            }
        }
        for (line, runtime, id) in [
            (
                "9:memory:/ecs/34dc0b5e626f2c5c4c5170e34b10e765/34dc0b5e626f2c5c4c5170e34b10e765-1234567890\n",
                Ecs,
                "34dc0b5e626f2c5c4c5170e34b10e765-1234567890",
            ),
            ("0::/lxc.payload.web1/init.scope", Lxc, "web1"),
            ("0::/lxc.payload/web1", Lxc, "web1"),
            ("0::/lxc.monitor.web1", Lxc, "web1"),
            ("0::/lxc/101/ns/system.slice/ssh.service", Lxc, "101"),
            (
                "0::/machine.slice/machine-qemu\\x2d1\\x2dweb.scope/libvirt/emulator",
                Machine,
                "qemu-1-web",
            ),
            ("9:freezer:/lxc/web1\n", Lxc, "web1"),
            (
                "0::/machine.slice/machine-debian\\x2dtest.scope/payload",
                Machine,
                "debian-test",
            ),
            (
                "0::/machine.slice/systemd-nspawn@web.service/payload/system.slice/cron.service",
                Machine,
                "web",
            ),
        ] {
            assert_eq!(container(line), Some((runtime, id.to_owned())), "{line}");
        }
        for line in [
            "0::/init.scope",
            "0::/system.slice/docker.service",
            "0::/user.slice/user-1000.slice/session-2.scope",
            "0::/system.slice/docker-123.scope",
            "1:name=systemd:/\n0::/\n",
            "0::/system.slice/libpod-conmon-ID.scope",
            "0::/system.slice/web.service/supervisor",
            "0::/machine.slice/crio-conmon-ID.scope",
            "0::/system.slice/machine-check.service",
            "0::/ecs/34dc0b5e626f2c5c4c5170e34b10e765",
            "",
            "garbage",
        ] {
            assert_eq!(container(line), None, "{line}");
        }
    }
}
