//! Finds the files of a load object: the one with its code, and the one with its debug information.
//!
//! The code is in the experiment's copy, or in the original on this machine. The original is taken
//! only if it has the recorded build id, because lines of another build are worse than none.
//! Without a recorded build id it is taken as it is, which [`Origin`] says.
//!
//! Debug information is in the same file or in a debug file of the distribution: by build id below
//! `usr/lib/debug/.build-id`, or by name and checksum in `.gnu_debuglink`, or else from a server if
//! the user wants that. What `dwz` moved into a common file is found by path or build id. The
//! kernel's image in an experiment was made from a list of symbols and has no debug information;
//! its debug file is found by the recorded build id.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use kcollect_elf::debug_file::{find_by_build_id, find_debug_file};
use kcollect_elf::section_build_id as build_id;

use super::elf::{Damaged, Elf, SectionBudget};
use super::mini;
use super::paths::SearchPaths;
use super::regular_file::open_regular;
use super::{ObjectRef, SymbolError};

/// A symbol that vmlinux and kallsyms have, by which the kernel's place in memory is found.
const KERNEL_MARK: &[u8] = b"_stext";

/// The source of lines or instructions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The experiment's copy.
    Archive,
    /// The file on this machine.
    Original {
        /// Its path.
        path: PathBuf,
        /// Whether it has the recorded build id. Without one it may be of another build.
        same_build: bool,
    },
    /// A separate debug file.
    DebugFile(PathBuf),
}

impl Origin {
    /// Returns its path. None: it is the experiment's copy, which has no files next to it.
    pub(super) fn path(&self) -> Option<&Path> {
        match self {
            Origin::Archive => None,
            Origin::Original { path, .. } | Origin::DebugFile(path) => Some(path),
        }
    }
}

/// A file with the code of a load object.
#[derive(Debug)]
pub(super) struct Image {
    pub(super) elf: Elf,
    pub(super) origin: Origin,
}

/// The file with the debug information of a load object.
#[derive(Debug)]
pub(super) struct Debug {
    pub(super) elf: Elf,
    pub(super) origin: Origin,
    /// Offset from addresses in the image to addresses in this file.
    pub(super) slide: u64,
    /// The common file that dwz made, or why it is missing.
    pub(super) alternative: Option<Result<Elf, SymbolError>>,
}

/// Returns the files with the object's code, the experiment's first.
///
/// # Errors
/// No file has the code.
pub(super) fn images(object: &ObjectRef, search: &SearchPaths) -> Result<Vec<Image>, SymbolError> {
    let mut images = Vec::new();
    let mut why = SymbolError::NotFound;
    let archived = search.open_archived(&object.name);
    let mut id: Box<[u8]> = object.build_id.clone();
    if let Some(file) = archived {
        if id.is_empty() {
            id = build_id(&file);
        }
        match Elf::read(file) {
            Ok(elf) => images.push(Image {
                elf,
                origin: Origin::Archive,
            }),
            Err(Damaged(what)) => why = SymbolError::Damaged(what),
        }
    }
    // Made by the recorder from memory: no file has it.
    if object.name.starts_with('[') || images.iter().any(|image| image.elf.is_synthetic()) {
        return found_or(images, why);
    }
    let (path, ambiguous) = path_of(&object.name);
    for path in search.candidates(path) {
        let Some(file) = open_regular(&path) else {
            continue;
        };
        let same_build = !id.is_empty() && *build_id(&file) == *id;
        if !same_build && (ambiguous || !id.is_empty()) {
            why = SymbolError::OtherBuild(path);
            continue;
        }
        match Elf::read(file) {
            Ok(elf) => {
                let origin = Origin::Original { path, same_build };
                images.push(Image { elf, origin });
                break;
            }
            Err(Damaged(what)) => why = SymbolError::Damaged(what),
        }
    }
    found_or(images, why)
}

fn found_or(images: Vec<Image>, why: SymbolError) -> Result<Vec<Image>, SymbolError> {
    if images.is_empty() {
        Err(why)
    } else {
        Ok(images)
    }
}

/// Returns the path of a load object's name, and whether another object has the same path: the
/// second one has ` (build id 1234abcd)` or a number after it.
pub(super) fn path_of(name: &str) -> (&Path, bool) {
    let stem = name
        .strip_suffix(')')
        .and_then(|name| name.rsplit_once(" ("));
    match stem {
        Some((path, mark))
            if mark.starts_with("build id ") || mark.bytes().all(|byte| byte.is_ascii_digit()) =>
        {
            (Path::new(path), true)
        }
        _ => (Path::new(name), false),
    }
}

