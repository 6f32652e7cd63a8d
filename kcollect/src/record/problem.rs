//! Problems that make a recording wrong, or leave a whole part of it out. The user has to read them
//! before any result.

use host::exit::{ExitKind, Failure};
use serde::{Serialize, Serializer};

/// The part of a recording that has a problem. Each is reported once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Subject {
    /// The BPF task storage of threads.
    Storage,
    /// The hook on context switches.
    ContextSwitches,
    /// The times of threads.
    Accounts,
    /// The hook on page faults of the kernel.
    KernelFaults,
    /// User stacks.
    UserStacks,
    /// Ticks of threads.
    Ticks,
}

impl Subject {
    /// What the problem does to the recording.
    fn effect(self) -> &'static str {
        match self {
            Subject::Storage => "times of threads are missing",
            Subject::ContextSwitches => "times and off-CPU stacks of threads are missing",
            Subject::Accounts => "times of threads are wrong or missing",
            Subject::KernelFaults => "page faults in system calls count as sleep",
            Subject::UserStacks => "user stacks are missing or end early",
            Subject::Ticks => "ticks of threads are missing",
        }
    }

    fn hint(self) -> &'static str {
        match self {
            Subject::Storage => {
                "run a kernel that can; in a virtual machine, give its CPU cmpxchg16b (qemu: -cpu host or max)"
            }
            _ => {
                "report this with the kernel's version (uname -r) and the output of kcollect doctor"
            }
        }
    }
}

/// One problem of a recording.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// The part that it is of.
    pub subject: Subject,
    /// What was found. No full stop.
    pub found: String,
    /// What that does to the recording.
    pub effect: &'static str,
    /// What the user can do.
    pub hint: &'static str,
    /// The kind of exit code.
    #[serde(rename = "exit_code", serialize_with = "exit_code")]
    pub kind: ExitKind,
}

impl Problem {
    /// A problem whose effect and hint follow from its subject.
    pub fn new(subject: Subject, found: impl Into<String>) -> Problem {
        Problem {
            subject,
            found: found.into(),
            effect: subject.effect(),
            hint: subject.hint(),
            kind: match subject {
                Subject::Storage => ExitKind::Unavailable,
                _ => ExitKind::Software,
            },
        }
    }

    /// The kernel gives threads no storage: `times` is how often that was seen.
    pub fn no_storage(times: u64) -> Problem {
        Problem::new(
            Subject::Storage,
            format!("the kernel cannot allocate BPF task storage ({times} attempts failed)"),
        )
    }

    /// Whether it explains another problem: without its account a thread has no ticks and no user
    /// stacks of its waits.
    #[must_use]
    pub fn explains(&self, other: &Problem) -> bool {
        self.subject == other.subject
            || matches!(self.subject, Subject::Storage | Subject::ContextSwitches)
    }

    /// What is wrong and what that does, without the hint.
    #[must_use]
    pub fn line(&self) -> String {
        format!("{}: {}", self.found, self.effect)
    }

    /// The failure with which the recording ends.
    #[must_use]
    pub fn failure(&self) -> Failure {
        Failure::new(self.kind, self.line(), self.hint)
    }
}

#[allow(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes every field by reference"
)]
fn exit_code<S: Serializer>(kind: &ExitKind, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u8(kind.code())
}
