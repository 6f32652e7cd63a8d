//! Unwind tables of synthetic frame information: a test for each form that compilers and linkers
//! use.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test reports by panicking"
)]

mod entry;

use gimli::write::{
    Address, CallFrameInstruction as Cfi, CommonInformationEntry, EhFrame, EndianVec, Expression,
    FrameDescriptionEntry, FrameTable,
};
use gimli::{LittleEndian, Register, X86_64};
use std::borrow::Cow;
use user_collector::unwind::{
    Base, Cfa, FrameInfo, FramePointer, FrameRule, MAX_CIE_BYTES, Rbx, ReturnAddress, TableSummary,
    Unsupported, UnwindRule, UnwindRules, UnwindSections, UnwindTable,
};

use entry::cie;

const START: u64 = 0x1_0000;

/// Returns a section with a function for each list of instructions, 0x100 bytes each and 0x1000
/// apart.
fn section(cie: CommonInformationEntry, functions: &[&[(u32, Cfi)]]) -> Vec<u8> {
    let mut table = FrameTable::default();
    let cie = table.add_cie(cie);
    for (index, instructions) in functions.iter().enumerate() {
        let mut fde =
            FrameDescriptionEntry::new(Address::Constant(START + index as u64 * 0x1000), 0x100);
        for (offset, instruction) in *instructions {
            fde.add_instruction(*offset, instruction.clone());
        }
        table.add_fde(cie, fde);
    }
    let mut section = EhFrame(EndianVec::new(LittleEndian));
    table.write_eh_frame(&mut section).unwrap();
    section.0.into_vec()
}

fn sections(data: &[u8]) -> UnwindSections<'_> {
    let executable = std::iter::once(0x1000..0x100_0000).collect();
    UnwindSections {
        frames: FrameInfo::Eh {
            data,
            address: 0x80_0000,
        },
        text: 0,
        got: 0,
        executable,
        debug_frames: Cow::default(),
        thread_starts: Vec::new(),
        go: None,
    }
}

struct BuiltTable {
    table: UnwindTable,
    rules: UnwindRules,
    summary: TableSummary,
}

impl BuiltTable {
    fn of(data: &[u8]) -> BuiltTable {
        let mut rules = UnwindRules::new();
        let (table, summary) = UnwindTable::of_sections(&sections(data), &mut rules).unwrap();
        BuiltTable {
            table,
            rules,
            summary,
        }
    }

    fn at(&self, offset: u64) -> Option<UnwindRule> {
        self.table.lookup(&self.rules, START + offset).copied()
    }
}

fn one(instructions: &[(u32, Cfi)]) -> BuiltTable {
    BuiltTable::of(&section(cie(), &[instructions]))
}

fn raw(bytes: &[u8]) -> Expression {
    Expression::raw(bytes.to_vec())
}

const RETURN: ReturnAddress = ReturnAddress::At {
    base: Base::Cfa,
    words: -1,
};

fn frame(cfa: Cfa, fp: FramePointer) -> Option<UnwindRule> {
    Some(UnwindRule::Frame(FrameRule {
        cfa,
        fp,
        bx: Rbx::Same,
        ra: RETURN,
    }))
}

fn sp(offset: i32) -> Cfa {
    Cfa::Register {
        register: 7,
        offset,
    }
}

const SAVED: FramePointer = FramePointer::At {
    base: Base::Cfa,
    offset: -16,
};

#[test]
fn push_and_frame_pointer() {
    let built = one(&[
        (1, Cfi::CfaOffset(16)),
        (1, Cfi::Offset(X86_64::RBP, -16)),
        (4, Cfi::CfaRegister(X86_64::RBP)),
        (0xf0, Cfi::Cfa(X86_64::RSP, 8)),
    ]);
    assert_eq!(built.at(0), frame(sp(8), FramePointer::Same));
    assert_eq!(built.at(1), frame(sp(16), SAVED));
    assert_eq!(
        built.at(4),
        frame(
            Cfa::Register {
                register: 6,
                offset: 16
            },
            SAVED
        )
    );
    assert_eq!(built.at(0xef), built.at(4));
    assert_eq!(built.at(0xff), frame(sp(8), SAVED));
    assert_eq!(built.at(0x100), None);
    assert_eq!(built.summary.rows.stack_pointer, 3);
    assert_eq!(built.summary.rows.frame_pointer, 1);
    assert_eq!((built.summary.fdes, built.summary.rows.absent), (1, 1));
}

