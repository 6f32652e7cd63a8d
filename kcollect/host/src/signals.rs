//! Signals as events: a handler writes a byte into a pipe, which the session reads.
//!
//! It uses handlers and not signalfd, which needs a mask of blocked signals that the load would
//! inherit. All signals have one pipe: an idle recording spends much of its time on waits, which
//! the kernel makes longer with each descriptor. It holds 65,536 signals until they are read.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;

use nix::fcntl::OFlag;
use nix::libc;
use nix::sys::signal::Signal;
use nix::unistd::pipe2;
use signal_hook::low_level;

/// What a signal requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignalRequest {
    /// Close the experiment: SIGINT, SIGQUIT, SIGTERM, and SIGHUP if that is asked for.
    Stop,
    /// Close the experiment and continue in the next one: SIGHUP if that is asked for.
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
    requests: Vec<SignalRequest>,
    /// The signals that have arrived: for each a byte, which is a position in `requests`.
    arrived: File,
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
        let (arrived, pipe) = pipe2(OFlag::O_NONBLOCK | OFlag::O_CLOEXEC)?;
        let pipe = Arc::new(File::from(pipe));
        for (position, (_, signal)) in (0..).zip(&signals) {
            write_at(*signal, position, Arc::clone(&pipe))?;
        }
        Ok(Signals {
            requests: signals.into_iter().map(|(request, _)| request).collect(),
            arrived: File::from(arrived),
            ignored,
        })
    }

    /// Returns a descriptor that becomes readable when a signal arrives.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.arrived.as_fd()
    }

    /// Returns a request for each signal that has arrived since the last call.
    pub fn take(&mut self) -> Vec<SignalRequest> {
        let mut taken = Vec::new();
        let mut bytes = [0; 64];
        while let Ok(count @ 1..) = self.arrived.read(&mut bytes) {
            let positions = bytes[..count].iter();
            taken.extend(positions.filter_map(|at| self.requests.get(usize::from(*at))));
        }
        taken
    }
}

/// Has a signal write a byte into a pipe.
fn write_at(signal: i32, byte: u8, pipe: Arc<File>) -> io::Result<()> {
    let handler = move || drop((&*pipe).write(&[byte]));
    // SAFETY: all that it does is a call of write(2), which a handler may do and which does not
    // block here; `signal_hook` restores errno.
    unsafe { low_level::register(signal, handler) }.map(drop)
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
