//! The experiment whose copies are damaged: a founder and two subexperiments with a file of every
//! kind, and something of every kind in most of them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use analysis::model::STATE_SLOTS;
use anyhow::Result;
use experiment_format::cause::Cause;
use experiment_format::directory::{ExperimentDir, NameRequest};
use experiment_format::elf_image::{ElfImage, ImageSymbol, TextSection};
use experiment_format::ids::{Pid, Tid};
use experiment_format::log::{
    CounterDecl, CounterUnit, Cpu, LogEvent, LogHeader, ProfileDecl, Setting, StartTime, System,
};
use experiment_format::map::{MapEvent, READ_EXECUTE};
use experiment_format::microstate::Microstate;
use experiment_format::packet::{
    ClockTick, CounterEvent, HeapEvent, HeapKind, IoEvent, IoKind, IoOperation, SyncEvent,
    SyncThreshold,
};
use experiment_format::stacks::StackEnd;
use experiment_format::units::{Nanos, Ticks};
use experiment_format::usage::UsageRecord;
use experiment_format::writer::ExperimentWriter;

/// Its name.
pub(super) const NAME: &str = "ktest.1.er";

const KERNEL: u64 = 0xffff_ffff_8100_0000;
const PROGRAM: u64 = 0x40_0000;
const START: u64 = 1_000_000_000;
const SECOND: u64 = 1_000_000_000;
/// A small program with line tables.
const SMALL: &[u8] = include_bytes!("../../corpora/functions/small");
/// Where its code is: the functions `two` and `one`.
const SMALL_CODE: [u64; 2] = [0x2b4, 0x2c0];

const SUMMARY: &str = r#"{"version":1,"kernel_build_id":"a1b2c3d4e5f60718","interval_us":10007,
"cpu_time":{"user":1.5,"kernel":0.5,"idle":2.0,"stolen":0.25},
"losses":{"ring_full":3,"unaccounted":0,"followed":{"losses":{"unwritten_mappings":2}}},
"recorded":{"packets":40},"processes":[{"pid":7,"name":"sort","user_s":0.3}]}
"#;
const THREADS: [&str; 5] = [
    r#"{"pid":3,"tid":3,"name":"kworker/0:1","at_ns":1000000000,"state":"sleep","since_ns":1,"states_ns":{"system":20000001,"sleep":900000000}}"#,
    r#"{"pid":7,"tid":7,"name":"sort","at_ns":1500000000,"ended":true,"states_ns":{"user":300000000,"wait":70000000},"detail_ns":{"block_io":1,"preempted":20000000,"throttled":2,"stolen":3}}"#,
    r#"{"pid":8,"tid":9,"name":"jit","process":"jit","at_ns":1500000000,"state":"user","states_ns":{"user":100000000,"datapfault":5000000},"detail_ns":{"block_io":4000000}}"#,
    r#"{"short_lived":12,"processes":11,"process":"true","states_ns":{"user":9000000}}"#,
    r#"{"sample":1,"at_ns":2000000000}"#,
];

/// Returns the files of the experiment by their paths in its directory.
pub(super) fn files(parent: &Path) -> Result<BTreeMap<String, Vec<u8>>> {
    let experiment = write(parent)?;
    let mut files = BTreeMap::new();
    read(&experiment, "", &mut files)?;
    Ok(files)
}

fn read(directory: &Path, prefix: &str, files: &mut BTreeMap<String, Vec<u8>>) -> Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
        if entry.file_type()?.is_dir() {
            read(&entry.path(), &format!("{name}/"), files)?;
        } else {
            let mut bytes = fs::read(entry.path())?;
            // The unused rest of a block is one packet, and then nothing.
            let used = bytes
                .iter()
                .rposition(|byte| *byte != 0)
                .map_or(0, |at| at + 1);
            bytes.truncate(used.next_multiple_of(8).min(bytes.len()));
            files.insert(name, bytes);
        }
    }
    Ok(())
}

