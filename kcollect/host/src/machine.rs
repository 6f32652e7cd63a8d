//! The running machine and this process: clock, CPUs, kernel, memory, limits.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::{SysconfVar, sysconf};
use object::NativeEndian;
use object::elf::{self, FileHeader64};
use object::read::elf::NoteIterator;
use types::Owner;
use types::units::Nanos;

/// CPU ids as the kernel lists them: `0-3,8`.
pub type CpuSet = BTreeSet<u32>;

/// Returns the time of CLOCK_MONOTONIC, the only clock of an experiment.
#[must_use]
pub fn now() -> Nanos {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC);
    now.map_or(Nanos::ZERO, |now| {
        Nanos(now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64)
    })
}

/// Returns the instant so long after another.
#[must_use]
pub fn after(from_ns: Nanos, span: Duration) -> Nanos {
    from_ns.saturating_add(span.into())
}

/// Returns whether the process has a controlling terminal.
#[must_use]
pub fn has_terminal() -> bool {
    File::open("/dev/tty").is_ok()
}

/// A list of CPUs of `/sys/devices/system/cpu`, which may be read again and again.
#[derive(Debug)]
pub struct CpuList {
    file: File,
    path: &'static str,
}

impl CpuList {
    /// Opens the list of the CPUs that are online.
    ///
    /// # Errors
    /// The errors of open(2).
    pub fn online() -> io::Result<CpuList> {
        CpuList::open("/sys/devices/system/cpu/online")
    }

    fn open(path: &'static str) -> io::Result<CpuList> {
        let file = File::open(path).map_err(|error| of_path(path, &error))?;
        Ok(CpuList { file, path })
    }

    /// Returns the CPUs that are in the list now.
    ///
    /// # Errors
    /// It cannot be read or is not a list.
    pub fn read(&self) -> io::Result<CpuSet> {
        // sysfs has no file longer than its smallest page.
        let mut text = [0; 4096];
        let read = self.file.read_at(&mut text, 0);
        let length = read.map_err(|error| of_path(self.path, &error))?;
        let text = String::from_utf8_lossy(&text[..length]);
        parse_cpu_list(&text).ok_or_else(|| {
            let message = format!("{}: not a list of CPUs: {text:?}", self.path);
            io::Error::new(io::ErrorKind::InvalidData, message)
        })
    }
}

fn of_path(path: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{path}: {error}"))
}

/// Returns the CPUs that are online.
///
/// # Errors
/// The errors of [`CpuList::online`] and [`CpuList::read`].
pub fn online_cpus() -> io::Result<CpuSet> {
    CpuList::online()?.read()
}

/// Returns the CPUs that the machine can ever have. Ids may have gaps.
///
/// # Errors
/// As [`online_cpus`].
pub fn possible_cpus() -> io::Result<CpuSet> {
    CpuList::open("/sys/devices/system/cpu/possible")?.read()
}

/// Returns for each online CPU for how long since boot a hypervisor ran something else while it had
/// work, in whole ticks of `/proc/stat`. Nothing where that cannot be read.
#[must_use]
pub fn stolen_ns() -> BTreeMap<u32, Nanos> {
    let hz = sysconf(SysconfVar::CLK_TCK).ok().flatten();
    let tick_ns = hz.map_or(Nanos::ZERO, |hz| Nanos::from_secs(1) / hz.max(1) as u64);
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    parse_stolen(&text)
        .map(|(cpu, ticks)| (cpu, tick_ns.saturating_mul(ticks)))
        .collect()
}

/// Returns the eighth number of each line `cpuN`, which proc_stat(5) calls steal.
fn parse_stolen(stat: &str) -> impl Iterator<Item = (u32, u64)> {
    stat.lines().filter_map(|line| {
        // The line of all CPUs has no number.
        let (cpu, times) = line.strip_prefix("cpu")?.split_once(' ')?;
        let steal = times.split_ascii_whitespace().nth(7)?;
        Some((cpu.parse().ok()?, steal.parse().ok()?))
    })
}

/// Returns the build id of the running kernel, hexadecimal, by which its debug files are found.
/// None if the kernel has none.
#[must_use]
pub fn kernel_build_id() -> Option<String> {
    let notes = fs::read("/sys/kernel/notes").ok()?;
    build_id_of(&notes)
}

/// Returns the build id among ELF notes, which are in this machine's byte order.
fn build_id_of(notes: &[u8]) -> Option<String> {
    let notes = NoteIterator::<FileHeader64<NativeEndian>>::new(NativeEndian, 4, notes).ok()?;
    let mut notes = notes.map_while(Result::ok);
    let note = notes.find(|note| {
        note.name() == elf::ELF_NOTE_GNU && note.n_type(NativeEndian) == elf::NT_GNU_BUILD_ID
    })?;
    Some(hex::encode(note.desc())).filter(|hex| !hex.is_empty())
}

/// Returns the CPUs of a list such as `0-3,8`. None if it is not a list.
#[must_use]
pub fn parse_cpu_list(text: &str) -> Option<CpuSet> {
    /// No kernel has more CPUs than this.
    const MAX_CPUS: u32 = 1 << 16;
    let mut cpus = CpuSet::new();
    for range in text.trim().split(',').filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        if first > last || last >= MAX_CPUS {
            return None;
        }
        cpus.extend(first..=last);
    }
    Some(cpus)
}

/// Returns the size of a page, in bytes.
#[must_use]
pub fn page_size() -> usize {
    procfs::page_size() as usize
}

/// Raises this process's limit of open files to its hard limit, since each load object keeps a file
/// open until it is archived. Returns the previous limits, soft and hard, if they changed.
pub fn raise_descriptors() -> Option<(u64, u64)> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).ok()?;
    let raised = soft < hard && setrlimit(Resource::RLIMIT_NOFILE, hard, hard).is_ok();
    raised.then_some((soft, hard))
}

