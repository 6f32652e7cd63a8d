//! Names of threads, as stock gprofng shows them, and what else changes when there are names.
//!
//! gprofng supports names of Java threads only. What it does with named threads without Java is not
//! documented. So these tests find out which name a packet has, whether figures or frames change
//! with names, and how hostile names are shown.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a helper of tests reports by panicking, as tests do"
)]

mod synthetic;

use std::path::{Path, PathBuf};

use experiment_format::cause::Cause;
use experiment_format::elf_image::{ElfImage, ImageSymbol, TextSection};
use experiment_format::ids::{Pid, Tid};
use experiment_format::log::{LogEvent, LogHeader, ProfileDecl};
use experiment_format::map::{MapEvent, READ_EXECUTE};
use experiment_format::microstate::Microstate;
use experiment_format::packet::ClockTick;
use experiment_format::reader::Experiment;
use experiment_format::stacks::StackEnd;
use experiment_format::text::printable;
use experiment_format::units::{Nanos, Ticks};
use experiment_format::writer::ExperimentWriter;
use gprofng::{columns, display, display_all};

const SECOND: u64 = 1_000_000_000;
const START: u64 = 1145 * SECOND + 640_020_819;
const KERNEL: u64 = 0xffff_ffff_8100_0000;
const USER: u64 = 0x7f00_0000_0000;
/// The addresses of `<IDLE>` and of a function that has the ticks of a CPU.
const IDLE: u64 = 0x1000;
const RUNNING: u64 = 0x2000;
/// The columns of [`threads`] and [`functions`].
const KERNEL_TIME: [&str; 2] = ["-metrics", "e.kcpu:name"];

fn header(names: bool) -> LogHeader {
    let mut profiles = vec![ClockTick::table_of_cpus(10_000), ClockTick::table(10_000)];
    if names {
        profiles.push(ProfileDecl::ThreadNames);
    }
    synthetic::header(profiles)
}

fn begin(parent: &Path, name: &str, names: bool) -> ExperimentWriter {
    let mut writer = synthetic::begin(parent, name, &header(names), START).unwrap();
    for (vaddr, name) in [(IDLE, "<IDLE>"), (RUNNING, "<running>")] {
        let name = name.to_owned();
        let (at_ns, size) = (0, 256);
        writer
            .map(&MapEvent::Function {
                at_ns: Nanos(at_ns),
                vaddr,
                size,
                name,
            })
            .unwrap();
    }
    writer
}

/// Returns an experiment that declares names of threads.
fn named(parent: &Path, fill: impl FnOnce(&mut ExperimentWriter)) -> PathBuf {
    let mut writer = begin(parent, "ktest.1.er", true);
    fill(&mut writer);
    writer.close(Nanos(100 * SECOND)).unwrap()
}

fn name(writer: &mut ExperimentWriter, at_ns: u64, tid: u32, name: &str, group: &str) {
    let (name, group) = (name.to_owned(), group.to_owned());
    let event = LogEvent::Thread {
        at_ns: Nanos(at_ns),
        tid: Tid(tid),
        name,
        group,
    };
    writer.log(&event).unwrap();
}

/// Writes ticks of a CPU while a thread ran.
fn tick(writer: &mut ExperimentWriter, at_ns: u64, tid: u32, ticks: u64) {
    let stack = writer.stack(&[RUNNING], StackEnd::Complete).unwrap();
    let (cpu, pid, state) = (0, tid, Microstate::KernelCpu);
    let time = START + at_ns;
    let tick = ClockTick {
        cpu,
        time_ns: Nanos(time),
        stack,
        tid: Tid(tid),
        pid: Pid(pid),
        state,
        ticks: Ticks(ticks),
        detail: 0,
        cause: Cause::Undecided,
        waker: Tid(0),
    };
    writer.tick(&tick).unwrap();
}

/// Returns the rows of a table: seconds and name.
fn rows(text: &str) -> Vec<(&str, &str)> {
    let rows = text.lines().filter_map(|line| line.trim().split_once(' '));
    rows.map(|(seconds, name)| (seconds, name.trim()))
        .filter(|(seconds, name)| seconds.parse::<f64>().is_ok() && *name != "<Total>")
        .collect()
}

