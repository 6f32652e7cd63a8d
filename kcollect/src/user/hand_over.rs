//! What was learnt of processes and their files is handed to the programs in the kernel, which walk
//! user stacks by it: after each round, and in the middle of a long one.

use std::collections::{HashMap, HashSet};

use bpf::{CodeMapping, CodeUnwind, PageRows, PlacedTable, ProcessTables};
use user_collector::maps::Mapping;
use user_collector::modules::{Module, ObjectId};
use user_collector::objects::Table;
use user_collector::process::Processes;

use super::{UserSide, relatives};

/// What the programs have, and what they lack.
#[derive(Debug, Default)]
pub struct HandOver {
    /// Tables whose rows the programs have, and nobody else.
    tables: HashMap<ObjectId, PlacedTable>,
    /// Files whose tables found no room.
    refused: HashSet<ObjectId>,
    rules: usize,
    changed: HashSet<u32>,
    pending: HashSet<u32>,
    gone: Vec<u32>,
    /// Files whose tables found no room, and processes whose mappings found none.
    pub no_room: u64,
}

impl HandOver {
    /// Something about a process has changed.
    pub(super) fn changed(&mut self, pid: u32) {
        self.changed.insert(pid);
    }

    /// A process is no more.
    pub(super) fn gone(&mut self, pid: u32) {
        self.changed.remove(&pid);
        self.pending.remove(&pid);
        self.gone.push(pid);
    }

    /// The number of the rule for an address of a file, where the programs have its table.
    pub(super) fn number_at(&self, id: ObjectId, address: u64) -> Option<u16> {
        Some(self.tables.get(&id)?.number_at(address))
    }

    /// Tables are there that some processes lacked.
    pub(super) fn settled(&mut self, settled: &[ObjectId]) {
        if !settled.is_empty() {
            self.changed.extend(self.pending.drain());
        }
    }
}

impl UserSide {
    /// Hands over what has changed; `before_data` also of processes of which a snapshot alone has
    /// told.
    ///
    /// # Errors
    /// When the kernel has no memory for it.
    pub fn hand_over(
        &mut self,
        collector: &mut ProcessTables<'_>,
        processes: &Processes,
        before_data: bool,
    ) -> Result<(), bpf::Error> {
        for pid in std::mem::take(&mut self.hand_over.gone) {
            collector.evict_process(pid);
        }
        let rules = self.objects.rules_from(self.hand_over.rules);
        self.hand_over.rules += rules.len();
        collector.add_rules(rules.iter().copied());
        for pid in std::mem::take(&mut self.hand_over.changed) {
            self.hand_over_process(collector, processes, pid, before_data)?;
        }
        Ok(())
    }

    fn hand_over_process(
        &mut self,
        collector: &mut ProcessTables<'_>,
        processes: &Processes,
        pid: u32,
        before_data: bool,
    ) -> Result<(), bpf::Error> {
        let ignored = !self.may_follow(processes, pid);
        let Some(space) = self.spaces.get_mut(pid) else {
            return Ok(());
        };
        // Where it is not known yet its next record tells.
        let execution = space.execution;
        if ignored {
            return match execution {
                Some(execution) => collector.ignore_process(pid, execution),
                None => Ok(()),
            };
        }
        if execution.is_none() && !before_data {
            return Ok(());
        }
        let (mut mapped, mut pending) = (Vec::new(), false);
        for mapping in space.code().iter() {
            let code = self.code(collector, processes, pid, mapping)?;
            pending |= code == CodeUnwind::Pending;
            mapped.push(CodeMapping {
                start: mapping.start,
                end: mapping.end,
                unwind: code,
            });
        }
        if pending {
            self.hand_over.pending.insert(pid);
        }
        let version = collector.publish_process(pid, execution, &mapped)?;
        match (version, self.spaces.get_mut(pid)) {
            (Some(version), Some(space)) => space.handed_over(version),
            _ => self.hand_over.no_room += 1,
        }
        Ok(())
    }

    /// How frames in a mapping are left.
    fn code(
        &mut self,
        collector: &mut ProcessTables<'_>,
        processes: &Processes,
        pid: u32,
        mapping: &Mapping,
    ) -> Result<CodeUnwind, bpf::Error> {
        let id = self.objects.of(pid, &relatives(processes, pid), mapping);
        let table = self.objects.get(id).map(|object| object.table.clone());
        let module = match table {
            Some(Table::Pending) => return Ok(CodeUnwind::Pending),
            Some(Table::Ready(module)) => module,
            Some(Table::None) | None => return Ok(CodeUnwind::FramePointer),
        };
        let Some(address) = module.address_of(mapping.offset) else {
            return Ok(CodeUnwind::FramePointer);
        };
        let bias = mapping.start.wrapping_sub(address);
        if let Some(table) = self.hand_over.tables.get(&id) {
            return Ok(CodeUnwind::Table {
                table: table.id,
                bias,
            });
        }
        if self.hand_over.refused.contains(&id) {
            return Ok(CodeUnwind::FramePointer);
        }
        let mut placed = place(collector, &module)?;
        if placed.is_none() && self.evict(collector) {
            placed = place(collector, &module)?;
        }
        match placed {
            Some(placed) => {
                let table = placed.id;
                drop(module);
                self.objects.release_rows(id);
                self.hand_over.tables.insert(id, placed);
                Ok(CodeUnwind::Table { table, bias })
            }
            None => {
                self.hand_over.refused.insert(id);
                self.hand_over.no_room += 1;
                Ok(CodeUnwind::FramePointer)
            }
        }
    }

    /// Takes away the tables that no living process has. What they took is free two rounds later.
    /// Gives whether there were any.
    fn evict(&mut self, collector: &mut ProcessTables<'_>) -> bool {
        let mut used = HashSet::new();
        for (pid, space) in self.spaces.iter_mut() {
            for mapping in space.code().iter() {
                used.insert(self.objects.of(pid, &[], mapping));
            }
        }
        let before = self.hand_over.tables.len();
        self.hand_over.tables.retain(|id, table| {
            let kept = used.contains(id);
            if !kept {
                self.objects.restore_rows(*id, table.rows());
                collector.remove(table.id);
            }
            kept
        });
        self.hand_over.tables.len() < before
    }
}

fn place(
    collector: &mut ProcessTables<'_>,
    module: &Module,
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