#[test]
fn remembered_states_come_back() {
    let built = one(&[
        (1, Cfi::CfaOffset(64)),
        (9, Cfi::RememberState),
        (9, Cfi::CfaOffset(8)),
        (10, Cfi::RestoreState),
    ]);
    assert_eq!(
        [1, 9, 10].map(|at| built.at(at)),
        [sp(64), sp(8), sp(64)].map(|cfa| frame(cfa, FramePointer::Same))
    );
}

#[test]
fn tables_of_both_plts() {
    for threshold in [10, 11] {
        let expression = [
            0x77,
            8,
            0x80,
            0,
            0x3f,
            0x1a,
            0x30 + threshold,
            0x2a,
            0x33,
            0x24,
            0x22,
        ];
        let built = one(&[(0, Cfi::CfaExpression(raw(&expression)))]);
        assert_eq!(
            built.at(0),
            frame(
                Cfa::Plt {
                    offset: 8,
                    threshold: threshold as i8
                },
                FramePointer::Same
            )
        );
        assert_eq!(built.summary.rows.plt, 1);
    }
}

#[test]
fn a_realigned_stack_of_gcc() {
    let r10 = X86_64::R10;
    let built = one(&[
        (5, Cfi::Cfa(r10, 0)),
        (14, Cfi::Expression(X86_64::RBP, raw(&[0x76, 0]))),
        (24, Cfi::CfaExpression(raw(&[0x76, 0x78, 0x06]))),
        (90, Cfi::CfaExpression(raw(&[0x77, 40, 0x06, 0x23, 8]))),
        // The sum as SBCL writes it.
        (95, Cfi::CfaExpression(raw(&[0x76, 0, 0x06, 0x40, 0x22]))),
    ]);
    let saved = FramePointer::At {
        base: Base::Register(6),
        offset: 0,
    };
    assert_eq!(
        built.at(5),
        frame(
            Cfa::Register {
                register: 10,
                offset: 0
            },
            FramePointer::Same
        )
    );
    assert_eq!(
        built.at(14),
        frame(
            Cfa::Register {
                register: 10,
                offset: 0
            },
            saved
        )
    );
    assert_eq!(
        built.at(24),
        frame(
            Cfa::Deref {
                register: 6,
                offset: -8,
                plus: 0
            },
            saved
        )
    );
    assert_eq!(
        built.at(90),
        frame(
            Cfa::Deref {
                register: 7,
                offset: 40,
                plus: 8
            },
            saved
        )
    );
    assert_eq!(
        built.at(95),
        frame(
            Cfa::Deref {
                register: 6,
                offset: 0,
                plus: 16
            },
            saved
        )
    );
    assert_eq!(
        (built.summary.rows.innermost, built.summary.rows.deref),
        (2, 3)
    );
}

#[test]
fn a_signal_frame() {
    let mut cie = cie();
    cie.signal_trampoline = true;
    let built = BuiltTable::of(&section(
        cie,
        &[&[
            (0, Cfi::CfaExpression(raw(&[0x77, 0xa0, 0x01, 0x06]))),
            (0, Cfi::Expression(X86_64::RBP, raw(&[0x77, 0xf8, 0x00]))),
            (0, Cfi::Expression(X86_64::RBX, raw(&[0x77, 0x80, 0x01]))),
            (0, Cfi::Expression(X86_64::RSP, raw(&[0x77, 0xa0, 0x01]))),
            (0, Cfi::Expression(X86_64::RA, raw(&[0x77, 0xa8, 0x01]))),
        ]],
    ));
    let base = Base::Register(7);
    let rule = UnwindRule::Frame(FrameRule {
        cfa: Cfa::Deref {
            register: 7,
            offset: 160,
            plus: 0,
        },
        fp: FramePointer::At { base, offset: 120 },
        bx: Rbx::At { base, words: 16 },
        ra: ReturnAddress::Interrupted { base, words: 21 },
    });
    assert_eq!(built.at(0), Some(rule));
    assert_eq!(built.summary.rows.signal, 1);
}

#[test]
fn outer_frames_and_vfork() {
    let built = one(&[
        (4, Cfi::Undefined(X86_64::RA)),
        (8, Cfi::Register(X86_64::RA, X86_64::RDI)),
    ]);
    assert_eq!(built.at(4), Some(UnwindRule::Stop));
    let Some(UnwindRule::Frame(frame)) = built.at(8) else {
        panic!("{:?}", built.at(8))
    };
    assert_eq!(frame.ra, ReturnAddress::Register(5));
    assert_eq!(
        (built.summary.rows.stop, built.summary.rows.innermost),
        (1, 1)
    );
}

