//! A repository with a large tree, the same on every machine, and a command that reads all of it.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use tests::machine::work_cpu;

use crate::load::bench;

/// How many files are in the tree, unless it is to be larger.
pub(crate) const FILES: u32 = 8000;

/// The number of commits; each changes all files.
pub(crate) const COMMITS: u32 = 6;

/// The number of files in a directory, and of directories in one above.
const FILES_IN_DIRECTORY: u32 = 20;
const DIRECTORIES_IN_DIRECTORY: u32 = 20;

const LINES: u32 = 30;

/// No other process packs the objects, and git fsck starts none for files that there are not.
const CONFIGURATION: [(&str, &str); 5] = [
    ("gc.auto", "0"),
    ("maintenance.auto", "false"),
    ("core.commitGraph", "false"),
    ("core.multiPackIndex", "false"),
    ("core.fsync", "none"),
];

/// Returns the repository in a directory, of `length` times as many files, which is made if it is
/// not there yet: it takes longer than the load, and the file system may slow down where as many
/// files are removed.
pub(crate) fn repository(place: &Path, length: u32) -> Result<PathBuf> {
    let path = place.join("repository");
    if path.exists() {
        return Ok(path);
    }
    let unfinished = place.join("unfinished");
    let git = |args: &[&str]| {
        let mut command = git(Command::new("git"), &unfinished);
        command.args(args);
        bench(command)
    };
    fs::create_dir(&unfinished)?;
    git(&["init", "-q", "--template="])?;
    for (name, value) in CONFIGURATION {
        git(&["config", name, value])?;
    }
    for commit in 0..COMMITS {
        write_tree(&unfinished, commit, length * FILES)?;
        git(&["add", "."])?;
        git(&["commit", "-q", "-m", "all"])?;
    }
    fs::rename(&unfinished, &path)?;
    Ok(path)
}

/// Returns the command that reads each object of a repository, each a file of its own, decompresses
/// it and computes its hash. It changes nothing, and starts no other program.
///
/// It says itself how long it took: a profiler that starts it has its own start and end.
pub(crate) fn check(repository: &Path) -> Result<Command> {
    let mut command = Command::new("taskset");
    command.args(["-c", &work_cpu()?.to_string(), "git"]);
    let mut command = git(command, repository);
    command.args(["fsck", "--full", "--no-progress", "--no-dangling"]);
    command.env("GIT_TRACE2", "2").env("GIT_TRACE2_BRIEF", "1");
    Ok(command)
}

/// Adds to a command that ends with the program that it works in a directory, and has no
/// configuration but its own.
fn git(mut command: Command, directory: &Path) -> Command {
    for (name, _) in env::vars_os() {
        if name.to_string_lossy().starts_with("GIT_") {
            command.env_remove(name);
        }
    }
    command.env("HOME", directory).env_remove("XDG_CONFIG_HOME");
    command
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null");
    for role in ["AUTHOR", "COMMITTER"] {
        command.env(format!("GIT_{role}_NAME"), "kcollect");
        command.env(format!("GIT_{role}_EMAIL"), "kcollect@localhost");
        command.env(format!("GIT_{role}_DATE"), "1700000000 +0000");
    }
    command.arg("-C").arg(directory);
    command
}

fn write_tree(root: &Path, commit: u32, files: u32) -> Result<()> {
    for file in 0..files {
        let directory = file / FILES_IN_DIRECTORY;
        let below = root
            .join(format!("d{}", directory / DIRECTORIES_IN_DIRECTORY))
            .join(format!("e{directory}"));
        if file % FILES_IN_DIRECTORY == 0 {
            fs::create_dir_all(&below)?;
        }
        fs::write(
            below.join(format!("f{file}.c")),
            source(file, file + commit * files),
        )?;
    }
    Ok(())
}

/// Returns lines with numbers that follow from the first.
fn source(file: u32, mut number: u32) -> String {
    let mut text = String::new();
    for line in 0..LINES {
        number = number.wrapping_mul(1_103_515_245).wrapping_add(12345);
        let _ = writeln!(
            text,
            "static int work_{file}_{line}(int value) {{ return value * {number}; }}"
        );
    }
    text
}
