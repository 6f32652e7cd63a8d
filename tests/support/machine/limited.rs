//! A control group in which memory or processes are short, for a program that is started in it.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::Command;
use std::thread::sleep;

use anyhow::{Context, Result};

use crate::command::POLL_INTERVAL;
use crate::machine::cgroup::{Hierarchy, has_word, hierarchy, write};

/// A group with one limit. It is removed when this value is dropped, by when what was started in it
/// has ended.
#[derive(Debug)]
pub struct Limited {
    group: PathBuf,
    /// The file that enabled the controller, where groups did not have it before.
    enabled: Option<(PathBuf, &'static str)>,
}

impl Limited {
    /// Makes a group with a limit on its memory, including the kernel's on its behalf.
    ///
    /// # Errors
    /// When the kernel has no such controller, or its groups are not ours to make.
    pub fn memory(bytes: u64) -> Result<Self> {
        Self::make("memory", ["memory.limit_in_bytes", "memory.max"], bytes)
    }

    /// Makes a group with a limit on its number of threads.
    ///
    /// # Errors
    /// As [`Limited::memory`].
    pub fn threads(count: u64) -> Result<Self> {
        Self::make("pids", ["pids.max"; 2], count)
    }

    fn make(controller: &'static str, files: [&str; 2], limit: u64) -> Result<Self> {
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        let hierarchy = hierarchy(&mounts, controller)?;
        let root = hierarchy.root();
        let mut enabled = None;
        let file = match hierarchy {
            Hierarchy::V1(_) => files[0],
            Hierarchy::V2(_) => {
                let control = root.join("cgroup.subtree_control");
                if !has_word(&control, controller) {
                    write(&control, &format!("+{controller}"))?;
                    enabled = Some((control, controller));
                }
                files[1]
            }
        };
        let group = root.join(format!("kcollect-{controller}-{}", std::process::id()));
        fs::create_dir(&group).with_context(|| group.display().to_string())?;
        // From here on it is removed whatever happens.
        let limited = Self { group, enabled };
        write(&limited.group.join(file), &limit.to_string())?;
        Ok(limited)
    }

    /// Returns the command of a program that enters the group before it begins.
    pub fn command<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Command {
        let mut command = Command::new("sh");
        command
            .args(["-c", "echo $$ >\"$0\" && exec \"$@\""])
            .arg(self.group.join("cgroup.procs"))
            .args(args);
        command
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        // The kernel counts an exited process a moment longer. If removal fails for good, an empty
        // group is left over, which costs nothing.
        for _ in 0..100 {
            match fs::remove_dir(&self.group) {
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => sleep(POLL_INTERVAL),
                _ => break,
            }
        }
        if let Some((control, controller)) = &self.enabled {
            let _ = write(control, &format!("-{controller}"));
        }
    }
}
