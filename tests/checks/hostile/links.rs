//! Symbolic links in a directory of another user, at the place of each file that is written where
//! the command line says: what they lead to is not touched.

use std::fs;
use std::os::unix::fs::{chown, symlink};
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use tests::command::Finished;
use tests::kcollect::{experiment_in, run_in};
use tests::machine::Shared;

const LIMIT: Duration = Duration::from_secs(30);
const NOBODY: u32 = 65534;
const CANNOT_CREATE: i32 = 73;
const CONTENT: &str = "root's\n";

/// Runs a command that writes through the link `his/NAME`, which leads to root's file.
fn attacked(directory: &Path, name: &str, arguments: &[&str]) -> Result<Finished> {
    let (file, his) = (directory.join("roots"), directory.join("his"));
    fs::write(&file, CONTENT)?;
    let _ = fs::remove_dir_all(&his);
    fs::create_dir(&his)?;
    symlink(&file, his.join(name))?;
    chown(&his, Some(NOBODY), None)?;
    let finished = run_in(directory, arguments, LIMIT)?;
    let content = fs::read_to_string(&file)?;
    ensure!(content == CONTENT, "{content:?} after {finished}");
    Ok(finished)
}

#[test]
fn root_links_of_another_user_are_not_written_through() -> Result<()> {
    let _machine = Shared::take()?;
    let directory = tempfile::tempdir()?;
    let directory = directory.path();
    let recording = ["-A", "off", "-F", "off", "-t", "0.3", "-o", "a.1.er"];
    run_in(directory, &recording, LIMIT)?.succeeded()?;
    let experiment = experiment_in(directory)?;
    let experiment = experiment.to_string_lossy();

    // A file that is added to is refused.
    for (name, option) in [("out", "-O"), ("group.erg", "-g")] {
        let path = format!("his/{name}");
        let arguments = [
            &["-F", "off", "-A", "off", "-t", "0.3", "-d", "his"],
            &[option, &path][..],
        ];
        let finished = attacked(directory, name, &arguments.concat())?;
        ensure!(finished.code() == CANNOT_CREATE, "{finished}");
    }
    let finished = attacked(directory, "out", &["track", "-o", "his/out", "--", "true"])?;
    ensure!(finished.code() == CANNOT_CREATE, "{finished}");
    // One that is made anew takes the place of the link.
    for arguments in [
        &["view", &experiment, "-o", "his/out"][..],
        &["flame", &experiment, "-o", "his/out"],
        &["export", &experiment, "--to", "folded", "-o", "his/out"],
    ] {
        attacked(directory, "out", arguments)?.succeeded()?;
        ensure!(!directory.join("his/out").is_symlink(), "{arguments:?}");
    }
    Ok(())
}
