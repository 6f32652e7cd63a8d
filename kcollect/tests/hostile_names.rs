//! Names that control a terminal, hide text or look like messages, in every place of an experiment
//! that has text: no command prints them as they are.
#![cfg(target_arch = "x86_64")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "the helpers of tests report by panicking too"
)]

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Output};

use analysis::model::Model;
use analysis::report::views::View;
use experiment_format::cause::Cause;
use experiment_format::directory::{ExperimentDir, NameRequest};
use experiment_format::ids::{Pid, Tid};
use experiment_format::log::{
    CounterDecl, CounterUnit, LogEvent, LogHeader, ProfileDecl, StartTime, System,
};
use experiment_format::map::{MapEvent, READ_EXECUTE};
use experiment_format::microstate::Microstate;
use experiment_format::packet::{ClockTick, CounterEvent};
use experiment_format::stacks::StackEnd;
use experiment_format::text::is_printable;
use experiment_format::units::{Nanos, Ticks};
use experiment_format::usage::UsageRecord;
use experiment_format::writer::ExperimentWriter;
use object::{Object, ObjectSection, ObjectSymbol};

/// It clears the screen, rings, changes the order of text, breaks the line in three ways, hides,
/// and prints a line in the name of kcollect.
const HOSTILE: &str = "\u{1b}[2J\u{7}\u{9b}7m\u{202e}\u{2028}\u{200b}\u{e0041}\r\nkcollect: forged";
const FORGED: &str = "kcollect: forged";
/// What compilers accept in its place, with as many bytes.
const PLACE: &str = "hostile_name_hostile_name_hostile_name_h";
const START: u64 = 1_000_000_000;
const TEXT: u64 = 0x40_0000;
const MADE_AT: u64 = 0x2000;

/// A program with that name as a function's, twice, and as its source's.
fn program(parent: &Path) -> Vec<u8> {
    assert_eq!(PLACE.len(), HOSTILE.len());
    let source = format!(
        "int {PLACE}(int a) {{\n\treturn a * 3;\n}}\nint {PLACE}_other(int a) {{ return {PLACE}(a); }}\n"
    );
    fs::write(parent.join(format!("{PLACE}.c")), source).unwrap();
    let done = Command::new("gcc")
        .args([
            "-g",
            "-O1",
            "-fno-inline",
            "-nostdlib",
            "-shared",
            "-o",
            "program",
        ])
        .arg(format!("{PLACE}.c"))
        .current_dir(parent)
        .status()
        .unwrap();
    assert!(done.success());
    let mut bytes = fs::read(parent.join("program")).unwrap();
    let places: Vec<_> = (0..bytes.len() - PLACE.len())
        .filter(|at| bytes[*at..].starts_with(PLACE.as_bytes()))
        .collect();
    for at in places {
        bytes[at..at + PLACE.len()].copy_from_slice(HOSTILE.as_bytes());
    }
    bytes
}

fn header(pid: u32) -> LogHeader {
    let mut profiles = vec![
        ProfileDecl::ThreadNames,
        ClockTick::table(10_007),
        ProfileDecl::Counters {
            counters: vec![CounterDecl {
                tag: 0,
                name: "cycles".into(),
                title: HOSTILE.into(),
                interval: 7,
                unit: CounterUnit::Count,
            }],
            packets: vec![CounterEvent::declaration()],
        },
    ];
    if pid == 1 {
        profiles.insert(1, ClockTick::table_of_cpus(10_007));
    }
    LogHeader {
        collector: HOSTILE.into(),
        system: System {
            hostname: HOSTILE.into(),
            arch: "x86_64".into(),
            page_size: 4096,
            pages: 1024,
            cpus: Vec::new(),
        },
        pid: Pid(pid),
        command_line: HOSTILE.into(),
        profiles,
        comments: vec![
            HOSTILE.into(),
            format!("process: {HOSTILE}"),
            format!("command line: {HOSTILE}"),
        ],
        ..LogHeader::default()
    }
}

