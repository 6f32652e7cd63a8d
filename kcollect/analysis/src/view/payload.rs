//! The data that the page shows: processes, threads, functions, stacks, and the ticks that refer to
//! them by index.
//!
//! The data is in the order in which it was found; encoding sorts it. Names are as recorded;
//! encoding makes them [printable](experiment_format::text::printable).

use std::collections::HashMap;

use experiment_format::cause::Cause;
use experiment_format::ids::{Pid, Tid};
use experiment_format::microstate::Microstate;
use experiment_format::units::Nanos;

/// A profile to be shown. Times are in nanoseconds since its start.
#[derive(Clone, Debug, Default)]
pub struct Payload {
    /// Its title, such as the experiment's name.
    pub title: String,
    /// When it began, in milliseconds since 1970 (UTC).
    pub start_unix_ms: u64,
    /// Its length.
    pub duration_ns: Nanos,
    /// The clock interval in microseconds, which one tick stands for. Not 0.
    pub interval_us: u32,
    /// Whether ticks stand for exact times, and not for their length alone.
    pub weighed: bool,
    /// The machine, such as its host name, architecture and CPUs.
    pub machine: String,
    /// The part of the time of all CPUs that a hypervisor gave to other machines, of 1.
    pub stolen: f64,
    /// What is missing or impaired, one line for each cause; empty if nothing is.
    pub losses: String,
    /// The kinds of what processes belong to, such as units of systemd, by their names.
    pub groupings: Vec<&'static str>,
    /// The processes, with or without threads.
    pub processes: Vec<PageProcess>,
    /// The threads, with or without ticks.
    pub threads: Vec<PageThread>,
    /// The functions of [`Payload::stacks`].
    pub functions: Vec<PageFunction>,
    /// The stacks.
    pub stacks: PageStacks,
    /// The ticks, in any order.
    pub ticks: Vec<PageTick>,
    /// What the traced events were about.
    pub subjects: Vec<PageSubject>,
    /// The traced events, in any order.
    pub events: Vec<PageEvent>,
}

/// What traced events are about: a row of the page's table of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageSubject {
    /// What it is.
    pub kind: SubjectKind,
    /// Its name: a lock's address, a file's name, a function.
    pub name: Vec<u8>,
    /// The process of a lock or a function; empty for a file, which many may use.
    pub process: Vec<u8>,
    /// For a lock, the library's function that waited most, and the program's function that called
    /// it; otherwise empty.
    pub called: [Vec<u8>; 2],
}

/// The kind of what traced events are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SubjectKind {
    /// A lock (`-s`).
    Lock = 0,
    /// A file (`-i`).
    File = 1,
    /// A function that allocated memory (`-H`).
    Memory = 2,
}

/// What happened in traced events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EventKind {
    /// A thread waited for the lock.
    Wait = 0,
    /// It read from the file.
    Read = 1,
    /// It wrote to the file.
    Write = 2,
    /// It made another call on the file.
    OtherCall = 3,
    /// It made a call on the file, which failed.
    FailedCall = 4,
    /// The function allocated memory.
    Allocated = 5,
    /// It allocated memory that was not freed by the end. It is among [`EventKind::Allocated`].
    Live = 6,
}

/// Traced events of one kind, of one thread, about the same, in the same millisecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageEvent {
    /// When the last of them ended.
    pub time_ns: Nanos,
    /// Index into [`Payload::threads`].
    pub thread: u32,
    /// Index into [`Payload::subjects`].
    pub subject: u32,
    /// What happened.
    pub kind: EventKind,
    /// How many there were; of sampled allocations, how many they stand for.
    pub count: u64,
    /// How long they took together.
    pub took_ns: Nanos,
    /// The bytes that they moved or allocated.
    pub bytes: u64,
}

/// A process.
#[derive(Clone, Debug, Default)]
pub struct PageProcess {
    /// Its pid; successive processes with one pid are separate.
    pub pid: Pid,
    /// Its name.
    pub name: Vec<u8>,
    /// Its descent from other processes, as text; may be empty.
    pub lineage: Vec<u8>,
    /// Why its threads that had work did not run, with seconds, in the whole run; may be empty.
    pub held_up: Vec<u8>,
    /// What it belongs to, by the kinds of [`Payload::groupings`].
    pub groups: Vec<Vec<u8>>,
}

