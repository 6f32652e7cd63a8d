//! The page of `kcollect view`, opened in a browser, counts what was recorded: in every selection
//! each process, state and stack has exactly the ticks that a plain count here finds. It has no
//! errors, requests nothing, and shows names as text.

mod cpus;
mod generated;
mod groups;
mod selecting;
mod shown;
mod traced;
mod truth;
mod waits;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use analysis::aggregate::totals;
use analysis::filter::{self as report, Filter};
use analysis::load::lines::LookupPaths;
use analysis::model::Model;
use analysis::view::{Payload, SubjectKind, gather};
use anyhow::{Context as _, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use experiment_format::microstate::Microstate;
use generated::{Dice, profile};
use serde_json::Value;
use shown::{PAGE, open, show};
use tests::command::run;
use tests::kcollect::{self, record};
use tests::machine::{Shared, work_cpu};
use tests::workload;
use truth::{Profile, Selection};

fn selections(payload: &Payload, number: u64) -> Vec<Selection> {
    let mut dice = Dice::new(number);
    let mut some = |limit: u64| -> BTreeSet<u32> {
        (0..1 + dice.below(limit))
            .map(|_| dice.below(limit) as u32)
            .collect()
    };
    let mut made = vec![Selection::default()];
    for turn in 0..number {
        made.push(Selection {
            states: (turn & 1 == 1).then(|| some(10)),
            processes: (turn & 2 == 2).then(|| some(payload.processes.len() as u64)),
            cpus: (turn & 8 == 8).then(|| some(8).into_iter().map(|cpu| cpu as u16).collect()),
            ..Selection::default()
        });
    }
    let mut dice = Dice::new(number + 1);
    for (turn, selection) in made.iter_mut().enumerate() {
        // Exactly at ends of rows, too.
        let mut at = || match dice.below(3) {
            0 => {
                payload.ticks[dice.below(payload.ticks.len() as u64) as usize]
                    .time_ns
                    .0
            }
            _ => dice.below(payload.duration_ns.0 + 1),
        };
        let (a, b) = (at(), at());
        selection.time = (turn & 4 == 4).then(|| [a.min(b), a.max(b)]);
    }
    made
}

#[test]
fn every_selection_has_its_ticks() -> Result<()> {
    let payload = profile(1, 12, 40, 6_000, 20);
    let mut shown = show(&payload)?;
    let truths = Profile::new(&payload);
    for (turn, selection) in selections(&payload, 48).iter().enumerate() {
        let by_process = turn % 3 == 0;
        let expected = truths.count(selection, by_process);
        let shown_truth = shown.select(selection, by_process)?;
        ensure!(
            shown_truth.states == expected.states,
            "{selection:?}: {:?}, not {:?}",
            shown_truth.states,
            expected.states
        );
        ensure!(
            shown_truth == expected,
            "{selection:?} by process: {by_process}"
        );
        ensure!(shown.micros()? == expected.states.iter().sum::<u64>());
    }
    // Rows of the table, and its last line.
    shown.select(&Selection::default(), false)?;
    let all = truths.count(&Selection::default(), false);
    let rows = shown.browser.evaluate(
        "Object.fromEntries([...document.querySelectorAll('#table tr[data-process]')].map(row => [row.dataset.process, +row.dataset.micros]))",
    )?;
    for (process, states) in &all.processes {
        ensure!(
            rows[process.to_string()] == states.iter().sum::<u64>(),
            "process {process}: {rows}"
        );
    }
    let sum = shown
        .browser
        .evaluate("+document.querySelector('#table tfoot tr').dataset.micros")?;
    ensure!(sum == all.states.iter().sum::<u64>(), "{sum}");
    shown.is_content()
}

#[test]
fn every_selection_has_its_traced_events() -> Result<()> {
    let mut payload = profile(3, 6, 12, 2_000, 20);
    traced::add_events(&mut payload);
    let mut shown = show(&payload)?;
    let kinds = [SubjectKind::Lock, SubjectKind::File, SubjectKind::Memory];
    for selection in selections(&payload, 24) {
        shown.select(&selection, false)?;
        for kind in kinds {
            let rows = format!("kcollect.traced({})", kind as u8);
            let found = traced::shown(&shown.browser.evaluate(&rows)?)?;
            let expected = traced::sums(&payload, &selection, kind);
            ensure!(
                found == expected,
                "{kind:?} of {selection:?}: {found:?}, not {expected:?}"
            );
        }
    }
    // The table has a row of each, the first one with the most.
    shown.select(&Selection::default(), false)?;
    shown
        .browser
        .evaluate("document.getElementById('tab-traced').click()")?;
    for kind in kinds {
        let button = format!("#traced-kinds button:nth-child({})", kind as u8 + 1);
        let rows = format!(
            "document.querySelector('{button}').click(); \
             [...document.querySelectorAll('#subjects tbody tr')].map(row => +row.cells[0].textContent.replace(/\\u202f/g, ''))"
        );
        let rows = shown.browser.evaluate(&rows)?;
        let first: Vec<_> = rows
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_f64)
            .collect();
        let sums = traced::sums(&payload, &Selection::default(), kind);
        ensure!(
            first.len() == sums.len() && first.is_sorted_by(|a, b| a >= b),
            "{kind:?}: {rows}"
        );
    }
    shown.is_content()
}

