//! Waits by cause: those that threads suffered, with their places and with who ended them, and the
//! sums of the others.
//!
//! A wait for a child counts as suffered only for as long as the children were busy or suffered
//! themselves: a shell that waits for an idle editor has nothing to do either.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use experiment_format::cause::{Cause, WaitKind};
use experiment_format::microstate::Microstate;
use experiment_format::units::Nanos;
use rustc_hash::{FxHashMap, FxHashSet};

use super::context::ViewContext;
use super::exact::ExactProcess;
use super::waiting::{inlined_callers, recorders};
use crate::filter::{Filter, Selection};
use crate::load::exact::sum;
use crate::model::{FunctionId, FunctionInfo, Model, ProcessId, StackId, TickRow, WaitReason};
use crate::report::table::{Cell, Column, Table, left_out};
use crate::waits::{StackWaitKey, waits_by_stack};
use crate::wakers::{Waker, Wakers};

/// The places of suffered waits without `-n`.
const DEFAULT_PLACES: usize = 10;
/// The places of waits for children and for the ends of threads without `-n`.
const DEFAULT_PASSED_ON: usize = 3;
/// The places of waits for a CPU without `-n`.
const DEFAULT_CPU_PLACES: usize = 5;
/// A waker stands alone in the table if it ended this share of the waits, in percent.
const ALONE_PERCENT: i64 = 90;

/// The parts of the table of suffered waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Blocked for something that has no row of its own.
    Own,
    /// Blocked for a child or the end of a thread.
    PassedOn,
    /// Runnable.
    Cpu,
}

impl Kind {
    fn has(self, place: &Place<'_>) -> bool {
        self == match place.reason {
            WaitReason::Cpu => Kind::Cpu,
            WaitReason::Blocked(cause) if is_passed_on(cause) => Kind::PassedOn,
            WaitReason::Blocked(_) => Kind::Own,
        }
    }
}

/// A place where threads of processes of one name suffered for one reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Place<'a> {
    /// The name of the processes.
    pub(super) process: &'a str,
    /// What they suffered from.
    pub(super) reason: WaitReason,
    /// The function that waited and the one of the program for which it did: see
    /// [`Model::waits_at`].
    pub(super) function: Option<(FunctionId, Option<FunctionId>)>,
}

/// The waits of a place.
#[derive(Debug, Clone)]
pub(super) struct PlaceWaits {
    /// Microseconds.
    pub(super) us: i64,
    /// The parts of it, by who ended them. Without those of which that is not known.
    pub(super) wakers: FxHashMap<Waker, i64>,
    /// The stack with most of it, and how much.
    longest: (i64, StackId),
}

/// All waits of the selected ticks, without those of the kcollect that recorded them.
#[derive(Debug, Default)]
pub(super) struct Waits<'a> {
    /// The suffered ones, the longest first.
    pub(super) suffered: Vec<(Place<'a>, PlaceWaits)>,
    /// Microseconds in which threads had nothing to do.
    idle_us: i64,
    /// Microseconds in which they were blocked for a reason that is not known.
    undecided_us: i64,
    /// Microseconds in which they were stopped.
    stopped_us: i64,
    /// Whether the times are those of [`Waits::fit`].
    is_exact: bool,
    /// The part of each process's waits for children that counts as suffered, microseconds.
    children_us: Vec<i64>,
    /// The threads that ended waits.
    pub(super) wakers: Wakers,
}

/// Returns whether the one who is waited for is a child or a thread of the same process. What it
/// did or suffered meanwhile says more, and has rows of its own.
pub(super) fn is_passed_on(cause: Cause) -> bool {
    matches!(cause, Cause::Child | Cause::ThreadEnd)
}

/// Returns whether ticks have causes. Those of older experiments and of other collectors do not.
pub(super) fn has_causes(model: &Model) -> bool {
    model.rows.iter().any(|row| row.cause != 0)
}

fn is_in(row: &TickRow, state: Microstate) -> bool {
    row.slot() == state as usize
}

/// What is known of a process for the waits of its parent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Busy {
    /// Position of its parent. None: not known.
    parent: Option<usize>,
    /// On a CPU, waiting for one, and suffered except for children, microseconds.
    own_us: i64,
    /// Waits for children, microseconds.
    child_us: i64,
    /// Whether it may be the child of any other: its parent is not known, and it is no thread of
    /// the kernel.
    maybe_child: bool,
}

