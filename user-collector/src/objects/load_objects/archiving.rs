//! Archiving of load objects.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use experiment_format::ids::Pid;
use kcollect_elf::ElfSource;

use super::super::ObjectId;
use super::{LoadObjects, UnwindTableCounts, too_many_open};
use crate::archive::{ArchiveRequest, ArchiveStats, Archiver, SourceCopies};
use crate::files::{Share, may_hold};
use crate::process::process_directory;
use crate::space::Mapping;

/// The archiver, and what is known of used objects.
#[derive(Debug)]
pub(super) struct Archive {
    archiver: Archiver,
    used_only: bool,
    /// Offsets in their files that stacks are at.
    used_offsets: HashMap<ObjectId, BTreeSet<u64>>,
}

impl LoadObjects {
    /// Reserves a name for something else that is archived, such as the kernel.
    pub fn reserve(&mut self, name: &str) {
        self.names.reserve(name);
    }

    /// Archives objects from now on: those that followed processes map, or with `used_only` those
    /// that their stacks are in.
    pub fn set_archiver(&mut self, archiver: Archiver, used_only: bool) {
        self.archive = Some(Archive {
            archiver,
            used_only,
            used_offsets: HashMap::new(),
        });
    }

    /// Begins another experiment. No object is followed or archived in it before
    /// [`LoadObjects::set_archiver`].
    pub fn on_rotation(&mut self) {
        self.archive = None;
        self.counts = UnwindTableCounts::default();
        for object in &mut self.objects {
            (object.followed, object.requested) = (false, false);
            (object.content, object.root) = (None, None);
        }
    }

    /// Returns whether the used objects have to be noted.
    #[must_use]
    pub fn needs_used(&self) -> bool {
        self.archive.as_ref().is_some_and(|archive| {
            archive.used_only || archive.archiver.sources() == SourceCopies::Used
        })
    }

    /// Returns the archiver, if there is one.
    pub fn archiver(&mut self) -> Option<&mut Archiver> {
        self.archive.as_mut().map(|archive| &mut archive.archiver)
    }

    /// Returns the results of archiving so far, if there is an archiver.
    #[must_use]
    pub fn archive_stats(&self) -> Option<&ArchiveStats> {
        self.archive
            .as_ref()
            .map(|archive| archive.archiver.stats())
    }

    /// Notes that a followed process maps an object. Returns the object and its name; `None` for
    /// memory without a file.
    pub fn followed(
        &mut self,
        pid: Pid,
        relatives: &[Pid],
        mapping: &Mapping,
    ) -> Option<(ObjectId, String)> {
        let id = self.object_of(pid, relatives, mapping);
        if self.archive.is_some() {
            self.open_again(id, pid, relatives, mapping);
        }
        let archive = self.archive.as_ref();
        let object = self.objects.get_mut(id.0 as usize)?;
        let name = object.name.clone()?;
        if let Some(archive) = archive
            && !object.followed
        {
            object.followed = true;
            if matches!(object.content, Some(ElfSource::File(_))) {
                object.root = root_of(pid).filter(|root| may_hold(root, Share::Half));
            }
            if !archive.used_only {
                self.archive(id);
            }
        }
        Some((id, name))
    }

    /// Notes that stacks of followed processes are in an object. May be called again.
    pub fn used(&mut self, id: ObjectId) {
        if self
            .archive
            .as_ref()
            .is_some_and(|archive| archive.used_only)
        {
            self.archive(id);
        }
    }

    /// Notes that a stack of a followed process is at this offset of the file.
    pub fn used_at(&mut self, id: ObjectId, offset: u64) {
        if let Some(archive) = &mut self.archive
            && archive.archiver.sources() == SourceCopies::Used
        {
            archive.used_offsets.entry(id).or_default().insert(offset);
        }
    }

    /// Archives the sources of all used lines. To be called at the end.
    pub fn archive_used_sources(&mut self) {
        let Some(archive) = &mut self.archive else {
            return;
        };
        for (id, offsets) in std::mem::take(&mut archive.used_offsets) {
            let object = self.objects.get(id.0 as usize);
            if let Some(name) = object.and_then(|object| object.name.as_deref()) {
                archive
                    .archiver
                    .request_lines(name, offsets.into_iter().collect());
            }
        }
    }

    fn archive(&mut self, id: ObjectId) {
        let (Some(archive), Some(object)) =
            (&mut self.archive, self.objects.get_mut(id.0 as usize))
        else {
            return;
        };
        let Some(name) = object.name.clone().filter(|_| !object.requested) else {
            return;
        };
        object.requested = true;
        match object.content.take() {
            Some(content) => {
                archive.archiver.request(ArchiveRequest {
                    name,
                    path: object.path.clone(),
                    content,
                    root: object.root.take(),
                });
            }
            None => {
                let refusal = object.refusal.clone().unwrap_or_else(too_many_open);
                archive.archiver.leave_out(&name, refusal);
            }
        }
    }
}

/// Returns the root directory of a process, if it is not the host's; `None` if the process has
/// exited.
fn root_of(pid: Pid) -> Option<OwnedFd> {
    let open = |path: &Path| {
        File::options()
            .read(true)
            .custom_flags(libc::O_PATH | libc::O_DIRECTORY)
            .open(path)
    };
    let identity = |file: &File| {
        let metadata = file.metadata().ok()?;
        Some((metadata.dev(), metadata.ino()))
    };
    let own = open(&process_directory(Path::new("/proc"), pid).join("root")).ok()?;
    let same = identity(&own) == identity(&open(Path::new("/")).ok()?);
    (!same).then(|| own.into())
}
