//! Adds source lines to a model, and inlined functions as frames of their own.
//!
//! Debug information is read only for views that need it, once for each load object, for all of its
//! frames together ([`add`]). A frame with inlined functions becomes several frames, as if the
//! functions had been called, so that views and filters treat them like any other. The compiled
//! function keeps its name and place. An inlined function is the one of that name in the same load
//! object, if there is exactly one, else a new one.
//!
//! Load objects with the same path are one object, as in the whole model, even if experiments have
//! different builds of it. Lines come from the first experiment that has a copy.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use experiment_format::archive::ARCHIVES;
use experiment_format::copies::has_copy;
use experiment_format::kernel::KERNEL;
use experiment_format::reader::Experiment;
use rustc_hash::FxHashMap;

use crate::load;
use crate::model::Stacks;
use crate::model::{
    ExperimentId, FrameId, FunctionId, FunctionInfo, Model, ObjectId, ObjectKind, SourceLine,
    SourceLines, StackFrame, StackId,
};
use crate::symbol::{
    self, CodeNames, DebuginfodClient, DebuginfodUse, ObjectRef, Origin, PathMap, Resolved,
    SearchPaths, SymbolError, Symboliser, UnnamedCode, demangle,
};

/// Where files are looked for, in addition to the experiments and their own paths.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LookupPaths {
    /// Replacements of path prefixes.
    pub maps: Vec<PathMap>,
    /// Directories searched for the last part of a path.
    pub directories: Vec<PathBuf>,
    /// Whether debug files and sources that are not found are fetched.
    pub debuginfod: DebuginfodUse,
    /// Maximum bytes of debug information to read from a load object; one with more has no lines.
    /// None: as many as can be read.
    pub max_debug_bytes: Option<u64>,
}

impl LookupPaths {
    /// Adds the failures of fetching files to the warnings of a model.
    pub(super) fn warn(&self, model: &mut Model) {
        if let Some(client) = DebuginfodClient::of_process(self.debuginfod) {
            model.warnings.extend(client.take_problems());
        }
    }
}

/// The files of a model's load objects, looked up when they are needed.
pub struct SymbolFiles<'a> {
    model: &'a Model,
    /// One symboliser for each founder.
    places: Vec<(ExperimentId, Symboliser)>,
    /// By [`ObjectId`], the position in `places` of the first founder that has a copy, or 0.
    of_objects: Vec<usize>,
}

