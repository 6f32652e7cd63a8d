//! Names of load objects, unique for each file, for `map.xml` and `archives/`.
//!
//! An experiment has one namespace of load objects, but paths are not unique: two containers may
//! have different files with the same path, and an upgrade replaces a file that still runs. With
//! the same name, the functions of one would be shown for the other.
//!
//! Names of files in `archives/` have a checksum instead of the directory, and another directory
//! with the same checksum is easily found. So these names are unique too, or the file of one load
//! object would replace another's.

use std::collections::{HashMap, HashSet};

use experiment_format::archive::archive_name;
use experiment_format::text::printable;

use crate::objects::without_mark;
use crate::space::{FileIdentity, MappedFile};

/// Longest name, bytes.
const MAX_NAME_BYTES: usize = 4096;
/// Bytes of a build id that are shown, as in short names of commits.
const SHOWN_BUILD_ID_BYTES: usize = 4;

/// What identifies a file: the path, and the build id or, without one, device and inode.
type FileKey = (Box<[u8]>, Box<[u8]>, FileIdentity);

/// The names of all load objects of a run.
#[derive(Clone, Debug, Default)]
pub struct ObjectNames {
    names: HashMap<FileKey, String>,
    /// Their names in `archives/`.
    taken: HashSet<String>,
}

impl ObjectNames {
    /// Returns an empty registry.
    #[must_use]
    pub fn new() -> ObjectNames {
        ObjectNames::default()
    }

    /// Reserves a name for something else that is archived, such as the kernel.
    pub fn reserve(&mut self, name: &str) {
        self.taken.insert(archive_name(name));
    }

    /// Returns the name of a file: the same for the same file, and a different one for each other
    /// file. Files with the same path are the same if their build ids are, or, without build ids,
    /// device and inode.
    ///
    /// The name is the path, without the kernel's ` (deleted)`, with `\xHH` for what is not
    /// printable. The second file with a path also has its build id, as `/usr/lib/libc.so.6 (build
    /// id 1234abcd)`, or else a number. A name has no back-quote, because gprofng never opens such
    /// a file. It does not begin with `<`, as names of functions without a file do, or with a
    /// character before `Unresolvable`, which gprofng ignores.
    pub fn name_of(&mut self, file: &MappedFile) -> &str {
        let identity = match &*file.build_id {
            [] => file.identity,
            _ => FileIdentity::default(),
        };
        let key = (
            without_mark(&file.path).into(),
            file.build_id.clone(),
            identity,
        );
        if !self.names.contains_key(&key) {
            let name = self.free_name(file);
            self.taken.insert(archive_name(&name));
            self.names.insert(key.clone(), name);
        }
        self.names.get(&key).map_or("", String::as_str)
    }

    fn free_name(&self, file: &MappedFile) -> String {
        let path = safe(&file.path);
        let shown = file.build_id.len().min(SHOWN_BUILD_ID_BYTES);
        let id = hex::encode(&file.build_id[..shown]);
        let with_id = (!id.is_empty()).then(|| format!("{path} (build id {id})"));
        let numbered = (2_u64..).map(|number| match id.as_str() {
            "" => format!("{path} ({number})"),
            id => format!("{path} (build id {id}, {number})"),
        });
        std::iter::once(path.clone())
            .chain(with_id)
            .chain(numbered)
            .find(|name| !self.taken.contains(&archive_name(name)))
            .unwrap_or_default()
    }
}

