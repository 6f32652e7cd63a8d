//! The load objects: the files that processes execute, each once, by however many processes it is
//! mapped.
//!
//! A file is opened when it is first needed, while a process that maps it still lives. Where it may
//! be archived it stays open until it is: by then it may be deleted, or its container gone. Its
//! unwind table is made in the background, and so is its copy in the archive, as soon as a followed
//! process maps it.
//!
//! The kernel describes a file by its build id, or by its inode where it could not read that, and a
//! snapshot of `/proc` describes it by its inode; so one file may have several descriptions. The
//! file that was opened decides.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bpf_abi::{CodeFile, EncodedRule};
use experiment_format::ids::{Pid, Tid};

use super::{Backing, BuiltTable, ObjectId, ObjectNames, TableBuilder, TableCache, UnwindInfo};
use crate::archive::{ArchiveRequest, ArchiveStats, Archiver, SourceCopies};
use crate::files::{Share, TimedOpener, may_hold};
use crate::objects;
use crate::space::{MappedFile, Mapping};
use crate::unwind::{UnwindRow, UnwindRule};
use experiment_format::elf::ElfSource;

/// The name of the kernel's code for user mode.
pub const VDSO: &str = "[vdso]";

/// Why an object is not archived, or has no table, where descriptors are short.
const TOO_MANY_OPEN: &str = "too many files are open";

/// One load object.
#[derive(Debug)]
pub struct LoadObject {
    /// Its name in the experiment; nothing for memory without a file.
    pub name: Option<String>,
    /// What it is.
    pub backing: Backing,
    /// What is to be archived of it, until the archiver gets it.
    content: Option<ElfSource>,
    /// The root directory of a process that maps it, where it is not ours.
    root: Option<OwnedFd>,
    /// Where processes have it.
    path: PathBuf,
    /// Whether a followed process maps it.
    followed: bool,
    /// Whether it was sent to the archiver.
    requested: bool,
    /// The file as the kernel tells it from others, as far as the file system says the same to user
    /// space: not on overlay and btrfs.
    pub file: Option<CodeFile>,
    /// How its frames are unwound.
    pub table: UnwindTableState,
    /// Why it has no table, where that is no matter of course.
    pub refusal: Option<String>,
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

/// How frames in a load object are unwound.
#[derive(Clone, Debug)]
pub enum UnwindTableState {
    /// By frame pointer: there is no table, and there will be none.
    None,
    /// By a table that is being made.
    Pending,
    /// By this.
    Ready(Arc<UnwindInfo>),
}

/// How objects got their tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct UnwindTableCounts {
    /// Tables made of the files.
    pub built: u64,
    /// Tables from the cache on disk.
    pub cached: u64,
    /// Files that could not be opened, or of which no table could be made.
    pub failed: u64,
    /// Bytes of machine code that the tables are for.
    pub text_bytes: u64,
    /// Bytes of the tables.
    pub table_bytes: u64,
    /// Time of the background thread for them, nanoseconds.
    pub took_ns: u64,
}

/// The archiver, and what it is to archive.
#[derive(Debug)]
struct Archive {
    archiver: Archiver,
    used_only: bool,
    /// Where stacks were seen in them.
    positions: HashMap<ObjectId, BTreeSet<u64>>,
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
    archive: Option<Archive>,
    opener: TimedOpener,
    /// Sums over all of them.
    pub counts: UnwindTableCounts,
}

