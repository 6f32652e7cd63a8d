//! Exact times of threads and processes, as the tables of [`super::threads`] and [`super::triage`]
//! show them.
//!
//! They are of the whole run, so a view takes them only where nothing was asked for that only ticks
//! have: a metric, time, CPU, state or function.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use experiment_format::cause::{Cause, WaitKind};
use experiment_format::ids::Pid;
use experiment_format::units::Nanos;
use host::exit::{ExitKind, Failure};
use rustc_hash::FxHashMap;

use super::context::ViewContext;
use super::suffered::is_passed_on;
use crate::load::exact::{ExactSums, ExactTimes, ShortLived, ThreadTimes, sum};
use crate::model::{ExperimentId, ExperimentInfo, GroupKind, Model, ProcessInfo};
use crate::report::table::{Cell, Column};

/// The exact times of one run that pass the filter.
#[derive(Debug)]
pub(super) struct ExactRun {
    founder: ExperimentId,
    /// Threads, each with the name of its process.
    pub threads: Vec<ThreadTimes>,
    /// Threads without times of their own. None pass a filter of processes or threads.
    pub short_lived: Vec<ShortLived>,
}

/// The exact times of a process, or of all short-lived processes of one name.
#[derive(Debug, Clone, Default)]
pub(super) struct ExactProcess {
    /// Position of its run.
    pub run: usize,
    /// Its pid. None: several processes.
    pub pid: Option<Pid>,
    /// Its name.
    pub name: String,
    /// The number of processes.
    pub processes: u64,
    /// The number of their threads.
    pub threads: u64,
    /// Their times.
    pub times: ExactSums,
    /// The part of their waits for children that counts as suffered.
    pub children: Nanos,
    /// Whether all its threads have exited.
    pub ended: bool,
    /// Whether it is the kcollect that made the recording.
    pub is_recorder: bool,
    /// The experiment's name.
    pub experiment: String,
    /// Its command line, if recorded.
    pub command: Option<String>,
    /// What it belongs to, of the kind by which the table is; in words if that is not known.
    pub group: Option<String>,
}

impl ExactProcess {
    /// Returns the name in a table, with the number of processes if there are several.
    pub(super) fn title(&self) -> String {
        let name = match self.name.as_str() {
            "" => "(others)",
            name => name,
        };
        match (self.pid, self.processes) {
            (Some(_), _) => name.to_owned(),
            (None, 0) if self.threads == 1 => format!("{name} (1 thread)"),
            (None, 0) => format!("{name} ({} threads)", self.threads),
            (None, 1) => format!("{name} (1 process)"),
            (None, processes) => format!("{name} ({processes} processes)"),
        }
    }

    /// Returns the time that it suffered, blocked for a cause.
    pub(super) fn suffered_for(&self, cause: Cause) -> Nanos {
        match cause {
            Cause::Child => self.children,
            cause if cause.kind() == WaitKind::Suffered => self.times.of_cause(cause),
            _ => Nanos::ZERO,
        }
    }

    /// Returns the time that it suffered, without waits for a CPU.
    pub(super) fn suffered(&self) -> Nanos {
        sum(Cause::ALL.map(|cause| self.suffered_for(cause)))
    }

    /// Returns the part of it for which there is no row of a child or of another thread.
    pub(super) fn suffered_itself(&self) -> Nanos {
        let causes = Cause::ALL.into_iter().filter(|cause| !is_passed_on(*cause));
        sum(causes.map(|cause| self.suffered_for(cause)))
    }

    /// Returns the cause of most of the time that it suffered, if it did: one that is passed on
    /// only if the others are less than a twentieth.
    pub(super) fn largest_cause(&self) -> Option<Cause> {
        let suffered = self.suffered();
        let itself = self.suffered_itself() >= suffered / 20;
        let causes = Cause::ALL
            .into_iter()
            .filter(|cause| !(itself && is_passed_on(*cause)));
        let most = causes.max_by_key(|cause| (self.suffered_for(*cause), Reverse(*cause)));
        most.filter(|_| suffered > Nanos::ZERO)
    }

    fn add(&mut self, other: &ExactProcess) {
        self.processes = self.processes.saturating_add(other.processes);
        self.threads = self.threads.saturating_add(other.threads);
        self.times.add(&other.times);
        self.children = self.children.saturating_add(other.children);
    }
}

/// Returns the exact times of all runs. None: show ticks.
pub(super) fn runs(context: &ViewContext<'_>) -> Result<Option<Vec<ExactRun>>, Failure> {
    let (model, options) = (context.model, context.options);
    let filter = &options.filter;
    if options.metrics.is_some() || options.sort.is_some() || !filter.only_of_threads() {
        return Ok(None);
    }
    let mut runs = Vec::new();
    for (founder, info) in model.founders() {
        let Some(mut times) = read(info)? else {
            return Ok(None);
        };
        let known = processes_of(model, founder);
        times.threads.retain_mut(|thread| {
            let process = known.get(&thread.pid).map_or_else(
                || ProcessInfo {
                    pid: thread.pid,
                    name: thread.process.clone(),
                    ..ProcessInfo::default()
                },
                |process| (*process).clone(),
            );
            thread.process.clone_from(&process.name);
            let number = u64::from(thread.tid);
            filter.takes(&process)
                && (filter.threads.is_empty() || filter.threads.contains(&number))
        });
        if filter.chooses_processes() || !filter.threads.is_empty() {
            times.short_lived.clear();
        }
        runs.push(ExactRun {
            founder,
            threads: times.threads,
            short_lived: times.short_lived,
        });
    }
    Ok(Some(runs))
}

