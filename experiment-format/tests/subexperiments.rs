//! Subexperiments, as stock gprofng and this crate's reader read them, whenever they were flushed.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a helper of tests reports by panicking, as tests do"
)]

mod followed;
mod synthetic;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use experiment_format::Error;
use experiment_format::cause::Cause;
use experiment_format::ids::{Pid, Tid};
use experiment_format::log::{LogEvent, LogHeader};
use experiment_format::map::MapEvent;
use experiment_format::microstate::Microstate;
use experiment_format::packet::ClockTick;
use experiment_format::reader::Experiment;
use experiment_format::stacks::StackEnd;
use experiment_format::units::{Nanos, Ticks};
use experiment_format::usage::UsageRecord;
use experiment_format::writer::ExperimentWriter;
use gprofng::{columns, display};
use proptest::prelude::*;

use followed::{SECOND, START, founder, function, header, name, sub, ticks};
use synthetic::run;

/// Set in a second run of this program: where to write.
const PARENT: &str = "EXPERIMENT_FORMAT_SUBEXPERIMENTS";

fn named(tid: u32, pid: u32) -> LogEvent {
    LogEvent::Thread {
        at_ns: Nanos::ZERO,
        tid: Tid(tid),
        name: format!("worker{tid}"),
        group: format!("pid {pid}"),
    }
}

/// A founder with idle ticks, and three subexperiments, each with five threads.
fn with_three_subexperiments(parent: &Path) -> PathBuf {
    let mut founder = founder(parent);
    founder.map(&function(0x2000, "<IDLE>")).unwrap();
    let idle = founder.stack(&[0x2000], StackEnd::Complete).unwrap();
    founder
        .tick(&ClockTick {
            cpu: 0,
            time_ns: Nanos(START + 1),
            stack: idle,
            tid: Tid(0),
            pid: Pid(0),
            state: Microstate::KernelCpu,
            ticks: Ticks(300),
            detail: 0,
            cause: Cause::Undecided,
            waker: Tid(0),
        })
        .unwrap();
    let mut subs: Vec<_> = (101..104).map(|pid| sub(&founder, pid)).collect();
    for round in 0..5 {
        for (pid, sub) in (101..).zip(&mut subs) {
            if round == 0 {
                sub.map(&function(0x1000, "main")).unwrap();
            }
            let leaf = format!("round{round}_of_{pid}");
            let vaddr = 0x1_0000 * u64::from(pid) + 0x100 * round;
            sub.map(&function(vaddr, &leaf)).unwrap();
            sub.log(&named(1000 * pid + round as u32, pid)).unwrap();
            let frames = [vaddr, 0x1008, 0x1004];
            let stack = sub.stack(&frames, StackEnd::Complete).unwrap();
            let (sleep, user) = (Microstate::Sleep, Microstate::User);
            let thread = 1000 * pid + round as u32;
            sub.tick(&ticks(stack, thread, user, 100)).unwrap();
            sub.tick(&ticks(stack, thread, sleep, pid)).unwrap();
            sub.sample(Nanos(round * SECOND), "x", &UsageRecord::default())
                .unwrap();
            // Some flushes are left out.
            if (round + u64::from(pid)) % 3 != 0 {
                sub.flush().unwrap();
                assert_eq!(sub.buffered(), 0);
            }
        }
    }
    for sub in subs {
        sub.close(Nanos(6 * SECOND)).unwrap();
    }
    founder.close(Nanos(7 * SECOND)).unwrap()
}

