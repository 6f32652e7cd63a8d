//! Tests with servers that answer anything.

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use object::elf::SHT_NOTE;
use object::write::Object;
use object::{Architecture, BinaryFormat, Endianness, SectionFlags, SectionKind};
use tempfile::TempDir;

use super::download::Limits;
use super::*;

const ID: [u8; 20] = [0xa1; 20];

/// A server of this process, which answers each request by a function.
struct Server {
    address: String,
    requests: Arc<AtomicUsize>,
}

impl Server {
    fn start(answer: impl Fn(&str, &mut TcpStream) + Send + 'static) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&requests);
        // It ends with the process.
        thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                counted.fetch_add(1, Ordering::Relaxed);
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                let mut first = String::new();
                let _ = reader.read_line(&mut first);
                let mut line = String::new();
                while reader.read_line(&mut line).is_ok_and(|read| read > 2) {
                    line.clear();
                }
                let path = first.split(' ').nth(1).unwrap_or_default();
                answer(path, &mut stream);
            }
        });
        Server { address, requests }
    }

    /// One that always answers with these bytes.
    fn with(answer: Vec<u8>) -> Server {
        Server::start(move |_, stream| {
            let _ = stream.write_all(&answer);
        })
    }

    fn requests(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }
}

fn ok(body: &[u8]) -> Vec<u8> {
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

fn status(line: &str, header: &str) -> Vec<u8> {
    format!("HTTP/1.1 {line}\r\nContent-Length: 0\r\nConnection: close\r\n{header}\r\n").into()
}

/// A file with a build id.
fn debug_file(id: &[u8]) -> Vec<u8> {
    let mut object = Object::new(BinaryFormat::Elf, Architecture::X86_64, Endianness::Little);
    let name = b".note.gnu.build-id".to_vec();
    let section = object.add_section(Vec::new(), name, SectionKind::Note);
    let words = [4, id.len() as u32, 3].map(u32::to_le_bytes).concat();
    let note = [&words[..], b"GNU\0", id].concat();
    object.set_section_data(section, note, 4);
    object.section_mut(section).flags = SectionFlags::Elf {
        sh_type: SHT_NOTE,
        sh_flags: Default::default(),
    };
    object.write().unwrap()
}

/// A client of these servers with an empty cache.
fn client(servers: &[&Server]) -> (DebuginfodClient, TempDir) {
    let home = tempfile::tempdir().unwrap();
    (client_in(servers, &home), home)
}

fn client_in(servers: &[&Server], home: &TempDir) -> DebuginfodClient {
    DebuginfodClient::new(Settings {
        servers: servers
            .iter()
            .map(|server| server.address.clone())
            .collect(),
        cache: Some(home.path().to_owned()),
        limits: Limits {
            max_bytes: 1 << 20,
            whole: Duration::from_secs(20),
            progress: Duration::from_millis(400),
        },
        problems: Vec::new(),
    })
}

/// Returns the files in a cache, with their sizes.
fn kept(home: &TempDir) -> HashMap<String, u64> {
    let directory = home.path().join(hex::encode(ID));
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let file = |entry: fs::DirEntry| {
        let size = entry.metadata().unwrap().len();
        (entry.file_name().into_string().unwrap(), size)
    };
    entries.map(file).collect()
}

/// Asks a server that must not get through. Returns the problem.
fn refused(answer: Vec<u8>) -> String {
    refused_by(&Server::with(answer))
}

fn refused_by(server: &Server) -> String {
    let (client, home) = client(&[server]);
    assert!(client.debug_file(&ID).is_none());
    assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0);
    let problems = client.take_problems();
    assert_eq!(problems.len(), 1, "{problems:?}");
    // It is not asked again.
    let requests = server.requests();
    assert!(client.debug_file(&ID).is_none());
    assert_eq!(server.requests(), requests);
    assert!(client.take_problems().is_empty());
    problems[0].replace(&server.address, "SERVER")
}

#[test]
fn a_file_is_fetched_once_and_kept() {
    let file = debug_file(&ID);
    let size = file.len() as u64;
    let paths = Arc::new(Mutex::new(Vec::new()));
    let asked = Arc::clone(&paths);
    let without = Server::with(status("404 Not Found", ""));
    let has = Server::start(move |path, stream| {
        asked.lock().unwrap().push(path.to_owned());
        stream.write_all(&ok(&file)).unwrap();
    });
    let (client, home) = client(&[&without, &has]);
    let found = client.debug_file(&ID).unwrap();
    assert_eq!(found.metadata().unwrap().len(), size);
    let path = format!("/buildid/{}/debuginfo", "a1".repeat(20));
    assert_eq!(*paths.lock().unwrap(), [path]);
    assert_eq!(kept(&home), HashMap::from([("debuginfo".to_owned(), size)]));
    assert!(client.debug_file(&ID).is_some());
    // Without a server too.
    assert!(client_in(&[], &home).debug_file(&ID).is_some());
    assert_eq!((without.requests(), has.requests()), (1, 1));
    assert!(client.take_problems().is_empty());
    for meaningless in [&[0; 20][..], &[], &[1, 2, 3]] {
        assert!(client.debug_file(meaningless).is_none());
    }
    assert_eq!(has.requests(), 1);
}

