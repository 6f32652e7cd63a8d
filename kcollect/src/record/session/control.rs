//! What controls a recording from outside: signals, and systemd if kcollect runs as a service.

use std::mem;
use std::os::fd::BorrowedFd;
use std::path::Path;

use experiment_format::units::Nanos;
use host::service::Service;
use host::signals::{SignalRequest, Signals};

/// The signals that arrive, and the connection to systemd.
#[derive(Debug)]
pub(super) struct Control {
    signals: Signals,
    /// Requests that have arrived and were not taken yet.
    requests: Vec<SignalRequest>,
    service: Service,
}

impl Control {
    pub(super) fn new(signals: Signals, service: Service) -> Control {
        Control {
            signals,
            requests: Vec::new(),
            service,
        }
    }

    /// A descriptor that becomes readable when a signal arrives.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.signals.fd()
    }

    /// Takes the requests that have arrived since the last call.
    pub(super) fn take_requests(&mut self) -> Vec<SignalRequest> {
        self.requests.extend(self.signals.take());
        mem::take(&mut self.requests)
    }

    /// Whether a request to stop has arrived. It can still be taken.
    pub(super) fn stop_requested(&mut self) -> bool {
        self.requests.extend(self.signals.take());
        self.requests.contains(&SignalRequest::Stop)
    }

    /// Tells systemd that the service has started, and into which experiment it records.
    pub(super) fn ready(&self, experiment: &Path) {
        self.service.ready(&status(experiment));
    }

    /// Tells systemd into which experiment the service records now.
    pub(super) fn recording_into(&self, experiment: &Path) {
        self.service.status(&status(experiment));
    }

    /// Tells systemd that the service is alive, if that is due.
    pub(super) fn alive(&mut self, now_ns: Nanos) {
        self.service.alive(now_ns);
    }

    /// Whether kcollect runs as a service, which systemd kills if it takes too long to stop.
    pub(super) fn is_service(&self) -> bool {
        self.service.is_connected()
    }

    /// Tells systemd that the recording ends. A request to stop that arrives from here on asks to
    /// give up on what takes long.
    pub(super) fn stopping(&mut self) {
        self.requests.clear();
        self.service.stopping();
    }
}

/// The service's status, as `systemctl status` shows it.
fn status(experiment: &Path) -> String {
    format!("recording into {}", experiment.display())
}
