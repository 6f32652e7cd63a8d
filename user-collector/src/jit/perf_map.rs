//! `/tmp/perf-PID.map`: a line of text for each function.
//!
//! `ADDRESS SIZE NAME`, both numbers hexadecimal, with or without `0x`, the name with blanks to the
//! end of the line (`tools/perf/Documentation/jit-interface.txt` of Linux). node and CPython append
//! a line when they generate code; the JVM writes all lines at once on request, or as it exits. So
//! a file grows while it is read, and the last line may be incomplete.
//!
//! A line of another form is counted and skipped. The parser holds at most [`MAX_LINE_BYTES`] bytes
//! of a line.

use super::MAX_NAME_BYTES;

/// Max bytes that are kept of one line: two numbers with `0x`, blanks, a name.
pub const MAX_LINE_BYTES: usize = 2 * (2 + 16) + 8 + MAX_NAME_BYTES;

/// One line of a perf map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PerfMapEntry<'a> {
    /// First address.
    pub address: u64,
    /// Bytes; 0 is possible.
    pub size: u64,
    /// The name: any bytes, not empty.
    pub name: &'a [u8],
}

/// A perf map that is being read.
#[derive(Clone, Debug, Default)]
pub struct PerfMap {
    line: Vec<u8>,
    bad: u64,
}

impl PerfMap {
    /// Parses the next bytes of the file, cut anywhere. Calls `each` for each line that they
    /// complete.
    pub fn feed(&mut self, bytes: &[u8], mut each: impl FnMut(PerfMapEntry<'_>)) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (text, complete) = match piece.split_last() {
                Some((b'\n', text)) => (text, true),
                _ => (piece, false),
            };
            let left = MAX_LINE_BYTES - self.line.len();
            self.line.extend_from_slice(&text[..text.len().min(left)]);
            if complete {
                match parse(&self.line) {
                    Some(entry) => each(entry),
                    None => self.bad += 1,
                }
                self.line.clear();
            }
        }
    }

    /// Starts again with the beginning of the file. The count of bad lines continues.
    pub fn restart(&mut self) {
        self.line.clear();
    }

    /// Returns the number of lines of another form.
    #[must_use]
    pub fn bad(&self) -> u64 {
        self.bad
    }
}

fn parse(line: &[u8]) -> Option<PerfMapEntry<'_>> {
    let (address, rest) = hexadecimal(line)?;
    let (size, name) = hexadecimal(rest)?;
    let name = name.trim_ascii_end();
    (!name.is_empty()).then_some(PerfMapEntry {
        address,
        size,
        name,
    })
}

