//! Decodes headers and events.
//!
//! Unknown elements and attributes are skipped, as gprofng does: files of other collectors hold
//! more than this crate writes. An invalid number is an error, and so is XML at which gprofng would
//! stop.

use std::path::Path;

use crate::Result;
use crate::error::Error;
use crate::ids::{Pid, Tid};
use crate::log::{
    Container, CounterDecl, CounterUnit, Cpu, Descendant, LogEvent, LogHeader, ProfileDecl,
    Setting, StartTime, THREAD_NAMED, THREAD_NAMES, VERBATIM_COMMENT, VERBATIM_WARNING, WordSize,
};
use crate::microstate::NumStates;
use crate::packet::{FieldDecl, FieldType, PacketDecl, counter};
use crate::units::Nanos;
use crate::xml::number::{integer, time, unsigned};
use crate::xml::parse::{Item, Parser, Tag};

/// The content of a `log.xml` or a `warnings.xml`.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Log {
    /// The header. Comments that stand before the start belong to it.
    pub(crate) header: LogHeader,
    /// The start, if there is one.
    pub(crate) run: Option<StartTime>,
    /// The other events, in the file's order, from the start on.
    pub(crate) events: Vec<LogEvent>,
}

/// An open element.
enum Open {
    Collector,
    Process,
    Profile,
    Event(Tag, String),
    Other,
}

/// Returns the content of the file at `path`, which is `bytes`.
pub(crate) fn decode(path: &Path, bytes: &[u8]) -> Result<Log> {
    let mut log = Log::default();
    log.header.version.clear();
    let mut parser = Parser::new(path, bytes);
    let mut open = Vec::new();
    // The number of open `profile` elements.
    let mut profiles = 0_usize;
    // The table of packets that stand outside of a `profile` element.
    let mut table: Option<String> = None;
    while let Some(item) = parser.next()? {
        match item {
            Item::Begin(tag) => {
                let in_profile = profiles > 0;
                if tag.name == "profdata" && !in_profile {
                    table = tag.get("fname").map(str::to_owned);
                }
                if tag.name == "profpckt" && !in_profile {
                    let Some(name) = table.clone() else {
                        return Err(tag.malformed(path, "a packet declared outside of a profile"));
                    };
                    let packets = Vec::new();
                    log.header.profiles.push(match &*name {
                        counter::FILE => ProfileDecl::Counters {
                            counters: Vec::new(),
                            packets,
                        },
                        _ => ProfileDecl::Other {
                            name,
                            attributes: Vec::new(),
                            packets,
                        },
                    });
                }
                let element = begin(path, tag, &mut log.header)?;
                profiles += usize::from(matches!(element, Open::Profile));
                open.push(element);
            }
            Item::Text(text) => match open.last_mut() {
                Some(Open::Collector) => log.header.collector = text,
                Some(Open::Process) => log.header.command_line = text,
                Some(Open::Event(_, inside)) => inside.push_str(&text),
                _ => {}
            },
            Item::End => match open.pop() {
                Some(Open::Event(tag, text)) => log.add(event(path, &tag, text)?),
                Some(Open::Profile) => profiles -= 1,
                _ => {}
            },
        }
    }
    log.count_from_start();
    Ok(log)
}

impl Log {
    /// Adds an event where it belongs.
    fn add(&mut self, event: LogEvent) {
        match event {
            // The start may be repeated, with the same values.
            LogEvent::Start(run) => {
                self.run.get_or_insert(run);
            }
            LogEvent::Comment {
                at_ns: Nanos::ZERO,
                text,
            } if self.run.is_none() => {
                self.header.comments.push(text);
            }
            other => self.events.push(other),
        }
    }

    /// Converts the times of thread names, the only ones that the file does not count from the
    /// start.
    fn count_from_start(&mut self) {
        let start = self.run.map_or(Nanos::ZERO, |run| run.tstamp_ns);
        for event in &mut self.events {
            if let LogEvent::Thread { at_ns, .. } = event {
                *at_ns = at_ns.saturating_sub(start);
            }
        }
    }
}

