//! Weighs ticks, so that they add up to the exact times of their threads.
//!
//! Ticks are a sample. For a thread that waits for a disk thousands of times a second they may show
//! two thirds of its CPU time, since its work runs in step with the clock. `threads.jsonl` has the
//! exact time of each thread in each state, about once a second. So each tick gets the exact time
//! of its state divided by the ticks there, as the ratio estimator of a survey:
//!
//! ```text
//! samples            |        1 s        |        1 s        |        1 s        |
//! exact, on a CPU           600 ms              80 ms               40 ms
//! cells              [   one cell        ][             one cell                 ]
//! ticks of 10 ms      . .. ...  (40)             .  .            ..   .  (10)
//! each stands for           15 ms                        12 ms
//! ```
//!
//! A cell is the exact time of one thread in one state between samples. With less time than
//! [`MIN_TICKS`] ticks it is continued until the next sample: the fewer ticks, the less they say,
//! and a cell without any would take its time away from the functions that the thread was in. A
//! thread that has less than that in its whole life shares cells with the other such threads of
//! processes of the same name. A cell that has no ticks even so becomes a row with the function
//! `<not sampled>`.
//!
//! User, system and trap time are one state here: on a CPU. Only their sum is exact; the split
//! comes from the weighed ticks.

use std::collections::BTreeMap;
use std::sync::Arc;

use experiment_format::Error;
use experiment_format::ids::{Pid, Tid};
use experiment_format::log::ProfileDecl;
use experiment_format::microstate::{Microstate, NumStates};
use experiment_format::reader::Experiment;
use experiment_format::units::Nanos;
use rustc_hash::FxHashMap;

use super::exact::{self, States, lines};
use super::{Loader, MAX_EARLY_NS, MAX_SUM, MAX_TIME_NS, names};
use crate::model::{
    CpuId, ExperimentId, Model, NOT_SAMPLED, ProcessId, ProcessInfo, StackId, ThreadId, ThreadInfo,
    TickRow,
};

/// A cell is closed by the next sample when it has the exact time of this many ticks. By chance
/// alone, one of 22,000 such cells has no tick.
const MIN_TICKS: u64 = 10;
/// The states whose exact times are known: on a CPU, and the seven off it.
const EXACT_STATES: usize = Microstate::PER_THREAD - 2;
/// No thread, no cell.
const NONE: u32 = u32::MAX;

/// Exact time that a number of ticks stand for.
#[derive(Debug, Default, Clone, Copy)]
struct Cell {
    exact_ns: u64,
    /// The time of the ticks in it.
    sampled_ns: u64,
    /// The part of it that has been weighed.
    weighed_ns: u64,
    /// Whether several threads share it.
    shared: bool,
}

impl Cell {
    /// Returns the exact time for which the next `sampled_ns` of ticks stand. All of a cell's are
    /// its exact time, to the nanosecond.
    fn weigh(&mut self, sampled_ns: u64) -> u64 {
        let share = |ns: u64| {
            let share = u128::from(self.exact_ns) * u128::from(ns);
            (share / u128::from(self.sampled_ns.max(1))) as u64
        };
        let before = share(self.weighed_ns);
        self.weighed_ns = self.weighed_ns.saturating_add(sampled_ns);
        share(self.weighed_ns) - before
    }
}

/// A range of time in which the ticks of a thread, or of several, belong to one cell. It begins
/// where the one before it ends.
#[derive(Debug, Clone, Copy)]
struct Span {
    /// Since the start of the experiment.
    end_ns: u64,
    cell: u32,
}

/// The spans of one thread, or of all processes of one name, in each state.
type Spans = [Vec<Span>; EXACT_STATES];

/// Calls `visit` with the cell of each part of the time from `begin_ns` to `end_ns`. What is before
/// the first span or after the last one belongs to that.
fn parts(spans: &[Span], begin_ns: u64, end_ns: u64, mut visit: impl FnMut(u32, u64)) {
    let mut at = spans.partition_point(|span| span.end_ns < end_ns);
    at = at.min(spans.len().saturating_sub(1));
    let mut until = end_ns;
    while let Some(span) = spans.get(at) {
        let before = at.checked_sub(1).map(|at| spans[at].end_ns);
        let from = before.map_or(begin_ns, |before| before.clamp(begin_ns, until));
        visit(span.cell, until - from);
        until = from;
        if until <= begin_ns || at == 0 {
            break;
        }
        at -= 1;
    }
}

/// The position of a state's exact time. None: a tick of a CPU, or of another collector.
fn exact_state(state: u8) -> Option<usize> {
    let off_cpu = usize::from(state).checked_sub(Microstate::TextFault as usize);
    match off_cpu {
        None => Some(0),
        Some(off_cpu) if usize::from(state) < Microstate::PER_THREAD => Some(off_cpu + 1),
        Some(_) => None,
    }
}

