//! Safe opening, as root, of a file that a process has written.
//!
//! The process controls the paths: `/tmp/perf-7.map` may be a link to `/etc/shadow`, in a mount
//! namespace of its own even a bind mount of it. So the file is looked up from the root directory
//! of the process and never above it, without following a link at the path's end, and is first held
//! without being opened (`O_PATH`). Only if it is a regular file of the process's own user, with no
//! second name, it is opened for reading, through the descriptor and not the path.
//!
//! Root's files are not read for a process of another user, although a daemon that dropped its
//! rights may have written one: the owner of a directory can move root's file out of it and to any
//! name. A file of a process with several user ids, such as a set-user-ID program, is not read for
//! the same reason.
//!
//! A file is ignored if it was last written before the process began: `/tmp` keeps the maps of
//! processes that exited long ago, and process numbers are reused.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use experiment_format::ids::Pid;
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{SysconfVar, sysconf};

use crate::files::{Share, may_hold, openat2, reopen};
use crate::process::proc_files::{start_ticks_of, user_ids_of};
use crate::process::{MAX_PROC_FILE_BYTES, ProcDir, ProcessFacts};

const SECOND_NS: i64 = 1_000_000_000;
/// Largest age of a file before its process's start: clocks are set, and both times are rounded.
const CLOCK_SLACK_NS: i64 = 2 * SECOND_NS;

/// Why a file is not read, or not read any further.
#[derive(Debug, thiserror::Error)]
pub enum JitRefusal {
    /// An error of the system.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file, as its process names it.
        path: PathBuf,
        /// The error.
        error: io::Error,
    },
    /// A link, a directory, a device or a pipe.
    #[error("{}: not a regular file", path.display())]
    NotRegular {
        /// The file, as its process names it.
        path: PathBuf,
    },
    /// A file of another user than the process's.
    #[error("{}: belongs to user {owner}, but its process to user {user}", path.display())]
    Owner {
        /// The file, as its process names it.
        path: PathBuf,
        /// User id of the file's owner.
        owner: u32,
        /// User id of the process.
        user: u32,
    },
    /// A file with several names: any user may have linked this one to it.
    #[error("{}: has {links} names; only a file with one is read", path.display())]
    Links {
        /// The file, as its process names it.
        path: PathBuf,
        /// Number of names.
        links: u64,
    },
    /// A process with more than one user id: it is not clear which user's files it may write.
    #[error("{}: its process has several user ids: {users:?}", path.display())]
    Users {
        /// The file, as its process names it.
        path: PathBuf,
        /// Real, effective, saved and file-system user id.
        users: [u32; 4],
    },
    /// More bytes than are read of one process.
    #[error("{}: more than {limit} bytes were written; the rest is not read", path.display())]
    TooLong {
        /// The file, as its process names it.
        path: PathBuf,
        /// The limit, bytes.
        limit: u64,
    },
    /// Too many files are open.
    #[error("{}: too many files are open; raise the limit (ulimit -n)", path.display())]
    Descriptors {
        /// The file, as its process names it.
        path: PathBuf,
    },
    /// A jitdump that can't be parsed.
    #[error("{}: {broken}", path.display())]
    JitDump {
        /// The file, as its process names it.
        path: PathBuf,
        /// The error of the parser.
        broken: super::jitdump::JitDumpError,
    },
}

impl JitRefusal {
    /// The name of the cause, for programs.
    #[must_use]
    pub fn cause(&self) -> &'static str {
        match self {
            JitRefusal::Io { .. } => "io",
            JitRefusal::NotRegular { .. } => "not_regular",
            JitRefusal::Owner { .. } => "owner",
            JitRefusal::Links { .. } => "links",
            JitRefusal::Users { .. } => "users",
            JitRefusal::TooLong { .. } => "too_long",
            JitRefusal::Descriptors { .. } => "open_files",
            JitRefusal::JitDump { .. } => "jitdump",
        }
    }
}

