//! Resolves addresses to frames and functions, as gprofng does.
//!
//! What an address means depends on the experiment and on the time, so each result is cached with
//! the time range in which it holds. `Resolver::stack` resolves each stack, and each chain of
//! callers that stacks share, once, unless something else was mapped there in between. Each
//! position in a file is resolved once for all experiments of a founder.

use std::sync::Arc;

use experiment_format::address_space::{Location, ObjectKind as Mapped, RecordedAddressSpace};
use experiment_format::functions::{Archives, FileFunctions, PLT};
use experiment_format::kernel::KERNEL;
use experiment_format::stacks::table::StackTable;
use experiment_format::stacks::{StackEnd, StackUid};
use experiment_format::units::Nanos;
use rustc_hash::FxHashMap;

use super::call_paths::{Callers, CallersId, Lasting};
use super::kernel_names::KernelNames;
use crate::model::interner::Numbers;
use crate::model::{
    FrameId, FunctionId, FunctionInfo, Model, ObjectId, ObjectInfo, ObjectKind, StackFrame,
    StackId, TOTAL, TRUNCATED, UNKNOWN, UNWIND_FAILED,
};
use crate::symbol::demangle;

/// gprofng's load object of functions without a file.
const DYNAMIC: &str = "DYNAMIC_FUNCTIONS";

/// Returns whether an address is the kernel's: in the upper half of the addresses, on all 64-bit
/// machines of Linux.
const fn is_kernel(address: u64) -> bool {
    address >> 63 != 0
}

/// What was resolved so far, in all experiments.
#[derive(Debug, Default)]
pub(super) struct Resolver {
    objects: FxHashMap<(ObjectKind, String), ObjectId>,
    functions: Numbers,
    frames: Numbers,
    /// Frames by founder, load object and position in its file: each founder has copies of its own.
    places: FxHashMap<(u32, ObjectId, u64), FrameId>,
    /// Functions by founder, load object and start offset, which is faster than comparing names.
    begins: FxHashMap<(u32, ObjectId, u64), FunctionId>,
    /// By frame, the founder and load object that it was resolved in; the last of several.
    files: Vec<Option<(u32, ObjectId)>>,
}

/// The addresses of one experiment, and the stacks made of them.
#[derive(Debug)]
pub(super) struct Addresses {
    founder: u32,
    space: RecordedAddressSpace,
    /// The kernel's functions, if the experiment has no copy of their names.
    kernel: Option<Arc<KernelNames>>,
    /// By the position of the name in `space`.
    objects: Vec<Option<ObjectId>>,
    /// Frames of addresses outside files.
    frames: FxHashMap<u64, Lasting<FrameId>>,
    callers: Callers,
    /// Callers by the number of their first stack part, with the callers in all parts after it.
    parts: FxHashMap<u64, CallersId>,
    stacks: FxHashMap<StackUid, Lasting<StackId>>,
}

impl Addresses {
    pub(super) fn new(
        founder: u32,
        space: RecordedAddressSpace,
        kernel: Option<Arc<KernelNames>>,
    ) -> Addresses {
        Addresses {
            founder,
            kernel,
            objects: vec![None; space.objects().count()],
            space,
            frames: FxHashMap::default(),
            callers: Callers::default(),
            parts: FxHashMap::default(),
            stacks: FxHashMap::default(),
        }
    }
}

/// The number of parts of one stack from which on circles among them are looked for.
const PARTS_BEFORE_CIRCLE_CHECK: usize = 16;

