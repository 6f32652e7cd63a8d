//! Programs that run, and whose frame information is wrong: noise, cut off, of absurd sizes,
//! pointing at itself or away; or with segments that overlap, repeat the text, are of absurd sizes,
//! or lie beyond the end of the file. Nothing that a program needs to run is changed: the kernel
//! and the loader go by other headers, or map what is never used.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Makes wrong copies of a program in a directory, and returns their paths and what is wrong with
/// each. All have the program's build id.
///
/// # Errors
/// When the program has no `.eh_frame`, or a copy cannot be written.
pub fn variants(program: &Path, directory: &Path) -> Result<BTreeMap<PathBuf, String>> {
    let good = fs::read(program)?;
    let elf = Elf::of(&good).context("the program is an ELF file")?;
    let frames = elf
        .section(&good, ".eh_frame")
        .context("it has .eh_frame")?;
    let index = elf
        .section(&good, ".eh_frame_hdr")
        .context("it has .eh_frame_hdr")?;
    let (at, size) = (frames.offset(&good), frames.size(&good));
    let mut made = BTreeMap::new();
    let mut make = |what: &str, change: &dyn Fn(&mut Vec<u8>)| -> Result<()> {
        let mut bytes = good.clone();
        change(&mut bytes);
        let path = directory.join(what.replace(' ', "-"));
        fs::write(&path, bytes)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        made.insert(path, what.to_owned());
        Ok(())
    };
    make("frames of noise", &|bytes| {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        for byte in &mut bytes[at..at + size] {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            *byte = state.to_be_bytes()[0];
        }
    })?;
    make("frames of ones", &|bytes| bytes[at..at + size].fill(0xff))?;
    make("frames cut in the middle", &|bytes| {
        bytes[at + size / 2 + 3..at + size].fill(0);
        frames.set_size(bytes, (size / 2 + 3) as u64);
    })?;
    make("an entry of four gigabytes", &|bytes| {
        bytes[at..at + 4].copy_from_slice(&0xffff_fff0_u32.to_le_bytes());
    })?;
    make("an entry of many exabytes", &|bytes| {
        bytes[at..at + 4].fill(0xff);
        bytes[at + 4..at + 12].copy_from_slice(&(u64::MAX - 16).to_le_bytes());
    })?;
    make("entries that point at themselves", &|bytes| {
        let mut place = at;
        while place + 8 <= at + size {
            let length = u32::from_le_bytes(bytes[place..place + 4].try_into().unwrap_or_default());
            if length == 0 || length as usize > size {
                break;
            }
            bytes[place + 4..place + 8].copy_from_slice(&4_u32.to_le_bytes());
            place += 4 + length as usize;
        }
    })?;
    make("a section without end", &|bytes| {
        frames.set_size(bytes, u64::MAX)
    })?;
    make("a section beyond the file", &|bytes| {
        frames.set_offset(bytes, 1 << 40)
    })?;
    make("a section over the headers", &|bytes| {
        frames.set_offset(bytes, 0);
        let all = bytes.len() as u64;
        frames.set_size(bytes, all);
    })?;
    make("an index of its own frames", &|bytes| {
        let (offset, size) = (frames.offset(bytes) as u64, frames.size(bytes) as u64);
        index.set_offset(bytes, offset);
        index.set_size(bytes, size);
    })?;
    make("no section at all", &|bytes| {
        // e_shoff, e_shnum and e_shstrndx.
        bytes[0x28..0x30].copy_from_slice(&u64::MAX.to_le_bytes());
        bytes[0x3c..0x40].fill(0xff);
    })?;
    // The description of the program's properties, which nothing needs, makes space.
    let (free, text) = elf.segments(&good).context("it has program headers")?;
    let far = 0x1_0000_0000_u64;
    let load = |bytes: &mut Vec<u8>, [offset, address, in_file, in_memory]: [u64; 4]| {
        const LOAD_READ_EXECUTE: u64 = 5 << 32 | 1;
        let words = [
            LOAD_READ_EXECUTE,
            offset,
            address,
            address,
            in_file,
            in_memory,
            4096,
        ];
        bytes[free..free + 56].copy_from_slice(&words.map(u64::to_le_bytes).concat());
    };
    make("a segment beyond the file", &|bytes| {
        load(bytes, [1 << 40, far, 4096, 4096]);
    })?;
    // Not from the first byte on, or the loader would take it for where the headers are.
    make("a segment of a terabyte", &|bytes| {
        load(bytes, [4096, far, 1 << 40, 1 << 40]);
    })?;
    make("the text a second time", &|bytes| {
        load(bytes, [text[0], far + text[1] % 4096, text[2], text[2]]);
    })?;
    make("the text over itself", &|bytes| {
        load(bytes, [text[0], text[1], text[2], text[2]]);
    })?;
    make("unwind headers that point away", &|bytes| {
        if let Some(at) = elf.segment(bytes, EH_FRAME_HEADER) {
            for field in [8, 16, 24, 32, 40] {
                bytes[at + field..at + field + 8].copy_from_slice(&(1_u64 << 47).to_le_bytes());
            }
        }
    })?;
    Ok(made)
}

