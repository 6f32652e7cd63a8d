//! A table as bytes, for a file.
//!
//! Little endian, without padding: a [`FileHeader`], a [`TableHeader`], rules as
//! [`UnwindRule::encode`] has them, pages, rows, and nothing after them.
//!
//! Rules have other numbers in each run, so a file has a list of its own. Nothing in a file is
//! trusted: bytes that are no table by the rules of [`UnwindTable`] are ignored.

use std::collections::HashMap;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, transmute};

use crate::unwind::{
    FrameInfo, MAX_PAGES, MAX_ROWS, RowCounts, TablePage, TableSummary, UnwindRow, UnwindRule,
    UnwindRules, UnwindSections, UnwindTable,
};

const MAGIC: &[u8; 8] = b"kcunwind";
/// Version of the format. Raise it with any change of the format, and with any change of the
/// unwinder that changes a section's table: it is also a part of the key.
const FORMAT_VERSION: u32 = 7;

/// The beginning of a file.
#[derive(FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
struct FileHeader {
    magic: [u8; 8],
    version: U32,
    /// BLAKE3 of all that follows.
    checksum: [u8; 32],
}

/// What follows the file's header.
#[derive(FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
struct TableHeader {
    key: [u8; 32],
    summary: StoredSummary,
    rules: U32,
    pages: U32,
    rows: U32,
}

/// A [`TableSummary`] without the counts of rows, which are made from the rows.
#[derive(FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
struct StoredSummary {
    text: U64,
    fdes: U64,
    bad_fdes: U64,
    malformed_fdes: U64,
    elsewhere: U64,
    overlapped: U64,
    unread: U64,
}

/// A [`TablePage`].
#[derive(FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
struct StoredPage {
    number: U32,
    start: U32,
    end: U32,
}

/// An [`UnwindRow`], with the index of its rule in the file's list.
#[derive(FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
struct StoredRow {
    low: U16,
    rule: U16,
}

type StoredRule = [u8; UnwindRule::SIZE];

/// Bytes before those that the checksum is of.
const HEADER_BYTES: usize = size_of::<FileHeader>();

/// Largest file of a table, bytes.
pub(super) const MAX_STORED_BYTES: u64 = (HEADER_BYTES
    + size_of::<TableHeader>()
    + (size_of::<StoredRule>() << 16)
    + size_of::<StoredPage>() * MAX_PAGES
    + size_of::<StoredRow>() * MAX_ROWS) as u64;

/// The hash of a table's input. A file with the build id of another file has another key.
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
        hasher.update(&(sections.thread_starts.len() as u64).to_le_bytes());
        for range in &sections.thread_starts {
            hasher.update(&range.start.to_le_bytes());
            hasher.update(&range.end.to_le_bytes());
        }
        hasher.update(&(sections.debug_frames.len() as u64).to_le_bytes());
        hasher.update(&sections.debug_frames);
        // Last, so that it needs no length.
        hasher.update(data);
        TableKey(hasher.finalize().into())
    }

    /// Returns the key in hexadecimal.
    pub(super) fn hex(&self) -> String {
        blake3::Hash::from_bytes(self.0).to_hex().to_string()
    }
}

/// Returns the bytes of a table; `None` if it has [`UnwindRules::FULL`], which depends on the run.
pub(super) fn encode(
    key: TableKey,
    table: &UnwindTable,
    summary: &TableSummary,
    rules: &UnwindRules,
) -> Option<Vec<u8>> {
    let mut own = HashMap::new();
    let mut list: Vec<StoredRule> = Vec::new();
    for row in table.rows() {
        if row.rule == UnwindRules::FULL {
            return None;
        }
        let rule = rules.get(row.rule)?;
        own.entry(row.rule).or_insert_with(|| {
            list.push(transmute!(rule.encode()));
            // There are no more rules than numbers.
            (list.len() - 1) as u16
        });
    }
    let (pages, rows) = (table.pages(), table.rows());
    let count = |length: usize| u32::try_from(length).ok().map(U32::new);
    let header = TableHeader {
        key: key.0,
        summary: StoredSummary::of(summary),
        rules: count(list.len())?,
        pages: count(pages.len())?,
        rows: count(rows.len())?,
    };
    // For a compiler's library this is megabytes, which are not copied again.
    let length = HEADER_BYTES
        + size_of::<TableHeader>()
        + size_of_val(&*list)
        + size_of::<StoredPage>() * pages.len()
        + size_of::<StoredRow>() * rows.len();
    let mut bytes = Vec::with_capacity(length);
    bytes.resize(HEADER_BYTES, 0);
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend_from_slice(list.as_bytes());
    for page in pages {
        let page = StoredPage {
            number: page.number.into(),
            start: page.start.into(),
            end: page.end.into(),
        };
        bytes.extend_from_slice(page.as_bytes());
    }
    for row in rows {
        let row = StoredRow {
            low: row.low.into(),
            rule: U16::new(*own.get(&row.rule)?),
        };
        bytes.extend_from_slice(row.as_bytes());
    }
    let header = FileHeader {
        magic: *MAGIC,
        version: FORMAT_VERSION.into(),
        checksum: blake3::hash(&bytes[HEADER_BYTES..]).into(),
    };
    bytes[..HEADER_BYTES].copy_from_slice(header.as_bytes());
    Some(bytes)
}

