//! The load objects: the files that processes execute, each once, however many processes map it.
//!
//! A file is opened when it is first needed, while a process that maps it still lives. Where it may
//! be archived it stays open until it is: by then it may be deleted, or its container gone. Its
//! unwind table is made in the background, and so is its copy in the archive, as soon as a followed
//! process maps it.
//!
//! The kernel tells a file by its build id, or by its inode where it could not read that, and a
//! snapshot of `/proc` by its inode; so one file may come under several descriptions. What was
//! opened decides.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bpf_abi::UnwindRule;
use nix::unistd::Pid;

use crate::archive::{Account, Archivist, ObjectNames, Sources, Wish};
use crate::maps::{MappedFile, Mapping};
use crate::modules::{self, Backing, Builder, Built, Cache, Module, ObjectId, Source};
use crate::patience::Patience;
use crate::unwind::{Rule, UnwindRow};

/// The name of the kernel's code for user mode.
pub const VDSO: &str = "[vdso]";

/// One load object.
#[derive(Debug)]
pub struct Object {
    /// Its name in the experiment; nothing for memory without a file.
    pub name: Option<String>,
    /// What it is.
    pub backing: Backing,
    /// What is to be archived of it, until it is asked for.
    content: Option<Source>,
    /// The root directory of a process that maps it, where it is not ours.
    root: Option<OwnedFd>,
    /// Where processes have it.
    path: PathBuf,
    /// Does a followed process map it?
    followed: bool,
    /// Was it asked for?
    asked: bool,
    /// How its frames are left.
    pub table: Table,
    /// Why it has no table, where that is no matter of course.
    pub refusal: Option<String>,
}

impl Object {
    fn new(name: Option<String>, backing: Backing, mapping: &Mapping) -> Object {
        let path = OsStr::from_bytes(modules::without_mark(&mapping.file.path));
        Object {
            name,
            backing,
            path: path.into(),
            content: None,
            root: None,
            followed: false,
            asked: false,
            table: Table::None,
            refusal: None,
        }
    }
}

/// How frames in an object are left.
#[derive(Clone, Debug)]
pub enum Table {
    /// By frame pointer: there is no table, and there will be none.
    None,
    /// By a table that is being made.
    Pending,
    /// By this.
    Ready(Arc<Module>),
}

/// How objects got their tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct TableCounts {
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

/// Whoever archives them, and what is asked of it.
#[derive(Debug)]
struct Archive {
    archivist: Archivist,
    used_only: bool,
    /// Of how many objects the content is kept, and of how many it may be.
    kept: usize,
    most_kept: usize,
    /// Where stacks were seen in them.
    positions: HashMap<ObjectId, BTreeSet<u64>>,
}

/// All load objects of a run.
#[derive(Debug)]
pub struct Objects {
    builder: Builder,
    names: ObjectNames,
    objects: Vec<Object>,
    described: HashMap<MappedFile, ObjectId>,
    opened: HashMap<(u64, u64), ObjectId>,
    rules: Vec<UnwindRule>,
    vdso: Option<ObjectId>,
    archive: Option<Archive>,
    patience: Patience,
    /// Sums over all of them.
    pub counts: TableCounts,
}

impl Objects {
    /// None yet. Begins the thread that makes tables.
    ///
    /// # Errors
    /// When there is no thread to be had.
    pub fn new(cache: Option<Cache>) -> io::Result<Objects> {
        Ok(Objects {
            builder: Builder::start(cache)?,
            names: ObjectNames::new(),
            objects: Vec::new(),
            described: HashMap::new(),
            opened: HashMap::new(),
            rules: Vec::new(),
            vdso: None,
            archive: None,
            patience: Patience::default(),
            counts: TableCounts::default(),
        })
    }

    /// Keeps a name for something else that is archived, such as the kernel.
    pub fn reserve(&mut self, name: &str) {
        self.names.reserve(name);
    }

    /// From here on objects are archived: those that followed processes map, or with `used_only`
    /// those in which stacks of theirs were seen. At most so many files are open for it at once.
    pub fn archive_by(&mut self, archivist: Archivist, used_only: bool, most_kept: usize) {
        self.archive = Some(Archive {
            archivist,
            used_only,
            kept: 0,
            most_kept,
            positions: HashMap::new(),
        });
    }

    /// Has somebody to say which objects were used?
    #[must_use]
    pub fn wants_used(&self) -> bool {
        self.archive.as_ref().is_some_and(|archive| {
            archive.used_only || archive.archivist.sources() == Sources::Used
        })
    }

    /// Whoever archives them.
    pub fn archivist(&mut self) -> Option<&mut Archivist> {
        self.archive.as_mut().map(|archive| &mut archive.archivist)
    }

    /// What came of archiving until now, where anything is archived.
    #[must_use]
    pub fn archived(&self) -> Option<&Account> {
        self.archive
            .as_ref()
            .map(|archive| archive.archivist.account())
    }

