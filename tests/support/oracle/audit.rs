//! Forks, names and exits of all processes, by perf: its side-band alone, with no events that
//! count.
//!
//! It is a second witness of processes that exit before `/proc` can be read. Its file is read as
//! in [`crate::oracle::perf`].

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use experiment_format::ids::Pid;
use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::command::Running;

/// An audit that is on its way.
#[derive(Debug)]
pub struct Audit {
    directory: TempDir,
    running: Running,
}

/// The audit of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditedProcess {
    /// It was forked while the audit ran.
    pub forked: bool,
    /// Names that it had, in order, without its parent's.
    pub names: Vec<String>,
    /// How many programs it executed.
    pub programs: u32,
    /// Its first thread ended.
    pub exited: bool,
}

impl Audit {
    /// Starts the audit.
    ///
    /// # Errors
    /// When perf does not start recording.
    pub fn start(limit: Duration) -> Result<Self> {
        let directory = TempDir::new()?;
        let path = directory.path().join("perf.data");
        let mut command = Command::new("perf");
        command.args(["record", "-q", "-a", "-e", "dummy", "-m", "1024"]);
        // Without these options perf reads the mapped files at its end, and perf 6.1 crashes at
        // kcollect's BPF programs.
        command.args(["--no-buildid", "--no-buildid-cache", "--no-bpf-event"]);
        command.args(["-k", "CLOCK_MONOTONIC", "-o"]).arg(&path);
        let mut running = Running::start(&mut command, limit).context("perf")?;
        running.until("perf.data", || {
            path.metadata().is_ok_and(|file| file.len() > 0)
        })?;
        // The events count from shortly after the file is there.
        std::thread::sleep(Duration::from_millis(300));
        Ok(Self { directory, running })
    }

    /// Ends the audit, and returns all processes that forked, changed their name or exited
    /// meanwhile.
    ///
    /// # Errors
    /// When perf fails or lost something.
    pub fn end(self) -> Result<BTreeMap<Pid, AuditedProcess>> {
        self.running.signal(Signal::SIGINT)?;
        let recorded = self.running.finish()?;
        // perf ends with the status of an interrupted program.
        ensure!(recorded.code() == 128 + Signal::SIGINT as i32, "{recorded}");
        let bytes = fs::read(self.directory.path().join("perf.data"))?;
        let events =
            parse(&bytes).with_context(|| format!("perf.data is not understood; {recorded}"))?;
        processes(events)
    }
}

/// One record of perf.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct AuditEvent {
    time_ns: u64,
    pid: Pid,
    kind: AuditEventKind,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum AuditEventKind {
    Fork,
    Name { name: String, executed: bool },
    Exit,
    Lost,
}

fn processes(mut events: Vec<AuditEvent>) -> Result<BTreeMap<Pid, AuditedProcess>> {
    events.sort();
    let mut processes: BTreeMap<Pid, AuditedProcess> = BTreeMap::new();
    for event in events {
        ensure!(
            event.kind != AuditEventKind::Lost,
            "perf lost records of its audit"
        );
        let process = processes.entry(event.pid).or_default();
        match event.kind {
            AuditEventKind::Fork => {
                *process = AuditedProcess {
                    forked: true,
                    ..AuditedProcess::default()
                }
            }
            AuditEventKind::Name { name, executed } => {
                process.names.push(name);
                process.programs += u32::from(executed);
            }
            AuditEventKind::Exit => process.exited = true,
            AuditEventKind::Lost => {}
        }
    }
    Ok(processes)
}

/// Types of records.
const LOST: u32 = 2;
const COMM: u32 = 3;
const EXIT: u32 = 4;
const FORK: u32 = 7;
/// The bit of a COMM's `misc` for a name by `execve`.
const EXECUTED: u16 = 1 << 13;
/// Bits of `sample_type` that are after the time at the end of each record, eight bytes each.
const AFTER_TIME: u64 = 1 << 6 | 1 << 9 | 1 << 7 | 1 << 16;
const TIME: u64 = 1 << 2;