#[test]
fn what_is_not_supported_is_counted() {
    let built = one(&[
        (1, Cfi::CfaExpression(raw(&[0x77, 8, 0x31, 0x22]))),
        (2, Cfi::Cfa(Register(17), 8)),
        (3, Cfi::Cfa(X86_64::RSP, 8)),
        (3, Cfi::ValOffset(X86_64::RA, 8)),
        (4, Cfi::Offset(X86_64::RA, -0x10_0000)),
        (5, Cfi::Offset(X86_64::RA, -8)),
        (5, Cfi::ValOffset(X86_64::RBP, 8)),
        (6, Cfi::Register(X86_64::RSP, X86_64::R8)),
    ]);
    let unsupported = |why| Some(UnwindRule::Unsupported(why));
    assert_eq!(built.at(1), unsupported(Unsupported::CfaExpression));
    assert_eq!(built.at(2), unsupported(Unsupported::CfaRegister));
    assert_eq!(built.at(3), unsupported(Unsupported::ReturnAddress));
    assert_eq!(built.at(4), unsupported(Unsupported::Offset));
    assert_eq!(built.at(5), frame(sp(8), FramePointer::Lost));
    assert_eq!(
        (
            built.summary.rows.unsupported(),
            built.summary.rows.frame_pointer_lost
        ),
        (4, 1)
    );
}

#[test]
fn functions_beyond_64_kib() {
    let instructions: &[(u32, Cfi)] = &[(1, Cfi::CfaOffset(16))];
    let built = BuiltTable::of(&section(cie(), &[instructions; 40]));
    assert_eq!(built.table.pages().len(), 3);
    for index in 0..40 {
        assert_eq!(built.at(index * 0x1000), frame(sp(8), FramePointer::Same));
        assert_eq!(
            built.at(index * 0x1000 + 0xff),
            frame(sp(16), FramePointer::Same)
        );
        assert_eq!(built.at(index * 0x1000 + 0x100), None);
    }
}

/// The length fields' places: of the CIE and of each FDE.
fn entries(data: &[u8]) -> Vec<usize> {
    let mut places = vec![];
    let mut at = 0;
    while at + 4 <= data.len() {
        places.push(at);
        at += 4 + u32::from_le_bytes(data[at..at + 4].try_into().unwrap()) as usize;
    }
    places
}

#[test]
fn one_bad_entry_does_not_lose_the_rest() {
    let instructions: &[(u32, Cfi)] = &[(1, Cfi::CfaOffset(16))];
    let mut data = section(cie(), &[instructions; 3]);
    let places = entries(&data);
    // The second function's place of its CIE points nowhere.
    data[places[2] + 4..places[2] + 8].copy_from_slice(&0x7fff_ffff_u32.to_le_bytes());
    let built = BuiltTable::of(&data);
    assert_eq!((built.summary.fdes, built.summary.bad_fdes), (2, 1));
    assert_eq!(
        [0, 0x1000, 0x2000].map(|at| built.at(at).is_some()),
        [true, false, true]
    );
}

#[test]
fn a_program_that_ends_in_an_error_is_good_up_to_there() {
    let mut data = section(
        cie(),
        &[&[(1, Cfi::CfaOffset(16)), (9, Cfi::RestoreState)], &[]],
    );
    let built = BuiltTable::of(&data);
    assert_eq!(built.at(8), frame(sp(16), FramePointer::Same));
    assert_eq!(
        built.at(9),
        Some(UnwindRule::Unsupported(Unsupported::Malformed))
    );
    assert_eq!(built.at(0xff), built.at(9));
    assert_eq!(
        (built.summary.malformed_fdes, built.summary.rows.malformed),
        (1, 1)
    );
    assert!(built.at(0x1000).is_some());

    // An entry that is longer than the section is the last, and what was read before is used.
    let last = *entries(&data).last().unwrap();
    data[last..last + 4].copy_from_slice(&0x1000_u32.to_le_bytes());
    let built = BuiltTable::of(&data);
    assert_eq!(
        (built.summary.fdes, built.summary.unread),
        (1, (data.len() - last) as u64)
    );
}

