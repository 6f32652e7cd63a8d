//! Names of subexperiments: of followed processes, and of the descendants of a load.
//!
//! A followed process is named by its name and number, `_sshd_PID_1264.1.er`, as er_kernel did.
//! Descendants of a load that is followed for itself are named by their descent, as collect does:
//! `_f2_x1.er` is the first exec of the second fork. Both begin with `_`, so that readers find
//! them.
//!
//! The name of a process may be any bytes, but a directory's name is typed, sorted and matched. So
//! it has only letters, digits and a few marks without a meaning in shells and paths. The number
//! and the count make it unique.

use std::collections::HashMap;
use std::fmt::Write;

use experiment_format::ids::Pid;

/// Longest process's name in a directory's name, bytes. The kernel's names have 15.
const MAX_NAME_BYTES: usize = 64;
/// Longest lineage, bytes: a file name has at most 255, `.er` included.
const MAX_LINEAGE_BYTES: usize = 240;

/// The names of followed processes' directories.
#[derive(Clone, Debug, Default)]
pub struct DirectoryNames {
    /// Number of names for each pid.
    counts: HashMap<Pid, u32>,
}

impl DirectoryNames {
    /// Returns an empty registry.
    #[must_use]
    pub fn new() -> DirectoryNames {
        DirectoryNames::default()
    }

    /// Returns a new name of a directory for a process: `_NAME_PID_pid.1.er`. Later ones for the
    /// same pid end in `.2.er` and so on: for another process, or the same with another program.
    pub fn next(&mut self, name: &[u8], pid: Pid) -> String {
        let count = self.counts.entry(pid).or_default();
        *count += 1;
        format!("_{}_PID_{pid}.{count}.er", safe(name))
    }
}

/// Returns a process's name as a part of a file's name. The `/` of kernel threads becomes `:`, as
/// in `kworker:0:1`.
fn safe(name: &[u8]) -> String {
    let mut out = String::new();
    for character in String::from_utf8_lossy(name).chars() {
        let kept = match character {
            '/' => ':',
            '.' | '-' if out.is_empty() => '_',
            '.' | '-' | '_' | '+' | ':' | '@' | '=' | ',' => character,
            _ if character.is_alphanumeric() => character,
            _ => '_',
        };
        if out.len() + kept.len_utf8() > MAX_NAME_BYTES {
            break;
        }
        out.push(kept);
    }
    if out.is_empty() {
        out.push_str("unknown");
    }
    out
}

/// The lineages of a load's descendants.
///
/// A lineage has a letter and a count for each step: `_f` a fork, `_x` an exec. So a call that does
/// both, such as `system` or `posix_spawn`, is `_f1_x1`: collect calls it `_c1`, but sees the call
/// itself. Forks are counted for each process, and again from 1 with a new program. Unlike in
/// collect, calls that failed are not counted: the kernel doesn't report them.
#[derive(Clone, Debug)]
pub struct Lineages {
    processes: HashMap<Pid, Descendant>,
}

#[derive(Clone, Debug)]
struct Descendant {
    /// `None` if it would be too long.
    lineage: Option<String>,
    forks: u32,
}

impl Lineages {
    /// Returns the lineages of a load that has just executed its program. Its own is empty.
    #[must_use]
    pub fn new(load: Pid) -> Lineages {
        let founder = Descendant::new(Some(String::new()));
        Lineages {
            processes: HashMap::from([(load, founder)]),
        }
    }

    /// Notes that `parent` forked `pid`. Processes that do not descend from the load are ignored.
    pub fn forked(&mut self, pid: Pid, parent: Pid) {
        let Some(parent) = self.processes.get_mut(&parent) else {
            // A descendant may have had the number before.
            self.processes.remove(&pid);
            return;
        };
        parent.forks = parent.forks.saturating_add(1);
        let lineage = step(parent.lineage.as_deref(), 'f', parent.forks);
        self.processes.insert(pid, Descendant::new(lineage));
    }

    /// Notes that `pid` executes another program.
    pub fn executed(&mut self, pid: Pid) {
        if let Some(process) = self.processes.get_mut(&pid) {
            // The count is 1: after a successful exec there is another program.
            let lineage = step(process.lineage.as_deref(), 'x', 1);
            *process = Descendant::new(lineage);
        }
    }

    /// Notes that `pid` has exited, with all its threads.
    pub fn ended(&mut self, pid: Pid) {
        self.processes.remove(&pid);
    }

    /// Returns whether the process is the load or descends from it.
    #[must_use]
    pub fn contains(&self, pid: Pid) -> bool {
        self.processes.contains_key(&pid)
    }

    /// Returns the lineage, as `_f1_x1`; empty for the load itself. `None` for other processes, and
    /// where it would be too long for a file name.
    #[must_use]
    pub fn get(&self, pid: Pid) -> Option<&str> {
        self.processes.get(&pid)?.lineage.as_deref()
    }
}

impl Descendant {
    fn new(lineage: Option<String>) -> Descendant {
        Descendant { lineage, forks: 0 }
    }
}

