//! Names of a process's descriptors, from its `/proc`.
//!
//! The name of a socket is its endpoints, which are found by its inode in the tables of its network
//! namespace. These tables can be long, so they are read rarely, and only in part.

use std::collections::HashMap;
use std::fs;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use experiment_format::ids::{Pid, Tid};

use super::registered::RegisteredFiles;
use crate::process::thread_directory;

/// Shortest time between two reads of tables of sockets, of all namespaces.
const MIN_SOCKETS_READ_INTERVAL: Duration = Duration::from_secs(1);
/// Max bytes of a table of sockets that are read: about 7,000 connections, in some
/// milliseconds.
const MAX_TABLE_BYTES: u64 = 1 << 20;
/// Max network namespaces whose sockets are kept.
const MAX_NAMESPACES: usize = 64;
/// Max descriptors of a process that are looked up at its first call. Others are looked up when
/// they are used.
const MAX_LISTED_DESCRIPTORS: usize = 1024;

/// Finds descriptors whose opening [`Descriptors`](super::Descriptors) has not seen.
pub trait DescriptorLookup {
    /// Returns the name of a descriptor.
    fn descriptor(&mut self, descriptor: i32) -> Option<Vec<u8>>;

    /// Returns the open descriptors and their names, or the first ones of many.
    fn all(&mut self) -> Vec<(i32, Vec<u8>)>;

    /// Returns the name of a file that is registered with `io_uring`, by its number
    /// ([`IoFileRecord::file`](bpf_abi::IoFileRecord::file)).
    fn registered(&mut self, file: u64) -> Option<Vec<u8>>;

    /// Returns the working directory.
    fn directory(&mut self) -> Option<Vec<u8>>;
}

/// The names of sockets, of all network namespaces that were read.
#[derive(Debug, Default)]
pub struct Sockets {
    /// Names by network namespace and inode.
    names: HashMap<Vec<u8>, HashMap<u64, String>>,
    read: Option<Instant>,
}

impl Sockets {
    /// Returns the name of a process's socket.
    fn name(&mut self, process: &Path, inode: u64) -> Option<String> {
        let namespace = fs::read_link(process.join("ns/net")).ok()?;
        let namespace = namespace.as_os_str().as_bytes();
        let known = self
            .names
            .get(namespace)
            .and_then(|names| names.get(&inode));
        if let Some(name) = known {
            return Some(name.clone());
        }
        if self
            .read
            .is_some_and(|read| read.elapsed() < MIN_SOCKETS_READ_INTERVAL)
        {
            return None;
        }
        self.read = Some(Instant::now());
        if self.names.len() >= MAX_NAMESPACES {
            self.names.clear();
        }
        let names = sockets_of(process);
        let name = names.get(&inode).cloned();
        self.names.insert(namespace.to_vec(), names);
        name
    }
}

/// Reads the tables of a process's network namespace.
fn sockets_of(process: &Path) -> HashMap<u64, String> {
    let mut names = HashMap::new();
    for table in ["tcp", "tcp6", "udp", "udp6", "unix"] {
        let mut text = Vec::new();
        if let Ok(file) = fs::File::open(process.join("net").join(table)) {
            // A part of a table is used too.
            let _ = file.take(MAX_TABLE_BYTES).read_to_end(&mut text);
        }
        let text = String::from_utf8_lossy(&text);
        names.extend(text.lines().skip(1).filter_map(|line| match table {
            "unix" => unix_socket(line),
            table => internet_socket(table, line),
        }));
    }
    names
}

/// The `/proc` of a process, and what is known of its registered files.
#[derive(Debug)]
pub struct ProcLookup<'a> {
    root: PathBuf,
    sockets: &'a mut Sockets,
    files: &'a RegisteredFiles,
}

impl ProcLookup<'_> {
    /// Returns the `/proc` of a process, as a thread of it sees it: that may have descriptors of
    /// its own.
    #[must_use]
    pub fn new<'a>(
        pid: Pid,
        tid: Tid,
        sockets: &'a mut Sockets,
        files: &'a RegisteredFiles,
    ) -> ProcLookup<'a> {
        ProcLookup {
            root: thread_directory(Path::new("/proc"), pid, tid),
            sockets,
            files,
        }
    }

    fn link(&self, name: &str) -> Option<Vec<u8>> {
        let target = fs::read_link(self.root.join(name)).ok()?;
        Some(target.as_os_str().as_bytes().to_vec())
    }

    /// Returns the name of a descriptor by the target of its link: of a socket the endpoints, of
    /// others the target.
    fn named(&mut self, target: Vec<u8>) -> Vec<u8> {
        let inode = socket_inode(&target);
        let socket = inode.and_then(|inode| self.sockets.name(&self.root, inode));
        socket.map_or(target, String::into_bytes)
    }
}

