//! Stacks that are drawn: rules, functions, memory and registers.

use std::collections::BTreeMap;

use super::super::*;
use crate::layout::BX_SAME;

pub(super) const BX: u8 = 3;
pub(super) const FP: u8 = 6;
pub(super) const SP: u8 = 7;
pub(super) const R10: u8 = 10;
pub(super) const R12: u8 = 12;
pub(super) const CFA: u8 = 255;

/// A rule as it is drawn: how the CFA is found; the rest is as in an ordinary function.
#[derive(Clone, Copy)]
pub(super) struct Drawn {
    pub(super) cfa: (u8, u8, i32, i8),
    pub(super) fp: (u8, u8, i16),
    pub(super) bx: (u8, i8),
    pub(super) ra: (u8, u8, i16),
}

impl Drawn {
    pub(super) fn register(register: u8, offset: i32) -> Drawn {
        Drawn {
            cfa: (3, register, offset, 0),
            fp: (0, 0, 0),
            bx: (BX_SAME, 0),
            ra: (0, CFA, -8),
        }
    }

    pub(super) fn deref(register: u8, offset: i32, plus: i8) -> Drawn {
        Drawn {
            cfa: (4, register, offset, plus),
            ..Drawn::register(register, offset)
        }
    }

    pub(super) fn fp_at(self, base: u8, offset: i16) -> Drawn {
        Drawn {
            fp: (1, base, offset),
            ..self
        }
    }

    pub(super) fn fp_lost(self) -> Drawn {
        Drawn {
            fp: (2, 0, 0),
            ..self
        }
    }

    pub(super) fn bx_at(self, base: u8, words: i8) -> Drawn {
        Drawn {
            bx: (base, words),
            ..self
        }
    }

    pub(super) fn found(self) -> UnwindBy {
        let (cfa_kind, cfa_register, cfa_offset, cfa_plus) = self.cfa;
        let (fp_kind, fp_base, fp_offset) = self.fp;
        let (bx_base, bx_words) = self.bx;
        let (ra_kind, ra_base, ra_offset) = self.ra;
        assert_eq!(ra_offset % 8, 0);
        UnwindBy::Rule(EncodedRule {
            cfa_offset,
            fp_offset,
            cfa_plus,
            ra_words: (ra_offset / 8) as i8,
            bx_words,
            bx_base,
            cfa_kind,
            cfa_register,
            fp_kind,
            fp_base,
            ra_kind,
            ra_base,
        })
    }
}

pub(super) fn of_kind(kind: u8) -> UnwindBy {
    Drawn {
        cfa: (kind, 0, 0, 0),
        ..Drawn::register(0, 0)
    }
    .found()
}

/// Code and memory: functions of 256 bytes by the page of their address, and words.
#[derive(Clone)]
pub(super) struct Drawing {
    functions: BTreeMap<u64, UnwindBy>,
    words: BTreeMap<u64, u64>,
    pub(super) start: Registers,
}

impl Drawing {
    /// The innermost function is at 0x100, its stack pointer at 0x7000; the outermost at 0xe00
    /// has no caller.
    pub(super) fn new() -> Drawing {
        let mut drawing = Drawing {
            functions: BTreeMap::new(),
            words: BTreeMap::new(),
            start: Registers::innermost(0x123, [0; 16]),
        };
        drawing.start.general[usize::from(SP)] = 0x7000;
        drawing.function(0xe00, of_kind(1))
    }

    pub(super) fn function(mut self, at: u64, found: UnwindBy) -> Drawing {
        self.functions.insert(at, found);
        self
    }

    pub(super) fn rule(self, at: u64, rule: Drawn) -> Drawing {
        self.function(at, rule.found())
    }

    pub(super) fn word(mut self, at: u64, word: u64) -> Drawing {
        self.words.insert(at, word);
        self
    }

    pub(super) fn register(mut self, number: u8, value: u64) -> Drawing {
        self.start.general[usize::from(number)] = value;
        self
    }

    pub(super) fn unwound(&self) -> Unwound {
        self.unwind(100)
    }

    pub(super) fn unwind(&self, most: usize) -> Unwound {
        unwind(
            &self.start,
            most,
            |at| {
                let function = self.functions.get(&(at & !0xff));
                *function.unwrap_or(&UnwindBy::Nothing(UnwindEnd::NoMapping))
            },
            |at| self.words.get(&at).copied(),
        )
    }

    #[track_caller]
    pub(super) fn ends(&self, frames: &[u64], end: UnwindEnd) {
        let unwound = self.unwound();
        assert_eq!((unwound.frames.as_slice(), unwound.end), (frames, end));
    }
}
