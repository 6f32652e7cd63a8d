//! Why threads were blocked, and which threads ended that.

use std::ops::Range;

use experiment_format::cause::{Cause, WaitKind};
use experiment_format::microstate::Microstate;
use experiment_format::units::Nanos;
use rustc_hash::FxHashMap;

use super::{ExperimentId, Model, ThreadId, TickRow};

/// Returns whether threads in a state are blocked and so have a [`Cause`], by the state's position
/// in [`super::Sums`]. A wait for a CPU has none, and is always suffered.
#[must_use]
pub fn is_blocked(slot: usize) -> bool {
    const BLOCKED: [Microstate; 5] = [
        Microstate::TextFault,
        Microstate::DataFault,
        Microstate::KernelFault,
        Microstate::UserLock,
        Microstate::Sleep,
    ];
    BLOCKED.iter().any(|state| *state as usize == slot)
}

/// Returns whether threads in a state suffer, whatever the cause: they wait for a CPU.
#[must_use]
pub fn waits_for_cpu(slot: usize) -> bool {
    slot == Microstate::WaitCpu as usize
}

impl Model {
    /// Returns why the thread of a row was blocked. None: it was not, or the row is of a traced
    /// event.
    #[must_use]
    pub fn cause(&self, row: &TickRow) -> Option<Cause> {
        let blocked = self.shows.is_none() && is_blocked(row.slot());
        blocked.then(|| Cause::try_from(row.cause).unwrap_or_default())
    }

    /// Returns whether the time of a row was suffered: the thread was blocked in the middle of
    /// work, or waited for a CPU.
    #[must_use]
    pub fn suffered(&self, row: &TickRow) -> bool {
        let blocked = self.cause(row).map(Cause::kind) == Some(WaitKind::Suffered);
        blocked || (self.shows.is_none() && waits_for_cpu(row.slot()))
    }

    /// Returns whether it is known of a recording that it did not watch what wakes threads (`-W`).
    #[must_use]
    pub fn without_wakers(&self) -> bool {
        let unwatched = |summary: &serde_json::Value| summary["wakers_watched"] == false;
        let mut summaries = self.founders().filter_map(|(_, info)| info.summary());
        summaries.any(|summary| unwatched(&summary))
    }
}

/// Threads with one number, each with the time in which it has ticks.
type SameNumber = Vec<(ThreadId, Range<Nanos>)>;

/// The threads that woke others, found by their numbers. A number belongs to several threads if it
/// was given again, or if the program of its process changed.
#[derive(Debug, Default)]
pub struct Wakers {
    /// By recording and number.
    threads: FxHashMap<(ExperimentId, u64), SameNumber>,
}

impl Wakers {
    /// Returns the threads of a model.
    #[must_use]
    pub fn of(model: &Model) -> Wakers {
        let mut wakers = Wakers::default();
        if model.rows.iter().all(|row| row.waker == 0) {
            return wakers;
        }
        let mut seen = vec![None; model.threads.len()];
        for row in &model.rows {
            let first = model.experiment(row.experiment).first;
            let start_ns = row.time_ns.saturating_sub(model.length_of_ticks(row));
            let (_, range) = seen[row.thread.index()].get_or_insert((first, start_ns..row.time_ns));
            range.start = range.start.min(start_ns);
            range.end = range.end.max(row.time_ns);
        }
        for ((id, thread), seen) in (0..).map(ThreadId).zip(&model.threads).zip(seen) {
            if let Some((first, range)) = seen {
                let same_number = wakers.threads.entry((first, thread.tid)).or_default();
                same_number.push((id, range));
            }
        }
        wakers
    }

    /// Returns what ended the wait of a row. None: no thread did, or it is not known.
    #[must_use]
    pub fn waker(&self, model: &Model, row: &TickRow) -> Option<Waker> {
        if row.waker == 0 {
            return None;
        }
        let first = model.experiment(row.experiment).first;
        let same_number = self.threads.get(&(first, row.waker.into()));
        let found = same_number.and_then(|threads| nearest(threads, row.time_ns));
        Some(found.map_or(Waker::Unsampled(row.waker), Waker::Thread))
    }
}