/// The experiment `made.er`.
fn made(parent: &Path) {
    let program = program(parent);
    let file = object::File::parse(&*program).unwrap();
    let (file_offset, size) = file.section_by_name(".text").unwrap().file_range().unwrap();
    let text = file.section_by_name(".text").unwrap().address();
    let other = file.symbols().find(|symbol| {
        symbol
            .name_bytes()
            .is_ok_and(|name| name.ends_with(b"_other"))
    });
    let other = TEXT + other.unwrap().address() - text;
    let object = format!("/opt/{HOSTILE}/{HOSTILE}");
    let request = NameRequest::Exactly("made.er".into());
    let (dir, _) = ExperimentDir::create(parent, &request, None).unwrap();
    dir.archive(&object, &program).unwrap();
    let source = format!("{}/{HOSTILE}.c", parent.display());
    dir.archive(&source, format!("{HOSTILE}\n").repeat(9).as_bytes())
        .unwrap();
    let run = StartTime {
        tstamp_ns: Nanos(START),
        wall_s: 1_795_205_070,
        wall_subsec_ns: 0,
        tm_zone_s: 0,
    };
    let thread = LogEvent::Thread {
        at_ns: Nanos::ZERO,
        tid: Tid(7),
        name: HOSTILE.into(),
        group: format!("{HOSTILE}, pid 7"),
    };
    let mut founder = ExperimentWriter::create(dir, &header(1), run).unwrap();
    founder.log(&thread).unwrap();
    for event in [
        LogEvent::Comment {
            at_ns: Nanos::ZERO,
            text: HOSTILE.into(),
        },
        LogEvent::Warning {
            at_ns: Nanos::ZERO,
            text: HOSTILE.into(),
        },
    ] {
        founder.log(&event).unwrap();
    }
    founder.note(HOSTILE).unwrap();
    founder.warning(Nanos::ZERO, HOSTILE).unwrap();
    founder
        .sample(Nanos::ZERO, HOSTILE, &UsageRecord::default())
        .unwrap();
    founder
        .sample(Nanos(1_000_000_000), HOSTILE, &UsageRecord::default())
        .unwrap();
    let summary = serde_json::json!({
        "losses": { HOSTILE: 3 }, "processes": [{"name": HOSTILE}], "ticks": 5,
    });
    founder
        .side_file("kcollect.json", summary.to_string().as_bytes())
        .unwrap();
    let line = serde_json::json!({
        "pid": 7, "tid": 7, "name": HOSTILE, "process": HOSTILE, "at_ns": 1_000_000_000,
        "state": HOSTILE, "states_ns": { "user": 300_000_000, HOSTILE: 5 },
    });
    founder
        .side_line("threads.jsonl", &format!("{line}\n"))
        .unwrap();
    let name = format!("_{HOSTILE}_PID_7.1.er");
    let mut sub = ExperimentWriter::create_sub(founder.dir(), &name, &header(7), run).unwrap();
    sub.log(&thread).unwrap();
    sub.map(&MapEvent::Segment {
        at_ns: Nanos::ZERO,
        vaddr: TEXT,
        size,
        file_offset,
        modes: READ_EXECUTE,
        name: object,
    })
    .unwrap();
    sub.map(&MapEvent::Function {
        at_ns: Nanos::ZERO,
        vaddr: MADE_AT,
        size: 64,
        name: HOSTILE.into(),
    })
    .unwrap();
    for (at, frames) in [
        (1, vec![TEXT + 1, other + 6]),
        (2, vec![other + 1]),
        (3, vec![MADE_AT + 1, other + 6]),
        (4, vec![0xdead_0000]),
    ] {
        let stack = sub.stack(&frames, StackEnd::Complete).unwrap();
        for state in [Microstate::User, Microstate::Sleep] {
            sub.tick(&ClockTick {
                cpu: 0,
                time_ns: Nanos(START + at * 1_000_000),
                stack,
                tid: Tid(7),
                pid: Pid(7),
                state,
                ticks: Ticks(10),
                detail: 0,
                cause: Cause::Undecided,
                waker: Tid(0),
            })
            .unwrap();
        }
        let event = CounterEvent {
            cpu: 0,
            time_ns: Nanos(START + at * 1_000_000),
            stack,
            tid: Tid(7),
            pid: Pid(7),
            tag: 0,
            value: 7,
        };
        sub.counted(&event).unwrap();
    }
    sub.close(Nanos(1_500_000_000)).unwrap();
    founder.close(Nanos(2_000_000_000)).unwrap();
}

fn run(directory: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kcollect"))
        .env_remove("DEBUGINFOD_URLS")
        .args(arguments)
        .current_dir(directory)
        .output()
        .unwrap()
}

