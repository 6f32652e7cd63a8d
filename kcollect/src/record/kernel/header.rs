//! The header of the founder's `log.xml`: how the experiment was recorded.

use std::rc::Rc;

use bpf::{KernelTypes, UserStackCapture};
use counters::names::event::CounterRequest;
use experiment_format::directory::ExperimentDir;
use experiment_format::ids::Pid;
use experiment_format::log::{LogHeader, ProfileDecl, Setting, StartTime};
use experiment_format::packet::{ClockTick, HeapEvent, IoEvent, SyncEvent};
use experiment_format::units::Nanos;
use nix::unistd::{getpgrp, getppid, getsid};
use user_collector::written_code::ObjectMaps;

use super::counter_tags;
use super::machine_description;
use crate::plan::{HeapTracing, Plan};
use crate::record::dry_run;

/// The part of the founder that all subexperiments share.
#[derive(Debug)]
pub struct Inherited {
    /// The founder's directory, in which theirs are.
    pub dir: Rc<ExperimentDir>,
    /// The founder's header.
    pub header: LogHeader,
    /// The start of the run, which all times are relative to.
    pub run: StartTime,
    /// Where the kernel's load objects are.
    pub kernel: ObjectMaps,
}

/// Returns the header of an experiment that is recorded according to a plan.
pub(super) fn header(
    plan: &Plan,
    requests: &[CounterRequest],
    capture: Option<UserStackCapture>,
) -> LogHeader {
    let seconds = |time: std::time::Duration| u32::try_from(time.as_secs()).unwrap_or(u32::MAX);
    let mut settings = Vec::new();
    if !plan.record_idle {
        settings.push(Setting::NoIdle);
    }
    settings.extend(plan.limit.map(|bytes| Setting::Limit(bytes >> 20)));
    settings.extend(
        plan.timing
            .sample_period
            .map(|period| Setting::SamplePeriod(seconds(period))),
    );
    if !plan.timing.start.is_zero() {
        settings.push(Setting::DelayStart(seconds(plan.timing.start)));
    }
    settings.extend(plan.timing.end.map(|end| Setting::Terminate(seconds(end))));
    let tick_us = plan.tick_interval.micros();
    let words = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
    LogHeader {
        collector: concat!("kcollect ", env!("CARGO_PKG_VERSION")).to_owned(),
        system: machine_description::describe(),
        pid: Pid(std::process::id()),
        ppid: Some(Pid::from_raw(getppid().as_raw())),
        pgrp: Some(Pid::from_raw(getpgrp().as_raw())),
        sid: getsid(None).ok().map(|sid| Pid::from_raw(sid.as_raw())),
        pack: plan.series.pack,
        command_line: "kernel".to_owned(),
        profiles: vec![
            ProfileDecl::ThreadNames,
            ClockTick::table_of_cpus(tick_us),
            ClockTick::table(tick_us),
        ]
        .into_iter()
        .chain(counter_tags::declare(requests))
        .chain(plan.tracing.lock_threshold.map(SyncEvent::table))
        .chain(plan.tracing.io.then(IoEvent::table))
        .chain((plan.tracing.heap != HeapTracing::Off).then(HeapEvent::table))
        .collect(),
        driver_version: Some(concat!("kcollect BPF ", env!("CARGO_PKG_VERSION")).to_owned()),
        settings,
        comments: vec![
            format!("kernel: {}", machine_description::kernel()),
            format!("command: {}", words.collect::<Vec<_>>().join(" ")),
            format!("plan: {}", dry_run::describe(plan).join("; ")),
            "samples: exact times and counts of all threads since the experiment began; only system calls that read \
             and write are counted; the times and counts of each thread are in threads.jsonl"
                .to_owned(),
            match capture {
                Some(capture) => format!("user stacks of records in the kernel: captured {capture}"),
                None => format!(
                    "user stacks of records in the kernel: not captured, since no process is followed; this kernel would \
                     have them captured {}",
                    UserStackCapture::of(&KernelTypes::read())
                ),
            },
        ]
        .into_iter()
        .chain(counter_tags::described(requests))
        .collect(),
        ..LogHeader::default()
    }
}

/// Returns the start time of a run that started at an instant of CLOCK_MONOTONIC not long ago.
pub(super) fn run(at_ns: Nanos) -> StartTime {
    let ago = host::machine::now().saturating_sub(at_ns);
    let start = std::time::SystemTime::now() - std::time::Duration::from_nanos(ago.0);
    let wall = start.duration_since(std::time::UNIX_EPOCH);
    let wall = wall.unwrap_or_default();
    StartTime {
        tstamp_ns: at_ns,
        wall_s: wall.as_secs().cast_signed(),
        wall_subsec_ns: wall.subsec_nanos(),
        tm_zone_s: 0,
    }
}
