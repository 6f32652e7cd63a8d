//! Sums: one pass over the rows, and one over the stacks.
//!
//! [`totals`] adds up rows by stack, thread, CPU and experiment, in vectors that are indexed by number. All that is asked of
//! functions follows from the sums by stack, of which there are far fewer: [`functions`] walks the trie once,
//! [`Relatives::of`] looks at the stacks of one function.

use rustc_hash::FxHashMap;

use super::filter::Selection;
use super::model::{FrameId, FunctionId, Model, STATES, StackId, Sums};

/// Sums of rows.
#[derive(Debug, Clone)]
pub struct Totals {
    /// Of all of them.
    pub all: Sums,
    /// By stack: what was recorded with exactly this one.
    pub stacks: Vec<Sums>,
    /// By thread.
    pub threads: Vec<Sums>,
    /// By process.
    pub processes: Vec<Sums>,
    /// By CPU.
    pub cpus: Vec<Sums>,
    /// By experiment: gprofng's processes.
    pub experiments: Vec<Sums>,
    /// How many rows they are.
    pub rows: u64,
}

/// Adds sums to sums.
pub fn add(to: &mut Sums, sums: &Sums) {
    for (to, sum) in to.iter_mut().zip(sums) {
        *to += sum;
    }
}

/// Sums of nothing, so many.
fn zeros(count: usize) -> Vec<Sums> {
    vec![[0; STATES]; count]
}

/// Adds up the rows of a selection.
#[must_use]
pub fn totals(model: &Model, selection: &Selection) -> Totals {
    let mut totals = Totals {
        all: [0; STATES],
        stacks: zeros(model.stacks.len()),
        threads: zeros(model.threads.len()),
        processes: zeros(model.processes.len()),
        cpus: zeros(model.cpus.len()),
        experiments: zeros(model.experiments.len()),
        rows: 0,
    };
    let lengths: Vec<_> = model
        .experiments
        .iter()
        .map(|experiment| i64::from(experiment.tick_us))
        .collect();
    for row in model.rows.iter().filter(|row| selection.passes(row)) {
        let microseconds = i64::from(row.ticks) * lengths[row.experiment.index()];
        let slot = row.slot();
        totals.stacks[row.stack.index()][slot] += microseconds;
        totals.threads[row.thread.index()][slot] += microseconds;
        totals.cpus[row.cpu.index()][slot] += microseconds;
        totals.experiments[row.experiment.index()][slot] += microseconds;
        totals.rows += 1;
    }
    for (thread, sums) in model.threads.iter().zip(&totals.threads) {
        add(&mut totals.processes[thread.process.index()], sums);
        add(&mut totals.all, sums);
    }
    totals
}

/// Sums of things that have a place in stacks.
#[derive(Debug, Clone)]
pub struct Shares {
    /// Of the leaves of stacks.
    pub exclusive: Vec<Sums>,
    /// Of all that are in a stack, once.
    pub inclusive: Vec<Sums>,
}

/// Sums of functions and load objects.
#[derive(Debug, Clone)]
pub struct Functions {
    /// By [`FunctionId`].
    pub functions: Shares,
    /// By [`super::model::ObjectId`].
    pub objects: Shares,
}

/// What functions and load objects have of these totals.
#[must_use]
pub fn functions(model: &Model, totals: &Totals) -> Functions {
    let counts = [model.functions.len(), model.objects.len()];
    let [functions, objects] = shares(model, totals, counts, |frame| {
        let function = model.frame(frame).function;
        [Some(function.0), Some(model.function(function).object.0)]
    });
    Functions { functions, objects }
}

/// What things have of these totals, of several kinds at a time: so many are there of each kind, and such a thing, by
/// number, is a frame. A frame that is none counts for nothing but those that call it.
#[must_use]
pub fn shares<const KINDS: usize>(
    model: &Model,
    totals: &Totals,
    counts: [usize; KINDS],
    things_of: impl Fn(FrameId) -> [Option<u32>; KINDS],
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
                let things = things_of(leaf);
                let own = &totals.stacks[stack.index()];
                for (tally, thing) in tallies.iter_mut().zip(things) {
                    thing.inspect(|thing| tally.enter(*thing, own));
                }
                path.push((things, *own));
                pending.push(Step::Leave);
                pending.extend(callees.of(stack).map(Step::Enter));
            }
            Step::Leave => {
                let Some((things, sums)) = path.pop() else {
                    continue;
                };
                for (tally, thing) in tallies.iter_mut().zip(things) {
                    thing.inspect(|thing| tally.leave(*thing, &sums));
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

/// Sums of one kind of thing on a walk through the trie.
struct Tally {
    shares: Shares,
    /// How often each is on the path.
    on_path: Vec<u32>,
}

impl Tally {
    fn new(count: usize) -> Tally {
        Tally {
            shares: Shares {
                exclusive: zeros(count),
                inclusive: zeros(count),
            },
            on_path: vec![0; count],
        }
    }

    fn enter(&mut self, thing: u32, own: &Sums) {
        self.on_path[thing as usize] += 1;
        add(&mut self.shares.exclusive[thing as usize], own);
    }

    fn leave(&mut self, thing: u32, sums: &Sums) {
        let depth = &mut self.on_path[thing as usize];
        *depth -= 1;
        // Of a recursion the outermost has it all.
        if *depth == 0 {
            add(&mut self.shares.inclusive[thing as usize], sums);
        }
    }
}

/// Who calls a function and whom it calls, with what each is owed of its inclusive time (attributed).
///
/// Of a stack in which the function is several times, the innermost one counts, as in gprofng (`PathTree::get_clr_metrics`,
/// `get_cle_metrics`): so callers add up to the inclusive time, and callees and the function itself do.
#[derive(Debug, Clone, Default)]
pub struct Relatives {
    /// By caller; none is the root.
    pub callers: FxHashMap<Option<FunctionId>, Sums>,
    /// The function's own.
    pub own: Sums,
    /// By callee.
    pub callees: FxHashMap<FunctionId, Sums>,
}

impl Relatives {
    /// Those of a function.
    #[must_use]
    pub fn of(model: &Model, totals: &Totals, function: FunctionId) -> Relatives {
        let mut relatives = Relatives::default();
        for (stack, _, _) in model.stacks.iter() {
            let sums = &totals.stacks[stack.index()];
            if *sums == [0; STATES] {
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
