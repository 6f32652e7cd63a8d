//! A table as bytes, for a file.
//!
//! Little endian, without padding, and ends where its last row ends:
//!
//! | bytes | what |
//! |---|---|
//! | 8 | `kcunwind` |
//! | 4 | version of the format: 5 |
//! | 32 | BLAKE3 of all that follows |
//! | 32 | the key: BLAKE3 of all that the table was made of |
//! | 7 × 8 | the summary: `text`, `fdes`, `bad_fdes`, `malformed_fdes`, `elsewhere`, `overlapped`, `unread` |
//! | 3 × 4 | numbers of rules, pages and rows |
//! | 16 each | rules, as [`UnwindRule::encode`] has them |
//! | 12 each | pages: number, start, end |
//! | 4 each | rows: low, and the place of the rule in this file's list |
//!
//! Rules have other numbers in each run, so a file has a list of its own. Nothing is taken from a
//! file on trust: what is not a table by the rules of [`UnwindTable`] is no table.

use std::collections::HashMap;

use zerocopy::{IntoBytes as _, transmute};

use crate::unwind::{
    FrameInfo, MAX_PAGES, MAX_ROWS, RowCounts, TablePage, TableSummary, UnwindRow, UnwindRule,
    UnwindRules, UnwindSections, UnwindTable,
};

const MAGIC: &[u8; 8] = b"kcunwind";
/// To be raised with any change of the format, and of the unwinder's that makes another table of
/// the same section: it is also part of the key.
const FORMAT_VERSION: u32 = 6;
/// Bytes before those that the checksum is of.
const HEADER_BYTES: usize = 8 + 4 + 32;

/// Largest file of a table, bytes.
pub(super) const MAX_STORED_BYTES: u64 =
    (HEADER_BYTES + 32 + 7 * 8 + 3 * 4 + (UnwindRule::SIZE << 16) + 12 * MAX_PAGES + 4 * MAX_ROWS)
        as u64;

/// The hash of all that a table is made of. A file with the build id of another file has a table of
/// its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TableKey([u8; 32]);

impl TableKey {
    pub(super) fn of(sections: &UnwindSections<'_>) -> TableKey {
        let mut hasher = blake3::Hasher::new();
        hasher.update(concat!("kcollect unwind table ", env!("CARGO_PKG_VERSION")).as_bytes());
        let (kind, address, data) = match &sections.frames {
            FrameInfo::None => (0, 0, &[][..]),
            FrameInfo::Eh { data, address } => (1, *address, *data),
            FrameInfo::Debug { data } => (2, 0, &**data),
        };
        let machine = u64::from(UnwindTable::MACHINE);
        let ranges = sections.executable.len() as u64;
        let version = u64::from(FORMAT_VERSION);
        for number in [
            version,
            machine,
            sections.text,
            sections.got,
            kind,
            address,
            ranges,
        ] {
            hasher.update(&number.to_le_bytes());
        }
        for range in &sections.executable {
            hasher.update(&range.start.to_le_bytes());
            hasher.update(&range.end.to_le_bytes());
        }
        // Last, so that it needs no length.
        hasher.update(data);
        TableKey(hasher.finalize().into())
    }

    /// In hexadecimal.
    pub(super) fn hex(&self) -> String {
        blake3::Hash::from_bytes(self.0).to_hex().to_string()
    }
}

/// Returns the bytes of a table; nothing where it says [`UnwindRules::FULL`], which is true of one
/// run only.
pub(super) fn encode(
    key: TableKey,
    table: &UnwindTable,
    summary: &TableSummary,
    rules: &UnwindRules,
) -> Option<Vec<u8>> {
    let mut own = HashMap::new();
    let mut list = Vec::new();
    for row in table.rows() {
        if row.rule == UnwindRules::FULL {
            return None;
        }
        let rule = rules.get(row.rule)?;
        own.entry(row.rule).or_insert_with(|| {
            list.extend_from_slice(rule.encode().as_bytes());
            // As many as there are numbers, and no number comes twice.
            (list.len() / UnwindRule::SIZE - 1) as u16
        });
    }
    let (pages, rows) = (table.pages(), table.rows());
    // Of a compiler's libraries this is megabytes: there is one copy, and it never moves.
    let length = HEADER_BYTES + 32 + 7 * 8 + 3 * 4 + list.len() + 12 * pages.len() + 4 * rows.len();
    let mut bytes = Vec::with_capacity(length);
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
    bytes.resize(HEADER_BYTES, 0);
    bytes.extend_from_slice(&key.0);
    for number in numbers(&mut summary.clone()) {
        bytes.extend_from_slice(&number.to_le_bytes());
    }
    for count in [own.len(), pages.len(), rows.len()] {
        bytes.extend_from_slice(&u32::try_from(count).ok()?.to_le_bytes());
    }
    bytes.extend_from_slice(&list);
    for page in pages {
        for number in [page.number, page.start, page.end] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
    }
    for row in rows {
        bytes.extend_from_slice(&row.low.to_le_bytes());
        bytes.extend_from_slice(&own.get(&row.rule)?.to_le_bytes());
    }
    let checksum = blake3::hash(&bytes[HEADER_BYTES..]);
    bytes[HEADER_BYTES - 32..HEADER_BYTES].copy_from_slice(checksum.as_bytes());
    Some(bytes)
}

