//! Reports of small experiments that the tests write themselves: every view, filters, and what
//! damage leaves.

#![allow(
    clippy::unwrap_used,
    reason = "a helper of tests reports by panicking, as tests do"
)]

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use analysis::aggregate::{Relatives, totals};
use analysis::filter::{Filter, Pattern, Selection};
use analysis::model::{Model, Sums};
use experiment_format::directory::{ExperimentDir, NameRequest};
use experiment_format::elf_image::{ElfImage, ImageSymbol, TextSection};
use experiment_format::ids::{Pid, Tid};
use experiment_format::log::{Cpu, LogEvent, LogHeader, ProfileDecl, StartTime, System};
use experiment_format::map::{MapEvent, READ_EXECUTE};
use experiment_format::microstate::{Microstate, NumStates};
use experiment_format::packet::{ClockTick, TickArray};
use experiment_format::stacks::StackEnd;
use experiment_format::subexperiment::SubexperimentWriter;
use experiment_format::usage::UsageRecord;
use experiment_format::writer::ExperimentWriter;

const KERNEL: u64 = 0xffff_ffff_8100_0000;
const PROGRAM: u64 = 0x40_0000;
const START: u64 = 1_000_000_000;
const SUB: &str = "_sort_PID_7.1.er";

fn header(pid: u32, command: &str) -> LogHeader {
    let clock = |states, packet| ProfileDecl::Clock {
        tick_us: 10_007,
        states,
        packets: vec![packet],
    };
    let kernel = clock(NumStates::Kernel, ClockTick::declaration());
    let arrays = clock(NumStates::Solaris, TickArray::declaration());
    LogHeader {
        collector: "kcollect test".into(),
        system: System {
            hostname: "nowhere".into(),
            arch: "x86_64".into(),
            page_size: 4096,
            pages: 1024,
            cpus: vec![Cpu { id: 0, mhz: 2600 }, Cpu { id: 1, mhz: 2600 }],
        },
        pid: Pid(pid),
        command_line: command.into(),
        profiles: match command {
            "kernel" => vec![ProfileDecl::ThreadNames, kernel, arrays],
            _ => vec![ProfileDecl::ThreadNames, arrays],
        },
        ..LogHeader::default()
    }
}

fn image(dir: &ExperimentDir, name: &str, base: u64, functions: &[&str]) {
    let symbols = (0..).zip(functions).map(|(number, name)| ImageSymbol {
        address: base + 0x100 * number,
        size: 0x80,
        name: name.as_bytes(),
        global: true,
    });
    let image = ElfImage {
        texts: vec![TextSection {
            address: base,
            size: 0x1000,
            bits: None,
        }],
        symbols: symbols.collect(),
    };
    dir.archive(name, &image.to_bytes().unwrap()).unwrap();
}

fn map(vaddr: u64, name: &str) -> MapEvent {
    MapEvent::Segment {
        at: 0,
        vaddr,
        size: 0x4000,
        file_offset: 0x1000,
        modes: READ_EXECUTE,
        name: name.into(),
    }
}

fn ticks(of: &[(Microstate, u32)]) -> [u32; 10] {
    let mut ticks = [0; 10];
    for (state, count) in of {
        ticks[*state as usize] = *count;
    }
    ticks
}

/// A founder with a kernel thread and ticks of a CPU, and a program that recurs, sleeps and has a
/// stack without its end.
fn made(parent: &Path) -> PathBuf {
    made_as(parent, "ktest.3.er", 20)
}

