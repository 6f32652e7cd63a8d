//! What can go wrong between us and the kernel's BPF.

use bpf_abi::RecordError;

use crate::verifier::Refusal;

/// A BPF step that failed, with the verifier's log if there is one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The programs could not be loaded.
    #[error("the BPF programs cannot be loaded: {0}")]
    Load(Box<Refusal>),
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
    /// A record is not one of ours.
    #[error("a record of the BPF programs can't be read: {0}")]
    Record(#[from] RecordError),
}

impl Error {
    /// Returns whether a privilege is missing (EPERM, EACCES).
    #[must_use]
    pub fn is_permission(&self) -> bool {
        match self {
            Error::Load(refusal) => refusal.is_permission,
            Error::Step { source, .. } => source.kind() == libbpf_rs::ErrorKind::PermissionDenied,
            Error::NoCpu { .. } | Error::Record(_) => false,
        }
    }
}

/// Returns a function that makes an [`Error::Step`] of an error.
pub(crate) fn step(what: impl Into<String>) -> impl FnOnce(libbpf_rs::Error) -> Error {
    let what = what.into();
    move |source| Error::Step { what, source }
}
