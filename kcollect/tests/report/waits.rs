//! The places where threads waited, in the first tables.

use experiment_format::directory::{ExperimentDir, NameRequest};
use experiment_format::ids::{Pid, Tid};
use experiment_format::log::StartTime;
use experiment_format::microstate::Microstate::{self, Sleep, System, UserLock};
use experiment_format::packet::ClockTick;
use experiment_format::stacks::StackEnd;
use experiment_format::units::{Nanos, Ticks};
use experiment_format::writer::ExperimentWriter;

use crate::experiment::{KERNEL, START, header, image, map};
use crate::printed;

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
            cause: experiment_format::cause::Cause::Undecided,
            waker: experiment_format::ids::Tid(0),
        };
        founder.tick(&tick).unwrap();
    }
    founder.close(Nanos(10_000_000_000)).unwrap();

    let text = printed(tmp.path(), &["ktest.1.er"]);
    insta::assert_snapshot!("sleepers_come_last", text);
}
