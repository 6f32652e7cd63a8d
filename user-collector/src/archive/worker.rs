//! The jobs of the archive thread.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use experiment_format::archive::archive_name;
use experiment_format::directory::{Build, ExperimentDir};
use kcollect_elf::debug_file::find_debug_file;
use kcollect_elf::{ElfSource, section_build_id};
use nix::sys::statvfs::fstatvfs;

use super::archiver::given_up;
use super::{
    ArchiveError, MAX_COPIED_FILE_BYTES, Refusal, RefusalCause, SourceLines, archive_object,
    archive_source, source_paths, vdso,
};
use crate::files::{InvokingUser, Share, may_hold};

/// Max bytes of all copies together.
pub const MAX_ARCHIVE_BYTES: u64 = 4 << 30;
/// Nice value of the thread during the recording: with 19 it has a seventieth of the weight of a
/// normal thread.
const ARCHIVER_NICE: i32 = 19;
/// Min bytes of a build id that identifies the content: linkers make hashes of 8 to 20 bytes.
const MIN_BUILD_ID: usize = 8;

/// The source files that are archived in addition to the load objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceCopies {
    /// No source files.
    None,
    /// Source files of lines that are in stacks.
    Used,
    /// All source files that the line tables name.
    All,
}

/// A load object to be archived.
#[derive(Debug)]
pub struct ArchiveRequest {
    /// Its name in `map.xml`.
    pub name: String,
    /// Its path in the processes that map it.
    pub path: PathBuf,
    /// Its content.
    pub content: ElfSource,
    /// The root directory of a process that maps it, where that is not ours.
    pub root: Option<OwnedFd>,
}

/// A job of the thread.
#[derive(Debug)]
pub(super) enum ArchiveJob {
    Object(ArchiveRequest),
    SourceLines { name: String, offsets: Vec<u64> },
}

/// The result of one job.
#[derive(Debug, Default)]
pub(super) struct JobResult {
    /// Of an object: whether its text is archived, or why nothing is.
    pub(super) object: Option<Result<bool, Refusal>>,
    pub(super) bytes: u64,
    pub(super) sources: u64,
    pub(super) sources_left_out: u64,
    pub(super) took: Duration,
}

/// The state of the archive thread.
pub(super) struct ArchiveWorker {
    dir: ExperimentDir,
    /// `archives/` of the experiment before this one, whose copies are linked.
    pub(super) before: Option<OwnedFd>,
    /// `archives/` of other experiments in the directory.
    siblings: Vec<OwnedFd>,
    user: InvokingUser,
    sources: SourceCopies,
    host: OwnedFd,
    /// Names in `archives/` that are in use.
    taken: HashSet<String>,
    /// Objects with line tables, their debug files and roots, until the used lines are known.
    kept: HashMap<String, (File, Option<File>, Option<OwnedFd>)>,
    /// Most bytes of all copies.
    max_bytes: u64,
    /// Bytes of all copies so far.
    spent_bytes: u64,
    stop: Arc<AtomicBool>,
}

