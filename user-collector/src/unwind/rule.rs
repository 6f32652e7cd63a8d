//! What a row says: how to get the caller's stack pointer, frame pointer and pc.
//!
//! Only these three are followed, for only they lead on to the next frame; the other registers of
//! the caller are lost. So a rule that begins at another register (gcc's realigned prologue,
//! `vfork`) can be applied only to the innermost frame, whose registers are all known.

use std::collections::HashMap;

use bpf_abi::UnwindRule;
use bpf_abi::layout::{BASE_CFA, CfaKind, FramePointerKind, ReturnAddressKind};

/// How to leave one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// Nothing is known of this pc: a hole between functions.
    Absent,
    /// The outermost frame: the return address is undefined (`_start`, the start of a thread).
    Stop,
    /// Something is known but can't be said in a rule.
    Unsupported(Unsupported),
    /// An ordinary frame.
    Frame(Frame),
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
pub struct Frame {
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

impl Rule {
    /// Bytes of an encoded rule.
    pub const SIZE: usize = size_of::<UnwindRule>();

    /// Does the caller have another stack? So leave Go's functions that call on the scheduler's
    /// stack: by the frame pointer, to where the goroutine was interrupted.
    #[must_use]
    pub fn changes_stacks(&self) -> bool {
        matches!(
            self,
            Rule::Frame(Frame {
                cfa: Cfa::Register {
                    register: super::x86_64::FP,
                    ..
                },
                ra: ReturnAddress::Interrupted { .. },
                ..
            })
        )
    }

    /// Returns the rule as the BPF programs have it. A rule of zeros is [`Rule::Absent`].
    #[must_use]
    pub fn encode(&self) -> UnwindRule {
        let mut encoded = UnwindRule::default();
        let frame = match self {
            Rule::Absent => return encoded,
            Rule::Stop => {
                encoded.cfa_kind = CfaKind::Stop.into();
                return encoded;
            }
            Rule::Unsupported(why) => {
                encoded.cfa_kind = CfaKind::Unsupported.into();
                encoded.cfa_register = *why as u8;
                return encoded;
            }
            Rule::Frame(frame) => frame,
        };
        let kind;
        (
            kind,
            encoded.cfa_register,
            encoded.cfa_offset,
            encoded.cfa_plus,
        ) = match frame.cfa {
            Cfa::Register { register, offset } => (CfaKind::Register, register, offset, 0),
            Cfa::Deref {
                register,
                offset,
                plus,
            } => (CfaKind::Deref, register, offset, plus),
            Cfa::Plt { offset, threshold } => (
                CfaKind::Plt,
                super::x86_64::SP,
                offset,
                i16::from(threshold),
            ),
        };
        encoded.cfa_kind = kind.into();
        let kind;
        (kind, encoded.fp_base, encoded.fp_offset) = match frame.fp {
            FramePointer::Same => (FramePointerKind::Same, 0, 0),
            FramePointer::At { base, offset } => (FramePointerKind::At, base.encode(), offset),
            FramePointer::Lost => (FramePointerKind::Lost, 0, 0),
        };
        encoded.fp_kind = kind.into();
        let kind;
        (kind, encoded.ra_base, encoded.ra_offset) = match frame.ra {
            ReturnAddress::At { base, offset } => (ReturnAddressKind::At, base.encode(), offset),
            ReturnAddress::Interrupted { base, offset } => {
                (ReturnAddressKind::Interrupted, base.encode(), offset)
            }
            ReturnAddress::Register(register) => (ReturnAddressKind::Register, register, 0),
        };
        encoded.ra_kind = kind.into();
        encoded
    }

    /// Returns the rule that [`Rule::encode`] makes this of, or nothing if there is none.
    #[must_use]
    pub fn decode(encoded: &UnwindRule) -> Option<Rule> {
        let fp = || match FramePointerKind::try_from(encoded.fp_kind).ok()? {
            FramePointerKind::Same => Some(FramePointer::Same),
            FramePointerKind::At => Some(FramePointer::At {
                base: Base::decode(encoded.fp_base)?,
                offset: encoded.fp_offset,
            }),
            FramePointerKind::Lost => Some(FramePointer::Lost),
        };
        let ra = || match ReturnAddressKind::try_from(encoded.ra_kind).ok()? {
            ReturnAddressKind::At => Some(ReturnAddress::At {
                base: Base::decode(encoded.ra_base)?,
                offset: encoded.ra_offset,
            }),
            ReturnAddressKind::Interrupted => Some(ReturnAddress::Interrupted {
                base: Base::decode(encoded.ra_base)?,
                offset: encoded.ra_offset,
            }),
            ReturnAddressKind::Register => general(encoded.ra_base).map(ReturnAddress::Register),
        };
        let frame = |cfa| {
            Some(Rule::Frame(Frame {
                cfa,
                fp: fp()?,
                ra: ra()?,
            }))
        };
        let offset = encoded.cfa_offset;
        let rule = match CfaKind::try_from(encoded.cfa_kind).ok()? {
            CfaKind::Absent => Rule::Absent,
            CfaKind::Stop => Rule::Stop,
            CfaKind::Unsupported => Rule::Unsupported(Unsupported::decode(encoded.cfa_register)?),
            CfaKind::Register => frame(Cfa::Register {
                register: general(encoded.cfa_register)?,
                offset,
            })?,
            CfaKind::Deref => frame(Cfa::Deref {
                register: general(encoded.cfa_register)?,
                offset,
                plus: encoded.cfa_plus,
            })?,
            CfaKind::Plt => frame(Cfa::Plt {
                offset,
                threshold: u8::try_from(encoded.cfa_plus).ok()?,
            })?,
        };
        // Fields that a kind does not use must be zero.
        (rule.encode() == *encoded).then_some(rule)
    }
}

/// All rules, by number; shared by all tables.
///
/// The first three numbers are taken from the start: [`Rules::ABSENT`], [`Rules::STOP`] and
/// [`Rules::FULL`].
#[derive(Clone, Debug)]
pub struct Rules {
    list: Vec<Rule>,
    numbers: HashMap<Rule, u16>,
}

impl Default for Rules {
    fn default() -> Rules {
        Rules::new()
    }
}

impl Rules {
    /// The number of [`Rule::Absent`]: zero, so that memory that nobody filled says that nothing is
    /// known.
    pub const ABSENT: u16 = 0;
    /// The number of [`Rule::Stop`].
    pub const STOP: u16 = 1;
    /// The number that stands for every rule which came when no number was left.
    pub const FULL: u16 = 2;

