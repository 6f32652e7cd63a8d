//! Serves the page to browsers of this machine (`--serve`), without a file.
//!
//! A profile holds kernel addresses and other users' command lines, so not everything that can
//! reach a loopback port may have it: neither other users of the machine, nor pages of other sites
//! in the same browser. The path begins with 128 random bits, and a request must name this server
//! as its host: a foreign name that resolves to 127.0.0.1 (DNS rebinding) is refused. Only GET and
//! HEAD of that one path are served, one request a connection.
//!
//! HTTP is written here: one method, one path and three headers are less than a library's surface.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Largest request line with headers, in bytes. Browsers send less.
const MAX_REQUEST_BYTES: usize = 16 << 10;
/// Time after which an inactive client is disconnected.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of open connections. Browsers open some in advance.
const MAX_CONNECTIONS: usize = 32;

/// A server of one page.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    site: Arc<Site>,
    open: Arc<AtomicUsize>,
}

#[derive(Debug)]
struct Site {
    port: u16,
    path: String,
    page: String,
}

impl Server {
    /// Listens on 127.0.0.1 at `port`, or at a free port if that is 0.
    ///
    /// # Errors
    /// When the port is taken or not permitted, or the kernel has no random numbers.
    pub fn bind(page: String, port: u16) -> io::Result<Server> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
        listener.set_nonblocking(true)?;
        let mut token = [0; 16];
        File::open("/dev/urandom")?.read_exact(&mut token)?;
        let token = hex::encode(token);
        let port = listener.local_addr()?.port();
        Ok(Server {
            listener,
            site: Arc::new(Site {
                port,
                path: format!("/{token}/"),
                page,
            }),
            open: Arc::default(),
        })
    }

    /// Returns the address of the page.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}{}", self.site.port, self.site.path)
    }

    /// Serves until `stop` is readable or closed.
    ///
    /// # Errors
    /// When connections can't be waited for.
    pub fn run(&self, stop: BorrowedFd<'_>) -> io::Result<()> {
        loop {
            let mut fds =
                [self.listener.as_fd(), stop].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
            match poll(&mut fds, PollTimeout::NONE) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
            if fds[1].any() == Some(true) {
                return Ok(());
            }
            // A failure here concerns one client's connection.
            if let Ok((stream, _)) = self.listener.accept() {
                self.accept(stream);
            }
        }
    }

    fn accept(&self, stream: TcpStream) {
        if self.open.fetch_add(1, Ordering::AcqRel) >= MAX_CONNECTIONS {
            self.open.fetch_sub(1, Ordering::AcqRel);
            return;
        }
        let (site, open) = (
            Arc::clone(&self.site),
            ConnectionCount(Arc::clone(&self.open)),
        );
        // If no thread can be made, the connection is closed.
        let _ = thread::Builder::new().spawn(move || {
            let _open = open;
            let _ = site.serve(stream);
        });
    }
}

/// Counts a connection out when it is dropped.
struct ConnectionCount(Arc<AtomicUsize>);

impl Drop for ConnectionCount {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Site {
    fn serve(&self, mut stream: TcpStream) -> io::Result<()> {
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(CLIENT_TIMEOUT))?;
        stream.set_write_timeout(Some(CLIENT_TIMEOUT))?;
        let request = read_request(&mut stream)?;
        let answer = self.respond(&request);
        stream.write_all(answer.head().as_bytes())?;
        if matches!(answer, Response::Page(_)) {
            stream.write_all(self.page.as_bytes())?;
        }
        Ok(())
    }

    fn respond(&self, request: &str) -> Response {
        let mut lines = request.split("\r\n");
        let line: Vec<&str> = lines.next().unwrap_or_default().split(' ').collect();
        let [method, path, "HTTP/1.1" | "HTTP/1.0"] = line[..] else {
            return Response::Malformed;
        };
        let mut hosts = lines.filter_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("host").then(|| value.trim())
        });
        let (Some(host), None) = (hosts.next(), hosts.next()) else {
            return Response::Malformed;
        };
        let ours = ["127.0.0.1", "localhost"].map(|name| format!("{name}:{}", self.port));
        if !ours.iter().any(|name| name == host) {
            return Response::Misdirected;
        }
        match (path == self.path, method) {
            (false, _) => Response::NotFound,
            (true, "GET") => Response::Page(self.page.len()),
            (true, "HEAD") => Response::Head(self.page.len()),
            (true, _) => Response::NotAllowed,
        }
    }
}

