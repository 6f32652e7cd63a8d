//! The 16 bytes of a rule, as the BPF programs and the cache of tables have it.

use bpf_abi::EncodedRule;
use bpf_abi::layout::{BASE_CFA, BX_LOST, BX_SAME, CfaKind, FramePointerKind, ReturnAddressKind};

use super::rule::{
    Base, Cfa, FramePointer, FrameRule, Rbx, ReturnAddress, Unsupported, UnwindRule,
};
use super::x86_64_registers::{GENERAL, SP};

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

/// Returns a register that a rule may name.
fn general(register: u8) -> Option<u8> {
    (u16::from(register) < GENERAL).then_some(register)
}

impl UnwindRule {
    /// Bytes of an encoded rule.
    pub const SIZE: usize = size_of::<EncodedRule>();

    /// Returns the rule for the BPF programs. A rule of zeros is [`UnwindRule::Absent`].
    #[must_use]
    pub fn encode(&self) -> EncodedRule {
        let mut encoded = EncodedRule::default();
        let frame = match self {
            UnwindRule::Absent => return encoded,
            UnwindRule::Stop => {
                encoded.cfa_kind = CfaKind::Stop.into();
                return encoded;
            }
            UnwindRule::Unsupported(why) => {
                encoded.cfa_kind = CfaKind::Unsupported.into();
                encoded.cfa_register = *why as u8;
                return encoded;
            }
            UnwindRule::Frame(frame) => frame,
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
            Cfa::Plt { offset, threshold } => (CfaKind::Plt, SP, offset, threshold),
        };
        encoded.cfa_kind = kind.into();
        let kind;
        (kind, encoded.fp_base, encoded.fp_offset) = match frame.fp {
            FramePointer::Same => (FramePointerKind::Same, 0, 0),
            FramePointer::At { base, offset } => (FramePointerKind::At, base.encode(), offset),
            FramePointer::Lost => (FramePointerKind::Lost, 0, 0),
        };
        encoded.fp_kind = kind.into();
        (encoded.bx_base, encoded.bx_words) = match frame.bx {
            Rbx::Same => (BX_SAME, 0),
            Rbx::At { base, words } => (base.encode(), words),
            Rbx::Lost => (BX_LOST, 0),
        };
        let kind;
        (kind, encoded.ra_base, encoded.ra_words) = match frame.ra {
            ReturnAddress::At { base, words } => (ReturnAddressKind::At, base.encode(), words),
            ReturnAddress::Interrupted { base, words } => {
                (ReturnAddressKind::Interrupted, base.encode(), words)
            }
            ReturnAddress::Register(register) => (ReturnAddressKind::Register, register, 0),
        };
        encoded.ra_kind = kind.into();
        encoded
    }

