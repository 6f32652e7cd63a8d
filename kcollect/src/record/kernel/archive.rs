//! The kernel's load objects in the experiment: an ELF image of the kernel, of each module and of
//! the BPF programs, with the map events that place them.
//!
//! They are written before the first tick, so that an experiment whose collector was killed still
//! has names, and so that writing them is not in the profile. BPF programs that are loaded during
//! the run are added at once, since a subexperiment may be finished before the run ends. Modules
//! are added at the end.

use std::mem::replace;
use std::os::fd::OwnedFd;

use experiment_format::Result;
use experiment_format::directory::ExperimentDir;
use experiment_format::elf_image::{ElfImage, ImageSymbol, TextSection};
use experiment_format::map::{MapEvent, READ_EXECUTE};
use experiment_format::units::Nanos;

use super::kcore::Kcore;
use super::symbols::{Object, Symbols};

/// Writes the image of the kernel or of one module, with its instructions where `kcore` has them.
/// Returns the events that map it from the start of the run; empty for an object without functions.
/// If `siblings` ([`ExperimentDir::sibling_archives`]) have the same image, it is linked.
///
/// # Errors
/// When the image can't be laid out or written.
pub fn kernel_object(
    dir: &ExperimentDir,
    name: &str,
    object: Object<'_>,
    kcore: Option<&Kcore>,
    siblings: &[OwnedFd],
) -> Result<Vec<MapEvent>> {
    // The boot code beyond _etext has been freed, but its functions are still at the root of the
    // stacks of the boot CPU's idle task. So they get names without instructions.
    let end_of_text = object.symbols().find(|symbol| symbol.name == "_etext");
    let end_of_text = end_of_text.map_or(u64::MAX, |mark| mark.address);
    let text = extent(object, |address| address < end_of_text);
    let boot = extent(object, |address| address >= end_of_text);
    let bits = text.and_then(|(address, size)| kcore?.read(address, size));
    let section = |(address, size)| TextSection {
        address,
        size,
        bits: None,
    };
    let text = text.map(|extent| TextSection {
        bits: bits.as_deref(),
        ..section(extent)
    });
    let image = ElfImage {
        texts: text.into_iter().chain(boot.map(section)).collect(),
        symbols: object
            .symbols()
            .map(|symbol| ImageSymbol {
                address: symbol.address,
                size: symbol.size,
                name: symbol.name.as_bytes(),
                global: symbol.global,
            })
            .collect(),
    };
    if image.texts.is_empty() {
        return Ok(Vec::new());
    }
    write(dir, name, &image, siblings)?;
    let segment = |placed: experiment_format::elf_image::PlacedText| MapEvent::Segment {
        at_ns: Nanos::ZERO,
        vaddr: placed.vaddr,
        size: placed.size,
        file_offset: placed.file_offset,
        modes: READ_EXECUTE,
        name: name.to_owned(),
    };
    Ok(image.placed()?.into_iter().map(segment).collect())
}

/// Returns the address and size of the range from the first to the last function whose address is
/// `within`.
fn extent(object: Object<'_>, within: impl Fn(u64) -> bool) -> Option<(u64, u64)> {
    let functions = || object.symbols().filter(|symbol| within(symbol.address));
    let first = functions().map(|symbol| symbol.address).min()?;
    let end = functions()
        .map(|symbol| symbol.address.saturating_add(symbol.size))
        .max()?;
    Some((first, end - first))
}

fn write(
    dir: &ExperimentDir,
    name: &str,
    image: &ElfImage<'_>,
    siblings: &[OwnedFd],
) -> Result<()> {
    let mut file = dir.archive_file(name)?;
    image.write_to(&mut file)?;
    dir.commit_or_link(file, siblings)
}

