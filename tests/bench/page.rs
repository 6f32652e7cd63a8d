//! How long the page of a large experiment takes to be shown, and how it follows the mouse.
//!
//! The experiment is made, not recorded: packets enough for a million rows of ticks. The page is
//! opened in a browser of its own five times, from the page cache. A browser without a window draws
//! without a GPU, on the machine's CPUs, and shows 60 frames a second at most. If other programs
//! use the CPUs, times grow; so the table also has the CPU time of the page's thread. The program
//! is `KCOLLECT`, or the kcollect next to this benchmark.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use comfy_table::{Table, presets};
use serde_json::{Value, json};
use tests::experiment::synthetic::{Size, large};
use tests::oracle::browser::Browser;

/// The moves of the mouse in a drag.
const MOVES: u32 = 240;
/// The time between two frames from which on one was left out between them, milliseconds.
const LATE_MS: f64 = 25.0;

#[derive(Parser)]
struct Options {
    #[command(flatten)]
    size: Size,
    /// How often the page is opened
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Write the page to this file and leave it there; if it is there already, it is taken as it is
    #[arg(long)]
    page: Option<PathBuf>,
    /// Write what the page's thread did in the first run to this directory, as profiles of V8
    /// (`.cpuprofile`)
    #[arg(long)]
    profile: Option<PathBuf>,
    /// What cargo passes to every benchmark
    #[arg(long, hide = true)]
    bench: bool,
}

/// A drag over the timeline: its name, what precedes it, and the keys that are held (8 is Shift).
struct Drag {
    name: &'static str,
    before: &'static str,
    keys: u32,
}

const DRAGS: [Drag; 3] = [
    Drag {
        name: "select time, as the page opens",
        before: "0",
        keys: 0,
    },
    Drag {
        name: "select time, all threads shown",
        before: "document.querySelector('#fold').click()",
        keys: 0,
    },
    Drag {
        name: "move the view, all threads shown",
        before: "document.querySelector('#zoom-in').click()",
        keys: 8,
    },
];

/// The times at which the page was shown, and what it took.
const OPENED: &str = "(async () => { \
     while (!window.kcollect) await new Promise(done => setTimeout(done, 5)); \
     const ready = await kcollect.ready; \
     const paint = performance.getEntriesByName('first-contentful-paint')[0]; \
     return {...ready, rows: kcollect.rows, first: paint ? paint.startTime : -1}; })()";

/// Notes the time of each frame from now on.
const WATCH: &str = "void (() => { window.frameTimes = []; \
     const note = (time) => { frameTimes.push(time); window.watching = requestAnimationFrame(note); }; \
     window.watching = requestAnimationFrame(note); })()";

/// Returns the times between frames, milliseconds.
const WATCHED: &str = "(cancelAnimationFrame(watching), \
     frameTimes.slice(1).map((time, at) => time - frameTimes[at]))";

fn kcollect() -> Result<PathBuf> {
    if let Some(path) = env::var_os("KCOLLECT") {
        return Ok(path.into());
    }
    // target/release/deps/page-0123456789abcdef
    let own = env::current_exe()?;
    let directory = own.ancestors().nth(2).context("no directory")?;
    Ok(directory.join("kcollect"))
}

fn make_page(options: &Options, file: &Path) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let experiment = large(directory.path(), options.size)?;
    let mut command = Command::new(kcollect()?);
    command.arg("view").arg(experiment).arg("-o").arg(file);
    let status = command.stdout(Stdio::null()).status()?;
    ensure!(status.success(), "{command:?}: {status}");
    Ok(())
}

/// What one browser measured, in milliseconds.
struct Run {
    /// Rows of ticks, a number.
    rows: f64,
    first: f64,
    decoded: f64,
    counted: f64,
    shown: f64,
    /// CPU time of the page's thread until its content is shown.
    thread: f64,
    /// CPU time of the page's process until then, its threads that inflate and draw included.
    process: f64,
    drags: Vec<Dragged>,
}

struct Dragged {
    /// The times between frames.
    frames: Vec<f64>,
    /// CPU time of the page's thread for a move.
    thread: f64,
    /// The same of its process.
    process: f64,
    /// From the end of the drag until all views show the selection.
    after: f64,
}

