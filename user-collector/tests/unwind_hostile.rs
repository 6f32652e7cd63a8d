//! Hostile files: no panic, and no more rows than their size justifies.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test reports by panicking"
)]

mod mapped;

use std::borrow::Cow;
use std::sync::OnceLock;

use proptest::prelude::*;
use user_collector::unwind::{FrameInfo, UnwindRules, UnwindSections, UnwindTable};

use mapped::mapped;

/// The dynamic linker: small, and rich in forms.
fn file() -> &'static [u8] {
    static FILE: OnceLock<Vec<u8>> = OnceLock::new();
    FILE.get_or_init(|| mapped("/ld-linux"))
}

/// Places and bytes, to be put into a file.
fn changes(places: std::ops::Range<usize>) -> impl Strategy<Value = Vec<(usize, u8)>> {
    let byte = prop_oneof![any::<u8>(), Just(0xff), Just(0), Just(0x7f), Just(0x80)];
    proptest::collection::vec((places, byte), 1..32)
}

fn check(file: &[u8]) -> Result<(), TestCaseError> {
    let mut rules = UnwindRules::new();
    let Ok((table, _)) = UnwindTable::of_elf(file, &mut rules) else {
        return Ok(());
    };
    // A row costs two bytes at least, and one more at each border.
    prop_assert!(table.rows().len() <= file.len() / 2 + table.pages().len());
    for page in table.pages() {
        let rows = &table.rows()[page.start as usize..page.end as usize];
        prop_assert!(!rows.is_empty() && rows.windows(2).all(|pair| pair[0].low < pair[1].low));
        for row in rows {
            prop_assert!(rules.get(row.rule).is_some());
            prop_assert_eq!(
                table.number_at(u64::from(page.number) << 16 | u64::from(row.low)),
                row.rule
            );
        }
    }
    prop_assert!(
        table
            .pages()
            .windows(2)
            .all(|pair| pair[0].number < pair[1].number)
    );
    Ok(())
}

fn changed(changes: &[(usize, u8)]) -> Vec<u8> {
    let mut file = file().to_vec();
    for &(place, byte) in changes {
        file[place] = byte;
    }
    file
}

/// Where the frame information is in the file.
fn frames() -> std::ops::Range<usize> {
    let FrameInfo::Eh { data, .. } = UnwindSections::of_elf(file()).unwrap().frames else {
        panic!("no .eh_frame")
    };
    let start = data.as_ptr().addr() - file().as_ptr().addr();
    start..start + data.len()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn damaged_frame_information(changes in changes(frames())) {
        check(&changed(&changes))?;
    }

    #[test]
    fn damaged_headers(changes in changes(0..0x400)) {
        check(&changed(&changes))?;
    }

    #[test]
    fn damaged_section_headers(changes in changes(file().len() - 0x800..file().len())) {
        check(&changed(&changes))?;
    }

    #[test]
    fn cut_files(length in 0..file().len()) {
        check(&file()[..length])?;
    }

    #[test]
    fn any_bytes_as_frame_information(data in proptest::collection::vec(any::<u8>(), 0..4096)) {
        for frames in [FrameInfo::Eh { data: &data, address: 0 }, FrameInfo::Debug { data: data.as_slice().into() }] {
            let sections = UnwindSections { frames, text: 0, got: 0, executable: std::iter::once(0..u64::MAX).collect(), debug_frames: Cow::default(), thread_starts: Vec::new(), go: None };
            let _ = UnwindTable::of_sections(&sections, &mut UnwindRules::new());
        }
    }
}
