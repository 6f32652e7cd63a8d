use std::collections::BTreeSet;

use bpf_abi::unwind::UnwindEnd;
use bpf_abi::{CauseTimes, DetailTimes, KernelCounts};
use experiment_format::ids::{Pid, Tid};
use experiment_format::losses::{describe, phrase};
use serde_json::Value;
use user_collector::archive::{LeftOut, Refusal, RefusalCause};
use user_collector::process::{Cgroup, Container, ContainerRuntime};

use super::budget::BudgetChangeSummary;
use super::followed::FollowLosses;
use super::*;
use crate::record::governor::BudgetLevel;
use crate::record::process_writer::{FollowedProcess, IoCounts, JitStats, MemoryCounts};
use crate::record::user::ProbeCounts;
use crate::record::user_stacks::resolve_stack::{StackLosses, UnwindCounts};
use crate::record::user_stacks::user_stack::StackCounts;

const BOUNDS_MD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/design/bounds.md");
const FORMAT_MD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/experiment-format.md");

/// Returns a summary in which nothing is absent.
pub(super) fn full() -> Summary {
    let process = ProcessSummary {
        pid: Pid(1264),
        tid: Some(Tid(1270)),
        name: "server".to_owned(),
        user_s: 1.5,
        kernel_s: 0.5,
        ticks: Ticks(200),
        states_s: vec![1.5, 0.5, 0.0, 0.0, 0.25, 0.0, 3.0, 2.0, 0.125, 0.0],
        detail_s: DetailSeconds::new(&DetailTimes::default()),
        waited_s: WaitSeconds::new(&CauseTimes::default()),
        counts: KernelCounts::default(),
        threads: 1,
        tracked_s: 7.375,
    };
    let stacks = |complete| StackCounts {
        by_end: UnwindEnd::ALL
            .map(|end| {
                (
                    end,
                    if end == UnwindEnd::Complete {
                        Ticks(complete)
                    } else {
                        Ticks(1)
                    },
                )
            })
            .into(),
        missing: Ticks(2),
        exiting: Ticks(3),
        user_workers: Ticks(4),
        ..StackCounts::default()
    };
    let followed = FollowedProcess {
        pid: Pid(1264),
        experiment: "_server_PID_1264.1.er".to_owned(),
        mpi_rank: Some(0),
        cgroup: Some(Cgroup {
            path: "/system.slice/server.service".to_owned(),
            unit: Some("server.service".to_owned()),
            pod: Some("8d2a".to_owned()),
            container: Some(Container {
                runtime: ContainerRuntime::Docker,
                id: "0123".to_owned(),
            }),
        }),
        ticks: Ticks(500),
        packets: 120,
        unwritten_mappings: 0,
        unwritten_functions: 0,
        unused_functions: 5,
        unwritten_names: 0,
        has_unkept_addresses: false,
        unread_at_exit: false,
        lock_waits: (0, Nanos::ZERO),
        io_calls: IoCounts::default(),
        memory: MemoryCounts::default(),
        user_stacks: stacks(400),
        cpu_user_stacks: stacks(190),
        jit: Some(JitStats::default()),
    };
    Summary {
        version: "0",
        experiment: "ktest.1.er".to_owned(),
        problems: vec![Problem::no_storage(23_348)],
        kernel_build_id: Some("4a5a".to_owned()),
        kernel_functions: BTreeMap::from([("schedule".to_owned(), "ffffffff81a00000".to_owned())]),
        interval: Interval::from_micros(10_007).unwrap(),
        elapsed_s: 10.0,
        idle_recorded: false,
        cpus: vec![CpuTicks {
            recorded_ns: Nanos(9_750_000_000),
            ..cpu(&(0, CpuCounts::default(), CpuTime::default()))
        }],
        cpu_time: CpuSeconds {
            user: 1.5,
            kernel: 0.5,
            interrupts: 0.125,
            idle: 7.5,
            stolen: Some(0.5),
        },
        ticks: Ticks(200),
        packets: 180,
        thread_packets: 300,
        thread_ticks: Ticks(9000),
        counters: vec![CounterSummary {
            name: "cycles".to_owned(),
            interval: 1000,
            events: 20_000,
            recorded: 18_000,
            lost: 1000,
            unreported: 1000,
            share_of_time: 0.5,
        }],
        lock_waits: Some(LockWaitSummary {
            threshold_us: 0,
            recorded: 5000,
            recorded_s: 3.0,
            left_out: 100,
            left_out_s: 1.0,
            lost: 0,
        }),
        io_calls: Some(IoCallSummary {
            recorded: 70,
            recorded_s: 0.25,
            read_bytes: 4096,
            written_bytes: 512,
            lost: 0,
        }),
        memory: Some(MemorySummary {
            mapped: 3,
            mapped_bytes: 8192,
            unmapped_bytes: 4096,
            lost: 0,
        }),
        allocations: Some(BlockSummary {
            mean_bytes: 524_288,
            sampled: 40,
            freed: 30,
            allocated: 1_000_000,
            allocated_bytes: 21_000_000,
            probes: ProbeCounts {
                probed_processes: 1,
                sampling_processes: 1,
                unprobed_processes: 2,
                slow_functions: 1,
                over_budget: 3,
                go_profiles: 1,
                go_without: 1,
            },
            lost: 0,
        }),
        budget: Some(BudgetSummary {
            percent: 1.0,
            changes: vec![BudgetChangeSummary {
                at_s: 5.0,
                level: BudgetLevel::FewCopies,
                cpu_percent: Some(1.5),
                programs_percent: Some(0.5),
            }],
        }),
        losses: Losses {
            missing_stacks: 1,
            recorded: RecordedTotals {
                ticks: 200,
                thread_ticks: 9000,
                thread_packets: 300,
            },
            ..Losses::default()
        },
        states: vec!["user"],
        processes: vec![process.clone()],
        detail_s: process.detail_s,
        waited_s: process.waited_s,
        wakers_watched: true,
        followed: Some(FollowSummary {
            processes: vec![followed],
            user_stacks: stacks(400),
            cpu_user_stacks: stacks(190),
            user_returns: Default::default(),
            unwound: UnwindCounts::default(),
            raced_look_ups: 0,
            table_use: Default::default(),
            tables: Default::default(),
            losses: FollowLosses {
                stacks: StackLosses::default(),
                not_held: 0,
                unwritten_mappings: 0,
                unwritten_functions: 0,
                unread_at_exit: 1,
            },
        }),
        archive: Some(ArchiveStats {
            left_out: vec![LeftOut {
                name: "/lib/x".to_owned(),
                refusal: Refusal::new(RefusalCause::NoSpace, "no space"),
            }],
            ..ArchiveStats::default()
        }),
        targets: vec![process],
        cost: OwnCost {
            cpu_s: 0.25,
            cpu_percent: 2.5,
            programs_s: 0.08,
            programs_percent: 0.4,
            peak_rss_bytes: 40_000_000,
            bytes_written: 120_000,
        },
    }
}

