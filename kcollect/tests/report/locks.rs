//! Locks by the traced waits for them.

use std::path::Path;

use experiment_format::ids::{Pid, Tid};
use experiment_format::packet::{SyncEvent, SyncThreshold};
use experiment_format::stacks::StackEnd;
use experiment_format::units::Nanos;

use super::experiment::{self, KERNEL, PROGRAM, START, made};
use super::{kcollect, shown, stdout};

/// A program with two locks in its data, and a wait whose lock is not known.
pub(crate) fn traced(parent: &Path) {
    let objects: &[(&str, u64, &[&str])] = &[
        ("vmlinux", KERNEL, &["schedule", "futex_wait"]),
        ("/usr/bin/sort", PROGRAM, &["main", "merge"]),
        (
            "/lib/libc.so.6",
            LIBC,
            &["futex_abstimed_wait", "pthread_mutex_lock"],
        ),
    ];
    let micros = std::time::Duration::from_micros(3);
    let table = SyncEvent::table(SyncThreshold::Calibrated(micros));
    let (founder, mut sub) = experiment::traced(parent, &table, objects);
    let (lock, wait) = (LIBC + 0x110, LIBC + 0x10);
    let kernel = [KERNEL + 0x10, KERNEL + 0x110];
    let of_merge = [&kernel[..], &[wait, lock, PROGRAM + 0x110, PROGRAM + 0x10]].concat();
    let of_main = [&kernel[..], &[wait, PROGRAM + 0x10]].concat();
    for (at_us, took_us, tid, object, kind, frames) in [
        (1000, 900, 7, 0x40_8010, 0, &of_merge),
        (5000, 2500, 8, 0x40_8010, 0, &of_merge),
        (9000, 7000, 7, 0x40_8060, 9, &of_main),
        (9500, 100, 8, 0, 65535, &vec![]),
    ] {
        let end = if frames.is_empty() {
            StackEnd::UnwindFailed
        } else {
            StackEnd::Complete
        };
        let stack = sub.stack(frames, end).unwrap();
        let ended = START + at_us * 1000;
        sub.waited(&SyncEvent {
            cpu: 1,
            requested_ns: Nanos(ended - took_us * 1000),
            ended_ns: Nanos(ended),
            stack,
            tid: Tid(tid),
            pid: Pid(7),
            object,
            kind,
        })
        .unwrap();
    }
    sub.close(Nanos(10_000_000)).unwrap();
    founder.close(Nanos(10_000_000)).unwrap();
}

const LIBC: u64 = 0x7f00_0000_0000;

#[test]
fn locks_have_their_waits_and_who_waited() {
    let tmp = tempfile::tempdir().unwrap();
    traced(tmp.path());
    let mut text = String::new();
    for arguments in [
        &["locks"][..],
        &["locks", "-n", "1"],
        &["locks", "--csv"],
        &["locks", "--thread", "8"],
        &["locks", "--process", "nothing"],
        &["functions", "-m", "e.sync:i.sync:e.syncn:name"],
        &["threads", "-m", "e.sync:e.syncn:name"],
        &["overview"],
    ] {
        text += &shown(tmp.path(), arguments);
    }
    insta::assert_snapshot!("locks", text);
}

#[test]
fn without_traced_waits_the_hint_is_named() {
    let tmp = tempfile::tempdir().unwrap();
    made(tmp.path());
    insta::assert_snapshot!("no_locks", shown(tmp.path(), &["locks"]));
}

#[test]
fn pictures_and_exports_show_the_waits_in_place_of_ticks() {
    let tmp = tempfile::tempdir().unwrap();
    traced(tmp.path());
    let folded = ["export", "--locks", "--to", "folded", "-o", "-"];
    insta::assert_snapshot!("folded_locks", stdout(tmp.path(), &folded));
    let flame = stdout(tmp.path(), &["flame", "--locks", "-o", "-"]);
    assert!(
        flame.contains("total_samples=\"10500\"") && flame.contains("merge"),
        "{flame}"
    );
}

#[test]
fn exports_without_traced_waits_are_refused() {
    let tmp = tempfile::tempdir().unwrap();
    made(tmp.path());
    for command in [&["flame"][..], &["export", "--to", "folded"]] {
        let output = kcollect(tmp.path(), &[command, &["--locks"]].concat());
        assert_eq!(output.status.code(), Some(65), "{output:?}");
    }
}
