//! Source files, for `-A src` and `-A usedsrc`: their paths from the line tables, and their copies.
//!
//! The paths come from a compiler, or from a hostile file. Nothing is opened here:
//! [`InvokingUser::open`](crate::files::InvokingUser::open) does that, and opens only what the
//! invoking user may read.
//!
//! Compressed sections are not read. So most debug files of distributions have no sources here; the
//! source files are rarely installed anyway.

use std::collections::{BTreeSet, HashSet};
use std::fs::File;
use std::io;
use std::sync::atomic::AtomicBool;

use experiment_format::directory::ExperimentDir;
use experiment_format::text::printable;
use gimli::{
    AttributeValue, DebugAbbrev, DebugInfo, DebugLine, DebugLineStr, DebugStr, EndianSlice,
    FileEntry, LineProgramHeader, LittleEndian, UnitHeader,
};

use super::object_file::ObjectFile;
use super::{ArchiveError, image, store};

/// Max compilation units that are read. The largest programs have some tens of thousands.
const MAX_UNITS: usize = 1 << 17;
/// Max paths of a file.
const MAX_PATHS: usize = 1 << 17;
/// Longest path, bytes: the kernel's limit.
const MAX_PATH_BYTES: usize = 4096;
/// Max bytes of abbreviations of one unit. Without a limit, all units could share one large table.
const MAX_ABBREVIATION_BYTES: usize = 64 * 1024;
/// Largest source file that is copied, bytes.
const MAX_SOURCE_BYTES: u64 = 64 << 20;

/// The lines whose sources are needed.
#[derive(Clone, Copy, Debug)]
pub enum SourceLines<'a> {
    /// All lines.
    All,
    /// The lines of the instructions at these offsets in the executed file, bytes, in any order.
    At(&'a [u64]),
}

type Slice<'data> = EndianSlice<'data, LittleEndian>;

/// Returns the absolute paths of the source files of a program or library, as its line tables spell
/// them: `file` is the executed file, `debug` its debug file, if it has one. What can't be read is
/// left out.
#[must_use]
pub fn source_paths(
    file: &File,
    debug: Option<&File>,
    lines: SourceLines<'_>,
) -> BTreeSet<Vec<u8>> {
    let open = |file| ObjectFile::read(file, File::metadata(file).ok()?.len()).ok();
    let mut paths = BTreeSet::new();
    let Some(executed) = open(file) else {
        return paths;
    };
    let wanted = match lines {
        SourceLines::All => None,
        SourceLines::At(offsets) => {
            let code = executed.code();
            let address = |offset: &u64| {
                let code = code.iter().find(|code| {
                    (code.offset..code.offset + (code.end - code.address)).contains(offset)
                })?;
                Some(code.address + (offset - code.offset))
            };
            Some(offsets.iter().filter_map(address).collect())
        }
    };
    for elf in [Some(executed), debug.and_then(open)].into_iter().flatten() {
        LineTables::of(&elf).read(wanted.as_ref(), &mut paths);
    }
    paths
}

/// Archives a source file under its path, where gprofng looks for it. Returns the bytes that were
/// written. The file must be one that the invoking user may read: from
/// [`InvokingUser::open`](crate::files::InvokingUser::open).
///
/// A hostile program may have the path of a load object as its source, and a later copy of the same
/// name replaces an earlier one: the caller ensures that no source replaces a load object.
///
/// # Errors
/// As [`super::archive_object`]; [`ArchiveError::NothingToKeep`] for a file above 64 MiB.
pub fn archive_source(
    dir: &ExperimentDir,
    path: &str,
    file: &File,
    stop: &AtomicBool,
) -> Result<u64, ArchiveError> {
    let name = || printable(path.as_bytes());
    let metadata = file.metadata().map_err(|source| ArchiveError::Read {
        name: name(),
        source,
    })?;
    if !metadata.is_file() {
        return Err(ArchiveError::NotRegular { name: name() });
    }
    if metadata.len() > MAX_SOURCE_BYTES {
        let why = "is larger than 64 MiB".to_owned();
        return Err(ArchiveError::NothingToKeep { name: name(), why });
    }
    store(dir, path, stop, |out| -> io::Result<()> {
        image::copy(file, metadata.len(), out)
    })
}

/// The sections that line tables need.
#[derive(Default)]
struct LineTables {
    info: Vec<u8>,
    abbrev: Vec<u8>,
    line: Vec<u8>,
    line_str: Vec<u8>,
    str: Vec<u8>,
}

impl LineTables {
    fn of(elf: &ObjectFile<'_>) -> LineTables {
        let section = |name: &[u8]| {
            elf.sections
                .named(name)
                .and_then(|section| elf.data(section).ok())
                .unwrap_or_default()
        };
        let line = section(b".debug_line");
        if line.is_empty() {
            return LineTables::default();
        }
        LineTables {
            info: section(b".debug_info"),
            abbrev: section(b".debug_abbrev"),
            line,
            line_str: section(b".debug_line_str"),
            str: section(b".debug_str"),
        }
    }

