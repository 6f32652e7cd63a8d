//! A reader of experiments by the letter of the format.
//!
//! It is a third witness next to gprofng and kcollect's own reader: it relies only on the headers
//! of packets and the declaration in `log.xml`. It is short because it refuses everything but
//! kcollect's clock packets.

pub mod exported;
pub mod followed;
pub mod opened;
pub mod series;
pub mod states;
pub mod summary;
pub mod synthetic;
pub mod threads;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use experiment_format::ids::Pid;
use experiment_format::microstate::Microstate;
use experiment_format::packet::{IoRecord, SyncRecord};
use experiment_format::reader::Experiment;

/// The type of packets with a stack in `data.frameinfo`.
const FRAME: u16 = 11;
/// The type of packets with a part of a stack.
const UID: u16 = 17;

/// A clock packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// `CLOCK_MONOTONIC`, nanoseconds.
    pub time_ns: u64,
    /// The CPU.
    pub cpu: usize,
    /// The process.
    pub pid: Pid,
    /// The number of ticks.
    pub ticks: u64,
}

/// Returns an attribute of the first tag that has all of the words.
fn attribute<'a>(log: &'a str, words: &[&str], name: &str) -> Option<&'a str> {
    let tag = log
        .split('<')
        .find(|tag| words.iter().all(|word| tag.contains(word)))?;
    let start = tag.find(&format!(" {name}=\""))? + name.len() + 3;
    tag[start..].split('"').next()
}

/// Returns the clock interval of an experiment, nanoseconds.
///
/// # Errors
/// When its log does not say.
pub fn interval_ns(experiment: &Path) -> Result<f64> {
    let log = log(experiment)?;
    let microseconds =
        attribute(&log, &["profile name=\"profile\""], "ptimer").context("no ptimer in log.xml")?;
    Ok(microseconds.parse::<f64>()? * 1e3)
}

/// Returns when recording started, `CLOCK_MONOTONIC` nanoseconds: it is paused while kcollect
/// starts.
///
/// # Errors
/// When its log does not say.
pub fn began_ns(experiment: &Path) -> Result<u64> {
    let log = log(experiment)?;
    let time = |kind: &str| {
        attribute(&log, &["event ", &format!("kind=\"{kind}\"")], "tstamp")
            .with_context(|| format!("no {kind} event in log.xml"))
            .and_then(nanoseconds)
    };
    Ok(time("run")? + time("resume")?)
}

/// Returns seconds with a fraction in nanoseconds.
fn nanoseconds(time: &str) -> Result<u64> {
    let (seconds, rest) = time.split_once('.').context("a time without a fraction")?;
    Ok(seconds.parse::<u64>()? * 1_000_000_000 + rest.parse::<u64>()?)
}

/// Returns the clock packets of CPUs, in the order of the file.
///
/// # Errors
/// When there is no log, or it does not declare the fields. A packet that is cut off ends the walk,
/// as in gprofng.
pub fn packets(experiment: &Path) -> Result<Vec<Packet>> {
    let log = log(experiment)?;
    let kind: u16 = attribute(&log, &["profpckt "], "kind")
        .context("no profpckt in log.xml")?
        .parse()?;
    let offset = |field: &str| -> Result<usize> {
        let name = format!("name=\"{field}\"");
        Ok(attribute(&log, &["field ", &name], "offset")
            .with_context(|| format!("no field {field}"))?
            .parse()?)
    };
    let (time, cpu, pid) = (offset("TSTAMP")?, offset("CPUID")?, offset("KPID")?);
    let (state, ticks) = (offset("MSTATE")?, offset("NTICK")?);
    let bytes = match fs::read(experiment.join("profile")) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(error.into()),
    };
    Ok(walk(&bytes)
        .filter(|(found, _)| *found == kind)
        .map_while(|(_, packet)| {
            let half = |at: usize| {
                packet
                    .get(at..)?
                    .first_chunk()
                    .map(|bytes| u32::from_le_bytes(*bytes))
            };
            let of_cpu = half(state)? == Microstate::KernelCpu.number();
            Some(
                of_cpu.then_some(Packet {
                    time_ns: packet
                        .get(time..)?
                        .first_chunk()
                        .map(|bytes| u64::from_le_bytes(*bytes))?,
                    cpu: half(cpu)? as usize,
                    pid: Pid(half(pid)?),
                    ticks: half(ticks)?.into(),
                }),
            )
        })
        .flatten()
        .collect())
}

