//! The names of experiments: `STEM.N.er` for one of a series, or any other name that ends in `.er`.
//!
//! The next number of a series is one more than the largest in use, as with er_kernel; gaps are not
//! filled.

use std::os::fd::{AsFd, OwnedFd};

use super::create::entries;
use crate::Result;
use crate::error::Error;
use crate::text::printable;

/// The ending of an experiment's name.
pub(super) const SUFFIX: &str = ".er";

/// The name that is wanted for an experiment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NameRequest {
    /// `STEM.N.er`, N one more than the largest in use.
    Series {
        /// For instance `ktest`.
        stem: String,
    },
    /// This name. If it is in use and has the form `STEM.N.er`, the next of its series is used; if
    /// it is in use and has another form, that is an error.
    Exactly(String),
}

impl NameRequest {
    /// A request for the names that come after this one. None: it has no number.
    #[must_use]
    pub fn series(&self) -> Option<NameRequest> {
        match self {
            NameRequest::Series { .. } => Some(self.clone()),
            NameRequest::Exactly(name) => {
                let stem = series_of(name)?.0.to_owned();
                Some(NameRequest::Series { stem })
            }
        }
    }
}

/// A name that was in use, and its replacement. Print it as
/// `name {wanted} is in use; changed to {used}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Renamed {
    /// The name as requested.
    pub wanted: String,
    /// The name that was used instead.
    pub used: String,
}

/// Refuses a name that is no experiment's, or that leaves its directory.
pub(super) fn check_name(name: &str) -> Result<()> {
    let problem = match name.strip_suffix(SUFFIX) {
        None => "does not end in .er",
        Some("") => "has nothing before .er",
        Some(_) if name.contains('/') => "must not contain a /",
        Some(_) if name.contains('\0') => "must not contain a NUL character",
        Some(_) => return Ok(()),
    };
    Err(Error::BadName {
        name: printable(name.as_bytes()),
        problem,
    })
}

/// Returns the stem and the number of a name of the form `STEM.N.er`.
pub(super) fn series_of(name: &str) -> Option<(&str, u64)> {
    let (stem, number) = name.strip_suffix(SUFFIX)?.rsplit_once('.')?;
    let digits = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
    let number = number.parse().ok().filter(|n| *n < u64::MAX)?;
    (digits && !stem.is_empty()).then_some((stem, number))
}

/// Returns the name of this number in a series.
pub(super) fn numbered(stem: &str, number: u64) -> String {
    format!("{stem}.{number}{SUFFIX}")
}

/// Returns the largest number of a series that is in use in `parent`, 0 if none is.
pub(super) fn largest_in_use(parent: &OwnedFd, stem: &str) -> nix::Result<u64> {
    let mut largest = 0;
    for entry in entries(parent.as_fd())? {
        let entry = entry.to_str().unwrap_or_default();
        match series_of(entry) {
            Some((of, number)) if of == stem => largest = largest.max(number),
            _ => {}
        }
    }
    Ok(largest)
}