/// The state of the rows without a tick. As in the tables of threads, on a CPU that is system time:
/// a thread that is too short for a tick spends most of its time in fork and exit.
fn unsampled_state(exact_state: usize) -> u8 {
    match exact_state {
        0 => Microstate::System as u8,
        off_cpu => (off_cpu - 1) as u8 + Microstate::TextFault as u8,
    }
}

/// Returns the nanoseconds of each state whose exact time is known.
fn exact_times(states: &States) -> [u64; EXACT_STATES] {
    let mut times = [0_u64; EXACT_STATES];
    for (state, ns) in (0..).zip(states) {
        if let Some(at) = exact_state(state) {
            times[at] = times[at].saturating_add(ns.0);
        }
    }
    times
}

/// The lines of a thread so far.
#[derive(Debug)]
struct Account {
    /// Position of the name of its process in [`ExactCells::names`].
    process: u32,
    at_ns: u64,
    /// The state that it is in.
    state: usize,
    ended: bool,
    times: [u64; EXACT_STATES],
    /// The time since the last cell. It may be less than nothing: what a sample counted as sleep
    /// may turn out to have been a wait for a CPU.
    open_ns: [i64; EXACT_STATES],
    /// The number of spans when its life began: a number of a thread may be used again.
    first: [usize; EXACT_STATES],
    spans: Spans,
}

/// Time of a thread that has too little for a cell, or of short-lived threads.
#[derive(Debug, Clone, Copy)]
struct Small {
    end_ns: u64,
    exact_ns: u64,
    /// The thread and the position of its span.
    span: Option<(u32, usize)>,
}

/// The exact times of a founder's threads, as cells for their ticks.
#[derive(Debug, Default)]
pub(super) struct ExactCells {
    cells: Vec<Cell>,
    threads: FxHashMap<(Pid, Tid), u32>,
    accounts: Vec<Account>,
    /// The names of processes, with the spans of their small threads.
    names: Vec<(String, Spans)>,
    name_numbers: FxHashMap<String, u32>,
    /// The time up to which times are known.
    end_ns: u64,
    /// The number of lines with impossible times.
    impossible: u64,
}

impl ExactCells {
    /// Reads the times of an experiment with ticks of this length. None: it has none.
    ///
    /// # Errors
    /// When the file cannot be read.
    fn read(source: &Experiment, tick_ns: Nanos) -> Result<Option<ExactCells>, Error> {
        let bytes = exact::read(source)?;
        Ok(bytes.map(|bytes| ExactCells::parse(&bytes, tick_ns)))
    }

    fn parse(bytes: &[u8], tick_ns: Nanos) -> ExactCells {
        let mut all = ExactCells::default();
        let min_ns = tick_ns.0.saturating_mul(MIN_TICKS).max(1);
        let mut small = BTreeMap::new();
        // Short-lived threads since the last sample.
        let mut short_lived: Vec<(u32, [u64; EXACT_STATES])> = Vec::new();
        for line in lines(bytes) {
            let times = exact_times(&line.states());
            let at_ns = line.at_ns.unwrap_or_default();
            let lived = times
                .iter()
                .fold(Nanos::ZERO, |sum, ns| sum.saturating_add(Nanos(*ns)));
            if line.short_lived.is_some() {
                short_lived.push((all.name(line.process()), times));
                continue;
            }
            // A sample has the sums of all threads.
            let impossible = line.sample.is_none() && lived > at_ns + MAX_EARLY_NS;
            if impossible || at_ns >= MAX_TIME_NS {
                all.impossible += 1;
                continue;
            }
            all.end_ns = all.end_ns.max(at_ns.0);
            if line.sample.is_some() {
                all.add_short_lived(&mut short_lived, &mut small);
            }
            if let (Some(pid), Some(tid)) = (line.pid, line.tid) {
                let process = all.name(line.process());
                let state = exact_state(line.slot() as u8).unwrap_or(0);
                let thread = all.thread((pid, tid), process);
                let account = &mut all.accounts[thread as usize];
                (account.process, account.state) = (process, state);
                all.add(thread, at_ns.0, &times, min_ns);
                if line.ended {
                    all.end_life(thread, &mut small);
                }
            }
        }
        all.add_short_lived(&mut short_lived, &mut small);
        // Since its last line, a thread has been in that line's state.
        for thread in 0..all.accounts.len() as u32 {
            let account = &all.accounts[thread as usize];
            if !account.ended {
                let mut times = account.times;
                let rest = all.end_ns.saturating_sub(account.at_ns);
                times[account.state] = times[account.state].saturating_add(rest);
                all.add(thread, all.end_ns, &times, min_ns);
                all.end_life(thread, &mut small);
            }
        }
        all.share(small, min_ns);
        all
    }