/// A process's root directory, held open so that its files can be read after it has exited.
///
/// It holds the file system of a container too, until it is dropped. Where descriptors are short
/// nothing is held: the directory is opened for each look, as long as the process exists.
#[derive(Debug)]
pub(super) struct ProcessFiles {
    pid: Pid,
    held: Option<Arc<ProcessDirs>>,
    /// Real, effective, saved and file-system user id, when they were last read.
    users: [u32; 4],
    /// The number of the process in its own pid namespace.
    own_pid: Pid,
    /// When the process started, clock ticks of the kernel since boot: distinguishes processes with
    /// the same number.
    start_ticks: u64,
    /// When the process started, CLOCK_REALTIME nanoseconds.
    started_ns: i64,
}

/// Directories of a process.
#[derive(Debug)]
struct ProcessDirs {
    /// Its directory in `/proc`.
    proc: ProcDir,
    /// Its root directory.
    root: OwnedFd,
}

impl ProcessDirs {
    fn open(proc: ProcDir) -> io::Result<ProcessDirs> {
        let root = proc.directory("root")?;
        Ok(ProcessDirs { proc, root })
    }

    /// Returns the directories, if they may be held.
    fn held(self) -> Option<Arc<ProcessDirs>> {
        may_hold(&self.root, Share::Half).then(|| Arc::new(self))
    }

