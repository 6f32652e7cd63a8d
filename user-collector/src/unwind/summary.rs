//! Counts of the frame information of a file: all that could not be used is counted.

use serde::Serialize;

use super::rule::{Cfa, FramePointer, ReturnAddress, Unsupported, UnwindRule, UnwindRules};
use super::table::UnwindTable;
use super::x86_64_registers::{FP, SP};

/// The summary of one table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TableSummary {
    /// Bytes of executable segments.
    pub text: u64,
    /// Functions of Go's table that were read.
    pub go_functions: u64,
    /// Functions of Go's table without the position of the caller: C functions.
    pub go_unknown: u64,
    /// FDEs that were read.
    pub fdes: u64,
    /// FDEs that could not be read at all, because of themselves or of their CIE.
    pub bad_fdes: u64,
    /// FDEs whose program ends with an error; up to there they are in the table.
    pub malformed_fdes: u64,
    /// FDEs of code that is in no executable segment: a linker may discard code but keep its frame
    /// information.
    pub elsewhere: u64,
    /// FDEs whose end is overlapped by a later one.
    pub overlapped: u64,
    /// Bytes at the section's end that are no entry.
    pub unread: u64,
    /// The rows of the table by kind.
    pub rows: RowCounts,
}

/// Rows by kind. Each row is counted in one field, and also in `frame_pointer_lost` where that
/// applies.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RowCounts {
    /// Beginnings of holes between functions.
    pub absent: u64,
    /// Outermost frames.
    pub stop: u64,
    /// The CFA is relative to the stack pointer.
    pub stack_pointer: u64,
    /// The CFA is relative to the frame pointer.
    pub frame_pointer: u64,
    /// The CFA is read from memory.
    pub deref: u64,
    /// Entries of the PLT.
    pub plt: u64,
    /// Signal frames.
    pub signal: u64,
    /// The CFA or the return address is in another register: known in the innermost frame only.
    pub innermost: u64,
    /// The CFA is an expression of an unsupported form.
    pub cfa_expression: u64,
    /// The CFA is relative to a register that is not a general one.
    pub cfa_register: u64,
    /// The caller's stack pointer is not the CFA.
    pub other_stack_pointer: u64,
    /// The return address has a rule of an unsupported form.
    pub return_address: u64,
    /// An offset is too large for its field.
    pub offset: u64,
    /// What follows an error in an FDE's program.
    pub malformed: u64,
    /// No number was left for the rule.
    pub full: u64,
    /// Rows after which the caller's frame pointer is unknown, of all kinds.
    pub frame_pointer_lost: u64,
}

impl RowCounts {
    pub(crate) fn of(table: &UnwindTable, rules: &UnwindRules) -> RowCounts {
        let mut counts = RowCounts::default();
        for row in table.rows() {
            counts.add(rules.get(row.rule).unwrap_or(&UnwindRule::Absent));
        }
        counts
    }

    /// Returns the number of rows with rules that can't be used.
    #[must_use]
    pub fn unsupported(&self) -> u64 {
        self.cfa_expression
            + self.cfa_register
            + self.return_address
            + self.offset
            + self.malformed
            + self.full
    }

    fn add(&mut self, rule: &UnwindRule) {
        *self.of_kind(rule) += 1;
        if let UnwindRule::Frame(frame) = rule
            && frame.fp == FramePointer::Lost
        {
            self.frame_pointer_lost += 1;
        }
    }

    fn of_kind(&mut self, rule: &UnwindRule) -> &mut u64 {
        let frame = match rule {
            UnwindRule::Absent => return &mut self.absent,
            UnwindRule::Stop => return &mut self.stop,
            UnwindRule::Unsupported(why) => {
                return match why {
                    Unsupported::CfaExpression => &mut self.cfa_expression,
                    Unsupported::CfaRegister => &mut self.cfa_register,
                    Unsupported::ReturnAddress => &mut self.return_address,
                    Unsupported::Offset => &mut self.offset,
                    Unsupported::Malformed => &mut self.malformed,
                    Unsupported::StackPointer => &mut self.other_stack_pointer,
                    Unsupported::Full => &mut self.full,
                };
            }
            UnwindRule::Frame(frame) => frame,
        };
        match (frame.ra, frame.cfa) {
            (ReturnAddress::Interrupted { .. }, _) => &mut self.signal,
            (ReturnAddress::Register(_), _) => &mut self.innermost,
            (_, Cfa::Plt { .. }) => &mut self.plt,
            (_, Cfa::Register { register: SP, .. }) => &mut self.stack_pointer,
            (_, Cfa::Register { register: FP, .. }) => &mut self.frame_pointer,
            (
                _,
                Cfa::Deref {
                    register: SP | FP, ..
                },
            ) => &mut self.deref,
            (_, Cfa::Register { .. } | Cfa::Deref { .. }) => &mut self.innermost,
        }
    }
}
