//! The load objects: the files that processes execute, each once, however many processes map it.
//!
//! A file is opened when it is first needed, while a process that maps it still exists. If it is to
//! be archived it stays open until then, since it may be deleted, or its container removed. Its
//! unwind table is built in the background. So is its copy in the archive, as soon as a followed
//! process maps it.
//!
//! The kernel identifies a file by its build id, or by its inode if it can't read the build id. A
//! snapshot of `/proc` identifies it by its inode. So a file may have several identities, which
//! turn out to be the same when it is opened.

mod archiving;
mod opening;

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bpf_abi::{CodeFile, EncodedRule};
use experiment_format::ids::{Pid, Tid};
use experiment_format::units::Nanos;
use kcollect_elf::ElfSource;

use super::{Backing, BuiltTable, ObjectId, ObjectNames, TableBuilder, TableCache, UnwindInfo};
use crate::archive::{Refusal, RefusalCause};
use crate::files::TimedOpener;
use crate::objects;
use crate::space::{FileIdentity, MappedFile, Mapping};
use crate::unwind::{UnwindRow, UnwindRule};
use archiving::Archive;

/// The name of the vDSO, the kernel's code for user mode.
pub const VDSO: &str = "[vdso]";

/// Why an object is not archived, or has no table, if descriptors are short.
fn too_many_open() -> Refusal {
    Refusal::new(RefusalCause::OpenFiles, "too many files are open")
}

/// A load object.
#[derive(Debug)]
pub struct LoadObject {
    /// Its name in the experiment; `None` for memory without a file.
    pub name: Option<String>,
    /// The kind of what is mapped.
    pub backing: Backing,
    /// What is to be archived, until it is sent to the archiver.
    content: Option<ElfSource>,
    /// The root directory of a process that maps it, if it is not the host's.
    root: Option<OwnedFd>,
    /// Its path in the processes that map it.
    path: PathBuf,
    /// Whether a followed process maps it.
    followed: bool,
    /// Whether it was sent to the archiver.
    requested: bool,
    /// The file as the kernel identifies it, unless the file system reports something else to user
    /// space: overlay and btrfs do.
    pub file: Option<CodeFile>,
    /// Its unwind table.
    pub table: UnwindTableState,
    /// Why it has no table, if it could have one.
    pub refusal: Option<Refusal>,
}

impl LoadObject {
    fn new(name: Option<String>, backing: Backing, mapping: &Mapping) -> LoadObject {
        let path = OsStr::from_bytes(objects::without_mark(&mapping.file.path));
        LoadObject {
            name,
            backing,
            path: path.into(),
            content: None,
            root: None,
            followed: false,
            requested: false,
            file: (backing == Backing::Vdso).then_some(CodeFile::VDSO),
            table: UnwindTableState::None,
            refusal: None,
        }
    }
}

/// The state of a load object's unwind table.
#[derive(Clone, Debug)]
pub enum UnwindTableState {
    /// No table: frames are unwound by the frame pointer.
    None,
    /// A table that is being built.
    Pending,
    /// A table.
    Ready(Arc<UnwindInfo>),
}

/// Counts of unwind tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct UnwindTableCounts {
    /// Tables that were built.
    pub built: u64,
    /// Tables from the cache on disk.
    pub cached: u64,
    /// Files that could not be opened, or whose tables could not be built.
    pub failed: u64,
    /// Bytes of machine code that the tables cover.
    pub text_bytes: u64,
    /// Bytes of the tables.
    pub table_bytes: u64,
    /// Time in which they were built, nanoseconds.
    pub took_ns: Nanos,
}

/// All load objects of a run.
#[derive(Debug)]
pub struct LoadObjects {
    builder: TableBuilder,
    names: ObjectNames,
    objects: Vec<LoadObject>,
    described: HashMap<MappedFile, ObjectId>,
    opened: HashMap<CodeFile, ObjectId>,
    rules: Vec<EncodedRule>,
    vdso: Option<ObjectId>,
    /// Files without the header of ELF: code in them was made by their processes.
    made_code: HashSet<FileIdentity>,
    archive: Option<Archive>,
    opener: TimedOpener,
    /// Counts of all unwind tables.
    pub counts: UnwindTableCounts,
}

impl LoadObjects {
    /// Returns an empty registry, and starts the thread that builds tables.
    ///
    /// # Errors
    /// The thread can't be started.
    pub fn new(cache: Option<TableCache>) -> io::Result<LoadObjects> {
        Ok(LoadObjects {
            builder: TableBuilder::start(cache)?,
            names: ObjectNames::new(),
            objects: Vec::new(),
            described: HashMap::new(),
            opened: HashMap::new(),
            rules: Vec::new(),
            vdso: None,
            made_code: HashSet::new(),
            archive: None,
            opener: TimedOpener::default(),
            counts: UnwindTableCounts::default(),
        })
    }

    /// Returns the object of a mapping. A new one is opened through `pid`, which maps it, or else
    /// through `relatives`, which are likely to have the same files.
    pub fn object_of(&mut self, pid: Pid, relatives: &[Pid], mapping: &Mapping) -> ObjectId {
        if let Some(known) = self.described.get(&*mapping.file) {
            return *known;
        }
        let id = self.open_new(pid, relatives, mapping);
        self.described.insert(MappedFile::clone(&mapping.file), id);
        id
    }

    /// Returns whether a file is known to hold no ELF image, so that code in it was made by a
    /// process that maps it.
    #[must_use]
    pub fn is_made_code(&self, file: &MappedFile) -> bool {
        // The kernel reports no inode of a file with a build id.
        file.identity.inode != 0 && self.made_code.contains(&file.identity)
    }

