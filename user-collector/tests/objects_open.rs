//! The file of a mapping is found whatever became of its name, and no other file is.
//!
//! Where the machine's own `/proc` has no such case, a directory plays its part: its links are
//! ordinary ones.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test reports by panicking"
)]

use std::fs::{self, File};
use std::io::{BufRead, BufReader, ErrorKind, Read, Seek};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use experiment_format::ids::Pid;
use kcollect_elf::build_id;
use nix::fcntl::AT_FDCWD;
use nix::sys::stat::{Mode, UtimensatFlags, utimensat};
use nix::sys::time::TimeSpec;
use object::read::ReadCache;
use tempfile::TempDir;
use user_collector::objects::{
    Backing, FoundBy, MAX_OBJECT_FILE_BYTES, MAX_VDSO_BYTES, OpenError, OpenedFile, open, own_vdso,
    vdso,
};
use user_collector::space::{FileIdentity, MappedFile, Mapping};
use user_collector::unwind::{UnwindRules, UnwindTable};

const PID: u32 = 77;
/// A program that has a build id, and another one.
const SLEEP: &str = "/bin/sleep";
const CAT: &str = "/bin/cat";

fn id_of(path: &Path) -> Box<[u8]> {
    let id = build_id(&ReadCache::new(File::open(path).unwrap()));
    assert_eq!(id.len(), 20, "{}", path.display());
    id
}

fn mapping(path: &Path, build_id: &[u8], identity: FileIdentity) -> Mapping {
    Mapping {
        start: 0x1000,
        end: 0x2000,
        offset: 0,
        file: Arc::new(MappedFile {
            path: path.as_os_str().as_bytes().into(),
            build_id: build_id.into(),
            identity,
        }),
    }
}

fn file_at(device: u64, inode: u64) -> FileIdentity {
    FileIdentity {
        device,
        inode,
        generation: 0,
    }
}

fn identity(path: &Path) -> FileIdentity {
    let metadata = fs::symlink_metadata(path).unwrap();
    file_at(metadata.dev(), metadata.ino())
}

/// Of that path, known by its inode alone.
fn by_inode(path: &Path) -> Mapping {
    mapping(path, &[], identity(path))
}

fn by_id(path: &Path) -> Mapping {
    mapping(path, &id_of(path), FileIdentity::default())
}

/// A directory in the part of `/proc`, with one process whose root is `root`.
struct Proc {
    directory: TempDir,
}

impl Proc {
    fn new() -> Proc {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir_all(directory.path().join("77/map_files")).unwrap();
        fs::create_dir(directory.path().join("root")).unwrap();
        symlink("../root", directory.path().join("77/root")).unwrap();
        Proc { directory }
    }

    /// A path in the process's root.
    fn inside(&self, path: &str) -> PathBuf {
        self.directory.path().join("root").join(path)
    }

    /// What the process has mapped from 0x1000 to 0x2000.
    fn mapped(&self, target: &Path) {
        let link = self.directory.path().join("77/map_files/1000-2000");
        symlink(target, link).unwrap();
    }

    fn open(&self, mapping: &Mapping) -> Result<OpenedFile, OpenError> {
        open(self.directory.path(), Pid(PID), mapping)
    }

    /// Opens the file of an inode in the process's root, under the path that the process has for
    /// it.
    fn open_inside(&self, path: &str) -> Result<OpenedFile, OpenError> {
        let inside = by_inode(&self.inside(path));
        let mut file = (*inside.file).clone();
        file.path = format!("/{path}").into_bytes().into();
        self.open(&Mapping {
            file: Arc::new(file),
            ..inside
        })
    }
}

fn way(opened: Result<OpenedFile, OpenError>) -> FoundBy {
    opened.unwrap().way
}

