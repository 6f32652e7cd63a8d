//! A stack is complete only if no caller is missing: programs of several C libraries, with and
//! without unwind tables, whose callers are known; and calls on another stack.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use experiment_format::reader::Experiment;
use experiment_format::stacks::StackEnd;
use experiment_format::units::Nanos;
use tests::experiment::followed::Followed;
use tests::kcollect::record;
use tests::machine::Shared;

const LIMIT: Duration = Duration::from_secs(60);
/// The program that is compiled in several ways.
const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/workloads/known_callers.c");
/// The program with two stacks (`workloads/other_stack.c`).
const OTHER_STACK: &str = env!("OTHER_STACK_PROGRAM");
/// The unwind tables are built within this time, even while other checks run. Until then stacks are
/// unwound from copies, which hold neither the code that confirms callers nor a second stack.
const WARM_UP: Nanos = Nanos(1_000_000_000);
/// Flags for no unwind tables that the program itself would load.
const NO_TABLES: &[&str] = &["-fno-asynchronous-unwind-tables", "-fno-unwind-tables"];

/// The stacks below a function, in ticks.
#[derive(Debug, Default)]
struct Below {
    all: u64,
    complete: u64,
    /// Complete ones without a function that has to be there.
    wrong: u64,
    example: Vec<String>,
}

impl Below {
    /// Reads the stacks of the followed process in which one of `leaves` is. All of `callers`, and
    /// one of `first`, have to be in those that are complete.
    fn read(
        followed: &Followed,
        leaves: &[&str],
        callers: &[&str],
        first: &[&str],
        warm_up: Nanos,
    ) -> Result<Below> {
        let sub = followed.subs.first().context("none is followed")?;
        let experiment = Experiment::open(&sub.path)?;
        let (stacks, space) = (experiment.stacks()?, experiment.address_space()?);
        let (mut archives, start) = (experiment.archives(), experiment.start().tstamp_ns);
        let mut below = Below::default();
        for tick in experiment.ticks()? {
            let tick = tick?;
            let at_ns = tick.shared.time_ns.saturating_sub(start);
            let Some(stack) = tick.shared.stack.and_then(|uid| stacks.get(uid)) else {
                continue;
            };
            let mut names = Vec::new();
            for frame in stack.frames {
                let function = archives.function_at(&space, frame, at_ns)?;
                let name = function.and_then(|function| function.name);
                names.push(name.map_or_else(|| format!("{frame:#x}"), ToString::to_string));
            }
            let has = |name: &&str| names.iter().any(|found| found == name);
            if at_ns < warm_up || !leaves.iter().any(has) {
                continue;
            }
            let ticks = u64::try_from(tick.ticks)?;
            below.all += ticks;
            if stack.end == StackEnd::Complete {
                below.complete += ticks;
                if !(callers.iter().all(has) && first.iter().any(has)) {
                    below.wrong += ticks;
                    below.example = names;
                }
            }
        }
        Ok(below)
    }

    /// Checks that at least this part of them is complete, with all callers.
    fn judge(&self, part: f64) -> Result<()> {
        println!("{self:?}");
        ensure!(self.wrong == 0, "complete without callers: {self:?}");
        ensure!(self.all > 10, "few stacks: {self:?}");
        let complete = self.complete as f64 / self.all as f64;
        ensure!(complete >= part, "{complete} complete: {self:?}");
        Ok(())
    }
}

/// Compiles the program with known callers; `None` if there is no such compiler.
fn compiled(directory: &Path, command: &[&str], flags: &[&str]) -> Result<Option<PathBuf>> {
    let program = directory.join("known_callers");
    let (compiler, first) = command.split_first().context("no compiler")?;
    let mut compile = Command::new(compiler);
    compile.args(first).args(["-O2", "-fomit-frame-pointer"]);
    compile.args(["-fno-optimize-sibling-calls"]).args(flags);
    compile.args([SOURCE, "-o"]).arg(&program);
    match compile.spawn() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.into()),
        Ok(mut child) => ensure!(child.wait()?.success(), "{compile:?}"),
    }
    Ok(Some(program))
}

