//! The ticks that are exported: those that pass a filter, by thread and in the order of time.
//!
//! Ticks are a length of time that *ends* when they were recorded, on the return to user mode. A
//! timeline needs the beginning of each, without overlaps: see [`SelectedThread::slices`].
//!
//! Ticks of CPUs are left out unless asked for: time on a CPU is in the states of its thread
//! already, and would be counted twice.

use experiment_format::cause::WaitKind;
use experiment_format::microstate::Microstate;
use experiment_format::units::Nanos;
use host::exit::Failure;

use crate::filter::{Filter, Selection};
use crate::metric::BaseMetric;
use crate::model::{
    Model, STATE_SLOTS, Sums, ThreadId, ThreadInfo, TickRow, WaitReason, ZERO_SUMS, incomplete,
};

/// Returns a state's short name, by its position in [`Sums`].
#[must_use]
pub fn state_name(slot: usize) -> &'static str {
    match Microstate::ALL.get(slot) {
        Some(Microstate::LinuxCpu) => "cpu",
        Some(state) => state.metric().unwrap_or("other"),
        None => "other",
    }
}

/// Returns a state's title.
#[must_use]
pub fn state_title(slot: usize) -> &'static str {
    Microstate::ALL
        .get(slot)
        .map_or("Other", |state| state.label())
}

/// The ticks that pass a filter.
#[derive(Debug)]
pub struct Selected<'m> {
    /// The model of the ticks.
    pub model: &'m Model,
    /// The states that the filter allows, by position in [`Sums`].
    pub states: [bool; STATE_SLOTS],
    /// The time of the ticks by state, in microseconds.
    pub sums: Sums,
    /// The number of rows with a negative number of ticks, which are left out.
    pub refused: u64,
    rows: Vec<u32>,
}

/// Ticks of a thread in one state, as an interval of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slice {
    /// The beginning, since the start of the recording.
    pub start_ns: Nanos,
    /// The end, likewise.
    pub end_ns: Nanos,
    /// The ticks.
    pub row: TickRow,
}

impl Slice {
    /// Returns whether the thread was on a CPU.
    #[must_use]
    pub fn on_cpu(&self) -> bool {
        BaseMetric::TotalCpu.has(self.row.slot())
    }
}

impl<'m> Selected<'m> {
    /// Selects the ticks of a model that pass a filter.
    #[must_use]
    pub fn new(model: &'m Model, filter: &Filter) -> Selected<'m> {
        let states = filter
            .states
            .unwrap_or_else(|| std::array::from_fn(|slot| slot != Microstate::KernelCpu as usize));
        let filter = Filter {
            states: Some(states),
            ..filter.clone()
        };
        let selection = Selection::new(model, &filter);
        let mut selected = Selected {
            model,
            states,
            sums: ZERO_SUMS,
            refused: 0,
            rows: Vec::new(),
        };
        for (index, row) in (0..).zip(&model.rows) {
            if (row.ticks, row.micros) == (0, 0) || !selection.passes(row) {
                continue;
            }
            if row.ticks < 0 {
                selected.refused += 1;
                continue;
            }
            selected.sums[row.slot()] += row.micros;
            selected.rows.push(index);
        }
        // Rows with the same time keep the file's order, which is by state number: on-CPU, blocked,
        // waiting for a CPU.
        selected.rows.sort_unstable_by_key(|index| {
            let row = &model.rows[*index as usize];
            (row.thread, row.time_ns, *index)
        });
        selected
    }

    /// Returns the failure of results in which a part of the experiments is missing, if one is.
    ///
    /// # Errors
    /// When a part is left out.
    pub fn require_all(&self) -> Result<(), Failure> {
        match self.refused {
            0 => self.model.require_all(),
            _ => Err(incomplete()),
        }
    }

    /// Drops what was not suffered. Returns the dropped time of blocked threads in microseconds:
    /// idle, and undecided.
    pub fn keep_suffered(&mut self) -> [i64; 2] {
        let model = self.model;
        let (mut idle, mut undecided) = (0, 0);
        self.rows.retain(|index| {
            let row = &model.rows[*index as usize];
            match row.wait_reason().map(WaitReason::kind) {
                Some(WaitKind::Suffered) => return true,
                Some(WaitKind::Idle) => idle += row.micros,
                Some(WaitKind::Undecided) => undecided += row.micros,
                None => {}
            }
            self.sums[row.slot()] -= row.micros;
            false
        });
        [idle, undecided]
    }

    /// Returns the time in all states, in microseconds.
    #[must_use]
    pub fn total(&self) -> i64 {
        self.sums.iter().sum()
    }

    /// Returns the rows, by thread and then by time.
    pub fn rows(&self) -> impl Iterator<Item = &'m TickRow> {
        self.rows
            .iter()
            .map(|index| &self.model.rows[*index as usize])
    }

