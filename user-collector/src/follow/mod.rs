//! The rule by which processes are followed: `-F`, `-T` and `--descendants`.

use experiment_format::ids::Pid;

mod group;
mod pattern;
mod policy;

pub use group::GroupRule;
pub use pattern::{Pattern, PatternError};
pub use policy::{FollowPolicy, FollowState};

/// The rule by which processes are followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FollowRule {
    /// The argument of `-F`.
    pub follow: Follow,
    /// Numbers of processes that are followed whatever `-F` is.
    pub pids: Vec<Pid>,
    /// Whether children of followed processes are followed.
    pub descendants: bool,
}

impl FollowRule {
    /// Returns whether any process can be followed at all.
    #[must_use]
    pub fn follows(&self) -> bool {
        self.follow != Follow::Off || !self.pids.is_empty()
    }
}

/// The argument of `-F`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Follow {
    /// No process.
    Off,
    /// The load, and no other process.
    Load,
    /// Processes that were on a CPU at a tick.
    On,
    /// All processes, also those that only waited.
    All,
    /// Processes that a pattern matches, also those that only waited.
    Matching(Pattern),
    /// Processes of a group, also those that only waited.
    Group(GroupRule),
}

/// What the rule needs of a process.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// Its number.
    pub pid: Pid,
    /// Its name, where known; it may not be UTF-8.
    pub name: Option<&'a [u8]>,
    /// Path of the file that it executes, where known.
    pub executable: Option<&'a [u8]>,
    /// Whether it was on a CPU at a tick.
    pub ticked: bool,
    /// Whether it belongs to the rule's group.
    pub in_group: bool,
}

impl Candidate<'_> {
    /// A process of which only the number is known.
    #[must_use]
    pub fn unknown(pid: Pid) -> Candidate<'static> {
        Candidate {
            pid,
            name: None,
            executable: None,
            ticked: false,
            in_group: false,
        }
    }
}

impl Follow {
    /// Returns whether a process is followed in its current state.
    #[must_use]
    pub fn wants(&self, candidate: &Candidate<'_>) -> bool {
        match self {
            Follow::Off | Follow::Load => false,
            Follow::On => candidate.ticked,
            Follow::All => true,
            Follow::Matching(pattern) => pattern.matches(candidate),
            Follow::Group(_) => candidate.in_group,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nginx() -> Candidate<'static> {
        Candidate {
            pid: Pid(1264),
            name: Some(b"nginx: worker p"),
            executable: Some(b"/usr/sbin/nginx"),
            ticked: false,
            in_group: false,
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
    fn on_follows_what_ticked_and_all_every_process() {
        let ticked = Candidate {
            ticked: true,
            ..nginx()
        };
        assert!(Follow::On.wants(&ticked) && !Follow::On.wants(&nginx()));
        assert!(Follow::All.wants(&nginx()) && !Follow::Off.wants(&ticked));
    }

    #[test]
    fn a_rule_follows_by_mode_or_by_number() {
        let rule = |follow, pids| FollowRule {
            follow,
            pids,
            descendants: true,
        };
        assert!(!rule(Follow::Off, vec![]).follows());
        assert!(rule(Follow::Off, vec![Pid(7)]).follows());
        assert!(rule(Follow::On, vec![]).follows());
    }

    #[test]
    fn an_error_shows_the_pattern() {
        for pattern in ["(", "a)(b", "[", "*"] {
            let error = Pattern::new(pattern).unwrap_err().to_string();
            assert!(error.contains(&format!("{pattern:?}")), "{error}");
        }
    }
}