/// The table of functions, the callers and callees of each, and the inverted flame graph have the
/// ticks that a plain count of the stacks finds.
#[test]
fn functions_have_their_ticks() -> Result<()> {
    let payload = profile(5, 6, 12, 3_000, 20);
    let mut shown = show(&payload)?;
    let truths = Profile::new(&payload);
    let selection = Selection {
        states: Some([0, 1, 6].into()),
        ..Selection::default()
    };
    let frames = truths.count(&selection, false).frames;
    let (mut own, mut total) = (BTreeMap::new(), BTreeMap::new());
    for (path, (states, ticks)) in &frames {
        let Some((last, callers)) = path.split_last() else {
            continue;
        };
        *own.entry(last.0.clone()).or_insert(0) += ticks;
        if !callers.iter().any(|caller| caller.0 == last.0) {
            *total.entry(last.0.clone()).or_insert(0) += states.iter().sum::<u64>();
        }
    }
    shown.select(&selection, false)?;
    shown.browser.click("#tab-functions")?;
    let rows = shown.browser.evaluate(
        "[...document.querySelectorAll('#functions-all tr[data-function]')].map(row => \
         [row.querySelector('.text').title, +row.dataset.self, +row.dataset.total])",
    )?;
    let rows: Vec<(String, u64, u64)> = serde_json::from_value(rows)?;
    ensure!(rows.is_sorted_by(|a, b| a.1 >= b.1), "{rows:?}");
    let shown_own = rows.iter().map(|(name, own, _)| (name.clone(), *own));
    let shown_total = rows.iter().map(|(name, _, total)| (name.clone(), *total));
    ensure!(shown_own.collect::<BTreeMap<_, _>>() == own, "{own:?}");
    ensure!(
        shown_total.collect::<BTreeMap<_, _>>() == total,
        "{total:?}"
    );

    shown.browser.click("#functions-all [data-sort=\"name\"]")?;
    let first = "document.querySelector('#functions-all tr[data-function] .text').title";
    let least = total.keys().min_by_key(|name| name.to_lowercase());
    ensure!(shown.browser.evaluate(first)? == *least.context("no function")?);

    for (name, _, total) in rows.iter().take(5) {
        let chosen = format!(
            "[...document.querySelectorAll('#functions-all tr[data-function]')] \
             .find(row => row.querySelector('.text').title === {}).click()",
            serde_json::to_string(name)?
        );
        shown.browser.evaluate(&format!("void {chosen}"))?;
        let sum = |id: &str| {
            format!(
                "[...document.querySelectorAll('#{id} tr[data-micros]')].reduce((sum, row) => sum + +row.dataset.micros, 0)"
            )
        };
        ensure!(shown.browser.evaluate(&sum("callers"))? == *total, "{name}");
        let callees = shown.browser.evaluate(&sum("callees"))?;
        ensure!(
            callees.as_u64().is_some_and(|callees| callees <= *total),
            "{name}"
        );
    }

    // Below the root of the inverted graph is each function with its own ticks.
    shown.browser.click("#tab-flame")?;
    shown.browser.click("#inverted")?;
    let leaves = shown.browser.evaluate(
        "kcollect.flame().filter(frame => frame.depth === 1).map(({name, micros}) => [name, micros])",
    )?;
    let leaves: Vec<(String, u64)> = serde_json::from_value(leaves)?;
    own.retain(|_, ticks| *ticks > 0);
    ensure!(leaves.into_iter().collect::<BTreeMap<_, _>>() == own);
    shown.is_content()
}

