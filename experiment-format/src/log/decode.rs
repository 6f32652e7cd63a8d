//! What a file says of a header and of events.
//!
//! Elements and attributes that mean nothing here are passed over, as gprofng does: the files of
//! other collectors hold more than ours. A number that is none, and an XML that gprofng would stop
//! at, are errors.

use std::path::Path;

use crate::Result;
use crate::error::Error;
use crate::log::{
    Cpu, Descendant, Header, LogEvent, ProfileDecl, Run, Setting, VERBATIM_COMMENT,
    VERBATIM_WARNING, WordSize,
};
use crate::microstate::NumStates;
use crate::packet::{FieldDecl, FieldType, PacketDecl};
use crate::xml::{Item, Parser, Tag, integer, time};

/// All that a `log.xml`, or a `warnings.xml`, says.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Log {
    /// The header. Comments that stand before the start belong to it.
    pub(crate) header: Header,
    /// The start, if there is one.
    pub(crate) run: Option<Run>,
    /// The other events, in the file's order, from the start on.
    pub(crate) events: Vec<LogEvent>,
}

/// An element that is open.
enum Open {
    Collector,
    Process,
    Profile,
    Event(Tag, String),
    Other,
}

/// Reads the file at `path`, whose content is `bytes`.
pub(crate) fn decode(path: &Path, bytes: &[u8]) -> Result<Log> {
    let mut log = Log::default();
    log.header.version.clear();
    let mut parser = Parser::new(path, bytes);
    let mut open = Vec::new();
    // The table that packets outside of a `profile` element are for.
    let mut table: Option<String> = None;
    while let Some(item) = parser.next()? {
        match item {
            Item::Begin(tag) => {
                let in_profile = open.iter().any(|open| matches!(open, Open::Profile));
                if tag.name == "profdata" && !in_profile {
                    table = tag.get("fname").map(str::to_owned);
                }
                if tag.name == "profpckt" && !in_profile {
                    let Some(name) = table.clone() else {
                        return Err(tag.malformed(path, "a packet declared outside of a profile"));
                    };
                    let (attributes, packets) = (Vec::new(), Vec::new());
                    log.header.profiles.push(ProfileDecl::Other {
                        name,
                        attributes,
                        packets,
                    });
                }
                open.push(begin(path, tag, &mut log.header)?);
            }
            Item::Text(text) => match open.last_mut() {
                Some(Open::Collector) => log.header.collector = text,
                Some(Open::Process) => log.header.command_line = text,
                Some(Open::Event(_, inside)) => inside.push_str(&text),
                _ => {}
            },
            Item::End => {
                if let Some(Open::Event(tag, text)) = open.pop() {
                    log.add(event(path, &tag, text)?);
                }
            }
        }
    }
    Ok(log)
}

impl Log {
    fn add(&mut self, event: LogEvent) {
        match event {
            // The start may be repeated, with the same values.
            LogEvent::Run(run) => {
                self.run.get_or_insert(run);
            }
            LogEvent::Comment { at: 0, text } if self.run.is_none() => {
                self.header.comments.push(text);
            }
            other => self.events.push(other),
        }
    }
}

