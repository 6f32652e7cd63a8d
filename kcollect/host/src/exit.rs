//! How kcollect ends: one exit code for each kind of trouble, and one way to say it.
//!
//! A script has to tell "not root" from "disk full" without reading English, so each kind has its
//! own code. The numbers are those of sysexits(3), because they stay clear of 1 and 2, which every
//! program uses, and of 126 upwards, which are the shell's. When a load ran and kcollect had no
//! trouble of its own, the load's status is kcollect's: see [`load_code`] and [`spawn_code`].
//!
//! What this refuses: a failure without a cure. Whoever makes a [`Failure`] has to say what the
//! user can do about it.

use std::fmt;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitCode, ExitStatus};

/// What kind of end a run had. The discriminant is the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// All went well (and there was no load, or it ended with 0).
    Ok = 0,
    /// The command line is wrong.
    Usage = 64,
    /// The experiment is complete, but no tick was recorded in it, or none that was asked for.
    Empty = 65,
    /// A process, a thread or an experiment that was named does not exist, or cannot be read.
    NoInput = 66,
    /// The kernel, or the machine, lacks something that kcollect cannot do without.
    Unavailable = 69,
    /// A mistake in kcollect itself.
    Software = 70,
    /// The experiment, a picture or an export cannot be created: directory missing, name taken,
    /// read-only file system, disk full at the start.
    CantCreate = 73,
    /// Writing failed in the middle. The experiment is valid up to there.
    IoErr = 74,
    /// A privilege is missing.
    NoPerm = 77,
}

impl Kind {
    /// Every kind, by code.
    pub const ALL: [Kind; 9] = [
        Kind::Ok,
        Kind::Usage,
        Kind::Empty,
        Kind::NoInput,
        Kind::Unavailable,
        Kind::Software,
        Kind::CantCreate,
        Kind::IoErr,
        Kind::NoPerm,
    ];

    /// The exit code, 0 to 255.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// One line of what the code means, as the help and the README print it.
    #[must_use]
    pub const fn meaning(self) -> &'static str {
        match self {
            Kind::Ok => "all went well",
            Kind::Usage => "the command line is wrong",
            Kind::Empty => {
                "the experiment is complete, but holds no tick, of a CPU or of a thread away from one, or none that was asked for"
            }
            Kind::NoInput => {
                "a process or thread named by -T, or an experiment to report, does not exist or cannot be read"
            }
            Kind::Unavailable => "the kernel or the machine lacks something needed",
            Kind::Software => "a mistake in kcollect itself",
            Kind::CantCreate => {
                "the experiment, a picture or an export cannot be created (directory, name, read-only, disk full)"
            }
            Kind::IoErr => "writing failed in the middle; the experiment is valid up to there",
            Kind::NoPerm => "a privilege is missing",
        }
    }
}

impl From<Kind> for ExitCode {
    fn from(kind: Kind) -> Self {
        ExitCode::from(kind.code())
    }
}

/// Why kcollect ends with a code of its own: the kind, what happened, and what to do about it.
///
/// Displayed as `<message>: <cure>`, on one line; [`Failure::line`] puts the name of the program
/// before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Decides the exit code.
    pub kind: Kind,
    /// What happened, naming the thing (option, path, process). No full stop.
    pub message: String,
    /// What the user can do, as an instruction or a command to type. No full stop.
    pub cure: String,
}

impl Failure {
    /// A failure of `kind`.
    pub fn new(kind: Kind, message: impl Into<String>, cure: impl Into<String>) -> Self {
        Failure {
            kind,
            message: message.into(),
            cure: cure.into(),
        }
    }

    /// The line for standard error: `kcollect: <message>: <cure>`.
    #[must_use]
    pub fn line(&self) -> String {
        format!("kcollect: {self}")
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.message, self.cure)
    }
}

impl std::error::Error for Failure {}

/// The exit code of a load that ran: its own status, or 128 plus the signal that ended it, as a
/// shell says it.
#[must_use]
pub fn load_code(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        (Some(code), _) => u8::try_from(code & 0xff).unwrap_or(u8::MAX),
        (None, Some(signal)) => u8::try_from(128 + signal).unwrap_or(u8::MAX),
        (None, None) => Kind::Software.code(),
    }
}

/// The exit code of a load that could not be started: 127 if there is no such program, else 126, as
/// a shell says it.
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
            Kind::ALL
                .windows(2)
                .all(|pair| pair[0].code() < pair[1].code())
        );
        assert!(
            Kind::ALL.iter().all(|kind| kind.code() < 126),
            "126 upwards are the load's"
        );
    }

    #[test]
    fn a_failure_is_one_line_with_its_cure() {
        let failure = Failure::new(Kind::NoPerm, "CAP_BPF is missing", "run with sudo");
        assert_eq!(
            failure.line(),
            "kcollect: CAP_BPF is missing: run with sudo"
        );
    }

    #[test]
    fn the_load_status_passes_through() {
        assert_eq!(load_code(ExitStatus::from_raw(3 << 8)), 3);
        assert_eq!(load_code(ExitStatus::from_raw(libc::SIGTERM)), 143);
        assert_eq!(spawn_code(&io::Error::from_raw_os_error(libc::ENOENT)), 127);
        assert_eq!(spawn_code(&io::Error::from_raw_os_error(libc::EACCES)), 126);
    }
}