#[test]
fn gprofng_adds_up_founder_and_subexperiments() {
    let tmp = tempfile::tempdir().unwrap();
    let path = with_three_subexperiments(tmp.path());
    let text = display(
        &path,
        &["-metrics", "e.user:e.sleep:e.kcpu:name", "-functions"],
    );
    let seconds = |name: &str| columns(&text, name)[..3].join(" ");
    assert_eq!(seconds("<Total>"), "15.000 15.300 3.000");
    assert_eq!(seconds("<IDLE>"), "0. 0. 3.000");
    for pid in 101..104 {
        for round in 0..5 {
            let function = format!("round{round}_of_{pid}");
            assert_eq!(
                seconds(&function),
                format!("1.000 1.{:02}0 0.", pid - 100),
                "{function}"
            );
        }
    }
    let text = display(&path, &["-metrics", "i.user:i.sleep:name", "-functions"]);
    // Three processes have three subexperiments.
    let mut mains: Vec<_> = text
        .lines()
        .filter(|line| line.ends_with(" main"))
        .collect();
    mains.sort_unstable();
    let columns = |line: &&str| {
        line.split_whitespace()
            .take(2)
            .collect::<Vec<_>>()
            .join(" ")
    };
    let mains: Vec<_> = mains.iter().map(columns).collect();
    assert_eq!(mains, ["5.000 5.050", "5.000 5.100", "5.000 5.150"]);
    let text = display(&path, &["-metrics", "e.user:e.sleep:name", "-threads"]);
    let lines: Vec<_> = (text.lines())
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    for thread in (101..104).flat_map(|pid| (0..5).map(move |round| 1000 * pid + round)) {
        let hundredths = thread / 1000 - 100;
        let process = hundredths + 1;
        let expected = format!("1.000 1.0{hundredths}0 Process {process}, Thread {thread},");
        let found = lines.iter().filter(|line| line.starts_with(&expected));
        assert_eq!(found.count(), 1, "{expected} in {text}");
    }
    let header = display(&path, &["-header"]);
    assert!(header.contains("program103"), "{header}");
    for complaint in ["not closed", "missing", "invalid", "corrupted"] {
        assert!(!header.contains(complaint), "{complaint} in {header}");
    }
}

#[test]
fn subexperiments_are_read_as_they_were_written() {
    let tmp = tempfile::tempdir().unwrap();
    let path = with_three_subexperiments(tmp.path());
    let subs = Experiment::open(&path).unwrap().subexperiments().unwrap();
    assert_eq!(subs.len(), 3);
    for sub in subs {
        let sub = Experiment::open(&sub).unwrap();
        let read = sub.header();
        let written = followed::header(read.pid.0);
        assert_eq!(
            (read.mpi_rank, &read.container),
            (written.mpi_rank, &written.container)
        );
        assert!(read.container.is_some());
        assert!(sub.is_closed());
        assert_eq!(sub.samples().unwrap().len(), 5);
        assert_eq!(sub.header().system.cpus.len(), 300);
    }
}

#[test]
fn a_subexperiment_without_stacks_is_not_skipped() {
    let tmp = tempfile::tempdir().unwrap();
    let mut founder = founder(tmp.path());
    founder.note("so that there is something").unwrap();
    let mut quiet = sub(&founder, 5);
    quiet
        .sample(Nanos::ZERO, "start", &UsageRecord::default())
        .unwrap();
    quiet.close(Nanos(SECOND)).unwrap();
    let path = founder.close(Nanos(SECOND)).unwrap();
    let mut names: Vec<_> = fs::read_dir(path.join(name(5)))
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    names.sort();
    assert_eq!(names, ["log.xml", "overview", "profile"]);
    let list = display(&path, &["-exp_list"]);
    assert!(list.contains(&name(5)), "{list}");
}

#[test]
fn files_that_are_not_of_the_format_wait_for_a_flush_too() {
    let tmp = tempfile::tempdir().unwrap();
    let founder = founder(tmp.path());
    let mut sub = sub(&founder, 5);
    sub.side_line("lines", "one\n").unwrap();
    sub.side_line("lines", "two\n").unwrap();
    assert_eq!(sub.buffered(), 8);
    sub.flush().unwrap();
    sub.side_file("whole", b"x").unwrap();
    let path = sub.close(Nanos(SECOND)).unwrap();
    let read = |name: &str| fs::read(path.join(name)).unwrap();
    assert_eq!(
        (&*read("lines"), &*read("whole")),
        (&b"one\ntwo\n"[..], &b"x"[..])
    );
}

