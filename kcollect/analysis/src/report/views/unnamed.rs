//! Load objects with functions that have no name, and the packages that have names for them.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::fs::File;
use std::path::Path;

use host::exit::Failure;
use kcollect_elf::section_build_id;

use super::View;
use super::context::ViewContext;
use crate::aggregate;
use crate::load::build_ids;
use crate::model::{ObjectInfo, ObjectKind};
use crate::report::table::{Cell, Column, Table};
use crate::symbol::{DebuginfodClient, debug_packages};

/// The functions of one load object that have no name.
#[derive(Debug, Clone, Copy, Default)]
struct Unnamed {
    functions: u64,
    /// The exclusive time of these functions.
    time_us: i64,
}

/// What can be done about an object.
enum Hint<'a> {
    /// Its debug file may be in the package of this file.
    File(&'a str),
    /// A sentence.
    Words(&'static str),
}

pub(super) fn unnamed(context: &ViewContext<'_>) -> Result<Table, Failure> {
    let model = context.model;
    let base = context.whole();
    let totals = context.totals();
    let shares = aggregate::functions(model, &totals).functions;
    let mut sums = vec![Unnamed::default(); model.objects.len()];
    for (index, function) in model.functions.iter().enumerate() {
        let time_us = base.of(&shares.exclusive[index]);
        if time_us > 0 && model.is_unnamed(function) {
            let sum = &mut sums[function.object.index()];
            sum.functions += 1;
            sum.time_us += time_us;
        }
    }
    let ids = build_ids::of(model);
    let mut found: Vec<_> = model.objects.iter().zip(&sums).zip(&ids).collect();
    found.retain(|((_, unnamed), _)| unnamed.functions > 0);
    found.sort_by_key(|((object, unnamed), _)| (Reverse(unnamed.time_us), &object.path));
    let hints = found.iter().map(|((object, _), id)| hint(object, id));
    let hints: Vec<_> = hints.collect();
    let files = hints.iter().filter_map(|hint| match hint {
        Hint::File(path) => Some(*path),
        Hint::Words(_) => None,
    });
    let packages = debug_packages(&files.collect::<Vec<_>>());
    let whole = base.of(&totals.all);
    let rows = found.iter().zip(&hints);
    let rows = rows.map(|(((object, unnamed), id), hint)| {
        vec![
            Cell::Microseconds(unnamed.time_us),
            Cell::share_of(unnamed.time_us, whole),
            Cell::Count(unnamed.functions),
            Cell::Text(object.table_name()),
            Cell::Text(words(hint, &packages)),
            Cell::Text(object.path.clone()),
            Cell::Text((*id).clone()),
        ]
    });
    let mut table = Table {
        view: View::Functions.name(),
        title: format!(
            "Functions without names, by load object; % of {} time",
            base.title()
        ),
        columns: vec![
            Column::number("unnamed_s", "no name s"),
            Column::number("unnamed_percent", "%"),
            Column::number("functions", "Functions"),
            Column::text("name", "Object"),
            Column::text("install", "Install"),
            Column::text("path", "Path").hidden(),
            Column::text("build_id", "Build id").hidden(),
        ],
        rows: rows.collect(),
        ..Table::default()
    };
    if table.rows.is_empty() {
        table.notes.push("All functions have names.".to_owned());
    } else if DebuginfodClient::is_refused_to_root(context.options.lookup.debuginfod) {
        let note = "debug files are not fetched as root, unless with --debuginfod";
        table.notes.push(note.to_owned());
    } else if std::env::var_os("DEBUGINFOD_URLS").is_none() {
        let note =
            "debug files can also be fetched: DEBUGINFOD_URLS=https://debuginfod.elfutils.org";
        table.notes.push(note.to_owned());
    }
    table.cut(context.options.limit.unwrap_or(usize::MAX));
    Ok(table)
}

/// Returns what can be done about an object with this recorded build id, in hexadecimal digits.
fn hint<'a>(object: &'a ObjectInfo, recorded: &str) -> Hint<'a> {
    if object.kind != ObjectKind::File {
        return Hint::Words("nothing: code of no file");
    }
    let path = Path::new(&object.path);
    if object.kernel || !path.is_absolute() {
        return Hint::Words("nothing: code of the kernel");
    }
    if recorded.is_empty() {
        return Hint::Words("unknown: the experiment has no copy with a build id");
    }
    let Ok(file) = File::open(path) else {
        return Hint::Words("unknown: this machine does not have the file");
    };
    if hex::encode(section_build_id(&file)) == recorded {
        Hint::File(&object.path)
    } else {
        Hint::Words("unknown: this machine has another build")
    }
}

fn words(hint: &Hint<'_>, packages: &HashMap<&str, String>) -> String {
    match hint {
        Hint::Words(words) => (*words).to_owned(),
        Hint::File(path) => packages
            .get(path)
            .cloned()
            .unwrap_or_else(|| "a build that is not stripped: no package has the file".to_owned()),
    }
}