/// Reads the tag that begins an element.
fn begin(path: &Path, tag: Tag, header: &mut LogHeader) -> Result<Open> {
    match tag.name.as_str() {
        "experiment" => header.version = tag.get("version").unwrap_or_default().to_owned(),
        "collector" => return Ok(Open::Collector),
        "system" => system(path, &tag, header)?,
        "cpu" => header.system.cpus.push(Cpu {
            id: small(path, &tag, "id")?.unwrap_or_default(),
            mhz: small(path, &tag, "clk")?.unwrap_or_default(),
        }),
        "process" => {
            process(path, &tag, header)?;
            return Ok(Open::Process);
        }
        "setting" => {
            for (name, value) in &tag.attributes {
                header.settings.push(setting(name, value));
            }
        }
        "profile" => {
            profile(path, &tag, header)?;
            return Ok(Open::Profile);
        }
        "profpckt" => packet(path, &tag, header)?,
        "field" => {
            let packet = packets(header).and_then(|packets| packets.last_mut());
            let packet =
                packet.ok_or_else(|| tag.malformed(path, "a field outside of a packet"))?;
            packet.fields.push(field(path, &tag)?);
        }
        "event" => return Ok(Open::Event(tag, String::new())),
        _ => {}
    }
    Ok(Open::Other)
}

/// Returns an attribute that is an unsigned number of 32 bits.
fn small(path: &Path, tag: &Tag, name: &str) -> Result<Option<u32>> {
    tag.parsed(path, name, |text| u32::try_from(integer(text)?).ok())
}

/// Returns the packets of the table that was declared last.
fn packets(header: &mut LogHeader) -> Option<&mut Vec<PacketDecl>> {
    let table = header.profiles.last_mut();
    table.and_then(ProfileDecl::packets_mut)
}

/// Reads the machine.
fn system(path: &Path, tag: &Tag, header: &mut LogHeader) -> Result<()> {
    let text = |name: &str| tag.get(name).unwrap_or_default().to_owned();
    header.system.hostname = text("hostname");
    header.system.arch = text("arch");
    header.system.page_size = small(path, tag, "pagesz")?.unwrap_or_default();
    let pages = tag.parsed(path, "npages", |text| u64::try_from(integer(text)?).ok())?;
    header.system.pages = pages.unwrap_or_default();
    Ok(())
}

/// Reads the facts of the process that this element has.
fn process(path: &Path, tag: &Tag, header: &mut LogHeader) -> Result<()> {
    let number = |name: &str| small(path, tag, name);
    header.pid = number("pid")?.map_or(header.pid, Pid);
    header.ppid = number("ppid")?.map(Pid).or(header.ppid);
    header.pgrp = number("pgrp")?.map(Pid).or(header.pgrp);
    header.sid = number("sid")?.map(Pid).or(header.sid);
    header.mpi_rank = number("mpi_rank")?.or(header.mpi_rank);
    header.pack |= number("pack")? == Some(1);
    if let Some(id) = tag.get("container_id") {
        header.container = Some(Container {
            runtime: tag.get("container_runtime").unwrap_or_default().to_owned(),
            id: id.to_owned(),
        });
    }
    match tag.get("wsize") {
        Some("32") => header.word_size = WordSize::Bits32,
        Some("64") => header.word_size = WordSize::Bits64,
        Some(other) => return Err(tag.malformed(path, format!("word size {other:?}"))),
        None => {}
    }
    Ok(())
}

