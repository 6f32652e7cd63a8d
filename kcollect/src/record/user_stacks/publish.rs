//! Publishes the unwind tables of files to the BPF programs, which unwind user stacks with them:
//! after each round, and in the middle of a long one.
//!
//! The programs read from the kernel which file is mapped at an address. So a table is published
//! once, under the numbers that identify the file in the kernel ([`CodeFile`]), whichever processes
//! map it. If the file system reports the same numbers to user space, the table is ready before the
//! first stack needs it. Otherwise the first stack copy that waits for it has the file that the
//! kernel found at its address.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use bpf::{PageRows, PlacedTable, TableId, UnwindTables};
use bpf_abi::CodeFile;
use bpf_abi::layout::FileSegment;
use experiment_format::ids::Pid;
use kcollect_elf::LoadSegment;
use user_collector::objects::UnwindTableState;
use user_collector::objects::{ObjectId, UnwindInfo};
use user_collector::space::Mapping;

use user_collector::loaded_code::LoadedCode;

/// Whether the user stacks of a process are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::record) enum StackUse {
    /// It is followed, or may be.
    Wanted,
    /// It can't be followed while it executes this program, the execution of which has a number.
    Unwanted(u32),
    /// It can't be followed, but the number of its execution is not known.
    Unknown,
}

/// The publisher of unwind tables. It knows which tables the BPF programs have and miss.
#[derive(Debug, Default)]
pub struct TablePublisher {
    /// Tables whose rows only the BPF programs have.
    tables: HashMap<ObjectId, PlacedTable>,
    /// Files for whose tables there was no space.
    refused: HashSet<ObjectId>,
    /// The objects of the kernel's files.
    files: HashMap<CodeFile, ObjectId>,
    /// Files that are to be published.
    due: HashSet<CodeFile>,
    /// Files that wait for their tables.
    pending: HashSet<CodeFile>,
    /// Objects whose files are known: those before this number.
    known_objects: u32,
    /// The files' code that was copied to anonymous memory, and where it is.
    copied: HashMap<CodeFile, Mapping>,
    rules: usize,
    /// Processes for which it has to be determined again whether they may be followed.
    changed: HashSet<Pid>,
    exited: Vec<Pid>,
    /// Files for which, or for whose tables, there was no space.
    pub not_published: u64,
}

impl TablePublisher {
    /// Marks a process for another check: something about it has changed.
    pub(in crate::record) fn changed(&mut self, pid: Pid) {
        self.changed.insert(pid);
    }

    /// Drops a process that is gone.
    pub(in crate::record) fn exited(&mut self, pid: Pid) {
        self.changed.remove(&pid);
        self.exited.push(pid);
    }

    /// Returns the number of the rule for an address of a file whose table the programs have.
    pub(super) fn number_at(&self, id: ObjectId, address: u64) -> Option<u16> {
        Some(self.tables.get(&id)?.number_at(address))
    }

    /// Returns whether no load object is known for a file that the kernel found.
    pub(in crate::record) fn is_table_missing(&self, file: CodeFile) -> bool {
        !self.files.contains_key(&file)
    }

    /// Adds a file that the kernel found in a mapping and whose table the programs do not have.
    pub(in crate::record) fn on_missing_table(
        &mut self,
        code: &mut LoadedCode,
        (pid, relatives): (Pid, &[Pid]),
        mapping: &Mapping,
        file: CodeFile,
    ) {
        let Entry::Vacant(unknown) = self.files.entry(file) else {
            return;
        };
        let id = code.objects.object_of(pid, relatives, mapping);
        if code.objects.is_file(id, mapping, file) {
            unknown.insert(id);
            self.due.insert(file);
        }
    }

    /// Adds code that a process has copied from a file to anonymous memory.
    pub(in crate::record) fn copied_code(
        &mut self,
        code: &mut LoadedCode,
        (pid, relatives): (Pid, &[Pid]),
        file: CodeFile,
        mapping: Mapping,
    ) {
        let id = code.objects.object_of(pid, relatives, &mapping);
        self.files.insert(file, id);
        self.copied.insert(file, mapping);
        self.due.insert(file);
    }

    /// Removes the copied code of a process that is gone.
    fn withdraw_copied(&mut self, tables: &mut UnwindTables<'_>, pid: Pid) {
        let of_process = |file: &CodeFile| file.inode == u64::from(pid.0);
        for (file, _) in self.copied.extract_if(|file, _| of_process(file)) {
            tables.withdraw_file(file);
            self.files.remove(&file);
            self.pending.remove(&file);
            self.due.remove(&file);
        }
    }

    /// Marks the files that wait for tables to be published, if any table is ready.
    pub(in crate::record) fn tables_ready(&mut self, ready: &[ObjectId]) {
        if !ready.is_empty() {
            self.due.extend(self.pending.drain());
        }
    }

    /// Publishes of which processes the user stacks are wanted, where that may have changed.
    ///
    /// # Errors
    /// When the kernel has no memory for it.
    pub(in crate::record) fn publish_processes(
        &mut self,
        tables: &mut UnwindTables<'_>,
        state: impl Fn(Pid) -> StackUse,
    ) -> Result<(), bpf::Error> {
        for pid in std::mem::take(&mut self.exited) {
            tables.restore_process(pid.0);
            self.withdraw_copied(tables, pid);
        }
        for pid in std::mem::take(&mut self.changed) {
            match state(pid) {
                StackUse::Wanted => tables.restore_process(pid.0),
                StackUse::Unwanted(execution) => tables.ignore_process(pid.0, execution)?,
                StackUse::Unknown => {}
            }
        }
        Ok(())
    }

