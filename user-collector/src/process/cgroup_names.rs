//! Control groups by their numbers.
//!
//! A process that lives for a tenth of a second is gone from `/proc` by the time that its records
//! are applied. The record of its exit has the inode of its control group's directory. The kernel
//! opens a directory by its inode, and has its path.
//!
//! A path that was found stays valid, also when the group is gone. A group that ended before it was
//! looked up stays unknown, and so does a group of a hierarchy that is mounted at an unusual place.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _};
use std::path::Path;
use std::sync::Arc;

use bpf_abi::CgroupNumber;
use nix::errno::Errno;
use nix::libc;
use nix::sys::statfs::{CGROUP_SUPER_MAGIC, CGROUP2_SUPER_MAGIC, FsType, statfs};
use rustc_hash::FxHashMap;

use super::Cgroup;

/// Where systems mount the version 2 hierarchy: alone, or alongside version 1's hierarchies.
const VERSION_2: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
/// Max groups that are kept.
const MAX_KNOWN: usize = 4096;
/// The kernel's `FILEID_KERNFS`: the handle is the number of an inode.
const KERNFS_HANDLE: i32 = 0xfe;

/// The control groups that were looked for.
#[derive(Debug, Default)]
pub struct CgroupNames {
    hierarchies: FxHashMap<u32, Option<Hierarchy>>,
    known: FxHashMap<CgroupNumber, Option<Arc<Cgroup>>>,
}

/// A mounted hierarchy of control groups.
#[derive(Debug)]
struct Hierarchy {
    root: File,
    mounted_at: String,
    /// How a line of `/proc/PID/cgroup` about it begins.
    prefix: String,
}

/// The kernel's `struct file_handle`, of an inode.
#[repr(C)]
struct InodeHandle {
    bytes: u32,
    kind: i32,
    inode: u64,
}

impl CgroupNames {
    /// The group with a number. None if it is not known, or is the root of all groups, which says
    /// nothing.
    pub fn get(&mut self, number: CgroupNumber) -> Option<Arc<Cgroup>> {
        if let Some(known) = self.known.get(&number) {
            return known.clone();
        }
        let hierarchy = self.hierarchies.entry(number.hierarchy);
        let hierarchy = hierarchy.or_insert_with(|| Hierarchy::open(number.hierarchy));
        let found = hierarchy.as_ref().and_then(|it| it.group(number.inode));
        let found = found.map(Arc::new);
        if self.known.len() >= MAX_KNOWN {
            self.known.clear();
        }
        self.known.insert(number, found.clone());
        found
    }
}

impl Hierarchy {
    fn open(number: u32) -> Option<Hierarchy> {
        let mounted = |path: &str, kind: FsType| {
            let system = statfs(path).ok()?.filesystem_type();
            (system == kind).then(|| File::open(path).ok())?
        };
        let lines = fs::read_to_string("/proc/self/cgroup").ok()?;
        let prefix = format!("{number}:");
        let line = lines.lines().find_map(|line| line.strip_prefix(&prefix));
        let (controllers, _) = line?.split_once(':')?;
        let (root, mounted_at) = match number {
            0 => VERSION_2.into_iter().find_map(|path| {
                let root = mounted(path, CGROUP2_SUPER_MAGIC)?;
                Some((root, path.to_owned()))
            }),
            _ => {
                let path = format!("/sys/fs/cgroup/{controllers}");
                mounted(&path, CGROUP_SUPER_MAGIC).map(|root| (root, path))
            }
        }?;
        Some(Hierarchy {
            root,
            mounted_at,
            prefix: format!("{prefix}{controllers}:/"),
        })
    }

    fn group(&self, inode: u64) -> Option<Cgroup> {
        let group = open_inode(&self.root, inode).ok()?;
        let path = fs::read_link(format!("/proc/self/fd/{}", group.as_raw_fd())).ok()?;
        let path = path.strip_prefix(&self.mounted_at).ok()?;
        if path == Path::new("") {
            return None;
        }
        let prefix = self.prefix.as_bytes();
        Cgroup::of(&[prefix, path.as_os_str().as_encoded_bytes()].concat())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_groups_are_unknown() {
        let mut names = CgroupNames::default();
        for (hierarchy, inode) in [(0, 0), (0, u64::MAX), (u32::MAX, 1)] {
            let number = CgroupNumber { hierarchy, inode };
            assert_eq!((names.get(number), names.get(number)), (None, None));
        }
    }
}