    /// Returns the number of a process's name.
    fn name(&mut self, name: &str) -> u32 {
        if let Some(known) = self.name_numbers.get(name) {
            return *known;
        }
        let next = self.names.len() as u32;
        self.name_numbers.insert(name.to_owned(), next);
        self.names.push((name.to_owned(), Spans::default()));
        next
    }

    /// Returns the number of a thread, which has begun a new life if its last one has ended.
    fn thread(&mut self, key: (Pid, Tid), process: u32) -> u32 {
        let next = self.accounts.len() as u32;
        let thread = *self.threads.entry(key).or_insert(next);
        if thread == next {
            self.accounts.push(Account {
                process,
                at_ns: 0,
                state: 0,
                ended: false,
                times: [0; EXACT_STATES],
                open_ns: [0; EXACT_STATES],
                first: [0; EXACT_STATES],
                spans: Spans::default(),
            });
        }
        let account = &mut self.accounts[thread as usize];
        if account.ended {
            account.ended = false;
            account.times = [0; EXACT_STATES];
            account.first = std::array::from_fn(|at| account.spans[at].len());
        }
        thread
    }

    /// Adds the times of a thread up to an instant.
    fn add(&mut self, thread: u32, at_ns: u64, times: &[u64; EXACT_STATES], min_ns: u64) {
        let account = &mut self.accounts[thread as usize];
        account.at_ns = account.at_ns.max(at_ns);
        for (at, now) in times.iter().enumerate() {
            let before = std::mem::replace(&mut account.times[at], *now);
            // Both are below MAX_TIME_NS and MAX_EARLY_NS together.
            account.open_ns[at] += now.cast_signed() - before.cast_signed();
            let open_ns = u64::try_from(account.open_ns[at]).unwrap_or(0);
            if open_ns >= min_ns {
                account.open_ns[at] = 0;
                account.spans[at].push(Span {
                    end_ns: account.at_ns,
                    cell: self.cells.len() as u32,
                });
                self.cells.push(Cell {
                    exact_ns: open_ns,
                    ..Cell::default()
                });
            }
        }
    }

    /// Gives the time since the last cell of a thread to that cell, or, if the thread has none, to
    /// the small ones.
    fn end_life(&mut self, thread: u32, small: &mut BTreeMap<(u32, usize), Vec<Small>>) {
        let account = &mut self.accounts[thread as usize];
        account.ended = true;
        for at in 0..EXACT_STATES {
            let open_ns = std::mem::take(&mut account.open_ns[at]);
            let (spans, first) = (&mut account.spans[at], account.first[at]);
            let has_cell = spans.len() > first;
            match spans.last_mut().filter(|_| has_cell) {
                Some(last) => {
                    last.end_ns = account.at_ns;
                    let cell = &mut self.cells[last.cell as usize];
                    cell.exact_ns = cell.exact_ns.saturating_add_signed(open_ns);
                }
                None if open_ns > 0 => {
                    small.entry((account.process, at)).or_default().push(Small {
                        end_ns: account.at_ns,
                        exact_ns: open_ns.unsigned_abs(),
                        span: Some((thread, spans.len())),
                    });
                    spans.push(Span {
                        end_ns: account.at_ns,
                        cell: NONE,
                    });
                }
                None => {}
            }
        }
    }

    /// Adds short-lived threads that ended before the last sample.
    fn add_short_lived(
        &self,
        threads: &mut Vec<(u32, [u64; EXACT_STATES])>,
        small: &mut BTreeMap<(u32, usize), Vec<Small>>,
    ) {
        for (process, times) in threads.drain(..) {
            for (at, exact_ns) in times.into_iter().enumerate().filter(|(_, ns)| *ns > 0) {
                small.entry((process, at)).or_default().push(Small {
                    end_ns: self.end_ns,
                    exact_ns,
                    span: None,
                });
            }
        }
    }

    /// Makes cells of what is too small for cells of its own, for each name of processes.
    fn share(&mut self, small: BTreeMap<(u32, usize), Vec<Small>>, min_ns: u64) {
        for ((process, at), mut parts) in small {
            parts.sort_by_key(|part| (part.end_ns, part.span));
            let spans = &mut self.names[process as usize].1[at];
            let mut open_ns = min_ns;
            let all_ns = parts
                .iter()
                .fold(0_u64, |sum, part| sum.saturating_add(part.exact_ns));
            let mut left_ns = all_ns;
            for part in parts {
                // The rest is too small for another cell.
                if open_ns >= min_ns && (left_ns >= min_ns || spans.is_empty()) {
                    open_ns = 0;
                    spans.push(Span {
                        end_ns: 0,
                        cell: self.cells.len() as u32,
                    });
                    self.cells.push(Cell {
                        shared: true,
                        ..Cell::default()
                    });
                }
                open_ns = open_ns.saturating_add(part.exact_ns);
                left_ns = left_ns.saturating_sub(part.exact_ns);
                let Some(last) = spans.last_mut() else {
                    continue;
                };
                last.end_ns = part.end_ns;
                let cell = &mut self.cells[last.cell as usize];
                cell.exact_ns = cell.exact_ns.saturating_add(part.exact_ns);
                if let Some((thread, position)) = part.span {
                    self.accounts[thread as usize].spans[at][position].cell = last.cell;
                }
            }
        }
    }

