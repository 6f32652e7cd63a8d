//! What the runs of `kcollect track` and `kcollect stat` have in common.

use std::fmt::Display;
use std::time::Duration;

use host::exit::{ExitKind, Failure};
use host::signals::Signals;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Waits for a signal, up to `timeout` rounded up to whole milliseconds.
pub(crate) fn wait_for_signals(signals: &Signals, timeout: Duration) -> Result<(), Failure> {
    let timeout = timeout + Duration::from_micros(999);
    match poll(
        &mut [PollFd::new(signals.fd(), PollFlags::POLLIN)],
        PollTimeout::try_from(timeout).unwrap_or(PollTimeout::MAX),
    ) {
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(error) => Err(internal_error("waiting", &error)),
    }
}

/// Returns the failure of a call that cannot fail on a working machine.
pub(crate) fn internal_error(what: &str, error: &dyn Display) -> Failure {
    Failure::new(
        ExitKind::Software,
        format!("{what}: {error}"),
        "report this as a bug",
    )
}
