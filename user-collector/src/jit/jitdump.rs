//! `jit-PID.dump`: what a JIT compiler reports of its code, with times
//! (`tools/perf/Documentation/jitdump-specification.txt` of Linux).
//!
//! A `FileHeader`, then records, each with a `RecordHeader`. Of the records two matter: a load
//! (0) has a `LoadBody`, a name with a NUL and the code; a move (1) has a `MoveBody`.
//!
//! Debug information (2) and unwinding information (4) are skipped, and so is the code itself, of
//! which only the offset in the file is kept ([`super::CodeReader`] reads it). A close (3) ends the
//! file, but no function: the code may still run.
//!
//! Numbers are in the byte order of the machine that wrote them. That is this one, so a foreign
//! order is refused.
//!
//! linux-perf-data has a parser too, but there a record whose size is below its header's
//! underflows, and a record is held whole, however large it says it is. This one reads other users'
//! files, as root. It holds at most [`MAX_HELD_BYTES`] bytes of a record and skips the rest.

use experiment_format::units::Nanos;
use zerocopy::{FromBytes, Immutable, KnownLayout};

use super::MAX_NAME_BYTES;

/// Max bytes that are kept of one record: headers and a name with its NUL.
pub const MAX_HELD_BYTES: usize = LOAD_BYTES + MAX_NAME_BYTES + 1;

const MAGIC: u32 = 0x4a69_5444;
const FILE_HEADER_BYTES: usize = size_of::<FileHeader>();
const RECORD_HEADER_BYTES: usize = size_of::<RecordHeader>();
const LOAD_BYTES: usize = RECORD_HEADER_BYTES + size_of::<LoadBody>();
const MOVE_BYTES: usize = RECORD_HEADER_BYTES + size_of::<MoveBody>();
/// Flag of the file: its times are of a counter of the processor (`JITDUMP_FLAGS_ARCH_TIMESTAMP`).
const FLAG_ARCH_TIMESTAMP: u64 = 1;
/// Kind of a record: code was generated (`JIT_CODE_LOAD`).
const KIND_LOAD: u32 = 0;
/// Kind of a record: code was moved (`JIT_CODE_MOVE`).
const KIND_MOVE: u32 = 1;

/// The header of the file. Fields have the specification's names.
#[derive(FromBytes, Immutable, KnownLayout)]
#[repr(C)]
struct FileHeader {
    magic: u32,
    version: u32,
    total_size: u32,
    elf_mach: u32,
    pad1: u32,
    pid: u32,
    timestamp: u64,
    flags: u64,
}

/// The header of a record.
#[derive(FromBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RecordHeader {
    id: u32,
    total_size: u32,
    timestamp: u64,
}

/// The body of a load.
#[derive(FromBytes, Immutable, KnownLayout)]
#[repr(C)]
struct LoadBody {
    pid: u32,
    tid: u32,
    vma: u64,
    code_addr: u64,
    code_size: u64,
    code_index: u64,
}

/// The body of a move.
#[derive(FromBytes, Immutable, KnownLayout)]
#[repr(C)]
struct MoveBody {
    pid: u32,
    tid: u32,
    vma: u64,
    old_code_addr: u64,
    new_code_addr: u64,
    code_size: u64,
    code_index: u64,
}

/// A record of a jitdump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JitDumpRecord<'a> {
    /// Code was generated.
    Load {
        /// When, nanoseconds of CLOCK_MONOTONIC; `None` where the file has another clock.
        at_ns: Option<Nanos>,
        /// First address.
        address: u64,
        /// Bytes.
        size: u64,
        /// The name: any bytes, cut at [`MAX_NAME_BYTES`].
        name: &'a [u8],
        /// Where in the file its code begins, bytes; `None` if the file does not have it.
        code_offset: Option<u64>,
    },
    /// Code was moved.
    Move {
        /// When, nanoseconds of CLOCK_MONOTONIC; `None` where the file has another clock.
        at_ns: Option<Nanos>,
        /// First address before.
        from: u64,
        /// First address after.
        to: u64,
    },
}

impl JitDumpRecord<'_> {
    /// Returns when it was, nanoseconds of CLOCK_MONOTONIC; `None` where the file has another
    /// clock.
    #[must_use]
    pub fn at_ns(&self) -> Option<Nanos> {
        match self {
            JitDumpRecord::Load { at_ns, .. } | JitDumpRecord::Move { at_ns, .. } => *at_ns,
        }
    }
}