/// Returns how many files may be open, and how many are, in addition to the standard three. Call it
/// before opening any for long.
#[must_use]
pub fn descriptors() -> (u64, u64) {
    const STANDARD: u64 = 3;
    let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(u64::MAX, |(soft, _)| soft);
    // A new descriptor has the smallest number that is free.
    let open = File::open("/").map_or(limit, |file| {
        u64::try_from(file.as_raw_fd()).unwrap_or(limit)
    });
    (limit, open.saturating_sub(STANDARD))
}

/// Configures the allocator to return large blocks of memory to the kernel as soon as they are
/// freed. An unwind table and the names of a large program take tens of megabytes while they are
/// made; by default the C library keeps blocks of that size for a next one, which rarely comes.
/// What the records of a round take, which come again and again, is kept.
pub fn give_memory_back() {
    #[cfg(target_env = "gnu")]
    for (parameter, bytes) in [
        (libc::M_MMAP_THRESHOLD, 1 << 20),
        (libc::M_TRIM_THRESHOLD, 2 << 20),
    ] {
        // SAFETY: sets a parameter of the allocator, by value. A refusal changes nothing.
        let _ = unsafe { libc::mallopt(parameter, bytes) };
    }
}

/// Configures the allocator to extend its memory by large steps. A report of a million packets
/// takes 180 MB in small blocks, for which it would make a thousand steps. What is not used of a
/// step takes no memory.
pub fn take_memory_in_large_steps() {
    #[cfg(target_env = "gnu")]
    {
        const STEP_BYTES: libc::c_int = 64 << 20;
        // SAFETY: sets a parameter of the allocator, by value. A refusal changes nothing.
        let _ = unsafe { libc::mallopt(libc::M_TOP_PAD, STEP_BYTES) };
    }
}

/// Returns the free memory between small blocks to the kernel. It takes about a millisecond.
pub fn give_rest_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes a number, and does not move memory that is in use.
    let _ = unsafe { libc::malloc_trim(0) };
}

/// Returns the number of a user: of a name in `/etc/passwd`, or itself. Other databases of users
/// would need the C library's modules, which a program without libraries does not have.
#[must_use]
pub fn uid_of(name: &str) -> Option<u32> {
    if let Ok(number) = name.parse() {
        return Some(number);
    }
    let users = fs::read_to_string("/etc/passwd").ok()?;
    users.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok())?
    })
}

/// Returns the user and group that called sudo, which own what is written. None without sudo.
#[must_use]
pub fn sudo_user() -> Option<Owner> {
    if !nix::unistd::geteuid().is_root() {
        return None;
    }
    let id = |name: &str| std::env::var(name).ok()?.parse().ok();
    Some(Owner {
        uid: id("SUDO_UID")?,
        gid: id("SUDO_GID")?,
    })
}

/// Returns the name of the file system that holds a directory, if it is a remote one.
#[must_use]
pub fn remote_file_system(directory: &Path) -> Option<&'static str> {
    // Magic numbers of statfs(2); not all have a name in the C library.
    const REMOTE: [(i64, &str); 5] = [
        (0x6969, "NFS"),
        (0xff53_4d42, "CIFS"),
        (0xfe53_4d42, "SMB"),
        (0x0102_1997, "9P"),
        (0x5346_414f, "AFS"),
    ];
    let found = nix::sys::statfs::statfs(directory)
        .ok()?
        .filesystem_type()
        .0;
    let matches = |(number, _): &&(i64, &str)| found & 0xffff_ffff == *number;
    REMOTE.iter().find(matches).map(|(_, name)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stolen_time_is_by_cpu() {
        let stat = "cpu  9 9 9 9 9 9 9 9 9 9\ncpu0 1 2 3 4 5 6 7 80 9 10\n\
                    cpu3 1 2 3 4 5 6 7 0 9 10\ncpu4 1 2\nintr 8 9 7 5 4 3 2 1\n";
        assert_eq!(parse_stolen(stat).collect::<Vec<_>>(), [(0, 80), (3, 0)]);
        let online = online_cpus().unwrap();
        assert!(stolen_ns().keys().eq(&online));
    }

    #[test]
    fn the_kernels_notes_have_its_build_id() {
        let note = |kind: u32, name: &[u8; 4], content: &[u8]| {
            let words = [4, content.len() as u32, kind];
            let head = words.iter().flat_map(|word| word.to_ne_bytes());
            head.chain(name.iter().chain(content).copied())
                .collect::<Vec<u8>>()
        };
        let others = note(6, b"Xen\0", &[1; 8]);
        let id = note(3, b"GNU\0", &[0x4a, 0x5a, 0x9b, 0x0a]);
        let all = [&*others, &id].concat();
        assert_eq!(build_id_of(&all).as_deref(), Some("4a5a9b0a"));
        assert_eq!(build_id_of(&others), None);
        assert_eq!(build_id_of(&all[..all.len() - 2]), None);
        assert_eq!(build_id_of(&[]), None);
    }

    #[test]
    fn cpu_lists_may_have_holes() {
        assert_eq!(
            parse_cpu_list("0-2,8,10-11\n"),
            Some([0, 1, 2, 8, 10, 11].into())
        );
        assert_eq!(parse_cpu_list("0\n"), Some([0].into()));
        assert_eq!(parse_cpu_list("\n"), Some(CpuSet::new()));
        assert_eq!(parse_cpu_list("0-x"), None);
        assert_eq!(parse_cpu_list("3-1"), None);
        assert_eq!(parse_cpu_list("0-4294967295"), None);
    }
}
