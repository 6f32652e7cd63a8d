//! A disk whose file system can be made to fail while it is used: ext4 on a loop device, on a file
//! in memory.

use std::fs::{self, File};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use tempfile::TempDir;

use crate::command::run;
use crate::machine::SmallDisk;

const LIMIT: Duration = Duration::from_secs(20);

/// The size of the file system, bytes: more than is written to it.
const DISK_BYTES: u64 = 96 << 20;

/// `EXT4_IOC_SHUTDOWN`, which XFS has brought up: `_IOR('X', 125, __u32)`.
const EXT4_IOC_SHUTDOWN: libc::c_ulong = 0x8004_587d;

/// A mounted disk.
#[derive(Debug)]
pub struct LoopDisk {
    directory: TempDir,
    device: PathBuf,
    /// The file of the loop device is in it, so it is unmounted last.
    _memory: SmallDisk,
}

impl LoopDisk {
    /// Makes and mounts a disk, which becomes read-only at the first error.
    ///
    /// # Errors
    /// When this machine has no loop devices, or no ext4.
    pub fn make() -> Result<Self> {
        let memory = SmallDisk::of(DISK_BYTES / 1024 + 1024)?;
        let image = memory.path().join("image");
        File::create(&image)?.set_len(DISK_BYTES)?;
        run(
            Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&image),
            LIMIT,
        )?
        .succeeded()?;
        let device = run(
            Command::new("losetup")
                .args(["--find", "--show"])
                .arg(&image),
            LIMIT,
        )?
        .succeeded()?;
        let disk = Self {
            directory: TempDir::new()?,
            device: PathBuf::from(device.stdout.trim()),
            _memory: memory,
        };
        disk.mount()?;
        Ok(disk)
    }

    fn mount(&self) -> Result<()> {
        mount(
            Some(&self.device),
            self.path(),
            Some("ext4"),
            MsFlags::empty(),
            Some("errors=remount-ro"),
        )
        .with_context(|| format!("cannot mount {}", self.device.display()))
    }

    /// Returns where it is mounted.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Makes it read-only by an error, also for files that are open. What was written is on disk.
    ///
    /// # Errors
    /// When the kernel offers no such thing.
    pub fn protect(&self) -> Result<()> {
        self.sync()?;
        let trigger = self.state()?.join("trigger_fs_error");
        fs::write(&trigger, "1").with_context(|| trigger.display().to_string())
    }

    /// Makes every access an I/O error from now on. What was written is on disk.
    ///
    /// # Errors
    /// When the kernel offers no such thing.
    pub fn fail(&self) -> Result<()> {
        let directory = File::open(self.path())?;
        let full_sync: u32 = 0;
        // SAFETY: it reads one number.
        let done = unsafe {
            libc::ioctl(
                directory.as_raw_fd(),
                EXT4_IOC_SHUTDOWN,
                &raw const full_sync,
            )
        };
        ensure!(done == 0, "it does not go down: {}", Errno::last());
        Ok(())
    }

    /// Mounts it again, as after a reboot. A program in mounts of its own that was started
    /// meanwhile has a copy of this mount: until it ends, the file system stays as it failed.
    ///
    /// # Errors
    /// When it stays in use, or cannot be mounted.
    pub fn again(&self) -> Result<()> {
        umount2(self.path(), MntFlags::empty())?;
        let state = self.state()?;
        let deadline = Instant::now() + LIMIT;
        while state.exists() {
            ensure!(
                Instant::now() < deadline,
                "{} is still mounted elsewhere",
                self.device.display()
            );
            sleep(Duration::from_millis(10));
        }
        self.mount()
    }

    /// Returns the kernel's directory of this file system, which is there while it is mounted.
    fn state(&self) -> Result<PathBuf> {
        let name = self.device.file_name().context("a device's name")?;
        Ok(Path::new("/sys/fs/ext4").join(name))
    }

    fn sync(&self) -> Result<()> {
        let directory = File::open(self.path())?;
        // SAFETY: a descriptor that is open.
        let done = unsafe { libc::syncfs(directory.as_raw_fd()) };
        ensure!(done == 0, "cannot sync: {}", Errno::last());
        Ok(())
    }
}

impl Drop for LoopDisk {
    fn drop(&mut self) {
        let _ = umount2(self.path(), MntFlags::empty());
        let _ = run(Command::new("losetup").arg("-d").arg(&self.device), LIMIT);
    }
}