#[test]
fn names_are_shown_as_text() -> Result<()> {
    let mut payload = profile(3, 3, 3, 900, 20);
    let names = [
        "</script><script>window.broken = 1</script>".as_bytes(),
        b"<!--<script><img src=x onerror=window.broken=1>",
        b"\xff\0\"'`${window.broken = 1}\xe2\x80\xaegnp.exe\x1b[31m",
    ];
    for (at, name) in names.into_iter().enumerate() {
        payload.processes[at].name = name.to_vec();
        payload.processes[at].lineage = name.to_vec();
        payload.functions[at].name = name.to_vec();
        payload.functions[at].object = name.to_vec();
    }
    payload.title = String::from_utf8_lossy(names[0]).into_owned();
    payload.machine = payload.title.clone();
    payload.losses = payload.title.clone();
    let mut shown = show(&payload)?;
    let text = shown
        .browser
        .evaluate("document.querySelector('#table tbody').textContent")?;
    let text = text.as_str().unwrap_or_default();
    for shown in [
        "</script><script>window.broken = 1</script>",
        "<!--<script><img src=x onerror=window.broken=1>",
        "\\xFF\\x00\"'`${window.broken = 1}\\xE2\\x80\\xAEgnp.exe\\x1B[31m",
    ] {
        ensure!(text.contains(shown), "{shown}: {text}");
    }
    ensure!(shown.browser.evaluate("document.title")? == format!("{} – kcollect", payload.title));
    ensure!(shown.browser.evaluate("typeof window.broken")? == "undefined");
    ensure!(
        shown
            .browser
            .evaluate("document.querySelectorAll('script, img').length")?
            == 1
    );
    shown.is_content()
}

/// From the command line to the screen: what the page counts is what the report of the same
/// experiment counts.
#[test]
fn root_a_recording_is_shown() -> Result<()> {
    let _machine = Shared::take()?;
    let cpu = work_cpu()?.to_string();
    let recorded = record(
        &["-p", "hi", "-F", "=mixed"],
        &[workload!("mixed"), "1.5", &cpu],
        Duration::from_secs(40),
    )?;
    let experiment = recorded.experiment()?;
    let directory = tempfile::tempdir()?;
    let file = directory.path().join(PAGE);
    let mut command = kcollect::command([OsStr::new("view"), experiment.as_os_str()])?;
    command.arg("-o").arg(&file);
    let made = run(&mut command, Duration::from_secs(30))?;
    ensure!(made.status.success(), "{made}");
    ensure!(made.stdout.trim() == file.display().to_string(), "{made}");

    let model = Model::load_named(&[experiment], &LookupPaths::default())?;
    let payload = gather(&model, &Filter::default())?;
    let selection = report::Selection::new(&model, &Filter::default());
    let sums = totals(&model, &selection).all;
    for state in &Microstate::ALL[..Microstate::PER_THREAD] {
        let ticks = payload.ticks.iter().filter(|tick| tick.state == *state);
        let shown: u64 = ticks.map(|tick| tick.micros).sum();
        let reported = sums[*state as usize];
        ensure!(
            i64::try_from(shown)? == reported,
            "{state:?}: {shown}, {reported}"
        );
    }
    let all: u64 = payload.ticks.iter().map(|tick| tick.micros).sum();
    let mut shown = open(directory)?;
    shown.browser.click("#clear")?;
    ensure!(shown.micros()? == all && all > 1_000, "{all}");
    let truths = Profile::new(&payload);
    for selection in selections(&payload, 11).iter().take(12) {
        let expected = truths.count(selection, true);
        let counted = shown.select(selection, true)?;
        ensure!(
            counted == expected,
            "{:?}, not {:?}: {selection:?}",
            counted.states,
            expected.states
        );
    }
    let exact = payload
        .threads
        .iter()
        .filter(|thread| thread.exact_ns.is_some());
    ensure!(exact.count() * 2 > payload.threads.len());
    groups::rows_are_of_users(&mut shown, &payload)?;
    shown.is_content()
}

#[test]
fn an_empty_page_says_so() -> Result<()> {
    const SHOWN: &str = "document.querySelector('#frames-empty:not([hidden])')?.textContent";
    let mut payload = profile(4, 2, 2, 10, 1);
    payload.ticks.clear();
    let mut shown = show(&payload)?;
    let without_ticks = shown.browser.evaluate(SHOWN)?;
    let is_text = |shown: &Value| shown.as_str().is_some_and(|text| !text.is_empty());
    ensure!(is_text(&without_ticks), "{without_ticks}");
    payload.ticks = profile(4, 2, 2, 10, 1).ticks;
    let mut shown = show(&payload)?;
    shown.browser.evaluate("kcollect.select({states: []})")?;
    let without_states = shown.browser.evaluate(SHOWN)?;
    ensure!(
        is_text(&without_states) && without_states != without_ticks,
        "{without_states}"
    );
    shown.is_content()
}

