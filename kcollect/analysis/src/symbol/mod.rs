//! What a position in a load object is: its source line, the functions inlined there, its
//! instructions.
//!
//! For reports. Functions themselves come from the experiment ([`experiment_format::functions`], as
//! gprofng has them); here is what only debug information tells. In the order of the work:
//! [`SearchPaths`] says where files may be, `locate` finds those of a load object, `elf` reads
//! their sections, `lines` asks addr2line, with `meter` between it and the bytes; `disassembly` is
//! beside that, and [`demangle()`] is for whoever shows a name.
//!
//! addr2line does the work, not blazesym, because two things must hold for files that are
//! anybody's: that one shortened while it is read is an error and not SIGBUS, and that reading one
//! ends, with the memory and the stack that there are. addr2line takes its bytes from a reader that
//! we give it. blazesym, as fast and as right on true programs, maps files by path: a file of 1.1
//! MB whose 20,000 units share a line program kept it busy without end, here it takes 0.1 s to be
//! given up.
//!
//! Nothing is kept between two calls: ask for all positions of an object at once. Nothing is kept
//! on the disk either: 5,000 positions in a program with 82 MB of debug information take 0.2 s of
//! CPU, in libc 0.1 s.
//!
//! What it doesn't do: debuginfod; `.dwo` and `.dwp` files of `-gsplit-dwarf`; kernel modules,
//! whose debug files are relocatable; `.gnu_debugdata`, which has names only; separate debug files
//! of 32-bit programs.

mod demangle;
mod disassembly;
mod elf;
#[cfg(test)]
mod hostile;
mod lines;
mod locate;
mod meter;
mod paths;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

pub use demangle::demangle;
pub use disassembly::{Disassembly, Instruction, NameAt};
pub use locate::Origin;
pub use paths::{NotAPathMap, PathMap, SearchPaths, SourceFile};

use elf::{Damaged, Room};

/// A load object of an experiment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ObjectRef {
    /// Its name in `map.xml`: a path, maybe with ` (build id 1234abcd)` behind it, or such as
    /// `vmlinux` and `[vdso]`.
    pub name: String,
    /// Its build id where one was recorded. Else that of the experiment's copy counts.
    pub build_id: Box<[u8]>,
}

/// A function that a position is in: the one that was compiled there, or one that was inlined
/// there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceFrame {
    /// Its name as the linker knows it, for [`demangle()`], or as in the source where only that is
    /// known.
    pub function: Option<Arc<str>>,
    /// Path of the source file, as the compiler was given it, made absolute by the directory in
    /// which it ran.
    pub file: Option<Arc<str>>,
    /// The line, from 1.
    pub line: Option<u32>,
    /// The column, from 1.
    pub column: Option<u32>,
}

/// What was asked of one load object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resolved {
    /// For each position, in the order in which they were asked: the innermost inlined function
    /// with the line of the position first; each further one has the line from which the one before
    /// it was called; the last is the function that was compiled. Empty where nothing is known.
    pub frames: Vec<Vec<SourceFrame>>,
    /// Where the debug information is.
    pub origin: Option<Origin>,
    /// What is missing, even if something was found.
    pub lack: Option<SymbolError>,
}

/// Why less is known of a load object than there could be: the end of a sentence that begins with
/// its name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SymbolError {
    /// It is neither in the experiment nor on this machine.
    #[error("is neither in the experiment nor on this machine")]
    NotFound,

    /// The file on this machine is another one.
    #[error("is not in the experiment, and {} is of another build", .0.display())]
    OtherBuild(PathBuf),

    /// Neither it nor a debug file has line tables.
    #[error("has no debug information, and no debug file of its build id is installed")]
    NoLines,

    /// Instructions were asked for, and only names are there.
    #[error("has no instructions in the experiment")]
    NoCode,

    /// Its instruction set is not one that is disassembled.
    #[error("is for another processor than x86 and aarch64")]
    OtherProcessor,

    /// Its debug file has no addresses.
    #[error("has a debug file for the linker, which kcollect doesn't read")]
    Relocatable,

    /// The file that dwz made is missing, and with it some names.
    #[error("lacks names that are in {}, which is not installed", .0.display())]
    NoAlternative(PathBuf),

    /// A file can't be read or makes no sense.
    #[error("{0}")]
    Damaged(&'static str),

    /// Its debug information takes more time, memory or depth than its size explains.
    #[error("has debug information that takes too much work, and was given up")]
    TooMuchWork,

    /// Reading it ended in a panic.
    #[error("has debug information on which the reader failed")]
    Failed,
}