/// Why a file is not read any further: where its next record begins is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JitDumpError {
    /// Another kind of file, or one of a machine with another byte order.
    #[error("no jitdump of this machine: it begins with {0:#010x}")]
    Magic(u32),
    /// Another version than 1.
    #[error("a jitdump of version {0}; 1 is known")]
    Version(u32),
    /// A size smaller than the header that it is in.
    #[error("{size} bytes is no size for what is at offset {offset}")]
    Size {
        /// Where the header is in the file, bytes.
        offset: u64,
        /// The size, bytes.
        size: u32,
    },
}

/// A jitdump that is being read.
#[derive(Clone, Debug, Default)]
pub struct JitDump {
    held: Vec<u8>,
    skip: u64,
    offset: u64,
    /// Whether times are of CLOCK_MONOTONIC; `None` until the file's header was read.
    is_monotonic: Option<bool>,
    broken: Option<JitDumpError>,
    bad: u64,
}

impl JitDump {
    /// Parses the next bytes of the file, cut anywhere. Calls `each` for each record that they
    /// complete.
    ///
    /// # Errors
    ///
    /// The file is no jitdump, or broken. Each later call returns the same error.
    pub fn feed(
        &mut self,
        mut bytes: &[u8],
        mut each: impl FnMut(JitDumpRecord<'_>),
    ) -> Result<(), JitDumpError> {
        loop {
            if let Some(broken) = self.broken {
                return Err(broken);
            }
            let skipped = self.skip.min(bytes.len() as u64);
            // At most the length of a slice.
            bytes = &bytes[skipped as usize..];
            self.skip -= skipped;
            self.offset += skipped;
            if bytes.is_empty() {
                return Ok(());
            }
            let step = self.wanted().and_then(|wanted| {
                let (taken, rest) = bytes.split_at(bytes.len().min(wanted - self.held.len()));
                self.held.extend_from_slice(taken);
                bytes = rest;
                // A record's header says how much of the record is wanted.
                if self.held.len() < self.wanted()? {
                    return Ok(());
                }
                self.finish(&mut each)
            });
            if let Err(broken) = step {
                self.broken = Some(broken);
            }
        }
    }

    /// Starts again with the file's header. The count of bad records continues.
    pub fn restart(&mut self) {
        *self = JitDump {
            bad: self.bad,
            ..JitDump::default()
        };
    }

    /// Returns the number of loads and moves that are too short.
    #[must_use]
    pub fn bad(&self) -> u64 {
        self.bad
    }

    /// Returns how many bytes have to be held of what is at the offset, as far as is known yet.
    fn wanted(&self) -> Result<usize, JitDumpError> {
        if self.is_monotonic.is_none() {
            return Ok(FILE_HEADER_BYTES);
        }
        if self.held.len() < RECORD_HEADER_BYTES {
            return Ok(RECORD_HEADER_BYTES);
        }
        let RecordHeader { id, total_size, .. } = prefix(&self.held);
        let most = match id {
            KIND_LOAD => MAX_HELD_BYTES,
            KIND_MOVE => MOVE_BYTES,
            _ => RECORD_HEADER_BYTES,
        };
        self.checked(total_size, RECORD_HEADER_BYTES)
            .map(|size| size.min(most as u64) as usize)
    }

    fn finish(&mut self, each: &mut impl FnMut(JitDumpRecord<'_>)) -> Result<(), JitDumpError> {
        let size = match self.is_monotonic {
            None => {
                let header: FileHeader = prefix(&self.held);
                match (header.magic, header.version) {
                    (MAGIC, 1) => {}
                    (MAGIC, version) => return Err(JitDumpError::Version(version)),
                    (magic, _) => return Err(JitDumpError::Magic(magic)),
                }
                self.is_monotonic = Some(header.flags & FLAG_ARCH_TIMESTAMP == 0);
                self.checked(header.total_size, FILE_HEADER_BYTES)?
            }
            Some(is_monotonic) => {
                let header: RecordHeader = prefix(&self.held);
                match (header.id, self.record(&header, is_monotonic)) {
                    (KIND_LOAD | KIND_MOVE, None) => self.bad += 1,
                    (_, Some(record)) => each(record),
                    _ => {}
                }
                self.checked(header.total_size, RECORD_HEADER_BYTES)?
            }
        };
        self.skip = size - self.held.len() as u64;
        self.offset += self.held.len() as u64;
        self.held.clear();
        Ok(())
    }

    fn record(&self, header: &RecordHeader, is_monotonic: bool) -> Option<JitDumpRecord<'_>> {
        let at_ns = is_monotonic.then_some(Nanos(header.timestamp));
        let body = self.held.get(RECORD_HEADER_BYTES..)?;
        match header.id {
            KIND_LOAD => {
                let (load, name) = LoadBody::read_from_prefix(body).ok()?;
                let length = name.iter().position(|byte| *byte == 0);
                // A name that was cut has no known end, and its record may have no code.
                let code = length
                    .map(|length| (LOAD_BYTES + length + 1) as u64)
                    .filter(|start| {
                        start.saturating_add(load.code_size) <= u64::from(header.total_size)
                    });
                Some(JitDumpRecord::Load {
                    at_ns,
                    address: load.code_addr,
                    size: load.code_size,
                    name: &name[..length.unwrap_or(name.len()).min(MAX_NAME_BYTES)],
                    code_offset: code.map(|start| self.offset + start),
                })
            }
            KIND_MOVE => {
                let (moved, _) = MoveBody::read_from_prefix(body).ok()?;
                Some(JitDumpRecord::Move {
                    at_ns,
                    from: moved.old_code_addr,
                    to: moved.new_code_addr,
                })
            }
            _ => None,
        }
    }

    fn checked(&self, size: u32, header: usize) -> Result<u64, JitDumpError> {
        if (size as usize) < header {
            return Err(JitDumpError::Size {
                offset: self.offset,
                size,
            });
        }
        Ok(u64::from(size))
    }
}

/// Reads a structure from the first bytes; zeros if there are too few.
fn prefix<T: FromBytes>(bytes: &[u8]) -> T {
    T::read_from_prefix(bytes).map_or_else(|_| T::new_zeroed(), |(value, _)| value)
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    pub(in crate::jit) fn header(flags: u64) -> Vec<u8> {
        let mut out = Vec::new();
        for word in [MAGIC, 1, 48, 62, 0, 77] {
            out.extend(word.to_ne_bytes());
        }
        out.extend(1_u64.to_ne_bytes());
        out.extend(flags.to_ne_bytes());
        // A header may be longer than what is known of it.
        out.extend([0xaa; 8]);
        out
    }

    fn record(kind: u32, at_ns: Nanos, body: &[u8]) -> Vec<u8> {
        let mut out = kind.to_ne_bytes().to_vec();
        out.extend((16 + body.len() as u32).to_ne_bytes());
        out.extend(at_ns.0.to_ne_bytes());
        out.extend(body);
        out
    }

    fn words(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    pub(in crate::jit) fn load(at_ns: Nanos, address: u64, code: &[u8], name: &[u8]) -> Vec<u8> {
        let mut body = words(&[0, address, address, code.len() as u64, 5]);
        body.extend(name);
        body.push(0);
        body.extend(code);
        record(0, at_ns, &body)
    }

    /// Returns the records as text, the result of the last piece, and the number of bad records.
    fn all(pieces: &[&[u8]]) -> (Vec<String>, Result<(), JitDumpError>, u64) {
        let (mut dump, mut records) = (JitDump::default(), Vec::new());
        let mut end = Ok(());
        for piece in pieces {
            end = dump.feed(piece, |record| {
                records.push(match record {
                    JitDumpRecord::Load {
                        at_ns,
                        address,
                        size,
                        name,
                        code_offset,
                    } => format!(
                        "{:?} {address:x}+{size:x} {} {}",
                        at_ns.map(|at_ns| at_ns.0),
                        code_offset.map_or_else(|| "-".to_owned(), |offset| offset.to_string()),
                        String::from_utf8_lossy(name)
                    ),
                    JitDumpRecord::Move { at_ns, from, to } => {
                        format!("{:?} {from:x}>{to:x}", at_ns.map(|at_ns| at_ns.0))
                    }
                });
            });
            assert!(dump.held.len() <= MAX_HELD_BYTES);
        }
        (records, end, dump.bad())
    }

    fn example(flags: u64) -> Vec<u8> {
        let mut file = header(flags);
        file.extend(record(4, Nanos(1), &[7; 33]));
        file.extend(load(Nanos(2), 0x7000, &[0xc3; 5], b"py::f:/a b.py"));
        file.extend(record(2, Nanos(3), &[1; 700]));
        file.extend(record(1, Nanos(4), &words(&[0, 0, 0x7000, 0x8000, 5, 5])));
        file.extend(load(Nanos(5), 0x7000, &[], b""));
        file.extend(record(3, Nanos(6), &[]));
        file
    }

    const EXAMPLE: [&str; 3] = [
        "Some(2) 7000+5 167 py::f:/a b.py",
        "Some(4) 7000>8000",
        "Some(5) 7000+0 1009 ",
    ];

    #[test]
    fn loads_and_moves_are_read() {
        let (records, end, bad) = all(&[&example(0)]);
        assert_eq!((end, bad), (Ok(()), 0));
        assert_eq!(records, EXAMPLE);
        assert_eq!(example(0)[167..][..5], [0xc3; 5]);
    }

    #[test]
    fn a_load_without_all_of_its_code_has_none() {
        let mut file = header(0);
        let mut short = load(Nanos(1), 0x10, &[1, 2], b"x");
        short[40] = 3;
        file.extend(short);
        file.extend(load(Nanos(2), 0x20, &[1, 2], b"y"));
        let (records, _, _) = all(&[&file]);
        assert_eq!(records, ["Some(1) 10+3 - x", "Some(2) 20+2 166 y"]);
    }

    #[test]
    fn times_of_another_clock_are_none() {
        let (records, _, _) = all(&[&example(1)]);
        assert_eq!(records[1], "None 7000>8000");
    }

    #[test]
    fn a_long_name_is_cut_and_what_follows_is_found() {
        let mut file = header(0);
        file.extend(load(Nanos(1), 1, &[1; 5000], &[b'n'; 3000]));
        file.extend(load(Nanos(2), 2, &[1; 9], b"next"));
        let (records, _, _) = all(&[&file]);
        assert_eq!(records[0].len(), "Some(1) 1+1388 - ".len() + MAX_NAME_BYTES);
        assert!(records[1].starts_with("Some(2) 2+9 ") && records[1].ends_with(" next"));
    }

    #[test]
    fn other_files_are_refused() {
        let (_, end, _) = all(&[&[b'x'; 100]]);
        assert_eq!(end, Err(JitDumpError::Magic(0x7878_7878)));
        let mut file = header(0);
        file[4] = 2;
        assert_eq!(all(&[&file]).1, Err(JitDumpError::Version(2)));
        let mut file = header(0);
        file[8] = 39;
        let size = |offset, size| Err(JitDumpError::Size { offset, size });
        assert_eq!(all(&[&file]).1, size(0, 39));
        // Also when it comes back for more.
        assert_eq!(all(&[&file, b"more"]).1, size(0, 39));
    }

    #[test]
    fn a_record_shorter_than_its_header_breaks_the_file() {
        let mut file = header(0);
        file.extend(words(&[15 << 32, 0, 0, 0]));
        let broken = JitDumpError::Size {
            offset: 48,
            size: 15,
        };
        assert_eq!(all(&[&file]).1, Err(broken));
    }

    #[test]
    fn a_load_that_is_too_short_is_counted() {
        let mut file = header(0);
        file.extend(record(0, Nanos(1), &[0; 39]));
        file.extend(record(1, Nanos(1), &[0; 47]));
        file.extend(load(Nanos(2), 2, &[1], b"x"));
        let (records, end, bad) = all(&[&file]);
        assert_eq!((records.len(), end, bad), (1, Ok(()), 2));
    }

    #[test]
    fn a_file_that_begins_anew_has_a_header_again() {
        let mut dump = JitDump::default();
        assert!(dump.feed(&[b'x'; 100], |_| ()).is_err());
        dump.restart();
        let mut count = 0;
        assert_eq!(dump.feed(&example(0), |_| count += 1), Ok(()));
        assert_eq!(count, 3);
    }

    proptest! {
        #[test]
        fn dump_may_be_cut_anywhere(cuts in proptest::collection::vec(1_usize..90, 1..10)) {
            let file = example(0);
            let (mut rest, mut pieces) = (&*file, Vec::new());
            for cut in cuts.iter().cycle() {
                if rest.is_empty() {
                    break;
                }
                let (piece, after) = rest.split_at((*cut).min(rest.len()));
                pieces.push(piece);
                rest = after;
            }
            let (records, end, bad) = all(&pieces);
            prop_assert_eq!(records, EXAMPLE);
            prop_assert_eq!((end, bad), (Ok(()), 0));
        }

        #[test]
        fn any_bytes_end(
            kinds in proptest::collection::vec((0_u32..6, 0_u32..200), 0..20),
            bytes in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            let mut file = header(0);
            for (kind, size) in kinds {
                file.extend(kind.to_ne_bytes());
                file.extend(size.to_ne_bytes());
                file.extend(&bytes);
            }
            let _ = all(&[&file]);
            let _ = all(&[&bytes]);
        }
    }
}