/// A thread.
#[derive(Clone, Debug, Default)]
pub struct PageThread {
    /// Index into [`Payload::processes`].
    pub process: u32,
    /// Its tid.
    pub tid: Tid,
    /// Its name.
    pub name: Vec<u8>,
    /// Exact nanoseconds by the state's number, if known.
    pub exact_ns: Option<[Nanos; Microstate::PER_THREAD]>,
}

/// A function, distinguished by everything in it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PageFunction {
    /// Its name, or a mark such as `<Truncated-stack>`.
    pub name: Vec<u8>,
    /// Its load object; may be empty.
    pub object: Vec<u8>,
    /// Whether it is kernel or module code.
    pub kernel: bool,
    /// Whether it is JIT code.
    pub jit: bool,
}

/// Ticks of one thread in one state with one stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageTick {
    /// When the last of them ended: the ticks cover (`time_ns` − `ticks` · interval, `time_ns`].
    /// Rows of a thread with the same time cover the time before it one after the other: blocked,
    /// then waiting for a CPU, then on it.
    pub time_ns: Nanos,
    /// Index into [`Payload::threads`].
    pub thread: u32,
    /// The CPU that the thread was on, or left; [`PageTick::NO_CPU`] if unknown.
    pub cpu: u16,
    /// A node of [`Payload::stacks`].
    pub stack: u32,
    /// The state.
    pub state: Microstate,
    /// Number of ticks. None: time in which no tick fell.
    pub ticks: u32,
    /// The time that they stand for, microseconds.
    pub micros: u64,
    /// Why the thread was blocked, if it was.
    pub cause: Option<Cause>,
    /// The tid of the thread that ended that; 0 if none did, or it is not known.
    pub waker: Tid,
}

impl PageTick {
    /// The CPU is unknown.
    pub const NO_CPU: u16 = u16::MAX;
}

/// Stacks as a trie in columns. A node is a function called by its parent's.
#[derive(Clone, Debug)]
pub struct PageStacks {
    parent: Vec<u32>,
    function: Vec<u32>,
    known: HashMap<(u32, u32), u32>,
}

impl Default for PageStacks {
    fn default() -> PageStacks {
        PageStacks {
            parent: vec![0],
            function: vec![0],
            known: HashMap::new(),
        }
    }
}

impl PageStacks {
    /// The stack without frames, the root.
    pub const ROOT: u32 = 0;

    /// Returns the stack `parent` with one more call, of `function`, an index into
    /// [`Payload::functions`].
    pub fn child(&mut self, parent: u32, function: u32) -> u32 {
        let next = u32::try_from(self.parent.len()).unwrap_or(u32::MAX);
        let node = *self.known.entry((parent, function)).or_insert(next);
        if node == next {
            self.parent.push(parent);
            self.function.push(function);
        }
        node
    }

    /// Returns the stack of these functions, the outermost first.
    pub fn stack(&mut self, functions: impl IntoIterator<Item = u32>) -> u32 {
        functions
            .into_iter()
            .fold(Self::ROOT, |parent, function| self.child(parent, function))
    }

    /// Returns the number of nodes, with the root. Parents have smaller numbers than their
    /// children.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.parent.len()
    }

    /// Returns the parent of each node; the root is its own.
    #[must_use]
    pub fn parents(&self) -> &[u32] {
        &self.parent
    }

    /// Returns the function of each node; the root's has no meaning.
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
        let mut stacks = PageStacks::default();
        let one = stacks.stack([4, 5, 6]);
        let two = stacks.stack([4, 5, 7]);
        assert_eq!(stacks.stack([4, 5, 6]), one);
        assert_eq!(stacks.stack([]), PageStacks::ROOT);
        assert_eq!(stacks.nodes(), 5);
        assert_eq!(
            stacks.parents()[one as usize],
            stacks.parents()[two as usize]
        );
        assert_eq!(stacks.functions()[two as usize], 7);
    }
}
