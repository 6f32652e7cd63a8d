//! The failure of BPF programs that cannot be loaded: one line, and the verifier's log in a file.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, fchown};
use std::path::{Path, PathBuf};

use bpf::Refusal;
use host::exit::{ExitKind, Failure};
use host::machine::sudo_user;
use nix::unistd::geteuid;

const LOG_NAME: &str = "kcollect-verifier.log";

/// The failure of an error of the BPF programs. If these could not be loaded, what the verifier
/// printed goes into a file, whose name is in the message.
pub fn bpf_failure(error: bpf::Error) -> Failure {
    let kind = if error.is_permission() {
        ExitKind::NoPerm
    } else {
        ExitKind::Unavailable
    };
    match &error {
        bpf::Error::Load(refusal) => {
            let directories = [PathBuf::from("."), std::env::temp_dir()];
            let saved = save_log(refusal, &directories);
            Failure::new(
                kind,
                load_message(&error.to_string(), saved),
                refusal.remedy,
            )
        }
        _ => Failure::new(
            kind,
            error.to_string(),
            "`kcollect doctor` says what is missing",
        ),
    }
}

fn load_message(error: &str, saved: Option<io::Result<PathBuf>>) -> String {
    match saved {
        None => error.to_owned(),
        Some(Ok(path)) => format!("{error} (the log is in {})", path.display()),
        Some(Err(why)) => format!("{error} (the log cannot be written: {why})"),
    }
}

/// Writes the log of a refusal into the first directory that permits it. None: there is no log.
fn save_log(refusal: &Refusal, directories: &[PathBuf]) -> Option<io::Result<PathBuf>> {
    if refusal.log.trim().is_empty() {
        return None;
    }
    let mut last = Err(io::ErrorKind::NotFound.into());
    for directory in directories {
        last = save(directory, &refusal.log);
        if last.is_ok() {
            break;
        }
    }
    Some(last)
}

fn save(directory: &Path, log: &str) -> io::Result<PathBuf> {
    let path = directory.join(LOG_NAME);
    let mut file = match create(&path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            // The log of an earlier start. A link or another user's file stays as it is.
            let there = fs::symlink_metadata(&path)?;
            if !there.is_file() || there.uid() != geteuid().as_raw() {
                return Err(error);
            }
            fs::remove_file(&path)?;
            create(&path)?
        }
        created => created?,
    };
    file.write_all(log.as_bytes())?;
    if let Some(owner) = sudo_user() {
        fchown(&file, Some(owner.uid), Some(owner.gid))?;
    }
    Ok(path)
}

/// Creates a file that only its owner can read. Fails if anything exists there, such as a link.
fn create(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600).open(path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn refusal(log: &str) -> Refusal {
        Refusal {
            reason: "the verifier refused program x: no".to_owned(),
            remedy: "report this",
            is_permission: false,
            log: log.to_owned(),
        }
    }

    #[test]
    fn the_log_is_in_a_private_file() {
        let directory = tempfile::tempdir().unwrap();
        let directories = [directory.path().to_owned()];
        for log in ["first\nlog", "second"] {
            let path = save_log(&refusal(log), &directories).unwrap().unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), log);
            assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        }
        assert!(save_log(&refusal(" \n"), &directories).is_none());
    }

    #[test]
    fn links_are_not_followed() {
        let outer = tempfile::tempdir().unwrap();
        let (first, second) = (outer.path().join("a"), outer.path().join("b"));
        fs::create_dir(&first).unwrap();
        fs::create_dir(&second).unwrap();
        let victim = outer.path().join("victim");
        fs::write(&victim, "untouched").unwrap();
        symlink(&victim, first.join(LOG_NAME)).unwrap();
        let path = save_log(&refusal("log"), &[first, second.clone()]);
        assert_eq!(path.unwrap().unwrap(), second.join(LOG_NAME));
        assert_eq!(fs::read_to_string(&victim).unwrap(), "untouched");
    }

    #[test]
    fn the_message_is_one_line() {
        let message = |saved| load_message("no BPF", saved);
        assert_eq!(message(None), "no BPF");
        assert_eq!(
            message(Some(Ok("./x.log".into()))),
            "no BPF (the log is in ./x.log)"
        );
    }
}
