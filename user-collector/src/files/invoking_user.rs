//! The rights of the user who called kcollect, perhaps through sudo.
//!
//! The experiment belongs to that user, but the collector runs as root. A copy discloses the file,
//! and paths come from files of any user: a program may claim that its source is `/etc/shadow`. So
//! a file is copied only if its mode permits that user to read it, and a path is resolved only
//! through directories that the user may search. Access control lists are not read. A file that is
//! readable only by its list is not copied. A list that forbids what the mode permits is not
//! noticed either; on Linux the group bits of the mode are then the list's mask.

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path};

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;

use super::reopen;

/// The user who called kcollect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvokingUser {
    /// User id; 0 may read everything.
    pub uid: u32,
    /// Ids of all groups of the user.
    pub groups: Vec<u32>,
}

impl InvokingUser {
    /// Returns whether the file's mode permits the user to read it.
    #[must_use]
    pub fn may_read(&self, file: &Metadata) -> bool {
        self.may(file, 4)
    }

    /// Returns whether the directory's mode permits the user to search it.
    #[must_use]
    pub fn may_search(&self, directory: &Metadata) -> bool {
        self.may(directory, 1)
    }

    /// Returns whether the mode has a bit for the user. As in the kernel, one of the three groups
    /// of bits decides, also if another one would permit more.
    fn may(&self, file: &Metadata, bit: u32) -> bool {
        let shift = if file.uid() == self.uid {
            6
        } else if self.groups.contains(&file.gid()) {
            3
        } else {
            0
        };
        self.uid == 0 || file.mode() >> shift & bit != 0
    }

    /// Opens a regular file for reading, with the user's rights, below `root`.
    ///
    /// The path is absolute. A symbolic link in it is an error, since its target may change between
    /// two looks. A `..` removes the part before it.
    ///
    /// # Errors
    /// `PermissionDenied` where the user has no right; `InvalidInput` for other files than regular
    /// ones and for a path that is not absolute; and errors of the system.
    pub fn open(&self, root: BorrowedFd<'_>, path: &Path) -> io::Result<File> {
        let mut names = Vec::new();
        for component in path.components() {
            match component {
                Component::Normal(name) => names.push(name),
                Component::ParentDir => {
                    names.pop();
                }
                _ => {}
            }
        }
        let Some(last) = names.pop().filter(|_| path.is_absolute()) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        // Such a descriptor is not open: a device is not touched.
        let held = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let mut at: OwnedFd = root.try_clone_to_owned()?;
        for name in names {
            self.check(&at)?;
            at = openat(at.as_fd(), name, held | OFlag::O_DIRECTORY, Mode::empty())?;
        }
        self.check(&at)?;
        let file = File::from(openat(at.as_fd(), last, held, Mode::empty())?);
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        if !self.may_read(&metadata) {
            return Err(Errno::EACCES.into());
        }
        Ok(reopen(&file)?)
    }

    fn check(&self, directory: &OwnedFd) -> io::Result<()> {
        let metadata = File::from(directory.try_clone()?).metadata()?;
        if self.may_search(&metadata) {
            Ok(())
        } else {
            Err(Errno::EACCES.into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn user(uid: u32, groups: &[u32]) -> InvokingUser {
        InvokingUser {
            uid,
            groups: groups.to_vec(),
        }
    }

    #[test]
    fn one_of_the_three_groups_of_bits_decides() {
        let tmp = tempfile::tempdir().unwrap();
        let path = tmp.path().join("f");
        fs::write(&path, "x").unwrap();
        let of = |mode| {
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            fs::metadata(&path).unwrap()
        };
        let file = of(0o644);
        let (uid, gid) = (file.uid(), file.gid());
        let (owner, member, other) = (
            user(uid.max(1), &[gid]),
            user(uid + 7, &[3, gid]),
            user(uid + 7, &[gid + 7]),
        );
        assert!(member.may_read(&file) && other.may_read(&file));
        assert!(member.may_read(&of(0o640)) && !other.may_read(&of(0o640)));
        assert!(!other.may_read(&of(0o711)) && other.may_search(&of(0o711)));
        // The group is refused though all others are not.
        assert!(!member.may_read(&of(0o604)) && other.may_read(&of(0o604)));
        if uid != 0 {
            assert!(owner.may_read(&of(0o400)));
        }
        assert!(user(0, &[]).may_read(&of(0o000)));
    }

    #[test]
    fn a_path_is_resolved_as_the_user_and_without_links() {
        let tmp = tempfile::tempdir().unwrap();
        let root = File::open(tmp.path()).unwrap();
        let at = |name: &str| tmp.path().join(name);
        for dir in ["open", "closed"] {
            fs::create_dir(at(dir)).unwrap();
            fs::write(at(dir).join("f"), dir).unwrap();
            fs::set_permissions(at(dir).join("f"), Permissions::from_mode(0o644)).unwrap();
        }
        fs::set_permissions(tmp.path(), Permissions::from_mode(0o755)).unwrap();
        fs::set_permissions(at("open"), Permissions::from_mode(0o755)).unwrap();
        fs::set_permissions(at("closed"), Permissions::from_mode(0o700)).unwrap();
        symlink("open", at("link")).unwrap();
        symlink("f", at("open/link")).unwrap();
        let uid = fs::metadata(tmp.path()).unwrap().uid();
        let other = user(uid + 7, &[]);
        let open = |path: &str| other.open(root.as_fd(), Path::new(path));
        let text = |path: &str| io::read_to_string(open(path).unwrap()).unwrap();
        assert_eq!(text("/open/f"), "open");
        assert_eq!(text("/none/../open/./f"), "open");
        assert_eq!(text("/../open/f"), "open");
        let denied = open("/closed/f").unwrap_err();
        assert_eq!(denied.kind(), io::ErrorKind::PermissionDenied);
        for path in ["/link/f", "/open/link", "/open", "open/f", "/", "", "/none"] {
            assert!(open(path).is_err(), "{path}");
        }
    }
}
