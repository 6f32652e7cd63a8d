//! What a row says: how to get the caller's stack pointer, frame pointer and pc.
//!
//! Only these three are followed, for only they lead on to the next frame; the other registers of
//! the caller are lost. So a rule that begins at another register (gcc's realigned prologue,
//! `vfork`) can be applied only to the innermost frame, whose registers are all known.

use std::collections::HashMap;

/// How to leave one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UnwindRule {
    /// Nothing is known of this pc: a hole between functions.
    Absent,
    /// The outermost frame: the return address is undefined (`_start`, the start of a thread).
    Stop,
    /// Something is known but can't be said in a rule.
    Unsupported(Unsupported),
    /// An ordinary frame.
    Frame(FrameRule),
}

/// Why a row could not be made a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Unsupported {
    /// The CFA is a DWARF expression of a form that is not understood.
    CfaExpression = 1,
    /// The CFA is relative to a register that is no general register.
    CfaRegister = 2,
    /// The return address is found in a way that is not understood.
    ReturnAddress = 3,
    /// An offset does not fit its field.
    Offset = 4,
    /// The program of the function's FDE ends here with an error. Seen once in the field: a new
    /// register for a CFA that is an expression, in hand-written assembly of libgcrypt.
    Malformed = 5,
    /// All 65,536 numbers of rules are used.
    Full = 6,
    /// The caller's stack pointer is not the CFA.
    StackPointer = 7,
}

/// Where the caller's registers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FrameRule {
    /// The canonical frame address, which is also the caller's stack pointer.
    pub cfa: Cfa,
    /// The caller's frame pointer.
    pub fp: FramePointer,
    /// Where the caller goes on.
    pub ra: ReturnAddress,
}

/// The canonical frame address. Registers are DWARF numbers; their values are those in the frame
/// that is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cfa {
    /// `register + offset`.
    Register {
        /// The register; others than the stack and the frame pointer are known in the innermost
        /// frame only.
        register: u8,
        /// Bytes.
        offset: i32,
    },
    /// `*(register + offset) + plus`: realigned stacks, signal frames.
    Deref {
        /// The register.
        register: u8,
        /// Bytes, inside.
        offset: i32,
        /// Bytes, outside.
        plus: i16,
    },
    /// `sp + offset`, and 8 more when `(pc & 15) >= threshold`: an entry of the PLT, which pushes
    /// in its midst.
    Plt {
        /// Bytes.
        offset: i32,
        /// Where in the 16 bytes of an entry the push is done.
        threshold: u8,
    },
}

/// What an address is relative to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Base {
    /// The canonical frame address.
    Cfa,
    /// The value of a register, a DWARF number, in the frame that is left.
    Register(u8),
}

/// The caller's frame pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FramePointer {
    /// It is unchanged.
    Same,
    /// It is stored at `base + offset`.
    At {
        /// Relative to what.
        base: Base,
        /// Bytes.
        offset: i16,
    },
    /// It can't be had. The stack may still be followed by frames that don't use it.
    Lost,
}

/// Where the caller goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReturnAddress {
    /// A return address at `base + offset`: it is looked up at −1, inside the call.
    At {
        /// Relative to what.
        base: Base,
        /// Bytes.
        offset: i16,
    },
    /// A signal frame: the pc of the interrupted instruction, at `base + offset`. It is looked up
    /// as it is.
    Interrupted {
        /// Relative to what.
        base: Base,
        /// Bytes.
        offset: i16,
    },
    /// A return address in a register, a DWARF number: known in the innermost frame only (`vfork`).
    Register(u8),
}

/// In place of a register's number: relative to the CFA.
const BASE_CFA: u8 = 0xff;

impl Base {
    fn encode(self) -> u8 {
        match self {
            Base::Cfa => BASE_CFA,
            Base::Register(register) => register,
        }
    }

    fn decode(byte: u8) -> Option<Base> {
        match byte {
            BASE_CFA => Some(Base::Cfa),
            register => general(register).map(Base::Register),
        }
    }
}

/// A register that a rule may name.
fn general(register: u8) -> Option<u8> {
    (u16::from(register) < super::x86_64::GENERAL).then_some(register)
}

impl Unsupported {
    fn decode(byte: u8) -> Option<Unsupported> {
        [
            Unsupported::CfaExpression,
            Unsupported::CfaRegister,
            Unsupported::ReturnAddress,
            Unsupported::Offset,
            Unsupported::Malformed,
            Unsupported::Full,
            Unsupported::StackPointer,
        ]
        .into_iter()
        .find(|why| *why as u8 == byte)
    }
}

