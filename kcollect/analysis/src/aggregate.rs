//! Adds up ticks: one pass over the rows, and one over the stacks.
//!
//! [`totals`] adds up rows by stack, thread, CPU and experiment, in vectors indexed by number. Sums
//! by function follow from the sums by stack, which are far fewer than rows: [`functions`] walks
//! the trie once, [`Relatives::of`] looks at the stacks of one function.

use rustc_hash::FxHashMap;

use crate::filter::Selection;
use crate::model::{FrameId, FunctionId, Model, StackId, Sums, TickRow, ZERO_SUMS};

/// The sums of the selected rows, by what they refer to.
#[derive(Debug, Clone)]
pub struct Totals {
    /// Sums of all rows.
    pub all: Sums,
    /// Sums of each stack, callees excluded.
    pub stacks: Vec<Sums>,
    /// Sums of each thread.
    pub threads: Vec<Sums>,
    /// Sums of each process.
    pub processes: Vec<Sums>,
    /// Sums of each CPU.
    pub cpus: Vec<Sums>,
    /// Sums of each experiment, which gprofng calls a process.
    pub experiments: Vec<Sums>,
    /// Number of rows.
    pub rows: u64,
    /// The sums of counters, if there are any.
    pub counts: Option<Box<Totals>>,
}

/// The values of an entity (a function, thread, line, …): times, and counts if there are any.
#[derive(Debug, Clone, Copy)]
pub struct Measures<'a> {
    /// Its own values, without its callees.
    pub exclusive: &'a Sums,
    /// Its own values plus those from its callees.
    pub inclusive: &'a Sums,
    /// Both for counters.
    pub counts: Option<(&'a Sums, &'a Sums)>,
}

impl<'a> Measures<'a> {
    /// Returns the values of an entity that has no callees, or includes them.
    #[must_use]
    pub fn alone(sums: &'a Sums, counts: Option<&'a Sums>) -> Measures<'a> {
        Measures {
            exclusive: sums,
            inclusive: sums,
            counts: counts.map(|counts| (counts, counts)),
        }
    }
}

impl Totals {
    fn nothing(model: &Model) -> Totals {
        Totals {
            all: ZERO_SUMS,
            stacks: zeros(model.stacks.len()),
            threads: zeros(model.threads.len()),
            processes: zeros(model.processes.len()),
            cpus: zeros(model.cpus.len()),
            experiments: zeros(model.experiments.len()),
            rows: 0,
            counts: None,
        }
    }

    /// Returns the sums of all rows.
    #[must_use]
    pub fn whole(&self) -> Measures<'_> {
        self.both(|totals| &totals.all)
    }

    /// Selects sums with `of`, for example one thread's, from times and counts.
    #[must_use]
    pub fn both<'a>(&'a self, of: impl Fn(&'a Totals) -> &'a Sums) -> Measures<'a> {
        Measures::alone(of(self), self.counts.as_deref().map(&of))
    }

    fn add(&mut self, row: &TickRow, slot: usize, value: i64) {
        self.stacks[row.stack.index()][slot] += value;
        self.threads[row.thread.index()][slot] += value;
        self.cpus[row.cpu.index()][slot] += value;
        self.experiments[row.experiment.index()][slot] += value;
        self.rows += 1;
    }

    fn add_up(&mut self, model: &Model) {
        for (thread, sums) in model.threads.iter().zip(&self.threads) {
            add(&mut self.processes[thread.process.index()], sums);
            add(&mut self.all, sums);
        }
    }
}

/// Adds `sums` to `to`.
pub fn add(to: &mut Sums, sums: &Sums) {
    for (to, sum) in to.iter_mut().zip(sums) {
        *to += sum;
    }
}

/// Returns `count` sums that are zero.
fn zeros(count: usize) -> Vec<Sums> {
    vec![ZERO_SUMS; count]
}

/// Adds up the rows of a selection.
#[must_use]
pub fn totals(model: &Model, selection: &Selection) -> Totals {
    let mut totals = Totals::nothing(model);
    for row in model.rows.iter().filter(|row| selection.passes(row)) {
        totals.add(row, row.slot(), row.micros);
    }
    totals.add_up(model);
    if !model.counters.is_empty() {
        let mut counts = Totals::nothing(model);
        let passing = model.counts.iter();
        for count in passing.filter(|count| selection.passes_event(&count.row)) {
            counts.add(&count.row, count.counter.into(), count.value);
        }
        counts.add_up(model);
        totals.counts = Some(Box::new(counts));
    }
    totals
}

/// Sums of entities that frames belong to, such as functions.
#[derive(Debug, Clone)]
pub struct Shares {
    /// By entity: of stacks whose leaf belongs to it.
    pub exclusive: Vec<Sums>,
    /// By entity: of all stacks with a frame of it, each stack once.
    pub inclusive: Vec<Sums>,
    /// The sums of counters, if there are any.
    pub counts: Option<Box<Shares>>,
}

impl Shares {
    /// Returns the values of an entity.
    #[must_use]
    pub fn of(&self, entity: usize) -> Measures<'_> {
        let counts = self.counts.as_deref();
        Measures {
            exclusive: &self.exclusive[entity],
            inclusive: &self.inclusive[entity],
            counts: counts.map(|counts| (&counts.exclusive[entity], &counts.inclusive[entity])),
        }
    }
}

/// Sums of functions and load objects.
#[derive(Debug, Clone)]
pub struct Functions {
    /// By [`FunctionId`].
    pub functions: Shares,
    /// By [`crate::model::ObjectId`].
    pub objects: Shares,
}

