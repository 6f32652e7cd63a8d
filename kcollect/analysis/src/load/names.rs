//! Names functions that have no name in the experiment, as in stripped programs.
//!
//! The recorder names functions by what the machine has at that moment. Here, each place without a
//! name is looked up once more, in the debug file of the same build: see [`Symboliser::names`]. One
//! range without a name may turn out to be several functions, or a part of one.
//!
//! What still has no name is described: `libc.so.6+0x29d80 (0x50 after __libc_start_main)` is where
//! the code begins in its file, and the function before it. The description replaces
//! gprofng's `<static>@0x29d80 (<libc.so.6>)` only here; that stays the function's symbol.
//!
//! [`Symboliser::names`]: crate::symbol::Symboliser::names

use std::path::PathBuf;

use host::exit::Failure;
use rustc_hash::FxHashMap;

use super::lines::{LookupPaths, SymbolFiles};
use super::{build_ids, runtimes};
use crate::model::{FunctionId, FunctionInfo, Model, ObjectId, ObjectInfo, ObjectKind};
use crate::symbol::{CodeName, UnnamedCode, demangle};

/// The longest name of another function that is part of a description.
const MAX_NEIGHBOUR_BYTES: usize = 100;
/// The end of gprofng's name for code in a file without known functions.
const NO_FUNCTIONS: &str = " --  no functions found";

impl Model {
    /// Loads experiments as [`Model::load`] does, and names the functions that have no name there.
    ///
    /// # Errors
    /// The same as [`Model::load`].
    pub fn load_named(paths: &[PathBuf], lookup: &LookupPaths) -> Result<Model, Failure> {
        let mut model = Model::load(paths)?;
        add(&mut model, lookup);
        Ok(model)
    }
}

/// Names the functions of a model that have no name.
pub fn add(model: &mut Model, lookup: &LookupPaths) {
    let (wanted, frames) = nameless(model);
    if wanted.is_empty() {
        return;
    }
    let found = SymbolFiles::new(model, lookup).names(&wanted);
    let mut known: FxHashMap<_, _> = (0..)
        .zip(&model.functions)
        .map(|(id, function)| (key(function), FunctionId(id)))
        .collect();
    for (index, (object, place)) in frames {
        let found = found[object].names.get(place);
        let id = model.frames[index].function;
        let old = model.function(id);
        let function = named(
            old,
            model.object(old.object),
            found.unwrap_or(&CodeName::Unknown),
        );
        let next = FunctionId(model.functions.len() as u32);
        let id = *known.entry(key(&function)).or_insert(next);
        if id == next {
            model.functions.push(function);
        }
        model.frames[index].function = id;
    }
    drop_unused(model);
    // Among the functions that have names now may be those of a runtime.
    runtimes::correct(model);
    lookup.warn(model);
}

/// Returns what distinguishes a function from all others.
fn key(function: &FunctionInfo) -> (ObjectId, u64, String, String) {
    let symbol = function.symbol().to_owned();
    let name = function.name.clone();
    (function.object, function.offset, symbol, name)
}

/// Returns the function that a function without a name turned out to be, or the same one with a
/// description instead of a name.
fn named(nameless: &FunctionInfo, object: &ObjectInfo, found: &CodeName) -> FunctionInfo {
    let symbol = match found {
        CodeName::Function { symbol, .. } => symbol.as_str(),
        _ => nameless.symbol(),
    };
    let file = object.short_name();
    let file = file.trim_start_matches('<').trim_end_matches('>');
    let (name, offset) = match found {
        CodeName::Function { begin, .. } => (demangle(symbol).into_owned(), *begin),
        CodeName::Near { begin, after } => {
            let place = format!("{file}+{begin:#x}");
            let after = after.as_ref();
            let after = after.map(|(symbol, distance)| (demangle(symbol), distance));
            let after = after.filter(|(name, _)| name.len() <= MAX_NEIGHBOUR_BYTES);
            let name = match after {
                Some((name, distance)) => format!("{place} ({distance:#x} after {name})"),
                None => place,
            };
            (name, *begin)
        }
        CodeName::Unknown => {
            let name = match known_range(nameless) {
                Some(begin) => format!("{file}+{begin:#x}"),
                None => format!("{file} (no functions known)"),
            };
            (name, nameless.offset)
        }
    };
    FunctionInfo {
        mangled: (name != symbol).then(|| symbol.to_owned()),
        name,
        offset,
        ..nameless.clone()
    }
}

/// Returns where the range begins that a function without a name stands for, if it is one.
fn known_range(nameless: &FunctionInfo) -> Option<u64> {
    (!nameless.symbol().ends_with(NO_FUNCTIONS)).then_some(nameless.offset)
}