/// The same with another name, and other ticks of `compare`.
fn made_as(parent: &Path, name: &str, comparing: u32) -> PathBuf {
    use Microstate::{Sleep, System, User, WaitCpu};
    let request = NameRequest::Exactly(name.into());
    let (dir, _) = ExperimentDir::create(parent, &request, None).unwrap();
    image(
        &dir,
        "vmlinux",
        KERNEL,
        &["schedule", "ksys_read", "kworker"],
    );
    image(
        &dir,
        "/usr/bin/sort",
        PROGRAM,
        &["main", "_ZN4sort5mergeEv", "compare"],
    );
    let run = StartTime {
        tstamp_ns: START,
        wall_s: 1_795_205_070,
        wall_subsec_ns: 0,
        tm_zone_s: 0,
    };
    let mut founder = ExperimentWriter::create(dir, &header(1, "kernel"), run).unwrap();
    founder.map(&map(KERNEL, "vmlinux")).unwrap();
    let thread = |tid, name: &str, group: &str| LogEvent::Thread {
        at: 0,
        tid,
        name: name.into(),
        group: group.into(),
    };
    founder
        .log(&thread(Tid(3), "kworker/0:1", "kworker/0:1, pid 3"))
        .unwrap();
    founder.log(&thread(Tid(7), "sort", "sort, pid 7")).unwrap();
    let idle = founder
        .stack(&[KERNEL + 0x210, KERNEL + 0x10], StackEnd::Complete)
        .unwrap();
    let (cpu, at) = (0, START + 500_000_000);
    founder
        .tick_array(&TickArray {
            cpu,
            time: at,
            stack: idle,
            tid: Tid(3),
            pid: Pid(3),
            ticks: ticks(&[(System, 2), (Sleep, 90)]),
            detail: 0,
        })
        .unwrap();
    founder
        .side_file(
            "kcollect.json",
            br#"{"losses":{"ring_full":3,"unaccounted":0}}"#,
        )
        .unwrap();
    let read = founder
        .stack(&[KERNEL + 0x110], StackEnd::Complete)
        .unwrap();
    let state = Microstate::KernelCpu;
    founder
        .tick(&ClockTick {
            cpu: 1,
            time: at,
            stack: read,
            tid: Tid(7),
            pid: Pid(7),
            state,
            ticks: 5,
        })
        .unwrap();
    for line in [
        r#"{"pid":3,"tid":3,"name":"kworker/0:1","at_ns":1000000000,"state":"sleep","since_ns":1,"states_ns":{"system":20000001,"sleep":900000000}}"#,
        r#"{"pid":7,"tid":7,"name":"sort","at_ns":1500000000,"ended":true,"states_ns":{"user":300000000,"system":50000000,"wait":70000000}}"#,
        r#"{"sample":1,"at_ns":2000000000}"#,
    ] {
        founder
            .side_line("threads.jsonl", &format!("{line}\n"))
            .unwrap();
    }

    let usage = |seconds: u64, states: &[(Microstate, u64)]| {
        let mut usage = UsageRecord {
            threads: 2,
            time: START + seconds * 1_000_000_000,
            real: 2 * seconds * 1_000_000_000,
            minor_faults: 10 * seconds,
            ..UsageRecord::default()
        };
        for (state, ms) in states {
            usage.states[*state as usize] = ms * 1_000_000;
        }
        usage
    };
    let start = usage(0, &[]);
    founder.sample(0, "start", &start).unwrap();
    let states = [(User, 200), (Sleep, 1800)];
    let periodic = usage(1, &states);
    founder
        .sample(1_000_000_000, "periodic", &periodic)
        .unwrap();
    // What is in no state is sleep.
    let stop = usage(
        2,
        &[(User, 300), (System, 70), (Sleep, 1900), (WaitCpu, 70)],
    );
    founder.sample(2_000_000_000, "stop", &stop).unwrap();

    let mut sub =
        SubexperimentWriter::create(founder.dir(), SUB, &header(7, "/usr/bin/sort -n x"), run)
            .unwrap();
    sub.map(&map(KERNEL, "vmlinux")).unwrap();
    sub.map(&map(PROGRAM, "/usr/bin/sort")).unwrap();
    sub.log(&thread(Tid(7), "sort", "sort, pid 7")).unwrap();
    let (main, merge, compare) = (PROGRAM + 0x10, PROGRAM + 0x110, PROGRAM + 0x210);
    for (frames, end, counts, at) in [
        (
            vec![compare, merge, merge, main],
            StackEnd::Complete,
            ticks(&[(User, comparing)]),
            100,
        ),
        (
            vec![merge, merge, main],
            StackEnd::Complete,
            ticks(&[(User, 10), (WaitCpu, 7)]),
            200,
        ),
        (
            vec![KERNEL + 0x110, compare],
            StackEnd::UnwindFailed,
            ticks(&[(System, 5)]),
            300,
        ),
        (
            vec![0xdead_0000, main + 0x80],
            StackEnd::Truncated,
            ticks(&[(Sleep, 1)]),
            400,
        ),
    ] {
        let stack = sub.stack(&frames, end).unwrap();
        let time = START + at * 1_000_000;
        sub.tick_array(&TickArray {
            cpu: 1,
            time,
            stack,
            tid: Tid(7),
            pid: Pid(7),
            ticks: counts,
            detail: 0,
        })
        .unwrap();
    }
    sub.sample(0, "start", &start).unwrap();
    let states = [(User, 300), (System, 50), (WaitCpu, 70)];
    sub.sample(1_000_000_000, "stop", &usage(1, &states))
        .unwrap();
    sub.close(founder.dir(), 1_500_000_000).unwrap();
    founder.close(2_000_000_000).unwrap()
}