/// Returns the table of some bytes, with the rules' numbers of this run; `None` if they are not the
/// table with this key.
pub(super) fn decode(
    bytes: &[u8],
    key: TableKey,
    rules: &mut UnwindRules,
) -> Option<(UnwindTable, TableSummary)> {
    let (header, rest) = FileHeader::ref_from_prefix(bytes).ok()?;
    if header.magic != *MAGIC
        || header.version != FORMAT_VERSION
        || blake3::hash(rest) != header.checksum
    {
        return None;
    }
    let (header, rest) = TableHeader::ref_from_prefix(rest).ok()?;
    if header.key != key.0 {
        return None;
    }
    let (list, rest) = elements::<StoredRule>(rest, header.rules)?;
    let (pages, rest) = elements::<StoredPage>(rest, header.pages)?;
    let (rows, rest) = elements::<StoredRow>(rest, header.rows)?;
    if !rest.is_empty() {
        return None;
    }
    let list = list
        .iter()
        .map(|bytes| UnwindRule::decode(&transmute!(*bytes)));
    let list: Option<Vec<UnwindRule>> = list.collect();
    let own: Vec<u16> = list?.into_iter().map(|rule| rules.number(rule)).collect();
    let pages = pages.iter().map(|page| TablePage {
        number: page.number.get(),
        start: page.start.get(),
        end: page.end.get(),
    });
    let rows = rows.iter().map(|row| {
        let rule = *own.get(usize::from(row.rule.get()))?;
        let low = row.low.get();
        Some(UnwindRow { low, rule })
    });
    let table = UnwindTable::of_parts(pages.collect(), rows.collect::<Option<_>>()?)?;
    let mut summary = header.summary.to_summary();
    summary.rows = RowCounts::of(&table, rules);
    Some((table, summary))
}

impl StoredSummary {
    fn of(summary: &TableSummary) -> StoredSummary {
        StoredSummary {
            text: summary.text.into(),
            fdes: summary.fdes.into(),
            bad_fdes: summary.bad_fdes.into(),
            malformed_fdes: summary.malformed_fdes.into(),
            elsewhere: summary.elsewhere.into(),
            overlapped: summary.overlapped.into(),
            unread: summary.unread.into(),
        }
    }

    fn to_summary(&self) -> TableSummary {
        TableSummary {
            text: self.text.get(),
            fdes: self.fdes.get(),
            bad_fdes: self.bad_fdes.get(),
            malformed_fdes: self.malformed_fdes.get(),
            elsewhere: self.elsewhere.get(),
            overlapped: self.overlapped.get(),
            unread: self.unread.get(),
            ..TableSummary::default()
        }
    }
}