    /// Returns the exact time of all threads, microseconds.
    fn sum_us(&self) -> u64 {
        let sum: u128 = self
            .cells
            .iter()
            .map(|cell| u128::from(cell.exact_ns))
            .sum();
        u64::try_from(sum / 1000).unwrap_or(u64::MAX)
    }

    /// Returns the number under which the cells of a thread are kept. A thread that was too
    /// short-lived for times of its own shares the number of its process's name; these follow the
    /// threads' numbers.
    fn number(&self, key: (Pid, u64), process: &str) -> u32 {
        let (pid, tid) = key;
        let thread = u32::try_from(tid).ok();
        let thread = thread.and_then(|tid| self.threads.get(&(pid, Tid(tid))).copied());
        // A sample has times for at most 64 names; the others have no number.
        let names = [process, ""].into_iter();
        let mut names = names.filter_map(|name| self.name_numbers.get(name));
        let name = || names.next().map(|name| self.accounts.len() as u32 + name);
        thread.or_else(name).unwrap_or(NONE)
    }

    /// Returns the spans of a number's ticks in a state.
    fn spans(&self, number: u32, at: usize) -> Option<&[Span]> {
        let number = number as usize;
        if let Some(account) = self.accounts.get(number) {
            return Some(&account.spans[at]);
        }
        let (_, spans) = self.names.get(number - self.accounts.len())?;
        (!spans[at].is_empty()).then_some(&*spans[at])
    }
}

/// Reads the exact times of the experiments that may have some, with the length of their ticks.
pub(super) fn read_all(
    experiments: &[Option<(Arc<Experiment>, Nanos)>],
) -> Vec<Result<Option<ExactCells>, Error>> {
    let each = experiments.iter().map(|experiment| match experiment {
        Some((source, tick_ns)) => ExactCells::read(source, *tick_ns),
        None => Ok(None),
    });
    each.collect()
}

/// A founder whose ticks are weighed.
struct Weighed {
    cells: ExactCells,
    /// By the model's threads: [`ExactCells::number`].
    threads: Vec<u32>,
    /// Nanoseconds that were too few for a microsecond, by state.
    rest_ns: [u64; EXACT_STATES],
    /// The start of the experiment, since the start of the recording.
    offset_ns: u64,
    has_all_data: bool,
}

impl Weighed {
    /// Calls `visit` with the parts of a row by cell, and with what is in none. Returns the
    /// position of its exact time; None: the row is not weighed.
    fn parts(&self, row: &TickRow, tick_us: u32, mut visit: impl FnMut(u32, u64)) -> Option<usize> {
        let at = exact_state(row.state)?;
        let ticks = u64::try_from(row.ticks).ok().filter(|ticks| *ticks > 0)?;
        let length = ticks * u64::from(tick_us) * 1000;
        let begin = row.time_ns.0.saturating_sub(self.offset_ns);
        let begin = begin.saturating_sub(length);
        // What was before the start of the experiment counts as just after it.
        let end = begin + length;
        let thread = self.threads[row.thread.index()];
        let Some(spans) = self.cells.spans(thread, at) else {
            visit(NONE, length);
            return Some(at);
        };
        // What is later than all exact times is not known yet.
        let known = if self.has_all_data {
            end
        } else {
            end.min(self.cells.end_ns.max(begin))
        };
        visit(NONE, end - known);
        if known > begin {
            parts(spans, begin, known, visit);
        }
        Some(at)
    }

    /// Adds a row to the ticks of its cells.
    fn count(&mut self, row: &TickRow, tick_us: u32) {
        let mut cells = std::mem::take(&mut self.cells.cells);
        self.parts(row, tick_us, |cell, ns| {
            if let Some(cell) = cells.get_mut(cell as usize) {
                cell.sampled_ns = cell.sampled_ns.saturating_add(ns);
            }
        });
        self.cells.cells = cells;
    }

    /// Sets the time of a row.
    fn weigh(&mut self, row: &mut TickRow, tick_us: u32) {
        let mut cells = std::mem::take(&mut self.cells.cells);
        let mut exact_ns = 0_u64;
        let at = self.parts(row, tick_us, |cell, ns| {
            let cell = cells.get_mut(cell as usize);
            exact_ns = exact_ns.saturating_add(cell.map_or(ns, |cell| cell.weigh(ns)));
        });
        self.cells.cells = cells;
        if let Some(at) = at {
            row.micros = self.micros(at, exact_ns);
        }
    }

