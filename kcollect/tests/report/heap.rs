//! Functions by the memory that they got.

use std::path::Path;
use std::process::Command;

use experiment_format::ids::{Pid, Tid};
use experiment_format::packet::{HeapEvent, HeapKind, WEIGHT_OF_ONE};
use experiment_format::stacks::StackEnd;
use experiment_format::units::Nanos;

use super::experiment::{self, PROGRAM, START, made};
use super::{kcollect, shown, stdout};

/// Pages that are mapped, and unmapped in part; and blocks, the last of which stands for ten.
pub(crate) fn traced(parent: &Path) {
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
    sub.close(Nanos(10_000_000)).unwrap();
    founder.close(Nanos(10_000_000)).unwrap();
}

#[test]
fn functions_have_the_memory_that_they_got() {
    let tmp = tempfile::tempdir().unwrap();
    traced(tmp.path());
    let mut text = String::new();
    for arguments in [
        &["heap"][..],
        &["blocks"],
        &["blocks", "-n", "1", "--csv"],
        &["heap", "-m", "e+heapallocbytes:e+heapleakcnt:name", "--csv"],
        &["threads", "-m", "e+heapallocbytes:e+heapleakbytes:name"],
    ] {
        text += &shown(tmp.path(), arguments);
    }
    insta::assert_snapshot!("heap", text);
}

#[test]
fn without_traced_memory_the_hint_is_named() {
    let tmp = tempfile::tempdir().unwrap();
    made(tmp.path());
    insta::assert_snapshot!("no_heap", shown(tmp.path(), &["heap"]));
}

#[test]
fn pictures_and_exports_show_bytes_in_place_of_ticks() {
    let tmp = tempfile::tempdir().unwrap();
    traced(tmp.path());
    let mut text = String::new();
    for what in ["--allocated", "--live"] {
        text += &format!("{what}\n");
        text += &stdout(tmp.path(), &["export", what, "--to", "folded", "-o", "-"]);
    }
    insta::assert_snapshot!("folded_heap", text);
    let flame = stdout(tmp.path(), &["flame", "--live", "-o", "-"]);
    assert!(flame.contains("total_samples=\"41030\""), "{flame}");
    let profile = ["export", "--live", "--to", "pprof", "-o", "live.pb.gz"];
    let result = stdout(tmp.path(), &profile);
    insta::assert_snapshot!("exported_heap", result);
    let mut gzip = Command::new("gzip");
    gzip.args(["-dc", "live.pb.gz"]).current_dir(tmp.path());
    let unpacked = gzip.output().unwrap();
    let unpacked = String::from_utf8_lossy(&unpacked.stdout).into_owned();
    assert!(unpacked.contains("inuse_space") && !unpacked.contains("totalcpu"));
}

#[test]
fn memory_has_no_place_on_a_time_line() {
    let tmp = tempfile::tempdir().unwrap();
    traced(tmp.path());
    for format in ["firefox", "perfetto", "speedscope"] {
        let output = kcollect(tmp.path(), &["export", "--live", "--to", format, "-o", "-"]);
        assert_eq!(output.status.code(), Some(64), "{output:?}");
    }
    let without = tempfile::tempdir().unwrap();
    made(without.path());
    let output = kcollect(without.path(), &["flame", "--live", "-o", "-"]);
    assert_eq!(output.status.code(), Some(65), "{output:?}");
}