/// Returns the first elements of some bytes, and the rest.
fn elements<T: FromBytes + Immutable + KnownLayout + Unaligned>(
    bytes: &[u8],
    count: U32,
) -> Option<(&[T], &[u8])> {
    <[T]>::ref_from_prefix_with_elems(bytes, count.get() as usize).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use std::borrow::Cow;

    use super::*;
    use crate::unwind::Unsupported;

    /// Returns the dynamic linker: its sections are small, and have many forms.
    fn file() -> Vec<u8> {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let mut paths = maps
            .lines()
            .filter_map(|line| line.split_ascii_whitespace().nth(5));
        let path = paths.find(|path| path.contains("/ld-linux")).unwrap();
        std::fs::read(path).unwrap()
    }

    struct Example {
        key: TableKey,
        table: UnwindTable,
        summary: TableSummary,
        rules: UnwindRules,
    }

    fn example() -> Example {
        let file = file();
        let sections = UnwindSections::of_elf(file.as_slice()).unwrap();
        let mut rules = UnwindRules::new();
        let (table, summary) = UnwindTable::of_sections(&sections, &mut rules).unwrap();
        Example {
            key: TableKey::of(&sections),
            table,
            summary,
            rules,
        }
    }

    fn stored(example: &Example) -> Vec<u8> {
        encode(
            example.key,
            &example.table,
            &example.summary,
            &example.rules,
        )
        .unwrap()
    }

    fn with_checksum(mut bytes: Vec<u8>) -> Vec<u8> {
        let checksum = blake3::hash(&bytes[HEADER_BYTES..]);
        bytes[12..HEADER_BYTES].copy_from_slice(checksum.as_bytes());
        bytes
    }

    /// The rules of each pc are the same, with other numbers.
    #[test]
    fn the_same_table_in_another_run() {
        let example = example();
        let mut rules = UnwindRules::new();
        for why in [Unsupported::Offset, Unsupported::CfaRegister] {
            rules.number(UnwindRule::Unsupported(why));
        }
        let (table, summary) = decode(&stored(&example), example.key, &mut rules).unwrap();
        assert_eq!(summary, example.summary);
        assert_eq!(table.pages(), example.table.pages());
        assert_eq!(table.rows().len(), example.table.rows().len());
        for (ours, theirs) in table.rows().iter().zip(example.table.rows()) {
            assert_eq!(ours.low, theirs.low);
            assert_eq!(rules.get(ours.rule), example.rules.get(theirs.rule));
        }
        assert_ne!(table, example.table);
        // The same run: the same numbers.
        let mut rules = example.rules.clone();
        let (table, _) = decode(&stored(&example), example.key, &mut rules).unwrap();
        assert_eq!(table, example.table);
        assert_eq!(rules.as_slice(), example.rules.as_slice());
    }

    #[test]
    fn an_empty_table() {
        let sections = UnwindSections {
            frames: FrameInfo::None,
            text: 0,
            got: 0,
            executable: Vec::new(),
            debug_frames: Cow::default(),
            thread_starts: Vec::new(),
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
    fn a_table_without_numbers_for_its_rules_is_not_kept() {
        let example = example();
        let mut rules = UnwindRules::new();
        for offset in 0..70_000_u32 {
            let mut bytes = [0; UnwindRule::SIZE];
            bytes[..4].copy_from_slice(&offset.to_le_bytes());
            bytes[10] = 3;
            rules.number(UnwindRule::decode(&transmute!(bytes)).unwrap());
        }
        let full = decode(&stored(&example), example.key, &mut rules);
        let (table, summary) = full.unwrap();
        assert!(summary.rows.full > 0);
        assert_eq!(encode(example.key, &table, &summary, &rules), None);
    }

    #[test]
    fn the_key_is_of_all_that_is_read() {
        let data: &'static [u8] = &[1, 2, 3];
        let base = || UnwindSections {
            frames: FrameInfo::Eh { data, address: 1 },
            text: 2,
            got: 3,
            executable: vec![4..5, 6..7],
            debug_frames: Cow::default(),
            thread_starts: Vec::new(),
            go: None,
        };
        let eh = |data, address| FrameInfo::Eh { data, address };
        let changes: [fn(&mut UnwindSections<'static>); 9] = [
            |sections| sections.text = 0,
            |sections| sections.got = 0,
            |sections| sections.executable[1].end = 8,
            |sections| sections.executable.truncate(1),
            |sections| sections.frames = FrameInfo::None,
            |sections| sections.debug_frames = vec![1].into(),
            |sections| sections.thread_starts.push(1..2),
            |sections| sections.thread_starts.push(1..3),
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
    fn table_of_another_key_is_refused() {
        let example = example();
        let other = TableKey(*blake3::hash(b"other").as_bytes());
        assert_eq!(
            decode(&stored(&example), other, &mut UnwindRules::new()),
            None
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn a_damaged_file_is_none(offset in any::<prop::sample::Index>(), change in 1..=255_u8) {
            let example = example();
            let mut bytes = stored(&example);
            let offset = offset.index(bytes.len());
            bytes[offset] ^= change;
            prop_assert_eq!(decode(&bytes, example.key, &mut UnwindRules::new()), None);
        }

        #[test]
        fn a_cut_file_is_none(length in any::<prop::sample::Index>()) {
            let example = example();
            let bytes = stored(&example);
            let cut = &bytes[..length.index(bytes.len())];
            prop_assert_eq!(decode(cut, example.key, &mut UnwindRules::new()), None);
            if cut.len() > HEADER_BYTES {
                let cut = with_checksum(cut.to_vec());
                prop_assert_eq!(decode(&cut, example.key, &mut UnwindRules::new()), None);
            }
        }

        /// Even with a good checksum, what comes out is a table.
        #[test]
        fn a_made_up_file_is_a_table_or_none(
            changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
            in_head in any::<bool>(),
        ) {
            let example = example();
            let mut bytes = stored(&example);
            let end = if in_head { 144 + 64 } else { bytes.len() };
            for (index, byte) in changes {
                let offset = HEADER_BYTES + 32 + index.index(end - HEADER_BYTES - 32);
                bytes[offset] = byte;
            }
            let mut rules = UnwindRules::new();
            if let Some((table, _)) = decode(&with_checksum(bytes), example.key, &mut rules) {
                let (pages, rows) = (table.pages().to_vec(), table.rows().to_vec());
                prop_assert!(rows.iter().all(|row| rules.get(row.rule).is_some()));
                prop_assert_eq!(UnwindTable::of_parts(pages, rows), Some(table));
            }
        }
    }
}
