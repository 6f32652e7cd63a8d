//! The thread that fills `archives/` while the recording goes on.
//!
//! A desktop's processes map a gigabyte of libraries, and the largest of them takes half a second
//! to read: too much for the moment after Ctrl-C, in which people want to see what they have. So
//! each object is archived as soon as a process is followed that maps it, at the lowest priority,
//! and what is left at the end is waited for at an ordinary one.
//!
//! Files are other people's, and reading them may take as long as their server likes: only this
//! thread waits for that. It can be told to give up; it then stops at the next megabyte, and who
//! waits for it need not wait longer than that.
//!
//! What it refuses: to fill the disk. All copies together have at most [`MAX_ARCHIVE_BYTES`], and never
//! more than half of what the file system would have free without them. What is left out is named,
//! with the reason: see [`ArchiveStats`].

use std::collections::{HashMap, HashSet, VecDeque};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use experiment_format::archive::archive_name;
use experiment_format::layout::{ExperimentDir, printable};
use nix::sys::statvfs::fstatvfs;

use super::{
    ArchiveError, InvokingUser, SourceLines, archive_object, archive_source, find_debug_file,
    source_paths, vdso,
};
use crate::elf::ElfSource;

/// Most bytes of all copies together.
pub const MAX_ARCHIVE_BYTES: u64 = 4 << 30;
/// How nice the thread is while the recording goes on: +19 gives it a seventieth of the weight of
/// an ordinary one.
const ARCHIVER_NICE: i32 = 19;
/// Objects that are named in [`ArchiveStats::warnings`].
const MAX_WARNINGS: usize = 100;
/// How long one who gives up waits for the file at hand.
const GIVE_UP_WAIT: Duration = Duration::from_secs(1);

/// Which sources are archived beside the load objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceCopies {
    /// None.
    None,
    /// Those of lines in which time was spent.
    Used,
    /// All that the line tables name.
    All,
}

/// A load object to be archived.
#[derive(Debug)]
pub struct ArchiveRequest {
    /// Its name in `map.xml`.
    pub name: String,
    /// Where its processes have it.
    pub path: PathBuf,
    /// What it is.
    pub content: ElfSource,
    /// The root directory of a process that maps it, where that is not ours.
    pub root: Option<OwnedFd>,
}

/// A load object that is not in `archives/`.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct LeftOut {
    /// Its name.
    pub name: String,
    /// Why not.
    pub why: String,
}

/// What came of archiving.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct ArchiveStats {
    /// Load objects that were archived.
    pub objects: u64,
    /// Of them, those without their instructions: the user who asked may not read them, or they are
    /// too large.
    pub names_only: u64,
    /// ElfSource files that were archived.
    pub sources: u64,
    /// ElfSource files that could be read and found no room.
    pub sources_left_out: u64,
    /// Bytes of all copies.
    pub bytes: u64,
    /// Load objects that were not archived.
    pub left_out: Vec<LeftOut>,
    /// Did the user give up?
    pub given_up: bool,
    /// Time of the background thread, nanoseconds.
    pub took_ns: u64,
}

impl ArchiveStats {
    /// What is missing, for the log: a sentence for each load object.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let named = self.left_out.iter().take(MAX_WARNINGS);
        let mut warnings: Vec<_> = named
            .map(|left| format!("not archived: {}: {}", left.name, left.why))
            .collect();
        let more = self.left_out.len() - warnings.len();
        if more > 0 {
            warnings.push(format!("not archived: {more} more load objects"));
        }
        if self.sources_left_out > 0 {
            let count = self.sources_left_out;
            warnings.push(format!(
                "not archived for want of room: {count} source files"
            ));
        }
        warnings
    }
}

#[derive(Debug)]
enum ArchiveJob {
    Object(ArchiveRequest),
    SourceLines { name: String, positions: Vec<u64> },
}

/// What one question came to.
#[derive(Debug, Default)]
struct JobResult {
    /// Of a question about an object: is its text there, or why is nothing there?
    object: Option<Result<bool, String>>,
    bytes: u64,
    sources: u64,
    sources_left_out: u64,
    took: Duration,
}

