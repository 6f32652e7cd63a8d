//! Functions by the memory that they got.

use std::path::Path;

use experiment_format::directory::{ExperimentDir, NameRequest};
use experiment_format::ids::{Pid, Tid};
use experiment_format::log::StartTime;
use experiment_format::packet::{HeapEvent, HeapKind};
use experiment_format::stacks::StackEnd;
use experiment_format::subexperiment::SubexperimentWriter;
use experiment_format::writer::ExperimentWriter;

use super::experiment::{PROGRAM, START, SUB, header, image, made, map};
use super::shown;

/// Pages that are mapped, and unmapped in part; and blocks, as another recorder writes them.
fn traced(parent: &Path) {
    let request = NameRequest::Exactly("ktest.1.er".into());
    let (dir, _) = ExperimentDir::create(parent, &request, None).unwrap();
    image(&dir, "/usr/bin/sort", PROGRAM, &["main", "merge"]);
    let run = StartTime {
        tstamp_ns: START,
        wall_s: 1_795_205_070,
        wall_subsec_ns: 0,
        tm_zone_s: 0,
    };
    let mut of_machine = header(1, "kernel");
    of_machine.profiles.push(HeapEvent::table());
    let mut of_sort = header(7, "/usr/bin/sort -n x");
    of_sort.profiles.push(HeapEvent::table());
    let founder = ExperimentWriter::create(dir, &of_machine, run).unwrap();
    let mut sub = SubexperimentWriter::create(founder.dir(), SUB, &of_sort, run).unwrap();
    sub.map(&map(PROGRAM, "/usr/bin/sort")).unwrap();
    let (main, merge) = (PROGRAM + 0x10, PROGRAM + 0x110);
    use HeapKind::{Allocated, Freed, Mapped, Unmapped};
    for (at_us, kind, address, bytes, frames) in [
        (1000, Mapped, 0x10_0000, 0x8000, &[main][..]),
        (2000, Mapped, 0x20_0000, 0x4000, &[merge, main]),
        (2500, Unmapped, 0x10_1000, 0x2000, &[main]),
        (3000, Mapped, 0x20_0000, 0x1000, &[merge, main]),
        (3100, Allocated, 0x50, 100, &[merge, main]),
        (3200, Freed, 0x50, 0, &[main]),
        (3300, Allocated, 0x60, 7, &[main]),
    ] {
        let stack = sub.stack(frames, StackEnd::Complete).unwrap();
        sub.allocated(&HeapEvent {
            cpu: 1,
            time: START + at_us * 1000,
            stack,
            tid: Tid(7),
            pid: Pid(7),
            kind,
            bytes,
            address,
        })
        .unwrap();
    }
    sub.close(founder.dir(), 10_000_000).unwrap();
    founder.close(10_000_000).unwrap();
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
