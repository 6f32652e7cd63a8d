//! Programs of this machine, to be run in another: with the libraries that the loader says they
//! need, without what only debuggers read.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use tests::command::run;

const LIMIT: Duration = Duration::from_secs(30);

/// Returns the libraries of a program, and its loader: none for one that is linked statically.
///
/// # Errors
/// When ldd cannot be run.
pub(crate) fn libraries(program: &Path) -> Result<Vec<PathBuf>> {
    let output = run(Command::new("ldd").arg(program), LIMIT)?;
    Ok(parse(&output.stdout))
}

/// Parses lines such as `libz.so.1 => /lib/x86_64-linux-gnu/libz.so.1 (0x7f2bd62ad000)`, and
/// `/lib64/ld-linux-x86-64.so.2 (0x...)`.
fn parse(output: &str) -> Vec<PathBuf> {
    output
        .lines()
        .filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')))
        .map(PathBuf::from)
        .collect()
}

/// Returns a program's bytes without its debug information.
///
/// # Errors
/// When it cannot be read. A file that strip refuses is returned as it is.
pub(crate) fn stripped(program: &Path) -> Result<Vec<u8>> {
    let directory = tempfile::tempdir()?;
    let copy = directory.path().join("stripped");
    let mut strip = Command::new("strip");
    strip.args(["--strip-debug", "-o"]).arg(&copy).arg(program);
    let smaller = run(&mut strip, LIMIT).is_ok_and(|finished| finished.code() == 0);
    let path = if smaller { &copy } else { program };
    fs::read(path).with_context(|| path.display().to_string())
}