fn read(info: &ExperimentInfo) -> Result<Option<ExactTimes>, Failure> {
    ExactTimes::read(&info.source).map_err(|error| {
        let hint = "use -m to show ticks instead";
        Failure::new(ExitKind::NoInput, error.to_string(), hint)
    })
}

/// Returns the processes of a run's recording that have ticks, by pid; of several with one pid the
/// last.
fn processes_of(model: &Model, founder: ExperimentId) -> FxHashMap<Pid, &ProcessInfo> {
    let first = model.experiment(founder).first;
    let of_run = |process: &&ProcessInfo| {
        let experiment = ExperimentId(process.experiment);
        model.experiment(experiment).first == first
    };
    let processes = model.processes.iter().filter(of_run);
    processes.map(|process| (process.pid, process)).collect()
}

/// Adds threads up to processes, the busiest first. Short-lived processes of one name are one row.
pub(super) fn processes(
    model: &Model,
    runs: &[ExactRun],
    by: Option<GroupKind>,
) -> Vec<ExactProcess> {
    let unknown = ProcessInfo::default();
    let mut rows = Vec::new();
    for (position, run) in runs.iter().enumerate() {
        let info = model.experiment(run.founder);
        let recorder = info.source.header().pid;
        let known = processes_of(model, run.founder);
        let mut by_pid: BTreeMap<(Pid, &str), ExactProcess> = BTreeMap::new();
        for thread in &run.threads {
            let row = by_pid
                .entry((thread.pid, &thread.process))
                .or_insert_with(|| {
                    let process = known.get(&thread.pid);
                    let experiment =
                        process.map_or(run.founder, |process| ExperimentId(process.experiment));
                    ExactProcess {
                        run: position,
                        pid: Some(thread.pid),
                        name: thread.process.clone(),
                        processes: 1,
                        ended: true,
                        is_recorder: thread.pid == recorder,
                        experiment: model.experiment(experiment).name.clone(),
                        command: process.and_then(|process| process.command_line.clone()),
                        group: by.map(|by| process.unwrap_or(&&unknown).group(by)),
                        ..ExactProcess::default()
                    }
                });
            row.threads += 1;
            row.ended &= thread.ended;
            row.times.add(&thread.times);
        }
        let recorder_name = by_pid
            .values()
            .find(|row| row.is_recorder)
            .map(|row| row.name.clone());
        rows.extend(by_pid.into_values());
        rows.extend(run.short_lived.iter().map(|sums| ExactProcess {
            run: position,
            pid: None,
            name: sums.process.clone(),
            processes: sums.processes,
            threads: sums.threads,
            times: sums.times,
            ended: true,
            // Its threads that start the load.
            is_recorder: sums.processes == 0 && recorder_name.as_ref() == Some(&sums.process),
            experiment: info.name.clone(),
            group: by.map(|by| unknown.group(by)),
            ..ExactProcess::default()
        }));
    }
    for row in &mut rows {
        row.children = row.times.of_cause(Cause::Child);
    }
    sort(&mut rows);
    rows
}

/// Makes one row of the processes that belong together, the busiest first.
pub(super) fn merge_groups(rows: Vec<ExactProcess>) -> Vec<ExactProcess> {
    let mut merged: BTreeMap<String, ExactProcess> = BTreeMap::new();
    for row in rows {
        let name = row.group.clone().unwrap_or_default();
        let sum = merged.entry(name.clone()).or_insert_with(|| ExactProcess {
            name,
            ..ExactProcess::default()
        });
        sum.add(&row);
    }
    let mut rows: Vec<_> = merged.into_values().collect();
    sort(&mut rows);
    rows
}

/// Makes one row of the processes of one name that have exited, if there are several.
pub(super) fn merge_ended(rows: Vec<ExactProcess>) -> Vec<ExactProcess> {
    let mut merged: BTreeMap<(usize, String), Vec<ExactProcess>> = BTreeMap::new();
    let (ended, mut rows): (Vec<_>, Vec<_>) = rows
        .into_iter()
        .partition(|row| row.ended && !row.is_recorder);
    for row in ended {
        merged
            .entry((row.run, row.name.clone()))
            .or_default()
            .push(row);
    }
    for mut same in merged.into_values() {
        let Some(mut sum) = same.pop() else { continue };
        if !same.is_empty() {
            (sum.pid, sum.command) = (None, None);
            same.iter().for_each(|row| sum.add(row));
        }
        rows.push(sum);
    }
    sort(&mut rows);
    rows
}

/// Sorts processes, the busiest first.
fn sort(rows: &mut [ExactProcess]) {
    rows.sort_by(|a, b| {
        let key = |row: &ExactProcess| (Reverse(row.times.busy_ns()), row.pid);
        key(a).cmp(&key(b)).then_with(|| a.name.cmp(&b.name))
    });
}

/// Returns the columns of details.
pub(super) fn detail_columns() -> Vec<Column> {
    vec![
        Column::number("block_io_s", "Block I/O\nsec."),
        Column::number("preempted_s", "Preempted\nsec.").hidden(),
        Column::number("throttled_s", "Throttled\nsec.").hidden(),
        Column::number("stolen_s", "Stolen\nsec.").hidden(),
        Column::number("after_wakeup_s", "After wake-up\nsec.").hidden(),
    ]
}

/// Returns the cells of [`detail_columns`].
pub(super) fn detail_cells(times: &ExactSums) -> Vec<Cell> {
    let detail = times.detail;
    [
        detail.block_io_ns,
        detail.preempted_ns,
        detail.throttled_ns,
        detail.stolen_ns,
        times.after_wakeup(),
    ]
    .map(Cell::Nanoseconds)
    .to_vec()
}
