//! Functions that a JIT makes, as stock gprofng reads them.
//!
//! Code in anonymous memory has a name by a `function` event alone, without text; `unmap` ends it;
//! and what lies at the same address later is told apart by time.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a helper of tests reports by panicking, as tests do"
)]

mod synthetic;

use std::path::PathBuf;

use experiment_format::map::{MapEvent, READ_EXECUTE};
use experiment_format::microstate::{Microstate, NumStates};
use experiment_format::packet::ClockTick;
use experiment_format::stacks::StackEnd;
use gprofng::{columns, display, display_all};

use synthetic::{clock, header};

const SECOND: u64 = 1_000_000_000;
const START: u64 = 77 * SECOND;
/// Where a JIT's anonymous memory might be.
const JIT: u64 = 0x7f29_eefc_3000;

struct Written {
    _tmp: tempfile::TempDir,
    path: PathBuf,
}

/// An experiment with these maps, and ticks at times and addresses: (seconds, address, ticks of 10
/// ms).
fn written(maps: &[MapEvent], ticks: &[(u64, u64, u32)]) -> Written {
    let tmp = tempfile::tempdir().unwrap();
    let clock = clock(10_000, NumStates::Solaris, ClockTick::declaration());
    let mut writer = synthetic::begin(tmp.path(), "ktest", &header(vec![clock]), START).unwrap();
    for map in maps {
        writer.map(map).unwrap();
    }
    for (at, address, ticks) in ticks {
        let stack = writer.stack(&[*address], StackEnd::Complete).unwrap();
        let tick = ClockTick {
            cpu: 0,
            time: START + at * SECOND,
            stack,
            tid: 4242,
            pid: 4242,
            state: Microstate::User,
            ticks: *ticks,
        };
        writer.tick(&tick).unwrap();
    }
    let path = writer.close(60 * SECOND).unwrap();
    Written { _tmp: tmp, path }
}

fn begin(at: u64, vaddr: u64, size: u64, name: &str) -> MapEvent {
    MapEvent::Function {
        at: at * SECOND,
        vaddr,
        size,
        name: name.into(),
    }
}

fn end(at: u64, vaddr: u64) -> MapEvent {
    MapEvent::Unmap {
        at: at * SECOND,
        vaddr,
    }
}

const FUNCTIONS: [&str; 3] = ["-metrics", "e.user:name", "-functions"];

#[test]
fn a_function_has_its_name_without_text() {
    let name = "JS:*fib /srv/a <b> & \"c\"/busy.js:1:13";
    let written = written(
        &[
            begin(0, JIT, 0x100, name),
            begin(0, JIT + 0x100, 0x40, "py::main:/srv/main.py"),
        ],
        &[
            (1, JIT, 100),
            (2, JIT + 0xff, 50),
            (3, JIT + 0x100, 25),
            (4, JIT + 0x140, 7),
        ],
    );
    let text = display(&written.path, &FUNCTIONS);
    assert_eq!(columns(&text, name)[0], "1.500", "{text}");
    assert_eq!(columns(&text, "py::main:/srv/main.py")[0], "0.250");
    assert_eq!(columns(&text, "<Unknown>")[0], "0.070");
}

#[test]
fn an_end_and_another_function_at_the_address_are_told_apart_by_time() {
    let written = written(
        &[
            begin(10, JIT, 0x100, "first"),
            end(20, JIT),
            begin(30, JIT, 0x100, "second"),
            end(40, JIT),
            // Another size, and over the middle of the one before.
            begin(40, JIT + 0x80, 0x100, "third"),
        ],
        &[
            (15, JIT + 0x90, 100),
            (35, JIT + 0x90, 200),
            (45, JIT + 0x90, 300),
            // Before all, and in the gap: what comes next at the address.
            (5, JIT + 4, 1_000),
            (25, JIT + 4, 10_000),
            // After all.
            (45, JIT + 4, 50),
        ],
    );
    let text = display(&written.path, &FUNCTIONS);
    assert_eq!(columns(&text, "first")[0], "11.000", "{text}");
    assert_eq!(columns(&text, "second")[0], "102.000", "{text}");
    assert_eq!(columns(&text, "third")[0], "3.000", "{text}");
    assert_eq!(columns(&text, "<Unknown>")[0], "0.500", "{text}");
}

#[test]
fn one_may_begin_at_the_instant_at_which_another_ends() {
    let written = written(
        &[
            begin(0, JIT, 0x100, "first"),
            end(20, JIT),
            begin(20, JIT, 0x100, "second"),
        ],
        &[(19, JIT, 100), (20, JIT, 200), (21, JIT, 300)],
    );
    let text = display(&written.path, &FUNCTIONS);
    assert_eq!(columns(&text, "first")[0], "1.000", "{text}");
    assert_eq!(columns(&text, "second")[0], "5.000", "{text}");
}

#[test]
fn a_longer_or_shorter_name_at_the_same_place_is_another_function_after_the_end() {
    let written = written(
        &[
            begin(0, JIT, 0x100, "fib"),
            end(20, JIT),
            begin(20, JIT, 0x100, "fib2"),
            end(40, JIT),
            begin(40, JIT, 0x100, "fib"),
        ],
        &[(10, JIT, 100), (30, JIT, 200), (50, JIT, 400)],
    );
    let text = display(&written.path, &FUNCTIONS);
    assert_eq!(columns(&text, "fib2")[0], "2.000", "{text}");
    // A function that comes again is one more of its name.
    let fib: Vec<_> = text
        .lines()
        .filter(|line| line.trim_end().ends_with(" fib"))
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert_eq!(fib, ["4.000", "1.000"], "{text}");
}

/// gprofng sorts events by time, and one that comes late before those of its own instant: an end
/// and a beginning of one instant would change places.
#[test]
fn what_is_written_late_is_as_good_if_an_end_is_before_a_beginning() {
    let late = |gap: u64| {
        let second = MapEvent::Function {
            at: 20 * SECOND + gap,
            vaddr: JIT,
            size: 0x100,
            name: "second".into(),
        };
        let elsewhere = begin(50, JIT + 0x1000, 0x10, "elsewhere");
        written(
            &[
                elsewhere,
                begin(0, JIT, 0x100, "first"),
                end(20, JIT),
                second,
            ],
            &[(10, JIT, 100), (30, JIT, 200), (55, JIT + 0x1000, 400)],
        )
    };
    let text = display(&late(1).path, &FUNCTIONS);
    assert_eq!(columns(&text, "first")[0], "1.000", "{text}");
    assert_eq!(columns(&text, "second")[0], "2.000", "{text}");
    assert_eq!(columns(&text, "elsewhere")[0], "4.000", "{text}");
    let (_, errors) = display_all(&late(0).path, &FUNCTIONS);
    assert!(errors.contains("loaded with same address"), "{errors}");
}

/// Why a function is not to be written where a file is mapped, nor the anonymous memory as a
/// segment: gprofng looks at the mapping that it found last before it looks for a better one, so
/// the name is a matter of chance.
#[test]
fn a_segment_keeps_its_addresses_from_a_function() {
    let segment = MapEvent::Segment {
        at: 0,
        vaddr: JIT,
        size: 0x1000,
        file_offset: 0,
        modes: READ_EXECUTE,
        name: "//anon".into(),
    };
    let written = written(
        &[segment, begin(10, JIT + 0x10, 0x10, "inside")],
        &[(20, JIT + 8, 100), (20, JIT + 0x10, 200)],
    );
    let (text, _) = display_all(&written.path, &FUNCTIONS);
    assert!(!text.contains("inside"), "{text}");
}
