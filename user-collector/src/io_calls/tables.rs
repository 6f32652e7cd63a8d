//! The tables of descriptors of the processes that are traced.
//!
//! Processes share a table if one was cloned from the other with `CLONE_FILES`, and a thread may
//! have one of its own (`unshare`). Which table a call was made with is in its record: a number
//! that no other table has as long as this one exists.

use std::collections::HashMap;

use bpf_abi::IoCallRecord;
use experiment_format::ids::Pid;
use experiment_format::packet::IoOperation;

use super::descriptors::{DescriptorTable, Descriptors};
use super::look::DescriptorLookup;

/// In place of the number of a parent's table: after an exec the table is never shared.
const NEVER_SHARED: u64 = u64::MAX;

/// The tables of descriptors of all processes that are traced.
#[derive(Debug, Default)]
pub struct DescriptorTables {
    /// Tables by their numbers.
    tables: HashMap<u64, SharedTable>,
}

/// The descriptors of a process that is traced.
#[derive(Debug, Default)]
pub struct ProcessDescriptors {
    descriptors: Descriptors,
    /// The numbers of its tables, the one that was used last at the end.
    uses: Vec<u64>,
    /// Initial content of its first table: the parent's table at the fork with its number (0 if
    /// unknown), or the table of the previous program.
    first: Option<(DescriptorTable, u64)>,
}

#[derive(Debug, Default)]
struct SharedTable {
    table: DescriptorTable,
    users: Vec<Pid>,
}

impl DescriptorTables {
    /// The descriptors of a child that a process forks. It has its parent's, or shares them.
    #[must_use]
    pub fn fork(&self, parent: &ProcessDescriptors) -> ProcessDescriptors {
        let last = parent.uses.last().copied();
        let table = last.and_then(|number| self.tables.get(&number));
        let first = match (table, last) {
            (Some(shared), Some(number)) => Some((shared.table.clone(), number)),
            // It has made no call since it was forked, or executed a program, itself.
            _ => parent.first.clone(),
        };
        ProcessDescriptors {
            descriptors: parent.descriptors.forked(),
            first,
            ..ProcessDescriptors::default()
        }
    }

    /// Records that a process executed a program, by which it stops to share its descriptors.
    pub fn executed(&mut self, pid: Pid, process: &mut ProcessDescriptors) {
        let last = process.uses.last().copied();
        let table = last.and_then(|number| self.tables.get(&number));
        let first = table.map(|shared| (shared.table.clone(), NEVER_SHARED));
        process.first = first.or(process.first.take());
        if let Some((table, number)) = &mut process.first {
            table.executed();
            *number = NEVER_SHARED;
        }
        let uses = std::mem::take(&mut process.uses);
        self.not_used(pid, &uses);
    }

    /// Drops the descriptors of a process that exited.
    pub fn exited(&mut self, pid: Pid, process: &ProcessDescriptors) {
        self.not_used(pid, &process.uses);
    }

    fn not_used(&mut self, pid: Pid, numbers: &[u64]) {
        for number in numbers {
            if let Some(shared) = self.tables.get_mut(number) {
                shared.users.retain(|user| *user != pid);
                if shared.users.is_empty() {
                    self.tables.remove(number);
                }
            }
        }
    }

    /// Returns the operations of a call of a process, as [`Descriptors::apply`].
    pub fn apply<L: DescriptorLookup>(
        &mut self,
        process: &mut ProcessDescriptors,
        call: &IoCallRecord,
        look: &mut L,
    ) -> Vec<IoOperation> {
        let pid = Pid(call.header.pid);
        let last = process.uses.last().copied();
        // A process has no number of its own that an address of the kernel is like.
        let number = match (call.files, last) {
            (0, Some(last)) => last,
            (0, None) => pid.0.into(),
            (files, _) => files,
        };
        if last != Some(number) {
            process.uses.retain(|used| *used != number);
            process.uses.push(number);
            self.add(pid, process.first.take(), number, last);
        }
        let shared = self.tables.entry(number).or_default();
        if !shared.users.contains(&pid) {
            shared.users.push(pid);
        }
        std::mem::swap(&mut process.descriptors.table, &mut shared.table);
        let operations = process.descriptors.apply(call, look);
        std::mem::swap(&mut process.descriptors.table, &mut shared.table);
        operations
    }

    /// Adds the table of this number, if it is new. `last` is the one that the process used before.
    fn add(
        &mut self,
        pid: Pid,
        first: Option<(DescriptorTable, u64)>,
        number: u64,
        last: Option<u64>,
    ) {
        let parents = first.as_ref().is_some_and(|(_, of)| *of == number);
        let known = self.tables.contains_key(&number);
        let shared = match first {
            // The number of a table that no longer exists.
            Some((table, of)) if known && of != 0 && !parents => SharedTable {
                table,
                users: vec![pid],
            },
            _ if known => return,
            Some((table, _)) => SharedTable {
                table,
                users: Vec::new(),
            },
            // A thread has its own from now on, with what was open before.
            None => {
                let before = last.and_then(|last| self.tables.get(&last));
                let table = before.map(|shared| shared.table.clone());
                SharedTable {
                    table: table.unwrap_or_default(),
                    users: Vec::new(),
                }
            }
        };
        self.tables.insert(number, shared);
    }
}

impl ProcessDescriptors {
    /// The descriptors of a process that is new: these.
    #[must_use]
    pub fn new(mut descriptors: Descriptors) -> ProcessDescriptors {
        let table = std::mem::take(&mut descriptors.table);
        ProcessDescriptors {
            descriptors,
            first: Some((table, 0)),
            ..ProcessDescriptors::default()
        }
    }