impl<'a> SymbolFiles<'a> {
    /// Returns the files in the archives of all experiments, on this machine, and in the places of
    /// `lookup`.
    #[must_use]
    pub fn new(model: &'a Model, lookup: &LookupPaths) -> SymbolFiles<'a> {
        let mut founders: Vec<_> = model.experiments.iter().map(|info| info.founder).collect();
        founders.dedup();
        let place = |founder: ExperimentId| {
            let path = model.experiment(founder).source.path();
            // A subexperiment that is reported alone has its load objects in the directory above.
            let archives = [path.join(ARCHIVES), path.join("..").join(ARCHIVES)];
            let mut search = SearchPaths::new(archives.into_iter().find(|path| path.is_dir()));
            search.maps.clone_from(&lookup.maps);
            search.directories.clone_from(&lookup.directories);
            search.debuginfod = DebuginfodClient::of_process(lookup.debuginfod);
            search.max_debug_bytes = lookup.max_debug_bytes;
            (founder, Symboliser::new(search))
        };
        let places: Vec<_> = founders.into_iter().map(place).collect();
        let place_of = |path: &str| {
            let has = |(_, symboliser): &(_, Symboliser)| {
                let archives = symboliser.search().archives.as_deref();
                archives.is_some_and(|archives| has_copy(archives, path))
            };
            places.iter().position(has).unwrap_or(0)
        };
        SymbolFiles {
            of_objects: model
                .objects
                .iter()
                .map(|object| place_of(&object.path))
                .collect(),
            model,
            places,
        }
    }

    /// Returns what reads a load object, the reference to pass to it, and the experiment it belongs
    /// to.
    #[must_use]
    pub fn of(&self, object: ObjectId) -> Option<(&Symboliser, ObjectRef, &Experiment)> {
        let (founder, symboliser) = self.places.get(self.of_objects[object.index()])?;
        let source = &self.model.experiment(*founder).source;
        Some((symboliser, self.reference(object), source))
    }

    /// Returns the reference to a load object. Copied files contain their build ids; the kernel's
    /// is in the summary.
    fn reference(&self, object: ObjectId) -> ObjectRef {
        let name = self.model.object(object).path.clone();
        let place = self.places.get(self.of_objects[object.index()]);
        let build_id = place
            .filter(|_| name == KERNEL)
            .and_then(|(founder, _)| self.model.experiment(*founder).summary());
        let build_id =
            build_id.and_then(|summary| hex::decode(summary["kernel_build_id"].as_str()?).ok());
        ObjectRef {
            name,
            build_id: build_id.unwrap_or_default().into(),
        }
    }

    /// Returns the source lines of positions in several load objects, in their order.
    #[must_use]
    pub fn resolve(&self, wanted: &[(ObjectId, Vec<u64>)]) -> Vec<Resolved> {
        self.by_founder(wanted, Symboliser::resolve_all, without_other_builds)
    }

    /// Returns the names of unnamed code in several load objects, in their order.
    #[must_use]
    pub fn names(&self, wanted: &[(ObjectId, Vec<UnnamedCode>)]) -> Vec<CodeNames> {
        let of_build = |found: CodeNames, path: &str, recorded| match &found.image {
            Some(image) if same_build(image, path, recorded) => found,
            _ => CodeNames::default(),
        };
        self.by_founder(wanted, Symboliser::names, of_build)
    }

    /// Returns the results of each founder's symboliser for its own load objects.
    fn by_founder<A, R: Default + Clone>(
        &self,
        wanted: &[(ObjectId, Vec<A>)],
        ask: impl Fn(&Symboliser, &[(&ObjectRef, &[A])]) -> Vec<R>,
        of_build: impl Fn(R, &str, Option<SystemTime>) -> R,
    ) -> Vec<R> {
        let mut all = vec![R::default(); wanted.len()];
        for (place, (founder, symboliser)) in self.places.iter().enumerate() {
            let is_own = |index: &usize| self.of_objects[wanted[*index].0.index()] == place;
            let own: Vec<_> = (0..wanted.len()).filter(is_own).collect();
            let references = own.iter().map(|index| self.reference(wanted[*index].0));
            let references: Vec<_> = references.collect();
            let asked = own.iter().map(|index| wanted[*index].1.as_slice());
            let asked: Vec<_> = references.iter().zip(asked).collect();
            let recorded = load::recorded_here(&self.model.experiment(*founder).source);
            for (index, found) in own.iter().zip(ask(symboliser, &asked)) {
                let path = &self.model.object(wanted[*index].0).path;
                all[*index] = of_build(found, path, recorded);
            }
        }
        all
    }
}

/// Returns whether a file is of the recorded build, as far as can be known. A file that the user
/// pointed to is accepted unless its build id contradicts.
pub(crate) fn same_build(origin: &Origin, recorded: &str, at: Option<SystemTime>) -> bool {
    match origin {
        Origin::Original {
            path,
            same_build: false,
        } => path != Path::new(recorded) || unchanged(path, at),
        _ => true,
    }
}

/// Returns the lines if they are of the recorded build.
fn without_other_builds(resolved: Resolved, recorded: &str, at: Option<SystemTime>) -> Resolved {
    match resolved.origin {
        Some(Origin::Original { ref path, .. }) => {
            let origin = resolved.origin.as_ref();
            if origin.is_none_or(|origin| same_build(origin, recorded, at)) {
                return resolved;
            }
            Resolved {
                frames: vec![Vec::new(); resolved.frames.len()],
                error: Some(SymbolError::OtherBuild(path.clone())),
                origin: None,
            }
        }
        _ => resolved,
    }
}

/// Returns whether a file is older than the recording.
pub(crate) fn unchanged(path: &Path, recorded: Option<SystemTime>) -> bool {
    let changed = path.metadata().and_then(|metadata| metadata.modified());
    changed
        .ok()
        .zip(recorded)
        .is_some_and(|(changed, at)| changed <= at)
}

/// Finds the lines of all frames, and makes inlined functions frames of their own.
pub fn add(model: &mut Model, lookup: &LookupPaths) {
    let mut wanted: Vec<(ObjectId, Vec<u64>)> = Vec::new();
    let mut places: Vec<Option<(usize, usize)>> = Vec::new();
    let mut by_object = vec![None; model.objects.len()];
    for frame in &model.frames {
        let object = model.function(frame.function).object;
        places.push((model.object(object).kind == ObjectKind::File).then(|| {
            let index = *by_object[object.index()].get_or_insert_with(|| {
                wanted.push((object, Vec::new()));
                wanted.len() - 1
            });
            wanted[index].1.push(frame.offset);
            (index, wanted[index].1.len() - 1)
        }));
    }
    let resolved = SymbolFiles::new(model, lookup).resolve(&wanted);
    let mut adding = Adding::new(model);
    let chains: Vec<Vec<FrameId>> = places
        .iter()
        .zip(&model.frames)
        .map(|(place, frame)| {
            let found = place.map(|(object, at)| &*resolved[object].frames[at]);
            adding.chain(&model.functions, frame, found.unwrap_or_default())
        })
        .collect();
    adding.lines.errors = vec![None; model.objects.len()];
    for ((object, _), resolved) in wanted.iter().zip(resolved) {
        adding.lines.errors[object.index()] = resolved.error;
    }
    let mut stacks = Stacks::default();
    let mut renumbered = vec![StackId::EMPTY; model.stacks.len()];
    for (stack, caller, leaf) in model.stacks.iter() {
        let mut at = renumbered[caller.index()];
        for frame in chains[leaf.index()].iter().rev() {
            at = stacks.child(at, *frame);
        }
        renumbered[stack.index()] = at;
    }
    stacks.freeze();
    for row in &mut model.rows {
        row.stack = renumbered[row.stack.index()];
    }
    model.stacks = stacks;
    model.frames = adding.frames;
    model.functions.extend(adding.functions);
    model.lines = adding.lines;
    lookup.warn(model);
}

/// The frames, functions and lines that were added so far.
struct Adding {
    lines: SourceLines,
    frames: Vec<StackFrame>,
    /// New functions, numbered after the model's.
    functions: Vec<FunctionInfo>,
    files: FxHashMap<Arc<str>, u32>,
    numbers: FxHashMap<SourceLine, u32>,
    frame_ids: FxHashMap<(u64, u32), FrameId>,
    /// By load object and symbol. None: several functions have that symbol.
    named: FxHashMap<(ObjectId, Arc<str>), Option<FunctionId>>,
}

impl Adding {
    fn new(model: &Model) -> Adding {
        let mut named = FxHashMap::default();
        for (id, function) in (0..).map(FunctionId).zip(&model.functions) {
            let symbol = function.symbol();
            let several = named.entry((function.object, Arc::from(symbol)));
            several
                .and_modify(|known| *known = None)
                .or_insert(Some(id));
        }
        Adding {
            lines: SourceLines::default(),
            frames: Vec::new(),
            functions: Vec::new(),
            files: FxHashMap::default(),
            numbers: FxHashMap::default(),
            frame_ids: FxHashMap::default(),
            named,
        }
    }

