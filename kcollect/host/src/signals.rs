//! Signals as events: the handlers write a byte, the session reads it when it is ready.
//!
//! Handlers, not a blocked mask with signalfd: a mask would be inherited by the load.

use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::UnixStream;

use nix::libc;
use nix::sys::signal::Signal;
use signal_hook::low_level::pipe;

/// What a signal asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Close the experiment: SIGINT, SIGQUIT, SIGTERM, SIGHUP.
    Stop,
    /// Pause or resume (`-y`).
    Toggle,
    /// Record a sample (`-l`).
    Sample,
    /// Nothing but a look around: SIGCHLD, for the load may have ended; SIGXFSZ, so that a write
    /// beyond the limit on file sizes fails instead of killing.
    Wake,
}

/// The signals that this run listens to.
#[derive(Debug)]
pub struct Signals {
    pipes: Vec<(Request, UnixStream)>,
    /// Those that kcollect was started to ignore, and listens to nevertheless: a load is to ignore
    /// them.
    pub ignored: Vec<i32>,
}

impl Signals {
    /// Begins to listen. `toggle` and `sample` are signal numbers. Under nohup(1), which lets it
    /// ignore SIGHUP, nothing is heard of that; but SIGINT, which shells let a program in the
    /// background ignore, still ends the recording.
    ///
    /// # Errors
    /// When a handler can't be installed.
    pub fn listen(toggle: Option<i32>, sample: Option<i32>) -> io::Result<Signals> {
        let mut signals = vec![
            (Request::Stop, libc::SIGINT),
            (Request::Stop, libc::SIGQUIT),
            (Request::Stop, libc::SIGTERM),
            (Request::Stop, libc::SIGHUP),
            (Request::Wake, libc::SIGCHLD),
            (Request::Wake, libc::SIGXFSZ),
        ];
        signals.extend(toggle.map(|signal| (Request::Toggle, signal)));
        signals.extend(sample.map(|signal| (Request::Sample, signal)));
        let mut ignored: Vec<_> = signals.iter().map(|(_, signal)| *signal).collect();
        ignored.retain(|signal| is_ignored(*signal));
        signals.retain(|(_, signal)| *signal != libc::SIGHUP || !ignored.contains(signal));
        let pipes = signals.into_iter().map(|(request, signal)| {
            let (read, write) = UnixStream::pair()?;
            read.set_nonblocking(true)?;
            pipe::register(signal, write)?;
            Ok((request, read))
        });
        Ok(Signals {
            pipes: pipes.collect::<io::Result<_>>()?,
            ignored,
        })
    }

    /// Each becomes readable when a signal has come.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.pipes.iter().map(|(_, pipe)| pipe.as_fd())
    }

    /// Takes what has come since the last call: one request for each signal that arrived.
    pub fn take(&mut self) -> Vec<Request> {
        let mut taken = Vec::new();
        for (request, pipe) in &mut self.pipes {
            let mut bytes = [0; 64];
            while let Ok(count @ 1..) = pipe.read(&mut bytes) {
                taken.extend(std::iter::repeat_n(*request, count));
            }
        }
        taken
    }
}

fn is_ignored(signal: i32) -> bool {
    let mut action = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: asks only; the structure has room for the answer.
    let asked = unsafe { libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) };
    // SAFETY: zeros are a valid one, and the kernel has filled it in.
    asked == 0 && unsafe { action.assume_init() }.sa_sigaction == libc::SIG_IGN
}

/// A signal's name for people: `SIGUSR1`, `SIGRTMIN+2`.
#[must_use]
pub fn name_of(number: i32) -> String {
    match Signal::try_from(number) {
        Ok(signal) => signal.as_str().to_owned(),
        Err(_) => format!("SIGRTMIN+{}", number - libc::SIGRTMIN()),
    }
}
