//! The calling thread counts its own events; it causes a known number of them.

use std::ptr;
use std::thread::{sleep, spawn};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use counters::names::event::PerfEvent;
use counters::perf::bound_set::BoundSet;
use counters::perf::counter::Start;
use counters::perf::reading::{Estimate, SetReading};
use counters::perf::set::{CounterSet, CounterTarget, SetRequest};
use experiment_format::ids::{Pid, Tid};
use experiment_format::units::Nanos;
use tests::machine::disturbance::not_judged;
use tests::machine::tracefs::Tracefs;
use tests::machine::{Exclusive, online_cpus};
use tests::workload::counted::{Counted, Fresh};
use tests::workload::truth::{monotonic_ns, pin};

use super::events::{software, tracepoint, writes_to};

fn bind(target: CounterTarget, events: &[PerfEvent]) -> Result<BoundSet> {
    let mut set = CounterSet::new();
    for event in events {
        set.add(SetRequest::new(event.clone()));
    }
    Ok(set.bind(target, Start::Now)?)
}

fn count(sample: &SetReading, number: usize) -> u64 {
    sample.values[number].count
}

/// Returns the events of the calling thread's work, after a first reading has made its own faults.
fn counted(event: PerfEvent, work: impl FnOnce() -> Result<()>) -> Result<u64> {
    let bound = bind(CounterTarget::Thread(Tid(0)), &[event])?;
    let _ = bound.read()?;
    let before = bound.read()?;
    work()?;
    let since = bound.read()?.minus(&before)?;
    ensure!(
        matches!(since.values[0].estimate(), Estimate::Exact(_)),
        "{since:?} is not exact"
    );
    Ok(count(&since, 0))
}

#[test]
fn root_alone_page_faults_are_those_of_the_kernel() -> Result<()> {
    let _machine = Exclusive::take()?;
    const PAGES: usize = 5000;
    let mut fresh = Fresh::map(PAGES)?;
    let mut own = 0;
    let faults = counted(software("page-faults"), || {
        let before = Counted::here()?;
        fresh.touch(PAGES)?;
        own = Counted::here()?.faults - before.faults;
        Ok(())
    })?;
    ensure!(
        faults == own && own == PAGES as u64,
        "{PAGES} pages, {own} faults by getrusage, {faults} by the counter"
    );
    Ok(())
}

#[test]
fn root_alone_context_switches_are_those_of_the_kernel() -> Result<()> {
    let _machine = Exclusive::take()?;
    const SLEEPS: u64 = 200;
    let bound = bind(
        CounterTarget::Thread(Tid(0)),
        &[software("context-switches")],
    )?;
    // The kernel's own count between two readings of ours that agree: no switch fell between them.
    let reading = || -> Result<(u64, u64)> {
        for _ in 0..1000 {
            let before = count(&bound.read()?, 0);
            let own = Counted::here()?.switches;
            if count(&bound.read()?, 0) == before {
                return Ok((before, own));
            }
        }
        anyhow::bail!("there is no moment without a switch");
    };
    let before = reading()?;
    for _ in 0..SLEEPS {
        sleep(Duration::from_micros(500));
    }
    let after = reading()?;
    let (ours, own) = (after.0 - before.0, after.1 - before.1);
    ensure!(
        ours == own && own >= SLEEPS,
        "{SLEEPS} sleeps, {own} switches by getrusage, {ours} by the counter"
    );
    Ok(())
}

#[test]
fn root_alone_migrations_are_as_many_as_there_were() -> Result<()> {
    let _machine = Exclusive::take()?;
    const MOVES: usize = 100;
    let cpus = online_cpus()?;
    if cpus.len() < 2 {
        not_judged(format_args!("there is but one CPU"));
        return Ok(());
    }
    let (first, second) = cpus.first().zip(cpus.last()).context("no CPUs")?;
    // A thread of its own: its affinity ends with it.
    let (first, second) = (*first, *second);
    let moved = spawn(move || -> Result<u64> {
        pin(first)?;
        counted(software("cpu-migrations"), || {
            (0..MOVES).try_for_each(|number| pin([second, first][number % 2]))
        })
    });
    let moves = moved.join().ok().context("the thread panicked")??;
    ensure!(moves == MOVES as u64, "{MOVES} moves, {moves} counted");
    Ok(())
}

#[test]
fn root_alone_a_breakpoint_counts_every_write() -> Result<()> {
    let _machine = Exclusive::take()?;
    const WRITES: u64 = 10_000;
    let mut variable = Box::new(0_u64);
    let address = ptr::from_mut(&mut *variable);
    let writes = counted(writes_to(address), || {
        for value in 0..WRITES {
            // SAFETY: the variable exists, and nothing else refers to it.
            unsafe { address.write_volatile(value) };
        }
        Ok(())
    })?;
    ensure!(writes == WRITES, "{WRITES} writes, {writes} counted");
    Ok(())
}