/// The rows of the threads, the one with most ticks first, without `Process 1, `.
fn threads(path: &Path) -> Vec<String> {
    let text = display(path, &[&KERNEL_TIME[..], &["-threads"]].concat());
    let rows = rows(&text).into_iter();
    rows.map(|(seconds, name)| format!("{seconds} {}", name.replace("Process 1, ", "")))
        .collect()
}

fn functions(path: &Path, more: &[&str]) -> Vec<String> {
    let (text, _) = display_all(path, &[more, &KERNEL_TIME[..], &["-functions"]].concat());
    let rows = rows(&text).into_iter();
    rows.map(|(seconds, name)| format!("{seconds} {name}"))
        .collect()
}

/// Returns the seconds of each name: the low half of `JTHREAD` is the position of the event in the
/// file.
fn seconds_by_event(path: &Path) -> Vec<(u32, String)> {
    let script = path.join("script");
    let commands = "metrics e.kcpu:name\nindxobj_define event JTHREAD\nevent\n";
    std::fs::write(&script, commands).unwrap();
    let text = display(path, &["-script", script.to_str().unwrap()]);
    let mut found: Vec<_> = rows(&text)
        .into_iter()
        .map(|(seconds, name)| {
            let value = name.split_once('(').unwrap().1.trim_end_matches(')');
            (value.parse::<u64>().unwrap() as u32, seconds.to_owned())
        })
        .collect();
    found.sort();
    found
}

#[test]
fn a_name_from_the_start_on_is_that_of_all_packets() {
    let tmp = tempfile::tempdir().unwrap();
    let path = named(tmp.path(), |writer| {
        name(writer, 0, 1264, "sshd", "pid 1264");
        // The packets of this thread are written before its name.
        tick(writer, 0, 7, 100);
        tick(writer, 0, 1264, 200);
        tick(writer, 99 * SECOND, 1264, 200);
        name(writer, 0, 7, "kworker/0:1", "pid 7");
    });
    assert_eq!(
        threads(&path),
        [
            "4.000 Thread 1264, JThread 0 'sshd', Group 'pid 1264', Parent ''",
            "1.000 Thread 7, JThread 1 'kworker/0:1', Group 'pid 7', Parent ''",
        ]
    );
    assert_eq!(functions(&path, &[]), ["5.000 <running>"]);
    let names: Vec<_> = Experiment::open(&path).unwrap().events().to_vec();
    let first = LogEvent::Thread {
        at_ns: Nanos::ZERO,
        tid: Tid(1264),
        name: "sshd".into(),
        group: "pid 1264".into(),
    };
    assert_eq!(names[0], first);
}

/// The reason why all threads are named or none, and from the start on.
#[test]
fn packets_without_a_name_are_hidden_by_default() {
    let tmp = tempfile::tempdir().unwrap();
    let path = named(tmp.path(), |writer| {
        name(writer, 4 * SECOND, 1, "late", "pid 1");
        tick(writer, 4 * SECOND - 1, 1, 100);
        tick(writer, 4 * SECOND, 1, 200);
        tick(writer, 4 * SECOND, 2, 50);
    });
    assert_eq!(
        functions(&path, &[]),
        ["2.000 <running>", "1.500 <JVM-System>"]
    );
    for mode in ["expert", "machine"] {
        assert_eq!(
            functions(&path, &["-viewmode", mode]),
            ["3.500 <running>"],
            "{mode}"
        );
    }
    // The row of a thread has all of its time, and its first name.
    assert_eq!(
        threads(&path),
        [
            "3.000 Thread 1, JThread 0 'late', Group 'pid 1', Parent ''",
            "0.500 Thread 2",
        ]
    );
}

#[test]
fn a_thread_in_the_group_system_is_hidden_and_so_refused() {
    let tmp = tempfile::tempdir().unwrap();
    let path = named(tmp.path(), |writer| {
        name(writer, 0, 1, "system", "System");
        tick(writer, 0, 1, 100);
        let (name, group) = ("x".to_owned(), "system".to_owned());
        let event = LogEvent::Thread {
            at_ns: Nanos::ZERO,
            tid: Tid(1),
            name,
            group,
        };
        writer.log(&event).unwrap_err();
    });
    assert_eq!(functions(&path, &[]), ["1.000 <running>"]);
    let log = path.join("log.xml");
    let text = std::fs::read_to_string(&log).unwrap();
    std::fs::write(&log, text.replace("\"System\"", "\"system\"")).unwrap();
    assert_eq!(functions(&path, &[]), ["1.000 <JVM-System>"]);
}

