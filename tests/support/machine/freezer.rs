//! A control group that freezes its processes, as `docker pause` does. Version 2, which needs no
//! controller for it.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use experiment_format::ids::Pid;

use super::cgroup::{mount, write};

/// A group. It is removed when this value is dropped, unless there are processes in it.
#[derive(Debug)]
pub struct Freezer(PathBuf);

impl Freezer {
    /// Makes an empty group.
    ///
    /// # Errors
    /// When no groups of version 2 are mounted, or they are not ours to make.
    pub fn new() -> Result<Self> {
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        let root = mounted(&mounts).context("no control groups of version 2 are mounted")?;
        let group = root.join(format!("kcollect-freezer-{}", std::process::id()));
        fs::create_dir(&group).with_context(|| group.display().to_string())?;
        Ok(Self(group))
    }

    /// Moves a process into it.
    ///
    /// # Errors
    /// When it is not ours to move.
    pub fn take(&self, pid: Pid) -> Result<()> {
        write(&self.0.join("cgroup.procs"), &pid.to_string())
    }

    /// Freezes its processes, or lets them continue.
    ///
    /// # Errors
    /// When the kernel refuses it.
    pub fn freeze(&self, frozen: bool) -> Result<()> {
        write(
            &self.0.join("cgroup.freeze"),
            if frozen { "1" } else { "0" },
        )
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        // A process would stay frozen. What fails here leaves an empty group over, which costs
        // nothing.
        let _ = self.freeze(false);
        let _ = fs::remove_dir(&self.0);
    }
}

/// Returns where control groups of version 2 are mounted.
fn mounted(mounts: &str) -> Option<PathBuf> {
    let mut mounts = mounts.lines().filter_map(mount);
    let found = mounts.find(|(_, kind)| kind.first() == Some(&"cgroup2"));
    found.map(|(point, _)| point)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_version_2_are_found() {
        let mounts = "30 23 0:26 / /groups/freezer rw - cgroup cgroup rw,freezer\n\
                      31 23 0:27 / /groups/unified rw shared:9 - cgroup2 cgroup2 rw\n";
        assert_eq!(mounted(mounts), Some(PathBuf::from("/groups/unified")));
        assert_eq!(mounted("30 23 0:26 / / rw - ext4 /dev/vda rw\n"), None);
    }
}
