//! The kernel's code, before the run and as it is loaded and unloaded during it, and its images in
//! the archive.

use std::collections::{BTreeSet, HashSet};
use std::fs;
use std::io;
use std::os::fd::AsFd as _;

use experiment_format::Error;
use experiment_format::directory::ExperimentDir;
use experiment_format::kernel::{BPF, KERNEL};
use experiment_format::map::MapEvent;
use experiment_format::units::Nanos;

use super::archive::{self, KernelProgram};
use super::kcore::Kcore;
use super::symbols::{Symbol, Symbols, SymbolsError};
use crate::plan::Archive;

/// The kernel's code.
#[derive(Debug)]
pub struct KernelCode {
    /// Its functions, with those that were loaded during the run.
    pub symbols: Symbols,
    /// Opened at the start, since the privilege for it is dropped later.
    kcore: io::Result<Kcore>,
    modules: String,
    programs: Vec<KernelProgram>,
    /// Some programs were loaded or unloaded since the experiment's image was written.
    programs_changed: bool,
    /// The objects with images, but that of the programs, each with the events that map it.
    archived: Vec<(String, Vec<MapEvent>)>,
}

impl KernelCode {
    /// Returns the first address and the end of the kernel's function that handles page faults.
    #[must_use]
    pub fn page_fault(&self) -> (u64, u64) {
        match self.symbols.extent("exc_page_fault") {
            (0, 0) => self.symbols.extent("do_page_fault"),
            found => found,
        }
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
            archived: Vec::new(),
            symbols,
            kcore: Kcore::open(),
            modules: loaded_modules(),
        })
    }

    /// Returns no code: the next experiment has it.
    #[must_use]
    pub fn none() -> KernelCode {
        KernelCode {
            symbols: Symbols::default(),
            kcore: Err(io::ErrorKind::NotFound.into()),
            modules: String::new(),
            programs: Vec::new(),
            programs_changed: false,
            archived: Vec::new(),
        }
    }

    /// Returns the code as an experiment finds it that begins now, without the programs that were
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

    /// Writes the images of the code that is loaded, and returns the events that map it. Those that
    /// a former experiment of the series has are links to its files: no function of them has moved.
    /// Where there is none, those of other experiments in the directory that are the same are.
    /// A message about what the images lack goes to `say`.
    ///
    /// # Errors
    /// When they can't be written.
    pub fn archive(
        &mut self,
        (dir, former): (&ExperimentDir, Option<&ExperimentDir>),
        which: Archive,
        say: &mut impl FnMut(&str),
    ) -> Result<Vec<MapEvent>, Error> {
        let mut maps = self.archive_programs(dir)?;
        let kcore = self.kcore.as_ref();
        if let (Err(error), None) = (kcore, former) {
            say(&format!(
                "no disassembly of the kernel: /proc/kcore: {error}"
            ));
        }
        let kcore = kcore.ok();
        let beside = match former {
            None => dir.archives_beside(),
            Some(_) => Vec::new(),
        };
        let former = former.and_then(|former| former.archives_of().ok());
        for (name, object) in self.symbols.objects().filter(|(name, _)| *name != BPF) {
            // Which modules are used is not known before the end.
            if which == Archive::UsedLoadObjects && name != KERNEL {
                continue;
            }
            let known = self.archived.iter().find(|(known, _)| known == name);
            if let (Some((_, events)), Some(former)) = (known, &former)
                && dir.link_archive(former.as_fd(), name).is_ok()
            {
                maps.extend(events.iter().cloned());
                continue;
            }
            let events = archive::kernel_object(dir, name, object, kcore, &beside)?;
            maps.extend(events.iter().cloned());
            self.archived.retain(|(known, _)| known != name);
            self.archived.push((name.to_owned(), events));
        }
        Ok(maps)
    }

    /// Writes the image of the BPF programs again if some were loaded or unloaded since the last
    /// time. Returns the events that map and unmap those.
    ///
    /// # Errors
    /// When it can't be written.
    pub fn archive_programs(&mut self, dir: &ExperimentDir) -> Result<Vec<MapEvent>, Error> {
        match std::mem::take(&mut self.programs_changed) {
            true => archive::programs_object(dir, &mut self.programs),
            false => Ok(Vec::new()),
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
        let mut maps = match give_up() {
            true => Vec::new(),
            false => self.archive_programs(dir)?,
        };
        let added = match loaded_modules() != self.modules {
            true => Symbols::read().ok(),
            false => None,
        };
        let used = self.used_objects(used);
        let kcore = self.kcore.as_ref().ok();
        let known = |name: &str| self.symbols.objects().any(|(known, _)| known == name);
        let objects = self
            .symbols
            .objects()
            .filter(|(name, _)| used.contains(name));
        let added = added
            .iter()
            .flat_map(Symbols::objects)
            .filter(|(name, _)| !known(name));
        for (name, object) in objects.chain(added) {
            if give_up() {
                break;
            }
            maps.extend(archive::kernel_object(dir, name, object, kcore, &[])?);
        }
        Ok(maps)
    }

    /// Returns the modules in which an address is.
    fn used_objects(&self, used: &HashSet<u64>) -> BTreeSet<&str> {
        used.iter()
            .filter_map(|address| self.symbols.find(*address))
            .map(|place| place.object)
            .filter(|object| ![KERNEL, BPF].contains(object))
            .collect()
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
            let name: Box<str> = String::from_utf8_lossy(name).into();
            let symbol = Symbol {
                address,
                size,
                name: &name,
                global: false,
            };
            self.symbols.add(BPF, &symbol);
            self.programs.push(KernelProgram {
                address,
                size,
                name,
                loaded_ns: at + Nanos(1),
                unloaded_ns: None,
                map_written: false,
                unmap_written: false,
            });
        }
    }
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
