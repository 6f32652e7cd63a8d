//! What processes belong to: rows of the timeline and of the table, and frames of the flame graph.

use std::collections::{BTreeMap, BTreeSet};

use analysis::view::Payload;
use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::generated::profile;
use super::shown::{Shown, show};
use super::truth::{Profile, Selection};

/// A row of the timeline.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
struct Row {
    name: String,
    depth: u32,
    group: bool,
    threads: BTreeSet<usize>,
}

fn rows(shown: &mut Shown) -> Result<Vec<Row>> {
    Ok(serde_json::from_value(
        shown.browser.evaluate("kcollect.lanes()")?,
    )?)
}

/// Returns the threads of each group in the timeline.
fn groups(rows: &[Row]) -> BTreeMap<String, BTreeSet<usize>> {
    let groups = rows.iter().filter(|row| row.group);
    groups
        .map(|row| (row.name.clone(), row.threads.clone()))
        .collect()
}

/// Returns the threads of each group of a kind.
fn threads(payload: &Payload, kind: usize) -> BTreeMap<String, BTreeSet<usize>> {
    let mut threads: BTreeMap<String, BTreeSet<usize>> = BTreeMap::new();
    for (number, thread) in payload.threads.iter().enumerate() {
        let group = &payload.processes[thread.process as usize].groups[kind];
        let group = String::from_utf8_lossy(group).into_owned();
        threads.entry(group).or_default().insert(number);
    }
    threads
}

fn micros(payload: &Payload, threads: &BTreeSet<usize>) -> u64 {
    let of = payload.ticks.iter();
    of.filter(|tick| threads.contains(&(tick.thread as usize)))
        .map(|tick| tick.micros)
        .sum()
}

/// Returns the threads of some rows together.
fn together<'a>(rows: impl IntoIterator<Item = &'a Row>) -> BTreeSet<usize> {
    let rows = rows.into_iter();
    rows.flat_map(|row| row.threads.iter().copied()).collect()
}

/// Sets a field as a person does.
fn set(shown: &mut Shown, field: &str, value: &str, event: &str) -> Result<()> {
    let script = format!(
        "void (() => {{ const field = document.querySelector('{field}'); \
         field.value = '{value}'; field.dispatchEvent(new Event('{event}')); }})()"
    );
    shown.browser.evaluate(&script).map(drop)
}

/// Clicks on a row of the timeline, `across` pixels from its left end.
fn click(shown: &mut Shown, row: usize, across: f64) -> Result<()> {
    let (x, y) = shown.browser.place("#lanes", 0.0, 0.0)?;
    let place = (x + across, y + 24.0 + 20.0 * row as f64 + 10.0);
    shown.browser.stroke(place, place)
}

/// The timeline has a row of each unit with its threads. A click on it selects them, one on its
/// arrow shows its processes below it, and the filter finds it.
#[test]
fn the_timeline_has_rows_of_units() -> Result<()> {
    let payload = profile(6, 12, 40, 4_000, 20);
    let mut shown = show(&payload)?;
    shown.select(&Selection::default(), false)?;
    ensure!(groups(&rows(&mut shown)?).is_empty());
    set(&mut shown, "#group-by", "unit", "change")?;
    let found = rows(&mut shown)?;
    ensure!(groups(&found) == threads(&payload, 0), "{found:?}");

    let at = found.iter().position(|row| row.group);
    let at = at.context("no group")?;
    let unit = found[at].clone();
    click(&mut shown, at, 100.0)?;
    ensure!(
        shown.micros()? == micros(&payload, &unit.threads),
        "{unit:?}"
    );
    let words = "document.querySelector('#selection').textContent";
    let words = shown.browser.evaluate(words)?;
    ensure!(words == unit.name.as_str(), "{words}");
    click(&mut shown, at, 100.0)?;
    ensure!(shown.browser.evaluate("kcollect.selection().threads")? == Value::Null);

    // Its processes are below it, and can be selected too.
    click(&mut shown, at, 14.0)?;
    let unfolded = rows(&mut shown)?;
    let below = unfolded[at + 1..].iter().take_while(|row| row.depth == 1);
    ensure!(together(below) == unit.threads, "{unfolded:?}");
    ensure!(unfolded[at] == unit, "{unfolded:?}");
    click(&mut shown, at + 1, 100.0)?;
    ensure!(shown.micros()? == micros(&payload, &unfolded[at + 1].threads));
    shown.browser.press("Escape")?;
    click(&mut shown, at, 14.0)?;
    ensure!(rows(&mut shown)? == found);

    set(&mut shown, "#filter", &unit.name, "input")?;
    let filtered = rows(&mut shown)?;
    ensure!(groups(&filtered).len() == 1, "{filtered:?}");
    ensure!(together(&filtered) == unit.threads, "{filtered:?}");
    set(&mut shown, "#filter", "", "input")?;
    set(&mut shown, "#group-by", "process", "change")?;
    ensure!(groups(&rows(&mut shown)?).is_empty());
    shown.is_content()
}

