//! The kernel's load objects in the experiment: an ELF image of the kernel, of each module and of
//! the BPF programs, with the map events that place them.
//!
//! They are written before the first tick, so that an experiment whose collector was killed still
//! has its names, and so that writing them is not in the profile. BPF programs that come during the
//! run are added as they come, since a process's experiment may end before the run does; modules at
//! the end.

use std::mem::replace;

use experiment_format::Result;
use experiment_format::directory::ExperimentDir;
use experiment_format::elf_image::{ElfImage, ImageSymbol, TextSection};
use experiment_format::map::{MapEvent, READ_EXECUTE};

use super::kcore::Kcore;
use super::symbols::{Object, Symbols};

/// Archives the kernel or one module, with its instructions where `kcore` has them. Gives the
/// events that map it, from the start of the run on; none for an object without functions.
///
/// # Errors
/// When the image can't be laid out or written.
pub fn kernel_object(
    dir: &ExperimentDir,
    name: &str,
    object: Object<'_>,
    kcore: Option<&Kcore>,
) -> Result<Vec<MapEvent>> {
    // Beyond _etext lies the code of the boot, long since freed, but still at the root of the
    // stacks of the boot CPU's idle task: names without instructions.
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
    write(dir, name, &image)?;
    let segment = |placed: experiment_format::elf_image::PlacedText| MapEvent::Segment {
        at: 0,
        vaddr: placed.vaddr,
        size: placed.size,
        file_offset: placed.file_offset,
        modes: READ_EXECUTE,
        name: name.to_owned(),
    };
    Ok(image.placed()?.into_iter().map(segment).collect())
}

/// From the first to the last function that begins where `within` says: address and size.
fn extent(object: Object<'_>, within: impl Fn(u64) -> bool) -> Option<(u64, u64)> {
    let functions = || object.symbols().filter(|symbol| within(symbol.address));
    let first = functions().map(|symbol| symbol.address).min()?;
    let end = functions()
        .map(|symbol| symbol.address.saturating_add(symbol.size))
        .max()?;
    Some((first, end - first))
}

fn write(dir: &ExperimentDir, name: &str, image: &ElfImage<'_>) -> Result<()> {
    let mut file = dir.archive_file(name)?;
    image.write_to(&mut file)?;
    file.commit()
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
    /// The experiment was told of its coming,
    pub told: bool,
    /// and of its going.
    pub told_gone: bool,
}

/// The programs that exist at the start.
#[must_use]
pub fn programs(symbols: &Symbols) -> Vec<Program> {
    let object = symbols
        .objects()
        .find(|(name, _)| *name == experiment_format::kernel::BPF);
    object
        .into_iter()
        .flat_map(|(_, object)| object.symbols())
        .map(|symbol| Program {
            address: symbol.address,
            size: symbol.size,
            name: symbol.name.into(),
            from: 0,
            to: None,
            told: false,
            told_gone: false,
        })
        .collect()
}

/// Archives one image of all programs, each mapped by a segment of its own: they lie scattered
/// among the modules, come and go, and their addresses are used again. Gives the events that map
/// them, those that were not given before.
///
/// The image of more programs extends that of fewer: what was placed stays where it was.
///
/// # Errors
/// When the image can't be laid out or written.
pub fn programs_object(dir: &ExperimentDir, programs: &mut [Program]) -> Result<Vec<MapEvent>> {
    if programs.is_empty() {
        return Ok(Vec::new());
    }
    let functions = programs
        .iter()
        .map(|program| (program.size, program.name.as_bytes()));
    let (image, placed) = ElfImage::scattered(&functions.collect::<Vec<_>>())?;
    write(dir, experiment_format::kernel::BPF, &image)?;
    let maps = programs.iter_mut().zip(placed);
    let maps = maps.flat_map(|(program, placed)| {
        let segment = (!replace(&mut program.told, true)).then(|| MapEvent::Segment {
            at: program.from,
            vaddr: program.address,
            size: program.size,
            file_offset: placed.file_offset,
            modes: READ_EXECUTE,
            name: experiment_format::kernel::BPF.to_owned(),
        });
        let to = program.to.filter(|_| !program.told_gone);
        program.told_gone = program.to.is_some();
        let unmap = to.map(|at| MapEvent::Unmap {
            at,
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
        let program = |index: u64| Program {
            address: 0xffff_ffff_c000_0000 + index * 4096,
            size: 20 + 300 * index,
            name: format!("bpf_prog_{index}").into(),
            from: 0,
            to: None,
            told: false,
            told_gone: false,
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
