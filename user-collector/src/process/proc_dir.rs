//! A process's directory in `/proc`, held open.
//!
//! All that is read through it belongs to the same process. Once that has exited and was waited
//! for, reading fails, even if another process has its number by then.
//!
//! A process continues when its first thread, the leader, has exited and others have not. The
//! leader stays as a zombie, which has neither memory nor files: in `/proc/PID`, `maps`, `environ`
//! and `cmdline` are empty then, and `exe`, `fd`, `root`, `cwd` and `map_files` are missing. The
//! directory of any other thread has all of them, since threads share them.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use experiment_format::ids::{Pid, Tid};
use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{OFlag, open, openat, readlinkat};
use nix::sys::stat::Mode;

/// Max bytes of a file whose text is the kernel's own: a process may have 65,536 groups, which are
/// in its `status`.
pub(crate) const MAX_PROC_FILE_BYTES: usize = 1 << 20;
/// The flags with which a directory is held.
const DIRECTORY: OFlag = OFlag::O_PATH
    .union(OFlag::O_DIRECTORY)
    .union(OFlag::O_CLOEXEC);
/// The size of most files there is below this, so that one call reads all of them.
const READ_BYTES: usize = 4096;

/// The directory to read a process from: its own, or another thread's if the leader has exited.
/// `proc` is where procfs is mounted: `/proc`.
///
/// A process without memory, such as one that has exited or a kernel thread, has its own.
#[must_use]
pub fn process_directory(proc: &Path, pid: Pid) -> PathBuf {
    let leader = proc.join(pid.to_string());
    living_thread(&leader).map_or(leader, |thread| proc.join(thread))
}

/// Returns the directory of a thread of a process; if it has exited, [`process_directory`].
#[must_use]
pub fn thread_directory(proc: &Path, pid: Pid, tid: Tid) -> PathBuf {
    let leader = proc.join(pid.to_string());
    let thread = leader.join("task").join(tid.to_string());
    if has_memory(nix::fcntl::AT_FDCWD, &thread) {
        return thread;
    }
    process_directory(proc, pid)
}

/// Returns this thread of a process if it has not exited; else the leader, or if that has exited
/// another one.
#[must_use]
pub fn thread_with_memory(proc: &Path, pid: Pid, tid: Tid) -> Tid {
    let directory = thread_directory(proc, pid, tid);
    let name = directory.file_name().and_then(OsStr::to_str);
    let number = name.and_then(|name| name.parse().ok());
    Tid(number.unwrap_or(pid.0))
}

/// Returns whether there is a process that continues without its leader.
#[must_use]
pub fn any_without_leader(proc: &Path) -> bool {
    let entries = fs::read_dir(proc).into_iter().flatten().flatten();
    let mut processes = entries.filter(|entry| {
        let name = entry.file_name();
        name.as_bytes().iter().all(u8::is_ascii_digit)
    });
    processes.any(|process| living_thread(&process.path()).is_some())
}

/// Returns whether a process has a thread that has not exited.
#[must_use]
pub fn has_living_thread(proc: &Path, pid: Pid) -> bool {
    let leader = proc.join(pid.to_string());
    has_memory(nix::fcntl::AT_FDCWD, &leader) || living_thread(&leader).is_some()
}

/// Returns the number of a thread that has not exited, if the leader has.
fn living_thread(leader: &Path) -> Option<OsString> {
    if has_memory(nix::fcntl::AT_FDCWD, leader) {
        return None;
    }
    let threads = leader.join("task");
    let mut numbers = fs::read_dir(&threads)
        .ok()?
        .filter_map(|entry| Some(entry.ok()?.file_name()));
    numbers.find(|number| has_memory(nix::fcntl::AT_FDCWD, &threads.join(number)))
}

/// Whether a thread has memory, by its directory. An exiting thread drops its memory before its
/// exit is reported. If the link must not be read, there is memory to protect.
fn has_memory(at: impl AsFd, directory: &Path) -> bool {
    !matches!(
        readlinkat(at, &directory.join("exe")),
        Err(Errno::ENOENT | Errno::ESRCH)
    )
}

/// A process's directory in `/proc`.
#[derive(Debug)]
pub struct ProcDir {
    pid: Pid,
    fd: OwnedFd,
}

impl ProcDir {
    /// Opens the directory of the process that has a number now.
    ///
    /// # Errors
    /// No process has the number, or too many files are open.
    pub fn open(pid: Pid) -> io::Result<ProcDir> {
        let path = format!("/proc/{pid}");
        ProcDir::at(Path::new(&path), pid)
    }

    /// Opens a directory with such files.
    pub(super) fn at(path: &Path, pid: Pid) -> io::Result<ProcDir> {
        let fd = open(path, DIRECTORY, Mode::empty())?;
        Ok(ProcDir { pid, fd })
    }

    /// Returns a second descriptor.
    pub(crate) fn try_clone(&self) -> io::Result<ProcDir> {
        let (pid, fd) = (self.pid, self.fd.try_clone()?);
        Ok(ProcDir { pid, fd })
    }

    /// Returns the number of the process.
    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    /// Holds a directory in it, such as `root`, without opening it.
    pub(crate) fn directory(&self, name: &str) -> io::Result<OwnedFd> {
        let of = self.living_thread();
        Ok(openat(self.or(&of), name, DIRECTORY, Mode::empty())?)
    }

