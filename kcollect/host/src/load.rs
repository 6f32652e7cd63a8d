//! The load: the command that runs while kcollect records.
//!
//! It inherits the standard streams, the environment and the working directory unchanged. kcollect
//! never ends it: when the recording ends first, the load continues.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io::{self, PipeReader, PipeWriter, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, RawFd};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use nix::errno::Errno;
use nix::libc;
use nix::sys::resource::{Resource, setrlimit};
use nix::unistd::{AccessFlags, access};
use types::ids::Pid;

/// Returns the load's program and the error if it cannot be executed. It is called before anything
/// is opened, so that a misspelt name fails at once.
#[must_use]
pub fn refused(argv: &[OsString]) -> Option<(&OsStr, io::Error)> {
    let program = argv.first()?;
    Some((program, find(program).err()?))
}

/// Returns the file that is executed for the name of a program.
///
/// # Errors
/// There is no such file, or it cannot be executed.
pub fn find(program: &OsStr) -> io::Result<PathBuf> {
    let check = |path: PathBuf| {
        if path.is_dir() {
            Err(io::Error::from_raw_os_error(libc::EACCES))
        } else {
            match access(&path, AccessFlags::X_OK) {
                Ok(()) => Ok(path),
                Err(error) => Err(error.into()),
            }
        }
    };
    let path = Path::new(program);
    if path.components().count() > 1 || path.is_absolute() {
        return check(path.to_owned());
    }
    let mut result = Err(io::Error::from_raw_os_error(libc::ENOENT));
    for directory in env::split_paths(&env::var_os("PATH").unwrap_or_default()) {
        match check(directory.join(program)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            found => result = found,
        }
        if result.is_ok() {
            break;
        }
    }
    result
}

/// The name of the thread that starts the load, and of the load until it executes its program.
pub const STARTER_NAME: &str = "load";

/// A thread that keeps the privileges with which kcollect was started, and starts the load with
/// them.
///
/// If it is dropped first, no load is started.
#[derive(Debug)]
pub struct Starter {
    start: Sender<()>,
    started: Receiver<io::Result<Load>>,
    gate: ParentGate,
}

impl Starter {
    /// Creates the thread, which waits for [`Starter::start`]. `descriptors` is the load's limit of
    /// open files, soft and hard, if that differs from kcollect's own; `ignore` are the signals
    /// that it ignores, as kcollect was started to.
    ///
    /// # Errors
    /// No thread or pipe can be created.
    pub fn wait(
        argv: &[OsString],
        descriptors: Option<(u64, u64)>,
        ignore: &[i32],
    ) -> io::Result<Starter> {
        let (argv, ignore) = (argv.to_vec(), ignore.to_vec());
        let (start, requests) = channel();
        let (results, started) = channel();
        let (gate, child_gate) = gate()?;
        let work = move || {
            if requests.recv().is_ok() {
                // It fails only if the session has ended.
                let _ = results.send(Load::start(&argv, descriptors, &ignore, child_gate));
            }
        };
        thread::Builder::new()
            .name(STARTER_NAME.to_owned())
            .spawn(work)?;
        Ok(Starter {
            start,
            started,
            gate,
        })
    }

    /// Starts the load. Its process is there, and waits, when `before_exec` is called.
    ///
    /// # Errors
    /// Errors of `execve(2)`: there is no such program, or it cannot be executed.
    pub fn start(self, before_exec: impl FnOnce(Pid)) -> io::Result<Load> {
        let Starter {
            start,
            started,
            gate: ParentGate { mut pid, open },
        } = self;
        let ended = |_| io::Error::other("the thread that starts it has ended");
        start.send(()).map_err(|_| ended(()))?;
        let mut bytes = [0; 4];
        // Its end comes where no process can be made.
        if pid.read_exact(&mut bytes).is_ok() {
            before_exec(Pid(u32::from_ne_bytes(bytes)));
        }
        drop(open);
        started.recv().map_err(|_| ended(()))?
    }
}

/// The ends of two pipes by which the load's process waits before it executes the program. It goes
/// on when `open` is dropped, also if kcollect is killed.
#[derive(Debug)]
struct ParentGate {
    pid: PipeReader,
    open: PipeWriter,
}

/// The other ends.
#[derive(Debug)]
struct ChildGate {
    pid: PipeWriter,
    opened: PipeReader,
    /// The parent's end of the second pipe, which the process has too until it executes the
    /// program.
    open: RawFd,
}

