//! The files of an experiment: one is replaced by the input, and the others are intact.
//!
//! Each thread has an experiment of its own, made of the corpora's first files, and opens its
//! directory, as users do. The directory is in memory where the machine has `/dev/shm`.

use std::fs;
use std::path::Path;

use analysis::symbol::{ObjectRef, SearchPaths, Symboliser, UnnamedCode, disassemble_code};
use experiment_format::archive::{ARCHIVES, archive_name};
use experiment_format::reader::Experiment;
use experiment_format::units::Nanos;
use tempfile::TempDir;

/// A recorded experiment, cut short.
const FILES: [(&str, &[u8]); 5] = [
    ("log.xml", include_bytes!("../corpora/log/recorded")),
    ("map.xml", include_bytes!("../corpora/map/recorded")),
    ("profile", include_bytes!("../corpora/packets/recorded")),
    (
        "data.frameinfo",
        include_bytes!("../corpora/stacks/recorded"),
    ),
    ("overview", include_bytes!("../corpora/usage/recorded")),
];

/// The name of a load object in its archive.
pub(super) const OBJECT: &str = "/usr/bin/anything";

/// Positions to look up, as byte offsets in the file.
const POSITIONS: [u64; 4] = [0, 0x40, 0x1040, u64::MAX];

thread_local! {
    static EXPERIMENT: TempDir = create();
}

/// Creates the experiment of a thread. It runs in the initialiser of a thread local, which cannot
/// return an error.
#[expect(clippy::expect_used, reason = "without it there is nothing to read")]
fn create() -> TempDir {
    let directory = in_memory();
    fill(directory.path());
    fs::create_dir(directory.path().join(ARCHIVES)).expect("its archives");
    directory
}

/// Creates a directory, in memory where the machine has `/dev/shm`.
#[expect(clippy::expect_used, reason = "without it there is nowhere to write")]
pub(super) fn in_memory() -> TempDir {
    let memory = Path::new("/dev/shm");
    let directory = TempDir::new_in(memory).or_else(|_| TempDir::new());
    directory.expect("a directory")
}

/// Writes the files of an experiment into a directory.
#[expect(clippy::expect_used, reason = "without it there is nothing to read")]
pub(super) fn fill(directory: &Path) {
    for (name, bytes) in FILES {
        fs::write(directory.join(name), bytes).expect("a file of an experiment");
    }
}

/// Reads the experiment with one file replaced, then restores it.
fn with_file(file: &str, bytes: &[u8], read: impl FnOnce(&Path)) {
    EXPERIMENT.with(|directory| {
        let path = directory.path().join(file);
        if fs::write(&path, bytes).is_err() {
            return;
        }
        read(directory.path());
        // Restored for the next target of this thread.
        let _ = match FILES.iter().find(|(name, _)| *name == file) {
            Some((_, first)) => fs::write(&path, first),
            None => fs::remove_file(&path),
        };
    });
}

pub(super) fn log(bytes: &[u8]) {
    with_file("log.xml", bytes, |path| read_all(path, bytes.len()));
}

pub(super) fn map(bytes: &[u8]) {
    with_file("map.xml", bytes, |path| read_all(path, bytes.len()));
}

pub(super) fn packets(bytes: &[u8]) {
    with_file("profile", bytes, |path| read_all(path, bytes.len()));
}

pub(super) fn stacks(bytes: &[u8]) {
    with_file("data.frameinfo", bytes, |path| read_all(path, bytes.len()));
}

pub(super) fn usage(bytes: &[u8]) {
    with_file("overview", bytes, |path| read_all(path, bytes.len()));
}

