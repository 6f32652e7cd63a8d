//! A writer that is killed at any instant leaves an experiment that opens.
//!
//! The test program runs itself again as a writer that never stops, kills it, and reads the files:
//! their content must be whole.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a helper of tests reports by panicking, as tests do"
)]

mod synthetic;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use experiment_format::cause::Cause;
use experiment_format::ids::{Pid, Tid};
use experiment_format::log::LogEvent;
use experiment_format::map::MapEvent;
use experiment_format::microstate::Microstate;
use experiment_format::packet::ClockTick;
use experiment_format::reader::Experiment;
use experiment_format::stacks::StackEnd;
use experiment_format::units::{Nanos, Ticks};
use experiment_format::usage::UsageRecord;

use synthetic::{begin, header};

/// Set in the writer: where to write.
const PARENT: &str = "EXPERIMENT_FORMAT_KILLED_PARENT";
const NAME: &str = "killed.er";

fn write_forever(parent: &Path) -> ! {
    let mut writer = begin(parent, NAME, &header(vec![ClockTick::table(1000)]), 1).unwrap();
    for n in 0u64.. {
        let frames: Vec<u64> = (0..=n % 40)
            .map(|depth| 0x1000 + depth * (1 + n % 7))
            .collect();
        let end = if n % 3 == 0 {
            StackEnd::Truncated
        } else {
            StackEnd::Complete
        };
        let stack = writer.stack(&frames, end).unwrap();
        let state = Microstate::try_from((n % 10) as u32).unwrap();
        let (cpu, tid, pid) = (0, frames.len() as u32, end as u32);
        let tick = ClockTick {
            cpu,
            time_ns: Nanos(n),
            stack,
            tid: Tid(tid),
            pid: Pid(pid),
            state,
            ticks: Ticks(1),
            detail: 0,
            cause: Cause::Undecided,
            waker: Tid(0),
        };
        writer.tick(&tick).unwrap();
        if n % 5 == 0 {
            let name = "x".repeat((n % 600) as usize);
            writer
                .map(&MapEvent::Function {
                    at_ns: Nanos(n),
                    vaddr: 0x1000 * n,
                    size: 16,
                    name,
                })
                .unwrap();
            let usage = UsageRecord {
                system_calls: n,
                ..UsageRecord::default()
            };
            writer.sample(Nanos(n), &n.to_string(), &usage).unwrap();
            let text = "y".repeat((n % 777) as usize);
            writer
                .log(&LogEvent::Comment {
                    at_ns: Nanos(n),
                    text,
                })
                .unwrap();
        }
    }
    unreachable!()
}

/// Reads all files; returns the number of ticks.
fn check(path: &Path) -> u64 {
    let experiment = Experiment::open(path).unwrap();
    assert!(!experiment.is_closed());
    let maps = experiment.maps().unwrap();
    assert!(
        maps.iter()
            .enumerate()
            .all(|(n, map)| map.at_ns() == Nanos(5 * n as u64))
    );
    let samples = experiment.samples().unwrap();
    let usage = experiment.usage().unwrap();
    assert!(usage.len() == samples.len() || usage.len() + 1 == samples.len());
    for (n, (sample, record)) in samples.iter().zip(&usage).enumerate() {
        // For a record across a page border, the file is made longer before the record is written:
        // a kill between the two leaves zeros as the last record.
        let (begin, end) = (n * 504, n * 504 + 503);
        let unfinished = n + 1 == usage.len() && begin / 4096 != end / 4096;
        assert!(unfinished || sample.label == record.system_calls.to_string());
    }
    let size = std::fs::metadata(path.join("overview")).unwrap().len();
    assert_eq!(size % 504, 0);
    let stacks = experiment.stacks().unwrap();
    let mut count = 0;
    for tick in experiment.ticks().unwrap() {
        let tick = tick.unwrap();
        assert_eq!(tick.shared.time_ns, Nanos(count));
        let stack = stacks.get(tick.shared.stack.unwrap()).unwrap();
        assert_eq!(stack.frames.len() as u64, tick.shared.thread);
        assert_eq!(Some(Pid(stack.end as u32)), tick.shared.pid);
        count += 1;
    }
    count
}

#[test]
fn killed_writer_leaves_a_valid_experiment() {
    if let Some(parent) = std::env::var_os(PARENT) {
        write_forever(Path::new(&parent));
    }
    for round in 0..15u64 {
        let tmp = tempfile::tempdir().unwrap();
        let path = tmp.path().join(NAME);
        let mut writer = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "killed_writer_leaves_a_valid_experiment"])
            .env(PARENT, tmp.path())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let begin = Instant::now();
        while std::fs::metadata(path.join("profile")).map_or(0, |file| file.len()) == 0 {
            assert!(
                begin.elapsed() < Duration::from_secs(20),
                "the writer does not start"
            );
        }
        // While it runs, the content is whole too.
        std::thread::sleep(Duration::from_micros(round * 1700));
        let seen = if round % 3 == 0 { read_live(&path) } else { 0 };
        writer.kill().unwrap();
        writer.wait().unwrap();
        let count = check(&path);
        assert!(count >= seen, "{count} ticks, and {seen} before");
    }
}

/// Returns the number of ticks of a growing experiment. Stacks are read after ticks, so that none
/// is missing.
fn read_live(path: &Path) -> u64 {
    let experiment = Experiment::open(path).unwrap();
    let ticks: Vec<_> = experiment.ticks().unwrap().map(Result::unwrap).collect();
    let stacks = experiment.stacks().unwrap();
    assert!(
        ticks
            .iter()
            .all(|tick| stacks.get(tick.shared.stack.unwrap()).is_some())
    );
    ticks.len() as u64
}
