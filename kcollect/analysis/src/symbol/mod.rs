//! Source lines, inlined functions and instructions of positions in load objects.
//!
//! Functions themselves come from the experiment ([`experiment_format::functions`], as in gprofng);
//! this module has what needs debug information, and names for functions that have none there. In
//! the order of work:
//!
//! * [`SearchPaths`] has the places, `locate` finds a load object's files there, and `debuginfod`
//!   fetches them. `elf` reads their sections.
//! * `names` looks up addresses in symbol tables; `mini` decompresses one kind of them.
//! * `lines` looks up addresses in line tables by addr2line. `meter` bounds that work, and `split`
//!   reads what the compiler left out of the program.
//! * `disassembly` reads code, and [`demangle()`] makes names readable.
//!
//! addr2line is used and not blazesym, because files are untrusted: one that is shortened while it
//! is read must cause an error and not SIGBUS, and reading must end within bounded memory and
//! stack. addr2line reads through a reader supplied here. blazesym, as fast and as exact on normal
//! programs, maps files by path: a file of 1.1 MB whose 20,000 units share a line program kept it
//! busy without end, and is given up here after 0.1 s.
//!
//! Nothing is cached between two calls: resolve all positions of an object at once. 5,000 positions
//! in a program with 82 MB of debug information take 0.2 s of CPU, in libc 0.1 s.
//!
//! Not supported: kernel modules, whose debug files are relocatable; separate debug files of 32-bit
//! programs.

mod debuginfod;
mod demangle;
mod disassembly;
mod dlang;
mod elf;
#[cfg(test)]
mod hostile;
mod itanium;
mod lines;
mod locate;
mod meter;
mod mini;
mod names;
mod packages;
mod paths;
mod regular_file;
mod split;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

pub use debuginfod::{DebuginfodClient, DebuginfodUse};
pub use demangle::demangle;
pub use disassembly::{Disassembly, Instruction, NameAt, disassemble_code};
pub use locate::Origin;
pub use names::NAMELESS;
pub use packages::debug_packages;
pub use paths::{NotAPathMap, PathMap, SearchPaths, SourceFile};

use elf::{Damaged, SectionBudget};
use names::CodeSymbols;
use split::SplitPlaces;

/// The distance at which a function before a place may still be related to it: the code of one
/// source file is rarely larger.
const MAX_DISTANCE_BYTES: u64 = 64 << 10;

/// A load object of an experiment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ObjectRef {
    /// Its name in `map.xml`: a path, possibly followed by ` (build id 1234abcd)`, or a name such
    /// as `vmlinux` and `[vdso]`.
    pub name: String,
    /// Its recorded build id. Empty: the build id of the experiment's copy counts.
    pub build_id: Box<[u8]>,
}

/// One function at a position, compiled or inlined there, with its source line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceFrame {
    /// Its name as the linker has it, for [`demangle()`], or as in the source if only that is
    /// known.
    pub function: Option<Arc<str>>,
    /// Path of the source file as the compiler was given it, made absolute by its working
    /// directory.
    pub file: Option<Arc<str>>,
    /// The line, from 1.
    pub line: Option<u32>,
    /// The column, from 1.
    pub column: Option<u32>,
}

/// The names of unnamed code in one load object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CodeNames {
    /// One name for each place of the request, in order.
    pub names: Vec<CodeName>,
    /// The load object's own file, whose build the names are for. None: there is no file.
    pub image: Option<Origin>,
}

/// A position in a file whose code has no name in the experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnnamedCode {
    /// The position.
    pub offset: u64,
    /// The beginning of the range of code without a name around it, if the experiment has that.
    pub begin: Option<u64>,
}

/// The name of code, or what is known instead of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CodeName {
    /// A function covers the position.
    Function {
        /// Its name as the linker has it, for [`demangle()`].
        symbol: String,
        /// Where it begins in the load object's file.
        begin: u64,
    },
    /// No function covers the position, but one before it may have a name.
    Near {
        /// Where the range of code begins in the load object's file: at the latest after the
        /// function before it.
        begin: u64,
        /// The last function with a name that begins before the range, in the same section and not
        /// far away: its name for [`demangle()`], and the bytes from its beginning to the range's.
        after: Option<(String, u64)>,
    },
    /// Nothing is known.
    #[default]
    Unknown,
}

