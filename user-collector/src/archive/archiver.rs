//! The thread that fills `archives/` while the recording continues.
//!
//! A desktop's processes map a gigabyte of libraries, and the largest of them takes half a second
//! to read: too long after Ctrl-C, when the user waits for the result. So each object is archived
//! as soon as a followed process maps it, at the lowest priority. What is left at the end is
//! archived at normal priority.
//!
//! Files may be on a server that does not answer: only this thread waits for it. When the thread is
//! told to stop, it stops at the next megabyte; the wait for it ends after a second.
//!
//! Limits: all copies together have at most [`MAX_ARCHIVE_BYTES`](super::MAX_ARCHIVE_BYTES), and at
//! most half of what the file system would have free without them. What is left out is named, with
//! the reason: see [`ArchiveStats`].

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use experiment_format::directory::ExperimentDir;
use experiment_format::text::printable;

use super::stats::{ArchiveStats, LeftOut, Refusal, RefusalCause};
use super::worker::{
    ArchiveJob, ArchiveRequest, ArchiveWorker, JobResult, SourceCopies, lower_priority,
    set_priority,
};
use crate::files::InvokingUser;
use experiment_format::units::Nanos;

/// Longest wait for the current file after giving up.
const GIVE_UP_WAIT: Duration = Duration::from_secs(1);

/// The handle of the thread. When it is dropped the thread gives up, without a wait.
#[derive(Debug)]
pub struct Archiver {
    jobs: Sender<ArchiveJob>,
    results: Receiver<JobResult>,
    /// Jobs that are not done yet, in the order of the results: names of objects, empty for
    /// sources.
    waiting: VecDeque<String>,
    requested: usize,
    stop: Arc<AtomicBool>,
    thread: Arc<AtomicI32>,
    stats: ArchiveStats,
    sources: SourceCopies,
}

impl Archiver {
    /// Starts the thread. `dir` is from [`ExperimentDir::for_archiver`]; `taken` are names of load
    /// objects that others archive; `max_bytes` is the limit for all copies, where that is less
    /// than [`MAX_ARCHIVE_BYTES`](super::MAX_ARCHIVE_BYTES). Load objects that are in
    /// `before`, the `archives/` of the experiment before this one, are linked and not copied; so
    /// are load objects of the same build in other experiments of the directory.
    ///
    /// # Errors
    /// The thread can't be started.
    pub fn start<'a>(
        dir: ExperimentDir,
        user: InvokingUser,
        sources: SourceCopies,
        taken: impl IntoIterator<Item = &'a str>,
        max_bytes: Option<u64>,
        before: Option<OwnedFd>,
    ) -> io::Result<Archiver> {
        let (jobs, queue) = channel();
        let (done, results) = channel();
        let (stop, thread) = (Arc::<AtomicBool>::default(), Arc::<AtomicI32>::default());
        let stopped = Arc::clone(&stop);
        let mut work = ArchiveWorker::new(dir, (user, sources), taken, max_bytes, stopped)?;
        work.before = before.filter(|_| sources == SourceCopies::None);
        let id = Arc::clone(&thread);
        let run = move || {
            lower_priority();
            id.store(nix::unistd::gettid().as_raw(), Ordering::Relaxed);
            for job in queue {
                if done.send(work.run(job)).is_err() {
                    return;
                }
            }
        };
        thread::Builder::new()
            .name("archive".to_owned())
            .spawn(run)?;
        Ok(Archiver {
            jobs,
            results,
            waiting: VecDeque::new(),
            requested: 0,
            stop,
            thread,
            stats: ArchiveStats::default(),
            sources,
        })
    }

    /// Returns which sources are archived.
    #[must_use]
    pub fn sources(&self) -> SourceCopies {
        self.sources
    }

    /// Requests the copy of an object. To be called once for each.
    pub fn request(&mut self, request: ArchiveRequest) {
        self.requested += 1;
        self.waiting.push_back(request.name.clone());
        // That the thread has ended is reported when the result is taken.
        let _ = self.jobs.send(ArchiveJob::Object(request));
    }

    /// Requests the sources of the instructions at these offsets in the file of an object, which
    /// was requested before.
    pub fn request_lines(&mut self, name: &str, offsets: Vec<u64>) {
        let name = name.to_owned();
        self.waiting.push_back(String::new());
        let _ = self.jobs.send(ArchiveJob::SourceLines { name, offsets });
    }

    /// Notes that an object can't be archived.
    pub fn leave_out(&mut self, name: &str, refusal: Refusal) {
        self.stats.left_out.push(LeftOut {
            name: printable(name.as_bytes()),
            refusal,
        });
    }

    /// Sets the thread's priority to normal, since the recording is over and the user waits.
    pub fn hurry(&self) {
        let thread = self.thread.load(Ordering::Relaxed);
        if thread > 0 {
            set_priority(thread, 0, 0);
        }
    }

    /// Waits until all is done, for `at_most`. Returns whether it is.
    pub fn wait(&mut self, at_most: Duration) -> bool {
        let until = Instant::now() + at_most;
        while !self.waiting.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            match self.results.recv_timeout(left) {
                Ok(run) => self.finished(run),
                Err(std::sync::mpsc::RecvTimeoutError::Timeout) => return false,
                Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => {
                    let why = "the thread that archives has ended".to_owned();
                    self.abandon(&why.into());
                }
            }
        }
        true
    }

    /// The number of load objects that are done, and of all requested ones.
    #[must_use]
    pub fn progress(&self) -> (usize, usize) {
        let waiting = self.waiting.iter().filter(|name| !name.is_empty());
        (self.requested - waiting.count(), self.requested)
    }

    /// Returns the number of jobs that are not done yet, of objects and of sources.
    #[must_use]
    pub fn left(&self) -> usize {
        self.waiting.len()
    }

    /// Leaves out what is not done yet. Waits for a second at most.
    pub fn give_up(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.stats.given_up = true;
        if !self.wait(GIVE_UP_WAIT) {
            self.abandon(&given_up());
        }
    }

    /// Returns what was archived until now.
    #[must_use]
    pub fn stats(&self) -> &ArchiveStats {
        &self.stats
    }

    fn abandon(&mut self, refusal: &Refusal) {
        for name in std::mem::take(&mut self.waiting) {
            if !name.is_empty() {
                self.leave_out(&name, refusal.clone());
            }
        }
    }

    fn finished(&mut self, run: JobResult) {
        let name = self.waiting.pop_front().unwrap_or_default();
        let stats = &mut self.stats;
        stats.bytes += run.bytes;
        stats.sources += run.sources;
        stats.sources_left_out += run.sources_left_out;
        stats.took_ns += Nanos::from(run.took);
        match run.object {
            Some(Ok(text)) => {
                stats.objects += 1;
                stats.names_only += u64::from(!text);
            }
            Some(Err(refusal)) => self.leave_out(&name, refusal),
            None => {}
        }
    }
}

