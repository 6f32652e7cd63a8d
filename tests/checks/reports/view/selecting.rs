//! Clicks, strokes and keys in the page select what a plain count of the same selection has.

use analysis::view::Payload;
use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use super::generated::profile;
use super::shown::{Shown, show};
use super::truth::{Profile, Selection, Truth};

/// Returns the number of ticks of a selection.
fn sum(truths: &Profile<'_>, selection: &Selection) -> u64 {
    truths.count(selection, false).states.iter().sum()
}

#[test]
fn clicks_and_keys_select_the_same() -> Result<()> {
    let payload = profile(2, 12, 30, 4_000, 20);
    let mut shown = show(&payload)?;
    let truths = Profile::new(&payload);
    states_are_selected(&mut shown, &truths)?;
    a_stroke_selects_time(&mut shown, &truths, &payload)?;
    rows_and_lanes_are_selected(&mut shown, &truths, &payload)?;
    the_search_shows_a_share(&mut shown, &truths)?;
    keys_zoom_the_flame_graph(&mut shown)?;
    shown.is_content()
}

/// The page opens with the states on a CPU; clicks select all states, and leave one out.
fn states_are_selected(shown: &mut Shown, truths: &Profile<'_>) -> Result<()> {
    let on_cpu = Selection {
        states: Some([0, 1, 2].into()),
        ..Selection::default()
    };
    ensure!(shown.micros()? == sum(truths, &on_cpu));
    shown.browser.click("#clear")?;
    ensure!(shown.micros()? == sum(truths, &Selection::default()));

    shown.browser.click(".chip[data-state=\"7\"]")?;
    let awake = Selection {
        states: Some((0..10).filter(|&state| state != 7).collect()),
        ..Selection::default()
    };
    ensure!(shown.micros()? == sum(truths, &awake));
    shown.browser.click(".chip[data-state=\"7\"]")?;
    ensure!(shown.micros()? == sum(truths, &Selection::default()));
    Ok(())
}

/// A stroke across the lanes selects time, and the page has its range.
fn a_stroke_selects_time(shown: &mut Shown, truths: &Profile<'_>, payload: &Payload) -> Result<()> {
    let (from, to) = (
        shown.browser.place("#lanes", 0.4, 0.7)?,
        shown.browser.place("#lanes", 0.7, 0.8)?,
    );
    shown.browser.stroke(from, to)?;
    let range = shown.browser.evaluate("kcollect.selection().time")?;
    let bound = |at: usize| range[at].as_u64().context("no range");
    let time = [bound(0)?, bound(1)?];
    ensure!(time[0] > 0 && time[1] < payload.duration_ns.0, "{range}");
    let selection = Selection {
        time: Some(time),
        ..Selection::default()
    };
    ensure!(shown.micros()? == sum(truths, &selection));
    shown.browser.press("Escape")?;
    ensure!(shown.micros()? == sum(truths, &Selection::default()));
    Ok(())
}

/// While the mouse drags over a large profile the totals follow each move. The flame graph follows
/// when the mouse rests or is released.
pub(super) fn a_drag_is_followed(shown: &mut Shown, truths: &Profile<'_>) -> Result<()> {
    shown.browser.evaluate("kcollect.select({})")?;
    // A slow machine may see the mouse rest after each move, so it is noted that it was after.
    shown.browser.evaluate(
        "void (() => { window.after = 0; const panels = document.querySelector('#panels'); \
         new MutationObserver(() => { after += panels.hasAttribute('data-after'); }) \
           .observe(panels, {attributes: true}); })()",
    )?;
    let mouse = |shown: &mut Shown, kind: &str, across: f64| -> Result<Selection> {
        let (x, y) = shown.browser.place("#lanes", across, 0.7)?;
        let event =
            json!({"type": kind, "x": x, "y": y, "buttons": 1, "button": "left", "clickCount": 1});
        shown.browser.call("Input.dispatchMouseEvent", event)?;
        shown.browser.settle()?;
        let time = shown.browser.evaluate("kcollect.selection().time")?;
        Ok(Selection {
            time: serde_json::from_value(time)?,
            ..Selection::default()
        })
    };
    let flame = |shown: &mut Shown, truth: &Truth| -> Result<()> {
        shown.browser.evaluate("kcollect.counted()")?;
        let flame = shown.browser.evaluate("kcollect.flame()")?;
        let totals = shown.browser.evaluate("kcollect.totals()")?;
        ensure!(Truth::of_page(&totals, &flame)? == *truth);
        Ok(())
    };
    mouse(shown, "mousePressed", 0.4)?;
    for across in [0.5, 0.7] {
        let selection = mouse(shown, "mouseMoved", across)?;
        let expected = truths.count(&selection, false);
        ensure!(selection.time.is_some() && shown.micros()? == expected.states.iter().sum::<u64>());
        if across > 0.6 {
            flame(shown, &expected)?;
        }
    }
    mouse(shown, "mouseMoved", 0.6)?;
    let selection = mouse(shown, "mouseReleased", 0.6)?;
    flame(shown, &truths.count(&selection, false))?;
    let after = "window.after > 0 && !document.querySelector('#panels').hasAttribute('data-after')";
    ensure!(shown.browser.evaluate(after)? == true);
    Ok(())
}

