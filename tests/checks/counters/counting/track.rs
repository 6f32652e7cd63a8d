//! `kcollect track` has a row for everything that happens, and in it what was counted, exactly.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::Value;
use tests::command::{Finished, Running, run};
use tests::kcollect::command;
use tests::machine::Exclusive;
use tests::machine::disturbance::judge_times;
use tests::workload;
use tests::workload::counted::Counted;
use tests::workload::truth::monotonic_ns;

const LIMIT: Duration = Duration::from_secs(60);

/// For how long a process that starts threads for three seconds is tracked again and again.
const TRACKING_TIME: Duration = Duration::from_secs(1);

/// Returns the rows in what was printed, among the lines of the command.
pub(crate) fn rows(finished: &Finished) -> Vec<Value> {
    let lines = finished.stdout.lines();
    let rows = lines.filter_map(|line| serde_json::from_str::<Value>(line).ok());
    rows.filter(|row| row["event"].is_string()).collect()
}

/// Returns the rows of an event.
pub(crate) fn of<'a>(rows: &'a [Value], event: &'a str) -> impl Iterator<Item = &'a Value> {
    rows.iter().filter(move |row| row["event"] == event)
}

/// Returns a row's count of an event.
pub(crate) fn count(row: &Value, event: &str) -> u64 {
    row["counts"][event]["count"].as_u64().unwrap_or(u64::MAX)
}

fn tracked(args: &[&str]) -> Result<(Vec<Value>, Finished)> {
    let mut all = vec!["track", "--json"];
    all.extend(args);
    let finished = run(&mut command(all)?, LIMIT)?.succeeded()?;
    let rows = rows(&finished);
    let incomplete = rows.iter().find(|row| row["incomplete"] == true);
    ensure!(incomplete.is_none(), "{incomplete:?}\n{}", finished.stderr);
    Ok((rows, finished))
}

/// Checks that the rows of ended threads add up to the total, and so do the rows of ended
/// processes.
fn adds_up(rows: &[Value], events: &[&str]) -> Result<()> {
    let total = of(rows, "total").next().context("no total")?;
    for event in events {
        for ends in ["lwp_exit", "exit"] {
            let sum: u64 = of(rows, ends).map(|row| count(row, event)).sum();
            ensure!(
                sum == count(total, event),
                "{event}: {sum} in rows of {ends}, {total} in all"
            );
        }
    }
    Ok(())
}

#[test]
fn root_alone_each_of_a_thousand_threads_has_its_own_counts() -> Result<()> {
    let _machine = Exclusive::take()?;
    let events = "page-faults,context-switches,cpu-migrations,task-clock";
    let (rows, finished) = tracked(&[
        "-c",
        events,
        "-T",
        "0",
        "--",
        workload!("counted"),
        "threads",
        "1000",
        "7",
    ])?;
    adds_up(&rows, &events.split(',').collect::<Vec<_>>())?;
    let ends: BTreeMap<_, _> = of(&rows, "lwp_exit")
        .map(|row| (row["lwp"].as_u64(), row))
        .collect();
    let own = Counted::find_all(&finished.stdout);
    ensure!(
        own.len() == 1000 && ends.len() == 1002,
        "{} ends",
        ends.len()
    );
    ensure!(of(&rows, "lwp_create").count() == 1001);
    let mut more = BTreeMap::new();
    for thread in own {
        let row = ends.get(&Some(thread.tid.into()));
        let row = row.with_context(|| format!("no row of {thread:?}"))?;
        let faults = count(row, "page-faults").wrapping_sub(thread.faults);
        let switches = count(row, "context-switches").wrapping_sub(thread.switches);
        ensure!(
            faults == 0 && switches <= 20,
            "{thread:?} has the row {row}"
        );
        *more.entry(switches).or_insert(0) += 1;
    }
    eprintln!("switches after the last word: threads {more:?}");
    Ok(())
}

#[test]
fn root_alone_forks_execs_and_exits_have_rows() -> Result<()> {
    let _machine = Exclusive::take()?;
    let begin = monotonic_ns()?;
    let forks = [
        "-c",
        "page-faults",
        "-T",
        "0",
        "--",
        workload!("counted"),
        "forks",
        "50",
        "30",
    ];
    let (rows, finished) = tracked(&[&["-f"], forks.as_slice()].concat())?;
    adds_up(&rows, &["page-faults"])?;
    let end = monotonic_ns()?;
    let children = Counted::find_all(&finished.stdout);
    let children: BTreeSet<_> = children
        .iter()
        .map(|child| Some(u64::from(child.tid)))
        .collect();
    let forked: BTreeSet<_> = of(&rows, "fork").map(|row| row["child"].as_u64()).collect();
    ensure!(forked == children && children.len() == 50, "{forked:?}");
    let names: Vec<_> = of(&rows, "exec").map(|row| row["name"].as_str()).collect();
    let trues = names.iter().filter(|name| **name == Some("true")).count();
    ensure!((trues, names.len()) == (25, 26), "execs of {names:?}");
    ensure!(of(&rows, "exit").count() == 51);
    let few = of(&rows, "exit").find(|row| count(row, "page-faults") < 30);
    ensure!(few.is_none(), "{few:?}");
    // Each in its time, and in order.
    let times = rows
        .iter()
        .map(|row| row["monotonic_ns"].as_u64().unwrap_or(0));
    ensure!(times.clone().all(|time| (begin..end).contains(&time)));
    ensure!(times.is_sorted(), "rows are not in the order of time");

    // Without -f a fork is reported, and the child is not tracked.
    let (rows, _) = tracked(&forks)?;
    adds_up(&rows, &["page-faults"])?;
    ensure!(of(&rows, "fork").count() == 50 && of(&rows, "exit").count() == 1);
    Ok(())
}

