//! Damage to an experiment: a list of changes, each of eight bytes of the input.
//!
//! Changes are of the format's own parts: fields of packets and records, attributes and lines of
//! text, links between files, and files as a whole. So most inputs are experiments that a reader
//! goes far into. Numbers of files, records and lines count round, so that every input is a list of
//! changes.

use std::collections::BTreeMap;
use std::ops::Range;

/// What is at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// A file with these bytes.
    File(Vec<u8>),
    /// A file of this length with a hole after these first bytes.
    Hole(Vec<u8>, u64),
    /// A directory.
    Directory,
    /// A pipe, which a reader that opens it could wait for.
    Pipe,
    /// A symbolic link to a path in the experiment's directory.
    Link(String),
}

/// The files of an experiment, by path.
pub(super) type Files = BTreeMap<String, Entry>;

/// Bytes of a change.
const CHANGE_BYTES: usize = 8;
const MAX_CHANGES: usize = 64;
/// A file is not made longer than this; a hole may be.
const MAX_FILE_BYTES: usize = 1 << 20;
/// No more files are made than this.
const MAX_FILES: usize = 1000;

/// Numbers near which readers fail: the limits of types, of time and of what is added up.
const NUMBERS: [u64; 24] = [
    0,
    1,
    2,
    7,
    0x7f,
    0xff,
    0x7fff,
    0xffff,
    0x10007,
    1 << 20,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    1 << 32,
    1_000_000_000,
    60_000_000_000,
    1 << 52,
    1 << 53,
    1 << 61,
    1 << 62,
    i64::MAX as u64,
    1 << 63,
    u64::MAX - 1,
    u64::MAX,
];

/// Texts that replace others.
const TEXTS: [&str; 24] = [
    "",
    "0",
    "-1",
    "1.5",
    "1e308",
    "-9223372036854775808",
    "18446744073709551615",
    "340282366920938463463374607431768211456",
    "99999999999999999999.999999999",
    "0xffffffffffffffff",
    "\u{1b}[2J\u{9b}\u{7}",
    "\u{202e}\u{2028}\u{200b}\u{e0041}",
    "line\nbreak\r",
    "a;b c 7",
    "&lt;&#x1b;&amp;",
    "../../../../etc/passwd",
    "/dev/zero",
    "[vdso]",
    "vmlinux",
    "/usr/bin/sort",
    "<Truncated-stack>",
    "<sort_PID_7>",
    "_ZN4sort5mergeEv",
    "kernel",
];

/// Lengths of holes.
const LENGTHS: [u64; 4] = [1 << 16, 257 << 20, 8 << 30, 1 << 40];

/// What nests without an end.
const NESTS: [&str; 4] = ["<a>", "[", "{\"a\":", "<a b=\"1\"/>"];

/// Returns the files after all changes of an input.
pub(super) fn damaged(base: &BTreeMap<String, Vec<u8>>, input: &[u8]) -> Files {
    let whole = base.iter();
    let mut files: Files = whole
        .map(|(path, bytes)| (path.clone(), Entry::File(bytes.clone())))
        .collect();
    for change in input.as_chunks::<CHANGE_BYTES>().0.iter().take(MAX_CHANGES) {
        let [kind, file, a, a_high, b, b_high, c, c_high] = *change;
        let number = |low, high| usize::from(u16::from_le_bytes([low, high]));
        let change = FileChange {
            kind,
            a: number(a, a_high),
            b: number(b, b_high),
            c: number(c, c_high),
        };
        let Some(path) = files
            .keys()
            .nth(usize::from(file) % files.len().max(1))
            .cloned()
        else {
            break;
        };
        change.apply(&path, &mut files);
    }
    files
}

/// One change of one file.
struct FileChange {
    kind: u8,
    a: usize,
    b: usize,
    c: usize,
}

impl FileChange {
    fn apply(&self, path: &str, files: &mut Files) {
        match self.kind % 20 {
            0 => drop(files.remove(path)),
            1 => self.replace(path, files),
            2 => self.copy_directory(path, files),
            3 => {
                let other = files.keys().nth(self.a % files.len().max(1));
                if let Some(entry) = other.and_then(|other| files.get(other)).cloned() {
                    files.insert(path.to_owned(), entry);
                }
            }
            kind => {
                let other = bytes_of(files.values().nth(self.b % files.len().max(1))).to_vec();
                if let Some(Entry::File(bytes) | Entry::Hole(bytes, _)) = files.get_mut(path) {
                    match kind {
                        4..=9 => self.change_records(kind, path, bytes),
                        10..=17 => self.change_text(kind, bytes, &other),
                        18 => bytes.truncate(self.a % (bytes.len() + 1)),
                        _ => self.change_byte(bytes),
                    }
                    bytes.truncate(MAX_FILE_BYTES);
                }
            }
        }
    }

