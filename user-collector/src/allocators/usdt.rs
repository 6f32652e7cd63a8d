//! The probes with which an allocator reports the blocks that it samples itself: OpenTelemetry's
//! `otel_memory:alloc(block, size, weighted bytes)` and `otel_memory:free(block)`.
//!
//! They are USDTs: a `nop` in the code, and a note in `.note.stapsdt` that says where the `nop`,
//! its arguments and its semaphore are. While the semaphore is zero, the program may skip the
//! probe. Notes come from the file, so they are checked. A file with an unusable note counts as a
//! file without notes: better no samples than a part of them.

use bpf_abi::layout::{AllocatorFunction, USDT_OPERANDS, UsdtOperand, UsdtOperandKind};
use kcollect_elf::{ElfBytes, ElfError, ElfFile, LoadSegment, SectionTable};
use object::Endianness;
use object::elf::{EM_AARCH64, EM_X86_64, FileHeader64, Machine};
use object::read::elf::NoteIterator;

/// The section of the notes, and the one whose address they were made for.
const NOTES: &[u8] = b".note.stapsdt";
const BASE: &[u8] = b".stapsdt.base";
/// The name and the kind of a note.
const OWNER: &[u8] = b"stapsdt";
const KIND: u32 = 3;
/// The provider of the probes.
const PROVIDER: &[u8] = b"otel_memory";
/// Max probes of a file: a compiler may have put the allocator wherever it is called.
const MAX_USDTS: usize = 1024;
/// Max bytes of notes that are read. A C library has 10 KB of them.
const MAX_NOTES_BYTES: u64 = 1 << 20;

/// A probe of an allocator that samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundUsdt {
    /// Offset in the file of the instruction.
    pub offset: u64,
    /// Which of the two it is.
    pub function: AllocatorFunction,
    /// The kernel emulates that instruction.
    pub emulated: bool,
    /// Offset in the file of its semaphore: 16 bits that count how many watch it; 0: it has none.
    pub semaphore: u64,
    /// Where its arguments are.
    pub operands: [UsdtOperand; USDT_OPERANDS],
}

/// Returns the probes of a file.
pub(super) fn find<B: ElfBytes>(
    elf: &ElfFile<B>,
    sections: &SectionTable<B::Piece>,
    segments: &[LoadSegment],
) -> Result<Vec<FoundUsdt>, ElfError> {
    let Some(section) = sections
        .named(NOTES)
        .filter(|section| section.size <= MAX_NOTES_BYTES)
    else {
        return Ok(Vec::new());
    };
    let notes = elf.plain_content(section, "USDTs")?;
    let base = sections.named(BASE).map(|section| section.address);
    let offset = |address: u64, executable: bool| {
        let segment = segments.iter().find(|segment| {
            segment.executable == executable
                && address
                    .checked_sub(segment.address)
                    .is_some_and(|at| at < segment.size)
        })?;
        segment.offset.checked_add(address - segment.address)
    };
    let usable = |note: UsdtNote| {
        // A file that was linked anew for another address has the old ones in its notes.
        let moved = base.map_or(0, |base| base.wrapping_sub(note.base));
        let place = offset(note.address.wrapping_add(moved), true)?;
        let semaphore = match note.semaphore {
            0 => 0,
            address => offset(address.wrapping_add(moved), false)?,
        };
        let code = elf.piece("code of a USDT", place, 1).ok()?;
        Some(FoundUsdt {
            offset: place,
            function: note.function,
            emulated: elf.machine() != EM_X86_64 || code.first() == Some(&0x90),
            semaphore,
            operands: note.operands,
        })
    };
    let notes = parse_notes(&notes, elf.machine()).unwrap_or_default();
    let found: Option<Vec<_>> = notes.into_iter().map(usable).collect();
    let found = found.filter(|found| found.len() <= MAX_USDTS);
    Ok(found.unwrap_or_default())
}

/// A note of one of the two probes, with addresses as it has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct UsdtNote {
    /// Address of the instruction.
    address: u64,
    /// What the address of the section `.stapsdt.base` was.
    base: u64,
    /// Address of the semaphore; 0: the probe has no semaphore.
    semaphore: u64,
    /// Which of the two it is.
    function: AllocatorFunction,
    /// Where its arguments are.
    operands: [UsdtOperand; USDT_OPERANDS],
}

/// Returns the notes of the two probes among the notes of a file for a processor. None: one of them
/// has operands of another form.
fn parse_notes(notes: &[u8], machine: Machine) -> Option<Vec<UsdtNote>> {
    let endian = Endianness::Little;
    let notes = NoteIterator::<FileHeader64<Endianness>>::new(endian, 4, notes).ok()?;
    let usdts = notes
        .map_while(Result::ok)
        .filter(|note| note.name() == OWNER && note.n_type(endian).0 == KIND);
    let parsed = usdts.filter_map(|note| parse_note(note.desc(), machine));
    parsed.collect()
}

