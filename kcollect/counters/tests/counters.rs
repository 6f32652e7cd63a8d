//! The names of counters on machines other than the one that runs the tests: they are encoded as
//! perf encodes them.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a helper of tests reports by panicking, as tests do"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use counters::names::event::{Encoding, PerfEvent};
use counters::names::list;
use host::Root;
use host::exit::Failure;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use tempfile::TempDir;

const TREES: [(&str, &str); 6] = [
    ("skylake", include_str!("counters/skylake.txt")),
    ("alder_lake", include_str!("counters/alder_lake.txt")),
    ("zen3", include_str!("counters/zen3.txt")),
    ("rk3399", include_str!("counters/rk3399.txt")),
    ("neoverse", include_str!("counters/neoverse.txt")),
    ("virtual", VIRTUAL),
];

/// No PMU of the CPUs, and a tracefs.
const VIRTUAL: &str = "\
breakpoint/type: 5
software/type: 1
tracepoint/type: 2
msr/type: 6
msr/format/event: config:0-63
msr/events/tsc: event=0x00
msr/events/odd: event=0x00,config9=1
odd/type: 7
odd/format/event: config:0-7
odd/format/chip: config:16-31
odd/format/late: config4:0-7
odd/events/reads: event=0x5,chip=?
/proc/cpuinfo: flags		: fpu hypervisor lahf_lm
/proc/kallsyms: ffffffff81000000 T _stext
/sys/kernel/tracing/events/sched/sched_switch/id: 316
/sys/kernel/tracing/events/sched/sched_switch/enable: 0
/sys/kernel/tracing/events/sched/sched_wakeup/id: 318
/sys/kernel/tracing/events/sched/sched_wakeup/enable: 0
/sys/kernel/tracing/events/ftrace/function/id: 1
";

const ENCODINGS: &str = include_str!("counters/encodings.txt");

/// A machine made of files, which are removed when it is dropped.
struct Machine {
    _directory: TempDir,
    root: Root,
}

fn machine(name: &str) -> Machine {
    let tree = TREES.iter().find(|(known, _)| *known == name).unwrap().1;
    let directory = tempfile::tempdir().unwrap();
    for line in tree.lines().filter(|line| !line.starts_with('#')) {
        let (path, text) = line.split_once(": ").unwrap();
        let path = match path.strip_prefix('/') {
            Some(path) => directory.path().join(path),
            None => directory
                .path()
                .join("sys/bus/event_source/devices")
                .join(path),
        };
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    }
    Machine {
        root: Root::at(directory.path()),
        _directory: directory,
    }
}

fn machines() -> BTreeMap<&'static str, Machine> {
    TREES.map(|(name, _)| (name, machine(name))).into()
}

/// As the lines of `encodings.txt` have it.
fn printed(encoding: &Encoding) -> String {
    use std::fmt::Write as _;
    let number = |number: u64| match number {
        0 => "0".to_owned(),
        number => format!("{number:#x}"),
    };
    let mut text = format!("type={} config={}", encoding.kind, number(encoding.config));
    for (name, value) in [
        ("config1", number(encoding.config1)),
        ("config2", number(encoding.config2)),
        ("config3", number(encoding.config3)),
        ("bp_type", encoding.breakpoint.to_string()),
        ("precise_ip", encoding.precise.to_string()),
        ("exclude_user", u8::from(!encoding.user).to_string()),
        ("exclude_kernel", u8::from(!encoding.kernel).to_string()),
        ("exclude_hv", u8::from(!encoding.hypervisor).to_string()),
    ] {
        if value != "0" {
            write!(text, " {name}={value}").unwrap();
        }
    }
    text
}

