//! A founder, as stock gprofng and this crate's reader read it.
//!
//! A synthetic founder with kernel images, dynamic functions, samples, pauses and hostile names is
//! written, and the figures that gprofng prints are compared with the written ones.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a helper of tests reports by panicking, as tests do"
)]

mod synthetic;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use experiment_format::cause::Cause;
use experiment_format::elf_image::{ElfImage, ImageSymbol, PlacedText, TextSection};
use experiment_format::ids::{Pid, Tid};
use experiment_format::log::{Cpu, LAST_SAMPLE, LogEvent, LogHeader, Setting, System};
use experiment_format::map::{MapEvent, READ_EXECUTE};
use experiment_format::microstate::Microstate;
use experiment_format::packet::ClockTick;
use experiment_format::reader::Experiment;
use experiment_format::stacks::{StackEnd, StackUid};
use experiment_format::text::printable;
use experiment_format::units::{Nanos, Ticks};
use experiment_format::usage::UsageRecord;
use experiment_format::writer::ExperimentWriter;
use gprofng::{columns, display};

use synthetic::begin;

const SECOND: u64 = 1_000_000_000;
const START: u64 = 1145 * SECOND + 640_020_819;
const KERNEL: u64 = 0xffff_ffff_8100_0000;
const MODULE: u64 = 0xffff_ffff_c000_0000;
const BPF: u64 = 0xffff_ffff_c0a0_1234;
/// Ticks of 10 ms: 100 of them are a second.
const TICK_US: u32 = 10_000;
/// The name of a process, with all characters that are special in XML, on a terminal or in gprofng.
const HOSTILE: &[u8] = b"e\nv\"i'l%41%<&>\xff";

fn header() -> LogHeader {
    let profiles = vec![ClockTick::table_of_cpus(TICK_US), ClockTick::table(TICK_US)];
    LogHeader {
        collector: "kcollect test".into(),
        system: System {
            hostname: "db1".into(),
            arch: "x86_64".into(),
            page_size: 4096,
            pages: 1 << 20,
            cpus: vec![Cpu { id: 0, mhz: 2600 }, Cpu { id: 3, mhz: 2600 }],
        },
        pid: Pid(4242),
        ppid: Some(Pid(1)),
        command_line: format!("kcollect -p on {}", printable(HOSTILE)),
        driver_version: Some("kcollect bpf 0.1".into()),
        settings: vec![
            Setting::NoIdle,
            Setting::Limit(2000),
            Setting::SamplePeriod(1),
        ],
        comments: vec!["a comment: 100% <of> it & \"more\"".into()],
        ..synthetic::header(profiles)
    }
}

struct Founder {
    _tmp: tempfile::TempDir,
    path: PathBuf,
    hostile_function: String,
}

