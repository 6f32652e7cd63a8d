//! Opening files of file systems that may never answer.
//!
//! A file server that is down, or a file system in user space that has stopped, blocks the process
//! that opens its files, without any limit. Machines are profiled when something on them hangs, and
//! that must not block the profiler. So files of other processes are opened by another thread, for
//! which the caller waits a second. A thread that stays blocked is abandoned: only the end of the
//! process ends it.
//!
//! Limits: after a timeout, no other file of the same directory is opened; at most
//! [`MAX_BLOCKED_THREADS`] threads are abandoned.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel, sync_channel};
use std::thread;
use std::time::Duration;

/// Longest wait for a file. A busy disk takes a tenth of it.
pub const OPEN_TIMEOUT: Duration = Duration::from_secs(1);
/// Max threads that may stay blocked.
pub const MAX_BLOCKED_THREADS: u32 = 4;
/// Nice value of the thread, the same as the waiting thread's.
const NICE: i32 = -20;

/// Why a file was not opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TimedOpenError {
    /// The open took longer than [`OPEN_TIMEOUT`], or an earlier one in the same directory did.
    #[error("{}: its file system does not answer", directory.display())]
    TimedOut {
        /// The directory of the file.
        directory: PathBuf,
    },

    /// Too many threads are blocked already.
    #[error("not opened: file systems have not answered {MAX_BLOCKED_THREADS} times")]
    TooManyTimeouts,

    /// No thread could be started.
    #[error("not opened: no thread: {0}")]
    NoThread(#[from] io::Error),

    /// The thread panicked.
    #[error("opening it panicked. This is a defect of kcollect; please report it")]
    Panicked,
}

type Work = Box<dyn FnOnce() + Send>;

/// A thread that opens files, and the directories that did not answer it.
#[derive(Debug, Default)]
pub struct TimedOpener {
    thread: Option<Sender<Work>>,
    blocked_threads: u32,
    unresponsive: HashSet<PathBuf>,
}

impl TimedOpener {
    /// Returns the result of `work`, which opens files of a directory, if it takes no longer than
    /// [`OPEN_TIMEOUT`].
    ///
    /// # Errors
    /// The work takes longer, or earlier work in the same directory did.
    pub fn run<T, W>(&mut self, directory: &Path, work: W) -> Result<T, TimedOpenError>
    where
        T: Send + 'static,
        W: FnOnce() -> T + Send + 'static,
    {
        let timed_out = || TimedOpenError::TimedOut {
            directory: directory.to_owned(),
        };
        if self.unresponsive.contains(directory) {
            return Err(timed_out());
        }
        if self.blocked_threads >= MAX_BLOCKED_THREADS {
            return Err(TimedOpenError::TooManyTimeouts);
        }
        let (send, result) = sync_channel(1);
        let work: Work = Box::new(move || {
            let _ = send.send(work());
        });
        // A thread that has panicked drops the work.
        let _ = self.thread()?.send(work);
        match result.recv_timeout(OPEN_TIMEOUT) {
            Ok(result) => Ok(result),
            Err(RecvTimeoutError::Disconnected) => {
                self.thread = None;
                Err(TimedOpenError::Panicked)
            }
            Err(RecvTimeoutError::Timeout) => {
                self.thread = None;
                self.blocked_threads += 1;
                self.unresponsive.insert(directory.to_owned());
                Err(timed_out())
            }
        }
    }

    fn thread(&mut self) -> io::Result<&Sender<Work>> {
        let thread = match self.thread.take() {
            Some(thread) => thread,
            None => start()?,
        };
        Ok(self.thread.insert(thread))
    }
}

fn start() -> io::Result<Sender<Work>> {
    let (work, queue) = channel::<Work>();
    let run = move || {
        // SAFETY: it takes three numbers; 0 is the calling thread. Without the privilege it has the
        // ordinary value.
        let _ = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) };
        queue.into_iter().for_each(|work| work());
    };
    thread::Builder::new().name("open".to_owned()).spawn(run)?;
    Ok(work)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_returned_and_a_panic_is_an_error() {
        let mut opener = TimedOpener::default();
        let here = Path::new("/here");
        assert_eq!(opener.run(here, || 7).unwrap(), 7);
        let failed = opener.run(here, || panic!("on purpose"));
        assert!(
            matches!(failed, Err(TimedOpenError::Panicked)),
            "{failed:?}"
        );
        assert_eq!(opener.run(here, || 8).unwrap(), 8);
    }

    /// Each of these takes [`OPEN_TIMEOUT`] once, and none a second time.
    #[test]
    fn a_directory_that_does_not_answer_is_not_opened_again() {
        let mut opener = TimedOpener::default();
        let (end, forever) = channel::<()>();
        let forever = std::sync::Arc::new(std::sync::Mutex::new(forever));
        for number in 0..MAX_BLOCKED_THREADS {
            let directory = PathBuf::from(format!("/{number}"));
            let forever = std::sync::Arc::clone(&forever);
            let timed_out = opener.run(&directory, move || forever.lock().unwrap().recv());
            assert!(
                matches!(timed_out, Err(TimedOpenError::TimedOut { .. })),
                "{timed_out:?}"
            );
            let again = opener.run(&directory, || 7);
            assert!(
                matches!(again, Err(TimedOpenError::TimedOut { .. })),
                "{again:?}"
            );
        }
        let refused = opener.run(Path::new("/other"), || 7);
        assert!(
            matches!(refused, Err(TimedOpenError::TooManyTimeouts)),
            "{refused:?}"
        );
        drop(end);
    }
}