impl UnwindRule {
    /// Bytes of an encoded rule.
    pub const SIZE: usize = 16;

    /// Does the caller have another stack? So leave Go's functions that call on the scheduler's
    /// stack: by the frame pointer, to where the goroutine was interrupted.
    #[must_use]
    pub fn changes_stacks(&self) -> bool {
        matches!(
            self,
            UnwindRule::Frame(FrameRule {
                cfa: Cfa::Register {
                    register: super::x86_64::FP,
                    ..
                },
                ra: ReturnAddress::Interrupted { .. },
                ..
            })
        )
    }

    /// The rule as the BPF side has it, little endian. A rule of zeros is [`UnwindRule::Absent`].
    ///
    /// ```c
    /// struct unwind_rule {
    ///     __s32 cfa_offset;
    ///     __s16 cfa_plus;     /* deref: added after it; PLT: the threshold */
    ///     __s16 fp_offset;
    ///     __s16 ra_offset;
    ///     __u8  cfa_kind;     /* 0 absent, 1 stop, 2 unsupported, 3 register, 4 deref, 5 PLT */
    ///     __u8  cfa_register; /* DWARF number; unsupported: why */
    ///     __u8  fp_kind;      /* 0 same, 1 at base + offset, 2 lost */
    ///     __u8  fp_base;      /* DWARF number, 255 for the CFA */
    ///     __u8  ra_kind;      /* 0 at base + offset, 1 the same of a signal frame, 2 in register ra_base */
    ///     __u8  ra_base;      /* as fp_base */
    /// };
    /// ```
    #[must_use]
    pub fn encode(&self) -> [u8; UnwindRule::SIZE] {
        let mut bytes = [0; UnwindRule::SIZE];
        let frame = match self {
            UnwindRule::Absent => return bytes,
            UnwindRule::Stop => {
                bytes[10] = 1;
                return bytes;
            }
            UnwindRule::Unsupported(why) => {
                bytes[10] = 2;
                bytes[11] = *why as u8;
                return bytes;
            }
            UnwindRule::Frame(frame) => frame,
        };
        let (kind, register, offset, plus) = match frame.cfa {
            Cfa::Register { register, offset } => (3, register, offset, 0),
            Cfa::Deref {
                register,
                offset,
                plus,
            } => (4, register, offset, plus),
            Cfa::Plt { offset, threshold } => (5, super::x86_64::SP, offset, i16::from(threshold)),
        };
        let (fp_kind, fp_base, fp_offset) = match frame.fp {
            FramePointer::Same => (0, 0, 0),
            FramePointer::At { base, offset } => (1, base.encode(), offset),
            FramePointer::Lost => (2, 0, 0),
        };
        let (ra_kind, ra_base, ra_offset) = match frame.ra {
            ReturnAddress::At { base, offset } => (0, base.encode(), offset),
            ReturnAddress::Interrupted { base, offset } => (1, base.encode(), offset),
            ReturnAddress::Register(register) => (2, register, 0),
        };
        bytes[0..4].copy_from_slice(&offset.to_le_bytes());
        bytes[4..6].copy_from_slice(&plus.to_le_bytes());
        bytes[6..8].copy_from_slice(&fp_offset.to_le_bytes());
        bytes[8..10].copy_from_slice(&ra_offset.to_le_bytes());
        bytes[10..16].copy_from_slice(&[kind, register, fp_kind, fp_base, ra_kind, ra_base]);
        bytes
    }