/// Writes the experiment that the tests read.
fn founder() -> Founder {
    let tmp = tempfile::tempdir().unwrap();
    let mut writer = begin(tmp.path(), "ktest", &header(), START).unwrap();
    let hostile_function = format!("<{}_PID_13>", printable(HOSTILE));
    write_images(&mut writer, &hostile_function);
    writer.note("a note ahead of the header").unwrap();
    writer
        .warning(Nanos(SECOND), "a warning from warnings.xml")
        .unwrap();

    let stack = |writer: &mut ExperimentWriter, frames: &[u64]| {
        writer.stack(frames, StackEnd::Complete).unwrap()
    };
    let read = stack(&mut writer, &[KERNEL + 0x110, KERNEL + 0x20, KERNEL + 0x8]);
    let ext4 = stack(
        &mut writer,
        &[MODULE + 0x10, KERNEL + 0x120, KERNEL + 0x20, KERNEL + 0x8],
    );
    let bpf = stack(&mut writer, &[BPF + 4, KERNEL + 0x20, KERNEL + 0x8]);
    let user = stack(&mut writer, &[0x1000]);
    let hostile = stack(&mut writer, &[0x3000]);
    let idle = stack(&mut writer, &[0x2000]);
    let cut = writer
        .stack(&[KERNEL + 0x110, KERNEL + 0x20], StackEnd::Truncated)
        .unwrap();
    let lost = writer
        .stack(&[KERNEL + 0x110], StackEnd::UnwindFailed)
        .unwrap();
    let none = writer.stack(&[], StackEnd::Complete).unwrap();

    let tick = |writer: &mut ExperimentWriter, cpu, tid, stack: StackUid, state, ticks| {
        let time = START + SECOND + u64::from(tid);
        let pid = if tid == 4_000_000_000 { 13 } else { tid };
        writer
            .tick(&ClockTick {
                cpu,
                time_ns: Nanos(time),
                stack,
                tid: Tid(tid),
                pid: Pid(pid),
                state,
                ticks,
                detail: 0,
                cause: Cause::Undecided,
                waker: Tid(0),
            })
            .unwrap();
    };
    let kernel = Microstate::KernelCpu;
    tick(&mut writer, 0, 12, read, kernel, Ticks(100));
    tick(&mut writer, 3, 12, ext4, kernel, Ticks(200));
    tick(&mut writer, 3, 12, bpf, kernel, Ticks(25));
    tick(&mut writer, 0, 12, user, kernel, Ticks(50));
    tick(&mut writer, 0, 4_000_000_000, hostile, kernel, Ticks(75));
    tick(&mut writer, 3, 0, idle, kernel, Ticks(300));
    tick(&mut writer, 3, 12, cut, kernel, Ticks(10));
    tick(&mut writer, 3, 12, lost, kernel, Ticks(20));
    tick(&mut writer, 3, 12, none, kernel, Ticks(5));
    for state in &Microstate::ALL[..Microstate::PER_THREAD] {
        tick(
            &mut writer,
            0,
            77,
            read,
            *state,
            Ticks(100 + u64::from(state.number())),
        );
    }

    writer
        .log(&LogEvent::Pause {
            at_ns: Nanos(SECOND),
            name: Some("first".into()),
        })
        .unwrap();
    writer
        .log(&LogEvent::Resume {
            at_ns: Nanos(2 * SECOND),
        })
        .unwrap();
    writer
        .log(&LogEvent::Pause {
            at_ns: Nanos(3 * SECOND),
            name: None,
        })
        .unwrap();
    writer
        .log(&LogEvent::Resume {
            at_ns: Nanos(5 * SECOND),
        })
        .unwrap();
    let text = "12 records lost: <ring> full".to_owned();
    writer
        .log(&LogEvent::Warning {
            at_ns: Nanos(5 * SECOND),
            text,
        })
        .unwrap();
    let text = "it's \"over\"".to_owned();
    writer
        .log(&LogEvent::Error {
            at_ns: Nanos(5 * SECOND),
            text,
            errno: 28,
        })
        .unwrap();

    for (id, label) in [(0, "start"), (1, "a<b"), (2, "stop")] {
        let at_ns = id * 5 * SECOND;
        let mut usage = UsageRecord {
            threads: 2,
            time_ns: Nanos(START + at_ns),
            created_ns: Nanos(START),
            real_ns: Nanos(2 * at_ns),
            system_calls: 1000 * id,
            io_chars: 7 * id,
            ..UsageRecord::default()
        };
        usage.states_ns[Microstate::User as usize] = Nanos(id * SECOND);
        usage.states_ns[Microstate::WaitCpu as usize] = Nanos(id * 2_500_000_000);
        usage.states_ns[Microstate::Sleep as usize] = Nanos(id * 6_500_000_000);
        writer.sample(Nanos(at_ns), label, &usage).unwrap();
    }
    writer.side_file("kcollect.json", b"{}").unwrap();
    let path = writer.close(Nanos(10 * SECOND)).unwrap();
    Founder {
        _tmp: tmp,
        path,
        hostile_function,
    }
}

