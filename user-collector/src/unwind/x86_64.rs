//! From a row of call frame information to a rule, on the x86-64: the forms that its compilers,
//! assemblers and linkers use.

use gimli::{
    CfaRule, FrameDescriptionEntry, Operation, ReaderOffset, Register, RegisterRule,
    UnwindContextStorage, UnwindExpression, UnwindSection, UnwindTableRow, X86_64,
};

use super::MAX_EXPRESSION_BYTES;
use super::cfi_entries::Slice;
use super::rule::{
    Base, Cfa, FramePointer, FrameRule, Rbx, ReturnAddress, Unsupported, UnwindRule,
};
use super::x86_64_registers::{ADDRESS_SIZE, GENERAL};

/// GNU ld's description of the PLT, `rsp + 8 + ((rip & 15) >= N) * 8`, before and after N. N is 11
/// if `push imm32` follows a jump, 10 in a PLT with `endbr64` or `bnd`.
const PLT_HEAD: &[u8] = &[0x77, 0x08, 0x80, 0x00, 0x3f, 0x1a];
const PLT_TAIL: &[u8] = &[0x2a, 0x33, 0x24, 0x22];
const LIT10: u8 = 0x3a;
const LIT11: u8 = 0x3b;

/// Space for the rules of one row. gimli's own has 192 registers, which are copied whenever a
/// hostile program says so; the ABI has 49 general and vector registers.
pub(super) struct Storage;

impl<T: ReaderOffset> UnwindContextStorage<T> for Storage {
    type Rules = [(Register, RegisterRule<T>); 64];
    type Stack = Box<[UnwindTableRow<T, Self>; 8]>;
}

type Row = UnwindTableRow<usize, Storage>;
type Expression = UnwindExpression<usize>;

/// The rules of a row for the registers that are followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RowDescription {
    cfa: CfaRule<usize>,
    sp: SavedRegister,
    fp: SavedRegister,
    bx: SavedRegister,
    ra: SavedRegister,
}

/// Where a register of the caller is; `None` if the row does not have it.
type SavedRegister = Option<RegisterRule<usize>>;

impl RowDescription {
    /// Returns the description of a row whose CIE has the return address in this column.
    pub(super) fn of(row: &Row, return_address: Register) -> RowDescription {
        RowDescription {
            cfa: row.cfa().clone(),
            sp: row.register(X86_64::RSP),
            fp: row.register(X86_64::RBP),
            bx: row.register(X86_64::RBX),
            ra: row.register(return_address),
        }
    }

    /// Returns the rule with the same meaning.
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

/// Returns whether the caller's stack pointer is the CFA. It is, unless the row has another rule
/// for it, as in `longjmp` after that has loaded the new one. In a signal frame the row says that
/// the stack pointer is stored where the CFA is read, which is the same.
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

/// Returns where the return address is; `None` for the outermost frame, where it is undefined. A
/// row without a rule for it is not supported: on this processor every CIE has one.
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

/// Returns where the caller's frame pointer is. Without a rule for rbp it is still in the register,
/// by the ABI.
fn frame_pointer<'data, S: UnwindSection<Slice<'data>>>(
    rule: SavedRegister,
    section: &S,
    fde: &FrameDescriptionEntry<Slice<'data>>,
) -> FramePointer {
    if is_kept(rule.as_ref(), X86_64::RBP) {
        return FramePointer::Same;
    }
    stored_at(rule, section, fde)
        .and_then(|(base, offset)| {
            let offset = i16::try_from(offset).ok()?;
            Some(FramePointer::At { base, offset })
        })
        .unwrap_or(FramePointer::Lost)
}

/// Returns where the caller's rbx is. Without a rule it is still in the register, by the ABI.
fn rbx<'data, S: UnwindSection<Slice<'data>>>(
    rule: SavedRegister,
    section: &S,
    fde: &FrameDescriptionEntry<Slice<'data>>,
) -> Rbx {
    if is_kept(rule.as_ref(), X86_64::RBX) {
        return Rbx::Same;
    }
    stored_at(rule, section, fde)
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

/// Returns the address, as a base and an offset, at which the caller's value is stored.
fn stored_at<'data, S: UnwindSection<Slice<'data>>>(
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

/// Returns the address that an expression has, if it is a register plus an offset.
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
        // The form of SBCL: lit16, plus.
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

/// Returns an expression's bytes and operations; `None` if it is too long or damaged.
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

/// Returns an offset in words; `None` if it is too large, or no multiple of a word.
fn words(offset: i64) -> Option<i8> {
    i8::try_from(offset / 8).ok().filter(|_| offset % 8 == 0)
}

fn offset32(offset: i64) -> Result<i32, Unsupported> {
    i32::try_from(offset).map_err(|_| Unsupported::Offset)
}