/// Returns the debug information of an object with these images, which are in the order of
/// [`images`].
///
/// # Errors
/// No file has debug information.
pub(super) fn debug(
    object: &ObjectRef,
    search: &SearchPaths,
    images: Vec<Image>,
) -> Result<Debug, SymbolError> {
    let (path, _) = path_of(&object.name);
    let roots = open_roots(search);
    let roots: Vec<_> = roots.iter().map(AsFd::as_fd).collect();
    let mut separate = None;
    for image in &images {
        if image.elf.has_lines() {
            break;
        }
        let found = find_by_build_id(&roots, &object.build_id)
            .or_else(|| find_debug_file(&roots, path, image.elf.file()));
        let elf = found.and_then(|found| Elf::read(found).ok());
        if let Some(elf) = elf.filter(Elf::has_lines) {
            let slide = slide(&image.elf, &elf)?;
            separate = Some((elf, slide));
            break;
        }
    }
    if separate.is_none() && !images.iter().any(|image| image.elf.has_lines()) {
        let found = fetched(search, &own_id(object, &images)).filter(Elf::has_lines);
        if let (Some(elf), Some(image)) = (found, images.first()) {
            let slide = slide(&image.elf, &elf)?;
            separate = Some((elf, slide));
        }
    }
    let (elf, origin, slide) = match separate {
        Some((elf, slide)) => {
            let path = place(elf.file()).unwrap_or_default();
            (elf, Origin::DebugFile(path), slide)
        }
        None => {
            let own = images.into_iter().find(|image| image.elf.has_lines());
            let own = own.ok_or(SymbolError::NoLines)?;
            (own.elf, own.origin, 0)
        }
    };
    let alternative = elf
        .alternative()
        .map(|(path, id)| alternative(&elf, search, &roots, &path, &id));
    Ok(Debug {
        alternative,
        elf,
        origin,
        slide,
    })
}

/// Finds the file with the symbol table of an object with these images: its debug file, the file
/// that is compressed in the image, or a fetched one. None: there is no such file, or the object is
/// the kernel, whose names are all in the experiment.
pub(super) fn symbols(object: &ObjectRef, search: &SearchPaths, images: &[Image]) -> Option<Elf> {
    if images.iter().any(|image| image.elf.is_synthetic()) {
        return None;
    }
    let (path, _) = path_of(&object.name);
    let roots = open_roots(search);
    let roots: Vec<_> = roots.iter().map(AsFd::as_fd).collect();
    let mut files = images.iter().map(|image| image.elf.file());
    let local = files.find_map(|file| find_debug_file(&roots, path, file));
    let mut elves = images.iter().map(|image| &image.elf);
    local
        .and_then(|file| Elf::read(file).ok())
        .or_else(|| elves.find_map(|elf| mini::of(elf).ok().flatten()))
        .or_else(|| fetched(search, &own_id(object, images)))
}

/// Returns the build id of an object, from its files if it was not recorded.
pub(super) fn build_id_of(object: &ObjectRef, search: &SearchPaths) -> Box<[u8]> {
    own_id(object, &images(object, search).unwrap_or_default())
}

/// Returns the build id of an object with these images.
fn own_id(object: &ObjectRef, images: &[Image]) -> Box<[u8]> {
    let recorded = Some(object.build_id.clone()).filter(|id| !id.is_empty());
    let first = || Some(build_id(images.first()?.elf.file()));
    recorded.or_else(first).unwrap_or_default()
}

/// Returns the debug file of a build id from a server or the cache.
fn fetched(search: &SearchPaths, id: &[u8]) -> Option<Elf> {
    let file = search.debuginfod.as_ref()?.debug_file(id)?;
    Elf::read(file).ok()
}

fn open_roots(search: &SearchPaths) -> Vec<File> {
    let roots = search.roots.iter();
    roots.filter_map(|root| File::open(root).ok()).collect()
}

/// Returns the distance from the addresses at which the kernel was linked to those at which it ran.
fn slide(image: &Elf, debug: &Elf) -> Result<u64, SymbolError> {
    if !image.is_synthetic() {
        return Ok(0);
    }
    let mut budget = SectionBudget::new();
    let mut mark = |elf: &Elf| elf.symbol(KERNEL_MARK, &mut budget);
    match (mark(image), mark(debug)) {
        (Some(image), Some(debug)) => Ok(debug.wrapping_sub(image)),
        // A module: its debug file is relocatable and has no addresses yet.
        _ => Err(SymbolError::Relocatable),
    }
}

/// Returns the file of `.gnu_debugaltlink`, whose path is absolute or relative to the file that
/// names it.
fn alternative(
    debug: &Elf,
    search: &SearchPaths,
    roots: &[BorrowedFd<'_>],
    path: &[u8],
    id: &[u8],
) -> Result<Elf, SymbolError> {
    let path = Path::new(OsStr::from_bytes(path));
    let mut candidates = search.candidates(path);
    if path.is_relative() {
        let place = place(debug.file());
        let directory = place.as_deref().and_then(Path::parent);
        candidates = directory
            .map(|directory| directory.join(path))
            .into_iter()
            .collect();
    }
    let by_path = || {
        let mut files = candidates.iter().filter_map(|path| open_regular(path));
        files.find(|file| *build_id(file) == *id)
    };
    by_path()
        .or_else(|| find_by_build_id(roots, id))
        .and_then(|file| Elf::read(file).ok())
        .or_else(|| fetched(search, id))
        .ok_or_else(|| SymbolError::NoAlternative(path.to_owned()))
}

/// Returns the path of an open file.
fn place(file: &File) -> Option<PathBuf> {
    fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stand_for_paths() {
        for (name, path, ambiguous) in [
            ("/usr/bin/x", "/usr/bin/x", false),
            ("/usr/bin/x (build id 1234abcd)", "/usr/bin/x", true),
            ("/usr/bin/x (build id 1234abcd, 2)", "/usr/bin/x", true),
            ("/usr/bin/x (2)", "/usr/bin/x", true),
            ("/opt/Program (old)/x", "/opt/Program (old)/x", false),
            ("/opt/x (old)", "/opt/x (old)", false),
        ] {
            assert_eq!(path_of(name), (Path::new(path), ambiguous));
        }
    }
}