#[test]
fn root_alone_ticks_add_up_and_the_command_has_its_status() -> Result<()> {
    judge_times(|| {
        let script = "i=0; while [ $i -lt 20 ]; do i=$((i+1)); sleep 0.02; done; exit 7";
        let args = ["track", "-T", "0.1", "--json", "sh", "-c", script];
        let finished = run(&mut command(args)?, LIMIT)?;
        ensure!(finished.code() == 7, "{finished}");
        let rows = rows(&finished);
        adds_up(&rows, &["page-faults", "context-switches", "task-clock"])?;
        let ticks: Vec<_> = of(&rows, "tick").collect();
        ensure!(ticks.len() >= 3, "{} ticks", ticks.len());
        let sum: u64 = ticks.iter().map(|row| count(row, "page-faults")).sum();
        let all = count(
            of(&rows, "total").next().context("no total")?,
            "page-faults",
        );
        ensure!(sum > 0 && sum <= all, "{sum} faults in ticks, {all} in all");
        // All ticks are on the grid of the first.
        for (number, tick) in ticks.iter().enumerate() {
            let time = tick["time"].as_f64().unwrap_or(0.0);
            let grid = 0.1 * (number + 1) as f64;
            ensure!(
                (grid..grid + 0.09).contains(&time),
                "tick {number} at {time}"
            );
        }
        Ok(())
    })
}

/// Threads start while it lists those that exist: each is counted once.
#[test]
fn root_alone_a_running_process_can_be_tracked() -> Result<()> {
    let _machine = Exclusive::take()?;
    const PAGES: u64 = 40;
    let mut args = Command::new(workload!("counted"));
    let mut churn = Running::start(args.args(["churn", "3000", &PAGES.to_string()]), LIMIT)?;
    std::thread::sleep(Duration::from_millis(300));
    let pid = churn.pid().to_string();
    let args = ["track", "-c", "page-faults", "--json", "-p", &pid];
    // Which threads start between two counters of their parent differs each time.
    let mut looks = Vec::new();
    let began = Instant::now();
    while began.elapsed() < TRACKING_TIME {
        let short = [&args[..], &["-T", "0.02", "-N", "1"]].concat();
        looks.push(run(&mut command(short)?, LIMIT)?.succeeded()?);
    }
    let to_the_end = [&args[..], &["-T", "0.3"]].concat();
    looks.push(run(&mut command(to_the_end)?, LIMIT)?.succeeded()?);
    ensure!(churn.ended()?, "it ended before the process did");
    let mut own: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for counted in Counted::find_all(&churn.finish()?.stdout) {
        own.entry(u64::from(counted.tid))
            .or_default()
            .insert(counted.faults);
    }
    let (mut started, mut incomplete) = (0, 0);
    for look in &looks {
        (started, incomplete) = counted_once(&rows(look), &own)?;
    }
    // Six threads start in a millisecond, and kcollect may lose its CPU for some of these while it
    // begins to count.
    ensure!(
        started > 500 && incomplete * 500 <= started,
        "{started} started, {incomplete} incomplete"
    );
    Ok(())
}

/// Returns how many threads started, and how many rows are incomplete. All other rows have what a
/// thread of that number counted itself; a number is reused after some ten thousand threads.
fn counted_once(rows: &[Value], own: &BTreeMap<u64, BTreeSet<u64>>) -> Result<(usize, usize)> {
    let (mut started, mut living, mut ended) = (0, BTreeSet::new(), BTreeSet::new());
    for row in rows {
        let tid = || row["lwp"].as_u64().context("no thread");
        match row["event"].as_str() {
            Some("lwp_create") => {
                started += 1;
                ensure!(living.insert(tid()?), "started twice: {row}");
                ended.remove(&tid()?);
            }
            Some("lwp_exit") => {
                ensure!(ended.insert(tid()?), "ended twice: {row}");
                if !living.remove(&tid()?) || row["incomplete"] == true {
                    continue;
                }
                let own = own.get(&tid()?);
                ensure!(
                    own.is_none_or(|own| own.contains(&count(row, "page-faults"))),
                    "{own:?} faults by getrusage: {row}"
                );
            }
            _ => {}
        }
    }
    let incomplete = rows.iter().filter(|row| row["incomplete"] == true).count();
    Ok((started, incomplete))
}

#[test]
fn root_alone_a_tracked_process_outlives_track() -> Result<()> {
    let _machine = Exclusive::take()?;
    let mut sleep = Running::start(Command::new("sleep").arg("20"), LIMIT)?;
    let pid = sleep.pid().to_string();
    let args = ["track", "-T", "0.2", "-N", "3", "-n", "-t", "-p", &pid];
    let finished = run(&mut command(args)?, LIMIT)?.succeeded()?;
    let lines: Vec<_> = finished.stdout.lines().collect();
    // Three ticks, the rest of the time, the total; no header.
    ensure!(lines.len() == 5, "{finished}");
    ensure!(lines.iter().all(|line| {
        let words = line.split('#').next().unwrap_or(line);
        words.split_whitespace().count() == 10
    }));
    let mut track = Running::start(&mut command(["track", "-p", &pid])?, LIMIT)?;
    std::thread::sleep(Duration::from_millis(300));
    track.signal(Signal::SIGINT)?;
    ensure!(!track.ended()? || !sleep.ended()?);
    let finished = track.finish()?.succeeded()?;
    ensure!(
        finished.stdout.contains("total") && !sleep.ended()?,
        "{finished}"
    );
    Ok(())
}