    /// The rule of which [`UnwindRule::encode`] makes these bytes; nothing where there is none.
    #[must_use]
    pub fn decode(bytes: &[u8; UnwindRule::SIZE]) -> Option<UnwindRule> {
        let [kind, register, fp_kind, fp_base, ra_kind, ra_base] = *bytes.last_chunk()?;
        let short = |at: usize| i16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let offset = i32::from_le_bytes(*bytes.first_chunk()?);
        let fp = || match fp_kind {
            0 => Some(FramePointer::Same),
            1 => Some(FramePointer::At {
                base: Base::decode(fp_base)?,
                offset: short(6),
            }),
            2 => Some(FramePointer::Lost),
            _ => None,
        };
        let ra = || match ra_kind {
            0 => Some(ReturnAddress::At {
                base: Base::decode(ra_base)?,
                offset: short(8),
            }),
            1 => Some(ReturnAddress::Interrupted {
                base: Base::decode(ra_base)?,
                offset: short(8),
            }),
            2 => general(ra_base).map(ReturnAddress::Register),
            _ => None,
        };
        let frame = |cfa| {
            Some(UnwindRule::Frame(FrameRule {
                cfa,
                fp: fp()?,
                ra: ra()?,
            }))
        };
        let rule = match kind {
            0 => UnwindRule::Absent,
            1 => UnwindRule::Stop,
            2 => UnwindRule::Unsupported(Unsupported::decode(register)?),
            3 => frame(Cfa::Register {
                register: general(register)?,
                offset,
            })?,
            4 => frame(Cfa::Deref {
                register: general(register)?,
                offset,
                plus: short(4),
            })?,
            5 => frame(Cfa::Plt {
                offset,
                threshold: u8::try_from(short(4)).ok()?,
            })?,
            _ => return None,
        };
        // What a kind has no use for must be zero.
        (rule.encode() == *bytes).then_some(rule)
    }
}

/// All rules, by number; shared by all tables.
///
/// The first three numbers are taken from the start: [`UnwindRules::ABSENT`], [`UnwindRules::STOP`] and
/// [`UnwindRules::FULL`].
#[derive(Clone, Debug)]
pub struct UnwindRules {
    list: Vec<UnwindRule>,
    numbers: HashMap<UnwindRule, u16>,
}

impl Default for UnwindRules {
    fn default() -> UnwindRules {
        UnwindRules::new()
    }
}

impl UnwindRules {
    /// The number of [`UnwindRule::Absent`]: zero, so that memory that nobody filled says that nothing is
    /// known.
    pub const ABSENT: u16 = 0;
    /// The number of [`UnwindRule::Stop`].
    pub const STOP: u16 = 1;
    /// The number that stands for every rule which came when no number was left.
    pub const FULL: u16 = 2;

    /// No rules but the three with fixed numbers.
    #[must_use]
    pub fn new() -> UnwindRules {
        let mut rules = UnwindRules {
            list: Vec::new(),
            numbers: HashMap::new(),
        };
        for rule in [
            UnwindRule::Absent,
            UnwindRule::Stop,
            UnwindRule::Unsupported(Unsupported::Full),
        ] {
            rules.number(rule);
        }
        rules
    }

    /// The number of a rule, a new one if it was not seen before; [`UnwindRules::FULL`] when there is
    /// none left.
    pub fn number(&mut self, rule: UnwindRule) -> u16 {
        if let Some(&number) = self.numbers.get(&rule) {
            return number;
        }
        let Ok(number) = u16::try_from(self.list.len()) else {
            return UnwindRules::FULL;
        };
        self.list.push(rule);
        self.numbers.insert(rule, number);
        number
    }

    /// The rule of a number.
    #[must_use]
    pub fn get(&self, number: u16) -> Option<&UnwindRule> {
        self.list.get(usize::from(number))
    }

