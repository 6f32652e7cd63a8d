//! A file that a process announces as its perf map or jitdump is a pipe, a link, a device or a
//! sparse file of 1 TiB: it is refused with the reason, and nothing waits for it or reads on.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tests::command::Running;
use tests::experiment::files_below;
use tests::experiment::opened::opened;
use tests::kcollect::Recording;
use tests::machine::Shared;
use tests::workload::proctorture::PROCTORTURE;

const LIMIT: Duration = Duration::from_secs(60);

/// The action of each process: it exists for several readings of its files.
const LIFE: &str = "jit:700";

/// What is in the file's place, and the cause for which it is refused.
const DUMPS: [(&str, &str); 4] = [
    ("dump:pipe", "not_regular"),
    ("dump:link", "not_regular"),
    ("dump:device", "not_regular"),
    ("dump:sparse", "jitdump"),
];

/// Starts a shell in a directory; `$0` is the program.
fn shell(script: &str, directory: &Path) -> Result<Running> {
    let mut command = Command::new("sh");
    command.args(["-c", script, PROCTORTURE]);
    Running::start(command.current_dir(directory), LIMIT)
}

#[test]
fn root_special_files_are_no_jit_maps() -> Result<()> {
    let _machine = Shared::take()?;
    let directory = tempfile::tempdir()?;
    let mut recording = Recording::start(["-p", "hi", "-F", "=proctorture"], LIMIT)?;
    recording.until_running()?;
    let mut due = Vec::new();
    for (action, cause) in DUMPS {
        let mut command = Command::new(PROCTORTURE);
        command.args([action, LIFE]).current_dir(directory.path());
        due.push((Running::start(&mut command, LIMIT)?, cause));
    }
    let device = "mknod /tmp/perf-$$.map c 1 5 && exec $0 jit:700";
    due.push((shell(device, directory.path())?, "not_regular"));
    let mut refusals = Vec::new();
    for (running, cause) in due {
        let pid = running.pid();
        let finished = running.finish()?;
        let _ = fs::remove_file(format!("/tmp/perf-{pid}.map"));
        finished.succeeded()?;
        refusals.push((pid, cause));
    }
    let recorded = recording.stop()?;
    ensure!(
        recorded.finished.elapsed < Duration::from_secs(30),
        "{}",
        recorded.finished
    );
    let experiment = recorded.experiment()?;
    ensure!(opened(&experiment)?.closed, "{}", recorded.finished);
    let text = fs::read_to_string(experiment.join("kcollect.json"))?;
    let summary: serde_json::Value = serde_json::from_str(&text)?;
    let rows = summary["followed"]["processes"].as_array();
    let rows = rows.context("followed processes")?;
    for (pid, cause) in refusals {
        let row = rows.iter().find(|row| row["pid"] == pid.as_raw());
        let row = row.with_context(|| format!("{pid} was not followed"))?;
        let refusal = &row["jit"]["refusal_cause"];
        ensure!(refusal == cause, "{cause:?} was due: {row}");
    }
    let peak = summary["cost"]["peak_rss_bytes"].as_u64();
    ensure!(peak.is_some_and(|peak| peak < 256 << 20), "{peak:?} bytes");
    for path in files_below(&experiment)? {
        let length = fs::symlink_metadata(&path)?.len();
        let shadow = path.file_name() == Some(OsStr::new("shadow"));
        ensure!(length < 1 << 30 && !shadow, "{}", path.display());
    }
    Ok(())
}
