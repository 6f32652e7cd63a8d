//! The state of the directory: a user who may write to its parent can rename or delete it.

use std::fs;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use nix::sys::stat::{fstat, stat};

use super::ExperimentDir;
use super::reopen::Identity;

/// The state of an experiment's directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DirectoryState {
    /// It is where it was made.
    Unmoved,
    /// It, or a directory above it, was renamed, and this is its path now.
    Moved(PathBuf),
    /// It was deleted.
    Deleted,
}

impl ExperimentDir {
    /// Returns its state; [`DirectoryState::Unmoved`] where the system does not say.
    pub fn state(&self) -> DirectoryState {
        let Ok(ours) = fstat(&self.fd) else {
            return DirectoryState::Unmoved;
        };
        let named = stat(&self.path).map(|named| Identity::from(&named));
        if named == Ok(Identity::from(&ours)) {
            return DirectoryState::Unmoved;
        }
        let link = format!("/proc/self/fd/{}", self.fd.as_raw_fd());
        match fs::read_link(link) {
            // Some file systems count no links of directories, but the kernel marks the name.
            Ok(path) if path.as_os_str().as_bytes().ends_with(b" (deleted)") => {
                DirectoryState::Deleted
            }
            Ok(path) => DirectoryState::Moved(path),
            Err(_) if ours.st_nlink == 0 => DirectoryState::Deleted,
            Err(_) => DirectoryState::Unmoved,
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
        assert_eq!(dir.state(), DirectoryState::Unmoved);
        fs::rename(above.join("a.1.er"), above.join("b")).unwrap();
        assert_eq!(dir.state(), DirectoryState::Moved(above.join("b")));
        // Another one of its name is not it.
        fs::create_dir(above.join("a.1.er")).unwrap();
        fs::rename(&above, parent.join("c")).unwrap();
        assert_eq!(dir.state(), DirectoryState::Moved(parent.join("c/b")));
        fs::remove_dir(parent.join("c/b")).unwrap();
        assert_eq!(dir.state(), DirectoryState::Deleted);
    }
}