impl ArchiveWorker {
    /// Returns the state of a new thread.
    ///
    /// # Errors
    /// The host's root directory can't be opened.
    pub(super) fn new<'a>(
        dir: ExperimentDir,
        (user, sources): (InvokingUser, SourceCopies),
        taken: impl IntoIterator<Item = &'a str>,
        max_bytes: Option<u64>,
        stop: Arc<AtomicBool>,
    ) -> io::Result<ArchiveWorker> {
        // Of what is linked, no sources are known.
        let siblings = match sources {
            SourceCopies::None => dir.sibling_archives(),
            _ => Vec::new(),
        };
        Ok(ArchiveWorker {
            dir,
            before: None,
            siblings,
            user,
            sources,
            host: File::open("/")?.into(),
            taken: taken.into_iter().map(archive_name).collect(),
            kept: HashMap::new(),
            max_bytes: max_bytes.map_or(MAX_ARCHIVE_BYTES, |bytes| bytes.min(MAX_ARCHIVE_BYTES)),
            spent_bytes: 0,
            stop,
        })
    }

    /// Runs a job. A panic fails that job alone.
    pub(super) fn run(&mut self, job: ArchiveJob) -> JobResult {
        let started = Instant::now();
        let about_object = matches!(job, ArchiveJob::Object(_));
        let before = self.spent_bytes;
        let done = catch_unwind(AssertUnwindSafe(|| match job {
            ArchiveJob::Object(request) => self.object(request),
            ArchiveJob::SourceLines { name, offsets } => {
                let mut result = JobResult::default();
                if let Some((file, debug, root)) = self.kept.remove(&name) {
                    let paths = source_paths(&file, debug.as_ref(), SourceLines::At(&offsets));
                    self.archive_sources(&paths, root.as_ref(), &mut result);
                }
                result
            }
        }));
        let mut result = done.unwrap_or_else(|_| JobResult {
            object: about_object.then(|| {
                let why = "archiving it panicked: a defect of kcollect, please report it";
                Err(why.to_owned().into())
            }),
            ..JobResult::default()
        });
        result.bytes = self.spent_bytes - before;
        result.took = started.elapsed();
        result
    }

    fn object(&mut self, request: ArchiveRequest) -> JobResult {
        let mut result = JobResult::default();
        self.taken.insert(archive_name(&request.name));
        let done = self.copy_object(&request);
        result.object = Some(match done {
            Ok((text, debug)) => {
                let file = match request.content {
                    ElfSource::File(file) if text => Some(file),
                    _ => None,
                };
                if let Some(file) = file.filter(|_| self.sources != SourceCopies::None) {
                    let paths = source_paths(&file, debug.as_ref(), SourceLines::All);
                    if self.sources == SourceCopies::All {
                        self.archive_sources(&paths, request.root.as_ref(), &mut result);
                    } else if !paths.is_empty() {
                        let debug = debug.filter(|debug| may_hold(debug, Share::Half));
                        self.kept.insert(request.name, (file, debug, request.root));
                    }
                }
                Ok(text)
            }
            Err(refusal) => Err(refusal),
        });
        result
    }

    /// Archives an object. Returns whether its instructions are in the copy, and its debug file.
    fn copy_object(&mut self, request: &ArchiveRequest) -> Result<(bool, Option<File>), Refusal> {
        let file = match &request.content {
            // Copied even after giving up: it is a page or two, and no other file has them.
            ElfSource::Bytes(bytes) => {
                self.check_space_for(bytes.len() as u64)?;
                let image = vdso::with_one_name_each(bytes.clone());
                let stored = self.dir.archive(&request.name, &image);
                stored.map_err(|error| error.to_string())?;
                self.spent_bytes += bytes.len() as u64;
                return Ok((true, None));
            }
            ElfSource::File(file) => file,
        };
        // In all experiments of a recording, a name means the same file.
        if let Some(before) = &self.before
            && self.dir.link_archive(before.as_fd(), &request.name).is_ok()
        {
            return Ok((true, None));
        }
        if self.stop.load(Ordering::Relaxed) {
            return Err(given_up());
        }
        let metadata = file.metadata().map_err(|error| error.to_string())?;
        let may_read = self.user.may_read(&metadata);
        let roots = roots(request.root.as_ref(), &self.host);
        let debug = find_debug_file(&roots, &request.path, file);
        if may_read && self.is_linked(&request.name, (file, &metadata), debug.as_ref()) {
            return Ok((true, None));
        }
        if may_read {
            self.check_space_for(metadata.len())?;
        }
        let (dir, name) = (&self.dir, &request.name);
        let archived = archive_object(dir, name, file, debug.as_ref(), &self.user, &self.stop);
        let archived = archived.map_err(|error| match error {
            // The caller adds the name.
            ArchiveError::NothingToKeep { why, .. } => why.into(),
            ArchiveError::GivenUp { .. } => Refusal::new(RefusalCause::GivenUp, error.to_string()),
            ArchiveError::Write(ref write) if write.is_disk_full() => {
                Refusal::new(RefusalCause::NoSpace, error.to_string())
            }
            error => Refusal::from(error.to_string()),
        })?;
        self.spent_bytes += archived.bytes;
        Ok((archived.text, debug))
    }

    /// Archives an object by linking to its copy in another experiment of the directory. Returns
    /// whether there is such a copy: of the same build, with its instructions, and made after the
    /// file and its debug file were last changed.
    fn is_linked(
        &self,
        name: &str,
        (file, of_file): (&File, &Metadata),
        debug: Option<&File>,
    ) -> bool {
        let id = section_build_id(file);
        if id.len() < MIN_BUILD_ID || of_file.len() > MAX_COPIED_FILE_BYTES {
            return false;
        }
        let of_debug = debug.and_then(|debug| debug.metadata().ok());
        let changed = of_debug.iter().chain([of_file]).map(changed).max();
        let build = Build {
            id: &id,
            bytes: of_file.len(),
            changed: changed.unwrap_or_default(),
        };
        let mut siblings = self.siblings.iter();
        siblings.any(|archives| self.dir.link_same_build(archives.as_fd(), name, &build))
    }

    fn archive_sources<'a>(
        &mut self,
        paths: impl IntoIterator<Item = &'a Vec<u8>>,
        root: Option<&OwnedFd>,
        result: &mut JobResult,
    ) {
        for path in paths {
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            // gprofng looks for the name of the line table, and finds only UTF-8 names.
            let Ok(name) = std::str::from_utf8(path) else {
                continue;
            };
            if !self.taken.insert(archive_name(name)) {
                continue;
            }
            let path = Path::new(OsStr::from_bytes(path));
            let found = roots(root, &self.host)
                .into_iter()
                .find_map(|root| self.user.open(root, path).ok());
            // Most sources are only on the machine that compiled them.
            let Some(file) = found else {
                continue;
            };
            let length = file.metadata().map_or(0, |metadata| metadata.len());
            if self.check_space_for(length).is_err() {
                result.sources_left_out += 1;
            } else if let Ok(bytes) = archive_source(&self.dir, name, &file, &self.stop) {
                self.spent_bytes += bytes;
                result.sources += 1;
            }
        }
    }

    fn check_space_for(&self, bytes: u64) -> Result<(), Refusal> {
        let system = fstatvfs(&self.dir).map_err(|error| error.to_string())?;
        let free = system.blocks_available() * system.fragment_size();
        let most = archive_limit_bytes(self.spent_bytes, free).min(self.max_bytes);
        if self.spent_bytes.saturating_add(bytes) <= most {
            return Ok(());
        }
        Err(Refusal::new(
            RefusalCause::NoSpace,
            format!(
                "{bytes} bytes, and all archives together have at most {most}, of which {} are used",
                self.spent_bytes
            ),
        ))
    }
}

