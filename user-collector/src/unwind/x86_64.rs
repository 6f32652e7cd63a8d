//! The x86-64: its registers, and what its compilers, assemblers and linkers write as call frame
//! information.
//!
//! Everything of the unwind tables that depends on the processor is here. The numbers are the ABI's
//! ("DWARF Register Number Mapping" of the x86-64 psABI).

use gimli::{
    CfaRule, FrameDescriptionEntry, Operation, Register, RegisterRule, UnwindExpression,
    UnwindSection,
};
use gimli::{UnwindTableRow, X86_64};
use object::elf::{EM_X86_64, Machine};

use super::MAX_EXPRESSION_BYTES;
use super::frame_info::{Slice, Storage};
use super::rule::{
    Base, Cfa, FramePointer, FrameRule, Rbx, ReturnAddress, Unsupported, UnwindRule,
};

/// `e_machine`.
pub(super) const MACHINE: Machine = EM_X86_64;

/// Bytes of an address.
pub(super) const ADDRESS_SIZE: u8 = 8;

/// The stack pointer, rsp.
pub(super) const SP: u8 = 7;

/// The frame pointer, rbp.
pub(super) const FP: u8 = 6;

/// General registers have the numbers below.
pub(super) const GENERAL: u16 = 16;

/// GNU ld's description of the PLT, `rsp + 8 + ((rip & 15) >= N) * 8`, up to N and from there. N is
/// 11 after `push imm32` behind a jump, 10 in a PLT with `endbr64` or `bnd`.
const PLT_HEAD: &[u8] = &[0x77, 0x08, 0x80, 0x00, 0x3f, 0x1a];
const PLT_TAIL: &[u8] = &[0x2a, 0x33, 0x24, 0x22];
const LIT10: u8 = 0x3a;
const LIT11: u8 = 0x3b;

type Row = UnwindTableRow<usize, Storage>;
type Expression = UnwindExpression<usize>;

/// What a row says of the registers that are followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RowDescription {
    cfa: CfaRule<usize>,
    sp: SavedRegister,
    fp: SavedRegister,
    bx: SavedRegister,
    ra: SavedRegister,
}

/// Where a register of the caller is; nothing where the row does not have it.
type SavedRegister = Option<RegisterRule<usize>>;

impl RowDescription {
    /// Of a row, whose CIE has the return address in this column.
    pub(super) fn of(row: &Row, return_address: Register) -> RowDescription {
        RowDescription {
            cfa: row.cfa().clone(),
            sp: row.register(X86_64::RSP),
            fp: row.register(X86_64::RBP),
            bx: row.register(X86_64::RBX),
            ra: row.register(return_address),
        }
    }

    /// Returns the rule that says the same.
    pub(super) fn rule<'data, S: UnwindSection<Slice<'data>>>(
        self,
        section: &S,
        fde: &FrameDescriptionEntry<Slice<'data>>,
    ) -> UnwindRule {
        let in_frame = || -> Result<UnwindRule, Unsupported> {
            let Some(ra) = return_address(self.ra, section, fde)? else {
                return Ok(UnwindRule::Stop);
            };
            let cfa = match self.cfa {
                CfaRule::RegisterAndOffset { register, offset } => {
                    let register = general(register).ok_or(Unsupported::CfaRegister)?;
                    Cfa::Register {
                        register,
                        offset: offset32(offset)?,
                    }
                }
                CfaRule::Expression(expression) => cfa_expression(expression, section, fde)?,
            };
            if !is_cfa(self.sp, cfa, section, fde) {
                return Err(Unsupported::StackPointer);
            }
            Ok(UnwindRule::Frame(FrameRule {
                cfa,
                fp: frame_pointer(self.fp, section, fde),
                bx: rbx(self.bx, section, fde),
                ra,
            }))
        };
        in_frame().unwrap_or_else(UnwindRule::Unsupported)
    }
}

/// Returns whether the caller's stack pointer is the CFA. It is unless the row has another rule for
/// it, as in `longjmp` once that has loaded the new one. A signal frame expresses the same in
/// another way: the stack pointer is stored where the CFA is read.
fn is_cfa<'data, S: UnwindSection<Slice<'data>>>(
    sp: SavedRegister,
    cfa: Cfa,
    section: &S,
    fde: &FrameDescriptionEntry<Slice<'data>>,
) -> bool {
    match (sp, cfa) {
        (None | Some(RegisterRule::ValOffset(0)), _) => true,
        (
            Some(RegisterRule::Expression(expression)),
            Cfa::Deref {
                register,
                offset,
                plus: 0,
            },
        ) => saved_at(expression, section, fde) == Some((Base::Register(register), offset.into())),
        _ => false,
    }
}

/// Nothing for the outermost frame, whose return address is undefined. Not to mention it means
/// nothing: on this processor every CIE says where it is.
fn return_address<'data, S: UnwindSection<Slice<'data>>>(
    rule: SavedRegister,
    section: &S,
    fde: &FrameDescriptionEntry<Slice<'data>>,
) -> Result<Option<ReturnAddress>, Unsupported> {
    let (base, offset) = match rule.ok_or(Unsupported::ReturnAddress)? {
        RegisterRule::Undefined => return Ok(None),
        RegisterRule::Offset(offset) => (Base::Cfa, offset),
        RegisterRule::Expression(expression) => {
            saved_at(expression, section, fde).ok_or(Unsupported::ReturnAddress)?
        }
        RegisterRule::Register(register) if !fde.is_signal_trampoline() => {
            let register = general(register).ok_or(Unsupported::ReturnAddress)?;
            return Ok(Some(ReturnAddress::Register(register)));
        }
        _ => return Err(Unsupported::ReturnAddress),
    };
    let words = words(offset).ok_or(Unsupported::Offset)?;
    Ok(Some(if fde.is_signal_trampoline() {
        ReturnAddress::Interrupted { base, words }
    } else {
        ReturnAddress::At { base, words }
    }))
}