fn begin(path: &Path, tag: Tag, header: &mut Header) -> Result<Open> {
    let unsigned = |name: &str| tag.parsed(path, name, |text| u32::try_from(integer(text)?).ok());
    match tag.name.as_str() {
        "experiment" => header.version = tag.get("version").unwrap_or_default().to_owned(),
        "collector" => return Ok(Open::Collector),
        "system" => {
            let text = |name: &str| tag.get(name).unwrap_or_default().to_owned();
            header.system.hostname = text("hostname");
            header.system.arch = text("arch");
            header.system.page_size = unsigned("pagesz")?.unwrap_or_default();
            let pages = tag.parsed(path, "npages", |text| u64::try_from(integer(text)?).ok())?;
            header.system.pages = pages.unwrap_or_default();
        }
        "cpu" => header.system.cpus.push(Cpu {
            id: unsigned("id")?.unwrap_or_default(),
            mhz: unsigned("clk")?.unwrap_or_default(),
        }),
        "process" => {
            header.pid = unsigned("pid")?.unwrap_or(header.pid);
            header.ppid = unsigned("ppid")?.or(header.ppid);
            match tag.get("wsize") {
                Some("32") => header.word_size = WordSize::Bits32,
                Some("64") => header.word_size = WordSize::Bits64,
                Some(other) => {
                    return Err(tag.malformed(path, format!("word size {other:?}")));
                }
                None => {}
            }
            return Ok(Open::Process);
        }
        "setting" => {
            for (name, value) in &tag.attributes {
                header.settings.push(setting(name, value));
            }
        }
        "profile" => {
            match tag.get("name") {
                Some("dversion") => {
                    header.driver_version = tag.get("version").map(str::to_owned);
                }
                Some("profile") => header.profiles.push(ProfileDecl::Clock {
                    tick_us: unsigned("ptimer")?.unwrap_or_default(),
                    states: NumStates::from_number(
                        tag.parsed(path, "numstates", |text| integer(text)?.try_into().ok())?
                            .unwrap_or_default(),
                    ),
                    packets: Vec::new(),
                }),
                name => header.profiles.push(ProfileDecl::Other {
                    name: name.unwrap_or_default().to_owned(),
                    attributes: others(&tag, &["name"]),
                    packets: Vec::new(),
                }),
            }
            return Ok(Open::Profile);
        }
        "profpckt" => {
            let kind = tag.parsed(path, "kind", |text| u16::try_from(integer(text)?).ok())?;
            let kind = kind.ok_or_else(|| tag.malformed(path, "a packet without a kind"))?;
            let uname = tag.get("uname").unwrap_or_default().to_owned();
            if let Some(packets) = header.profiles.last_mut().map(ProfileDecl::packets_mut) {
                packets.push(PacketDecl {
                    kind,
                    uname,
                    fields: Vec::new(),
                });
            }
        }
        "field" => {
            let packets = header.profiles.last_mut().map(ProfileDecl::packets_mut);
            let Some(packet) = packets.and_then(|packets| packets.last_mut()) else {
                return Err(tag.malformed(path, "a field outside of a packet"));
            };
            packet.fields.push(field(path, &tag, unsigned("offset")?)?);
        }
        "event" => return Ok(Open::Event(tag, String::new())),
        _ => {}
    }
    Ok(Open::Other)
}

fn field(path: &Path, tag: &Tag, offset: Option<u32>) -> Result<FieldDecl> {
    let kind = tag.get("type").and_then(FieldType::from_keyword);
    Ok(FieldDecl {
        name: tag.get("name").unwrap_or_default().to_owned(),
        uname: tag.get("uname").unwrap_or_default().to_owned(),
        kind: kind.ok_or_else(|| tag.malformed(path, "a field of unknown type"))?,
        offset: offset.ok_or_else(|| tag.malformed(path, "a field without an offset"))?,
    })
}

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

