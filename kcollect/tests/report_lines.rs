//! The views `lines`, `source` and `disasm` of a made experiment with a program that was assembled
//! with line tables: its source is the assembler's, so that lines and instructions are the same
//! whatever the compiler.
#![cfg(target_arch = "x86_64")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "the helpers of tests report by panicking too"
)]

use std::fs;
use std::path::Path;
use std::process::Command;

use analysis::aggregate::{self, totals};
use analysis::filter::{Filter, Selection};
use analysis::load::lines::{self, LookupPaths};
use analysis::model::{Model, Sums, ZERO_SUMS};
use experiment_format::cause::Cause;
use experiment_format::directory::{ExperimentDir, NameRequest};
use experiment_format::ids::{Pid, Tid};
use experiment_format::log::{LogHeader, StartTime, System};
use experiment_format::map::{MapEvent, READ_EXECUTE};
use experiment_format::microstate::Microstate;
use experiment_format::packet::ClockTick;
use experiment_format::stacks::StackEnd;
use experiment_format::units::{Nanos, Ticks};
use experiment_format::writer::ExperimentWriter;
use object::{Object, ObjectSection};

const SOURCE: &str = "\t.text
\t.globl\tmain
\t.type\twork, @function
work:
\txor\t%eax, %eax
1:\tadd\t%edi, %eax
\timul\t$3, %eax, %eax
\tdec\t%edi
\tjnz\t1b
\tret
\t.size\twork, .-work
\t.type\tmain, @function
main:
\tmov\t$1000, %edi
\tcall\twork
\tret
\t.size\tmain, .-main
";
const ADD: u64 = 2;
const IMUL: u64 = 4;
const MAIN: u64 = 12;
/// In the call, as callers are recorded.
const CALL: u64 = 21;
const TEXT: u64 = 0x40_1000;
const START: u64 = 1_000_000_000;

/// The experiment `made.er`, and next to it the source.
fn made(parent: &Path) {
    fs::write(parent.join("fixed.s"), SOURCE).unwrap();
    let map = format!("{}=/build/made", parent.display());
    let done = Command::new("gcc")
        .args(["-g", "-gdwarf-4", "-nostdlib", "-static", "-Wl,-e,main"])
        .arg(format!("-Wl,-Ttext={TEXT:#x}"))
        .arg(format!("-Wa,--debug-prefix-map={map}"))
        .args(["-o", "fixed", "fixed.s"])
        .current_dir(parent)
        .status()
        .unwrap();
    assert!(done.success());
    let program = fs::read(parent.join("fixed")).unwrap();
    let request = NameRequest::Exactly("made.er".into());
    let (dir, _) = ExperimentDir::create(parent, &request, None).unwrap();
    let file = object::File::parse(&*program).unwrap();
    let text = file.section_by_name(".text").unwrap();
    let (file_offset, size) = text.file_range().unwrap();
    dir.archive("/build/made/fixed", &program).unwrap();
    let header = LogHeader {
        collector: "kcollect test".into(),
        system: System {
            hostname: "nowhere".into(),
            arch: "x86_64".into(),
            page_size: 4096,
            pages: 1024,
            cpus: Vec::new(),
        },
        pid: Pid(7),
        command_line: "/build/made/fixed".into(),
        profiles: vec![ClockTick::table(10_000)],
        ..LogHeader::default()
    };
    let run = StartTime {
        tstamp_ns: Nanos(START),
        wall_s: 1_795_205_070,
        wall_subsec_ns: 0,
        tm_zone_s: 0,
    };
    let mut writer = ExperimentWriter::create(dir, &header, run).unwrap();
    writer
        .map(&MapEvent::Segment {
            at_ns: Nanos::ZERO,
            vaddr: TEXT,
            size,
            file_offset,
            modes: READ_EXECUTE,
            name: "/build/made/fixed".into(),
        })
        .unwrap();
    for (at, frames, user, system) in [
        (1, vec![IMUL, CALL], 20, 1),
        (2, vec![ADD, CALL], 5, 0),
        (3, vec![MAIN], 1, 2),
    ] {
        let frames: Vec<_> = frames.iter().map(|offset| TEXT + offset).collect();
        let stack = writer.stack(&frames, StackEnd::Complete).unwrap();
        for (state, ticks) in [(Microstate::User, user), (Microstate::System, system)] {
            let tick = ClockTick {
                cpu: 0,
                time_ns: Nanos(START + at * 1_000_000),
                stack,
                tid: Tid(7),
                pid: Pid(7),
                state,
                ticks: Ticks(ticks),
                detail: 0,
                cause: Cause::Undecided,
                waker: Tid(0),
            };
            writer.tick(&tick).unwrap();
        }
    }
    writer.close(Nanos(2_000_000_000)).unwrap();
}

