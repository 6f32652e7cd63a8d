//! The results of archiving.

use experiment_format::units::Nanos;

/// Max load objects that are named in [`ArchiveStats::warnings`].
const MAX_WARNINGS: usize = 100;

/// Why a load object cannot be read or copied, for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalCause {
    /// Its file system does not answer.
    NoAnswer,
    /// Archiving was given up before.
    GivenUp,
    /// Too many files are open.
    OpenFiles,
    /// The disk is full, or a limit of bytes is reached.
    NoSpace,
    /// Any other cause.
    Failed,
}

/// Why a load object cannot be read or copied.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Refusal {
    /// The cause.
    pub cause: RefusalCause,
    /// The message. No full stop.
    pub why: String,
}

impl Refusal {
    /// A refusal for a cause, with its message.
    pub fn new(cause: RefusalCause, why: impl Into<String>) -> Refusal {
        let why = why.into();
        Refusal { cause, why }
    }
}

impl From<String> for Refusal {
    fn from(why: String) -> Refusal {
        Refusal::new(RefusalCause::Failed, why)
    }
}

/// A load object that is not in `archives/`.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct LeftOut {
    /// Its name.
    pub name: String,
    /// The reason.
    #[serde(flatten)]
    pub refusal: Refusal,
}

/// The results of archiving.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct ArchiveStats {
    /// Load objects that were archived.
    pub objects: u64,
    /// Load objects that were archived with names only: the invoking user may not read them, or
    /// they are too large.
    pub names_only: u64,
    /// Source files that were archived.
    pub sources: u64,
    /// Source files that were beyond the limit of bytes.
    pub sources_left_out: u64,
    /// Bytes of all copies.
    pub bytes: u64,
    /// Load objects that were not archived.
    pub left_out: Vec<LeftOut>,
    /// Whether archiving was stopped before it was done.
    pub given_up: bool,
    /// Time of the background thread, nanoseconds.
    pub took_ns: Nanos,
}

impl ArchiveStats {
    /// The log's warnings about what is missing: a sentence for each load object.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let named = self.left_out.iter().take(MAX_WARNINGS);
        let mut warnings: Vec<_> = named
            .map(|left| format!("not archived: {}: {}", left.name, left.refusal.why))
            .collect();
        let more = self.left_out.len() - warnings.len();
        if more > 0 {
            warnings.push(format!("not archived: {more} more load objects"));
        }
        if self.sources_left_out > 0 {
            let count = self.sources_left_out;
            warnings.push(format!("not archived, no space left: {count} source files"));
        }
        warnings
    }
}
