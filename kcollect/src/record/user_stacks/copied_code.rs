//! Processes that may have copied code from files to anonymous memory: the BPF programs have found
//! anonymous code in their stacks for which there is no table.
//!
//! Usually it is JIT code. So each search without a result doubles the pause until the next one.

use std::collections::{HashMap, HashSet};

use bpf_abi::CodeFile;
use experiment_format::ids::Pid;
use experiment_format::units::Nanos;

/// The shortest pause between two searches of a process.
const MIN_PAUSE_NS: Nanos = Nanos::from_millis(100);
/// The longest one.
const MAX_PAUSE_NS: Nanos = Nanos::from_secs(60);
/// Max processes that are looked at in a round.
const MAX_LOOKS: usize = 8;
/// Max mappings of a process with copied code.
const MAX_MAPPINGS: usize = 64;

/// The processes with anonymous code.
#[derive(Debug, Default)]
pub(in crate::record) struct AnonymousCode {
    by_pid: HashMap<Pid, Looks>,
    due: Vec<Pid>,
}

#[derive(Debug)]
struct Looks {
    execution: u32,
    next_ns: Nanos,
    pause_ns: Nanos,
    due: bool,
    /// Where mappings with copied code begin.
    copied: HashSet<u64>,
}

impl AnonymousCode {
    /// Adds anonymous code of a process, which was in a stack at an instant.
    pub(in crate::record) fn seen(&mut self, pid: Pid, code: CodeFile, at_ns: Nanos) {
        let new = || Looks {
            execution: code.generation,
            next_ns: Nanos::ZERO,
            pause_ns: MIN_PAUSE_NS,
            due: false,
            copied: HashSet::new(),
        };
        let looks = self.by_pid.entry(pid).or_insert_with(new);
        if looks.execution != code.generation {
            *looks = new();
        }
        let known = looks.copied.contains(&code.modified_ns);
        if !known && !looks.due && at_ns >= looks.next_ns && looks.copied.len() < MAX_MAPPINGS {
            looks.due = true;
            self.due.push(pid);
        }
    }

    /// Returns the processes to look at now, each with its execution.
    pub(in crate::record) fn take_due(&mut self) -> Vec<(Pid, u32)> {
        let due = self.due.drain(..self.due.len().min(MAX_LOOKS));
        due.filter_map(|pid| Some((pid, self.by_pid.get(&pid)?.execution)))
            .collect()
    }

    /// Records what a search at an instant has found: the starts of mappings with copied code.
    /// Returns the new ones.
    pub(in crate::record) fn found(
        &mut self,
        pid: Pid,
        starts: impl Iterator<Item = u64>,
        at_ns: Nanos,
    ) -> HashSet<u64> {
        let Some(looks) = self.by_pid.get_mut(&pid) else {
            return HashSet::new();
        };
        let new: HashSet<u64> = starts.filter(|start| looks.copied.insert(*start)).collect();
        looks.due = false;
        looks.pause_ns = if new.is_empty() {
            (looks.pause_ns * 2).min(MAX_PAUSE_NS)
        } else {
            MIN_PAUSE_NS
        };
        looks.next_ns = at_ns + looks.pause_ns;
        new
    }

    /// Drops a process that is gone.
    pub(in crate::record) fn evict(&mut self, pid: Pid) {
        self.by_pid.remove(&pid);
    }
}

#[cfg(test)]
mod tests {
    use bpf_abi::layout::COPIED_CODE_DEVICE;

    use super::*;

    fn code(start: u64, execution: u32) -> CodeFile {
        CodeFile {
            inode: 7,
            modified_ns: start,
            device: COPIED_CODE_DEVICE,
            generation: execution,
        }
    }

    #[test]
    fn looks_without_a_result_become_rare() {
        let mut anonymous = AnonymousCode::default();
        let (pid, none) = (Pid(7), std::iter::empty);
        anonymous.seen(pid, code(0x1000, 1), Nanos(0));
        anonymous.seen(pid, code(0x2000, 1), Nanos(0));
        assert_eq!(anonymous.take_due(), [(pid, 1)]);
        assert!(anonymous.found(pid, none(), Nanos(0)).is_empty());
        anonymous.seen(pid, code(0x1000, 1), MIN_PAUSE_NS);
        assert!(anonymous.take_due().is_empty());
        anonymous.seen(pid, code(0x1000, 1), MIN_PAUSE_NS * 2);
        assert_eq!(anonymous.take_due(), [(pid, 1)]);
        let starts = [0x1000].into_iter();
        assert_eq!(anonymous.found(pid, starts, Nanos(0)).len(), 1);
        // Its table is not published yet.
        anonymous.seen(pid, code(0x1000, 1), MIN_PAUSE_NS);
        assert!(anonymous.take_due().is_empty());
        // Another program.
        anonymous.seen(pid, code(0x1000, 2), Nanos(0));
        assert_eq!(anonymous.take_due(), [(pid, 2)]);
    }
}