/// The thread, seen from who asks. When this is dropped the thread gives up; nobody waits for it.
#[derive(Debug)]
pub struct Archiver {
    questions: Sender<ArchiveJob>,
    answers: Receiver<JobResult>,
    /// Names of the objects asked for and not answered yet, in the order of the answers.
    waiting: VecDeque<String>,
    asked: usize,
    stop: Arc<AtomicBool>,
    thread: Arc<AtomicI32>,
    account: ArchiveStats,
    sources: SourceCopies,
}

impl Archiver {
    /// Starts the thread. `dir` is from [`ExperimentDir::for_archiver`]; `taken` are names of load
    /// objects that others archive.
    ///
    /// # Errors
    /// The system has no thread to give.
    pub fn start<'a>(
        dir: ExperimentDir,
        user: InvokingUser,
        sources: SourceCopies,
        taken: impl IntoIterator<Item = &'a str>,
    ) -> io::Result<Archiver> {
        let (questions, to_do) = channel();
        let (done, answers) = channel();
        let (stop, thread) = (Arc::<AtomicBool>::default(), Arc::<AtomicI32>::default());
        let mut work = ArchiveWorker {
            dir,
            user,
            sources,
            host: File::open("/")?.into(),
            taken: taken.into_iter().map(archive_name).collect(),
            kept: HashMap::new(),
            spent: 0,
            stop: Arc::clone(&stop),
        };
        let id = Arc::clone(&thread);
        let run = move || {
            step_back();
            id.store(nix::unistd::gettid().as_raw(), Ordering::Relaxed);
            for question in to_do {
                if done.send(work.answer(question)).is_err() {
                    return;
                }
            }
        };
        thread::Builder::new()
            .name("archive".to_owned())
            .spawn(run)?;
        Ok(Archiver {
            questions,
            answers,
            waiting: VecDeque::new(),
            asked: 0,
            stop,
            thread,
            account: ArchiveStats::default(),
            sources,
        })
    }

    /// Which sources it archives.
    #[must_use]
    pub fn sources(&self) -> SourceCopies {
        self.sources
    }

    /// Asks for an object, once.
    pub fn ask(&mut self, wish: ArchiveRequest) {
        self.asked += 1;
        self.waiting.push_back(wish.name.clone());
        // If the thread has ended, so it is said when the answer is taken.
        let _ = self.questions.send(ArchiveJob::Object(wish));
    }

    /// Asks for the sources of what is at these positions in an object that was asked for before,
    /// bytes in the file.
    pub fn ask_lines(&mut self, name: &str, positions: Vec<u64>) {
        let name = name.to_owned();
        self.waiting.push_back(String::new());
        let _ = self
            .questions
            .send(ArchiveJob::SourceLines { name, positions });
    }

    /// An object can't be archived.
    pub fn leave_out(&mut self, name: &str, why: &str) {
        self.account.left_out.push(LeftOut {
            name: printable(name.as_bytes()),
            why: why.to_owned(),
        });
    }

    /// The recording is over, and somebody waits: the thread gets the priority of others.
    pub fn hurry(&self) {
        let thread = self.thread.load(Ordering::Relaxed);
        if thread > 0 {
            set_priority(thread, 0, 0);
        }
    }

    /// Waits until all is done, at most so long. Gives whether it is.
    pub fn wait(&mut self, at_most: Duration) -> bool {
        let until = Instant::now() + at_most;
        while !self.waiting.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            match self.answers.recv_timeout(left) {
                Ok(answer) => self.answered(answer),
                Err(std::sync::mpsc::RecvTimeoutError::Timeout) => return false,
                Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => {
                    self.abandon("the thread that archives has ended");
                }
            }
        }
        true
    }

    /// Load objects that are done, and all that were asked for.
    #[must_use]
    pub fn progress(&self) -> (usize, usize) {
        let waiting = self.waiting.iter().filter(|name| !name.is_empty());
        (self.asked - waiting.count(), self.asked)
    }

    /// Questions that are not answered yet, about objects and about sources.
    #[must_use]
    pub fn left(&self) -> usize {
        self.waiting.len()
    }

    /// Leaves out what is not done. Waits a second at most.
    pub fn give_up(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.account.given_up = true;
        if !self.wait(GIVE_UP_WAIT) {
            self.abandon("archiving was given up");
        }
    }

    /// What came of it until now.
    #[must_use]
    pub fn account(&self) -> &ArchiveStats {
        &self.account
    }

    fn abandon(&mut self, why: &str) {
        for name in std::mem::take(&mut self.waiting) {
            if !name.is_empty() {
                self.leave_out(&name, why);
            }
        }
    }

    fn answered(&mut self, answer: JobResult) {
        let name = self.waiting.pop_front().unwrap_or_default();
        let account = &mut self.account;
        account.bytes += answer.bytes;
        account.sources += answer.sources;
        account.sources_left_out += answer.sources_left_out;
        account.took_ns += answer.took.as_nanos() as u64;
        match answer.object {
            Some(Ok(text)) => {
                account.objects += 1;
                account.names_only += u64::from(!text);
            }
            Some(Err(why)) => self.leave_out(&name, &why),
            None => {}
        }
    }
}