fn write_images(writer: &mut ExperimentWriter, hostile_function: &str) {
    let symbol = |address, size, name: &'static str| ImageSymbol {
        address,
        size,
        name: name.as_bytes(),
        global: true,
    };
    let code = [0x90; 0x1000];
    let kernel = ElfImage {
        texts: vec![TextSection {
            address: KERNEL,
            size: 0x1000,
            bits: Some(&code),
        }],
        symbols: vec![
            symbol(KERNEL, 0x10, "entry"),
            symbol(KERNEL + 0x10, 0x40, "do_syscall_64"),
            symbol(KERNEL + 0x100, 0x40, "ksys_read.isra.0"),
        ],
    };
    let module = ElfImage {
        texts: vec![TextSection {
            address: MODULE,
            size: 0x2000,
            bits: None,
        }],
        symbols: vec![symbol(MODULE, 0x40, "ext4_readpage")],
    };
    let (bpf, programs) =
        ElfImage::scattered(&[(64, b"bpf_prog_other"), (64, b"bpf_prog_x")]).unwrap();
    for (name, image) in [("vmlinux", &kernel), ("[ext4]", &module)] {
        writer
            .dir()
            .archive(name, &image.to_bytes().unwrap())
            .unwrap();
        for placed in image.placed().unwrap() {
            writer.map(&segment(name, placed.vaddr, placed)).unwrap();
        }
    }
    let mut file = writer.dir().archive_file("[bpf]").unwrap();
    bpf.write_to(&mut file).unwrap();
    file.commit().unwrap();
    writer.map(&segment("[bpf]", BPF, programs[1])).unwrap();
    for (vaddr, name) in [
        (0x1000, "<bash_PID_12>"),
        (0x2000, "<IDLE>"),
        (0x3000, hostile_function),
    ] {
        let name = name.to_owned();
        writer
            .map(&MapEvent::Function {
                at_ns: Nanos::ZERO,
                vaddr,
                size: 256,
                name,
            })
            .unwrap();
    }
}

fn segment(name: &str, vaddr: u64, placed: PlacedText) -> MapEvent {
    MapEvent::Segment {
        at_ns: Nanos::ZERO,
        vaddr,
        size: placed.size,
        file_offset: placed.file_offset,
        modes: READ_EXECUTE,
        name: name.to_owned(),
    }
}

#[test]
fn functions_have_the_ticks_that_were_written() {
    let founder = founder();
    let text = display(
        &founder.path,
        &["-metrics", "e.kcpu:i.kcpu:name", "-functions"],
    );
    let seconds = |name: &str| columns(&text, name)[..2].join(" ");
    assert_eq!(seconds("<Total>"), "7.850 7.850");
    assert_eq!(seconds("<IDLE>"), "3.000 3.000");
    assert_eq!(seconds("ext4_readpage"), "2.000 2.000");
    assert_eq!(seconds("ksys_read.isra.0"), "1.300 3.300");
    assert_eq!(seconds("<bash_PID_12>"), "0.500 0.500");
    assert_eq!(seconds("bpf_prog_x"), "0.250 0.250");
    assert_eq!(seconds(&founder.hostile_function), "0.750 0.750");
    assert_eq!(seconds("do_syscall_64"), "0. 3.350");
    assert_eq!(seconds("<Truncated-stack>"), "0. 0.100");
    assert_eq!(seconds("<Stack-unwind-failed>"), "0. 0.200");
}

#[test]
fn the_ten_states_have_their_columns() {
    let founder = founder();
    let states = &Microstate::ALL[..Microstate::PER_THREAD];
    let metrics: Vec<_> = states
        .iter()
        .map(|s| format!("e.{}", s.metric().unwrap()))
        .collect();
    let metrics = format!("{}:e.total:e.totalcpu:name", metrics.join(":"));
    let text = display(&founder.path, &["-metrics", &metrics, "-functions"]);
    let total = columns(&text, "<Total>");
    for (state, seconds) in states.iter().zip(&total) {
        assert_eq!(
            *seconds,
            format!("1.0{}0", state.number()),
            "{}",
            state.label()
        );
    }
    assert_eq!(total[10], "10.450");
    assert_eq!(total[11], "3.030");
}

