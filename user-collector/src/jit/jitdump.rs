//! `jit-PID.dump`: what a JIT compiler reports of its code, with times
//! (`tools/perf/Documentation/jitdump-specification.txt` of Linux).
//!
//! A header of 40 bytes, then records, each with a header of 16: type, total size, time. Of the
//! records two matter:
//!
//! | type | body |
//! |---|---|
//! | 0 load | `u32 pid, u32 tid, u64 vma, u64 code_addr, u64 code_size, u64 code_index`, name with a NUL, code |
//! | 1 move | `u32 pid, u32 tid, u64 vma, u64 old_code_addr, u64 new_code_addr, u64 code_size, u64 code_index` |
//!
//! Debug information (2) and unwinding information (4) are passed over, and so is the code itself,
//! of which only the place in the file is kept ([`super::CodeReader`] reads it). A close (3) ends
//! the file and no function: its code may still run.
//!
//! Numbers are in the byte order of the machine that wrote them. That is this one, so a foreign
//! order is refused.
//!
//! The parser is our own, although linux-perf-data has one: there a record whose size is below its
//! header's underflows, and a record is held whole, of whatever size it says it is. This reads
//! other users' files, as root. Here a record makes the parser hold [`MAX_HELD_BYTES`] bytes at
//! most; the rest is passed over.

use super::MAX_NAME_BYTES;

/// Most bytes that are kept of one record: headers and a name with its NUL.
pub const MAX_HELD_BYTES: usize = LOAD_BYTES + MAX_NAME_BYTES + 1;

const MAGIC: u32 = 0x4a69_5444;
const FILE_HEADER_BYTES: usize = 40;
const RECORD_HEADER_BYTES: usize = 16;
const LOAD_BYTES: usize = RECORD_HEADER_BYTES + 40;
const MOVE_BYTES: usize = RECORD_HEADER_BYTES + 48;
/// Flag of the file: its times are of a counter of the processor (`JITDUMP_FLAGS_ARCH_TIMESTAMP`).
const FLAG_ARCH_TIMESTAMP: u64 = 1;

/// What a record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JitDumpRecord<'a> {
    /// Code was made.
    Load {
        /// When, nanoseconds of CLOCK_MONOTONIC; `None` where the file has another clock.
        at: Option<u64>,
        /// First address.
        address: u64,
        /// Bytes.
        size: u64,
        /// The name: any bytes, cut at [`MAX_NAME_BYTES`].
        name: &'a [u8],
        /// Where in the file its bytes begin, if they are there.
        code: Option<u64>,
    },
    /// Code was moved.
    Move {
        /// When, as above.
        at: Option<u64>,
        /// First address so far.
        from: u64,
        /// First address from now on.
        to: u64,
    },
}

/// Why a file is not read on. Where its next record begins is then unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JitDumpError {
    /// It is another kind of file, or from a machine of another byte order.
    #[error("no jitdump of this machine: it begins with {0:#010x}")]
    Magic(u32),
    /// Only version 1 is known.
    #[error("a jitdump of version {0}; 1 is known")]
    Version(u32),
    /// A size that does not even cover its own header.
    #[error("{size} bytes is no size for what is at offset {offset}")]
    Size {
        /// Where in the file.
        offset: u64,
        /// The size it says.
        size: u32,
    },
}

/// A jitdump that is being read.
#[derive(Clone, Debug, Default)]
pub struct JitDump {
    held: Vec<u8>,
    skip: u64,
    offset: u64,
    header: Option<JitDumpHeader>,
    broken: Option<JitDumpError>,
    bad: u64,
}

#[derive(Clone, Copy, Debug)]
struct JitDumpHeader {
    monotonic: bool,
}

impl JitDump {
    /// Parses the next bytes of the file, cut anywhere. Calls `each` for each record that they
    /// complete.
    ///
    /// # Errors
    ///
    /// The file is none, or broken; then it is so for good.
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

    /// The file begins anew. The count of bad records goes on.
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

    /// Returns how many bytes of the record at the offset have to be held, as far as is known yet.
    fn wanted(&self) -> Result<usize, JitDumpError> {
        if self.header.is_none() {
            return Ok(FILE_HEADER_BYTES);
        }
        if self.held.len() < RECORD_HEADER_BYTES {
            return Ok(RECORD_HEADER_BYTES);
        }
        let size = self.u32(4);
        let most = match self.u32(0) {
            0 => MAX_HELD_BYTES,
            1 => MOVE_BYTES,
            _ => RECORD_HEADER_BYTES,
        };
        self.checked(size, RECORD_HEADER_BYTES)
            .map(|size| size.min(most as u64) as usize)
    }

