//! Disks that are full in the middle of a recording, or cannot reserve space. The experiment stays
//! valid.
//!
//! The disk is mounted in a new mount namespace, in which this test program runs itself again.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a helper of tests reports by panicking, as tests do"
)]

mod synthetic;

use std::path::Path;
use std::process::Command;
use std::rc::Rc;

use experiment_format::cause::Cause;
use experiment_format::directory::{ExperimentDir, NameRequest};
use experiment_format::ids::{Pid, Tid};
use experiment_format::log::{LogEvent, StartTime};
use experiment_format::map::MapEvent;
use experiment_format::microstate::Microstate;
use experiment_format::packet::ClockTick;
use experiment_format::reader::Experiment;
use experiment_format::stacks::StackEnd;
use experiment_format::units::{Nanos, Ticks};
use experiment_format::usage::UsageRecord;
use experiment_format::writer::ExperimentWriter;
use gprofng::display_all;

use synthetic::{begin, header};

/// Set in the second run: the directory where the disk is mounted.
const DISK: &str = "EXPERIMENT_FORMAT_DISK";

/// Runs the test of this name again in a process that has a disk mounted with these options.
/// Returns the disk in that process, none in this one.
fn on_disk(test: &str, mount: &str) -> Option<std::path::PathBuf> {
    if let Some(disk) = std::env::var_os(DISK) {
        return Some(disk.into());
    }
    let dir = tempfile::tempdir().unwrap();
    let script = "mount $0 none \"$1\" && exec \"$2\" --exact \"$3\"";
    let status = Command::new("unshare")
        .args(["--mount", "--map-root-user", "sh", "-c", script, mount])
        .arg(dir.path())
        .arg(std::env::current_exe().unwrap())
        .arg(test)
        .env(DISK, dir.path())
        .status()
        .unwrap();
    assert!(status.success());
    None
}

fn create(disk: &Path) -> experiment_format::Result<ExperimentWriter> {
    let tables = vec![ClockTick::table_of_cpus(1000), ClockTick::table(1000)];
    begin(disk, "full", &header(tables), 1)
}

