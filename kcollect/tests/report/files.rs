//! Files by the traced calls on them.

use std::path::Path;
use std::sync::Arc;

use experiment_format::ids::{Pid, Tid};
use experiment_format::packet::{IoEvent, IoKind, IoOperation};
use experiment_format::stacks::StackEnd;
use experiment_format::units::Nanos;

use super::experiment::{self, PROGRAM, START, made};
use super::{shown, stdout};

/// A program that reads a file by a duplicate of its descriptor, and writes to its standard output
/// and to an unknown descriptor.
pub(crate) fn traced(parent: &Path) {
    let objects: &[(&str, u64, &[&str])] = &[("/usr/bin/sort", PROGRAM, &["main", "merge"])];
    let (founder, mut sub) = experiment::traced(parent, &IoEvent::table(), objects);
    let (main, merge) = (PROGRAM + 0x10, PROGRAM + 0x110);
    let log = |name: &str| Some(Arc::from(name.as_bytes()));
    use IoKind::{Close, Open, Other, Read, Write};
    for (at_us, took_us, kind, descriptor, bytes, name, duplicated, call) in [
        (1000, 20, Open, 3, 0, log("/data/x"), None, Some(257)),
        (1100, 10, Open, 9, 0, None, Some(3), Some(32)),
        (1200, 5, Close, 3, 0, None, None, Some(3)),
        (3000, 1500, Read, 9, 4096, None, None, Some(0)),
        (4000, 400, Read, 9, 100, None, None, Some(0)),
        (4100, 50, Other, 9, 0, None, None, Some(8)),
        (4200, 3, Write, 1, 11, None, None, Some(1)),
        (4300, 0, Open, 5, 0, log("tcp to 10.0.0.1:80"), None, None),
        (9000, 4000, Write, 5, 700, None, None, Some(44)),
        (9100, 7, Write, 77, 1, None, None, Some(1)),
        (9200, 9, Other, -1, 0, None, None, Some(4)),
    ] {
        let frames: &[u64] = match kind {
            Write => &[merge, main],
            _ => &[main],
        };
        let stack = sub.stack(frames, StackEnd::Complete).unwrap();
        let ended = START + at_us * 1000;
        let mut event = IoEvent {
            cpu: 1,
            stack,
            tid: Tid(7),
            pid: Pid(7),
            operation: IoOperation {
                requested_ns: Nanos(ended - took_us * 1000),
                ended_ns: Nanos(ended),
                kind,
                failed: false,
                descriptor,
                bytes,
                duplicated,
                call,
                name,
            },
        };
        sub.called(&event).unwrap();
        if kind == Open && descriptor == 3 {
            event.operation = IoOperation {
                ended_ns: Nanos(ended + 1000),
                failed: true,
                descriptor: -1,
                name: log("/data/y"),
                ..event.operation
            };
            sub.called(&event).unwrap();
        }
    }
    sub.close(Nanos(10_000_000)).unwrap();
    founder.close(Nanos(10_000_000)).unwrap();
}

#[test]
fn files_have_their_calls() {
    let tmp = tempfile::tempdir().unwrap();
    traced(tmp.path());
    let mut text = String::new();
    for arguments in [
        &["files"][..],
        &["files", "-n", "1"],
        &["files", "--csv"],
        &["files", "--process", "nothing"],
        &["calls"],
        &["calls", "-n", "2", "--csv"],
        &[
            "functions",
            "-m",
            "e.ioreadtime:i+iowritebytes:e.ioerrortime:name",
        ],
        &[
            "threads",
            "-m",
            "e+ioreadcnt:e+ioothercnt:e+ioerrorcnt:name",
        ],
        &["overview"],
    ] {
        text += &shown(tmp.path(), arguments);
    }
    insta::assert_snapshot!("files", text);
}

#[test]
fn without_traced_io_the_hint_is_named() {
    let tmp = tempfile::tempdir().unwrap();
    made(tmp.path());
    insta::assert_snapshot!("no_files", shown(tmp.path(), &["files"]));
}

#[test]
fn exports_show_the_calls_in_place_of_ticks() {
    let tmp = tempfile::tempdir().unwrap();
    traced(tmp.path());
    let folded = ["export", "--io", "--to", "folded", "-o", "-"];
    insta::assert_snapshot!("folded_io", stdout(tmp.path(), &folded));
}
