//! Functions by the memory that they got.

use std::path::Path;

use experiment_format::ids::{Pid, Tid};
use experiment_format::packet::{HeapEvent, HeapKind, WEIGHT_OF_ONE};
use experiment_format::stacks::StackEnd;
use experiment_format::units::Nanos;

use super::experiment::{self, PROGRAM, START, made};
use super::shown;

/// Pages that are mapped, and unmapped in part; and blocks, of which the last stands for ten.
fn traced(parent: &Path) {
    let objects: &[(&str, u64, &[&str])] = &[("/usr/bin/sort", PROGRAM, &["main", "merge"])];
    let (founder, mut sub) = experiment::traced(parent, &HeapEvent::table(), objects);
    let (main, merge) = (PROGRAM + 0x10, PROGRAM + 0x110);
    use HeapKind::{Allocated, Freed, Mapped, Unmapped};
    for (at_us, kind, address, bytes, frames) in [
        (1000, Mapped, 0x10_0000, 0x8000, &[main][..]),
        (2000, Mapped, 0x20_0000, 0x4000, &[merge, main]),
        (2500, Unmapped, 0x10_1000, 0x2000, &[main]),
        (3000, Mapped, 0x20_0000, 0x1000, &[merge, main]),
        (3100, Allocated, 0x50, 100, &[merge, main]),
        (3200, Freed, 0x50, 0, &[main]),
        (3300, Allocated, 0x60, 70, &[main]),
    ] {
        let weight = if address == 0x60 { 10 } else { 1 };
        let stack = sub.stack(frames, StackEnd::Complete).unwrap();
        sub.allocated(&HeapEvent {
            cpu: 1,
            time_ns: Nanos(START + at_us * 1000),
            stack,
            tid: Tid(7),
            pid: Pid(7),
            kind,
            bytes,
            address,
            own_bytes: bytes / weight,
            weight: weight * WEIGHT_OF_ONE,
        })
        .unwrap();
    }
    sub.close(founder.dir(), Nanos(10_000_000)).unwrap();
    founder.close(Nanos(10_000_000)).unwrap();
}

#[test]
fn functions_have_the_memory_that_they_got() {
    let tmp = tempfile::tempdir().unwrap();
    traced(tmp.path());
    let mut text = String::new();
    for arguments in [
        &["heap"][..],
        &["heap", "-m", "e+heapallocbytes:e+heapleakcnt:name", "--csv"],
        &["threads", "-m", "e+heapallocbytes:e+heapleakbytes:name"],
    ] {
        text += &shown(tmp.path(), arguments);
    }
    insta::assert_snapshot!("heap", text);
}

#[test]
fn without_traced_memory_the_cure_is_named() {
    let tmp = tempfile::tempdir().unwrap();
    made(tmp.path());
    insta::assert_snapshot!("no_heap", shown(tmp.path(), &["heap"]));
}
