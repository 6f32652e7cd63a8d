//! The call tree of a daemon without frame pointers: each path through it has the time in each
//! state that its threads measured themselves, and the functions of a path are followed by the
//! kernel's that it called.
//!
//! It judges what stock gprofng shows of the subexperiments of the daemon and of its client. How
//! far a number of ticks may be off: the ticks of a stretch of time, on a CPU or off it, are its
//! length in intervals, rounded up or down by chance. So the ticks of `n` stretches have a standard
//! deviation of at most `√n / 2` ticks, and never a greater one than as many independent samples.
//! The check allows five of these, four ticks for the ends, and a hundredth of the time, since the
//! clocks are read outside of the call.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use experiment_format::ids::Pid;
use experiment_format::microstate::Microstate;
use experiment_format::packet::Detail;
use experiment_format::reader::Experiment;
use experiment_format::stacks::StackEnd;
use experiment_format::units::Nanos;
use serde::Deserialize;
use tests::experiment::states::States;
use tests::experiment::summary::RunSummary;
use tests::experiment::{interval_ns, thread_ticks};
use tests::kcollect::{FinishedRecording, record};
use tests::machine::disturbance::judge_times;
use tests::machine::work_cpu;
use tests::oracle::call_tree::{CallTree, STATES, expand, plain};
use tests::oracle::statistics::{MAX_SIGMAS, SLACK_TICKS};

/// How long the server works, seconds: a quarter of it is the warm-up.
const WORK_S: f64 = 8.0;
/// The share by which a time may be off apart from chance.
const MAX_TIME_ERROR_SHARE: f64 = 0.01;
/// Maximum share of the ticks after the warm-up whose user stack is incomplete.
const MAX_INCOMPLETE_SHARE: f64 = 0.001;
/// Minimum share of a path's blocked time that is where it blocks in the kernel.
const MIN_BLOCKED_SHARE: f64 = 0.99;
/// How far a time may be off because gprofng shows thousandths of a second.
const ROUNDING_S: f64 = 0.0005;
/// The fewest ticks that a path is judged by.
const MIN_TICKS: f64 = 20.0;

/// The times that a process of the server measured.
#[derive(Debug, Deserialize)]
struct Report {
    server: String,
    pid: Pid,
    threads: u64,
    paths: Vec<PathTimes>,
}

/// The times of a call path. Its parts are functions, from the first of a thread's own on.
#[derive(Debug, Deserialize)]
struct PathTimes {
    path: String,
    /// The state in which it blocks; none for a path that should not block.
    state: String,
    cpu_ns: f64,
    waited_ns: f64,
    blocked_ns: f64,
    /// Pieces of time on the CPU, and away from it.
    stretches: f64,
    switches: f64,
}

/// The kernel functions in which a path blocks, in their order, with others in between.
const BELOW: [(&str, &[&str]); 6] = [
    ("serve/receive/read", &["do_syscall_64", "vfs_read"]),
    (
        "serve/ask_slow/await_reply/read",
        &["do_syscall_64", "vfs_read"],
    ),
    (
        "serve/update/pthread_mutex_lock",
        &["do_syscall_64", "futex_wait"],
    ),
    (
        "serve/back_off/rest/clock_nanosleep",
        &["do_syscall_64", "hrtimer_nanosleep"],
    ),
    (
        "serve/load/touch",
        &["exc_page_fault", "handle_mm_fault", "filemap_fault"],
    ),
    (
        "serve/grow/touch_page",
        &["exc_page_fault", "handle_mm_fault", "handle_userfault"],
    ),
];

