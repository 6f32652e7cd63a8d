//! Instructions of Go's compiler and of its runtime's assembly on the x86-64.
//!
//! This is no disassembler: only the forms that they have at certain addresses are recognised.

/// Bytes of the return address, which lies above a function's height.
pub(super) const RETURN_ADDRESS: i32 = 8;

/// Bytes of the caller's frame pointer, below the return address: the smallest height of a function
/// that has saved it.
pub(super) const SAVED: i32 = 8;

/// The register in which `rawVforkSyscall` keeps its return address, r12.
pub(super) const FORKS_RETURN_ADDRESS: u8 = 12;

const PUSH_FP: u8 = 0x55;
/// `mov %rbp,disp8(%rsp)` and `mov %rbp,disp32(%rsp)` up to the displacement.
const STORE_FP_8: &[u8] = &[0x48, 0x89, 0x6c, 0x24];
const STORE_FP_32: &[u8] = &[0x48, 0x89, 0xac, 0x24];
const RSP: u8 = 4;

/// Returns after how many bytes of `text` the caller's frame pointer is saved below the return
/// address, in a function that has just reached this height; `None` if it is not. `before` is the
/// byte before `text`.
///
/// Since Go 1.21 the frame pointer is pushed. Earlier versions made the frame at once and stored it
/// in the next instruction.
pub(super) fn saves(before: u8, text: &[u8], height: i32) -> Option<u64> {
    if before == PUSH_FP && height == SAVED {
        return Some(0);
    }
    let offset = height.checked_sub(SAVED)?;
    if let Some(rest) = text.strip_prefix(STORE_FP_8) {
        let stored = i8::from_le_bytes(*rest.first_chunk()?);
        return (i32::from(stored) == offset).then_some(STORE_FP_8.len() as u64 + 1);
    }
    let rest = text.strip_prefix(STORE_FP_32)?;
    let stored = i32::from_le_bytes(*rest.first_chunk()?);
    (stored == offset).then_some(STORE_FP_32.len() as u64 + 4)
}

/// An instruction that sets the stack pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StackPointerSet {
    /// Offset of the next instruction in the text, bytes.
    pub(super) after: usize,
    /// Whether it only aligns it.
    pub(super) aligns: bool,
}

/// Returns the instructions that set the stack pointer: `mov disp(%reg),%rsp`, `mov %reg,%rsp` and
/// `and $imm8,%rsp`.
pub(super) fn stack_pointer_sets(text: &[u8]) -> Vec<StackPointerSet> {
    let mut sets = Vec::new();
    let mut at = 0;
    while let Some(&[rex, code, operands]) = text.get(at..).and_then(|rest| rest.first_chunk()) {
        let (mode, register, other) = (operands >> 6, operands >> 3 & 7, operands & 7);
        // Another byte names an index register.
        let index = usize::from(mode < 3 && other == RSP);
        let length = match (rex, code, mode) {
            (0x48 | 0x49, 0x8b, 0) if register == RSP && other != 5 => 3 + index,
            (0x48 | 0x49, 0x8b, 1) if register == RSP => 4 + index,
            (0x48 | 0x49, 0x8b, 2) if register == RSP => 7 + index,
            (0x48 | 0x49, 0x8b, 3) if register == RSP => 3,
            (0x48 | 0x4c, 0x89, 3) if other == RSP => 3,
            (0x48, 0x83, 3) if register == 4 && other == RSP => 4,
            _ => {
                at += 1;
                continue;
            }
        };
        at += length;
        sets.push(StackPointerSet {
            after: at,
            aligns: code == 0x83,
        });
    }
    sets
}

/// Offset from the stack pointer, on the return from a signal's handler, to the interrupted pc: of
/// `struct rt_sigframe`, which the kernel has put on the stack, words.
pub(super) const SIGNAL_PC_WORDS: i8 = 21;
/// Offset to the interrupted stack pointer, as [`SIGNAL_PC_WORDS`], bytes.
pub(super) const SIGNAL_SP: i32 = 160;
/// Offset to the interrupted frame pointer, as [`SIGNAL_PC_WORDS`], bytes.
pub(super) const SIGNAL_FP: i16 = 120;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_the_frame_pointer_is_saved() {
        // Go 1.24: push %rbp; mov %rsp,%rbp.
        assert_eq!(saves(0x55, &[0x48, 0x89, 0xe5], 8), Some(0));
        assert_eq!(saves(0x55, &[0x48, 0x89, 0xe5], 16), None);
        // Go 1.19: mov %rbp,0x10(%rsp).
        let store = [0x48, 0x89, 0x6c, 0x24, 0x10, 0x48];
        assert_eq!(saves(0x18, &store, 0x18), Some(5));
        assert_eq!(saves(0x18, &store, 0x20), None);
        let store = [0x48, 0x89, 0xac, 0x24, 0x90, 0x01, 0, 0];
        assert_eq!(saves(0, &store, 0x198), Some(8));
        assert_eq!(saves(0, &store[..7], 0x198), None);
        assert_eq!(saves(0, &[], i32::MIN), None);
    }

    #[test]
    fn what_sets_the_stack_pointer() {
        let sets = |text: &[u8]| -> Vec<(usize, bool)> {
            let sets = stack_pointer_sets(text);
            sets.iter().map(|set| (set.after, set.aligns)).collect()
        };
        // mov %rbx,%rsp; mov 0x38(%rax),%rsp; mov (%rbx),%rsp; mov 0x38(%r14),%rsp; mov %r12,%rsp;
        // and $-16,%rsp
        let text = [
            0x48, 0x89, 0xdc, 0x48, 0x8b, 0x60, 0x38, 0x48, 0x8b, 0x23, 0x49, 0x8b, 0x66, 0x38,
            0x4c, 0x89, 0xe4, 0x48, 0x83, 0xe4, 0xf0,
        ];
        let all = [3, 7, 10, 14, 17].map(|after| (after, false));
        assert_eq!(sets(&text), [&all[..], &[(21, true)]].concat());
        // mov 0(%rsp),%rsp
        assert_eq!(sets(&[0x48, 0x8b, 0x24, 0x24, 0x90]), [(4, false)]);
        // mov %rsp,%rbx; mov 0x8(%rsp),%rdi; sub $16,%rsp
        let text = [
            0x48, 0x89, 0xe3, 0x48, 0x8b, 0x7c, 0x24, 0x08, 0x48, 0x83, 0xec, 0x10,
        ];
        assert_eq!(sets(&text), []);
    }
}