#[test]
fn callers_and_call_tree_follow_the_stacks() {
    let founder = founder();
    let metrics = ["-metrics", "e.kcpu:i.kcpu:name"];
    let text = display(
        &founder.path,
        &[&metrics[..], &["-callers-callees"]].concat(),
    );
    assert!(text.contains("*do_syscall_64"), "{text}");
    let tree = display(&founder.path, &[&metrics[..], &["-calltree"]].concat());
    let depth = |name: &str| {
        let line = tree.lines().find(|line| line.ends_with(name));
        let line = line.unwrap_or_else(|| panic!("no {name} in:\n{tree}"));
        line.find("+-").unwrap()
    };
    assert!(depth("+-entry") < depth("+-do_syscall_64"), "{tree}");
    assert!(
        depth("+-ksys_read.isra.0") < depth("+-ext4_readpage"),
        "{tree}"
    );
}

#[test]
fn cpus_threads_and_processes_keep_their_numbers() {
    let founder = founder();
    let metrics = ["-metrics", "e.kcpu:e.total:name"];
    let text = display(&founder.path, &[&metrics[..], &["-cpus"]].concat());
    assert_eq!(columns(&text, "CPU 0")[..2], ["2.250", "10.450"]);
    assert_eq!(columns(&text, "CPU 3")[..2], ["5.600", "0."]);
    let text = display(&founder.path, &[&metrics[..], &["-threads"]].concat());
    assert_eq!(columns(&text, "Thread 77")[..2], ["0.", "10.450"]);
    assert_eq!(columns(&text, "Thread 4000000000")[..2], ["0.750", "0."]);

    let script = founder.path.join("script");
    let commands = "metrics e.kcpu:e.total:name\nindxobj_define kpid KPID\nkpid\n\
                    filters KPID==13\nfunctions\n";
    std::fs::write(&script, commands).unwrap();
    let text = display(&founder.path, &["-script", script.to_str().unwrap()]);
    assert_eq!(columns(&text, "0x000000000000000d (13)")[0], "0.750");
    let filtered = text.rsplit("Functions").next().unwrap();
    assert_eq!(columns(filtered, "<Total>")[0], "0.750");
}

#[test]
fn samples_show_the_usage_that_was_written() {
    let founder = founder();
    let text = display(&founder.path, &["-sample_detail", "all"]);
    for expected in [
        "Sample Number: 2",
        "Start Label: a<b",
        "End Label: stop",
        "1.000",
        "6.500",
    ] {
        assert!(text.contains(expected), "no {expected:?} in:\n{text}");
    }
    let text = display(&founder.path, &["-metrics", "e.kcpu:name", "-samples"]);
    assert_eq!(columns(&text, "<Total>")[0], "7.850");
    let text = display(&founder.path, &["-statistics", "all"]);
    assert!(text.contains("2000"), "{text}");
}

#[test]
fn the_header_shows_collector_and_target() {
    let founder = founder();
    let text = display(&founder.path, &["-header"]);
    for expected in [
        "a note ahead of the header",
        "a warning from warnings.xml",
        "kcollect test",
        "kcollect bpf 0.1",
        "a comment: 100% <of> it & \"more\"",
        "12 records lost: <ring> full",
        "it's \"over\"",
        "kcollect -p on e\\x0Av\"i'l%41%<&>\\xFF",
        "experiment does not have events from idle CPUs",
        "db1",
        "Pause",
        "Resume",
        // 10 seconds less the 3 of the two pauses.
        "7.000",
    ] {
        assert!(text.contains(expected), "no {expected:?} in:\n{text}");
    }
    assert!(!text.contains("not closed"), "{text}");
    assert!(!text.contains("missing"), "{text}");
}

#[test]
fn load_objects_are_found_in_the_archives() {
    let founder = founder();
    let text = display(&founder.path, &["-objects"]);
    for expected in ["<[ext4]>", "<vmlinux>", "<[bpf]>"] {
        assert!(text.contains(expected), "no {expected:?} in:\n{text}");
    }
    let code = display(
        &founder.path,
        &["-metrics", "e.kcpu:name", "-disasm", "do_syscall_64"],
    );
    assert!(code.contains("nop"), "{code}");
}