/// Returns the table of some bytes, its rules numbered anew; nothing where they are not the table
/// of this key.
pub(super) fn decode(
    mut bytes: &[u8],
    key: TableKey,
    rules: &mut UnwindRules,
) -> Option<(UnwindTable, TableSummary)> {
    let bytes = &mut bytes;
    let head = (take::<8>(bytes)?, take(bytes).map(u32::from_le_bytes)?);
    let checksum = take::<32>(bytes)?;
    if head != (*MAGIC, FORMAT_VERSION) || blake3::hash(bytes) != checksum || take(bytes)? != key.0
    {
        return None;
    }
    let mut summary = TableSummary::default();
    for number in numbers(&mut summary) {
        *number = u64::from_le_bytes(take(bytes)?);
    }
    let mut count = || take(bytes).map(|count| u32::from_le_bytes(count) as usize);
    let counts = (count()?, count()?, count()?);
    let list = many::<{ UnwindRule::SIZE }>(bytes, counts.0)?;
    let pages = many::<12>(bytes, counts.1)?;
    let rows = many::<4>(bytes, counts.2)?;
    if !bytes.is_empty() {
        return None;
    }
    let list = list
        .iter()
        .map(|bytes| UnwindRule::decode(&transmute!(*bytes)));
    let list: Option<Vec<UnwindRule>> = list.collect();
    let own: Vec<u16> = list?.into_iter().map(|rule| rules.number(rule)).collect();
    let row = |&[l, ow, r, ule]: &[u8; 4]| {
        let rule = *own.get(usize::from(u16::from_le_bytes([r, ule])))?;
        let low = u16::from_le_bytes([l, ow]);
        Some(UnwindRow { low, rule })
    };
    let page = |mut bytes: &[u8]| {
        let mut number = || take(&mut bytes).map(u32::from_le_bytes);
        Some(TablePage {
            number: number()?,
            start: number()?,
            end: number()?,
        })
    };
    let pages = pages.iter().map(|bytes| page(bytes)).collect::<Option<_>>();
    let rows = rows.iter().map(row).collect::<Option<_>>();
    let table = UnwindTable::of_parts(pages?, rows?)?;
    summary.rows = RowCounts::of(&table, rules);
    Some((table, summary))
}

/// Returns what is kept of a summary; the counts of rows are made of the rows.
fn numbers(summary: &mut TableSummary) -> [&mut u64; 7] {
    [
        &mut summary.text,
        &mut summary.fdes,
        &mut summary.bad_fdes,
        &mut summary.malformed_fdes,
        &mut summary.elsewhere,
        &mut summary.overlapped,
        &mut summary.unread,
    ]
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*first)
}

