//! Waits by their reasons: who waited, for what, where, and which thread ended it.
//!
//! The figures are the exact times that ticks stand for, as everywhere; they add up to the time
//! blocked and waiting for a CPU of the selection.

use experiment_format::cause::WaitKind;
use rustc_hash::FxHashMap;

use crate::filter::Selection;
use crate::model::{FunctionId, Model, ProcessId, StackId, TickRow, WaitReason};
use crate::wakers::{Waker, Wakers};

/// What waits have in common that are added up by stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StackWaitKey {
    /// The process of the thread that waited.
    pub process: ProcessId,
    /// Why it waited.
    pub reason: WaitReason,
    /// Where it waited.
    pub stack: StackId,
    /// The thread that ended the wait. None: no thread did, or it is not known.
    pub waker: Option<Waker>,
}

/// What waits have in common that are added up by place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WaitKey {
    /// The process of the thread that waited.
    pub process: ProcessId,
    /// Why it waited.
    pub reason: WaitReason,
    /// The function in which it waited; for a CPU, in which it became runnable. None: there is no
    /// stack.
    pub function: Option<FunctionId>,
    /// The program's own function on whose behalf it waited: see [`Model::waits_at`].
    pub caller: Option<FunctionId>,
    /// The thread that ended the wait. None: no thread did, or it is not known.
    pub waker: Option<Waker>,
}

/// The time of waits that have a key in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaitRow {
    /// What they have in common.
    pub key: WaitKey,
    /// Their time, microseconds.
    pub micros: i64,
}

/// The times of the three kinds of waits, microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WaitTotals {
    /// Suffered, waits for a CPU included.
    pub suffered: i64,
    /// Idle.
    pub idle: i64,
    /// Undecided.
    pub undecided: i64,
}

impl WaitTotals {
    /// Returns the totals of rows.
    #[must_use]
    pub fn of(rows: &[WaitRow]) -> WaitTotals {
        let mut totals = WaitTotals::default();
        for row in rows {
            *totals.kind_mut(row.key.reason.kind()) += row.micros;
        }
        totals
    }

    /// Returns the time of a kind.
    #[must_use]
    pub fn kind(&self, kind: WaitKind) -> i64 {
        match kind {
            WaitKind::Suffered => self.suffered,
            WaitKind::Idle => self.idle,
            WaitKind::Undecided => self.undecided,
        }
    }

    fn kind_mut(&mut self, kind: WaitKind) -> &mut i64 {
        match kind {
            WaitKind::Suffered => &mut self.suffered,
            WaitKind::Idle => &mut self.idle,
            WaitKind::Undecided => &mut self.undecided,
        }
    }
}

/// Adds up the selected waits. The rows are in the order of their keys.
#[must_use]
pub fn waits(model: &Model, selection: &Selection, wakers: &Wakers) -> Vec<WaitRow> {
    let rows = model.rows.iter().filter(|row| selection.passes(row));
    by_place(model, waits_by_stack(model, rows, wakers))
}

/// Adds up the waits of rows by stack, in no order.
pub fn waits_by_stack<'m>(
    model: &'m Model,
    rows: impl Iterator<Item = &'m TickRow>,
    wakers: &Wakers,
) -> FxHashMap<StackWaitKey, i64> {
    let mut by_stack: FxHashMap<StackWaitKey, i64> = FxHashMap::default();
    for row in rows {
        if let Some(reason) = row.wait_reason() {
            let key = StackWaitKey {
                process: model.thread(row.thread).process,
                reason,
                stack: row.stack,
                waker: wakers.of(row),
            };
            *by_stack.entry(key).or_default() += row.micros;
        }
    }
    by_stack
}

/// Adds up waits whose stacks are at the same place. The rows are in the order of their keys.
fn by_place(model: &Model, by_stack: FxHashMap<StackWaitKey, i64>) -> Vec<WaitRow> {
    // Many waits have the same stack.
    let mut places: FxHashMap<StackId, _> = FxHashMap::default();
    let mut by_key: FxHashMap<WaitKey, i64> = FxHashMap::default();
    for (wait, micros) in by_stack {
        let place = places.entry(wait.stack);
        let place = place.or_insert_with(|| model.waits_at(wait.stack));
        let (function, caller) = place.map_or((None, None), |(at, caller)| (Some(at), caller));
        let key = WaitKey {
            process: wait.process,
            reason: wait.reason,
            function,
            caller,
            waker: wait.waker,
        };
        *by_key.entry(key).or_default() += micros;
    }
    let rows = by_key.into_iter();
    let mut rows: Vec<_> = rows.map(|(key, micros)| WaitRow { key, micros }).collect();
    rows.sort_unstable_by_key(|row| row.key);
    rows
}

#[cfg(test)]
mod tests {
    use experiment_format::cause::Cause;
    use experiment_format::microstate::Microstate::{
        self, KernelFault, Sleep, Stopped, User, UserLock, WaitCpu,
    };

    use super::*;
    use crate::model::ExperimentId;
    use crate::model::tests::{add_stack, model_of_threads, row};

    #[test]
    fn waits_add_up_by_reason_place_and_waker() {
        let mut model = model_of_threads(&[("a", 7, "a"), ("a", 8, "worker"), ("b", 9, "b")]);
        let lock = add_stack(&mut model, &[("main", false), ("do_futex", true)]);
        let read = add_stack(&mut model, &[("main", false), ("vfs_read", true)]);
        let wait = |thread, stack, state: Microstate, cause: Cause, waker, micros| TickRow {
            stack,
            state: state as u8,
            cause: cause as u8,
            waker,
            micros,
            ..row(thread, 100)
        };
        model.rows = vec![
            wait(0, lock, UserLock, Cause::Lock, 8, 5),
            wait(1, lock, UserLock, Cause::Lock, 8, 6),
            wait(0, lock, UserLock, Cause::Lock, 9, 7),
            wait(0, lock, WaitCpu, Cause::Undecided, 0, 3),
            wait(0, read, Sleep, Cause::NewWork, 9, 50),
            wait(2, StackId::EMPTY, KernelFault, Cause::Kernel, 0, 2),
            wait(2, read, Sleep, Cause::Undecided, 0, 4),
            // Neither is a wait.
            wait(2, read, Stopped, Cause::Undecided, 0, 100),
            wait(2, read, User, Cause::Undecided, 0, 100),
        ];
        let wakers = Wakers::with_experiments(&model, &[(ExperimentId(0), 1)]);
        let by_stack = waits_by_stack(&model, model.rows.iter(), &wakers);
        let rows = by_place(&model, by_stack);
        let function = |id: Option<FunctionId>| id.map_or("", |id| &model.function(id).name);
        let shown = rows.iter().map(|WaitRow { key, micros }| {
            let waker = key.waker.map(|waker| wakers.names(&model, waker).title());
            format!(
                "{} {} {} {} {} {micros}",
                model.process(key.process).name,
                key.reason.keyword(),
                function(key.function),
                function(key.caller),
                waker.unwrap_or_default(),
            )
        });
        let shown: Vec<_> = shown.collect();
        assert_eq!(
            shown,
            [
                "a lock do_futex main a/worker 11",
                "a lock do_futex main b 7",
                "a new-work vfs_read main b 50",
                "a cpu do_futex main  3",
                "b undecided vfs_read main  4",
                "b kernel    2",
            ]
        );
        let totals = WaitTotals::of(&rows);
        assert_eq!(
            (totals.suffered, totals.idle, totals.undecided),
            (23, 50, 4)
        );
        assert_eq!(totals.kind(WaitKind::Idle), 50);
    }
}
