//! The machine of a check: locks of the machine, a CPU that is taken offline, a small disk, a
//! setting of the kernel.
//!
//! Each change is undone when its value is dropped, also when the check fails.

pub mod cgroup;
pub mod cold_file;
pub mod day_clock;
pub mod disturbance;
pub mod freezer;
pub mod limited;
pub mod loaded;
pub mod loop_disk;
pub mod tracefs;
pub mod used;

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, anyhow, ensure};
use experiment_format::ids::Pid;
use host::machine::parse_cpu_list;
use nix::fcntl::{Flock, FlockArg};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::unistd::geteuid;
use tempfile::TempDir;

/// The stolen time when the current check took the machine, nanoseconds.
static STOLEN_BEFORE: AtomicU64 = AtomicU64::new(0);

/// The machine for one check alone, as root: for a check that judges times, or changes what all
/// programs share (a setting of the kernel, a CPU, the BPF objects that are loaded).
#[derive(Debug)]
pub struct Exclusive {
    _lock: Lock,
}

impl Exclusive {
    /// Waits for the machine.
    ///
    /// # Errors
    /// When not root, when the check has taken the machine already, or when its name does not begin
    /// with `root_alone_`: it would run alongside those that share the machine, and make them wait.
    pub fn take() -> Result<Self> {
        let thread = std::thread::current();
        let name = thread.name().unwrap_or_default();
        let name = name.rsplit("::").next().unwrap_or_default();
        ensure!(
            name.starts_with("root_alone_") || !name.starts_with("root_"),
            "{name} takes the machine for itself: call it root_alone_…"
        );
        let lock = lock_machine(FlockArg::LockExclusive)?;
        STOLEN_BEFORE.store(stolen_everywhere()? as u64, Ordering::Relaxed);
        Ok(Self { _lock: lock })
    }
}

/// Takes the machine for a check, and runs it once, since its bounds hold on a disturbed machine
/// too.
///
/// # Errors
/// When the check fails.
pub fn alone(check: impl FnOnce() -> Result<()>) -> Result<()> {
    let _machine = Exclusive::take()?;
    check()
}

/// The machine for a check that runs alongside others of its kind, as root: it judges what is
/// recorded, printed and left over, and no times.
#[derive(Debug)]
pub struct Shared {
    _lock: Lock,
}

impl Shared {
    /// Waits until no check has the machine for itself.
    ///
    /// # Errors
    /// As [`Exclusive::take`].
    pub fn take() -> Result<Self> {
        let lock = lock_machine(FlockArg::LockShared)?;
        Ok(Self { _lock: lock })
    }
}

thread_local! {
    /// How many locks of the machine the thread holds: one, or none.
    static LOCKS: Cell<usize> = const { Cell::new(0) };
}

/// A lock of the machine.
#[derive(Debug)]
struct Lock {
    _file: Flock<File>,
    since: Instant,
}

impl Drop for Lock {
    fn drop(&mut self) {
        LOCKS.set(LOCKS.get() - 1);
        disturbance::took(self.since.elapsed());
    }
}

/// Passes if the check of the calling thread has taken the machine, for itself or alongside others.
///
/// # Errors
/// When it has not: checks run side by side, and this one would disturb those that judge times.
pub fn taken() -> Result<()> {
    ensure!(
        LOCKS.get() > 0,
        "this check records without having taken the machine: Shared::take or Exclusive::take"
    );
    Ok(())
}

/// Locks the machine. A queue keeps the order of the requests, so that checks which share the
/// machine do not keep out for good a check that wants it for itself.
fn lock_machine(kind: FlockArg) -> Result<Lock> {
    ensure!(
        geteuid().is_root(),
        "this check profiles the whole machine and needs root: run `make test`"
    );
    ensure!(LOCKS.get() == 0, "this check has taken the machine already");
    let _queue = lock("kcollect-checks.queue", FlockArg::LockExclusive)?;
    let file = lock("kcollect-checks.lock", kind)?;
    LOCKS.set(LOCKS.get() + 1);
    Ok(Lock {
        _file: file,
        since: Instant::now(),
    })
}

/// Locks a file. It blocks and does not poll, so that a running check is not disturbed. Each
/// program of a check has a time limit, so the wait ends.
fn lock(name: &str, kind: FlockArg) -> Result<Flock<File>> {
    let path = std::env::temp_dir().join(name);
    let file = File::create(&path).with_context(|| path.display().to_string())?;
    Flock::lock(file, kind)
        .map_err(|(_, error)| error)
        .with_context(|| path.display().to_string())
}

