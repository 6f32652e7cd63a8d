//! The numbers of the kernel's tracepoints, from tracefs.
//!
//! Where tracefs is mounted it is read there. Where it is not, and we may, it is read through a
//! mount that belongs to no directory (`fsopen(2)`, `fsmount(2)`): nobody else sees it, and it is
//! gone when the last file of it is closed.

use std::fs;
use std::io::ErrorKind;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::PathBuf;

use host::Root;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

use crate::names::error::CounterError;
use crate::names::nearest::nearest;
use crate::names::sysfs::pmu::plain;

/// Where it is mounted by convention, the newer place first.
const PLACES: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

/// The directory of all tracepoints.
#[derive(Debug)]
pub struct Tracepoints {
    events: PathBuf,
    /// The mount that `events` is a path into.
    _detached: Option<OwnedFd>,
}

impl Tracepoints {
    /// Finds them. `name` is for the error alone.
    ///
    /// # Errors
    /// [`CounterError::NoTracefs`]: not mounted, or not for us to read.
    pub fn open(root: &Root, name: &str) -> Result<Tracepoints, CounterError> {
        let mut denied = false;
        for place in PLACES {
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
        let detached = match root.is_machine() {
            true => detached().ok(),
            false => None,
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

    /// The number of a tracepoint.
    ///
    /// # Errors
    /// [`CounterError::NoEvent`] with the names that are like it, or [`CounterError::NoTracefs`]
    /// where it is not for us.
    pub fn id(&self, group: &str, event: &str) -> Result<u64, CounterError> {
        let name = format!("{group}:{event}");
        let file = self.events.join(group).join(event).join("id");
        let id = match plain(group) && plain(event) {
            true => fs::read_to_string(file),
            false => Err(ErrorKind::NotFound.into()),
        };
        if let Err(error) = &id
            && error.kind() == ErrorKind::PermissionDenied
        {
            return Err(CounterError::NoTracefs { name, denied: true });
        }
        let id = id.ok().and_then(|id| id.trim().parse().ok());
        id.ok_or_else(|| {
            let of_group = self.of(group);
            let nearest = match of_group.is_empty() {
                true => nearest(self.names(), &name),
                false => nearest(of_group, &name),
            };
            CounterError::NoEvent { name, nearest }
        })
    }

    /// All of them, `group:event`, by name.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        let groups = directories(self.events.clone());
        groups.iter().flat_map(|group| self.of(group)).collect()
    }

    /// Those of one group.
    fn of(&self, group: &str) -> Vec<String> {
        if !plain(group) {
            return Vec::new();
        }
        let events = directories(self.events.join(group));
        events
            .into_iter()
            // ftrace:function and its like are records of a tracer, no events.
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

/// tracefs, mounted nowhere.
fn detached() -> rustix::io::Result<OwnedFd> {
    let context = fsopen("tracefs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    fsmount(
        &context,
        FsMountFlags::FSMOUNT_CLOEXEC,
        MountAttrFlags::MOUNT_ATTR_RDONLY,
    )
}