impl DescriptorLookup for ProcLookup<'_> {
    fn descriptor(&mut self, descriptor: i32) -> Option<Vec<u8>> {
        let target = self.link(&format!("fd/{descriptor}"))?;
        Some(self.named(target))
    }

    fn all(&mut self) -> Vec<(i32, Vec<u8>)> {
        let Ok(entries) = fs::read_dir(self.root.join("fd")) else {
            return Vec::new();
        };
        let entries = entries.filter_map(Result::ok).take(MAX_LISTED_DESCRIPTORS);
        let found: Vec<(i32, Vec<u8>)> = entries
            .filter_map(|entry| {
                let target = fs::read_link(entry.path()).ok()?;
                let number = entry.file_name().to_str()?.parse().ok()?;
                Some((number, target.as_os_str().as_bytes().to_vec()))
            })
            .collect();
        let named = found
            .into_iter()
            .map(|(number, target)| (number, self.named(target)));
        named.collect()
    }

    fn registered(&mut self, file: u64) -> Option<Vec<u8>> {
        let target = self.files.target(file)?.to_vec();
        Some(self.named(target))
    }

    fn directory(&mut self) -> Option<Vec<u8>> {
        self.link("cwd")
    }
}

/// Returns the inode of a link to a socket, `socket:[4711]`.
fn socket_inode(target: &[u8]) -> Option<u64> {
    let number = target.strip_prefix(b"socket:[")?.strip_suffix(b"]")?;
    std::str::from_utf8(number).ok()?.parse().ok()
}

/// Returns the inode and the name of a socket in a line of `/proc/net/tcp`, `tcp6`, `udp` or
/// `udp6`.
fn internet_socket(table: &str, line: &str) -> Option<(u64, String)> {
    let mut fields = line.split_ascii_whitespace();
    let local = endpoint(fields.nth(1)?)?;
    let (address, port) = fields.next()?.rsplit_once(':')?;
    let inode = fields.nth(6)?.parse().ok()?;
    let protocol = table.trim_end_matches('6');
    let name = match port {
        // It listens, or is not connected.
        "0000" => format!("{protocol} {local}"),
        port => {
            let peer = endpoint(&format!("{address}:{port}"))?;
            format!("{protocol} {local} - {peer}")
        }
    };
    Some((inode, name))
}

/// Returns an address and a port in the usual form. The kernel writes addresses as 32-bit words of
/// the machine's byte order, in hexadecimal.
fn endpoint(text: &str) -> Option<String> {
    let (address, port) = text.rsplit_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let words = hex::decode(address).ok()?;
    let bytes: Vec<u8> = words
        .chunks_exact(4)
        .flat_map(|word| {
            let word = u32::from_be_bytes([word[0], word[1], word[2], word[3]]);
            word.to_ne_bytes()
        })
        .collect();
    super::address::endpoint(&bytes, port)
}

/// Returns the inode and the name of a socket in a line of `/proc/net/unix`.
fn unix_socket(line: &str) -> Option<(u64, String)> {
    let mut fields = line.split_ascii_whitespace();
    let inode = fields.nth(6)?.parse().ok()?;
    let path = fields.next()?;
    Some((inode, format!("unix {path}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_called_by_their_endpoints() {
        let listens = "   0: 0100007F:18EB 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 20461 1 0000000000000000 100 0 0 10 0";
        assert_eq!(
            internet_socket("tcp", listens),
            Some((20_461, "tcp 127.0.0.1:6379".to_owned()))
        );
        let connected = "   1: 0100007F:18EB 0200007F:C8A2 01 00000000:00000000 00:00000000 00000000     0        0 20999 1 0000000000000000 20 4 30 10 -1";
        assert_eq!(
            internet_socket("tcp", connected),
            Some((20_999, "tcp 127.0.0.1:6379 - 127.0.0.2:51362".to_owned()))
        );
        let six = "   0: 00000000000000000000000001000000:0050 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 31 1 0 100 0 0 10 0";
        assert_eq!(
            internet_socket("tcp6", six),
            Some((31, "tcp [::1]:80".to_owned()))
        );
        let unix = "0000000000000000: 00000002 00000000 00010000 0001 01 1234 /run/x.sock";
        assert_eq!(
            unix_socket(unix),
            Some((1234, "unix /run/x.sock".to_owned()))
        );
        assert_eq!(unix_socket("0: 2 0 1 1 1 77"), None);
        assert_eq!(internet_socket("tcp", "0: zz"), None);
        assert_eq!(socket_inode(b"socket:[12]"), Some(12));
        assert_eq!(socket_inode(b"pipe:[12]"), None);
    }

    #[test]
    fn own_descriptors_are_found() {
        let mut sockets = Sockets::default();
        let own = Pid(std::process::id());
        let registered = RegisteredFiles::default();
        let mut files = ProcLookup::new(own, Tid(own.0), &mut sockets, &registered);
        let file = tempfile::NamedTempFile::new().unwrap();
        let number = std::os::fd::AsRawFd::as_raw_fd(file.as_file());
        let name = file.path().as_os_str().as_bytes().to_vec();
        assert_eq!(files.descriptor(number), Some(name.clone()));
        assert!(files.all().contains(&(number, name)));
        assert!(files.directory().is_some());
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let number = std::os::fd::AsRawFd::as_raw_fd(&listener);
        let expected = format!("tcp {}", listener.local_addr().unwrap());
        // The sockets of other tests may have been looked up before it was there.
        files.sockets.read = None;
        assert_eq!(files.descriptor(number), Some(expected.into_bytes()));
    }
}