/// Adds the keys of all objects in a value. The keys of `kernel_functions` are the kernel's.
fn keys(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(object) => {
            for (key, value) in object {
                found.insert(key.clone());
                if key != "kernel_functions" {
                    keys(value, found);
                }
            }
        }
        Value::Array(values) => values.iter().for_each(|value| keys(value, found)),
        _ => {}
    }
}

#[test]
fn every_key_is_in_the_description_of_the_format() {
    let text = std::fs::read_to_string(FORMAT_MD).unwrap();
    let (_, section) = text.split_once("\n## kcollect.json\n").unwrap();
    // Code between single backticks is at every second place. Counts are described with
    // threads.jsonl.
    let documented: BTreeSet<&str> = text.split('`').skip(1).step_by(2).collect();
    let json: Value = serde_json::from_str(&full().json()).unwrap();
    let mut found = BTreeSet::new();
    keys(&json, &mut found);
    let missing: Vec<_> = found
        .iter()
        .filter(|key| !documented.contains(key.as_str()))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");

    // The other way: the first table has the keys of the object itself.
    let (table, _) = section.split_once("\n`followed` has\n").unwrap();
    let rows = table.lines().filter_map(|line| line.strip_prefix("| `"));
    let first_cells = rows.filter_map(|row| row.split(" | ").next());
    let listed: BTreeSet<String> = first_cells
        .flat_map(|cell| cell.split(", "))
        .map(|key| key.trim_matches('`').to_owned())
        .collect();
    let top: BTreeSet<String> = json.as_object().unwrap().keys().cloned().collect();
    assert_eq!(listed, top);
}