#[test]
fn root_alone_paths_of_a_daemon_have_their_measured_times() -> Result<()> {
    judge_times(|| {
        let (seconds, cpu) = (WORK_S.to_string(), work_cpu()?.to_string());
        let recorded = record(
            &["-p", "hi", "-F", "on"],
            &[env!("SERVER_PROGRAM"), &seconds, &cpu],
            Duration::from_secs(60),
        )?;
        let founder = recorded.experiment()?;
        let summary = RunSummary::of(&founder)?;
        summary.complete()?;
        let report = report(&recorded)?;
        ensure!(report.len() == 2, "{report:?}");
        let mut wrong = Vec::new();
        for report in &report {
            let (process, experiment) = summary.followed()?.one(&founder, report.pid)?;
            println!("{}: {process:?}", report.server);
            ensure!(
                process.experiment.starts_with("_server_PID_"),
                "{process:?}"
            );
            let mut judge = Judge {
                report,
                tree: CallTree::of(&experiment)?,
                beginnings: BTreeSet::new(),
                interval: interval_ns(&founder)? / 1e9,
                wrong: Vec::new(),
            };
            judge.beginnings()?;
            for took in &report.paths {
                judge.path(took)?;
            }
            judge.below()?;
            judge.whole(&founder, &experiment)?;
            judge.stacks(&experiment)?;
            wrong.extend(
                judge
                    .wrong
                    .iter()
                    .map(|wrong| format!("{}: {wrong}", report.server)),
            );
        }
        ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
        Ok(())
    })
}

fn report(recorded: &FinishedRecording) -> Result<Vec<Report>> {
    let lines = recorded.finished.stdout.lines();
    lines
        .filter(|line| line.starts_with('{'))
        .map(|line| Ok(serde_json::from_str(line)?))
        .collect()
}

fn of(seconds: &[f64; 10], state: Microstate) -> f64 {
    seconds.get(state as usize).copied().unwrap_or_default()
}

fn on_cpu(seconds: &[f64; 10]) -> f64 {
    let states = [Microstate::User, Microstate::System, Microstate::Trap];
    states.iter().map(|state| of(seconds, *state)).sum()
}

/// Returns the time that is off the CPU and not waiting for one.
fn blocked(seconds: &[f64; 10]) -> f64 {
    seconds.iter().sum::<f64>() - on_cpu(seconds) - of(seconds, Microstate::WaitCpu)
}

/// A process: its own times and gprofng's.
struct Judge<'a> {
    report: &'a Report,
    tree: CallTree,
    /// How the stacks of threads begin, up to their first function that has a time of its own.
    beginnings: BTreeSet<Vec<String>>,
    /// Seconds.
    interval: f64,
    wrong: Vec<String>,
}

