//! The small experiment of these tests.

use std::path::{Path, PathBuf};

use experiment_format::cause::Cause;
use experiment_format::directory::{ExperimentDir, NameRequest};
use experiment_format::elf_image::{ElfImage, ImageSymbol, TextSection};
use experiment_format::ids::{Pid, Tid};
use experiment_format::log::{Cpu, LogEvent, LogHeader, ProfileDecl, StartTime, System};
use experiment_format::map::{MapEvent, READ_EXECUTE};
use experiment_format::microstate::Microstate;
use experiment_format::packet::ClockTick;
use experiment_format::stacks::StackEnd;
use experiment_format::units::{Nanos, Ticks};
use experiment_format::usage::UsageRecord;
use experiment_format::writer::ExperimentWriter;

pub(crate) const KERNEL: u64 = 0xffff_ffff_8100_0000;
pub(crate) const PROGRAM: u64 = 0x40_0000;
pub(crate) const START: u64 = 1_000_000_000;
pub(crate) const SUB: &str = "_sort_PID_7.1.er";

pub(crate) fn header(pid: u32, command: &str) -> LogHeader {
    let [cpus, threads] = [ClockTick::table_of_cpus, ClockTick::table].map(|table| table(10_007));
    LogHeader {
        collector: "kcollect test".into(),
        system: System {
            hostname: "nowhere".into(),
            arch: "x86_64".into(),
            page_size: 4096,
            pages: 1024,
            cpus: vec![Cpu { id: 0, mhz: 2600 }, Cpu { id: 1, mhz: 2600 }],
        },
        pid: Pid(pid),
        command_line: command.into(),
        profiles: match command {
            "kernel" => vec![ProfileDecl::ThreadNames, cpus, threads],
            _ => vec![ProfileDecl::ThreadNames, threads],
        },
        ..LogHeader::default()
    }
}

/// An experiment of the machine and one of a process, which both declare a table of traced events,
/// with load objects: their names, where they are, and their functions.
pub(crate) fn traced(
    parent: &Path,
    table: &ProfileDecl,
    objects: &[(&str, u64, &[&str])],
) -> (ExperimentWriter, ExperimentWriter) {
    let request = NameRequest::Exactly("ktest.1.er".into());
    let (dir, _) = ExperimentDir::create(parent, &request, None).unwrap();
    for (name, base, functions) in objects {
        image(&dir, name, *base, functions);
    }
    let run = StartTime {
        tstamp_ns: Nanos(START),
        wall_s: 1_795_205_070,
        wall_subsec_ns: 0,
        tm_zone_s: 0,
    };
    let [of_machine, of_sort] = [(1, "kernel"), (7, "/usr/bin/sort -n x")].map(|(pid, command)| {
        let mut header = header(pid, command);
        header.profiles.push(table.clone());
        header
    });
    let founder = ExperimentWriter::create(dir, &of_machine, run).unwrap();
    let mut sub = ExperimentWriter::create_sub(founder.dir(), SUB, &of_sort, run).unwrap();
    for (name, base, _) in objects {
        sub.map(&map(*base, name)).unwrap();
    }
    (founder, sub)
}

pub(crate) fn image(dir: &ExperimentDir, name: &str, base: u64, functions: &[&str]) {
    let symbols = (0..).zip(functions).map(|(number, name)| ImageSymbol {
        address: base + 0x100 * number,
        size: 0x80,
        name: name.as_bytes(),
        global: true,
    });
    let image = ElfImage {
        texts: vec![TextSection {
            address: base,
            size: 0x1000,
            bits: None,
        }],
        symbols: symbols.collect(),
    };
    dir.archive(name, &image.to_bytes().unwrap()).unwrap();
}

pub(crate) fn map(vaddr: u64, name: &str) -> MapEvent {
    MapEvent::Segment {
        at_ns: Nanos::ZERO,
        vaddr,
        size: 0x4000,
        file_offset: 0x1000,
        modes: READ_EXECUTE,
        name: name.into(),
    }
}