impl From<Damaged> for SymbolError {
    fn from(damaged: Damaged) -> SymbolError {
        SymbolError::Damaged(damaged.0)
    }
}

/// Finds out lines, inlined functions and instructions.
#[derive(Clone, Debug)]
pub struct Symboliser {
    search: SearchPaths,
}

impl Symboliser {
    /// One that looks there.
    #[must_use]
    pub fn new(search: SearchPaths) -> Symboliser {
        Symboliser { search }
    }

    /// Where it looks, for sources too.
    #[must_use]
    pub fn search(&self) -> &SearchPaths {
        &self.search
    }

    /// What is at these positions in the file of a load object, in bytes, in any order. A caller's
    /// position is that of its call, or anywhere in it, not where the call returns to.
    #[must_use]
    pub fn resolve(&self, object: &ObjectRef, offsets: &[u64]) -> Resolved {
        let mut all = self.resolve_all(&[(object, offsets)]);
        all.pop().unwrap_or_default()
    }

    /// The same for many load objects, in their order; several at a time, as many as there are
    /// CPUs.
    #[must_use]
    pub fn resolve_all(&self, objects: &[(&ObjectRef, &[u64])]) -> Vec<Resolved> {
        let next = AtomicUsize::new(0);
        let work = || {
            let mut done = Vec::new();
            while let Some((index, (object, offsets))) = {
                let index = next.fetch_add(1, Ordering::Relaxed);
                objects.get(index).map(|object| (index, *object))
            } {
                done.push((index, self.resolve_here(object, offsets)));
            }
            done
        };
        let cpus = thread::available_parallelism().map_or(1, usize::from);
        let mut all: Vec<_> = objects
            .iter()
            .map(|(_, offsets)| Resolved::nothing(offsets, SymbolError::Failed))
            .collect();
        thread::scope(|scope| {
            // Own threads even for one object: their stacks have a known size.
            let threads: Vec<_> = (0..cpus.min(objects.len()))
                .filter_map(|_| {
                    let builder = thread::Builder::new().name("symbols".to_owned());
                    let builder = builder.stack_size(meter::STACK);
                    builder.spawn_scoped(scope, work).ok()
                })
                .collect();
            for thread in threads {
                for (index, resolved) in thread.join().unwrap_or_default() {
                    if let Some(place) = all.get_mut(index) {
                        *place = resolved;
                    }
                }
            }
        });
        all
    }

    fn resolve_here(&self, object: &ObjectRef, offsets: &[u64]) -> Resolved {
        // The libraries don't panic on any file that their authors or we tried; one that does costs
        // its lines, not the report.
        catch_unwind(AssertUnwindSafe(|| self.try_resolve(object, offsets)))
            .unwrap_or(Err(SymbolError::Failed))
            .unwrap_or_else(|lack| Resolved::nothing(offsets, lack))
    }

    fn try_resolve(&self, object: &ObjectRef, offsets: &[u64]) -> Result<Resolved, SymbolError> {
        let images = locate::images(object, &self.search)?;
        let mut order: Vec<usize> = (0..offsets.len()).collect();
        order.sort_unstable_by_key(|index| offsets[*index]);
        let addresses: Vec<Option<u64>> = images.first().map_or_else(Vec::new, |image| {
            let address = |index: &usize| image.elf.address(offsets[*index]);
            order.iter().map(address).collect()
        });
        let debug = locate::debug(object, &self.search, images)?;
        let mut room = Room::new();
        let tables = lines::tables(&debug.elf, &mut room)?;
        let (alternative, missing) = match debug.alternative {
            Some(Ok(elf)) => (Some(lines::tables(&elf, &mut room)?), None),
            Some(Err(lack)) => (None, Some(lack)),
            None => (None, None),
        };
        let slid = |address: Option<u64>| address.map(|address| address.wrapping_add(debug.slide));
        let addresses = addresses.into_iter().map(slid);
        let endian = debug.elf.gimli_endian();
        let (found, lack) = lines::resolve(&tables, alternative.as_ref(), endian, addresses);
        let mut frames = vec![Vec::new(); offsets.len()];
        for (index, found) in order.into_iter().zip(found) {
            frames[index] = found;
        }
        Ok(Resolved {
            frames,
            origin: Some(debug.origin),
            lack: lack.or(missing),
        })
    }
}

impl Resolved {
    fn nothing(offsets: &[u64], lack: SymbolError) -> Resolved {
        Resolved {
            frames: vec![Vec::new(); offsets.len()],
            origin: None,
            lack: Some(lack),
        }
    }
}
