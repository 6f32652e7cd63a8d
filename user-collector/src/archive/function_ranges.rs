//! Beginnings and ends of functions, from `.eh_frame`, which stripped programs have too.

use std::collections::HashMap;

use gimli::{
    BaseAddresses, CieOrFde, CommonInformationEntry, EhFrame, EhFrameOffset, EndianSlice,
    LittleEndian, UnwindSection,
};

use super::object_file::{MAX_FUNCTIONS, ObjectFile};
use crate::unwind::MAX_SECTION_BYTES;

/// The addresses of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FunctionRange {
    pub(super) start: u64,
    /// First address after it; more than `start`.
    pub(super) end: u64,
}

/// Returns the functions in the file's frame information, by address, without overlaps. The list
/// ends where the information can't be read.
pub(super) fn functions(elf: &ObjectFile<'_>) -> Vec<FunctionRange> {
    let Some(section) = elf.sections.named(b".eh_frame") else {
        return Vec::new();
    };
    let Some(data) = elf
        .data(section)
        .ok()
        .filter(|data| data.len() <= MAX_SECTION_BYTES)
    else {
        return Vec::new();
    };
    let named = |name| elf.sections.named(name);
    let address = |name| named(name).map_or(0, |section| section.address);
    let bases = BaseAddresses::default()
        .set_eh_frame(section.address)
        .set_text(address(b".text"))
        .set_got(address(b".got"));
    let mut frames = read(&data, &bases);
    frames.sort_unstable();
    let mut after = 0;
    frames.retain(|frame| {
        let apart = frame.start >= after;
        after = after.max(frame.end);
        apart
    });
    frames
}

type Slice<'data> = EndianSlice<'data, LittleEndian>;

fn read(data: &[u8], bases: &BaseAddresses) -> Vec<FunctionRange> {
    let section = EhFrame::new(data, LittleEndian);
    let mut entries = section.entries(bases);
    // Each CIE is read once, however many functions share it.
    let mut cies: HashMap<usize, gimli::Result<CommonInformationEntry<Slice<'_>>>> = HashMap::new();
    let mut frames = Vec::new();
    while let Ok(Some(entry)) = entries.next() {
        let CieOrFde::Fde(partial) = entry else {
            continue;
        };
        let fde = partial.parse(|section, bases, offset: EhFrameOffset| {
            cies.entry(offset.0)
                .or_insert_with(|| section.cie_from_offset(bases, offset))
                .clone()
        });
        let Ok(fde) = fde else {
            continue;
        };
        let (start, end) = (fde.initial_address(), fde.end_address());
        if start != 0 && start < end {
            frames.push(FunctionRange { start, end });
        }
        if frames.len() >= MAX_FUNCTIONS {
            break;
        }
    }
    frames
}

/// Returns the function that an address is in.
pub(super) fn around(frames: &[FunctionRange], address: u64) -> Option<&FunctionRange> {
    let after = frames.partition_point(|frame| frame.start <= address);
    frames[..after].last().filter(|frame| address < frame.end)
}
