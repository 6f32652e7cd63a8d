//! Encodes a payload as the bytes that the page's `data.js` reads.
//!
//! ```text
//! u32        length of the header, little-endian
//! header     JSON: names and single values; `columns` names each column with its width in bytes
//!            and its length
//! columns    one after the other, without padding; a column is stored byte by byte: the lowest
//!            byte of all its numbers, then the next, so that bytes that are always zero cost
//!            nothing once compressed
//! ```
//!
//! All of it is one zlib stream, in the order that the page needs:
//!
//! * stacks in preorder, each with its depth, of siblings the one with most ticks first. So a
//!   node's descendants follow it without a gap, and the tree needs no other link;
//! * ticks by thread, then by time, as the distance from the row before. `first` says where each
//!   thread begins. The cause of blocked time is a number from 1, its waker a tid;
//! * traced events by what they are about, then by kind and time.
//!
//! Equal payloads are equal bytes.

use std::io::Write as _;

use experiment_format::cause::Cause;
use experiment_format::ids::{Pid, Tid};
use experiment_format::microstate::Microstate;
use experiment_format::text::printable;
use experiment_format::units::Nanos;
use flate2::Compression;
use flate2::write::ZlibEncoder;
use serde::Serialize;

use super::payload::{PageEvent, PageTick, Payload};

/// JavaScript's numbers are exact below this.
const MAX_SAFE_INTEGER: u64 = 1 << 53;

/// The contradiction in a payload for which it is refused.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum PayloadError {
    /// A thread's process does not exist.
    #[error("thread {thread} refers to process {process}, which does not exist")]
    Process {
        /// Index of the thread.
        thread: usize,
        /// Index of no process.
        process: u32,
    },
    /// A process belongs to more or fewer groups than there are kinds of them.
    #[error("process {process} belongs to {groups} groups of {kinds} kinds")]
    Groups {
        /// Index of the process.
        process: usize,
        /// Its groups.
        groups: usize,
        /// The kinds.
        kinds: usize,
    },
    /// A stack's function does not exist.
    #[error("stack {node} refers to function {function}, which does not exist")]
    Function {
        /// The node.
        node: usize,
        /// Index of no function.
        function: u32,
    },
    /// A stack's parent does not exist before it.
    #[error("stack {node} has parent {parent}, which is not before it")]
    Parent {
        /// The node.
        node: usize,
        /// Index of no earlier stack.
        parent: u32,
    },
    /// A row of ticks refers to something that does not exist, has a state that no thread can be
    /// in, or is too late.
    #[error("tick row {row} has an impossible {what}: {value}")]
    Tick {
        /// Index of the row.
        row: usize,
        /// The column.
        what: &'static str,
        /// Its value.
        value: u64,
    },
    /// A traced event refers to something that does not exist, or is too late.
    #[error("traced event {event} has an impossible {what}: {value}")]
    Event {
        /// Index of the event.
        event: usize,
        /// The column.
        what: &'static str,
        /// Its value.
        value: u64,
    },
    /// Ticks without length, or more time than the page can count.
    #[error("an impossible {what}: {value}")]
    Clock {
        /// The name of the value.
        what: &'static str,
        /// The value.
        value: u64,
    },
}

/// Returns the zlib stream of `payload`.
///
/// # Errors
/// When an index is out of range, or a time or the interval is out of bounds.
pub fn encode(payload: &Payload) -> Result<Vec<u8>, PayloadError> {
    check(payload)?;
    let (order, stacks) = preorder(payload);
    let rows = laid_out(payload, &order);
    let mut columns = Columns::default();
    columns.push("stack_depth", 4, stacks.iter().map(|stack| stack.0));
    columns.push("stack_function", 4, stacks.iter().map(|stack| stack.1));
    let threads = payload.threads.len() as u32;
    let first = (0..=threads).map(|thread| rows.partition_point(|row| row.thread < thread) as u64);
    columns.push("first", 4, first);
    columns.push("end", 8, distances(&rows));
    columns.push("ticks", 4, rows.iter().map(|row| row.ticks.into()));
    columns.push("micros", 8, rows.iter().map(|row| row.micros));
    columns.push("stack", 4, rows.iter().map(|row| row.stack.into()));
    columns.push("cpu", 2, rows.iter().map(|row| row.cpu.into()));
    columns.push("state", 1, rows.iter().map(|row| row.state.number().into()));
    // 0: the thread was not blocked.
    let causes = rows.iter().map(|row| row.cause);
    columns.push(
        "cause",
        1,
        causes.map(|cause| cause.map_or(0, |cause| u64::from(cause.number()) + 1)),
    );
    columns.push("waker", 4, rows.iter().map(|row| row.waker.0.into()));
    let exact = payload.threads.iter();
    columns.push(
        "exact",
        8,
        exact
            .flat_map(|thread| thread.exact_ns.unwrap_or_default())
            .map(|ns| ns.0),
    );
    push_events(payload, &mut columns);
    Ok(compress(&header(payload, &columns), &columns.bytes))
}

