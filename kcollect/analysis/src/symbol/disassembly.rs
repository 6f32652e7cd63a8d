//! Disassembles code in the syntax of objdump and gprofng (AT&T for x86).
//!
//! iced-x86 decodes x86, yaxpeax-arm aarch64: both are Rust, and small with the features used.
//! Other processors are refused. A branch shows the function it goes to, if the caller can name it.

use std::fmt::Write;
use std::ops::Range;

use iced_x86::{Decoder, DecoderOptions, Formatter, GasFormatter, OpKind};
use object::elf::{EM_386, EM_AARCH64, EM_X86_64, Machine};
use yaxpeax_arch::{Decoder as _, U8Reader};
use yaxpeax_arm::armv8::a64::{InstDecoder, Operand};

use super::locate::{self, Origin};
use super::{ObjectRef, SymbolError, Symboliser};

/// Maximum bytes of code that are disassembled. The largest functions of the kernel and of
/// interpreters have some ten thousand.
const MAX_CODE_BYTES: u64 = 4 << 20;
/// The bytes of an aarch64 instruction.
const AARCH64_INSTRUCTION_BYTES: usize = 4;

/// Returns the name of the function at a position in the same file, and the distance from its
/// beginning.
pub type NameAt<'a> = dyn Fn(u64) -> Option<(String, u64)> + 'a;

/// A disassembled instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instruction {
    /// Its position in the file.
    pub offset: u64,
    /// Its address in the file's address space.
    pub address: u64,
    /// Its bytes.
    pub bytes: Box<[u8]>,
    /// Its text, such as `call 0x1139 <main+0x4>`; `(bad)` for bytes that are not an instruction.
    pub text: String,
    /// The position in the file that a branch or call goes to, if it is known and in this file.
    pub target: Option<u64>,
}

/// The instructions of a range of positions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disassembly {
    /// The instructions in their order. They end with the section, or after 4 MiB.
    pub instructions: Vec<Instruction>,
    /// Where their bytes came from.
    pub origin: Origin,
}

impl Symboliser {
    /// Disassembles a load object's code at these positions in its file. The range has to begin
    /// with an instruction, such as the beginning of a function.
    ///
    /// # Errors
    /// When no file has the instructions, as the kernel's if `/proc/kcore` was not readable, or
    /// they are for another processor.
    pub fn disassemble(
        &self,
        object: &ObjectRef,
        range: Range<u64>,
        names: &NameAt<'_>,
    ) -> Result<Disassembly, SymbolError> {
        let size = range.end.saturating_sub(range.start).min(MAX_CODE_BYTES);
        let mut error = SymbolError::NoCode;
        for image in locate::images(object, self.search())? {
            let elf = &image.elf;
            let (code, address) = match (elf.code(range.start, size), elf.address(range.start)) {
                (Ok(Some(code)), Some(address)) => (code, address),
                (Err(damaged), _) => {
                    error = damaged.into();
                    continue;
                }
                _ => continue,
            };
            let piece = CodePiece {
                bits: elf.bits(),
                code: &code,
                offset: range.start,
                address,
                offset_of: &|address| elf.offset(address),
                names,
            };
            return Ok(Disassembly {
                instructions: piece.decode(elf.machine())?,
                origin: image.origin,
            });
        }
        Err(error)
    }
}

/// Disassembles 64-bit JIT code of an architecture, `x86_64` or `aarch64`, as it was at this
/// address. Positions are from the beginning of the code, but those that branches and calls go to
/// are addresses.
///
/// # Errors
/// When it is for another processor.
pub fn disassemble_code(
    architecture: &str,
    code: &[u8],
    address: u64,
    names: &NameAt<'_>,
) -> Result<Vec<Instruction>, SymbolError> {
    let piece = CodePiece {
        bits: 64,
        code: &code[..code.len().min(MAX_CODE_BYTES as usize)],
        offset: 0,
        address,
        offset_of: &Some,
        names,
    };
    piece.decode(match architecture {
        "x86_64" => EM_X86_64,
        "aarch64" => EM_AARCH64,
        _ => return Err(SymbolError::OtherProcessor),
    })
}

