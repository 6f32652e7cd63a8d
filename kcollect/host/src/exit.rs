//! Exit codes, and the failures that lead to them.
//!
//! Each kind of failure has an exit code of its own, so that a script can distinguish "not root"
//! from "disk full" without parsing messages. The codes come from sysexits(3): they collide neither
//! with 1 and 2, which every program uses, nor with 126 and above, which the shell uses. When a
//! load ran and kcollect itself did not fail, kcollect exits with the load's status: see
//! [`load_code`] and [`spawn_code`].
//!
//! A [`Failure`] always has a hint: what the user can do about it.

use std::fmt;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitCode, ExitStatus};

/// The kind of a run's end. The discriminant is the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ExitKind {
    /// Success: there was no load, or it exited with 0.
    Ok = 0,
    /// The command line is wrong.
    Usage = 64,
    /// The experiment is complete and holds no tick, or none of those that were asked for.
    Empty = 65,
    /// A process, a thread or an experiment does not exist, or cannot be read. If only a part of an
    /// experiment cannot be read, the rest has been shown.
    NoInput = 66,
    /// The kernel or the machine is missing something that kcollect requires.
    Unavailable = 69,
    /// An internal error of kcollect.
    Software = 70,
    /// The experiment, a picture or an export cannot be created: directory missing, name taken,
    /// read-only file system, disk full at the start.
    CantCreate = 73,
    /// Writing failed: of a result, or of the experiment, which is valid up to that point. Or the
    /// experiment was renamed or deleted while it was recorded.
    IoErr = 74,
    /// A privilege is missing.
    NoPerm = 77,
}

impl ExitKind {
    /// All kinds, in the order of their codes.
    pub const ALL: [ExitKind; 9] = [
        ExitKind::Ok,
        ExitKind::Usage,
        ExitKind::Empty,
        ExitKind::NoInput,
        ExitKind::Unavailable,
        ExitKind::Software,
        ExitKind::CantCreate,
        ExitKind::IoErr,
        ExitKind::NoPerm,
    ];

    /// Returns the exit code.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Returns what the code means, on one line, as the help and the manual page print it.
    #[must_use]
    pub const fn meaning(self) -> &'static str {
        match self {
            ExitKind::Ok => "success",
            ExitKind::Usage => "the command line is wrong",
            ExitKind::Empty => {
                "the experiment is complete, but holds no tick, or none of those asked for"
            }
            ExitKind::NoInput => {
                "a process, thread or experiment does not exist or cannot be read, or not all of it"
            }
            ExitKind::Unavailable => {
                "the kernel or the machine is missing something that kcollect requires"
            }
            ExitKind::Software => "an internal error of kcollect",
            ExitKind::CantCreate => "a file or an experiment cannot be created",
            ExitKind::IoErr => {
                "writing failed (the experiment is valid up to that point), or it was renamed or deleted"
            }
            ExitKind::NoPerm => "a privilege is missing",
        }
    }
}

impl From<ExitKind> for ExitCode {
    fn from(kind: ExitKind) -> Self {
        ExitCode::from(kind.code())
    }
}

/// A failure: its kind, what happened, and what to do about it.
///
/// It is displayed on one line, as `<message>: <hint>`; [`Failure::line`] adds the program's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The kind, which determines the exit code.
    pub kind: ExitKind,
    /// What happened, naming the thing (option, path, process). No full stop.
    pub message: String,
    /// What the user can do, as an instruction or a command to type. No full stop.
    pub hint: String,
}

impl Failure {
    /// Creates a failure.
    pub fn new(kind: ExitKind, message: impl Into<String>, hint: impl Into<String>) -> Self {
        Failure {
            kind,
            message: message.into(),
            hint: hint.into(),
        }
    }

    /// Returns the failure of a step that every working machine permits, unless the limit of open
    /// files is reached.
    #[must_use]
    pub fn of_system(step: &str, error: &io::Error) -> Self {
        let (kind, hint) = match error.raw_os_error() {
            Some(libc::EMFILE | libc::ENFILE) => (
                ExitKind::Unavailable,
                "raise the limit of open files: ulimit -n 1024",
            ),
            // Creating a thread or a child failed.
            Some(libc::EAGAIN | libc::ENOMEM) => (
                ExitKind::Unavailable,
                "raise the limit of processes (ulimit -u, or pids.max of the control group) or of memory (ulimit -v)",
            ),
            _ => (ExitKind::Software, "report this as a bug"),
        };
        Failure::new(kind, format!("{step}: {error}"), hint)
    }

    /// Returns the line for standard error: `kcollect: <message>: <hint>`.
    #[must_use]
    pub fn line(&self) -> String {
        format!("kcollect: {self}")
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.message, self.hint)
    }
}

impl std::error::Error for Failure {}

/// Returns the exit code for a load that ran: its exit status, or 128 plus the number of the signal
/// that ended it, as in a shell.
#[must_use]
pub fn load_code(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        (Some(code), _) => u8::try_from(code & 0xff).unwrap_or(u8::MAX),
        (None, Some(signal)) => u8::try_from(128 + signal).unwrap_or(u8::MAX),
        (None, None) => ExitKind::Software.code(),
    }
}

/// Returns the exit code for a load that could not be started: 127 if there is no such program,
/// otherwise 126, as in a shell.
#[must_use]
pub fn spawn_code(error: &io::Error) -> u8 {
    match error.kind() {
        io::ErrorKind::NotFound => 127,
        _ => 126,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_distinct_and_ascend() {
        assert!(
            ExitKind::ALL
                .windows(2)
                .all(|pair| pair[0].code() < pair[1].code())
        );
        assert!(
            ExitKind::ALL.iter().all(|kind| kind.code() < 126),
            "126 and above are codes of the load"
        );
    }

    #[test]
    fn a_failure_is_one_line_with_its_hint() {
        let failure = Failure::new(ExitKind::NoPerm, "CAP_BPF is missing", "run with sudo");
        assert_eq!(
            failure.line(),
            "kcollect: CAP_BPF is missing: run with sudo"
        );
    }

    #[test]
    fn a_limit_is_no_bug() {
        let failure = |errno| Failure::of_system("x", &io::Error::from_raw_os_error(errno));
        for errno in [libc::EMFILE, libc::EAGAIN, libc::ENOMEM] {
            assert_eq!(failure(errno).kind, ExitKind::Unavailable);
        }
        assert_eq!(failure(libc::EIO).kind, ExitKind::Software);
    }

    #[test]
    fn the_load_status_passes_through() {
        assert_eq!(load_code(ExitStatus::from_raw(3 << 8)), 3);
        assert_eq!(load_code(ExitStatus::from_raw(libc::SIGTERM)), 143);
        assert_eq!(spawn_code(&io::Error::from_raw_os_error(libc::ENOENT)), 127);
        assert_eq!(spawn_code(&io::Error::from_raw_os_error(libc::EACCES)), 126);
    }
}