fn push_events(payload: &Payload, columns: &mut Columns) {
    let mut events = payload.events.clone();
    events.sort_by_key(|event| (event.subject, event.kind, event.time_ns, event.thread));
    let mut push = |name, width, of: fn(&PageEvent) -> u64| {
        columns.push(name, width, events.iter().map(of));
    };
    push("event_subject", 4, |event| event.subject.into());
    push("event_kind", 1, |event| event.kind as u64);
    push("event_end", 8, |event| event.time_ns.0);
    push("event_thread", 4, |event| event.thread.into());
    push("event_count", 8, |event| event.count);
    push("event_ns", 8, |event| event.took_ns.0);
    push("event_bytes", 8, |event| event.bytes);
}

fn check(payload: &Payload) -> Result<(), PayloadError> {
    let clock = |what, value| Err(PayloadError::Clock { what, value });
    if payload.interval_us == 0 {
        return clock("interval", 0);
    }
    if payload.duration_ns.0 >= MAX_SAFE_INTEGER {
        return clock("duration", payload.duration_ns.0);
    }
    let kinds = payload.groupings.len();
    for (process, it) in payload.processes.iter().enumerate() {
        let groups = it.groups.len();
        if groups != kinds {
            return Err(PayloadError::Groups {
                process,
                groups,
                kinds,
            });
        }
    }
    for (thread, it) in payload.threads.iter().enumerate() {
        if it.process as usize >= payload.processes.len() {
            let process = it.process;
            return Err(PayloadError::Process { thread, process });
        }
    }
    let stacks = &payload.stacks;
    for node in 1..stacks.nodes() {
        let (parent, function) = (stacks.parents()[node], stacks.functions()[node]);
        if parent as usize >= node {
            return Err(PayloadError::Parent { node, parent });
        }
        if function as usize >= payload.functions.len() {
            return Err(PayloadError::Function { node, function });
        }
    }
    for (row, tick) in payload.ticks.iter().enumerate() {
        let impossible = [
            ("thread", tick.thread.into(), payload.threads.len() as u64),
            ("stack", tick.stack.into(), stacks.nodes() as u64),
            (
                "state",
                tick.state.number().into(),
                Microstate::PER_THREAD as u64,
            ),
            ("time", tick.time_ns.0, MAX_SAFE_INTEGER),
        ]
        .into_iter()
        .find(|(_, value, limit)| value >= limit);
        if let Some((what, value, _)) = impossible {
            return Err(PayloadError::Tick { row, what, value });
        }
    }
    for (event, it) in payload.events.iter().enumerate() {
        let impossible = [
            ("thread", it.thread.into(), payload.threads.len() as u64),
            ("subject", it.subject.into(), payload.subjects.len() as u64),
            ("time", it.time_ns.0, MAX_SAFE_INTEGER),
        ]
        .into_iter()
        .find(|(_, value, limit)| value >= limit);
        if let Some((what, value, _)) = impossible {
            return Err(PayloadError::Event { event, what, value });
        }
    }
    Ok(())
}