/// The refusal of everything that is left when archiving is given up.
pub(super) fn given_up() -> Refusal {
    Refusal::new(RefusalCause::GivenUp, "archiving was given up")
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
    use experiment_format::directory::NameRequest;
    use kcollect_elf::ElfSource;

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
        let archiver = Archiver::start(
            dir.for_archiver().unwrap(),
            ROOT,
            sources,
            ["vmlinux"],
            None,
            None,
        )
        .unwrap();
        (parent, dir, archiver)
    }

    #[test]
    fn copies_of_the_previous_experiment_are_linked() {
        use std::os::unix::fs::MetadataExt as _;
        let bytes = fs::read(std::env::current_exe().unwrap()).unwrap();
        let path = tempfile::NamedTempFile::new().unwrap();
        fs::write(path.path(), &bytes).unwrap();
        let content = || ElfSource::File(File::open(path.path()).unwrap());
        let (_first, before, mut archiver) = trial(SourceCopies::None);
        archiver.request(request("a", content()));
        assert!(archiver.wait(LONG) && archiver.stats().bytes > 0);
        let (_second, dir, _) = trial(SourceCopies::None);
        let own = dir.for_archiver().unwrap();
        let held = before.archives_of().unwrap();
        let mut archiver =
            Archiver::start(own, ROOT, SourceCopies::None, [], None, Some(held)).unwrap();
        archiver.request(request("a", content()));
        archiver.request(request("b", content()));
        assert!(archiver.wait(LONG));
        // `b` is copied, `a` is the same file in both.
        assert_eq!(archiver.stats().objects, 2);
        let links = |dir: &ExperimentDir| -> Vec<u64> {
            let entries = fs::read_dir(dir.path().join("archives")).unwrap();
            let mut links: Vec<_> = entries
                .map(|entry| entry.unwrap().metadata().unwrap().nlink())
                .collect();
            links.sort_unstable();
            links
        };
        assert_eq!((links(&before), links(&dir)), (vec![2], vec![1, 2]));
    }

    #[test]
    fn the_same_build_in_another_experiment_is_linked() {
        use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("program");
        fs::copy(std::env::current_exe().unwrap(), &path).unwrap();
        let archive = |name: &str, user| {
            let wanted = NameRequest::Exactly(name.to_owned());
            let (dir, _) = ExperimentDir::create(parent.path(), &wanted, None).unwrap();
            fs::write(dir.path().join("log.xml"), "<collector>kcollect 0.1.0").unwrap();
            let own = dir.for_archiver().unwrap();
            let mut archiver =
                Archiver::start(own, user, SourceCopies::None, [], None, None).unwrap();
            let content = ElfSource::File(File::open(&path).unwrap());
            archiver.request(request(path.to_str().unwrap(), content));
            assert!(archiver.wait(LONG));
            assert_eq!(archiver.stats().objects, 1);
            let name = archive_name(path.to_str().unwrap());
            let copy = fs::metadata(dir.path().join(ARCHIVES).join(name)).unwrap();
            (copy.nlink(), archiver.stats().bytes > 0)
        };
        assert_eq!(archive("a.1.er", ROOT), (1, true));
        assert_eq!(archive("b.1.er", ROOT), (2, false));
        // The file was changed, though it has the same build id.
        let touched = File::options().append(true).open(&path).unwrap();
        touched.set_modified(std::time::UNIX_EPOCH).unwrap();
        assert_eq!(archive("c.1.er", ROOT), (1, true));
        assert_eq!(archive("d.1.er", ROOT), (2, false));
        // Its content is not for everybody.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
        let other = InvokingUser {
            uid: 65534,
            groups: Vec::new(),
        };
        assert_eq!(archive("e.1.er", other), (1, true));
        // A copy of the names alone is not enough.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(archive("f.1.er", ROOT), (1, true));
    }

    fn request(name: &str, content: ElfSource) -> ArchiveRequest {
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
    fn requests_are_archived_or_named() {
        let (_parent, dir, mut archiver) = trial(SourceCopies::None);
        archiver.request(request("/opt/here", here()));
        archiver.request(request("[vdso]", ElfSource::Bytes(vec![7; 4096])));
        let null = ElfSource::File(File::open("/dev/null").unwrap());
        archiver.request(request("/dev/null", null));
        archiver.leave_out("/gone", "it is gone".to_owned().into());
        assert!(archiver.wait(LONG));
        assert_eq!(archiver.progress(), (3, 3));
        let stats = archiver.stats();
        assert_eq!((stats.objects, stats.names_only), (2, 0));
        let names: Vec<_> = stats.left_out.iter().map(|left| &*left.name).collect();
        assert_eq!(names, ["/gone", "/dev/null"]);
        assert_eq!(stats.warnings().len(), 2);
        let archives = dir.path().join(ARCHIVES);
        let bytes: u64 = fs::read_dir(&archives)
            .unwrap()
            .map(|entry| entry.unwrap().metadata().unwrap().len())
            .sum();
        assert_eq!(bytes, stats.bytes);
        assert!(archives.join(archive_name("/opt/here")).exists());
    }

    #[test]
    fn sources_are_archived_and_take_no_objects_place() {
        let (_parent, dir, mut archiver) = trial(SourceCopies::All);
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/archive/mod.rs");
        // A load object of the same name came before.
        archiver.request(request(source.to_str().unwrap(), ElfSource::Bytes(vec![7])));
        archiver.request(request("/opt/here", here()));
        assert!(archiver.wait(LONG));
        assert!(archiver.stats().sources > 0, "{:?}", archiver.stats());
        let name = archive_name(source.to_str().unwrap());
        let kept = fs::read(dir.path().join(ARCHIVES).join(name)).unwrap();
        assert_eq!(kept, [7]);
    }

    #[test]
    fn giving_up_leaves_out_what_is_not_done() {
        let (_parent, dir, mut archiver) = trial(SourceCopies::None);
        archiver.stop.store(true, Ordering::Relaxed);
        for number in 0..5 {
            archiver.request(request(&format!("/opt/{number}"), here()));
        }
        archiver.give_up();
        let stats = archiver.stats();
        assert!(stats.given_up);
        assert_eq!((stats.objects, stats.left_out.len()), (0, 5));
        let mut causes = stats.left_out.iter().map(|left| left.refusal.cause);
        assert!(causes.all(|cause| cause == RefusalCause::GivenUp));
        let archives = fs::read_dir(dir.path().join(ARCHIVES)).unwrap();
        assert_eq!(archives.count(), 0);
    }
}
