//! How many user stacks of a distribution's programs reach the thread's first function: `make
//! programs`, or as root `cargo bench -p tests --bench programs`. Options come after `--`.
//!
//! Each program runs for some seconds under `kcollect -p hi`, which begins with it: its first
//! ticks, when its files are not known yet, count like all others. The table says how the user
//! stacks of its ticks on a CPU ended, by kcollect's own counts; the goals are for these. Next to
//! them it has how many stacks of threads off the CPU are complete, and, for failed stacks, in
//! which functions they ended, by the experiment. A program that is not installed is a line that
//! says so.
//!
//! It ends with an error when a program is below its goal.

mod other_kinds;
mod program;
mod stacks;
mod tools;

use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Parser;
use comfy_table::presets::{ASCII_MARKDOWN, NOTHING};
use comfy_table::{CellAlignment, Table};
use tests::command::{Finished, run};
use tests::kcollect::{command, experiment_in};
use tests::machine::Exclusive;

use crate::program::{PROGRAMS, Program};
use crate::stacks::{Stacks, VIA_FRAME_POINTER, VIA_SCAN};

/// Maximum time that one program takes, without its preparation.
const LIMIT: Duration = Duration::from_secs(120);

/// The number of places of failure that are printed.
const PLACES: usize = 3;

const TITLES: [&str; 8] = [
    "program",
    "ticks",
    "complete %",
    "goal %",
    "complete off-CPU %",
    "frame pointer %",
    "scan %",
    "other ends, ticks",
];

/// How many user stacks of a distribution's programs reach the thread's first function.
#[derive(Debug, Parser)]
#[command(bin_name = "cargo bench -p tests --bench programs --")]
struct Options {
    /// For how long a program works
    #[arg(long, default_value_t = 5)]
    seconds: u32,
    /// Only these programs
    #[arg(long, value_name = "PROGRAM,...", value_delimiter = ',')]
    only: Option<Vec<String>>,
    /// Print the table as Markdown
    #[arg(long)]
    markdown: bool,
    /// Leave the experiments in this directory
    #[arg(long, value_name = "PATH")]
    keep: Option<std::path::PathBuf>,
    /// What cargo says to every benchmark
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let path = path();
    let mut table = Table::new();
    table.load_style(if options.markdown {
        ASCII_MARKDOWN
    } else {
        NOTHING
    });
    table.set_header(TITLES);
    for column in table.column_iter_mut().skip(1).take(6) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let (mut notes, mut below, mut ran) = (Vec::new(), Vec::new(), 0);
    let wanted = |program: &&Program| {
        let only = options.only.as_ref();
        only.is_none_or(|only| only.iter().any(|name| name == program.name))
    };
    for program in PROGRAMS
        .iter()
        .chain(other_kinds::PROGRAMS)
        .chain(tools::PROGRAMS)
        .filter(wanted)
    {
        if let Some(missing) = program.missing(&path) {
            notes.push(format!(
                "{}: not run, there is no {missing} (packages {})",
                program.name, program.packages
            ));
            continue;
        }
        eprintln!("{} ...", program.name);
        let stacks = match record(program, &options, &path) {
            Ok(stacks) => stacks,
            Err(error) => {
                notes.push(format!("{}: not run: {error:#}", program.name));
                below.push(program.name);
                continue;
            }
        };
        ran += 1;
        eprintln!("{:.2} % of {} ticks", stacks.complete(), stacks.ticks());
        if stacks.complete() < program.goal.percent() {
            below.push(program.name);
        }
        let others = stacks.others();
        let others: Vec<_> = others
            .iter()
            .map(|(end, ticks)| format!("{end} {ticks}"))
            .collect();
        table.add_row([
            program.name.to_owned(),
            stacks.ticks().to_string(),
            format!("{:.2}", stacks.complete()),
            program.goal.percent().to_string(),
            stacks
                .asleep_complete()
                .map_or_else(|| "-".to_owned(), |percent| format!("{percent:.2}")),
            format!("{:.2}", stacks.percent(VIA_FRAME_POINTER)),
            format!("{:.2}", stacks.percent(VIA_SCAN)),
            others.join(", "),
        ]);
        for (place, ticks) in stacks.last().into_iter().take(PLACES) {
            notes.push(format!("{}: {ticks} at {place}", program.name));
        }
    }
    println!("{table}\n");
    for note in notes {
        println!("{}{note}", if options.markdown { "* " } else { "" });
    }
    ensure!(ran > 0, "no program was run");
    ensure!(
        below.is_empty(),
        "fewer ticks than their goal reach the first function: {}",
        below.join(", ")
    );
    Ok(())
}

/// Runs a program, and returns its recorded stacks.
fn record(program: &Program, options: &Options, path: &OsString) -> Result<Stacks> {
    let work = tempfile::tempdir()?;
    // Servers change to another user.
    fs::set_permissions(work.path(), Permissions::from_mode(0o777))?;
    let seconds = options.seconds.to_string();
    let prepare = |command: &mut Command| {
        command
            .env("PATH", path)
            .env("LC_ALL", "C.UTF-8")
            .env("T", &seconds)
            .current_dir(work.path());
    };
    let mut before = Command::new("sh");
    prepare(before.args(["-eu", "-c", program.prepare]));
    succeeded(run(&mut before, LIMIT)?)?;

    let recorded = tempfile::tempdir()?;
    let directory = match &options.keep {
        Some(keep) => keep.join(program.name),
        None => recorded.path().to_owned(),
    };
    fs::create_dir_all(&directory)?;
    // The lock is held for one program at a time: checks may run in between.
    let _machine = Exclusive::take()?;
    let args = ["-p", "hi", "-F", "on", "--", "sh", "-eu", "-c", program.run];
    let mut kcollect = command(["-d".as_ref(), directory.as_os_str()])?;
    prepare(kcollect.args(args));
    succeeded(run(&mut kcollect, LIMIT)?)?;
    look(&directory, program)
}

fn look(directory: &Path, program: &Program) -> Result<Stacks> {
    let stacks = Stacks::of(&experiment_in(directory)?, program.processes)?;
    let processes = program.processes.join(", ");
    ensure!(stacks.ticks() > 0, "no tick of {processes}");
    Ok(stacks)
}

fn succeeded(finished: Finished) -> Result<()> {
    ensure!(finished.code() == 0, "{finished}");
    Ok(())
}

/// Returns the search path of commands, including directories with servers.
fn path() -> OsString {
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    path.push(":/usr/sbin:/sbin");
    path
}
