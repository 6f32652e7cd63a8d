//! The kernel's code, before the run and as it is loaded and unloaded during it, and its images in
//! the archive.

use std::cell::OnceCell;
use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::io;
use std::ops::Range;
use std::os::fd::AsFd as _;

use bpf::KernelFunctions;
use experiment_format::Error;
use experiment_format::directory::ExperimentDir;
use experiment_format::kernel::{BPF, KERNEL};
use experiment_format::map::MapEvent;
use experiment_format::units::Nanos;
use host::machine::now;
use rustc_hash::FxHashMap;

use super::archive::{self, KernelProgram};
use super::kcore::Kcore;
use super::symbols::{Object, Symbols, SymbolsError};
use crate::plan::Archive;

/// Number of the kernel's functions that identify its build.
const PLACES: usize = 32;
/// The pause after the image of the BPF programs was written, as a multiple of the time that took.
const PROGRAMS_PAUSE: u64 = 50;

/// The kernel's code.
#[derive(Debug)]
pub struct KernelCode {
    /// Its functions at the start, until they are [dropped](KernelCode::drop_functions).
    symbols: Option<Symbols>,
    /// Its load objects with their addresses, except the object of the BPF programs.
    objects: Vec<(String, Range<u64>)>,
    /// Some of the kernel's own functions, with their addresses in hexadecimal.
    places: BTreeMap<String, String>,
    /// Opened at the start, since the privilege for it is dropped later.
    kcore: io::Result<Kcore>,
    modules: String,
    programs: Vec<KernelProgram>,
    /// Some programs were loaded or unloaded since the experiment's image was written.
    programs_changed: bool,
    /// When it may be written again, CLOCK_MONOTONIC nanoseconds.
    programs_due_ns: Nanos,
    /// The objects with images, except the BPF programs' object, each with the events that map it.
    archived: Vec<(String, Vec<MapEvent>)>,
}

impl KernelCode {
    /// Returns the functions that the BPF programs look for.
    #[must_use]
    pub fn sought(&self) -> KernelFunctions {
        let extent = |function| self.functions().map_or((0, 0), |all| all.extent(function));
        let page_fault = match extent("exc_page_fault") {
            (0, 0) => extent("do_page_fault"),
            found => found,
        };
        KernelFunctions {
            page_fault,
            hrtimer_wakeup: extent("hrtimer_wakeup").0,
            process_timeout: extent("process_timeout").0,
        }
    }

    /// Returns its functions at the start, until they are dropped.
    #[must_use]
    pub fn functions(&self) -> Option<&Symbols> {
        self.symbols.as_ref()
    }

    /// Drops its functions, which take megabytes, once an experiment has all of them, or if no
    /// experiment gets them. Only [`KernelCode::places`] are kept.
    pub fn drop_functions(&mut self, archive: Archive) {
        if archive == Archive::Off
            && let Some(symbols) = &self.symbols
        {
            self.places = places(symbols);
        }
        if archive != Archive::UsedLoadObjects {
            self.symbols = None;
        }
    }

    /// Returns some of the kernel's own functions at equal distances, with their addresses in
    /// hexadecimal. By these its build and its place in memory are recognised.
    #[must_use]
    pub fn places(&self) -> &BTreeMap<String, String> {
        &self.places
    }

    /// The names of its load objects, except the object of the BPF programs.
    pub fn objects(&self) -> impl Iterator<Item = &str> {
        self.objects.iter().map(|(name, _)| name.as_str())
    }

    /// Reads the kernel's symbols and the list of its modules. If its addresses are hidden,
    /// functions have no names: a warning goes to `warn`, since a profile without the kernel's
    /// names is still of use.
    ///
    /// # Errors
    /// A [`SymbolsError`], but not [`SymbolsError::Hidden`].
    pub fn read(warn: impl FnOnce(&str)) -> Result<KernelCode, SymbolsError> {
        let symbols = match Symbols::read() {
            Err(error @ SymbolsError::Hidden) => {
                warn(&format!(
                    "{error}, so its functions have no names: run as root with CAP_SYSLOG, or set kernel.kptr_restrict \
                     to 0 or 1"
                ));
                Symbols::default()
            }
            read => read?,
        };
        Ok(KernelCode {
            programs: archive::programs(&symbols),
            programs_changed: true,
            programs_due_ns: Nanos::ZERO,
            archived: Vec::new(),
            objects: objects(&symbols),
            places: BTreeMap::new(),
            symbols: Some(symbols),
            kcore: Kcore::open(),
            modules: loaded_modules(),
        })
    }

