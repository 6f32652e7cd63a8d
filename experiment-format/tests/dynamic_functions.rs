//! Functions made by a JIT compiler, as stock gprofng reads them.
//!
//! A `function` event alone names code in anonymous memory, without text; `unmap` ends it.
//! Functions at the same address at different times are distinguished.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a helper of tests reports by panicking, as tests do"
)]

mod synthetic;

use std::path::PathBuf;

use experiment_format::cause::Cause;
use experiment_format::ids::{Pid, Tid};
use experiment_format::map::{MapEvent, READ_EXECUTE};
use experiment_format::microstate::Microstate;
use experiment_format::packet::ClockTick;
use experiment_format::stacks::StackEnd;
use experiment_format::units::{Nanos, Ticks};
use gprofng::{columns, display, display_all};

use synthetic::header;

const SECOND: u64 = 1_000_000_000;
const START: u64 = 77 * SECOND;
/// An address in anonymous memory, as a JIT compiler may use.
const JIT: u64 = 0x7f29_eefc_3000;

struct Written {
    _tmp: tempfile::TempDir,
    path: PathBuf,
}

/// Returns an experiment with these maps, and ticks at times and addresses: (seconds, address,
/// ticks of 10 ms).
fn written(maps: &[MapEvent], ticks: &[(u64, u64, u32)]) -> Written {
    let tmp = tempfile::tempdir().unwrap();
    let clock = ClockTick::table(10_000);
    let mut writer = synthetic::begin(tmp.path(), "ktest", &header(vec![clock]), START).unwrap();
    for map in maps {
        writer.map(map).unwrap();
    }
    for (at, address, ticks) in ticks {
        let stack = writer.stack(&[*address], StackEnd::Complete).unwrap();
        let tick = ClockTick {
            cpu: 0,
            time_ns: Nanos(START + at * SECOND),
            stack,
            tid: Tid(4242),
            pid: Pid(4242),
            state: Microstate::User,
            ticks: Ticks((*ticks).into()),
            detail: 0,
            cause: Cause::Undecided,
            waker: Tid(0),
        };
        writer.tick(&tick).unwrap();
    }
    let path = writer.close(Nanos(60 * SECOND)).unwrap();
    Written { _tmp: tmp, path }
}

fn begin(at: u64, vaddr: u64, size: u64, name: &str) -> MapEvent {
    MapEvent::Function {
        at_ns: Nanos(at * SECOND),
        vaddr,
        size,
        name: name.into(),
    }
}

fn end(at: u64, vaddr: u64) -> MapEvent {
    MapEvent::Unmap {
        at_ns: Nanos(at * SECOND),
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
fn functions_at_one_address_are_distinguished_by_time() {
    let written = written(
        &[
            begin(10, JIT, 0x100, "first"),
            end(20, JIT),
            begin(30, JIT, 0x100, "second"),
            end(40, JIT),
            // Another size, over the middle of the function before.
            begin(40, JIT + 0x80, 0x100, "third"),
        ],
        &[
            (15, JIT + 0x90, 100),
            (35, JIT + 0x90, 200),
            (45, JIT + 0x90, 300),
            // Before all, and in the gap: the next function at the address.
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
fn a_function_may_begin_at_the_instant_at_which_another_ends() {
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
    // A function that is mapped again is another one of the same name.
    let fib: Vec<_> = text
        .lines()
        .filter(|line| line.trim_end().ends_with(" fib"))
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert_eq!(fib, ["4.000", "1.000"], "{text}");
}

/// gprofng sorts events by time, and a late one before others of the same instant: an end and a
/// beginning of one instant would be swapped.
#[test]
fn late_events_have_the_same_effect_if_an_end_is_before_a_beginning() {
    let late = |gap: u64| {
        let second = MapEvent::Function {
            at_ns: Nanos(20 * SECOND + gap),
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

/// The reason why a function must not be written where a file is mapped, nor anonymous memory as a
/// segment: gprofng tries the mapping that it found last before it searches for a better one, so
/// the name depends on the order of lookups.
#[test]
fn a_segment_hides_a_function_at_its_addresses() {
    let segment = MapEvent::Segment {
        at_ns: Nanos::ZERO,
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
