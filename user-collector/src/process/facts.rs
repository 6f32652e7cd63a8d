//! Facts of a process, read from `/proc` when it is first followed.
//!
//! A process may exit before or during the read, or be hidden by another user namespace. What it
//! controls itself (command line, environment, directories) may be any bytes. So each fact is
//! missing or present by itself, and each is bounded. Command line and environment are in the
//! process's own memory: both are read once and cut at a limit. Their text is safe on a terminal.
//!
//! If the number is reused during the read, the facts may be of two processes. So
//! [`ProcessFacts::start_ticks`] is read before and after, and where they differ there are no
//! facts.

use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use experiment_format::ids::Pid;
use experiment_format::text::printable;
use experiment_format::units::Nanos;
use serde::Serialize;

use super::cgroup::Cgroup;
use super::command_line::quoted;
use super::proc_files::{effective_uid_of, numbers_of, relatives_of, start_ticks_of};

/// Most bytes of a command line and of an environment that are read.
pub const MAX_TEXT_BYTES: usize = 64 * 1024;
/// Most bytes of the other files.
const MAX_PROC_FILE_BYTES: usize = 16 * 1024;

/// Variables in which launchers of parallel programs put the rank, the most reliable first: a
/// launcher's own before what the resource manager sets beside it.
const RANK_VARIABLES: [&str; 7] = [
    "OMPI_COMM_WORLD_RANK",
    "PMIX_RANK",
    "PMI_RANK",
    "MV2_COMM_WORLD_RANK",
    "MPI_RANKID",
    "ALPS_APP_PE",
    "SLURM_PROCID",
];

/// The facts of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ProcessFacts {
    /// Its command line, quoted as for a shell.
    pub command_line: Option<String>,
    /// Its parent, process group and session.
    pub relatives: [Option<Pid>; 3],
    /// Its current directory, a path in its own root.
    pub cwd: Option<String>,
    /// The program that it executes, a path in its own root; without the kernel's ` (deleted)`.
    pub executable: Option<String>,
    /// Effective user id.
    pub uid: Option<u32>,
    /// Its control group.
    pub cgroup: Option<Cgroup>,
    /// Its rank in a parallel program.
    pub mpi_rank: Option<u32>,
    /// Its number in each of its pid namespaces, the host's first.
    pub ns_pids: Vec<Pid>,
    /// When it started, in clock ticks of the kernel (a hundredth of a second) since boot.
    pub start_ticks: Option<u64>,
}

impl ProcessFacts {
    /// Reads the facts of a process. Those that are missing or must not be read are left out.
    #[must_use]
    pub fn read(pid: Pid) -> ProcessFacts {
        ProcessFacts::read_in(&Path::new("/proc").join(pid.to_string()))
    }

    /// Returns whether the process started after a time of CLOCK_MONOTONIC. The kernel reports
    /// starts by another clock, which is compared now, and in hundredths of a second.
    #[must_use]
    pub fn started_after(&self, at_ns: Nanos) -> bool {
        const TICK_NS: Nanos = Nanos::from_millis(10);
        let clock = |id| {
            let time = nix::time::clock_gettime(id).ok()?;
            Some(Nanos::from(std::time::Duration::from(time)))
        };
        let asleep_ns = clock(nix::time::ClockId::CLOCK_BOOTTIME)
            .zip(clock(nix::time::ClockId::CLOCK_MONOTONIC))
            .map_or(Nanos::ZERO, |(boot, awake)| boot.saturating_sub(awake));
        self.start_ticks
            .is_some_and(|ticks| TICK_NS.saturating_mul(ticks) > at_ns.saturating_add(asleep_ns))
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
        let start = || start_ticks_of(&text("stat")?);
        let stat = text("stat");
        let before = stat.as_deref().and_then(start_ticks_of);
        let status = text("status");
        let facts = ProcessFacts {
            command_line: bounded(&dir.join("cmdline"), MAX_TEXT_BYTES)
                .and_then(|(bytes, cut)| quoted(&bytes, cut)),
            relatives: stat.as_deref().map(relatives_of).unwrap_or_default(),
            cwd: link("cwd"),
            executable: link("exe"),
            uid: status.as_deref().and_then(effective_uid_of),
            cgroup: text("cgroup").and_then(|bytes| Cgroup::of(&bytes)),
            mpi_rank: bounded(&dir.join("environ"), MAX_TEXT_BYTES)
                .and_then(|(bytes, _)| rank_of(&bytes)),
            ns_pids: status.as_deref().map_or_else(Vec::new, |status| {
                numbers_of(status, "NSpid:").map(Pid).collect()
            }),
            start_ticks: before,
        };
        // Another process has the number by now: what was read may be of either.
        if before.is_some() && start().is_some_and(|after| Some(after) != before) {
            return ProcessFacts::default();
        }
        facts
    }
}

/// Returns the beginning of a file, and whether there is more.
fn bounded(path: &Path, most: usize) -> Option<(Vec<u8>, bool)> {
    let mut bytes = Vec::new();
    let file = File::open(path).ok()?;
    // What was read before an error is used.
    let _ = file.take(most as u64 + 1).read_to_end(&mut bytes);
    let cut = bytes.len() > most;
    bytes.truncate(most);
    (!bytes.is_empty()).then_some((bytes, cut))
}

/// Returns the rank among the variables of an environment, each ended by a NUL.
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ranks_are_found() {
        assert_eq!(rank_of(b"A=1\0OMPI_COMM_WORLD_RANK=3\0"), Some(3));
        assert_eq!(rank_of(b"SLURM_PROCID=0\0PMI_RANK=7\0"), Some(7));
        assert_eq!(rank_of(b"XPMI_RANK=7\0PMI_RANKS=8\0PMI_RANK=x\0"), None);
        assert_eq!(rank_of(b""), None);
    }

    #[test]
    fn this_process_is_known_and_none_is_no_error() {
        let facts = ProcessFacts::read(Pid(std::process::id()));
        let executable = std::env::current_exe().unwrap();
        assert_eq!(
            facts.executable,
            Some(printable(executable.as_os_str().as_bytes()))
        );
        assert!(facts.start_ticks.is_some() && facts.uid.is_some());
        assert!(facts.command_line.is_some() && facts.cwd.is_some());
        assert_eq!(facts.ns_pids.last(), Some(&Pid(std::process::id())));
        assert_eq!(ProcessFacts::read(Pid(u32::MAX)), ProcessFacts::default());
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
            let _ = (Cgroup::of(&bytes), rank_of(&bytes), numbers_of(&bytes, "").count(), start_ticks_of(&bytes));
            if let Some(line) = quoted(&bytes, false) {
                prop_assert_eq!(printable(line.as_bytes()), line);
            }
        }
    }
}
