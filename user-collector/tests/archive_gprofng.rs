//! Archived user files, as stock gprofng shows them.
//!
//! The program is a copy of this test itself, stripped by removing its symbol table.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a helper of tests reports by panicking, as tests do"
)]

#[path = "../../experiment-format/tests/synthetic/mod.rs"]
mod synthetic;

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use experiment_format::cause::Cause;
use experiment_format::directory::ExperimentDir;
use experiment_format::ids::{Pid, Tid};
use experiment_format::map::{MapEvent, READ_EXECUTE};
use experiment_format::microstate::Microstate;
use experiment_format::packet::ClockTick;
use experiment_format::reader::Experiment;
use experiment_format::stacks::StackEnd;
use experiment_format::units::{Nanos, Ticks};
use gprofng::{columns, display};
use kcollect_elf::debug_file::find_debug_file;
use object::{Object, ObjectSection, ObjectSymbol};
use proptest::prelude::*;
use user_collector::archive::{ArchiveError, Archived, SourceLines, archive_object, source_paths};
use user_collector::files::InvokingUser;

use synthetic::{begin, header};

const START: u64 = 1_000_000_000;
/// Where the program is mapped, whole.
const BASE: u64 = 0x7f00_0000_0000;
const ROOT: InvokingUser = InvokingUser {
    uid: 0,
    groups: Vec::new(),
};

/// Archiving is never stopped.
static NEVER: AtomicBool = AtomicBool::new(false);

/// The function that the tests look for.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn kcollect_archive_here(x: u64) -> u64 {
    std::hint::black_box(x).wrapping_mul(3)
}

// A function with nothing but a label: no type, no size, no frame information.
std::arch::global_asm!(
    ".globl kcollect_archive_label",
    "kcollect_archive_label:",
    "nop",
    "nop",
    "ret"
);

unsafe extern "C" {
    fn kcollect_archive_label();
}

/// An experiment with 100 ticks at each of these positions in the file.
fn experiment(parent: &Path, positions: &[u64], archive: impl FnOnce(&ExperimentDir)) -> PathBuf {
    let tables = vec![ClockTick::table(10_000)];
    let mut writer = begin(parent, "ktest", &header(tables), START).unwrap();
    archive(writer.dir());
    let map = MapEvent::Segment {
        at_ns: Nanos::ZERO,
        vaddr: BASE,
        size: 1 << 30,
        file_offset: 0,
        modes: READ_EXECUTE,
        name: "/opt/x/prog".into(),
    };
    writer.map(&map).unwrap();
    for (position, number) in positions.iter().zip(1..) {
        let stack = writer
            .stack(&[BASE + position], StackEnd::Complete)
            .unwrap();
        let tick = ClockTick {
            cpu: 0,
            time_ns: Nanos(START + number),
            stack,
            tid: Tid(1),
            pid: Pid(4242),
            state: Microstate::User,
            ticks: Ticks(100),
            detail: 0,
            cause: Cause::Undecided,
            waker: Tid(0),
        };
        writer.tick(&tick).unwrap();
    }
    writer.close(Nanos(START)).unwrap()
}

fn here() -> File {
    // It is in the program only if it is used.
    assert_eq!(kcollect_archive_here(2), 6);
    // SAFETY: it does nothing and returns.
    unsafe { kcollect_archive_label() };
    File::open(std::env::current_exe().unwrap()).unwrap()
}

/// Position in the file of the function that is looked for.
fn position() -> u64 {
    position_of("kcollect_archive_here")
}

fn position_of(function: &str) -> u64 {
    let bytes = fs::read(std::env::current_exe().unwrap()).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let symbol = file
        .symbols()
        .find(|symbol| symbol.name() == Ok(function))
        .unwrap();
    let section = file
        .section_by_index(symbol.section_index().unwrap())
        .unwrap();
    section.file_range().unwrap().0 + (symbol.address() - section.address())
}

