//! Control groups by their numbers.
//!
//! A process that lives for a tenth of a second is gone from `/proc` by the time that its records
//! are applied. The record of its exit has the number of its control group of version 2, which is
//! the inode of the group's directory. The kernel opens a directory by its inode, and has its path.
//!
//! Numbers are not used again, so what was found holds for good, also when the group is gone.
//! Groups of version 1 have no such number, and neither has a group that ended before it was looked
//! for: they stay unknown.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _};
use std::path::Path;
use std::sync::Arc;

use nix::errno::Errno;
use nix::libc;
use nix::sys::statfs::{CGROUP2_SUPER_MAGIC, statfs};
use rustc_hash::FxHashMap;

use super::Cgroup;

/// Where systems have the hierarchy of version 2: alone, or beside those of version 1.
const MOUNT_POINTS: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
/// Most groups that are kept.
const MAX_KNOWN: usize = 4096;
/// The kernel's `FILEID_KERNFS`: the handle is the number of an inode.
const KERNFS_HANDLE: i32 = 0xfe;

/// The control groups of version 2 that were looked for.
#[derive(Debug, Default)]
pub struct CgroupNames {
    root: Option<(File, &'static str)>,
    known: FxHashMap<u64, Option<Arc<Cgroup>>>,
}

/// The kernel's `struct file_handle`, of an inode.
#[repr(C)]
struct InodeHandle {
    bytes: u32,
    kind: i32,
    inode: u64,
}

impl CgroupNames {
    /// Returns the groups of this machine, none of which is known yet.
    #[must_use]
    pub fn new() -> CgroupNames {
        let root = MOUNT_POINTS.into_iter().find_map(|path| {
            let system = statfs(path).ok()?.filesystem_type();
            let root = (system == CGROUP2_SUPER_MAGIC).then(|| File::open(path).ok());
            Some((root??, path))
        });
        CgroupNames {
            root,
            known: FxHashMap::default(),
        }
    }

    /// Returns the group of a number. None if it is not known, or is the root of all groups, which
    /// is no information.
    pub fn get(&mut self, number: u64) -> Option<Arc<Cgroup>> {
        if let Some(known) = self.known.get(&number) {
            return known.clone();
        }
        let found = self.look_up(number).map(Arc::new);
        if self.known.len() >= MAX_KNOWN {
            self.known.clear();
        }
        self.known.insert(number, found.clone());
        found
    }

    fn look_up(&self, number: u64) -> Option<Cgroup> {
        let (root, mounted_at) = self.root.as_ref()?;
        let group = open_inode(root, number).ok()?;
        let path = fs::read_link(format!("/proc/self/fd/{}", group.as_raw_fd())).ok()?;
        let path = path.strip_prefix(mounted_at).ok()?;
        // As `/proc/PID/cgroup` has it.
        let line = Path::new("0::").join(path);
        (path != Path::new("")).then(|| Cgroup::of(line.as_os_str().as_encoded_bytes()))?
    }
}

/// Opens the directory of an inode, in the file system that `root` is in.
fn open_inode(root: &File, inode: u64) -> io::Result<File> {
    let mut handle = InodeHandle {
        bytes: size_of::<u64>() as u32,
        kind: KERNFS_HANDLE,
        inode,
    };
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
    // SAFETY: the kernel reads the handle, whose size is in it.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_open_by_handle_at,
            root.as_raw_fd(),
            &raw mut handle,
            flags,
        )
    };
    let fd = Errno::result(fd)? as i32;
    // SAFETY: the kernel has just opened it for this.
    Ok(unsafe { File::from_raw_fd(fd) })
}
