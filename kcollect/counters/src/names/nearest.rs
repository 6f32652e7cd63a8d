//! Suggestions for a name that does not exist.

use std::cmp::Reverse;

/// Maximum number of suggestions.
const MAX_SUGGESTIONS: usize = 3;

/// Minimum similarity of a suggestion.
const MIN_SIMILARITY_PERMILLE: u32 = 700;

/// Returns the names most similar to `wanted`, the best first; at most three.
#[must_use]
pub(crate) fn nearest(names: impl IntoIterator<Item = String>, wanted: &str) -> Vec<String> {
    let wanted = normalized(wanted);
    let mut near: Vec<(Reverse<u32>, String)> = names
        .into_iter()
        .map(|name| {
            let similarity = strsim::jaro_winkler(&normalized(&name), &wanted);
            (Reverse((1000.0 * similarity) as u32), name)
        })
        .filter(|(Reverse(similarity), _)| *similarity >= MIN_SIMILARITY_PERMILLE)
        .collect();
    near.sort_unstable();
    near.dedup();
    near.into_iter()
        .map(|(_, name)| name)
        .take(MAX_SUGGESTIONS)
        .collect()
}

/// Returns the name without case and punctuation.
fn normalized(name: &str) -> String {
    name.to_lowercase().replace(['-', '_', '.'], "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typing_errors_are_corrected() {
        let names = || {
            [
                "page-faults",
                "major-faults",
                "minor-faults",
                "cycles",
                "ref-cycles",
                "instructions",
            ]
            .map(str::to_owned)
        };
        assert_eq!(nearest(names(), "pagefaults")[0], "page-faults");
        assert_eq!(nearest(names(), "cylces")[0], "cycles");
        assert_eq!(nearest(names(), "INSTRUCTION")[0], "instructions");
        assert_eq!(nearest(names(), "xyzzy"), Vec::<String>::new());
    }
}