    /// Starts another experiment, in which no descriptor has a name yet.
    pub fn on_rotation(&mut self) {
        self.descriptors.start_experiment();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use bpf_abi::RecordHeader;
    use bpf_abi::layout::CallTable;

    use super::*;

    /// What `/proc` would say.
    #[derive(Default)]
    struct Proc(BTreeMap<i32, &'static str>);

    impl DescriptorLookup for Proc {
        fn descriptor(&mut self, descriptor: i32) -> Option<Vec<u8>> {
            Some(self.0.get(&descriptor)?.as_bytes().to_vec())
        }

        fn all(&mut self) -> Vec<(i32, Vec<u8>)> {
            Vec::new()
        }

        fn registered(&mut self, _: u64) -> Option<Vec<u8>> {
            None
        }

        fn directory(&mut self) -> Option<Vec<u8>> {
            None
        }
    }

    /// Processes with their descriptors.
    #[derive(Default)]
    struct Processes {
        tables: DescriptorTables,
        processes: BTreeMap<u32, ProcessDescriptors>,
    }

    impl Processes {
        fn forked(&mut self, pid: u32, parent: u32) {
            let child = self.tables.fork(&self.processes[&parent]);
            self.processes.insert(pid, child);
        }

        fn executed(&mut self, pid: u32) {
            let process = self.processes.get_mut(&pid).unwrap();
            self.tables.executed(Pid(pid), process);
        }

        fn exited(&mut self, pid: u32) {
            self.tables.exited(Pid(pid), &self.processes[&pid]);
        }
    }

    /// Makes a call with a table, and returns the names that it gives to descriptors.
    fn call(
        Processes { tables, processes }: &mut Processes,
        (pid, files): (u32, u64),
        (number, descriptor): (i64, u64),
        path: &[u8],
    ) -> String {
        let opens = number == libc::SYS_openat;
        let call = IoCallRecord {
            header: RecordHeader {
                pid,
                tid: pid,
                time_ns: 2,
                ..RecordHeader::default()
            },
            begin_ns: 1,
            result: if opens { descriptor as i64 } else { 0 },
            arguments: [descriptor, 0, 0, 0],
            files,
            call: number as u32,
            table: CallTable::Native,
            call_site: 1,
            extra: path.into(),
        };
        let new = || ProcessDescriptors::new(Descriptors::default());
        let process = processes.entry(pid).or_insert_with(new);
        let operations = tables.apply(process, &call, &mut Proc::default());
        let names = operations.iter().filter_map(|one| one.name.as_deref());
        names.map(String::from_utf8_lossy).collect()
    }

    const OPEN: i64 = libc::SYS_openat;
    const READ: i64 = libc::SYS_read;
    const CLOSE: i64 = libc::SYS_close;

    #[test]
    fn processes_that_share_a_table_see_each_others_files() {
        let mut processes = Processes::default();
        let (parent, child) = ((7, 0x1000), (8, 0x1000));
        assert_eq!(call(&mut processes, parent, (OPEN, 3), b"/a"), "/a");
        processes.forked(8, 7);
        assert_eq!(call(&mut processes, child, (READ, 3), b""), "/a");
        assert_eq!(call(&mut processes, child, (CLOSE, 3), b""), "");
        assert_eq!(call(&mut processes, child, (OPEN, 3), b"/b"), "/b");
        // Each has an experiment of its own, with the names that it needs.
        assert_eq!(call(&mut processes, parent, (READ, 3), b""), "/b");
        assert_eq!(call(&mut processes, parent, (READ, 3), b""), "");
        assert_eq!(call(&mut processes, child, (READ, 3), b""), "");
        // The child executes a program, and shares nothing any more.
        processes.executed(8);
        let child = (8, 0x2000);
        call(&mut processes, child, (OPEN, 3), b"/c");
        assert_eq!(call(&mut processes, parent, (READ, 3), b""), "");
        assert_eq!(call(&mut processes, child, (READ, 3), b""), "");
        processes.exited(7);
        processes.exited(8);
        assert!(processes.tables.tables.is_empty());
    }

    #[test]
    fn a_forked_process_has_a_copy() {
        let mut processes = Processes::default();
        call(&mut processes, (7, 0x1000), (OPEN, 3), b"/a");
        processes.forked(8, 7);
        // One that makes no call passes them on.
        processes.forked(9, 8);
        call(&mut processes, (7, 0x1000), (OPEN, 3), b"/b");
        assert_eq!(call(&mut processes, (8, 0x2000), (READ, 3), b""), "/a");
        assert_eq!(call(&mut processes, (9, 0x3000), (READ, 3), b""), "/a");
        // Its address is used again, before its exit is known.
        processes.forked(10, 7);
        assert_eq!(call(&mut processes, (10, 0x3000), (READ, 3), b""), "/b");
    }

    #[test]
    fn a_thread_with_its_own_table_has_what_was_open() {
        let mut processes = Processes::default();
        call(&mut processes, (7, 0x1000), (OPEN, 3), b"/a");
        call(&mut processes, (7, 0x2000), (CLOSE, 3), b"");
        call(&mut processes, (7, 0x2000), (OPEN, 3), b"/b");
        assert_eq!(call(&mut processes, (7, 0x1000), (READ, 3), b""), "/a");
        assert_eq!(call(&mut processes, (7, 0x2000), (READ, 3), b""), "/b");
        // Of a call without a number it is the one that was used last.
        assert_eq!(call(&mut processes, (7, 0), (READ, 3), b""), "");
    }
}
