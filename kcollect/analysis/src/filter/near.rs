//! Suggestions for a name that is unknown.

use host::suggest;

/// Maximum number of names that are suggested.
const MAX_SUGGESTIONS: usize = 5;

/// Returns the names most similar to an unknown one, the most similar first; none where all are
/// quite different.
#[must_use]
pub fn nearest<'a>(names: impl Iterator<Item = &'a str>, wanted: &str) -> Vec<&'a str> {
    suggest::nearest(names, &wanted.to_lowercase(), MAX_SUGGESTIONS, |name| {
        // Names of C++ and Rust are long, and their last part is the one that users remember.
        let last = name.split('(').next().unwrap_or(name);
        last.rsplit("::").next().unwrap_or(last).to_lowercase()
    })
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
