//! Whom threads waited for: chains, and the critical path.

use std::path::Path;

use experiment_format::cause::Cause;
use experiment_format::directory::{ExperimentDir, NameRequest};
use experiment_format::ids::{Pid, Tid};
use experiment_format::log::{LogEvent, LogHeader, StartTime};
use experiment_format::microstate::Microstate::{self, Sleep, System, WaitCpu};
use experiment_format::packet::ClockTick;
use experiment_format::stacks::StackEnd;
use experiment_format::units::{Nanos, Ticks};
use experiment_format::writer::ExperimentWriter;

use crate::experiment::{KERNEL, START, header, image, map};
use crate::{shown, stdout};

/// The length of a tick.
const TICK_NS: u64 = 10_007_000;

const RUN: StartTime = StartTime {
    tstamp_ns: Nanos(START),
    wall_s: 1_795_205_070,
    wall_subsec_ns: 0,
    tm_zone_s: 0,
};

/// Ticks with their end in ticks, number, thread, function, state, cause and waker.
type Row = (u64, u64, u32, u64, Microstate, Cause, u32);

fn founder(directory: &Path, functions: &[&str]) -> ExperimentWriter {
    let request = NameRequest::Exactly("ktest.1.er".into());
    let (dir, _) = ExperimentDir::create(directory, &request, None).unwrap();
    image(&dir, "vmlinux", KERNEL, functions);
    let mut founder = ExperimentWriter::create(dir, &header(1, "kernel"), RUN).unwrap();
    founder.map(&map(KERNEL, "vmlinux")).unwrap();
    founder
}

/// Names the thread, which is a process of its own, and writes its ticks.
fn write(writer: &mut ExperimentWriter, tid: u32, name: &str, rows: &[Row]) {
    let named = LogEvent::Thread {
        at_ns: Nanos::ZERO,
        tid: Tid(tid),
        name: name.into(),
        group: format!("{name}, pid {tid}"),
    };
    writer.log(&named).unwrap();
    for (end, ticks, of, function, state, cause, waker) in rows {
        if *of != tid {
            continue;
        }
        let frames = [KERNEL + 0x100 * function + 0x10];
        let stack = writer.stack(&frames, StackEnd::Complete).unwrap();
        let tick = ClockTick {
            cpu: 0,
            time_ns: Nanos(START + end * TICK_NS),
            stack,
            tid: Tid(tid),
            pid: Pid(tid),
            state: *state,
            ticks: Ticks(*ticks),
            detail: 0,
            cause: *cause,
            waker: Tid(*waker),
        };
        writer.tick(&tick).unwrap();
    }
}

/// Returns the segments of a path: thread and what it did.
fn segments(directory: &Path, arguments: &[&str]) -> Vec<(u64, String)> {
    let arguments = [&["report", "critical-path", "--json"], arguments].concat();
    let json: serde_json::Value = serde_json::from_str(&stdout(directory, &arguments)).unwrap();
    let rows = json["segments"]["rows"].as_array().unwrap().iter();
    let row = |row: &serde_json::Value| {
        let doing = row["doing"].as_str().unwrap().to_owned();
        (row["tid"].as_u64().unwrap(), doing)
    };
    rows.map(row).collect()
}

