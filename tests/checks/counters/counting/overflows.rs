//! A counter that is counted down stops at its end, says so, and begins again.

use std::time::Duration;

use anyhow::{Result, ensure};
use counters::binding::Begin;
use counters::refusal::Refusal;
use counters::set::{Set, Target, Wanted};
use tests::machine::Exclusive;
use tests::machine::disturbance::not_judged;
use tests::workload::counted::Fresh;
use tests::workload::truth::monotonic_ns;

use super::events::{software, time_stamps};

#[test]
fn root_a_preset_is_counted_down() -> Result<()> {
    let _machine = Exclusive::take()?;
    const TIMES: u64 = 50;
    let mut set = Set::new();
    set.add(Wanted::after(software("page-faults"), TIMES));
    set.add(Wanted::new(software("page-faults")));
    let bound = set.bind(Target::Thread(0), Begin::Later)?;
    let mut fresh = Fresh::map(1000)?;
    let none = Duration::ZERO;
    // What the readings touch, they have touched before it counts.
    bound.restart()?;
    let _ = (bound.sample()?, bound.wait(none)?);
    for round in 0..3 {
        bound.restart()?;
        let begin = monotonic_ns()?;
        fresh.touch(TIMES as usize - 1)?;
        let early = bound.wait(none)?;
        ensure!(early.is_empty(), "round {round}: {early:?} came early");
        let left = bound.sample()?;
        ensure!(left.values[0].count == u64::MAX, "round {round}: {left:?}");
        fresh.touch(1)?;
        let overflows = bound.wait(Duration::from_secs(5))?;
        let [(0, overflow)] = overflows.as_slice() else {
            anyhow::bail!("round {round}: {overflows:?}");
        };
        ensure!(
            overflow.tid == u32::try_from(nix::unistd::gettid().as_raw())?
                && overflow.pid == std::process::id()
                && (begin..monotonic_ns()?).contains(&overflow.time_ns)
                && overflow.ip != 0,
            "round {round}: {overflow:?}"
        );
        // It is at its end and stays there; its neighbour goes on.
        fresh.touch(20)?;
        let sample = bound.sample()?;
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
fn root_what_has_no_interrupt_cannot_overflow() -> Result<()> {
    let _machine = Exclusive::take()?;
    let Some(event) = time_stamps() else {
        not_judged(format_args!("this machine has no PMU without an interrupt"));
        return Ok(());
    };
    let mut set = Set::new();
    set.add(Wanted::new(event.clone()));
    let bound = set.bind(Target::Cpu(0), Begin::Now)?;
    let before = bound.sample()?;
    ensure!(bound.sample()?.values[0].count > before.values[0].count);
    let mut set = Set::new();
    set.add(Wanted::after(event, 1_000_000));
    let refused = set.bind(Target::Cpu(0), Begin::Now).map(drop);
    let wanted = Refusal::NoInterrupt {
        event: "msr/tsc/".to_owned(),
    };
    ensure!(refused == Err(wanted), "{refused:?}");
    Ok(())
}
