//! The threads that read the code of functions that are made at run time.
//!
//! One thread reads for all processes. It may have to wait: a jitdump, or what has the name of
//! anonymous memory in a process's own mount namespace, may be a file whose server does not answer.
//! (A page that the process has to supply itself, by `userfaultfd`, is an error at once: reads of
//! `/proc/PID/mem` do not wait for it.) After [`MAX_READ_TIME`] such a process is refused: none of
//! its code is read any more. Another thread takes the place of the one that waits, which only the
//! end of kcollect ends, up to [`MAX_BLOCKED_THREADS`].

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::files::{InvokingUser, MAX_BLOCKED_THREADS};

/// How long one function may take to be read: a page that was swapped out takes a hundredth.
pub const MAX_READ_TIME: Duration = Duration::from_secs(1);
/// Most bytes of code of all processes.
pub const MAX_TOTAL_CODE_BYTES: u64 = 256 << 20;

/// Functions of all processes that are requested, at most.
const MAX_REQUESTS: usize = 1 << 12;
/// So many ends of processes wait in vain for requests that no thread has begun.
const MAX_VAIN_WAITS: u32 = 4;

/// The threads that read code. Clones are handles of the same ones, which end with the last of
/// them.
#[derive(Clone, Debug)]
pub struct CodeReader {
    requests: SyncSender<ReadRequest>,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    queue: Mutex<Receiver<ReadRequest>>,
    user: InvokingUser,
    /// Bytes of all processes that were requested.
    total: AtomicU64,
    blocked_threads: AtomicU32,
    vain_waits: AtomicU32,
}

/// A function to be read.
#[derive(Debug)]
pub(super) struct ReadRequest {
    /// The jitdump, or the memory of the process.
    pub(super) file: Arc<File>,
    pub(super) offset: u64,
    pub(super) wanted: WantedCode,
    pub(super) process: Arc<ProcessReads>,
    pub(super) answers: Sender<CodeAnswer>,
}

/// What became of a request.
#[derive(Debug)]
pub(super) struct CodeAnswer {
    pub(super) wanted: WantedCode,
    /// None: it could not be read.
    pub(super) code: Option<Vec<u8>>,
}

/// A function whose code is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WantedCode {
    /// When the function began, nanoseconds of the events' clock.
    pub(super) at: u64,
    pub(super) address: u64,
    pub(super) size: u64,
    /// Where in the jitdump its code begins. None: it is in memory.
    pub(super) dumped: Option<u64>,
}

/// What is known of the reading of one process's code.
#[derive(Debug, Default)]
pub(super) struct ProcessReads {
    /// Since when a thread reads for it, if one does.
    pub(super) since: Mutex<Option<Instant>>,
    refused: AtomicBool,
}

impl ProcessReads {
    /// Returns whether a read of this process's has taken so long.
    pub(super) fn has_taken(&self, time: Duration) -> bool {
        locked(&self.since).is_some_and(|since| since.elapsed() >= time)
    }

    /// Has nothing more read.
    pub(super) fn refuse(&self) {
        self.refused.store(true, Ordering::Relaxed);
    }

    /// Returns whether nothing more is read.
    pub(super) fn is_refused(&self) -> bool {
        self.refused.load(Ordering::Relaxed)
    }

    fn read(&self, file: &File, offset: u64, size: u64) -> Option<Vec<u8>> {
        if self.is_refused() {
            return None;
        }
        *locked(&self.since) = Some(Instant::now());
        let mut code = vec![0; usize::try_from(size).ok()?];
        let read = file.read_exact_at(&mut code, offset);
        *locked(&self.since) = None;
        read.is_ok().then_some(code)
    }
}

/// What a thread that panicked leaves is whole: nothing here is in between.
pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl CodeReader {
    /// Starts a thread, which reads what this user may.
    ///
    /// # Errors
    /// The thread can't be started.
    pub fn start(user: InvokingUser) -> io::Result<CodeReader> {
        let reader = CodeReader::without_thread(user);
        reader.start_thread()?;
        Ok(reader)
    }

    pub(super) fn without_thread(user: InvokingUser) -> CodeReader {
        let (requests, queue) = sync_channel(MAX_REQUESTS);
        CodeReader {
            requests,
            shared: Arc::new(Shared {
                queue: Mutex::new(queue),
                user,
                total: AtomicU64::new(0),
                blocked_threads: AtomicU32::new(0),
                vain_waits: AtomicU32::new(0),
            }),
        }
    }

    fn start_thread(&self) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        let run = move || {
            loop {
                // The queue is free again while the thread reads.
                let request = locked(&shared.queue).recv();
                let Ok(request) = request else {
                    return;
                };
                let ReadRequest {
                    file,
                    offset,
                    wanted,
                    process,
                    answers,
                } = request;
                let code = process.read(&file, offset, wanted.size);
                // A process that does not want its code any more has ended.
                let _ = answers.send(CodeAnswer { wanted, code });
            }
        };
        let thread = thread::Builder::new().name("jit-code".to_owned());
        thread.spawn(run).map(drop)
    }

    /// Puts another thread in the place of one that waits for a process.
    pub(super) fn replace_thread(&self) {
        let blocked = self.shared.blocked_threads.fetch_add(1, Ordering::Relaxed);
        if blocked < MAX_BLOCKED_THREADS {
            // Without it the rest of the code is left out, and counted.
            let _ = self.start_thread();
        }
    }

    /// Requests a function, unless too many are requested or read already.
    pub(super) fn request(&self, request: ReadRequest) -> Result<(), RequestRefusal> {
        let size = request.wanted.size;
        let total = &self.shared.total;
        if total.load(Ordering::Relaxed).saturating_add(size) > MAX_TOTAL_CODE_BYTES {
            return Err(RequestRefusal::Total);
        }
        let sent = self.requests.try_send(request);
        sent.map_err(|_| RequestRefusal::Busy)?;
        total.fetch_add(size, Ordering::Relaxed);
        Ok(())
    }

    /// Returns the user who called kcollect, whose rights decide what is read.
    pub(super) fn user(&self) -> &InvokingUser {
        &self.shared.user
    }

    /// Returns whether the end of a process may still wait for its code.
    pub(super) fn may_wait(&self) -> bool {
        self.shared.vain_waits.load(Ordering::Relaxed) < MAX_VAIN_WAITS
    }

    /// Notes that the end of a process waited in vain.
    pub(super) fn waited_in_vain(&self) {
        self.shared.vain_waits.fetch_add(1, Ordering::Relaxed);
    }

    #[cfg(test)]
    pub(super) fn use_up(&self) {
        let total = &self.shared.total;
        total.store(MAX_TOTAL_CODE_BYTES, Ordering::Relaxed);
    }
}

/// Why a request is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestRefusal {
    /// All processes together have as much code as they may.
    Total,
    /// Too many are requested; it may be tried again.
    Busy,
}