/// Returns the new number of each node, and (depth, function) of each in the new order.
fn preorder(payload: &Payload) -> (Vec<u32>, Vec<(u64, u64)>) {
    let stacks = &payload.stacks;
    let mut weight = vec![0_u64; stacks.nodes()];
    for tick in &payload.ticks {
        weight[tick.stack as usize] += tick.micros;
    }
    for node in (1..stacks.nodes()).rev() {
        weight[stacks.parents()[node] as usize] += weight[node];
    }
    let mut children = vec![Vec::new(); stacks.nodes()];
    for node in 1..stacks.nodes() {
        children[stacks.parents()[node] as usize].push(node);
    }
    let name = |node: usize| {
        let function = &payload.functions[stacks.functions()[node] as usize];
        (&function.name, &function.object, node)
    };
    let mut order = vec![0; stacks.nodes()];
    let mut listed = Vec::with_capacity(stacks.nodes());
    let mut todo = vec![(0, 0_u64)];
    while let Some((node, depth)) = todo.pop() {
        order[node] = listed.len() as u32;
        listed.push((depth, stacks.functions()[node].into()));
        // The last one pushed is taken first.
        children[node].sort_by(|&a, &b| weight[a].cmp(&weight[b]).then(name(b).cmp(&name(a))));
        todo.extend(children[node].iter().map(|&child| (child, depth + 1)));
    }
    (order, listed)
}

/// Returns the rows by thread and time. `time_ns` is the end of the row; rows of one time are laid
/// end to end before it.
fn laid_out(payload: &Payload, order: &[u32]) -> Vec<PageTick> {
    let interval = Nanos::from_micros(payload.interval_us.into());
    let mut rows = payload.ticks.clone();
    rows.retain(|row| row.micros > 0);
    for row in &mut rows {
        row.stack = order[row.stack as usize];
    }
    rows.sort_by_key(|row| (row.thread, row.time_ns, before_waking(row.state), rest(row)));
    for together in rows.chunk_by_mut(|a, b| (a.thread, a.time_ns) == (b.thread, b.time_ns)) {
        let mut end = together.first().map_or(Nanos::ZERO, |row| row.time_ns);
        for row in together.iter_mut().rev() {
            row.time_ns = end;
            end = end.saturating_sub(interval.saturating_mul(row.ticks.into()));
        }
    }
    rows.sort_by_key(|row| (row.thread, row.time_ns, before_waking(row.state), rest(row)));
    rows
}

/// Returns the order of states at a wake-up: a thread sleeps, then waits for a CPU, then runs.
fn before_waking(state: Microstate) -> u32 {
    match state {
        Microstate::User | Microstate::System | Microstate::Trap => 2,
        Microstate::WaitCpu => 1,
        _ => 0,
    }
}

fn rest(row: &PageTick) -> (u32, u32, u16, u32) {
    (row.state.number(), row.stack, row.cpu, row.ticks)
}

fn distances(rows: &[PageTick]) -> impl Iterator<Item = u64> {
    let mut before = (u32::MAX, Nanos::ZERO);
    rows.iter().map(move |row| {
        let from = if before.0 == row.thread {
            before.1
        } else {
            Nanos::ZERO
        };
        before = (row.thread, row.time_ns);
        (row.time_ns - from).0
    })
}

#[derive(Default)]
struct Columns {
    described: Vec<(&'static str, u8, usize)>,
    bytes: Vec<u8>,
}

impl Columns {
    fn push(&mut self, name: &'static str, width: u8, numbers: impl Iterator<Item = u64>) {
        let numbers: Vec<u64> = numbers.collect();
        for byte in 0..width {
            let plane = numbers.iter().map(|number| (number >> (8 * byte)) as u8);
            self.bytes.extend(plane);
        }
        self.described.push((name, width, numbers.len()));
    }
}

#[derive(Serialize)]
struct PageHeader<'a> {
    title: String,
    start_unix_ms: u64,
    duration_ns: Nanos,
    interval_us: u32,
    weighed: bool,
    machine: String,
    stolen: f64,
    losses: Vec<String>,
    states: [&'static str; Microstate::PER_THREAD],
    groupings: &'a [&'static str],
    /// The causes of waits in the order of their numbers: what the thread waited for, the kind, and
    /// how that is known.
    causes: [(&'static str, &'static str, &'static str); Cause::COUNT],
    /// Name, lineage and what held it up as indexes into `strings`, the pid, and what it belongs to
    /// by the kinds of `groupings`.
    processes: Vec<(usize, usize, usize, Pid, Vec<usize>)>,
    /// Process, tid, name, whether exact times are known.
    threads: Vec<(u32, Tid, usize, u8)>,
    /// Name, object, flags: 1 kernel, 2 JIT code.
    functions: Vec<(usize, usize, u8)>,
    /// Kind, name, process, the function of a library, the program's function that called it.
    subjects: Vec<(u8, usize, usize, usize, usize)>,
    strings: Vec<String>,
    columns: &'a [(&'static str, u8, usize)],
}

