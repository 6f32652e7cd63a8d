//! The lifetimes of threads and processes, as far as a profile shows them.

use rustc_hash::{FxHashMap, FxHashSet};

use crate::export::selected::{Selected, SelectedThread};
use crate::load::exact::ExactTimes;
use crate::model::{ExperimentId, Model, ProcessId, ThreadInfo};
use experiment_format::ids::Pid;
use experiment_format::units::Nanos;

/// When a thread or a process began and ended, since the start of the recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TaskLifetime {
    /// The beginning of the first selected tick.
    pub(super) begin_ns: Nanos,
    /// The end of the last selected tick, if the thread or process exited during the recording.
    pub(super) end_ns: Option<Nanos>,
}

/// The lifetimes of all threads that have ticks.
#[derive(Debug)]
pub(super) struct TaskLifetimes {
    running: RunningAtEnd,
    processes: FxHashMap<ProcessId, TaskLifetime>,
}

impl TaskLifetimes {
    /// Returns the lifetimes of the selected threads. A process begins no later than each of its
    /// threads, and has exited if all of them have.
    pub(super) fn of(selected: &Selected<'_>) -> TaskLifetimes {
        let mut lifetimes = TaskLifetimes {
            running: RunningAtEnd::of(selected.model),
            processes: FxHashMap::default(),
        };
        for of in selected.threads() {
            let own = lifetimes.thread(&of);
            let process = lifetimes
                .processes
                .entry(of.thread().process)
                .or_insert(own);
            process.begin_ns = process.begin_ns.min(own.begin_ns);
            process.end_ns = process.end_ns.zip(own.end_ns).map(|(a, b)| a.max(b));
        }
        lifetimes
    }

    /// Returns the lifetime of a selected thread.
    pub(super) fn thread(&self, of: &SelectedThread<'_, '_>) -> TaskLifetime {
        let begin_ns = of
            .slices()
            .next()
            .map_or(Nanos::ZERO, |slice| slice.start_ns);
        let end_ns = of.slices().last().map_or(begin_ns, |slice| slice.end_ns);
        TaskLifetime {
            begin_ns,
            end_ns: self
                .running
                .ended(of.model(), of.thread())
                .then_some(end_ns),
        }
    }

    /// Returns the lifetime of a process with a selected thread.
    pub(super) fn process(&self, id: ProcessId) -> TaskLifetime {
        let unknown = TaskLifetime {
            begin_ns: Nanos::ZERO,
            end_ns: None,
        };
        self.processes.get(&id).copied().unwrap_or(unknown)
    }
}

/// Pid and tid of the threads that had not exited at the end, by the first experiment of the
/// recording. Recordings without exact times, for example from other collectors, are left out.
#[derive(Debug)]
struct RunningAtEnd(FxHashMap<ExperimentId, FxHashSet<(Pid, u64)>>);

impl RunningAtEnd {
    fn of(model: &Model) -> RunningAtEnd {
        let mut running = FxHashMap::default();
        let mut founders: Vec<_> = model.founders().map(|(_, info)| info).collect();
        founders.sort_by_key(|info| info.offset_ns);
        for info in founders {
            // A report warns of a damaged file; for an export it is as if there were none.
            if let Ok(Some(times)) = ExactTimes::read(&info.source) {
                let threads = times.threads.iter().filter(|thread| !thread.ended);
                let threads = threads.map(|thread| (thread.pid, u64::from(thread.tid)));
                // In a series, the last experiment overwrites the others.
                running.insert(info.first, threads.collect());
            }
        }
        RunningAtEnd(running)
    }

    /// Returns whether a thread exited. Short-lived threads have no exact times of their own. Idle
    /// threads (process 0) have none either, and never exit.
    fn ended(&self, model: &Model, thread: &ThreadInfo) -> bool {
        let process = model.process(thread.process);
        let experiment = model.experiments.get(process.experiment as usize);
        let running = experiment.and_then(|experiment| self.0.get(&experiment.first));
        process.pid != Pid(0)
            && running.is_some_and(|running| !running.contains(&(process.pid, thread.tid)))
    }
}
