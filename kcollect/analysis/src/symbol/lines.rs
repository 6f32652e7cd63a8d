//! From addresses to source lines and inlined functions, by the tables of one file.
//!
//! The work is addr2line's. What is ours is that it ends: see [`super::meter`].

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use addr2line::Context;
use gimli::{AbbreviationsCacheStrategy, DwarfSections, RunTimeEndian, SectionId};

use super::elf::{Damaged, Elf, Room};
use super::meter::{Meter, Metered};
use super::{SourceFrame, SymbolError};

/// Looking up all addresses of one object takes so long at most. It is looked at between two of
/// them: units that all claim the same addresses are visited without reading anything again, and so
/// for free by the meter.
const LONGEST: Duration = Duration::from_secs(120);
/// A longer name or path is cut, bytes.
const LONGEST_NAME: usize = 64 << 10;

/// The tables of one file that lines and inlined functions need; empty where it has none.
pub(super) type Tables = DwarfSections<Vec<u8>>;

/// Reads them.
pub(super) fn tables(elf: &Elf, room: &mut Room) -> Result<Tables, Damaged> {
    DwarfSections::load(|id| match id {
        SectionId::DebugAbbrev
        | SectionId::DebugAddr
        | SectionId::DebugAranges
        | SectionId::DebugInfo
        | SectionId::DebugLine
        | SectionId::DebugLineStr
        | SectionId::DebugRanges
        | SectionId::DebugRngLists
        | SectionId::DebugStr
        | SectionId::DebugStrOffsets => elf.section(id.name(), room),
        // Variables, types and macros are not asked for, and are most of the rest.
        _ => Ok(Vec::new()),
    })
}

/// What `addresses` are, in their order; sorted ones share what is read. `alternative` has the
/// tables that dwz moved into a common file. What is not known has no frames.
pub(super) fn resolve(
    tables: &Tables,
    alternative: Option<&Tables>,
    endian: RunTimeEndian,
    addresses: impl Iterator<Item = Option<u64>>,
) -> (Vec<Vec<SourceFrame>>, Option<SymbolError>) {
    let meter = Meter::new(bytes(tables) + alternative.map_or(0, bytes));
    let mut dwarf =
        tables.borrow_with_sup(alternative, |bytes| Metered::new(bytes, endian, &meter));
    dwarf.populate_abbreviations_cache(AbbreviationsCacheStrategy::Duplicates);
    let context = match Context::from_dwarf(dwarf) {
        Ok(context) => context,
        Err(_) if meter.stopped() => return unknown(addresses, SymbolError::TooMuchWork),
        Err(_) => return unknown(addresses, DAMAGED),
    };
    let mut shared = Shared::default();
    let begin = Instant::now();
    let mut lack = None;
    let frames = addresses.map(|address| {
        // addr2line asks for what ends one byte behind it, which has no number for the last of all.
        let Some(address) = address.filter(|address| *address < u64::MAX) else {
            return Vec::new();
        };
        if meter.is_empty() || begin.elapsed() > LONGEST {
            lack = Some(SymbolError::TooMuchWork);
            return Vec::new();
        }
        frames_at(&context, address, &mut shared).unwrap_or_else(|_| {
            lack = lack.take().or(Some(DAMAGED));
            // The entries of its functions are damaged; its lines may be whole.
            let location = context.find_location(address).ok().flatten();
            let frame = location.map(|location| shared.frame(None, Some(location)));
            frame.into_iter().collect()
        })
    });
    let frames = frames.collect();
    if meter.stopped() {
        lack = Some(SymbolError::TooMuchWork);
    }
    (frames, lack)
}

const DAMAGED: SymbolError = SymbolError::Damaged("has damaged debug information");

fn unknown(
    addresses: impl Iterator<Item = Option<u64>>,
    lack: SymbolError,
) -> (Vec<Vec<SourceFrame>>, Option<SymbolError>) {
    (addresses.map(|_| Vec::new()).collect(), Some(lack))
}

fn bytes(tables: &Tables) -> u64 {
    let mut bytes = 0;
    let _ = tables.borrow(|table| {
        bytes += table.len() as u64;
        gimli::EndianSlice::new(&table[..0], RunTimeEndian::Little)
    });
    bytes
}

fn frames_at(
    context: &Context<Metered<'_>>,
    address: u64,
    shared: &mut Shared,
) -> Result<Vec<SourceFrame>, gimli::Error> {
    // Debug information split into .dwo files is not looked for: what the program itself has is its
    // lines.
    let mut found = context.find_frames(address).skip_all_loads()?;
    let mut frames = Vec::new();
    while let Some(frame) = found.next()? {
        let name = frame.function.as_ref().map(|name| name.raw_name());
        frames.push(shared.frame(name.transpose()?.as_deref(), frame.location));
    }
    Ok(frames)
}

/// Names and paths, each once.
#[derive(Default)]
struct Shared(HashSet<Arc<str>>);

impl Shared {
    fn frame(
        &mut self,
        function: Option<&str>,
        at: Option<addr2line::Location<'_>>,
    ) -> SourceFrame {
        let location = at.as_ref();
        SourceFrame {
            function: function.map(|name| self.text(name)),
            file: location.and_then(|at| at.file).map(|file| self.text(file)),
            line: location.and_then(|at| at.line),
            column: location
                .and_then(|at| at.column)
                .filter(|column| *column != 0),
        }
    }

    fn text(&mut self, text: &str) -> Arc<str> {
        let end = (0..=text.len().min(LONGEST_NAME)).rev();
        let text = &text[..end
            .into_iter()
            .find(|end| text.is_char_boundary(*end))
            .unwrap_or(0)];
        if let Some(known) = self.0.get(text) {
            return Arc::clone(known);
        }
        let text: Arc<str> = text.into();
        self.0.insert(Arc::clone(&text));
        text
    }
}