    /// Returns the microseconds of the next time in a state. All of them are the exact time.
    fn micros(&mut self, at: usize, exact_ns: u64) -> i64 {
        let ns = exact_ns.saturating_add(self.rest_ns[at]);
        self.rest_ns[at] = ns % 1000;
        i64::try_from(ns / 1000).unwrap_or(i64::MAX)
    }
}

impl Loader {
    /// Returns, for each experiment that may have exact times, its source and the length of its
    /// ticks.
    pub(super) fn with_exact_times(&self) -> Vec<Option<(Arc<Experiment>, Nanos)>> {
        let all = (0..).map(ExperimentId).zip(&self.model.experiments);
        let of = all.map(|(id, info)| {
            let tick_ns = Nanos::from_micros(info.tick_us.into());
            (info.founder == id && records_threads(&info.source))
                .then(|| (Arc::clone(&info.source), tick_ns))
        });
        of.collect()
    }

    /// Weighs all ticks, and adds rows for what was never sampled.
    pub(super) fn weigh(&mut self, exact: Vec<Result<Option<ExactCells>, Error>>) {
        let expected = self.with_exact_times();
        let mut left_us = MAX_SUM;
        let mut founders = Vec::new();
        for ((id, cells), expected) in (0..).map(ExperimentId).zip(exact).zip(expected) {
            let path = || self.model.experiment(id).source.path().display();
            let problem = match &cells {
                Err(error) => Some((error.to_string(), true)),
                Ok(None) if expected.is_some() && self.has_ticks_of_threads(id) => {
                    let what = "exact times of threads are missing, so times are ticks";
                    Some((format!("{}: {what}", path()), false))
                }
                Ok(Some(cells)) if cells.sum_us() > left_us => {
                    let what = "impossible times of threads; times are ticks";
                    Some((format!("{}/threads.jsonl: {what}", path()), true))
                }
                Ok(Some(cells)) if cells.impossible > 0 => {
                    let what = "lines with impossible times were skipped";
                    let count = cells.impossible;
                    Some((format!("{}/threads.jsonl: {count} {what}", path()), true))
                }
                Ok(_) => None,
            };
            match problem {
                Some((problem, true)) => self.model.leave_out(problem),
                Some((problem, false)) => self.model.warnings.push(problem),
                None => {}
            }
            let cells = cells
                .ok()
                .flatten()
                .filter(|cells| cells.sum_us() <= left_us);
            left_us -= cells.as_ref().map_or(0, ExactCells::sum_us);
            founders.push(cells.map(|cells| self.weighed(id, cells)));
        }
        if founders.iter().all(Option::is_none) {
            return;
        }
        self.model.weighed = true;
        let mut rows = std::mem::take(&mut self.model.rows);
        let model = &self.model;
        for row in &rows {
            let info = model.experiment(row.experiment);
            let Some(founder) = &mut founders[info.founder.index()] else {
                continue;
            };
            founder.count(row, info.tick_us);
        }
        // The CPU that each thread was seen on last.
        let mut cpus = vec![None; model.threads.len()];
        for row in &mut rows {
            let info = model.experiment(row.experiment);
            let Some(founder) = &mut founders[info.founder.index()] else {
                continue;
            };
            cpus[row.thread.index()] = Some(row.cpu);
            founder.weigh(row, info.tick_us);
        }
        self.model.rows = rows;
        for (id, founder) in (0..).map(ExperimentId).zip(founders) {
            if let Some(founder) = founder {
                self.add_unsampled(id, founder, &cpus);
            }
        }
    }

    /// Returns whether there are ticks of threads in a founder or its subexperiments.
    fn has_ticks_of_threads(&self, founder: ExperimentId) -> bool {
        let mut rows = self.model.rows.iter();
        rows.any(|row| {
            let own = self.model.experiment(row.experiment).founder == founder;
            own && exact_state(row.state).is_some()
        })
    }

    fn weighed(&self, id: ExperimentId, cells: ExactCells) -> Weighed {
        let info = self.model.experiment(id);
        let threads = self.model.threads.iter().map(|thread| {
            let process = self.model.process(thread.process);
            cells.number((process.pid, thread.tid), &process.name)
        });
        Weighed {
            threads: threads.collect(),
            cells,
            rest_ns: [0; EXACT_STATES],
            offset_ns: info.offset_ns.0,
            has_all_data: info.source.has_all_data(),
        }
    }