/// Returns for each process the part of its waits for children in which these may have been busy
/// or suffered, microseconds: the children's times, at most the whole. What is not known counts as
/// suffered.
fn suffered_for_children(processes: &[Busy]) -> Vec<i64> {
    let mut below = vec![0_i64; processes.len()];
    let mut children = vec![0_usize; processes.len()];
    for parent in processes.iter().filter_map(|process| process.parent) {
        children[parent] += 1;
    }
    let unknown = processes.iter().filter(|process| process.maybe_child);
    let unknown_us = unknown.fold(0_i64, |sum, process| sum.saturating_add(process.own_us));
    // In a circle of parents, which only a damaged experiment has, nothing is known.
    let mut suffered: Vec<i64> = processes.iter().map(|process| process.child_us).collect();
    let mut ready: Vec<usize> = (0..processes.len())
        .filter(|at| children[*at] == 0)
        .collect();
    while let Some(at) = ready.pop() {
        let process = &processes[at];
        let own_us = if process.maybe_child {
            process.own_us
        } else {
            0
        };
        let children_us = below[at].saturating_add(unknown_us.saturating_sub(own_us));
        suffered[at] = process.child_us.min(children_us);
        if let Some(parent) = process.parent {
            let all_us = process.own_us.saturating_add(suffered[at]);
            below[parent] = below[parent].saturating_add(all_us);
            children[parent] -= 1;
            if children[parent] == 0 {
                ready.push(parent);
            }
        }
    }
    suffered
}

/// Returns for each stack whether it is one of a thread of the kernel, by its outermost function.
fn kernel_thread_stacks(model: &Model) -> Vec<bool> {
    let begins_one = |function: &FunctionInfo| {
        function.kernel
            && (function.name.starts_with("ret_from_fork") || function.name == "kthread")
    };
    let mut stacks = vec![false; model.stacks.len()];
    for (stack, caller, leaf) in model.stacks.iter() {
        stacks[stack.index()] = stacks[caller.index()]
            || caller == StackId::EMPTY && begins_one(model.function(model.frame(leaf).function));
    }
    stacks
}

/// Returns what is known of each process, whatever processes were asked for: children may be among
/// the others. The kcollect that recorded them counts for nobody.
fn busy_processes(context: &ViewContext<'_>, recorders: &FxHashSet<ProcessId>) -> Vec<Busy> {
    let model = context.model;
    let filter = Filter {
        time: context.options.filter.time.clone(),
        ..Filter::default()
    };
    let selection = Selection::new(model, &filter);
    let kernel_stacks = kernel_thread_stacks(model);
    let mut processes = vec![Busy::default(); model.processes.len()];
    let mut of_kernel = vec![false; model.processes.len()];
    for row in model.rows.iter().filter(|row| selection.passes(row)) {
        let id = model.thread(row.thread).process;
        let is_of_cpu = usize::from(row.state) >= Microstate::PER_THREAD;
        if is_of_cpu || recorders.contains(&id) {
            continue;
        }
        let process = &mut processes[id.index()];
        of_kernel[id.index()] |= kernel_stacks[row.stack.index()];
        match row.wait_reason() {
            Some(WaitReason::Blocked(Cause::Child)) => process.child_us += row.micros,
            Some(reason) if reason.kind() != WaitKind::Suffered => {}
            None if is_in(row, Microstate::Stopped) => {}
            Some(_) | None => process.own_us += row.micros,
        }
    }
    for (at, parent) in model.parents().into_iter().enumerate() {
        processes[at].parent = parent.map(ProcessId::index);
        let followed = model.processes[at].followed;
        processes[at].maybe_child = parent.is_none() && !followed && !of_kernel[at];
    }
    processes
}