/// Parses a note. The outer None: the note is for another probe; the inner None: its operands have
/// an unknown form.
fn parse_note(note: &[u8], machine: Machine) -> Option<Option<UsdtNote>> {
    let (numbers, texts) = note.split_first_chunk::<24>()?;
    let (numbers, _) = numbers.as_chunks();
    let [address, base, semaphore] = [0, 1, 2].map(|at: usize| u64::from_le_bytes(numbers[at]));
    let mut texts = texts.split(|byte| *byte == 0);
    let (provider, name, operands) = (texts.next()?, texts.next()?, texts.next()?);
    let (function, count) = match name {
        _ if provider != PROVIDER => return None,
        b"alloc" => (AllocatorFunction::Sampled, USDT_OPERANDS),
        b"free" => (AllocatorFunction::SampledFree, 1),
        _ => return None,
    };
    let operands = std::str::from_utf8(operands).ok();
    let operands = operands.and_then(|text| parse_operands(text, machine, count));
    Some(operands.map(|operands| UsdtNote {
        address,
        base,
        semaphore,
        function,
        operands,
    }))
}

/// Parses the first `count` operands of a probe.
fn parse_operands(
    text: &str,
    machine: Machine,
    count: usize,
) -> Option<[UsdtOperand; USDT_OPERANDS]> {
    let mut operands = [UsdtOperand::default(); USDT_OPERANDS];
    // Operands of Arm have blanks: each begins with a size and `@`.
    let mut rest = text;
    for operand in operands.iter_mut().take(count) {
        let (size, after) = rest.trim_start().split_once('@')?;
        let end = match after.find('@') {
            Some(next) => after[..next].rfind(' ')?,
            None => after.len(),
        };
        *operand = parse_operand(size, after[..end].trim(), machine)?;
        rest = &after[end..];
    }
    Some(operands)
}

/// Returns an operand: a register, memory at one and a distance, or a constant.
fn parse_operand(size: &str, text: &str, machine: Machine) -> Option<UsdtOperand> {
    // Addresses and sizes have no sign, whatever the compiler says.
    let bytes: u8 = size.trim_start_matches('-').parse().ok()?;
    if ![1, 2, 4, 8].contains(&bytes) {
        return None;
    }
    let (kind, word, offset) = match machine {
        EM_X86_64 => match text.split_once('(') {
            None => match text.strip_prefix('$') {
                Some(constant) => (UsdtOperandKind::Constant, 0, number(constant)?),
                None => (UsdtOperandKind::Register, x86_register(text)?, 0),
            },
            Some((distance, base)) => {
                let base = x86_register(base.strip_suffix(')')?)?;
                (UsdtOperandKind::Memory, base, number_or_0(distance)?)
            }
        },
        EM_AARCH64 => match text.strip_prefix('[') {
            None => match arm_register(text) {
                Some(register) => (UsdtOperandKind::Register, register, 0),
                None => (UsdtOperandKind::Constant, 0, number(text)?),
            },
            Some(text) => {
                let text = text.strip_suffix(']')?;
                let (base, distance) = text.split_once(',').unwrap_or((text, ""));
                let base = arm_register(base.trim())?;
                (UsdtOperandKind::Memory, base, number_or_0(distance.trim())?)
            }
        },
        _ => return None,
    };
    Some(UsdtOperand {
        kind: kind.into(),
        bytes,
        word,
        offset,
    })
}