    /// Adds rows for the cells without ticks.
    fn add_unsampled(&mut self, id: ExperimentId, mut founder: Weighed, cpus: &[Option<CpuId>]) {
        let Weighed { cells, threads, .. } = &founder;
        let mut missing: Vec<(Owner, usize, Span)> = Vec::new();
        let mut of = |owner: Owner, spans: &Spans, shared: bool| {
            for (at, spans) in spans.iter().enumerate() {
                // While an experiment is being written, the ticks of a sleep come at the end of the
                // sleep.
                if at > 0 && !founder.has_all_data {
                    continue;
                }
                missing.extend(spans.iter().filter_map(|span| {
                    let cell = &cells.cells[span.cell as usize];
                    let is_missing =
                        cell.shared == shared && cell.sampled_ns == 0 && cell.exact_ns > 0;
                    is_missing.then_some((owner, at, *span))
                }));
            }
        };
        let mut keys = vec![(Pid(0), Tid(0)); cells.accounts.len()];
        for (key, account) in &cells.threads {
            keys[*account as usize] = *key;
        }
        let mut ids = vec![None; cells.accounts.len()];
        for (thread, account) in (0..).map(ThreadId).zip(threads) {
            if let Some(id) = ids.get_mut(*account as usize) {
                *id = Some(thread);
            }
        }
        for (account, (key, id)) in cells.accounts.iter().zip(keys.into_iter().zip(ids)) {
            let (pid, tid) = key;
            of(Owner::Thread(pid, tid, id), &account.spans, false);
        }
        for (number, (_, spans)) in (0..).zip(&cells.names) {
            of(Owner::Process(number), spans, true);
        }
        if missing.is_empty() {
            return;
        }
        let frame = self.resolver.special(&mut self.model, NOT_SAMPLED, 0);
        let stack = self.model.stacks.child(StackId::EMPTY, frame);
        let names = names(&self.model.experiment(id).source);
        let mut processes: FxHashMap<u32, ThreadId> = FxHashMap::default();
        for (owner, at, span) in missing {
            // The last instant of its time, and not the first one after it.
            let last_ns = span.end_ns.saturating_sub(1);
            let time_ns = Nanos(last_ns.saturating_add(founder.offset_ns));
            let thread = match owner {
                Owner::Thread(.., Some(known)) => known,
                Owner::Thread(pid, tid, None) => {
                    self.thread(id, &names, (u64::from(tid), Some(pid)), time_ns)
                }
                Owner::Process(number) => *processes.entry(number).or_insert_with(|| {
                    let name = &founder.cells.names[number as usize].0;
                    short_lived(&mut self.model, id, name, time_ns)
                }),
            };
            let known = cpus.get(thread.index()).copied().flatten();
            let first = self.model.cpus.first().map(|_| CpuId(0));
            let cpu = known.or(first).unwrap_or_else(|| self.cpu(0));
            let exact_ns = founder.cells.cells[span.cell as usize].exact_ns;
            self.model.rows.push(TickRow {
                time_ns,
                stack,
                thread,
                experiment: id,
                cpu,
                ticks: 0,
                micros: founder.micros(at, exact_ns),
                state: unsampled_state(at),
                detail: 0,
                cause: 0,
                waker: 0,
            });
        }
    }
}

/// Whose time a cell is.
#[derive(Clone, Copy)]
enum Owner {
    /// A thread's, which the model may have.
    Thread(Pid, Tid, Option<ThreadId>),
    /// Several threads', by the position of their processes' name.
    Process(u32),
}

/// Adds a thread that stands for all small threads of the processes of one name.
fn short_lived(model: &mut Model, id: ExperimentId, name: &str, time_ns: Nanos) -> ThreadId {
    let name = match name {
        "" => "(others)",
        name => name,
    };
    let process = ProcessId(model.processes.len() as u32);
    model.processes.push(ProcessInfo {
        name: name.to_owned(),
        experiment: id.0,
        seen_ns: Some((time_ns, time_ns)),
        ..ProcessInfo::default()
    });
    model.threads.push(ThreadInfo {
        tid: 0,
        name: name.to_owned(),
        process,
    });
    ThreadId(model.threads.len() as u32 - 1)
}