impl<'a> Waits<'a> {
    /// Adds up the waits of the selected ticks.
    pub(super) fn of(context: &ViewContext<'a>) -> Waits<'a> {
        let model = context.model;
        let selection = Selection::new(model, &context.options.filter);
        let recorders: FxHashSet<ProcessId> = recorders(context).into_iter().collect();
        let busy = busy_processes(context, &recorders);
        let mut waits = Waits {
            children_us: suffered_for_children(&busy),
            wakers: Wakers::new(model),
            ..Waits::default()
        };
        let rows = || {
            let rows = model.rows.iter().filter(|row| selection.passes(row));
            rows.filter(|row| !recorders.contains(&model.thread(row.thread).process))
        };
        let by_stack = waits_by_stack(model, rows(), &waits.wakers);
        let stopped = rows().filter(|row| is_in(row, Microstate::Stopped));
        waits.stopped_us = stopped.map(|row| row.micros).sum();
        waits.add_by_stack(model, by_stack, &busy);
        waits
    }

    /// Sorts places, the longest waits first. Equal ones are in the order of their functions.
    fn sort(&mut self) {
        self.suffered.sort_by_key(|(place, waits)| {
            (
                Reverse(waits.us),
                place.process,
                place.reason,
                place.function,
            )
        });
    }

    /// Adds waits up by kind, and suffered ones by place. Of waits for children, the rest is idle.
    fn add_by_stack(
        &mut self,
        model: &'a Model,
        by_stack: FxHashMap<StackWaitKey, i64>,
        busy: &[Busy],
    ) {
        let mut functions: FxHashMap<StackId, _> = FxHashMap::default();
        let mut places: FxHashMap<Place<'a>, PlaceWaits> = FxHashMap::default();
        for (key, mut us) in by_stack {
            match key.reason.kind() {
                WaitKind::Suffered => {}
                WaitKind::Idle => {
                    self.idle_us += us;
                    continue;
                }
                WaitKind::Undecided => {
                    self.undecided_us += us;
                    continue;
                }
            }
            if key.reason == WaitReason::Blocked(Cause::Child) {
                let at = key.process.index();
                let (part, whole) = (self.children_us[at], busy[at].child_us.max(1));
                let suffered = i128::from(us) * i128::from(part) / i128::from(whole);
                let suffered = i64::try_from(suffered).unwrap_or(us);
                self.idle_us += us - suffered;
                us = suffered;
            }
            if us <= 0 {
                continue;
            }
            let function = functions.entry(key.stack);
            let place = Place {
                process: &model.process(key.process).name,
                reason: key.reason,
                function: *function.or_insert_with(|| model.waits_at(key.stack)),
            };
            let waits = places.entry(place).or_insert_with(|| PlaceWaits {
                us: 0,
                wakers: FxHashMap::default(),
                longest: (0, StackId::EMPTY),
            });
            waits.us += us;
            waits.longest = waits.longest.max((us, key.stack));
            if let Some(waker) = key.waker {
                *waits.wakers.entry(waker).or_default() += us;
            }
        }
        self.suffered = places.into_iter().collect();
        self.sort();
    }

    /// Makes waits add up to the exact times of the processes of each name by reason. Ticks only
    /// say how places share these. Processes whose waits no tick fell into have no place.
    pub(super) fn fit(&mut self, processes: &[ExactProcess]) {
        let mut exact: FxHashMap<(&str, WaitReason), Nanos> = FxHashMap::default();
        let (mut idle, mut undecided, mut stopped) = (Nanos::ZERO, Nanos::ZERO, Nanos::ZERO);
        for process in processes {
            let times = &process.times;
            let mut add = |reason, time| {
                let all = exact.entry((&*process.name, reason)).or_default();
                *all = all.saturating_add(time);
            };
            add(WaitReason::Cpu, times.of(Microstate::WaitCpu));
            for cause in Cause::ALL {
                add(WaitReason::Blocked(cause), process.suffered_for(cause));
            }
            let children = times
                .of_cause(Cause::Child)
                .saturating_sub(process.children);
            idle = sum([idle, children, times.of_kind(WaitKind::Idle)]);
            undecided = sum([undecided, times.of_kind(WaitKind::Undecided)]);
            stopped = sum([stopped, times.of(Microstate::Stopped)]);
        }
        let micros = |time: Nanos| i64::try_from(time / Nanos::from_micros(1)).unwrap_or(i64::MAX);
        self.idle_us = micros(idle);
        self.undecided_us = micros(undecided);
        self.stopped_us = micros(stopped);
        self.is_exact = true;
        let mut ticks: FxHashMap<(&str, WaitReason), i64> = FxHashMap::default();
        for (place, waits) in &self.suffered {
            *ticks.entry((place.process, place.reason)).or_default() += waits.us;
        }
        for (place, waits) in &mut self.suffered {
            let key = (place.process, place.reason);
            if let (Some(exact), Some(ticks)) = (exact.get(&key), ticks.get(&key)) {
                let (exact, ticks) = (i128::from(micros(*exact)), i128::from(*ticks).max(1));
                let fit = |us: i64| i64::try_from(i128::from(us) * exact / ticks).unwrap_or(us);
                waits.us = fit(waits.us);
                waits.wakers.values_mut().for_each(|us| *us = fit(*us));
            }
        }
        self.sort();
    }

    /// Limits the waits for children of processes with exact times to what counts as suffered.
    pub(super) fn limit_children(&self, model: &Model, rows: &mut [ExactProcess]) {
        let founders: Vec<_> = model.founders().map(|(_, info)| info.first).collect();
        let processes = model.processes_by_pid();
        for row in rows {
            let first = founders.get(row.run);
            let process = first
                .zip(row.pid)
                .and_then(|(first, pid)| processes.get(&(*first, pid)));
            if let Some(process) = process {
                let us = u64::try_from(self.children_us[process.index()]).unwrap_or(0);
                row.children = row.children.min(Nanos::from_micros(us));
            }
        }
    }

    /// Returns the cells of who ended the waits of a place: the name of the process that ended most
    /// of it with its share, and the thread with most of it and its part.
    fn waker_cells(&self, model: &Model, waits: &PlaceWaits) -> [Cell; 3] {
        let mut by_name: BTreeMap<&str, i64> = BTreeMap::new();
        for (waker, us) in &waits.wakers {
            let name = self.wakers.names(model, *waker).process;
            if !name.is_empty() {
                *by_name.entry(name).or_default() += us;
            }
        }
        let named = by_name
            .into_iter()
            .max_by_key(|(name, us)| (*us, Reverse(*name)));
        let name = named.map(|(name, us)| match us * 100 / waits.us.max(1) {
            ALONE_PERCENT.. => name.to_owned(),
            percent => format!("{name} {percent} %"),
        });
        let most = largest_waker(&waits.wakers);
        [
            name.map_or(Cell::Empty, Cell::Text),
            most.map_or(Cell::Empty, |(waker, _)| {
                Cell::Count(self.wakers.names(model, waker).tid)
            }),
            most.map_or(Cell::Empty, |(_, us)| Cell::Microseconds(us)),
        ]
    }

    /// Makes the table: the places of blocked waits, those of waits for a CPU, and a row each for
    /// what threads did not suffer.
    pub(super) fn table(&self, context: &ViewContext<'_>) -> Table {
        let model = context.model;
        let is_of = |kind: Kind| move |(place, _): &&(Place<'_>, PlaceWaits)| kind.has(place);
        let places = |kind: Kind| self.suffered.iter().filter(is_of(kind)).collect::<Vec<_>>();
        let shown = [
            (places(Kind::Own), DEFAULT_PLACES),
            (places(Kind::PassedOn), DEFAULT_PASSED_ON),
            (places(Kind::Cpu), DEFAULT_CPU_PLACES),
        ];
        let shown = shown.map(|(mut places, own_limit)| {
            places.truncate(context.options.limit.unwrap_or(own_limit));
            places
        });
        let stacks = shown.iter().flatten();
        let stacks = stacks.map(|(place, waits)| {
            (
                place.function.and_then(|(_, caller)| caller),
                waits.longest.1,
            )
        });
        let mut inlined = inlined_callers(context, &stacks.collect::<Vec<_>>()).into_iter();
        let name = |function: FunctionId| Cell::Text(model.function(function).name.clone());
        let mut rows = Vec::new();
        for (place, waits) in shown.iter().flatten() {
            let (function, caller) = place.function.unzip();
            let inlined = inlined.next().flatten().map(Cell::Text);
            let kind = match place.reason {
                WaitReason::Blocked(_) => WaitKind::Suffered.keyword(),
                WaitReason::Cpu => "runnable",
            };
            let mut row = vec![
                Cell::Microseconds(waits.us),
                Cell::Text(kind.to_owned()),
                Cell::Text(place.reason.keyword().to_owned()),
                Cell::Text(place.process.to_owned()),
                function.map_or(Cell::Empty, name),
                inlined
                    .or(caller.flatten().map(name))
                    .unwrap_or(Cell::Empty),
            ];
            row.extend(self.waker_cells(model, waits));
            rows.push(row);
        }
        let more = self.suffered.len() - rows.len();
        let others = [
            (self.idle_us, WaitKind::Idle.keyword()),
            (self.undecided_us, WaitKind::Undecided.keyword()),
            (self.stopped_us, "stopped"),
        ];
        for (us, kind) in others.into_iter().filter(|(us, _)| *us > 0) {
            let mut row = vec![
                Cell::Microseconds(us),
                Cell::Text(kind.to_owned()),
                Cell::Text(format!("({kind})")),
            ];
            row.resize(COLUMNS, Cell::Empty);
            rows.push(row);
        }
        let mut notes: Vec<_> = left_out(more).into_iter().collect();
        if !shown[2].is_empty() {
            let note =
                "cpu: for a CPU; the function is where the thread was when it became runnable";
            notes.push(note.to_owned());
        }
        let mut columns = vec![
            Column::number("off_cpu_s", "off-CPU s"),
            Column::text("kind", "Kind").hidden(),
            Column::text("cause", "Cause"),
            Column::text("process", "Process"),
            Column::text("name", "Function"),
            Column::text("caller", "On behalf of"),
            Column::text("waker", "Woken by"),
            Column::number("waker_tid", "TID").hidden(),
            Column::number("waker_s", "of it s").hidden(),
        ];
        // Only `-W on` records who ended a wait.
        columns[6].hidden = rows.iter().all(|row| row[6] == Cell::Empty);
        let seconds = if self.is_exact {
            "exact seconds, shared by ticks"
        } else {
            "seconds by ticks"
        };
        Table {
            view: "waiting",
            title: format!("Where threads waited: what they suffered, by cause; {seconds}"),
            columns,
            rows,
            verbatim: false,
            notes,
        }
    }
}

/// The number of columns of [`Waits::table`].
const COLUMNS: usize = 9;

/// Returns who ended most of some waits, and how much. Of equals the first one.
pub(super) fn largest_waker(wakers: &FxHashMap<Waker, i64>) -> Option<(Waker, i64)> {
    let most = wakers.iter();
    let most = most.max_by_key(|(waker, us)| (**us, Reverse(**waker)));
    most.map(|(waker, us)| (*waker, *us))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(parent: Option<usize>, own_us: i64, child_us: i64) -> Busy {
        Busy {
            parent,
            own_us,
            child_us,
            maybe_child: false,
        }
    }

    #[test]
    fn a_wait_for_an_idle_child_is_not_suffered() {
        // A shell whose editor is idle, and a make whose compilers work.
        let shell = [process(None, 10, 900), process(Some(0), 20, 0)];
        assert_eq!(suffered_for_children(&shell), [20, 0]);
        let make = [
            process(None, 10, 900),
            process(Some(0), 600, 0),
            process(Some(0), 700, 0),
        ];
        assert_eq!(suffered_for_children(&make), [900, 0, 0]);
    }

    #[test]
    fn the_bound_goes_down_the_whole_tree() {
        // A login that waits for a shell, that waits for a make, that waits for a compiler.
        let tree = [
            process(None, 0, 1000),
            process(Some(0), 0, 1000),
            process(Some(1), 5, 800),
            process(Some(2), 300, 0),
        ];
        assert_eq!(suffered_for_children(&tree), [305, 305, 300, 0]);
    }

    #[test]
    fn a_process_whose_parent_is_not_known_may_be_any_child() {
        let stranger = Busy {
            maybe_child: true,
            ..process(None, 70, 50)
        };
        let processes = [process(None, 0, 100), stranger];
        // It is not its own child.
        assert_eq!(suffered_for_children(&processes), [70, 0]);
    }

    #[test]
    fn in_a_circle_of_parents_all_is_suffered() {
        let circle = [process(Some(1), 1, 100), process(Some(0), 2, 200)];
        assert_eq!(suffered_for_children(&circle), [100, 200]);
        let self_parent = [process(Some(0), 1, 100)];
        assert_eq!(suffered_for_children(&self_parent), [100]);
    }
}