/// Returns a path as a name that gprofng can open.
fn safe(path: &[u8]) -> String {
    let mut name = printable(without_mark(path)).replace('`', "\\x60");
    if name.is_empty() {
        name.push('?');
    }
    if name.starts_with('<') {
        name.replace_range(..1, "\\x3C");
    }
    let mut after = name.chars();
    after.next();
    if after.as_str().starts_with("Unresolvable") {
        name.insert(0, '_');
    }
    if name.len() > MAX_NAME_BYTES {
        let end = (0..=MAX_NAME_BYTES)
            .rev()
            .find(|end| name.is_char_boundary(*end));
        name.truncate(end.unwrap_or(0));
    }
    name
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn file(path: &[u8], build_id: &[u8], inode: u64) -> MappedFile {
        MappedFile {
            path: path.into(),
            build_id: build_id.into(),
            identity: FileIdentity {
                device: 8,
                inode,
                generation: 0,
            },
        }
    }

    #[test]
    fn the_second_file_of_a_path_has_its_build_id() {
        let mut names = ObjectNames::new();
        let libc = "/usr/lib/libc.so.6";
        let host = file(libc.as_bytes(), &[1, 2, 3, 4, 5], 1);
        let container = file(libc.as_bytes(), &[0x12, 0x34, 0xab, 0xcd, 9], 2);
        let other = file(libc.as_bytes(), &[0x12, 0x34, 0xab, 0xcd, 7], 3);
        assert_eq!(names.name_of(&host), libc);
        assert_eq!(
            names.name_of(&container),
            "/usr/lib/libc.so.6 (build id 1234abcd)"
        );
        assert_eq!(
            names.name_of(&other),
            "/usr/lib/libc.so.6 (build id 1234abcd, 2)"
        );
        assert_eq!(names.name_of(&host), libc);
        let mut replaced = file(b"/usr/lib/libc.so.6 (deleted)", &[], 4);
        assert_eq!(names.name_of(&replaced), "/usr/lib/libc.so.6 (2)");
        replaced.path = (*b"/tmp/x (deleted)").into();
        assert_eq!(names.name_of(&replaced), "/tmp/x");
    }

    #[test]
    fn a_name_is_one_that_gprofng_opens() {
        for (path, name) in [
            (&b"/a\n`b`/\xff"[..], "/a\\x0A\\x60b\\x60/\\xFF"),
            (b"<x>", "\\x3Cx>"),
            (b"?Unresolvable", "_?Unresolvable"),
            (b"", "?"),
            (b" (deleted)", "?"),
            ("/opt/naïve dir/x".as_bytes(), "/opt/naïve dir/x"),
        ] {
            assert_eq!(ObjectNames::new().name_of(&file(path, &[], 1)), name);
        }
        let long = ObjectNames::new()
            .name_of(&file("é".repeat(9000).as_bytes(), &[], 1))
            .len();
        assert!(long <= MAX_NAME_BYTES);
    }

    #[test]
    fn a_reserved_name_is_not_given() {
        let mut names = ObjectNames::new();
        names.reserve("vmlinux");
        assert_eq!(names.name_of(&file(b"vmlinux", &[], 1)), "vmlinux (2)");
        // Two directories of one checksum: they differ by the bits of its polynomial.
        let (one, other) = ("/tmp/bbbbbbbbb/x", "/tmp/cbbbbbbje/x");
        assert_eq!(archive_name(one), archive_name(other));
        assert_eq!(names.name_of(&file(one.as_bytes(), &[], 1)), one);
        assert_eq!(
            names.name_of(&file(other.as_bytes(), &[], 2)),
            "/tmp/cbbbbbbje/x (2)"
        );
    }

    proptest! {
        #[test]
        fn names_differ_as_files_do(
            files in prop::collection::vec(
                (0_u8..3, prop::collection::vec(0_u8..2, 0..3), 0_u64..4), 1..30)
        ) {
            let mut names = ObjectNames::new();
            let mut given: HashMap<String, MappedFile> = HashMap::new();
            for (path, id, inode) in files {
                let inode = if id.is_empty() { inode } else { 0 };
                let file = file(&[b'/', b'`' + path], &id, inode);
                let name = names.name_of(&file).to_owned();
                prop_assert!(!name.contains('`') && !name.starts_with('<'));
                let first = given.entry(name).or_insert_with(|| file.clone());
                prop_assert_eq!(&*first, &file);
            }
        }
    }
}
