//! What the page shows: processes, threads, functions, stacks, and the ticks that refer to them by
//! index.
//!
//! Plain data, in the order in which it was found; the page's order is made when it is encoded.
//! Names are what was recorded: they are made [printable](experiment_format::text::printable)
//! there too.

use std::collections::HashMap;

use experiment_format::microstate::Microstate;

/// A profile to be shown. Times are nanoseconds since its start.
#[derive(Clone, Debug, Default)]
pub struct Payload {
    /// What it is, for instance the experiment's name.
    pub title: String,
    /// When it began, milliseconds since 1970 (UTC).
    pub start_unix_ms: u64,
    /// From the first to the last instant.
    pub duration_ns: u64,
    /// The clock interval, microseconds: what one tick stands for. Not 0.
    pub interval_us: u32,
    /// On which machine, for instance its name, its kernel and its CPUs.
    pub machine: String,
    /// What is missing or impaired, a line for each cause; empty where nothing is.
    pub losses: String,
    /// Those that have threads, and others.
    pub processes: Vec<Process>,
    /// All threads that have ticks, and others.
    pub threads: Vec<Thread>,
    /// What the nodes of [`Payload::stacks`] refer to.
    pub functions: Vec<Function>,
    /// Every stack that was seen.
    pub stacks: Stacks,
    /// Where the time went, in any order.
    pub ticks: Vec<Tick>,
}

/// A process.
#[derive(Clone, Debug, Default)]
pub struct Process {
    /// Its number; two processes of one number that lived one after the other are two processes.
    pub pid: u32,
    /// Its name.
    pub name: Vec<u8>,
    /// Whose child it is, for people; may be empty.
    pub lineage: Vec<u8>,
}

/// A thread.
#[derive(Clone, Debug, Default)]
pub struct Thread {
    /// Index into [`Payload::processes`].
    pub process: u32,
    /// Its number.
    pub tid: u32,
    /// Its name.
    pub name: Vec<u8>,
    /// Nanoseconds in each state, by the state's number, where they are known better than by ticks.
    pub exact_ns: Option<[u64; Microstate::PER_THREAD]>,
}

/// A function, as far as stacks tell two of them apart.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Function {
    /// Its name, or a marker such as `<Truncated-stack>`.
    pub name: Vec<u8>,
    /// The load object it is in; may be empty.
    pub object: Vec<u8>,
    /// Of the kernel or one of its modules.
    pub kernel: bool,
    /// Inlined into its caller.
    pub inlined: bool,
}

/// Ticks of one thread in one state with one stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tick {
    /// When the last of them passed: `ticks` of them cover (`time_ns` − `ticks` · interval,
    /// `time_ns`]. Where arrays of a thread have the same time, they cover the time before it one
    /// after the other: blocked, then waiting for a CPU, then on it.
    pub time_ns: u64,
    /// Index into [`Payload::threads`].
    pub thread: u32,
    /// The CPU it was on, or left; [`Tick::NO_CPU`] where that is unknown.
    pub cpu: u16,
    /// A node of [`Payload::stacks`].
    pub stack: u32,
    /// One of the ten states that partition a thread's time.
    pub state: Microstate,
    /// How many.
    pub ticks: u32,
}

impl Tick {
    /// No CPU is known.
    pub const NO_CPU: u16 = u16::MAX;
}

/// Stacks that share their beginnings: a trie, as columns. A node is a function called from its
/// parent's.
#[derive(Clone, Debug)]
pub struct Stacks {
    parent: Vec<u32>,
    function: Vec<u32>,
    known: HashMap<(u32, u32), u32>,
}

impl Default for Stacks {
    fn default() -> Stacks {
        Stacks {
            parent: vec![0],
            function: vec![0],
            known: HashMap::new(),
        }
    }
}

impl Stacks {
    /// The stack without frames, from which all others grow.
    pub const ROOT: u32 = 0;

    /// The stack `parent` and on it a call of `function`, an index into [`Payload::functions`].
    pub fn child(&mut self, parent: u32, function: u32) -> u32 {
        let next = u32::try_from(self.parent.len()).unwrap_or(u32::MAX);
        let node = *self.known.entry((parent, function)).or_insert(next);
        if node == next {
            self.parent.push(parent);
            self.function.push(function);
        }
        node
    }

    /// The stack of these functions, the outermost caller first.
    pub fn stack(&mut self, functions: impl IntoIterator<Item = u32>) -> u32 {
        functions
            .into_iter()
            .fold(Self::ROOT, |parent, function| self.child(parent, function))
    }

    /// Nodes, the root included. Parents have smaller numbers than their children.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.parent.len()
    }

    /// The parent of each node; the root's is itself.
    #[must_use]
    pub fn parents(&self) -> &[u32] {
        &self.parent
    }

    /// The function of each node; the root's means nothing.
    #[must_use]
    pub fn functions(&self) -> &[u32] {
        &self.function
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_beginnings_are_one() {
        let mut stacks = Stacks::default();
        let one = stacks.stack([4, 5, 6]);
        let two = stacks.stack([4, 5, 7]);
        assert_eq!(stacks.stack([4, 5, 6]), one);
        assert_eq!(stacks.stack([]), Stacks::ROOT);
        assert_eq!(stacks.nodes(), 5);
        assert_eq!(
            stacks.parents()[one as usize],
            stacks.parents()[two as usize]
        );
        assert_eq!(stacks.functions()[two as usize], 7);
    }
}
