//! The instructions of a function with the time of each, as gprofng's view `disasm`. A source line
//! stands ahead of its instructions.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use experiment_format::functions::FileFunctions;
use host::exit::{ExitKind, Failure};

use super::chosen_function::chosen_function;
use super::context::ViewContext;
use super::source::{Annotated, annotated_columns, read};
use crate::aggregate;
use crate::load;
use crate::load::dynamic_code::RecordedCode;
use crate::load::lines::{SymbolFiles, same_build};
use crate::metric::Metrics;
use crate::model::{FrameId, FunctionInfo, Model, ObjectKind};
use crate::report::table::{Cell, Column, Table};
use crate::symbol::{
    Instruction, NAMELESS, ObjectRef, SourceFrame, Symboliser, demangle, disassemble_code,
};

/// Maximum number of characters of a source line to show before its instructions.
const MAX_SOURCE_CHARS: usize = 120;

pub(super) fn disassembly(context: &ViewContext<'_>) -> Result<Table, Failure> {
    let metrics = context.metrics(Metrics::of_functions)?;
    let totals = context.totals();
    let model = context.model;
    let chosen = chosen_function(context, &totals)?;
    let function = model.function(chosen.function);
    let object = model.object(function.object);
    let files = SymbolFiles::new(model, &context.options.lookup);
    let FunctionCode {
        code,
        lines,
        sources,
        note,
    } = match object.kind {
        ObjectKind::File => in_file(model, &files, function)?,
        ObjectKind::Dynamic if model.is_jit_code(function) => jit_code(model, function)?,
        ObjectKind::Dynamic | ObjectKind::Special => return Err(no_code(&function.name)),
    };
    let end = code
        .last()
        .map_or(0, |last| last.offset + last.bytes.len() as u64);
    let range = code.first().map_or(0, |first| first.offset)..end;

    let instruction_of = |frame: FrameId| {
        let frame = model.frame(frame);
        // JIT functions share a load object, and each has offsets of its own.
        let own = match object.kind {
            ObjectKind::File => model.function(frame.function).object == function.object,
            ObjectKind::Dynamic | ObjectKind::Special => frame.function == chosen.function,
        };
        (own && range.contains(&frame.offset)).then(|| position(&code, frame.offset))?
    };
    let [shares] = aggregate::shares(model, &totals, [code.len()], |frame| {
        [instruction_of(frame)]
    });
    let annotated = Annotated::new(&metrics.list, &totals, &shares);
    let rows = rows(&code, &lines, &mut SourceTexts::new(sources), &annotated);
    let mut notes = chosen.notes;
    notes.extend(note);
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

/// Returns the rows of instructions, each source line before its own instructions.
fn rows(
    code: &[Instruction],
    lines: &[Vec<SourceFrame>],
    sources: &mut SourceTexts<'_>,
    annotated: &Annotated<'_>,
) -> Vec<Vec<Cell>> {
    let mut rows = Vec::new();
    let mut before = None;
    for (index, instruction) in code.iter().enumerate() {
        let frames = lines.get(index).map_or(&[][..], Vec::as_slice);
        let at = frames
            .first()
            .and_then(|frame| Some((frame.file.clone()?, frame.line?)));
        let line = match &at {
            Some((_, line)) => Cell::Count((*line).into()),
            None => Cell::Empty,
        };
        if before.as_ref() != Some(&at)
            && let Some((file, number)) = &at
        {
            let heading = sources.heading(frames, file, *number);
            let own = [line.clone(), Cell::Empty, Cell::Text(heading)];
            rows.push(annotated.row(None, own));
        }
        let own = [
            line,
            Cell::Text(format!("{:x}:", instruction.address)),
            Cell::Text(format!("    {}", instruction.text)),
        ];
        rows.push(annotated.row(Some(index), own));
        before = Some(at);
    }
    rows
}

/// The instructions of a function, with what is needed to show them.
struct FunctionCode<'a> {
    code: Vec<Instruction>,
    /// The source lines of each instruction; empty where none are known.
    lines: Vec<Vec<SourceFrame>>,
    /// What opens the source files. None: there are no lines.
    sources: Option<(&'a Symboliser, ObjectRef)>,
    note: Option<String>,
}

/// Returns the instructions of a function in a file.
fn in_file<'a>(
    model: &Model,
    files: &'a SymbolFiles<'_>,
    function: &FunctionInfo,
) -> Result<FunctionCode<'a>, Failure> {
    let object = model.object(function.object);
    let refused = |why: String| {
        Failure::new(
            ExitKind::NoInput,
            format!("no instructions of {} can be shown: {why}", function.name),
            if object.kernel {
                "kernel code is recorded only if /proc/kcore is readable"
            } else {
                "name the directory of its file: --search-path DIRECTORY"
            },
        )
    };
    let missing = || refused(format!("{} was not recorded", object.path));
    let (symboliser, reference, experiment) = files.of(function.object).ok_or_else(missing)?;
    let mut archives = load::archives_of(experiment);
    let table = archives.functions(&object.path).ok().flatten();
    let range = range(table, function).ok_or_else(|| {
        refused(match function.offset {
            0 => "it was inlined in all stacks; show one of its callers".to_owned(),
            _ => format!("{} has no symbol for it", object.path),
        })
    })?;

    // The experiment has no name of some that were named since.
    let since: HashMap<_, _> = model
        .functions
        .iter()
        .filter(|known| known.object == function.object)
        .map(|known| (known.offset, &known.name))
        .collect();
    let names = |offset: u64| {
        let (name, into) = table?.find(offset)?;
        let since = since.get(&(offset - into));
        let since = since.filter(|_| name.starts_with(NAMELESS));
        let name = since.map_or_else(|| demangle(name).into_owned(), |name| (*name).clone());
        Some((name, into))
    };
    let code = symboliser
        .disassemble(&reference, range, &names)
        .map_err(|error| refused(format!("{} {error}", object.path)))?;
    if !same_build(&code.origin, &object.path, load::recorded_here(experiment)) {
        return Err(refused(format!(
            "{} is not in the experiment, and the file on this machine may be of another build",
            object.path
        )));
    }
    let code = code.instructions;
    let offsets = code.iter().map(|instruction| instruction.offset).collect();
    let resolved = files
        .resolve(&[(function.object, offsets)])
        .pop()
        .unwrap_or_default();
    Ok(FunctionCode {
        code,
        lines: resolved.frames,
        sources: Some((symboliser, reference)),
        note: resolved
            .error
            .map(|error| format!("{} {error}", object.path)),
    })
}

