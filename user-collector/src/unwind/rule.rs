//! The rule of a row: where the caller's stack pointer, frame pointer, rbx and pc are.
//!
//! Only these are followed, because only they are needed for the next frame, rbx in the dynamic
//! linker; the other registers of the caller are lost. So a rule that begins at another register
//! (gcc's realigned prologue, `vfork`) can be applied only to the innermost frame, whose registers
//! are all known.

use std::collections::HashMap;

/// The step from a frame to its caller's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UnwindRule {
    /// Nothing is known of this pc: a hole between functions.
    Absent,
    /// The outermost frame: the return address is undefined (`_start`, the start of a thread).
    Stop,
    /// Frame information that can't be expressed by a rule.
    Unsupported(Unsupported),
    /// An ordinary frame.
    Frame(FrameRule),
}

/// Why a row has no rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, num_enum::TryFromPrimitive)]
#[repr(u8)]
pub enum Unsupported {
    /// The CFA is a DWARF expression of an unsupported form.
    CfaExpression = 1,
    /// The CFA is relative to a register that is not a general one.
    CfaRegister = 2,
    /// The return address has a rule of an unsupported form.
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
    /// The caller's rbx.
    pub bx: Rbx,
    /// The caller's pc.
    pub ra: ReturnAddress,
}

/// The canonical frame address. Registers are DWARF numbers; their values are those in the frame
/// that is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cfa {
    /// `register + offset`.
    Register {
        /// The register; others than the stack pointer, the frame pointer and rbx are known in the
        /// innermost frame only.
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
        plus: i8,
    },
    /// `sp + offset`, and 8 more if `(pc & 15) >= threshold`: an entry of the PLT, which has a push
    /// in the middle.
    Plt {
        /// Bytes.
        offset: i32,
        /// Offset in the 16 bytes of an entry after the push.
        threshold: i8,
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
    /// Unchanged.
    Same,
    /// Stored at `base + offset`.
    At {
        /// Relative to what.
        base: Base,
        /// Bytes.
        offset: i16,
    },
    /// Unknown. Frames that don't use it can still be unwound.
    Lost,
}

/// The caller's rbx.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rbx {
    /// Unchanged.
    Same,
    /// Stored at `base` plus `words`.
    At {
        /// Relative to what.
        base: Base,
        /// Words of 8 bytes.
        words: i8,
    },
    /// Unknown.
    Lost,
}

/// The caller's pc.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReturnAddress {
    /// A return address at `base` plus `words`. It is looked up at −1, inside the call.
    At {
        /// Relative to what.
        base: Base,
        /// Words of 8 bytes.
        words: i8,
    },
    /// A signal frame: the pc of the interrupted instruction, at `base` plus `words`. It is looked
    /// up as it is.
    Interrupted {
        /// Relative to what.
        base: Base,
        /// Words of 8 bytes.
        words: i8,
    },
    /// A return address in a register, a DWARF number: known in the innermost frame only (`vfork`).
    Register(u8),
}

impl UnwindRule {
    /// Returns whether the caller has another stack, as for Go's functions that call on the
    /// scheduler's stack: the frame pointer leads to where the goroutine was interrupted.
    #[must_use]
    pub fn changes_stacks(&self) -> bool {
        matches!(
            self,
            UnwindRule::Frame(FrameRule {
                cfa: Cfa::Register {
                    register: super::x86_64_registers::FP,
                    ..
                },
                ra: ReturnAddress::Interrupted { .. },
                ..
            })
        )
    }
}

/// All rules, by number; shared by all tables.
///
/// The first three numbers are taken from the start: [`UnwindRules::ABSENT`], [`UnwindRules::STOP`]
/// and [`UnwindRules::FULL`].
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
    /// The number of [`UnwindRule::Absent`]: zero, so that empty memory means that nothing is
    /// known.
    pub const ABSENT: u16 = 0;
    /// The number of [`UnwindRule::Stop`].
    pub const STOP: u16 = 1;
    /// The number of all rules that came when no number was left.
    pub const FULL: u16 = 2;

    /// Returns the three rules with fixed numbers.
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

    /// Returns the number of a rule, which is added if it is new; [`UnwindRules::FULL`] if no
    /// number is left.
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

    /// Returns the rule of a number.
    #[must_use]
    pub fn get(&self, number: u16) -> Option<&UnwindRule> {
        self.list.get(usize::from(number))
    }

    /// Returns all rules; a rule's index is its number. New ones come at the end.
    #[must_use]
    pub fn as_slice(&self) -> &[UnwindRule] {
        &self.list
    }
}

#[cfg(test)]
mod tests {
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
        assert_eq!(UnwindRule::Absent.encode(), bpf_abi::EncodedRule::default());
    }

    fn plain(offset: i32) -> UnwindRule {
        UnwindRule::Frame(FrameRule {
            cfa: Cfa::Register {
                register: 7,
                offset,
            },
            fp: FramePointer::Same,
            bx: Rbx::Same,
            ra: ReturnAddress::At {
                base: Base::Cfa,
                words: -1,
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
}