#[test]
fn a_million_ticks_of_a_thousand_threads() -> Result<()> {
    let payload = profile(5, 150, 1_000, 1_300_000, 60);
    let begin = Instant::now();
    let mut shown = show(&payload)?;
    println!(
        "{} rows, {} threads, {} stacks: {:.1} MB of HTML, made and opened in {:?}; in the page, ms: {}",
        payload.ticks.len(),
        payload.threads.len(),
        payload.stacks.nodes(),
        shown.bytes as f64 / 1e6,
        begin.elapsed(),
        shown.times
    );
    ensure!(payload.ticks.len() >= 1_000_000);
    let truths = Profile::new(&payload);
    for selection in &selections(&payload, 9)[3..8] {
        let expected = truths.count(selection, false);
        let shown_truth = shown.select(selection, false)?;
        ensure!(shown_truth == expected, "{selection:?}");
    }
    selecting::a_drag_is_followed(&mut shown, &truths)?;
    shown.browser.evaluate("kcollect.select({})")?;
    shown
        .browser
        .evaluate("document.querySelector('#fold').click()")?;
    shown.browser.resize(2560, 1440, 1.0)?;
    for (what, view) in [("all", [0_u64, 60]), ("10 s", [20, 30]), ("1 s", [25, 26])] {
        let [from, to] = view.map(|second| second * 1_000_000_000);
        // The first fills bins that the second finds.
        let drawn = format!("(kcollect.view({from}, {to}), kcollect.redraw())");
        let (first, again) = (
            shown.browser.evaluate(&drawn)?,
            shown.browser.evaluate(&drawn)?,
        );
        println!("{what}, 2560×1440, ms: {first}, again {again}");
    }
    shown.is_content()
}

#[test]
fn page_fits_every_window() -> Result<()> {
    let payload = profile(6, 40, 160, 40_000, 60);
    let mut shown = show(&payload)?;
    // For a look by hand.
    let pictures = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("view");
    fs::create_dir_all(&pictures)?;
    let zoomed = "(kcollect.select({time: [20e9, 32e9]}), kcollect.view(18e9, 35e9))";
    let searched = "(() => { const field = document.querySelector('#search'); field.value = 'malloc'; field.dispatchEvent(new Event('input')); })()";
    let looks = [
        ("light", "light", "kcollect.select({})"),
        (
            "dark",
            "dark",
            "kcollect.select({states: [0, 1, 2, 3, 4, 5, 6, 8, 9]})",
        ),
        ("zoomed", "light", zoomed),
        ("searched", "dark", searched),
        (
            "by-state",
            "light",
            "document.querySelector('#by-state').click()",
        ),
        (
            "processes",
            "light",
            "(document.querySelector('#tab-table').click(), kcollect.select({processes: [4, 5]}))",
        ),
        (
            "functions",
            "light",
            "(document.querySelector('#tab-functions').click(), kcollect.select({}))",
        ),
        (
            "inverted",
            "dark",
            "(document.querySelector('#tab-flame').click(), document.querySelector('#inverted').click())",
        ),
        (
            "empty",
            "light",
            "(document.querySelector('#inverted').click(), kcollect.select({states: []}))",
        ),
        (
            "units",
            "light",
            "(kcollect.select({}), kcollect.flame({byProcess: true, by: 'unit'}), document.querySelector('#fold').click())",
        ),
    ];
    for (width, height, ratio) in [
        (800, 600, 1.0),
        (900, 600, 1.0),
        (1000, 700, 1.0),
        (1440, 900, 2.0),
        (2560, 1440, 1.0),
        (3840, 2160, 1.0),
    ] {
        for (name, scheme, change) in looks {
            shown.browser.resize(width, height, ratio)?;
            shown.browser.prefer(scheme)?;
            shown.browser.evaluate(&format!("void {change}"))?;
            shown.browser.settle()?;
            let overflow = "[...document.querySelectorAll('body, header, #states, #chips, .bar, footer, .chip')] \
                 .filter(box => box.scrollWidth > box.clientWidth + 1 && box.clientWidth).map(box => box.id || box.className || box.tagName)";
            let overflow = shown.browser.evaluate(overflow)?;
            ensure!(
                overflow == Value::Array(Vec::new()),
                "{name} at {width}×{height}: {overflow}"
            );
            let file = pictures.join(format!("{name}-{width}x{height}.png"));
            fs::write(file, STANDARD.decode(shown.browser.screenshot()?)?)?;
        }
        // As it was.
        shown.browser.evaluate("(document.querySelector('#by-state').click(), document.querySelector('#tab-flame').click(), kcollect.view(0, 60e9), 0)")?;
        shown
            .browser
            .evaluate("void kcollect.flame({byProcess: false, by: 'process'})")?;
        shown.browser.evaluate(&searched.replace("malloc", ""))?;
    }
    println!("pictures are in {}", pictures.display());
    shown.is_content()
}
