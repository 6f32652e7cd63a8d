//! Waits are selected by what they were for the thread, and shown with cause and waker.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use experiment_format::cause::WaitKind;
use serde_json::Value;

use super::generated::profile;
use super::show;

#[test]
fn waits_are_selected_by_kind() -> Result<()> {
    let payload = profile(11, 6, 20, 4_000, 20);
    let mut shown = show(&payload)?;
    let (mut without, mut waits) = (0, BTreeMap::new());
    for tick in &payload.ticks {
        match tick.cause {
            None => without += tick.micros,
            Some(cause) => *waits.entry(cause.kind()).or_insert(0) += tick.micros,
        }
    }
    for kind in [WaitKind::Suffered, WaitKind::Idle, WaitKind::Undecided] {
        let word = kind.keyword();
        let select = format!("kcollect.select({{waits: ['{word}']}}).micros");
        let micros = shown.browser.evaluate(&select)?;
        ensure!(micros == without + waits[&kind], "{word}: {micros}");
        let flame = shown.browser.evaluate("kcollect.flame()[0].micros")?;
        ensure!(flame == micros, "{word}: {flame}");
    }
    shown.browser.evaluate("kcollect.select({})")?;
    // Each has a button and a switch of its own.
    shown.browser.click("#suffered")?;
    let states = "kcollect.selection().states.join()";
    ensure!(shown.browser.evaluate(states)? == "3,4,5,6,7,8");
    shown.browser.click("#clear")?;
    shown.browser.click("#idle-waits")?;
    let all: u64 = payload.ticks.iter().map(|tick| tick.micros).sum();
    ensure!(shown.micros()? == all - waits[&WaitKind::Idle]);
    shown.is_content()
}

#[test]
fn a_wait_has_its_cause_and_a_way_to_its_waker() -> Result<()> {
    let payload = profile(12, 6, 20, 4_000, 20);
    let mut shown = show(&payload)?;
    let interval = u64::from(payload.interval_us) * 1000;
    let long = payload.ticks.iter().filter(|tick| tick.ticks > 4);
    let mut found = 0;
    for tick in long.filter(|tick| tick.cause.is_some()).take(40) {
        let inside = tick.time_ns.0 - 2 * interval;
        let wait = format!("kcollect.wait({}, {inside})", tick.thread);
        let wait = shown.browser.evaluate(&wait)?;
        // A wait for a CPU may follow, so that it ended earlier.
        if wait == Value::Null || tick.cause.map(|cause| cause.title()) != wait["cause"].as_str() {
            continue;
        }
        let kind = tick.cause.map(|cause| cause.kind().keyword());
        ensure!(wait["kind"].as_str() == kind, "{wait}");
        let is_waker = |thread: u32| payload.threads[thread as usize].tid == tick.waker;
        let sampled = payload.ticks.iter().any(|tick| is_waker(tick.thread));
        ensure!((wait["waker"] == -1) != sampled, "{wait}");
        if wait["waker"] != -1 && !wait["waker"].is_null() {
            shown.browser.click("#wait-waker")?;
            let lanes = format!(
                "kcollect.lanes().some(lane => lane.threads.join() === '{}')",
                wait["waker"]
            );
            ensure!(shown.browser.evaluate(&lanes)? == true);
        }
        found += 1;
    }
    ensure!(found > 10, "{found} waits were found");
    shown.is_content()
}
