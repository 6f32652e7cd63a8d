//! Executable files, as they are archived by a process that may read everything.

use std::fs::{self, File};
use std::path::Path;
use std::sync::atomic::AtomicBool;

use experiment_format::directory::{ExperimentDir, NameRequest};
use experiment_format::reader::Experiment;
use kcollect_elf::debug_file::find_debug_file;
use tempfile::TempDir;
use user_collector::archive::{Archived, SourceLines, archive_object, source_paths};
use user_collector::files::InvokingUser;

use super::experiment::{OBJECT, fill, in_memory};

const ROOT: InvokingUser = InvokingUser {
    uid: 0,
    groups: Vec::new(),
};
static NEVER: AtomicBool = AtomicBool::new(false);

/// The largest archive of an empty file, in bytes: names that its linkage table may repeat.
const MAX_BASE_BYTES: u64 = 17 << 20;
/// The archived bytes that each byte of a file adds at most. It may be in eight linkage tables,
/// where each entry of eight bytes becomes a symbol of 24; in a symbol table and in a string table,
/// of the file and of its debug file; and it is copied.
const MAX_BYTES_PER_BYTE: u64 = 64;

thread_local! {
    static EXPERIMENT: (TempDir, ExperimentDir) = create();
}

#[expect(clippy::expect_used, reason = "without it there is nowhere to write")]
fn create() -> (TempDir, ExperimentDir) {
    let directory = in_memory();
    let name = NameRequest::Exactly("x.er".to_owned());
    let (experiment, _) =
        ExperimentDir::create(directory.path(), &name, None).expect("an experiment");
    fill(experiment.path());
    (directory, experiment)
}

/// Archives an ELF file, which is its own debug file.
pub(super) fn archive(bytes: &[u8]) {
    EXPERIMENT.with(|(directory, experiment)| {
        let path = directory.path().join("file");
        let Ok(file) = fs::write(&path, bytes).and_then(|()| File::open(&path)) else {
            return;
        };
        let archived = archive_object(experiment, OBJECT, &file, Some(&file), &ROOT, &NEVER);
        if let Ok(Archived {
            functions: Some(functions),
            bytes: written,
            ..
        }) = archived
        {
            assert!(written >= bytes.len() as u64);
            assert!(written <= MAX_BASE_BYTES + MAX_BYTES_PER_BYTE * bytes.len() as u64);
            check_copy(experiment.path(), functions);
        }
        let _ = source_paths(&file, Some(&file), SourceLines::All);
        let _ = find_debug_file(&[], Path::new(OBJECT), &file);
    });
}

/// Checks that the copy has no more functions than were written. Its program headers may make it
/// unreadable.
fn check_copy(experiment: &Path, functions: usize) {
    let experiment = Experiment::open(experiment);
    let archives = experiment.map(|experiment| experiment.archives());
    assert!(archives.is_ok());
    if let Ok(mut archives) = archives
        && let Ok(Some(table)) = archives.functions(OBJECT)
    {
        // The section `.plt` counts as one more function there.
        assert!(table.len() <= functions + 1);
    }
}