#[test]
fn each_way_to_open_a_file() {
    let proc = Proc::new();
    let path = proc.inside("program");
    fs::copy(SLEEP, &path).unwrap();
    // The process is there, under another number: only the path is left.
    let gone = open(proc.directory.path(), Pid(78), &by_id(&path)).unwrap();
    assert_eq!(gone.way, FoundBy::Path);
    assert_eq!(gone.build_id, id_of(&path));
    assert_eq!(way(proc.open_inside("program")), FoundBy::Root);
    proc.mapped(&path);
    let mut opened = proc.open_inside("program").unwrap();
    assert_eq!(opened.way, FoundBy::MapFiles);
    // It is read from its start.
    assert_eq!(opened.file.stream_position().unwrap(), 0);
    let mut bytes = Vec::new();
    opened.file.read_to_end(&mut bytes).unwrap();
    assert_eq!(bytes, fs::read(SLEEP).unwrap());
}

#[test]
fn a_mapping_by_now_of_another_program() {
    let proc = Proc::new();
    let path = proc.inside("program");
    fs::copy(SLEEP, &path).unwrap();
    proc.mapped(Path::new(CAT));
    let mut mapping = by_id(&path);
    assert_eq!(way(proc.open(&mapping)), FoundBy::Path);
    // Without a build id its addresses are believed.
    mapping = by_inode(&path);
    assert_eq!(way(proc.open(&mapping)), FoundBy::MapFiles);
}

#[test]
fn replaced_file_is_refused() {
    let proc = Proc::new();
    let path = proc.inside("program");
    fs::copy(SLEEP, &path).unwrap();
    let (by_id, by_inode) = (by_id(&path), by_inode(&path));
    fs::rename(&path, proc.inside("old")).unwrap();
    fs::copy(CAT, &path).unwrap();
    for mapping in [by_id, by_inode] {
        let error = proc.open(&mapping).unwrap_err();
        assert!(matches!(error, OpenError::Replaced { .. }), "{error}");
    }
}

#[test]
fn deleted_and_there_again() {
    let proc = Proc::new();
    let path = proc.inside("program");
    fs::copy(SLEEP, &path).unwrap();
    let deleted = path.with_file_name("program (deleted)");
    // The same program was installed again.
    let again = mapping(&deleted, &id_of(&path), FileIdentity::default());
    assert_eq!(way(proc.open(&again)), FoundBy::Path);
    // That is its name.
    fs::copy(CAT, &deleted).unwrap();
    assert_eq!(way(proc.open(&by_id(&deleted))), FoundBy::Path);
    assert_eq!(way(proc.open_inside("program (deleted)")), FoundBy::Root);
}

#[test]
fn unidentified_file_is_refused() {
    let proc = Proc::new();
    let path = proc.inside("program");
    fs::copy(SLEEP, &path).unwrap();
    let unknown = mapping(&path, &[], FileIdentity::default());
    let error = proc.open(&unknown).unwrap_err();
    assert!(matches!(error, OpenError::Unknown { .. }), "{error}");
    proc.mapped(&path);
    assert_eq!(way(proc.open(&unknown)), FoundBy::MapFiles);
}

#[test]
fn missing_file_is_an_error() {
    let proc = Proc::new();
    let path = Path::new("/there/is/no/such (deleted)");
    let error = proc
        .open(&mapping(path, &[1; 20], FileIdentity::default()))
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "/there/is/no/such (deleted): can't be found any more"
    );
}

/// None of them is opened: opening a pipe may block, and opening a device may have any effect.
#[test]
fn other_files_than_regular_are_refused() {
    let proc = Proc::new();
    let at = |name: &str| proc.inside(name);
    fs::create_dir(at("directory")).unwrap();
    nix::unistd::mkfifo(&at("pipe"), Mode::S_IRWXU).unwrap();
    let _socket = UnixListener::bind(at("socket")).unwrap();
    symlink(SLEEP, at("link")).unwrap();
    for (name, expected) in [
        ("directory", "a directory"),
        ("pipe", "a pipe"),
        ("socket", "a socket"),
        ("link", "a symbolic link"),
    ] {
        match proc.open_inside(name) {
            Err(OpenError::NotRegular { what, .. }) => assert_eq!(what, expected),
            other => panic!("{name}: {other:?}"),
        }
    }
    let device = Proc::new();
    device.mapped(Path::new("/dev/null"));
    let error = device.open(&mapping(
        Path::new("/dev/null"),
        &[],
        FileIdentity::default(),
    ));
    assert!(matches!(
        error,
        Err(OpenError::NotRegular {
            what: "a device",
            ..
        })
    ));
}

