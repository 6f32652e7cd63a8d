//! From addresses to frames and functions, as gprofng finds them.
//!
//! What an address means depends on the experiment and on the time. What it means is remembered with the times at which it
//! does: `Resolver::stack` looks at each address once, unless something else was mapped there in between.

use std::ops::Range;

use experiment_format::functions::{Archives, FunctionTable, PLT};
use experiment_format::space::{AddressSpace, Location, ObjectKind as Mapped};
use experiment_format::stacks::StackEnd;
use experiment_format::stacks::table::Stack;
use rustc_hash::FxHashMap;

use super::model::{
    Frame, FrameId, Function, FunctionId, LoadObject, Model, ObjectId, ObjectKind, StackId,
};
use crate::symbol::demangle;

/// gprofng's names for what is no function.
pub const UNKNOWN: &str = "<Unknown>";
/// Root of a stack of which there was more.
pub const TRUNCATED: &str = "<Truncated-stack>";
/// Root of a stack whose next caller could not be found.
pub const UNWIND_FAILED: &str = "<Stack-unwind-failed>";
/// gprofng's load object of functions without a file.
const DYNAMIC: &str = "DYNAMIC_FUNCTIONS";
/// gprofng's load object of what is no function.
pub const TOTAL: &str = "<Total>";

/// The upper half of the addresses is the kernel's, on all 64-bit machines of Linux.
const fn is_kernel(address: u64) -> bool {
    address >> 63 != 0
}

/// What is known of all experiments so far.
#[derive(Debug, Default)]
pub(super) struct Resolver {
    objects: FxHashMap<(ObjectKind, String), ObjectId>,
    functions: FxHashMap<(ObjectId, u64, String), FunctionId>,
    frames: FxHashMap<(FunctionId, u64), FrameId>,
}

/// The addresses of one experiment.
#[derive(Debug)]
pub(super) struct Addresses {
    space: AddressSpace,
    frames: FxHashMap<u64, (FrameId, Range<u64>)>,
}

impl Addresses {
    pub(super) fn new(space: AddressSpace) -> Addresses {
        Addresses {
            space,
            frames: FxHashMap::default(),
        }
    }
}

impl Resolver {
    /// A stack at a time, nanoseconds since the start of its experiment, and the times at which it is the same.
    pub(super) fn stack(
        &mut self,
        model: &mut Model,
        archives: &mut Archives,
        addresses: &mut Addresses,
        stack: &Stack,
        at: u64,
    ) -> (StackId, Range<u64>) {
        let mut frames = Vec::with_capacity(stack.frames.len() + 1);
        let mut same = 0..u64::MAX;
        for (depth, address) in stack.frames.iter().enumerate() {
            let known = addresses.frames.get(address);
            let (frame, valid) = match known.filter(|(_, valid)| valid.contains(&at)) {
                Some((frame, valid)) => (*frame, valid.clone()),
                None => {
                    let (found, valid) = addresses.space.find_lasting(*address, at);
                    let frame = self.frame(model, archives, *address, found);
                    addresses.frames.insert(*address, (frame, valid.clone()));
                    (frame, valid)
                }
            };
            same = same.start.max(valid.start)..same.end.min(valid.end);
            // As for gprofng, a leaf that is on its way to another function has not left its caller yet.
            if depth == 0 && self.is_plt(model, frame) {
                continue;
            }
            frames.push(frame);
        }
        match stack.end {
            StackEnd::Complete => {}
            StackEnd::Truncated => frames.push(self.special(model, TRUNCATED, 0)),
            StackEnd::UnwindFailed => frames.push(self.special(model, UNWIND_FAILED, 0)),
        }
        (model.stacks.intern(&frames), same)
    }

    fn is_plt(&self, model: &Model, frame: FrameId) -> bool {
        model.function(model.frame(frame).function).name == PLT
    }

    fn frame(
        &mut self,
        model: &mut Model,
        archives: &mut Archives,
        address: u64,
        found: Option<Location<'_>>,
    ) -> FrameId {
        let Some(location) = found else {
            return self.special(model, UNKNOWN, address);
        };
        let kernel = is_kernel(address);
        let name = location.object;
        match location.kind {
            Mapped::Function => {
                let object = self.object(model, ObjectKind::Dynamic, DYNAMIC, false);
                let function = self.function(model, object, 0, name, kernel);
                self.intern(model, function, location.offset)
            }
            Mapped::File => {
                let object = self.object(model, ObjectKind::File, name, kernel);
                // It is told once, and then counts as missing.
                let table = archives.functions(name).unwrap_or_else(|error| {
                    model.warnings.push(error.to_string());
                    None
                });
                let found = table.and_then(|table| table.find_all(location.offset));
                let (begin, name) = match found {
                    Some((names, distance)) => (location.offset - distance, shown(names)),
                    None => hole(table, &location, model.object(object)),
                };
                let function = self.function(model, object, begin, &name, kernel);
                self.intern(model, function, location.offset)
            }
        }
    }

    fn special(&mut self, model: &mut Model, name: &str, offset: u64) -> FrameId {
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
            model.objects.push(LoadObject { path, kind, kernel });
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
        let next = FunctionId(model.functions.len() as u32);
        let key = (object, offset, symbol.to_owned());
        let id = *self.functions.entry(key).or_insert(next);
        if id == next {
            let name = demangle(symbol);
            model.functions.push(Function {
                mangled: (name != symbol).then(|| symbol.to_owned()),
                name: name.into_owned(),
                object,
                offset,
                kernel,
            });
        }
        id
    }

    fn intern(&mut self, model: &mut Model, function: FunctionId, offset: u64) -> FrameId {
        let next = FrameId(model.frames.len() as u32);
        let id = *self.frames.entry((function, offset)).or_insert(next);
        if id == next {
            model.frames.push(Frame { function, offset });
        }
        id
    }
}

/// Of the names of one function that which is shown: the shortest, as people write it.
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

/// Where code between functions begins, and gprofng's name for it.
fn hole(
    table: Option<&FunctionTable>,
    location: &Location<'_>,
    object: &LoadObject,
) -> (u64, String) {
    let size = table.and_then(FunctionTable::text_size);
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
