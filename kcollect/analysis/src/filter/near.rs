//! Suggestions for a name that is unknown.

use std::cmp::Reverse;

/// Maximum number of names that are suggested.
const MAX_SUGGESTIONS: usize = 5;

/// Minimum similarity of a suggestion. Names that merely share some letters have less.
const MIN_SIMILARITY_PERMILLE: u32 = 700;

/// Returns the names most similar to an unknown one, the most similar first; none where all are
/// quite different.
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
        .filter(|(Reverse(similarity), _)| *similarity >= MIN_SIMILARITY_PERMILLE)
        .collect();
    near.sort_unstable();
    near.dedup();
    near.into_iter()
        .map(|(_, name)| name)
        .take(MAX_SUGGESTIONS)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similar_names_are_suggested_and_others_are_not() {
        let names = [
            "nginx",
            "go2.sh",
            "rcu_tasks_kthread",
            "server::parse_request(int)",
        ];
        let near = |wanted| nearest(names.into_iter(), wanted);
        assert_eq!(near("ngnix"), ["nginx"]);
        assert_eq!(near("Parse_Reqest"), ["server::parse_request(int)"]);
        assert!(near("nosuch").is_empty());
    }
}
