//! Ticks of threads and of CPUs in one founder, as stock gprofng and this crate's reader count
//! them.
//!
//! Experiments are random. For each one, the written sums by function, thread, CPU, process and
//! detail are compared with the columns that gprofng prints and with the records of the reader.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a helper of tests reports by panicking, as tests do"
)]

mod synthetic;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use experiment_format::cause::Cause;
use experiment_format::ids::{Pid, Tid};
use experiment_format::log::ProfileDecl;
use experiment_format::map::MapEvent;
use experiment_format::microstate::{Microstate, NumStates};
use experiment_format::packet::{ClockRecord, ClockTick, Detail};
use experiment_format::reader::Experiment;
use experiment_format::stacks::StackEnd;
use experiment_format::units::{Nanos, Ticks};
use gprofng::{columns, display};
use proptest::prelude::*;

const START: u64 = 1_000_000_000;
/// Ticks of 10 ms need two of the three decimal places that gprofng prints.
const TICK_US: u32 = 10_000;
const STATES: usize = Microstate::ALL.len();

/// The content of a packet.
#[derive(Debug, Clone)]
struct Written {
    cpu: u32,
    tid: u32,
    function: u64,
    state: Microstate,
    ticks: u32,
    detail: u32,
}

/// The size of a packet.
const BYTES: usize = 48;

/// Returns the process of a thread; each has four threads.
fn process(tid: u32) -> u32 {
    tid / 4
}

fn name(function: u64) -> String {
    format!("<function_{function}>")
}

impl Written {
    fn ticks(&self) -> [u64; STATES] {
        let mut ticks = [0; STATES];
        ticks[self.state as usize] = self.ticks.into();
        ticks
    }
}

/// The states of threads and of CPUs.
fn states() -> impl Iterator<Item = Microstate> {
    let states = Microstate::ALL.into_iter();
    states.filter(|state| *state != Microstate::LinuxCpu)
}

fn packet() -> impl Strategy<Value = Written> {
    let ticks = prop_oneof![1u32..5, 1u32..100_000];
    let state = prop::sample::select(states().collect::<Vec<_>>());
    (0..4u32, 40..52u32, 0..6u64, state, ticks, 0..6u32).prop_map(
        |(cpu, tid, function, state, ticks, detail)| Written {
            cpu,
            tid,
            function,
            state,
            ticks,
            detail,
        },
    )
}

/// Returns the clock tables of a founder.
fn founder() -> Vec<ProfileDecl> {
    vec![ClockTick::table_of_cpus(TICK_US), ClockTick::table(TICK_US)]
}

fn write(parent: &Path, profiles: Vec<ProfileDecl>, packets: &[Written]) -> PathBuf {
    let mut writer =
        synthetic::begin(parent, "ktest", &synthetic::header(profiles), START).unwrap();
    for function in 0..6 {
        let (vaddr, name) = (0x1000 * (1 + function), name(function));
        let map = MapEvent::Function {
            at_ns: Nanos::ZERO,
            vaddr,
            size: 256,
            name,
        };
        writer.map(&map).unwrap();
    }
    for (n, packet) in (1..).zip(packets) {
        let frames = [0x1000 * (1 + packet.function), 0x1010];
        let stack = writer.stack(&frames, StackEnd::Complete).unwrap();
        let tick = ClockTick {
            cpu: packet.cpu,
            time_ns: Nanos(START + n),
            stack,
            tid: Tid(packet.tid),
            pid: Pid(process(packet.tid)),
            state: packet.state,
            ticks: Ticks(packet.ticks.into()),
            detail: packet.detail,
            cause: Cause::Undecided,
            waker: Tid(0),
        };
        writer.tick(&tick).unwrap();
    }
    writer.close(Nanos(1_000_000_000)).unwrap()
}

type Sums = BTreeMap<String, [u64; STATES]>;

fn add(sums: &mut Sums, key: String, ticks: [u64; STATES]) {
    let sum = sums.entry(key).or_default();
    for (sum, ticks) in sum.iter_mut().zip(ticks) {
        *sum += ticks;
    }
}

/// Returns the keys of the rows in which gprofng shows ticks.
fn rows(cpu: u32, tid: u64, pid: u32, detail: u32, function: &str) -> [String; 6] {
    [
        "<Total>".to_owned(),
        function.to_owned(),
        format!("Thread {tid}"),
        format!("CPU {cpu}"),
        format!("kpid 0x{pid:016x} ({pid})"),
        format!("kdetail 0x{detail:016x} ({detail})"),
    ]
}