    /// A placeholder without code: the next experiment has the code.
    #[must_use]
    pub fn none() -> KernelCode {
        KernelCode {
            symbols: None,
            objects: Vec::new(),
            places: BTreeMap::new(),
            kcore: Err(io::ErrorKind::NotFound.into()),
            modules: String::new(),
            programs: Vec::new(),
            programs_changed: false,
            programs_due_ns: Nanos::ZERO,
            archived: Vec::new(),
        }
    }

    /// The code as it is for an experiment that begins now, without the programs that were
    /// unloaded.
    #[must_use]
    pub fn for_next(mut self) -> KernelCode {
        self.programs
            .retain(|program| program.unloaded_ns.is_none());
        for program in &mut self.programs {
            program.loaded_ns = Nanos::ZERO;
            program.map_written = false;
        }
        self.programs_changed = true;
        self
    }

    /// Writes the images of the code that is loaded, and returns the events that map it. Images
    /// that `older`, an older experiment of the series, has too are links to its files: no function
    /// in them has moved. Without `older`, equal images of other experiments in the directory are
    /// linked. `say` gets a message about what the images do not have.
    ///
    /// # Errors
    /// When they can't be written.
    pub fn archive(
        &mut self,
        (dir, older): (&ExperimentDir, Option<&ExperimentDir>),
        which: Archive,
        say: &mut impl FnMut(&str),
    ) -> Result<Vec<MapEvent>, Error> {
        let mut maps = self.archive_programs(dir)?;
        let kcore = self.kcore.as_ref();
        if let (Err(error), None) = (kcore, older) {
            say(&format!(
                "no disassembly of the kernel: /proc/kcore: {error}"
            ));
        }
        let kcore = kcore.ok();
        let siblings = match older {
            None => dir.sibling_archives(),
            Some(_) => Vec::new(),
        };
        let older = older.and_then(|older| older.archives_of().ok());
        let read_again = OnceCell::new();
        for (name, _) in &self.objects {
            // Which modules are used is not known before the end.
            if which == Archive::UsedLoadObjects && name != KERNEL {
                continue;
            }
            let known = self.archived.iter().find(|(known, _)| known == name);
            if let (Some((_, events)), Some(older)) = (known, &older)
                && dir.link_archive(older.as_fd(), name).is_ok()
            {
                maps.extend(events.iter().cloned());
                continue;
            }
            let read = || Symbols::read().unwrap_or_default();
            let functions = self.symbols.as_ref();
            let functions = functions.unwrap_or_else(|| read_again.get_or_init(read));
            let mut objects = functions.objects();
            let Some((_, object)) = objects.find(|(found, _)| found == name) else {
                say(&format!(
                    "{name} has no functions in /proc/kallsyms any more"
                ));
                continue;
            };
            let events = archive::kernel_object(dir, name, object, kcore, &siblings)?;
            maps.extend(events.iter().cloned());
            self.archived.retain(|(known, _)| known != name);
            self.archived.push((name.clone(), events));
        }
        Ok(maps)
    }

    /// Does what [`archive_programs`](KernelCode::archive_programs) does, unless that would take
    /// more than a small part of the time: the image of thousands of programs has megabytes.
    ///
    /// # Errors
    /// When it can't be written.
    pub fn maintain_programs(&mut self, dir: &ExperimentDir) -> Result<Vec<MapEvent>, Error> {
        let began = now();
        if began < self.programs_due_ns {
            return Ok(Vec::new());
        }
        let maps = self.archive_programs(dir);
        let ended = now();
        self.programs_due_ns = ended + ended.saturating_sub(began) * PROGRAMS_PAUSE;
        maps
    }

    /// Writes the image of the BPF programs again if some were loaded or unloaded since the last
    /// time. Returns the events that map and unmap those.
    ///
    /// # Errors
    /// When it can't be written.
    pub fn archive_programs(&mut self, dir: &ExperimentDir) -> Result<Vec<MapEvent>, Error> {
        if std::mem::take(&mut self.programs_changed) {
            archive::programs_object(dir, &mut self.programs)
        } else {
            Ok(Vec::new())
        }
    }