impl LoadObjects {
    /// Returns an empty registry, and starts the thread that makes tables.
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
            archive: None,
            opener: TimedOpener::default(),
            counts: UnwindTableCounts::default(),
        })
    }

    /// Keeps a name for something else that is archived, such as the kernel.
    pub fn reserve(&mut self, name: &str) {
        self.names.reserve(name);
    }

    /// Archives objects from here on: those that followed processes map, or with `used_only` those
    /// in which their stacks were seen.
    pub fn set_archiver(&mut self, archiver: Archiver, used_only: bool) {
        self.archive = Some(Archive {
            archiver,
            used_only,
            positions: HashMap::new(),
        });
    }

    /// Another experiment begins: nothing is followed or archived in it yet, and nothing is until
    /// it has an archiver.
    pub fn begin_again(&mut self) {
        self.archive = None;
        self.counts = UnwindTableCounts::default();
        for object in &mut self.objects {
            (object.followed, object.requested) = (false, false);
            (object.content, object.root) = (None, None);
        }
    }

    /// Returns whether it has to be noted which objects were used.
    #[must_use]
    pub fn needs_used(&self) -> bool {
        self.archive.as_ref().is_some_and(|archive| {
            archive.used_only || archive.archiver.sources() == SourceCopies::Used
        })
    }

    /// Returns the archiver, where anything is archived.
    pub fn archiver(&mut self) -> Option<&mut Archiver> {
        self.archive.as_mut().map(|archive| &mut archive.archiver)
    }

    /// Returns what came of archiving until now, where anything is archived.
    #[must_use]
    pub fn archive_stats(&self) -> Option<&ArchiveStats> {
        self.archive
            .as_ref()
            .map(|archive| archive.archiver.stats())
    }

    /// Notes that a followed process maps an object. Returns the object with its name; nothing for
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

    /// Notes that stacks of followed processes were seen in an object, perhaps again.
    pub fn used(&mut self, id: ObjectId) {
        if self
            .archive
            .as_ref()
            .is_some_and(|archive| archive.used_only)
        {
            self.archive(id);
        }
    }

    /// Notes that a stack of a followed process was seen at this offset of the file.
    pub fn used_at(&mut self, id: ObjectId, position: u64) {
        if let Some(archive) = &mut self.archive
            && archive.archiver.sources() == SourceCopies::Used
        {
            archive.positions.entry(id).or_default().insert(position);
        }
    }

    /// Archives the sources of what was used, which is complete by now.
    pub fn archive_used_sources(&mut self) {
        let Some(archive) = &mut self.archive else {
            return;
        };
        for (id, positions) in std::mem::take(&mut archive.positions) {
            let object = self.objects.get(id.0 as usize);
            if let Some(name) = object.and_then(|object| object.name.as_deref()) {
                archive
                    .archiver
                    .request_lines(name, positions.into_iter().collect());
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
                let why = object.refusal.as_deref().unwrap_or(TOO_MANY_OPEN);
                archive.archiver.leave_out(&name, why);
            }
        }
    }

    /// Returns the object that is mapped. An object that is seen for the first time is opened
    /// through `pid`, which maps it, or else through `relatives`, which are likely to see the same
    /// files.
    pub fn object_of(&mut self, pid: Pid, relatives: &[Pid], mapping: &Mapping) -> ObjectId {
        if let Some(known) = self.described.get(&*mapping.file) {
            return *known;
        }
        let id = self.open_new(pid, relatives, mapping);
        self.described.insert(MappedFile::clone(&mapping.file), id);
        id
    }

    /// Returns whether a mapped object is the file that the kernel found there. On some file
    /// systems user space sees another device and generation (overlay, btrfs), or more bits of
    /// the inode (overlay). Then the time of its last change has to be the same, or the
    /// kernel to have read its build id. A file that an overlay has copied keeps another inode for
    /// user space: that of the file below. Of that, the kernel has read the build id, and the time
    /// is the same.
    #[must_use]
    pub fn is_file(&self, id: ObjectId, mapping: &Mapping, file: CodeFile) -> bool {
        let inode = file.inode as u32;
        match self.get(id).and_then(|object| object.file) {
            Some(known) if known == file => true,
            Some(known) => {
                let unchanged = known.modified_ns == file.modified_ns;
                let has_build_id = !mapping.file.build_id.is_empty();
                match known.inode as u32 == inode {
                    true => unchanged || has_build_id,
                    false => unchanged && has_build_id && known.device != file.device,
                }
            }
            // It could not be opened.
            None => inode != 0 && mapping.file.identity.inode as u32 == inode,
        }
    }

    /// Returns an object.
    #[must_use]
    pub fn get(&self, id: ObjectId) -> Option<&LoadObject> {
        self.objects.get(id.0 as usize)
    }

    /// Returns all of them.
    pub fn iter(&self) -> impl Iterator<Item = (ObjectId, &LoadObject)> {
        (0..).map(ObjectId).zip(&self.objects)
    }

    /// Drops the rows of an object's table, which the BPF programs hold by now. They come back with
    /// [`LoadObjects::restore_rows`]; until then the table has none.
    pub fn release_rows(&mut self, id: ObjectId) {
        if let Some(module) = self.module(id) {
            module.table.release_rows();
        }
    }

    /// Restores the rows of an object's table.
    pub fn restore_rows(&mut self, id: ObjectId, rows: Vec<UnwindRow>) {
        if let Some(module) = self.module(id) {
            module.table.restore_rows(rows);
        }
    }

    fn module(&mut self, id: ObjectId) -> Option<&mut UnwindInfo> {
        match &mut self.objects.get_mut(id.0 as usize)?.table {
            UnwindTableState::Ready(module) => Some(Arc::make_mut(module)),
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

    /// Returns the thread that makes tables.
    #[must_use]
    pub fn table_builder_thread(&self) -> Tid {
        self.builder.thread()
    }

    /// Returns the number of tables that are being made.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.builder.waiting()
    }

    /// Takes the tables that are ready. Returns the objects that they belong to.
    pub fn take(&mut self) -> Vec<ObjectId> {
        let built = self.builder.take();
        self.apply(built)
    }

    /// Waits until a table is ready, for this long at most, and takes what is ready, as
    /// [`LoadObjects::take`].
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
            self.counts.took_ns += built.took.as_nanos() as u64;
            match built.info {
                Ok(info) => {
                    let counts = &mut self.counts;
                    counts.built += u64::from(!info.from_cache);
                    counts.cached += u64::from(info.from_cache);
                    counts.text_bytes += info.summary.text;
                    counts.table_bytes += info.table.bytes() as u64;
                    object.table = match info.table.rows().is_empty() {
                        true => UnwindTableState::None,
                        false => UnwindTableState::Ready(Arc::new(info)),
                    };
                }
                Err(error) => {
                    self.counts.failed += 1;
                    object.table = UnwindTableState::None;
                    object.refusal = Some(error.to_string());
                }
            }
            changed.push(built.id);
        }
        changed
    }

    fn open_new(&mut self, pid: Pid, relatives: &[Pid], mapping: &Mapping) -> ObjectId {
        let backing = objects::backing(&mapping.file.path);
        match backing {
            Backing::Vdso => return self.open_vdso(pid, relatives, mapping),
            Backing::File => {}
            Backing::Anonymous | Backing::Special => {
                return self.add(LoadObject::new(None, backing, mapping));
            }
        }
        let path = Path::new(OsStr::from_bytes(&mapping.file.path));
        let directory = path.parent().unwrap_or(path);
        let (family, wanted) = (relatives.to_vec(), mapping.clone());
        let opened = self
            .opener
            .run(directory, move || open(pid, &family, &wanted))
            .unwrap_or_else(|unanswered| Err(unanswered.to_string()));
        let (file, code_file) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                self.counts.failed += 1;
                let name = Some(self.names.name_of(&mapping.file).to_owned());
                return self.add(LoadObject {
                    refusal: Some(error),
                    ..LoadObject::new(name, backing, mapping)
                });
            }
        };
        if let Some(known) = self.opened.get(&code_file) {
            return *known;
        }
        let name = Some(self.names.name_of(&mapping.file).to_owned());
        let id = self.add(LoadObject {
            file: Some(code_file),
            ..LoadObject::new(name, backing, mapping)
        });
        self.opened.insert(code_file, id);
        if self.archive.is_some() {
            let copy = file.try_clone().ok();
            let held = copy.filter(|copy| may_hold(copy, Share::Half));
            self.keep(id, held.map(ElfSource::File));
        }
        if may_hold(&file, Share::Most) {
            self.request_table(id, ElfSource::File(file));
        } else {
            self.counts.failed += 1;
            self.refuse(id, TOO_MANY_OPEN);
        }
        id
    }

    /// Opens the content of an object that an experiment before this one has archived.
    fn open_again(&mut self, id: ObjectId, pid: Pid, relatives: &[Pid], mapping: &Mapping) {
        let Some(object) = self.objects.get(id.0 as usize) else {
            return;
        };
        if object.followed || object.content.is_some() || object.file.is_none() {
            return;
        }
        let content = match object.backing {
            Backing::Vdso => objects::own_vdso(Path::new("/proc"), mapping)
                .ok()
                .map(ElfSource::Bytes),
            _ => {
                let (family, wanted) = (relatives.to_vec(), mapping.clone());
                let directory = object.path.parent().unwrap_or(&object.path).to_owned();
                let opened = self
                    .opener
                    .run(&directory, move || open(pid, &family, &wanted));
                opened
                    .ok()
                    .and_then(Result::ok)
                    .map(|(file, _)| file)
                    .filter(|file| may_hold(file, Share::Half))
                    .map(ElfSource::File)
            }
        };
        self.keep(id, content);
    }

    /// The vDSO is one object: all processes have the same, except 32-bit ones, which are not
    /// unwound.
    fn open_vdso(&mut self, pid: Pid, relatives: &[Pid], mapping: &Mapping) -> ObjectId {
        if let Some(known) = self.vdso {
            return known;
        }
        let proc = Path::new("/proc");
        let bytes = [&[pid], relatives]
            .concat()
            .into_iter()
            .find_map(|pid| objects::vdso(proc, pid, mapping).ok())
            .or_else(|| objects::own_vdso(proc, mapping).ok());
        let id = self.add(LoadObject {
            // Without its bytes there is nothing to archive, and another process may have them.
            requested: bytes.is_none(),
            ..LoadObject::new(Some(VDSO.to_owned()), Backing::Vdso, mapping)
        });
        if let Some(bytes) = bytes {
            self.vdso = Some(id);
            if self.archive.is_some() {
                self.keep(id, Some(ElfSource::Bytes(bytes.clone())));
            }
            self.request_table(id, ElfSource::Bytes(bytes));
        }
        id
    }

    fn keep(&mut self, id: ObjectId, content: Option<ElfSource>) {
        if let Some(object) = self.objects.get_mut(id.0 as usize) {
            object.content = content;
        }
    }

    fn refuse(&mut self, id: ObjectId, why: &str) {
        if let Some(object) = self.objects.get_mut(id.0 as usize) {
            object.refusal = Some(why.to_owned());
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

/// Returns the file behind a mapping, and what tells it from others: by the process that maps it,
/// or else by one of its relatives. The error is that of the process's own file.
fn open(pid: Pid, relatives: &[Pid], mapping: &Mapping) -> Result<(File, CodeFile), String> {
    let proc = Path::new("/proc");
    let mut opened = objects::open(proc, pid, mapping);
    for relative in relatives {
        if opened.is_ok() {
            break;
        }
        opened = objects::open(proc, *relative, mapping).or(opened);
    }
    let file = opened.map_err(|error| error.to_string())?.file;
    let code_file = code_file(&file).map_err(|error| error.to_string())?;
    Ok((file, code_file))
}

nix::ioctl_read!(
    /// Reads the generation of a file's inode (`FS_IOC_GETVERSION`): 32 bits, whatever the type.
    get_generation,
    b'v',
    1,
    libc::c_long
);

/// Returns what tells an open file from others.
fn code_file(file: &File) -> io::Result<CodeFile> {
    let metadata = file.metadata()?;
    let (major, minor) = (libc::major(metadata.dev()), libc::minor(metadata.dev()));
    let mut generation: libc::c_long = 0;
    // SAFETY: the kernel writes to the number alone. Where it fails, there is no generation.
    let _ = unsafe { get_generation(file.as_raw_fd(), &raw mut generation) };
    Ok(CodeFile {
        inode: metadata.ino(),
        modified_ns: (metadata.mtime().cast_unsigned())
            .wrapping_mul(1_000_000_000)
            .wrapping_add(metadata.mtime_nsec().cast_unsigned()),
        device: major << 20 | minor,
        generation: generation as u32,
    })
}

/// Returns the root directory of a process, where it is not ours; nothing where the process is
/// gone.
fn root_of(pid: Pid) -> Option<OwnedFd> {
    let open = |path: &str| {
        File::options()
            .read(true)
            .custom_flags(libc::O_PATH | libc::O_DIRECTORY)
            .open(path)
    };
    let place = |file: &File| file.metadata().map(|place| (place.dev(), place.ino())).ok();
    let own = open(&format!("/proc/{pid}/root")).ok()?;
    let same = place(&own) == place(&open("/").ok()?);
    (!same).then(|| own.into())
}

#[cfg(test)]
mod tests;
