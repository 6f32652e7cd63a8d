//! The experiment's directory is renamed or deleted while it is written: the recording reports
//! where it is, or that it is deleted, and ends with a status of its own.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use experiment_format::Error;
use tests::experiment::opened::opened;
use tests::kcollect::{FinishedRecording, Recording, experiments_in};
use tests::machine::Shared;

const LIMIT: Duration = Duration::from_secs(30);
const IO_ERROR: i32 = 74;

fn recording(follow: &str) -> Result<Recording> {
    Recording::start(["-A", "off", "-F", follow, "-t", "20"], LIMIT)
}

/// Checks that kcollect says so in one line.
fn says(recorded: &FinishedRecording, words: &str) -> Result<()> {
    let finished = &recorded.finished;
    ensure!(finished.code() == IO_ERROR, "{finished}");
    let lines = finished.stderr.lines();
    let count = lines.filter(|line| line.contains(words)).count();
    ensure!(count == 1, "{words:?} {count} times: {finished}");
    Ok(())
}

#[test]
fn root_a_renamed_experiment_is_whole_and_its_place_is_said() -> Result<()> {
    let _machine = Shared::take()?;
    for follow in ["on", "off"] {
        let mut recording = recording(follow)?;
        let experiment = recording.until_running()?;
        let moved = experiment.with_file_name("moved.er");
        fs::rename(&experiment, &moved)?;
        recording.signal(nix::sys::signal::Signal::SIGINT)?;
        let recorded = recording.finish()?;
        says(&recorded, &moved.display().to_string())?;
        ensure!(opened(&moved)?.closed, "{}", recorded.finished);
    }
    Ok(())
}

#[test]
fn root_a_deleted_experiment_ends_the_recording() -> Result<()> {
    let _machine = Shared::take()?;
    for follow in ["on", "off"] {
        let mut recording = recording(follow)?;
        let experiment = recording.until_running()?;
        while fs::exists(&experiment)? {
            // kcollect may make another file in it meanwhile.
            let _ = fs::remove_dir_all(&experiment);
        }
        let recorded = recording.finish()?;
        let deleted = Error::Deleted {
            path: PathBuf::new(),
        };
        says(&recorded, &deleted.to_string())?;
        ensure!(
            recorded.finished.elapsed < Duration::from_secs(15),
            "{}",
            recorded.finished
        );
        let left = experiments_in(recorded.directory())?;
        ensure!(left.is_empty(), "{left:?}");
    }
    Ok(())
}
