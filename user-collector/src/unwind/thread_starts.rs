//! Code in which threads begin and that no frame information covers: the entry of a program, and
//! what a C library calls a new thread's function from.
//!
//! glibc says of both that they have no caller. Others (musl, dietlibc, klibc, programs without a C
//! library) have frame information for neither, or such as for a function with a caller. So both
//! are found by the machine code, and get a rule that ends the stack.

use std::ops::Range;

use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, OpKind};
use kcollect_elf::{ElfBytes, ElfFile, ElfSegment};
use object::elf::{DT_FLAGS_1, DT_NEEDED, ET_DYN, ET_EXEC, PF_X, PT_DYNAMIC, PT_INTERP, PT_LOAD};

/// Longest code of an entry, bytes. The dynamic linker of glibc has 52.
const MAX_ENTRY_BYTES: u64 = 256;
/// Longest text in which a C library's start of threads is looked for, bytes.
const MAX_TEXT_BYTES: u64 = 16 << 20;
/// Longest dynamic section that is read, bytes.
const MAX_DYNAMIC_BYTES: u64 = 64 << 10;
/// The flag of a position-independent program in `DT_FLAGS_1`.
const DF_1_PIE: u64 = 0x0800_0000;

/// `mov %rsp,%rdi`: an entry passes on the stack that the kernel has made.
const PASSES_STACK: [u8; 3] = [0x48, 0x89, 0xe7];
/// Bytes in which an entry has done so.
const PASSES_STACK_WITHIN: usize = 16;
const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// `mov $60,%al`, `mov $60,%eax`, `push $60; pop %rax`: the number of exit(2).
const EXITS: [&[u8]; 3] = [&[0xb0, 0x3c], &[0xb8, 0x3c, 0, 0, 0], &[0x6a, 0x3c, 0x58]];
/// `xor %ebp,%ebp`: the frame pointer of the first function.
const CLEARS_FP: [u8; 2] = [0x31, 0xed];
/// Bytes from the call of a thread's function to the end of exit(2), and from the clearing of the
/// frame pointer to the call.
const MAX_START_BYTES: usize = 32;

/// Returns the ranges of code in which threads begin. What can't be read has none.
pub(super) fn find<'data, B>(elf: &ElfFile<B>, segments: &[ElfSegment]) -> Vec<Range<u64>>
where
    B: ElfBytes<Piece = &'data [u8]>,
{
    let dynamic = Dynamic::read(elf, segments);
    let has_interpreter = segments.iter().any(|segment| segment.kind == PT_INTERP);
    let is_program = match elf.kind() {
        ET_EXEC => true,
        ET_DYN => has_interpreter || dynamic.is_program,
        _ => return Vec::new(),
    };
    let mut starts: Vec<Range<u64>> = entry(elf, segments, is_program).into_iter().collect();
    // A C library, or a program that contains one.
    if !dynamic.needs_others {
        let code = segments.iter().filter(|segment| is_code(segment));
        for segment in code.filter(|segment| segment.file_size <= MAX_TEXT_BYTES) {
            let text = elf.piece("text", segment.offset, segment.file_size);
            starts.extend(text.into_iter().flat_map(thread_starts).map(|range| {
                let at = |offset: usize| segment.address.saturating_add(offset as u64);
                at(range.start)..at(range.end)
            }));
        }
    }
    starts
}

fn is_code(segment: &ElfSegment) -> bool {
    segment.kind == PT_LOAD && segment.flags.contains(PF_X)
}

/// What the dynamic section says.
#[derive(Default)]
struct Dynamic {
    needs_others: bool,
    is_program: bool,
}

impl Dynamic {
    fn read<'data, B>(elf: &ElfFile<B>, segments: &[ElfSegment]) -> Dynamic
    where
        B: ElfBytes<Piece = &'data [u8]>,
    {
        let mut dynamic = Dynamic::default();
        let segment = segments.iter().find(|segment| segment.kind == PT_DYNAMIC);
        let bytes = segment.and_then(|segment| {
            let size = segment.file_size.min(MAX_DYNAMIC_BYTES);
            elf.piece("dynamic section", segment.offset, size).ok()
        });
        for entry in bytes.unwrap_or_default().chunks_exact(16) {
            let word = |at: usize| {
                let bytes = entry[at..].first_chunk().copied();
                bytes.map_or(0, u64::from_le_bytes)
            };
            let (tag, value) = (word(0), word(8));
            dynamic.needs_others |= tag == DT_NEEDED.0 as u64;
            dynamic.is_program |= tag == DT_FLAGS_1.0 as u64 && value & DF_1_PIE != 0;
        }
        dynamic
    }
}

/// Returns the code of a file's entry. Linkers give libraries an entry too, at any function: in a
/// file that is no program it counts only if it does what an entry does.
fn entry<'data, B>(
    elf: &ElfFile<B>,
    segments: &[ElfSegment],
    is_program: bool,
) -> Option<Range<u64>>
where
    B: ElfBytes<Piece = &'data [u8]>,
{
    let start = elf.entry();
    let inside = |segment: &&ElfSegment| {
        let end = segment.address.saturating_add(segment.file_size);
        is_code(segment) && (segment.address..end).contains(&start)
    };
    let segment = segments.iter().find(inside)?;
    let before = start - segment.address;
    let size = (segment.file_size - before).min(MAX_ENTRY_BYTES);
    let offset = segment.offset.checked_add(before)?;
    let code = elf.piece("entry", offset, size).ok()?;
    let first = &code[..code.len().min(PASSES_STACK_WITHIN)];
    let passes = first
        .windows(PASSES_STACK.len())
        .any(|bytes| bytes == PASSES_STACK);
    (is_program || passes).then(|| start..start.saturating_add(entry_bytes(code, start)))
}

