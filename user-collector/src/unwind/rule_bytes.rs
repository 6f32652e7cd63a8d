//! The 16 bytes of a rule, as the BPF programs and the cache of tables have it.

use super::rule::{Base, Cfa, FramePointer, FrameRule, ReturnAddress, Unsupported, UnwindRule};
use super::x86_64;

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

/// Returns a register that a rule may name.
fn general(register: u8) -> Option<u8> {
    (u16::from(register) < x86_64::GENERAL).then_some(register)
}

impl UnwindRule {
    /// Bytes of an encoded rule.
    pub const SIZE: usize = 16;

    /// Returns the rule as the BPF side has it, little endian. A rule of zeros is
    /// [`UnwindRule::Absent`].
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
            Cfa::Plt { offset, threshold } => (5, x86_64::SP, offset, i16::from(threshold)),
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

    /// Returns the rule of which [`UnwindRule::encode`] makes these bytes; nothing where there is
    /// none.
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
            2 => UnwindRule::Unsupported(Unsupported::try_from(register).ok()?),
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

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
            if let Some(rule) = UnwindRule::decode(&bytes) {
                prop_assert_eq!(rule.encode(), bytes);
            }
        }
    }
}