fn header(payload: &Payload, columns: &Columns) -> Vec<u8> {
    let mut strings = HeaderStrings::default();
    let processes = payload.processes.iter();
    let processes = processes
        .map(|it| {
            (
                strings.number(&it.name),
                strings.number(&it.lineage),
                strings.number(&it.held_up),
                it.pid,
                it.groups
                    .iter()
                    .map(|group| strings.number(group))
                    .collect(),
            )
        })
        .collect();
    let threads = payload.threads.iter();
    let threads = threads
        .map(|it| {
            let name = strings.number(&it.name);
            (it.process, it.tid, name, it.exact_ns.is_some().into())
        })
        .collect();
    let functions = payload.functions.iter();
    let functions = functions
        .map(|it| {
            let flags = u8::from(it.kernel) + 2 * u8::from(it.jit);
            (strings.number(&it.name), strings.number(&it.object), flags)
        })
        .collect();
    let subjects = payload.subjects.iter();
    let subjects = subjects
        .map(|it| {
            let [library, caller] = [&it.called[0], &it.called[1]].map(|name| strings.number(name));
            let (name, process) = (strings.number(&it.name), strings.number(&it.process));
            (it.kind as u8, name, process, library, caller)
        })
        .collect();
    let header = PageHeader {
        title: printable(payload.title.as_bytes()),
        start_unix_ms: payload.start_unix_ms,
        duration_ns: payload.duration_ns,
        interval_us: payload.interval_us,
        weighed: payload.weighed,
        machine: printable(payload.machine.as_bytes()),
        stolen: payload.stolen,
        losses: payload
            .losses
            .lines()
            .map(|line| printable(line.as_bytes()))
            .collect(),
        states: std::array::from_fn(|state| Microstate::ALL[state].label()),
        groupings: &payload.groupings,
        causes: Cause::ALL.map(|cause| (cause.title(), cause.kind().keyword(), reason(cause))),
        processes,
        threads,
        functions,
        subjects,
        strings: strings.listed,
        columns: &columns.described,
    };
    // Without maps of keys that could fail.
    serde_json::to_vec(&header).unwrap_or_default()
}

/// Returns how it is known that a wait has a cause. docs/waits.md has the whole rule.
const fn reason(cause: Cause) -> &'static str {
    match cause {
        Cause::Undecided => {
            "What ended the wait says too little about it, or was not watched (-W on watches it)."
        }
        Cause::Device => "The scheduler counts the wait as block I/O.",
        Cause::Kernel => {
            "It is a page fault, or no signal ends the wait: the kernel itself is waited for."
        }
        Cause::Lock => {
            "The futex has the value of a mutex that others wait for, or the call takes a lock."
        }
        Cause::Child => "The call waits for a child process: wait4, waitid, vfork.",
        Cause::Write => "The call writes, and what it writes to has no space or takes its time.",
        Cause::ThreadEnd => "The futex is the number of a thread, or a thread that exited woke it.",
        Cause::Answer => "What woke it worked on what this thread had asked, or it connects.",
        Cause::Middle => "Another thread woke it in a place where it does not take work.",
        Cause::Timer => "Its own timer woke it, or the call only waits for one.",
        Cause::Outside => {
            "An interrupt or a thread of the kernel woke it: the network, a terminal, a device."
        }
        Cause::NewWork => "It waited where it takes work that it has not asked for.",
        Cause::NotEnded => "It was still blocked at the end, and its own state does not say why.",
    }
}

/// The strings of a header, each stored once.
#[derive(Default)]
struct HeaderStrings<'a> {
    known: std::collections::HashMap<&'a [u8], usize>,
    listed: Vec<String>,
}

impl<'a> HeaderStrings<'a> {
    fn number(&mut self, text: &'a [u8]) -> usize {
        *self.known.entry(text).or_insert_with(|| {
            self.listed.push(printable(text));
            self.listed.len() - 1
        })
    }
}

fn compress(header: &[u8], columns: &[u8]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
    let length = header.len() as u32;
    // Writing into a Vec does not fail.
    for part in [&length.to_le_bytes(), header, columns] {
        let _ = encoder.write_all(part);
    }
    encoder.finish().unwrap_or_default()
}

#[cfg(test)]
#[path = "encode_tests.rs"]
mod tests;
