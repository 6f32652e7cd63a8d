//! `dyntext`: the machine code of dynamic functions, for disassembly.
//!
//! A dynamic function ([`MapEvent::Function`]) has a name and an address, but no file with its
//! instructions. This file of the experiment has them. It is a sequence of records, each with
//! `u32 type, u32 size` first; the size is the whole record's:
//!
//! | type | body |
//! |---|---|
//! | 1 function | `i64` time, nanoseconds since the start; `u64` address of the function |
//! | 2 code | machine code, padded with zeros to a multiple of 16 bytes |
//! | 3 lines | pairs of `u32` offset and `u32` line |
//! | 4 source | a path with a NUL, padded |
//!
//! gprofng reads and disassembles it. Lines and sources are not written here, and the reader skips
//! them.
//!
//! [`MapEvent::Function`]: crate::map::MapEvent::Function

use std::ops::Range;

use crate::units::Nanos;

/// The name of the file.
pub(crate) const FILE: &str = "dyntext";

const FUNCTION: u32 = 1;
const CODE: u32 = 2;
/// Bytes of type and size.
const RECORD_HEADER_BYTES: usize = 8;
const FUNCTION_BYTES: usize = RECORD_HEADER_BYTES + 16;
/// Code is padded to a multiple of this.
const CODE_ALIGN_BYTES: usize = 16;

/// Returns the records of one function: `at_ns` in nanoseconds since the start.
pub(crate) fn encode(at_ns: Nanos, address: u64, code: &[u8]) -> Vec<u8> {
    let padded = code.len().next_multiple_of(CODE_ALIGN_BYTES);
    let code_bytes = RECORD_HEADER_BYTES + padded;
    let mut out = Vec::with_capacity(FUNCTION_BYTES + code_bytes);
    out.extend(header(FUNCTION, FUNCTION_BYTES));
    out.extend(at_ns.0.to_le_bytes());
    out.extend(address.to_le_bytes());
    out.extend(header(CODE, code_bytes));
    out.extend_from_slice(code);
    out.resize(FUNCTION_BYTES + code_bytes, 0);
    out
}

/// Returns type and size of a record, which is below 4 GiB.
fn header(kind: u32, size: usize) -> [u8; RECORD_HEADER_BYTES] {
    (u64::from(kind) | (size as u64) << 32).to_le_bytes()
}

/// The code of one dynamic function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DynamicCode<'a> {
    /// A time at which the function existed, nanoseconds since the start of the experiment.
    pub at_ns: Nanos,
    /// Its first address.
    pub address: u64,
    /// Its bytes, with up to 15 zeros after them.
    pub code: &'a [u8],
}

/// The code of all dynamic functions of an experiment.
#[derive(Debug, Default)]
pub struct DynamicCodes {
    bytes: Vec<u8>,
    functions: Vec<(Nanos, u64, Range<usize>)>,
}

impl DynamicCodes {
    /// Parses the file. What follows a record of an impossible size is left out: a collector that
    /// was killed leaves half a record.
    pub(crate) fn parse(bytes: Vec<u8>) -> DynamicCodes {
        let mut functions = Vec::new();
        let mut function = None;
        let mut next = 0;
        while let Some((kind, record)) = record(&bytes, next) {
            let body = record.start + RECORD_HEADER_BYTES..record.end;
            next = record.end;
            match kind {
                FUNCTION => {
                    let word = |index: usize| {
                        let at = body.start + index * 8;
                        let word = bytes.get(at..body.end)?.first_chunk()?;
                        Some(u64::from_le_bytes(*word))
                    };
                    function = word(0).zip(word(1));
                }
                CODE => {
                    if let Some((at_ns, address)) = function.take() {
                        functions.push((Nanos(at_ns), address, body));
                    }
                }
                _ => {}
            }
        }
        DynamicCodes { bytes, functions }
    }

    /// Returns the code of each function, in the order of the file.
    pub fn iter(&self) -> impl Iterator<Item = DynamicCode<'_>> {
        let functions = self.functions.iter();
        functions.filter_map(|(at_ns, address, code)| {
            Some(DynamicCode {
                at_ns: *at_ns,
                address: *address,
                code: self.bytes.get(code.clone())?,
            })
        })
    }
}

/// Returns the type of the record at an offset, and the range of its body, if all of it is there.
fn record(bytes: &[u8], at: usize) -> Option<(u32, Range<usize>)> {
    let header = bytes.get(at..)?.first_chunk::<RECORD_HEADER_BYTES>()?;
    let [a, b, c, d, size @ ..] = *header;
    let size = u32::from_le_bytes(size) as usize;
    let end = at.checked_add(size)?;
    (size >= RECORD_HEADER_BYTES && end <= bytes.len())
        .then_some((u32::from_le_bytes([a, b, c, d]), at..end))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_function_has_a_record_of_24_bytes_and_padded_code() {
        let bytes = encode(Nanos(5), 0x7f00, b"\x90\xc3");
        let expected = [
            &[1, 0, 0, 0, 24, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0][..],
            &[0, 0x7f, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 24, 0, 0, 0],
            &[0x90, 0xc3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        ];
        assert_eq!(bytes, expected.concat());
    }

    #[test]
    fn lines_are_passed_over_and_half_a_record_ends_the_file() {
        let mut bytes = encode(Nanos(1), 0x10, &[1; 16]);
        // A table of one line ahead of the code, as other collectors write it.
        let lines = [3, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0];
        bytes.splice(FUNCTION_BYTES..FUNCTION_BYTES, lines);
        bytes.extend(encode(Nanos(2), 0x20, &[2; 16]));
        bytes.extend(&encode(Nanos(3), 0x30, &[3; 16])[..40]);
        let codes = DynamicCodes::parse(bytes);
        let found: Vec<_> = codes
            .iter()
            .map(|code| (code.at_ns, code.code[0]))
            .collect();
        assert_eq!(found, [(Nanos(1), 1), (Nanos(2), 2)]);
        // A size of nothing would be an endless file.
        assert_eq!(DynamicCodes::parse(vec![0; 64]).iter().count(), 0);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(all in prop::collection::vec((any::<u64>(), any::<u64>(), prop::collection::vec(any::<u8>(), 1..100)), 0..10)) {
            let bytes = all.iter().flat_map(|(at_ns, address, code)| encode(Nanos(*at_ns), *address, code)).collect();
            let codes = DynamicCodes::parse(bytes);
            prop_assert_eq!(codes.iter().count(), all.len());
            for (found, (at_ns, address, code)) in codes.iter().zip(&all) {
                prop_assert_eq!((found.at_ns, found.address), (Nanos(*at_ns), *address));
                prop_assert_eq!(&found.code[..code.len()], &code[..]);
                prop_assert!(found.code.len() - code.len() < CODE_ALIGN_BYTES);
            }
        }

        #[test]
        fn any_bytes_are_read(bytes in prop::collection::vec(0u8..30, 0..300)) {
            let length = bytes.len();
            let codes = DynamicCodes::parse(bytes);
            prop_assert!(codes.iter().map(|code| code.code.len()).sum::<usize>() <= length);
        }
    }
}
