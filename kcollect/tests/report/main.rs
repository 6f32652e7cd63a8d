//! Reports of small experiments that the tests write themselves: every view, filters, and what
//! damage leaves.

#![allow(
    clippy::unwrap_used,
    reason = "a helper of tests reports by panicking, as tests do"
)]

mod chains;
mod experiment;
mod files;
mod groups;
mod heap;
mod locks;
mod packed;
mod page;
mod period;
mod suffered;
mod waits;

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use analysis::aggregate::{Relatives, totals};
use analysis::filter::{Filter, Pattern, Selection};
use analysis::model::{Model, Sums};
use experiment::{SUB, made, made_as};

/// Runs it where the experiment is, so that no path of the machine is in its output.
fn kcollect(directory: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kcollect"))
        .env_remove("DEBUGINFOD_URLS")
        .args(arguments)
        .current_dir(directory)
        .output()
        .unwrap_or_else(|error| unreachable!("{error}"))
}

/// Returns what a command prints on its standard output. It has to succeed.
fn stdout(directory: &Path, arguments: &[&str]) -> String {
    let output = kcollect(directory, arguments);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn run(directory: &Path, arguments: &[&str]) -> Output {
    kcollect(directory, &[&["report"], arguments].concat())
}

/// Returns what a report prints on both streams.
fn printed(directory: &Path, arguments: &[&str]) -> String {
    let output = run(directory, arguments);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{arguments:?}: {errors}");
    String::from_utf8_lossy(&output.stdout).into_owned() + &errors
}

/// What a terminal shows of it: the command, all that it prints, and its exit status.
fn shown(directory: &Path, arguments: &[&str]) -> String {
    let output = run(directory, arguments);
    format!(
        "$ kcollect report {}\n{}{}exit status {}\n\n",
        arguments.join(" "),
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
        output.status.code().unwrap()
    )
}

#[test]
fn every_view_of_a_small_experiment() {
    let tmp = tempfile::tempdir().unwrap();
    made(tmp.path());
    let view = |arguments: &[&str]| printed(tmp.path(), arguments);
    insta::assert_snapshot!(
        "functions",
        view(&["-m", "e.user:e.%total:i.total:e.kcpu:name"])
    );
    insta::assert_snapshot!("functions_by_default", view(&["ktest.3.er", "functions"]));
    insta::assert_snapshot!("functions_unnamed", view(&["ktest.3.er", "--unnamed"]));
    insta::assert_snapshot!("triage", view(&["ktest.3.er"]));
    insta::assert_snapshot!("triage_json", view(&["ktest.3.er", "--json", "-n", "1"]));
    insta::assert_snapshot!("triage_csv", view(&["ktest.3.er", "--csv"]));
    insta::assert_snapshot!("objects", view(&["ktest.3.er", "objects", "-s", "name"]));
    insta::assert_snapshot!("threads", view(&["ktest.3.er", "threads"]));
    insta::assert_snapshot!(
        "threads_by_ticks",
        view(&["ktest.3.er", "threads", "-m", "e.total:e.kcpu"])
    );
    insta::assert_snapshot!("processes", view(&["ktest.3.er", "processes"]));
    insta::assert_snapshot!(
        "processes_by_ticks",
        view(&["ktest.3.er", "processes", "-m", "e.total:e.kcpu"])
    );
    insta::assert_snapshot!(
        "cpus",
        view(&["ktest.3.er", "cpus", "-m", "e.total:e.kcpu"])
    );
    let merge = [
        "ktest.3.er",
        "callers-callees",
        "merge",
        "-m",
        "i.%total:e.user",
    ];
    insta::assert_snapshot!("callers_callees", view(&merge));
    insta::assert_snapshot!("calltree", view(&["ktest.3.er", "calltree"]));
    insta::assert_snapshot!(
        "calltree_cut",
        view(&[
            "ktest.3.er",
            "calltree",
            "-m",
            "i.%user",
            "--depth",
            "3",
            "--percent",
            "40",
            "--csv"
        ])
    );
    insta::assert_snapshot!("samples", view(&["ktest.3.er", "samples"]));
    insta::assert_snapshot!("samples_json", view(&["ktest.3.er", "samples", "--json"]));
    insta::assert_snapshot!(
        "statistics",
        view(&["ktest.3.er", "statistics", "--process", "sort"])
    );
    insta::assert_snapshot!("overview", view(&["ktest.3.er", "overview"]));
    insta::assert_snapshot!("header", view(&["ktest.3.er", "header"]));
    insta::assert_snapshot!("experiments", view(&["ktest.3.er", "experiments"]));
    insta::assert_snapshot!(
        "csv",
        view(&["ktest.3.er", "functions", "--csv", "-n", "3"])
    );
    insta::assert_snapshot!(
        "json",
        view(&["ktest.3.er", "--json", "-n", "1", "-m", "e.user"])
    );
}

#[test]
fn two_experiments_are_compared() {
    let tmp = tempfile::tempdir().unwrap();
    made(tmp.path());
    made_as(tmp.path(), "ktest.4.er", 30);
    let view = |arguments: &[&str]| {
        let both = ["--compare", "ktest.3.er", "ktest.4.er"];
        printed(tmp.path(), &[&both, arguments].concat())
    };
    insta::assert_snapshot!("compare", view(&[]));
    insta::assert_snapshot!(
        "compare_functions_csv",
        view(&["functions", "-m", "i.user", "--csv"])
    );
    insta::assert_snapshot!(
        "compare_processes_json",
        view(&["processes", "-m", "e.user", "--json"])
    );
    insta::assert_snapshot!("compare_overview", view(&["overview"]));
}

#[test]
fn filters_leave_what_passes_all_of_them() {
    let tmp = tempfile::tempdir().unwrap();
    made(tmp.path());
    let total = |filter: &[&str]| {
        let arguments = [&["ktest.3.er", "overview", "--csv", "--ticks"], filter].concat();
        let text = printed(tmp.path(), &arguments);
        let line = text
            .lines()
            .find(|line| line.starts_with("total,"))
            .unwrap()
            .to_owned();
        let seconds: f64 = line.rsplit(',').next().unwrap().parse().unwrap();
        (seconds * 1e6 / 10_007.0).round() as i64
    };
    for (filter, ticks) in [
        (&[][..], 135),
        (&["--process", "7"], 43),
        (&["--process", "^kw"], 92),
        (&["--process", "%2"], 43),
        (&["--process", "7", "--process", "3"], 135),
        (&["--thread", "3"], 92),
        (&["--cpu", "1"], 43),
        (&["--state", "user,wait"], 37),
        (&["--state", "totalcpu"], 37),
        (&["--time", "0.15-0.45"], 23),
        (&["--time", "0.3-"], 98),
        (&["--function", "^compare$"], 25),
        (&["--function", "compare", "--function", "^main"], 20),
        (&["--function", "compare", "--state", "system"], 5),
        (&["--function", "nothing,compare"], 25),
        (&["--process", "3,7"], 135),
        (&["--cpu", "1,9"], 43),
    ] {
        assert_eq!(total(filter), ticks, "{filter:?}");
    }
}

#[test]
fn callers_and_callees_have_what_is_attributed_to_them() {
    let tmp = tempfile::tempdir().unwrap();
    let model = Model::load(&[made(tmp.path())]).unwrap();
    let sums = totals(&model, &Selection::new(&model, &Filter::default()));
    let find = |name: &str| {
        let position = model
            .functions
            .iter()
            .position(|function| function.name == name);
        analysis::model::FunctionId(position.unwrap() as u32)
    };
    // Each stands for 10 ms.
    let ticks = |sums: &Sums| sums.iter().sum::<i64>() / 10_000;
    let merge = Relatives::of(&model, &sums, find("sort::merge()"));
    assert_eq!(ticks(&merge.own), 17);
    assert_eq!(ticks(&merge.callees[&find("compare")]), 20);
    // It calls itself in all of its stacks; the inner one counts.
    assert!(!merge.callees.contains_key(&find("sort::merge()")));
    assert_eq!(ticks(&merge.callers[&Some(find("sort::merge()"))]), 37);
    assert_eq!(merge.callers.len(), 1);
    let main = Relatives::of(&model, &sums, find("main"));
    assert_eq!(ticks(&main.callers[&None]), 37);
}

#[test]
fn a_damaged_experiment_is_reported_as_far_as_it_goes() {
    let damage = |file: &str, change: &dyn Fn(&Path)| {
        let tmp = tempfile::tempdir().unwrap();
        change(&made(tmp.path()).join(file));
        let output = run(tmp.path(), &["ktest.3.er", "overview", "--csv"]);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        let text = String::from_utf8_lossy(&output.stdout);
        let total = text.lines().find(|line| line.starts_with("total,"));
        format!(
            "{file}: {:?} {stderr}",
            total.map(|line| line.rsplit(',').next().unwrap().to_owned())
        )
    };
    let cut = |path: &Path| {
        let bytes = std::fs::read(path).unwrap();
        std::fs::write(path, &bytes[..bytes.len() / 2]).unwrap();
    };
    let remove = |path: &Path| std::fs::remove_file(path).unwrap();
    let junk = |path: &Path| std::fs::write(path, "<a b='").unwrap();
    let sub = |file: &str| format!("{SUB}/{file}");
    let reports = [
        damage("profile", &remove),
        damage("data.frameinfo", &cut),
        damage("map.xml", &junk),
        damage("log.xml", &junk),
        damage(&sub("log.xml"), &junk),
        damage(&sub("profile"), &cut),
        damage("archives/vmlinux_dbrs1000000", &junk),
    ];
    insta::assert_snapshot!(reports.join("\n"));
}

/// All commands that read an experiment.
const COMMANDS: [&[&str]; 6] = [
    &["report", "ktest.3.er", "overview"],
    &["report", "ktest.3.er", "--json"],
    &["view", "ktest.3.er", "-o", "page.html"],
    &["flame", "ktest.3.er", "-o", "flame.svg"],
    &["export", "ktest.3.er", "--to", "perfetto", "-o", "trace"],
    &["export", "ktest.3.er", "--to", "pprof", "-o", "profile"],
];

/// Every command reads what is left, soon: the time is bounded by the bytes that are there. What is
/// left out shows in the exit status, which is 66.
#[test]
fn no_command_fails_on_impossible_times_nesting_or_holes() {
    let time = |path: &Path, time: u64| {
        let mut bytes = std::fs::read(path).unwrap();
        bytes[8..16].copy_from_slice(&time.to_le_bytes());
        std::fs::write(path, bytes).unwrap();
    };
    let end = |path: &Path| OpenOptions::new().append(true).open(path).unwrap();
    let nest = |path: &Path| end(path).write_all(&b"<a>".repeat(200_000)).unwrap();
    let lengthen = |path: &Path| end(path).set_len(1 << 40).unwrap();
    // At most 256 MiB of text are read.
    let just_too_long = |path: &Path| end(path).set_len((256 << 20) + 1).unwrap();
    let junk = |path: &Path| std::fs::write(path, "<a b='").unwrap();
    type Damage<'a> = &'a dyn Fn(&Path);
    let damages: [(&str, Damage<'_>, i32); 12] = [
        ("profile", &|path| time(path, u64::MAX), 66),
        ("profile", &|path| time(path, 1 << 62), 66),
        ("log.xml", &nest, 0),
        ("map.xml", &nest, 0),
        ("profile", &lengthen, 0),
        ("data.frameinfo", &lengthen, 0),
        ("map.xml", &just_too_long, 66),
        ("map.xml", &lengthen, 66),
        ("overview", &lengthen, 66),
        ("_sort_PID_7.1.er/log.xml", &lengthen, 66),
        ("_sort_PID_7.1.er/map.xml", &junk, 66),
        ("kcollect.json", &junk, 66),
    ];
    for (file, damage, code) in damages {
        let tmp = tempfile::tempdir().unwrap();
        damage(&made(tmp.path()).join(file));
        for command in COMMANDS {
            let begin = Instant::now();
            let output = kcollect(tmp.path(), command);
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert_eq!(
                output.status.code(),
                Some(code),
                "{file}: {command:?}: {stderr}"
            );
            assert!(begin.elapsed() < Duration::from_secs(20), "{command:?}");
            assert!(!output.stdout.is_empty(), "{file}: {command:?}: {stderr}");
            assert_eq!(stderr.contains(file), code == 66, "{command:?}: {stderr}");
            if command.contains(&"--json") {
                let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
                assert_eq!(report["incomplete"], code == 66);
            }
        }
    }
}

/// What a collector that still runs has not written yet is not left out.
#[test]
fn an_unfinished_experiment_is_complete() {
    let tmp = tempfile::tempdir().unwrap();
    let experiment = made(tmp.path());
    let log = experiment.join("log.xml");
    let text = std::fs::read_to_string(&log).unwrap();
    let exit = text.find("<event kind=\"exit\"").unwrap();
    std::fs::write(&log, &text[..exit]).unwrap();
    std::fs::remove_file(experiment.join("data.frameinfo")).unwrap();
    std::fs::create_dir(experiment.join("_begun_PID_9.1.er")).unwrap();
    for command in COMMANDS {
        let output = kcollect(tmp.path(), command);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command:?}: {stderr}");
        assert!(!stderr.contains("_begun"), "{stderr}");
    }
}

#[test]
fn failed_reports_have_a_hint() {
    let tmp = tempfile::tempdir().unwrap();
    let refused = |arguments: &[&str]| {
        let output = run(tmp.path(), arguments);
        format!(
            "{:?} {}",
            output.status.code(),
            String::from_utf8_lossy(&output.stderr)
        )
    };
    let mut messages = vec![refused(&[]), refused(&["none.er"]), refused(&["make"])];
    made(tmp.path());
    messages.extend([
        refused(&["-m", "e.nothing"]),
        refused(&["-s", "x"]),
        refused(&["functions", "more"]),
        refused(&["--function", "("]),
        refused(&["--time", "5-2"]),
        refused(&["--state", "asleep"]),
        refused(&["--process", "99999999999"]),
        refused(&["--process", "kwroker"]),
        refused(&["--process", "a,b"]),
        refused(&["functions", "--process", "77"]),
        refused(&["threads", "--process", "%9"]),
        refused(&["--function", "nothing"]),
        refused(&["--cpu", "1,,2"]),
        refused(&["-n", "x"]),
        refused(&["callers-callees"]),
        refused(&["callers-callees", "main", "more"]),
        refused(&["callers-callees", "comprae"]),
        refused(&["callers-callees", "^k"]),
        refused(&["functions", "--depth", "3"]),
        refused(&["threads", "--unnamed"]),
        refused(&["calltree", "--percent", "101"]),
        refused(&["samples", "--cpu", "1"]),
        refused(&["--compare", "ktest.3.er"]),
        refused(&["--compare", "ktest.3.er", "ktest.3.er", "cpus"]),
    ]);
    insta::assert_snapshot!(messages.concat());
}

#[test]
fn groups_and_subexperiments_are_experiments_too() {
    let tmp = tempfile::tempdir().unwrap();
    made(tmp.path());
    std::fs::write(
        tmp.path().join("all.erg"),
        "#analyzer experiment group\nktest.3.er\n",
    )
    .unwrap();
    let overview = |path: &str| printed(tmp.path(), &[path, "overview", "--csv"]);
    assert_eq!(overview("all.erg"), overview("ktest.3.er"));
    let alone = Model::load(&[tmp.path().join("ktest.3.er").join(SUB)]).unwrap();
    assert_eq!(
        (
            alone.experiments.len(),
            alone.processes.len(),
            alone.warnings.len()
        ),
        // The founder has its exact times.
        (1, 1, 1)
    );
    // Names come from the founder's archives.
    assert!(
        alone
            .functions
            .iter()
            .any(|function| function.name == "sort::merge()")
    );
    let with = alone.stacks_with(|name| Pattern::new("merge").unwrap().matches(name));
    assert_eq!(with.iter().filter(|with| **with).count(), 3);
}