    fn start_ticks(&self) -> io::Result<u64> {
        start_ticks_of(&self.proc.leader_stat()?).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    fn users(&self) -> io::Result<[u32; 4]> {
        let (status, _) = self.proc.read("status", MAX_PROC_FILE_BYTES)?;
        user_ids_of(&status).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}

impl ProcessFiles {
    /// Opens the directories of a process whose facts are known.
    pub(super) fn open(proc: ProcDir, facts: &ProcessFacts) -> io::Result<ProcessFiles> {
        let (Some(users), Some(own_pid), Some(start_ticks)) =
            (facts.users, facts.ns_pids.last(), facts.start_ticks)
        else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        Ok(ProcessFiles {
            pid: proc.pid(),
            users,
            own_pid: *own_pid,
            start_ticks,
            started_ns: started_ns(start_ticks)?,
            held: ProcessDirs::open(proc)?.held(),
        })
    }

    /// The files of the program that the process executes now: it may have another root and another
    /// user.
    pub(super) fn executed(self) -> io::Result<ProcessFiles> {
        let dirs = ProcessDirs::open(self.dirs()?.proc.try_clone()?)?;
        Ok(ProcessFiles {
            users: dirs.users()?,
            held: dirs.held(),
            ..self
        })
    }

    /// Returns whether the files can be opened after the process has exited.
    pub(super) fn are_held(&self) -> bool {
        self.held.is_some()
    }

    /// Returns the directories that are held, or else opens them while the process exists.
    fn dirs(&self) -> io::Result<Arc<ProcessDirs>> {
        if let Some(held) = &self.held {
            return Ok(Arc::clone(held));
        }
        let dirs = ProcessDirs::open(ProcDir::open(self.pid)?)?;
        if dirs.start_ticks()? == self.start_ticks {
            Ok(Arc::new(dirs))
        } else {
            Err(io::ErrorKind::NotFound.into())
        }
    }

    /// Returns the number of the process.
    pub(super) fn pid(&self) -> Pid {
        self.pid
    }

    /// Returns the number of the process in its own pid namespace, by which it names its files.
    pub(super) fn own_pid(&self) -> Pid {
        self.own_pid
    }

    /// Opens the memory of the process, in which offsets are addresses.
    pub(super) fn memory(&self) -> io::Result<File> {
        self.dirs()?.proc.file("mem")
    }

    /// Returns whether all user ids of the process were this one when they were last read.
    pub(super) fn is_of(&self, user: u32) -> bool {
        self.users == [user; 4]
    }

    /// Opens a file of the process, by its path in the process's root. `None` if no such file
    /// exists, or only an old one.
    pub(super) fn file(&mut self, path: &Path) -> Result<Option<File>, JitRefusal> {
        self.file_since(path, self.start_ticks)
    }

    /// Opens a file that the process may have from another one, which started then.
    pub(super) fn file_since(
        &mut self,
        path: &Path,
        start_ticks: u64,
    ) -> Result<Option<File>, JitRefusal> {
        let io = |error: io::Error| JitRefusal::Io {
            path: path.to_owned(),
            error,
        };
        // Without held directories, the files of an exited process can't be found.
        let Ok(dirs) = self.dirs() else {
            return Ok(None);
        };
        let how = OpenHow::new()
            .flags(OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC)
            .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
        let held = match openat2(&dirs.root, path, how) {
            Ok(held) => File::from(held),
            Err(Errno::ENOENT | Errno::ENOTDIR) => return Ok(None),
            Err(error) => return Err(io(error.into())),
        };
        let found = held.metadata().map_err(io)?;
        // Read after the look-up, since a process can change its user. Of a process that has exited
        // the last ones hold.
        if let Ok(users) = dirs.users() {
            self.users = users;
        }
        let users = self.users;
        let [user, ..] = users;
        let path = path.to_owned();
        if !found.is_file() {
            return Err(JitRefusal::NotRegular { path });
        }
        if users.iter().any(|other| *other != user) {
            return Err(JitRefusal::Users { path, users });
        }
        if found.uid() != user {
            let owner = found.uid();
            return Err(JitRefusal::Owner { path, owner, user });
        }
        // A file without a name was replaced a moment ago.
        match found.nlink() {
            0 => return Ok(None),
            1 => {}
            links => return Err(JitRefusal::Links { path, links }),
        }
        let modified_ns = found.mtime().saturating_mul(SECOND_NS) + found.mtime_nsec();
        if modified_ns < self.earliest_start(start_ticks) - CLOCK_SLACK_NS {
            return Ok(None);
        }
        reopen(&held).map(Some).map_err(|error| JitRefusal::Io {
            path,
            error: error.into(),
        })
    }
}

impl ProcessFiles {
    /// Returns a start in CLOCK_REALTIME nanoseconds, the earliest by any setting of the clock,
    /// which may have been set back.
    fn earliest_start(&mut self, start_ticks: u64) -> i64 {
        let own_ns = started_ns(self.start_ticks).unwrap_or(self.started_ns);
        // What the clock was set back by.
        let later_ns = own_ns.saturating_sub(self.started_ns).max(0);
        self.started_ns = self.started_ns.min(own_ns);
        let start_ns = started_ns(start_ticks).unwrap_or(self.started_ns);
        start_ns.saturating_sub(later_ns)
    }
}

/// Returns the start of a process in CLOCK_REALTIME nanoseconds, from clock ticks since boot.
fn started_ns(ticks: u64) -> io::Result<i64> {
    let per_second = sysconf(SysconfVar::CLK_TCK)?.unwrap_or(100).max(1);
    let since_boot = i128::from(ticks) * i128::from(SECOND_NS) / i128::from(per_second);
    let clock = |id| -> io::Result<i128> {
        let time = clock_gettime(id)?;
        Ok(i128::from(time.tv_sec()) * i128::from(SECOND_NS) + i128::from(time.tv_nsec()))
    };
    let boot = clock(ClockId::CLOCK_REALTIME)? - clock(ClockId::CLOCK_BOOTTIME)?;
    Ok(i64::try_from(boot + since_boot).unwrap_or(i64::MIN / 2))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use nix::sys::stat::Mode;

    use super::*;

    fn open(pid: u32) -> io::Result<ProcessFiles> {
        let proc = ProcDir::open(Pid(pid))?;
        let facts = ProcessFacts::read(&proc);
        ProcessFiles::open(proc, &facts)
    }

    fn own() -> ProcessFiles {
        open(std::process::id()).unwrap()
    }

    #[test]
    fn a_file_of_its_own_is_opened_and_none_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("perf-1.map");
        assert!(own().file(&path).unwrap().is_none());
        assert!(own().file(&path.join("below")).unwrap().is_none());
        fs::write(&path, "1 2 x\n").unwrap();
        assert!(own().file(&path).unwrap().is_some());
        assert_eq!(own().own_pid(), Pid(std::process::id()));
        assert!(own().executed().unwrap().file(&path).unwrap().is_some());
    }

    #[test]
    fn links_pipes_and_directories_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("target");
        fs::write(&path, "1 2 x\n").unwrap();
        let link = dir.path().join("link");
        symlink(&path, &link).unwrap();
        let pipe = dir.path().join("pipe");
        nix::unistd::mkfifo(&pipe, Mode::S_IRWXU).unwrap();
        for path in [&link, &pipe, &dir.path().to_owned(), &"/dev/null".into()] {
            let refusal = own().file(path).unwrap_err();
            assert!(
                matches!(refusal, JitRefusal::NotRegular { .. }),
                "{path:?}: {refusal}"
            );
        }
        let second = dir.path().join("second");
        fs::hard_link(&path, &second).unwrap();
        assert!(matches!(
            own().file(&second),
            Err(JitRefusal::Links { links: 2, .. })
        ));
    }