#[test]
fn names_are_those_that_readers_look_for() {
    let tmp = tempfile::tempdir().unwrap();
    let founder = founder(tmp.path());
    let create =
        |name: &str| ExperimentWriter::create_sub(founder.dir(), name, &header(1), run(START));
    for name in ["x.er", "_x", "_a/b.er", "_a\0.er", "_../../x.er", ".er", ""] {
        let error = create(name).unwrap_err();
        assert!(matches!(error, Error::BadName { .. }), "{name:?}: {error}");
    }
    let first = create("_x.er").unwrap();
    assert_eq!(first.name(), "_x.er");
    assert!(matches!(
        create("_x.er").unwrap_err(),
        Error::NameInUse { .. }
    ));
    let bad = LogHeader::default();
    assert!(ExperimentWriter::create_sub(founder.dir(), "_y.er", &bad, run(START)).is_err());
    assert!(!founder.dir().path().join("_y.er").exists());
}

#[test]
fn the_refusals_are_those_of_an_experiment() {
    let tmp = tempfile::tempdir().unwrap();
    let mut founder = founder(tmp.path());
    let mut sub = sub(&founder, 5);
    let late = u64::MAX;
    let text = String::new();
    for event in [
        LogEvent::Start(run(1)),
        LogEvent::Exit { at_ns: Nanos(1) },
        LogEvent::Sample {
            at_ns: Nanos(1),
            id: 0,
            label: "x".into(),
        },
        LogEvent::Comment {
            at_ns: Nanos(late),
            text,
        },
    ] {
        let (a, b) = (founder.log(&event), sub.log(&event));
        assert_eq!(a.unwrap_err().to_string(), b.unwrap_err().to_string());
    }
    assert!(founder.log(&named(5, 5)).is_err());
    assert_eq!(sub.buffered(), 0);
    sub.log(&named(5, 5)).unwrap();
    assert!(sub.buffered() > 0);
}

/// Runs the test of this name again in a new process where `PARENT` is set, after this shell
/// command.
fn again(test: &str, shell: &str, parent: &Path) -> Child {
    let script = format!("{shell} && exec \"$0\" --exact \"$1\"");
    let program = std::env::current_exe().unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", &script]).arg(program).arg(test);
    let command = command.env(PARENT, parent).stdout(Stdio::null());
    command.spawn().unwrap()
}

#[test]
fn a_thousand_subexperiments_hold_no_file_open() {
    let test = "a_thousand_hold_nothing_open";
    let Some(parent) = std::env::var_os(PARENT) else {
        let tmp = tempfile::tempdir().unwrap();
        let status = again(test, "ulimit -n 64", tmp.path()).wait();
        assert!(status.unwrap().success());
        return;
    };
    let open = || fs::read_dir("/proc/self/fd").unwrap().count();
    let mut founder = founder(Path::new(&parent));
    founder.map(&function(0x2000, "<IDLE>")).unwrap();
    let before = open();
    let mut subs: Vec<_> = (1..=1000).map(|pid| sub(&founder, pid)).collect();
    for (pid, sub) in (1..).zip(&mut subs) {
        sub.map(&function(0x1000, "main")).unwrap();
        let stack = sub.stack(&[0x1000], StackEnd::Complete).unwrap();
        sub.tick(&ticks(stack, pid, Microstate::Sleep, 10)).unwrap();
        if pid % 2 == 0 {
            sub.flush().unwrap();
        }
    }
    assert_eq!(open(), before);
    for sub in subs {
        sub.close(Nanos(SECOND)).unwrap();
    }
    assert_eq!(open(), before);
    let path = founder.close(Nanos(SECOND)).unwrap();
    let subs = Experiment::open(&path).unwrap().subexperiments().unwrap();
    assert_eq!(subs.len(), 1000);
    let text = display(&path, &["-metrics", "e.sleep:name", "-functions"]);
    assert_eq!(columns(&text, "<Total>")[0], "100.000");
}