fn expected(packets: &[Written]) -> Sums {
    let mut sums = Sums::new();
    for packet in packets {
        if packet.ticks() == [0; STATES] {
            continue;
        }
        let pid = process(packet.tid);
        let function = name(packet.function);
        for key in rows(packet.cpu, packet.tid.into(), pid, packet.detail, &function) {
            add(&mut sums, key, packet.ticks());
        }
    }
    sums
}

fn records(path: &Path) -> Vec<ClockRecord> {
    let experiment = Experiment::open(path).unwrap();
    experiment.ticks().unwrap().map(Result::unwrap).collect()
}

fn read_sums(path: &Path) -> Sums {
    let stacks = Experiment::open(path).unwrap().stacks().unwrap();
    let mut sums = Sums::new();
    for record in records(path) {
        let leaf = stacks.get(record.shared.stack.unwrap()).unwrap().frames[0];
        let mut ticks = [0; STATES];
        ticks[record.state as usize] = u64::from(record.ticks.unsigned_abs());
        let function = name(leaf / 0x1000 - 1);
        let (shared, detail) = (record.shared, record.detail);
        let pid = shared.pid.unwrap().0;
        for key in rows(shared.cpu, shared.thread, pid, detail, &function) {
            add(&mut sums, key, ticks);
        }
    }
    sums
}

/// Returns the metrics of a founder.
fn metrics() -> impl Iterator<Item = &'static str> {
    let tables = [NumStates::Kernel, NumStates::Solaris];
    tables
        .into_iter()
        .flat_map(|states| states.metrics().iter().copied())
}

/// Returns whether a metric includes the ticks of a state.
fn counts(metric: &str, state: Microstate) -> bool {
    match metric {
        "total" => state.in_total(),
        "totalcpu" => state.in_total_cpu(),
        other => state.metric() == Some(other),
    }
}

fn view(path: &Path) -> String {
    let columns: Vec<_> = metrics().map(|name| format!("e.{name}")).collect();
    let script = path.join("script");
    let commands = format!(
        "metrics {}:name\nfunctions\nthreads\ncpus\nindxobj_define kpid KPID\nkpid\n\
         indxobj_define kdetail KDETAIL\nkdetail\n",
        columns.join(":")
    );
    std::fs::write(&script, commands).unwrap();
    display(path, &["-script", script.to_str().unwrap()])
}

/// Compares what gprofng shows with the expected sums.
fn compare(path: &Path, sums: &Sums) {
    let text = view(path);
    for (key, ticks) in sums {
        let row = columns(&text, key);
        for (metric, column) in metrics().zip(&row) {
            let states = Microstate::ALL.into_iter().zip(ticks);
            let counted = states.filter(|(state, _)| counts(metric, *state));
            let sum: u64 = counted.map(|(_, ticks)| ticks).sum();
            let seconds = sum as f64 * f64::from(TICK_US) / 1e6;
            let found: f64 = column.parse().unwrap();
            assert!(
                (seconds - found).abs() < 1e-4,
                "{key}, {metric}: not {seconds} in\n{text}"
            );
        }
    }
}

#[test]
fn counts_may_be_as_large_as_the_field() {
    let tmp = tempfile::tempdir().unwrap();
    let packets: Vec<_> = states()
        .map(|state| Written {
            cpu: 1,
            tid: u32::MAX,
            function: 1,
            state,
            ticks: i32::MAX as u32,
            detail: i32::MAX as u32,
        })
        .collect();
    let path = write(tmp.path(), founder(), &packets);
    assert_eq!(read_sums(&path), expected(&packets));
    compare(&path, &expected(&packets));
}

#[test]
fn a_packet_without_ticks_is_not_written() {
    let tmp = tempfile::tempdir().unwrap();
    let packets = [Written {
        cpu: 1,
        tid: 40,
        function: 1,
        state: Microstate::Sleep,
        ticks: 0,
        detail: 1,
    }];
    let path = write(tmp.path(), founder(), &packets);
    assert!(!path.join("profile").exists() || path.join("profile").metadata().unwrap().len() == 0);
    assert_eq!(records(&path), []);
}