    fn note_kind(&mut self, file: &MappedFile, is_elf: bool) {
        if file.identity.inode == 0 {
            return;
        }
        if is_elf {
            // The inode was another file's.
            self.made_code.remove(&file.identity);
        } else {
            self.made_code.insert(file.identity);
        }
    }

    /// Returns whether a mapped object is the file that the kernel found there.
    ///
    /// On some file systems user space gets another device and generation (overlay, btrfs), or more
    /// bits of the inode (overlay). Then the time of the last change has to be the same, or the
    /// kernel must have read the build id. If an overlay has copied the file, user space gets the
    /// inode of the file below: then the kernel must have read the build id, and the time must be
    /// the same.
    #[must_use]
    pub fn is_file(&self, id: ObjectId, mapping: &Mapping, file: CodeFile) -> bool {
        let inode = file.inode as u32;
        match self.get(id).and_then(|object| object.file) {
            Some(known) if known == file => true,
            Some(known) => {
                let unchanged = known.modified_ns == file.modified_ns;
                let has_build_id = !mapping.file.build_id.is_empty();
                if known.inode as u32 == inode {
                    unchanged || has_build_id
                } else {
                    unchanged && has_build_id && known.device != file.device
                }
            }
            // The file could not be opened.
            None => inode != 0 && mapping.file.identity.inode as u32 == inode,
        }
    }

    /// Returns an object.
    #[must_use]
    pub fn get(&self, id: ObjectId) -> Option<&LoadObject> {
        self.objects.get(id.0 as usize)
    }

    /// Returns all objects.
    pub fn iter(&self) -> impl Iterator<Item = (ObjectId, &LoadObject)> {
        (0..).map(ObjectId).zip(&self.objects)
    }

    /// Drops the rows of an object's table, which the BPF programs have by now. Until
    /// [`LoadObjects::restore_rows`] the table has none.
    pub fn release_rows(&mut self, id: ObjectId) {
        if let Some(info) = self.info(id) {
            info.table.release_rows();
        }
    }

    /// Restores the rows of an object's table.
    pub fn restore_rows(&mut self, id: ObjectId, rows: Vec<UnwindRow>) {
        if let Some(info) = self.info(id) {
            info.table.restore_rows(rows);
        }
    }

    fn info(&mut self, id: ObjectId) -> Option<&mut UnwindInfo> {
        match &mut self.objects.get_mut(id.0 as usize)?.table {
            UnwindTableState::Ready(info) => Some(Arc::make_mut(info)),
            UnwindTableState::None | UnwindTableState::Pending => None,
        }
    }

    /// Returns the rule of a number, encoded.
    #[must_use]
    pub fn rule(&self, number: u16) -> Option<EncodedRule> {
        self.rules.get(usize::from(number)).copied()
    }

    /// Returns all rules from a number on, encoded.
    #[must_use]
    pub fn rules_from(&self, number: usize) -> &[EncodedRule] {
        self.rules.get(number..).unwrap_or_default()
    }

    /// Returns the thread that builds tables.
    #[must_use]
    pub fn table_builder_thread(&self) -> Tid {
        self.builder.thread()
    }

    /// Returns the number of tables that are being built.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.builder.waiting()
    }

    /// Takes the tables that are ready. Returns the objects that they belong to.
    pub fn take(&mut self) -> Vec<ObjectId> {
        let built = self.builder.take();
        self.apply(built)
    }

    /// Waits until a table is ready, for `at_most`, and takes those that are ready, as
    /// [`LoadObjects::take`] does.
    pub fn wait(&mut self, at_most: Duration) -> Vec<ObjectId> {
        let built = self.builder.wait(at_most);
        self.apply(built)
    }

    fn apply(&mut self, built: Vec<BuiltTable>) -> Vec<ObjectId> {
        let mut changed = Vec::new();
        for built in built {
            self.rules
                .extend(built.new_rules.iter().map(UnwindRule::encode));
            let Some(object) = self.objects.get_mut(built.id.0 as usize) else {
                continue;
            };
            self.counts.took_ns += Nanos::from(built.took);
            match built.info {
                Ok(info) => {
                    let counts = &mut self.counts;
                    counts.built += u64::from(!info.from_cache);
                    counts.cached += u64::from(info.from_cache);
                    counts.text_bytes += info.summary.text;
                    counts.table_bytes += info.table.bytes() as u64;
                    object.table = if info.table.rows().is_empty() {
                        UnwindTableState::None
                    } else {
                        UnwindTableState::Ready(Arc::new(info))
                    };
                }
                Err(error) => {
                    self.counts.failed += 1;
                    object.table = UnwindTableState::None;
                    object.refusal = Some(error.to_string().into());
                }
            }
            changed.push(built.id);
        }
        changed
    }

    fn keep(&mut self, id: ObjectId, content: Option<ElfSource>) {
        if let Some(object) = self.objects.get_mut(id.0 as usize) {
            object.content = content;
        }
    }

    fn refuse(&mut self, id: ObjectId, refusal: Refusal) {
        if let Some(object) = self.objects.get_mut(id.0 as usize) {
            object.refusal = Some(refusal);
        }
    }

    fn request_table(&mut self, id: ObjectId, source: ElfSource) {
        if let Some(object) = self.objects.get_mut(id.0 as usize) {
            object.table = UnwindTableState::Pending;
            self.builder.request(id, source);
        }
    }

    fn add(&mut self, object: LoadObject) -> ObjectId {
        let id = ObjectId(self.objects.len() as u32);
        self.objects.push(object);
        id
    }
}

#[cfg(test)]
mod tests;