/// Drops functions without frames: no stack has them.
fn drop_unused(model: &mut Model) {
    let mut used = vec![false; model.functions.len()];
    for frame in &model.frames {
        used[frame.function.index()] = true;
    }
    let mut next = 0;
    let numbers: Vec<_> = used
        .iter()
        .map(|used| {
            let number = FunctionId(next);
            next += u32::from(*used);
            number
        })
        .collect();
    let mut used = used.into_iter();
    model.functions.retain(|_| used.next().unwrap_or(true));
    for frame in &mut model.frames {
        frame.function = numbers[frame.function.index()];
    }
}

/// Load objects with the positions in them that have no name.
type Wanted = Vec<(ObjectId, Vec<UnnamedCode>)>;
/// Frames without a name, each with its positions in [`Wanted`].
type NamelessFrames = Vec<(usize, (usize, usize))>;

/// Returns the frames without a name, and their positions by load object. Load objects with several
/// builds are left out: the names of one build would be wrong for the others.
fn nameless(model: &Model) -> (Wanted, NamelessFrames) {
    let mut wanted: Wanted = Vec::new();
    let mut frames = Vec::new();
    let mut by_object = vec![None; model.objects.len()];
    let mut differ = None;
    for (index, frame) in model.frames.iter().enumerate() {
        let function = model.function(frame.function);
        let object = model.object(function.object);
        if !function.is_nameless() || object.kind != ObjectKind::File || object.kernel {
            continue;
        }
        let differ: &Vec<bool> = differ.get_or_insert_with(|| build_ids::differ(model));
        if differ[function.object.index()] {
            continue;
        }
        let at = *by_object[function.object.index()].get_or_insert_with(|| {
            wanted.push((function.object, Vec::new()));
            wanted.len() - 1
        });
        let places = &mut wanted[at].1;
        frames.push((index, (at, places.len())));
        places.push(UnnamedCode {
            offset: frame.offset,
            begin: known_range(function),
        });
    }
    (wanted, frames)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_described_in_words() {
        let object = |path: &str| ObjectInfo {
            path: path.to_owned(),
            kind: ObjectKind::File,
            kernel: false,
        };
        let function = |name: &str| FunctionInfo {
            name: name.to_owned(),
            mangled: None,
            object: ObjectId(0),
            offset: 0x1d980,
            kernel: false,
        };
        let library = object("/usr/lib/libmariadb.so.3");
        let ordinary = function("<static>@0x1d980 (<libmariadb.so.3>)");
        let near = |after: Option<&str>| CodeName::Near {
            begin: 0x1d980,
            after: after.map(|symbol| (symbol.to_owned(), 0x340)),
        };
        let shown = |found: &CodeName| {
            let function = named(&ordinary, &library, found);
            assert!(function.is_nameless() && function.offset == 0x1d980);
            function.name
        };
        let expected = "libmariadb.so.3+0x1d980 (0x340 after mysql::init())";
        assert_eq!(shown(&near(Some("_ZN5mysql4initEv"))), expected);
        for found in [near(None), near(Some(&"x".repeat(200))), CodeName::Unknown] {
            assert_eq!(shown(&found), "libmariadb.so.3+0x1d980");
        }
        let none = function("<static>@0x0 (<a>) --  no functions found");
        let unknown = named(&none, &object("/tmp/a"), &CodeName::Unknown);
        assert_eq!(unknown.name, "a (no functions known)");
        let found = CodeName::Function {
            symbol: "_ZN5mysql4initEv".to_owned(),
            begin: 0x1d900,
        };
        let found = named(&ordinary, &library, &found);
        assert_eq!((&*found.name, found.offset), ("mysql::init()", 0x1d900));
        assert_eq!(found.symbol(), "_ZN5mysql4initEv");
        assert!(!found.is_nameless());
    }

    #[test]
    fn functions_without_frames_are_dropped() {
        let function = |name: &str| FunctionInfo {
            name: name.to_owned(),
            mangled: None,
            object: ObjectId(0),
            offset: 0,
            kernel: false,
        };
        let frame = |function| crate::model::StackFrame {
            function: FunctionId(function),
            offset: 0,
        };
        let mut model = Model {
            functions: ["a", "b", "c"].map(function).into(),
            frames: vec![frame(2), frame(0), frame(2)],
            ..Model::default()
        };
        drop_unused(&mut model);
        let names: Vec<_> = model
            .frames
            .iter()
            .map(|frame| &*model.function(frame.function).name)
            .collect();
        assert_eq!(names, ["c", "a", "c"]);
        assert_eq!(model.functions.len(), 2);
    }
}