    /// Publishes the tables that are new. `mapped` returns what all processes have mapped.
    ///
    /// # Errors
    /// When the kernel has no memory for it.
    pub(in crate::record) fn publish_tables<'a, M: Iterator<Item = (Pid, &'a Mapping)>>(
        &mut self,
        tables: &mut UnwindTables<'_>,
        code: &mut LoadedCode,
        mapped: impl Fn() -> M,
    ) -> Result<(), bpf::Error> {
        let rules = code.objects.rules_from(self.rules);
        self.rules += rules.len();
        tables.add_rules(rules.iter().copied());
        for (id, object) in code.objects.iter().skip(self.known_objects as usize) {
            self.known_objects = id.0 + 1;
            if let Some(file) = object.file {
                self.files.insert(file, id);
                self.due.insert(file);
            }
        }
        for file in std::mem::take(&mut self.due) {
            self.publish_file(tables, code, file, &mapped)?;
        }
        Ok(())
    }

    fn publish_file<'a, M: Iterator<Item = (Pid, &'a Mapping)>>(
        &mut self,
        tables: &mut UnwindTables<'_>,
        code: &mut LoadedCode,
        file: CodeFile,
        mapped: &impl Fn() -> M,
    ) -> Result<(), bpf::Error> {
        let Some(id) = self.files.get(&file).copied() else {
            return Ok(());
        };
        let table = code.objects.get(id).map(|object| object.table.clone());
        let published = match table {
            Some(UnwindTableState::Pending) => {
                self.pending.insert(file);
                return Ok(());
            }
            Some(UnwindTableState::Ready(info)) => {
                let segments = match self.copied.get(&file) {
                    Some(mapping) => copied_segments(mapping, &info),
                    None => segments(&info.segments),
                };
                let table = self.table(tables, code, (id, info), mapped)?;
                tables.publish_file(file, table, &segments)?
            }
            Some(UnwindTableState::None) | None => tables.publish_file(file, None, &[])?,
        };
        self.not_published += u64::from(!published);
        Ok(())
    }

    /// The table of an object, which is placed now if it is not placed yet; None if there is no
    /// space.
    fn table<'a, M: Iterator<Item = (Pid, &'a Mapping)>>(
        &mut self,
        tables: &mut UnwindTables<'_>,
        code: &mut LoadedCode,
        (id, info): (ObjectId, std::sync::Arc<UnwindInfo>),
        mapped: &impl Fn() -> M,
    ) -> Result<Option<TableId>, bpf::Error> {
        if let Some(table) = self.tables.get(&id) {
            return Ok(Some(table.id));
        }
        if self.refused.contains(&id) {
            return Ok(None);
        }
        let mut placed = place(tables, &info)?;
        if placed.is_none() && self.evict_tables(tables, code, id, mapped()) {
            placed = place(tables, &info)?;
        }
        let Some(placed) = placed else {
            self.refused.insert(id);
            self.not_published += 1;
            return Ok(None);
        };
        let table = placed.id;
        drop(info);
        code.objects.release_rows(id);
        self.tables.insert(id, placed);
        Ok(Some(table))
    }

    /// Removes the tables that no living process needs, except the table of `kept`. Their memory is
    /// free two rounds later. Returns whether there were any.
    fn evict_tables<'a>(
        &mut self,
        tables: &mut UnwindTables<'_>,
        code: &mut LoadedCode,
        kept: ObjectId,
        mapped: impl Iterator<Item = (Pid, &'a Mapping)>,
    ) -> bool {
        let mut used = HashSet::from([kept]);
        used.extend(mapped.map(|(pid, mapping)| code.objects.object_of(pid, &[], mapping)));
        self.files.retain(|file, id| {
            let unused = self.tables.contains_key(id) && !used.contains(id);
            if unused {
                tables.withdraw_file(*file);
            }
            !unused
        });
        let before = self.tables.len();
        self.tables.retain(|id, table| {
            let kept = used.contains(id);
            if !kept {
                code.objects.restore_rows(*id, table.rows());
                tables.remove(table.id);
            }
            kept
        });
        self.tables.len() < before
    }
}

/// Returns the segments that code may be in: those with code first.
fn segments(all: &[LoadSegment]) -> Vec<FileSegment> {
    let mut segments: Vec<&LoadSegment> = all.iter().collect();
    segments.sort_by_key(|segment| !segment.executable);
    let segment = |segment: &LoadSegment| {
        let offsets = segment.file_offsets();
        FileSegment {
            offset: offsets.start,
            end: offsets.end,
            delta: segment.address.wrapping_sub(segment.offset),
        }
    };
    segments.into_iter().map(segment).collect()
}

/// Returns the segment of copied code. Its offsets are addresses of the process.
fn copied_segments(mapping: &Mapping, info: &UnwindInfo) -> Vec<FileSegment> {
    let address = info.address_of(mapping.offset).into_iter();
    let segment = address.map(|address| FileSegment {
        offset: mapping.start,
        end: mapping.end,
        delta: address.wrapping_sub(mapping.start),
    });
    segment.collect()
}

fn place(
    tables: &mut UnwindTables<'_>,
    info: &UnwindInfo,
) -> Result<Option<PlacedTable>, bpf::Error> {
    let pages: Vec<PageRows> = info
        .table
        .pages()
        .iter()
        .map(|page| PageRows {
            number: page.number,
            rows: page.start as usize..page.end as usize,
        })
        .collect();
    let rows = info.table.rows();
    tables.place(&pages, |index| rows.get(index).copied().unwrap_or_default())
}