    /// Returns the frames that replace one, leaf first.
    fn chain(
        &mut self,
        functions: &[FunctionInfo],
        frame: &StackFrame,
        found: &[symbol::SourceFrame],
    ) -> Vec<FrameId> {
        let own = &functions[frame.function.index()];
        let Some((compiled, inlined)) = found.split_last() else {
            return vec![self.frame(frame.function, frame.offset, None)];
        };
        let mut chain: Vec<_> = inlined
            .iter()
            .map(|at| {
                let function = self.function(functions.len(), own, at.function.as_ref());
                self.frame(function, frame.offset, Some(at))
            })
            .collect();
        chain.push(self.frame(frame.function, frame.offset, Some(compiled)));
        chain
    }

    fn frame(
        &mut self,
        function: FunctionId,
        offset: u64,
        at: Option<&symbol::SourceFrame>,
    ) -> FrameId {
        let line = at.and_then(|at| Some((at.file.as_ref()?, at.line.filter(|line| *line > 0)?)));
        let at = line.map(|(file, line)| (self.file(file), line));
        let line = SourceLine { function, at };
        let number = *self.numbers.entry(line).or_insert_with(|| {
            self.lines.lines.push(line);
            self.lines.lines.len() as u32 - 1
        });
        *self.frame_ids.entry((offset, number)).or_insert_with(|| {
            self.frames.push(StackFrame { function, offset });
            self.lines.of_frames.push(number);
            FrameId(self.frames.len() as u32 - 1)
        })
    }