#[test]
fn missing_files_are_not_requested_again() {
    let without = Server::with(status("404 Not Found", ""));
    let (client, home) = client(&[&without]);
    assert!(client.debug_file(&ID).is_none());
    assert_eq!(kept(&home), HashMap::from([("debuginfo".to_owned(), 0)]));
    assert!(client_in(&[&without], &home).debug_file(&ID).is_none());
    assert_eq!(without.requests(), 1);
    assert!(client.take_problems().is_empty());
}

#[test]
fn a_damaged_file_in_the_cache_is_replaced() {
    let server = Server::with(ok(&debug_file(&ID)));
    let (client, home) = client(&[&server]);
    let directory = home.path().join(hex::encode(ID));
    fs::create_dir(&directory).unwrap();
    fs::write(directory.join("debuginfo"), debug_file(&[0xb2; 20])).unwrap();
    assert!(client.debug_file(&ID).is_some());
    assert_eq!(server.requests(), 1);
}

#[test]
fn answers_that_are_not_what_was_asked_for() {
    let path = format!("SERVER/buildid/{}/debuginfo", hex::encode(ID));
    let other = FetchError::OtherBuild;
    for body in [debug_file(&[0xb2; 20]), b"<html>".to_vec(), Vec::new()] {
        assert_eq!(refused(ok(&body)), format!("debuginfod: {path} {other}"));
    }
    assert_eq!(
        refused(status("500 Internal Server Error", "")),
        format!("debuginfod: {path} answered with status 500")
    );
    // Not all of what the header says.
    let whole = ok(&debug_file(&ID));
    let cut = refused(whole[..whole.len() - 10].to_vec());
    let broke_off = FetchError::BrokeOff(String::new()).to_string();
    assert!(cut.contains(&broke_off), "{cut}");
    let nonsense = refused(b"SSH-2.0-OpenSSH\r\n".to_vec());
    let unreachable = FetchError::Unreachable(String::new()).to_string();
    assert!(nonsense.contains(&unreachable), "{nonsense}");
}

#[test]
fn answers_without_end() {
    let claimed = b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n".to_vec();
    let too_large = "has more than 1048576 bytes";
    assert!(refused(claimed).contains(too_large));
    let endless = Server::start(|_, stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n");
        while stream.write_all(&[0x7f; 65536]).is_ok() {}
    });
    assert!(refused_by(&endless).contains(too_large));
    let headers = Server::start(|_, stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n");
        while stream.write_all(b"X: y\r\n").is_ok() {}
    });
    refused_by(&headers);
}

#[test]
fn a_server_that_fails_often_is_not_asked_any_more() {
    let server = Server::with(ok(b"something else"));
    let (client, _home) = client(&[&server]);
    for byte in 1..20 {
        assert!(client.debug_file(&[byte; 20]).is_none());
    }
    assert_eq!(server.requests(), 3);
    assert_eq!(client.take_problems().len(), 3);
}

#[test]
fn answers_that_take_too_long() {
    let begin = Instant::now();
    let silent = Server::start(|_, stream| {
        let _ = stream.read(&mut [0; 64]);
    });
    refused_by(&silent);
    let drops = Server::start(|_, stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n");
        while stream.write_all(b"x").is_ok() {
            thread::sleep(Duration::from_millis(20));
        }
    });
    assert!(refused_by(&drops).ends_with(&FetchError::TooSlow.to_string()));
    assert!(begin.elapsed() < Duration::from_secs(10));
}

#[test]
fn redirects_are_followed_within_http_and_bounds() {
    let to = |place: &str| status("302 Found", &format!("Location: {place}\r\n"));
    let has = Server::with(ok(&debug_file(&ID)));
    let leads = Server::with(to(&format!("{}/elsewhere", has.address)));
    assert!(client(&[&leads]).0.debug_file(&ID).is_some());
    let circle = Server::with(to("/again"));
    refused_by(&circle);
    assert!(circle.requests() < 10);
    for place in ["file:///etc/passwd", "ftp://127.0.0.1/", "gopher:x", ""] {
        refused(to(place));
    }
}

#[test]
fn a_server_that_does_not_answer_is_asked_once() {
    // Nothing listens there any more.
    let gone = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let gone = Server {
        address: format!("http://{gone}"),
        requests: Arc::default(),
    };
    let has = Server::with(ok(&debug_file(&ID)));
    let (client, _home) = client(&[&gone, &has]);
    assert!(client.debug_file(&ID).is_some());
    assert!(client.debug_file(&[0xb2; 20]).is_none());
    let problems = client.take_problems();
    let about = |server: &Server| {
        problems
            .iter()
            .filter(|text| text.contains(&server.address))
            .count()
    };
    assert_eq!((about(&gone), about(&has)), (1, 1), "{problems:?}");
}

#[test]
fn sources_are_fetched_by_their_path() {
    let server = Server::start(|path, stream| {
        let wanted = format!("/buildid/{}/source/src/a%20b/..%2F", hex::encode(ID));
        let answer = if path.starts_with(&wanted.replace("%2F", "/")) {
            ok(b"int main;\n")
        } else {
            status("404 Not Found", "")
        };
        let _ = stream.write_all(&answer);
    });
    let (client, home) = client(&[&server]);
    let (mut file, path) = client.source(&ID, "/src/a b/../x.c").unwrap();
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "int main;\n");
    assert!(path.starts_with(home.path()) && path.is_file());
    assert!(client.source(&ID, "/src/other.c").is_none());
    assert!(client.source(&ID, "x.c").is_none());
    assert_eq!(server.requests(), 2);
}
