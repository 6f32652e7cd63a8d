//! `map.xml`: what was mapped where in the address space, and when.
//!
//! gprofng replays these events into an index of (address, time), with which it finds the function
//! of an address in a stack. In this file sizes are decimal numbers below 2^31, addresses are
//! hexadecimal, and an event without its `object` attribute crashes gprofng. Only this module
//! writes and reads the file, so these rules are kept in one place.

use std::iter;
use std::path::Path;

use crate::Result;
use crate::error::Error;
use crate::log::encode::checked_time;
use crate::units::Nanos;
use crate::xml::number::{integer, time, unsigned};
use crate::xml::parse::{Item, Parser, Tag};
use crate::xml::write::Element;

/// The only access modes with which gprofng 2.40 accepts the first segment of an object:
/// read and execute.
pub const READ_EXECUTE: u32 = 5;

/// An event of `map.xml`. It may be written later than the packets whose stacks need it.
///
/// gprofng keeps an old object that a new one overlaps: write a [`MapEvent::Unmap`] first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MapEvent {
    /// A part of a file was mapped.
    Segment {
        /// The time, nanoseconds since the start of the experiment.
        at_ns: Nanos,
        /// Its first address.
        vaddr: u64,
        /// Its size in bytes. A segment of 2 GiB or more is written as several.
        size: u64,
        /// The offset of the part in the file, in bytes.
        file_offset: u64,
        /// Access modes: 1 read, 2 write, 4 execute. Write [`READ_EXECUTE`].
        modes: u32,
        /// The load object. All experiments of a session share one namespace: two files of one path
        /// need two names. gprofng never opens a file whose name has a back-quote.
        name: String,
    },
    /// A dynamic function was mapped; or a group of them is complete, after its
    /// [`MapEvent::DynamicFunction`] events.
    Function {
        /// The time, nanoseconds since the start of the experiment.
        at_ns: Nanos,
        /// Its first address.
        vaddr: u64,
        /// Its size in bytes, below 2 GiB.
        size: u64,
        /// Its name.
        name: String,
    },
    /// One function of a group.
    DynamicFunction {
        /// The time, nanoseconds since the start of the experiment.
        at_ns: Nanos,
        /// Its first address.
        vaddr: u64,
        /// Its size in bytes, below 2 GiB.
        size: u64,
        /// The group, for instance `[vdso]`.
        group: String,
        /// Its name.
        name: String,
    },
    /// A Java method was compiled.
    JavaMethod {
        /// The time, nanoseconds since the start of the experiment.
        at_ns: Nanos,
        /// Its first address.
        vaddr: u64,
        /// Its size in bytes, below 2 GiB.
        size: u64,
        /// The number of the method in `jclasses`.
        method: u64,
    },
    /// The mapping that begins at this address ended.
    Unmap {
        /// The time, nanoseconds since the start of the experiment.
        at_ns: Nanos,
        /// Its first address.
        vaddr: u64,
    },
}

/// The largest size: gprofng reads sizes as signed 32-bit numbers.
const MAX_SIZE_BYTES: u64 = (1 << 31) - 1;
/// Larger segments are split into pieces of this size, which keeps them aligned.
const PIECE_BYTES: u64 = 1 << 30;

impl MapEvent {
    /// Returns the time of the event, in nanoseconds since the start.
    pub fn at_ns(&self) -> Nanos {
        match self {
            MapEvent::Segment { at_ns, .. }
            | MapEvent::Function { at_ns, .. }
            | MapEvent::DynamicFunction { at_ns, .. }
            | MapEvent::JavaMethod { at_ns, .. }
            | MapEvent::Unmap { at_ns, .. } => *at_ns,
        }
    }