/// A copy of this program without its symbol table.
fn stripped(at: &Path) -> File {
    let mut bytes = fs::read(std::env::current_exe().unwrap()).unwrap();
    let headers = u64::from_le_bytes(bytes[40..48].try_into().unwrap()) as usize;
    let count = u16::from_le_bytes(bytes[60..62].try_into().unwrap()) as usize;
    for section in 0..count {
        let kind = headers + 64 * section + 4;
        if bytes[kind] == 2 {
            bytes[kind] = 1;
        }
    }
    fs::write(at, bytes).unwrap();
    File::open(at).unwrap()
}

fn archived(
    parent: &Path,
    file: &File,
    debug: Option<&File>,
    user: &InvokingUser,
) -> (Archived, PathBuf) {
    let mut archived = None;
    let path = experiment(parent, &[position() + 1], |dir| {
        archived = Some(archive_object(dir, "/opt/x/prog", file, debug, user, &NEVER).unwrap());
    });
    (archived.unwrap(), path)
}

#[test]
fn names_and_instructions_of_a_program() {
    let tmp = tempfile::tempdir().unwrap();
    let (archived, path) = archived(tmp.path(), &here(), None, &ROOT);
    assert!(archived.text && archived.functions.unwrap() > 100);
    assert_eq!(archived.note, None);
    let text = display(&path, &["-functions"]);
    assert_eq!(columns(&text, "kcollect_archive_here")[0], "1.000");
    let code = display(&path, &["-disasm", "kcollect_archive_here"]);
    assert!(code.contains("ret"), "{code}");
}

#[test]
fn a_label_of_assembly_is_a_function() {
    let tmp = tempfile::tempdir().unwrap();
    let position = position_of("kcollect_archive_label");
    let path = experiment(tmp.path(), &[position, position + 1], |dir| {
        archive_object(dir, "/opt/x/prog", &here(), None, &ROOT, &NEVER).unwrap();
    });
    let text = display(&path, &["-functions"]);
    assert_eq!(columns(&text, "kcollect_archive_label")[0], "2.000");
}

#[test]
fn a_stripped_program_has_functions_of_its_own_and_the_names_of_its_debug_file() {
    let tmp = tempfile::tempdir().unwrap();
    let file = stripped(&tmp.path().join("prog"));
    let (without, path) = archived(tmp.path(), &file, None, &ROOT);
    assert!(without.functions.unwrap() > 100);
    let name = format!("<static>@{:#x} (<prog>)", position());
    assert_eq!(columns(&display(&path, &["-functions"]), &name)[0], "1.000");

    let (with, path) = archived(tmp.path(), &file, Some(&here()), &ROOT);
    assert!(with.debug_symbols > 100);
    let text = display(&path, &["-functions"]);
    assert_eq!(columns(&text, "kcollect_archive_here")[0], "1.000");
}

#[test]
fn unreadable_files_give_names_only() {
    let tmp = tempfile::tempdir().unwrap();
    let path = tmp.path().join("prog");
    fs::copy(std::env::current_exe().unwrap(), &path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o711)).unwrap();
    let file = File::open(&path).unwrap();
    let stranger = InvokingUser {
        uid: file.metadata().unwrap().uid() + 7,
        groups: Vec::new(),
    };
    let (archived, path) = archived(tmp.path(), &file, None, &stranger);
    assert!(!archived.text && archived.note.is_some());
    let copy = fs::read_dir(path.join("archives")).unwrap();
    let copy: Vec<_> = copy.map(|entry| entry.unwrap().path()).collect();
    let names = fs::metadata(&copy[0]).unwrap().len();
    assert!(names < file.metadata().unwrap().len());
    let text = display(&path, &["-functions"]);
    assert_eq!(columns(&text, "kcollect_archive_here")[0], "1.000");

    let text = tmp.path().join("text");
    fs::write(&text, "no program").unwrap();
    fs::set_permissions(&text, fs::Permissions::from_mode(0o700)).unwrap();
    experiment(tmp.path(), &[], |dir| {
        let error = archive_object(
            dir,
            "t",
            &File::open(&text).unwrap(),
            None,
            &stranger,
            &NEVER,
        );
        assert!(matches!(error, Err(ArchiveError::NothingToKeep { .. })));
        let error = archive_object(
            dir,
            "t",
            &File::open("/dev/null").unwrap(),
            None,
            &ROOT,
            &NEVER,
        );
        assert!(matches!(error, Err(ArchiveError::NotRegular { .. })));
        let archived =
            archive_object(dir, "t", &File::open(&text).unwrap(), None, &ROOT, &NEVER).unwrap();
        assert_eq!(archived.functions, None);
    });
}

