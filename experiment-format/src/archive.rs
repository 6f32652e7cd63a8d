//! `archives/`: copies of load objects, under names that gprofng derives from their paths.
//!
//! gprofng looks here for the objects of the founder and of all its subexperiments, before it looks
//! into the file system. It compares neither times nor sizes. So reports show what is here, also on
//! another machine, also for objects that never were files.

/// The name of the directory.
pub const ARCHIVES: &str = "archives";

/// The length of the longest base name that is not cut: a file name has 255 bytes.
const MAX_BASE_BYTES: usize = 243;
/// The length of a base name that is cut; a hash of the whole name follows.
const CUT_BASE_BYTES: usize = 231;
/// The polynomial of the CRC: x^64 + x^11 + x^2 + x + 1.
const POLYNOMIAL: u64 = 0x807;
/// The digits of base 64.
const DIGITS: &[u8; 64] = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_";
/// 11 digits of 6 bits hold 64 bits.
const HASH_DIGITS: usize = 11;

/// Returns the name of a load object's copy in `archives/`: its base name and a hash of its
/// directory.
///
/// The directory of a path without `/` is `./`.
pub fn archive_name(load_object: &str) -> String {
    let (directory, base) = match load_object.rfind('/') {
        Some(slash) => load_object.split_at(slash + 1),
        None => ("./", load_object),
    };
    let mut name = String::new();
    if base.len() > MAX_BASE_BYTES {
        // A cut within a character moves to its beginning, so that the name stays text. gprofng
        // cuts at the byte, so it does not find such a copy.
        let end = (0..=CUT_BASE_BYTES)
            .rev()
            .find(|end| base.is_char_boundary(*end));
        name.push_str(&base[..end.unwrap_or(0)]);
        name.push('_');
        push_hash(&mut name, directory);
        name.push('_');
        push_hash(&mut name, base);
    } else {
        name.push_str(base);
        name.push('_');
        push_hash(&mut name, directory);
    }
    name
}

/// Appends a CRC-64 in base 64, the least significant digit first.
fn push_hash(name: &mut String, text: &str) {
    let mut crc = 0u64;
    for byte in text.bytes() {
        crc ^= u64::from(byte) << 56;
        for _ in 0..8 {
            let carry = crc >> 63 != 0;
            crc <<= 1;
            if carry {
                crc ^= POLYNOMIAL;
            }
        }
    }
    for digit in 0..HASH_DIGITS {
        name.push(char::from(DIGITS[(crc >> (6 * digit)) as usize % 64]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_that_gprofng_looks_for() {
        for (path, name) in [
            ("vmlinux", "vmlinux_dbrs1000000"),
            ("./x", "x_dbrs1000000"),
            ("/x", "x_dzn00000000"),
            ("/boot/vmlinux", "vmlinux_djjHThRTX50"),
            (
                "/usr/lib/x86_64-linux-gnu/libc.so.6",
                "libc.so.6_dnWuQRcLhw9",
            ),
            ("/usr/bin/ls", "ls_UHyILZt997d"),
        ] {
            assert_eq!(archive_name(path), name);
        }
    }

    #[test]
    fn a_long_base_name_is_cut_and_stays_distinct() {
        let long = |last| format!("/boot/{}{last}", "x".repeat(300));
        let name = archive_name(&long('a'));
        assert_eq!(name.len(), 231 + 1 + 11 + 1 + 11);
        assert_ne!(name, archive_name(&long('b')));
        assert_eq!(archive_name(&"x".repeat(243)).len(), 255);
        assert!(archive_name(&"é".repeat(200)).len() <= 255);
    }
}
