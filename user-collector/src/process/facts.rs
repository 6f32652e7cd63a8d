//! Facts of a process, read from `/proc` when it is first followed.
//!
//! A process may exit before or during the read, or be hidden by another user namespace. What it
//! controls itself (command line, environment, directories) may be any bytes. So each fact may be
//! missing independently of the others, and each is bounded. Command line and environment are in
//! the process's own memory: both are read once and cut at a limit. Their text is safe on a
//! terminal.
//!
//! All are read through the same [`ProcDir`], so that they belong to the same process.

use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use experiment_format::ids::Pid;
use experiment_format::text::printable;
use experiment_format::units::Nanos;

use super::cgroup::Cgroup;
use super::command_line::quoted;
use super::proc_dir::{MAX_PROC_FILE_BYTES, ProcDir};
use super::proc_files::{numbers_of, relatives_of, start_ticks_of, user_ids_of};

/// Max bytes of a command line and of an environment that are read.
pub const MAX_TEXT_BYTES: usize = 64 * 1024;

/// Variables in which launchers of parallel programs put the rank, the most reliable first: a
/// launcher's own variable before the variable that the resource manager sets too.
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
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessFacts {
    /// Its command line, quoted as for a shell.
    pub command_line: Option<String>,
    /// Its parent, process group and session.
    pub relatives: [Option<Pid>; 3],
    /// Its current directory, a path in its own root.
    pub cwd: Option<String>,
    /// The program that it executes, a path in its own root; without the kernel's ` (deleted)`.
    pub executable: Option<String>,
    /// Real, effective, saved and file-system user id.
    pub users: Option<[u32; 4]>,
    /// Its control group.
    pub cgroup: Option<Cgroup>,
    /// Its rank in a parallel program.
    pub mpi_rank: Option<u32>,
    /// Its number in each of its pid namespaces, the host's first.
    pub ns_pids: Vec<Pid>,
    /// When it started, in clock ticks of the kernel (a hundredth of a second) since boot.
    pub start_ticks: Option<u64>,
}

/// What the kernel's record of a thread's exit has of these: all that is known of a process that
/// was gone before `/proc` was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExitFacts {
    /// Its effective user id.
    pub user: u32,
    /// Its control group, if that is known and not the root of all.
    pub cgroup: Option<Arc<Cgroup>>,
}

impl ProcessFacts {
    /// Reads the facts of a process. Those that are missing or must not be read are left out.
    #[must_use]
    pub fn read(dir: &ProcDir) -> ProcessFacts {
        let bounded = |name: &str, most| {
            let read = dir.read(name, most).ok();
            read.filter(|(bytes, _)| !bytes.is_empty())
        };
        let text = |name: &str| bounded(name, MAX_PROC_FILE_BYTES).map(|(bytes, _)| bytes);
        let link = |name: &str| {
            let target = dir.link(name).ok()?;
            let bytes = target.as_bytes();
            Some(printable(
                bytes.strip_suffix(b" (deleted)").unwrap_or(bytes),
            ))
        };
        let (stat, status) = (dir.leader_stat().ok(), text("status"));
        ProcessFacts {
            command_line: bounded("cmdline", MAX_TEXT_BYTES)
                .and_then(|(bytes, cut)| quoted(&bytes, cut)),
            relatives: stat.as_deref().map(relatives_of).unwrap_or_default(),
            cwd: link("cwd"),
            executable: link("exe"),
            users: status.as_deref().and_then(user_ids_of),
            cgroup: text("cgroup").and_then(|bytes| Cgroup::of(&bytes)),
            mpi_rank: bounded("environ", MAX_TEXT_BYTES).and_then(|(bytes, _)| rank_of(&bytes)),
            ns_pids: status.as_deref().map_or_else(Vec::new, |status| {
                numbers_of(status, "NStgid:").map(Pid).collect()
            }),
            start_ticks: stat.as_deref().and_then(start_ticks_of),
        }
    }

    /// Returns whether the process started after a time of CLOCK_MONOTONIC.
    #[must_use]
    pub fn started_after(&self, at_ns: Nanos) -> bool {
        self.started_ns().is_some_and(|started| started > at_ns)
    }

    /// When the process started, by CLOCK_MONOTONIC. The kernel reports starts by another clock, in
    /// hundredths of a second; the two clocks are compared now.
    #[must_use]
    pub fn started_ns(&self) -> Option<Nanos> {
        const TICK_NS: Nanos = Nanos::from_millis(10);
        let clock = |id| {
            let time = nix::time::clock_gettime(id).ok()?;
            Some(Nanos::from(std::time::Duration::from(time)))
        };
        let asleep_ns = clock(nix::time::ClockId::CLOCK_BOOTTIME)
            .zip(clock(nix::time::ClockId::CLOCK_MONOTONIC))
            .map_or(Nanos::ZERO, |(boot, awake)| boot.saturating_sub(awake));
        let since_boot = TICK_NS.saturating_mul(self.start_ticks?);
        Some(since_boot.saturating_sub(asleep_ns))
    }
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
        let read = |pid| ProcDir::open(pid).map(|dir| ProcessFacts::read(&dir));
        let facts = read(Pid(std::process::id())).unwrap();
        let executable = std::env::current_exe().unwrap();
        assert_eq!(
            facts.executable,
            Some(printable(executable.as_os_str().as_bytes()))
        );
        assert!(facts.start_ticks.is_some() && facts.users.is_some());
        assert!(facts.command_line.is_some() && facts.cwd.is_some());
        assert_eq!(facts.ns_pids.last(), Some(&Pid(std::process::id())));
        let empty = tempfile::tempdir().unwrap();
        let nothing = ProcDir::at(empty.path(), Pid(7)).unwrap();
        assert_eq!(ProcessFacts::read(&nothing), ProcessFacts::default());
        assert!(read(Pid(u32::MAX)).is_err());
    }

    #[test]
    fn a_long_command_line_is_cut() {
        let tmp = tempfile::tempdir().unwrap();
        std::fs::write(tmp.path().join("cmdline"), vec![b'x'; 2 * MAX_TEXT_BYTES]).unwrap();
        let dir = ProcDir::at(tmp.path(), Pid(7)).unwrap();
        let line = ProcessFacts::read(&dir).command_line.unwrap();
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
