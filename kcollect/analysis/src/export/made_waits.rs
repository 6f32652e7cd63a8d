//! An experiment with causes and wakers, for tests.

use experiment_format::cause::Cause;
use experiment_format::directory::{ExperimentDir, NameRequest};
use experiment_format::ids::{Pid, Tid};
use experiment_format::log::{Cpu, LogEvent, LogHeader, ProfileDecl, StartTime, System};
use experiment_format::map::MapEvent;
use experiment_format::microstate::Microstate;
use experiment_format::packet::ClockTick;
use experiment_format::stacks::StackEnd;
use experiment_format::units::{Nanos, Ticks};
use experiment_format::writer::ExperimentWriter;

use crate::model::Model;

pub(crate) const TICK_MS: u64 = 10;
const MS: u64 = 1_000_000;

/// Returns a model of 200 ms of a client (thread 10), which is blocked in the function `call`, and
/// a server with the threads 20 and 21 (`worker`). The client
///
/// * waits 50 ms for an answer of thread 21, and then 10 ms for a CPU;
/// * waits 40 ms for a lock, which ends because of a thread that is not sampled, 99;
/// * is idle for 30 ms, until thread 20 brings new work, and then runs for 10 ms;
/// * waits 20 ms of which nothing is known.
///
/// The threads of the server run for 60 ms and 90 ms.
pub(crate) fn waits() -> Model {
    let parent = tempfile::tempdir().unwrap();
    let request = NameRequest::Exactly("made.1.er".into());
    let (dir, _) = ExperimentDir::create(parent.path(), &request, None).unwrap();
    let header = LogHeader {
        system: System {
            hostname: "host".into(),
            arch: "x86_64".into(),
            page_size: 4096,
            pages: 1024,
            cpus: vec![Cpu { id: 0, mhz: 2600 }],
        },
        command_line: "kernel".into(),
        profiles: vec![
            ProfileDecl::ThreadNames,
            ClockTick::table_of_cpus(TICK_MS as u32 * 1000),
            ClockTick::table(TICK_MS as u32 * 1000),
        ],
        ..LogHeader::default()
    };
    let run = StartTime {
        tstamp_ns: Nanos(1000 * MS),
        wall_s: 1_795_205_070,
        wall_subsec_ns: 0,
        tm_zone_s: 0,
    };
    let mut writer = ExperimentWriter::create(dir, &header, run).unwrap();
    let function = MapEvent::Function {
        at_ns: Nanos::ZERO,
        vaddr: 0x1000,
        size: 256,
        name: "call".into(),
    };
    writer.map(&function).unwrap();
    for (tid, name, group) in [
        (10, "client", "client, pid 10"),
        (20, "server", "server, pid 20"),
        (21, "worker", "server, pid 20"),
    ] {
        let thread = LogEvent::Thread {
            at_ns: Nanos::ZERO,
            tid: Tid(tid),
            name: name.into(),
            group: group.into(),
        };
        writer.log(&thread).unwrap();
    }
    let stack = writer.stack(&[0x1000], StackEnd::Complete).unwrap();
    let mut tick = |at_ms: u64, (pid, tid), state, ms: u64, cause, waker| {
        let tick = ClockTick {
            cpu: 0,
            time_ns: Nanos((1000 + at_ms) * MS),
            stack,
            tid: Tid(tid),
            pid: Pid(pid),
            state,
            ticks: Ticks(ms / TICK_MS),
            detail: 0,
            cause,
            waker: Tid(waker),
        };
        writer.tick(&tick).unwrap();
    };
    let (client, server, worker) = ((10, 10), (20, 20), (20, 21));
    tick(60, client, Microstate::Sleep, 50, Cause::Answer, 21);
    tick(60, client, Microstate::WaitCpu, 10, Cause::Undecided, 0);
    tick(100, client, Microstate::UserLock, 40, Cause::Lock, 99);
    tick(130, client, Microstate::Sleep, 30, Cause::NewWork, 20);
    tick(140, client, Microstate::User, 10, Cause::Undecided, 0);
    tick(200, client, Microstate::Sleep, 20, Cause::Undecided, 0);
    tick(160, server, Microstate::User, 60, Cause::Undecided, 0);
    tick(110, worker, Microstate::System, 90, Cause::Undecided, 0);
    // Their exact times are not known.
    let sample = "{\"sample\":0,\"at_ns\":60000000000}\n";
    writer.side_line("threads.jsonl", sample).unwrap();
    let experiment = writer.close(Nanos(200 * MS)).unwrap();
    Model::load(&[experiment]).unwrap()
}