fn number(text: &str) -> Option<i32> {
    match text.strip_prefix("0x") {
        Some(digits) => i32::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

fn number_or_0(text: &str) -> Option<i32> {
    match text {
        "" => Some(0),
        text => number(text),
    }
}

/// The registers of x86-64 in the order of `struct pt_regs`, with the names of their parts.
const X86_REGISTERS: [[&str; 4]; 15] = [
    ["r15", "r15d", "r15w", "r15b"],
    ["r14", "r14d", "r14w", "r14b"],
    ["r13", "r13d", "r13w", "r13b"],
    ["r12", "r12d", "r12w", "r12b"],
    ["rbp", "ebp", "bp", "bpl"],
    ["rbx", "ebx", "bx", "bl"],
    ["r11", "r11d", "r11w", "r11b"],
    ["r10", "r10d", "r10w", "r10b"],
    ["r9", "r9d", "r9w", "r9b"],
    ["r8", "r8d", "r8w", "r8b"],
    ["rax", "eax", "ax", "al"],
    ["rcx", "ecx", "cx", "cl"],
    ["rdx", "edx", "dx", "dl"],
    ["rsi", "esi", "si", "sil"],
    ["rdi", "edi", "di", "dil"],
];

/// The index of the stack pointer in `struct pt_regs` of x86-64.
const X86_STACK_POINTER: u16 = 19;

/// The index of the stack pointer in `struct pt_regs` of Arm.
const ARM_STACK_POINTER: u16 = 31;

/// Returns the index of a register in `struct pt_regs`.
fn x86_register(name: &str) -> Option<u16> {
    let name = name.strip_prefix('%')?;
    if name == "rsp" {
        return Some(X86_STACK_POINTER);
    }
    let at = X86_REGISTERS
        .iter()
        .position(|names| names.contains(&name))?;
    u16::try_from(at).ok()
}

fn arm_register(name: &str) -> Option<u16> {
    if name == "sp" {
        return Some(ARM_STACK_POINTER);
    }
    let number = name.strip_prefix(['x', 'w'])?;
    number
        .parse()
        .ok()
        .filter(|number| *number < ARM_STACK_POINTER)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn note(name: &str, operands: &str) -> Vec<u8> {
        let mut note = Vec::new();
        for number in [0x1234_u64, 0x2000, 0x3000] {
            note.extend(number.to_le_bytes());
        }
        for text in ["otel_memory", name, operands] {
            note.extend(text.as_bytes());
            note.push(0);
        }
        let mut all = Vec::new();
        for number in [8, note.len() as u32, KIND] {
            all.extend(number.to_le_bytes());
        }
        all.extend(b"stapsdt\0");
        all.extend(&note);
        all.resize(all.len().next_multiple_of(4), 0);
        all
    }

    /// Returns the operands of a probe as text.
    fn shown(text: &str, machine: Machine, count: usize) -> Option<String> {
        let operands = parse_operands(text, machine, count)?;
        let each = operands[..count].iter().map(|operand| {
            let UsdtOperand {
                kind,
                bytes,
                word,
                offset,
            } = operand;
            match UsdtOperandKind::try_from(*kind).unwrap() {
                UsdtOperandKind::Register => format!("{bytes} of {word}"),
                UsdtOperandKind::Memory => format!("{bytes} at {word}{offset:+}"),
                UsdtOperandKind::Constant => format!("{offset}"),
            }
        });
        Some(each.collect::<Vec<_>>().join(", "))
    }

    #[test]
    fn operands_are_registers_memory_or_constants() {
        let x86 = |text, count| shown(text, EM_X86_64, count);
        assert_eq!(
            x86("8@%rdi 8@%rsi 8@%rdx", 3).unwrap(),
            "8 of 14, 8 of 13, 8 of 12"
        );
        assert_eq!(
            x86("8@%rax -4@-16(%rbp) 8@$4096", 3).unwrap(),
            "8 of 10, 4 at 4-16, 4096"
        );
        assert_eq!(x86("8@(%rsp) 1@more", 1).unwrap(), "8 at 19+0");
        assert_eq!(x86("4@%r10d", 1).unwrap(), "4 of 7");
        for none in [
            "",
            "8@",
            "8@%xmm0",
            "8f@%rdi",
            "3@%rdi",
            "8@x(%rip)",
            "8@(%rax,%rbx,8)",
            "%rdi",
        ] {
            assert_eq!(x86(none, 1), None, "{none}");
        }
        assert_eq!(x86("8@%rdi", 2), None);
        let arm = |text, count| shown(text, EM_AARCH64, count);
        assert_eq!(
            arm("8@x0 4@w30 8@[sp, 16]", 3).unwrap(),
            "8 of 0, 4 of 30, 8 at 31+16"
        );
        assert_eq!(arm("8@[x19] 8@-5", 2).unwrap(), "8 at 19+0, -5");
        assert_eq!(arm("8@x31", 1), None);
    }

    #[test]
    fn notes_of_other_probes_are_passed_over() {
        let mut notes = [
            note("free", "8@%rdi"),
            note("mmap", "8@%rdi 8@x(%rip)"),
            note("alloc", "8@%rdi 8@%rsi 8@%rdx"),
        ]
        .concat();
        let found = parse_notes(&notes, EM_X86_64).unwrap();
        let functions: Vec<_> = found.iter().map(|note| note.function).collect();
        assert_eq!(
            functions,
            [AllocatorFunction::SampledFree, AllocatorFunction::Sampled]
        );
        assert_eq!(
            (found[0].address, found[0].base, found[0].semaphore),
            (0x1234, 0x2000, 0x3000)
        );
        // What can't be used of one is no part of the whole.
        notes.extend(note("alloc", "8@%rdi"));
        assert_eq!(parse_notes(&notes, EM_X86_64), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_notes_or_none(notes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let found = parse_notes(&notes, EM_X86_64);
            prop_assert!(found.is_none_or(|found| found.len() <= notes.len() / 36));
        }

        #[test]
        fn any_text_is_operands_or_none(text in "[-0-9@%$() a-z,\\[\\]]{0,40}") {
            for machine in [EM_X86_64, EM_AARCH64] {
                let found = parse_operands(&text, machine, 3);
                prop_assert!(found.is_none() || text.matches('@').count() >= 3);
            }
        }
    }
}