/// Checks what a command prints. `text` is for people: there, no name makes a line of its own.
fn check(arguments: &[&str], output: &Output, text: bool) {
    for (stream, is_text) in [(&output.stdout, text), (&output.stderr, true)] {
        let printed = std::str::from_utf8(stream).unwrap();
        let is_safe = |character| matches!(character, '\n' | '\t') || is_printable(character);
        if let Some(at) = printed.find(|character| !is_safe(character)) {
            let near: String = printed[..at].chars().rev().take(60).collect();
            let near: String = near.chars().rev().collect();
            panic!(
                "{arguments:?}: {:?} after {near:?}",
                printed[at..].chars().next()
            );
        }
        let mut lines = printed.lines();
        let forged = lines.find(|line| is_text && line.trim_start().starts_with(FORGED));
        assert_eq!(forged, None, "{arguments:?}");
    }
    let messages = String::from_utf8_lossy(&output.stderr);
    let mut messages = messages.lines();
    assert!(
        messages.all(|line| line.starts_with("kcollect: ")),
        "{arguments:?}"
    );
    let code = output.status.code();
    assert!(
        matches!(code, Some(0 | 64..=66 | 73)),
        "{arguments:?}: {code:?}"
    );
}

/// Functions, threads, processes and objects have such names, or the checks below check nothing.
fn model_has_hostile_names(directory: &Path) {
    let model = Model::load(&[directory.join("made.er")]).unwrap();
    let has = |names: Vec<&str>| names.iter().any(|name| name.contains(HOSTILE));
    assert!(has(model
        .functions
        .iter()
        .map(|known| &*known.name)
        .collect()));
    assert!(has(model
        .threads
        .iter()
        .map(|known| &*known.name)
        .collect()));
    assert!(has(model
        .processes
        .iter()
        .map(|known| &*known.name)
        .collect()));
    assert!(has(model
        .objects
        .iter()
        .map(|known| &*known.path)
        .collect()));
}

#[test]
fn no_output_has_a_hostile_name_as_it_is() {
    let tmp = tempfile::tempdir().unwrap();
    made(tmp.path());
    model_has_hostile_names(tmp.path());
    let functions = [
        HOSTILE,
        "^.*other$",
        "(?s)^.",
        "kcollect: forge",
        "rgedd",
        "[",
    ];
    for (view, name, _) in View::ALL {
        let functions = if view.wants_function() {
            &functions[..]
        } else {
            &[""]
        };
        for function in functions {
            let mut arguments = vec!["report", "made.er", name];
            arguments.extend(Some(*function).filter(|function| !function.is_empty()));
            for options in [
                &[][..],
                &["--csv"],
                &["--json"],
                &["--inline"],
                &["-m", "e.user:i.cycles:name"],
            ] {
                let all = [&arguments[..], options].concat();
                let output = run(tmp.path(), &all);
                check(&all, &output, !options.contains(&"--csv"));
            }
        }
    }
    let page = format!("{HOSTILE}.html");
    for arguments in [
        &["report", "made.er", "functions", "--unnamed"][..],
        &["report", "made.er", "--process", "forge"],
        &["report", "made.er", "--process", HOSTILE],
        &["report", "--compare", "made.er", "made.er"],
        &["report", HOSTILE],
        &["report", &format!("{HOSTILE}.er")],
        &["view", "made.er", "-o", "page.html"],
        &["view", "made.er", "-o", &page],
        &["view", "made.er", "-o", &format!("/no/{HOSTILE}")],
        &["flame", "made.er", "-o", "-", "--all"],
        &["flame", "made.er", "-o", "flame.svg", "--by", "thread"],
        &["export", "made.er", "--to", "folded", "-o", "-"],
        &[
            "export", "made.er", "--to", "folded", "-o", "-", "--by", "thread",
        ],
        &["export", "made.er", "--to", "firefox", "-o", "-"],
        &["export", "made.er", "--to", "speedscope", "-o", "-"],
        &["export", "made.er", "--to", "pprof", "-o", "profile"],
        &["export", "made.er", "--to", "perfetto", "-o", "trace"],
        &["export", "made.er", "--to", HOSTILE],
    ] {
        check(arguments, &run(tmp.path(), arguments), true);
    }
    for file in ["page.html", "flame.svg"] {
        let text = fs::read_to_string(tmp.path().join(file)).unwrap();
        assert!(
            text.chars()
                .all(|it| matches!(it, '\n' | '\t') || is_printable(it)),
            "{file}"
        );
    }
    // Messages about a subexperiment that cannot be read.
    let sub = fs::read_dir(tmp.path().join("made.er")).unwrap().flatten();
    let sub = sub.map(|entry| entry.path());
    let mut sub = sub.filter(|path| path.as_os_str().as_bytes().ends_with(b"_PID_7.1.er"));
    fs::write(sub.next().unwrap().join("log.xml"), "<a b='").unwrap();
    for arguments in [
        &["report", "made.er", "header"][..],
        &["report", "made.er", "overview"],
        &["view", "made.er"],
    ] {
        let output = run(tmp.path(), arguments);
        assert_ne!(output.status.code(), Some(0), "{arguments:?}");
        check(arguments, &output, true);
    }
}