    /// A followed process maps an object. Gives it with its name; nothing for memory without a
    /// file.
    pub fn followed(
        &mut self,
        pid: u32,
        relatives: &[u32],
        mapping: &Mapping,
    ) -> Option<(ObjectId, String)> {
        let id = self.of(pid, relatives, mapping);
        let archive = self.archive.as_ref();
        let object = self.objects.get_mut(id.0 as usize)?;
        let name = object.name.clone()?;
        if let Some(archive) = archive
            && !object.followed
        {
            object.followed = true;
            if matches!(object.content, Some(Source::File(_))) {
                object.root = root_of(pid);
            }
            if !archive.used_only {
                self.archive(id);
            }
        }
        Some((id, name))
    }

    /// Stacks of followed processes were seen in an object, perhaps again.
    pub fn used(&mut self, id: ObjectId) {
        if self
            .archive
            .as_ref()
            .is_some_and(|archive| archive.used_only)
        {
            self.archive(id);
        }
    }

    /// A stack of a followed process was seen at this position of the file, bytes.
    pub fn used_at(&mut self, id: ObjectId, position: u64) {
        if let Some(archive) = &mut self.archive
            && archive.archivist.sources() == Sources::Used
        {
            archive.positions.entry(id).or_default().insert(position);
        }
    }

    /// All has been told of what was used: asks for the sources of that.
    pub fn archive_used_sources(&mut self) {
        let Some(archive) = &mut self.archive else {
            return;
        };
        for (id, positions) in std::mem::take(&mut archive.positions) {
            let object = self.objects.get(id.0 as usize);
            if let Some(name) = object.and_then(|object| object.name.as_deref()) {
                archive
                    .archivist
                    .ask_lines(name, positions.into_iter().collect());
            }
        }
    }

    fn archive(&mut self, id: ObjectId) {
        let (Some(archive), Some(object)) =
            (&mut self.archive, self.objects.get_mut(id.0 as usize))
        else {
            return;
        };
        let Some(name) = object.name.clone().filter(|_| !object.asked) else {
            return;
        };
        object.asked = true;
        match object.content.take() {
            Some(content) => {
                archive.kept -= 1;
                archive.archivist.ask(Wish {
                    name,
                    path: object.path.clone(),
                    content,
                    root: object.root.take(),
                });
            }
            None => {
                let why = object
                    .refusal
                    .as_deref()
                    .unwrap_or("too many files are open");
                archive.archivist.leave_out(&name, why);
            }
        }
    }

    /// The object that is mapped. One that is seen for the first time is opened through `pid`,
    /// which maps it, or else through `relatives`, which are likely to see the same files.
    pub fn of(&mut self, pid: u32, relatives: &[u32], mapping: &Mapping) -> ObjectId {
        if let Some(known) = self.described.get(&*mapping.file) {
            return *known;
        }
        let id = self.meet(pid, relatives, mapping);
        self.described.insert(MappedFile::clone(&mapping.file), id);
        id
    }

    /// An object.
    #[must_use]
    pub fn get(&self, id: ObjectId) -> Option<&Object> {
        self.objects.get(id.0 as usize)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (ObjectId, &Object)> {
        (0..).map(ObjectId).zip(&self.objects)
    }

    /// Somebody else has the rows of an object's table by now, and gives them back with
    /// [`Objects::restore_rows`] before he lets go of them. Until then its module has none.
    pub fn release_rows(&mut self, id: ObjectId) {
        if let Some(module) = self.module(id) {
            module.table.release_rows();
        }
    }

    /// The rows of an object's table, back again.
    pub fn restore_rows(&mut self, id: ObjectId, rows: Vec<UnwindRow>) {
        if let Some(module) = self.module(id) {
            module.table.restore_rows(rows);
        }
    }

    fn module(&mut self, id: ObjectId) -> Option<&mut Module> {
        match &mut self.objects.get_mut(id.0 as usize)?.table {
            Table::Ready(module) => Some(Arc::make_mut(module)),
            Table::None | Table::Pending => None,
        }
    }

    /// The rule of a number, encoded.
    #[must_use]
    pub fn rule(&self, number: u16) -> Option<UnwindRule> {
        self.rules.get(usize::from(number)).copied()
    }

    /// All rules from a number on, encoded.
    #[must_use]
    pub fn rules_from(&self, number: usize) -> &[UnwindRule] {
        self.rules.get(number..).unwrap_or_default()
    }

    /// The thread that makes tables.
    #[must_use]
    pub fn table_maker(&self) -> Pid {
        self.builder.thread()
    }

    /// Tables that are being made.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.builder.waiting()
    }

    /// Takes the tables that have been made since. Gives whose.
    pub fn take(&mut self) -> Vec<ObjectId> {
        let built = self.builder.take();
        self.settle(built)
    }

    /// The same, after waiting for those that are being made, at most so long.
    pub fn wait(&mut self, at_most: Duration) -> Vec<ObjectId> {
        let built = self.builder.wait(at_most);
        self.settle(built)
    }