/// Code that is disassembled.
struct CodePiece<'a> {
    bits: u32,
    code: &'a [u8],
    offset: u64,
    address: u64,
    /// The position of an address, as `names` has positions.
    offset_of: &'a dyn Fn(u64) -> Option<u64>,
    names: &'a NameAt<'a>,
}

impl CodePiece<'_> {
    fn decode(&self, machine: Machine) -> Result<Vec<Instruction>, SymbolError> {
        match machine {
            EM_X86_64 | EM_386 => Ok(self.x86()),
            EM_AARCH64 => Ok(self.aarch64()),
            _ => Err(SymbolError::OtherProcessor),
        }
    }

    fn x86(&self) -> Vec<Instruction> {
        let mut decoder =
            Decoder::with_ip(self.bits, self.code, self.address, DecoderOptions::NONE);
        let mut formatter = GasFormatter::new();
        let options = formatter.options_mut();
        options.set_uppercase_hex(false);
        options.set_gas_space_after_memory_operand_comma(false);
        options.set_rip_relative_addresses(true);
        options.set_branch_leading_zeros(false);
        options.set_small_hex_numbers_in_decimal(false);
        let mut instructions = Vec::new();
        while decoder.can_decode() {
            let begin = decoder.position();
            let instruction = decoder.decode();
            let mut text = String::new();
            formatter.format(&instruction, &mut text);
            let branches = matches!(
                instruction.op0_kind(),
                OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64
            );
            let target = branches.then(|| instruction.near_branch_target());
            instructions.push(self.instruction(begin, instruction.len(), text, target));
        }
        instructions
    }

    fn aarch64(&self) -> Vec<Instruction> {
        let decoder = InstDecoder::default();
        let words = self
            .code
            .chunks_exact(AARCH64_INSTRUCTION_BYTES)
            .enumerate();
        let instruction = |(index, word)| {
            let begin = index * AARCH64_INSTRUCTION_BYTES;
            let Ok(instruction) = decoder.decode(&mut U8Reader::new(word)) else {
                return self.instruction(
                    begin,
                    AARCH64_INSTRUCTION_BYTES,
                    "(bad)".to_owned(),
                    None,
                );
            };
            let target = instruction
                .operands
                .iter()
                .find_map(|operand| match operand {
                    Operand::PCOffset(by) => {
                        let at = self.address.wrapping_add(begin as u64);
                        Some(at.wrapping_add_signed(*by))
                    }
                    _ => None,
                });
            let mut text = instruction.to_string();
            // The distance that the library writes becomes an address.
            if let Some((stem, target)) = text.find('$').map(|at| &text[..at]).zip(target) {
                text = format!("{stem}{target:#x}");
            }
            self.instruction(begin, AARCH64_INSTRUCTION_BYTES, text, target)
        };
        words.map(instruction).collect()
    }

    /// Returns the instruction of `size` bytes at `begin` in the piece, which goes to the address
    /// `target`.
    fn instruction(
        &self,
        begin: usize,
        size: usize,
        mut text: String,
        target: Option<u64>,
    ) -> Instruction {
        let target = target.and_then(self.offset_of);
        if let Some((name, into)) = target.and_then(self.names) {
            // Writing to a String does not fail.
            let _ = match into {
                0 => write!(text, " <{name}>"),
                into => write!(text, " <{name}+{into:#x}>"),
            };
        }
        let bytes = self.code.get(begin..begin.saturating_add(size));
        Instruction {
            offset: self.offset.wrapping_add(begin as u64),
            address: self.address.wrapping_add(begin as u64),
            bytes: bytes.unwrap_or_default().into(),
            text,
            target,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use experiment_format::archive::archive_name;
    use object::write::{Object, StandardSection};
    use object::{Architecture, BinaryFormat, Endianness};
    use proptest::prelude::*;

    use super::super::SearchPaths;
    use super::*;

    /// Where the code begins in the file: after the header.
    const BEGIN: u64 = 64;
    /// The same in a 32-bit file.
    const BEGIN_32: u64 = 52;

    fn disassemble(architecture: Architecture, code: &[u8]) -> Result<Disassembly, SymbolError> {
        let mut object = Object::new(BinaryFormat::Elf, architecture, Endianness::Little);
        let text = object.section_id(StandardSection::Text);
        object.append_section_data(text, code, 1);
        let archives = tempfile::tempdir().unwrap();
        let place = archives.path().join(archive_name("[x]"));
        fs::write(place, object.write().unwrap()).unwrap();
        let symboliser = Symboliser::new(SearchPaths::new(Some(archives.path().to_owned())));
        let object = ObjectRef {
            name: "[x]".to_owned(),
            build_id: Box::default(),
        };
        let names = |offset: u64| Some(("f".to_owned(), offset.checked_sub(BEGIN)?));
        let begin = match architecture {
            Architecture::I386 => BEGIN_32,
            _ => BEGIN,
        };
        symboliser.disassemble(&object, begin..u64::MAX, &names)
    }

    fn texts(disassembly: &Disassembly) -> Vec<&str> {
        let texts = disassembly.instructions.iter();
        texts.map(|instruction| &*instruction.text).collect()
    }

    #[test]
    fn x86_is_in_the_syntax_of_objdump() {
        let code = b"\x55\x48\x89\xe5\x8b\x05\x10\0\0\0\xe8\xf1\xff\xff\xff\x75\xf4\xff\xe0\x0f\x0b\xc3\x06";
        let found = disassemble(Architecture::X86_64, code).unwrap();
        assert_eq!(found.origin, Origin::Archive);
        insta::assert_debug_snapshot!(texts(&found));
        let call = &found.instructions[3];
        assert_eq!(
            (call.offset, call.address, call.target),
            (BEGIN + 10, 10, Some(BEGIN))
        );
        assert_eq!(*call.bytes, [0xe8, 0xf1, 0xff, 0xff, 0xff]);
    }

    #[test]
    fn aarch64_is_disassembled_too() {
        let words: [u32; 7] = [
            0xa9bf_7bfd,
            0x9100_03fd,
            0x97ff_fffe,
            0xb400_0040,
            0xd65f_03c0,
            0x3600_0020,
            0,
        ];
        let code: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let found = disassemble(Architecture::Aarch64, &code).unwrap();
        insta::assert_debug_snapshot!(texts(&found));
        assert_eq!(found.instructions[2].target, Some(BEGIN));
    }

    #[test]
    fn code_without_a_file_is_at_its_address() {
        let names = |address: u64| (address == 0x7006).then(|| ("loop".to_owned(), 6));
        let code = b"\x55\x48\x89\xe5\x90\x90\x48\xff\xcf\x75\xfb\x5d\xc3";
        let found = disassemble_code("x86_64", code, 0x7000, &names).unwrap();
        let jump = &found[5];
        assert_eq!(
            (jump.offset, jump.address, jump.target),
            (9, 0x7009, Some(0x7006))
        );
        assert!(jump.text.ends_with("0x7006 <loop+0x6>"), "{}", jump.text);
        let other = disassemble_code("riscv64", code, 0, &names);
        assert_eq!(other, Err(SymbolError::OtherProcessor));
    }

    /// A file may say that its code is there.
    #[test]
    fn code_may_reach_beyond_the_last_address() {
        for (architecture, code, size) in [
            ("x86_64", &[0x55, 0x90, 0xc3][..], 1),
            ("aarch64", &[0x1f, 0x20, 0x03, 0xd5, 0, 0, 0, 0x14], 4),
        ] {
            let instructions = disassemble_code(architecture, code, u64::MAX, &|_| None).unwrap();
            assert_eq!(instructions.len(), code.len() / size);
            assert_eq!(instructions[1].address, size as u64 - 1);
            assert_eq!(&*instructions[1].bytes, &code[size..2 * size]);
        }
    }

    #[test]
    fn another_processor_is_refused() {
        let found = disassemble(Architecture::Riscv64, &[0; 16]);
        assert_eq!(found, Err(SymbolError::OtherProcessor));
    }

    proptest! {
        #[test]
        fn any_bytes_are_instructions_or_bad(code in prop::collection::vec(any::<u8>(), 0..4000)) {
            for architecture in [Architecture::X86_64, Architecture::I386, Architecture::Aarch64] {
                let found = disassemble(architecture, &code);
                prop_assert!(code.is_empty() || found.is_ok());
                let bytes: usize = found.map_or(0, |found| {
                    found.instructions.iter().map(|instruction| instruction.bytes.len()).sum()
                });
                prop_assert!(code.len() - bytes < 16);
            }
        }
    }
}