/// Sets the time of access of a link so that following it changes nothing. A link that is read in
/// another tick of the clock than it was made has it written, and a resolution in the kernel's
/// cache alone is refused until then.
fn accessed_later(link: &Path) {
    const SECONDS: i64 = 3600;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let later = TimeSpec::new(now.as_secs().cast_signed() + SECONDS, 0);
    let none = UtimensatFlags::NoFollowSymlink;
    utimensat(AT_FDCWD, link, &later, &TimeSpec::UTIME_OMIT, none).unwrap();
}

/// A path is the process's own, and its root the end of the world.
#[test]
fn paths_stay_inside_the_root() {
    let proc = Proc::new();
    let outside = proc.directory.path().join("secret");
    fs::copy(SLEEP, &outside).unwrap();
    symlink("../..", proc.inside("up")).unwrap();
    symlink(proc.directory.path(), proc.inside("absolute")).unwrap();
    symlink("/proc/self/root", proc.inside("magic")).unwrap();
    let id = id_of(&outside);
    for path in [
        "/../secret",
        "/up/secret",
        "/absolute/secret",
        "/up/../../secret",
    ] {
        let error = proc
            .open(&mapping(Path::new(path), &id, FileIdentity::default()))
            .unwrap_err();
        assert!(matches!(error, OpenError::Gone { .. }), "{path}: {error}");
    }
    // Inside it links lead on as they do for the process.
    fs::create_dir(proc.inside("lib")).unwrap();
    fs::copy(SLEEP, proc.inside("lib/program")).unwrap();
    symlink("/lib", proc.inside("usr")).unwrap();
    accessed_later(&proc.inside("usr"));
    let linked = mapping(Path::new("/usr/program"), &id, FileIdentity::default());
    assert_eq!(way(proc.open(&linked)), FoundBy::Root);
}

#[test]
fn too_large_file_is_refused() {
    let proc = Proc::new();
    let file = File::create(proc.inside("large")).unwrap();
    file.set_len(MAX_OBJECT_FILE_BYTES).unwrap();
    assert_eq!(way(proc.open_inside("large")), FoundBy::Root);
    file.set_len(MAX_OBJECT_FILE_BYTES + 1).unwrap();
    let error = proc.open_inside("large").unwrap_err();
    assert!(
        matches!(error, OpenError::TooLarge { size, .. } if size == MAX_OBJECT_FILE_BYTES + 1),
        "{error}"
    );
}

#[test]
fn names_that_are_no_paths() {
    let proc = Proc::new();
    for name in ["//anon", "[vdso]", "[heap]", "anon_inode:[io_uring]", ""] {
        let error = proc.open(&mapping(Path::new(name), &[], file_at(1, 1)));
        assert!(matches!(error, Err(OpenError::NotAFile { .. })), "{name}");
    }
    let error = proc
        .open(&mapping(Path::new("[vdso]"), &[], FileIdentity::default()))
        .unwrap_err();
    assert!(matches!(
        error,
        OpenError::NotAFile {
            backing: Backing::Vdso,
            ..
        }
    ));
    for name in ["//toolong", "/memfd:x (deleted)", "/with\0zero"] {
        let error = proc
            .open(&mapping(Path::new(name), &[1], FileIdentity::default()))
            .unwrap_err();
        assert!(
            matches!(error, OpenError::Gone { .. } | OpenError::Io { .. }),
            "{error}"
        );
    }
}

