//! Reads the debug information that `-gsplit-dwarf` leaves out of a program, which are the names of
//! inlined functions. It is in `x.dwp` next to the program `x`, or in a `.dwo` file for each source
//! file, where the compiler wrote it.
//!
//! A file is read when an address needs it. It is kept until the load object is done.

use std::cell::{OnceCell, RefCell};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use addr2line::SplitDwarfLoad;
use gimli::{Dwarf, DwarfPackage, Reader, RunTimeEndian, SectionId};
use typed_arena::Arena;

use super::elf::{Elf, SectionBudget};
use super::meter::{Meter, Metered};
use super::paths::SearchPaths;
use super::regular_file::open_regular;

type Sections<'a> = Dwarf<Metered<'a>>;

/// The places where the `.dwp` and `.dwo` files of one load object are looked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct SplitPlaces<'a> {
    pub(super) search: &'a SearchPaths,
    /// The recorded path of the load object.
    pub(super) recorded: &'a Path,
    /// The path of the file with its debug information.
    pub(super) debug: Option<&'a Path>,
}

impl SplitPlaces<'_> {
    /// Opens the `.dwp` file.
    fn package(&self) -> Option<File> {
        let named = |path: &Path| {
            let mut name = OsString::from(path);
            name.push(".dwp");
            PathBuf::from(name)
        };
        let directory = self.debug.map(named).into_iter();
        let mut places = directory.chain(self.search.candidates(&named(self.recorded)));
        places.find_map(|path| open_regular(&path))
    }
}

/// The `.dwp` and `.dwo` files of one load object that were read.
pub(super) struct SplitFiles<'a> {
    places: SplitPlaces<'a>,
    /// The content of the files.
    bytes: &'a Arena<Vec<u8>>,
    meter: &'a Meter,
    budget: RefCell<SectionBudget>,
    /// The `.dwp` file. None: there is no usable one.
    package: OnceCell<Option<DwarfPackage<Metered<'a>>>>,
    /// The first file that was not found.
    missing: OnceCell<PathBuf>,
}

impl<'a> SplitFiles<'a> {
    pub(super) fn new(
        places: SplitPlaces<'a>,
        bytes: &'a Arena<Vec<u8>>,
        meter: &'a Meter,
    ) -> SplitFiles<'a> {
        SplitFiles {
            places,
            bytes,
            meter,
            budget: RefCell::new(SectionBudget::of(places.search.max_debug_bytes)),
            package: OnceCell::new(),
            missing: OnceCell::new(),
        }
    }

    /// Returns the first file that was not found.
    pub(super) fn into_missing(self) -> Option<PathBuf> {
        self.missing.into_inner()
    }

    /// Returns the debug information that a unit left out.
    #[expect(
        clippy::arc_with_non_send_sync,
        reason = "the type that addr2line takes; all is done in one thread"
    )]
    pub(super) fn load(&self, unit: &SplitDwarfLoad<Metered<'a>>) -> Option<Arc<Sections<'a>>> {
        let package = self.package.get_or_init(|| self.read_package());
        let found = package.as_ref();
        let found = found.and_then(|package| package.find_cu(unit.dwo_id, &unit.parent).ok()?);
        if let Some(found) = found {
            return Some(Arc::new(found));
        }
        let path = path_of(unit)?;
        let mut places = self.places.search.candidates(&path).into_iter();
        let found = places.find_map(|path| self.read_unit(&path, unit));
        if found.is_none() && !self.meter.stopped() {
            let _ = self.missing.set(path);
        }
        found.map(Arc::new)
    }

    fn read_package(&self) -> Option<DwarfPackage<Metered<'a>>> {
        let elf = Elf::read(self.places.package()?).ok()?;
        let endian = elf.gimli_endian();
        let section = |id| Ok::<_, gimli::Error>(self.section(&elf, id));
        DwarfPackage::load(section, self.metered(Vec::new(), endian)).ok()
    }

    fn read_unit(&self, path: &Path, unit: &SplitDwarfLoad<Metered<'a>>) -> Option<Sections<'a>> {
        let elf = Elf::read(open_regular(path)?).ok()?;
        let section = |id| Ok::<_, gimli::Error>(self.section(&elf, id));
        let mut dwarf = Dwarf::load(section).ok()?;
        let header = dwarf.units().next().ok()??;
        let same = dwarf.unit(header).ok()?.dwo_id == Some(unit.dwo_id);
        dwarf.make_dwo(&unit.parent);
        same.then_some(dwarf)
    }

    /// Returns a section of a `.dwp` or `.dwo` file; empty if the section is missing or damaged.
    fn section(&self, elf: &Elf, id: SectionId) -> Metered<'a> {
        let read = |name| elf.section(name, &mut self.budget.borrow_mut()).ok();
        let bytes = id.dwo_name().and_then(read).unwrap_or_default();
        self.metered(bytes, elf.gimli_endian())
    }

    fn metered(&self, bytes: Vec<u8>, endian: RunTimeEndian) -> Metered<'a> {
        self.meter.extend(bytes.len() as u64);
        Metered::new(self.bytes.alloc(bytes), endian, self.meter)
    }
}

/// Returns the path of a unit's `.dwo` file, as the compiler was given it, below its working
/// directory.
fn path_of(unit: &SplitDwarfLoad<Metered<'_>>) -> Option<PathBuf> {
    let text = |reader: &Option<Metered<'_>>| {
        let bytes = reader.as_ref()?.to_slice().ok()?;
        Some(PathBuf::from(OsStr::from_bytes(&bytes)))
    };
    let directory = text(&unit.comp_dir).unwrap_or_default();
    Some(directory.join(text(&unit.path)?))
}
