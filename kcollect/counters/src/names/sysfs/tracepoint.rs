//! The numbers of the kernel's tracepoints, from tracefs.
//!
//! Where tracefs is mounted it is read there. Where it is not, and the privileges suffice, it is
//! read through a mount without a directory (`fsopen(2)`, `fsmount(2)`): no other process sees it,
//! and it disappears when its last file is closed.

use std::fs;
use std::io::ErrorKind;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::PathBuf;

use host::Root;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

use crate::names::error::CounterError;
use crate::names::nearest::nearest;
use crate::names::sysfs::pmu::is_file_name;

/// The usual mount points, the newer one first.
const MOUNT_POINTS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

/// The directory of all tracepoints.
#[derive(Debug)]
pub struct Tracepoints {
    events: PathBuf,
    /// The mount without a directory into which `events` is a path.
    _detached: Option<OwnedFd>,
}

impl Tracepoints {
    /// Opens the directory. `name` is the tracepoint's name for error messages.
    ///
    /// # Errors
    /// [`CounterError::NoTracefs`]: not mounted, or not readable.
    pub fn open(root: &Root, name: &str) -> Result<Tracepoints, CounterError> {
        let mut denied = false;
        for place in MOUNT_POINTS {
            let events = root.path(&format!("{place}/events"));
            match fs::read_dir(&events) {
                Ok(_) => {
                    return Ok(Tracepoints {
                        events,
                        _detached: None,
                    });
                }
                Err(error) => denied |= error.kind() == ErrorKind::PermissionDenied,
            }
        }
        let detached = if root.is_machine() {
            mount_detached().ok()
        } else {
            None
        };
        let Some(detached) = detached else {
            return Err(CounterError::NoTracefs {
                name: name.to_owned(),
                denied,
            });
        };
        Ok(Tracepoints {
            events: format!("/proc/self/fd/{}/events", detached.as_raw_fd()).into(),
            _detached: Some(detached),
        })
    }

    /// Returns the number of a tracepoint.
    ///
    /// # Errors
    /// [`CounterError::NoEvent`] with similar names, or [`CounterError::NoTracefs`] where it is not
    /// readable.
    pub fn id(&self, group: &str, event: &str) -> Result<u64, CounterError> {
        let name = format!("{group}:{event}");
        let file = self.events.join(group).join(event).join("id");
        let id = if is_file_name(group) && is_file_name(event) {
            fs::read_to_string(file)
        } else {
            Err(ErrorKind::NotFound.into())
        };
        if let Err(error) = &id
            && error.kind() == ErrorKind::PermissionDenied
        {
            return Err(CounterError::NoTracefs { name, denied: true });
        }
        let id = id.ok().and_then(|id| id.trim().parse().ok());
        id.ok_or_else(|| {
            let of_group = self.of_group(group);
            let nearest = if of_group.is_empty() {
                nearest(self.names(), &name)
            } else {
                nearest(of_group, &name)
            };
            CounterError::NoEvent { name, nearest }
        })
    }

    /// Returns all tracepoints, `group:event`, sorted.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        let groups = directories(self.events.clone());
        groups
            .iter()
            .flat_map(|group| self.of_group(group))
            .collect()
    }

    /// Returns the tracepoints of one group, sorted.
    fn of_group(&self, group: &str) -> Vec<String> {
        if !is_file_name(group) {
            return Vec::new();
        }
        let events = directories(self.events.join(group));
        events
            .into_iter()
            // `ftrace:function` and similar are records of a tracer, not events.
            .filter(|event| self.events.join(group).join(event).join("enable").exists())
            .map(|event| format!("{group}:{event}"))
            .collect()
    }
}

fn directories(of: PathBuf) -> Vec<String> {
    let entries = fs::read_dir(of).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort_unstable();
    names
}

/// Mounts tracefs without a mount point.
fn mount_detached() -> rustix::io::Result<OwnedFd> {
    let context = fsopen("tracefs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    fsmount(
        &context,
        FsMountFlags::FSMOUNT_CLOEXEC,
        MountAttrFlags::MOUNT_ATTR_RDONLY,
    )
}