impl Drop for Archiver {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// The thread's own.
struct ArchiveWorker {
    dir: ExperimentDir,
    user: InvokingUser,
    sources: SourceCopies,
    host: OwnedFd,
    /// Names in `archives/` that no source gets.
    taken: HashSet<String>,
    /// Objects with line tables, until it is known which lines were used.
    kept: HashMap<String, (File, Option<File>, Option<OwnedFd>)>,
    spent: u64,
    stop: Arc<AtomicBool>,
}

impl ArchiveWorker {
    fn answer(&mut self, question: ArchiveJob) -> JobResult {
        let started = Instant::now();
        let about_object = matches!(question, ArchiveJob::Object(_));
        let before = self.spent;
        let done = catch_unwind(AssertUnwindSafe(|| match question {
            ArchiveJob::Object(wish) => self.object(wish),
            ArchiveJob::SourceLines { name, positions } => {
                let mut answer = JobResult::default();
                if let Some((file, debug, root)) = self.kept.remove(&name) {
                    let paths = source_paths(&file, debug.as_ref(), SourceLines::At(&positions));
                    self.archive_sources(&paths, root.as_ref(), &mut answer);
                }
                answer
            }
        }));
        let mut answer = done.unwrap_or_else(|_| JobResult {
            object: about_object.then(|| {
                Err("archiving it panicked: a defect of kcollect, please report it".to_owned())
            }),
            ..JobResult::default()
        });
        answer.bytes = self.spent - before;
        answer.took = started.elapsed();
        answer
    }

    fn object(&mut self, wish: ArchiveRequest) -> JobResult {
        let mut answer = JobResult::default();
        self.taken.insert(archive_name(&wish.name));
        let done = self.copy_object(&wish);
        answer.object = Some(match done {
            Ok((text, debug)) => {
                let file = match wish.content {
                    ElfSource::File(file) if text => Some(file),
                    _ => None,
                };
                if let Some(file) = file.filter(|_| self.sources != SourceCopies::None) {
                    let paths = source_paths(&file, debug.as_ref(), SourceLines::All);
                    if self.sources == SourceCopies::All {
                        self.archive_sources(&paths, wish.root.as_ref(), &mut answer);
                    } else if !paths.is_empty() {
                        self.kept.insert(wish.name, (file, debug, wish.root));
                    }
                }
                Ok(text)
            }
            Err(why) => Err(why),
        });
        answer
    }