/// Returns whether an experiment has ticks of threads in all states.
fn records_threads(source: &Experiment) -> bool {
    let mut profiles = source.header().profiles.iter();
    profiles.any(|profile| {
        matches!(
            profile,
            ProfileDecl::Clock {
                states: NumStates::Solaris,
                ..
            }
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const TICK_US: u32 = 10_000;

    /// A line of thread 7, with milliseconds on a CPU and asleep.
    fn line(tid: u32, at: u64, on_cpu: u64, sleep: u64, ended: bool) -> String {
        let (at, on_cpu, sleep) = (at * MS, on_cpu * MS, sleep * MS);
        format!(
            r#"{{"pid":7,"tid":{tid},"name":"load","at_ns":{at},"state":"sleep","ended":{ended},"states_ns":{{"user":{on_cpu},"sleep":{sleep}}}}}"#
        )
    }

    fn sample(at: u64) -> String {
        format!(r#"{{"sample":1,"at_ns":{}}}"#, at * MS)
    }

    fn cells(lines: &[String]) -> ExactCells {
        let tick_ns = Nanos::from_micros(TICK_US.into());
        ExactCells::parse(lines.join("\n").as_bytes(), tick_ns)
    }

    /// Weighs rows of (thread, state, end in milliseconds, ticks), of which thread 0 is not known
    /// by a number. Returns milliseconds, and what was never sampled.
    fn weighed(cells: ExactCells, rows: &[(u32, Microstate, u64, i32)]) -> (Vec<f64>, f64) {
        let known = [0, 7, 8, 9].map(|tid| cells.number((Pid(7), tid), "load"));
        let mut founder = Weighed {
            threads: known.into(),
            cells,
            rest_ns: [0; EXACT_STATES],
            offset_ns: 0,
            has_all_data: true,
        };
        let rows = rows.iter().map(|(thread, state, at, ticks)| TickRow {
            time_ns: Nanos(at * MS),
            stack: StackId::EMPTY,
            thread: ThreadId(*thread),
            experiment: ExperimentId(0),
            cpu: CpuId(0),
            ticks: *ticks,
            micros: -1,
            state: *state as u8,
            detail: 0,
            cause: 0,
            waker: 0,
        });
        let mut rows: Vec<_> = rows.collect();
        for row in &rows {
            founder.count(row, TICK_US);
        }
        for row in &mut rows {
            founder.weigh(row, TICK_US);
        }
        let missing = founder.cells.cells.iter();
        let missing = missing.filter(|cell| cell.sampled_ns == 0);
        let missing: u64 = missing.map(|cell| cell.exact_ns).sum();
        let rows = rows.iter().map(|row| row.micros as f64 / 1e3);
        (rows.collect(), missing as f64 / MS as f64)
    }

    use Microstate::{DataFault, KernelCpu, Sleep, System, User};

    #[test]
    fn ticks_of_a_second_are_its_exact_time() {
        // 600 ms of the first second, 300 ms of the next, in user and system mode together.
        let cells = cells(&[
            line(7, 1000, 600, 400, false),
            line(7, 2000, 900, 1100, true),
            sample(2000),
        ]);
        let rows = [
            (1, User, 300, 10),
            (1, System, 900, 30),
            (1, User, 1500, 15),
            // A sleep through the sample: 400 ms before it and 700 ms after it.
            (1, Sleep, 1300, 80),
            (1, Sleep, 2000, 30),
            (1, KernelCpu, 500, 3),
        ];
        let (times, missing) = weighed(cells, &rows);
        assert_eq!(missing, 0.0);
        assert_eq!(times[..3], [150.0, 450.0, 300.0]);
        // 50 ticks before the sample have 400 ms, and 60 after it 700 ms.
        let part = 700.0 / 60.0;
        let expected = [400.0 + 30.0 * part, 30.0 * part];
        for (time, expected) in times[3..5].iter().zip(expected) {
            assert!((time - expected).abs() < 0.002, "{time} {expected}");
        }
        assert_eq!(times[3] + times[4], 1100.0);
        // Ticks of CPUs are not weighed.
        assert_eq!(times[5], -0.001);
    }

    #[test]
    fn little_time_waits_for_more_ticks() {
        // 30 ms in each second, with 9 ticks in the first and 3 in the others: cells of 4 and 5 s.
        let seconds = 1..=9;
        let mut lines: Vec<_> = seconds
            .map(|s| line(7, 1000 * s, 30 * s, 970 * s, s == 9))
            .collect();
        lines.push(sample(9000));
        let rows = [(1, User, 500, 9), (1, User, 3500, 1), (1, User, 8500, 5)];
        let (times, missing) = weighed(cells(&lines), &rows);
        assert_eq!(times, [108.0, 12.0, 150.0]);
        // Its sleep has no tick.
        assert_eq!(missing, 970.0 * 9.0);
    }

    #[test]
    fn a_cell_without_ticks_is_not_sampled() {
        let lines = [
            line(7, 1000, 500, 500, false),
            line(7, 2000, 1000, 1000, false),
            line(7, 3000, 1010, 1990, false),
            sample(4000),
        ];
        // In step: none of 500 ms. The last 10 ms are of the cell before.
        let rows = [(1, User, 1500, 40), (1, Sleep, 3990, 100)];
        let (times, missing) = weighed(cells(&lines), &rows);
        assert_eq!(times[0], 510.0);
        assert_eq!(missing, 1000.0 + 500.0);
        assert_eq!(times[0] + times[1] + missing, 4000.0);
    }

    #[test]
    fn threads_with_few_ticks_share_them() {
        // Fifty threads of 6 ms each, two short-lived ones, and one of another name.
        let mut lines: Vec<_> = (0..50)
            .map(|n| line(100 + n, 20 * u64::from(n), 6, 0, true))
            .collect();
        lines.push(line(8, 990, 6, 0, true));
        lines.push(
            r#"{"short_lived":2,"process":"load","states_ns":{"system":4000000}}"#.to_owned(),
        );
        lines.push(
            r#"{"short_lived":1,"process":"other","states_ns":{"system":3000000}}"#.to_owned(),
        );
        lines.push(sample(1000));
        let cells = cells(&lines);
        assert_eq!(cells.sum_us(), 51 * 6000 + 4000 + 3000);
        // One of a thread with a line, one of a thread without.
        let (times, missing) = weighed(cells, &[(2, User, 990, 1), (0, System, 995, 1)]);
        assert_eq!(times[0], times[1]);
        // Three cells: two have no tick.
        assert!(
            (times[0] * 2.0 + missing - 313.0).abs() < 0.002,
            "{times:?} {missing}"
        );
    }

    #[test]
    fn a_number_that_is_used_again_is_another_thread() {
        let lines = [
            line(7, 1000, 200, 0, true),
            line(7, 2000, 300, 0, true),
            sample(2000),
        ];
        let rows = [(1, User, 500, 10), (1, User, 1500, 10)];
        assert_eq!(weighed(cells(&lines), &rows).0, [200.0, 300.0]);
    }

    #[test]
    fn time_that_is_taken_back_does_not_change_the_sum() {
        let lines = [
            line(7, 1000, 500, 500, false),
            line(7, 2000, 480, 1520, false),
            line(7, 3000, 600, 2400, true),
            sample(3000),
        ];
        let rows = [(1, User, 500, 50), (1, User, 2500, 20)];
        let times = weighed(cells(&lines), &rows).0;
        assert_eq!(times.iter().sum::<f64>(), 600.0);
    }

    #[test]
    fn a_state_without_exact_time_has_none() {
        let lines = [line(7, 1000, 1000, 0, true), sample(1000)];
        let rows = [(1, User, 500, 90), (1, DataFault, 600, 1)];
        assert_eq!(weighed(cells(&lines), &rows).0, [1000.0, 0.0]);
        // Ticks count for a thread that is in no line, and shares its name with no other.
        let rows = [(3, User, 500, 2)];
        assert_eq!(weighed(ExactCells::default(), &rows).0, [20.0]);
    }

    #[test]
    fn impossible_times_are_skipped() {
        let lines = [
            line(7, 1000, 1_000_000, 0, false),
            line(7, 1000, 1000, 0, false),
            sample(1000),
        ];
        let cells = cells(&lines);
        assert_eq!((cells.impossible, cells.sum_us()), (1, 1_000_000));
    }

    #[test]
    fn parts_of_a_row_are_all_of_it() {
        let span = |end_ns, cell| Span { end_ns, cell };
        let spans = [span(10, 0), span(20, 1), span(30, 2)];
        let of = |begin, end| {
            let mut found = Vec::new();
            parts(&spans, begin, end, |cell, ns| found.push((cell, ns)));
            found
        };
        assert_eq!(of(12, 18), [(1, 6)]);
        assert_eq!(of(0, 30), [(2, 10), (1, 10), (0, 10)]);
        assert_eq!(of(5, 25), [(2, 5), (1, 10), (0, 5)]);
        assert_eq!(of(35, 45), [(2, 10)]);
        assert_eq!(of(25, 45), [(2, 20)]);
        assert_eq!(of(10, 20), [(1, 10)]);
        assert_eq!(of(20, 20), [(1, 0)]);
    }

    #[test]
    fn states_are_numbered_once() {
        let states: Vec<_> = (0..Microstate::PER_THREAD as u8)
            .map(|state| exact_state(state).unwrap())
            .collect();
        assert_eq!(states, [0, 0, 0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(
            (exact_state(10), exact_state(11), exact_state(255)),
            (None, None, None)
        );
        for at in 0..EXACT_STATES {
            assert_eq!(exact_state(unsampled_state(at)), Some(at));
        }
    }

    proptest::proptest! {
        /// All rows and all that was never sampled are the exact time, but for a nanosecond.
        #[test]
        fn weights_add_up(
            seconds in proptest::collection::vec((0_u64..1000, 0_u64..2), 1..20),
            rows in proptest::collection::vec((0_u64..20_000, 1_i32..200, 0_usize..2), 1..50),
        ) {
            let (mut on_cpu, mut at) = (0, 0);
            let mut lines = Vec::new();
            for (number, (ms, gap)) in seconds.iter().enumerate() {
                on_cpu += ms;
                at += 1000 * (gap + 1);
                let last = number + 1 == seconds.len();
                lines.push(line(7, at, on_cpu, at - on_cpu, last));
            }
            lines.push(sample(at));
            let rows: Vec<_> = rows
                .iter()
                .map(|(end, ticks, state)| (1, [User, Sleep][*state], *end, *ticks))
                .collect();
            let (times, missing) = weighed(cells(&lines), &rows);
            let sum: f64 = times.iter().sum::<f64>() + missing;
            proptest::prop_assert!((sum - at as f64).abs() < 0.01, "{} {}", sum, at);
        }

        #[test]
        fn any_bytes_are_taken(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..300)) {
            let _ = cells(&[String::from_utf8_lossy(&bytes).into_owned()]);
        }
    }
}
