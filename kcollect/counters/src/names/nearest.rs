//! Suggestions for a name that does not exist.

use host::suggest;

/// Maximum number of suggestions.
const MAX_SUGGESTIONS: usize = 3;

/// Returns the names most similar to `wanted`, the best first; at most three.
#[must_use]
pub(crate) fn nearest(names: impl IntoIterator<Item = String>, wanted: &str) -> Vec<String> {
    suggest::nearest(names, &normalized(wanted), MAX_SUGGESTIONS, normalized)
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