    fn settle(&mut self, built: Vec<Built>) -> Vec<ObjectId> {
        let mut settled = Vec::new();
        for built in built {
            self.rules.extend(built.new_rules.iter().map(Rule::encode));
            let Some(object) = self.objects.get_mut(built.id.0 as usize) else {
                continue;
            };
            self.counts.took_ns += built.took.as_nanos() as u64;
            match built.module {
                Ok(module) => {
                    let counts = &mut self.counts;
                    counts.built += u64::from(!module.from_cache);
                    counts.cached += u64::from(module.from_cache);
                    counts.text_bytes += module.summary.text;
                    counts.table_bytes += module.table.bytes() as u64;
                    object.table = match module.table.rows().is_empty() {
                        true => Table::None,
                        false => Table::Ready(Arc::new(module)),
                    };
                }
                Err(error) => {
                    self.counts.failed += 1;
                    object.table = Table::None;
                    object.refusal = Some(error.to_string());
                }
            }
            settled.push(built.id);
        }
        settled
    }

    fn meet(&mut self, pid: u32, relatives: &[u32], mapping: &Mapping) -> ObjectId {
        let backing = modules::backing(&mapping.file.path);
        match backing {
            Backing::Vdso => return self.meet_vdso(pid, relatives, mapping),
            Backing::File => {}
            Backing::Anonymous | Backing::Special => {
                return self.add(Object::new(None, backing, mapping));
            }
        }
        let path = Path::new(OsStr::from_bytes(&mapping.file.path));
        let directory = path.parent().unwrap_or(path);
        let (family, wanted) = (relatives.to_vec(), mapping.clone());
        let opened = self
            .patience
            .ask(directory, move || open(pid, &family, &wanted))
            .unwrap_or_else(|unanswered| Err(unanswered.to_string()));
        let (file, inode) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                self.counts.failed += 1;
                let name = Some(self.names.name_of(&mapping.file).to_owned());
                return self.add(Object {
                    refusal: Some(error),
                    ..Object::new(name, backing, mapping)
                });
            }
        };
        if let Some(known) = self.opened.get(&inode) {
            return *known;
        }
        let name = Some(self.names.name_of(&mapping.file).to_owned());
        let id = self.add(Object::new(name, backing, mapping));
        self.opened.insert(inode, id);
        if self.keeps() {
            let copy = file.try_clone();
            self.keep(id, copy.ok().map(Source::File));
        }
        self.ask(id, Source::File(file));
        id
    }

    /// The kernel maps the same into all processes, but for those of 32 bits, which are not walked.
    fn meet_vdso(&mut self, pid: u32, relatives: &[u32], mapping: &Mapping) -> ObjectId {
        if let Some(known) = self.vdso {
            return known;
        }
        let proc = Path::new("/proc");
        let bytes = [&[pid], relatives]
            .concat()
            .into_iter()
            .find_map(|pid| modules::vdso(proc, pid, mapping).ok())
            .or_else(|| modules::own_vdso(proc, mapping).ok());
        let id = self.add(Object {
            // Without its bytes there is nothing to archive, and another process may have them.
            asked: bytes.is_none(),
            ..Object::new(Some(VDSO.to_owned()), Backing::Vdso, mapping)
        });
        if let Some(bytes) = bytes {
            self.vdso = Some(id);
            if self.keeps() {
                self.keep(id, Some(Source::Bytes(bytes.clone())));
            }
            self.ask(id, Source::Bytes(bytes));
        }
        id
    }

    fn keeps(&self) -> bool {
        let archive = self.archive.as_ref();
        archive.is_some_and(|archive| archive.kept < archive.most_kept)
    }

    fn keep(&mut self, id: ObjectId, content: Option<Source>) {
        if let (Some(archive), Some(object)) =
            (&mut self.archive, self.objects.get_mut(id.0 as usize))
        {
            archive.kept += usize::from(content.is_some());
            object.content = content;
        }
    }

    fn ask(&mut self, id: ObjectId, source: Source) {
        if let Some(object) = self.objects.get_mut(id.0 as usize) {
            object.table = Table::Pending;
            self.builder.ask(id, source);
        }
    }

    fn add(&mut self, object: Object) -> ObjectId {
        let id = ObjectId(self.objects.len() as u32);
        self.objects.push(object);
        id
    }
}

/// The file behind a mapping, and its device and inode: by the process that maps it, or else by one
/// of its relatives. Why the process's own can't be opened is what is told.
fn open(pid: u32, relatives: &[u32], mapping: &Mapping) -> Result<(File, (u64, u64)), String> {
    let proc = Path::new("/proc");
    let mut opened = modules::open(proc, pid, mapping);
    for relative in relatives {
        if opened.is_ok() {
            break;
        }
        opened = modules::open(proc, *relative, mapping).or(opened);
    }
    let file = opened.map_err(|error| error.to_string())?.file;
    let metadata = file.metadata().map_err(|error| error.to_string())?;
    Ok((file, (metadata.dev(), metadata.ino())))
}

/// The root directory of a process, where it is not ours; nothing where the process is gone.
fn root_of(pid: u32) -> Option<OwnedFd> {
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
