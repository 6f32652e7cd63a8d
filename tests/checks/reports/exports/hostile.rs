//! An experiment with hostile names, and a stack without frames.

use std::path::{Path, PathBuf};

use analysis::model::Model;
use anyhow::{Result, ensure};
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
use experiment_format::writer::ExperimentWriter;
use tests::experiment::synthetic::KERNEL;

use super::read_by_others;
use super::sums::{agree, threads_only};

/// Names that other users can give to threads, functions and files.
pub(super) const NAMES: [&str; 10] = [
    "a;b",
    "line\nbreak\r\tand more",
    "\"quoted\" 'and' \\back\\slash",
    "<xml & co> ]]> <!--",
    "count 7 42",
    " ",
    "\u{1}\u{7f}\u{fffe}\u{2028}\u{202e}",
    "# a remark",
    "--",
    "[lock]_[k]",
];

/// Writes an experiment with such names wherever the format permits them, and with time in no
/// function.
pub(super) fn hostile(parent: &Path) -> Result<PathBuf> {
    let request = NameRequest::Exactly("made.1.er".into());
    let (dir, _) = ExperimentDir::create(parent, &request, None)?;
    let mut symbols: Vec<Vec<u8>> = NAMES.iter().map(|name| name.as_bytes().to_vec()).collect();
    symbols.push(b"\xff\xfe not UTF-8 \xc3".to_vec());
    let symbols_at = (0..).zip(&symbols).map(|(number, name)| ImageSymbol {
        address: KERNEL + 256 * number,
        size: 256,
        name,
        global: true,
    });
    let image = ElfImage {
        texts: vec![TextSection {
            address: KERNEL,
            size: 0x1000,
            bits: None,
        }],
        symbols: symbols_at.collect(),
    };
    let object = "vm\"l;i <n>&ux";
    dir.archive(object, &image.to_bytes()?)?;
    let header = LogHeader {
        system: System {
            hostname: "no;where".into(),
            arch: "x86_64".into(),
            page_size: 4096,
            pages: 1024,
            cpus: vec![Cpu { id: 0, mhz: 2600 }],
        },
        command_line: "kernel".into(),
        profiles: vec![
            ProfileDecl::ThreadNames,
            ClockTick::table_of_cpus(10_007),
            ClockTick::table(10_007),
        ],
        ..LogHeader::default()
    };
    let start = 1_000_000_000;
    let run = StartTime {
        tstamp_ns: Nanos(start),
        wall_s: 1_795_205_070,
        wall_subsec_ns: 0,
        tm_zone_s: 0,
    };
    let mut founder = ExperimentWriter::create(dir, &header, run)?;
    founder.map(&MapEvent::Segment {
        at_ns: Nanos::ZERO,
        vaddr: KERNEL,
        size: 0x4000,
        file_offset: 0x1000,
        modes: READ_EXECUTE,
        name: object.into(),
    })?;
    for (number, name) in (1..).zip(NAMES) {
        founder.map(&MapEvent::Function {
            at_ns: Nanos::ZERO,
            vaddr: 0x1000 * u64::from(number),
            size: 256,
            name: name.into(),
        })?;
        founder.log(&LogEvent::Thread {
            at_ns: Nanos::ZERO,
            tid: Tid(number),
            name: name.into(),
            group: format!("{name}, pid {number}"),
        })?;
    }
    for number in 0..symbols.len() as u32 {
        let frames = [
            KERNEL + 256 * u64::from(number),
            0x1000 * u64::from(1 + number % NAMES.len() as u32),
        ];
        let stack = founder.stack(&frames, StackEnd::Complete)?;
        founder.tick(&ClockTick {
            cpu: 0,
            time_ns: Nanos(start + 1_000_000 * u64::from(number)),
            stack,
            tid: Tid(number),
            pid: Pid(number),
            state: Microstate::ALL[number as usize % Microstate::PER_THREAD],
            ticks: Ticks(3 + u64::from(number)),
            detail: 0,
            cause: Cause::ALL[number as usize % Cause::COUNT],
            // Some of them have no ticks.
            waker: Tid(number + 1),
        })?;
    }
    // An interval whose stack the kernel did not return.
    let stack = founder.stack(&[], StackEnd::Complete)?;
    founder.tick(&ClockTick {
        cpu: 0,
        time_ns: Nanos(start + 50_000_000),
        stack,
        tid: Tid(1),
        pid: Pid(1),
        state: Microstate::Sleep,
        ticks: Ticks(7),
        detail: 0,
        cause: Cause::Undecided,
        waker: Tid(0),
    })?;
    // No exact time is known of any of its threads: they have their ticks.
    founder.side_line("threads.jsonl", "{\"sample\":0,\"at_ns\":60000000000}\n")?;
    Ok(founder.close(Nanos(60_000_000_000))?)
}

#[test]
fn hostile_names_and_empty_stacks_break_no_format() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let experiment = hostile(directory.path())?;
    let model = Model::load(std::slice::from_ref(&experiment))?;
    ensure!(model.warnings.is_empty(), "{:?}", model.warnings);
    let names: Vec<_> = model
        .functions
        .iter()
        .map(|function| function.name.as_str())
        .collect();
    ensure!(
        names.contains(&"a;b") && names.len() >= 2 * NAMES.len(),
        "{names:?}"
    );
    agree(&model, &threads_only())?;
    read_by_others(&experiment)
}