    fn finish(&mut self, each: &mut impl FnMut(JitDumpRecord<'_>)) -> Result<(), JitDumpError> {
        let size = match self.header {
            None => {
                self.header = Some(self.file_header()?);
                self.checked(self.u32(8), FILE_HEADER_BYTES)?
            }
            Some(header) => {
                match (self.u32(0), self.record(header)) {
                    (0 | 1, None) => self.bad += 1,
                    (_, Some(record)) => each(record),
                    _ => {}
                }
                self.checked(self.u32(4), RECORD_HEADER_BYTES)?
            }
        };
        self.skip = size - self.held.len() as u64;
        self.offset += self.held.len() as u64;
        self.held.clear();
        Ok(())
    }

    fn file_header(&self) -> Result<JitDumpHeader, JitDumpError> {
        match (self.u32(0), self.u32(4)) {
            (MAGIC, 1) => Ok(JitDumpHeader {
                monotonic: self.u64(32) & FLAG_ARCH_TIMESTAMP == 0,
            }),
            (MAGIC, version) => Err(JitDumpError::Version(version)),
            (magic, _) => Err(JitDumpError::Magic(magic)),
        }
    }

    fn record(&self, header: JitDumpHeader) -> Option<JitDumpRecord<'_>> {
        let at = header.monotonic.then(|| self.u64(8));
        match (self.u32(0), self.held.len()) {
            (0, LOAD_BYTES..) => {
                let name = &self.held[LOAD_BYTES..];
                let length = name.iter().position(|byte| *byte == 0);
                let size = self.u64(40);
                // A name that was cut has no known end, and its record may have no code.
                let code = length
                    .map(|length| (LOAD_BYTES + length + 1) as u64)
                    .filter(|begin| begin.saturating_add(size) <= u64::from(self.u32(4)));
                Some(JitDumpRecord::Load {
                    at,
                    address: self.u64(32),
                    size,
                    name: &name[..length.unwrap_or(name.len()).min(MAX_NAME_BYTES)],
                    code: code.map(|begin| self.offset + begin),
                })
            }
            (1, MOVE_BYTES..) => Some(JitDumpRecord::Move {
                at,
                from: self.u64(32),
                to: self.u64(40),
            }),
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

    fn u32(&self, at: usize) -> u32 {
        let bytes = self.held.get(at..).and_then(<[u8]>::first_chunk);
        bytes.map_or(0, |bytes| u32::from_ne_bytes(*bytes))
    }

    fn u64(&self, at: usize) -> u64 {
        let bytes = self.held.get(at..).and_then(<[u8]>::first_chunk);
        bytes.map_or(0, |bytes| u64::from_ne_bytes(*bytes))
    }
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

    fn record(kind: u32, at: u64, body: &[u8]) -> Vec<u8> {
        let mut out = kind.to_ne_bytes().to_vec();
        out.extend((16 + body.len() as u32).to_ne_bytes());
        out.extend(at.to_ne_bytes());
        out.extend(body);
        out
    }

    fn words(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    pub(in crate::jit) fn load(at: u64, address: u64, code: &[u8], name: &[u8]) -> Vec<u8> {
        let mut body = words(&[0, address, address, code.len() as u64, 5]);
        body.extend(name);
        body.push(0);
        body.extend(code);
        record(0, at, &body)
    }

    /// Each record in words, and how it ended.
    fn all(pieces: &[&[u8]]) -> (Vec<String>, Result<(), JitDumpError>, u64) {
        let (mut dump, mut records) = (JitDump::default(), Vec::new());
        let mut end = Ok(());
        for piece in pieces {
            end = dump.feed(piece, |record| {
                records.push(match record {
                    JitDumpRecord::Load {
                        at,
                        address,
                        size,
                        name,
                        code,
                    } => format!(
                        "{at:?} {address:x}+{size:x} {} {}",
                        code.map_or_else(|| "-".to_owned(), |code| code.to_string()),
                        String::from_utf8_lossy(name)
                    ),
                    JitDumpRecord::Move { at, from, to } => format!("{at:?} {from:x}>{to:x}"),
                });
            });
            assert!(dump.held.len() <= MAX_HELD_BYTES);
        }
        (records, end, dump.bad())
    }

    fn example(flags: u64) -> Vec<u8> {
        let mut file = header(flags);
        file.extend(record(4, 1, &[7; 33]));
        file.extend(load(2, 0x7000, &[0xc3; 5], b"py::f:/a b.py"));
        file.extend(record(2, 3, &[1; 700]));
        file.extend(record(1, 4, &words(&[0, 0, 0x7000, 0x8000, 5, 5])));
        file.extend(load(5, 0x7000, &[], b""));
        file.extend(record(3, 6, &[]));
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
        let mut short = load(1, 0x10, &[1, 2], b"x");
        short[40] = 3;
        file.extend(short);
        file.extend(load(2, 0x20, &[1, 2], b"y"));
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
        file.extend(load(1, 1, &[1; 5000], &[b'n'; 3000]));
        file.extend(load(2, 2, &[1; 9], b"next"));
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
        file.extend(record(0, 1, &[0; 39]));
        file.extend(record(1, 1, &[0; 47]));
        file.extend(load(2, 2, &[1], b"x"));
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
        fn it_does_not_matter_where_it_is_cut(cuts in proptest::collection::vec(1_usize..90, 1..10)) {
            let file = example(0);
            let (mut rest, mut pieces) = (&*file, Vec::new());
            for cut in cuts.iter().cycle() {
                if rest.is_empty() {
                    break;
                }
                let (piece, behind) = rest.split_at((*cut).min(rest.len()));
                pieces.push(piece);
                rest = behind;
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
