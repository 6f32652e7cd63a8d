//! ProcessFacts of a process, read from `/proc` when it is first followed.
//!
//! A process may be gone before it is read, or go while it is; it may hide what belongs to another
//! user namespace; and all that it can choose itself, its command line, environment and
//! directories, is anybody's bytes. So each fact is there or not by itself, each is bounded, and
//! nothing fails as a whole. Command line and environment lie in the process's own memory: both are
//! read once and cut at a limit. What is told of them is text that is safe on a terminal.
//!
//! Of two processes that had the number one after the other the facts may be mixed;
//! [`ProcessFacts::start_ticks`] is read before and after, and where they differ nothing of it is told.

use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use experiment_format::layout::printable;
use serde::Serialize;

/// Most bytes of a command line and of an environment that are read.
pub const MAX_TEXT_BYTES: usize = 64 * 1024;
/// Most bytes of the other files.
const MAX_PROC_FILE_BYTES: usize = 16 * 1024;
/// Longest hostname-like name that is believed to be a container's.
const MAX_CONTAINER_NAME_BYTES: usize = 128;

/// Variables in which launchers of parallel programs tell the rank, in the order in which they are
/// believed: a launcher's own before what the resource manager sets beside it.
const RANK_VARIABLES: [&str; 7] = [
    "OMPI_COMM_WORLD_RANK",
    "PMIX_RANK",
    "PMI_RANK",
    "MV2_COMM_WORLD_RANK",
    "MPI_RANKID",
    "ALPS_APP_PE",
    "SLURM_PROCID",
];

/// What is known of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ProcessFacts {
    /// Its command line, quoted as for a shell.
    pub command_line: Option<String>,
    /// Its current directory, as it names it.
    pub cwd: Option<String>,
    /// The program that it executes, as it names it; without the kernel's ` (deleted)`.
    pub executable: Option<String>,
    /// Effective user id.
    pub uid: Option<u32>,
    /// The container that its control group tells of.
    pub container: Option<Container>,
    /// Its rank in a parallel program.
    pub mpi_rank: Option<u32>,
    /// Its number in each of its pid namespaces, the host's first.
    pub ns_pids: Vec<u32>,
    /// When it started, in ticks of the kernel's user interface (a hundredth of a second) since the
    /// machine did.
    pub start_ticks: Option<u64>,
}

/// A container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Container {
    /// Who runs it.
    pub runtime: Runtime,
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

/// Who runs a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Runtime {
    /// Docker.
    Docker,
    /// containerd, by the Kubernetes interface.
    Containerd,
    /// CRI-O.
    Crio,
    /// Podman and what else uses libpod.
    Podman,
    /// LXC and LXD; the id is a name.
    Lxc,
    /// systemd-nspawn and virtual machines that are registered with machined; the id is a name.
    Machine,
    /// A pod of Kubernetes, of a runtime that doesn't tell its name.
    Kubernetes,
}

impl Runtime {
    /// As an experiment has it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Runtime::Docker => "docker",
            Runtime::Containerd => "containerd",
            Runtime::Crio => "crio",
            Runtime::Podman => "podman",
            Runtime::Lxc => "lxc",
            Runtime::Machine => "machine",
            Runtime::Kubernetes => "kubernetes",
        }
    }
}

impl ProcessFacts {
    /// Reads them. What isn't there, or may not be read, is left out.
    #[must_use]
    pub fn read(pid: u32) -> ProcessFacts {
        ProcessFacts::read_in(&Path::new("/proc").join(pid.to_string()))
    }

    /// Are they of a process that started after an instant of CLOCK_MONOTONIC, nanoseconds? Both
    /// clocks are held against each other now, and the kernel tells a start to a hundredth of a
    /// second.
    #[must_use]
    pub fn started_after(&self, at: u64) -> bool {
        const TICK_NS: u64 = 10_000_000;
        let clock = |id| {
            let time = nix::time::clock_gettime(id).ok()?;
            u64::try_from(std::time::Duration::from(time).as_nanos()).ok()
        };
        let asleep = clock(nix::time::ClockId::CLOCK_BOOTTIME)
            .zip(clock(nix::time::ClockId::CLOCK_MONOTONIC))
            .map_or(0, |(boot, awake)| boot.saturating_sub(awake));
        self.start_ticks
            .is_some_and(|ticks| ticks.saturating_mul(TICK_NS) > at.saturating_add(asleep))
    }