/// Returns when a file was last changed in any way, a time that cannot be set.
fn changed(metadata: &Metadata) -> (i64, i64) {
    (metadata.ctime(), metadata.ctime_nsec())
}

/// Max bytes of all copies, if the copies so far have `spent_bytes` and `free_bytes` are left.
fn archive_limit_bytes(spent_bytes: u64, free_bytes: u64) -> u64 {
    MAX_ARCHIVE_BYTES.min(spent_bytes.saturating_add(free_bytes) / 2)
}

fn roots<'a>(own: Option<&'a OwnedFd>, host: &'a OwnedFd) -> Vec<BorrowedFd<'a>> {
    own.into_iter().chain([host]).map(AsFd::as_fd).collect()
}

/// Lowers the calling thread's priority to nice 19, and its I/O priority to idle.
pub(super) fn lower_priority() {
    /// `IOPRIO_CLASS_IDLE` of linux/ioprio.h, above the level's 13 bits.
    const IDLE: libc::c_int = 3 << 13;
    set_priority(0, ARCHIVER_NICE, IDLE);
}

/// Sets the nice value of a thread and the priority of its I/O. A failure is not worth an error.
pub(super) fn set_priority(thread: i32, nice: i32, io: libc::c_int) {
    /// `IOPRIO_WHO_PROCESS`, which means a thread.
    const THREAD: libc::c_int = 1;
    // SAFETY: it takes three numbers; a process is a thread to it, and 0 is the calling one.
    let _ = unsafe { libc::setpriority(libc::PRIO_PROCESS, thread as libc::id_t, nice) };
    // SAFETY: it takes three numbers.
    let _ = unsafe { libc::syscall(libc::SYS_ioprio_set, THREAD, thread, io) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_take_half_of_what_is_free_at_most() {
        assert_eq!(archive_limit_bytes(0, 1000), 500);
        // What they took is not free any more.
        assert_eq!(archive_limit_bytes(400, 600), 500);
        assert_eq!(archive_limit_bytes(0, u64::MAX), MAX_ARCHIVE_BYTES);
    }
}