/// The executable mappings of a living process, as `/proc/PID/maps` has them, without a build id.
fn mappings(pid: Pid) -> Vec<Mapping> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let hex = |text: &str| u64::from_str_radix(text, 16).unwrap();
    maps.lines()
        .filter_map(|line| {
            let mut words = line.splitn(6, ' ');
            let (start, end) = words.next()?.split_once('-')?;
            let executable = words.next()?.contains('x');
            let offset = hex(words.next()?);
            let (major, minor) = words.next()?.split_once(':')?;
            let inode = words.next()?.parse().ok()?;
            let path = words.next().unwrap_or_default().trim_start();
            let device = nix::sys::stat::makedev(hex(major), hex(minor));
            executable.then(|| Mapping {
                start: hex(start),
                end: hex(end),
                offset,
                ..mapping(Path::new(path), &[], file_at(device, inode))
            })
        })
        .collect()
}

fn mapping_of(pid: Pid, name: &str) -> Mapping {
    let all = mappings(pid);
    let found = all.iter().find(|mapping| {
        let path = String::from_utf8_lossy(&mapping.file.path).into_owned();
        path.contains(name)
    });
    found
        .unwrap_or_else(|| panic!("{name} in {all:#?}"))
        .clone()
}

#[test]
fn file_of_this_process() {
    let pid = Pid(std::process::id());
    let mapping = mapping_of(pid, "/libc.so");
    let opened = open(Path::new("/proc"), pid, &mapping).unwrap();
    let path = PathBuf::from(std::ffi::OsStr::from_bytes(&mapping.file.path));
    assert_eq!(opened.build_id, id_of(&path));
    let metadata = opened.file.metadata().unwrap();
    assert_eq!(file_at(metadata.dev(), metadata.ino()), identity(&path));
}

#[test]
fn the_vdso_has_a_table() {
    let pid = Pid(std::process::id());
    let mapping = mapping_of(pid, "[vdso]");
    let bytes = vdso(Path::new("/proc"), pid, &mapping).unwrap();
    assert_eq!(bytes.len() as u64, mapping.end - mapping.start);
    // It is ours too, whichever process had it, unless that may have been of 32 bits.
    let elsewhere = |start: u64| Mapping {
        start,
        end: start + bytes.len() as u64,
        ..mapping.clone()
    };
    let proc = Path::new("/proc");
    assert_eq!(own_vdso(proc, &elsewhere(1 << 40)).unwrap(), bytes);
    assert!(own_vdso(proc, &elsewhere(1 << 30)).is_err());
    let (table, _) = UnwindTable::of_elf(&bytes, &mut UnwindRules::new()).unwrap();
    assert!(!table.rows().is_empty());
    assert_eq!(build_id(bytes.as_slice()).len(), 20);
    // No more than that is read of what is called so.
    let long = Mapping {
        end: mapping.start + (1 << 40),
        ..mapping.clone()
    };
    let read = vdso(Path::new("/proc"), pid, &long);
    assert!(read.map_or(true, |bytes| bytes.len() as u64 == MAX_VDSO_BYTES));
    let gone = Mapping {
        start: 0,
        ..mapping
    };
    assert!(vdso(Path::new("/proc"), pid, &gone).is_err());
}

/// A child that is ended with the test.
struct Running(Child);

impl Running {
    /// Starts a program and waits until it has its libraries: it has written a line.
    fn start(command: &mut Command) -> Running {
        let mut start = || command.stdout(Stdio::piped()).spawn();
        let mut child = start();
        // What another test forks has a file that was copied open for writing, until it executes
        // its own program.
        while matches!(&child, Err(error) if error.kind() == ErrorKind::ExecutableFileBusy) {
            std::thread::yield_now();
            child = start();
        }
        let mut running = Running(child.unwrap());
        let mut line = String::new();
        let mut output = BufReader::new(running.0.stdout.as_mut().unwrap());
        output.read_line(&mut line).unwrap();
        assert!(!line.is_empty());
        running
    }