const LOAD: u32 = 1;
const EH_FRAME_HEADER: u32 = 0x6474_e550;
const PROPERTY: u32 = 0x6474_e553;

/// The section headers of an ELF file of 64 bits.
struct Elf {
    first: usize,
    count: usize,
    names: usize,
}

/// The offset of a section header.
#[derive(Clone, Copy)]
struct Section(usize);

impl Elf {
    fn of(bytes: &[u8]) -> Option<Elf> {
        let half = |at: usize| Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
        Some(Elf {
            first: number(bytes, 0x28)?,
            count: half(0x3c)?.into(),
            names: half(0x3e)?.into(),
        })
    }

    /// Returns the offset of the first program header of a type.
    fn segment(&self, bytes: &[u8], kind: u32) -> Option<usize> {
        Self::headers(bytes).find(|at| bytes.get(*at..*at + 4) == Some(&kind.to_le_bytes()))
    }

    fn headers(bytes: &[u8]) -> impl Iterator<Item = usize> {
        const HEADER: usize = 56;
        let first = number(bytes, 0x20).unwrap_or(0);
        let count = bytes.get(0x38).copied().unwrap_or(0);
        (0..usize::from(count)).map(move |index| first + HEADER * index)
    }

    /// Returns the offset of the header that nothing needs; and offset, address and size of the
    /// text.
    fn segments(&self, bytes: &[u8]) -> Option<(usize, [u64; 3])> {
        let free = self.segment(bytes, PROPERTY)?;
        let text = Self::headers(bytes).find(|at| {
            let executable = bytes.get(at + 4).is_some_and(|flags| flags & 1 != 0);
            executable && bytes.get(*at..*at + 4) == Some(&LOAD.to_le_bytes())
        })?;
        let field = |offset: usize| number(bytes, text + offset).map(|value| value as u64);
        Some((free, [field(8)?, field(16)?, field(32)?]))
    }

    fn at(&self, index: usize) -> Section {
        const HEADER: usize = 64;
        Section(self.first + HEADER * index)
    }

    fn section(&self, bytes: &[u8], name: &str) -> Option<Section> {
        let names = self.at(self.names).offset(bytes);
        (0..self.count).map(|index| self.at(index)).find(|section| {
            let place = bytes
                .get(section.0..section.0 + 4)
                .and_then(|word| word.try_into().ok());
            let start = names + place.map_or(0, |word| u32::from_le_bytes(word) as usize);
            let rest = bytes.get(start..).unwrap_or_default();
            rest.starts_with(name.as_bytes()) && rest.get(name.len()) == Some(&0)
        })
    }
}

impl Section {
    const OFFSET: usize = 0x18;
    const SIZE: usize = 0x20;

    fn offset(self, bytes: &[u8]) -> usize {
        number(bytes, self.0 + Self::OFFSET).unwrap_or(0)
    }

    fn size(self, bytes: &[u8]) -> usize {
        number(bytes, self.0 + Self::SIZE).unwrap_or(0)
    }

    fn set_offset(self, bytes: &mut [u8], value: u64) {
        let place = self.0 + Self::OFFSET;
        bytes[place..place + 8].copy_from_slice(&value.to_le_bytes());
    }

    fn set_size(self, bytes: &mut [u8], value: u64) {
        let place = self.0 + Self::SIZE;
        bytes[place..place + 8].copy_from_slice(&value.to_le_bytes());
    }
}

fn number(bytes: &[u8], at: usize) -> Option<usize> {
    let bytes = bytes.get(at..at + 8)?.try_into().ok()?;
    usize::try_from(u64::from_le_bytes(bytes)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_variant_runs_and_differs_from_the_program_and_from_the_others() {
        let directory = tempfile::tempdir().unwrap();
        let program = Path::new(crate::workload::proctorture::PROCTORTURE);
        let made = variants(program, directory.path()).unwrap();
        let mut all: Vec<_> = made.keys().map(|path| fs::read(path).unwrap()).collect();
        all.push(fs::read(program).unwrap());
        let count = all.len();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), count);
        assert!(count > 10);
        for program in made.keys() {
            let mut command = std::process::Command::new(program);
            let status = command.arg("one:1").status().unwrap();
            assert!(status.success(), "{}: {status}", program.display());
        }
    }
}
