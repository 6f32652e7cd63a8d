//! The number of a return to user joins what was recorded of a thread in the kernel with the place
//! in user mode that it returned to, with each way of capturing it; a kernel before 6.18 has only
//! one.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::spawn;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bpf::{KernelFunctions, KernelTypes, Programs, Settings, UserStackCapture};
use bpf_abi::Record;
use counters::perf::cpu_events::open_clock;
use experiment_format::ids::Tid;
use experiment_format::units::{Nanos, Ticks};
use host::machine::now;
use tests::machine::{Exclusive, online_cpus};
use user_collector::join::Join;

/// Longer than an interval, so that every sleep has a boundary of the grid.
const NAP: Duration = Duration::from_millis(3);
const NAPS: u32 = 200;
const PERIOD_NS: u64 = 997_000;

#[test]
fn root_alone_sleeps_join_their_user_returns() -> Result<()> {
    let _machine = Exclusive::take()?;
    let mut ways = vec![UserStackCapture::AtSwitchOut];
    if UserStackCapture::of(&KernelTypes::read()) == UserStackCapture::OnReturn {
        ways.push(UserStackCapture::OnReturn);
    }
    for way in ways {
        judge(way).with_context(|| format!("{way:?}"))?;
    }
    Ok(())
}

fn judge(way: UserStackCapture) -> Result<()> {
    let (tid, mut records) = nap_under(way)?;
    // In the order of time, as in a session.
    records.retain(|record| record.header().tid == tid);
    records.sort_by_key(Record::time_ns);
    let (mut join, mut all) = (Join::<(), ()>::default(), 0);
    let mut places: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
    for record in &records {
        let ticks = match record {
            Record::Tick(tick) => u64::from(tick.ticks),
            Record::OffCpu(off_cpu) => u64::from(off_cpu.blocked_ticks + off_cpu.waited_ticks),
            Record::UserReturn(entry) => {
                let (slot, _) = join.announced((Tid(tid), 0), entry.header.user_return);
                join.resolved(slot, Arc::new(()));
                places.insert(entry.header.user_return, (entry.ip, entry.sp));
                continue;
            }
            Record::Thread(_)
            | Record::Overflow(_)
            | Record::LockWait(_)
            | Record::IoCall(_)
            | Record::IoSubmitted(_)
            | Record::IoFile(_)
            | Record::Block(_) => continue,
        };
        join.recorded((Tid(tid), 0), record.header().user_return, Ticks(ticks), ());
        all += ticks;
    }

    let joined = join.counts();
    ensure!(all > u64::from(NAPS) * 2, "only {all} ticks");
    // All but the ticks of the last state interval, which ends with the thread.
    ensure!(
        joined.ticks + Ticks(30) >= Ticks(all)
            && joined.ticks + joined.missing + joined.not_expected == Ticks(all),
        "{all} ticks: {joined:?}"
    );
    let naps = u64::from(NAPS);
    match way {
        UserStackCapture::OnReturn => ensure!(
            joined.user_stacks >= naps - 5 && joined.reused <= Ticks(all / 20),
            "{joined:?}"
        ),
        // All sleeps are at one place.
        UserStackCapture::AtSwitchOut => ensure!(
            joined.user_stacks < naps / 2 && joined.reused > Ticks(all / 2),
            "{joined:?}"
        ),
    }

    // Where it slept, by the numbers that its off-CPU intervals carry.
    let mut sleeps: BTreeMap<(u64, u64), u64> = BTreeMap::new();
    for record in &records {
        if let Record::OffCpu(off_cpu) = record
            && off_cpu.state == 7
            && let Some(place) = places.get(&off_cpu.header.user_return)
        {
            *sleeps.entry(*place).or_default() += 1;
        }
    }
    let (place, count) = sleeps
        .iter()
        .max_by_key(|(_, count)| **count)
        .context("no sleep was joined")?;
    ensure!(
        *count >= naps - 10,
        "{count} of {naps} sleeps in one place: {sleeps:?}"
    );
    ensure!(
        is_code(place.0)?,
        "{:#x} is no code of this process: {sleeps:?}",
        place.0
    );
    Ok(())
}

/// Records a thread that sleeps again and again at one place.
fn nap_under(way: UserStackCapture) -> Result<(u32, Vec<Record>)> {
    let cpus: BTreeSet<u32> = online_cpus()?.into_iter().map(|cpu| cpu as u32).collect();
    let (mut collector, mut rings) = Programs::load(&Settings {
        types: &KernelTypes::read(),
        period_ns: PERIOD_NS,
        record_idle: false,
        max_kernel_frames: 127,
        functions: KernelFunctions::default(),
        watch_wakers: true,
        cpu_ids: cpus.last().map_or(1, |last| last + 1),
        hit_intervals: None,
        lock_threshold_ns: None,
        traced_calls: Vec::new(),
        allocations: None,
        user_stacks: Some(way),
        sabotage: None,
    })?;
    for cpu in cpus {
        collector
            .clocks()
            .start(cpu, open_clock(cpu, Nanos(PERIOD_NS))?)?;
    }
    collector.set_recording(true, || now().0)?;
    collector.track_threads()?;
    let (sender, receiver) = channel();
    let sleeper = spawn(move || {
        let tid = nix::unistd::gettid().as_raw();
        for _ in 0..NAPS {
            std::thread::sleep(NAP);
        }
        sender.send(tid)
    });
    let mut bytes = Vec::new();
    while !sleeper.is_finished() {
        std::thread::sleep(Duration::from_millis(50));
        rings.take(&mut bytes);
    }
    sleeper.join().ok().context("the sleeper died")??;
    collector.set_recording(false, || now().0)?;
    let mut records = collector.close_threads()?;
    rings.take(&mut bytes);
    for record in Record::decode_all(&bytes) {
        records.push(record?);
    }
    Ok((receiver.recv()?.cast_unsigned(), records))
}

/// Returns whether it is in an executable mapping of this process.
fn is_code(address: u64) -> Result<bool> {
    let maps = fs::read_to_string("/proc/self/maps")?;
    let mut code = maps.lines().filter_map(|line| {
        let (range, rest) = line.split_once(' ')?;
        let (from, to) = range.split_once('-')?;
        let from = u64::from_str_radix(from, 16).ok()?;
        let to = u64::from_str_radix(to, 16).ok()?;
        (rest.as_bytes().get(2) == Some(&b'x')).then_some(from..to)
    });
    Ok(code.any(|range| range.contains(&address)))
}
