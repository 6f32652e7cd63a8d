//! Signals as events: a handler writes a byte into a pipe, which the session reads.
//!
//! It uses handlers and not signalfd, which needs a mask of blocked signals that the load would
//! inherit.

use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::UnixStream;

use nix::libc;
use nix::sys::signal::Signal;
use signal_hook::low_level::pipe;

/// What a signal requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignalRequest {
    /// Close the experiment: SIGINT, SIGQUIT, SIGTERM, and SIGHUP if that is asked for.
    Stop,
    /// Close the experiment and go on in the next one: SIGHUP if that is asked for.
    Rotate,
    /// Pause or resume (`-y`).
    Toggle,
    /// Record a sample (`-l`).
    Sample,
    /// Wake the session: SIGCHLD, since the load may have exited; SIGXFSZ, so that a write beyond
    /// the limit on file sizes fails instead of ending kcollect.
    Wake,
}

/// The signals that this run handles.
#[derive(Debug)]
pub struct Signals {
    pipes: Vec<(SignalRequest, UnixStream)>,
    /// The signals that kcollect was started to ignore. The load has to ignore them too.
    pub ignored: Vec<i32>,
}

impl Signals {
    /// Installs the handlers. `toggle` and `sample` are signal numbers; `hang_up` is what SIGHUP
    /// requests. SIGHUP stays ignored if it was, as nohup(1) does; SIGINT ends the recording even
    /// if it was ignored, as shells do for programs in the background.
    ///
    /// # Errors
    /// A handler cannot be installed.
    pub fn listen(
        toggle: Option<i32>,
        sample: Option<i32>,
        hang_up: SignalRequest,
    ) -> io::Result<Signals> {
        let mut signals = vec![
            (SignalRequest::Stop, libc::SIGINT),
            (SignalRequest::Stop, libc::SIGQUIT),
            (SignalRequest::Stop, libc::SIGTERM),
            (hang_up, libc::SIGHUP),
            (SignalRequest::Wake, libc::SIGCHLD),
            (SignalRequest::Wake, libc::SIGXFSZ),
        ];
        signals.extend(toggle.map(|signal| (SignalRequest::Toggle, signal)));
        signals.extend(sample.map(|signal| (SignalRequest::Sample, signal)));
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

    /// Returns descriptors that become readable when a signal arrives.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.pipes.iter().map(|(_, pipe)| pipe.as_fd())
    }

    /// Returns a request for each signal that has arrived since the last call.
    pub fn take(&mut self) -> Vec<SignalRequest> {
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
    // SAFETY: reads the action into a structure of its size.
    let asked = unsafe { libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) };
    // SAFETY: zeros are a valid `sigaction`, and the kernel has filled it in.
    asked == 0 && unsafe { action.assume_init() }.sa_sigaction == libc::SIG_IGN
}

/// Returns the name of a signal: `SIGUSR1`, `SIGRTMIN+2`.
#[must_use]
pub fn name_of(number: i32) -> String {
    match Signal::try_from(number) {
        Ok(signal) => signal.as_str().to_owned(),
        Err(_) => format!("SIGRTMIN+{}", number - libc::SIGRTMIN()),
    }
}