    /// Gives whether the instructions are there, and the debug file.
    fn copy_object(&mut self, wish: &ArchiveRequest) -> Result<(bool, Option<File>), String> {
        let file = match &wish.content {
            // Never given up: it is a page or two, and no other file has them.
            ElfSource::Bytes(bytes) => {
                self.room_for(bytes.len() as u64)?;
                let image = vdso::with_one_name_each(bytes.clone());
                let stored = self.dir.archive(&wish.name, &image);
                stored.map_err(|error| error.to_string())?;
                self.spent += bytes.len() as u64;
                return Ok((true, None));
            }
            ElfSource::File(file) => file,
        };
        if self.stop.load(Ordering::Relaxed) {
            return Err("archiving was given up".to_owned());
        }
        let metadata = file.metadata().map_err(|error| error.to_string())?;
        if self.user.may_read(&metadata) {
            self.room_for(metadata.len())?;
        }
        let roots = roots(wish.root.as_ref(), &self.host);
        let debug = find_debug_file(&roots, &wish.path, file);
        let (dir, name) = (&self.dir, &wish.name);
        let archived = archive_object(dir, name, file, debug.as_ref(), &self.user, &self.stop);
        let archived = archived.map_err(|error| match error {
            // The name is told anyway.
            ArchiveError::NothingToKeep { why, .. } => why,
            error => error.to_string(),
        })?;
        self.spent += archived.bytes;
        Ok((archived.text, debug))
    }

    fn archive_sources<'a>(
        &mut self,
        paths: impl IntoIterator<Item = &'a Vec<u8>>,
        root: Option<&OwnedFd>,
        answer: &mut JobResult,
    ) {
        for path in paths {
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            // gprofng looks for it under the name that the line table has; which is UTF-8, or it is
            // not found.
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
            // Most are on another machine, where they were compiled.
            let Some(file) = found else {
                continue;
            };
            let length = file.metadata().map_or(0, |metadata| metadata.len());
            if self.room_for(length).is_err() {
                answer.sources_left_out += 1;
            } else if let Ok(bytes) = archive_source(&self.dir, name, &file, &self.stop) {
                self.spent += bytes;
                answer.sources += 1;
            }
        }
    }

    fn room_for(&self, bytes: u64) -> Result<(), String> {
        let system = fstatvfs(&self.dir).map_err(|error| error.to_string())?;
        let free = system.blocks_available() * system.fragment_size();
        let most = archive_limit_bytes(self.spent, free);
        if self.spent.saturating_add(bytes) <= most {
            return Ok(());
        }
        Err(format!(
            "{bytes} bytes, and all archives together have at most {most}, of which {} are used",
            self.spent
        ))
    }
}

/// All copies may have so many bytes, where those that there are have `spent` and so many are still
/// free.
fn archive_limit_bytes(spent: u64, free: u64) -> u64 {
    MAX_ARCHIVE_BYTES.min(spent.saturating_add(free) / 2)
}

fn roots<'a>(own: Option<&'a OwnedFd>, host: &'a OwnedFd) -> Vec<BorrowedFd<'a>> {
    own.into_iter().chain([host]).map(AsFd::as_fd).collect()
}

/// Gives the calling thread the lowest priority that ends at some time, and its reading and writing
/// that of the idle.
fn step_back() {
    /// `IOPRIO_CLASS_IDLE` of linux/ioprio.h, above the level's 13 bits.
    const IDLE: libc::c_int = 3 << 13;
    set_priority(0, ARCHIVER_NICE, IDLE);
}

/// Sets how nice a thread is and its priority of I/O. That it can't have them is not worth an
/// error.
fn set_priority(thread: i32, nice: i32, io: libc::c_int) {
    /// `IOPRIO_WHO_PROCESS`, which means a thread.
    const THREAD: libc::c_int = 1;
    // SAFETY: it takes three numbers; a process is a thread to it, and 0 is the calling one.
    let _ = unsafe { libc::setpriority(libc::PRIO_PROCESS, thread as libc::id_t, nice) };
    // SAFETY: it takes three numbers.
    let _ = unsafe { libc::syscall(libc::SYS_ioprio_set, THREAD, thread, io) };
}

#[cfg(test)]
mod tests {
    use std::fs;