#[test]
fn root_ticks_end_and_the_experiment_is_closed() {
    let Some(disk) = on_disk(
        "root_ticks_end_and_the_experiment_is_closed",
        "-t tmpfs -o size=1m",
    ) else {
        return;
    };
    let mut writer = create(&disk).unwrap();
    let name = "<K>".to_owned();
    writer
        .map(&MapEvent::Function {
            at_ns: Nanos::ZERO,
            vaddr: 0x1000,
            size: 256,
            name,
        })
        .unwrap();
    writer
        .sample(Nanos::ZERO, "start", &UsageRecord::default())
        .unwrap();
    let stack = writer.stack(&[0x1000], StackEnd::Complete).unwrap();
    let mut written = 0u64;
    let error = loop {
        let state = Microstate::KernelCpu;
        let tick = ClockTick {
            cpu: 0,
            time_ns: Nanos(1),
            stack,
            tid: Tid(1),
            pid: Pid(1),
            state,
            ticks: Ticks(1),
            detail: 0,
            cause: Cause::Undecided,
            waker: Tid(0),
        };
        match writer.tick(&tick) {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
    };
    assert!(error.is_disk_full(), "{error}");
    assert!(written > 10_000);
    // Text without reserved space is refused before a byte of it is written.
    while std::fs::write(disk.join("rest"), [1; 4096]).is_ok() {
        if std::fs::copy(disk.join("rest"), disk.join(format!("rest{written}"))).is_err() {
            break;
        }
        written += 0x1_0000_0000;
    }
    written &= 0xffff_ffff;
    let mapped = (0..10_000u64).find_map(|n| {
        let name = "x".repeat(500);
        let event = MapEvent::Function {
            at_ns: Nanos::ZERO,
            vaddr: 0x10_0000 + 256 * n,
            size: 16,
            name,
        };
        writer.map(&event).err()
    });
    assert!(mapped.unwrap().is_disk_full());
    // Space is reserved for what closes the experiment.
    let (at_ns, text) = (2_000_000_000, error.to_string());
    writer
        .log(&LogEvent::Error {
            at_ns: Nanos(at_ns),
            text,
            errno: 28,
        })
        .unwrap();
    for n in 0..100 {
        let text = format!("loss counter {n}: 0");
        writer
            .log(&LogEvent::Comment {
                at_ns: Nanos(at_ns),
                text,
            })
            .unwrap();
    }
    writer
        .sample(Nanos(at_ns), "stop", &UsageRecord::default())
        .unwrap();
    assert!(
        writer
            .side_file("kcollect.json", &[b' '; 100_000])
            .unwrap_err()
            .is_disk_full()
    );
    let path = writer.close(Nanos(at_ns)).unwrap();
    assert!(!path.join(".incomplete").exists());

    let header = display_all(&path, &["-header"]).0;
    assert!(header.contains("No space left on device"), "{header}");
    assert!(header.contains("loss counter 99: 0"), "{header}");
    assert!(!header.contains("not closed"), "{header}");
    assert!(!header.contains("error:"), "{header}");
    let functions = display_all(&path, &["-metrics", "e.kcpu:name", "-functions"]).0;
    let total = format!("{}.{:03}", written / 1000, written % 1000);
    assert!(functions.contains(&total), "no {total} in:\n{functions}");
}

#[test]
fn root_a_start_that_fails_leaves_nothing() {
    let Some(disk) = on_disk(
        "root_a_start_that_fails_leaves_nothing",
        "-t tmpfs -o size=32k",
    ) else {
        return;
    };
    assert!(create(&disk).unwrap_err().is_disk_full());
    assert_eq!(std::fs::read_dir(&disk).unwrap().count(), 0);
}

#[test]
fn root_a_file_system_that_cannot_reserve_space_is_accepted() {
    let test = "root_a_file_system_that_cannot_reserve_space_is_accepted";
    let Some(disk) = on_disk(test, "-t ramfs") else {
        return;
    };
    let mut writer = create(&disk).unwrap();
    for n in 0..10_000u64 {
        let stack = writer.stack(&[n, 2, 3, 4], StackEnd::Complete).unwrap();
        let state = Microstate::KernelCpu;
        let tick = ClockTick {
            cpu: 0,
            time_ns: Nanos(n),
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
        writer
            .sample(Nanos(n), "x", &UsageRecord::default())
            .unwrap();
    }
    let experiment = Experiment::open(&writer.close(Nanos(10_000)).unwrap()).unwrap();
    assert_eq!(
        experiment.ticks().unwrap().map(Result::unwrap).count(),
        10_000
    );
    assert_eq!(experiment.stacks().unwrap().len(), 10_000);
    assert_eq!(experiment.usage().unwrap().len(), 10_000);
}

/// Adds a record of every kind.
fn add_records(sub: &mut ExperimentWriter, n: u64) {
    let function = MapEvent::Function {
        at_ns: Nanos::ZERO,
        vaddr: 256 * n,
        size: 256,
        name: format!("function_{n}"),
    };
    sub.map(&function).unwrap();
    let stack = sub.stack(&[n, 2, 3], StackEnd::Complete).unwrap();
    let tick = ClockTick {
        cpu: 0,
        time_ns: Nanos(n),
        stack,
        tid: Tid(1),
        pid: Pid(1),
        state: Microstate::Sleep,
        ticks: Ticks(1),
        detail: 0,
        cause: Cause::Undecided,
        waker: Tid(0),
    };
    sub.tick(&tick).unwrap();
    let text = format!("comment {n}");
    sub.log(&LogEvent::Comment {
        at_ns: Nanos(n),
        text,
    })
    .unwrap();
    sub.sample(Nanos(n), "x", &UsageRecord::default()).unwrap();
}

/// Checks that all content is whole: elements, records, stacks of packets.
fn check_whole(path: &Path) -> (usize, usize) {
    let experiment = Experiment::open(path).unwrap();
    experiment.maps().unwrap();
    let stacks = experiment.stacks().unwrap();
    for tick in experiment.ticks().unwrap() {
        assert!(stacks.get(tick.unwrap().shared.stack.unwrap()).is_some());
    }
    let (usage, samples) = (experiment.usage().unwrap(), experiment.samples().unwrap());
    assert!(usage.len() <= samples.len());
    (experiment.ticks().unwrap().count(), usage.len())
}

#[test]
fn root_a_subexperiment_waits_for_space() {
    let test = "root_a_subexperiment_waits_for_space";
    let Some(disk) = on_disk(test, "-t tmpfs -o size=4m") else {
        return;
    };
    let request = NameRequest::Exactly("full.er".into());
    let (founder, _) = ExperimentDir::create(&disk, &request, None).unwrap();
    let founder = Rc::new(founder);
    let header = header(vec![ClockTick::table(1000)]);
    let create =
        |name: &str| ExperimentWriter::create_sub(&founder, name, &header, StartTime::default());
    let spare = disk.join("spare");
    let (mut reported, mut failed) = (0, 0);
    let mut sub = create("_a.er").unwrap();
    let path = founder.path().join("_a.er");
    // The disk is full at every page that the files may need.
    for pages in (0..12).chain(0..12) {
        std::fs::write(&spare, vec![1; 4096 * pages]).unwrap();
        let filler = disk.join(format!("filler{pages}"));
        let _ = std::fs::write(&filler, vec![1; 4 << 20]);
        std::fs::remove_file(&spare).unwrap();
        for _ in 0..30 {
            add_records(&mut sub, reported);
            reported += 1;
        }
        let before = sub.buffered();
        if let Err(error) = sub.flush() {
            assert!(error.is_disk_full(), "{error}");
            assert!((1..=before).contains(&sub.buffered()));
            failed += 1;
        }
        check_whole(&path);
        // gprofng skips a subexperiment with an empty file of stacks.
        let frames = std::fs::metadata(path.join("data.frameinfo"));
        assert!(frames.map_or(true, |frames| frames.len() > 0));
        if pages == 11 {
            std::fs::remove_file(&filler).unwrap();
            sub.flush().unwrap();
            assert_eq!(check_whole(&path), (reported as usize, reported as usize));
        } else {
            std::fs::remove_file(&filler).unwrap();
        }
    }
    assert!(failed > 10, "the disk was never full");

    // A subexperiment that cannot begin leaves nothing; one that cannot end is whole.
    let _ = std::fs::write(&spare, vec![1; 4 << 20]);
    assert!(create("_b.er").unwrap_err().is_disk_full());
    assert!(!founder.path().join("_b.er").exists());
    for n in 0..1000 {
        add_records(&mut sub, reported + n);
    }
    assert!(sub.close(Nanos(1)).unwrap_err().is_disk_full());
    let (packets, _) = check_whole(&path);
    assert!(packets >= reported as usize);
}
