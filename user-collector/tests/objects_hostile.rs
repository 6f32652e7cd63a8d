//! Hostile files, as the builder reads them: a result each time, in time
//! and in memory that their size does not decide.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test reports by panicking"
)]

mod mapped;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kcollect_elf::{ElfError, ElfSource};
use proptest::prelude::*;
use tempfile::NamedTempFile;
use user_collector::objects::{
    BuiltTable, ObjectId, TableBuildError, TableBuilder, TableCache, UnwindInfo,
};
use user_collector::unwind::{MAX_SECTION_BYTES, UnwindError, UnwindRules, UnwindTable};

use mapped::mapped;

/// Offsets in an ELF header.
const E_PHOFF: usize = 0x20;
const E_SHOFF: usize = 0x28;
const E_SHNUM: usize = 0x3c;
/// Offsets in a section header.
const SH_OFFSET: usize = 24;
const SH_SIZE: usize = 32;

/// A file of its own.
fn file(bytes: &[u8]) -> NamedTempFile {
    let file = NamedTempFile::new().unwrap();
    std::fs::write(file.path(), bytes).unwrap();
    file
}

fn answer(builder: &mut TableBuilder, source: ElfSource) -> BuiltTable {
    builder.request(ObjectId(0), source);
    builder.wait(Duration::from_secs(60)).pop().unwrap()
}

fn build(builder: &mut TableBuilder, file: File) -> Result<UnwindInfo, TableBuildError> {
    let built = answer(builder, ElfSource::File(file)).info;
    assert!(
        !matches!(
            built,
            Err(TableBuildError::Panicked { .. } | TableBuildError::Ended)
        ),
        "{built:?}"
    );
    built
}

/// The places of the section headers.
fn section_headers(file: &[u8]) -> impl Iterator<Item = usize> + use<> {
    let start = u64::from_le_bytes(file[E_SHOFF..E_SHOFF + 8].try_into().unwrap()) as usize;
    let count = u16::from_le_bytes([file[E_SHNUM], file[E_SHNUM + 1]]);
    (0..usize::from(count)).map(move |index| start + 64 * index)
}

#[test]
fn from_memory_and_from_a_file_alike() {
    let bytes = mapped("/libc.so");
    let mut builder = TableBuilder::start(None).unwrap();
    let of_file = build(&mut builder, file(&bytes).reopen().unwrap()).unwrap();
    let of_bytes = answer(&mut builder, ElfSource::Bytes(bytes.clone()));
    assert!(of_bytes.new_rules.is_empty());
    assert_eq!(of_bytes.info.unwrap(), of_file);
    let (table, summary) = UnwindTable::of_elf(&bytes, &mut UnwindRules::new()).unwrap();
    assert_eq!((of_file.table, of_file.summary), (table, summary));
    assert!(of_file.segments.iter().any(|segment| segment.executable));
    assert_eq!(of_file.build_id.len(), 20);
}

#[test]
fn cut_at_every_hundredth_byte() {
    let bytes = mapped("/ld-linux");
    let file = file(&bytes);
    let mut builder = TableBuilder::start(None).unwrap();
    for length in (0..bytes.len()).step_by(100).rev() {
        file.as_file().set_len(length as u64).unwrap();
        let error = build(&mut builder, file.reopen().unwrap()).unwrap_err();
        assert!(
            matches!(error, TableBuildError::Unwind(_)),
            "{length}: {error}"
        );
    }
}

