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

/// How a process descends from a load.
///
/// A lineage has a letter and a count for each step: `_f` a fork, `_x` an exec. So a call that does
/// both, such as `system` or `posix_spawn`, is `_f1_x1`: collect calls it `_c1`, but sees the call
/// itself. Forks are counted for each process, and again from 1 with a new program. Unlike in
/// collect, calls that failed are not counted: the kernel doesn't report them.
#[derive(Clone, Debug)]
pub struct Descent {
    /// `None` if it would be too long.
    lineage: Option<String>,
    forks: u32,
}

impl Descent {
    /// The descent of a load that has just executed its program. Its lineage is empty.
    #[must_use]
    pub fn of_load() -> Descent {
        Descent::new(Some(String::new()))
    }

    /// The descent of a child that the process forks.
    pub fn fork(&mut self) -> Descent {
        self.forks = self.forks.saturating_add(1);
        Descent::new(step(self.lineage(), 'f', self.forks))
    }

    /// Records that the process executes another program.
    pub fn executed(&mut self) {
        // The count is 1: after a successful exec there is another program.
        *self = Descent::new(step(self.lineage(), 'x', 1));
    }

    /// The lineage, as `_f1_x1`; empty for the load itself. `None` where it would be too long for a
    /// file name.
    #[must_use]
    pub fn lineage(&self) -> Option<&str> {
        self.lineage.as_deref()
    }

    fn new(lineage: Option<String>) -> Descent {
        Descent { lineage, forks: 0 }
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

    /// Applies forks as `parent+child` and execs as `pid!`, of a load with pid 1.
    fn replayed(events: &str) -> HashMap<u32, Descent> {
        let mut descents = HashMap::from([(1, Descent::of_load())]);
        for event in events.split_whitespace() {
            let mark = event.find(|c: char| !c.is_ascii_digit()).unwrap();
            let process = descents.get_mut(&event[..mark].parse().unwrap());
            let process = process.unwrap();
            match &event[mark..=mark] {
                "+" => {
                    let child = process.fork();
                    descents.insert(event[mark + 1..].parse().unwrap(), child);
                }
                _ => process.executed(),
            }
        }
        descents
    }

    #[test]
    fn a_descent_is_forks_and_execs_in_their_order() {
        for (events, pid, lineage) in [
            ("", 1, ""),
            ("1+2", 2, "_f1"),
            ("1+2 1+3 1+4 4!", 4, "_f3_x1"),
            ("1+2 2! 2!", 2, "_f1_x1_x1"),
            ("1+2 1+3 3!", 3, "_f2_x1"),
            ("1+3 3! 3+4 3+5", 5, "_f1_x1_f2"),
            ("1! 1+2", 2, "_x1_f1"),
            ("1+2 1! 1+3", 3, "_x1_f1"),
            ("1+2 2! 1+2", 2, "_f2"),
        ] {
            assert_eq!(replayed(events)[&pid].lineage(), Some(lineage), "{events}");
        }
    }

    #[test]
    fn a_lineage_that_is_too_long_is_none() {
        let mut descent = Descent::of_load();
        (0..1000).for_each(|_| descent.executed());
        assert_eq!((descent.fork().lineage(), descent.lineage()), (None, None));
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
        fn lineages_differ(events in prop::collection::vec((any::<bool>(), 0_usize..30), 0..200)) {
            let mut descents = vec![Descent::of_load()];
            let mut seen = std::collections::HashSet::new();
            for (forks, index) in events {
                let index = index % descents.len();
                if forks {
                    let child = descents[index].fork();
                    if let Some(lineage) = child.lineage() {
                        prop_assert!(seen.insert(lineage.to_owned()), "{}", lineage);
                    }
                    descents.push(child);
                } else if index > 0 {
                    descents[index].executed();
                }
            }
        }
    }
}