fn events(machine: &Machine, text: &str) -> Vec<PerfEvent> {
    counters::names::parse_events(text, &machine.root)
        .unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// Returns the events that perf encodes, by tree and name.
fn perfs() -> BTreeMap<(&'static str, &'static str), BTreeSet<&'static str>> {
    let mut perfs: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for line in ENCODINGS.lines().filter(|line| !line.starts_with('#')) {
        let parts: Vec<&str> = line.split(" | ").collect();
        let [tree, event, encoding] = parts[..] else {
            panic!("{line}");
        };
        perfs.entry((tree, event)).or_default().insert(encoding);
    }
    assert!(perfs.len() > 80, "{}", perfs.len());
    perfs
}

#[test]
fn names_are_encoded_as_perf_encodes_them() {
    let machines = machines();
    for ((tree, event), perf) in perfs() {
        let ours: BTreeSet<String> = events(&machines[tree], event)
            .iter()
            .map(|event| printed(&event.encoding))
            .collect();
        let ours: BTreeSet<&str> = ours.iter().map(String::as_str).collect();
        assert_eq!(ours, perf, "{event} on {tree}");
    }
}

#[test]
fn event_names_resolve_to_the_same_event() {
    let machines = machines();
    for (tree, text) in perfs().keys() {
        for event in events(&machines[tree], text) {
            let again = &events(&machines[tree], &event.name)[..];
            // `instructions` is the kernel's own event, `cpu_core/instructions/` is from sysfs: two
            // codes for the same event.
            if text.starts_with("instructions") {
                assert!(again.len() == 1 && again[0].cpus == event.cpus)
            } else {
                assert_eq!(again, std::slice::from_ref(&event), "{tree}")
            }
        }
    }
}

#[test]
fn encodings_that_perf_does_not_have() {
    let machines = machines();
    let one = |tree: &str, text: &str| {
        let events = events(&machines[tree], text);
        let printed: Vec<String> = events
            .iter()
            .map(|event| printed(&event.encoding))
            .collect();
        printed.join(" + ")
    };
    for (tree, text, expected) in [
        (
            "neoverse",
            "arm_spe_0/inv_event_filter=0x10/",
            "type=11 config=0 config3=0x10",
        ),
        (
            "rk3399",
            "cycles",
            "type=0 config=0x700000000 + type=0 config=0x800000000",
        ),
        (
            "rk3399",
            "armv8_cortex_a72/dcm/",
            "type=3 config=0x800010000",
        ),
        (
            "skylake",
            "cpu/mem-loads,ldlat=30/",
            "type=4 config=0x1cd config1=0x1e",
        ),
        ("skylake", "cpu/cycles/", "type=0 config=0"),
        ("skylake", "cycles:P", "type=0 config=0 precise_ip=3"),
        ("zen3", "cycles:P", "type=0 config=0"),
        ("zen3", "branch-brs", "type=4 config=0xc4"),
        ("virtual", "sched:sched_switch", "type=2 config=0x13c"),
        (
            "virtual",
            "sched:sched_switch:u",
            "type=2 config=0x13c exclude_kernel=1 exclude_hv=1",
        ),
        ("virtual", "odd/reads,chip=3/", "type=7 config=0x30005"),
        (
            "virtual",
            "mem:_stext:x",
            "type=5 config=0 config1=0xffffffff81000000 config2=0x8 bp_type=4",
        ),
        // gprofng's and cputrack's ways.
        ("skylake", "insts", "type=0 config=0x1"),
        ("skylake", "dtlbm", "type=3 config=0x10003"),
        (
            "skylake",
            "cycles~user=0",
            "type=0 config=0 exclude_user=1 exclude_hv=1",
        ),
        (
            "skylake",
            "cycles~user=0~hv=1",
            "type=0 config=0 exclude_user=1",
        ),
        ("skylake", "cycles~system", "type=0 config=0"),
        (
            "skylake",
            "pic1=cycles,nouser",
            "type=0 config=0 exclude_user=1 exclude_hv=1",
        ),
        (
            "skylake",
            "r003c~umask=1~cmask=2",
            "type=4 config=0x200013c",
        ),
        ("skylake", "cpu/cpu-cycles/~edge", "type=4 config=0x4003c"),
        ("neoverse", "r11~long", "type=4 config=0x11 config1=0x1"),
    ] {
        assert_eq!(one(tree, text), expected, "{text} on {tree}");
    }
}