/// Reads the records of a file: the offset of the attributes is at byte 24, the offset of the data
/// at byte 40, each followed by the size.
fn parse(bytes: &[u8]) -> Option<Vec<AuditEvent>> {
    const SAMPLE_TYPE: usize = 24;
    let attributes = word(bytes, 24)? as usize;
    let sample_type = word(bytes, attributes.checked_add(SAMPLE_TYPE)?)?;
    if sample_type & TIME == 0 {
        return None;
    }
    let after = 8 * (sample_type & AFTER_TIME).count_ones() as usize;
    let (start, size) = (word(bytes, 40)? as usize, word(bytes, 48)? as usize);
    let mut rest = bytes.get(start..start.checked_add(size)?)?;
    let mut events = Vec::new();
    while let Some(head) = rest.first_chunk::<8>() {
        let kind = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
        let misc = u16::from_le_bytes([head[4], head[5]]);
        let size = usize::from(u16::from_le_bytes([head[6], head[7]]));
        let body = rest.get(8..size)?;
        rest = &rest[size..];
        let (first, second) = (word(body, 0), word(body, 8));
        let kind = match kind {
            // A pid, a tid, a name. The first thread's name is the process's.
            COMM => {
                let ids = first?;
                if ids as u32 != (ids >> 32) as u32 {
                    continue;
                }
                let name = body.get(8..)?.split(|byte| *byte == 0).next()?;
                AuditEventKind::Name {
                    name: String::from_utf8_lossy(name).into_owned(),
                    executed: misc & EXECUTED != 0,
                }
            }
            // Pid, parent, tid, parent's tid. Threads' records are skipped.
            FORK | EXIT => {
                if first? as u32 != second? as u32 {
                    continue;
                }
                if kind == FORK {
                    AuditEventKind::Fork
                } else {
                    AuditEventKind::Exit
                }
            }
            LOST => AuditEventKind::Lost,
            _ => continue,
        };
        let time_ns = word(body, body.len().checked_sub(after + 8)?)?;
        let pid = Pid(first? as u32);
        events.push(AuditEvent { time_ns, pid, kind });
    }
    Some(events)
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(u64::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn record(kind: u32, misc: u16, body: &[u64]) -> Vec<u8> {
        let size = 8 + 8 * body.len() as u16;
        let mut bytes = kind.to_le_bytes().to_vec();
        bytes.extend(misc.to_le_bytes());
        bytes.extend(size.to_le_bytes());
        bytes.extend(body.iter().flat_map(|word| word.to_le_bytes()));
        bytes
    }

    fn file(records: &[Vec<u8>]) -> Vec<u8> {
        let data = records.concat();
        let mut bytes = vec![0; 24];
        bytes.extend(56u64.to_le_bytes());
        bytes.extend(0u64.to_le_bytes());
        bytes.extend(88u64.to_le_bytes());
        bytes.extend((data.len() as u64).to_le_bytes());
        bytes.resize(80, 0);
        // Thread, time, CPU and identifier.
        bytes.extend((1u64 << 1 | TIME | 1 << 7 | 1 << 16).to_le_bytes());
        bytes.extend(data);
        bytes
    }

    const fn twice(id: u64) -> u64 {
        id << 32 | id
    }

    #[test]
    fn records_of_one_process_are_joined() {
        let tail = |time| [twice(7), time, 1, 1];
        let name = u64::from_le_bytes(*b"true\0\0\0\0");
        let comm = [[twice(7), name].as_slice(), &tail(20)].concat();
        let of_thread = [[8u64 << 32 | 7, name].as_slice(), &tail(21)].concat();
        let fork = [[5u64 << 32 | 7, 5u64 << 32 | 7, 10].as_slice(), &tail(10)].concat();
        let exit = [[5u64 << 32 | 7, 5u64 << 32 | 7, 30].as_slice(), &tail(30)].concat();
        let bytes = file(&[
            record(COMM, EXECUTED, &comm),
            record(COMM, 0, &of_thread),
            record(9, 0, &[0]),
            record(FORK, 0, &fork),
            record(EXIT, 0, &exit),
        ]);
        let processes = processes(parse(&bytes).unwrap()).unwrap();
        let expected = AuditedProcess {
            forked: true,
            names: vec!["true".into()],
            programs: 1,
            exited: true,
        };
        assert_eq!(processes, BTreeMap::from([(Pid(7), expected)]));
    }

    #[test]
    fn lost_records_are_an_error() {
        let bytes = file(&[record(LOST, 0, &[1, 1, 0, 5, 0, 0])]);
        assert!(processes(parse(&bytes).unwrap()).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = parse(&bytes);
        }
    }
}
