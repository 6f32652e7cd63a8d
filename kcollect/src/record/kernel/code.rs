//! The kernel's code: what was there before the run, and what came and went during it; and its
//! images in the archive.

use std::collections::BTreeSet;
use std::fs;
use std::io;

use experiment_format::Error;
use experiment_format::directory::ExperimentDir;
use experiment_format::kernel::{BPF, KERNEL};
use experiment_format::map::MapEvent;

use super::archive::{self, Program};
use super::kcore::Kcore;
use super::symbols::{Symbol, Symbols, SymbolsError};
use crate::plan::Archive;

/// The kernel's code.
#[derive(Debug)]
pub struct KernelCode {
    /// Its functions, with what came during the run.
    pub symbols: Symbols,
    /// Open from the start: later the privilege for that is gone.
    kcore: io::Result<Kcore>,
    modules: String,
    programs: Vec<Program>,
    /// The experiment was not told yet of some, or that they went.
    programs_changed: bool,
}

impl KernelCode {
    /// Where page faults are handled: first address and end of the function that the entries call.
    #[must_use]
    pub fn page_fault(&self) -> (u64, u64) {
        match self.symbols.extent("exc_page_fault") {
            (0, 0) => self.symbols.extent("do_page_fault"),
            found => found,
        }
    }

    /// Reads the kernel's symbols and what is loaded into it. Where its addresses are hidden there
    /// are no names, which `warn` is told: time without a name is better than no profile.
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
            symbols,
            kcore: Kcore::open(),
            modules: loaded_modules(),
        })
    }

    /// Writes the images of what is there, and gives where it lies. `say` is told what they lack.
    ///
    /// # Errors
    /// When they can't be written.
    pub fn archive(
        &mut self,
        dir: &ExperimentDir,
        which: Archive,
        say: &mut impl FnMut(&str),
    ) -> Result<Vec<MapEvent>, Error> {
        let mut maps = self.archive_programs(dir)?;
        let kcore = self.kcore.as_ref();
        if let Err(error) = kcore {
            say(&format!(
                "no disassembly of the kernel: /proc/kcore: {error}"
            ));
        }
        let kcore = kcore.ok();
        for (name, object) in self.symbols.objects().filter(|(name, _)| *name != BPF) {
            // Which modules are used is known at the end.
            if which != Archive::UsedLoadObjects || name == KERNEL {
                maps.extend(archive::kernel_object(dir, name, object, kcore)?);
            }
        }
        Ok(maps)
    }

    /// Writes the image of the programs anew, if some came or went since the last time, and gives
    /// what that changes.
    ///
    /// # Errors
    /// When it can't be written.
    pub fn archive_programs(&mut self, dir: &ExperimentDir) -> Result<Vec<MapEvent>, Error> {
        match std::mem::take(&mut self.programs_changed) {
            true => archive::programs_object(dir, &mut self.programs),
            false => Ok(Vec::new()),
        }
    }

    /// The same of what came since; and, where only used ones are wanted, of the modules in which
    /// one of these `stacks` has a frame. `give_up` is asked before each.
    ///
    /// # Errors
    /// When they can't be written.
    pub fn archive_late<'a>(
        &mut self,
        dir: &ExperimentDir,
        which: Archive,
        stacks: impl Iterator<Item = &'a [u64]>,
        give_up: &mut impl FnMut() -> bool,
    ) -> Result<Vec<MapEvent>, Error> {
        let mut maps = match give_up() {
            true => Vec::new(),
            false => self.archive_programs(dir)?,
        };
        let came = match loaded_modules() != self.modules {
            true => Symbols::read().ok(),
            false => None,
        };
        let used = match which {
            Archive::UsedLoadObjects => self.used_objects(stacks),
            _ => BTreeSet::new(),
        };
        let kcore = self.kcore.as_ref().ok();
        let known = |name: &str| self.symbols.objects().any(|(known, _)| known == name);
        let objects = self
            .symbols
            .objects()
            .filter(|(name, _)| used.contains(name));
        let came = came
            .iter()
            .flat_map(Symbols::objects)
            .filter(|(name, _)| !known(name));
        for (name, object) in objects.chain(came) {
            if give_up() {
                break;
            }
            maps.extend(archive::kernel_object(dir, name, object, kcore)?);
        }
        Ok(maps)
    }

    /// Modules in which a stack has a frame.
    fn used_objects<'a>(&self, stacks: impl Iterator<Item = &'a [u64]>) -> BTreeSet<&str> {
        let places =
            stacks.flat_map(|frames| frames.iter().filter_map(|pc| self.symbols.find(*pc)));
        places
            .map(|place| place.object)
            .filter(|object| ![KERNEL, BPF].contains(object))
            .collect()
    }

    /// Code came or went at an instant, in an experiment that began at `start`: a BPF program, a
    /// trampoline.
    pub fn changed(
        &mut self,
        (start, time): (u64, u64),
        code: (u64, u64),
        name: &[u8],
        gone: bool,
    ) {
        let (address, size) = code;
        let end = address.saturating_add(size);
        let lies_there = |program: &Program| {
            program.to.is_none()
                && program.address < end
                && address < program.address.saturating_add(program.size)
        };
        // Before the start nothing needs a name that was not there when the symbols were read.
        if time < start {
            self.programs
                .retain(|program| program.told || !lies_there(program));
        }
        // Whatever lies there now takes the place of what lay there, whether or not its going was
        // told.
        let at = time.saturating_sub(start).max(1);
        self.programs_changed = true;
        for program in self
            .programs
            .iter_mut()
            .filter(|program| lies_there(program))
        {
            program.to = Some(at);
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
            self.programs.push(Program {
                address,
                size,
                name,
                from: at + 1,
                to: None,
                told: false,
                told_gone: false,
            });
        }
    }
}

/// The names of the modules that are loaded; nothing where the kernel has none.
fn loaded_modules() -> String {
    let text = fs::read_to_string("/proc/modules").unwrap_or_default();
    let mut names: Vec<_> = text
        .lines()
        .filter_map(|line| line.split(' ').next())
        .collect();
    names.sort_unstable();
    names.join(" ")
}