    /// All rules; a rule's place is its number. New ones come at the end.
    #[must_use]
    pub fn as_slice(&self) -> &[UnwindRule] {
        &self.list
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn fixed_numbers() {
        let rules = UnwindRules::new();
        assert_eq!(rules.get(UnwindRules::ABSENT), Some(&UnwindRule::Absent));
        assert_eq!(rules.get(UnwindRules::STOP), Some(&UnwindRule::Stop));
        assert_eq!(
            rules.get(UnwindRules::FULL),
            Some(&UnwindRule::Unsupported(Unsupported::Full))
        );
        assert_eq!(UnwindRule::Absent.encode(), [0; UnwindRule::SIZE]);
    }

    fn plain(offset: i32) -> UnwindRule {
        UnwindRule::Frame(FrameRule {
            cfa: Cfa::Register {
                register: 7,
                offset,
            },
            fp: FramePointer::Same,
            ra: ReturnAddress::At {
                base: Base::Cfa,
                offset: -8,
            },
        })
    }

    #[test]
    fn a_rule_has_one_number() {
        let mut rules = UnwindRules::new();
        let number = rules.number(plain(8));
        assert_ne!(rules.number(plain(16)), number);
        assert_eq!(rules.number(plain(8)), number);
        assert_eq!(rules.get(number), Some(&plain(8)));
    }

    #[test]
    fn numbers_run_out_without_a_wrong_rule() {
        let mut rules = UnwindRules::new();
        for offset in 0..70_000 {
            rules.number(plain(offset));
        }
        assert_eq!(rules.as_slice().len(), 65_536);
        assert_eq!(rules.number(plain(70_001)), UnwindRules::FULL);
        assert_eq!(rules.get(rules.numbers[&plain(100)]), Some(&plain(100)));
    }

    #[test]
    fn encoding_of_a_signal_frame() {
        let rule = UnwindRule::Frame(FrameRule {
            cfa: Cfa::Deref {
                register: 7,
                offset: 160,
                plus: -2,
            },
            fp: FramePointer::At {
                base: Base::Register(7),
                offset: 120,
            },
            ra: ReturnAddress::Interrupted {
                base: Base::Cfa,
                offset: -8,
            },
        });
        assert_eq!(
            rule.encode(),
            [
                160, 0, 0, 0, 0xfe, 0xff, 120, 0, 0xf8, 0xff, 4, 7, 1, 7, 1, 255
            ]
        );
    }

    #[test]
    fn encoding_of_the_short_ones() {
        let mut bytes = [0; UnwindRule::SIZE];
        bytes[10] = 1;
        assert_eq!(UnwindRule::Stop.encode(), bytes);
        bytes[10] = 2;
        bytes[11] = 4;
        assert_eq!(UnwindRule::Unsupported(Unsupported::Offset).encode(), bytes);
        let plt = UnwindRule::Frame(FrameRule {
            cfa: Cfa::Plt {
                offset: 8,
                threshold: 11,
            },
            fp: FramePointer::Lost,
            ra: ReturnAddress::Register(5),
        });
        assert_eq!(
            plt.encode(),
            [8, 0, 0, 0, 11, 0, 0, 0, 0, 0, 5, 7, 2, 0, 2, 5]
        );
    }

    fn base() -> impl Strategy<Value = Base> {
        prop_oneof![Just(Base::Cfa), (0..16_u8).prop_map(Base::Register)]
    }

    fn cfa() -> impl Strategy<Value = Cfa> {
        prop_oneof![
            (0..16_u8, any::<i32>())
                .prop_map(|(register, offset)| Cfa::Register { register, offset }),
            (0..16_u8, any::<i32>(), any::<i16>()).prop_map(|(register, offset, plus)| {
                Cfa::Deref {
                    register,
                    offset,
                    plus,
                }
            }),
            (any::<i32>(), any::<u8>())
                .prop_map(|(offset, threshold)| Cfa::Plt { offset, threshold }),
        ]
    }

    fn fp() -> impl Strategy<Value = FramePointer> {
        prop_oneof![
            Just(FramePointer::Same),
            Just(FramePointer::Lost),
            (base(), any::<i16>()).prop_map(|(base, offset)| FramePointer::At { base, offset }),
        ]
    }

    fn ra() -> impl Strategy<Value = ReturnAddress> {
        prop_oneof![
            (0..16_u8).prop_map(ReturnAddress::Register),
            (base(), any::<i16>()).prop_map(|(base, offset)| ReturnAddress::At { base, offset }),
            (base(), any::<i16>())
                .prop_map(|(base, offset)| ReturnAddress::Interrupted { base, offset }),
        ]
    }

    fn rule() -> impl Strategy<Value = UnwindRule> {
        let frame = (cfa(), fp(), ra())
            .prop_map(|(cfa, fp, ra)| UnwindRule::Frame(FrameRule { cfa, fp, ra }));
        let why =
            (1..8_u8).prop_map(|why| UnwindRule::Unsupported(Unsupported::decode(why).unwrap()));
        prop_oneof![8 => frame, 1 => why, 1 => Just(UnwindRule::Absent), 1 => Just(UnwindRule::Stop)]
    }

    proptest! {
        #[test]
        fn decoding_undoes_encoding(rule in rule()) {
            prop_assert_eq!(UnwindRule::decode(&rule.encode()), Some(rule));
        }

        /// Small bytes, for they are those that mean something.
        #[test]
        fn nothing_else_is_decoded(bytes in proptest::array::uniform16(prop_oneof![0..8_u8, any::<u8>()])) {
            if let Some(rule) = UnwindRule::decode(&bytes) {
                prop_assert_eq!(rule.encode(), bytes);
            }
        }
    }
}
