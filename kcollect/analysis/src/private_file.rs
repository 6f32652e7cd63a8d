//! Writes files with data of an experiment, as private as the experiment.
//!
//! A file is written next to its place and moved there when complete, so no partial file is ever
//! seen, an existing file survives a failure, and no link is followed.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt as _, fchown};
use std::path::Path;

/// Writes a file that only the owner of the experiment can read. Only root can give a file to
/// another user; for all others it stays their own.
///
/// # Errors
/// When it cannot be written, or `write` fails: then what was there stays.
pub(crate) fn write(
    path: &Path,
    experiment: &Path,
    write: impl FnOnce(&File) -> io::Result<()>,
) -> io::Result<()> {
    let directory = match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    // Its mode is 0600.
    let file = tempfile::Builder::new()
        .prefix(".kcollect-")
        .tempfile_in(directory)?;
    if nix::unistd::geteuid().is_root() {
        let owner = fs::metadata(experiment)?;
        fchown(file.as_file(), Some(owner.uid()), Some(owner.gid()))?;
    }
    write(file.as_file())?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::fs::{PermissionsExt as _, chown};

    use super::*;

    #[test]
    fn a_file_is_private_and_replaced_whole() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("a.html");
        let put = |to: &Path, text: &str| {
            write(to, directory.path(), |mut file| {
                file.write_all(text.as_bytes())
            })
        };
        for text in ["one", "another"] {
            put(&file, text).unwrap();
            assert_eq!(fs::read_to_string(&file).unwrap(), text);
            // One that everybody could read is replaced too.
            fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        }
        put(&file, "last").unwrap();
        let mode = fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(put(&directory.path().join("none/a.html"), "").is_err());
        let failed = write(&file, directory.path(), |_| Err(io::Error::other("full")));
        assert!(failed.is_err());
        assert_eq!(fs::read_to_string(&file).unwrap(), "last");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn root_s_file_belongs_to_the_owner_of_the_experiment() {
        let directory = tempfile::tempdir().unwrap();
        let experiment = directory.path().join("a.er");
        fs::create_dir(&experiment).unwrap();
        // Others cannot change the owner, and their file is their own.
        let owner = if nix::unistd::geteuid().is_root() {
            4321
        } else {
            nix::unistd::geteuid().as_raw()
        };
        chown(&experiment, Some(owner), None).unwrap();
        let file = directory.path().join("a.svg");
        write(&file, &experiment, |_| Ok(())).unwrap();
        assert_eq!(fs::metadata(&file).unwrap().uid(), owner);
    }
}
