//! Tracks of CPUs name the threads that ran.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, ensure};
use experiment_format::microstate::Microstate;

use super::generated::profile;
use super::show;

/// The states on a CPU.
const ON_CPU: [Microstate; 3] = [Microstate::User, Microstate::System, Microstate::Trap];

#[test]
fn threads_that_ran_on_a_cpu_are_named() -> Result<()> {
    let payload = profile(9, 6, 20, 4_000, 20);
    let interval = f64::from(payload.interval_us) * 1000.0;
    let mut shown = show(&payload)?;
    let cpus: BTreeSet<u16> = payload.ticks.iter().map(|tick| tick.cpu).collect();
    let mut named = 0;
    for cpu in cpus.into_iter().filter(|cpu| *cpu < 8) {
        for from in [0.0_f64, 3e9, 11e9] {
            let to = from + 2e9;
            let ran = shown
                .browser
                .evaluate(&format!("kcollect.ran({cpu}, {from}, {to})"))?;
            let ran: Vec<(u32, f64)> = serde_json::from_value(ran)?;
            ensure!(ran.is_sorted_by(|a, b| a.1 >= b.1), "{ran:?}");
            // Time by thread that is surely in it, and number of rows that may be: the page begins
            // a row where the one before it ended, if that is less than a tick away.
            let mut truth: BTreeMap<u32, (f64, f64)> = BTreeMap::new();
            for tick in &payload.ticks {
                let end = tick.time_ns.0 as f64;
                let begin = end - f64::from(tick.ticks) * interval;
                let inside = to.min(end) - from.max(begin);
                if tick.cpu == cpu && ON_CPU.contains(&tick.state) && inside > -interval {
                    let (time, rows) = truth.entry(tick.thread).or_default();
                    *time += inside.max(0.0);
                    *rows += 1.0;
                }
            }
            let ran: BTreeMap<u32, f64> = ran.into_iter().collect();
            for (thread, shown) in &ran {
                let (time, rows) = truth
                    .get(thread)
                    .with_context(|| format!("{thread} ran?"))?;
                ensure!(
                    (shown - time).abs() <= rows * interval,
                    "CPU {cpu}, thread {thread}: {shown} ns, not {time} ± {rows} rows"
                );
            }
            for (thread, (time, rows)) in truth {
                ensure!(
                    time <= rows * interval || ran.contains_key(&thread),
                    "{thread}"
                );
            }
            named += ran.len();
        }
    }
    ensure!(named > 20, "{named} threads ran");

    // The first row shows all CPUs. The visible time is within the longest stay on one of them.
    let on_cpu = payload.ticks.iter();
    let on_cpu = on_cpu.filter(|tick| ON_CPU.contains(&tick.state));
    let longest = on_cpu.max_by_key(|tick| tick.ticks).context("none ran")?;
    let end = longest.time_ns.0 as f64;
    let begin = end - f64::from(longest.ticks) * interval;
    let view = format!("(kcollect.view({begin}, {end}), 0)");
    shown.browser.evaluate(&view)?;
    let (x, top) = shown.browser.place("#lanes", 0.6, 0.0)?;
    shown.browser.hover((x, top + 40.0))?;
    let tip =
        "document.querySelector('#tip').hidden ? '' : document.querySelector('#tip').textContent";
    let tip = shown.browser.evaluate(tip)?;
    let tip = tip.as_str().context("no tip")?;
    let thread = payload.threads[longest.thread as usize].tid;
    ensure!(
        tip.starts_with("CPUs") && tip.contains(&thread.to_string()),
        "{thread}: {tip}"
    );
    Ok(())
}