/// Returns the CPU times of the page's thread and process, milliseconds.
fn cpu_times(browser: &mut Browser) -> Result<[f64; 2]> {
    let metrics = browser.call("Performance.getMetrics", json!({}))?;
    let of = |name: &str| -> Result<f64> {
        let mut all = metrics["metrics"].as_array().into_iter().flatten();
        let metric = all.find(|metric| metric["name"] == name);
        let seconds = metric.and_then(|metric| metric["value"].as_f64());
        Ok(1000.0 * seconds.with_context(|| format!("no {name}: {metrics}"))?)
    };
    Ok([of("ThreadTime")?, of("ProcessTime")?])
}

fn number(value: &Value) -> Result<f64> {
    value
        .as_f64()
        .with_context(|| format!("no number: {value}"))
}

fn run(page: &Path, profile: Option<&Path>) -> Result<Run> {
    let mut browser = Browser::start()?;
    browser.resize(1440, 900, 1.0)?;
    browser.call("Performance.enable", json!({}))?;
    begin_profile(&mut browser, profile)?;
    let before = cpu_times(&mut browser)?;
    browser.open_file(page)?;
    let opened = browser.evaluate(OPENED)?;
    let after = cpu_times(&mut browser)?;
    end_profile(&mut browser, profile, "opened")?;
    let mut drags = Vec::new();
    for (number, each) in DRAGS.iter().enumerate() {
        browser.evaluate(&format!("void {}", each.before))?;
        browser.settle()?;
        begin_profile(&mut browser, profile)?;
        drags.push(drag(&mut browser, each)?);
        end_profile(&mut browser, profile, &format!("drag{number}"))?;
    }
    let complaints = browser.complaints();
    ensure!(complaints.is_empty(), "{complaints:#?}");
    Ok(Run {
        rows: number(&opened["rows"])?,
        first: number(&opened["first"])?,
        decoded: number(&opened["decoded"])?,
        counted: number(&opened["counted"])?,
        shown: number(&opened["painted"])?,
        thread: after[0] - before[0],
        process: after[1] - before[1],
        drags,
    })
}

/// Drags from one point of the timeline to another and back. The next move comes when the page has
/// handled the one before, which is once a frame.
fn drag(browser: &mut Browser, drag: &Drag) -> Result<Dragged> {
    let (left, y) = browser.place("#lanes", 0.35, 0.6)?;
    let (right, _) = browser.place("#lanes", 0.95, 0.6)?;
    let mouse = |browser: &mut Browser, kind: &str, x: f64| {
        let event = json!({"type": kind, "x": x, "y": y, "buttons": 1, "button": "left",
            "clickCount": 1, "modifiers": drag.keys});
        browser.call("Input.dispatchMouseEvent", event).map(drop)
    };
    browser.hover((left, y))?;
    mouse(browser, "mousePressed", left)?;
    let before = cpu_times(browser)?;
    browser.evaluate(WATCH)?;
    for at in 1..=MOVES {
        let share = f64::from(at) / f64::from(MOVES);
        // Back for the last third, and not to where it began.
        let share = if share <= 0.67 {
            share / 0.67
        } else {
            2.0 - share / 0.67
        };
        mouse(browser, "mouseMoved", left + share * (right - left))?;
    }
    let frames = browser.evaluate(WATCHED)?;
    let after = cpu_times(browser)?;
    mouse(browser, "mouseReleased", left + 0.5 * (right - left))?;
    let counted = browser.evaluate("kcollect.counted()")?;
    let frames = frames.as_array().into_iter().flatten();
    Ok(Dragged {
        frames: frames.map(number).collect::<Result<_>>()?,
        thread: (after[0] - before[0]) / f64::from(MOVES),
        process: (after[1] - before[1]) / f64::from(MOVES),
        after: counted.as_f64().unwrap_or(0.0),
    })
}

fn begin_profile(browser: &mut Browser, profile: Option<&Path>) -> Result<()> {
    if profile.is_some() {
        browser.call("Profiler.enable", json!({}))?;
        browser.call("Profiler.start", json!({}))?;
    }
    Ok(())
}