#[test]
fn a_name_that_is_not_declared_is_refused() {
    let tmp = tempfile::tempdir().unwrap();
    let mut writer = begin(tmp.path(), "ktest.1.er", false);
    let event = LogEvent::Thread {
        at_ns: Nanos::ZERO,
        tid: Tid(12),
        name: "x".into(),
        group: String::new(),
    };
    let error = writer.log(&event).unwrap_err().to_string();
    assert!(
        error.contains("log.xml") && error.contains("thread 12"),
        "{error}"
    );
    assert!(error.contains("ThreadNames"), "{error}");
}

#[test]
fn of_several_names_the_last_in_the_file_that_is_not_later_is_used() {
    let tmp = tempfile::tempdir().unwrap();
    let written = |events: &[(u64, &str)]| {
        let parent = tempfile::tempdir_in(tmp.path()).unwrap().keep();
        named(&parent, |writer| {
            for (at, to) in events {
                name(writer, at * SECOND, 10, to, &format!("pid of {to}"));
            }
            for (at, ticks) in [(1, 100), (5, 200), (9, 400)] {
                tick(writer, at * SECOND, 10, ticks);
            }
        })
    };
    let seconds = |found: Vec<(u32, String)>| -> Vec<String> {
        found
            .into_iter()
            .map(|(event, seconds)| format!("{event}: {seconds}"))
            .collect()
    };
    // A new name, and a thread id that another process reuses: each packet has the name of its
    // time, while the row of the thread has the name of its first packet.
    let path = written(&[(0, "a"), (4, "b"), (8, "c")]);
    assert_eq!(
        seconds(seconds_by_event(&path)),
        ["0: 1.000", "1: 2.000", "2: 4.000"]
    );
    let of_a = "7.000 Thread 10, JThread 0 'a', Group 'pid of a', Parent ''";
    assert_eq!(threads(&path), [of_a]);
    // The first packet that passes the filter.
    let later = display(
        &path,
        &[
            "-metrics",
            "e.kcpu:name",
            "-filters",
            "TSTAMP>2000000000",
            "-threads",
        ],
    );
    let of_b = "Thread 10, JThread 1 'b', Group 'pid of b', Parent ''";
    assert_eq!(columns(&later, of_b)[0], "6.000");
    // The last name in the file replaces the others, from its time on.
    let path = written(&[(0, "a"), (4, "b"), (0, "c")]);
    assert_eq!(seconds(seconds_by_event(&path)), ["2: 7.000"]);
    let of_c = "7.000 Thread 10, JThread 2 'c', Group 'pid of c', Parent ''";
    assert_eq!(threads(&path), [of_c]);
    let path = written(&[(0, "a"), (8, "b"), (4, "c")]);
    assert_eq!(seconds(seconds_by_event(&path)), ["0: 1.000", "2: 6.000"]);
}

#[test]
fn names_are_shown_unchanged_and_printable_ones_are_safe() {
    let names: [&[u8]; 9] = [
        b"",
        b"q\"uo'te",
        b"<a>&amp;</a>",
        b"new\nline",
        b"\x1b[31m\x01\0\x7f",
        b"%41% 100%",
        &[0xff; 15],
        "naïve ☂".as_bytes(),
        b"x', Group 'y",
    ];
    let tmp = tempfile::tempdir().unwrap();
    let path = named(tmp.path(), |writer| {
        for (tid, bytes) in (1..).zip(names) {
            name(writer, 0, tid, &printable(bytes), &printable(bytes));
            tick(writer, 0, tid, 1000 - u64::from(tid));
        }
    });
    let expected: Vec<_> = (1..)
        .zip(names)
        .map(|(tid, bytes)| {
            let seconds = f64::from(1000 - tid) / 100.0;
            let name = printable(bytes);
            let event = tid - 1;
            format!(
                "{seconds:.3} Thread {tid}, JThread {event} '{name}', Group '{name}', Parent ''"
            )
        })
        .collect();
    assert_eq!(threads(&path), expected);
}