fn event(path: &Path, tag: &Tag, text: String) -> Result<LogEvent> {
    let at = tag.parsed(path, "tstamp", time)?;
    let signed = |name: &str| tag.parsed(path, name, integer);
    let string = |name: &str| tag.get(name).unwrap_or_default().to_owned();
    let id = signed("id")?.unwrap_or_default();
    let since_start = at.unwrap_or_default();
    let descendant = || -> Result<Descendant> {
        Ok(Descendant {
            at: since_start,
            variant: string("variant"),
            lineage: string("lineage"),
            follow: signed("follow")?.unwrap_or_default() != 0,
            message: string("msg"),
        })
    };
    let (warning, comment) = (i64::from(VERBATIM_WARNING), i64::from(VERBATIM_COMMENT));
    Ok(match (tag.get("kind").unwrap_or_default(), id) {
        ("run", _) => LogEvent::Run(Run {
            tstamp: at.ok_or_else(|| tag.malformed(path, "a start without its time"))?,
            wall: signed("time")?.unwrap_or_default(),
            tm_zone: signed("tm_zone")?.unwrap_or_default(),
        }),
        ("exit", _) => LogEvent::Exit { at: since_start },
        ("sample", _) => LogEvent::Sample {
            at: since_start,
            id: u32::try_from(id).map_err(|_| tag.malformed(path, format!("sample id {id}")))?,
            label: string("label"),
        },
        ("pause", _) => LogEvent::Pause {
            at: since_start,
            name: tag.get("name").map(str::to_owned),
        },
        ("resume", _) => LogEvent::Resume { at: since_start },
        ("comment", id) if id == comment => LogEvent::Comment {
            at: since_start,
            text,
        },
        ("cwarn", id) if id == warning => LogEvent::Warning {
            at: since_start,
            text,
        },
        ("cerror", id) if id == warning => LogEvent::Error {
            at: since_start,
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

/// The attributes without those of these names.
fn others(tag: &Tag, names: &[&str]) -> Vec<(String, String)> {
    let mut attributes = tag.attributes.clone();
    attributes.retain(|(name, _)| !names.contains(&name.as_str()));
    attributes
}

/// An error if data were recorded in a way that this crate does not read.
pub(crate) fn check(path: &Path, header: &Header) -> Result<()> {
    let what = match (integer(&header.version), header.system.arch.as_str()) {
        (None | Some(..12), _) => {
            format!("format version {:?}; 12 and later are read", header.version)
        }
        (_, "x86_64" | "i86pc" | "i686" | "aarch64") => return Ok(()),
        (_, arch) => format!("data of {arch:?}, which count as big-endian; they are not read"),
    };
    Err(Error::Malformed {
        path: path.to_owned(),
        offset: 0,
        what,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::System;
    use proptest::prelude::*;

    fn read(text: &str) -> Result<Log> {
        decode(Path::new("log.xml"), text.as_bytes())
    }

    fn text() -> impl Strategy<Value = String> {
        // Text of blanks alone is dropped by the format.
        "\\PC{0,20}x"
    }

    fn packets() -> impl Strategy<Value = Vec<PacketDecl>> {
        let kinds = prop::sample::select(vec![
            FieldType::Int32,
            FieldType::Uint64,
            FieldType::String,
            FieldType::Date,
        ]);
        let field =
            (text(), text(), kinds, any::<u16>()).prop_map(|(name, uname, kind, offset)| {
                FieldDecl {
                    name,
                    uname,
                    kind,
                    offset: offset.into(),
                }
            });
        // Tick arrays, of kind 1, make demands on the tables around them.
        let packet = (2u16.., text(), prop::collection::vec(field, 0..4)).prop_map(
            |(kind, uname, fields)| PacketDecl {
                kind,
                uname,
                fields,
            },
        );
        prop::collection::vec(packet, 0..3)
    }

    fn header() -> impl Strategy<Value = Header> {
        let cpu = (any::<u16>(), any::<u16>()).prop_map(|(id, mhz)| Cpu {
            id: id.into(),
            mhz: mhz.into(),
        });
        let system = (
            text(),
            any::<u16>(),
            any::<u32>(),
            prop::collection::vec(cpu, 0..4),
        )
            .prop_map(|(hostname, page_size, pages, cpus)| System {
                hostname,
                arch: "aarch64".into(),
                page_size: page_size.into(),
                pages: pages.into(),
                cpus,
            });
        let clock = |tick_us| {
            (any::<i16>(), packets()).prop_map(move |(states, packets)| {
                let states = NumStates::from_number(states.into());
                ProfileDecl::Clock {
                    tick_us,
                    states,
                    packets,
                }
            })
        };
        let other = || {
            ("[a-z]{1,5}x", text(), packets()).prop_map(|(name, value, packets)| {
                let attributes = vec![("interval".to_owned(), value)];
                ProfileDecl::Other {
                    name,
                    attributes,
                    packets,
                }
            })
        };
        let profiles = any::<u16>().prop_flat_map(move |tick_us| {
            prop::collection::vec(prop_oneof![clock(tick_us.into()), other()], 0..4)
        });
        let setting = prop_oneof![
            Just(Setting::NoIdle),
            any::<u32>().prop_map(|n| Setting::Limit(n.into())),
            any::<u32>().prop_map(Setting::SamplePeriod),
            any::<u32>().prop_map(Setting::DelayStart),
            any::<u32>().prop_map(Setting::Terminate),
            any::<u32>().prop_map(Setting::PauseSignal),
            text().prop_map(Setting::LineTrace),
        ];
        let settings = prop::collection::vec(setting, 0..5);
        let rest = (
            text(),
            prop::option::of(text()),
            prop::collection::vec(text(), 0..3),
        );
        (
            system,
            any::<u32>(),
            prop::option::of(any::<u32>()),
            profiles,
            settings,
            rest,
        )
            .prop_map(
                |(
                    system,
                    pid,
                    ppid,
                    profiles,
                    settings,
                    (command_line, driver_version, comments),
                )| {
                    Header {
                        collector: command_line.clone(),
                        system,
                        pid,
                        ppid,
                        command_line,
                        profiles,
                        driver_version,
                        settings,
                        comments,
                        ..Header::default()
                    }
                },
            )
    }

    fn events() -> impl Strategy<Value = LogEvent> {
        let at = || 0..(1u64 << 31) * 1_000_000_000;
        let descendant = || {
            (at(), text(), text(), any::<bool>(), text()).prop_map(
                |(at, variant, lineage, follow, message)| Descendant {
                    at,
                    variant,
                    lineage,
                    follow,
                    message,
                },
            )
        };
        prop_oneof![
            at().prop_map(|at| LogEvent::Exit { at }),
            (at(), any::<u32>(), text()).prop_map(|(at, id, label)| LogEvent::Sample {
                at,
                id,
                label
            }),
            (at(), prop::option::of(text())).prop_map(|(at, name)| LogEvent::Pause { at, name }),
            at().prop_map(|at| LogEvent::Resume { at }),
            (at(), text()).prop_map(|(at, text)| LogEvent::Comment { at, text }),
            (at(), text()).prop_map(|(at, text)| LogEvent::Warning { at, text }),
            (at(), text(), any::<i32>()).prop_map(|(at, text, errno)| LogEvent::Error {
                at,
                text,
                errno
            }),
            descendant().prop_map(LogEvent::DescStart),
            descendant().prop_map(LogEvent::DescStarted),
            (text(), text()).prop_map(|(value, text)| LogEvent::Other {
                kind: "gc_start".into(),
                attributes: vec![("tid".into(), value)],
                text,
            }),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn what_is_encoded_is_decoded(
            header in header(),
            tstamp in 0..(1u64 << 31) * 1_000_000_000,
            wall: i32,
            events in prop::collection::vec(events(), 0..10),
        ) {
            let run = Run { tstamp, wall: wall.into(), tm_zone: -3600 };
            let mut text = header.encode().unwrap() + &LogEvent::Run(run).encode().unwrap();
            for event in &events {
                text += &event.encode().unwrap();
            }
            text.push('\n');
            let log = read(&text).unwrap();
            prop_assert_eq!(log.header, header);
            prop_assert_eq!(log.run, Some(run));
            prop_assert_eq!(log.events, events);
        }

        #[test]
        fn any_elements_are_read_or_refused(
            text in "(<(/?(event|profile|profpckt|field|process|system|setting))( (kind|id|tstamp|offset|type|name)=\"[a-z0-9.]{0,5}\"){0,3}/?>\n?){0,8}"
        ) {
            let _ = read(&text);
        }
    }

    #[test]
    fn a_cut_between_events_loses_the_rest_and_one_inside_is_an_error() {
        let header = Header {
            system: System {
                arch: "x86_64".into(),
                ..System::default()
            },
            ..Header::default()
        };
        let mut text = header.encode().unwrap();
        text += &LogEvent::Run(Run::default()).encode().unwrap();
        let begin = text.len();
        for at in 1..4 {
            text += &LogEvent::Comment {
                at,
                text: "x".into(),
            }
            .encode()
            .unwrap();
        }
        for cut in begin..text.len() {
            let whole = text[begin..cut].matches('\n').count();
            match read(&text[..cut]) {
                Ok(log) => assert_eq!(log.events.len(), whole, "cut at {cut}"),
                Err(Error::Malformed { offset, .. }) => assert!(offset >= begin as u64),
                Err(other) => panic!("{other}"),
            }
        }
    }

    #[test]
    fn what_the_format_says_of_old_and_foreign_data() {
        let with = |version: &str, arch: &str| Header {
            version: version.into(),
            system: System {
                arch: arch.into(),
                ..System::default()
            },
            ..Header::default()
        };
        let check = |header: Header| check(Path::new("log.xml"), &header).is_ok();
        assert!(check(with("12.4", "x86_64")) && check(with("13", "aarch64")));
        assert!(!check(with("11.9", "x86_64")) && !check(with("", "x86_64")));
        assert!(!check(with("12.4", "sparc")) && !check(with("12.4", "riscv64")));
    }

    #[test]
    fn errors_are_placed() {
        for (text, offset) in [
            ("<event kind=\"run\"/>\n", 0),
            ("<process/>\n<event kind=\"exit\" tstamp=\"soon\"/>\n", 11),
            ("<profpckt kind=\"8\"/>\n", 0),
            ("<field offset=\"8\" type=\"INT32\"/>\n", 0),
            (
                "<profile name=\"profile\">\n<profpckt kind=\"70000\"/>\n",
                25,
            ),
        ] {
            match read(text) {
                Err(Error::Malformed { offset: found, .. }) => assert_eq!(found, offset, "{text}"),
                other => panic!("{text}: {other:?}"),
            }
        }
    }
}