fn step(lineage: Option<&str>, letter: char, count: u32) -> Option<String> {
    let mut longer = lineage?.to_owned();
    write!(longer, "_{letter}{count}").ok()?;
    (longer.len() <= MAX_LINEAGE_BYTES).then_some(longer)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_process_is_called_by_name_and_number() {
        let mut names = DirectoryNames::new();
        assert_eq!(names.next(b"sshd", Pid(1264)), "_sshd_PID_1264.1.er");
        assert_eq!(names.next(b"bash", Pid(1264)), "_bash_PID_1264.2.er");
        assert_eq!(names.next(b"sshd", Pid(1265)), "_sshd_PID_1265.1.er");
        assert_eq!(names.next(b"sshd", Pid(1264)), "_sshd_PID_1264.3.er");
    }

    #[test]
    fn a_name_means_nothing_to_a_path_or_a_shell() {
        for (name, safely) in [
            (&b"kworker/0:1-eve"[..], "kworker:0:1-eve"),
            (b"..", "_."),
            (b"../../etc", "_.:..:etc"),
            (b"-rf", "_rf"),
            (b"a b\n$(`x`)'\"", "a_b____x____"),
            (b"", "unknown"),
            ("naïve".as_bytes(), "naïve"),
            (b"(sd-pam)", "_sd-pam_"),
            (&[0xff; 15], "_______________"),
            ("\u{202e}x".as_bytes(), "_x"),
            (b"nginx: worker p", "nginx:_worker_p"),
        ] {
            assert_eq!(safe(name), safely);
        }
        assert_eq!(safe(&[b'x'; 1000]).len(), MAX_NAME_BYTES);
    }

    /// A story of `parent+child` forks, `pid!` execs, `pid-` ends.
    fn replayed(story: &str) -> Lineages {
        let mut lineages = Lineages::new(Pid(1));
        for event in story.split_whitespace() {
            let mark = event.find(|c: char| !c.is_ascii_digit()).unwrap();
            let pid = event[..mark].parse().unwrap();
            let other = event[mark + 1..].parse().unwrap_or_default();
            match &event[mark..=mark] {
                "+" => lineages.forked(other, pid),
                "!" => lineages.executed(pid),
                _ => lineages.ended(pid),
            }
        }
        lineages
    }

    #[test]
    fn a_descent_is_forks_and_execs_in_their_order() {
        for (story, pid, lineage) in [
            ("", 1, Some("")),
            ("1+2", 2, Some("_f1")),
            ("1+2 1+3 1+4 4!", 4, Some("_f3_x1")),
            ("1+2 2! 2!", 2, Some("_f1_x1_x1")),
            ("1+2 1+3 3!", 3, Some("_f2_x1")),
            ("1+3 3! 3+4 3+5", 5, Some("_f1_x1_f2")),
            ("1! 1+2", 2, Some("_x1_f1")),
            ("1+2 1! 1+3", 3, Some("_x1_f1")),
            ("1+2 2! 1+2", 2, Some("_f2")),
            ("9+2 1+2", 2, Some("_f1")),
            ("1+2 2-", 2, None),
            ("1+2 2- 9+2", 2, None),
            ("1+2 9+2 2+3", 3, None),
            ("9+10 10!", 10, None),
            ("1+2 1- 2+3", 3, Some("_f1_f1")),
        ] {
            assert_eq!(replayed(story).get(Pid(pid)), lineage, "{story}");
        }
    }

    #[test]
    fn a_lineage_that_is_too_long_is_none() {
        let mut lineages = Lineages::new(Pid(1));
        for _ in 0..1000 {
            lineages.executed(Pid(1));
        }
        lineages.forked(Pid(2), Pid(1));
        assert!(lineages.contains(Pid(1)) && lineages.contains(Pid(2)));
        assert_eq!((lineages.get(Pid(1)), lineages.get(Pid(2))), (None, None));
    }

    proptest! {
        #[test]
        fn a_directory_name_is_one_part_of_a_path(
            processes in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..40), 1_u32..4), 1..20)
        ) {
            let mut names = DirectoryNames::new();
            let mut all = std::collections::HashSet::new();
            for (name, pid) in processes {
                let name = names.next(&name, Pid(pid));
                prop_assert!(name.starts_with('_') && name.ends_with(".er") && name.len() < 200);
                prop_assert!(!name.contains(['/', '\0', '\n', ' ', '\'', '"', '\\']));
                prop_assert!(all.insert(name));
            }
        }

        /// Of a load that executes one program, no two processes at any time have one lineage.
        #[test]
        fn lineages_differ(
            events in prop::collection::vec((0_u8..3, 1_u32..30, 1_u32..30), 0..200)
        ) {
            let mut lineages = Lineages::new(Pid(1));
            let mut seen = std::collections::HashSet::new();
            for (next, (kind, pid, by)) in (2..).zip(events) {
                match kind {
                    0 => lineages.executed(Pid(pid + 1)),
                    1 => lineages.ended(Pid(pid)),
                    _ => {
                        lineages.forked(Pid(next), Pid(by));
                        if let Some(lineage) = lineages.get(Pid(next)) {
                            prop_assert!(seen.insert(lineage.to_owned()), "{}", lineage);
                        }
                    }
                }
            }
        }
    }
}
