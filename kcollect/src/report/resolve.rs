//! From addresses to frames and functions, as gprofng finds them.
//!
//! What an address means depends on the experiment and on the time. What it means is remembered with the times at which it
//! does: `Resolver::stack` looks at each address once, unless something else was mapped there in between, and at each
//! place in a file once for all experiments of a founder.

use experiment_format::functions::{Archives, FunctionTable, PLT};
use experiment_format::space::{AddressSpace, Location, ObjectKind as Mapped};
use experiment_format::stacks::StackEnd;
use experiment_format::stacks::table::StackTable;
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
    /// By founder, since each has files of its own: the frames of places in files.
    places: FxHashMap<(u32, ObjectId, u64), FrameId>,
}

/// The addresses of one experiment.
#[derive(Debug)]
pub(super) struct Addresses {
    founder: u32,
    space: AddressSpace,
    /// At the positions of the names in `space`.
    objects: Vec<Option<ObjectId>>,
    frames: FxHashMap<u64, Lasting<FrameId>>,
    /// Parts of stacks, by number and whether the leaf is in it.
    parts: FxHashMap<(u64, bool), Lasting<StackId>>,
}

/// What is so for some time: from and until, nanoseconds since the start of the experiment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lasting<T> {
    what: T,
    from: u64,
    until: u64,
}

impl<T: Copy> Lasting<T> {
    fn always(what: T) -> Lasting<T> {
        Lasting {
            what,
            from: 0,
            until: u64::MAX,
        }
    }

    /// What it is, if it is so at a time.
    fn at(&self, time: u64) -> Option<T> {
        (self.from <= time && time < self.until).then_some(self.what)
    }

    /// The same for as long as another is so too.
    fn and<U>(self, other: &Lasting<U>) -> Lasting<T> {
        Lasting {
            from: self.from.max(other.from),
            until: self.until.min(other.until),
            ..self
        }
    }
}

impl Addresses {
    pub(super) fn new(founder: u32, space: AddressSpace) -> Addresses {
        Addresses {
            founder,
            objects: vec![None; space.objects().count()],
            space,
            frames: FxHashMap::default(),
            parts: FxHashMap::default(),
        }
    }
}

/// Circles among the parts of a stack are looked for beyond so many of them.
const FEW_PARTS: usize = 16;

impl Resolver {
    /// The stack that begins with a part, at a time, nanoseconds since the start of its experiment.
    ///
    /// Parts are what stacks have in common, and are remembered.
    pub(super) fn stack(
        &mut self,
        model: &mut Model,
        archives: &mut Archives,
        addresses: &mut Addresses,
        stacks: &StackTable,
        first: Option<u64>,
        at: u64,
    ) -> StackId {
        // From the leaf to what is known, and back.
        let mut parts = Vec::new();
        let mut next = first;
        let (mut stack, mut circle) = (Lasting::always(StackId::EMPTY), false);
        while let Some(number) = next {
            let key = (number, parts.is_empty());
            let known = addresses.parts.get(&key);
            if let Some(known) = known.filter(|known| known.at(at).is_some()) {
                stack = *known;
                break;
            }
            circle =
                parts.len() >= FEW_PARTS && parts.iter().any(|((known, _), _)| *known == number);
            let Some(part) = stacks.part(number).filter(|_| !circle) else {
                stack = Lasting::always(self.end(model, StackEnd::Truncated));
                break;
            };
            parts.push((key, part));
            next = part.callers;
        }
        while let Some((key, part)) = parts.pop() {
            if part.end != StackEnd::Complete {
                stack.what = self.end(model, part.end);
            }
            for (depth, address) in part.frames.iter().enumerate().rev() {
                let frame = self.address(model, archives, addresses, *address, at);
                // As for gprofng, a leaf that is on its way to another function has not left its caller yet.
                let is_leaf = depth == 0 && key.1;
                if !(is_leaf && self.is_plt(model, frame.what)) {
                    stack.what = model.stacks.child(stack.what, frame.what);
                }
                stack = stack.and(&frame);
            }
            if !circle {
                addresses.parts.insert(key, stack);
            }
        }
        stack.what
    }

    /// The stack that has but a mark of its end.
    fn end(&mut self, model: &mut Model, end: StackEnd) -> StackId {
        let name = match end {
            StackEnd::Complete => return StackId::EMPTY,
            StackEnd::Truncated => TRUNCATED,
            StackEnd::UnwindFailed => UNWIND_FAILED,
        };
        let frame = self.special(model, name, 0);
        model.stacks.child(StackId::EMPTY, frame)
    }

    fn address(
        &mut self,
        model: &mut Model,
        archives: &mut Archives,
        addresses: &mut Addresses,
        address: u64,
        at: u64,
    ) -> Lasting<FrameId> {
        let known = addresses.frames.get(&address);
        if let Some(known) = known.filter(|known| known.at(at).is_some()) {
            return *known;
        }
        let (found, same) = addresses.space.find_lasting(address, at);
        let what = match found {
            None => self.special(model, UNKNOWN, address),
            Some(location) if location.kind == Mapped::Function => {
                let object = self.object(model, ObjectKind::Dynamic, DYNAMIC, false);
                let kernel = is_kernel(address);
                let function = self.function(model, object, 0, location.object, kernel);
                self.intern(model, function, location.offset)
            }
            Some(location) => {
                let kernel = is_kernel(address);
                let object = &mut addresses.objects[location.number];
                let object = *object.get_or_insert_with(|| {
                    self.object(model, ObjectKind::File, location.object, kernel)
                });
                let place = (addresses.founder, object, location.offset);
                match self.places.get(&place) {
                    Some(frame) => *frame,
                    None => {
                        let frame = self.in_file(model, archives, object, &location, kernel);
                        self.places.insert(place, frame);
                        frame
                    }
                }
            }
        };
        let (from, until) = (same.start, same.end);
        let frame = Lasting { what, from, until };
        addresses.frames.insert(address, frame);
        frame
    }

    fn is_plt(&self, model: &Model, frame: FrameId) -> bool {
        model.function(model.frame(frame).function).name == PLT
    }

    fn in_file(
        &mut self,
        model: &mut Model,
        archives: &mut Archives,
        object: ObjectId,
        location: &Location<'_>,
        kernel: bool,
    ) -> FrameId {
        // It is told once, and then counts as missing.
        let table = archives.functions(location.object).unwrap_or_else(|error| {
            model.warnings.push(error.to_string());
            None
        });
        let found = table.and_then(|table| table.find_all(location.offset));
        let (begin, name) = match found {
            Some((names, distance)) => (location.offset - distance, shown(names)),
            None => hole(table, location, model.object(object)),
        };
        let function = self.function(model, object, begin, &name, kernel);
        self.intern(model, function, location.offset)
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
