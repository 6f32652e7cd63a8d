//! Files have their names although the process did not open the descriptors itself: processes share
//! a table, or a descriptor came from another process.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use tempfile::TempDir;
use tests::command::run;
use tests::kcollect::{command, record};
use tests::machine::Shared;

const LIMIT: Duration = Duration::from_secs(60);
/// The program (`workloads/shared_files.c`).
const SHARED_FILES: &str = env!("SHARED_FILES_PROGRAM");

/// Records the program in one of its ways, and checks that each of its reads is in the file that it
/// was of.
fn judge(way: &str) -> Result<()> {
    let _machine = Shared::take()?;
    let directory = TempDir::new()?;
    let path = directory.path().to_str().context("a path that is text")?;
    let load = [SHARED_FILES, way, path];
    let options = ["-i", "on", "-F", "load", "--descendants"];
    let recorded = record(&options, &load, LIMIT)?;
    let mut truth = BTreeMap::<String, u64>::new();
    for line in recorded.finished.stdout.lines() {
        let said = line.strip_prefix("reads ");
        if let Some((count, file)) = said.and_then(|said| said.split_once(' ')) {
            *truth.entry(file.to_owned()).or_default() += count.parse::<u64>()?;
        }
    }
    ensure!(!truth.is_empty(), "{}", recorded.finished);
    let mut report = command(["report".as_ref(), recorded.experiment()?.as_os_str()])?;
    let text = run(report.args(["files", "--json"]), LIMIT)?
        .succeeded()?
        .stdout;
    let table: Value = serde_json::from_str(&text)?;
    let rows = table["rows"].as_array().context("no rows")?;
    let found: BTreeMap<String, u64> = rows
        .iter()
        .filter_map(|row| {
            let reads = row["ioreadcnt"].as_u64().filter(|reads| *reads > 0)?;
            Some((row["file"].as_str()?.to_owned(), reads))
        })
        .filter(|(file, _)| file.starts_with(path) || file.starts_with("fd "))
        .collect();
    ensure!(
        found == truth,
        "{way}: reads of {found:?}, and the program made {truth:?}: {rows:#?}"
    );
    Ok(())
}

#[test]
fn root_files_of_a_table_that_processes_share_have_their_names() -> Result<()> {
    judge("cloned")
}

#[test]
fn root_files_of_a_thread_with_its_own_table_have_their_names() -> Result<()> {
    judge("thread")
}

#[test]
fn root_a_file_that_came_in_a_message_has_its_name() -> Result<()> {
    judge("passed")
}

#[test]
fn root_a_file_that_was_taken_from_another_process_has_its_name() -> Result<()> {
    judge("getfd")
}

#[test]
fn root_a_file_that_came_after_an_exec_has_its_name() -> Result<()> {
    judge("exec")
}