/// Reads the declaration of a table, or of a counter.
fn profile(path: &Path, tag: &Tag, header: &mut LogHeader) -> Result<()> {
    match tag.get("name") {
        Some("dversion") => {
            header.driver_version = tag.get("version").map(str::to_owned);
        }
        Some("profile") => header.profiles.push(ProfileDecl::Clock {
            tick_us: small(path, tag, "ptimer")?.unwrap_or_default(),
            states: NumStates::from(
                tag.parsed(path, "numstates", |text| i32::try_from(integer(text)?).ok())?
                    .unwrap_or_default(),
            ),
            packets: Vec::new(),
        }),
        Some("hwcounter" | "hwsimctr") => {
            let decl = counter(path, tag)?;
            let tables = header.profiles.iter_mut();
            let counters = tables.rev().find_map(|profile| match profile {
                ProfileDecl::Counters { counters, .. } => Some(counters),
                _ => None,
            });
            match counters {
                Some(counters) => counters.push(decl),
                // A counter without a declared packet.
                None => header.profiles.push(ProfileDecl::Counters {
                    counters: vec![decl],
                    packets: Vec::new(),
                }),
            }
        }
        // With a version of Java the table holds more than names.
        Some(THREAD_NAMES) if others(tag, &["name"]).is_empty() => {
            header.profiles.push(ProfileDecl::ThreadNames);
        }
        name => header.profiles.push(ProfileDecl::Other {
            name: name.unwrap_or_default().to_owned(),
            attributes: others(tag, &["name"]),
            packets: Vec::new(),
        }),
    }
    Ok(())
}

/// Reads the declaration of a packet.
fn packet(path: &Path, tag: &Tag, header: &mut LogHeader) -> Result<()> {
    let kind = tag.parsed(path, "kind", |text| u16::try_from(integer(text)?).ok())?;
    let kind = kind.ok_or_else(|| tag.malformed(path, "a packet without a kind"))?;
    let uname = tag.get("uname").unwrap_or_default().to_owned();
    if let Some(packets) = packets(header) {
        packets.push(PacketDecl {
            kind,
            uname,
            fields: Vec::new(),
        });
    }
    Ok(())
}

/// Returns the declaration of a counter. One that `gprofng collect` wrote has no title and no unit;
/// gprofng derives them from some names.
fn counter(path: &Path, tag: &Tag) -> Result<CounterDecl> {
    let number = |name: &str| tag.parsed(path, name, integer);
    let text = |name: &str| tag.get(name).filter(|text| !text.is_empty());
    let name = text("hwcname").or(text("int_name")).unwrap_or_default();
    let unit = match number("timecvt")? {
        Some(timecvt) => CounterUnit::from(timecvt),
        None if name == "cycles" => CounterUnit::Cycles,
        None => CounterUnit::Count,
    };
    let number = |name: &str| {
        let value = tag.parsed(path, name, |text| u64::try_from(integer(text)?).ok())?;
        Ok(value.unwrap_or_default())
    };
    let identity = number("tag")?;
    Ok(CounterDecl {
        tag: u32::try_from(identity)
            .map_err(|_| tag.malformed(path, format!("counter tag {identity}")))?,
        name: name.to_owned(),
        title: text("metric").unwrap_or(name).to_owned(),
        interval: number("interval")?,
        unit,
    })
}

/// Returns the declaration of a field.
fn field(path: &Path, tag: &Tag) -> Result<FieldDecl> {
    let offset = small(path, tag, "offset")?;
    let kind = tag.get("type").and_then(FieldType::from_keyword);
    Ok(FieldDecl {
        name: tag.get("name").unwrap_or_default().to_owned(),
        uname: tag.get("uname").unwrap_or_default().to_owned(),
        kind: kind.ok_or_else(|| tag.malformed(path, "a field of unknown type"))?,
        offset: offset.ok_or_else(|| tag.malformed(path, "a field without an offset"))?,
    })
}

/// Returns a setting from its attribute.
fn setting(name: &str, value: &str) -> Setting {
    let number = integer(value).and_then(|value| u64::try_from(value).ok());
    let small = number.and_then(|value| u32::try_from(value).ok());
    match (name, number, small) {
        ("noidle", Some(1), _) => Setting::NoIdle,
        ("limit", Some(megabytes), _) => Setting::Limit(megabytes),
        ("sample_period", _, Some(seconds)) => Setting::SamplePeriod(seconds),
        ("delay_start", _, Some(seconds)) => Setting::DelayStart(seconds),
        ("terminate", _, Some(seconds)) => Setting::Terminate(seconds),
        ("pause_signal", _, Some(signal)) => Setting::PauseSignal(signal),
        ("linetrace", ..) => Setting::LineTrace(value.to_owned()),
        _ => Setting::Other {
            name: name.to_owned(),
            value: value.to_owned(),
        },
    }
}