/// Returns what a report prints on both streams.
fn printed(directory: &Path, arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_kcollect"))
        .env_remove("DEBUGINFOD_URLS")
        .args(["report", "made.er"])
        .args(arguments)
        .current_dir(directory)
        .output()
        .unwrap();
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

#[test]
fn lines_sources_and_instructions_of_a_small_experiment() {
    let tmp = tempfile::tempdir().unwrap();
    made(tmp.path());
    let view = |arguments: &[&str]| printed(tmp.path(), arguments);
    let metrics = ["-m", "e.user:i.totalcpu"];
    let with = |arguments: &[&'static str]| view(&[arguments, &metrics].concat());
    insta::assert_snapshot!("lines", with(&["lines"]));
    insta::assert_snapshot!("lines_csv", with(&["lines", "--csv"]));
    insta::assert_snapshot!("source_missing", with(&["source", "work"]));
    let map = ["source", "work", "--path-map", "/build/made=."];
    insta::assert_snapshot!("source", with(&map));
    assert_eq!(
        with(&["source", "main", "--search-path", "."])
            .lines()
            .skip(1)
            .collect::<Vec<_>>(),
        with(&map).lines().skip(1).collect::<Vec<_>>()
    );
    insta::assert_snapshot!("disasm", with(&["disasm", "main"]));
    let map = ["disasm", "work", "--path-map", "/build/made=."];
    insta::assert_snapshot!("disasm_with_source", with(&map));
    insta::assert_snapshot!(
        "refused",
        [
            view(&["source"]),
            view(&["source", "nowhere"]),
            view(&["disasm", "^(work|main)$"]),
            view(&["disasm", "main", "more"]),
            view(&["source", "main", "--path-map", "x"]),
        ]
        .concat()
    );
}

#[test]
fn an_archived_source_comes_first_and_controls_nothing() {
    let tmp = tempfile::tempdir().unwrap();
    made(tmp.path());
    let name = experiment_format::archive::archive_name("/build/made/fixed.s");
    let copy = tmp.path().join("made.er/archives").join(name);
    fs::write(copy, "one\u{1b}[2J\n\ttwo\n").unwrap();
    let text = printed(tmp.path(), &["source", "work", "--search-path", "."]);
    insta::assert_snapshot!("archived_source", text);
}

#[test]
fn lines_have_together_what_functions_have() {
    let tmp = tempfile::tempdir().unwrap();
    made(tmp.path());
    let mut model = Model::load(&[tmp.path().join("made.er")]).unwrap();
    let sums = |model: &Model| totals(model, &Selection::new(model, &Filter::default()));
    let functions = aggregate::functions(&model, &sums(&model)).functions;
    lines::add(&mut model, &LookupPaths::default());
    let all = sums(&model);
    let count = model.lines.lines.len();
    let [shares] = aggregate::shares(&model, &all, [count], |frame| {
        [Some(model.lines.of_frames[frame.index()])]
    });
    let mut own = vec![ZERO_SUMS; model.functions.len()];
    for (line, sums) in model.lines.lines.iter().zip(&shares.exclusive) {
        aggregate::add(&mut own[line.function.index()], sums);
    }
    assert_eq!(own, functions.exclusive);
    let total: i64 = all.all.iter().sum();
    let sum = |sums: &[Sums]| sums.iter().flatten().sum::<i64>();
    assert_eq!((sum(&own), total), (290_000, 290_000));
}
