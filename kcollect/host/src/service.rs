//! The messages of a service of `Type=notify` to systemd: it has started, it is alive, what it does
//! (`sd_notify(3)`).
//!
//! The crates for it open a socket for each message, which a recording may not do once it has
//! dropped its privileges. So this one is opened at the start and stays.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use types::units::Nanos;

/// The connection to systemd. Without a `NOTIFY_SOCKET` there is no connection, and nothing is
/// sent.
#[derive(Debug, Default)]
pub struct Service {
    socket: Option<UnixDatagram>,
    /// From one sign of life to the next, nanoseconds.
    period_ns: Option<Nanos>,
    /// When the next one is due, nanoseconds of CLOCK_MONOTONIC.
    due_ns: Nanos,
}

impl Service {
    /// Connects to the socket that this process's environment names.
    ///
    /// # Errors
    /// There is one, and it cannot be used.
    pub fn connect() -> io::Result<Service> {
        Service::of(|name| env::var_os(name), std::process::id())
    }

    fn of(variable: impl Fn(&str) -> Option<OsString>, pid: u32) -> io::Result<Service> {
        let Some(name) = variable("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else {
            return Ok(Service::default());
        };
        let socket = UnixDatagram::unbound()?;
        socket.connect_addr(&address(&name)?)?;
        // What systemd cannot take at once is not worth waiting for.
        socket.set_nonblocking(true)?;
        let number = |name| variable(name)?.to_str()?.parse::<u64>().ok();
        let ours = number("WATCHDOG_PID").is_none_or(|watched| watched == u64::from(pid));
        let timeout_us = number("WATCHDOG_USEC").filter(|timeout| ours && *timeout > 0);
        Ok(Service {
            socket: Some(socket),
            // Half of the time, as sd_watchdog_enabled(3) recommends.
            period_ns: timeout_us.map(|timeout| Nanos::from_micros(timeout) / 2),
            due_ns: Nanos::ZERO,
        })
    }

    /// Returns whether this process is a service of systemd.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.socket.is_some()
    }

    /// Says that the service has started, and what it does.
    pub fn ready(&self, status: &str) {
        self.send(&format!("READY=1\nSTATUS={}", one_line(status)));
    }

    /// Says what the service does.
    pub fn status(&self, status: &str) {
        self.send(&format!("STATUS={}", one_line(status)));
    }

    /// Says that the service is alive, if that is due at `now_ns`, CLOCK_MONOTONIC.
    pub fn alive(&mut self, now_ns: Nanos) {
        if let Some(period) = self.period_ns
            && now_ns >= self.due_ns
        {
            self.due_ns = now_ns.saturating_add(period);
            self.send("WATCHDOG=1");
        }
    }

    /// Says that the service ends.
    pub fn stopping(&self) {
        self.send("STOPPING=1");
    }

    fn send(&self, message: &str) {
        if let Some(socket) = &self.socket {
            // systemd judges by what arrives.
            let _ = socket.send(message.as_bytes());
        }
    }
}

/// Returns the address of a socket: a path, or a name after `@` that no file has.
fn address(name: &OsStr) -> io::Result<SocketAddr> {
    match name.as_bytes() {
        [b'@', rest @ ..] => SocketAddr::from_abstract_name(rest),
        _ => SocketAddr::from_pathname(name),
    }
}

/// Each line of a message is another variable.
fn one_line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(socket: &str, watchdog: &[(&str, &str)]) -> io::Result<Service> {
        let variable = |name: &str| match name {
            "NOTIFY_SOCKET" => Some(OsString::from(socket)),
            _ => {
                let mut all = watchdog.iter();
                all.find(|(known, _)| *known == name)
                    .map(|(_, value)| OsString::from(value))
            }
        };
        Service::of(variable, 7)
    }

    fn received(systemd: &UnixDatagram) -> Option<String> {
        systemd.set_nonblocking(true).unwrap();
        let mut buffer = [0; 100];
        let length = systemd.recv(&mut buffer).ok()?;
        Some(String::from_utf8_lossy(&buffer[..length]).into_owned())
    }

    #[test]
    fn a_service_says_when_it_starts_lives_and_ends() {
        let tmp = tempfile::tempdir().unwrap();
        let path = tmp.path().join("notify");
        let systemd = UnixDatagram::bind(&path).unwrap();
        let watchdog = [("WATCHDOG_USEC", "1000"), ("WATCHDOG_PID", "7")];
        let mut service = service(path.to_str().unwrap(), &watchdog).unwrap();
        service.ready("recording\nREADY=0");
        let ready = received(&systemd).unwrap();
        assert_eq!(ready, "READY=1\nSTATUS=recording READY=0");
        for (now, expected) in [
            (1_000_000, Some("WATCHDOG=1")),
            (1_499_999, None),
            (1_500_000, Some("WATCHDOG=1")),
            (9_000_000, Some("WATCHDOG=1")),
            (9_100_000, None),
        ] {
            service.alive(Nanos(now));
            assert_eq!(received(&systemd).as_deref(), expected, "{now}");
        }
        service.stopping();
        assert_eq!(received(&systemd).as_deref(), Some("STOPPING=1"));
    }

    #[test]
    fn the_watchdog_of_another_process_is_not_answered() {
        let name = format!("kcollect-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let systemd = UnixDatagram::bind_addr(&address).unwrap();
        let of_another = [("WATCHDOG_USEC", "1000"), ("WATCHDOG_PID", "8")];
        let mut service = service(&format!("@{name}"), &of_another).unwrap();
        service.alive(Nanos(1));
        assert_eq!(received(&systemd), None);
        service.status("ktest.2.er");
        assert_eq!(received(&systemd).as_deref(), Some("STATUS=ktest.2.er"));
    }

    #[test]
    fn without_a_socket_nothing_is_sent_and_a_wrong_one_is_an_error() {
        let mut none = service("", &[]).unwrap();
        none.alive(Nanos(1));
        none.stopping();
        assert!(service("/nowhere/notify", &[]).is_err());
    }
}