    /// Replaces a file by another kind of file.
    fn replace(&self, path: &str, files: &mut Files) {
        let Some(entry) = files.get(path) else {
            return;
        };
        let bytes = bytes_of(Some(entry)).to_vec();
        let entry = match self.a % 8 {
            0 => Entry::Directory,
            1 => Entry::Pipe,
            2 => Entry::Link(pick_path(files, self.b)),
            3 => Entry::Link(path.to_owned()),
            4 => Entry::File(Vec::new()),
            5 => Entry::File(repeated(&bytes, self.b % 64)),
            _ => Entry::Hole(bytes, LENGTHS[self.b % LENGTHS.len()]),
        };
        files.insert(path.to_owned(), entry);
    }

    /// Copies the directory that a file is in, some times.
    fn copy_directory(&self, path: &str, files: &mut Files) {
        let Some((directory, _)) = path.split_once('/') else {
            return;
        };
        let prefix = format!("{directory}/");
        let own = files.range(prefix.clone()..);
        let own = own.take_while(|(path, _)| path.starts_with(&prefix));
        let own: Vec<_> = own
            .map(|(path, entry)| (path.clone(), entry.clone()))
            .collect();
        for copy in 0..=self.a % 8 {
            if files.len() + own.len() > MAX_FILES {
                return;
            }
            let name = TEXTS[self.b % TEXTS.len()].replace('/', "_");
            let to = format!("_{name}{copy}.er/");
            for (path, entry) in &own {
                files.insert(format!("{to}{}", &path[prefix.len()..]), entry.clone());
            }
        }
    }

    /// Changes one of the records that a file consists of.
    fn change_records(&self, kind: u8, path: &str, bytes: &mut Vec<u8>) {
        let records = records(path, bytes);
        let pick = |number: usize| records.get(number % records.len().max(1)).cloned();
        let (Some(record), Some(other)) = (pick(self.a), pick(self.c)) else {
            return;
        };
        let field = |record: &Range<usize>, width: usize| {
            let fields = (record.len() / width).max(1);
            record.start + self.b % fields * width
        };
        match kind {
            4 | 5 => {
                let width = [8, 4][usize::from(kind - 4)];
                let number = NUMBERS[self.c % NUMBERS.len()];
                put(bytes, field(&record, width), &number.to_le_bytes()[..width]);
            }
            6 => {
                let from = field(&other, 8);
                let value = bytes.get(from..from + 8).map(<[u8]>::to_vec);
                put(bytes, field(&record, 8), &value.unwrap_or_default());
            }
            7 => {
                let again = repeated(&bytes[record.clone()], 1 + self.c % 64);
                bytes.splice(record.end..record.end, again);
            }
            8 => drop(bytes.drain(record)),
            _ => {
                let copy = bytes[other].to_vec();
                put(bytes, record.start, &copy);
            }
        }
    }

    /// Changes a part of a text: XML, JSON, or lines. `other` is the text of another file.
    fn change_text(&self, kind: u8, bytes: &mut Vec<u8>, other: &[u8]) {
        let pick = |parts: Vec<Range<usize>>, number: usize| {
            let count = parts.len().max(1);
            parts.into_iter().nth(number % count)
        };
        match kind {
            10 => {
                let number = NUMBERS[self.c % NUMBERS.len()];
                let sign = if self.b.is_multiple_of(4) { "-" } else { "" };
                if let Some(at) = pick(numbers(bytes), self.a) {
                    bytes.splice(at, format!("{sign}{number}").into_bytes());
                }
            }
            11 | 12 => {
                let text = TEXTS[self.c % TEXTS.len()];
                let places = if kind == 11 {
                    quoted(bytes)
                } else {
                    numbers(bytes)
                };
                if let Some(at) = pick(places, self.a) {
                    bytes.splice(at, text.bytes());
                }
            }
            13 => {
                let found = pick(quoted(other), self.c);
                if let (Some(at), Some(found)) = (pick(quoted(bytes), self.a), found) {
                    bytes.splice(at, other[found].iter().copied());
                }
            }
            14 => {
                if let Some(line) = pick(lines(bytes), self.a) {
                    let again = repeated(&bytes[line.clone()], self.c);
                    bytes.splice(line.end..line.end, again);
                }
            }
            15 => {
                if let Some(line) = pick(lines(bytes), self.a) {
                    bytes.drain(line);
                }
            }
            16 => {
                if let Some(line) = pick(lines(bytes), self.a) {
                    let nest = NESTS[self.b % NESTS.len()].repeat(4 * self.c);
                    bytes.splice(line.start..line.start, nest.into_bytes());
                }
            }
            _ => {
                if let Some(at) = pick(quoted(bytes), self.a) {
                    let again = repeated(&bytes[at.clone()], self.c);
                    bytes.splice(at.end..at.end, again);
                }
            }
        }
    }