    fn pid(&self) -> Pid {
        Pid(self.0.id())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A copy of the shell that runs until it is ended.
fn shell(path: &Path) -> Running {
    fs::copy("/bin/sh", path).unwrap();
    Running::start(
        Command::new(path)
            .args(["-c", "echo up; read line; read line"])
            .stdin(Stdio::piped()),
    )
}

#[test]
fn root_deleted_and_replaced_files_of_a_living_process() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("kc-shell");
    let child = shell(&path);
    let id = id_of(&path);
    let before = mapping_of(child.pid(), "kc-shell");
    let open = |mapping: &Mapping| open(Path::new("/proc"), child.pid(), mapping);
    assert_eq!(way(open(&before)), FoundBy::MapFiles);
    fs::remove_file(&path).unwrap();
    let deleted = mapping_of(child.pid(), "kc-shell (deleted)");
    for mapping in [&before, &deleted] {
        let opened = open(mapping).unwrap();
        assert_eq!((opened.way, &opened.build_id), (FoundBy::MapFiles, &id));
    }
    // Another file under its name is not taken for it, when the mapping was split meanwhile.
    fs::copy(CAT, &path).unwrap();
    assert_eq!(open(&before).unwrap().build_id, id);
    let part = Mapping {
        start: before.start + 4096,
        ..before
    };
    let error = open(&part).unwrap_err();
    assert!(matches!(error, OpenError::Replaced { .. }), "{error}");
}

/// What the C library of a child maps, in a root of its own, is found there and not in ours.
#[test]
fn root_process_with_a_root_of_its_own() {
    let proc = Path::new("/proc");
    let root = tempfile::tempdir().unwrap();
    let copy = |from: &str, to: &str| {
        let to = root.path().join(to);
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(from, to).unwrap();
    };
    copy("/bin/sh", "kc-only-here/sh");
    for mapping in mappings(Pid(std::process::id())) {
        let path = String::from_utf8(mapping.file.path.to_vec()).unwrap();
        if path.contains("/libc.so") || path.contains("/ld-linux") {
            copy(&path, &path[1..]);
            // Where programs look for it.
            copy(
                &path,
                &format!("lib64/{}", path.rsplit('/').next().unwrap()),
            );
        }
    }
    let child = Running::start(
        Command::new("unshare")
            .arg("--mount")
            .arg(format!("--root={}", root.path().display()))
            .args(["/kc-only-here/sh", "-c", "echo up; read line; read line"])
            .stdin(Stdio::piped()),
    );
    let seen = mapping_of(child.pid(), "kc-only-here/sh");
    let inner = root.path().join("kc-only-here/sh");
    // As the kernel's event has it: the path is the process's own.
    let mut reported = by_id(&inner);
    reported = mapping(
        Path::new("/kc-only-here/sh"),
        &reported.file.build_id,
        FileIdentity::default(),
    );
    assert_eq!(way(open(proc, child.pid(), &reported)), FoundBy::Root);
    reported.start = seen.start;
    reported.end = seen.end;
    assert_eq!(way(open(proc, child.pid(), &reported)), FoundBy::MapFiles);
    let mut by_inode = (*reported.file).clone();
    by_inode.build_id = Box::default();
    by_inode.identity = identity(&inner);
    reported = Mapping {
        file: Arc::new(by_inode),
        start: 0x1000,
        ..reported
    };
    assert_eq!(way(open(proc, child.pid(), &reported)), FoundBy::Root);
}

/// A file that never had a name to open it by.
#[test]
fn root_memory_as_a_file() {
    let script = "import os, ctypes, mmap, sys\n\
        fd = os.memfd_create('kc-memory')\n\
        os.write(fd, open('/bin/sleep', 'rb').read())\n\
        m = mmap.mmap(fd, 4096, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_EXEC)\n\
        os.close(fd)\n\
        print('up', flush=True)\n\
        sys.stdin.read()\n";
    let child = Running::start(
        Command::new("python3")
            .args(["-c", script])
            .stdin(Stdio::piped()),
    );
    let mapping = mapping_of(child.pid(), "/memfd:kc-memory");
    let opened = open(Path::new("/proc"), child.pid(), &mapping).unwrap();
    assert_eq!(opened.way, FoundBy::MapFiles);
    assert_eq!(opened.build_id, id_of(Path::new(SLEEP)));
}
