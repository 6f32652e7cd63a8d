//! Whom to follow into user code: the rule of `-F`.
//!
//! A pattern is held against the whole of three things, any of which may match: the process's name
//! as the kernel has it (15 bytes), the base name of the file that it executes, and its number. So
//! `nginx` is nginx, and neither `nginx-debug` nor process 1264's child; `nginx.*` is all of them.

use std::fmt;

use regex::bytes::Regex;

/// Which processes are followed: `-F`, `-T` and `--descendants` together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FollowRule {
    /// The rule of `-F`.
    pub follow: Follow,
    /// Processes that are followed whatever `follow` says.
    pub pids: Vec<u32>,
    /// Processes that a followed process forks are followed too.
    pub descendants: bool,
}

impl FollowRule {
    /// Returns whether any process can be followed at all.
    #[must_use]
    pub fn follows(&self) -> bool {
        !matches!(self.follow, Follow::Off) || !self.pids.is_empty()
    }
}

/// The rule of `-F`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Follow {
    /// No process is followed.
    Off,
    /// Processes that were on a CPU at a tick.
    On,
    /// All processes, also those that only waited.
    All,
    /// Processes that the pattern matches, whether they were on a CPU at a tick or not.
    Matching(Pattern),
}

/// A process, as the rule sees it.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// Its number.
    pub pid: u32,
    /// Its name, where known; bytes, not text.
    pub name: Option<&'a [u8]>,
    /// Path of the file that it executes, where known.
    pub executable: Option<&'a [u8]>,
    /// It was on a CPU at a tick.
    pub ticked: bool,
}

impl Follow {
    /// Is it to be followed, as it is now?
    #[must_use]
    pub fn wants(&self, candidate: &Candidate<'_>) -> bool {
        match self {
            Follow::Off => false,
            Follow::On => candidate.ticked,
            Follow::All => true,
            Follow::Matching(pattern) => pattern.matches(candidate),
        }
    }
}

/// A regular expression that has to match the whole of a name. Two are equal if their texts are.
#[derive(Clone, Debug)]
pub struct Pattern {
    text: String,
    regex: Regex,
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Pattern) -> bool {
        self.text == other.text
    }
}

impl Eq for Pattern {}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Why a pattern is none.
#[derive(Debug, thiserror::Error)]
#[error("{pattern:?} is no regular expression: {}", last_line(source))]
pub struct PatternError {
    pattern: String,
    source: Box<regex::Error>,
}

/// Why, without the drawing of where.
fn last_line(error: &regex::Error) -> String {
    let text = error.to_string();
    let last = text.lines().next_back().unwrap_or_default();
    last.trim_start_matches("error: ").to_owned()
}

impl Pattern {
    /// Compiles an expression.
    ///
    /// # Errors
    /// [`PatternError`], which shows where it is wrong.
    pub fn new(pattern: &str) -> Result<Pattern, PatternError> {
        // Names are bytes: a dot is any of them. By itself first, or a parenthesis too many would
        // close ours.
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

    fn matches(&self, candidate: &Candidate<'_>) -> bool {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn nginx() -> Candidate<'static> {
        Candidate {
            pid: 1264,
            name: Some(b"nginx: worker p"),
            executable: Some(b"/usr/sbin/nginx"),
            ticked: false,
        }
    }

    fn matching(pattern: &str) -> bool {
        Follow::Matching(Pattern::new(pattern).unwrap()).wants(&nginx())
    }

    #[test]
    fn a_pattern_matches_a_name_a_file_or_a_number_as_a_whole() {
        for pattern in [
            "nginx",
            "1264",
            "nginx: worker p",
            "ng.*x",
            "(a|nginx)",
            "12[0-9]+",
            "nginx|x",
        ] {
            assert!(matching(pattern), "{pattern}");
        }
        for pattern in [
            "ngin",
            "126",
            "/usr/sbin/nginx",
            "sbin/nginx",
            "x|ngin",
            "NGINX",
            "",
        ] {
            assert!(!matching(pattern), "{pattern}");
        }
    }

    #[test]
    fn names_are_bytes() {
        let candidate = Candidate {
            name: Some(b"\xff\xff\n"),
            executable: None,
            ..nginx()
        };
        let pattern = Pattern::new("...").unwrap();
        assert!(Follow::Matching(pattern).wants(&candidate));
    }

    #[test]
    fn on_is_who_ticked_and_all_is_everybody() {
        let ticked = Candidate {
            ticked: true,
            ..nginx()
        };
        assert!(Follow::On.wants(&ticked) && !Follow::On.wants(&nginx()));
        assert!(Follow::All.wants(&nginx()) && !Follow::Off.wants(&ticked));
    }

    #[test]
    fn what_is_no_pattern_is_told() {
        for pattern in ["(", "a)(b", "[", "*"] {
            let error = Pattern::new(pattern).unwrap_err().to_string();
            assert!(error.contains(&format!("{pattern:?}")), "{error}");
        }
    }
}
