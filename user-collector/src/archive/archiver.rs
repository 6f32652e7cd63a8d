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

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use experiment_format::layout::{ExperimentDir, printable};

use super::InvokingUser;
use super::stats::{ArchiveStats, LeftOut};
use super::worker::{ArchiveJob, ArchiveWorker, JobResult, set_priority, step_back};
use crate::elf::ElfSource;

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
        let stopped = Arc::clone(&stop);
        let mut work = ArchiveWorker::new(dir, user, sources, taken, stopped)?;
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

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::path::Path;

    use experiment_format::archive::{ARCHIVES, archive_name};
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
}