    use experiment_format::archive::ARCHIVES;
    use experiment_format::layout::NameRequest;

    use super::*;

    const ROOT: InvokingUser = InvokingUser {
        uid: 0,
        groups: Vec::new(),
    };
    const LONG: Duration = Duration::from_secs(60);

    fn trial(sources: SourceCopies) -> (tempfile::TempDir, ExperimentDir, Archiver) {
        let parent = tempfile::tempdir().unwrap();
        let request = NameRequest::Exactly("x.er".to_owned());
        let (dir, _) = ExperimentDir::create(parent.path(), &request, None).unwrap();
        let archiver =
            Archiver::start(dir.for_archiver().unwrap(), ROOT, sources, ["vmlinux"]).unwrap();
        (parent, dir, archiver)
    }

    fn wish(name: &str, content: ElfSource) -> ArchiveRequest {
        ArchiveRequest {
            name: name.to_owned(),
            path: name.into(),
            content,
            root: None,
        }
    }

    fn here() -> ElfSource {
        ElfSource::File(File::open(std::env::current_exe().unwrap()).unwrap())
    }

    #[test]
    fn what_is_asked_for_is_archived_or_named() {
        let (_parent, dir, mut archiver) = trial(SourceCopies::None);
        archiver.ask(wish("/opt/here", here()));
        archiver.ask(wish("[vdso]", ElfSource::Bytes(vec![7; 4096])));
        let null = ElfSource::File(File::open("/dev/null").unwrap());
        archiver.ask(wish("/dev/null", null));
        archiver.leave_out("/gone", "it is gone");
        assert!(archiver.wait(LONG));
        assert_eq!(archiver.progress(), (3, 3));
        let account = archiver.account();
        assert_eq!((account.objects, account.names_only), (2, 0));
        let names: Vec<_> = account.left_out.iter().map(|left| &*left.name).collect();
        assert_eq!(names, ["/gone", "/dev/null"]);
        assert_eq!(account.warnings().len(), 2);
        let archives = dir.path().join(ARCHIVES);
        let bytes: u64 = fs::read_dir(&archives)
            .unwrap()
            .map(|entry| entry.unwrap().metadata().unwrap().len())
            .sum();
        assert_eq!(bytes, account.bytes);
        assert!(archives.join(archive_name("/opt/here")).exists());
    }

    #[test]
    fn sources_are_archived_and_take_no_objects_place() {
        let (_parent, dir, mut archiver) = trial(SourceCopies::All);
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/archive/mod.rs");
        // A load object of the same name came before.
        archiver.ask(wish(source.to_str().unwrap(), ElfSource::Bytes(vec![7])));
        archiver.ask(wish("/opt/here", here()));
        assert!(archiver.wait(LONG));
        assert!(archiver.account().sources > 0, "{:?}", archiver.account());
        let name = archive_name(source.to_str().unwrap());
        let kept = fs::read(dir.path().join(ARCHIVES).join(name)).unwrap();
        assert_eq!(kept, [7]);
    }

    #[test]
    fn giving_up_leaves_out_what_is_not_done() {
        let (_parent, dir, mut archiver) = trial(SourceCopies::None);
        archiver.stop.store(true, Ordering::Relaxed);
        for number in 0..5 {
            archiver.ask(wish(&format!("/opt/{number}"), here()));
        }
        archiver.give_up();
        let account = archiver.account();
        assert!(account.given_up);
        assert_eq!((account.objects, account.left_out.len()), (0, 5));
        let archives = fs::read_dir(dir.path().join(ARCHIVES)).unwrap();
        assert_eq!(archives.count(), 0);
    }

    #[test]
    fn copies_take_half_of_what_is_free_at_most() {
        assert_eq!(archive_limit_bytes(0, 1000), 500);
        // What they took is not free any more.
        assert_eq!(archive_limit_bytes(400, 600), 500);
        assert_eq!(archive_limit_bytes(0, u64::MAX), MAX_ARCHIVE_BYTES);
    }
}