/// Returns the CPUs that are online.
///
/// # Errors
/// When the kernel does not say.
pub fn online_cpus() -> Result<BTreeSet<usize>> {
    let text = fs::read_to_string("/sys/devices/system/cpu/online")?;
    let cpus = parse_cpu_list(&text).with_context(|| format!("no list of CPUs: {text:?}"))?;
    Ok(cpus.into_iter().map(|cpu| cpu as usize).collect())
}

/// Returns whether the kernel has btrfs; says so if it has not.
///
/// # Errors
/// When the kernel's list of file systems cannot be read.
pub fn has_btrfs() -> Result<bool> {
    let known = fs::read_to_string("/proc/filesystems")?;
    let has = known.contains("\tbtrfs\n");
    if !has {
        println!("skipped: the kernel has no btrfs");
    }
    Ok(has)
}

/// Returns the CPU that loads are pinned to: the last one, since most interrupts go to the first.
///
/// # Errors
/// When the kernel does not say which CPUs there are.
pub fn work_cpu() -> Result<usize> {
    online_cpus()?
        .last()
        .copied()
        .ok_or_else(|| anyhow!("no CPU is online"))
}

/// Passes if there are several CPUs.
///
/// # Errors
/// When there is but one.
pub fn several_cpus() -> Result<()> {
    let cpus = online_cpus()?;
    ensure!(cpus.len() > 1, "the only CPU is {cpus:?}");
    Ok(())
}

/// Returns the processes that exist now, including kernel threads, but without zombies: they do
/// nothing.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn processes() -> Result<BTreeSet<Pid>> {
    let mut pids = BTreeSet::new();
    for entry in fs::read_dir("/proc")? {
        let entry = entry?;
        let pid = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok());
        // It may be gone by now.
        let stat = pid.and_then(|_| fs::read_to_string(entry.path().join("stat")).ok());
        let has_ended = |stat: &String| {
            stat.rsplit(") ")
                .next()
                .is_some_and(|it| it.starts_with('Z'))
        };
        if stat.is_some_and(|stat| !has_ended(&stat)) {
            pids.extend(pid.map(Pid));
        }
    }
    Ok(pids)
}

/// The unit of `/proc/stat`, nanoseconds (`USER_HZ`).
const JIFFY_NS: f64 = 1e7;

/// Returns the stolen time of all CPUs since boot, nanoseconds, in whole hundredths of a second.
/// What ran then has ticks for it and, on kernels that account for it, no CPU time.
///
/// # Errors
/// When `/proc/stat` cannot be read.
pub fn stolen_everywhere() -> Result<f64> {
    const STEAL: usize = 8;
    Ok(cpu_times_ns()?.get(STEAL).copied().unwrap_or(0.0))
}

/// Returns the time that all CPUs were busy, for programs and interrupts, since boot, nanoseconds.
///
/// # Errors
/// When `/proc/stat` cannot be read.
pub fn busy_everywhere() -> Result<f64> {
    // User, nice, system; irq, softirq: proc_stat(5). Idle and I/O wait are between them.
    const BUSY: [usize; 5] = [1, 2, 3, 6, 7];
    let times = cpu_times_ns()?;
    Ok(BUSY.iter().filter_map(|at| times.get(*at)).sum())
}

/// Returns the line of all CPUs in `/proc/stat`, nanoseconds. The first value is 0, in the position
/// of the line's name.
fn cpu_times_ns() -> Result<Vec<f64>> {
    let stat = fs::read_to_string("/proc/stat")?;
    let line = stat.lines().next().unwrap_or_default();
    let times = line.split_ascii_whitespace();
    Ok(times
        .map(|word| word.parse::<f64>().unwrap_or(0.0) * JIFFY_NS)
        .collect())
}

/// Returns the most that has been stolen since [`stolen_everywhere`] returned `before_ns`,
/// nanoseconds: the sum is in whole units.
///
/// # Errors
/// As [`stolen_everywhere`].
pub fn stolen_since(before_ns: f64) -> Result<f64> {
    let now_ns = stolen_everywhere()?;
    Ok(if now_ns > 0.0 {
        now_ns - before_ns + JIFFY_NS
    } else {
        0.0
    })
}