    fn file(&mut self, path: &Arc<str>) -> u32 {
        *self.files.entry(path.clone()).or_insert_with(|| {
            self.lines.files.push(path.clone());
            self.lines.files.len() as u32 - 1
        })
    }

    /// Returns the function of a symbol that was inlined into `outer`.
    fn function(
        &mut self,
        known: usize,
        outer: &FunctionInfo,
        symbol: Option<&Arc<str>>,
    ) -> FunctionId {
        let symbol = symbol.cloned().unwrap_or_else(|| "<Unknown>".into());
        let entry = self.named.entry((outer.object, symbol.clone()));
        if let Some(id) = *entry.or_insert(None) {
            return id;
        }
        // Several functions have the name: a new function stands for all inlined copies.
        let id = FunctionId((known + self.functions.len()) as u32);
        self.named.insert((outer.object, symbol.clone()), Some(id));
        let name = demangle(&symbol);
        self.functions.push(FunctionInfo {
            mangled: (name != *symbol).then(|| symbol.to_string()),
            name: name.into_owned(),
            object: outer.object,
            offset: 0,
            kernel: outer.kernel,
        });
        id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_may_have_changed_are_used_only_if_the_user_named_them() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_str().unwrap();
        let origin = |same_build| Origin::Original {
            path: path.into(),
            same_build,
        };
        let later = SystemTime::now() + std::time::Duration::from_secs(60);
        assert!(!same_build(&origin(false), path, None));
        assert!(!same_build(
            &origin(false),
            path,
            Some(SystemTime::UNIX_EPOCH)
        ));
        assert!(same_build(&origin(false), path, Some(later)));
        assert!(same_build(&origin(false), "/build/other", None));
        assert!(same_build(&origin(true), path, None));
        assert!(same_build(&Origin::Archive, path, None));
    }

    /// An inlined function is the one of its name; if several have it, a new one.
    #[test]
    fn inlined_functions_are_frames_with_lines_of_their_own() {
        let function = |name: &str, offset| FunctionInfo {
            name: name.into(),
            mangled: None,
            object: ObjectId(0),
            offset,
            kernel: false,
        };
        let named = ["main", "one", "two", "two"];
        let model = Model {
            functions: (0..)
                .zip(named)
                .map(|(at, name)| function(name, at))
                .collect(),
            ..Model::default()
        };
        let at = |name: &str, line| symbol::SourceFrame {
            function: Some(name.into()),
            file: Some("/x.c".into()),
            line: Some(line),
            column: None,
        };
        let mut adding = Adding::new(&model);
        let frame = StackFrame {
            function: FunctionId(0),
            offset: 64,
        };
        // One function inlined twice is two frames, since it has two lines.
        let found = [at("two", 3), at("one", 5), at("one", 6), at("main", 9)];
        let chain = adding.chain(&model.functions, &frame, &found);
        let functions = chain.iter().map(|id| adding.frames[id.index()].function.0);
        assert_eq!(functions.collect::<Vec<_>>(), [4, 1, 1, 0]);
        assert_eq!(adding.functions[0].name, "two");
        let line =
            |id: &FrameId| adding.lines.lines[adding.lines.of_frames[id.index()] as usize].at;
        let lines: Vec<_> = chain.iter().map(line).collect();
        assert_eq!(
            lines,
            [Some((0, 3)), Some((0, 5)), Some((0, 6)), Some((0, 9))]
        );
        // The same input gives the same frames; without debug information there is no line.
        assert_eq!(adding.chain(&model.functions, &frame, &found), chain);
        let unknown = adding.chain(&model.functions, &frame, &[]);
        assert_eq!(unknown.len(), 1);
        let number = adding.lines.of_frames[unknown[0].index()];
        assert_eq!(adding.lines.lines[number as usize].at, None);
    }
}
