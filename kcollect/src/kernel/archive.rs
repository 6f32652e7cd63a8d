//! The kernel's load objects in the experiment: an ELF image of the kernel, of each module and of the
//! BPF programs, with the map events that place them.
//!
//! They are written before the first tick, so that an experiment whose collector was killed still
//! has its names. What came during the run is added at the end.

use experiment_format::image::{Image, Symbol, Text};
use experiment_format::map::{MapEvent, READ_EXECUTE};

use super::kcore::Kcore;
use super::symbols::{self, Object, Symbols};

/// A load object, ready to be archived.
#[derive(Debug)]
pub struct LoadObject {
    /// Its name in the experiment.
    pub name: String,
    /// The ELF file.
    pub elf: Vec<u8>,
    /// Where its parts lie, from the start of the run on.
    pub maps: Vec<MapEvent>,
}

/// The kernel and its modules, with their instructions where `kcore` has them.
///
/// # Errors
/// When an image can't be laid out.
pub fn kernel_objects(
    symbols: &Symbols,
    kcore: Option<&Kcore>,
) -> experiment_format::Result<Vec<LoadObject>> {
    symbols
        .objects()
        .filter(|(name, _)| *name != symbols::BPF)
        .filter_map(|(name, object)| kernel_object(name, object, kcore).transpose())
        .collect()
}

fn kernel_object(
    name: &str,
    object: &Object,
    kcore: Option<&Kcore>,
) -> experiment_format::Result<Option<LoadObject>> {
    // Beyond _etext lies code of the boot only, long since freed.
    let end_of_text = object.iter().find(|symbol| &*symbol.name == "_etext");
    let end_of_text = end_of_text.map_or(u64::MAX, |mark| mark.address);
    let functions = object.iter().filter(|symbol| symbol.address < end_of_text);
    let bounds = functions
        .clone()
        .fold(None, |bounds: Option<(u64, u64)>, symbol| {
            let (first, last) = bounds.unwrap_or((u64::MAX, 0));
            let end = symbol.address.saturating_add(symbol.size);
            Some((first.min(symbol.address), last.max(end)))
        });
    let Some((address, end)) = bounds else {
        return Ok(None);
    };
    let size = end - address;
    let bits = kcore.and_then(|kcore| kcore.read(address, size));
    let image = Image {
        texts: vec![Text {
            address,
            size,
            bits: bits.as_deref(),
        }],
        symbols: functions
            .map(|symbol| Symbol {
                address: symbol.address,
                size: symbol.size,
                name: symbol.name.as_bytes(),
                global: symbol.global,
            })
            .collect(),
    };
    let maps = image.placed()?.into_iter().map(|placed| MapEvent::Segment {
        at: 0,
        vaddr: placed.vaddr,
        size: placed.size,
        file_offset: placed.file_offset,
        modes: READ_EXECUTE,
        name: name.to_owned(),
    });
    Ok(Some(LoadObject {
        name: name.to_owned(),
        maps: maps.collect(),
        elf: image.to_bytes()?,
    }))
}

/// A piece of code that the kernel compiled or patched in: a BPF program or a trampoline. It lives
/// from `from` to `to`, nanoseconds since the start of the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// First address.
    pub address: u64,
    /// Bytes.
    pub size: u64,
    /// Its name in kallsyms.
    pub name: Box<str>,
    /// When it came; 0 for what was there at the start.
    pub from: u64,
    /// When it went.
    pub to: Option<u64>,
}

/// The programs that exist at the start.
#[must_use]
pub fn programs(symbols: &Symbols) -> Vec<Program> {
    let object = symbols.objects().find(|(name, _)| *name == symbols::BPF);
    let symbols = object.map_or(&[][..], |(_, object)| object);
    symbols
        .iter()
        .map(|symbol| Program {
            address: symbol.address,
            size: symbol.size,
            name: symbol.name.clone(),
            from: 0,
            to: None,
        })
        .collect()
}

/// One image of all programs, each mapped by a segment of its own: they lie scattered among the
/// modules, come and go, and their addresses are used again. `None` when there is no program.
///
/// The image of more programs extends that of fewer: what was placed stays where it was.
///
/// # Errors
/// When the image can't be laid out.
pub fn bpf_object(programs: &[Program]) -> experiment_format::Result<Option<LoadObject>> {
    if programs.is_empty() {
        return Ok(None);
    }
    let functions = programs
        .iter()
        .map(|program| (program.size, program.name.as_bytes()));
    let (image, placed) = Image::scattered(&functions.collect::<Vec<_>>())?;
    let maps = programs.iter().zip(placed).flat_map(|(program, placed)| {
        let segment = MapEvent::Segment {
            at: program.from,
            vaddr: program.address,
            size: program.size,
            file_offset: placed.file_offset,
            modes: READ_EXECUTE,
            name: symbols::BPF.to_owned(),
        };
        let unmap = program.to.map(|at| MapEvent::Unmap {
            at,
            vaddr: program.address,
        });
        [Some(segment), unmap].into_iter().flatten()
    });
    Ok(Some(LoadObject {
        name: symbols::BPF.to_owned(),
        maps: maps.collect(),
        elf: image.to_bytes()?,
    }))
}