    /// Returns the threads that have rows.
    pub fn threads(&self) -> impl Iterator<Item = SelectedThread<'_, 'm>> {
        let model = self.model;
        let thread = |index: &u32| model.rows[*index as usize].thread;
        let chunks = self.rows.chunk_by(move |a, b| thread(a) == thread(b));
        chunks.map(move |rows| SelectedThread {
            model,
            id: thread(&rows[0]),
            rows,
        })
    }
}

/// A thread with its selected rows. There is at least one.
#[derive(Debug, Clone, Copy)]
pub struct SelectedThread<'a, 'm> {
    model: &'m Model,
    /// The id of the thread.
    pub id: ThreadId,
    rows: &'a [u32],
}

impl<'a, 'm> SelectedThread<'a, 'm> {
    /// Returns the thread.
    #[must_use]
    pub fn thread(self) -> &'m ThreadInfo {
        self.model.thread(self.id)
    }

    /// Returns the model of the thread.
    #[must_use]
    pub fn model(self) -> &'m Model {
        self.model
    }

    /// Returns the rows in the order of time.
    pub fn rows(self) -> impl Iterator<Item = &'m TickRow> + use<'a, 'm> {
        let model = self.model;
        self.rows
            .iter()
            .map(move |index| &model.rows[*index as usize])
    }

    /// Returns the rows as intervals that do not overlap.
    ///
    /// An interval is as long as its ticks, whatever time they stand for, and has no length if it
    /// has none. It ends when its row was recorded, or later if the one before it lasts until then:
    /// ticks are whole, and together can be a little longer than the time in which they fell. Rows
    /// of one instant are laid end to end.
    pub fn slices(self) -> impl Iterator<Item = Slice> + use<'a, 'm> {
        let model = self.model;
        let length_ns = move |row: &TickRow| model.length_of_ticks(row);
        let row = move |index: &u32| &model.rows[*index as usize];
        let instants = self
            .rows
            .chunk_by(move |a, b| row(a).time_ns == row(b).time_ns);
        let mut before_ns = Nanos::ZERO;
        instants.flat_map(move |rows| {
            let lengths = rows.iter().map(|index| length_ns(row(index)));
            let whole_ns = lengths.fold(Nanos::ZERO, Nanos::saturating_add);
            let mut at_ns = before_ns.max(row(&rows[0]).time_ns.saturating_sub(whole_ns));
            let slices: Vec<_> = rows
                .iter()
                .map(|index| {
                    let start_ns = at_ns;
                    at_ns = at_ns.saturating_add(length_ns(row(index)));
                    Slice {
                        start_ns,
                        end_ns: at_ns,
                        row: *row(index),
                    }
                })
                .collect();
            before_ns = at_ns;
            slices
        })
    }
}

impl Model {
    /// Returns a name for a process: its own, or one made from its pid.
    #[must_use]
    pub fn process_name(&self, thread: &ThreadInfo) -> String {
        let process = self.process(thread.process);
        match process.name.as_str() {
            "" => format!("pid {}", process.pid),
            name => name.to_owned(),
        }
    }

    /// Returns a name for a thread: its own, or its process's.
    #[must_use]
    pub fn thread_name(&self, thread: &ThreadInfo) -> String {
        match thread.name.as_str() {
            "" => self.process_name(thread),
            name => name.to_owned(),
        }
    }
}