/// A founder with a kernel thread and ticks of a CPU, and a program that recurs, sleeps and has a
/// stack without its end.
pub(crate) fn made(parent: &Path) -> PathBuf {
    made_as(parent, "ktest.3.er", 20)
}

/// The same with another name, and other ticks of `compare`.
pub(crate) fn made_as(parent: &Path, name: &str, comparing: u32) -> PathBuf {
    let later = Later {
        seconds: 0,
        program_exit_ns: Nanos(1_500_000_000),
    };
    made_later(parent, name, comparing, later)
}

/// When another experiment began, and when its program exits.
pub(crate) struct Later {
    /// Seconds after the others.
    pub(crate) seconds: u64,
    /// When the program exits, of two seconds.
    pub(crate) program_exit_ns: Nanos,
}

/// The same at another time.
pub(crate) fn made_later(parent: &Path, name: &str, comparing: u32, later: Later) -> PathBuf {
    use Microstate::{Sleep, System, User, WaitCpu};
    let began = START + later.seconds * 1_000_000_000;
    let request = NameRequest::Exactly(name.into());
    let (dir, _) = ExperimentDir::create(parent, &request, None).unwrap();
    image(
        &dir,
        "vmlinux",
        KERNEL,
        &["schedule", "ksys_read", "kworker"],
    );
    image(
        &dir,
        "/usr/bin/sort",
        PROGRAM,
        &["main", "_ZN4sort5mergeEv", "compare"],
    );
    let run = StartTime {
        tstamp_ns: Nanos(began),
        wall_s: 1_795_205_070 + i64::try_from(later.seconds).unwrap(),
        wall_subsec_ns: 0,
        tm_zone_s: 0,
    };
    let mut founder = ExperimentWriter::create(dir, &header(1, "kernel"), run).unwrap();
    founder.map(&map(KERNEL, "vmlinux")).unwrap();
    let thread = |tid, name: &str, group: &str| LogEvent::Thread {
        at_ns: Nanos::ZERO,
        tid,
        name: name.into(),
        group: group.into(),
    };
    founder
        .log(&thread(Tid(3), "kworker/0:1", "kworker/0:1, pid 3"))
        .unwrap();
    founder.log(&thread(Tid(7), "sort", "sort, pid 7")).unwrap();
    let idle = founder
        .stack(&[KERNEL + 0x210, KERNEL + 0x10], StackEnd::Complete)
        .unwrap();
    let (cpu, at) = (0, began + 500_000_000);
    for (state, ticks) in [(System, 2), (Sleep, 90)] {
        founder
            .tick(&ClockTick {
                cpu,
                time_ns: Nanos(at),
                stack: idle,
                tid: Tid(3),
                pid: Pid(3),
                state,
                ticks: Ticks(ticks),
                detail: 0,
                cause: Cause::Undecided,
                waker: Tid(0),
            })
            .unwrap();
    }
    founder
        .side_file(
            "kcollect.json",
            br#"{"losses":{"ring_full":3,"unaccounted":0}}"#,
        )
        .unwrap();
    let read = founder
        .stack(&[KERNEL + 0x110], StackEnd::Complete)
        .unwrap();
    let state = Microstate::KernelCpu;
    founder
        .tick(&ClockTick {
            cpu: 1,
            time_ns: Nanos(at),
            stack: read,
            tid: Tid(7),
            pid: Pid(7),
            state,
            ticks: Ticks(5),
            detail: 0,
            cause: Cause::Undecided,
            waker: Tid(0),
        })
        .unwrap();
    // A tick stands for exactly 10 ms; the last second of the sleep has no tick.
    let user_ns = u64::from(comparing + 10) * 10_000_000;
    for line in [
        r#"{"pid":3,"tid":3,"name":"kworker/0:1","at_ns":1000000000,"state":"sleep","since_ns":1,"states_ns":{"system":20000001,"sleep":900000000}}"#,
        &format!(
            r#"{{"pid":7,"tid":7,"name":"sort","at_ns":1500000000,"ended":true,"states_ns":{{"user":{user_ns},"system":50000000,"sleep":10000000,"wait":70000000}}}}"#
        ),
        r#"{"sample":1,"at_ns":2000000000}"#,
    ] {
        founder
            .side_line("threads.jsonl", &format!("{line}\n"))
            .unwrap();
    }

    let usage = |seconds: u64, states: &[(Microstate, u64)]| {
        let mut usage = UsageRecord {
            threads: 2,
            time_ns: Nanos(began + seconds * 1_000_000_000),
            real_ns: Nanos(2 * seconds * 1_000_000_000),
            minor_faults: 10 * seconds,
            ..UsageRecord::default()
        };
        for (state, ms) in states {
            usage.states_ns[*state as usize] = Nanos(ms * 1_000_000);
        }
        usage
    };
    let start = usage(0, &[]);
    founder.sample(Nanos::ZERO, "start", &start).unwrap();
    let states = [(User, 200), (Sleep, 1800)];
    let periodic = usage(1, &states);
    founder
        .sample(Nanos(1_000_000_000), "periodic", &periodic)
        .unwrap();
    // What is in no state is sleep.
    let stop = usage(
        2,
        &[(User, 300), (System, 70), (Sleep, 1900), (WaitCpu, 70)],
    );
    founder.sample(Nanos(2_000_000_000), "stop", &stop).unwrap();

    let mut of_sort = header(7, "/usr/bin/sort -n x");
    of_sort.comments = [
        "process: sort",
        "user id: 1000",
        "cgroup: /system.slice/sort.service/jobs",
        "unit: sort.service",
    ]
    .map(str::to_owned)
    .into();
    let mut sub = ExperimentWriter::create_sub(founder.dir(), SUB, &of_sort, run).unwrap();
    sub.map(&map(KERNEL, "vmlinux")).unwrap();
    sub.map(&map(PROGRAM, "/usr/bin/sort")).unwrap();
    sub.log(&thread(Tid(7), "sort", "sort, pid 7")).unwrap();
    let (main, merge, compare) = (PROGRAM + 0x10, PROGRAM + 0x110, PROGRAM + 0x210);
    for (frames, end, counts, at) in [
        (
            vec![compare, merge, merge, main],
            StackEnd::Complete,
            vec![(User, comparing)],
            100,
        ),
        (
            vec![merge, merge, main],
            StackEnd::Complete,
            vec![(User, 10), (WaitCpu, 7)],
            200,
        ),
        (
            vec![KERNEL + 0x110, compare],
            StackEnd::UnwindFailed,
            vec![(System, 5)],
            300,
        ),
        (
            vec![0xdead_0000, main + 0x80],
            StackEnd::Truncated,
            vec![(Sleep, 1)],
            400,
        ),
    ] {
        let stack = sub.stack(&frames, end).unwrap();
        let time = began + at * 1_000_000;
        for (state, ticks) in counts {
            sub.tick(&ClockTick {
                cpu: 1,
                time_ns: Nanos(time),
                stack,
                tid: Tid(7),
                pid: Pid(7),
                state,
                ticks: Ticks(ticks.into()),
                detail: 0,
                cause: Cause::Undecided,
                waker: Tid(0),
            })
            .unwrap();
        }
    }
    sub.sample(Nanos::ZERO, "start", &start).unwrap();
    let states = [(User, 300), (System, 50), (WaitCpu, 70)];
    sub.sample(Nanos(1_000_000_000), "stop", &usage(1, &states))
        .unwrap();
    sub.close(later.program_exit_ns).unwrap();
    founder.close(Nanos(2_000_000_000)).unwrap()
}