/// Runs it where the experiment is, so that no path of the machine is in what it says.
fn run(directory: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kcollect"))
        .env_remove("DEBUGINFOD_URLS")
        .arg("report")
        .args(arguments)
        .current_dir(directory)
        .output()
        .unwrap_or_else(|error| unreachable!("{error}"))
}

fn said(directory: &Path, arguments: &[&str]) -> String {
    let output = run(directory, arguments);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{arguments:?}: {errors}");
    String::from_utf8_lossy(&output.stdout).into_owned() + &errors
}

#[test]
fn every_view_of_a_small_experiment() {
    let tmp = tempfile::tempdir().unwrap();
    made(tmp.path());
    let view = |arguments: &[&str]| said(tmp.path(), arguments);
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
        said(tmp.path(), &[&both, arguments].concat())
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
        let arguments = [&["ktest.3.er", "overview", "--csv"], filter].concat();
        let text = said(tmp.path(), &arguments);
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
    let ticks = |sums: &Sums| sums.iter().sum::<i64>() / 10_007;
    let merge = Relatives::of(&model, &sums, find("sort::merge()"));
    assert_eq!(ticks(&merge.own), 17);
    assert_eq!(ticks(&merge.callees[&find("compare")]), 20);
    // It calls itself in all of its stacks, of which the inner one counts.
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
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let text = String::from_utf8_lossy(&output.stdout);
        let total = text.lines().find(|line| line.starts_with("total,"));
        format!(
            "{file}: {:?} {said}",
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
    // Of text, more than 256 MiB are not read.
    let just_too_long = |path: &Path| end(path).set_len((256 << 20) + 1).unwrap();
    let junk = |path: &Path| std::fs::write(path, "<a b='").unwrap();
    type Change<'a> = &'a dyn Fn(&Path);
    let damages: [(&str, Change<'_>, i32); 12] = [
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
    for (file, change, code) in damages {
        let tmp = tempfile::tempdir().unwrap();
        change(&made(tmp.path()).join(file));
        for command in COMMANDS {
            let begin = Instant::now();
            let output = Command::new(env!("CARGO_BIN_EXE_kcollect"))
                .args(command)
                .current_dir(tmp.path())
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(
                output.status.code(),
                Some(code),
                "{file}: {command:?}: {said}"
            );
            assert!(begin.elapsed() < Duration::from_secs(20), "{command:?}");
            assert!(!output.stdout.is_empty(), "{file}: {command:?}: {said}");
            let last = said.lines().last().unwrap_or_default();
            assert_eq!(
                last.contains("are left out"),
                code == 66,
                "{command:?}: {said}"
            );
            assert_eq!(said.contains(file), code == 66, "{command:?}: {said}");
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
        let output = Command::new(env!("CARGO_BIN_EXE_kcollect"))
            .args(command)
            .current_dir(tmp.path())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command:?}: {said}");
        assert!(!said.contains("_begun"), "{said}");
    }
}

#[test]
fn what_cannot_be_reported_is_said_with_the_cure() {
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
    let overview = |path: &str| said(tmp.path(), &[path, "overview", "--csv"]);
    assert_eq!(overview("all.erg"), overview("ktest.3.er"));
    let alone = Model::load(&[tmp.path().join("ktest.3.er").join(SUB)]).unwrap();
    assert_eq!(
        (
            alone.experiments.len(),
            alone.processes.len(),
            alone.warnings.len()
        ),
        (1, 1, 0)
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
