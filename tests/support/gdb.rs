//! The stacks of programs that wait, in an experiment and in `gdb`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;
use std::thread::{scope, sleep};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use experiment_format::reader::Experiment;
use experiment_format::stacks::StackEnd;

use crate::command::run;
use crate::experiment::followed::Followed;
use crate::kcollect::Recording;

const LIMIT: Duration = Duration::from_secs(60);
/// The lowest address of code.
const FIRST_CODE: u64 = 4096;
/// Prints each frame's pc. Inlined functions, and functions that jumped to another one, have no
/// frame on the stack.
const PRINT_FRAMES: &str = "\
python
import gdb
for thread in gdb.selected_inferior().threads():
    thread.switch()
    frame, pcs = gdb.newest_frame(), []
    while frame:
        if frame.type() not in (gdb.INLINE_FRAME, gdb.TAILCALL_FRAME):
            pcs.append('%x' % frame.pc())
        frame = frame.older()
    print('stack', thread.ptid[1], ','.join(pcs))
end
";

/// The stacks of threads, compared.
#[derive(Debug, Default)]
pub struct Compared {
    /// Number of complete stacks that are gdb's, frame by frame.
    pub same: usize,
    /// Number of stacks that are not called complete.
    pub incomplete: usize,
    /// Number of stacks that gdb does not unwind to their end, and of threads that ran meanwhile.
    pub unjudged: usize,
    /// Complete stacks that gdb has otherwise.
    pub different: Vec<Difference>,
}

/// A stack that is called complete, and gdb's.
#[derive(Debug)]
pub struct Difference {
    /// The process.
    pub pid: u32,
    /// Addresses of the frames, the innermost first.
    pub ours: Vec<u64>,
    /// The same by gdb.
    pub theirs: Vec<u64>,
}

/// Whether gdb is installed.
#[must_use]
pub fn is_installed() -> bool {
    Command::new("gdb").arg("--version").output().is_ok()
}

/// Records processes whose threads all wait, and compares the stacks in which they do.
///
/// # Errors
/// When kcollect or gdb fails.
pub fn compare(pids: &[u32]) -> Result<Compared> {
    let all = || -> BTreeMap<u32, _> { pids.iter().map(|pid| (*pid, switches(*pid))).collect() };
    let before = all();
    let only: Vec<String> = pids.iter().map(ToString::to_string).collect();
    let follow = format!("=({})", only.join("|"));
    let mut recording = Recording::start(["-p", "hi", "-F", &follow], LIMIT)?;
    recording.until_running()?;
    sleep(Duration::from_millis(500));
    let recorded = recording.stop()?;
    let between = all();
    let ours = last_stacks(&Followed::read(&recorded)?)?;
    let script = tempfile::NamedTempFile::new()?;
    fs::write(script.path(), PRINT_FRAMES)?;
    let script = script.path().to_str().context("a path that is text")?;
    let of = |pids: &[u32]| -> Result<Vec<_>> {
        let of_each = pids.iter().map(|pid| {
            let stacks = stacks_by_gdb(*pid, script)?;
            Ok((
                *pid,
                stacks,
                have_run([&before[pid], &between[pid], &switches(*pid)]),
            ))
        });
        of_each.collect()
    };
    let both = pids.split_at(pids.len() / 2);
    let theirs = scope(|scope| -> Result<_> {
        let first = scope.spawn(|| of(both.0));
        let second = of(both.1)?;
        let first = first
            .join()
            .map_err(|_| anyhow!("gdb's thread panicked"))??;
        Ok([first, second].concat())
    })?;
    let mut compared = Compared::default();
    for (pid, stacks, have_run) in theirs {
        for (tid, theirs) in stacks {
            match ours.get(&tid) {
                _ if have_run.contains(&tid) => compared.unjudged += 1,
                // gdb does not find the callers of code without tables, such as V8's.
                _ if theirs.iter().any(|pc| *pc < FIRST_CODE) => compared.unjudged += 1,
                Some((frames, true)) if is_same(frames, &theirs) => compared.same += 1,
                Some((frames, true)) => compared.different.push(Difference {
                    pid,
                    ours: frames.clone(),
                    theirs,
                }),
                _ => compared.incomplete += 1,
            }
        }
    }
    Ok(compared)
}

/// Returns how often each thread of a process has left its CPU, as `/proc` says.
fn switches(pid: u32) -> BTreeMap<u64, u64> {
    let threads = fs::read_dir(format!("/proc/{pid}/task"));
    let counts = threads
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|thread| {
            let tid = thread.file_name().to_str()?.parse().ok()?;
            let status = fs::read_to_string(thread.path().join("status")).ok()?;
            let lines = status.lines().filter(|line| line.contains("ctxt_switches"));
            let counts =
                lines.filter_map(|line| line.split_whitespace().last()?.parse::<u64>().ok());
            Some((tid, counts.sum()))
        });
    counts.collect()
}

/// Returns the threads that have run on their own, by how often they had left their CPU before the
/// recording, after it, and after gdb. gdb makes each thread of a process leave equally often.
fn have_run([before, between, after]: [&BTreeMap<u64, u64>; 3]) -> BTreeSet<u64> {
    let by_gdb = |tid| Some(after.get(&tid)? - between.get(&tid)?);
    let least = after.keys().filter_map(|tid| by_gdb(*tid)).min();
    let tids = after.keys().copied();
    tids.filter(|tid| before.get(tid) != between.get(tid) || by_gdb(*tid) != least)
        .collect()
}

/// Returns the last stack of each thread, and whether it is complete; without the kernel's frames.
fn last_stacks(followed: &Followed) -> Result<BTreeMap<u64, (Vec<u64>, bool)>> {
    let mut last = BTreeMap::new();
    for sub in &followed.subs {
        let experiment = Experiment::open(&sub.path)?;
        let stacks = experiment.stacks()?;
        for tick in experiment.ticks()? {
            let tick = tick?;
            let Some(stack) = tick.shared.stack.and_then(|uid| stacks.get(uid)) else {
                continue;
            };
            let frames = stack.frames.into_iter().filter(|frame| frame >> 63 == 0);
            last.insert(
                tick.shared.thread,
                (frames.collect(), stack.end == StackEnd::Complete),
            );
        }
    }
    Ok(last)
}

/// Returns gdb's stacks of a process, by thread.
fn stacks_by_gdb(pid: u32, script: &str) -> Result<BTreeMap<u64, Vec<u64>>> {
    let mut command = Command::new("gdb");
    command.args(["-nx", "-batch", "-iex", "set debuginfod enabled off"]);
    command.args([
        "-iex",
        "set auto-load off",
        "-ex",
        "set backtrace past-main on",
    ]);
    command.args(["-p", &pid.to_string(), "-x", script]);
    let output = run(&mut command, LIMIT)?.stdout;
    let mut stacks = BTreeMap::new();
    for line in output
        .lines()
        .filter_map(|line| line.strip_prefix("stack "))
    {
        let (tid, pcs) = line.split_once(' ').context("a line without frames")?;
        let pcs = pcs.split(',').map(|pc| u64::from_str_radix(pc, 16));
        stacks.insert(tid.parse()?, pcs.collect::<Result<_, _>>()?);
    }
    Ok(stacks)
}

/// Whether two stacks are the same. Ours has callers inside their call, and gdb's the return
/// address; where a function was interrupted, both have the instruction.
fn is_same(ours: &[u64], theirs: &[u64]) -> bool {
    let same = |(ours, theirs): (&u64, &u64)| ours == theirs || ours + 1 == *theirs;
    ours.len() == theirs.len() && ours.iter().zip(theirs).all(same)
}