    /// Returns the elements of the event: one, or several for a large segment.
    pub(crate) fn encode(&self) -> Result<String> {
        let mut out = String::new();
        match self {
            MapEvent::Segment {
                at_ns,
                vaddr,
                size,
                file_offset,
                modes,
                name,
            } => {
                for (done, piece) in pieces(*vaddr, *size, *file_offset)? {
                    map(&mut out, "segment", *at_ns)?
                        .number("vaddr", format_args!("{:#x}", vaddr + done))
                        .number("size", piece)
                        .number("foffset", format_args!("{:#x}", file_offset + done))
                        .number("modes", format_args!("{modes:#05x}"))
                        .number("chksum", "0x0")
                        .attribute("name", name)
                        .end();
                }
            }
            MapEvent::Function {
                at_ns,
                vaddr,
                size,
                name,
            } => map(&mut out, "function", *at_ns)?
                .number("vaddr", format_args!("{vaddr:#x}"))
                .number("size", small(*size)?)
                .attribute("name", name)
                .end(),
            MapEvent::DynamicFunction {
                at_ns,
                vaddr,
                size,
                group,
                name,
            } => {
                map(&mut out, "dynfunc", *at_ns)?
                    .attribute("name", group)
                    .number("vaddr", format_args!("{vaddr:#x}"))
                    .number("size", small(*size)?)
                    .attribute("funcname", name)
                    .end();
            }
            MapEvent::JavaMethod {
                at_ns,
                vaddr,
                size,
                method,
            } => map(&mut out, "jcm", *at_ns)?
                .number("vaddr", format_args!("{vaddr:#x}"))
                .number("size", small(*size)?)
                .number("methodId", format_args!("{method:#x}"))
                .end(),
            MapEvent::Unmap { at_ns, vaddr } => Element::begin(&mut out, "event")
                .attribute("kind", "unmap")
                .time("tstamp", checked_time("map.xml", *at_ns)?)
                .number("vaddr", format_args!("{vaddr:#x}"))
                .end(),
        }
        Ok(out)
    }
}

/// Returns the pieces of a segment that the file can hold: offset in the segment, and bytes.
fn pieces(vaddr: u64, size: u64, file_offset: u64) -> Result<impl Iterator<Item = (u64, u64)>> {
    let end = vaddr.checked_add(size.saturating_sub(1));
    if end.is_none() || file_offset.checked_add(size).is_none() {
        return Err(refused(format!(
            "a segment of {size} bytes at {vaddr:#x}, file offset {file_offset:#x}"
        )));
    }
    let mut next = Some(0);
    Ok(iter::from_fn(move || {
        let done = next?;
        let piece = match size - done {
            rest if rest > MAX_SIZE_BYTES => PIECE_BYTES,
            rest => rest,
        };
        next = Some(done + piece).filter(|done| *done < size);
        Some((done, piece))
    }))
}

/// Begins a `map` event.
fn map<'a>(out: &'a mut String, object: &str, at_ns: Nanos) -> Result<Element<'a>> {
    Ok(Element::begin(out, "event")
        .attribute("kind", "map")
        .attribute("object", object)
        .time("tstamp", checked_time("map.xml", at_ns)?))
}

/// Refuses a function that is too large for the file.
fn small(size: u64) -> Result<u64> {
    if size > MAX_SIZE_BYTES {
        return Err(refused(format!("a function of {size} bytes")));
    }
    Ok(size)
}

/// Returns the error of a value that the file cannot hold.
fn refused(what: String) -> Error {
    Error::unwritable("map.xml", what)
}

/// Returns the events of the file at `path`, whose content is `bytes`, in the file's order. Skips
/// other elements and unknown kinds of objects.
pub(crate) fn decode(path: &Path, bytes: &[u8]) -> Result<Vec<MapEvent>> {
    let mut parser = Parser::new(path, bytes);
    let mut events = Vec::new();
    while let Some(item) = parser.next()? {
        match item {
            Item::Begin(tag) if tag.name == "event" => events.extend(event(path, &tag)?),
            _ => {}
        }
    }
    Ok(events)
}

