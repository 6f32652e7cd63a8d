//! Whom threads waited for: chains of waits, and the critical path of a process.
//!
//! [`Activities`] makes a timeline of each thread from its ticks; [`chains`] and [`critical_path`]
//! are algorithms on timelines and know no models.

pub mod chains;
pub mod critical_path;
#[cfg(test)]
mod drawing;
pub mod timeline;

use std::ops::Range;

use experiment_format::cause::Cause;
use experiment_format::microstate::Microstate;
use rustc_hash::FxHashMap;

use crate::model::{FunctionId, Model, ProcessId, StackId, ThreadId, TickRow, WaitReason};
use crate::wakers::{Waker, Wakers};
use timeline::{Doing, Interval, Timeline, Timelines};

/// Where a thread was.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Place {
    /// The function that explains a wait; on a CPU it is left out unless it is the only one.
    pub function: Option<FunctionId>,
    /// The program's own function that led to it: see [`Model::waits_at`].
    pub caller: Option<FunctionId>,
}

/// The timelines of a model's threads.
#[derive(Debug)]
pub struct Activities {
    /// The timelines.
    pub timelines: Timelines,
    /// The places, by [`Interval::place`]. The first one is not known.
    pub places: Vec<Place>,
    /// Whether any waker was recorded.
    pub has_wakers: bool,
}

/// What a thread did according to the state and the cause of its ticks. None: they are of a CPU.
#[must_use]
pub fn doing(row: &TickRow) -> Option<Doing> {
    let state = Microstate::ALL.get(usize::from(row.state)).copied()?;
    if !state.in_total() {
        return None;
    }
    Some(match row.wait_reason() {
        Some(WaitReason::Cpu) => Doing::WaitsForCpu,
        Some(WaitReason::Blocked(cause)) => Doing::Blocked(cause),
        None if state == Microstate::Stopped => Doing::Stopped,
        None => Doing::OnCpu,
    })
}

impl Activities {
    /// Makes the timelines of all ticks. Exact time without a tick is in none.
    #[must_use]
    pub fn new(model: &Model) -> Activities {
        let mut places = Places::new(model);
        let mut intervals: Vec<Vec<Interval>> = vec![Vec::new(); model.threads.len()];
        for (at, row) in (0..).zip(&model.rows) {
            let (Some(doing), true) = (doing(row), row.ticks > 0) else {
                continue;
            };
            let end_ns = row.time_ns.0;
            intervals[row.thread.index()].push(Interval {
                start_ns: end_ns.saturating_sub(model.length_of_ticks(row).0),
                end_ns,
                doing,
                waker: None,
                place: places.of(row.stack, doing),
                row: at,
            });
        }
        let ticks = model.experiments.iter().map(|info| info.tick_us);
        let tick_ns = u64::from(ticks.max().unwrap_or(0)) * 1000;
        let timelines = intervals.into_iter();
        let mut timelines = Timelines {
            threads: timelines.map(|all| Timeline::new(all, tick_ns)).collect(),
            tick_ns,
        };
        let has_wakers = add_wakers(model, &mut timelines);
        Activities {
            timelines,
            places: places.places,
            has_wakers,
        }
    }
}

/// Threads with the times in which they have ticks.
type Lives = Vec<(ThreadId, Range<u64>)>;

/// Sets the waker of each wait. Returns whether any was recorded.
fn add_wakers(model: &Model, timelines: &mut Timelines) -> bool {
    let wakers = Wakers::new(model);
    let lives: Vec<_> = timelines.threads.iter().map(Timeline::range).collect();
    let children = children(model, timelines);
    let tick_ns = timelines.tick_ns;
    let mut any_recorded = false;
    for (thread, timeline) in (0..).map(ThreadId).zip(&mut timelines.threads) {
        let process = model.thread(thread).process;
        for interval in timeline.intervals_mut() {
            let Doing::Blocked(cause) = interval.doing else {
                continue;
            };
            let at_ns = interval.end_ns;
            let waker = wakers.of(&model.rows[interval.row as usize]);
            any_recorded |= waker.is_some();
            // A thread without a tick then is not one that had the number at other times.
            if let Some(Waker::Thread(waker)) = waker
                && let Some(life) = &lives[waker.index()]
                && life.start.saturating_sub(at_ns) <= 2 * tick_ns
                && at_ns.saturating_sub(life.end) <= 2 * tick_ns
            {
                interval.waker = Some(waker);
            }
            if cause == Cause::Child && interval.waker.is_none() {
                let lives = |(_, life): &&(ThreadId, Range<u64>)| {
                    life.start < at_ns && at_ns <= life.end.saturating_add(tick_ns)
                };
                let mut living = children.get(&process).into_iter().flatten().filter(lives);
                if let (Some((only, _)), None) = (living.next(), living.next()) {
                    interval.waker = Some(*only);
                }
            }
        }
    }
    any_recorded
}

/// Returns the main threads of each process's followed children, with when they lived. A process
/// that still waits for its only child has no waker yet.
fn children(model: &Model, timelines: &Timelines) -> FxHashMap<ProcessId, Lives> {
    let parents = model.parents();
    let mut children: FxHashMap<ProcessId, Lives> = FxHashMap::default();
    for (thread, info) in (0..).map(ThreadId).zip(&model.threads) {
        let process = model.process(info.process);
        if info.tid != u64::from(process.pid.0) {
            continue;
        }
        let parent = parents[info.process.index()];
        if let (Some(parent), Some(life)) = (parent, timelines.of(thread).range()) {
            children.entry(parent).or_default().push((thread, life));
        }
    }
    children
}

/// Numbers of places.
struct Places<'a> {
    model: &'a Model,
    places: Vec<Place>,
    numbers: FxHashMap<Place, u32>,
    stacks: FxHashMap<(StackId, bool), u32>,
}

impl<'a> Places<'a> {
    fn new(model: &'a Model) -> Places<'a> {
        Places {
            model,
            places: vec![Place::default()],
            numbers: FxHashMap::from_iter([(Place::default(), 0)]),
            stacks: FxHashMap::default(),
        }
    }

    fn of(&mut self, stack: StackId, doing: Doing) -> u32 {
        let blocked = matches!(doing, Doing::Blocked(_));
        if let Some(known) = self.stacks.get(&(stack, blocked)) {
            return *known;
        }
        let place = match self.model.waits_at(stack) {
            None => Place::default(),
            Some((function, caller)) => Place {
                function: Some(function).filter(|_| blocked || caller.is_none()),
                caller,
            },
        };
        let next = self.places.len() as u32;
        let number = *self.numbers.entry(place).or_insert(next);
        if number == next {
            self.places.push(place);
        }
        self.stacks.insert((stack, blocked), number);
        number
    }
}