/// The result for one load object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resolved {
    /// For each position, in the order of the request: the innermost inlined function with the
    /// position's line first; each further one has the line from which the one before was called;
    /// the last is the compiled function. Empty: nothing is known.
    pub frames: Vec<Vec<SourceFrame>>,
    /// Where the debug information is.
    pub origin: Option<Origin>,
    /// What is missing, even if something was found.
    pub error: Option<SymbolError>,
}

/// Why symbols of a load object are missing: the end of a sentence that begins with its name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SymbolError {
    /// It is neither in the experiment nor on this machine.
    #[error("is neither in the experiment nor on this machine")]
    NotFound,

    /// The file on this machine has another build id.
    #[error("is not in the experiment, and {} is of another build", .0.display())]
    OtherBuild(PathBuf),

    /// Neither it nor a debug file has line tables.
    #[error("has no debug information, and no debug file of its build id is installed")]
    NoLines,

    /// It has names, but no instructions.
    #[error("has no instructions in the experiment")]
    NoCode,

    /// Its instruction set is not supported.
    #[error("is for a processor other than x86 and aarch64")]
    OtherProcessor,

    /// Its debug file has no addresses.
    #[error("has a relocatable debug file, which kcollect does not read")]
    Relocatable,

    /// The common file that dwz made is missing, and with it some names.
    #[error("is missing names that are in {}, which is not installed", .0.display())]
    NoAlternative(PathBuf),

    /// A file that the compiler wrote next to the program is missing, and with it some names.
    #[error("is missing inlined functions that are in {}, which is not there, nor a .dwp file", .0.display())]
    NoSplitFile(PathBuf),

    /// A file can't be read or is malformed.
    #[error("{0}")]
    Damaged(&'static str),

    /// Its debug information takes more time, memory or depth than its size justifies.
    #[error("has debug information that took too long to read, and was given up")]
    TooMuchWork,

    /// Reading it panicked.
    #[error("has debug information that the reader failed on")]
    Failed,
}

impl From<Damaged> for SymbolError {
    fn from(damaged: Damaged) -> SymbolError {
        SymbolError::Damaged(damaged.0)
    }
}

/// The look-up of lines, inlined functions and instructions.
#[derive(Clone, Debug)]
pub struct Symboliser {
    search: SearchPaths,
}

impl Symboliser {
    /// Returns a symboliser that searches these places.
    #[must_use]
    pub fn new(search: SearchPaths) -> Symboliser {
        Symboliser { search }
    }

    /// Returns the places that it searches, for sources too.
    #[must_use]
    pub fn search(&self) -> &SearchPaths {
        &self.search
    }

    /// Opens a source file by its path in the line table of a load object.
    #[must_use]
    pub fn source(&self, object: &ObjectRef, recorded: &str) -> Option<SourceFile> {
        let id = match self.search.debuginfod {
            Some(_) => locate::build_id_of(object, &self.search),
            None => object.build_id.clone(),
        };
        self.search.source(recorded, &id)
    }

    /// Resolves positions in the file of a load object, in bytes and in any order. For a caller,
    /// this is the position of the call instruction or a byte within it, not the return address.
    #[must_use]
    pub fn resolve(&self, object: &ObjectRef, offsets: &[u64]) -> Resolved {
        let mut all = self.resolve_all(&[(object, offsets)]);
        all.pop().unwrap_or_default()
    }

    /// Resolves positions of many load objects, in their order, with a thread for each CPU.
    #[must_use]
    pub fn resolve_all(&self, objects: &[(&ObjectRef, &[u64])]) -> Vec<Resolved> {
        let work = |object: &ObjectRef, offsets: &[u64]| {
            self.try_resolve(object, offsets)
                .unwrap_or_else(|error| Resolved::nothing(offsets, error))
        };
        let failed = |offsets: &[u64]| Resolved::nothing(offsets, SymbolError::Failed);
        for_each(objects, work, failed)
    }

    /// Names code that has no name in the experiment. Names come from the debug file, or else from
    /// the compressed symbol table that Fedora's programs contain.
    #[must_use]
    pub fn names(&self, objects: &[(&ObjectRef, &[UnnamedCode])]) -> Vec<CodeNames> {
        let failed = |places: &[UnnamedCode]| CodeNames {
            names: vec![CodeName::Unknown; places.len()],
            image: None,
        };
        let work = |object: &ObjectRef, places: &[UnnamedCode]| {
            self.try_names(object, places)
                .unwrap_or_else(|_| failed(places))
        };
        for_each(objects, work, failed)
    }