/// Returns the traced waits for locks of an experiment.
///
/// # Errors
/// When it cannot be read.
pub fn sync_records(experiment: &Path) -> Result<Vec<SyncRecord>> {
    let mut packets = Experiment::open(experiment)?.sync_packets()?;
    let mut waits = Vec::new();
    while let Some(packet) = packets.next_packet()? {
        waits.push(packet.waited().context("no wait in a packet")?);
    }
    Ok(waits)
}

/// Returns the traced I/O calls of an experiment.
///
/// # Errors
/// When it cannot be read.
pub fn io_records(experiment: &Path) -> Result<Vec<IoRecord>> {
    let mut packets = Experiment::open(experiment)?.io_packets()?;
    let mut calls = Vec::new();
    while let Some(packet) = packets.next_packet()? {
        calls.push(packet.called().context("no call in a packet")?);
    }
    Ok(calls)
}

/// Returns all addresses of all stacks: leaves as they were, callers inside their call
/// instructions.
///
/// # Errors
/// When the file of stacks cannot be read.
pub fn addresses(experiment: &Path) -> Result<BTreeSet<u64>> {
    let path = experiment.join("data.frameinfo");
    let bytes = fs::read(&path).with_context(|| path.display().to_string())?;
    let mut found = BTreeSet::new();
    for (kind, packet) in walk(&bytes) {
        match kind {
            FRAME => infos(packet, &mut found),
            UID => words(packet.get(4..).unwrap_or_default(), &mut found),
            _ => {}
        }
    }
    Ok(found)
}

/// Collects the addresses of a FRAME packet's infos: size, kind, number, and then the words.
fn infos(packet: &[u8], found: &mut BTreeSet<u64>) {
    let size = |at: usize| {
        packet
            .get(at..)?
            .first_chunk()
            .map(|bytes| u32::from_le_bytes(*bytes) as usize)
    };
    let mut at = size(4).unwrap_or(packet.len());
    while let Some(length) = size(at).filter(|length| *length > 0) {
        words(packet.get(at + 4..at + length).unwrap_or_default(), found);
        at += length;
    }
}

/// Collects the addresses of one info: `u32` flags, `u64` number, words. In a compressed one the
/// last word is the number of another stack.
fn words(body: &[u8], found: &mut BTreeSet<u64>) {
    const HEAD: usize = 12;
    let compressed = body.get(3).is_some_and(|flags| flags & 0x80 != 0);
    let body = body.get(HEAD..).unwrap_or_default();
    let count = (body.len() / 8).saturating_sub(compressed.into());
    found.extend(
        body.chunks_exact(8)
            .take(count)
            .filter_map(|word| word.first_chunk().map(|word| u64::from_le_bytes(*word))),
    );
}

/// Returns the number of ticks of CPUs in an experiment's file.
///
/// # Errors
/// As [`packets`].
pub fn ticks(experiment: &Path) -> Result<u64> {
    Ok(packets(experiment)?.iter().map(|packet| packet.ticks).sum())
}

/// Returns the number of ticks of threads in an experiment's file, on-CPU and off-CPU; of one
/// process, or of all with `None`.
///
/// # Errors
/// When the file cannot be read.
pub fn thread_ticks(experiment: &Path, pid: Option<Pid>) -> Result<u64> {
    Ok(state_ticks(experiment, pid)?.iter().sum())
}

/// Returns the ticks of threads by number of the state; of one process, or of all with `None`.
///
/// # Errors
/// When the file cannot be read.
pub fn state_ticks(experiment: &Path, pid: Option<Pid>) -> Result<[u64; Microstate::PER_THREAD]> {
    let mut sums = [0; Microstate::PER_THREAD];
    for tick in Experiment::open(experiment)?.ticks()? {
        let tick = tick?;
        let own = pid.is_none_or(|pid| tick.shared.pid == Some(pid));
        if let Some(sum) = sums.get_mut(tick.state as usize)
            && own
        {
            *sum += u64::try_from(tick.ticks)?;
        }
    }
    Ok(sums)
}

fn log(experiment: &Path) -> Result<String> {
    let path = experiment.join("log.xml");
    fs::read_to_string(&path).with_context(|| path.display().to_string())
}

