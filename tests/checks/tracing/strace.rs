//! I/O (`-i`) against strace, which runs while kcollect records: in third-party programs, both
//! count each call equally often, and as failed equally often.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;
use tests::machine::Shared;
use tests::strace::{calls_before, differences};

const TEN_PROGRAMS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/workloads/ten_programs.sh");

#[test]
fn root_every_call_of_ten_programs_is_as_strace_has_it() -> Result<()> {
    let _machine = Shared::take()?;
    let directory = TempDir::new()?;
    let before = calls_before()?;
    let path = Path::new(directory.path()).to_str().context("no UTF-8")?;
    let (traced, mut different) = differences(&["sh", TEN_PROGRAMS, path])?;
    let first = traced.programs.first_key_value().context("no program")?.0;
    let own = different.remove(first).unwrap_or_default();
    ensure!(own == before, "{own:?} of the shell, not {before:?}");
    let calls = traced.calls();
    let wrong = different.iter().map(|(tid, counts)| {
        let program = traced.programs.get(tid).map_or("a thread", String::as_str);
        format!("{tid} {program}: {counts:?}")
    });
    let wrong: Vec<_> = wrong.collect();
    ensure!(
        wrong.is_empty(),
        "of {calls} calls differ:\n{}",
        wrong.join("\n")
    );
    ensure!(calls > 1000, "strace has {calls} calls");
    Ok(())
}