fn write(parent: &Path) -> Result<std::path::PathBuf> {
    let request = NameRequest::Exactly(NAME.to_owned());
    let (dir, _) = ExperimentDir::create(parent, &request, None)?;
    dir.archive("vmlinux", &kernel().to_bytes()?)?;
    dir.archive("/usr/bin/sort", SMALL)?;
    dir.archive(
        "a.c",
        b"int two;\nint two() { return 2; }\nint one() { return two(); }\n",
    )?;
    let run = StartTime {
        tstamp_ns: Nanos(START),
        wall_s: 1_795_205_070,
        wall_subsec_ns: 5,
        tm_zone_s: -3600,
    };
    let mut founder = ExperimentWriter::create(dir, &header(1, "kernel"), run)?;
    founder.map(&segment(KERNEL, 0x4000, 0x1000, "vmlinux"))?;
    founder.log(&thread(3, "kworker/0:1", "kworker/0:1, pid 3"))?;
    founder.log(&thread(7, "sort", "sort, pid 7"))?;
    founder.note("a note")?;
    founder.warning(Nanos(SECOND), "something was lost")?;
    founder.log(&LogEvent::Pause {
        at_ns: Nanos(5),
        name: Some("USR1".to_owned()),
    })?;
    founder.log(&LogEvent::Resume { at_ns: Nanos(6) })?;
    founder.side_file("kcollect.json", SUMMARY.as_bytes())?;
    for line in THREADS {
        founder.side_line("threads.jsonl", &format!("{line}\n"))?;
    }
    for number in 0..6_u32 {
        let inner = KERNEL + 0x10 + 0x100 * u64::from(number % 3);
        let stack = founder.stack(&[inner, KERNEL + 0x110], StackEnd::Complete)?;
        let time = START + u64::from(number) * 100_000_000;
        for tick in ticks(time, stack, 3, 3, number) {
            founder.tick(&tick)?;
        }
        founder.tick(&ClockTick {
            cpu: number % 2,
            time_ns: Nanos(time),
            stack,
            tid: Tid(7),
            pid: Pid(7),
            state: Microstate::KernelCpu,
            ticks: Ticks(5),
            detail: 0,
            cause: Cause::Undecided,
            waker: Tid(0),
        })?;
        founder.counted(&CounterEvent {
            cpu: 0,
            time_ns: Nanos(time),
            stack,
            tid: Tid(3),
            pid: Pid(3),
            tag: number % 2,
            value: 1_000_003,
        })?;
    }
    for second in 0..3 {
        founder.sample(Nanos(second * SECOND), "periodic", &usage(second))?;
    }
    sorting(&founder, run)?;
    compiling(&founder, run)?;
    Ok(founder.close(Nanos(3 * SECOND))?)
}

/// A process with a program whose lines are known.
fn sorting(founder: &ExperimentWriter, run: StartTime) -> Result<()> {
    let header = header(7, "/usr/bin/sort -n x");
    let mut sub = ExperimentWriter::create_sub(founder.dir(), "_sort_PID_7.1.er", &header, run)?;
    sub.map(&segment(KERNEL, 0x4000, 0x1000, "vmlinux"))?;
    sub.map(&segment(PROGRAM, 0x1000, 0, "/usr/bin/sort"))?;
    sub.map(&segment(
        PROGRAM + 0x10000,
        0x1000,
        0,
        "/usr/lib/other.so (build id 1234abcd)",
    ))?;
    sub.log(&thread(7, "sort", "sort, pid 7"))?;
    let [two, one] = SMALL_CODE.map(|offset| PROGRAM + offset);
    let stacks = [
        (vec![two, one, one], StackEnd::Complete),
        (vec![KERNEL + 0x110, two, one], StackEnd::UnwindFailed),
        (
            vec![0xdead_0000, PROGRAM + 0x10020, one],
            StackEnd::Truncated,
        ),
        (vec![two, one, one, one], StackEnd::Complete),
    ];
    for (number, (frames, end)) in (0..).zip(stacks) {
        let stack = sub.stack(&frames, end)?;
        let time = START + u64::from(number) * 100_000_000;
        for tick in ticks(time, stack, 7, 7, number) {
            sub.tick(&tick)?;
        }
        sub.counted(&CounterEvent {
            cpu: 1,
            time_ns: Nanos(time),
            stack,
            tid: Tid(7),
            pid: Pid(7),
            tag: number % 2,
            value: 7,
        })?;
        sub.waited(&SyncEvent {
            cpu: 1,
            requested_ns: Nanos(time - 5_000_000),
            ended_ns: Nanos(time),
            stack,
            tid: Tid(7 + number % 2),
            pid: Pid(7),
            object: PROGRAM + 0x10000 + u64::from(number % 2),
            kind: 9 * number,
        })?;
        sub.called(&IoEvent {
            cpu: 1,
            stack,
            tid: Tid(7 + number % 2),
            pid: Pid(7),
            operation: IoOperation {
                requested_ns: Nanos(time - 3_000_000),
                ended_ns: Nanos(time),
                kind: IoKind::ALL[number as usize % 5],
                failed: number % 4 == 3,
                descriptor: number as i32 % 3,
                bytes: 512,
                duplicated: None,
                call: Some(number),
                name: (number % 5 == 2).then(|| b"/var/log/x".as_slice().into()),
            },
        })?;
        sub.allocated(&HeapEvent {
            cpu: 1,
            time_ns: Nanos(time),
            stack,
            tid: Tid(7 + number % 2),
            pid: Pid(7),
            kind: HeapKind::ALL[number as usize % 5],
            bytes: 8192,
            address: 0x7f00_0000_0000 + 4096 * u64::from(number % 3),
            own_bytes: 512,
            weight: 16_000,
        })?;
    }
    for second in 0..2 {
        sub.sample(Nanos(second * SECOND), "periodic", &usage(second))?;
    }
    sub.warning(Nanos(5), "a table was late")?;
    sub.close(Nanos(2 * SECOND))?;
    Ok(())
}

