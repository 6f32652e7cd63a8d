//! The instructions of a function with the time of each in front of it, as gprofng's view `disasm`.
//! Where another source line begins, it stands ahead of its instructions.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use experiment_format::functions::FunctionTable;
use host::exit::{Failure, Kind};

use super::Context;
use super::chosen_function::chosen_function;
use super::source::{Annotated, annotated_columns, read};
use crate::aggregate;
use crate::load;
use crate::load::lines::{SymbolFiles, believable};
use crate::metric::Metrics;
use crate::model::{FrameId, FunctionInfo, ObjectKind};
use crate::report::table::{Cell, Column, Table};
use crate::symbol::{Instruction, SearchPaths, SourceFrame, demangle};

/// Longest source line ahead of instructions, characters.
const LONGEST: usize = 120;

pub(super) fn disassembly(context: &Context<'_>) -> Result<Table, Failure> {
    let metrics = context.metrics(Metrics::of_functions)?;
    let totals = context.totals();
    let model = context.model;
    let chosen = chosen_function(context, &totals)?;
    let function = model.function(chosen.function);
    let object = model.object(function.object);
    let refused = |why: String| {
        Failure::new(
            Kind::NoInput,
            format!("no instructions of {} are known: {why}", function.name),
            match object.kernel {
                true => "those of the kernel are recorded where /proc/kcore is readable",
                false => "say where its file is: --search-path DIRECTORY",
            },
        )
    };
    if object.kind != ObjectKind::File {
        return Err(refused("it is not in a file".to_owned()));
    }
    let files = SymbolFiles::new(model, &context.options.lookup);
    let missing = || refused(format!("{} was not recorded", object.path));
    let (symboliser, reference, experiment) = files.of(function.object).ok_or_else(missing)?;
    let mut archives = load::archives_of(experiment);
    let table = archives.functions(&object.path).ok().flatten();
    let range = range(table, function).ok_or_else(|| {
        refused(match function.offset {
            0 => "it was inlined wherever it is in a stack; see who calls it".to_owned(),
            _ => format!("{} has no symbol that says where it is", object.path),
        })
    })?;

    let names = |offset: u64| {
        let (name, into) = table?.find(offset)?;
        Some((demangle(name).into_owned(), into))
    };
    let code = symboliser
        .disassemble(&reference, range.clone(), &names)
        .map_err(|lack| refused(format!("{} {lack}", object.path)))?;
    if !believable(&code.origin, &object.path, load::recorded_here(experiment)) {
        return Err(refused(format!(
            "{} is not in the experiment, and that of this machine may be of another build",
            object.path
        )));
    }
    let code = code.instructions;
    let offsets = code.iter().map(|instruction| instruction.offset).collect();
    let resolved = files
        .resolve(&[(function.object, offsets)])
        .pop()
        .unwrap_or_default();

    let instruction_of = |frame: FrameId| {
        let frame = model.frame(frame);
        let own = model.function(frame.function).object == function.object;
        (own && range.contains(&frame.offset)).then(|| position(&code, frame.offset))?
    };
    let [shares] = aggregate::shares(model, &totals, [code.len()], |frame| {
        [instruction_of(frame)]
    });
    let annotated = Annotated::new(&metrics.list, &totals, &shares);
    let mut sources = Sources::new(symboliser.search());
    let mut rows = Vec::new();
    let mut before = None;
    for (index, (instruction, frames)) in code.iter().zip(&resolved.frames).enumerate() {
        let at = frames
            .first()
            .and_then(|frame| Some((frame.file.clone()?, frame.line?)));
        if before.as_ref() != Some(&at)
            && let Some((file, line)) = &at
        {
            let heading = sources.heading(frames, file, *line);
            let own = [
                Cell::Count((*line).into()),
                Cell::Empty,
                Cell::Text(heading),
            ];
            rows.push(annotated.row(None, own));
        }
        let line = at
            .as_ref()
            .map_or(Cell::Empty, |(_, line)| Cell::Count((*line).into()));
        let own = [
            line,
            Cell::Text(format!("{:x}:", instruction.address)),
            Cell::Text(format!("    {}", instruction.text)),
        ];
        rows.push(annotated.row(Some(index), own));
        before = Some(at);
    }
    let mut notes = chosen.notes;
    notes.extend(resolved.lack.map(|lack| format!("{} {lack}", object.path)));
    Ok(Table {
        view: "disasm",
        title: format!("Instructions of {}, {}", function.name, object.path),
        columns: annotated_columns(
            &metrics.list,
            [
                Column::number("line", "Line"),
                Column::number("address", "Address"),
                Column::text("instruction", "Instruction"),
            ],
        ),
        rows,
        notes,
        verbatim: true,
    })
}

/// Where a function is in its file.
fn range(table: Option<&FunctionTable>, function: &FunctionInfo) -> Option<Range<u64>> {
    let range = table?.range(function.offset)?;
    (range.start == function.offset).then_some(range)
}

/// The instruction that a position is in.
fn position(code: &[Instruction], offset: u64) -> Option<u32> {
    let index = code.partition_point(|instruction| instruction.offset <= offset);
    index.checked_sub(1).map(|index| index as u32)
}

/// Source files, each read once.
struct Sources<'a> {
    search: &'a SearchPaths,
    texts: HashMap<Arc<str>, Vec<String>>,
}

impl<'a> Sources<'a> {
    fn new(search: &'a SearchPaths) -> Sources<'a> {
        Sources {
            search,
            texts: HashMap::new(),
        }
    }

    /// What stands ahead of the instructions of a line: where it is, with the inlined function, and
    /// its text.
    fn heading(&mut self, frames: &[SourceFrame], file: &Arc<str>, line: u32) -> String {
        let base = file.rsplit('/').next().unwrap_or(file);
        let inlined = match frames {
            [
                SourceFrame {
                    function: Some(name),
                    ..
                },
                _,
                ..,
            ] => format!("{}, ", demangle(name)),
            _ => String::new(),
        };
        let search = self.search;
        let text = self.texts.entry(file.clone()).or_insert_with(|| {
            let found = search.source(file).map(|found| read(found.file));
            found.and_then(Result::ok).unwrap_or_default()
        });
        let text = text.get(line as usize - 1).map_or("", |text| text.trim());
        let text: String = text.chars().take(LONGEST).collect();
        format!("{inlined}line {line} in \"{base}\"  {text}")
            .trim_end()
            .to_owned()
    }
}