    /// No rules but the three with fixed numbers.
    #[must_use]
    pub fn new() -> Rules {
        let mut rules = Rules {
            list: Vec::new(),
            numbers: HashMap::new(),
        };
        for rule in [
            Rule::Absent,
            Rule::Stop,
            Rule::Unsupported(Unsupported::Full),
        ] {
            rules.number(rule);
        }
        rules
    }

    /// The number of a rule, a new one if it was not seen before; [`Rules::FULL`] when there is
    /// none left.
    pub fn number(&mut self, rule: Rule) -> u16 {
        if let Some(&number) = self.numbers.get(&rule) {
            return number;
        }
        let Ok(number) = u16::try_from(self.list.len()) else {
            return Rules::FULL;
        };
        self.list.push(rule);
        self.numbers.insert(rule, number);
        number
    }

    /// The rule of a number.
    #[must_use]
    pub fn get(&self, number: u16) -> Option<&Rule> {
        self.list.get(usize::from(number))
    }

    /// All rules; a rule's place is its number. New ones come at the end.
    #[must_use]
    pub fn as_slice(&self) -> &[Rule] {
        &self.list
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use zerocopy::{IntoBytes as _, transmute};

    use super::*;

    #[test]
    fn fixed_numbers() {
        let rules = Rules::new();
        assert_eq!(rules.get(Rules::ABSENT), Some(&Rule::Absent));
        assert_eq!(rules.get(Rules::STOP), Some(&Rule::Stop));
        assert_eq!(
            rules.get(Rules::FULL),
            Some(&Rule::Unsupported(Unsupported::Full))
        );
        assert_eq!(Rule::Absent.encode().as_bytes(), [0; Rule::SIZE]);
    }

    fn plain(offset: i32) -> Rule {
        Rule::Frame(Frame {
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
        let mut rules = Rules::new();
        let number = rules.number(plain(8));
        assert_ne!(rules.number(plain(16)), number);
        assert_eq!(rules.number(plain(8)), number);
        assert_eq!(rules.get(number), Some(&plain(8)));
    }

    #[test]
    fn numbers_run_out_without_a_wrong_rule() {
        let mut rules = Rules::new();
        for offset in 0..70_000 {
            rules.number(plain(offset));
        }
        assert_eq!(rules.as_slice().len(), 65_536);
        assert_eq!(rules.number(plain(70_001)), Rules::FULL);
        assert_eq!(rules.get(rules.numbers[&plain(100)]), Some(&plain(100)));
    }

    #[test]
    fn encoding_of_a_signal_frame() {
        let rule = Rule::Frame(Frame {
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
            rule.encode().as_bytes(),
            [
                160, 0, 0, 0, 0xfe, 0xff, 120, 0, 0xf8, 0xff, 4, 7, 1, 7, 1, 255
            ]
        );
    }

    #[test]
    fn encoding_of_the_short_ones() {
        let mut bytes = [0; Rule::SIZE];
        bytes[10] = 1;
        assert_eq!(Rule::Stop.encode().as_bytes(), bytes);
        bytes[10] = 2;
        bytes[11] = 4;
        assert_eq!(
            Rule::Unsupported(Unsupported::Offset).encode().as_bytes(),
            bytes
        );
        let plt = Rule::Frame(Frame {
            cfa: Cfa::Plt {
                offset: 8,
                threshold: 11,
            },
            fp: FramePointer::Lost,
            ra: ReturnAddress::Register(5),
        });
        assert_eq!(
            plt.encode().as_bytes(),
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

    fn rule() -> impl Strategy<Value = Rule> {
        let frame =
            (cfa(), fp(), ra()).prop_map(|(cfa, fp, ra)| Rule::Frame(Frame { cfa, fp, ra }));
        let why = (1..8_u8).prop_map(|why| Rule::Unsupported(Unsupported::decode(why).unwrap()));
        prop_oneof![8 => frame, 1 => why, 1 => Just(Rule::Absent), 1 => Just(Rule::Stop)]
    }

    proptest! {
        #[test]
        fn decoding_undoes_encoding(rule in rule()) {
            prop_assert_eq!(Rule::decode(&rule.encode()), Some(rule));
        }

        /// Small bytes, for they are those that mean something.
        #[test]
        fn nothing_else_is_decoded(bytes in proptest::array::uniform16(prop_oneof![0..8_u8, any::<u8>()])) {
            let encoded: UnwindRule = transmute!(bytes);
            if let Some(rule) = Rule::decode(&encoded) {
                prop_assert_eq!(rule.encode(), encoded);
            }
        }
    }
}