/// The users of a recording are known, as far as processes were followed.
pub(super) fn rows_are_of_users(shown: &mut Shown, payload: &Payload) -> Result<()> {
    let kinds = &payload.groupings;
    let user = kinds.iter().position(|kind| *kind == "user");
    let users = threads(payload, user.with_context(|| format!("{kinds:?}"))?);
    shown.browser.evaluate("void kcollect.select({})")?;
    set(shown, "#group-by", "user", "change")?;
    let found = groups(&rows(shown)?);
    ensure!(found == users, "{found:?}, not {users:?}");
    Ok(())
}

/// Units have the ticks of their processes, in the flame graph and in the table, and a row of the
/// table selects them.
#[test]
fn what_processes_belong_to_has_their_ticks() -> Result<()> {
    let payload = profile(6, 12, 40, 4_000, 20);
    let mut shown = show(&payload)?;
    shown.select(&Selection::default(), true)?;
    let all = Profile::new(&payload).count(&Selection::default(), true);
    let mut expected: BTreeMap<String, u64> = BTreeMap::new();
    for (number, process) in payload.processes.iter().enumerate() {
        let ticks = all.processes.get(&(number as u64));
        let unit = String::from_utf8(process.groups[0].clone())?;
        *expected.entry(unit).or_default() += ticks.map_or(0, |states| states.iter().sum());
    }
    expected.retain(|_, ticks| *ticks > 0);
    ensure!(expected.len() > 1, "{expected:?}");
    let frames = "kcollect.flame({byProcess: true, by: 'unit'}).filter(frame => frame.depth === 1)";
    let shown_units = [
        format!("Object.fromEntries({frames}.map(frame => [frame.name, frame.micros]))"),
        "Object.fromEntries([...document.querySelectorAll('#table tbody tr')]\
         .map(row => [row.cells[0].title, +row.dataset.micros]))"
            .to_owned(),
    ];
    for found in shown_units {
        let found = shown.browser.evaluate(&found)?;
        ensure!(
            found == serde_json::json!(expected),
            "{found}, not {expected:?}"
        );
    }
    shown.browser.click("#tab-table")?;
    shown.browser.click("#table tbody tr th")?;
    let (chosen, title) = (
        shown.micros()?,
        shown
            .browser
            .evaluate("document.querySelector('#table tbody tr').cells[0].title")?,
    );
    ensure!(
        expected.get(title.as_str().unwrap_or_default()) == Some(&chosen),
        "{title}: {chosen} of {expected:?}"
    );
    // As each process again.
    shown.browser.press("Escape")?;
    let frames = shown
        .browser
        .evaluate("kcollect.flame({byProcess: true, by: 'process'}).filter(frame => frame.depth === 1).length")?;
    ensure!(frames == all.processes.len(), "{frames}");
    shown.is_content()
}
