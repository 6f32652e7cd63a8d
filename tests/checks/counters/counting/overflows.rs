//! A counter with a preset stops at its overflow, reports it, and begins again.

use std::time::Duration;

use anyhow::{Result, ensure};
use counters::perf::counter::Start;
use counters::perf::refusal::Refusal;
use counters::perf::set::{CounterSet, CounterTarget, SetRequest};
use experiment_format::ids::{Pid, Tid};
use tests::machine::Exclusive;
use tests::machine::disturbance::not_judged;
use tests::workload::counted::Fresh;
use tests::workload::truth::monotonic_ns;

use super::events::{software, time_stamps};

#[test]
fn root_alone_a_preset_is_counted_down() -> Result<()> {
    let _machine = Exclusive::take()?;
    const TIMES: u64 = 50;
    let mut set = CounterSet::new();
    set.add(SetRequest::overflow_after(software("page-faults"), TIMES));
    set.add(SetRequest::new(software("page-faults")));
    let bound = set.bind(CounterTarget::Thread(Tid(0)), Start::Disabled)?;
    let mut fresh = Fresh::map(1000)?;
    let none = Duration::ZERO;
    // The readings' own page faults are before it counts.
    bound.restart()?;
    let _ = (bound.read()?, bound.wait(none)?);
    for round in 0..3 {
        bound.restart()?;
        let begin = monotonic_ns()?;
        fresh.touch(TIMES as usize - 1)?;
        let early = bound.wait(none)?;
        ensure!(early.is_empty(), "round {round}: {early:?} came early");
        let left = bound.read()?;
        ensure!(left.values[0].count == u64::MAX, "round {round}: {left:?}");
        fresh.touch(1)?;
        let overflows = bound.wait(Duration::from_secs(5))?;
        let [(0, overflow)] = overflows.as_slice() else {
            anyhow::bail!("round {round}: {overflows:?}");
        };
        ensure!(
            overflow.tid == Tid::from_raw(nix::unistd::gettid().as_raw())
                && overflow.pid == Pid(std::process::id())
                && (begin..monotonic_ns()?).contains(&overflow.time_ns.0)
                && overflow.ip != 0,
            "round {round}: {overflow:?}"
        );
        // It has overflowed and has stopped; the other counter continues.
        fresh.touch(20)?;
        let sample = bound.read()?;
        ensure!(
            sample.values[0].count == 0 && sample.values[1].count >= TIMES + 20,
            "round {round}: {sample:?}"
        );
        ensure!(
            bound.wait(none)?.is_empty(),
            "round {round}: reported twice"
        );
    }
    Ok(())
}

#[test]
fn root_alone_what_has_no_interrupt_cannot_overflow() -> Result<()> {
    let _machine = Exclusive::take()?;
    let Some(event) = time_stamps() else {
        not_judged(format_args!("this machine has no PMU without an interrupt"));
        return Ok(());
    };
    let mut set = CounterSet::new();
    set.add(SetRequest::new(event.clone()));
    let bound = set.bind(CounterTarget::Cpu(0), Start::Now)?;
    let before = bound.read()?;
    ensure!(bound.read()?.values[0].count > before.values[0].count);
    let mut set = CounterSet::new();
    set.add(SetRequest::overflow_after(event, 1_000_000));
    let refused = set.bind(CounterTarget::Cpu(0), Start::Now).map(drop);
    let wanted = Refusal::NoInterrupt {
        event: "msr/tsc/".to_owned(),
    };
    ensure!(refused == Err(wanted), "{refused:?}");
    Ok(())
}