/// Reads up to the empty line, within [`CLIENT_TIMEOUT`] in total, so that a client sending single
/// bytes cannot hold a connection open.
fn read_request(stream: &mut TcpStream) -> io::Result<String> {
    let (mut request, mut part) = (Vec::new(), [0; 1024]);
    let until = Instant::now() + CLIENT_TIMEOUT;
    while !request.ends_with(b"\r\n\r\n") {
        let count = stream.read(&mut part)?;
        request.extend_from_slice(&part[..count]);
        if count == 0 || request.len() > MAX_REQUEST_BYTES || Instant::now() > until {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
    String::from_utf8(request).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// The response to a request; the numbers are the page's length in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Response {
    Page(usize),
    Head(usize),
    Malformed,
    Misdirected,
    NotFound,
    NotAllowed,
}

impl Response {
    fn head(self) -> String {
        let (status, length) = match self {
            Response::Page(length) | Response::Head(length) => ("200 OK", length),
            Response::Malformed => ("400 Bad Request", 0),
            Response::Misdirected => ("421 Misdirected Request", 0),
            Response::NotFound => ("404 Not Found", 0),
            Response::NotAllowed => ("405 Method Not Allowed\r\nAllow: GET, HEAD", 0),
        };
        format!(
            "HTTP/1.1 {status}\r\n\
             Content-Length: {length}\r\n\
             Content-Type: text/html; charset=utf-8\r\n\
             Content-Security-Policy: frame-ancestors 'none'\r\n\
             Cross-Origin-Resource-Policy: same-origin\r\n\
             Cross-Origin-Opener-Policy: same-origin\r\n\
             Referrer-Policy: no-referrer\r\n\
             X-Content-Type-Options: nosniff\r\n\
             Cache-Control: no-store\r\n\
             Connection: close\r\n\r\n"
        )
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    /// Returns the response of a server of the page "all" to a request, in which PORT and PATH
    /// stand for its own.
    fn asked(request: &str) -> String {
        let server = Server::bind("all".to_owned(), 0).unwrap();
        let (stop, stopped) = UnixStream::pair().unwrap();
        thread::scope(|scope| {
            scope.spawn(|| server.run(stopped.as_fd()).unwrap());
            let mut client = TcpStream::connect((Ipv4Addr::LOCALHOST, server.site.port)).unwrap();
            let request = request
                .replace("PORT", &server.site.port.to_string())
                .replace("PATH", &server.site.path);
            client.write_all(request.as_bytes()).unwrap();
            let mut answer = String::new();
            client.read_to_string(&mut answer).unwrap();
            drop(stop);
            answer
        })
    }

    #[test]
    fn one_page_for_those_who_know_where() {
        for (request, status, body) in [
            ("GET PATH HTTP/1.1\r\nHost: 127.0.0.1:PORT", "200", "all"),
            ("GET PATH HTTP/1.1\r\nhOST:localhost:PORT", "200", "all"),
            ("HEAD PATH HTTP/1.1\r\nHost: 127.0.0.1:PORT", "200", ""),
            ("POST PATH HTTP/1.1\r\nHost: 127.0.0.1:PORT", "405", ""),
            ("GET / HTTP/1.1\r\nHost: 127.0.0.1:PORT", "404", ""),
            ("GET PATHx HTTP/1.1\r\nHost: 127.0.0.1:PORT", "404", ""),
            ("GET PATH HTTP/1.1\r\nHost: rebound.example:PORT", "421", ""),
            ("GET PATH HTTP/1.1\r\nHost: 127.0.0.1", "421", ""),
            ("GET PATH HTTP/1.1\r\nAccept: *", "400", ""),
            (
                "GET PATH HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\nHost: x",
                "400",
                "",
            ),
            ("GET PATH", "400", ""),
        ] {
            let answer = asked(&format!("{request}\r\n\r\n"));
            let (head, content) = answer.split_once("\r\n\r\n").unwrap();
            assert_eq!(&head[9..12], status, "{request}");
            assert_eq!(content, body, "{request}");
            assert!(head.contains("frame-ancestors 'none'"));
        }
    }

    #[test]
    fn the_way_there_is_not_to_be_guessed() {
        let urls = [0, 1].map(|_| Server::bind(String::new(), 0).unwrap().url());
        assert!(urls[0].starts_with("http://127.0.0.1:"));
        let token = |url: &str| url.rsplit('/').nth(1).unwrap().to_owned();
        assert_eq!(token(&urls[0]).len(), 32);
        assert_ne!(token(&urls[0]), token(&urls[1]));
    }

    #[test]
    fn a_taken_port_is_said() {
        let server = Server::bind(String::new(), 0).unwrap();
        let error = Server::bind(String::new(), server.site.port).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    }
}
