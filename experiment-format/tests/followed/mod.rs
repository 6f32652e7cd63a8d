//! Synthetic founders with subexperiments.

use std::path::Path;

use experiment_format::cause::Cause;
use experiment_format::ids::{Pid, Tid};
use experiment_format::log::{Container, Cpu, LogHeader, ProfileDecl, System};
use experiment_format::map::MapEvent;
use experiment_format::microstate::Microstate;
use experiment_format::packet::ClockTick;
use experiment_format::stacks::StackUid;
use experiment_format::units::{Nanos, Ticks};
use experiment_format::writer::ExperimentWriter;

use crate::synthetic::{self, run};

pub(crate) const START: u64 = 1_000_000_000;
pub(crate) const SECOND: u64 = 1_000_000_000;
pub(crate) fn header(pid: u32) -> LogHeader {
    let threads = ClockTick::table(10_000);
    let profiles = match pid {
        0 => vec![ClockTick::table_of_cpus(10_000), threads],
        _ => vec![ProfileDecl::ThreadNames, threads],
    };
    LogHeader {
        system: System {
            arch: "x86_64".into(),
            // They fill more than a page.
            cpus: (0..300).map(|id| Cpu { id, mhz: 2600 }).collect(),
            ..System::default()
        },
        pid: Pid(pid),
        command_line: format!("/usr/bin/program{pid}"),
        // The process is part of a parallel program in a container.
        mpi_rank: (pid > 0).then_some(pid),
        container: (pid > 0).then(|| Container {
            runtime: "docker".into(),
            id: "<\"0123'".into(),
        }),
        ..synthetic::header(profiles)
    }
}

pub(crate) fn founder(parent: &Path) -> ExperimentWriter {
    synthetic::begin(parent, "founder.er", &header(0), START).unwrap()
}

pub(crate) fn name(pid: u32) -> String {
    format!("_program{pid}_PID_{pid}.1.er")
}

pub(crate) fn sub(founder: &ExperimentWriter, pid: u32) -> ExperimentWriter {
    ExperimentWriter::create_sub(founder.dir(), &name(pid), &header(pid), run(START + 7)).unwrap()
}

pub(crate) fn function(vaddr: u64, name: &str) -> MapEvent {
    MapEvent::Function {
        at_ns: Nanos::ZERO,
        vaddr,
        size: 256,
        name: name.to_owned(),
    }
}

pub(crate) fn ticks(stack: StackUid, tid: u32, state: Microstate, count: u32) -> ClockTick {
    ClockTick {
        cpu: 1,
        time_ns: Nanos(START + SECOND),
        stack,
        tid: Tid(tid),
        pid: Pid(tid),
        state,
        ticks: Ticks(count.into()),
        detail: 0,
        cause: Cause::Undecided,
        waker: Tid(0),
    }
}