/// A thread that woke another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Waker {
    /// A thread of the model.
    Thread(ThreadId),
    /// The number of a thread that has no ticks.
    Unsampled(u32),
}

impl Waker {
    /// Returns the name of the thread with its process and number: `server: worker (812)`.
    #[must_use]
    pub fn name(self, model: &Model) -> String {
        let id = match self {
            Waker::Thread(id) => id,
            Waker::Unsampled(tid) => return format!("thread {tid}"),
        };
        let thread = model.thread(id);
        let (process, own) = (model.process_name(thread), model.thread_name(thread));
        if process == own {
            format!("{process} ({})", thread.tid)
        } else {
            format!("{process}: {own} ({})", thread.tid)
        }
    }
}

/// Returns the thread that has ticks at a time, or the one whose ticks are nearest to it.
fn nearest(threads: &[(ThreadId, Range<Nanos>)], at_ns: Nanos) -> Option<ThreadId> {
    let distance = |range: &Range<Nanos>| {
        let before = range.start.saturating_sub(at_ns);
        before.max(at_ns.saturating_sub(range.end))
    };
    let nearest = threads.iter().min_by_key(|(_, range)| distance(range));
    nearest.map(|(id, _)| *id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{CpuId, ProcessId, ProcessInfo, StackId, ThreadInfo};

    fn row(thread: u32, state: Microstate, at: u64, cause: Cause, waker: u32) -> TickRow {
        TickRow {
            time_ns: Nanos(at),
            stack: StackId::EMPTY,
            thread: ThreadId(thread),
            experiment: ExperimentId(0),
            cpu: CpuId(0),
            ticks: 0,
            micros: 1,
            state: state as u8,
            detail: 0,
            cause: cause as u8,
            waker,
        }
    }

    #[test]
    fn causes_belong_to_blocked_states() {
        let model = Model::default();
        let cause = |state, cause| model.cause(&row(0, state, 0, cause, 0));
        assert_eq!(cause(Microstate::Sleep, Cause::Timer), Some(Cause::Timer));
        assert_eq!(cause(Microstate::UserLock, Cause::Lock), Some(Cause::Lock));
        assert_eq!(cause(Microstate::WaitCpu, Cause::Undecided), None);
        assert_eq!(cause(Microstate::Stopped, Cause::Undecided), None);
        assert_eq!(cause(Microstate::User, Cause::Lock), None);
        let suffered = |state, cause| model.suffered(&row(0, state, 0, cause, 0));
        assert!(suffered(Microstate::WaitCpu, Cause::Undecided));
        assert!(suffered(Microstate::Sleep, Cause::Answer));
        assert!(!suffered(Microstate::Sleep, Cause::NewWork));
        assert!(!suffered(Microstate::Sleep, Cause::Undecided));
        let mut unknown = row(0, Microstate::Sleep, 0, Cause::Lock, 0);
        unknown.cause = 77;
        assert_eq!(model.cause(&unknown), Some(Cause::Undecided));
    }

    #[test]
    fn wakers_have_the_names_of_process_and_thread() {
        let mut model = Model::default();
        model.processes.push(ProcessInfo {
            name: "server".to_owned(),
            ..ProcessInfo::default()
        });
        for (tid, name) in [(812, "server"), (813, "worker"), (814, "")] {
            model.threads.push(ThreadInfo {
                tid,
                name: name.to_owned(),
                process: ProcessId(0),
            });
        }
        let names = [0, 1, 2].map(|id| Waker::Thread(ThreadId(id)).name(&model));
        assert_eq!(
            names,
            ["server (812)", "server: worker (813)", "server (814)"]
        );
        assert_eq!(Waker::Unsampled(99).name(&model), "thread 99");
    }

    #[test]
    fn a_number_is_of_the_thread_that_had_it_then() {
        let range = |from, to| Nanos(from)..Nanos(to);
        let threads = [(ThreadId(4), range(10, 20)), (ThreadId(7), range(30, 40))];
        for (at, id) in [(0, 4), (15, 4), (24, 4), (26, 7), (35, 7), (99, 7)] {
            assert_eq!(nearest(&threads, Nanos(at)), Some(ThreadId(id)), "{at}");
        }
        assert_eq!(nearest(&[], Nanos(1)), None);
    }
}
