//! `kcollect doctor` reports each requirement as it found it, with a hint if it is not met.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tests::command::{copy_program, run};
use tests::kcollect::{binary, command};
use tests::machine::Shared;

const LIMIT: Duration = Duration::from_secs(10);

/// A word for each thing that is examined.
const FINDINGS: [&str; 10] = [
    "privileges",
    "BTF",
    "lockdown",
    "perf_event_paranoid",
    "kernel symbols",
    "locked memory",
    "clock source",
    "kernel",
    "gprofng",
    "stolen time",
];

#[test]
fn root_a_machine_that_can_be_profiled() -> Result<()> {
    let _machine = Shared::take()?;
    let table = run(&mut command(["doctor"])?, LIMIT)?.succeeded()?.stdout;
    let json = run(&mut command(["doctor", "--json"])?, LIMIT)?
        .succeeded()?
        .stdout;
    let json: serde_json::Value = serde_json::from_str(&json)?;
    let findings = json["findings"].as_array().context("findings")?;
    for name in FINDINGS {
        ensure!(
            findings.iter().any(|finding| finding["name"] == name) && table.contains(name),
            "there is no finding {name}:\n{table}\n{json:#}"
        );
    }
    Ok(())
}

#[test]
fn root_an_unprivileged_user_reads_a_hint() -> Result<()> {
    let _machine = Shared::take()?;
    // A copy, since other users may not enter the directory of the build.
    let directory = tempfile::tempdir()?;
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755))?;
    let program = directory.path().join("kcollect");
    copy_program(binary()?, &program)?;
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(&program)
        .arg("doctor");
    let finished = run(command.current_dir(directory.path()), LIMIT)?;
    ensure!(finished.code() == 77, "{finished}");
    ensure!(
        finished.stdout.contains("hint") && finished.stdout.contains("sudo"),
        "no hint is named: {finished}"
    );
    Ok(())
}