    /// Writes the images of the code that was loaded since, and of the modules in which one of the
    /// `used` addresses is. Returns the events that map them. `give_up` is called before each
    /// image; when it returns true no more are written.
    ///
    /// # Errors
    /// When they can't be written.
    pub fn archive_late(
        &mut self,
        dir: &ExperimentDir,
        used: &HashSet<u64>,
        give_up: &mut impl FnMut() -> bool,
    ) -> Result<Vec<MapEvent>, Error> {
        let mut maps = if give_up() {
            Vec::new()
        } else {
            self.archive_programs(dir)?
        };
        let added = if loaded_modules() != self.modules {
            Symbols::read().ok()
        } else {
            None
        };
        let added = added.iter().flat_map(Symbols::objects);
        let added = added.filter(|(name, _)| *name != BPF && !self.objects().any(|it| it == *name));
        let used = self
            .symbols
            .iter()
            .flat_map(Symbols::objects)
            .filter(|(name, _)| *name != KERNEL && self.has_any(name, used));
        let kcore = self.kcore.as_ref().ok();
        for (name, object) in used.chain(added) {
            if give_up() {
                break;
            }
            maps.extend(archive::kernel_object(dir, name, object, kcore, &[])?);
        }
        Ok(maps)
    }

    /// Returns whether one of the addresses is in a load object.
    fn has_any(&self, name: &str, addresses: &HashSet<u64>) -> bool {
        let mut objects = self.objects.iter();
        objects
            .find(|(known, _)| known == name)
            .is_some_and(|(_, range)| addresses.iter().any(|address| range.contains(address)))
    }

    /// Adds a BPF program or trampoline that was loaded at `time_ns`, or marks it as unloaded if it
    /// is `gone`; the experiment began at `start_ns`.
    pub fn changed(
        &mut self,
        (start_ns, time_ns): (Nanos, Nanos),
        code: (u64, u64),
        name: &[u8],
        gone: bool,
    ) {
        let (address, size) = code;
        let end = address.saturating_add(size);
        let overlaps = |program: &KernelProgram| {
            program.unloaded_ns.is_none()
                && program.address < end
                && address < program.address.saturating_add(program.size)
        };
        // No tick is older than the start, so what was unloaded before needs no name.
        if time_ns < start_ns {
            self.programs
                .retain(|program| program.map_written || !overlaps(program));
        }
        // The new code replaces what was at its addresses, even if the record of its unloading was
        // lost.
        let at = time_ns.saturating_sub(start_ns).max(Nanos(1));
        self.programs_changed = true;
        for program in self.programs.iter_mut().filter(|program| overlaps(program)) {
            program.unloaded_ns = Some(at);
        }
        if !gone {
            self.programs.push(KernelProgram {
                address,
                size,
                name: String::from_utf8_lossy(name).into(),
                loaded_ns: at + Nanos(1),
                unloaded_ns: None,
                map_written: false,
                unmap_written: false,
            });
        }
    }
}

/// The load objects with their addresses, except the object of the BPF programs.
fn objects(symbols: &Symbols) -> Vec<(String, Range<u64>)> {
    let objects = symbols.objects().filter(|(name, _)| *name != BPF);
    let range = |object: Object<'_>| {
        let ranges = object.symbols().map(|function| {
            let end = function.address.saturating_add(function.size);
            function.address..end
        });
        let both = |a: Range<u64>, b: Range<u64>| a.start.min(b.start)..a.end.max(b.end);
        ranges.reduce(both).unwrap_or_default()
    };
    let objects = objects.map(|(name, object)| (name.to_owned(), range(object)));
    objects.collect()
}

/// Returns some functions of the kernel itself: see [`KernelCode::places`]. Names that it has
/// several times are left out.
fn places(symbols: &Symbols) -> BTreeMap<String, String> {
    let mut objects = symbols.objects();
    let Some((_, kernel)) = objects.find(|(name, _)| *name == KERNEL) else {
        return BTreeMap::new();
    };
    let mut counts = FxHashMap::default();
    for symbol in kernel.symbols() {
        *counts.entry(symbol.name).or_insert(0_u32) += 1;
    }
    let unique: Vec<_> = kernel
        .symbols()
        .filter(|symbol| counts.get(symbol.name) == Some(&1))
        .collect();
    let step = unique.len().div_ceil(PLACES).max(1);
    let some = unique.iter().step_by(step).chain(unique.last());
    some.map(|symbol| (symbol.name.to_owned(), format!("{:x}", symbol.address)))
        .collect()
}

/// Returns the names of the modules that are loaded; empty if the kernel has none.
fn loaded_modules() -> String {
    let text = fs::read_to_string("/proc/modules").unwrap_or_default();
    let mut names: Vec<_> = text
        .lines()
        .filter_map(|line| line.split(' ').next())
        .collect();
    names.sort_unstable();
    names.join(" ")
}
