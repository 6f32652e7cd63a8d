//! Features that not every kernel has come with a fallback (`bpf/src/kernel_types.rs`). Here each
//! feature is switched off on a kernel that has it, and the fallback records the same.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use experiment_format::ids::Pid;
use experiment_format::microstate::Microstate;
use tempfile::TempDir;
use tests::command::run;
use tests::experiment::states::States;
use tests::experiment::summary::{RunSummary, complete};
use tests::kcollect::{command, experiment_in, sub_experiment};
use tests::machine::disturbance::judge_times;
use tests::machine::{Exclusive, Shared, processes, work_cpu};
use tests::workload;
use tests::workload::memory::{ALLOCATIONS, has_blocks};
use tests::workload::proctorture::PROCTORTURE;
use tests::workload::truth::Truth;

const LIMIT: Duration = Duration::from_secs(60);
/// Stacks of a hundred calls that are complete where they are unwound in user space, at least.
const MIN_COMPLETE_COPIES: f64 = 0.95;
/// Share of its life that a workload waits for the disk in a page fault, at least.
const MIN_FAULT_SHARE: f64 = 0.05;

/// Records a load without a feature. Returns the experiment, in its directory, and the load's
/// output.
fn record_without(feature: &str, args: &[&str]) -> Result<(TempDir, PathBuf, String)> {
    let directory = TempDir::new()?;
    let mut kcollect = command(args)?;
    kcollect
        .env("KCOLLECT_WITHOUT", feature)
        .current_dir(directory.path());
    let finished = run(&mut kcollect, LIMIT)?.succeeded()?;
    let experiment = experiment_in(directory.path())?;
    Ok((directory, experiment, finished.stdout))
}

#[test]
fn root_alone_without_the_maple_tree_stacks_are_copied() -> Result<()> {
    let _machine = Exclusive::take()?;
    let load = [
        "-p",
        "hi",
        "-F",
        "=proctorture",
        "--",
        PROCTORTURE,
        "deep:100,600",
    ];
    let (_directory, experiment, _) = record_without("maple-tree", &load)?;
    let summary = RunSummary::of(&experiment)?;
    let followed = summary.followed()?;
    let name = sub_experiment(&experiment, "_proctorture_PID_")?;
    let name = name.file_name().context("a name")?.to_string_lossy();
    let stacks = &followed.named(&name)?.user_stacks;
    ensure!(complete(stacks) >= MIN_COMPLETE_COPIES, "{stacks:?}");
    Ok(())
}

#[test]
fn root_without_the_fault_tracepoint_stacks_tell_page_faults() -> Result<()> {
    let _machine = Shared::take()?;
    let cpu = work_cpu()?.to_string();
    let load = [
        "-p",
        "on",
        "-F",
        "off",
        "--",
        workload!("state_kfault"),
        "1",
        &cpu,
    ];
    let (_directory, experiment, output) = record_without("fault-tracepoint", &load)?;
    let row = States::of(&experiment)?
        .row(Truth::find(&output)?.pid)?
        .clone();
    ensure!(
        row.of(Microstate::KernelFault) >= MIN_FAULT_SHARE * row.tracked_s,
        "{row:?}"
    );
    Ok(())
}

#[test]
fn root_without_uprobe_sessions_each_return_is_probed() -> Result<()> {
    let _machine = Shared::take()?;
    let load = ["-H", "all", "--", ALLOCATIONS, "100"];
    let (_directory, experiment, _) = record_without("uprobe-session", &load)?;
    has_blocks(&sub_experiment(&experiment, "_allocations_PID_")?)
}

#[test]
fn root_alone_without_run_queues_times_are_the_workloads_own() -> Result<()> {
    judge_times(|| times_are_the_workloads_own("run-queues"))
}

/// The programs add up waits for a CPU themselves.
#[test]
fn root_alone_without_sched_info_times_are_the_workloads_own() -> Result<()> {
    judge_times(|| times_are_the_workloads_own("sched-info"))
}

fn times_are_the_workloads_own(without: &str) -> Result<()> {
    let cpu = work_cpu()?.to_string();
    let loads = [
        &[workload!("state_lock"), "1", &cpu, "mutex"][..],
        &[workload!("state_wait"), "1", &cpu],
        &[workload!("state_latency"), "1", &cpu],
        &[workload!("state_sleep"), "1", &cpu, "nanosleep"],
    ];
    for load in loads {
        let before = processes()?;
        // Started by a small process: what kcollect takes to start one is in getrusage(2).
        let options = ["-p", "on", "-F", "off", "--", workload!("reaped")];
        let args = [&options, load].concat();
        let (_directory, experiment, output) = record_without(without, &args)?;
        let states = States::of(&experiment)?;
        let mut residents: BTreeSet<_> = before.intersection(&processes()?).copied().collect();
        residents.remove(&Pid(1));
        states.conserve(&residents)?;
        for truth in Truth::find_all(&output) {
            states.agree(&truth)?;
        }
    }
    Ok(())
}

#[test]
fn root_doctor_says_which_ways_are_second() -> Result<()> {
    let features = "return-callback,uprobe-session,maple-tree,fault-tracepoint,io-uring,run-queues,\
                    sched-info";
    let ways = |without: &str| -> Result<Vec<(String, String)>> {
        let mut doctor = command(["doctor", "--json"])?;
        let output = run(doctor.env("KCOLLECT_WITHOUT", without), LIMIT)?;
        let found: serde_json::Value = serde_json::from_str(&output.stdout)?;
        let findings = found["findings"].as_array().context("no findings")?;
        let text = |finding: &serde_json::Value, key| finding[key].as_str().map(str::to_owned);
        let pair = |finding| Some((text(finding, "name")?, text(finding, "found")?));
        Ok(findings.iter().filter_map(pair).collect())
    };
    let (first, second) = (ways("")?, ways(features)?);
    let names = [
        "user stacks",
        "unwinding",
        "kernel page faults",
        "heap probes",
        "io_uring",
        "scheduler's clock",
        "waits for a CPU",
    ];
    for name in names {
        let way = |all: &[(String, String)]| all.iter().find(|(found, _)| found == name).cloned();
        let (first, second) = (way(&first), way(&second));
        ensure!(
            first.is_some() && second.is_some() && first != second,
            "{name}: {first:?}, {second:?}"
        );
    }
    Ok(())
}