/// Functions that call others of the C library, or none.
const LEAVES: &[&str] = &["leaf_spin", "leaf_poll", "leaf_library"];

/// Records the program compiled so, if it can be: stacks with one of these functions.
fn recorded(command: &[&str], flags: &[&str], leaves: &[&str]) -> Result<Option<Below>> {
    let directory = tempfile::tempdir()?;
    let Some(program) = compiled(directory.path(), command, flags)? else {
        println!("not judged: no {command:?}");
        return Ok(None);
    };
    let load = [program.to_str().context("a path that is text")?, "2"];
    let recorded = record(&["-p", "hi", "-F", "load"], &load, LIMIT)?;
    let followed = Followed::read(&recorded)?;
    Below::read(
        &followed,
        leaves,
        &["middle", "outer"],
        &["main", "thread"],
        WARM_UP,
    )
    .map(Some)
}

#[test]
fn root_stacks_by_debug_frame_alone_are_complete() -> Result<()> {
    let _machine = Shared::take()?;
    let flags = [NO_TABLES, &["-g", "-DTHREADS", "-pthread"]].concat();
    let below = recorded(&["clang"], &flags, LEAVES)?;
    below.map_or(Ok(()), |below| below.judge(0.97))
}

/// Callers without tables or frame pointers are passed over, and no stack is complete without them.
#[test]
fn root_stacks_without_tables_are_not_complete() -> Result<()> {
    let _machine = Shared::take()?;
    let flags = [NO_TABLES, &["-g0", "-DTHREADS", "-pthread"]].concat();
    let below = recorded(&["clang"], &flags, LEAVES)?;
    below.map_or(Ok(()), |below| below.judge(0.0))
}

/// C libraries that have unwind information neither for the entry of a program nor for the start of
/// a thread. Of their own functions there may be none either, so that only a function that calls
/// none of them has a complete stack.
#[test]
fn root_stacks_of_other_c_libraries_are_complete_where_that_is_true() -> Result<()> {
    let _machine = Shared::take()?;
    let threads = ["-DTHREADS", "-pthread", "-g"];
    let alone = ["-static", "-DTHREADS", "-pthread", "-g"];
    let libraries: [(&[&str], &[&str], &[&str]); 5] = [
        (&["cc"], &alone, LEAVES),
        (&["musl-gcc"], &alone, &LEAVES[..1]),
        (&["musl-gcc"], &threads, &LEAVES[..1]),
        (&["diet", "gcc"], &["-g"], &LEAVES[..1]),
        (&["klcc"], &["-g"], &LEAVES[..1]),
    ];
    for (compiler, flags, leaves) in libraries {
        let context = || format!("{compiler:?} {flags:?}");
        if let Some(below) = recorded(compiler, flags, leaves).with_context(context)? {
            below.judge(0.97).with_context(context)?;
        }
        // In the others no caller is missing either.
        if leaves != LEAVES
            && let Some(below) = recorded(compiler, flags, LEAVES).with_context(context)?
        {
            below.judge(0.0).with_context(context)?;
        }
    }
    Ok(())
}

#[test]
fn root_stacks_go_on_from_another_stack() -> Result<()> {
    let _machine = Shared::take()?;
    for place in ["lower", "higher"] {
        let load = [OTHER_STACK, "3", place];
        let recorded = record(&["-p", "hi", "-F", "load"], &load, LIMIT)?;
        let followed = Followed::read(&recorded)?;
        let callers = ["on_other_stack", "call_on", "body", "thread"];
        let below = Below::read(&followed, &["hot_leaf"], &callers, &["thread"], WARM_UP)?;
        below.judge(0.97).context(place)?;
    }
    Ok(())
}