    fn change_byte(&self, bytes: &mut [u8]) {
        let count = bytes.len().max(1);
        if let Some(byte) = bytes.get_mut(self.a % count) {
            *byte ^= (self.b as u8).max(1);
        }
    }
}

/// Repeats bytes as often as a file may be long.
fn repeated(bytes: &[u8], times: usize) -> Vec<u8> {
    bytes.repeat(times.min(MAX_FILE_BYTES / bytes.len().max(1)))
}

fn bytes_of(entry: Option<&Entry>) -> &[u8] {
    match entry {
        Some(Entry::File(bytes) | Entry::Hole(bytes, _)) => bytes,
        _ => &[],
    }
}

fn pick_path(files: &Files, number: usize) -> String {
    let path = files.keys().nth(number % files.len().max(1));
    path.cloned().unwrap_or_default()
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    for (place, byte) in bytes.iter_mut().skip(at).zip(value) {
        *place = *byte;
    }
}

/// The records of a file: packets that begin with their size, usage records, or what an ELF file's
/// header says of its tables.
fn records(path: &str, bytes: &[u8]) -> Vec<Range<usize>> {
    let name = path.rsplit('/').next().unwrap_or(path);
    let equal = |begin: usize, size: usize, count: usize| {
        let all = (0..count).map(|number| begin + number * size);
        let whole = all.map(|at| at..at + size);
        whole
            .take_while(|record| record.end <= bytes.len())
            .collect()
    };
    let number = |at: usize, width: usize| {
        let mut value = [0; 8];
        let found = bytes.get(at..at + width)?;
        value[..width].copy_from_slice(found);
        usize::try_from(u64::from_le_bytes(value)).ok()
    };
    match name {
        "profile" | "hwcounters" | "synctrace" | "iotrace" | "heaptrace" | "data.frameinfo"
        | "dyntext" => {
            let (mut at, mut found) = (0, Vec::new());
            let size_at = if name == "dyntext" { 4 } else { 0 };
            while let Some(size) = number(at + size_at, 2).filter(|size| *size >= 4) {
                let end = (at + size).min(bytes.len());
                found.push(at..end);
                at = end;
            }
            found
        }
        _ if bytes.starts_with(b"\x7fELF") => {
            let begin = number(0x28, 8).unwrap_or(0).min(bytes.len());
            let mut found: Vec<_> = equal(begin, 64, number(0x3c, 2).unwrap_or(0));
            // Symbols, and everything by pieces of a symbol's size.
            found.extend::<Vec<_>>(equal(0, 24, bytes.len() / 24));
            found.push(0..64.min(bytes.len()));
            found
        }
        _ => equal(0, 64, bytes.len() / 64),
    }
}

fn lines(bytes: &[u8]) -> Vec<Range<usize>> {
    let mut at = 0;
    let all = bytes.split_inclusive(|byte| *byte == b'\n');
    all.map(|line| {
        at += line.len();
        at - line.len()..at
    })
    .collect()
}

/// What is between two quotes, on one line.
fn quoted(bytes: &[u8]) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    for line in lines(bytes) {
        let quotes = line.filter(|at| bytes[*at] == b'"');
        let quotes: Vec<_> = quotes.collect();
        found.extend(quotes.as_chunks::<2>().0.iter().map(|[a, b]| a + 1..*b));
    }
    found
}

fn numbers(bytes: &[u8]) -> Vec<Range<usize>> {
    let mut found: Vec<Range<usize>> = Vec::new();
    for (at, byte) in bytes.iter().enumerate() {
        match found.last_mut() {
            _ if !byte.is_ascii_digit() => {}
            Some(last) if last.end == at => last.end += 1,
            _ => found.push(at..at + 1),
        }
    }
    found
}
