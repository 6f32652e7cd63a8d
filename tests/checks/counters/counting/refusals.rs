//! What cannot be counted is refused by kind, each with its hint.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use counters::names::event::PerfEvent;
use counters::perf::counter::Start;
use counters::perf::refusal::Refusal;
use counters::perf::set::{CounterSet, CounterTarget, SetRequest};
use experiment_format::ids::{Pid, Tid};
use tempfile::TempDir;
use tests::command::{copy_program, run};
use tests::kcollect::{binary, command};
use tests::machine::disturbance::not_judged;
use tests::machine::{Exclusive, Offline, Setting, work_cpu};

use super::events::{cycles, software, writes_to};

const LIMIT: Duration = Duration::from_secs(20);
const NOBODY: u32 = 65_534;

fn refused(target: CounterTarget, events: &[PerfEvent]) -> Result<Refusal> {
    let mut set = CounterSet::new();
    for event in events {
        set.add(SetRequest::new(event.clone()));
    }
    let bound = set.bind(target, Start::Now).map(drop);
    bound
        .err()
        .ok_or_else(|| anyhow::anyhow!("{events:?} was bound"))
}

#[test]
fn root_alone_user_nobody_is_denied_with_the_hint() -> Result<()> {
    let _machine = Exclusive::take()?;
    let _setting = Setting::set("/proc/sys/kernel/perf_event_paranoid", "2")?;
    // The user nobody may not read the directory of the build.
    let directory = TempDir::new()?;
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755))?;
    let program = directory.path().join("kcollect");
    copy_program(binary()?, &program)?;
    for (args, place) in [
        (&["stat", "-N", "1", "-p", "0.1"] as &[&str], "CPU 0"),
        (&["track", "true"], "thread"),
    ] {
        let mut command = Command::new(&program);
        command.args(args).uid(NOBODY).gid(NOBODY).current_dir("/");
        let finished = run(&mut command, LIMIT)?;
        ensure!(
            finished.code() == 77
                && finished.stderr.contains(place)
                && finished.stderr.contains("kernel.perf_event_paranoid")
                && finished.stderr.contains("CAP_PERFMON"),
            "{finished}"
        );
    }
    // With the hint it counts.
    let _setting = Setting::set("/proc/sys/kernel/perf_event_paranoid", "1")?;
    let mut command = Command::new(&program);
    command
        .args(["track", "true"])
        .uid(NOBODY)
        .gid(NOBODY)
        .current_dir("/");
    let finished = run(&mut command, LIMIT)?;
    ensure!(
        finished.code() == 0 && finished.stdout.contains("total"),
        "{finished}"
    );
    Ok(())
}

#[test]
fn root_alone_missing_targets_are_named() -> Result<()> {
    let _machine = Exclusive::take()?;
    let mut child = Command::new("true").spawn()?;
    let exited = child.id();
    child.wait()?;
    let faults = [software("page-faults")];
    let gone = Refusal::NoThread { tid: Tid(exited) };
    ensure!(refused(CounterTarget::Thread(Tid(exited)), &faults)? == gone);
    ensure!(refused(CounterTarget::Process(Pid(exited)), &faults)? == gone);
    ensure!(refused(CounterTarget::ProcessTree(Pid(exited)), &faults)? == gone);
    let offline = refused(CounterTarget::Cpu(100_000), &faults)?;
    ensure!(offline == Refusal::Offline { cpu: 100_000 }, "{offline:?}");
    let mut unknown = software("page-faults");
    unknown.encoding.config = 4711;
    let unknown = refused(CounterTarget::Thread(Tid(0)), &[unknown])?;
    ensure!(
        matches!(unknown, Refusal::NoSuchEvent { .. }),
        "{unknown:?}"
    );

    let finished = run(
        command(["track", "-p", &exited.to_string()])?.current_dir("/"),
        LIMIT,
    )?;
    ensure!(
        finished.code() == 66 && finished.stderr.contains(&exited.to_string()),
        "{finished}"
    );
    for (args, code) in [
        (["track", "/no/such/program"], 127),
        (["track", "/etc/passwd"], 126),
    ] {
        let finished = run(&mut command(args)?, LIMIT)?;
        ensure!(finished.code() == code, "{finished}");
    }
    let finished = run(&mut command(["track", "-c", "page-fault", "true"])?, LIMIT)?;
    ensure!(
        finished.code() == 64 && finished.stderr.contains("page-fault"),
        "{finished}"
    );
    let full = run(&mut command(["track", "-o", "/dev/full", "true"])?, LIMIT)?;
    ensure!(
        full.code() == 74 && full.stderr.contains("/dev/full"),
        "{full}"
    );
    Ok(())
}

#[test]
fn root_alone_too_many_breakpoints_are_refused() -> Result<()> {
    let _machine = Exclusive::take()?;
    let variables = vec![0_u64; 64];
    let events: Vec<_> = variables
        .iter()
        .map(|variable| writes_to(variable))
        .collect();
    let refusal = refused(CounterTarget::Thread(Tid(0)), &events)?;
    ensure!(matches!(refusal, Refusal::TooMany { .. }), "{refusal:?}");
    Ok(())
}

#[test]
fn root_alone_an_offline_cpu_is_named() -> Result<()> {
    let _machine = Exclusive::take()?;
    let cpu = work_cpu()?;
    if !Offline::possible(cpu) {
        not_judged(format_args!(
            "CPU {cpu} of this machine cannot be taken offline"
        ));
        return Ok(());
    }
    let offline = Offline::take(cpu)?;
    let cpu = u32::try_from(cpu)?;
    let refusal = refused(CounterTarget::Cpu(cpu), &[software("page-faults")])?;
    offline.back()?;
    ensure!(refusal == Refusal::Offline { cpu }, "{refusal:?}");
    Ok(())
}

#[test]
fn root_alone_a_missing_pmu_is_reported() -> Result<()> {
    let _machine = Exclusive::take()?;
    if Path::new("/sys/bus/event_source/devices/cpu").exists() {
        not_judged(format_args!("this machine has hardware counters"));
        return Ok(());
    }
    not_judged(format_args!(
        "counts of hardware events, and events that take turns; this machine has no PMU"
    ));
    let refusal = refused(CounterTarget::Thread(Tid(0)), &[cycles()])?;
    ensure!(matches!(refusal, Refusal::NoPmu { .. }), "{refusal:?}");
    ensure!(refusal.hint().contains("page-faults"));
    Ok(())
}