/// Returns the event of a tag; None for a kind that is not known.
fn event(path: &Path, tag: &Tag) -> Result<Option<MapEvent>> {
    let at_ns = tag.parsed(path, "tstamp", time)?.unwrap_or_default();
    let missing = |name: &str| tag.malformed(path, format!("a mapping without {name}"));
    let vaddr = || {
        tag.parsed(path, "vaddr", unsigned)?
            .ok_or_else(|| missing("vaddr"))
    };
    let natural = |text: &str| integer(text)?.try_into().ok();
    let size = || {
        tag.parsed(path, "size", natural)?
            .ok_or_else(|| missing("size"))
    };
    let text = |name: &str| {
        tag.get(name)
            .map(str::to_owned)
            .ok_or_else(|| missing(name))
    };
    let event = match tag.get("kind") {
        Some("unmap") => MapEvent::Unmap {
            at_ns,
            vaddr: vaddr()?,
        },
        Some("map") => match tag.get("object") {
            Some("segment") => MapEvent::Segment {
                at_ns,
                vaddr: vaddr()?,
                size: size()?,
                file_offset: tag.parsed(path, "foffset", unsigned)?.unwrap_or_default(),
                modes: tag
                    .parsed(path, "modes", |text| unsigned(text)?.try_into().ok())?
                    .unwrap_or_default(),
                name: text("name")?,
            },
            Some("function") => MapEvent::Function {
                at_ns,
                vaddr: vaddr()?,
                size: size()?,
                name: text("name")?,
            },
            Some("dynfunc") => MapEvent::DynamicFunction {
                at_ns,
                vaddr: vaddr()?,
                size: size()?,
                group: text("name")?,
                name: text("funcname")?,
            },
            Some("jcm") => MapEvent::JavaMethod {
                at_ns,
                vaddr: vaddr()?,
                size: size()?,
                method: tag
                    .parsed(path, "methodId", unsigned)?
                    .ok_or_else(|| missing("methodId"))?,
            },
            Some(_) => return Ok(None),
            None => return Err(missing("object")),
        },
        _ => return Ok(None),
    };
    Ok(Some(event))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn segment(vaddr: u64, size: u64, file_offset: u64) -> MapEvent {
        MapEvent::Segment {
            at_ns: Nanos(1_500_000_000),
            vaddr,
            size,
            file_offset,
            modes: READ_EXECUTE,
            name: "<k>".into(),
        }
    }

    #[test]
    fn a_segment_has_a_decimal_size_and_modes_5() {
        assert_eq!(
            segment(0xffff_ffff_8100_0000, 14_680_064, 0x1000)
                .encode()
                .unwrap(),
            "<event kind=\"map\" object=\"segment\" tstamp=\"1.500000000\" \
             vaddr=\"0xffffffff81000000\" size=\"14680064\" foffset=\"0x1000\" modes=\"0x005\" \
             chksum=\"0x0\" name=\"&lt;k&gt;\"/>\n"
        );
    }

    #[test]
    fn a_segment_above_2_gib_becomes_several() {
        let text = segment(0x1000, (5 << 30) + 17, 0x40).encode().unwrap();
        let sizes: Vec<u64> = text
            .lines()
            .map(|line| line.split("size=\"").nth(1).unwrap())
            .map(|rest| rest.split('"').next().unwrap().parse().unwrap())
            .collect();
        assert!(sizes.iter().all(|size| *size <= MAX_SIZE_BYTES));
        assert_eq!(sizes.iter().sum::<u64>(), (5 << 30) + 17);
        assert!(text.contains("vaddr=\"0x40001000\""), "{text}");
        assert!(text.contains("foffset=\"0x40000040\""), "{text}");
    }

    #[test]
    fn values_that_do_not_fit_are_refused() {
        assert!(segment(u64::MAX, 2, 0).encode().is_err());
        assert!(segment(u64::MAX, 1, 0).encode().is_ok());
        assert!(segment(0, 2, u64::MAX).encode().is_err());
        let function = MapEvent::Function {
            at_ns: Nanos::ZERO,
            vaddr: 0,
            size: 1 << 31,
            name: String::new(),
        };
        assert!(function.encode().is_err());
    }

    fn read(text: &str) -> Result<Vec<MapEvent>> {
        decode(Path::new("map.xml"), text.as_bytes())
    }

    #[test]
    fn the_events_of_libcollector_are_read() {
        let text = "<event kind=\"map\" object=\"segment\" tstamp=\"0.000272190\" \
                    vaddr=\"0x0000559CB029D000\" size=\"90112\" pagesz=\"4096\" \
                    foffset=\"+0x00004000\" modes=\"0x003\" chksum=\"0xFFFFFFFF\" \
                    name=\"/usr/bin/ls\"/>\n\
                    <event kind=\"map\" object=\"dynfunc\" name=\"[vdso]\" vaddr=\"0x10\" size=\"40\" \
                    funcname=\"__vdso_time\" />\n<event kind=\"map\" object=\"new\"/>\n\0\0";
        assert_eq!(
            read(text).unwrap(),
            [
                MapEvent::Segment {
                    at_ns: Nanos(272_190),
                    vaddr: 0x559c_b029_d000,
                    size: 90112,
                    file_offset: 0x4000,
                    modes: 3,
                    name: "/usr/bin/ls".into()
                },
                MapEvent::DynamicFunction {
                    at_ns: Nanos::ZERO,
                    vaddr: 0x10,
                    size: 40,
                    group: "[vdso]".into(),
                    name: "__vdso_time".into()
                },
            ]
        );
    }

    #[test]
    fn errors_are_placed() {
        for text in [
            "<event kind=\"map\" vaddr=\"1\"/>\n",
            "<event kind=\"unmap\"/>\n",
            "<event kind=\"map\" object=\"function\" vaddr=\"1\" size=\"-1\" name=\"x\"/>\n",
        ] {
            let text = format!("\n{text}");
            assert!(
                matches!(read(&text), Err(Error::Malformed { offset: 1, .. })),
                "{text}"
            );
        }
    }

    fn events() -> impl Strategy<Value = MapEvent> {
        let at_ns = 0..(1u64 << 31) * 1_000_000_000;
        let small = || 0..=MAX_SIZE_BYTES;
        let name = || any::<String>();
        let rest = (
            any::<u64>(),
            small(),
            any::<u32>(),
            name(),
            name(),
            0u64..0x1_0000_0000,
        );
        (at_ns, 0..5, rest).prop_map(
            |(at_ns, kind, (vaddr, size, modes, name, group, file_offset))| match kind {
                0 => MapEvent::Segment {
                    at_ns: Nanos(at_ns),
                    vaddr: vaddr >> 1,
                    size,
                    file_offset,
                    modes,
                    name,
                },
                1 => MapEvent::Function {
                    at_ns: Nanos(at_ns),
                    vaddr,
                    size,
                    name,
                },
                2 => MapEvent::DynamicFunction {
                    at_ns: Nanos(at_ns),
                    vaddr,
                    size,
                    group,
                    name,
                },
                3 => MapEvent::JavaMethod {
                    at_ns: Nanos(at_ns),
                    vaddr,
                    size,
                    method: vaddr,
                },
                _ => MapEvent::Unmap {
                    at_ns: Nanos(at_ns),
                    vaddr,
                },
            },
        )
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(events in prop::collection::vec(events(), 0..8)) {
            let mut text = String::new();
            for event in &events {
                text += &event.encode().unwrap();
            }
            text.push('\n');
            prop_assert_eq!(read(&text).unwrap(), events);
        }

        #[test]
        fn any_bytes_end(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = decode(Path::new("map.xml"), &bytes);
        }
    }
}