/// Returns the event of an element with this text inside.
fn event(path: &Path, tag: &Tag, text: String) -> Result<LogEvent> {
    let at_ns = tag.parsed(path, "tstamp", time)?;
    let signed = |name: &str| tag.parsed(path, name, integer);
    let string = |name: &str| tag.get(name).unwrap_or_default().to_owned();
    let id = signed("id")?.unwrap_or_default();
    let since_start = at_ns.unwrap_or_default();
    let descendant = || -> Result<Descendant> {
        Ok(Descendant {
            at_ns: since_start,
            variant: string("variant"),
            lineage: string("lineage"),
            follow: signed("follow")?.unwrap_or_default() != 0,
            message: string("msg"),
        })
    };
    // The number may be what `pthread_self` returned, which is no thread id of Linux.
    let thread = tag.get("tid").and_then(unsigned);
    let thread = thread.and_then(|tid| u32::try_from(tid).ok().map(Tid));
    if let (Some(THREAD_NAMED), Some(tid)) = (tag.get("kind"), thread) {
        return Ok(LogEvent::Thread {
            at_ns: since_start,
            tid,
            name: string("name"),
            group: string("grpname"),
        });
    }
    let (warning, comment) = (i64::from(VERBATIM_WARNING), i64::from(VERBATIM_COMMENT));
    Ok(match (tag.get("kind").unwrap_or_default(), id) {
        ("run", _) => LogEvent::Start(StartTime {
            tstamp_ns: at_ns.ok_or_else(|| tag.malformed(path, "a start without its time"))?,
            wall_s: signed("time")?.unwrap_or_default(),
            wall_subsec_ns: tag
                .get("time_nsec")
                .and_then(unsigned)
                .and_then(|nanoseconds| u32::try_from(nanoseconds).ok())
                .filter(|nanoseconds| *nanoseconds < 1_000_000_000)
                .unwrap_or(0),
            tm_zone_s: signed("tm_zone")?.unwrap_or_default(),
        }),
        ("exit", _) => LogEvent::Exit { at_ns: since_start },
        ("sample", _) => LogEvent::Sample {
            at_ns: since_start,
            id: u32::try_from(id).map_err(|_| tag.malformed(path, format!("sample id {id}")))?,
            label: string("label"),
        },
        ("pause", _) => LogEvent::Pause {
            at_ns: since_start,
            name: tag.get("name").map(str::to_owned),
        },
        ("resume", _) => LogEvent::Resume { at_ns: since_start },
        ("comment", id) if id == comment => LogEvent::Comment {
            at_ns: since_start,
            text,
        },
        ("cwarn", id) if id == warning => LogEvent::Warning {
            at_ns: since_start,
            text,
        },
        ("cerror", id) if id == warning => LogEvent::Error {
            at_ns: since_start,
            text,
            errno: signed("ec")?
                .and_then(|ec| ec.try_into().ok())
                .unwrap_or_default(),
        },
        ("desc_start", _) => LogEvent::DescStart(descendant()?),
        ("desc_started", _) => LogEvent::DescStarted(descendant()?),
        (kind, _) => LogEvent::Other {
            kind: kind.to_owned(),
            attributes: others(tag, &["kind"]),
            text,
        },
    })
}

/// The attributes with any other name.
fn others(tag: &Tag, names: &[&str]) -> Vec<(String, String)> {
    let mut attributes = tag.attributes.clone();
    attributes.retain(|(name, _)| !names.contains(&name.as_str()));
    attributes
}

/// Refuses data that this crate does not read.
pub(crate) fn check(path: &Path, header: &LogHeader) -> Result<()> {
    let what = match (integer(&header.version), header.system.arch.as_str()) {
        (None | Some(..12), _) => {
            format!("format version {:?}; 12 and later are read", header.version)
        }
        (_, "x86_64" | "i86pc" | "i686" | "aarch64") => return Ok(()),
        (_, arch) => {
            format!("data of {arch:?}, which are read as big-endian; this is not supported")
        }
    };
    Err(Error::Malformed {
        path: path.to_owned(),
        offset: 0,
        what,
    })
}

#[cfg(test)]
mod tests;
