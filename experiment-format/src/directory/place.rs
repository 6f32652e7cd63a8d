//! Where the directory is by now: whoever may write to its parent can rename or delete it.

use std::fs;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use nix::sys::stat::{fstat, stat};

use super::ExperimentDir;
use super::reopen::Identity;

/// Where the directory of an experiment is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// Where it was made.
    Here,
    /// It, or a directory above it, was renamed, and this is its path now.
    Moved(PathBuf),
    /// It was deleted.
    Gone,
}

impl ExperimentDir {
    /// Returns where it is by now. Where the system does not say, it is where it was made.
    pub fn place(&self) -> Place {
        let Ok(ours) = fstat(&self.fd) else {
            return Place::Here;
        };
        let named = stat(&self.path).map(|named| Identity::from(&named));
        if named == Ok(Identity::from(&ours)) {
            return Place::Here;
        }
        let link = format!("/proc/self/fd/{}", self.fd.as_raw_fd());
        match fs::read_link(link) {
            // Some file systems count no links of directories, but the kernel marks the name.
            Ok(path) if path.as_os_str().as_bytes().ends_with(b" (deleted)") => Place::Gone,
            Ok(path) => Place::Moved(path),
            Err(_) if ours.st_nlink == 0 => Place::Gone,
            Err(_) => Place::Here,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::directory::NameRequest;

    #[test]
    fn a_renamed_directory_is_found_and_a_deleted_one_is_gone() {
        let parent = tempfile::tempdir().unwrap();
        let parent = parent.path().canonicalize().unwrap();
        let above = parent.join("above");
        fs::create_dir(&above).unwrap();
        let request = NameRequest::Exactly("a.1.er".to_owned());
        let (dir, _) = ExperimentDir::create(&above, &request, None).unwrap();
        assert_eq!(dir.place(), Place::Here);
        fs::rename(above.join("a.1.er"), above.join("b")).unwrap();
        assert_eq!(dir.place(), Place::Moved(above.join("b")));
        // Another one of its name is not it.
        fs::create_dir(above.join("a.1.er")).unwrap();
        fs::rename(&above, parent.join("c")).unwrap();
        assert_eq!(dir.place(), Place::Moved(parent.join("c/b")));
        fs::remove_dir(parent.join("c/b")).unwrap();
        assert_eq!(dir.place(), Place::Gone);
    }
}
