//! What can go wrong between us and the kernel's BPF.

/// A BPF step that failed, with what the kernel's verifier said where it said something.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The programs could not be loaded.
    #[error("the kernel refused kcollect's BPF programs: {source}{log}")]
    Load {
        /// The system call's error.
        source: libbpf_rs::Error,
        /// The tail of libbpf's and the verifier's log, or nothing; begins with a newline.
        log: String,
    },
    /// One step after loading failed.
    #[error("cannot {what}: {source}")]
    Step {
        /// What was being done, as the end of "cannot …".
        what: String,
        /// The system call's error.
        source: libbpf_rs::Error,
    },
    /// A CPU id that this machine can't have.
    #[error("CPU {cpu} is beyond this machine's CPUs")]
    NoCpu {
        /// The id.
        cpu: u32,
    },
    /// A record in a ring is not one of ours.
    #[error("a ring record of {size} bytes is not a tick: {why}")]
    Record {
        /// Bytes in the record.
        size: usize,
        /// What does not fit.
        why: &'static str,
    },
}

impl Error {
    /// Is it for want of privilege (EPERM, EACCES)?
    #[must_use]
    pub fn is_permission(&self) -> bool {
        match self {
            Error::Load { source, .. } | Error::Step { source, .. } => {
                source.kind() == libbpf_rs::ErrorKind::PermissionDenied
            }
            Error::NoCpu { .. } | Error::Record { .. } => false,
        }
    }
}