/// The owner cuts a file while it is read: were it mapped, that would be the end of us.
#[test]
fn cut_while_it_is_read() {
    let bytes = mapped("/libc.so");
    let file = file(&bytes);
    let stop = AtomicBool::new(false);
    let (mut good, mut bad) = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                file.as_file().set_len(bytes.len() as u64 / 8).unwrap();
                file.as_file().write_all_at(&bytes, 0).unwrap();
                std::thread::sleep(Duration::from_micros(500));
            }
        });
        let mut builder = TableBuilder::start(None).unwrap();
        let started = Instant::now();
        while (good < 5 || bad < 5) && started.elapsed() < Duration::from_secs(20) {
            match build(&mut builder, file.reopen().unwrap()) {
                Ok(_) => good += 1,
                Err(_) => bad += 1,
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(bad > 0, "{good} {bad}");
}

#[test]
fn sections_of_any_size_anywhere() {
    let bytes = mapped("/ld-linux");
    let length = bytes.len() as u64;
    let mut builder = TableBuilder::start(None).unwrap();
    let places = [0, 1, length - 1, length, 1 << 32, 1 << 63, u64::MAX];
    for header in section_headers(&bytes) {
        for place in places {
            for field in [SH_OFFSET, SH_SIZE] {
                let mut bytes = bytes.clone();
                bytes[header + field..][..8].copy_from_slice(&place.to_le_bytes());
                let _ = build(&mut builder, file(&bytes).reopen().unwrap());
            }
        }
        // All of the file, whatever else is there.
        let mut bytes = bytes.clone();
        bytes[header + SH_OFFSET..][..8].fill(0);
        bytes[header + SH_SIZE..][..8].copy_from_slice(&length.to_le_bytes());
        let _ = build(&mut builder, file(&bytes).reopen().unwrap());
    }
    for field in [E_PHOFF, E_SHOFF] {
        for place in &places[2..] {
            let mut bytes = bytes.clone();
            bytes[field..][..8].copy_from_slice(&place.to_le_bytes());
            let error = build(&mut builder, file(&bytes).reopen().unwrap()).unwrap_err();
            let TableBuildError::Unwind(UnwindError::Elf(error)) = error else {
                panic!("{error}")
            };
            assert!(
                matches!(error, ElfError::Headers { .. } | ElfError::Outside { .. }),
                "{error}"
            );
        }
    }
}

/// A sparse file of 1 GiB whose sections all are that large: none is read.
#[test]
fn gigantic_sections_are_not_read() {
    let mut bytes = mapped("/ld-linux");
    for header in section_headers(&bytes).collect::<Vec<_>>() {
        bytes[header + SH_OFFSET..][..8].fill(0);
        bytes[header + SH_SIZE..][..8].copy_from_slice(&(1_u64 << 30).to_le_bytes());
    }
    let file = file(&bytes);
    file.as_file().set_len(1 << 30).unwrap();
    let mut builder = TableBuilder::start(None).unwrap();
    let built = answer(&mut builder, ElfSource::File(file.reopen().unwrap()));
    let Err(TableBuildError::Unwind(UnwindError::Elf(ElfError::TooLarge { size, .. }))) =
        built.info
    else {
        panic!("{built:?}")
    };
    assert!(size > MAX_SECTION_BYTES as u64);
    assert!(built.took < Duration::from_secs(5));
}

#[test]
fn other_files_than_elf_are_refused() {
    let mut builder = TableBuilder::start(None).unwrap();
    let mut error = |bytes: &[u8]| build(&mut builder, file(bytes).reopen().unwrap()).unwrap_err();
    assert_eq!(error(b""), TableBuildError::Unwind(ElfError::NotElf.into()));
    assert_eq!(
        error(b"\x7fELF"),
        TableBuildError::Unwind(ElfError::NotElf.into())
    );
    assert_eq!(
        error(b"#!/bin/sh\n"),
        TableBuildError::Unwind(ElfError::NotElf.into())
    );
    // A directory is open for reading as a file is.
    let directory = File::open("/").unwrap();
    assert_eq!(
        build(&mut builder, directory).unwrap_err(),
        TableBuildError::Unwind(ElfError::NotElf.into())
    );
}

/// A file with the build id of libc, and other frame information.
#[test]
fn the_build_id_of_another() {
    let bytes = mapped("/libc.so");
    let mut hostile = bytes.clone();
    let eh_frame = {
        use user_collector::unwind::{FrameInfo, UnwindSections};
        let FrameInfo::Eh { data, .. } = UnwindSections::of_elf(bytes.as_slice()).unwrap().frames
        else {
            panic!("no .eh_frame")
        };
        data.as_ptr().addr() - bytes.as_ptr().addr()..data.len()
    };
    // The first CIE: the CFA is elsewhere.
    let first = &mut hostile[eh_frame.start..][..32];
    let at = first
        .windows(3)
        .position(|bytes| bytes == [0x0c, 7, 8])
        .unwrap();
    first[at + 2] = 16;

    let directory = tempfile::tempdir().unwrap();
    let of = |bytes: &[u8]| {
        let cache = TableCache::open(directory.path().to_owned()).unwrap();
        let mut builder = TableBuilder::start(Some(cache)).unwrap();
        let built = answer(&mut builder, ElfSource::Bytes(bytes.to_vec()));
        (built.info.unwrap(), built.new_rules)
    };
    let (poison, _) = of(&hostile);
    let (good, rules) = of(&bytes);
    assert_eq!(poison.build_id, good.build_id);
    assert!(!good.from_cache);
    let (again, same_rules) = of(&bytes);
    assert!(again.from_cache);
    let rows = |module: &UnwindInfo, rules: &[_]| -> Vec<_> {
        let rows = module.table.rows().iter();
        rows.map(|row| (row.low, rules[usize::from(row.rule)]))
            .collect()
    };
    assert_eq!(rows(&again, &same_rules), rows(&good, &rules));
    assert_eq!(again.summary, good.summary);
    assert_eq!(again.table.pages(), good.table.pages());
    assert!(of(&hostile).0.from_cache);
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 2);
}

/// Damage to the files of the cache costs time and nothing else.
#[test]
fn a_damaged_cache() {
    let bytes = mapped("/libc.so");
    let directory = tempfile::tempdir().unwrap();
    let of_libc = || {
        let cache = TableCache::open(directory.path().to_owned()).unwrap();
        let mut builder = TableBuilder::start(Some(cache)).unwrap();
        answer(&mut builder, ElfSource::Bytes(bytes.clone()))
            .info
            .unwrap()
    };
    let expected = of_libc();
    let path = std::fs::read_dir(directory.path())
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    let whole = std::fs::read(&path).unwrap();
    for length in [0, 7, 43, 44, 100, whole.len() / 2, whole.len() - 1] {
        std::fs::write(&path, &whole[..length]).unwrap();
        assert_eq!(of_libc(), expected);
        // And was replaced.
        assert!(of_libc().from_cache);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_damage_is_read_or_refused(changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..64), in_headers in any::<bool>()) {
        let mut bytes = mapped("/ld-linux");
        let end = if in_headers { 0x300 } else { bytes.len() };
        for (place, byte) in changes {
            let place = place.index(end);
            bytes[place] = byte;
        }
        let mut builder = TableBuilder::start(None).unwrap();
        let of_file = build(&mut builder, file(&bytes).reopen().unwrap());
        let of_bytes = answer(&mut builder, ElfSource::Bytes(bytes)).info;
        prop_assert_eq!(of_file, of_bytes);
    }
}
