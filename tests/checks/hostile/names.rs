//! Names that are meant to do harm wherever a process has one: of its file, its directory, itself,
//! its arguments and its control group. They are in the experiment, and nothing that is printed has
//! a control character of theirs, or is no longer XML or JSON.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tests::command::{Finished, Running, run};
use tests::experiment::files_below;
use tests::experiment::opened::opened;
use tests::kcollect::{Recording, command};
use tests::machine::Shared;
use tests::machine::cgroup::Quota;
use tests::machine::disturbance::not_judged;
use tests::workload::proctorture::{PROCTORTURE, name_action, pid};

const LIMIT: Duration = Duration::from_secs(60);

/// A name with escape sequences that set the terminal's title and clear it, special characters of
/// XML and JSON, an end of CDATA, bytes that are not UTF-8, a CSI of C1, and characters that
/// reverse or hide others.
const HOSTILE: &[u8] =
    b"nasty\x1b]0;title\x07\x1b[2J\n\r\t\x08<&\"'>]]>\\%s\xff\xc3(\xc2\x9b31m\xe2\x80\xae\xe2\x80\x8b\xe2\x80\xa8";

/// The same for a control group, in whose name the kernel permits no newline.
const GROUP: &str = "nasty\u{1b}[2J<&\"'>]]>\\\u{9b}31m\u{202e}\u{200b}";

/// Views that show names of processes, files and places.
const VIEWS: [&[&str]; 6] = [
    &["header"],
    &["processes"],
    &["threads"],
    &["objects"],
    &["functions"],
    &["functions", "--json"],
];

/// Checks that a text has no control characters.
fn harmless(what: &str, text: &str) -> Result<()> {
    let bad = |character: &char| {
        (character.is_control() && *character != '\n')
            || "\u{202e}\u{200b}\u{2028}\u{fffd}".contains(*character)
    };
    if let Some(character) = text.chars().find(bad) {
        let line = text.lines().find(|line| line.contains(character));
        anyhow::bail!("{what} has {character:?}, in {line:?}");
    }
    Ok(())
}

fn harmless_output(what: &str, finished: &Finished) -> Result<()> {
    harmless(what, &finished.stdout)?;
    harmless(what, &finished.stderr)
}

#[test]
fn root_hostile_names_are_harmless_everywhere() -> Result<()> {
    let _machine = Shared::take()?;
    let parent = tempfile::tempdir()?;
    let hostile = OsStr::from_bytes(HOSTILE);
    let directory = parent.path().join(hostile);
    fs::create_dir(&directory)?;
    let program = directory.join(hostile);
    fs::copy(PROCTORTURE, &program)?;
    let group = Quota::of_container(GROUP);
    if let Err(error) = &group {
        not_judged(format_args!("no group of a hostile name: {error:#}"));
    }

    let mut recording = Recording::start(["-p", "hi", "-F", "=nasty.*"], LIMIT)?;
    recording.until_running()?;
    let mut word = OsString::from("say:");
    word.push(hostile);
    let name = name_action(&HOSTILE[..15]);
    let mut load = Command::new(&program);
    load.arg0(hostile).args(["sleep:100", &name]).arg(word);
    load.args(["one:400"]).current_dir(&directory);
    let load = Running::start(&mut load, LIMIT)?;
    if let Ok(group) = &group {
        group.take(pid(&load))?;
    }
    let pid = pid(&load);
    load.finish()?.succeeded()?;
    let recorded = recording.stop()?;
    harmless_output("the summary", &recorded.finished)?;

    let experiment = recorded.experiment()?;
    ensure!(opened(&experiment)?.closed, "{}", recorded.finished);
    let text = fs::read_to_string(experiment.join("kcollect.json"))?;
    harmless("kcollect.json", &text)?;
    let summary: serde_json::Value = serde_json::from_str(&text)?;
    let rows = summary["followed"]["processes"].as_array();
    let row = rows.into_iter().flatten().find(|row| row["pid"] == pid.0);
    let row = row.with_context(|| format!("{pid} was not followed"))?;
    ensure!(row["ticks"].as_u64() > Some(200), "{row}");
    let name = row["experiment"].as_str().context("its experiment")?;
    for path in files_below(&experiment)? {
        let path = path.strip_prefix(&experiment)?;
        let text = path.to_str().with_context(|| format!("{path:?}"))?;
        harmless("the name of a file", text)?;
    }
    for experiment in [&experiment, &experiment.join(name)] {
        let log = fs::read_to_string(experiment.join("log.xml"))?;
        harmless("log.xml", &log)?;
        for view in VIEWS {
            let mut report = command(["report".as_ref(), experiment.as_os_str()])?;
            let finished = run(report.args(view), LIMIT)?;
            harmless_output(&format!("report {view:?}"), &finished)?;
            ensure!([0, 65].contains(&finished.code()), "{finished}");
        }
    }
    let mut header = command(["report".as_ref(), experiment.join(name).as_os_str()])?;
    let header = run(header.arg("header"), LIMIT)?.succeeded()?;
    ensure!(header.stdout.contains("nasty"), "it has no name: {header}");
    Ok(())
}
