//! Resolves addresses to source lines and inlined functions, by the tables of one file.
//!
//! addr2line does the work; [`super::meter`] bounds it.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use addr2line::{Context, LookupContinuation, LookupResult, SplitDwarfLoad};
use gimli::{AbbreviationsCacheStrategy, Dwarf, DwarfSections, RunTimeEndian, SectionId};
use typed_arena::Arena;

use super::elf::{Damaged, Elf, SectionBudget};
use super::meter::{Meter, Metered};
use super::split::{SplitFiles, SplitPlaces};
use super::{SourceFrame, SymbolError};

/// The time limit for the addresses of one object. It is checked between addresses, since units
/// that all claim the same addresses are visited without reading, which the meter does not count.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(120);
/// The longest name or path. The rest is cut.
const MAX_NAME_BYTES: usize = 64 << 10;

/// The tables of one file for lines and inlined functions; empty if it has none.
pub(super) type LineTables = DwarfSections<Vec<u8>>;

/// Reads the tables of a file.
pub(super) fn tables(elf: &Elf, budget: &mut SectionBudget) -> Result<LineTables, Damaged> {
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
        | SectionId::DebugStrOffsets => elf.section(id.name(), budget),
        // Abbreviations of variables, types and macros, most of the table, are not needed.
        _ => Ok(Vec::new()),
    })
}

/// Resolves addresses in their order; sorted ones share what is read. `alternative` has the tables
/// that dwz moved into a common file. An unknown address has no frames.
pub(super) fn resolve(
    tables: &LineTables,
    alternative: Option<&LineTables>,
    places: SplitPlaces<'_>,
    endian: RunTimeEndian,
    addresses: impl Iterator<Item = Option<u64>>,
) -> (Vec<Vec<SourceFrame>>, Option<SymbolError>) {
    let split_bytes = Arena::new();
    let meter = Meter::new(bytes(tables) + alternative.map_or(0, bytes));
    let mut dwarf =
        tables.borrow_with_sup(alternative, |bytes| Metered::new(bytes, endian, &meter));
    dwarf.populate_abbreviations_cache(AbbreviationsCacheStrategy::Duplicates);
    let context = match Context::from_dwarf(dwarf) {
        Ok(context) => context,
        Err(_) if meter.stopped() => return unknown(addresses, SymbolError::TooMuchWork),
        Err(_) => return unknown(addresses, DAMAGED),
    };
    let split = SplitFiles::new(places, &split_bytes, &meter);
    let mut strings = InternedStrings::default();
    let begin = Instant::now();
    let too_long = || meter.is_empty() || begin.elapsed() > LOOKUP_TIMEOUT;
    let mut error = None;
    let frames = addresses.map(|address| {
        // addr2line looks for the end of the range, one byte after it, which the last address does
        // not have.
        let Some(address) = address.filter(|address| *address < u64::MAX) else {
            return Vec::new();
        };
        if too_long() {
            error = Some(SymbolError::TooMuchWork);
            return Vec::new();
        }
        // Any number of units may claim an address, and each has a file of its own.
        let load = |unit: &_| if too_long() { None } else { split.load(unit) };
        frames_at(&context, address, load, &mut strings).unwrap_or_else(|_| {
            error = error.take().or(Some(DAMAGED));
            // The function entries are damaged; the lines may be intact.
            let location = context.find_location(address).ok().flatten();
            let frame = location.map(|location| strings.frame(None, Some(location)));
            frame.into_iter().collect()
        })
    });
    let frames = frames.collect();
    if meter.stopped() {
        error = Some(SymbolError::TooMuchWork);
    }
    let missing = split.into_missing().map(SymbolError::NoSplitFile);
    (frames, error.or(missing))
}

const DAMAGED: SymbolError = SymbolError::Damaged("has damaged debug information");

fn unknown(
    addresses: impl Iterator<Item = Option<u64>>,
    error: SymbolError,
) -> (Vec<Vec<SourceFrame>>, Option<SymbolError>) {
    (addresses.map(|_| Vec::new()).collect(), Some(error))
}

fn bytes(tables: &LineTables) -> u64 {
    let mut bytes = 0;
    let _ = tables.borrow(|table| {
        bytes += table.len() as u64;
        gimli::EndianSlice::new(&table[..0], RunTimeEndian::Little)
    });
    bytes
}

fn frames_at<'a>(
    context: &Context<Metered<'a>>,
    address: u64,
    load_split: impl Fn(&SplitDwarfLoad<Metered<'a>>) -> Option<Arc<Dwarf<Metered<'a>>>>,
    strings: &mut InternedStrings,
) -> Result<Vec<SourceFrame>, gimli::Error> {
    let mut looked_up = context.find_frames(address);
    let mut found = loop {
        match looked_up {
            LookupResult::Output(found) => break found?,
            LookupResult::Load { load, continuation } => {
                looked_up = continuation.resume(load_split(&load));
            }
        }
    };
    let mut frames = Vec::new();
    while let Some(frame) = found.next()? {
        let name = frame.function.as_ref().map(|name| name.raw_name());
        frames.push(strings.frame(name.transpose()?.as_deref(), frame.location));
    }
    Ok(frames)
}

/// Names and paths, each stored once.
#[derive(Default)]
struct InternedStrings(HashSet<Arc<str>>);

impl InternedStrings {
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
        let end = (0..=text.len().min(MAX_NAME_BYTES)).rev();
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
