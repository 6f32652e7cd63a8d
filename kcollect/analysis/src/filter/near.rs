//! Names that were perhaps meant.

use std::cmp::Reverse;

/// Maximum number of names to suggest.
const MAX_SUGGESTIONS: usize = 5;

/// Returns the names most similar to an unknown one, the most similar first.
#[must_use]
pub fn nearest<'a>(names: impl Iterator<Item = &'a str>, wanted: &str) -> Vec<&'a str> {
    let wanted = wanted.to_lowercase();
    let mut near: Vec<_> = names
        .map(|name| {
            // Names of C++ and Rust are long, and their last part is the one that users remember.
            let last = name.split('(').next().unwrap_or(name);
            let last = last.rsplit("::").next().unwrap_or(last).to_lowercase();
            (
                Reverse((1000.0 * strsim::jaro_winkler(&last, &wanted)) as u32),
                name,
            )
        })
        .collect();
    near.sort_unstable();
    near.dedup();
    near.into_iter()
        .map(|(_, name)| name)
        .take(MAX_SUGGESTIONS)
        .collect()
}
