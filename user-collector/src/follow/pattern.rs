//! The regular expression of `-F =regexp`.

use std::fmt;

use regex::bytes::Regex;

use super::Candidate;

/// An extended regular expression that has to match a whole name.
///
/// It is compared with the process's name as the kernel has it (15 bytes), with the base name of
/// the file that it executes, and with its number. One match is enough. So `nginx` matches nginx
/// but not `nginx-debug`, and `nginx.*` matches both.
#[derive(Clone, Debug)]
pub struct Pattern {
    text: String,
    regex: Regex,
}

// Two patterns of the same text match the same.
impl PartialEq for Pattern {
    fn eq(&self, other: &Pattern) -> bool {
        self.text == other.text
    }
}

impl Eq for Pattern {}

// The text of the expression.
impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The error for a text that is no regular expression.
#[derive(Debug, thiserror::Error)]
#[error("{pattern:?} is no regular expression: {}", last_line(source))]
pub struct PatternError {
    pattern: String,
    source: Box<regex::Error>,
}

/// Returns the reason alone: the error's last line, without the excerpt of the pattern.
fn last_line(error: &regex::Error) -> String {
    let text = error.to_string();
    let last = text.lines().next_back().unwrap_or_default();
    last.trim_start_matches("error: ").to_owned()
}

impl Pattern {
    /// Compiles an expression.
    ///
    /// # Errors
    /// The text is no regular expression.
    pub fn new(pattern: &str) -> Result<Pattern, PatternError> {
        // Names are bytes, and a dot matches any. The pattern is compiled alone first, or an extra
        // parenthesis could close the one around it.
        Regex::new(&format!("(?s-u){pattern}"))
            .and_then(|_| Regex::new(&format!("(?s-u)\\A(?:{pattern})\\z")))
            .map(|regex| Pattern {
                text: pattern.to_owned(),
                regex,
            })
            .map_err(|source| PatternError {
                pattern: pattern.to_owned(),
                source: Box::new(source),
            })
    }

    pub(super) fn matches(&self, candidate: &Candidate<'_>) -> bool {
        let base = candidate
            .executable
            .and_then(|path| path.rsplit(|byte| *byte == b'/').next());
        self.regex.is_match(candidate.pid.to_string().as_bytes())
            || [candidate.name, base]
                .into_iter()
                .flatten()
                .any(|name| self.regex.is_match(name))
    }
}
