//! When threads and processes began and ended, as far as a profile shows it.

use rustc_hash::{FxHashMap, FxHashSet};

use crate::export::selected::{OfThread, Selected};
use crate::load::exact::ExactTimes;
use crate::model::{ExperimentId, Model, ProcessId, ThreadInfo};
use experiment_format::ids::Pid;

/// The time of a thread or a process, in nanoseconds since the start of the recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lifetime {
    /// The beginning of its first selected tick.
    pub(super) begin: u64,
    /// The end of its last one, if it exited during the recording.
    pub(super) end: Option<u64>,
}

/// The lifetimes of all threads that have ticks.
#[derive(Debug)]
pub(super) struct Lifetimes {
    living: Living,
    processes: FxHashMap<ProcessId, Lifetime>,
}

impl Lifetimes {
    /// Returns the lifetimes of the selected threads. A process begins no later than each of its
    /// threads, and has exited if all of them have.
    pub(super) fn of(selected: &Selected<'_>) -> Lifetimes {
        let mut lifetimes = Lifetimes {
            living: Living::of(selected.model),
            processes: FxHashMap::default(),
        };
        for of in selected.threads() {
            let own = lifetimes.thread(&of);
            let process = lifetimes
                .processes
                .entry(of.thread().process)
                .or_insert(own);
            process.begin = process.begin.min(own.begin);
            process.end = process.end.zip(own.end).map(|(a, b)| a.max(b));
        }
        lifetimes
    }

    /// Returns the lifetime of a selected thread.
    pub(super) fn thread(&self, of: &OfThread<'_, '_>) -> Lifetime {
        let begin = of.slices().next().map_or(0, |slice| slice.start);
        let end = of.slices().last().map_or(begin, |slice| slice.end);
        Lifetime {
            begin,
            end: self.living.ended(of.model(), of.thread()).then_some(end),
        }
    }

    /// Returns the lifetime of a process with a selected thread.
    pub(super) fn process(&self, id: ProcessId) -> Lifetime {
        let unknown = Lifetime {
            begin: 0,
            end: None,
        };
        self.processes.get(&id).copied().unwrap_or(unknown)
    }
}

/// Pid and tid of the threads that lived at the end, by the first experiment of the recording. One
/// without exact times, as other collectors make it, is not in it.
#[derive(Debug)]
struct Living(FxHashMap<ExperimentId, FxHashSet<(Pid, u64)>>);

impl Living {
    fn of(model: &Model) -> Living {
        let mut living = FxHashMap::default();
        let mut founders: Vec<_> = model.founders().map(|(_, info)| info).collect();
        founders.sort_by_key(|info| info.offset_ns);
        for info in founders {
            // A report warns of a damaged file; for an export it is as if there were none.
            if let Ok(Some(times)) = ExactTimes::read(&info.source) {
                let threads = times.threads.iter().filter(|thread| !thread.ended);
                let threads = threads.map(|thread| (thread.pid, u64::from(thread.tid)));
                // Of a series the last one remains.
                living.insert(info.first, threads.collect());
            }
        }
        Living(living)
    }

    /// Returns whether a thread exited. Short-lived ones have no exact times of their own. The idle
    /// threads, those of process 0, have none and do not exit.
    fn ended(&self, model: &Model, thread: &ThreadInfo) -> bool {
        let process = model.process(thread.process);
        let experiment = model.experiments.get(process.experiment as usize);
        let living = experiment.and_then(|experiment| self.0.get(&experiment.first));
        process.pid != Pid(0)
            && living.is_some_and(|living| !living.contains(&(process.pid, thread.tid)))
    }
}