fn gate() -> io::Result<(ParentGate, ChildGate)> {
    let (pid, pid_writer) = io::pipe()?;
    let (opened, open) = io::pipe()?;
    let child = ChildGate {
        pid: pid_writer,
        opened,
        open: open.as_raw_fd(),
    };
    Ok((ParentGate { pid, open }, child))
}

impl ChildGate {
    /// Waits, in the load's process, until the parent has closed its end.
    fn wait(&mut self) -> io::Result<()> {
        // SAFETY: the process has this descriptor from its parent, and does not use it.
        unsafe { libc::close(self.open) };
        self.pid.write_all(&std::process::id().to_ne_bytes())?;
        self.opened.read(&mut [0]).map(drop)
    }
}

/// A running or finished load.
#[derive(Debug)]
pub struct Load {
    child: Child,
    /// The exit status, once the load has exited.
    pub status: Option<ExitStatus>,
}

impl Load {
    fn start(
        argv: &[OsString],
        descriptors: Option<(u64, u64)>,
        ignore: &[i32],
        mut gate: ChildGate,
    ) -> io::Result<Load> {
        let (program, arguments) = argv
            .split_first()
            .ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        let mut command = Command::new(program);
        command.args(arguments);
        let ignore = ignore.to_vec();
        let nice = nice();
        let restore = move || {
            gate.wait()?;
            for signal in &ignore {
                // SAFETY: no handler is set.
                if unsafe { libc::signal(*signal, libc::SIG_IGN) } == libc::SIG_ERR {
                    return Err(io::Error::last_os_error());
                }
            }
            set_nice(nice)?;
            match descriptors {
                Some((soft, hard)) => {
                    setrlimit(Resource::RLIMIT_NOFILE, soft, hard).map_err(io::Error::from)
                }
                None => Ok(()),
            }
        };
        // SAFETY: between fork and exec it makes a few system calls and allocates no memory.
        unsafe { command.pre_exec(restore) };
        let child = command.spawn()?;
        Ok(Load {
            child,
            status: None,
        })
    }

    /// Returns its process id.
    #[must_use]
    pub fn pid(&self) -> Pid {
        Pid(self.child.id())
    }

    /// Returns whether it has exited.
    ///
    /// # Errors
    /// Errors of `waitpid(2)`.
    pub fn ended(&mut self) -> io::Result<bool> {
        if self.status.is_none() {
            self.status = self.child.try_wait()?;
        }
        Ok(self.status.is_some())
    }
}

/// Returns the nice value of the calling thread.
fn nice() -> i32 {
    // SAFETY: passes numbers only.
    unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) }
}

/// Sets the nice value of the calling thread.
///
/// # Errors
/// Errors of `setpriority(2)`.
fn set_nice(nice: i32) -> Result<(), Errno> {
    // SAFETY: passes numbers only.
    let done = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) };
    Errno::result(done).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errno(program: &str) -> Option<i32> {
        refused(&[program.into()])?.1.raw_os_error()
    }

    #[test]
    fn a_starter_starts_the_load_on_request() {
        let argv = ["sh".into(), "-c".into(), "exit 3".into()];
        let load = Starter::wait(&argv, None, &[]).unwrap();
        let mut pid = None;
        let mut load = load.start(|found| pid = Some(found)).unwrap();
        assert_eq!(pid, Some(load.pid()));
        while !load.ended().unwrap() {
            thread::yield_now();
        }
        assert_eq!(load.status.unwrap().code(), Some(3));
        let none = Starter::wait(&["no-such-program-anywhere".into()], None, &[]).unwrap();
        let error = none.start(|_| ()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        drop(Starter::wait(&argv, None, &[]).unwrap());
    }

    #[test]
    fn a_program_is_found_as_a_shell_finds_it() {
        assert_eq!(errno("sh"), None);
        assert_eq!(errno("/bin/sh"), None);
        assert_eq!(errno("no-such-program-anywhere"), Some(libc::ENOENT));
        assert_eq!(errno("/no/such"), Some(libc::ENOENT));
        assert_eq!(errno("/etc/passwd"), Some(libc::EACCES));
        assert_eq!(errno("/etc"), Some(libc::EACCES));
        assert!(refused(&[]).is_none());
    }
}