    fn try_names(
        &self,
        object: &ObjectRef,
        places: &[UnnamedCode],
    ) -> Result<CodeNames, SymbolError> {
        let images = locate::images(object, &self.search)?;
        let debug = locate::symbols(object, &self.search, &images);
        let first = images.into_iter().next().ok_or(SymbolError::NotFound)?;
        let image = &first.elf;
        let mut budget = SectionBudget::new();
        let own = CodeSymbols::read(image, &mut budget).unwrap_or_default();
        let debug = debug.and_then(|debug| CodeSymbols::read(&debug, &mut budget).ok());
        let function = |at: &UnnamedCode| {
            let address = image.address(at.offset)?;
            let begin = at.begin.and_then(|begin| image.address(begin));
            let (symbol, place) = debug.as_ref()?.covering(address, begin)?;
            let begin = image.offset(place)?;
            Some(CodeName::Function { symbol, begin })
        };
        let near = |at: &UnnamedCode| {
            let section = image.section_begin(at.offset)?;
            let begin = match at.begin {
                Some(begin) => image.address(begin)?,
                None => own.end_before(image.address(at.offset)?).max(section),
            };
            let nearest = begin.saturating_sub(MAX_DISTANCE_BYTES).max(section);
            let after = own.last_in(nearest..=begin);
            Some(CodeName::Near {
                begin: image.offset(begin)?,
                after: after.map(|(symbol, place)| (symbol, begin - place)),
            })
        };
        let name = |at| function(at).or_else(|| near(at)).unwrap_or_default();
        Ok(CodeNames {
            names: places.iter().map(name).collect(),
            image: Some(first.origin),
        })
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
        let mut budget = SectionBudget::of(self.search.max_debug_bytes);
        let tables = lines::tables(&debug.elf, &mut budget)?;
        let (alternative, missing) = match debug.alternative {
            Some(Ok(elf)) => (Some(lines::tables(&elf, &mut budget)?), None),
            Some(Err(error)) => (None, Some(error)),
            None => (None, None),
        };
        let slid = |address: Option<u64>| address.map(|address| address.wrapping_add(debug.slide));
        let addresses = addresses.into_iter().map(slid);
        let endian = debug.elf.gimli_endian();
        let places = SplitPlaces {
            search: &self.search,
            recorded: locate::path_of(&object.name).0,
            debug: debug.origin.path(),
        };
        let (found, error) =
            lines::resolve(&tables, alternative.as_ref(), places, endian, addresses);
        let mut frames = vec![Vec::new(); offsets.len()];
        for (index, found) in order.into_iter().zip(found) {
            frames[index] = found;
        }
        Ok(Resolved {
            frames,
            origin: Some(debug.origin),
            error: error.or(missing),
        })
    }
}

/// Works on many load objects, in their order, with a thread for each CPU.
fn for_each<A: Sync, R: Send>(
    objects: &[(&ObjectRef, &[A])],
    work: impl Fn(&ObjectRef, &[A]) -> R + Sync,
    failed: impl Fn(&[A]) -> R + Sync,
) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        while let Some((index, (object, asked))) = {
            let index = next.fetch_add(1, Ordering::Relaxed);
            objects.get(index).map(|object| (index, *object))
        } {
            // The libraries panic on no file known to their authors or to us. One that does costs
            // its lines, not the report.
            let result = catch_unwind(AssertUnwindSafe(|| work(object, asked)));
            done.push((index, result.unwrap_or_else(|_| failed(asked))));
        }
        done
    };
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    let mut all: Vec<_> = objects.iter().map(|(_, asked)| failed(asked)).collect();
    thread::scope(|scope| {
        // Separate threads even for one object: their stacks have a known size.
        let threads: Vec<_> = (0..cpus.min(objects.len()))
            .filter_map(|_| {
                let builder = thread::Builder::new().name("symbols".to_owned());
                let builder = builder.stack_size(meter::STACK_BYTES);
                builder.spawn_scoped(scope, work).ok()
            })
            .collect();
        for thread in threads {
            for (index, result) in thread.join().unwrap_or_default() {
                if let Some(place) = all.get_mut(index) {
                    *place = result;
                }
            }
        }
    });
    all
}

impl Resolved {
    fn nothing(offsets: &[u64], error: SymbolError) -> Resolved {
        Resolved {
            frames: vec![Vec::new(); offsets.len()],
            origin: None,
            error: Some(error),
        }
    }
}
