//! The files that programs have registered with `io_uring`, by their numbers. They need no
//! descriptor, so their paths come from the kernel (`bpf/c/io_file.h`).

use std::collections::HashMap;

use bpf_abi::IoFileRecord;
use bpf_abi::layout::PathEnd;

/// Max files that are kept. With more, all are dropped. The kernel sends one again when it has
/// seen many others, and until then it has no name.
const MAX_FILES: usize = 65_536;

/// The files of all processes.
#[derive(Debug, Default)]
pub struct RegisteredFiles {
    /// What a link in `/proc/PID/fd` to the file would have, by number.
    targets: HashMap<u64, Box<[u8]>>,
}

impl RegisteredFiles {
    /// Adds a file.
    pub fn add(&mut self, file: &IoFileRecord) {
        if self.targets.len() >= MAX_FILES && !self.targets.contains_key(&file.file) {
            self.targets.clear();
        }
        self.targets.insert(file.file, target(file).into());
    }

    /// Returns what a link in `/proc/PID/fd` to a file would have.
    pub(super) fn target(&self, file: u64) -> Option<&[u8]> {
        self.targets.get(&file).map(AsRef::as_ref)
    }
}

fn target(file: &IoFileRecord) -> Vec<u8> {
    let path = file.path.strip_suffix(b"/").unwrap_or(&file.path);
    let kind = file.mode & libc::S_IFMT;
    match file.end {
        PathEnd::Detached if kind == libc::S_IFSOCK => format!("socket:[{}]", file.inode).into(),
        PathEnd::Detached if kind == libc::S_IFIFO => format!("pipe:[{}]", file.inode).into(),
        PathEnd::Detached if path.starts_with(b"[") => [b"anon_inode:", path].concat(),
        PathEnd::Rooted if path.is_empty() => b"/".to_vec(),
        PathEnd::Cut | PathEnd::Rooted | PathEnd::Detached => {
            let beginning: &[u8] = match file.end {
                PathEnd::Cut => "…".as_bytes(),
                PathEnd::Rooted | PathEnd::Detached => b"",
            };
            let mut target = beginning.to_vec();
            for name in path.rsplit(|byte| *byte == b'/') {
                target.push(b'/');
                target.extend(name);
            }
            target
        }
    }
}

#[cfg(test)]
mod tests {
    use bpf_abi::RecordHeader;

    use super::*;

    fn record(path: &[u8], mode: u32, end: PathEnd) -> IoFileRecord {
        IoFileRecord {
            header: RecordHeader::default(),
            file: 5,
            inode: 77,
            mode,
            path: path.into(),
            end,
        }
    }

    #[test]
    fn a_file_has_the_name_of_a_link_to_it() {
        let name = |path: &[u8], mode, end| {
            let mut files = RegisteredFiles::default();
            files.add(&record(path, mode, end));
            String::from_utf8_lossy(files.target(5).unwrap()).into_owned()
        };
        use PathEnd::{Cut, Detached, Rooted};
        let (regular, directory) = (libc::S_IFREG | 0o600, libc::S_IFDIR | 0o755);
        assert_eq!(name(b"a b/tmp/", regular, Rooted), "/tmp/a b");
        assert_eq!(name(b"", directory, Rooted), "/");
        assert_eq!(name(b"c/b/a/", regular, Cut), "…/a/b/c");
        assert_eq!(name(b"/", libc::S_IFSOCK | 0o777, Detached), "socket:[77]");
        assert_eq!(name(b"/", libc::S_IFIFO | 0o600, Detached), "pipe:[77]");
        assert_eq!(name(b"queue/tmp/", libc::S_IFIFO, Rooted), "/tmp/queue");
        assert_eq!(name(b"[eventfd]/", 0o600, Detached), "anon_inode:[eventfd]");
        assert_eq!(name(b"memfd:x/", regular, Detached), "/memfd:x");
    }

    #[test]
    fn files_are_bounded() {
        let mut files = RegisteredFiles::default();
        for file in 0..=MAX_FILES as u64 {
            files.add(&IoFileRecord {
                file,
                ..record(b"a/", 0, PathEnd::Rooted)
            });
        }
        assert_eq!((files.target(0), files.targets.len()), (None, 1));
        assert_eq!(files.target(MAX_FILES as u64), Some(&b"/a"[..]));
    }
}
