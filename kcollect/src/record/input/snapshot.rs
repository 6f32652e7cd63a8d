//! The snapshot: what runs already when the side-band is open, read from `/proc`.

use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;

use experiment_format::ids::Pid;
use experiment_format::units::Nanos;
use host::machine;
use procfs::process::{MMPermissions, MMapPath, MemoryMap, Process};
use user_collector::objects::MappedRange;
use user_collector::process::process_directory;
use user_collector::space::{FileIdentity, MappedFile, Mapping};

use super::event::InputEvent;

/// Reads every process there is, each at the time at which it was read; where processes are
/// followed (`follows`) with its program and what it has mapped. One that exits meanwhile is left
/// out: the side-band has it.
pub fn processes(follows: bool) -> Vec<(Nanos, InputEvent)> {
    let entries = fs::read_dir("/proc").into_iter().flatten();
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let found = pids.filter_map(|pid: Pid| {
        let time = machine::now();
        let mut name = fs::read(format!("/proc/{pid}/comm")).ok()?;
        name.pop();
        let (executable, mappings) = if follows {
            (executable(pid), mappings(pid))
        } else {
            (None, Vec::new())
        };
        let found = InputEvent::Found {
            pid,
            name,
            executable,
            mappings,
        };
        Some((time, found))
    });
    found.collect()
}

/// Returns the path of the program that a process executes; None if it is gone, or the kernel's
/// own.
fn executable(pid: Pid) -> Option<Vec<u8>> {
    let path = fs::read_link(process_directory(Path::new("/proc"), pid).join("exe")).ok()?;
    let path = path.as_os_str().as_bytes();
    Some(path.strip_suffix(b" (deleted)").unwrap_or(path).to_vec())
}

/// Returns what a process has mapped for execution; nothing if it is gone, or the kernel's own.
pub fn mappings(pid: Pid) -> Vec<Mapping> {
    let process = Process::new_with_root(process_directory(Path::new("/proc"), pid));
    let maps = process.and_then(|process| process.maps());
    let executable = maps
        .into_iter()
        .flatten()
        .filter(|map| map.perms.contains(MMPermissions::EXECUTE));
    executable
        .map(|map| Mapping {
            start: map.address.0,
            end: map.address.1,
            offset: map.offset,
            file: mapped_file(&map),
        })
        .collect()
}

/// Returns all that a process has mapped, by address; nothing if it is gone, or the kernel's own.
pub fn ranges(pid: Pid) -> Vec<MappedRange> {
    let process = Process::new_with_root(process_directory(Path::new("/proc"), pid));
    let maps = process.and_then(|process| process.maps());
    let ranges = maps.into_iter().flatten().map(|map| MappedRange {
        start: map.address.0,
        end: map.address.1,
        executable: map.perms.contains(MMPermissions::EXECUTE),
        file: (map.inode != 0).then(|| (mapped_file(&map), map.offset)),
    });
    ranges.collect()
}

fn mapped_file(map: &MemoryMap) -> Arc<MappedFile> {
    Arc::new(MappedFile {
        path: path_of(&map.pathname),
        build_id: Box::default(),
        identity: FileIdentity {
            device: libc::makedev(map.dev.0.cast_unsigned(), map.dev.1.cast_unsigned()),
            inode: map.inode,
            generation: 0,
        },
    })
}

/// Returns a mapping's path as the side-band has it.
fn path_of(path: &MMapPath) -> Box<[u8]> {
    match path {
        MMapPath::Path(path) => path.as_os_str().as_bytes().into(),
        MMapPath::Vdso => b"[vdso]".as_slice().into(),
        MMapPath::Vsyscall => b"[vsyscall]".as_slice().into(),
        MMapPath::Heap => b"[heap]".as_slice().into(),
        _ => b"//anon".as_slice().into(),
    }
}
