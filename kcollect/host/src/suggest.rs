//! Suggestions for a name that is unknown.

use std::cmp::Reverse;

/// Minimum similarity of a suggestion. Names that merely share some letters have less.
const MIN_SIMILARITY_PERMILLE: u32 = 700;

/// Returns the names that are most similar to `wanted`, the most similar first, and at most `max`.
/// `compared` makes of a name what is compared with `wanted`.
#[must_use]
pub fn nearest<Name: AsRef<str> + Ord>(
    names: impl IntoIterator<Item = Name>,
    wanted: &str,
    max: usize,
    compared: impl Fn(&str) -> String,
) -> Vec<Name> {
    let mut near: Vec<_> = names
        .into_iter()
        .map(|name| {
            let similarity = strsim::jaro_winkler(&compared(name.as_ref()), wanted);
            (Reverse((1000.0 * similarity) as u32), name)
        })
        .filter(|(Reverse(similarity), _)| *similarity >= MIN_SIMILARITY_PERMILLE)
        .collect();
    near.sort_unstable();
    near.dedup();
    near.into_iter().map(|(_, name)| name).take(max).collect()
}