    #[test]
    fn magic_links_lead_nowhere() {
        let refusal = own().file(Path::new("/proc/self/exe")).unwrap_err();
        assert!(
            matches!(refusal, JitRefusal::NotRegular { .. }),
            "{refusal}"
        );
        let refusal = own()
            .file(Path::new("/proc/self/root/etc/passwd"))
            .unwrap_err();
        assert!(matches!(refusal, JitRefusal::Io { .. }), "{refusal}");
    }

    #[test]
    fn a_file_older_than_its_process_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("perf-1.map");
        let file = fs::File::create(&path).unwrap();
        let files = &mut own();
        file.set_modified(std::time::UNIX_EPOCH).unwrap();
        assert!(files.file(&path).unwrap().is_none());
        file.set_modified(std::time::SystemTime::now()).unwrap();
        assert!(files.file(&path).unwrap().is_some());
    }

    #[test]
    fn another_users_file_is_refused() {
        if !nix::unistd::geteuid().is_root() {
            eprintln!("needs root to make another user's file: not tested");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let path = dir.path().join("perf-1.map");
        fs::write(&path, "1 2 x\n").unwrap();
        std::os::unix::fs::chown(&path, Some(65534), None).unwrap();
        let refusal = own().file(&path).unwrap_err();
        assert!(
            matches!(
                refusal,
                JitRefusal::Owner {
                    owner: 65534,
                    user: 0,
                    ..
                }
            ),
            "{refusal}"
        );
        // And root's from another user's process.
        std::os::unix::fs::chown(&path, Some(0), None).unwrap();
        let mut child = std::os::unix::process::CommandExt::uid(
            &mut std::process::Command::new("sleep"),
            65534,
        )
        .arg("60")
        .spawn()
        .unwrap();
        let refusal = open(child.id()).unwrap().file(&path).unwrap_err();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(
            matches!(
                refusal,
                JitRefusal::Owner {
                    owner: 0,
                    user: 65534,
                    ..
                }
            ),
            "{refusal}"
        );
    }

    #[test]
    fn a_process_that_is_gone_has_left_its_files() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let mut files = open(child.id()).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(open(child.id()).is_err());
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("perf-1.map");
        fs::write(&path, "1 2 x\n").unwrap();
        assert!(files.file(&path).unwrap().is_some());
    }

    #[test]
    fn without_descriptors_files_are_found_while_the_process_lives() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("perf-1.map");
        fs::write(&path, "1 2 x\n").unwrap();
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let mut files = open(child.id()).unwrap();
        assert!(files.are_held());
        files.held = None;
        assert!(files.file(&path).unwrap().is_some());
        // Another process has the number.
        files.start_ticks += 1;
        assert!(files.file(&path).unwrap().is_none());
        files.start_ticks -= 1;
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(files.file(&path).unwrap().is_none());
    }
}
