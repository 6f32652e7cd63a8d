//! How the user stacks of threads are captured and unwound.

use std::fmt;

use crate::KernelTypes;
use crate::kernel_types::Feature;

/// When the user stack of a thread that was off the CPU is captured. A tick captures it at once.
/// Records and stacks are joined by thread and number of the return to user mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UserStackCapture {
    /// When the thread returns to user mode.
    OnReturn,
    /// At switch-out, once for each place in user mode.
    AtSwitchOut,
}

impl UserStackCapture {
    /// What the running kernel supports: on return if programs can ask for that callback
    /// (Linux 6.18), by one of the prototypes that `c/kernel.h` declares.
    #[must_use]
    pub fn of(types: &KernelTypes) -> UserStackCapture {
        let callback = types.parameters("bpf_task_work_schedule_resume") == Some(4)
            || types.parameters("bpf_task_work_schedule_resume_impl") == Some(5);
        if callback && types.permits(Feature::ReturnCallback) {
            UserStackCapture::OnReturn
        } else {
            UserStackCapture::AtSwitchOut
        }
    }
}

impl fmt::Display for UserStackCapture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            UserStackCapture::OnReturn => "when the thread returns to user mode",
            UserStackCapture::AtSwitchOut => "at switch-out, once for each place in user mode",
        })
    }
}

/// How the programs find the code at an address of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodeLookup {
    /// In the maple tree of its address space (`c/mapped_code.h`).
    MapleTree,
    /// Not at all: each stack is copied and unwound in user space.
    StackCopies,
}

impl CodeLookup {
    /// What the running kernel supports: the tree if its nodes are laid out as in `c/maple.h`.
    #[must_use]
    pub fn of(types: &KernelTypes) -> CodeLookup {
        let kinds = ["maple_leaf_64", "maple_range_64", "maple_arange_64"];
        let as_known = kinds.map(|kind| types.enumerator("maple_type", kind))
            == [Some(1), Some(2), Some(3)]
            && types.size("maple_node") == Some(256)
            && types.array("maple_range_64", "pivot") == Some((8, 15))
            && types.array("maple_arange_64", "pivot") == Some((8, 9));
        if as_known && types.permits(Feature::MapleTree) {
            CodeLookup::MapleTree
        } else {
            CodeLookup::StackCopies
        }
    }
}

impl fmt::Display for CodeLookup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CodeLookup::MapleTree => "unwound in the kernel, by the maple trees of processes",
            CodeLookup::StackCopies => {
                "copied and unwound in user space, since the maple tree of this kernel is not \
                 known: more CPU time, and no stack deeper than 15 KiB"
            }
        })
    }
}