/// Returns the sums of functions and load objects.
#[must_use]
pub fn functions(model: &Model, totals: &Totals) -> Functions {
    let counts = [model.functions.len(), model.objects.len()];
    let [functions, objects] = shares(model, totals, counts, |frame| {
        let function = model.frame(frame).function;
        [Some(function.0), Some(model.function(function).object.0)]
    });
    Functions { functions, objects }
}

/// Returns the sums of entities of several kinds at a time. `counts` is the number of entities of
/// each kind, and `entities_of` returns the entity of each kind that a frame belongs to. A frame
/// without one counts only for its callers.
#[must_use]
pub fn shares<const KINDS: usize>(
    model: &Model,
    totals: &Totals,
    counts: [usize; KINDS],
    entities_of: impl Fn(FrameId) -> [Option<u32>; KINDS],
) -> [Shares; KINDS] {
    let mut shares = shares_of_times(model, totals, counts, &entities_of);
    if let Some(counted) = &totals.counts {
        let counted = shares_of_times(model, counted, counts, &entities_of);
        for (shares, counted) in shares.iter_mut().zip(counted) {
            shares.counts = Some(Box::new(counted));
        }
    }
    shares
}

fn shares_of_times<const KINDS: usize>(
    model: &Model,
    totals: &Totals,
    counts: [usize; KINDS],
    entities_of: &impl Fn(FrameId) -> [Option<u32>; KINDS],
) -> [Shares; KINDS] {
    let mut tallies = counts.map(Tally::new);
    let callees = model.stacks.callees();
    // A path down the trie: each stack with the sums of what was seen below it.
    let mut path: Vec<([Option<u32>; KINDS], Sums)> = Vec::new();
    let mut pending: Vec<Step> = callees.of(StackId::EMPTY).map(Step::Enter).collect();
    while let Some(step) = pending.pop() {
        match step {
            Step::Enter(stack) => {
                let Some(leaf) = model.stacks.leaf(stack) else {
                    continue;
                };
                let entities = entities_of(leaf);
                let own = &totals.stacks[stack.index()];
                for (tally, entity) in tallies.iter_mut().zip(entities) {
                    entity.inspect(|entity| tally.enter(*entity, own));
                }
                path.push((entities, *own));
                pending.push(Step::Leave);
                pending.extend(callees.of(stack).map(Step::Enter));
            }
            Step::Leave => {
                let Some((entities, sums)) = path.pop() else {
                    continue;
                };
                for (tally, entity) in tallies.iter_mut().zip(entities) {
                    entity.inspect(|entity| tally.leave(*entity, &sums));
                }
                if let Some((_, caller)) = path.last_mut() {
                    add(caller, &sums);
                }
            }
        }
    }
    tallies.map(|tally| tally.shares)
}

enum Step {
    Enter(StackId),
    Leave,
}

/// Sums of the entities of one kind during a walk through the trie.
struct Tally {
    shares: Shares,
    /// By entity, how often it is on the path.
    on_path: Vec<u32>,
}

impl Tally {
    fn new(count: usize) -> Tally {
        Tally {
            shares: Shares {
                exclusive: zeros(count),
                inclusive: zeros(count),
                counts: None,
            },
            on_path: vec![0; count],
        }
    }

    fn enter(&mut self, entity: u32, own: &Sums) {
        self.on_path[entity as usize] += 1;
        add(&mut self.shares.exclusive[entity as usize], own);
    }

    fn leave(&mut self, entity: u32, sums: &Sums) {
        let depth = &mut self.on_path[entity as usize];
        *depth -= 1;
        // In a recursion the outermost call has the inclusive time.
        if *depth == 0 {
            add(&mut self.shares.inclusive[entity as usize], sums);
        }
    }
}

/// The callers and callees of a function, with the part of its inclusive time attributed to each.
///
/// In a stack with the function several times, the innermost one counts, as in gprofng
/// (`PathTree::get_clr_metrics`, `get_cle_metrics`). So the callers add up to the inclusive time,
/// and so do the callees with the function itself.
#[derive(Debug, Clone, Default)]
pub struct Relatives {
    /// By caller. None: the function is outermost.
    pub callers: FxHashMap<Option<FunctionId>, Sums>,
    /// The function's exclusive time.
    pub own: Sums,
    /// By callee.
    pub callees: FxHashMap<FunctionId, Sums>,
}

impl Relatives {
    /// Returns what is attributed to a caller.
    #[must_use]
    pub fn of_caller(&self, caller: Option<FunctionId>) -> &Sums {
        self.callers.get(&caller).unwrap_or(&ZERO_SUMS)
    }

    /// Returns what is attributed to a callee.
    #[must_use]
    pub fn of_callee(&self, callee: FunctionId) -> &Sums {
        self.callees.get(&callee).unwrap_or(&ZERO_SUMS)
    }

    /// Returns the callers and callees of a function.
    #[must_use]
    pub fn of(model: &Model, totals: &Totals, function: FunctionId) -> Relatives {
        let mut relatives = Relatives::default();
        for (stack, _, _) in model.stacks.iter() {
            let sums = &totals.stacks[stack.index()];
            if *sums == ZERO_SUMS {
                continue;
            }
            let mut callee = None;
            let mut frames = model.stack(stack).map(|frame| frame.function).peekable();
            while let Some(at) = frames.next() {
                if at != function {
                    callee = Some(at);
                    continue;
                }
                let caller = frames.peek().copied();
                add(relatives.callers.entry(caller).or_default(), sums);
                add(
                    match callee {
                        Some(callee) => relatives.callees.entry(callee).or_default(),
                        None => &mut relatives.own,
                    },
                    sums,
                );
                break;
            }
        }
        relatives
    }
}
