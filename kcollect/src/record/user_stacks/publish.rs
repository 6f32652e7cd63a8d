//! Publishes what is known of processes and their files to the BPF programs, which unwind user
//! stacks by it: after each round, and in the middle of a long one.

use std::collections::{HashMap, HashSet};

use bpf::{CodeMapping, CodeUnwind, PageRows, PlacedTable, ProcessTables};
use experiment_format::ids::Pid;
use user_collector::objects::UnwindTableState;
use user_collector::objects::{ObjectId, UnwindInfo};
use user_collector::process::ProcessTable;
use user_collector::space::Mapping;

use super::resolve_stack::relatives;
use crate::record::processes::LoadedCode;

/// What the BPF programs have, and what they lack.
#[derive(Debug, Default)]
pub struct TablePublisher {
    /// Tables whose rows only the BPF programs have.
    tables: HashMap<ObjectId, PlacedTable>,
    /// Files whose tables found no room.
    refused: HashSet<ObjectId>,
    rules: usize,
    changed: HashSet<Pid>,
    /// Processes that wait for tables.
    pending: HashSet<Pid>,
    exited: Vec<Pid>,
    /// Files whose tables found no room, and processes whose mappings found none.
    pub no_room: u64,
}

impl TablePublisher {
    /// Something about a process has changed.
    pub(in crate::record) fn changed(&mut self, pid: Pid) {
        self.changed.insert(pid);
    }

    /// A process is gone.
    pub(in crate::record) fn exited(&mut self, pid: Pid) {
        self.changed.remove(&pid);
        self.pending.remove(&pid);
        self.exited.push(pid);
    }

    /// Returns the number of the rule for an address of a file whose table the programs have.
    pub(super) fn number_at(&self, id: ObjectId, address: u64) -> Option<u16> {
        Some(self.tables.get(&id)?.number_at(address))
    }

    /// Tables were made that some processes lacked.
    pub(in crate::record) fn tables_ready(&mut self, ready: &[ObjectId]) {
        if !ready.is_empty() {
            self.changed.extend(self.pending.drain());
        }
    }

    /// Publishes what has changed; `before_data` also processes that only the snapshot found.
    ///
    /// # Errors
    /// When the kernel has no memory for it.
    pub(in crate::record) fn publish(
        &mut self,
        collector: &mut ProcessTables<'_>,
        code: &mut LoadedCode,
        processes: &ProcessTable,
        may_follow: impl Fn(Pid) -> bool,
        before_data: bool,
    ) -> Result<(), bpf::Error> {
        for pid in std::mem::take(&mut self.exited) {
            collector.evict_process(pid.0);
        }
        let rules = code.objects.rules_from(self.rules);
        self.rules += rules.len();
        collector.add_rules(rules.iter().copied());
        for pid in std::mem::take(&mut self.changed) {
            let Some(space) = code.spaces.get_mut(pid) else {
                continue;
            };
            // Where it is not known yet, the process's next record has it.
            let execution = space.execution;
            if may_follow(pid) {
                if execution.is_some() || before_data {
                    self.publish_process(collector, code, processes, pid, execution)?;
                }
            } else if let Some(execution) = execution {
                collector.ignore_process(pid.0, execution)?;
            }
        }
        Ok(())
    }

    fn publish_process(
        &mut self,
        collector: &mut ProcessTables<'_>,
        code: &mut LoadedCode,
        processes: &ProcessTable,
        pid: Pid,
        execution: Option<u32>,
    ) -> Result<(), bpf::Error> {
        let (mut mapped, mut pending) = (Vec::new(), false);
        let relatives = relatives(processes, pid);
        for mapping in code.mapped_by(pid).iter() {
            let unwinding = self.unwinding(collector, code, &relatives, pid, mapping)?;
            pending |= unwinding == CodeUnwind::Pending;
            mapped.push(CodeMapping {
                start: mapping.start,
                end: mapping.end,
                unwind: unwinding,
            });
        }
        if pending {
            self.pending.insert(pid);
        }
        let version = collector.publish_process(pid.0, execution, &mapped)?;
        match (version, code.spaces.get_mut(pid)) {
            (Some(version), Some(space)) => space.published(version),
            _ => self.no_room += 1,
        }
        Ok(())
    }

    /// Returns how frames in a mapping are unwound.
    fn unwinding(
        &mut self,
        collector: &mut ProcessTables<'_>,
        code: &mut LoadedCode,
        relatives: &[Pid],
        pid: Pid,
        mapping: &Mapping,
    ) -> Result<CodeUnwind, bpf::Error> {
        let id = code.objects.object_of(pid, relatives, mapping);
        let table = code.objects.get(id).map(|object| object.table.clone());
        let module = match table {
            Some(UnwindTableState::Pending) => return Ok(CodeUnwind::Pending),
            Some(UnwindTableState::Ready(module)) => module,
            Some(UnwindTableState::None) | None => return Ok(CodeUnwind::FramePointer),
        };
        let Some(address) = module.address_of(mapping.offset) else {
            return Ok(CodeUnwind::FramePointer);
        };
        let bias = mapping.start.wrapping_sub(address);
        if let Some(table) = self.tables.get(&id) {
            return Ok(CodeUnwind::Table {
                table: table.id,
                bias,
            });
        }
        if self.refused.contains(&id) {
            return Ok(CodeUnwind::FramePointer);
        }
        let mut placed = place(collector, &module)?;
        if placed.is_none() && self.evict_tables(collector, code) {
            placed = place(collector, &module)?;
        }
        match placed {
            Some(placed) => {
                let table = placed.id;
                drop(module);
                code.objects.release_rows(id);
                self.tables.insert(id, placed);
                Ok(CodeUnwind::Table { table, bias })
            }
            None => {
                self.refused.insert(id);
                self.no_room += 1;
                Ok(CodeUnwind::FramePointer)
            }
        }
    }

    /// Removes the tables that no living process needs. Their memory is free two rounds later.
    /// Returns whether there were any.
    fn evict_tables(&mut self, collector: &mut ProcessTables<'_>, code: &mut LoadedCode) -> bool {
        let mut used = HashSet::new();
        for (pid, space) in code.spaces.iter_mut() {
            for mapping in space.code().iter() {
                used.insert(code.objects.object_of(pid, &[], mapping));
            }
        }
        let before = self.tables.len();
        self.tables.retain(|id, table| {
            let kept = used.contains(id);
            if !kept {
                code.objects.restore_rows(*id, table.rows());
                collector.remove(table.id);
            }
            kept
        });
        self.tables.len() < before
    }
}

fn place(
    collector: &mut ProcessTables<'_>,
    module: &UnwindInfo,
) -> Result<Option<PlacedTable>, bpf::Error> {
    let pages: Vec<PageRows> = module
        .table
        .pages()
        .iter()
        .map(|page| PageRows {
            number: page.number,
            rows: page.start as usize..page.end as usize,
        })
        .collect();
    let rows = module.table.rows();
    collector.place(&pages, |index| rows.get(index).copied().unwrap_or_default())
}