/// Reads code of JIT functions, and disassembles it.
pub(super) fn dynamic_code(bytes: &[u8]) {
    with_file("dyntext", bytes, |path| {
        let Ok(experiment) = Experiment::open(path) else {
            return;
        };
        let Ok(codes) = experiment.dynamic_codes() else {
            return;
        };
        let mut all = 0;
        for code in codes.iter() {
            all += code.code.len();
            for architecture in ["x86_64", "aarch64"] {
                let decoded = disassemble_code(architecture, code.code, code.address, &|_| None);
                let count = decoded.map_or(0, |decoded| decoded.len());
                assert!(count <= code.code.len());
            }
        }
        assert!(all <= bytes.len());
    });
}

/// Reads an archived load object: its functions and its lines.
pub(super) fn functions(bytes: &[u8]) {
    let file = format!("{ARCHIVES}/{}", archive_name(OBJECT));
    with_file(&file, bytes, |path| {
        let Ok(experiment) = Experiment::open(path) else {
            return;
        };
        let mut archives = experiment.archives();
        if let Ok(Some(table)) = archives.functions(OBJECT) {
            // A symbol has 16 bytes at least.
            assert!(table.len() <= bytes.len() / 16);
            for position in POSITIONS {
                let _ = (table.find(position), table.range(position));
                let _ = table.hole(position);
                let all = table.find_all(position);
                assert!(all.is_none_or(|(names, _)| names.count() <= table.len()));
            }
            let _ = table.text_size();
        }
        let symboliser = Symboliser::new(SearchPaths::new(Some(path.join(ARCHIVES))));
        let object = ObjectRef {
            name: OBJECT.to_owned(),
            build_id: Box::default(),
        };
        let resolved = symboliser.resolve(&object, &POSITIONS);
        assert_eq!(resolved.frames.len(), POSITIONS.len());
        // It has a symbol table of its own, or a compressed one.
        let places = POSITIONS.map(|offset| UnnamedCode {
            offset,
            begin: offset.checked_sub(1),
        });
        let named = symboliser.names(&[(&object, &places)]);
        assert!(named.iter().all(|named| named.names.len() == places.len()));
    });
}

/// Reads every part of an experiment whose replaced file has `size` bytes.
fn read_all(path: &Path, size: usize) {
    let Ok(experiment) = Experiment::open(path) else {
        return;
    };
    let most = size + FILES.iter().map(|(_, bytes)| bytes.len()).sum::<usize>();
    assert!(experiment.events().len() <= most);
    let _ = (experiment.is_closed(), experiment.start());
    let _ = (experiment.warnings(), experiment.notes());
    if let Ok(space) = experiment.address_space() {
        assert!(space.objects().count() <= most);
        for address in [0, 0x1000, 0xffff_ffff_8100_0000, u64::MAX] {
            let (found, lasting) = space.find_lasting(address, Nanos(1));
            assert!(lasting.contains(&Nanos(1)) || lasting.is_empty());
            assert_eq!(found.is_some(), space.find(address, Nanos(1)).is_some());
        }
    }
    let stacks = experiment.stacks();
    if let Ok(ticks) = experiment.ticks() {
        let mut count = 0;
        for tick in ticks.flatten() {
            count += 1;
            if let (Some(uid), Ok(stacks)) = (tick.shared.stack, &stacks) {
                let frames = stacks.get(uid).map_or(0, |stack| stack.frames.len());
                assert!(frames <= most);
            }
        }
        // A packet has four bytes of header, and at most ten states.
        assert!(count <= most / 4 * 10);
    }
    for packets in [
        experiment.packets(),
        experiment.counter_packets(),
        experiment.sync_packets(),
        experiment.io_packets(),
        experiment.heap_packets(),
    ] {
        let Ok(mut packets) = packets else { continue };
        while let Ok(Some(packet)) = packets.next_packet() {
            let _ = (
                packet.ticks(),
                packet.counted(),
                packet.waited(),
                packet.called(),
                packet.allocated(),
                packet.field("TSTAMP"),
            );
        }
        assert!(packets.invalid() <= most as u64);
    }
    let _ = (experiment.usage(), experiment.samples());
    let _ = experiment.subexperiments();
}