/// A piece of code that the kernel compiled or patched in: a BPF program or a trampoline. It is
/// loaded for a time; times are nanoseconds since the start of the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelProgram {
    /// First address.
    pub address: u64,
    /// Size in bytes.
    pub size: u64,
    /// Its name in kallsyms.
    pub name: Box<str>,
    /// When it was loaded; 0 for what was there at the start.
    pub loaded_ns: Nanos,
    /// When it was unloaded.
    pub unloaded_ns: Option<Nanos>,
    /// The experiment has the event that maps it.
    pub map_written: bool,
    /// The experiment has the event that unmaps it.
    pub unmap_written: bool,
}

/// Returns the BPF programs and trampolines that exist at the start.
#[must_use]
pub fn programs(symbols: &Symbols) -> Vec<KernelProgram> {
    let object = symbols
        .objects()
        .find(|(name, _)| *name == experiment_format::kernel::BPF);
    object
        .into_iter()
        .flat_map(|(_, object)| object.symbols())
        .map(|symbol| KernelProgram {
            address: symbol.address,
            size: symbol.size,
            name: symbol.name.into(),
            loaded_ns: Nanos::ZERO,
            unloaded_ns: None,
            map_written: false,
            unmap_written: false,
        })
        .collect()
}

/// Writes one image of all programs, each mapped by a segment of its own: they are scattered among
/// the modules, are loaded and unloaded, and their addresses are reused. Returns the events that
/// map and unmap them, without those that an earlier call returned.
///
/// An image of more programs extends the image of fewer: no program is moved.
///
/// # Errors
/// When the image can't be laid out or written.
pub fn programs_object(
    dir: &ExperimentDir,
    programs: &mut [KernelProgram],
) -> Result<Vec<MapEvent>> {
    if programs.is_empty() {
        return Ok(Vec::new());
    }
    let functions = programs
        .iter()
        .map(|program| (program.size, program.name.as_bytes()));
    let (image, placed) = ElfImage::scattered(&functions.collect::<Vec<_>>())?;
    write(dir, experiment_format::kernel::BPF, &image, &[])?;
    let maps = programs.iter_mut().zip(placed);
    let maps = maps.flat_map(|(program, placed)| {
        let segment = (!replace(&mut program.map_written, true)).then(|| MapEvent::Segment {
            at_ns: program.loaded_ns,
            vaddr: program.address,
            size: program.size,
            file_offset: placed.file_offset,
            modes: READ_EXECUTE,
            name: experiment_format::kernel::BPF.to_owned(),
        });
        let to = program.unloaded_ns.filter(|_| !program.unmap_written);
        program.unmap_written = program.unloaded_ns.is_some();
        let unmap = to.map(|at_ns| MapEvent::Unmap {
            at_ns,
            vaddr: program.address,
        });
        segment.into_iter().chain(unmap)
    });
    Ok(maps.collect())
}

#[cfg(test)]
mod tests {
    use experiment_format::directory::NameRequest;

    use super::*;

    #[test]
    fn an_image_of_more_programs_extends_that_of_fewer() {
        let parent = tempfile::tempdir().unwrap();
        let request = NameRequest::Exactly("x.er".to_owned());
        let (dir, _) = ExperimentDir::create(parent.path(), &request, None).unwrap();
        let program = |index: u64| KernelProgram {
            address: 0xffff_ffff_c000_0000 + index * 4096,
            size: 20 + 300 * index,
            name: format!("bpf_prog_{index}").into(),
            loaded_ns: Nanos::ZERO,
            unloaded_ns: None,
            map_written: false,
            unmap_written: false,
        };
        let all: Vec<_> = (0..20).map(program).collect();
        let whole = programs_object(&dir, &mut all.clone()).unwrap();
        for count in 0..20 {
            let mut programs = all[..count].to_vec();
            let some = programs_object(&dir, &mut programs).unwrap();
            assert_eq!(some, whole[..count]);
            assert_eq!(programs_object(&dir, &mut programs).unwrap(), []);
            programs.extend_from_slice(&all[count..]);
            let rest = programs_object(&dir, &mut programs).unwrap();
            assert_eq!(rest, whole[count..]);
        }
    }
}
