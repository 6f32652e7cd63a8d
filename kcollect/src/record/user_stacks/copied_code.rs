//! A process that may have copied code from files to anonymous memory: the BPF programs have found
//! anonymous code in its stacks for which there is no table.
//!
//! Usually it is JIT code. So each search without a result doubles the pause until the next one.

use std::collections::HashSet;

use bpf_abi::CodeFile;
use experiment_format::units::Nanos;

/// The shortest pause between two searches of a process.
const MIN_PAUSE_NS: Nanos = Nanos::from_millis(100);
/// The longest one.
const MAX_PAUSE_NS: Nanos = Nanos::from_secs(60);
/// Max mappings of a process with copied code.
const MAX_MAPPINGS: usize = 64;

/// The anonymous code of a process.
#[derive(Debug)]
pub(in crate::record) struct AnonymousCode {
    /// The number of the execution of the process's program.
    pub(in crate::record) execution: u32,
    next_ns: Nanos,
    pause_ns: Nanos,
    /// It is to be looked at.
    due: bool,
    /// Where mappings with copied code begin.
    copied: HashSet<u64>,
}

impl AnonymousCode {
    pub(in crate::record) fn new(execution: u32) -> AnonymousCode {
        AnonymousCode {
            execution,
            next_ns: Nanos::ZERO,
            pause_ns: MIN_PAUSE_NS,
            due: false,
            copied: HashSet::new(),
        }
    }

    /// Adds anonymous code, which was in a stack at an instant. Returns whether the process is to
    /// be looked at from now on.
    pub(in crate::record) fn seen(&mut self, code: CodeFile, at_ns: Nanos) -> bool {
        let was_due = self.due;
        if self.execution != code.generation {
            *self = AnonymousCode::new(code.generation);
        }
        let known = self.copied.contains(&code.modified_ns);
        self.due |= !known && at_ns >= self.next_ns && self.copied.len() < MAX_MAPPINGS;
        self.due && !was_due
    }

    /// Records what a search at an instant has found: the starts of mappings with copied code.
    /// Returns the new ones.
    pub(in crate::record) fn found(
        &mut self,
        starts: impl Iterator<Item = u64>,
        at_ns: Nanos,
    ) -> HashSet<u64> {
        let new: HashSet<u64> = starts.filter(|start| self.copied.insert(*start)).collect();
        self.due = false;
        self.pause_ns = if new.is_empty() {
            (self.pause_ns * 2).min(MAX_PAUSE_NS)
        } else {
            MIN_PAUSE_NS
        };
        self.next_ns = at_ns + self.pause_ns;
        new
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
        let (mut anonymous, none) = (AnonymousCode::new(1), std::iter::empty);
        assert!(anonymous.seen(code(0x1000, 1), Nanos(0)));
        assert!(!anonymous.seen(code(0x2000, 1), Nanos(0)));
        assert!(anonymous.found(none(), Nanos(0)).is_empty());
        assert!(!anonymous.seen(code(0x1000, 1), MIN_PAUSE_NS));
        assert!(anonymous.seen(code(0x1000, 1), MIN_PAUSE_NS * 2));
        let starts = [0x1000].into_iter();
        assert_eq!(anonymous.found(starts, Nanos(0)).len(), 1);
        // Its table is not published yet.
        assert!(!anonymous.seen(code(0x1000, 1), MIN_PAUSE_NS));
        // Another program.
        assert!(anonymous.seen(code(0x1000, 2), Nanos(0)));
        assert_eq!(anonymous.execution, 2);
    }
}