/// Returns all files and directories below a directory. Links are not followed.
///
/// # Errors
/// When a directory cannot be read.
pub fn files_below(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        found.push(entry.path());
        if entry.file_type()?.is_dir() {
            found.extend(files_below(&entry.path())?);
        }
    }
    Ok(found)
}

/// Iterates over the packets of a file, with their types.
fn walk(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    const HOLE: usize = 16 * 1024;
    let mut at = 0;
    std::iter::from_fn(move || {
        loop {
            let head: &[u8; 4] = bytes.get(at..)?.first_chunk()?;
            let size = usize::from(u16::from_le_bytes([head[0], head[1]]));
            let kind = u16::from_le_bytes([head[2], head[3]]);
            if size == 0 || at % 4 != 0 {
                at = (at / HOLE + 1) * HOLE;
                continue;
            }
            let packet = bytes.get(at..at + size)?;
            at += size;
            return Some((kind, packet));
        }
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LOG: &str = "<profile name=\"profile\" ptimer=\"997\" numstates=\"3\">\n<profpckt kind=\"8\" uname=\"x\">\n\
        <field name=\"CPUID\" offset=\"4\"/>\n<field name=\"TSTAMP\" offset=\"8\"/>\n<field name=\"NTICK\" offset=\"16\"/>\n\
        <field name=\"KPID\" offset=\"20\"/>\n<field name=\"MSTATE\" offset=\"24\"/>\n</profpckt></profile>\n<event kind=\"run\" tstamp=\"5.000000007\"/>\n\
        <event kind=\"pause\" tstamp=\"0.000000000\"/>\n<event kind=\"resume\" tstamp=\"0.500000000\"/>\n";

    fn packet(kind: u16, state: Microstate, ticks: u32) -> Vec<u8> {
        let mut bytes = [28u16.to_le_bytes(), kind.to_le_bytes()].concat();
        bytes.extend(1u32.to_le_bytes());
        bytes.extend(9u64.to_le_bytes());
        bytes.extend(ticks.to_le_bytes());
        bytes.extend(77u32.to_le_bytes());
        bytes.extend(state.number().to_le_bytes());
        bytes
    }

    #[test]
    fn complete_packets_are_found_across_holes() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("log.xml"), LOG).unwrap();
        let cpu = Microstate::KernelCpu;
        let mut bytes = packet(8, cpu, 2);
        bytes.extend(packet(0, cpu, 100));
        bytes.extend(packet(8, Microstate::User, 1000));
        bytes.resize(16 * 1024, 0);
        bytes.extend(packet(8, cpu, 3));
        bytes.extend(&packet(8, cpu, 50)[..24]);
        fs::write(directory.path().join("profile"), bytes).unwrap();
        assert_eq!(ticks(directory.path()).unwrap(), 5);
        let first = Packet {
            time_ns: 9,
            cpu: 1,
            pid: Pid(77),
            ticks: 2,
        };
        assert_eq!(packets(directory.path()).unwrap()[0], first);
        assert_eq!(interval_ns(directory.path()).unwrap(), 997_000.0);
        assert_eq!(began_ns(directory.path()).unwrap(), 5_500_000_007);
    }

    #[test]
    fn addresses_of_all_kinds_of_stacks_are_found() {
        let directory = tempfile::tempdir().unwrap();
        let mut bytes = Vec::new();
        // A frame with one plain info of two words, and one that ends in a link.
        for half in [64u32 | 11 << 16, 16] {
            bytes.extend(half.to_le_bytes());
        }
        bytes.extend(1u64.to_le_bytes());
        for (kind, second) in [(1u32, 0xb), (0x8000_0001, 99)] {
            bytes.extend(32u32.to_le_bytes());
            bytes.extend(kind.to_le_bytes());
            for word in [5u64, u64::from(kind) + 0xa0, second] {
                bytes.extend(word.to_le_bytes());
            }
        }
        let size = bytes.len() as u16;
        bytes[..2].copy_from_slice(&size.to_le_bytes());
        fs::write(directory.path().join("data.frameinfo"), bytes).unwrap();
        assert_eq!(
            addresses(directory.path()).unwrap(),
            BTreeSet::from([0xa1, 0xb, 0x8000_00a1])
        );
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_to_an_end(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            prop_assert!(walk(&bytes).count() <= bytes.len());
            infos(&bytes, &mut BTreeSet::new());
        }
    }
}