/// Returns the instructions of a JIT function, whose code was in the memory of its process alone,
/// as the experiment has them.
fn jit_code<'a>(model: &Model, function: &FunctionInfo) -> Result<FunctionCode<'a>, Failure> {
    let refused = |why: String| {
        Failure::new(
            ExitKind::NoInput,
            format!("no instructions of {} can be shown: {why}", function.name),
            "record it with -A on; kcollect report callers-callees shows where its time went",
        )
    };
    let recorded =
        RecordedCode::find(model, function).map_err(|error| refused(error.to_string()))?;
    let Some(recorded) = recorded else {
        return Err(refused(
            "it is JIT code, and the experiment has its name and address, not its bytes".to_owned(),
        ));
    };
    let architecture = &recorded.experiment.header().system.arch;
    let names = |address: u64| recorded.name_at(address);
    let code = disassemble_code(architecture, &recorded.code, recorded.address, &names)
        .map_err(|error| refused(format!("its code {error}")))?;
    Ok(FunctionCode {
        code,
        lines: Vec::new(),
        sources: None,
        note: (recorded.others > 0).then(|| {
            format!(
                "{} was made {} times with other code; times of all are at the instructions of the last",
                function.name,
                recorded.others + 1
            )
        }),
    })
}

/// Returns the failure for a mark that stands for a part of a stack, such as `<Unknown>`.
fn no_code(name: &str) -> Failure {
    Failure::new(
        ExitKind::NoInput,
        format!("no instructions of {name} can be shown: it is not a function"),
        "name a function; kcollect report functions shows all",
    )
}

/// Returns the positions of a function in its file.
fn range(table: Option<&FileFunctions>, function: &FunctionInfo) -> Option<Range<u64>> {
    let range = table?.range(function.offset)?;
    (range.start == function.offset).then_some(range)
}

/// Returns the instruction at a position.
fn position(code: &[Instruction], offset: u64) -> Option<u32> {
    let index = code.partition_point(|instruction| instruction.offset <= offset);
    index.checked_sub(1).map(|index| index as u32)
}

/// The texts of source files, each read once.
struct SourceTexts<'a> {
    /// What opens the sources of a load object.
    of: Option<(&'a Symboliser, ObjectRef)>,
    texts: HashMap<Arc<str>, Vec<String>>,
}

impl<'a> SourceTexts<'a> {
    fn new(of: Option<(&'a Symboliser, ObjectRef)>) -> SourceTexts<'a> {
        SourceTexts {
            of,
            texts: HashMap::new(),
        }
    }

    /// Returns the line before instructions: inlined function, line number, file and source text.
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
        let of = self.of.as_ref();
        let text = self.texts.entry(file.clone()).or_insert_with(|| {
            let found = of.and_then(|(symboliser, object)| symboliser.source(object, file));
            let found = found.map(|found| read(found.file));
            found.and_then(Result::ok).unwrap_or_default()
        });
        let text = text.get(line as usize - 1).map_or("", |text| text.trim());
        let text: String = text.chars().take(MAX_SOURCE_CHARS).collect();
        format!("{inlined}line {line} in \"{base}\"  {text}")
            .trim_end()
            .to_owned()
    }
}