/// A filter by detail selects the packets with it.
#[test]
fn filters_select_details() {
    let tmp = tempfile::tempdir().unwrap();
    let of = |state, detail: Detail, ticks| Written {
        cpu: 0,
        tid: 41,
        function: u64::from(detail.number()),
        state,
        ticks,
        detail: detail.number(),
    };
    let packets: Vec<_> = (Detail::ALL.into_iter())
        .flat_map(|detail| {
            [
                of(Microstate::Sleep, detail, 100),
                of(Microstate::WaitCpu, detail, 10 + detail.number()),
            ]
        })
        .chain([of(Microstate::KernelCpu, Detail::None, 50)])
        .collect();
    let path = write(tmp.path(), founder(), &packets);
    compare(&path, &expected(&packets));
    let total = |filter: &str| {
        let script = path.join("script");
        let commands = format!("metrics e.kcpu:e.sleep:e.wait:name\nfilters {filter}\nfunctions\n");
        std::fs::write(&script, commands).unwrap();
        let text = display(&path, &["-script", script.to_str().unwrap()]);
        columns(&text, "<Total>")[..3].join(" ")
    };
    assert_eq!(total("1"), "0.500 6.000 0.750");
    assert_eq!(total("KDETAIL==0"), "0.500 1.000 0.100");
    assert_eq!(total("KDETAIL==3"), "0. 1.000 0.130");
    assert_eq!(total("KDETAIL==2||KDETAIL==3"), "0. 2.000 0.250");
    assert_eq!(total("KDETAIL==3&&MSTATE==8"), "0. 0. 0.130");
    assert_eq!(total("KDETAIL==5"), "0. 1.000 0.150");
    assert_eq!(total("KDETAIL>0"), "0. 5.000 0.650");
}

/// The reason why a header whose tables have ticks of different length is refused.
#[test]
fn the_last_table_sets_the_length_of_a_tick() {
    let tmp = tempfile::tempdir().unwrap();
    let packets: Vec<_> = states()
        .map(|state| Written {
            cpu: 1,
            tid: 41,
            function: 1,
            state,
            ticks: 1 + state.number(),
            detail: 0,
        })
        .collect();
    let path = write(tmp.path(), founder(), &packets);
    let log = std::fs::read_to_string(path.join("log.xml")).unwrap();
    let edited = |from: &str, to: &str| {
        assert!(log.contains(from), "no {from} in {log}");
        std::fs::write(path.join("log.xml"), log.replace(from, to)).unwrap();
        let text = view(&path);
        let row = columns(&text, "<Total>");
        let columns: Vec<_> = metrics().zip(row).collect();
        ["kcpu", "user", "total"].map(|metric| {
            let found = columns.iter().find(|(name, _)| *name == metric);
            found.unwrap().1.to_owned()
        })
    };
    let first = "ptimer=\"10000\" numstates=\"3\"";
    let last = "ptimer=\"10000\" numstates=\"10\"";
    assert_eq!(edited(first, first), ["0.120", "0.010", "0.550"]);
    let other = "ptimer=\"1000\" numstates=\"3\"";
    assert_eq!(edited(first, other), ["0.120", "0.010", "0.550"]);
    let other = "ptimer=\"1000\" numstates=\"10\"";
    assert_eq!(edited(last, other), ["0.012", "0.001", "0.055"]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn sums_are_those_of_gprofng(packets in prop::collection::vec(packet(), 1..40)) {
        let tmp = tempfile::tempdir().unwrap();
        let path = write(tmp.path(), founder(), &packets);
        let sums = expected(&packets);
        prop_assert_eq!(read_sums(&path), sums.clone());
        compare(&path, &sums);
    }

    #[test]
    fn a_cut_file_has_the_records_of_its_whole_packets(
        packets in prop::collection::vec(packet(), 2..20),
        cut: prop::sample::Index,
    ) {
        let tmp = tempfile::tempdir().unwrap();
        let path = write(tmp.path(), founder(), &packets);
        let profile = path.join("profile");
        let bytes = std::fs::read(&profile).unwrap();
        for cut in (0..=bytes.len()).rev() {
            std::fs::File::options().write(true).open(&profile).unwrap().set_len(cut as u64).unwrap();
            let whole = cut / BYTES;
            prop_assert_eq!(read_sums(&path), expected(&packets[..whole]), "cut at {}", cut);
        }
        // With the first packet gprofng has something to show.
        let cut = BYTES + cut.index(bytes.len() - BYTES + 1);
        std::fs::write(&profile, &bytes[..cut]).unwrap();
        compare(&path, &read_sums(&path));
    }
}