fn write_forever(parent: &Path) -> ! {
    let founder = founder(parent);
    let mut sub = sub(&founder, 5);
    for n in 0u32.. {
        let depth = 1 + n % 40;
        let frames: Vec<u64> = (1..=depth).map(|k| u64::from(k * (1 + n % 7))).collect();
        let stack = sub.stack(&frames, StackEnd::Complete).unwrap();
        let count = 1 + n / 1000;
        sub.tick(&ticks(stack, depth, Microstate::Sleep, count))
            .unwrap();
        let text = "y".repeat(n as usize % 777);
        sub.map(&function(u64::from(n) << 12, &text)).unwrap();
        sub.log(&LogEvent::Comment {
            at_ns: Nanos(n.into()),
            text,
        })
        .unwrap();
        if n % 10 == 0 {
            let usage = UsageRecord {
                system_calls: n.into(),
                ..UsageRecord::default()
            };
            sub.sample(Nanos(n.into()), &n.to_string(), &usage).unwrap();
        }
        // From some hundred bytes to some hundred kilobytes at once.
        if n % (1 + n % 331) == 0 {
            sub.flush().unwrap();
        }
    }
    unreachable!()
}

/// Reads all files of a killed writer; returns the number of packets.
fn check_killed(path: &Path) -> usize {
    let experiment = Experiment::open(path).unwrap();
    assert!(!experiment.is_closed());
    let maps = experiment.maps().unwrap();
    let stacks = experiment.stacks().unwrap();
    let mut packets = 0;
    for tick in experiment.ticks().unwrap() {
        let tick = tick.unwrap();
        let stack = stacks.get(tick.shared.stack.unwrap()).unwrap();
        assert_eq!(stack.frames.len() as u64, tick.shared.thread);
        assert_eq!(tick.ticks as usize, 1 + packets / 1000);
        packets += 1;
    }
    assert!(maps.len() >= packets);
    let (samples, usage) = (experiment.samples().unwrap(), experiment.usage().unwrap());
    assert!(usage.len() <= samples.len());
    for (n, (sample, record)) in samples.iter().zip(&usage).enumerate() {
        // For a record across a page border, the file is made longer before the record is written.
        let unfinished = n + 1 == usage.len() && n * 504 / 4096 != (n * 504 + 503) / 4096;
        assert!(unfinished || sample.label == record.system_calls.to_string());
    }
    let overview = fs::metadata(path.join("overview"));
    assert!(overview.is_ok_and(|overview| overview.len() % 504 == 0));
    packets
}

#[test]
fn a_writer_that_is_killed_leaves_what_it_wrote() {
    let test = "a_writer_that_is_killed_leaves_what_it_wrote";
    if let Some(parent) = std::env::var_os(PARENT) {
        write_forever(Path::new(&parent));
    }
    for round in 0..16u64 {
        let tmp = tempfile::tempdir().unwrap();
        let mut writer = again(test, "true", tmp.path());
        let path = tmp.path().join("founder.er").join(name(5));
        let begun = Instant::now();
        while !path.join("overview").exists() {
            assert!(begun.elapsed() < Duration::from_secs(20), "nothing written");
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_micros(round * 7919));
        writer.kill().unwrap();
        writer.wait().unwrap();
        check_killed(&path);
    }
}

/// A record that is added to a subexperiment.
#[derive(Debug, Clone)]
enum Record {
    Log(LogEvent),
    Map(MapEvent),
    Ticks { frames: Vec<u64>, count: u32 },
    Sample(u64),
    Note(String),
    Warning(String),
    Flush,
}

fn record() -> impl Strategy<Value = Record> {
    let text = || "[a-z<&\n\u{e9}]{0,40}|x{3000,5000}";
    let line = "[ a-z]{0,40}";
    prop_oneof![
        text().prop_map(|text| Record::Log(LogEvent::Comment {
            at_ns: Nanos(7),
            text
        })),
        (1..9u32).prop_map(|tid| Record::Log(named(tid, 5))),
        (0..1u64 << 40, text()).prop_map(|(vaddr, name)| Record::Map(function(vaddr, &name))),
        (prop::collection::vec(1..9u64, 0..6), 0..3u32)
            .prop_map(|(frames, count)| Record::Ticks { frames, count }),
        (0..SECOND).prop_map(Record::Sample),
        line.prop_map(Record::Note),
        text().prop_map(Record::Warning),
        Just(Record::Flush),
        Just(Record::Flush),
    ]
}

