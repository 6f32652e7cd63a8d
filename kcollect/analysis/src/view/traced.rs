//! Adds the traced events of a model to the page's payload: waits for locks, calls that do I/O, and
//! allocations.
//!
//! A server makes a hundred thousand calls a second. Similar calls of one thread and one kind are
//! added up by the millisecond, so that the page stays small.

use experiment_format::packet::WEIGHT_OF_ONE;
use experiment_format::units::Nanos;
use rustc_hash::FxHashMap;

use super::payload::{EventKind, PageEvent, PageSubject, Payload, SubjectKind};
use crate::filter::Selection;
use crate::model::{CallClass, FileId, FunctionId, Model, ProcessId, StackId, TickRow, lock_name};

const BIN_NS: u64 = 1_000_000;

/// What a subject is, in the model.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Subject {
    Lock(ProcessId, u64),
    File(FileId),
    Memory(ProcessId, Option<FunctionId>),
}

/// How much events are.
#[derive(Clone, Copy, Default)]
struct Amount {
    /// In [`WEIGHT_OF_ONE`] parts of one.
    weight: u64,
    took_ns: u64,
    bytes: u64,
}

#[derive(Default)]
struct Events {
    subjects: Vec<Subject>,
    numbers: FxHashMap<Subject, u32>,
    /// By thread, subject, kind and millisecond: when the last one ended, and their sums.
    sums: FxHashMap<(u32, u32, EventKind, u64), (Nanos, Amount)>,
}

impl Events {
    fn add(&mut self, row: &TickRow, subject: Subject, kind: EventKind, amount: Amount) {
        let next = self.subjects.len() as u32;
        let number = *self.numbers.entry(subject).or_insert(next);
        if number == next {
            self.subjects.push(subject);
        }
        let bin = row.time_ns.0 / BIN_NS;
        let sums = self.sums.entry((row.thread.0, number, kind, bin));
        let (last_ns, sum) = sums.or_default();
        *last_ns = (*last_ns).max(row.time_ns);
        sum.weight = sum.weight.saturating_add(amount.weight);
        sum.took_ns = sum.took_ns.saturating_add(amount.took_ns);
        sum.bytes = sum.bytes.saturating_add(amount.bytes);
    }
}

/// Adds the traced events that pass a filter.
pub(super) fn add_events(model: &Model, selection: &Selection, payload: &mut Payload) {
    let mut events = Events::default();
    let process = |row: &TickRow| model.thread(row.thread).process;
    // For each lock, the time in each stack.
    let mut stacks: FxHashMap<Subject, FxHashMap<StackId, i64>> = FxHashMap::default();
    let waits = model.waits.iter();
    for wait in waits.filter(|wait| selection.passes_event(&wait.row)) {
        let subject = Subject::Lock(process(&wait.row), wait.object);
        let stacks = stacks.entry(subject).or_default();
        *stacks.entry(wait.row.stack).or_default() += wait.duration_ns;
        let amount = Amount {
            weight: WEIGHT_OF_ONE,
            took_ns: wait.duration_ns.max(0).cast_unsigned(),
            bytes: 0,
        };
        events.add(&wait.row, subject, EventKind::Wait, amount);
    }
    let calls = model.io_calls.iter();
    for call in calls.filter(|call| selection.passes_event(&call.row)) {
        let kind = match call.class() {
            CallClass::Read => EventKind::Read,
            CallClass::Write => EventKind::Write,
            CallClass::Other => EventKind::OtherCall,
            CallClass::Error => EventKind::FailedCall,
        };
        let amount = Amount {
            weight: WEIGHT_OF_ONE,
            took_ns: call.duration_ns.max(0).cast_unsigned(),
            bytes: call.bytes,
        };
        events.add(&call.row, Subject::File(call.file), kind, amount);
    }
    let allocations = model.allocations.iter();
    for one in allocations.filter(|one| selection.passes_event(&one.row)) {
        let function = model.waits_at(one.row.stack).and_then(|(_, own)| own);
        let subject = Subject::Memory(process(&one.row), function);
        let amount = |bytes| Amount {
            weight: one.weight,
            took_ns: 0,
            bytes,
        };
        events.add(&one.row, subject, EventKind::Allocated, amount(one.bytes));
        if one.live_bytes > 0 {
            events.add(&one.row, subject, EventKind::Live, amount(one.live_bytes));
        }
    }
    let subjects = events.subjects.iter();
    payload.subjects = subjects
        .map(|subject| shown(model, *subject, stacks.get(subject)))
        .collect();
    let sums = events.sums.into_iter();
    payload.events = sums
        .map(|((thread, subject, kind, _), (time_ns, sum))| PageEvent {
            time_ns,
            thread,
            subject,
            kind,
            count: (sum.weight + WEIGHT_OF_ONE / 2) / WEIGHT_OF_ONE,
            took_ns: Nanos(sum.took_ns),
            bytes: sum.bytes,
        })
        .collect();
}

/// Returns a subject as the page shows it. For a lock, `stacks` are where threads waited.
fn shown(model: &Model, subject: Subject, stacks: Option<&FxHashMap<StackId, i64>>) -> PageSubject {
    let process = |id| model.process(id).name.clone().into_bytes();
    let name = |function: Option<FunctionId>| {
        function.map_or_else(Vec::new, |id| model.function(id).name.clone().into_bytes())
    };
    match subject {
        Subject::Lock(id, object) => {
            let functions = stacks.map(|stacks| model.functions_of_lock(stacks));
            let (library, caller) = functions.unwrap_or_default();
            PageSubject {
                kind: SubjectKind::Lock,
                name: lock_name(object).into_bytes(),
                process: process(id),
                called: [name(library), name(caller)],
            }
        }
        Subject::File(file) => PageSubject {
            kind: SubjectKind::File,
            name: model.files[file.0 as usize].clone().into_bytes(),
            process: Vec::new(),
            called: Default::default(),
        },
        Subject::Memory(id, function) => PageSubject {
            kind: SubjectKind::Memory,
            name: match name(function) {
                none if none.is_empty() => b"(unknown)".to_vec(),
                name => name,
            },
            process: process(id),
            called: Default::default(),
        },
    }
}