#[test]
fn the_reader_of_this_project_sees_the_same() {
    let tmp = tempfile::tempdir().unwrap();
    let (_, path) = archived(tmp.path(), &here(), None, &ROOT);
    let experiment = Experiment::open(&path).unwrap();
    let space = experiment.address_space().unwrap();
    let mut archives = experiment.archives();
    let found = archives
        .function_at(&space, BASE + position() + 1, Nanos(1))
        .unwrap()
        .unwrap();
    assert_eq!(
        (found.name, found.offset),
        (Some("kcollect_archive_here"), 1)
    );
}

#[test]
fn the_sources_of_a_program_and_of_one_line() {
    let all = source_paths(&here(), None, SourceLines::All);
    let has = |paths: &std::collections::BTreeSet<Vec<u8>>| {
        paths
            .iter()
            .any(|path| path.ends_with(b"tests/archive_gprofng.rs"))
    };
    assert!(has(&all), "{} paths", all.len());
    let used = source_paths(&here(), None, SourceLines::At(&[position() + 1]));
    assert!(has(&used) && used.len() < 10, "{used:?}");
    assert!(source_paths(&here(), None, SourceLines::At(&[0])).is_empty());
}

/// The vDSO: a small ELF file with all that is read here, and on every machine.
fn small_elf() -> Vec<u8> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let line = maps.lines().find(|line| line.ends_with("[vdso]")).unwrap();
    let (start, rest) = line.split_once('-').unwrap();
    let end = rest.split(' ').next().unwrap();
    let [start, end] = [start, end].map(|address| u64::from_str_radix(address, 16).unwrap());
    let mut bytes = vec![0; (end - start) as usize];
    let memory = File::open("/proc/self/mem").unwrap();
    memory.read_exact_at(&mut bytes, start).unwrap();
    bytes
}

/// Archives a file of these bytes, as itself and as its own debug file, and reads what it says of
/// sources.
fn archive_bytes(dir: &ExperimentDir, path: &Path, bytes: &[u8]) {
    fs::write(path, bytes).unwrap();
    let file = File::open(path).unwrap();
    archive_object(dir, "/prog", &file, Some(&file), &ROOT, &NEVER).unwrap();
    let _ = source_paths(&file, Some(&file), SourceLines::All);
    let _ = find_debug_file(&[], Path::new("/prog"), &file);
}

#[test]
fn a_file_that_is_cut_anywhere_is_archived() {
    let tmp = tempfile::tempdir().unwrap();
    let bytes = small_elf();
    experiment(tmp.path(), &[], |dir| {
        for cut in (0..bytes.len()).step_by(13) {
            archive_bytes(dir, &tmp.path().join("prog"), &bytes[..cut]);
        }
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn a_damaged_file_is_archived(
        damages in prop::collection::vec(
            prop::collection::vec((any::<prop::sample::Index>(), any::<bool>(), any::<u8>()), 1..20),
            20,
        ),
    ) {
        let tmp = tempfile::tempdir().unwrap();
        let bytes = small_elf();
        let headers = u64::from_le_bytes(bytes[40..48].try_into().unwrap()) as usize;
        prop_assert!(headers < bytes.len());
        experiment(tmp.path(), &[], |dir| {
            for damage in damages {
                let mut bytes = bytes.clone();
                for (place, in_headers, value) in damage {
                    // A file's size is a page's multiple, most of it zeros; what hurts is in the
                    // headers.
                    let from = if in_headers { headers } else { 16 };
                    let place = from + place.index(bytes.len().min(from + 1500) - from);
                    bytes[place] = value;
                }
                archive_bytes(dir, &tmp.path().join("prog"), &bytes);
            }
        });
    }
}
