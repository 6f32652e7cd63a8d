//! The load objects: the files that processes execute, each once, however many processes map it.
//!
//! A file is opened when it is first needed, while a process that maps it still lives, and stays open for the archive at the end: by
//! then it may be deleted, or its container gone. Its unwind table is made in the background.
//!
//! The kernel tells a file by its build id, or by its inode where it could not read that, and a snapshot of `/proc` by its inode; so
//! one file may come under several descriptions. What was opened decides.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::archive::ObjectNames;
use crate::maps::{MappedFile, Mapping};
use crate::modules::{self, Backing, Builder, Built, Cache, Module, ObjectId, Source};
use crate::unwind::Rule;

/// One load object.
#[derive(Debug)]
pub struct Object {
    /// Its name in the experiment; nothing for memory without a file.
    pub name: Option<String>,
    /// What it is.
    pub backing: Backing,
    /// The file, if it could be opened.
    pub file: Option<File>,
    /// How its frames are left.
    pub table: Table,
    /// Why it has no table, where that is no matter of course.
    pub refusal: Option<String>,
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

/// All load objects of a run.
#[derive(Debug)]
pub struct Objects {
    builder: Builder,
    names: ObjectNames,
    objects: Vec<Object>,
    described: HashMap<MappedFile, ObjectId>,
    opened: HashMap<(u64, u64), ObjectId>,
    rules: Vec<[u8; Rule::SIZE]>,
    vdso: Option<ObjectId>,
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
            counts: TableCounts::default(),
        })
    }

    /// The object that is mapped. One that is seen for the first time is opened through `pid`, which maps it, or else through
    /// `relatives`, which are likely to see the same files.
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

    /// The rule of a number, encoded.
    #[must_use]
    pub fn rule(&self, number: u16) -> Option<[u8; Rule::SIZE]> {
        self.rules.get(usize::from(number)).copied()
    }

    /// All rules from a number on, encoded.
    #[must_use]
    pub fn rules_from(&self, number: usize) -> &[[u8; Rule::SIZE]] {
        self.rules.get(number..).unwrap_or_default()
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
                return self.add(Object {
                    name: None,
                    backing,
                    file: None,
                    table: Table::None,
                    refusal: None,
                });
            }
        }
        let proc = Path::new("/proc");
        let mut opened = modules::open(proc, pid, mapping);
        for relative in relatives {
            if opened.is_ok() {
                break;
            }
            // Why the process's own could not be opened is what is told.
            opened = modules::open(proc, *relative, mapping).or(opened);
        }
        let opened = opened
            .map_err(|error| error.to_string())
            .and_then(|opened| {
                let metadata = opened.file.metadata().map_err(|error| error.to_string())?;
                Ok((opened.file, (metadata.dev(), metadata.ino())))
            });
        let (file, inode) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                self.counts.failed += 1;
                let name = Some(self.names.name_of(&mapping.file).to_owned());
                return self.add(Object {
                    name,
                    backing,
                    file: None,
                    table: Table::None,
                    refusal: Some(error),
                });
            }
        };
        if let Some(known) = self.opened.get(&inode) {
            return *known;
        }
        let name = Some(self.names.name_of(&mapping.file).to_owned());
        let copy = file.try_clone();
        let id = self.add(Object {
            name,
            backing,
            file: Some(file),
            table: Table::None,
            refusal: None,
        });
        self.opened.insert(inode, id);
        match copy {
            Ok(copy) => self.ask(id, Source::File(copy)),
            Err(_) => self.counts.failed += 1,
        }
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
            .find_map(|pid| modules::vdso(proc, pid, mapping).ok());
        let id = self.add(Object {
            name: Some("[vdso]".to_owned()),
            backing: Backing::Vdso,
            file: None,
            table: Table::None,
            refusal: None,
        });
        if let Some(bytes) = bytes {
            self.vdso = Some(id);
            self.ask(id, Source::Bytes(bytes));
        }
        id
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