impl Resolver {
    /// Returns the stack of a packet at a time since the start of its experiment. None: the stack
    /// is missing.
    pub(super) fn stack(
        &mut self,
        model: &mut Model,
        archives: &mut Archives,
        addresses: &mut Addresses,
        stacks: &StackTable,
        uid: StackUid,
        at_ns: Nanos,
    ) -> Option<StackId> {
        let known = addresses.stacks.get(&uid);
        if let Some(stack) = known.and_then(|known| known.at(at_ns)) {
            return Some(stack);
        }
        // Down from the leaf until the callers are known, and then back up.
        let mut parts = Vec::new();
        let mut next = stacks.first_part(uid)?;
        let (mut callers, mut circle) = (None, false);
        let mut end = StackEnd::Complete;
        while let Some(number) = next {
            // The first part has a leaf, which is not a caller.
            if !parts.is_empty() {
                let known = addresses.parts.get(&number).copied();
                callers = known.filter(|known| addresses.callers.stack(*known).at(at_ns).is_some());
            }
            if callers.is_some() {
                break;
            }
            circle = parts.len() >= PARTS_BEFORE_CIRCLE_CHECK
                && parts.iter().any(|(known, _)| *known == number);
            let Some(part) = stacks.part(number).filter(|_| !circle) else {
                end = StackEnd::Truncated;
                break;
            };
            parts.push((number, part));
            (next, end) = (part.callers, part.end);
        }
        let mut callers = callers.unwrap_or_else(|| self.root(model, addresses, end));
        let mut leaf = None;
        while let Some((number, part)) = parts.pop() {
            let frames = match part.frames.split_first() {
                Some((first, frames)) if parts.is_empty() => {
                    leaf = Some(*first);
                    frames
                }
                _ => part.frames,
            };
            for address in frames.iter().rev() {
                callers = self.callers(model, archives, addresses, callers, *address, at_ns);
            }
            if !circle && !parts.is_empty() {
                addresses.parts.insert(number, callers);
            }
        }
        let mut stack = addresses.callers.stack(callers);
        if let Some(leaf) = leaf {
            let frame = self.address(model, archives, addresses, (stack.value, leaf), at_ns);
            // As for gprofng: a leaf in the PLT is on its way to another function, and counts as
            // its caller.
            if !self.is_plt(model, frame.value) {
                stack.value = model.stacks.child(stack.value, frame.value);
            }
            stack = stack.and(&frame);
        }
        addresses.stacks.insert(uid, stack);
        Some(stack.value)
    }

    /// Returns the callers `above` with one more address below them, resolved for a time.
    fn callers(
        &mut self,
        model: &mut Model,
        archives: &mut Archives,
        addresses: &mut Addresses,
        above: CallersId,
        address: u64,
        at_ns: Nanos,
    ) -> CallersId {
        let callers = addresses.callers.child(above, address);
        if addresses.callers.stack(callers).at(at_ns).is_none() {
            let stack = addresses.callers.stack(above);
            let frame = self.address(model, archives, addresses, (stack.value, address), at_ns);
            let mut stack = stack.and(&frame);
            stack.value = model.stacks.child(stack.value, frame.value);
            addresses.callers.set(callers, stack);
        }
        callers
    }

    /// Returns the callers that consist of the mark of an end alone.
    fn root(&mut self, model: &mut Model, addresses: &mut Addresses, end: StackEnd) -> CallersId {
        let [complete, truncated, unwind_failed] = CallersId::ROOTS;
        let (root, name) = match end {
            StackEnd::Complete => (complete, None),
            StackEnd::Truncated => (truncated, Some(TRUNCATED)),
            StackEnd::UnwindFailed => (unwind_failed, Some(UNWIND_FAILED)),
        };
        if addresses.callers.stack(root).at(Nanos::ZERO).is_none() {
            let stack = name.map_or(StackId::EMPTY, |name| {
                let frame = self.special(model, name, 0);
                model.stacks.child(StackId::EMPTY, frame)
            });
            addresses.callers.set(root, Lasting::always(stack));
        }
        root
    }

    /// Returns the frame of an address called by a stack.
    fn address(
        &mut self,
        model: &mut Model,
        archives: &mut Archives,
        addresses: &mut Addresses,
        (caller, address): (StackId, u64),
        at_ns: Nanos,
    ) -> Lasting<FrameId> {
        let known = addresses.frames.get(&address);
        if let Some(known) = known.filter(|known| known.at(at_ns).is_some()) {
            return *known;
        }
        let (found, same) = addresses.space.find_lasting(address, at_ns);
        let (from_ns, until_ns) = (same.start, same.end);
        let kernel = is_kernel(address);
        let value = match found {
            Some(location) if location.kind == Mapped::File => {
                let object = &mut addresses.objects[location.number];
                let object = *object.get_or_insert_with(|| {
                    self.object(model, ObjectKind::File, location.object, kernel)
                });
                let file = (addresses.founder, object);
                // Another experiment, or the same one at another time, resolved this call already.
                let guess = model.stacks.first_callee(caller).filter(|guess| {
                    model.frame(*guess).offset == location.offset
                        && self.files[guess.index()] == Some(file)
                });
                let value =
                    guess.unwrap_or_else(|| self.in_file(model, archives, file, &location, kernel));
                return Lasting {
                    value,
                    from_ns,
                    until_ns,
                };
            }
            Some(location) => {
                let object = self.object(model, ObjectKind::Dynamic, DYNAMIC, false);
                let function = self.function(model, object, 0, location.object, kernel);
                self.intern(model, function, location.offset)
            }
            None => self.unmapped(model, addresses, address),
        };
        let frame = Lasting {
            value,
            from_ns,
            until_ns,
        };
        addresses.frames.insert(address, frame);
        frame
    }