#[test]
fn titles_cpus_scales_and_units() {
    let lines_of = |tree: &str, text: &str| {
        let events = events(&machine(tree), text);
        let lines = events.iter().map(|event| {
            format!(
                "{tree}: {} \"{}\" cpus {:?} scale {} unit {:?} time {}",
                event.name, event.title, event.cpus, event.scale, event.unit, event.is_time
            )
        });
        lines.collect::<Vec<_>>().join("\n")
    };
    insta::assert_snapshot!(
        [
            lines_of(
                "skylake",
                "cycles:u,dcm,r01c2,mem-loads,cpu/event=0x9c,name=bubbles/,task-clock"
            ),
            lines_of("skylake", "power/energy-pkg/,imc/cas_count_read/"),
            lines_of(
                "alder_lake",
                "cycles:k,insts~system=0,r01c2:u,topdown-retiring,slots"
            ),
            lines_of("neoverse", "cpu_cycles,llm"),
        ]
        .join("\n")
    );
}

#[test]
fn default_intervals() {
    let lines_of = |tree: &str, text: &str| {
        let requests = counters::names::parse_requests(text, &machine(tree).root).unwrap();
        let lines = requests
            .iter()
            .map(|request| format!("{},{}", request.event.name, request.interval));
        format!("{tree} -h {text}: {}", lines.collect::<Vec<_>>().join(" "))
    };
    insta::assert_snapshot!(
        [
            lines_of("skylake", "on"),
            lines_of("skylake", "cycles,hi,insts,lo,brmiss,dtlbm,1000003"),
            lines_of("alder_lake", "hi"),
            lines_of("neoverse", "cycles"),
            lines_of(
                "virtual",
                "cpu-clock,cs,hi,migrations,sched:sched_switch,lo,mem:0x10:w"
            ),
        ]
        .join("\n")
    );
}

#[test]
fn messages_of_bad_counters() {
    let lines = [
        ("virtual", "cycles"),
        ("virtual", "on"),
        ("virtual", "cpu/event=0x3c/"),
        ("virtual", "r01c2"),
        ("virtual", "pagefaults"),
        ("virtual", "cylces:u"),
        ("virtual", "xyzzy"),
        ("virtual", "sched:sched_swich"),
        ("virtual", "shed:sched_switch"),
        ("virtual", "../../x:y"),
        ("virtual", "msr/odd/"),
        ("virtual", "odd/reads/"),
        ("virtual", "odd/late=1/"),
        ("virtual", "mem:nothing"),
        ("virtual", "mem:0x1000/0"),
        ("virtual", "mem:"),
        ("virtual", "mem:0x1000:w:u:k"),
        ("virtual", "page-faults:G"),
        ("virtual", "page-faults:upppp"),
        ("virtual", "page-faults~umask=1"),
        ("virtual", "page-faults~user=0~system=0"),
        ("skylake", "sched:sched_switch"),
        ("skylake", "cpu/evnt=0x3c/"),
        ("skylake", "cpu/event=0x1ff/"),
        ("skylake", "cpu/event=x/"),
        ("skylake", "cpu/config4=1/"),
        ("skylake", "cpu/page-faults/"),
        ("skylake", "cpu_atom/event=1/"),
        ("skylake", "power/energy-pkg/"),
        ("skylake", "cycles~umask=1"),
        ("skylake", "cpu/cpu-cycles,/.."),
        ("skylake", "//"),
        ("alder_lake", "cpu/cycles/"),
    ];
    let messages = lines.map(|(tree, text)| {
        match counters::names::parse_requests(text, &machine(tree).root) {
            Ok(requests) => panic!("{text} on {tree} is {requests:?}"),
            Err(error) => {
                let failure = Failure::from(error);
                format!("{tree} -h {text}\n  {} {failure}", failure.kind.code())
            }
        }
    });
    insta::assert_snapshot!(messages.join("\n"));
}