fn end_profile(browser: &mut Browser, profile: Option<&Path>, name: &str) -> Result<()> {
    if let Some(directory) = profile {
        let stopped = browser.call("Profiler.stop", json!({}))?;
        fs::create_dir_all(directory)?;
        let file = directory.join(format!("{name}.cpuprofile"));
        fs::write(file, stopped["profile"].to_string())?;
    }
    Ok(())
}

/// Returns the value below which this share of them is.
fn quantile(mut values: Vec<f64>, share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let at = (values.len().saturating_sub(1)) as f64 * share;
    values.get(at.round() as usize).copied().unwrap_or(f64::NAN)
}

fn main() -> Result<()> {
    let options = Options::parse();
    let directory = tempfile::tempdir()?;
    let page = match &options.page {
        Some(page) => std::path::absolute(page)?,
        None => directory.path().join("page.html"),
    };
    if !page.exists() {
        make_page(&options, &page)?;
    }
    let mut runs = Vec::new();
    for number in 0..options.runs {
        let profile = options.profile.as_deref().filter(|_| number == 0);
        runs.push(run(&page, profile)?);
    }
    println!(
        "{} packets, {} rows of ticks, a page of {:.1} MB, {} browsers one after the other; no GPU, {} CPUs, \
         load {}\n",
        options.size.packets,
        runs.first().map_or(0.0, |run| run.rows),
        fs::metadata(&page)?.len() as f64 / 1e6,
        options.runs,
        std::thread::available_parallelism()?,
        load()?
    );
    println!("{}\n\n{}", opening(&runs), dragging(&runs));
    Ok(())
}

/// Returns the load average of the last minute: other programs have a part of it.
fn load() -> Result<String> {
    let text = fs::read_to_string("/proc/loadavg")?;
    Ok(text.split(' ').next().unwrap_or_default().to_owned())
}

fn table(head: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header(head);
    table
}

fn opening(runs: &[Run]) -> Table {
    let mut table = table(&["until, ms", "median", "min..max"]);
    let mut row = |name: &str, of: fn(&Run) -> f64| {
        let values: Vec<_> = runs.iter().map(of).collect();
        let at = |share| quantile(values.clone(), share);
        let range = format!("{:.0}..{:.0}", at(0.0), at(1.0));
        table.add_row([name.to_owned(), format!("{:.0}", at(0.5)), range]);
    };
    row("first paint, without content", |run| run.first);
    row("decoded", |run| run.decoded);
    row("counted", |run| run.counted);
    row("first paint with content", |run| run.shown);
    row("CPU of the page's thread", |run| run.thread);
    row("CPU of the page's process", |run| run.process);
    table
}

/// Frames are summed over all runs; the rest are medians.
fn dragging(runs: &[Run]) -> Table {
    let mut table = table(&[
        "dragging",
        "frames/s",
        "ms a frame",
        "95 %",
        "worst",
        "late %",
        "CPU ms a move",
        "of the process",
        "all views after, ms",
    ]);
    for (number, drag) in DRAGS.iter().enumerate() {
        let each = || runs.iter().map(|run| &run.drags[number]);
        let frames: Vec<f64> = each().flat_map(|drag| drag.frames.clone()).collect();
        let late = frames.iter().filter(|frame| **frame > LATE_MS).count();
        let (count, all) = (frames.len() as f64, frames.iter().sum::<f64>());
        let frame = |share| format!("{:.1}", quantile(frames.clone(), share));
        let median = |of: fn(&Dragged) -> f64| quantile(each().map(of).collect(), 0.5);
        table.add_row([
            drag.name.to_owned(),
            format!("{:.1}", 1000.0 * count / all),
            frame(0.5),
            frame(0.95),
            frame(1.0),
            format!("{:.1}", 100.0 * late as f64 / count),
            format!("{:.1}", median(|drag| drag.thread)),
            format!("{:.1}", median(|drag| drag.process)),
            format!("{:.0}", median(|drag| drag.after)),
        ]);
    }
    table
}
