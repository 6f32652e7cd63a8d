//! Waits by what threads waited for, and because of whom: `report waits`.

use std::cmp::Reverse;

use experiment_format::cause::WaitKind;
use host::exit::Failure;
use rustc_hash::FxHashMap;

use super::View;
use super::context::ViewContext;
use crate::filter::Selection;
use crate::model::{FunctionId, Model, WaitReason};
use crate::report::table::{Cell, Column, Table};
use crate::waits::{WaitTotals, waits};
use crate::wakers::Wakers;

/// A row: waits of all processes of one name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct RowKey<'a> {
    process: &'a str,
    reason: WaitReason,
    function: Option<FunctionId>,
    caller: Option<FunctionId>,
}

/// The time of a row, microseconds.
#[derive(Debug, Default)]
struct Waited {
    all: i64,
    /// By the title of the thread that ended the wait.
    wakers: FxHashMap<String, i64>,
}

impl Waited {
    /// Returns the cells of the threads that ended it: how many, the one that ended most of it, how
    /// much of it that is, and all that in a few words.
    fn wakers(&self) -> [Cell; 4] {
        let most = self.wakers.iter();
        let most = most.max_by_key(|(title, us)| (**us, Reverse(*title)));
        let Some((title, us)) = most else {
            return [Cell::Empty, Cell::Empty, Cell::Empty, Cell::Empty];
        };
        let words = match self.wakers.len() {
            1 => title.clone(),
            count => format!("{title} +{} more", count - 1),
        };
        [
            Cell::Count(self.wakers.len() as u64),
            Cell::Text(title.clone()),
            Cell::Microseconds(*us),
            Cell::Text(words),
        ]
    }
}

pub(super) fn table(context: &ViewContext<'_>) -> Result<Table, Failure> {
    let (model, options) = (context.model, context.options);
    let selection = Selection::new(model, &options.filter);
    let wakers = Wakers::new(model);
    let waits = waits(model, &selection, &wakers);
    let totals = WaitTotals::of(&waits);
    let mut found: FxHashMap<RowKey<'_>, Waited> = FxHashMap::default();
    for wait in &waits {
        let key = wait.key;
        let row = RowKey {
            process: &model.process(key.process).name,
            reason: key.reason,
            function: key.function,
            caller: key.caller,
        };
        let waited = found.entry(row).or_default();
        waited.all += wait.micros;
        if let Some(waker) = key.waker {
            let title = wakers.names(model, waker).title();
            *waited.wakers.entry(title).or_default() += wait.micros;
        }
    }
    // To ask for a cause that nobody suffers from is to ask for its rows.
    let mut reasons = options.filter.reasons.iter();
    let all = options.all || reasons.any(|reason| reason.kind() != WaitKind::Suffered);
    let is_shown = |kind: WaitKind| all || kind == WaitKind::Suffered;
    let mut found: Vec<_> = found.into_iter().collect();
    found.retain(|(row, waited)| is_shown(row.reason.kind()) && waited.all != 0);
    let name = |id: Option<FunctionId>| id.map(|id| model.function(id).name.clone());
    found.sort_by_cached_key(|(row, waited)| {
        let names = (row.process, name(row.function), name(row.caller));
        (row.reason.kind(), Reverse(waited.all), names, row.reason)
    });
    let text = |text: Option<String>| text.map_or(Cell::Empty, Cell::Text);
    let kinds = [WaitKind::Suffered, WaitKind::Idle, WaitKind::Undecided];
    let kinds = kinds.into_iter().filter(|kind| is_shown(*kind));
    let mut rows: Vec<_> = kinds
        .map(|kind| {
            let mut cells = figures(totals.kind(kind), kind, &totals).to_vec();
            cells.extend([Cell::Empty, Cell::Empty, Cell::Text("<Total>".to_owned())]);
            cells.resize(COLUMNS, Cell::Empty);
            cells
        })
        .collect();
    let of_kinds = rows.len();
    rows.extend(found.iter().map(|(row, waited)| {
        let mut cells = figures(waited.all, row.reason.kind(), &totals).to_vec();
        cells.extend([
            Cell::Text(row.reason.keyword().to_owned()),
            Cell::Text(row.reason.title().to_owned()),
            Cell::Text(row.process.to_owned()),
            text(name(row.function)),
            text(name(row.caller)),
        ]);
        cells.extend(waited.wakers());
        cells
    }));
    let kind = Column::text("kind", "Kind");
    let title = if all {
        "Waits: suffered, idle and undecided; seconds by ticks"
    } else {
        "Waits that threads suffered; seconds by ticks"
    };
    let mut table = Table {
        view: View::Waits.name(),
        title: title.to_owned(),
        columns: vec![
            Column::number("waited_s", "waited s"),
            Column::number("percent", if all { "% of kind" } else { "%" }),
            if all { kind } else { kind.hidden() },
            Column::text("cause", "Cause").hidden(),
            Column::text("why", if all { "Why" } else { "Waited for" }),
            Column::text("process", "Process"),
            Column::text("name", "Function"),
            Column::text("caller", "On behalf of"),
            Column::number("wakers", "Threads").hidden(),
            Column::text("waker", "Thread").hidden(),
            Column::number("waker_s", "of it s").hidden(),
            Column::text("because_of", "Because of"),
        ],
        rows,
        ..Table::default()
    };
    if let Some(limit) = options.limit {
        table.cut(limit.saturating_add(of_kinds));
    }
    if found.iter().any(|(row, _)| row.reason == WaitReason::Cpu) {
        let note = "a CPU: the function is where the thread was when it became runnable";
        table.notes.push(note.to_owned());
    }
    table.notes.extend(notes(model, &totals));
    Ok(table)
}

/// The number of columns of the table.
const COLUMNS: usize = 12;

/// Returns the cells of a time, its share of all waits of its kind, and the kind.
fn figures(us: i64, kind: WaitKind, totals: &WaitTotals) -> [Cell; 3] {
    [
        Cell::Microseconds(us),
        Cell::share_of(us, totals.kind(kind)),
        Cell::Text(kind.keyword().to_owned()),
    ]
}

/// Returns the lines below the table.
fn notes(model: &Model, totals: &WaitTotals) -> Vec<String> {
    let seconds = |kind| format!("{:.3} s", totals.kind(kind) as f64 / 1e6);
    let mut notes = vec![format!(
        "suffered {}, idle {}, undecided {}",
        seconds(WaitKind::Suffered),
        seconds(WaitKind::Idle),
        seconds(WaitKind::Undecided)
    )];
    if model.wakers_watched() == Some(false) {
        let note = "wake-ups were not watched: recorded with -W on, less is undecided, and waits have \
                    the threads that ended them";
        notes.push(note.to_owned());
    }
    notes
}
