//! From addresses to frames and functions, as gprofng finds them.
//!
//! What an address means depends on the experiment and on the time. What it means is remembered with the times at which it
//! does: [`Resolver::stack`] looks at each address once, unless something else was mapped there in between.

use std::ops::Range;

use experiment_format::functions::Archives;
use experiment_format::space::{AddressSpace, Location, ObjectKind as Mapped};
use experiment_format::stacks::StackEnd;
use experiment_format::stacks::table::Stack;
use rustc_hash::FxHashMap;

use super::model::{
    Frame, FrameId, Function, FunctionId, LoadObject, Model, ObjectId, ObjectKind, StackId,
};
use super::names::demangle;

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
        for address in &stack.frames {
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
            frames.push(frame);
            same = same.start.max(valid.start)..same.end.min(valid.end);
        }
        match stack.end {
            StackEnd::Complete => {}
            StackEnd::Truncated => frames.push(self.special(model, TRUNCATED, 0)),
            StackEnd::UnwindFailed => frames.push(self.special(model, UNWIND_FAILED, 0)),
        }
        (model.stacks.intern(&frames), same)
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
                let (begin, name) = match table {
                    Some(table) => match table.find(location.offset) {
                        Some((name, distance)) => (location.offset - distance, name.to_owned()),
                        None => {
                            let hole = table.hole(location.offset);
                            (hole, hole_name(hole, model.object(object)))
                        }
                    },
                    None => (
                        0,
                        hole_name(0, model.object(object)) + " --  no functions found",
                    ),
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
            let plain = demangle(symbol);
            model.functions.push(Function {
                mangled: plain.is_some().then(|| symbol.to_owned()),
                name: plain.unwrap_or_else(|| symbol.to_owned()),
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

/// gprofng's name for code between functions.
fn hole_name(begin: u64, object: &LoadObject) -> String {
    format!("<static>@{begin:#x} ({})", object.short_name())
}