impl Judge<'_> {
    /// Finds how the stacks of threads begin: the first thread's in one way, all others' in
    /// another.
    fn beginnings(&mut self) -> Result<()> {
        let first = |took: &PathTimes| took.path.split('/').next().map(str::to_owned);
        let firsts: BTreeSet<String> = self.report.paths.iter().filter_map(first).collect();
        for node in &self.tree.nodes {
            if let Some((last, before)) = node.path.split_last()
                && firsts.contains(last)
            {
                self.beginnings.insert(before.to_vec());
            }
        }
        ensure!(
            self.beginnings.len() == 2,
            "threads begin in {:?}",
            self.beginnings
        );
        Ok(())
    }

    /// Returns what a node's path has after this path; nothing if it does not begin with it.
    fn after<'b>(&self, node: &'b [String], path: &[&str]) -> Option<&'b [String]> {
        let begins = |begin: &&Vec<String>| node.starts_with(begin);
        let begin = self.beginnings.iter().find(begins)?;
        let (own, after) = node.get(begin.len()..)?.split_at_checked(path.len())?;
        let same = own
            .iter()
            .zip(path)
            .all(|(name, function)| plain(name) == *function);
        same.then_some(after)
    }

    fn sum(&self, path: &[&str]) -> [f64; 10] {
        self.tree
            .sum(|node| self.after(node, path).is_some_and(<[String]>::is_empty))
    }

    /// Compares a path's times, by ticks, with those that its threads measured.
    fn path(&mut self, took: &PathTimes) -> Result<()> {
        let path = expand(&took.path)?;
        let sum = self.sum(&path);
        let here = blocked(&sum);
        if took.path == "main" {
            // It does more than what it has noted, but nothing else that blocks.
            self.compare(took, "blocked", here, took.blocked_ns, took.switches);
            return Ok(());
        }
        let all: f64 = sum.iter().sum();
        let all_ns = took.cpu_ns + took.waited_ns + took.blocked_ns;
        let pieces = took.stretches + took.switches;
        self.compare(took, "all", all, all_ns, pieces);
        ensure!(
            all_ns / 1e9 / self.interval >= MIN_TICKS,
            "too little: {took:?}"
        );
        // On some machines the disk reports completed work together with the timer's own interrupt:
        // ticks are not independent samples of it.
        if path.last() != Some(&"touch") {
            let waited = of(&sum, Microstate::WaitCpu);
            self.compare(took, "waiting", waited, took.waited_ns, took.switches);
            if !took.state.is_empty() {
                self.compare(took, "blocked", here, took.blocked_ns, took.switches);
            }
        }
        // A blocking call is on a CPU only briefly, with interrupts off, in the scheduler: a tick
        // that is due then comes when the next thread runs.
        if took.state.is_empty() {
            // What seems to block a path that does not was stolen from it by a hypervisor, on its
            // CPU: some of its ticks pass then.
            let (ticks, stolen_ns) = (on_cpu(&sum), took.blocked_ns.max(0.0));
            let stolen = ((ticks * 1e9 - took.cpu_ns).max(0.0)).min(stolen_ns);
            self.compare(
                took,
                "on a CPU",
                ticks,
                took.cpu_ns + stolen,
                took.stretches,
            );
        }
        let state = STATES.iter().position(|state| *state == took.state);
        let in_state = state.map_or(0.0, |state| sum[state]);
        if here - in_state > SLACK_TICKS * self.interval {
            self.wrong
                .push(format!("blocked in other states: {sum:?}, {took:?}"));
        }
        Ok(())
    }

    fn compare(&mut self, took: &PathTimes, what: &str, seconds: f64, ns: f64, pieces: f64) {
        let (ticks, truth) = (seconds / self.interval, ns / 1e9 / self.interval);
        let sigma = (pieces / 4.0).min(truth).sqrt();
        let allowed = MAX_SIGMAS * sigma
            + SLACK_TICKS
            + MAX_TIME_ERROR_SHARE * truth
            + ROUNDING_S / self.interval;
        let line = format!(
            "{}, {what}: {ticks:.0} ticks, {truth:.1} ± {allowed:.1} by its own clocks",
            took.path
        );
        println!("{line}");
        if (ticks - truth).abs() > allowed {
            self.wrong.push(line);
        }
    }

    /// Checks that where a path blocks, the kernel's functions follow the user's: the entry first,
    /// then what the call was for.
    fn below(&mut self) -> Result<()> {
        for (text, below) in BELOW {
            let Some(took) = self.report.paths.iter().find(|took| took.path == text) else {
                continue;
            };
            let path = expand(text)?;
            let state = STATES
                .iter()
                .position(|state| *state == took.state)
                .context("a path that blocks has a state")?;
            let all = self.sum(&path)[state];
            // The first node of each branch that has passed all of them.
            let passed = self.tree.sum(|node| {
                let after = self.after(node, &path).and_then(<[String]>::split_last);
                after.is_some_and(|(last, before)| {
                    let whole = [before, std::slice::from_ref(last)].concat();
                    in_order(&whole, below) && !in_order(before, below)
                })
            })[state];
            if passed < MIN_BLOCKED_SHARE * all || all == 0.0 {
                self.wrong.push(format!(
                    "{text}: of {all} s blocked {passed} s are below {below:?}"
                ));
            }
        }
        Ok(())
    }

    /// Checks that all of the process's time is in its subexperiment, and nothing of it in the
    /// founder as a thread's.
    fn whole(&mut self, founder: &Path, experiment: &Path) -> Result<()> {
        let states = States::of(founder)?;
        let row = states.row(self.report.pid)?;
        let ticks = thread_ticks(experiment, None)?;
        // Threads that want one CPU.
        let company = 2 * self.report.threads as usize;
        let tiled = states.tile(self.report.pid, ticks, company);
        self.wrong
            .extend(tiled.err().map(|error| error.to_string()));
        if row.threads != self.report.threads {
            self.wrong.push(format!("{} threads", row.threads));
        }
        let twice = thread_ticks(founder, Some(self.report.pid))?;
        if twice > 0 {
            self.wrong
                .push(format!("{twice} ticks of it are in the founder too"));
        }
        let total = self.tree.total();
        let shown: f64 = total.iter().sum();
        let recorded = ticks as f64 * self.interval;
        if (shown - recorded).abs() > total.len() as f64 * ROUNDING_S {
            self.wrong
                .push(format!("{shown} s are shown of {recorded} s"));
        }
        // The founder has these as ticks of CPUs.
        let by_founder = row.ticks as f64 * self.interval;
        if (on_cpu(&total) - by_founder).abs() > SLACK_TICKS * self.interval {
            self.wrong.push(format!(
                "{} s on a CPU, {by_founder} s by the founder",
                on_cpu(&total)
            ));
        }
        Ok(())
    }

    /// Checks that stacks are the kernel's functions, if any, on top of the user's, which are there
    /// from the thread's first function on.
    fn stacks(&mut self, experiment: &Path) -> Result<()> {
        // The upper half of the addresses is the kernel's.
        let of_kernel = |address: &u64| *address >> 63 == 1;
        let experiment = Experiment::open(experiment)?;
        let learnt = experiment.start().tstamp_ns
            + Nanos((WORK_S / 4.0 * 1e9) as u64)
            + Nanos(1_000_000_000);
        let stacks = experiment.stacks()?;
        let (mut all, mut mixed, mut incomplete, mut late) = (0, 0, 0, 0);
        for tick in experiment.ticks()? {
            let tick = tick?;
            let ticks = u64::try_from(tick.ticks)?;
            let stack = tick.shared.stack.and_then(|stack| stacks.get(stack));
            let stack = stack.context("a tick without a stack")?;
            let inside = stack.frames.iter().take_while(|frame| of_kernel(frame));
            let inside = inside.count();
            let in_user_mode = tick.state == Microstate::User.number();
            // Time is stolen in either mode.
            let stolen = tick.detail == Detail::Stolen.number();
            let back = stack.frames.iter().skip(inside).any(of_kernel);
            all += ticks;
            // An off-CPU interval whose end the kernel did not show has no stack at all, and counts
            // as incomplete.
            let seen = !stack.frames.is_empty();
            if seen && (back || !stolen && in_user_mode != (inside == 0)) {
                mixed += ticks;
            }
            if stack.end != StackEnd::Complete {
                incomplete += ticks;
                let is_late = tick.shared.time_ns > learnt;
                late += if is_late { ticks } else { 0 };
            }
        }
        println!(
            "{}: {all} ticks, {incomplete} of them with an incomplete stack, {late} of these late",
            self.report.server
        );
        if mixed > 0 {
            self.wrong.push(format!(
                "{mixed} ticks with a stack that is not of their state, or where the kernel calls the user"
            ));
        }
        if late as f64 > MAX_INCOMPLETE_SHARE * all as f64 {
            self.wrong.push(format!(
                "{late} of {all} ticks have an incomplete stack after the warm-up"
            ));
        }
        Ok(())
    }
}

/// Returns whether a path has these functions in this order, with others in between.
fn in_order(path: &[String], functions: &[&str]) -> bool {
    let mut path = path.iter();
    functions
        .iter()
        .all(|function| path.any(|name| plain(name) == *function))
}
