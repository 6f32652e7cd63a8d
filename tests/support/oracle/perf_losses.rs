//! The events that perf recorded and those that it lost: a profiler that drops half of its events
//! looks cheaper than it is.
//!
//! `perf record` prints how many *gaps* there were, not how many events fell into them, so its file
//! is read for the records that say so. `perf_event_open(2)` and `perf.data-file-format.txt` in the
//! kernel's `tools/perf/Documentation` describe the layout. Files that are compressed (`-z`) are
//! refused: their records cannot be seen.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use anyhow::{Context, Result, ensure};

/// The offset of the place and the size of the records in the file's header.
const DATA_SECTION: u64 = 40;

/// `PERF_RECORD_SAMPLE`.
const SAMPLE: u32 = 9;

/// `PERF_RECORD_LOST`: `id: u64, lost: u64`.
const LOST: u32 = 2;

/// `PERF_RECORD_LOST_SAMPLES`: `lost: u64`.
const LOST_SAMPLES: u32 = 13;

/// `PERF_RECORD_COMPRESSED` and its successor `PERF_RECORD_COMPRESSED2`, records of perf's own.
const COMPRESSED: [u32; 2] = [81, 83];

/// The events of a `perf.data`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PerfEvents {
    /// Samples in the file.
    pub recorded: u64,
    /// Events that the file says are lost.
    pub lost: u64,
}

/// Counts the events of a `perf.data`.
///
/// The kernel's records in a ring count what did not fit into it; since 6.1, perf adds at the end
/// what each event counted itself (`PERF_FORMAT_LOST`). Both are of the same events, so the greater
/// sum is taken.
///
/// # Errors
/// When the file cannot be read, or is not one of perf's, or is compressed.
pub fn perf_events(path: &Path) -> Result<PerfEvents> {
    let file = File::open(path).with_context(|| path.display().to_string())?;
    count(BufReader::with_capacity(1 << 20, file)).with_context(|| path.display().to_string())
}

fn count(mut file: impl Read + Seek) -> Result<PerfEvents> {
    let mut magic = [0; 8];
    file.read_exact(&mut magic)?;
    ensure!(&magic == b"PERFILE2", "not a file of perf's");
    file.seek(SeekFrom::Start(DATA_SECTION))?;
    let (start, size) = (word(&mut file)?, word(&mut file)?);
    file.seek(SeekFrom::Start(start))?;
    let mut records = file.take(size);
    let (mut recorded, mut in_rings, mut by_events) = (0, 0, 0);
    while records.limit() >= 8 {
        let mut head = [0; 8];
        records.read_exact(&mut head)?;
        let kind = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
        let size = u64::from(u16::from_le_bytes([head[6], head[7]]));
        ensure!(!COMPRESSED.contains(&kind), "the file is compressed");
        let size = size
            .checked_sub(8)
            .context("a record is shorter than its head")?;
        let mut body = records.by_ref().take(size);
        match kind {
            SAMPLE => recorded += 1,
            LOST => {
                word(&mut body)?;
                in_rings += word(&mut body)?;
            }
            LOST_SAMPLES => by_events += word(&mut body)?,
            _ => {}
        }
        io::copy(&mut body, &mut io::sink())?;
    }
    Ok(PerfEvents {
        recorded,
        lost: u64::max(in_rings, by_events),
    })
}

fn word(file: &mut impl Read) -> Result<u64> {
    let mut word = [0; 8];
    file.read_exact(&mut word)?;
    Ok(u64::from_le_bytes(word))
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use proptest::prelude::*;

    use super::*;

    fn record(kind: u32, body: &[u64]) -> Vec<u8> {
        let mut bytes = kind.to_le_bytes().to_vec();
        bytes.extend([0, 0]);
        bytes.extend((8 + 8 * body.len() as u16).to_le_bytes());
        bytes.extend(body.iter().flat_map(|word| word.to_le_bytes()));
        bytes
    }

    fn file(records: &[u8]) -> Vec<u8> {
        let mut bytes = b"PERFILE2".to_vec();
        bytes.resize(DATA_SECTION as usize, 0);
        bytes.extend(104u64.to_le_bytes());
        bytes.extend((records.len() as u64).to_le_bytes());
        bytes.resize(104, 0);
        bytes.extend(records);
        bytes
    }

    #[test]
    fn a_repeated_line_counts_once() {
        let gap = |lost| record(LOST, &[77, lost, 0]);
        let sum = |lost| record(LOST_SAMPLES, &[lost, 0]);
        let (sample, other) = (record(SAMPLE, &[1, 2, 3]), record(10, &[1, 2, 3]));
        for (records, recorded, lost) in [
            ([gap(5), sample.clone(), gap(2), sum(6)].concat(), 1, 7),
            (
                [gap(5), sample.clone(), sample, other, sum(6), sum(3)].concat(),
                2,
                9,
            ),
            (Vec::new(), 0, 0),
        ] {
            let counted = count(Cursor::new(file(&records))).unwrap();
            assert_eq!(counted, PerfEvents { recorded, lost });
        }
    }

    #[test]
    fn unreadable_output_is_an_error() {
        assert!(count(Cursor::new(b"not perf's".to_vec())).is_err());
        assert!(count(Cursor::new(file(&record(81, &[0])))).is_err());
        assert!(count(Cursor::new(file(&[9, 0, 0, 0, 0, 0, 4, 0]))).is_err());
        assert!(count(Cursor::new(file(&[2, 0, 0, 0, 0, 0, 24, 0, 1]))).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_to_an_end(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = count(Cursor::new(file(&bytes)));
            let _ = count(Cursor::new(bytes));
        }
    }
}