/// Returns how long the code of an entry is: up to an instruction after which nothing runs, to
/// padding after a call, or to what it calls.
fn entry_bytes(code: &[u8], start: u64) -> u64 {
    let mut decoder = Decoder::with_ip(64, code, start, DecoderOptions::NONE);
    let (mut limit, mut jumps_to) = (start.saturating_add(code.len() as u64), start);
    let mut instruction = Instruction::default();
    let mut after_call = false;
    while decoder.can_decode() {
        decoder.decode_out(&mut instruction);
        let (at, next) = (instruction.ip(), instruction.next_ip());
        let is_padding = matches!(instruction.mnemonic(), Mnemonic::Nop | Mnemonic::Int3);
        if instruction.is_invalid() || at >= limit || (after_call && is_padding) {
            limit = limit.min(at);
            break;
        }
        after_call = false;
        let target = instruction.near_branch_target();
        let is_direct = instruction.op0_kind() == OpKind::NearBranch64;
        match instruction.mnemonic() {
            Mnemonic::Call => {
                after_call = true;
                if is_direct && target > next {
                    limit = limit.min(target);
                }
            }
            Mnemonic::Jmp | Mnemonic::Ret | Mnemonic::Hlt | Mnemonic::Ud2 if next > jumps_to => {
                limit = limit.min(next);
                break;
            }
            // A conditional jump.
            _ if is_direct => jumps_to = jumps_to.max(target),
            _ => {}
        }
    }
    limit.saturating_sub(start)
}

/// Returns where in the text a thread's function is called and the thread ends when it returns:
/// from the call to the end of exit(2).
fn thread_starts(text: &[u8]) -> Vec<Range<usize>> {
    let calls = text.windows(SYSCALL.len()).enumerate();
    calls
        .filter(|(_, bytes)| *bytes == SYSCALL)
        .filter_map(|(at, _)| thread_start(text, at))
        .collect()
}

/// Returns the range of a thread's start whose system call is at an offset.
fn thread_start(text: &[u8], at: usize) -> Option<Range<usize>> {
    let first = at.saturating_sub(MAX_START_BYTES);
    let exits = EXITS.iter().find_map(|code| {
        let mut found = text[first..at].windows(code.len());
        found.rposition(|bytes| bytes == *code)
    })?;
    let end = first + exits;
    // The function's address is in a register.
    let is_call = |bytes: &[u8]| bytes[0] == 0xff && (0xd0..=0xd7).contains(&bytes[1]);
    let call = first + text[first..end].windows(2).rposition(is_call)?;
    let before = &text[call.saturating_sub(MAX_START_BYTES)..call];
    let clears = before
        .windows(CLEARS_FP.len())
        .any(|bytes| bytes == CLEARS_FP);
    clears.then_some(call..at + SYSCALL.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// musl's `__clone`, from the system call in the new thread on.
    const MUSL_CLONE: &[u8] = &[
        0x0f, 0x05, 0x85, 0xc0, 0x75, 0x11, 0x31, 0xed, 0x5f, 0x41, 0xff, 0xd1, 0x89, 0xc7, 0x31,
        0xc0, 0xb0, 0x3c, 0x0f, 0x05, 0xf4, 0xc3,
    ];

    #[test]
    fn a_thread_begins_where_its_function_is_called_and_then_exits() {
        let text = [&[0x90; 100], MUSL_CLONE, &[0x90; 100]].concat();
        assert_eq!(thread_starts(&text).first(), Some(&(110..120)));
        // Not a function that uses the frame pointer and exits.
        let mut other = text.clone();
        other[106] = 0x33;
        assert!(thread_starts(&other).is_empty());
        // Another system call.
        let mut other = text.clone();
        other[117] = 0x3b;
        assert!(thread_starts(&other).is_empty());
        for length in 0..text.len() {
            thread_starts(&text[..length]);
        }
    }

    /// musl's and glibc's entries, dietlibc's, and one that continues after a jump.
    #[test]
    fn an_entry_ends_where_it_does_not_go_on() {
        let start = 0x1000;
        // xor; mov %rsp,%rdi; and; call +11; nops
        let musl = [
            0x48, 0x31, 0xed, 0x48, 0x89, 0xe7, 0x48, 0x83, 0xe4, 0xf0, 0xe8, 11, 0, 0, 0,
        ];
        assert_eq!(entry_bytes(&[&musl[..], &[0x90; 64]].concat(), start), 15);
        // What is called follows.
        let at_once = [&musl[..10], &[0xe8, 2, 0, 0, 0], &[0x50; 64]].concat();
        assert_eq!(entry_bytes(&at_once, start), 17);
        // xor %ebp,%ebp; call; hlt; a function
        let glibc = [&[0x31, 0xed, 0xff, 0x15, 0, 1, 0, 0, 0xf4][..], &[0x55; 64]].concat();
        assert_eq!(entry_bytes(&glibc, start), 9);
        // je over a ret; ret; hlt
        let jumps = [&[0x74, 1, 0xc3, 0x50, 0xf4][..], &[0x55; 64]].concat();
        assert_eq!(entry_bytes(&jumps, start), 5);
        assert_eq!(entry_bytes(&[], start), 0);
        for length in 0..glibc.len() {
            assert!(entry_bytes(&glibc[..length], start) <= length as u64);
        }
    }
}
