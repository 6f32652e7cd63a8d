//! Asking who may never answer.
//!
//! A file server that is gone, or a file system in user space that has stopped, holds up whoever
//! opens its files, for as long as it likes. People profile a machine just when something on it
//! hangs, and what hangs must not take the profiler with it. So the files of others are opened in a
//! thread of its own, and waited for for a second. A thread that gets no answer is left behind:
//! nothing but the end of the process ends it.
//!
//! What it refuses: to ask again where nobody answered, and to leave more than [`MAX_BLOCKED_THREADS`]
//! threads.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel, sync_channel};
use std::thread;
use std::time::Duration;

/// How long an answer is waited for. A disk that has a lot to do takes a tenth of that.
pub const OPEN_TIMEOUT: Duration = Duration::from_secs(1);
/// How many threads may wait for answers in vain.
pub const MAX_BLOCKED_THREADS: u32 = 4;
/// Those who wait for it go before others: so has it to.
const NICE: i32 = -20;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TimedOpenError {
    /// Not yet, and maybe never.
    #[error("{}: its file system does not answer", directory.display())]
    TimedOut {
        /// Where it was asked for a file.
        directory: PathBuf,
    },

    /// Too many did not answer to ask one more.
    #[error("not opened: file systems have not answered {MAX_BLOCKED_THREADS} times")]
    TooManyTimeouts,

    /// There is nobody who could ask.
    #[error("not opened: no thread: {0}")]
    NoThread(#[from] io::Error),

    /// A defect of ours.
    #[error("opening it panicked. This is a defect of kcollect; please report it")]
    Panicked,
}

type Work = Box<dyn FnOnce() + Send>;

/// The thread that asks, seen from who waits for it.
#[derive(Debug, Default)]
pub struct TimedOpener {
    thread: Option<Sender<Work>>,
    left_behind: u32,
    silent: HashSet<PathBuf>,
}

impl TimedOpener {
    /// What `work` gives, which asks for files of a directory, if it takes no longer than
    /// [`OPEN_TIMEOUT`].
    ///
    /// # Errors
    /// When it takes longer, or something in that directory took longer before.
    pub fn ask<T, W>(&mut self, directory: &Path, work: W) -> Result<T, TimedOpenError>
    where
        T: Send + 'static,
        W: FnOnce() -> T + Send + 'static,
    {
        let late = || TimedOpenError::TimedOut {
            directory: directory.to_owned(),
        };
        if self.silent.contains(directory) {
            return Err(late());
        }
        if self.left_behind >= MAX_BLOCKED_THREADS {
            return Err(TimedOpenError::TooManyTimeouts);
        }
        let (tell, answer) = sync_channel(1);
        let work: Work = Box::new(move || {
            let _ = tell.send(work());
        });
        // One that has panicked is no more, and takes the question with it.
        let _ = self.thread()?.send(work);
        match answer.recv_timeout(OPEN_TIMEOUT) {
            Ok(answer) => Ok(answer),
            Err(RecvTimeoutError::Disconnected) => {
                self.thread = None;
                Err(TimedOpenError::Panicked)
            }
            Err(RecvTimeoutError::Timeout) => {
                self.thread = None;
                self.left_behind += 1;
                self.silent.insert(directory.to_owned());
                Err(late())
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
    let (questions, to_do) = channel::<Work>();
    let run = move || {
        // SAFETY: it takes three numbers; 0 is the calling thread. Without the right to it, it
        // waits for its turn.
        let _ = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) };
        to_do.into_iter().for_each(|work| work());
    };
    thread::Builder::new().name("open".to_owned()).spawn(run)?;
    Ok(questions)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_given_and_a_panic_told() {
        let mut opener = TimedOpener::default();
        let here = Path::new("/here");
        assert_eq!(opener.ask(here, || 7).unwrap(), 7);
        let failed = opener.ask(here, || panic!("on purpose"));
        assert!(
            matches!(failed, Err(TimedOpenError::Panicked)),
            "{failed:?}"
        );
        assert_eq!(opener.ask(here, || 8).unwrap(), 8);
    }

    /// Each of these takes [`OPEN_TIMEOUT`] once, and none a second time.
    #[test]
    fn who_does_not_answer_is_not_asked_again() {
        let mut opener = TimedOpener::default();
        let (end, forever) = channel::<()>();
        let forever = std::sync::Arc::new(std::sync::Mutex::new(forever));
        for number in 0..MAX_BLOCKED_THREADS {
            let directory = PathBuf::from(format!("/{number}"));
            let forever = std::sync::Arc::clone(&forever);
            let late = opener.ask(&directory, move || forever.lock().unwrap().recv());
            assert!(
                matches!(late, Err(TimedOpenError::TimedOut { .. })),
                "{late:?}"
            );
            let again = opener.ask(&directory, || 7);
            assert!(
                matches!(again, Err(TimedOpenError::TimedOut { .. })),
                "{again:?}"
            );
        }
        let refused = opener.ask(Path::new("/other"), || 7);
        assert!(
            matches!(refused, Err(TimedOpenError::TooManyTimeouts)),
            "{refused:?}"
        );
        drop(end);
    }
}