#[test]
fn ten_thousand_threads_have_names() {
    let tmp = tempfile::tempdir().unwrap();
    let count = 10_000;
    let path = named(tmp.path(), |writer| {
        for tid in 0..count {
            name(writer, 0, tid, &format!("name{tid}"), &format!("pid {tid}"));
            tick(writer, u64::from(tid), tid, 1);
        }
    });
    let rows = threads(&path);
    assert_eq!(rows.len(), count as usize);
    let all_named = rows.iter().all(|row| row.contains("'name"));
    assert!(all_named, "{:?}", rows.first());
}

/// A generator of pseudorandom numbers, the same ones in every run.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// Thread ids: the id of idle CPUs, and the limits.
const TIDS: [u32; 7] = [0, 10, 11, (1 << 31) - 1, 1 << 31, (1 << 31) + 5, u32::MAX];

/// Returns a random recording: ticks of CPUs and of threads, in kernel and user stacks of every
/// kind. `names` is whether the threads of the founder and of its subexperiment have names.
fn recording(parent: &Path, names: [bool; 2]) -> PathBuf {
    let founder = begin(parent, "ktest.1.er", names[0]);
    let images = [
        ("vmlinux", KERNEL, ["do_syscall_64", "ksys_read.isra.0"]),
        // A name with a meaning in Java, and names of other languages than C.
        (
            "/usr/lib/jvm/libjvm.so",
            USER,
            ["_ZN3foo3barEi", "_ZN4core3fmt5write17h0123456789abcdefE"],
        ),
        (
            "/usr/lib/libc.so.6",
            USER + 0x10_0000,
            ["read", "__libc_start_main"],
        ),
    ];
    let mut addresses = vec![IDLE, RUNNING, 0x1234_5678];
    let mut maps = Vec::new();
    for (file, address, symbols) in images {
        let symbols = [(0, symbols[0]), (0x40, symbols[1])].map(|(offset, name)| ImageSymbol {
            address: address + offset,
            size: 0x40,
            name: name.as_bytes(),
            global: true,
        });
        let text = TextSection {
            address,
            size: 0x1000,
            bits: Some(&[0x90; 0x1000]),
        };
        let image = ElfImage {
            texts: vec![text],
            symbols: symbols.to_vec(),
        };
        let bytes = image.to_bytes().unwrap();
        founder.dir().archive(file, &bytes).unwrap();
        addresses.extend([address + 0x10, address + 0x48]);
        maps.extend(
            image
                .placed()
                .unwrap()
                .into_iter()
                .map(|placed| MapEvent::Segment {
                    at_ns: Nanos::ZERO,
                    vaddr: placed.vaddr,
                    size: placed.size,
                    file_offset: placed.file_offset,
                    modes: READ_EXECUTE,
                    name: file.to_owned(),
                }),
        );
    }
    let process = begin(founder.dir().path(), "_sshd_PID_12.1.er", names[1]);
    let mut chance = Chance(1);
    for (mut writer, names) in [founder, process].into_iter().zip(names) {
        for map in &maps {
            writer.map(map).unwrap();
        }
        if names {
            for tid in TIDS {
                name(&mut writer, 0, tid, &format!("name{tid}"), "pid 1");
            }
        }
        for n in 0..400 {
            packet(&mut writer, n, &addresses, &mut chance);
        }
        writer.close(Nanos(100 * SECOND)).unwrap();
    }
    parent.join("ktest.1.er")
}

