//! The sentences of the first screen, and its table of waits.

use std::path::Path;

use experiment_format::cause::Cause;
use experiment_format::directory::{ExperimentDir, NameRequest};
use experiment_format::ids::{Pid, Tid};
use experiment_format::log::StartTime;
use experiment_format::microstate::Microstate::{self, Sleep, UserLock};
use experiment_format::packet::ClockTick;
use experiment_format::stacks::StackEnd;
use experiment_format::units::{self, Nanos};
use experiment_format::writer::ExperimentWriter;

use crate::experiment::{KERNEL, START, header, image, map};
use crate::printed;

/// Ticks of a thread: its process, the function and its state, for how long, until when, why, and
/// who ended it.
struct Ticks {
    pid: u32,
    tid: u32,
    function: u64,
    state: Microstate,
    ticks: u64,
    end_ms: u64,
    cause: Cause,
    waker: u32,
}

/// Two threads wait for a lock that a third one holds while it waits for a disk; a worker is idle,
/// a shell waits for them, and another one for an idle editor.
fn convoy(parent: &Path) {
    let request = NameRequest::Exactly("ktest.1.er".into());
    let (dir, _) = ExperimentDir::create(parent, &request, None).unwrap();
    let functions = ["do_futex", "do_fsync", "do_wait", "do_work"];
    image(&dir, "vmlinux", KERNEL, &functions);
    let run = StartTime {
        tstamp_ns: Nanos(START),
        wall_s: 1_795_205_070,
        wall_subsec_ns: 0,
        tm_zone_s: 0,
    };
    let mut founder = ExperimentWriter::create(dir, &header(1, "kernel"), run).unwrap();
    founder.map(&map(KERNEL, "vmlinux")).unwrap();
    for line in [
        r#"{"pid":1,"tid":1,"name":"kcollect","at_ns":10000000000,"state":"lock","since_ns":0,"states_ns":{"lock":10000000000},"lock_cause_ns":{"lock":10000000000}}"#,
        r#"{"pid":20,"tid":21,"name":"db","at_ns":10000000000,"state":"lock","since_ns":1000000000,"states_ns":{"lock":9000000000,"user":1000000000},"lock_cause_ns":{"lock":9000000000}}"#,
        r#"{"pid":20,"tid":22,"name":"db","at_ns":10000000000,"state":"lock","since_ns":1000000000,"states_ns":{"lock":9000000000,"user":1000000000},"lock_cause_ns":{"lock":9000000000}}"#,
        r#"{"pid":20,"tid":23,"name":"db","at_ns":10000000000,"state":"sleep","since_ns":1000000000,"states_ns":{"sleep":8000000000,"user":2000000000},"cause_ns":{"device":8000000000},"detail_ns":{"block_io":8000000000}}"#,
        r#"{"pid":20,"tid":24,"name":"db","at_ns":10000000000,"state":"sleep","since_ns":0,"states_ns":{"sleep":10000000000},"cause_ns":{"new-work":10000000000}}"#,
        r#"{"pid":30,"tid":30,"name":"sh","at_ns":10000000000,"state":"sleep","since_ns":0,"states_ns":{"sleep":10000000000},"cause_ns":{"child":10000000000}}"#,
        r#"{"pid":31,"tid":31,"name":"bash","at_ns":10000000000,"state":"sleep","since_ns":0,"states_ns":{"sleep":10000000000},"cause_ns":{"child":10000000000}}"#,
        r#"{"pid":32,"tid":32,"name":"vi","at_ns":10000000000,"state":"sleep","since_ns":0,"states_ns":{"sleep":10000000000},"cause_ns":{"outside":10000000000}}"#,
        r#"{"sample":1,"at_ns":10000000000}"#,
    ] {
        let line = format!("{line}\n");
        founder.side_line("threads.jsonl", &line).unwrap();
    }
    let blocked = |pid, tid, function, state, cause, waker| Ticks {
        pid,
        tid,
        function,
        state,
        ticks: 900,
        end_ms: 10_000,
        cause,
        waker,
    };
    let on_cpu = |tid, ticks| Ticks {
        state: Microstate::User,
        ticks,
        end_ms: 1_000,
        ..blocked(20, tid, 3, Sleep, Cause::Undecided, 0)
    };
    let all = [
        blocked(1, 1, 0, UserLock, Cause::Lock, 21),
        blocked(20, 21, 0, UserLock, Cause::Lock, 23),
        blocked(20, 22, 0, UserLock, Cause::Lock, 23),
        blocked(20, 23, 1, Sleep, Cause::Device, 0),
        blocked(20, 24, 2, Sleep, Cause::NewWork, 21),
        on_cpu(21, 100),
        on_cpu(22, 100),
        on_cpu(23, 100),
        blocked(30, 30, 2, Sleep, Cause::Child, 0),
        blocked(31, 31, 2, Sleep, Cause::Child, 0),
        blocked(32, 32, 2, Sleep, Cause::Outside, 0),
    ];
    let parents = [
        (1, "kcollect", 0),
        (20, "db", 30),
        (30, "sh", 0),
        (31, "bash", 0),
        (32, "vi", 31),
    ];
    for (pid, name, ppid) in parents {
        let mut of_process = header(pid, name);
        of_process.ppid = (ppid != 0).then_some(Pid(ppid));
        of_process.comments = vec![format!("process: {name}")];
        let sub = format!("_{name}_PID_{pid}.1.er");
        let mut sub = ExperimentWriter::create_sub(founder.dir(), &sub, &of_process, run).unwrap();
        sub.map(&map(KERNEL, "vmlinux")).unwrap();
        for ticks in all.iter().filter(|ticks| ticks.pid == pid) {
            let frames = [KERNEL + 0x100 * ticks.function + 0x10];
            let stack = sub.stack(&frames, StackEnd::Complete).unwrap();
            let tick = ClockTick {
                cpu: 0,
                time_ns: Nanos(START + ticks.end_ms * 1_000_000),
                stack,
                tid: Tid(ticks.tid),
                pid: Pid(pid),
                state: ticks.state,
                ticks: units::Ticks(ticks.ticks),
                detail: 0,
                cause: ticks.cause,
                waker: Tid(ticks.waker),
            };
            sub.tick(&tick).unwrap();
        }
        sub.close(Nanos(10_000_000_000)).unwrap();
    }
    founder.close(Nanos(10_000_000_000)).unwrap();
}

#[test]
fn sentences_say_who_suffered_and_because_of_whom() {
    let tmp = tempfile::tempdir().unwrap();
    convoy(tmp.path());
    insta::assert_snapshot!("convoy", printed(tmp.path(), &["ktest.1.er"]));
    let json = printed(tmp.path(), &["ktest.1.er", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let text = printed(tmp.path(), &["ktest.1.er"]);
    let sentences: Vec<_> = text.lines().take_while(|line| !line.is_empty()).collect();
    assert_eq!(json["headline"], serde_json::json!(sentences));
    // A child that is not selected counts all the same.
    let of_shells = ["ktest.1.er", "--process", "sh"];
    insta::assert_snapshot!("convoy_of_shells", printed(tmp.path(), &of_shells));
}