#[test]
fn lists_of_counters() {
    let machines = machines();
    let listing = |tree| list::list_counters(&machines[tree].root, |_| true, |_| Some(8));
    insta::assert_snapshot!("list_of_skylake", listing("skylake").text(Some(80)));
    insta::assert_snapshot!(
        "list_of_alder_lake_in_a_pipe",
        listing("alder_lake").text(None)
    );
    insta::assert_snapshot!(
        "list_of_a_virtual_machine",
        listing("virtual").text(Some(100))
    );
    let json: serde_json::Value = serde_json::from_str(&listing("virtual").json()).unwrap();
    assert_eq!(json["tracepoints"][0], "sched:sched_switch");
    assert_eq!(json["at_once"], serde_json::Value::Null);
    assert_eq!(json["hardware_counters"], false);
    assert!(
        json["software"]
            .as_array()
            .is_some_and(|events| events.len() > 8)
    );
    for (tree, _) in TREES {
        for width in [40, 60, 80, 200] {
            let text = listing(tree).text(Some(width));
            let longest = text.lines().map(|line| line.chars().count()).max().unwrap();
            assert!(
                longest <= usize::from(width),
                "{tree}: {longest} of {width}"
            );
        }
    }
}

#[test]
fn listed_names_resolve() {
    for (tree, _) in TREES {
        let machine = machine(tree);
        let listing = list::list_counters(&machine.root, |_| true, |_| None);
        let all = [
            &listing.aliases,
            &listing.hardware,
            &listing.software,
            &listing.sysfs,
        ];
        for line in all.into_iter().flatten() {
            for name in std::iter::once(&line.name).chain(&line.other_names) {
                // Made so that it cannot be parsed.
                if !name.contains("odd") {
                    events(&machine, name);
                }
            }
        }
    }
}

#[test]
fn events_missing_in_the_kernel_are_not_listed() {
    // PERF_TYPE_SOFTWARE alone.
    let listing = list::list_counters(
        &machine("skylake").root,
        |encoding| encoding.kind == 1,
        |_| None,
    );
    assert!(listing.hardware.is_empty() && listing.aliases.is_empty());
    assert!(!listing.software.is_empty() && !listing.sysfs.is_empty());
}

/// Pieces of names in any order, or any text.
fn text() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        6 => prop::sample::select(vec![
            "cycles", "insts", "cpu", "cpu_core", "mem-loads", "event", "umask", "ldlat", "odd", "reads", "chip", "config3",
            "imc", "L1-dcache", "-load", "-misses", "sched", "sched_switch", "mem:", "r01c2", "_stext", "/", "/", ",", "~",
            "=", ":", ":u", "pp", "P", "0x", "17", "0", "..", "on", "hi",
        ]).prop_map(str::to_owned),
        1 => "\\PC{0,3}",
    ];
    prop::collection::vec(piece, 0..10).prop_map(|pieces| pieces.concat())
}

#[test]
fn no_text_panics() {
    let machines = machines();
    let trees = prop::sample::select(TREES.map(|(name, _)| name).to_vec());
    let mut runner = TestRunner::new(ProptestConfig::with_cases(2000));
    let done = runner.run(&(text(), trees), |(text, tree)| {
        match counters::names::parse_requests(&text, &machines[tree].root) {
            Ok(requests) => {
                prop_assert!(!requests.is_empty());
                for request in requests {
                    prop_assert!(request.interval > 0 && !request.event.name.is_empty());
                    prop_assert!(request.event.scale > 0.0);
                }
            }
            Err(error) => prop_assert!(!error.to_string().is_empty() && !error.hint().is_empty()),
        }
        Ok(())
    });
    done.unwrap();
}