    fn read_in(dir: &Path) -> ProcessFacts {
        let text =
            |name: &str| bounded(&dir.join(name), MAX_PROC_FILE_BYTES).map(|(bytes, _)| bytes);
        let link = |name: &str| {
            let target = std::fs::read_link(dir.join(name)).ok()?;
            let bytes = target.as_os_str().as_bytes();
            Some(printable(
                bytes.strip_suffix(b" (deleted)").unwrap_or(bytes),
            ))
        };
        let start = || start_of(&text("stat")?);
        let before = start();
        let status = text("status");
        let facts = ProcessFacts {
            command_line: bounded(&dir.join("cmdline"), MAX_TEXT_BYTES)
                .and_then(|(bytes, cut)| quoted(&bytes, cut)),
            cwd: link("cwd"),
            executable: link("exe"),
            uid: status
                .as_deref()
                .and_then(|status| numbers_of(status, "Uid:").nth(1)),
            container: text("cgroup").and_then(|bytes| container_of(&bytes)),
            mpi_rank: bounded(&dir.join("environ"), MAX_TEXT_BYTES)
                .and_then(|(bytes, _)| rank_of(&bytes)),
            ns_pids: status
                .as_deref()
                .map_or_else(Vec::new, |status| numbers_of(status, "NSpid:").collect()),
            start_ticks: before,
        };
        // Another process came to have the number meanwhile, or this one is gone. What was read is
        // of either.
        if before.is_some() && start().is_some_and(|after| Some(after) != before) {
            return ProcessFacts::default();
        }
        facts
    }
}

/// The beginning of a file, and whether there is more.
fn bounded(path: &Path, most: usize) -> Option<(Vec<u8>, bool)> {
    let mut bytes = Vec::new();
    let file = File::open(path).ok()?;
    // What was read before an error is as good as what a shorter file had.
    let _ = file.take(most as u64 + 1).read_to_end(&mut bytes);
    let cut = bytes.len() > most;
    bytes.truncate(most);
    (!bytes.is_empty()).then_some((bytes, cut))
}

/// The command line from its words, each ended by a NUL; quoted so that a shell would make the same
/// words of it. A line that was cut ends in ` ...`. None where there is no word, as in kernel
/// threads.
#[must_use]
pub fn quoted(words: &[u8], cut: bool) -> Option<String> {
    // A program that writes its state here (setproctitle) may leave one long word and many NULs.
    let end = words.iter().rposition(|byte| *byte != 0)? + 1;
    let mut line = String::new();
    for word in words[..end].split(|byte| *byte == 0) {
        if !line.is_empty() {
            line.push(' ');
        }
        quote(&mut line, word);
    }
    if cut {
        line.push_str(" ...");
    }
    Some(line)
}

fn quote(line: &mut String, word: &[u8]) {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"_-./=:,+@%^".contains(byte);
    let text = printable(word);
    if !word.is_empty() && word.iter().all(plain) {
        line.push_str(&text);
    } else if text.as_bytes() == word {
        line.push('\'');
        line.push_str(&text.replace('\'', "'\\''"));
        line.push('\'');
    } else {
        // What was not printable is spelled out, and this is how a shell takes it back. A backslash
        // that was there before has to be told from the spelling.
        line.push_str("$'");
        for chunk in word.split_inclusive(|byte| matches!(byte, b'\\' | b'\'')) {
            match chunk.split_last() {
                Some((last @ (b'\\' | b'\''), before)) => {
                    line.push_str(&printable(before));
                    line.push('\\');
                    line.push(char::from(*last));
                }
                _ => line.push_str(&printable(chunk)),
            }
        }
        line.push('\'');
    }
}

