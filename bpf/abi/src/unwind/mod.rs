//! The unwinder of `c/unwind.h`, in user space: for stacks that were copied, and for its own tests.
//!
//! The BPF programs and this module compile the same C, so that a stack has the same frames
//! wherever it is unwound. The caller of [`unwind`] provides what differs: how rules are found, and
//! how the stack is read.
//!
//! It does not depend on where rules come from (`user-collector` makes them from ELF files), and
//! repairs no stack: the stack ends where the C says so, with the reason.

pub(crate) mod native;

#[cfg(test)]
mod tests;

use std::fmt;
use std::ops::Range;

use crate::layout::EncodedRule;

pub use crate::layout::UnwindEnd;
pub use native::unwind;

impl UnwindEnd {
    /// All of them, by rising number.
    pub const ALL: [UnwindEnd; 10] = [
        UnwindEnd::Complete,
        UnwindEnd::DepthLimit,
        UnwindEnd::NoMapping,
        UnwindEnd::NoTable,
        UnwindEnd::NoRule,
        UnwindEnd::Unsupported,
        UnwindEnd::Unreadable,
        UnwindEnd::NotAscending,
        UnwindEnd::Executing,
        UnwindEnd::Unverified,
    ];
}

impl fmt::Display for UnwindEnd {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            UnwindEnd::Complete => "complete",
            UnwindEnd::DepthLimit => "depth limit",
            UnwindEnd::NoMapping => "no mapping at the address",
            UnwindEnd::NoTable => "no unwind table of the file",
            UnwindEnd::NoRule => "no unwind rule for the address",
            UnwindEnd::Unsupported => "unsupported unwind rule",
            UnwindEnd::Unreadable => "unreadable stack",
            UnwindEnd::NotAscending => "not ascending",
            UnwindEnd::Executing => "in execve, between two programs",
            UnwindEnd::Unverified => "unverified",
        })
    }
}

/// What is known of a frame: all registers of the innermost one, and the registers that their
/// callees have kept of the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registers {
    /// The instruction that was to be executed next.
    pub pc: u64,
    /// The general registers by their DWARF number; on x86-64, 6 is the frame pointer and 7 the
    /// stack pointer.
    pub general: [u64; 16],
    /// A bit for each of them that is known.
    pub known: u16,
    /// `pc` is where the thread was interrupted, and not a return address.
    pub exact: bool,
    /// Where the thread's own stack is, for code that switches stacks; empty if not known, such as
    /// for a copied stack.
    pub own_stack: Range<u64>,
}

impl Registers {
    /// The registers of an innermost frame.
    #[must_use]
    pub fn innermost(pc: u64, general: [u64; 16]) -> Registers {
        Registers {
            pc,
            general,
            known: u16::MAX,
            exact: true,
            own_stack: 0..0,
        }
    }

    /// Returns the address by which functions are found: in a caller it is inside the call.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.pc.wrapping_sub(u64::from(!self.exact))
    }
}

/// How to find the caller of the frame at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnwindBy {
    /// By a rule.
    Rule(EncodedRule),
    /// By the frame pointer, or by a scan of the stack: it is code without a table.
    FramePointer,
    /// Likewise, in a file whose table has no row for it. The dynamic linker has the first function
    /// of a program there: zero in the frame pointer of a caller ends the stack.
    Hole,
    /// There is no way, and this is why.
    Nothing(UnwindEnd),
}

/// A stack as far as it could be unwound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unwound {
    /// Leaf first. The leaf and a function that a signal has interrupted are at their pc; callers
    /// are the return address − 1, which is inside their call.
    pub frames: Vec<u64>,
    /// Why it ends.
    pub end: UnwindEnd,
    /// A caller was found by the frame pointer, and no table says that the code has one.
    pub via_frame_pointer: bool,
    /// A caller was found by a scan of the stack: functions may be missing before it, and it may be
    /// one that had called the code before.
    pub via_scan: bool,
}