/// Returns the number at the beginning, and what comes after the blanks that follow it.
fn hexadecimal(text: &[u8]) -> Option<(u64, &[u8])> {
    let length = text.iter().position(|byte| byte.is_ascii_whitespace())?;
    let (digits, rest) = text.split_at(length);
    let digits = digits
        .strip_prefix(b"0x")
        .or_else(|| digits.strip_prefix(b"0X"))
        .unwrap_or(digits);
    // from_str_radix would accept a sign.
    if !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    let number = u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    Some((number, rest.trim_ascii_start()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all(pieces: &[&[u8]]) -> (Vec<(u64, u64, String)>, u64) {
        let (mut map, mut entries) = (PerfMap::default(), Vec::new());
        for piece in pieces {
            map.feed(piece, |entry| {
                let name = String::from_utf8_lossy(entry.name).into_owned();
                entries.push((entry.address, entry.size, name));
            });
        }
        (entries, map.bad())
    }

    #[test]
    fn lines_of_node_python_and_java() {
        let text = b"7f29eefc5b80 100 JS:^fib /tmp/a b/busy.js:1:13\n\
            7f0f25abd00b b py::_ModuleLockManager.__init__:<frozen importlib._bootstrap>\n\
            0x00007f4630ec7640 0x0000000000000130 int Busy.fib(int)\r\n";
        let (entries, bad) = all(&[text]);
        assert_eq!(bad, 0);
        assert_eq!(
            entries,
            [
                (
                    0x7f29_eefc_5b80,
                    0x100,
                    "JS:^fib /tmp/a b/busy.js:1:13".to_owned()
                ),
                (
                    0x7f0f_25ab_d00b,
                    0xb,
                    "py::_ModuleLockManager.__init__:<frozen importlib._bootstrap>".to_owned()
                ),
                (0x7f46_30ec_7640, 0x130, "int Busy.fib(int)".to_owned()),
            ]
        );
    }

    #[test]
    fn bad_lines_are_counted_and_do_no_harm() {
        let text = b"\n7f00\n7f00 10\n7f00 10 \nroot:x:0:0:root:/root:/bin/sh\n+1 2 x\n-1 2 x\n\
            10000000000000000 1 x\n 1 2 x\n1 2 good\n\xff\xfe\n0x 1 x\n";
        let (entries, bad) = all(&[text]);
        assert_eq!(entries, [(1, 2, "good".to_owned())]);
        assert_eq!(bad, 11);
    }

    #[test]
    fn half_a_line_waits_for_its_rest() {
        assert!(all(&[b"7f00 1a0 fo"]).0.is_empty());
        let (entries, bad) = all(&[b"7f", b"00 1a", b"0 fo", b"o\n7f", b"01 1 b\n"]);
        assert_eq!(entries[0], (0x7f00, 0x1a0, "foo".to_owned()));
        assert_eq!(entries[1], (0x7f01, 1, "b".to_owned()));
        assert_eq!(bad, 0);
    }

    #[test]
    fn an_endless_line_is_not_kept() {
        let mut map = PerfMap::default();
        map.feed(b"1 2 ", |_| panic!("not complete"));
        for _ in 0..1000 {
            map.feed(&[b'x'; 1000], |_| panic!("not complete"));
        }
        assert_eq!(map.line.len(), MAX_LINE_BYTES);
        let mut names = Vec::new();
        map.feed(b"\n3 4 y\n", |entry| names.push(entry.name.len()));
        assert_eq!(names, [MAX_LINE_BYTES - 4, 1]);
    }

    #[test]
    fn a_file_that_begins_anew_leaves_nothing_of_the_old_line() {
        let mut map = PerfMap::default();
        map.feed(b"1 2 ab", |_| panic!("not complete"));
        map.restart();
        map.feed(b"5 6 c\n", |entry| assert_eq!(entry.address, 5));
        assert_eq!(map.bad(), 0);
    }

    proptest! {
        #[test]
        fn map_may_be_cut_anywhere(
            entries in proptest::collection::vec((any::<u64>(), any::<u64>(), "[!-~]([ -~]{0,30}[!-~])?"), 0..20),
            cuts in proptest::collection::vec(1_usize..40, 1..10),
            prefixed in any::<bool>(),
        ) {
            let text: String = entries
                .iter()
                .map(|(address, size, name)| if prefixed { format!("{address:#x} {size:#018x} {name}\n") } else { format!("{address:x} {size:x} {name}\n") })
                .collect();
            let (mut rest, mut pieces) = (text.as_bytes(), Vec::new());
            for cut in cuts.iter().cycle() {
                if rest.is_empty() {
                    break;
                }
                let (piece, after) = rest.split_at((*cut).min(rest.len()));
                pieces.push(piece);
                rest = after;
            }
            let (read, bad) = all(&pieces);
            prop_assert_eq!(read, entries);
            prop_assert_eq!(bad, 0);
        }

        #[test]
        fn any_bytes_end(bytes in proptest::collection::vec(any::<u8>(), 0..3000)) {
            let lines = bytes.iter().filter(|byte| **byte == b'\n').count();
            let (entries, bad) = all(&[&bytes]);
            prop_assert_eq!(entries.len() + bad as usize, lines);
        }
    }
}
