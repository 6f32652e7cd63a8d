//! The places where threads waited, in the first tables, and the view of waits.

use experiment_format::cause::Cause;
use experiment_format::directory::{ExperimentDir, NameRequest};
use experiment_format::ids::{Pid, Tid};
use experiment_format::log::{LogEvent, StartTime};
use experiment_format::microstate::Microstate::{self, Sleep, System, UserLock, WaitCpu};
use experiment_format::packet::ClockTick;
use experiment_format::stacks::StackEnd;
use experiment_format::units::{Nanos, Ticks};
use experiment_format::writer::ExperimentWriter;

use crate::experiment::{KERNEL, START, header, image, map};
use crate::{printed, shown};

/// A thread that only sleeps, one that works too, and one that waits for a lock all the time.
#[test]
fn places_of_mere_sleep_come_last() {
    let tmp = tempfile::tempdir().unwrap();
    let request = NameRequest::Exactly("ktest.1.er".into());
    let (dir, _) = ExperimentDir::create(tmp.path(), &request, None).unwrap();
    image(&dir, "vmlinux", KERNEL, &["do_wait", "do_read", "do_lock"]);
    let run = StartTime {
        tstamp_ns: Nanos(START),
        wall_s: 1_795_205_070,
        wall_subsec_ns: 0,
        tm_zone_s: 0,
    };
    let mut founder = ExperimentWriter::create(dir, &header(1, "kernel"), run).unwrap();
    founder.map(&map(KERNEL, "vmlinux")).unwrap();
    let ticks: [(u32, u64, Microstate, u64); 4] = [
        (3, 0, Sleep, 900),
        (4, 1, Sleep, 40),
        (4, 1, System, 10),
        (5, 2, UserLock, 900),
    ];
    for (id, function, state, count) in ticks {
        let frames = [KERNEL + 0x100 * function + 0x10];
        let stack = founder.stack(&frames, StackEnd::Complete).unwrap();
        let tick = ClockTick {
            cpu: 0,
            time_ns: Nanos(START + 500_000_000),
            stack,
            tid: Tid(id),
            pid: Pid(id),
            state,
            ticks: Ticks(count),
            detail: 0,
            cause: Cause::Undecided,
            waker: Tid(0),
        };
        founder.tick(&tick).unwrap();
    }
    founder.close(Nanos(10_000_000_000)).unwrap();

    let text = printed(tmp.path(), &["ktest.1.er"]);
    insta::assert_snapshot!("sleepers_come_last", text);
}

/// A thread that waits for a lock, for a CPU, for work, and for what is not known.
#[test]
fn waits_have_a_cause_a_place_and_the_thread_that_ended_them() {
    let tmp = tempfile::tempdir().unwrap();
    let request = NameRequest::Exactly("ktest.1.er".into());
    let (dir, _) = ExperimentDir::create(tmp.path(), &request, None).unwrap();
    image(&dir, "vmlinux", KERNEL, &["do_wait", "do_read", "do_lock"]);
    let run = StartTime {
        tstamp_ns: Nanos(START),
        wall_s: 1_795_205_070,
        wall_subsec_ns: 0,
        tm_zone_s: 0,
    };
    let mut founder = ExperimentWriter::create(dir, &header(1, "kernel"), run).unwrap();
    founder.map(&map(KERNEL, "vmlinux")).unwrap();
    for (tid, pid, name, process) in [
        (3, 3, "web", "web"),
        (4, 3, "log", "web"),
        (5, 5, "db", "db"),
    ] {
        let event = LogEvent::Thread {
            at_ns: Nanos::ZERO,
            tid: Tid(tid),
            name: name.into(),
            group: format!("{process}, pid {pid}"),
        };
        founder.log(&event).unwrap();
    }
    let ticks: [(u32, u32, u64, Microstate, Cause, u32, u64); 8] = [
        (3, 3, 2, UserLock, Cause::Lock, 4, 30),
        (3, 3, 2, UserLock, Cause::Lock, 5, 10),
        (3, 3, 2, WaitCpu, Cause::Undecided, 0, 5),
        (3, 3, 1, Sleep, Cause::NewWork, 5, 400),
        (3, 3, 1, System, Cause::Undecided, 0, 20),
        (4, 3, 1, Sleep, Cause::Answer, 5, 100),
        (5, 5, 0, Sleep, Cause::Undecided, 77, 50),
        (5, 5, 0, Sleep, Cause::Child, 77, 7),
    ];
    for (tid, pid, function, state, cause, waker, count) in ticks {
        let frames = [KERNEL + 0x100 * function + 0x10];
        let stack = founder.stack(&frames, StackEnd::Complete).unwrap();
        let tick = ClockTick {
            cpu: 0,
            time_ns: Nanos(START + 500_000_000),
            stack,
            tid: Tid(tid),
            pid: Pid(pid),
            state,
            ticks: Ticks(count),
            detail: 0,
            cause,
            waker: Tid(waker),
        };
        founder.tick(&tick).unwrap();
    }
    founder.close(Nanos(10_000_000_000)).unwrap();
    let summary = tmp.path().join("ktest.1.er/kcollect.json");
    std::fs::write(summary, r#"{"wakers_watched":false}"#).unwrap();

    let mut text = String::new();
    for arguments in [
        &["waits"][..],
        &["waits", "--all"],
        &["waits", "--all", "-n", "2", "--csv"],
        &["waits", "--cause", "answer,cpu"],
        &["waits", "--cause", "new-work"],
        &["waits", "--all", "--waker", "^db$"],
        &["waits", "--waker", "77"],
        &["functions", "--suffered", "-m", "e.total:e.lock:name"],
        &["waits", "--waker", "nobody"],
        &["functions", "--all"],
    ] {
        text += &shown(tmp.path(), arguments);
    }
    insta::assert_snapshot!("waits", text);
}