    /// Decodes a rule; `None` if [`UnwindRule::encode`] makes no such bytes.
    #[must_use]
    pub fn decode(encoded: &EncodedRule) -> Option<UnwindRule> {
        let fp = || match FramePointerKind::try_from(encoded.fp_kind).ok()? {
            FramePointerKind::Same => Some(FramePointer::Same),
            FramePointerKind::At => Some(FramePointer::At {
                base: Base::decode(encoded.fp_base)?,
                offset: encoded.fp_offset,
            }),
            FramePointerKind::Lost => Some(FramePointer::Lost),
        };
        let bx = || match encoded.bx_base {
            BX_SAME => Some(Rbx::Same),
            BX_LOST => Some(Rbx::Lost),
            base => Some(Rbx::At {
                base: Base::decode(base)?,
                words: encoded.bx_words,
            }),
        };
        let ra = || match ReturnAddressKind::try_from(encoded.ra_kind).ok()? {
            ReturnAddressKind::At => Some(ReturnAddress::At {
                base: Base::decode(encoded.ra_base)?,
                words: encoded.ra_words,
            }),
            ReturnAddressKind::Interrupted => Some(ReturnAddress::Interrupted {
                base: Base::decode(encoded.ra_base)?,
                words: encoded.ra_words,
            }),
            ReturnAddressKind::Register => general(encoded.ra_base).map(ReturnAddress::Register),
        };
        let frame = |cfa| {
            Some(UnwindRule::Frame(FrameRule {
                cfa,
                fp: fp()?,
                bx: bx()?,
                ra: ra()?,
            }))
        };
        let offset = encoded.cfa_offset;
        let rule = match CfaKind::try_from(encoded.cfa_kind).ok()? {
            CfaKind::Absent => UnwindRule::Absent,
            CfaKind::Stop => UnwindRule::Stop,
            CfaKind::Unsupported => {
                UnwindRule::Unsupported(Unsupported::try_from(encoded.cfa_register).ok()?)
            }
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
                threshold: encoded.cfa_plus,
            })?,
        };
        // Fields that a kind does not use must be zero.
        (rule.encode() == *encoded).then_some(rule)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use zerocopy::{IntoBytes as _, transmute};

    use super::*;

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
            bx: Rbx::At {
                base: Base::Register(7),
                words: 16,
            },
            ra: ReturnAddress::Interrupted {
                base: Base::Cfa,
                words: -1,
            },
        });
        assert_eq!(
            rule.encode().as_bytes(),
            [160, 0, 0, 0, 120, 0, 0xfe, 0xff, 16, 7, 4, 7, 1, 7, 1, 255]
        );
    }

    #[test]
    fn encoding_of_the_short_ones() {
        let mut bytes = [0; UnwindRule::SIZE];
        bytes[10] = 1;
        assert_eq!(UnwindRule::Stop.encode().as_bytes(), bytes);
        bytes[10] = 2;
        bytes[11] = 4;
        assert_eq!(
            UnwindRule::Unsupported(Unsupported::Offset)
                .encode()
                .as_bytes(),
            bytes
        );
        let plt = UnwindRule::Frame(FrameRule {
            cfa: Cfa::Plt {
                offset: 8,
                threshold: 11,
            },
            fp: FramePointer::Lost,
            bx: Rbx::Lost,
            ra: ReturnAddress::Register(5),
        });
        assert_eq!(
            plt.encode().as_bytes(),
            [8, 0, 0, 0, 0, 0, 11, 0, 0, 253, 5, 7, 2, 0, 2, 5]
        );
    }

    fn base() -> impl Strategy<Value = Base> {
        prop_oneof![Just(Base::Cfa), (0..16_u8).prop_map(Base::Register)]
    }

    fn cfa() -> impl Strategy<Value = Cfa> {
        prop_oneof![
            (0..16_u8, any::<i32>())
                .prop_map(|(register, offset)| Cfa::Register { register, offset }),
            (0..16_u8, any::<i32>(), any::<i8>()).prop_map(|(register, offset, plus)| {
                Cfa::Deref {
                    register,
                    offset,
                    plus,
                }
            }),
            (any::<i32>(), any::<i8>())
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

    fn bx() -> impl Strategy<Value = Rbx> {
        prop_oneof![
            Just(Rbx::Same),
            Just(Rbx::Lost),
            (base(), any::<i8>()).prop_map(|(base, words)| Rbx::At { base, words }),
        ]
    }

    fn ra() -> impl Strategy<Value = ReturnAddress> {
        prop_oneof![
            (0..16_u8).prop_map(ReturnAddress::Register),
            (base(), any::<i8>()).prop_map(|(base, words)| ReturnAddress::At { base, words }),
            (base(), any::<i8>())
                .prop_map(|(base, words)| ReturnAddress::Interrupted { base, words }),
        ]
    }

    fn rule() -> impl Strategy<Value = UnwindRule> {
        let frame = (cfa(), fp(), bx(), ra())
            .prop_map(|(cfa, fp, bx, ra)| UnwindRule::Frame(FrameRule { cfa, fp, bx, ra }));
        let why =
            (1..8_u8).prop_map(|why| UnwindRule::Unsupported(Unsupported::try_from(why).unwrap()));
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
            let encoded: EncodedRule = transmute!(bytes);
            if let Some(rule) = UnwindRule::decode(&encoded) {
                prop_assert_eq!(rule.encode(), encoded);
            }
        }
    }
}
