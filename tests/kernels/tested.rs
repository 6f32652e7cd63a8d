//! The list of kernels on which every check has passed: `kcollect doctor` has it, and the README.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

/// The list, for `kcollect doctor`.
const LIST: &str = "kcollect/src/doctor/tested_kernels.txt";
/// The README has it between these marks.
const MARKS: [&str; 2] = ["<!-- tested kernels -->", "<!-- end -->"];
/// An environment variable that is set where the list is to be written.
const WRITE: &str = "WRITE_TESTED";

/// Writes the list, if that is wanted.
///
/// # Errors
/// When a file cannot be written, or the README has no place for it.
pub(crate) fn write(releases: &[&str]) -> Result<()> {
    if std::env::var_os(WRITE).is_none() {
        return Ok(());
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    fs::write(root.join(LIST), releases.join("\n") + "\n")?;
    let readme = root.join("README.md");
    let text = fs::read_to_string(&readme)?;
    let [begin, end] = MARKS;
    let (head, rest) = text.split_once(begin).context(begin)?;
    let (_, tail) = rest.split_once(end).context(end)?;
    let list = releases.join(", ");
    fs::write(readme, format!("{head}{begin}\n{list}\n{end}{tail}"))?;
    Ok(())
}