/// Returns the exclusive seconds of Kernel CPU by function, as this crate's reader counts them.
fn exclusive(path: &Path) -> BTreeMap<String, f64> {
    let experiment = Experiment::open(path).unwrap();
    let (stacks, space) = (
        experiment.stacks().unwrap(),
        experiment.address_space().unwrap(),
    );
    let mut archives = experiment.archives();
    let mut seconds = BTreeMap::new();
    for tick in experiment.ticks().unwrap().map(Result::unwrap) {
        let stack = stacks.get(tick.shared.stack.unwrap()).unwrap();
        if tick.state != Microstate::KernelCpu.number() || stack.frames.is_empty() {
            continue;
        }
        let at_ns = tick.shared.time_ns - experiment.start().tstamp_ns;
        let function = archives
            .function_at(&space, stack.frames[0], at_ns)
            .unwrap()
            .unwrap();
        let name = function.name.unwrap().to_owned();
        *seconds.entry(name).or_default() += f64::from(tick.ticks) / 100.0;
    }
    seconds
}

#[test]
fn the_reader_counts_what_gprofng_counts() {
    let founder = founder();
    let text = display(&founder.path, &["-metrics", "e.kcpu:name", "-functions"]);
    let ours = exclusive(&founder.path);
    assert_eq!(ours.len(), 6);
    for (name, seconds) in ours {
        assert_eq!(columns(&text, &name)[0], format!("{seconds:.3}"), "{name}");
    }
}

#[test]
fn the_reader_returns_what_was_written() {
    let founder = founder();
    let experiment = Experiment::open(&founder.path).unwrap();
    // The profiles come back in order.
    assert_eq!(*experiment.header(), header());
    assert_eq!(experiment.start(), synthetic::run(START));
    assert!(experiment.is_closed());
    assert_eq!(experiment.notes().unwrap(), "a note ahead of the header\n");
    assert_eq!(experiment.warnings().unwrap().len(), 1);
    assert_eq!(
        experiment.side_file("kcollect.json").unwrap().as_deref(),
        Some(&b"{}"[..])
    );
    let samples = experiment.samples().unwrap();
    let labels: Vec<_> = samples.iter().map(|sample| sample.label.as_str()).collect();
    assert_eq!(labels, ["start", "a<b", "stop"]);
    assert_eq!(samples[2].usage.as_ref().unwrap().system_calls, 2000);
    let maps = experiment.maps().unwrap();
    assert!(
        maps.iter()
            .any(|map| matches!(map, MapEvent::Function { name, .. }
        if *name == founder.hostile_function))
    );
}

#[test]
fn a_killed_experiment_is_only_not_closed() {
    let tmp = tempfile::tempdir().unwrap();
    let mut writer = begin(tmp.path(), "killed.er", &header(), START).unwrap();
    let path = tmp.path().join("killed.er");
    write_images(&mut writer, "<x_PID_1>");
    for n in 0..5000u32 {
        let frames = [KERNEL + u64::from(n % 0x140), KERNEL + 0x20, KERNEL + 0x8];
        let stack = writer.stack(&frames, StackEnd::Complete).unwrap();
        let state = Microstate::KernelCpu;
        let time = START + u64::from(n);
        let tick = ClockTick {
            cpu: 0,
            time_ns: Nanos(time),
            stack,
            tid: Tid(1),
            pid: Pid(1),
            state,
            ticks: Ticks(1),
            detail: 0,
            cause: Cause::Undecided,
            waker: Tid(0),
        };
        writer.tick(&tick).unwrap();
        if n % 50 == 0 {
            writer
                .sample(Nanos(time - START), "periodic", &UsageRecord::default())
                .unwrap();
        }
    }
    assert!(!Experiment::open(&path).unwrap().has_all_data());
    let last = UsageRecord::default();
    writer.sample(Nanos(5000), LAST_SAMPLE, &last).unwrap();
    let written = Experiment::open(&path).unwrap();
    assert!(written.has_all_data() && !written.is_closed());
    // After a kill, no file is closed, cut or released.
    std::mem::forget(writer);
    let text = display(&path, &["-metrics", "e.kcpu:name", "-functions"]);
    assert_eq!(columns(&text, "<Total>")[0], "50.000");
    let header = display(&path, &["-header"]);
    assert!(header.contains("not closed"), "{header}");
    assert!(!header.contains("missing"), "{header}");
    assert!(!header.contains("invalid"), "{header}");
}