    /// Returns the frame of an address at which nothing is mapped. The kernel's functions may be
    /// known all the same.
    fn unmapped(&mut self, model: &mut Model, addresses: &Addresses, address: u64) -> FrameId {
        let names = addresses.kernel.as_ref().filter(|_| is_kernel(address));
        let found = names.and_then(|names| Some((names, names.find(address)?)));
        let Some((names, (name, begin))) = found else {
            return self.special(model, UNKNOWN, address);
        };
        let object = self.object(model, ObjectKind::File, KERNEL, true);
        let function = self.function(model, object, begin, name, true);
        self.intern(model, function, names.offset(address))
    }

    fn is_plt(&self, model: &Model, frame: FrameId) -> bool {
        model.function(model.frame(frame).function).name == PLT
    }

    fn in_file(
        &mut self,
        model: &mut Model,
        archives: &mut Archives,
        file: (u32, ObjectId),
        location: &Location<'_>,
        kernel: bool,
    ) -> FrameId {
        let (founder, object) = file;
        let place = (founder, object, location.offset);
        if let Some(frame) = self.places.get(&place) {
            return *frame;
        }
        // The error is reported once; the table then counts as missing.
        let table = archives.functions(location.object).unwrap_or_else(|error| {
            model.leave_out(error.to_string());
            None
        });
        let found = table.and_then(|table| table.find_all(location.offset));
        let function = match found {
            Some((names, distance)) => {
                let begin = location.offset - distance;
                let known = self.begins.get(&(founder, object, begin)).copied();
                known.unwrap_or_else(|| {
                    let function = self.function(model, object, begin, &shown(names), kernel);
                    self.begins.insert((founder, object, begin), function);
                    function
                })
            }
            None => {
                let (begin, name) = hole(table, location, model.object(object));
                self.function(model, object, begin, &name, kernel)
            }
        };
        let frame = self.intern(model, function, location.offset);
        self.places.insert(place, frame);
        self.files[frame.index()] = Some(file);
        frame
    }

    /// Returns the frame of what is no code.
    pub(super) fn special(&mut self, model: &mut Model, name: &str, offset: u64) -> FrameId {
        let object = self.object(model, ObjectKind::Special, TOTAL, false);
        let function = self.function(model, object, 0, name, false);
        self.intern(model, function, offset)
    }

    fn object(
        &mut self,
        model: &mut Model,
        kind: ObjectKind,
        path: &str,
        kernel: bool,
    ) -> ObjectId {
        let next = ObjectId(model.objects.len() as u32);
        let id = *self.objects.entry((kind, path.to_owned())).or_insert(next);
        if id == next {
            let path = path.to_owned();
            model.objects.push(ObjectInfo { path, kind, kernel });
        }
        id
    }

    fn function(
        &mut self,
        model: &mut Model,
        object: ObjectId,
        offset: u64,
        symbol: &str,
        kernel: bool,
    ) -> FunctionId {
        let next = model.functions.len();
        let number = self
            .functions
            .number(&(object, offset, symbol), next, |at| {
                let function = &model.functions[at];
                (function.object, function.offset, function.symbol())
            });
        if number as usize == next {
            let name = demangle(symbol);
            model.functions.push(FunctionInfo {
                mangled: (name != symbol).then(|| symbol.to_owned()),
                name: name.into_owned(),
                object,
                offset,
                kernel,
            });
        }
        FunctionId(number)
    }

    fn intern(&mut self, model: &mut Model, function: FunctionId, offset: u64) -> FrameId {
        let next = model.frames.len();
        let frame = StackFrame { function, offset };
        let number = self.frames.number(&frame, next, |at| model.frames[at]);
        if number as usize == next {
            model.frames.push(frame);
            self.files.push(None);
        }
        FrameId(number)
    }
}

/// Returns the name that is shown of a function with several, which is the shortest when demangled.
fn shown<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let mut names = names.peekable();
    let Some(first) = names.next() else {
        return String::new();
    };
    if names.peek().is_none() {
        return first.to_owned();
    }
    let shortest = std::iter::once(first).chain(names).min_by_key(|name| {
        let plain = demangle(name);
        (plain.len(), plain)
    });
    shortest.unwrap_or(first).to_owned()
}

/// Returns where code between functions begins, and gprofng's name for it.
fn hole(
    table: Option<&FileFunctions>,
    location: &Location<'_>,
    object: &ObjectInfo,
) -> (u64, String) {
    let size = table.and_then(FileFunctions::text_size);
    let size = size.unwrap_or(location.mapped);
    let functions = table.filter(|table| !table.is_empty());
    let (begin, more) = match functions {
        _ if location.offset >= size => (size, " --  no functions found"),
        Some(table) => (table.hole(location.offset), ""),
        None => (0, " --  no functions found"),
    };
    let name = format!("<static>@{begin:#x} ({}){more}", object.short_name());
    (begin, name)
}
