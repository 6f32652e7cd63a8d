//! The threads that read the machine code of JIT functions.
//!
//! One thread reads for all processes. It may have to wait: a jitdump, or what has the name of
//! anonymous memory in a process's own mount namespace, may be a file whose server does not answer.
//! (A page that the process has to supply itself, by `userfaultfd`, is an error at once: reads of
//! `/proc/PID/mem` do not wait for it.) After [`MAX_READ_TIME`], reads for such a process stop. The
//! blocked thread stays until kcollect exits, and another thread is started instead, unless
//! [`MAX_BLOCKED_THREADS`] are blocked.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use experiment_format::units::Nanos;

use crate::files::{InvokingUser, MAX_BLOCKED_THREADS};

/// Longest read of one function: a page that was swapped out takes a hundredth of it.
pub const MAX_READ_TIME: Duration = Duration::from_secs(1);
/// Max bytes of code of all processes.
pub const MAX_TOTAL_CODE_BYTES: u64 = 256 << 20;

/// Max functions of all processes that wait to be read.
const MAX_REQUESTS: usize = 1 << 12;
/// Max number of ending processes that wait for code until [`super::LAST_WAIT`] has passed. Later
/// ones do not wait: no thread reads any more.
const MAX_LAST_WAIT_TIMEOUTS: u32 = 4;

/// The threads that read code. Clones are handles of the same ones, which end with the last of
/// them.
#[derive(Clone, Debug)]
pub struct CodeReader {
    requests: SyncSender<ReadRequest>,
    state: Arc<CodeReaderState>,
}

/// What the threads and their handles share.
#[derive(Debug)]
struct CodeReaderState {
    queue: Mutex<Receiver<ReadRequest>>,
    user: InvokingUser,
    /// Bytes of all processes that were requested so far.
    requested_bytes: AtomicU64,
    blocked_threads: AtomicU32,
    last_wait_timeouts: AtomicU32,
}

/// A request to read the code of one function.
#[derive(Debug)]
pub(super) struct ReadRequest {
    /// The jitdump, or the memory of the process.
    pub(super) file: Arc<File>,
    /// Where in the file, bytes.
    pub(super) offset: u64,
    pub(super) wanted: WantedCode,
    pub(super) process: Arc<ProcessReads>,
    pub(super) answers: Sender<CodeAnswer>,
}

/// The answer to a request.
#[derive(Debug)]
pub(super) struct CodeAnswer {
    pub(super) wanted: WantedCode,
    /// None if it could not be read.
    pub(super) code: Option<Vec<u8>>,
}

/// A function whose code is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WantedCode {
    /// When the function began, nanoseconds of the events' clock.
    pub(super) at_ns: Nanos,
    pub(super) address: u64,
    /// Bytes.
    pub(super) size: u64,
    /// Where in the jitdump its code begins, bytes. None if the code is in the process's memory.
    pub(super) dump_offset: Option<u64>,
}

/// The state of reading one process's code.
#[derive(Debug, Default)]
pub(super) struct ProcessReads {
    /// When the read that a thread does for it began.
    pub(super) read_began: Mutex<Option<Instant>>,
    stopped: AtomicBool,
}

impl ProcessReads {
    /// Returns whether the current read of the process's code has lasted this long.
    pub(super) fn has_lasted(&self, time: Duration) -> bool {
        locked(&self.read_began).is_some_and(|began| began.elapsed() >= time)
    }

    /// Stops further reads.
    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    /// Returns whether reads have stopped.
    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    fn read(&self, file: &File, offset: u64, size: u64) -> Option<Vec<u8>> {
        if self.is_stopped() {
            return None;
        }
        *locked(&self.read_began) = Some(Instant::now());
        let mut code = vec![0; usize::try_from(size).ok()?];
        let read = file.read_exact_at(&mut code, offset);
        *locked(&self.read_began) = None;
        read.is_ok().then_some(code)
    }
}

/// Returns the locked value, also after a panic of a thread that held it: no value here is ever
/// half changed.
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
            state: Arc::new(CodeReaderState {
                queue: Mutex::new(queue),
                user,
                requested_bytes: AtomicU64::new(0),
                blocked_threads: AtomicU32::new(0),
                last_wait_timeouts: AtomicU32::new(0),
            }),
        }
    }

    fn start_thread(&self) -> io::Result<()> {
        let state = Arc::clone(&self.state);
        let run = move || {
            loop {
                // The queue is free again while the thread reads.
                let request = locked(&state.queue).recv();
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
                // If the process's state was dropped, the receiver is gone.
                let _ = answers.send(CodeAnswer { wanted, code });
            }
        };
        let thread = thread::Builder::new().name("jit-code".to_owned());
        thread.spawn(run).map(drop)
    }

    /// Starts a thread in place of one that waits for a process.
    pub(super) fn replace_thread(&self) {
        let blocked = self.state.blocked_threads.fetch_add(1, Ordering::Relaxed);
        if blocked < MAX_BLOCKED_THREADS {
            // Without it the rest of the code is left out, and counted.
            let _ = self.start_thread();
        }
    }

    /// Requests a function, unless too many are requested or read already.
    pub(super) fn request(&self, request: ReadRequest) -> Result<(), RequestRefusal> {
        let size = request.wanted.size;
        let requested_bytes = &self.state.requested_bytes;
        if requested_bytes.load(Ordering::Relaxed).saturating_add(size) > MAX_TOTAL_CODE_BYTES {
            return Err(RequestRefusal::Total);
        }
        let sent = self.requests.try_send(request);
        sent.map_err(|_| RequestRefusal::Busy)?;
        requested_bytes.fetch_add(size, Ordering::Relaxed);
        Ok(())
    }

    /// Returns the user who called kcollect, whose rights decide what is read.
    pub(super) fn user(&self) -> &InvokingUser {
        &self.state.user
    }

    /// Returns whether the end of a process still waits for its code.
    pub(super) fn may_wait(&self) -> bool {
        self.state.last_wait_timeouts.load(Ordering::Relaxed) < MAX_LAST_WAIT_TIMEOUTS
    }

    /// Notes that the end of a process waited until the timeout.
    pub(super) fn last_wait_timed_out(&self) {
        self.state
            .last_wait_timeouts
            .fetch_add(1, Ordering::Relaxed);
    }

    #[cfg(test)]
    pub(super) fn use_up(&self) {
        let requested_bytes = &self.state.requested_bytes;
        requested_bytes.store(MAX_TOTAL_CODE_BYTES, Ordering::Relaxed);
    }
}

/// Why a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestRefusal {
    /// All processes together have reached [`MAX_TOTAL_CODE_BYTES`].
    Total,
    /// Too many requests wait. A later one may succeed.
    Busy,
}