fn add_record(sub: &mut ExperimentWriter, record: &Record) {
    match record {
        Record::Log(event) => sub.log(event).unwrap(),
        Record::Map(map) => sub.map(map).unwrap(),
        Record::Ticks { frames, count } => {
            let stack = sub.stack(frames, StackEnd::Complete).unwrap();
            sub.tick(&ticks(stack, 1, Microstate::Sleep, *count))
                .unwrap();
        }
        Record::Sample(at_ns) => {
            let usage = UsageRecord {
                real_ns: Nanos(*at_ns),
                ..UsageRecord::default()
            };
            sub.sample(Nanos(*at_ns), &at_ns.to_string(), &usage)
                .unwrap();
        }
        Record::Note(text) => sub.note(text).unwrap(),
        Record::Warning(text) => sub.warning(Nanos(1), text).unwrap(),
        Record::Flush => {}
    }
}

fn files(path: &Path) -> BTreeMap<std::ffi::OsString, Vec<u8>> {
    let entries = fs::read_dir(path).unwrap().map(Result::unwrap);
    let file = |entry: fs::DirEntry| (entry.file_name(), fs::read(entry.path()).unwrap());
    entries.map(file).collect()
}

/// Checks that the reader returns these records and nothing else.
fn check_records(path: &Path, all: &[Record]) {
    let experiment = Experiment::open(path).unwrap();
    let stacks = experiment.stacks().unwrap();
    let (mut maps, mut ticks) = (
        experiment.maps().unwrap().into_iter(),
        experiment.ticks().unwrap(),
    );
    let (mut samples, mut events) = (
        experiment.samples().unwrap().into_iter(),
        experiment.events().iter(),
    );
    let mut warnings = experiment.warnings().unwrap().into_iter();
    let mut notes = String::new();
    for record in all {
        match record {
            Record::Log(event) => assert_eq!(events.next(), Some(event)),
            Record::Map(map) => assert_eq!(maps.next().as_ref(), Some(map)),
            Record::Ticks { count: 0, .. } | Record::Flush => {}
            Record::Ticks { frames, count } => {
                let tick = ticks.next().unwrap().unwrap();
                assert_eq!(tick.ticks as u32, *count);
                let stack = stacks.get(tick.shared.stack.unwrap()).unwrap();
                assert_eq!(stack.frames, *frames);
            }
            Record::Sample(at_ns) => {
                assert!(matches!(events.next(), Some(LogEvent::Sample { .. })));
                let sample = samples.next().unwrap();
                assert_eq!(
                    (sample.at_ns, sample.usage.unwrap().real_ns),
                    (Nanos(*at_ns), Nanos(*at_ns))
                );
            }
            Record::Note(text) => notes += text,
            Record::Warning(warning) => {
                let found = warnings.next().unwrap();
                assert!(matches!(found, LogEvent::Warning { text, .. } if text == *warning));
            }
        }
    }
    assert!(matches!(
        events.next(),
        Some(LogEvent::Exit { at_ns: Nanos(9) })
    ));
    assert!(events.next().is_none() && maps.next().is_none() && ticks.next().is_none());
    assert!(warnings.next().is_none() && samples.next().is_none());
    let blank = |text: &str| text.replace([' ', '\n'], "");
    assert_eq!(blank(&experiment.notes().unwrap()), blank(&notes));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn order_of_flushes_does_not_matter(all in prop::collection::vec(record(), 0..60)) {
        let tmp = tempfile::tempdir().unwrap();
        let founder = founder(tmp.path());
        let (mut often, mut once) = (sub(&founder, 5), {
            ExperimentWriter::create_sub(founder.dir(), "_o.er", &header(5), run(START + 7)).unwrap()
        });
        for record in &all {
            add_record(&mut often, record);
            add_record(&mut once, record);
            if matches!(record, Record::Flush) {
                often.flush().unwrap();
                prop_assert_eq!(often.buffered(), 0);
                let size: usize = files(&founder.dir().path().join(name(5))).values().map(Vec::len).sum();
                prop_assert_eq!(often.bytes_written(), size as u64);
            }
        }
        often.close(Nanos(9)).unwrap();
        once.close(Nanos(9)).unwrap();
        let often = founder.dir().path().join(name(5));
        let once = founder.dir().path().join("_o.er");
        prop_assert!(files(&often) == files(&once));
        check_records(&often, &all);
    }
}