    /// Opens a file in it.
    pub(crate) fn file(&self, name: &str) -> io::Result<File> {
        let of = self.living_thread();
        open_file(self.or(&of), name)
    }

    /// Reads the first `most` bytes of a file. Returns them and whether there is more. What was
    /// read before an error is returned.
    pub(crate) fn read(&self, name: &str, most: usize) -> io::Result<(Vec<u8>, bool)> {
        read_head(self.file(name)?, most)
    }

    /// Reads the leader's `stat`: another thread's has the thread's own start time.
    pub(crate) fn leader_stat(&self) -> io::Result<Vec<u8>> {
        let file = open_file(self.fd.as_fd(), "stat")?;
        Ok(read_head(file, MAX_PROC_FILE_BYTES)?.0)
    }

    /// Returns what a link in it refers to.
    pub(crate) fn link(&self, name: &str) -> io::Result<OsString> {
        let of = self.living_thread();
        Ok(readlinkat(self.or(&of), name)?)
    }

    /// Holds the directory of a thread that has not exited, if the leader has.
    fn living_thread(&self) -> Option<OwnedFd> {
        if has_memory(&self.fd, Path::new(".")) {
            return None;
        }
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let threads = openat(&self.fd, "task", flags, Mode::empty()).ok()?;
        let mut listed = Dir::from_fd(threads.try_clone().ok()?).ok()?;
        let mut names = listed.iter().filter_map(|entry| {
            let name = OsStr::from_bytes(entry.ok()?.file_name().to_bytes()).to_owned();
            (!name.as_bytes().starts_with(b".")).then_some(name)
        });
        let name = names.find(|name| has_memory(&threads, Path::new(name)))?;
        openat(&threads, name.as_os_str(), DIRECTORY, Mode::empty()).ok()
    }

    fn or<'a>(&'a self, thread: &'a Option<OwnedFd>) -> BorrowedFd<'a> {
        thread.as_ref().unwrap_or(&self.fd).as_fd()
    }
}

fn open_file(at: BorrowedFd<'_>, name: &str) -> io::Result<File> {
    let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC;
    Ok(openat(at, name, flags, Mode::empty())?.into())
}

fn read_head(file: File, most: usize) -> io::Result<(Vec<u8>, bool)> {
    let mut bytes = Vec::with_capacity(READ_BYTES);
    let result = file.take(most as u64 + 1).read_to_end(&mut bytes);
    if bytes.is_empty() {
        result?;
    }
    let cut = bytes.len() > most;
    bytes.truncate(most);
    Ok((bytes, cut))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_of_a_process_that_lives() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let dir = ProcDir::open(Pid(child.id())).unwrap();
        let (stat, cut) = dir.read("stat", 10_000).unwrap();
        assert!(stat.starts_with(format!("{} (", child.id()).as_bytes()) && !cut);
        assert_eq!(dir.read("stat", 3).unwrap(), (stat[..3].to_vec(), true));
        let opened = dir.file("stat").unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(dir.read("stat", 100).is_err() && dir.link("exe").is_err());
        assert!({ opened }.read(&mut [0; 10]).is_err());
        assert!(ProcDir::open(Pid(child.id())).is_err());
    }

    /// A process whose leader has exited, and whose other thread waits.
    fn without_leader() -> std::process::Child {
        let script = "import ctypes, os, threading, time
threading.Thread(target=time.sleep, args=(60,)).start()
print(flush=True)
ctypes.CDLL(None).syscall(60 if os.uname().machine == 'x86_64' else 93, 0)";
        let mut child = std::process::Command::new("python3")
            .args(["-c", script])
            .stdout(std::process::Stdio::piped())
            .env("TEST_VARIABLE", "here")
            .spawn()
            .unwrap();
        let mut line = [0];
        child
            .stdout
            .as_mut()
            .unwrap()
            .read_exact(&mut line)
            .unwrap();
        let exe = format!("/proc/{}/exe", child.id());
        while fs::read_link(&exe).is_ok() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        child
    }

    #[test]
    fn process_whose_leader_has_exited_is_read_from_another_thread() {
        let mut child = without_leader();
        let pid = Pid(child.id());
        let dir = ProcDir::open(pid).unwrap();
        assert!(
            dir.link("exe")
                .unwrap()
                .to_string_lossy()
                .contains("python")
        );
        let (environ, _) = dir.read("environ", 1 << 20).unwrap();
        assert!(
            environ
                .windows(18)
                .any(|part| part == b"TEST_VARIABLE=here")
        );
        assert!(dir.directory("root").is_ok() && dir.file("mem").is_ok());
        let stat = dir.leader_stat().unwrap();
        assert!(stat.starts_with(format!("{pid} (").as_bytes()));
        let proc = Path::new("/proc");
        let path = process_directory(proc, pid);
        assert_ne!(path, proc.join(pid.to_string()));
        assert!(fs::read_dir(path.join("map_files")).unwrap().count() > 0);
        assert!(has_living_thread(proc, pid));
        let facts = crate::process::ProcessFacts::read(&dir);
        assert_eq!(facts.ns_pids.last(), Some(&pid));
        assert!(facts.command_line.unwrap().contains("ctypes"));
        child.kill().unwrap();
        // A zombie until it is waited for.
        while has_living_thread(proc, pid) {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert_eq!(process_directory(proc, pid), proc.join(pid.to_string()));
        child.wait().unwrap();
    }
}