/// A process with JIT functions.
fn compiling(founder: &ExperimentWriter, run: StartTime) -> Result<()> {
    let header = header(8, "/usr/bin/jit");
    let mut sub = ExperimentWriter::create_sub(founder.dir(), "_jit_PID_8.1.er", &header, run)?;
    sub.log(&thread(9, "jit", "jit, pid 8"))?;
    for (at_ns, name) in [(0, "made"), (SECOND / 4, "made again")] {
        sub.map(&MapEvent::Function {
            at_ns: Nanos(at_ns),
            vaddr: 0x2000,
            size: 64,
            name: name.to_owned(),
        })?;
        sub.dynamic_code(Nanos(at_ns), 0x2000, &[0x90, 0x90, 0xe8, 0, 0, 0, 0, 0xc3])?;
    }
    sub.map(&MapEvent::Unmap {
        at_ns: Nanos(SECOND),
        vaddr: 0x2000,
    })?;
    for number in 0..3 {
        let stack = sub.stack(&[0x2002, 0x2001], StackEnd::Complete)?;
        let time = START + u64::from(number) * 300_000_000;
        for tick in ticks(time, stack, 9, 8, number) {
            sub.tick(&tick)?;
        }
    }
    sub.close(Nanos(2 * SECOND))?;
    Ok(())
}

fn kernel() -> ElfImage<'static> {
    let names: [&[u8]; 3] = [b"schedule", b"_ZN4sort5mergeEv", b"kworker"];
    let symbols = (0..).zip(names).map(|(number, name)| ImageSymbol {
        address: KERNEL + 0x100 * number,
        size: 0x80,
        name,
        global: true,
    });
    ElfImage {
        texts: vec![TextSection {
            address: KERNEL,
            size: 0x1000,
            bits: None,
        }],
        symbols: symbols.collect(),
    }
}

fn header(pid: u32, command: &str) -> LogHeader {
    let counter = |tag, name: &str, unit| CounterDecl {
        tag,
        name: name.to_owned(),
        title: format!("of {name}"),
        interval: 1_000_003,
        unit,
    };
    let mut profiles = vec![
        ProfileDecl::ThreadNames,
        ClockTick::table_of_cpus(10_007),
        ClockTick::table(10_007),
        ProfileDecl::Counters {
            counters: vec![
                counter(0, "cycles", CounterUnit::Cycles),
                counter(1, "insts", CounterUnit::Count),
            ],
            packets: vec![CounterEvent::declaration()],
        },
        SyncEvent::table(SyncThreshold::Given(Duration::from_micros(5))),
        IoEvent::table(),
        HeapEvent::table(),
    ];
    if command != "kernel" {
        profiles.remove(1);
    }
    LogHeader {
        collector: "kcollect test".to_owned(),
        system: System {
            hostname: "nowhere".to_owned(),
            arch: "x86_64".to_owned(),
            page_size: 4096,
            pages: 1024,
            cpus: vec![Cpu { id: 0, mhz: 2600 }, Cpu { id: 1, mhz: 2600 }],
        },
        pid: Pid(pid),
        command_line: command.to_owned(),
        profiles,
        settings: vec![Setting::SamplePeriod(1)],
        comments: vec![format!("command line: {command}")],
        ..LogHeader::default()
    }
}

fn segment(vaddr: u64, size: u64, file_offset: u64, name: &str) -> MapEvent {
    MapEvent::Segment {
        at_ns: Nanos::ZERO,
        vaddr,
        size,
        file_offset,
        modes: READ_EXECUTE,
        name: name.to_owned(),
    }
}

fn thread(tid: u32, name: &str, group: &str) -> LogEvent {
    LogEvent::Thread {
        at_ns: Nanos::ZERO,
        tid: Tid(tid),
        name: name.to_owned(),
        group: group.to_owned(),
    }
}

/// Returns the ticks of a thread in several states.
fn ticks(
    time: u64,
    stack: experiment_format::stacks::StackUid,
    tid: u32,
    pid: u32,
    number: u32,
) -> impl Iterator<Item = ClockTick> {
    let states = Microstate::ALL.into_iter().take(Microstate::PER_THREAD);
    let states = states.filter(move |state| (state.number() + number).is_multiple_of(3));
    states.map(move |state| ClockTick {
        cpu: number % 2,
        time_ns: Nanos(time),
        stack,
        tid: Tid(tid),
        pid: Pid(pid),
        state,
        ticks: Ticks(1 + u64::from(number)),
        detail: number % (STATE_SLOTS as u32).min(6),
        cause: Cause::Undecided,
        waker: Tid(0),
    })
}

fn usage(second: u64) -> UsageRecord {
    let mut usage = UsageRecord {
        threads: 2,
        time_ns: Nanos(START + second * SECOND),
        real_ns: Nanos(2 * second * SECOND),
        minor_faults: 10 * second,
        ..UsageRecord::default()
    };
    usage.states_ns[Microstate::User as usize] = Nanos(200_000_000 * second);
    usage.states_ns[Microstate::Sleep as usize] = Nanos(1_800_000_000 * second);
    usage
}