/// Returns where the caller's frame pointer is. Without a rule for rbp the function keeps it, as
/// the ABI has it.
fn frame_pointer<'data, S: UnwindSection<Slice<'data>>>(
    rule: SavedRegister,
    section: &S,
    fde: &FrameDescriptionEntry<Slice<'data>>,
) -> FramePointer {
    if is_kept(rule.as_ref(), X86_64::RBP) {
        return FramePointer::Same;
    }
    place(rule, section, fde)
        .and_then(|(base, offset)| {
            let offset = i16::try_from(offset).ok()?;
            Some(FramePointer::At { base, offset })
        })
        .unwrap_or(FramePointer::Lost)
}

/// Returns where the caller's rbx is, which a function keeps too.
fn rbx<'data, S: UnwindSection<Slice<'data>>>(
    rule: SavedRegister,
    section: &S,
    fde: &FrameDescriptionEntry<Slice<'data>>,
) -> Rbx {
    if is_kept(rule.as_ref(), X86_64::RBX) {
        return Rbx::Same;
    }
    place(rule, section, fde)
        .and_then(|(base, offset)| {
            let words = words(offset)?;
            Some(Rbx::At { base, words })
        })
        .unwrap_or(Rbx::Lost)
}

/// Returns whether the caller's value is still in the register.
fn is_kept(rule: Option<&RegisterRule<usize>>, register: Register) -> bool {
    match rule {
        None | Some(RegisterRule::SameValue) => true,
        Some(RegisterRule::Register(other)) => *other == register,
        Some(_) => false,
    }
}

/// Returns in which place of memory the caller's value is.
fn place<'data, S: UnwindSection<Slice<'data>>>(
    rule: SavedRegister,
    section: &S,
    fde: &FrameDescriptionEntry<Slice<'data>>,
) -> Option<(Base, i64)> {
    match rule? {
        RegisterRule::Offset(offset) => Some((Base::Cfa, offset)),
        RegisterRule::Expression(expression) => saved_at(expression, section, fde),
        _ => None,
    }
}

/// Returns a register that is saved at another register's value plus something.
fn saved_at<'data, S: UnwindSection<Slice<'data>>>(
    expression: Expression,
    section: &S,
    fde: &FrameDescriptionEntry<Slice<'data>>,
) -> Option<(Base, i64)> {
    let (_, operations) = operations(expression, section, fde)?;
    match operations.as_slice() {
        [
            Operation::RegisterOffset {
                register, offset, ..
            },
        ] => Some((Base::Register(general(*register)?), *offset)),
        _ => None,
    }
}

fn cfa_expression<'data, S: UnwindSection<Slice<'data>>>(
    expression: Expression,
    section: &S,
    fde: &FrameDescriptionEntry<Slice<'data>>,
) -> Result<Cfa, Unsupported> {
    let (bytes, operations) =
        operations(expression, section, fde).ok_or(Unsupported::CfaExpression)?;
    if let Some(&[threshold @ (LIT10 | LIT11), ref tail @ ..]) = bytes.strip_prefix(PLT_HEAD)
        && tail == PLT_TAIL
    {
        return Ok(Cfa::Plt {
            offset: 8,
            threshold: (threshold - LIT10 + 10) as i8,
        });
    }
    let (register, offset, plus) = match *operations.as_slice() {
        [
            Operation::RegisterOffset {
                register, offset, ..
            },
            Operation::Deref {
                size: ADDRESS_SIZE,
                space: false,
                ..
            },
        ] => (register, offset, 0),
        [
            Operation::RegisterOffset {
                register, offset, ..
            },
            Operation::Deref {
                size: ADDRESS_SIZE,
                space: false,
                ..
            },
            Operation::PlusConstant { value },
        ]
        // As SBCL writes it by hand: lit16, plus.
        | [
            Operation::RegisterOffset {
                register, offset, ..
            },
            Operation::Deref {
                size: ADDRESS_SIZE,
                space: false,
                ..
            },
            Operation::UnsignedConstant { value },
            Operation::Plus,
        ] => (register, offset, value),
        _ => return Err(Unsupported::CfaExpression),
    };
    let register = general(register).ok_or(Unsupported::CfaRegister)?;
    let plus = i8::try_from(plus).map_err(|_| Unsupported::Offset)?;
    Ok(Cfa::Deref {
        register,
        offset: offset32(offset)?,
        plus,
    })
}

/// Returns an expression's bytes and operations; nothing where it is too long or damaged.
fn operations<'data, S: UnwindSection<Slice<'data>>>(
    expression: Expression,
    section: &S,
    fde: &FrameDescriptionEntry<Slice<'data>>,
) -> Option<(&'data [u8], Vec<Operation<Slice<'data>>>)> {
    if expression.length > MAX_EXPRESSION_BYTES {
        return None;
    }
    let expression = expression.get(section).ok()?;
    let mut iterator = expression.operations(fde.cie().encoding());
    let mut operations = Vec::with_capacity(MAX_EXPRESSION_BYTES);
    while let Some(operation) = iterator.next().ok()? {
        operations.push(operation);
    }
    Some((expression.0.slice(), operations))
}

fn general(register: Register) -> Option<u8> {
    (register.0 < GENERAL).then_some(register.0 as u8)
}

/// Returns an offset in words; nothing where it is too large, or between two of them.
fn words(offset: i64) -> Option<i8> {
    i8::try_from(offset / 8).ok().filter(|_| offset % 8 == 0)
}

fn offset32(offset: i64) -> Result<i32, Unsupported> {
    i32::try_from(offset).map_err(|_| Unsupported::Offset)
}