#[test]
fn code_outside_the_segments_is_left_out() {
    let data = section(cie(), &[&[], &[]]);
    let mut rules = UnwindRules::new();
    let only_second = START + 0x1000..START + 0x1100;
    let sections = UnwindSections {
        executable: std::iter::once(only_second).collect(),
        ..sections(&data)
    };
    let (table, summary) = UnwindTable::of_sections(&sections, &mut rules).unwrap();
    assert_eq!((summary.fdes, summary.elsewhere), (2, 1));
    assert_eq!(table.lookup(&rules, START), None);
    assert!(table.lookup(&rules, START + 0x1000).is_some());
}

#[test]
fn a_cie_that_costs_too_much_is_refused() {
    let mut long = cie();
    for _ in 0..MAX_CIE_BYTES {
        long.add_instruction(Cfi::CfaOffset(8));
    }
    let built = BuiltTable::of(&section(long, &[&[]]));
    assert_eq!((built.summary.fdes, built.summary.bad_fdes), (0, 1));
    assert_eq!(built.table, UnwindTable::default());
}

#[test]
fn debug_frame_is_used() {
    let mut table = FrameTable::default();
    let cie = table.add_cie(cie());
    table.add_fde(
        cie,
        FrameDescriptionEntry::new(Address::Constant(START), 0x100),
    );
    let mut section = gimli::write::DebugFrame(EndianVec::new(LittleEndian));
    table.write_debug_frame(&mut section).unwrap();
    let data = section.0.into_vec();
    let mut rules = UnwindRules::new();
    let sections = UnwindSections {
        frames: FrameInfo::Debug {
            data: data.as_slice().into(),
        },
        ..sections(&[])
    };
    let (table, summary) = UnwindTable::of_sections(&sections, &mut rules).unwrap();
    assert_eq!(
        table.lookup(&rules, START).copied(),
        frame(sp(8), FramePointer::Same)
    );
    assert_eq!(summary.fdes, 1);
}

#[test]
fn a_file_without_frame_information_has_an_empty_table() {
    let mut rules = UnwindRules::new();
    let sections = UnwindSections {
        frames: FrameInfo::None,
        ..sections(&[])
    };
    let (table, summary) = UnwindTable::of_sections(&sections, &mut rules).unwrap();
    assert_eq!((table, summary.fdes), (UnwindTable::default(), 0));
}

/// If both sections have a function, `.eh_frame` counts.
#[test]
fn eh_frame_and_debug_frame_by_address() {
    let mut table = FrameTable::default();
    let cie = table.add_cie(cie());
    for (start, height) in [(START, 24), (START + 0x100, 32)] {
        let mut fde = FrameDescriptionEntry::new(Address::Constant(start), 0x100);
        fde.add_instruction(0, Cfi::CfaOffset(height));
        table.add_fde(cie, fde);
    }
    let mut debug = gimli::write::DebugFrame(EndianVec::new(LittleEndian));
    table.write_debug_frame(&mut debug).unwrap();
    let eh = section(self::cie(), &[&[]]);
    let sections = UnwindSections {
        debug_frames: debug.slice().into(),
        ..sections(&eh)
    };
    let mut rules = UnwindRules::new();
    let (table, summary) = UnwindTable::of_sections(&sections, &mut rules).unwrap();
    let rule = |pc| table.lookup(&rules, pc).copied();
    assert_eq!(rule(START), frame(sp(8), FramePointer::Same));
    assert_eq!(rule(START + 0x100), frame(sp(32), FramePointer::Same));
    assert_eq!((summary.fdes, summary.unread), (3, 0));
}

/// A thread's start may be a whole function, a part of one, or code without rules.
#[test]
fn thread_starts_have_no_caller() {
    let data = section(cie(), &[&[], &[]]);
    let second = START + 0x1000;
    let sections = UnwindSections {
        thread_starts: vec![START..START + 8, second + 8..second + 16, 0x1000..0x1010],
        ..sections(&data)
    };
    let mut rules = UnwindRules::new();
    let (table, _) = UnwindTable::of_sections(&sections, &mut rules).unwrap();
    let rule = |pc| table.lookup(&rules, pc).copied();
    for pc in [START, START + 0xff, second + 8, second + 15, 0x1000, 0x100f] {
        assert_eq!(rule(pc), Some(UnwindRule::Stop), "{pc:#x}");
    }
    assert_eq!(rule(second), frame(sp(8), FramePointer::Same));
    assert_eq!(rule(0x1020), None);
}