#[test]
fn root_alone_a_tracepoint_counts_every_call() -> Result<()> {
    let _machine = Exclusive::take()?;
    const CALLS: u64 = 10_000;
    let tracefs = Tracefs::mount()?;
    let Ok(id) = tracefs.id("syscalls/sys_enter_getppid") else {
        not_judged(format_args!(
            "this kernel has no tracepoints of system calls"
        ));
        return Ok(());
    };
    let calls = counted(tracepoint("syscalls:sys_enter_getppid", id), || {
        for _ in 0..CALLS {
            let _ = nix::unistd::getppid();
        }
        Ok(())
    })?;
    ensure!(calls == CALLS, "{CALLS} calls, {calls} counted");
    Ok(())
}

#[test]
fn root_alone_counts_exceed_32_and_64_bits() -> Result<()> {
    let _machine = Exclusive::take()?;
    let cpus = online_cpus()?;
    let clocks = cpus.iter().map(|cpu| {
        let target = CounterTarget::Cpu((*cpu).try_into()?);
        let begin = monotonic_ns()?;
        Ok((bind(target, &[software("cpu-clock")])?, begin))
    });
    let clocks = clocks.collect::<Result<Vec<_>>>()?;
    for (preset, wanted) in [((1 << 32) - 10, (1 << 32) + 90), (u64::MAX - 9, 90)] {
        let mut set = CounterSet::new();
        set.add(SetRequest {
            preset,
            ..SetRequest::new(software("page-faults"))
        });
        let mut fresh = Fresh::map(100)?;
        let bound = set.bind(CounterTarget::Thread(Tid(0)), Start::Disabled)?;
        // The readings' own page faults are before this.
        let _ = (bound.read()?, bound.enable()?, bound.read()?);
        bound.restart()?;
        fresh.touch(100)?;
        bound.disable()?;
        let sample = bound.read()?;
        ensure!(
            count(&sample, 0) == wanted,
            "100 faults from {preset} on: {sample:?}"
        );
    }
    // Nanoseconds pass 2^32 after 4.3 seconds.
    sleep(Duration::from_millis(4400));
    for (clock, begin) in &clocks {
        let sample = clock.read()?;
        let passed = (sample.time_ns - Nanos(*begin)).0;
        let count = count(&sample, 0);
        ensure!(
            count > 1 << 32 && count.abs_diff(passed) < passed / 100,
            "{count} ns by the CPU's clock in {passed} ns"
        );
    }
    Ok(())
}

/// On Solaris a set of a CPU makes all sets of threads invalid. Here they count side by side.
#[test]
fn root_alone_sets_of_cpus_and_of_threads_do_not_exclude_each_other() -> Result<()> {
    let _machine = Exclusive::take()?;
    let faults = [software("page-faults")];
    let mut fresh = Fresh::map(1000)?;
    let thread = bind(CounterTarget::Thread(Tid(0)), &faults)?;
    let cpus = online_cpus()?;
    let cpus = cpus
        .iter()
        .map(|cpu| bind(CounterTarget::Cpu((*cpu).try_into()?), &faults));
    let cpus = cpus.collect::<Result<Vec<_>>>()?;
    let twice = bind(CounterTarget::Thread(Tid(0)), &faults)?;
    fresh.touch(1000)?;
    let of_cpus = cpus.iter().map(|cpu| Ok(count(&cpu.read()?, 0)));
    let of_cpus: u64 = of_cpus.sum::<Result<u64>>()?;
    let (thread, twice) = (count(&thread.read()?, 0), count(&twice.read()?, 0));
    ensure!(
        of_cpus >= 1000 && thread >= 1000 && twice >= 1000,
        "1000 faults: {of_cpus} on all CPUs, {thread} and {twice} of the thread"
    );
    cpus.into_iter().for_each(BoundSet::release);
    Ok(())
}

/// A process's count is the sum of the threads that were there and of those that started later.
#[test]
fn root_alone_a_process_is_all_its_threads() -> Result<()> {
    let _machine = Exclusive::take()?;
    let mut child = std::process::Command::new("sh")
        .args([
            "-c",
            "read word; exec \"$0\" threads 1000 7",
            env!("CARGO_BIN_EXE_counted"),
        ])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()?;
    let bound = bind(
        CounterTarget::Process(Pid(child.id())),
        &[software("page-faults"), software("context-switches")],
    )?;
    let before = count(&bound.read()?, 0);
    drop(child.stdin.take());
    let output = child.wait_with_output()?;
    let threads = Counted::find_all(&String::from_utf8(output.stdout)?);
    let faults: u64 = threads.iter().map(|thread| thread.faults).sum();
    let all = count(&bound.read()?, 0) - before;
    // What the first thread did before, between and after is in it too.
    ensure!(
        threads.len() == 1000 && all > faults && all < faults + 3000,
        "{} threads with {faults} faults, {all} counted",
        threads.len()
    );
    Ok(())
}