    fn read(&self, wanted: Option<&BTreeSet<u64>>, paths: &mut BTreeSet<Vec<u8>>) {
        let mut seen = HashSet::new();
        let info = DebugInfo::new(&self.info, LittleEndian);
        let mut units = info.units();
        for _ in 0..MAX_UNITS {
            let Ok(Some(unit)) = units.next() else {
                return;
            };
            let Some((offset, directory)) = self.line_program(&unit) else {
                continue;
            };
            // Units may share a table, which is read once.
            if seen.insert(offset) {
                self.files(&unit, offset, directory, wanted, paths);
            }
        }
    }

    /// Returns where a unit's line table is, and the directory in which it was compiled.
    fn line_program<'a>(
        &'a self,
        unit: &UnitHeader<Slice<'a>>,
    ) -> Option<(usize, Option<Slice<'a>>)> {
        let abbrev = self.abbrev.get(unit.debug_abbrev_offset().0..)?;
        let abbrev = &abbrev[..abbrev.len().min(MAX_ABBREVIATION_BYTES)];
        let abbrev = DebugAbbrev::new(abbrev, LittleEndian);
        let abbreviations = abbrev.abbreviations(gimli::DebugAbbrevOffset(0)).ok()?;
        let mut entries = unit.entries(&abbreviations);
        let root = entries.next_dfs().ok()??;
        let offset = match root.attr_value(gimli::DW_AT_stmt_list)? {
            AttributeValue::DebugLineRef(offset) => offset.0,
            _ => return None,
        };
        let directory = root
            .attr_value(gimli::DW_AT_comp_dir)
            .and_then(|value| self.text(&value));
        Some((offset, directory))
    }

    fn files<'a>(
        &'a self,
        unit: &UnitHeader<Slice<'a>>,
        offset: usize,
        directory: Option<Slice<'a>>,
        wanted: Option<&BTreeSet<u64>>,
        paths: &mut BTreeSet<Vec<u8>>,
    ) {
        let line = DebugLine::from(EndianSlice::new(&self.line, LittleEndian));
        let offset = gimli::DebugLineOffset(offset);
        let Ok(program) = line.program(offset, unit.address_size(), directory, None) else {
            return;
        };
        let header = program.header().clone();
        let mut add = |file: &FileEntry<Slice<'a>>| {
            if let Some(path) = self.path(&header, file, directory)
                && paths.len() < MAX_PATHS
            {
                paths.insert(path);
            }
        };
        let Some(wanted) = wanted else {
            header.file_names().iter().for_each(add);
            return;
        };
        // A row is valid up to the next one's address.
        let mut rows = program.rows();
        let mut last: Option<(u64, u64)> = None;
        let mut used = HashSet::new();
        while let Ok(Some((_, row))) = rows.next_row() {
            if let Some((start, file)) = last.take()
                && start < row.address()
                && wanted.range(start..row.address()).next().is_some()
            {
                used.insert(file);
            }
            last = (!row.end_sequence()).then(|| (row.address(), row.file_index()));
        }
        used.iter()
            .filter_map(|file| header.file(*file))
            .for_each(&mut add);
    }

    /// Returns the absolute path of a file: its name below its directory, below the directory of
    /// the compilation.
    fn path(
        &self,
        header: &LineProgramHeader<Slice<'_>>,
        file: &FileEntry<Slice<'_>>,
        compiled_in: Option<Slice<'_>>,
    ) -> Option<Vec<u8>> {
        let name = self.text(&file.path_name())?;
        let directory = file.directory(header).and_then(|value| self.text(&value));
        let from = header.directory(0).and_then(|value| self.text(&value));
        let mut path: Vec<u8> = Vec::new();
        for part in [compiled_in, from, directory, Some(name)]
            .into_iter()
            .flatten()
        {
            if part.first() == Some(&b'/') {
                path.clear();
            }
            if part.is_empty() || path == *part {
                continue;
            }
            if path.last().is_some_and(|last| *last != b'/') {
                path.push(b'/');
            }
            if path.len() + part.len() > MAX_PATH_BYTES {
                return None;
            }
            path.extend_from_slice(&part);
        }
        (path.first() == Some(&b'/') && !path.contains(&0)).then_some(path)
    }

    fn text<'a>(&'a self, value: &AttributeValue<Slice<'a>>) -> Option<Slice<'a>> {
        match value {
            AttributeValue::String(text) => Some(*text),
            AttributeValue::DebugStrRef(offset) => {
                let strings = DebugStr::from(EndianSlice::new(&self.str, LittleEndian));
                strings.get_str(*offset).ok()
            }
            AttributeValue::DebugLineStrRef(offset) => {
                let strings = DebugLineStr::from(EndianSlice::new(&self.line_str, LittleEndian));
                strings.get_str(*offset).ok()
            }
            _ => None,
        }
    }
}
