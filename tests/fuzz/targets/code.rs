//! Executable files: the tables by which their stacks are unwound.

use std::borrow::Cow;

use kcollect_elf::build_id;
use user_collector::allocators::Allocator;
use user_collector::unwind::{FrameInfo, GoFunctions, UnwindRules, UnwindSections, UnwindTable};

/// The address of the frame information of [`frames`].
const FRAMES: u64 = 0x1000;
/// The addresses of the code that it describes.
const CODE: std::ops::Range<u64> = 0x1000..0x0080_0000;

/// Reads the unwind table of an ELF file, and what there is to probe in it.
pub(super) fn elf(bytes: &[u8]) {
    let id = build_id(bytes);
    assert!(id.len() <= bytes.len());
    if let Ok(allocator) = Allocator::read(bytes) {
        let functions = allocator.functions.iter().map(|found| found.offset);
        let usdts = allocator.usdts.iter().map(|found| found.offset);
        assert!(
            functions
                .chain(usdts)
                .all(|offset| offset < bytes.len() as u64)
        );
    }
    let mut rules = UnwindRules::new();
    if let Ok((table, _)) = UnwindTable::of_elf(bytes, &mut rules) {
        check_table(&table, &rules);
    }
}

/// Reads `.eh_frame`, or `.debug_frame` where the first byte is odd.
pub(super) fn frames(bytes: &[u8]) {
    let (first, data) = bytes.split_first().unwrap_or((&0, &[]));
    let frames = match first % 2 {
        0 => FrameInfo::Eh {
            data,
            address: FRAMES,
        },
        _ => FrameInfo::Debug {
            data: Cow::Borrowed(data),
        },
    };
    let sections = UnwindSections {
        frames,
        text: CODE.start,
        got: CODE.end,
        executable: vec![CODE],
        debug_frames: Cow::default(),
        thread_starts: Vec::new(),
        go: None,
    };
    let mut rules = UnwindRules::new();
    if let Ok((table, summary)) = UnwindTable::of_sections(&sections, &mut rules) {
        check_table(&table, &rules);
        // A row takes two bytes at least; each page boundary adds one row.
        assert!(table.rows().len() <= data.len() / 2 + table.pages().len());
        assert_eq!(summary.text, CODE.end - CODE.start);
    }
}

/// Reads Go's table of functions, and their code: the first two bytes are the table's length.
pub(super) fn go(bytes: &[u8]) {
    let (length, rest) = bytes.split_first_chunk().unwrap_or((&[0; 2], &[]));
    let length = usize::from(u16::from_le_bytes(*length)).min(rest.len());
    let (table, code) = rest.split_at(length);
    let sections = UnwindSections {
        frames: FrameInfo::None,
        text: CODE.start,
        got: CODE.end,
        executable: vec![CODE],
        debug_frames: Cow::default(),
        thread_starts: Vec::new(),
        go: Some(GoFunctions {
            table,
            text: CODE.start,
            code: vec![(CODE.start, code)],
        }),
    };
    let mut rules = UnwindRules::new();
    if let Ok((table, _)) = UnwindTable::of_sections(&sections, &mut rules) {
        check_table(&table, &rules);
    }
}

/// Checks what holds for each table.
fn check_table(table: &UnwindTable, rules: &UnwindRules) {
    let numbers = |pair: &[user_collector::unwind::TablePage]| pair[0].number < pair[1].number;
    assert!(table.pages().windows(2).all(numbers));
    for page in table.pages() {
        let rows = &table.rows()[page.start as usize..page.end as usize];
        assert!(!rows.is_empty() && rows.windows(2).all(|pair| pair[0].low < pair[1].low));
        for row in rows {
            let at = u64::from(page.number) << 16 | u64::from(row.low);
            assert_eq!(table.number_at(at), row.rule);
            assert!(rules.get(row.rule).is_some());
        }
    }
}

/// Demangles a name.
pub(super) fn names(bytes: &[u8]) {
    /// The longest demangled name.
    const MAX_BYTES: usize = 64 << 10;
    let name = String::from_utf8_lossy(bytes);
    let shown = analysis::symbol::demangle(&name);
    assert!(shown.len() <= name.len() + MAX_BYTES);
}