/// ```text
/// tick       1234567890123
/// client 3   aa444444444-a
/// server 4   ..bb~~~55b...
/// store 5    ____cccccc...
/// ```
#[test]
fn waits_are_followed_to_their_wakers() {
    let rows: [Row; 10] = [
        (2, 2, 3, 0, System, Cause::Undecided, 0),
        // Both parts of the absence from the CPU are recorded at its end.
        (12, 9, 3, 3, Sleep, Cause::Answer, 4),
        (12, 1, 3, 3, WaitCpu, Cause::Undecided, 0),
        (13, 1, 3, 0, System, Cause::Undecided, 0),
        (4, 2, 4, 1, System, Cause::Undecided, 0),
        (7, 3, 4, 4, Sleep, Cause::Device, 0),
        (9, 2, 4, 3, Sleep, Cause::Answer, 5),
        (10, 1, 4, 1, System, Cause::Undecided, 0),
        (4, 4, 5, 3, Sleep, Cause::Timer, 0),
        (10, 6, 5, 2, System, Cause::Undecided, 0),
    ];
    let tmp = tempfile::tempdir().unwrap();
    let functions = ["do_ask", "do_answer", "do_help", "do_wait", "do_read"];
    let mut founder = founder(tmp.path(), &functions);
    for (tid, name) in [(3, "client"), (4, "server"), (5, "store")] {
        write(&mut founder, tid, name, &rows);
    }
    founder.close(Nanos(START + 13 * TICK_NS)).unwrap();

    let path = ["critical-path", "--process", "3"];
    let mut text = String::new();
    for arguments in [
        &["chains"][..],
        &["chains", "--process", "3", "--depth", "2", "--percent", "0"],
        &path,
        &[&path[..], &["--time", "0.03-0.095", "--csv"]].concat(),
        &["critical-path"],
        &["critical-path", "--process", "3,4"],
        &[&path[..], &["--state", "sleep"]].concat(),
        &[&path[..], &["--time", "5-6"]].concat(),
    ] {
        text += &shown(tmp.path(), arguments);
    }
    insta::assert_snapshot!("waits_are_followed", text);
    let expected = [
        (5, "timer"),
        (5, "on-cpu"),
        (4, "on-cpu"),
        (4, "not-sampled"),
        (3, "waits-for-cpu"),
        (3, "on-cpu"),
    ];
    let expected = expected.map(|(tid, doing)| (tid, doing.to_owned()));
    assert_eq!(segments(tmp.path(), &["--process", "3"]), expected);
}

/// ```text
/// load 7     aa????????      was still waiting for its child at the end
/// child 8    ..bbbb~~bb
/// ```
#[test]
fn a_process_that_still_waits_for_its_only_child_is_followed() {
    let rows: [Row; 5] = [
        (2, 2, 7, 0, System, Cause::Undecided, 0),
        (10, 8, 7, 1, Sleep, Cause::Child, 0),
        (6, 4, 8, 0, System, Cause::Undecided, 0),
        (8, 2, 8, 1, Sleep, Cause::Device, 0),
        (10, 2, 8, 0, System, Cause::Undecided, 0),
    ];
    let tmp = tempfile::tempdir().unwrap();
    let founder = founder(tmp.path(), &["do_work", "do_wait"]);
    for (pid, parent, name) in [(7, 1, "load"), (8, 7, "child")] {
        let header = LogHeader {
            ppid: Some(Pid(parent)),
            comments: vec![format!("process: {name}")],
            ..header(pid, name)
        };
        let directory = format!("_{name}_PID_{pid}.1.er");
        let sub = ExperimentWriter::create_sub(founder.dir(), &directory, &header, RUN);
        let mut sub = sub.unwrap();
        sub.map(&map(KERNEL, "vmlinux")).unwrap();
        write(&mut sub, pid, name, &rows);
        sub.close(Nanos(START + 10 * TICK_NS)).unwrap();
    }
    founder.close(Nanos(START + 10 * TICK_NS)).unwrap();

    // Without --process, it is the path of the recorder's child.
    let expected = [(7, "on-cpu"), (8, "on-cpu"), (8, "device"), (8, "on-cpu")];
    let expected = expected.map(|(tid, doing)| (tid, doing.to_owned()));
    assert_eq!(segments(tmp.path(), &[]), expected);
    let chains = ["report", "chains", "--process", "7", "--json"];
    let json: serde_json::Value = serde_json::from_str(&stdout(tmp.path(), &chains)).unwrap();
    let rows = json["rows"].as_array().unwrap().iter();
    let tree = rows.map(|row| (row["depth"].as_u64(), row["doing"].as_str()));
    let expected = [
        (Some(0), None),
        (Some(1), Some("child")),
        (Some(2), Some("on-cpu")),
        (Some(2), Some("device")),
    ];
    assert_eq!(tree.collect::<Vec<_>>(), expected);
}