#[test]
fn the_text_says_what_was_recorded() {
    let summary = full();
    let first = first_tables::FirstTables::default();
    let text = [summary.head(), summary.rest(&first, Some(120))].join("\n");
    insta::assert_snapshot!(text);
}

/// Each bound of what a process can make grow is a count of the losses, with its effect, or says
/// that no report misses anything.
#[test]
fn every_bound_that_is_exceeded_is_in_the_first_lines() {
    let text = std::fs::read_to_string(BOUNDS_MD).unwrap();
    let mut rows = text.lines().filter(|line| line.starts_with("| "));
    assert_eq!(
        rows.next(),
        Some("| what | bound | beyond it | `losses` | tested in |")
    );
    let many = RecordedTotals {
        ticks: 10_000,
        ..RecordedTotals::default()
    };
    let negligible = describe([("ring_full", 1)], &many);
    let (_, negligible) = negligible.rsplit_once("; ").unwrap();
    let mut named = BTreeSet::new();
    let mut bounds = 0;
    for row in rows {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").collect();
        let [what, _, _, losses, _] = cells[..] else {
            panic!("{row}");
        };
        bounds += 1;
        let keys: Vec<&str> = losses.split('`').skip(1).step_by(2).collect();
        assert!(!keys.is_empty() || losses == "-", "{what}: {losses}");
        for key in keys {
            let line = describe([("ring_full", 0), (key, 3)], &RecordedTotals::default());
            let phrase = phrase(key, 3, &RecordedTotals::default());
            assert!(
                phrase.len() > key.len() + 3 && line.contains(&phrase),
                "{line}"
            );
            assert!(!line.ends_with(negligible), "{line}");
            named.insert(key.to_owned());
        }
    }
    assert!(bounds > 20, "{bounds}");

    // What the collectors count gets there.
    let mut summary = full();
    let followed = summary.followed.as_mut().unwrap();
    followed.losses = FollowLosses {
        stacks: StackLosses {
            dropped_copies: 1,
            ..StackLosses::default()
        },
        not_held: 2,
        unwritten_mappings: 3,
        unwritten_functions: 4,
        unread_at_exit: 5,
    };
    let process = &mut followed.processes[0];
    process.unwritten_names = 6;
    process.has_unkept_addresses = true;
    let jit = &mut process.jit.as_mut().unwrap().counts;
    (jit.refused, jit.too_many, jit.unread, jit.code_over_limit) = (9, 7, 100, 8);
    summary.losses = Losses {
        merged_processes: 9,
        ring_full: 1,
        ..followed.bounds()
    };
    let counts = summary.losses.counts();
    let counted = counts.iter().filter(|(_, count)| *count > 0);
    let counted: BTreeSet<String> = counted.map(|(name, _)| (*name).to_owned()).collect();
    let elsewhere = ["off_cpu", "thread_records", "user_returns", "io_calls"];
    named.retain(|key| !elsewhere.contains(&key.as_str()));
    assert_eq!(named, counted);
    let head = summary.head();
    let mut lines = head.lines();
    let third = lines
        .find(|line| line.trim_start().starts_with("lost: "))
        .unwrap();
    for (name, count) in counts {
        let phrase = phrase(name, count, &summary.losses.recorded);
        assert_eq!(third.contains(&phrase), count > 0, "{phrase}: {third}");
    }
}