/// Returns the most that has been stolen since the current check took the machine ([`Exclusive`]),
/// nanoseconds. A comparison of ticks with CPU time may be off by so much: ticks pass in it that
/// are no CPU time, and when the CPU is back, interrupts that are due come first.
///
/// # Errors
/// As [`stolen_everywhere`].
pub fn stolen_meanwhile() -> Result<f64> {
    stolen_since(STOLEN_BEFORE.load(Ordering::Relaxed) as f64)
}

/// A CPU that is taken offline.
#[derive(Debug)]
pub struct Offline {
    switch: PathBuf,
}

impl Offline {
    /// Returns whether this CPU can be taken offline.
    pub fn possible(cpu: usize) -> bool {
        fs::OpenOptions::new()
            .write(true)
            .open(Self::switch(cpu))
            .is_ok()
    }

    fn switch(cpu: usize) -> PathBuf {
        PathBuf::from(format!("/sys/devices/system/cpu/cpu{cpu}/online"))
    }

    /// Takes a CPU offline.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn take(cpu: usize) -> Result<Self> {
        let switch = Self::switch(cpu);
        fs::write(&switch, "0").with_context(|| switch.display().to_string())?;
        Ok(Self { switch })
    }

    /// Takes the CPU online again.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn back(&self) -> Result<()> {
        fs::write(&self.switch, "1").with_context(|| self.switch.display().to_string())
    }
}

impl Drop for Offline {
    fn drop(&mut self) {
        // Writing 1 to a CPU that is online already is harmless.
        let _ = self.back();
    }
}

/// A small file system in memory, mounted in a directory of its own.
#[derive(Debug)]
pub struct SmallDisk {
    directory: TempDir,
}

impl SmallDisk {
    /// Mounts a file system of this size in KiB.
    ///
    /// # Errors
    /// When it cannot be mounted.
    pub fn of(kib: u64) -> Result<Self> {
        let directory = TempDir::new()?;
        let options = format!("size={kib}k,mode=755");
        mount(
            Some("tmpfs"),
            directory.path(),
            Some("tmpfs"),
            MsFlags::empty(),
            Some(options.as_str()),
        )
        .context("cannot mount a tmpfs")?;
        Ok(Self { directory })
    }

    /// Returns where it is mounted.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Fills the rest of it with a file `ballast`.
    ///
    /// # Errors
    /// Writing fails for a reason other than a full disk.
    pub fn fill(&self) -> Result<()> {
        let ballast = self.path().join("ballast");
        let mut ballast = File::options().create(true).append(true).open(ballast)?;
        let page = [0x55; 4096];
        loop {
            match std::io::Write::write_all(&mut ballast, &page) {
                Ok(()) => {}
                Err(error) if error.kind() == std::io::ErrorKind::StorageFull => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Makes it read-only.
    ///
    /// # Errors
    /// When it cannot be remounted.
    pub fn protect(&self) -> Result<()> {
        let flags = MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
        mount(None::<&str>, self.path(), None::<&str>, flags, None::<&str>)
            .context("cannot remount read-only")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = umount2(self.directory.path(), MntFlags::MNT_DETACH);
    }
}

/// A changed setting of the kernel. It is restored when this value is dropped.
#[derive(Debug)]
pub struct Setting {
    path: &'static Path,
    previous: String,
}

impl Setting {
    /// Changes a setting.
    ///
    /// # Errors
    /// When it is not there or may not be changed.
    pub fn set(path: &'static str, value: &str) -> Result<Self> {
        let previous = fs::read_to_string(path).context(path)?;
        fs::write(path, value).context(path)?;
        Ok(Self {
            path: Path::new(path),
            previous,
        })
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        let _ = fs::write(self.path, &self.previous);
    }
}

/// Passes if programs may use io_uring. It is compiled out of some kernels and forbidden on others.
///
/// # Errors
/// When they may not; the message says what `kernel.io_uring_disabled` is, where the kernel has it.
pub fn io_uring() -> Result<()> {
    let setting = || {
        let path = "/proc/sys/kernel/io_uring_disabled";
        let text = fs::read_to_string(path).unwrap_or_else(|error| error.to_string());
        format!("{path}: {}", text.trim())
    };
    io_uring::IoUring::new(1).with_context(setting)?;
    Ok(())
}