fn many<'a, const N: usize>(bytes: &mut &'a [u8], count: usize) -> Option<&'a [[u8; N]]> {
    let (first, rest) = bytes.split_at_checked(count.checked_mul(N)?)?;
    *bytes = rest;
    Some(first.as_chunks().0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::unwind::Unsupported;

    /// The dynamic linker: its sections are small, and rich in forms.
    fn file() -> Vec<u8> {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let mut paths = maps
            .lines()
            .filter_map(|line| line.split_ascii_whitespace().nth(5));
        let path = paths.find(|path| path.contains("/ld-linux")).unwrap();
        std::fs::read(path).unwrap()
    }

    struct Made {
        key: TableKey,
        table: UnwindTable,
        summary: TableSummary,
        rules: UnwindRules,
    }

    fn made() -> Made {
        let file = file();
        let sections = UnwindSections::of_elf(file.as_slice()).unwrap();
        let mut rules = UnwindRules::new();
        let (table, summary) = UnwindTable::of_sections(&sections, &mut rules).unwrap();
        Made {
            key: TableKey::of(&sections),
            table,
            summary,
            rules,
        }
    }

    fn stored(made: &Made) -> Vec<u8> {
        encode(made.key, &made.table, &made.summary, &made.rules).unwrap()
    }

    fn with_checksum(mut bytes: Vec<u8>) -> Vec<u8> {
        let checksum = blake3::hash(&bytes[HEADER_BYTES..]);
        bytes[12..HEADER_BYTES].copy_from_slice(checksum.as_bytes());
        bytes
    }

    /// Rules that came before have other numbers: what a pc's rule says is the same.
    #[test]
    fn the_same_table_in_another_run() {
        let made = made();
        let mut rules = UnwindRules::new();
        for why in [Unsupported::Offset, Unsupported::CfaRegister] {
            rules.number(UnwindRule::Unsupported(why));
        }
        let (table, summary) = decode(&stored(&made), made.key, &mut rules).unwrap();
        assert_eq!(summary, made.summary);
        assert_eq!(table.pages(), made.table.pages());
        assert_eq!(table.rows().len(), made.table.rows().len());
        for (ours, theirs) in table.rows().iter().zip(made.table.rows()) {
            assert_eq!(ours.low, theirs.low);
            assert_eq!(rules.get(ours.rule), made.rules.get(theirs.rule));
        }
        assert_ne!(table, made.table);
        // The same run: the same numbers.
        let mut rules = made.rules.clone();
        let (table, _) = decode(&stored(&made), made.key, &mut rules).unwrap();
        assert_eq!(table, made.table);
        assert_eq!(rules.as_slice(), made.rules.as_slice());
    }

    #[test]
    fn an_empty_table() {
        let sections = UnwindSections {
            frames: FrameInfo::None,
            text: 0,
            got: 0,
            executable: Vec::new(),
            go: None,
        };
        let (key, empty) = (TableKey::of(&sections), UnwindTable::default());
        let mut rules = UnwindRules::new();
        let bytes = encode(key, &empty, &TableSummary::default(), &rules).unwrap();
        assert_eq!(bytes.len(), 144);
        let found = decode(&bytes, key, &mut rules);
        assert_eq!(found, Some((empty, TableSummary::default())));
    }

    #[test]
    fn what_is_true_of_one_run_is_not_kept() {
        let made = made();
        let mut rules = UnwindRules::new();
        for offset in 0..70_000_u32 {
            let mut bytes = [0; UnwindRule::SIZE];
            bytes[..4].copy_from_slice(&offset.to_le_bytes());
            bytes[10] = 3;
            rules.number(UnwindRule::decode(&transmute!(bytes)).unwrap());
        }
        let full = decode(&stored(&made), made.key, &mut rules);
        let (table, summary) = full.unwrap();
        assert!(summary.rows.full > 0);
        assert_eq!(encode(made.key, &table, &summary, &rules), None);
    }

    #[test]
    fn the_key_is_of_all_that_is_read() {
        let data: &'static [u8] = &[1, 2, 3];
        let base = || UnwindSections {
            frames: FrameInfo::Eh { data, address: 1 },
            text: 2,
            got: 3,
            executable: vec![4..5, 6..7],
            go: None,
        };
        let eh = |data, address| FrameInfo::Eh { data, address };
        let changes: [fn(&mut UnwindSections<'static>); 6] = [
            |sections| sections.text = 0,
            |sections| sections.got = 0,
            |sections| sections.executable[1].end = 8,
            |sections| sections.executable.truncate(1),
            |sections| sections.frames = FrameInfo::None,
            |sections| {
                sections.frames = FrameInfo::Debug {
                    data: vec![1, 2, 3].into(),
                }
            },
        ];
        let mut keys = vec![TableKey::of(&base())];
        for frames in [eh(data, 9), eh(&data[..2], 1), eh(&[1, 2, 4], 1)] {
            keys.push(TableKey::of(&UnwindSections { frames, ..base() }));
        }
        for change in changes {
            let mut sections = UnwindSections {
                frames: FrameInfo::Eh {
                    data: &[1, 2, 3],
                    address: 1,
                },
                ..base()
            };
            change(&mut sections);
            keys.push(TableKey::of(&sections));
        }
        let different: std::collections::HashSet<String> = keys.iter().map(TableKey::hex).collect();
        assert_eq!(different.len(), keys.len());
        assert_eq!(TableKey::of(&base()), keys[0]);
    }

    #[test]
    fn only_its_own_key() {
        let made = made();
        let other = TableKey(*blake3::hash(b"other").as_bytes());
        assert_eq!(decode(&stored(&made), other, &mut UnwindRules::new()), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn a_damaged_file_is_none(place in any::<prop::sample::Index>(), change in 1..=255_u8) {
            let made = made();
            let mut bytes = stored(&made);
            let place = place.index(bytes.len());
            bytes[place] ^= change;
            prop_assert_eq!(decode(&bytes, made.key, &mut UnwindRules::new()), None);
        }

        #[test]
        fn a_cut_file_is_none(length in any::<prop::sample::Index>()) {
            let made = made();
            let bytes = stored(&made);
            let cut = &bytes[..length.index(bytes.len())];
            prop_assert_eq!(decode(cut, made.key, &mut UnwindRules::new()), None);
            if cut.len() > HEADER_BYTES {
                let cut = with_checksum(cut.to_vec());
                prop_assert_eq!(decode(&cut, made.key, &mut UnwindRules::new()), None);
            }
        }

        /// Even with a good checksum, what comes out is a table.
        #[test]
        fn a_made_up_file_is_a_table_or_none(
            changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
            in_head in any::<bool>(),
        ) {
            let made = made();
            let mut bytes = stored(&made);
            let end = if in_head { 144 + 64 } else { bytes.len() };
            for (place, byte) in changes {
                let place = HEADER_BYTES + 32 + place.index(end - HEADER_BYTES - 32);
                bytes[place] = byte;
            }
            let mut rules = UnwindRules::new();
            if let Some((table, _)) = decode(&with_checksum(bytes), made.key, &mut rules) {
                let (pages, rows) = (table.pages().to_vec(), table.rows().to_vec());
                prop_assert!(rows.iter().all(|row| rules.get(row.rule).is_some()));
                prop_assert_eq!(UnwindTable::of_parts(pages, rows), Some(table));
            }
        }
    }
}
