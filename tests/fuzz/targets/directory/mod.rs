//! Whole experiments: damaged ones through every report, page, picture and export.
//!
//! The input is a list of changes to an experiment ([`damage`]), which is then read as
//! `kcollect` reads it, but within this process. What a reader may say of an experiment is that it
//! cannot be read, or has nothing to show; everything else is a bug, and so is memory out of
//! proportion.

mod base;
mod damage;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use analysis::export::ExportFormat;
use analysis::export::folded::GroupBy;
use analysis::export::selected::Selected;
use analysis::filter::{Filter, TimeRange};
use analysis::flame::{FlameOptions, flame};
use analysis::load::lines::{self, LookupPaths};
use analysis::model::{Model, TracedEvents};
use analysis::report::table::Report;
use analysis::report::views::{self, TableOptions, View, compare};
use analysis::sources::{Period, Sources};
use analysis::view::{gather, page};
use host::exit::{ExitKind, Failure};
use host::output::Output;
use nix::sys::stat::Mode;
use tempfile::TempDir;

use super::experiment::in_memory;
use damage::{Entry, Files, damaged};
use experiment_format::units::Nanos;

/// Functions that are shown alone.
const SHOWN_FUNCTIONS: usize = 3;

thread_local! {
    static BASE: Base = Base::new();
}

struct Base {
    /// Where experiments are made.
    place: TempDir,
    files: BTreeMap<String, Vec<u8>>,
}

impl Base {
    #[expect(clippy::expect_used, reason = "without it there is nothing to damage")]
    fn new() -> Base {
        let made = in_memory();
        Base {
            files: base::files(made.path()).expect("an experiment"),
            place: in_memory(),
        }
    }
}

/// Reads a damaged experiment in every way.
pub(super) fn directory(input: &[u8]) {
    BASE.with(|base| {
        let path = base.place.path().join(base::NAME);
        let _ = fs::remove_dir_all(&path);
        let files = damaged(&base.files, input);
        if write(&path, &files).is_some() {
            read_all(base.place.path(), &path);
        }
    });
}

/// Writes an experiment. None: the file system does not take it.
fn write(directory: &Path, files: &Files) -> Option<()> {
    fs::create_dir(directory).ok()?;
    for (path, entry) in files {
        let place = directory.join(path);
        fs::create_dir_all(place.parent()?).ok()?;
        let file = |bytes: &[u8], length: Option<u64>| {
            fs::write(&place, bytes)?;
            length.map_or(Ok(()), |length| {
                File::options().append(true).open(&place)?.set_len(length)
            })
        };
        match entry {
            Entry::File(bytes) => file(bytes, None),
            Entry::Hole(bytes, length) => file(bytes, Some(*length)),
            Entry::Directory => fs::create_dir(&place),
            Entry::Pipe => nix::unistd::mkfifo(&place, Mode::S_IRWXU).map_err(Into::into),
            Entry::Link(to) => symlink(directory.join(to), &place),
        }
        .ok()?;
    }
    Some(())
}

fn read_all(place: &Path, path: &Path) {
    let lookup = LookupPaths::default();
    let paths = [path.to_owned()];
    let mut model = match Model::load_named(&paths, &lookup) {
        Ok(model) => model,
        Err(failure) => return check(&failure, false),
    };
    export_all(&model);
    show_page(&model);
    draw(place, &paths);
    report_all(&model);
    lines::add(&mut model, &lookup);
    report_lines(&model);
    for events in [TracedEvents::Locks, TracedEvents::Io] {
        if model.show(events).is_ok() {
            export_all(&model);
            show_page(&model);
        }
    }
}

/// Checks what a reader says of an experiment. `typed`: it may refuse the name of a function, which
/// several may have.
fn check(failure: &Failure, typed: bool) {
    let expected = match failure.kind {
        ExitKind::NoInput | ExitKind::Empty => true,
        kind => typed && kind == ExitKind::Usage,
    };
    assert!(expected, "{:?}: {failure}", failure.kind);
}

fn show(report: Result<Report, Failure>, typed: bool) {
    match report {
        Ok(report) => {
            for width in [None, Some(40)] {
                let _ = report.text(width);
            }
            let _ = (report.csv(), report.json().to_string());
        }
        Err(failure) => check(&failure, typed),
    }
}

fn report_all(model: &Model) {
    for (view, ..) in View::ALL {
        if !view.wants_lines() && !view.wants_function() {
            // Without a load it asks for a process.
            let typed = view == View::CriticalPath;
            show(views::make(model, view, &TableOptions::default()), typed);
        }
    }
    let unnamed = TableOptions {
        unnamed: true,
        limit: Some(3),
        ..TableOptions::default()
    };
    show(views::make(model, View::Functions, &unnamed), false);
    let side = || compare::Side {
        model,
        filter: &unnamed.filter,
        name: String::new(),
        length_ns: model.end_ns(),
    };
    show(
        compare::compare([side(), side()], View::Triage, &unnamed),
        false,
    );
    let filter = Filter {
        time: Some(TimeRange::SinceStart(Nanos::ZERO..Nanos(1_000_000_000))),
        cpus: vec![0],
        ..Filter::default()
    };
    let some = TableOptions {
        filter,
        ..TableOptions::default()
    };
    for view in [View::Functions, View::Threads] {
        show(views::make(model, view, &some), false);
    }
}

fn report_lines(model: &Model) {
    show(
        views::make(model, View::Lines, &TableOptions::default()),
        false,
    );
    for function in model.functions.iter().take(SHOWN_FUNCTIONS) {
        let options = TableOptions {
            function: Some(function.name.clone()),
            ..TableOptions::default()
        };
        for view in [View::CallersCallees, View::Source, View::Disasm] {
            show(views::make(model, view, &options), true);
        }
    }
}

#[expect(
    clippy::expect_used,
    reason = "writing into memory fails where a format has no space"
)]
fn export_all(model: &Model) {
    let selected = Selected::new(model, &Filter::default());
    for (format, ..) in ExportFormat::ALL {
        for by in [GroupBy::Name, GroupBy::Thread] {
            let mut out = Vec::new();
            let written = format.write(&selected, by, base::NAME, &mut out);
            written.expect("an export");
        }
    }
}

fn show_page(model: &Model) {
    if let Ok(payload) = gather(model, &Filter::default())
        && !payload.ticks.is_empty()
    {
        let _ = page(&payload);
    }
}

fn draw(place: &Path, paths: &[PathBuf]) {
    let path = place.join("output");
    let _ = fs::remove_file(&path);
    let Ok(mut output) = Output::new(Some(&path), false) else {
        return;
    };
    for (all, waits) in [(false, false), (true, false), (false, true)] {
        let options = FlameOptions {
            sources: Sources {
                named: paths.to_vec(),
                period: (!all).then_some(Period::Last(Duration::from_secs(1))),
                ticks: all,
            },
            before: all.then(|| paths[0].clone()),
            filter: Filter::default(),
            all,
            waits,
            traced: None,
            by: GroupBy::Thread,
            only: String::new(),
            lookup: LookupPaths::default(),
            file: Some(place.join("flame.svg")),
        };
        if let Err(failure) = flame(&options, &mut output) {
            check(&failure, false);
        }
    }
}
