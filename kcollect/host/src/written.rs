//! Files that are written where the user says so: of `-O`, `-g` and `-o`.
//!
//! The directory may be another user's, who could put a link to one of root's files there. So in a
//! directory that others can write to, no link is followed, and the file has to be a regular one
//! that belongs to the directory's owner, or one of this user that has no other name.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, open, openat};
use nix::sys::stat::{Mode, fstatat};
use nix::unistd::geteuid;

/// Opens a file to append to it; creates it if it does not exist.
///
/// # Errors
/// It can't be opened, or is not to be trusted.
pub fn append(path: &Path) -> io::Result<File> {
    open_trusted(path, OFlag::O_APPEND | OFlag::O_CREAT)
}

/// Opens a file to replace its content; creates it if it does not exist.
///
/// # Errors
/// As [`append`].
pub fn create(path: &Path) -> io::Result<File> {
    let file = open_trusted(path, OFlag::O_CREAT)?;
    // Only now: what is not to be trusted keeps its content. Others than regular files have none.
    if file.metadata()?.is_file() {
        file.set_len(0)?;
    }
    Ok(file)
}

/// Opens what is there, such as a pipe or a device, to write to it.
///
/// # Errors
/// As [`append`], and if nothing is there.
pub fn existing(path: &Path) -> io::Result<File> {
    open_trusted(path, OFlag::empty())
}

fn open_trusted(path: &Path, how: OFlag) -> io::Result<File> {
    let name = path.file_name().ok_or(io::ErrorKind::IsADirectory)?;
    let directory = match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let directory = File::from(open(directory, flags, Mode::empty())?);
    let place = directory.metadata()?;
    let own = geteuid().as_raw();
    let is_trusted = [0, own].contains(&place.uid()) && place.mode() & 0o022 == 0;

    let mut flags = OFlag::O_WRONLY | OFlag::O_CLOEXEC | how;
    if !is_trusted {
        flags |= OFlag::O_NOFOLLOW;
        // Another user's pipe is not waited for.
        let there = fstatat(&directory, name, AtFlags::AT_SYMLINK_NOFOLLOW);
        if !there.is_ok_and(|there| there.st_uid == own) {
            flags |= OFlag::O_NONBLOCK;
        }
    }
    let opened = openat(&directory, name, flags, Mode::from_bits_retain(0o644));
    let file = match opened {
        Ok(file) => File::from(file),
        Err(Errno::ELOOP) if !is_trusted => return Err(io::Error::other(LINK)),
        Err(error) => return Err(error.into()),
    };
    let metadata = file.metadata()?;
    let is_own = metadata.uid() == own && metadata.nlink() == 1;
    let is_owners = metadata.uid() == place.uid() && metadata.is_file();
    if is_trusted || is_own || is_owners {
        return Ok(file);
    }
    Err(io::Error::other(STRANGE))
}

const LINK: &str = "it is a symbolic link in a directory that other users can write to";
const STRANGE: &str =
    "it is no file of yours or of the owner of its directory, which other users can write to";

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::io::{Read, Write};
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn error(path: &Path) -> String {
        append(path).unwrap_err().to_string()
    }

    #[test]
    fn in_a_directory_of_others_links_and_pipes_are_refused() {
        let outer = tempfile::tempdir().unwrap();
        let (target, directory) = (outer.path().join("target"), outer.path().join("shared"));
        fs::write(&target, "root's").unwrap();
        fs::create_dir(&directory).unwrap();
        let path = |name: &str| directory.join(name);
        symlink(&target, path("link")).unwrap();
        fs::hard_link(&target, path("hard")).unwrap();
        nix::unistd::mkfifo(&path("pipe"), Mode::S_IRWXU).unwrap();

        fs::set_permissions(&directory, Permissions::from_mode(0o755)).unwrap();
        append(&path("link")).unwrap().write_all(b"!").unwrap();
        for text in ["one", " two"] {
            append(&path("new"))
                .unwrap()
                .write_all(text.as_bytes())
                .unwrap();
        }
        assert_eq!(fs::read_to_string(path("new")).unwrap(), "one two");

        fs::set_permissions(&directory, Permissions::from_mode(0o777)).unwrap();
        assert_eq!(error(&path("link")), LINK);
        // The own pipe is waited for until it has a reader.
        let reader = std::thread::spawn({
            let pipe = path("pipe");
            move || fs::read_to_string(pipe).unwrap()
        });
        existing(&path("pipe")).unwrap().write_all(b"?").unwrap();
        assert_eq!(reader.join().unwrap(), "?");
        for open in [create, existing] {
            assert_eq!(open(&path("link")).unwrap_err().to_string(), LINK);
        }
        append(&path("new")).unwrap().write_all(b"!").unwrap();
        create(&path("new")).unwrap().write_all(b"short").unwrap();
        assert_eq!(fs::read_to_string(path("new")).unwrap(), "short");
        let mut text = String::new();
        File::open(&target)
            .unwrap()
            .read_to_string(&mut text)
            .unwrap();
        assert_eq!(text, "root's!");
        if geteuid().is_root() {
            // The directory is another user's.
            std::os::unix::fs::chown(&directory, Some(4321), None).unwrap();
            // A pipe without a reader can't be opened; with one it is not this user's.
            std::os::unix::fs::chown(path("pipe"), Some(4321), None).unwrap();
            assert!(existing(&path("pipe")).is_err());
            let _reader = File::options()
                .read(true)
                .write(true)
                .open(path("pipe"))
                .unwrap();
            assert_eq!(existing(&path("pipe")).unwrap_err().to_string(), STRANGE);
            assert_eq!(error(&path("hard")), STRANGE);
            assert_eq!(create(&path("hard")).unwrap_err().to_string(), STRANGE);
            assert_eq!(fs::read_to_string(&target).unwrap(), "root's!");
            append(&path("new")).unwrap();
        }
        assert!(append(Path::new("/")).is_err());
        assert!(append(&outer.path().join("none/x")).is_err());
    }
}