fn packet(writer: &mut ExperimentWriter, n: u64, addresses: &[u64], chance: &mut Chance) {
    let depth = 1 + chance.below(5);
    let frames: Vec<_> = (0..depth)
        .map(|_| addresses[chance.below(addresses.len() as u64) as usize])
        .collect();
    let end = match chance.below(8) {
        0 => StackEnd::Truncated,
        1 => StackEnd::UnwindFailed,
        _ => StackEnd::Complete,
    };
    let stack = writer.stack(&frames, end).unwrap();
    let tid = TIDS[chance.below(TIDS.len() as u64) as usize];
    let (cpu, pid, time) = (chance.below(4) as u32, tid / 4, START + n * SECOND / 10);
    let tick = ClockTick {
        cpu,
        time_ns: Nanos(time),
        stack,
        tid: Tid(tid),
        pid: Pid(pid),
        state: Microstate::KernelCpu,
        ticks: Ticks(1 + chance.below(9)),
        detail: 0,
        cause: Cause::Undecided,
        waker: Tid(0),
    };
    if chance.below(2) == 0 {
        return writer.tick(&tick).unwrap();
    }
    for state in Microstate::ALL.into_iter().take(Microstate::PER_THREAD) {
        let ticks = Ticks(chance.below(4));
        let tick = ClockTick {
            state,
            ticks,
            ..tick
        };
        writer.tick(&tick).unwrap();
    }
}

/// Returns the views of a recording without the names of threads, sorted, since names decide the
/// order of rows that are otherwise equal.
fn views(path: &Path, mode: &str, filter: &str) -> Vec<String> {
    let metrics = "metrics e.kcpu:i.kcpu:e.total:i.total:e.user:i.wait:i.sleep:e.lock:name";
    let views = [
        "functions",
        "calltree",
        "callers-callees",
        "threads",
        "cpus",
        "Processes",
        "indxobj_define kpid KPID",
        "kpid",
        "seconds",
        "objects",
        "pcs",
        "disasm read",
        "statistics",
        "header",
        "exp_list",
    ];
    let script = path.with_file_name("script");
    let commands = format!("{mode}\n{metrics}\n{filter}\n{}\n", views.join("\n"));
    std::fs::write(&script, commands).unwrap();
    let (text, errors) = display_all(path, &["-script", script.to_str().unwrap()]);
    assert!(!text.contains("JVM"), "{mode}, {filter}:\n{text}");
    for name in ["foo::bar(int)", "core::fmt::write", "ksys_read.isra.0"] {
        assert!(text.contains(name), "no {name}: {mode}, {filter}:\n{text}");
    }
    let own = path.to_str().unwrap();
    let mut lines: Vec<_> = (text + &errors)
        .replace(own, "EXPERIMENT")
        .lines()
        .map(|line| {
            line.split(", JThread")
                .next()
                .unwrap_or_default()
                .to_owned()
        })
        .collect();
    lines.sort();
    lines
}

#[test]
fn figures_and_frames_are_the_same_with_names_and_without() {
    let modes = ["", "viewmode user", "viewmode expert", "viewmode machine"];
    let filters = [
        "",
        "filters THRID==0",
        "filters THRID==10",
        "filters THRID==4294967295",
        "filters THRID>2147483647",
        "filters KPID==2",
        "filters CPUID==1",
    ];
    let tmp = tempfile::tempdir().unwrap();
    let recorded = |names| {
        let parent = tempfile::tempdir_in(tmp.path()).unwrap().keep();
        recording(&parent, names)
    };
    let without = recorded([false; 2]);
    let with = [[true; 2], [true, false], [false, true]].map(recorded);
    for mode in modes {
        for filter in filters {
            let expected = views(&without, mode, filter);
            assert!(expected.len() > 100, "{mode}, {filter}: {expected:?}");
            for path in &with {
                let found = views(path, mode, filter);
                assert!(
                    found == expected,
                    "{mode}, {filter}: {found:#?} {expected:#?}"
                );
            }
        }
    }
}

/// The only visible difference in addition to the names.
#[test]
fn the_overview_has_a_line_of_java() {
    let tmp = tempfile::tempdir().unwrap();
    let overview = |names| {
        let parent = tempfile::tempdir_in(tmp.path()).unwrap().keep();
        let path = recording(&parent, names);
        let text = display(&path, &["-overview"]);
        text.replace(path.to_str().unwrap(), "")
    };
    let (without, with) = (overview([false; 2]), overview([true; 2]));
    let more: Vec<_> = with
        .lines()
        .filter(|line| !without.lines().any(|other| other == *line))
        .collect();
    let java = "Java Garbage Collection Duration (Seconds): [0.000]";
    assert_eq!(
        more.iter().map(|line| line.trim()).collect::<Vec<_>>(),
        [java]
    );
    assert_eq!(with.lines().count(), without.lines().count() + 1);
}
