//! A disk that fails while it is written to: it becomes read-only, or every access fails. The
//! recording ends at once with an error that says so; what was written until then is a valid
//! experiment.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tests::command::Running;
use tests::experiment;
use tests::experiment::opened::opened;
use tests::kcollect::{command, experiment_in};
use tests::machine::Shared;
use tests::machine::loaded::Loaded;
use tests::machine::loop_disk::LoopDisk;

use crate::words_of;

const IO_ERROR: i32 = 74;
const LIMIT: Duration = Duration::from_secs(30);

/// The fewest ticks that are in the file before the disk fails.
const MIN_TICKS: u64 = 300;

#[test]
fn root_a_disk_that_becomes_read_only() -> Result<()> {
    fails(LoopDisk::protect, libc::EROFS)
}

#[test]
fn root_a_disk_that_fails() -> Result<()> {
    fails(LoopDisk::fail, libc::EIO)
}

fn fails(fail: impl FnOnce(&LoopDisk) -> Result<()>, errno: i32) -> Result<()> {
    let _machine = Shared::take()?;
    let before = Loaded::now()?;
    let disk = LoopDisk::make()?;
    let mut command = command(["-p", "hi", "-x", "off", "-F", "on", "-t", "20"])?;
    let mut running = Running::start(command.current_dir(disk.path()), LIMIT)?;
    let mut written = 0;
    running.until("that many ticks", || {
        written = experiment_in(disk.path())
            .and_then(|path| experiment::ticks(&path))
            .unwrap_or(0);
        written >= MIN_TICKS
    })?;
    // What has been written by now is on the disk after it.
    fail(&disk)?;
    let finished = running.finish()?;
    ensure!(finished.code() == IO_ERROR, "{finished}");
    ensure!(
        finished.stderr.contains(&words_of(errno)),
        "it does not say what failed: {finished}"
    );
    ensure!(
        finished.elapsed < Duration::from_secs(10),
        "it went on for {:?}",
        finished.elapsed
    );
    disk.again()?;
    let experiment = experiment_in(disk.path())?;
    let opened = opened(&experiment).with_context(|| finished.to_string())?;
    ensure!(
        opened.ticks >= written,
        "{} ticks are left where {written} were: {finished}",
        opened.ticks
    );
    before.nothing_more()
}