/// A row of the table selects its process, and a lane its process or CPU.
fn rows_and_lanes_are_selected(
    shown: &mut Shown,
    truths: &Profile<'_>,
    payload: &Payload,
) -> Result<()> {
    shown.browser.click("#tab-table")?;
    shown.browser.click("#table tr[data-process=\"3\"] th")?;
    let third = Selection {
        processes: Some([3].into()),
        ..Selection::default()
    };
    ensure!(shown.micros()? == sum(truths, &third));
    shown.browser.click("#table tr[data-process=\"3\"] th")?;
    ensure!(shown.micros()? == sum(truths, &Selection::default()));

    // The first lanes are the CPUs, unless names are filtered.
    let filter = |text: &str| {
        format!(
            "void (() => {{ const field = document.querySelector('#filter'); field.value = \
             '{text}'; field.dispatchEvent(new Event('input')); }})()"
        )
    };
    let pid = payload.processes[3].pid.to_string();
    shown.browser.evaluate(&filter(&pid))?;
    let (x, _) = shown.browser.place("#lanes", 0.1, 0.0)?;
    let (left, top) = shown.browser.place("#lanes", 0.0, 0.0)?;
    shown.browser.stroke((x, top + 34.0), (x, top + 34.0))?;
    let chosen = shown
        .browser
        .evaluate("kcollect.totals().processes.map(process => process.process)")?;
    let chosen = chosen[0].as_u64().context("nothing chosen")? as u32;
    let selection = Selection {
        processes: Some([chosen].into()),
        ..Selection::default()
    };
    ensure!(shown.micros()? == sum(truths, &selection));
    shown.browser.press("Escape")?;
    shown.browser.evaluate(&filter(""))?;

    // Unfolds the eight CPUs.
    let unfold = (left + 14.0, top + 34.0);
    shown.browser.stroke(unfold, unfold)?;
    shown.browser.stroke((x, top + 54.0), (x, top + 54.0))?;
    let first_cpu = Selection {
        cpus: Some([0].into()),
        ..Selection::default()
    };
    ensure!(shown.micros()? == sum(truths, &first_cpu));
    shown.browser.press("Escape")?;
    Ok(())
}

/// The search shows the share of what it finds.
fn the_search_shows_a_share(shown: &mut Shown, truths: &Profile<'_>) -> Result<()> {
    shown.browser.press("/")?;
    for letter in ["m", "a", "l", "l"] {
        shown.browser.press(letter)?;
    }
    let found = shown
        .browser
        .evaluate("+document.querySelector('#found').dataset.micros")?;
    let frames = truths.count(&Selection::default(), false).frames;
    let malloc = |name: &str| name.contains("malloc");
    let expected: u64 = frames
        .iter()
        .filter(|(path, _)| {
            path.last().is_some_and(|frame| malloc(&frame.0))
                && !path[..path.len() - 1].iter().any(|frame| malloc(&frame.0))
        })
        .map(|(_, (states, _))| states.iter().sum::<u64>())
        .sum();
    ensure!(found == expected && expected > 0, "{found}, not {expected}");
    shown.browser.press("Escape")
}

/// Keys zoom the flame graph into its heaviest frame and out again, and open the help.
fn keys_zoom_the_flame_graph(shown: &mut Shown) -> Result<()> {
    shown
        .browser
        .evaluate("document.querySelector('#frames').focus()")?;
    for key in ["ArrowDown", "ArrowDown", "Enter"] {
        shown.browser.press(key)?;
    }
    let reset = "document.querySelector('#flame-reset').disabled";
    ensure!(shown.browser.evaluate(reset)? == false);
    shown.browser.press("Escape")?;
    shown.browser.press("Escape")?;
    ensure!(shown.browser.evaluate(reset)? == true);
    shown.browser.press("?")?;
    ensure!(
        shown
            .browser
            .evaluate("document.querySelector('#help').open")?
            == true
    );
    Ok(())
}