/// The container of a `/proc/PID/cgroup`: lines of `number:controllers:path`.
///
/// The innermost part of a path that names a container counts: pods have containers inside, and
/// containers may run in containers.
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
                    runtime: Runtime::Kubernetes,
                    id,
                }) => {
                    pod.get_or_insert(Container {
                        runtime: Runtime::Kubernetes,
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

/// What one part of a path, in another one, names.
fn container_in(parent: &str, part: &str, path: &str) -> Option<Container> {
    let named = |runtime, id: &str| {
        let fits = !id.is_empty() && id.len() <= MAX_CONTAINER_NAME_BYTES;
        fits.then(|| Container {
            runtime,
            id: printable(id.as_bytes()),
        })
    };
    let stem = part
        .strip_suffix(".scope")
        .or_else(|| part.strip_suffix(".service"))
        .unwrap_or(part);
    let scopes = [
        ("docker-", Runtime::Docker),
        ("cri-containerd-", Runtime::Containerd),
        ("crio-", Runtime::Crio),
        ("libpod-", Runtime::Podman),
    ];
    for (prefix, runtime) in scopes {
        if let Some(id) = stem.strip_prefix(prefix)
            && is_id(id)
        {
            return named(runtime, id);
        }
    }
    // containerd with the systemd driver in the older form: a slice, `cri-containerd`, the id.
    if let Some((_, id)) = stem.rsplit_once(":cri-containerd:")
        && is_id(id)
    {
        return named(Runtime::Containerd, id);
    }
    if let Some(name) = stem.strip_prefix("machine-") {
        return named(Runtime::Machine, &unescaped(name));
    }
    if let Some(name) = stem.strip_prefix("systemd-nspawn@") {
        return named(Runtime::Machine, &unescaped(name));
    }
    for prefix in ["lxc.payload.", "lxc.monitor."] {
        if let Some(name) = part.strip_prefix(prefix) {
            return named(Runtime::Lxc, name);
        }
    }
    match parent {
        "lxc" | "lxc.payload" => return named(Runtime::Lxc, part),
        "docker" if is_id(part) => return named(Runtime::Docker, part),
        _ => {}
    }
    // `kubepods/burstable/podUID/ID` tells the pod and the container, but not whose.
    let in_pod = path.contains("kubepods");
    if in_pod && is_id(part) {
        return named(Runtime::Kubernetes, part);
    }
    None
}

/// 64 hexadecimal digits.
fn is_id(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// systemd writes bytes that a unit's name can't have as `\x2d`.
fn unescaped(name: &str) -> String {
    let mut out = Vec::new();
    let mut rest = name.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        let byte = rest
            .strip_prefix(b"\\x")
            .and_then(|digits| std::str::from_utf8(digits.get(..2)?).ok())
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        rest = if byte.is_some() { &rest[4..] } else { behind };
        out.push(byte.unwrap_or(*first));
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// The rank among the variables of an environment, each ended by a NUL.
#[must_use]
pub fn rank_of(environ: &[u8]) -> Option<u32> {
    let value = |name: &str| {
        environ.split(|byte| *byte == 0).find_map(|variable| {
            let value = variable.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
            std::str::from_utf8(value).ok()?.parse().ok()
        })
    };
    RANK_VARIABLES.iter().find_map(|name| value(name))
}

/// The numbers in a line of a `/proc/PID/status`.
fn numbers_of<'a>(status: &'a [u8], line: &'a str) -> impl Iterator<Item = u32> + 'a {
    let line = status
        .split(|byte| *byte == b'\n')
        .find_map(|text| text.strip_prefix(line.as_bytes()));
    let numbers = std::str::from_utf8(line.unwrap_or_default()).unwrap_or_default();
    numbers
        .split_whitespace()
        .map_while(|number| number.parse().ok())
}

/// Field 22 of a `/proc/PID/stat`. The second one, the name in parentheses, may hold anything.
fn start_of(stat: &[u8]) -> Option<u64> {
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    let text = std::str::from_utf8(&stat[end + 1..]).ok()?;
    text.split_whitespace().nth(22 - 3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ID: &str = "3f4e0c1de4f24f0c8d26f8b3a1f36d53e6f0a6c27b9f0c2a5b3c4d5e6f708192";

    fn container(line: &str) -> Option<(Runtime, String)> {
        let line = line.replace("ID", ID);
        container_of(line.as_bytes()).map(|container| (container.runtime, container.id))
    }

    #[test]
    fn containers_are_known_by_their_control_groups() {
        use Runtime::{Containerd, Crio, Docker, Kubernetes, Lxc, Machine, Podman};
        for (line, runtime, id) in [
            ("0::/system.slice/docker-ID.scope\n", Docker, ID),
            ("0::/system.slice/docker-ID.scope/init.scope\n", Docker, ID),
            (
                "0::/user.slice/user-1000.slice/user@1000.service/user.slice/docker-ID.scope",
                Docker,
                ID,
            ),
            (
                "12:pids:/docker/ID\n11:cpu,cpuacct:/docker/ID\n1:name=systemd:/docker/ID\n",
                Docker,
                ID,
            ),
            (
                "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1b2c.slice/cri-containerd-ID.scope",
                Containerd,
                ID,
            ),
            (
                "5:memory:/system.slice/containerd.service/kubepods-besteffort-pod1.slice:cri-containerd:ID",
                Containerd,
                ID,
            ),
            (
                "4:cpu:/kubepods/burstable/pod8d2a2b1c-0d1e/ID",
                Kubernetes,
                ID,
            ),
            (
                "0::/kubepods.slice/kubepods-pod1.slice/crio-ID.scope/container",
                Crio,
                ID,
            ),
            ("0::/machine.slice/libpod-ID.scope/container", Podman, ID),
            (
                "0::/user.slice/user-0.slice/session-3.scope/libpod_parent/libpod-ID",
                Podman,
                ID,
            ),
            ("0::/lxc.payload.web1/init.scope", Lxc, "web1"),
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
            "",
            "garbage",
        ] {
            assert_eq!(container(line), None, "{line}");
        }
    }

    #[test]
    fn a_command_line_can_be_given_to_a_shell() {
        let line = |words: &[u8]| quoted(words, false);
        assert_eq!(line(b"ls\0-l\0/tmp/a b\0").unwrap(), "ls -l '/tmp/a b'");
        assert_eq!(line(b"x\0\0it's\0").unwrap(), "x '' 'it'\\''s'");
        assert_eq!(line(b"x\0a\nb\\'\0").unwrap(), "x $'a\\x0Ab\\\\\\''");
        assert_eq!(line(b"x\0\xff\0").unwrap(), "x $'\\xFF'");
        assert_eq!(line("é".as_bytes()).unwrap(), "'é'");
        assert_eq!(
            line(b"postgres: writer   \0\0\0\0").unwrap(),
            "'postgres: writer   '"
        );
        assert_eq!(line(b"\0\0"), None);
        assert_eq!(line(b""), None);
        assert_eq!(quoted(b"x\0yy", true).unwrap(), "x yy ...");
    }

    #[test]
    fn ranks_are_found() {
        assert_eq!(rank_of(b"A=1\0OMPI_COMM_WORLD_RANK=3\0"), Some(3));
        assert_eq!(rank_of(b"SLURM_PROCID=0\0PMI_RANK=7\0"), Some(7));
        assert_eq!(rank_of(b"XPMI_RANK=7\0PMI_RANKS=8\0PMI_RANK=x\0"), None);
        assert_eq!(rank_of(b""), None);
    }

    #[test]
    fn stat_and_status_are_read_whatever_the_name() {
        let fields: Vec<String> = (4..=52).map(|field| field.to_string()).collect();
        let stat = format!("7 (a) R 1 () S {}\n", fields.join(" "));
        assert_eq!(start_of(stat.as_bytes()), Some(22));
        assert_eq!(start_of(b"7 (a) S 1 2"), None);
        let numbers = |status: &[u8], line| numbers_of(status, line).collect::<Vec<u32>>();
        let status = b"Name:\tx\nNSpid:\t4211\t12\t1\nNSpgid:\t1\n";
        assert_eq!(numbers(status, "NSpid:"), [4211, 12, 1]);
        assert!(numbers(status, "Uid:").is_empty());
    }

    #[test]
    fn this_process_is_known_and_none_is_no_error() {
        let facts = ProcessFacts::read(std::process::id());
        let executable = std::env::current_exe().unwrap();
        assert_eq!(
            facts.executable,
            Some(printable(executable.as_os_str().as_bytes()))
        );
        assert!(facts.start_ticks.is_some() && facts.uid.is_some());
        assert!(facts.command_line.is_some() && facts.cwd.is_some());
        assert_eq!(facts.ns_pids.last(), Some(&std::process::id()));
        assert_eq!(ProcessFacts::read(u32::MAX), ProcessFacts::default());
    }

    #[test]
    fn a_long_command_line_is_cut() {
        let tmp = tempfile::tempdir().unwrap();
        std::fs::write(tmp.path().join("cmdline"), vec![b'x'; 2 * MAX_TEXT_BYTES]).unwrap();
        let line = ProcessFacts::read_in(tmp.path()).command_line.unwrap();
        assert_eq!(line.len(), MAX_TEXT_BYTES + 4);
    }

    proptest! {
        #[test]
        fn any_bytes_end(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = (container_of(&bytes), rank_of(&bytes), numbers_of(&bytes, "").count(), start_of(&bytes));
            if let Some(line) = quoted(&bytes, false) {
                prop_assert_eq!(printable(line.as_bytes()), line);
            }
        }
    }
}
