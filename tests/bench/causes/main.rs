//! Whether kcollect says of waits what a person says of them: `make causes`, or as root `cargo
//! bench -p tests --bench causes`. Options come after `--`.
//!
//! Each load runs under `kcollect -W on -p hi` twice: recorded from before its start, and attached
//! to in its middle, as a profiler mostly is. What a person says, the threads of `waits` say of
//! themselves; of installed programs it is written down in `programs.rs`, by thread and by a
//! function that is in the stack of the wait. A program that is not installed is a line that says
//! so.
//!
//! The shares are of the blocked time that is judged: a wait is right if kcollect says suffered of
//! what a person calls suffered, and idle likewise. They are of the exact times of threads all of
//! whose waits are of one kind, and of the ticks of the other threads; the last column of each half
//! is of ticks alone. Under the table are the waits that are not right, by ticks.

mod agreement;
mod programs;

use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Parser;
use comfy_table::presets::{ASCII_MARKDOWN, NOTHING};
use comfy_table::{CellAlignment, Table};
use nix::sys::signal::Signal;
use tests::command::{Running, run};
use tests::kcollect::Recording;
use tests::machine::Exclusive;
use tests::workload::waits::{MODES, Subject, WAITS};

use crate::agreement::{Agreement, Rule};
use crate::programs::{PROGRAMS, Program};

/// Maximum time that one program takes.
const LIMIT: Duration = Duration::from_secs(60);
/// When a recording ends if this program does not end it, because it was killed.
const ENDS: &str = "50s";
/// How long a load has run when kcollect attaches to it.
const BEFORE_ATTACH: Duration = Duration::from_secs(1);
/// How much longer than the recording a load runs that is attached to, seconds: until kcollect has
/// started, and a little more, so that no wait is one of the load's end.
const LONGER_S: u64 = 5;
/// How long a service takes to start.
const SERVICE_STARTS: Duration = Duration::from_secs(3);
/// The number of differences of a load that are printed.
const DIFFERENCES: usize = 4;

const TITLES: [&str; 9] = [
    "load",
    "start: right %",
    "undecided %",
    "wrong %",
    "ticks: right %",
    "attached: right %",
    "undecided %",
    "wrong %",
    "ticks: right %",
];

/// Whether kcollect says of waits what a person says of them.
#[derive(Debug, Parser)]
#[command(bin_name = "cargo bench -p tests --bench causes --")]
struct Options {
    /// For how long a load is recorded
    #[arg(long, default_value_t = 3)]
    seconds: u64,
    /// Only these loads
    #[arg(long, value_name = "LOAD,...", value_delimiter = ',')]
    only: Option<Vec<String>>,
    /// Print the table as Markdown
    #[arg(long)]
    markdown: bool,
    /// What cargo says to every benchmark
    #[arg(long, hide = true)]
    bench: bool,
}

/// When kcollect starts.
#[derive(Clone, Copy)]
enum When {
    /// Before the load.
    Before,
    /// In its middle.
    Attached,
}

/// What is recorded.
enum Load {
    /// A mode of `waits`.
    Mode(&'static str),
    /// An installed program.
    Program(&'static Program),
}

impl Load {
    fn name(&self) -> &'static str {
        match self {
            Load::Mode(mode) => mode,
            Load::Program(program) => program.name,
        }
    }

    /// The regular expression for `-F`.
    fn follows(&self) -> &'static str {
        match self {
            Load::Mode(_) => "=waits",
            Load::Program(program) => program.follows,
        }
    }

    fn command(&self, seconds: u64, work: &Path) -> Command {
        match self {
            Load::Mode(mode) => {
                let mut command = Command::new(WAITS);
                command.args([mode, &*seconds.to_string()]);
                command
            }
            Load::Program(program) => {
                // timeout(1) ends all that the script has started, even if this program is killed.
                let mut command = Command::new("timeout");
                command.args(["-k", "1", &seconds.to_string(), "sh", "-c", program.run]);
                prepare(&mut command, work);
                command
            }
        }
    }

    fn rules(&self, output: &str) -> Vec<Rule> {
        match self {
            Load::Mode(_) => Subject::all(output).iter().flat_map(Rule::of).collect(),
            Load::Program(program) => program.rules.to_vec(),
        }
    }
}

fn main() -> Result<()> {
    let options = Options::parse();
    let mut table = Table::new();
    table.load_style(if options.markdown {
        ASCII_MARKDOWN
    } else {
        NOTHING
    });
    table.set_header(TITLES);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let mut notes = Vec::new();
    let loads = MODES.into_iter().map(Load::Mode);
    let loads = loads.chain(PROGRAMS.iter().map(Load::Program));
    let wanted = |load: &Load| {
        let only = options.only.as_ref();
        only.is_none_or(|only| only.iter().any(|name| name == load.name()))
    };
    let mut ran = 0;
    for load in loads.filter(wanted) {
        if let Load::Program(program) = load
            && let Some(missing) = program.missing()
        {
            let packages = program.packages;
            notes.push(format!(
                "{}: not run, there is no {missing} (packages {packages})",
                program.name
            ));
            continue;
        }
        eprintln!("{} ...", load.name());
        match agreements(&load, options.seconds) {
            Ok(both) => {
                ran += 1;
                let cells = both.iter().flat_map(Agreement::cells);
                table.add_row([load.name().to_owned()].into_iter().chain(cells));
                for (when, agreement) in ["start", "attached"].into_iter().zip(&both) {
                    for line in agreement.differences().take(DIFFERENCES) {
                        notes.push(format!("{}, {when}: {line}", load.name()));
                    }
                }
            }
            Err(error) => notes.push(format!("{}: not judged: {error:#}", load.name())),
        }
    }
    println!("{table}\n");
    for note in notes {
        println!("{}{note}", if options.markdown { "* " } else { "" });
    }
    ensure!(ran > 0, "no load was run");
    Ok(())
}

/// Records a load from its start, and attached.
fn agreements(load: &Load, seconds: u64) -> Result<[Agreement; 2]> {
    let work = tempfile::tempdir_in("/var/tmp")?;
    // Servers change to another user.
    fs::set_permissions(work.path(), Permissions::from_mode(0o777))?;
    let mut service = None;
    if let Load::Program(program) = load {
        let mut before = Command::new("sh");
        prepare(before.args(["-eu", "-c", program.prepare]), work.path());
        run(&mut before, LIMIT)?.succeeded()?;
        if let Some(script) = program.service {
            let mut command = Command::new("sh");
            prepare(command.args(["-eu", "-c", script]), work.path());
            // It executes the service, so that this is the service's own number.
            service = Some(Running::start(&mut command, LIMIT)?);
            sleep(SERVICE_STARTS);
        }
    }
    let both =
        [When::Before, When::Attached].map(|when| agreement(load, when, seconds, work.path()));
    if let Some(service) = service {
        // Ctrl-C ends it in order, and its processes with it. If it has ended, that is all right.
        let _ = service.signal(Signal::SIGINT);
        let _ = service.finish();
    }
    let [before, attached] = both;
    Ok([before?, attached?])
}

fn agreement(load: &Load, when: When, seconds: u64, work: &Path) -> Result<Agreement> {
    // The lock is held for one run at a time: checks may run in between.
    let _machine = Exclusive::take()?;
    let options = ["-W", "on", "-p", "hi", "-F", load.follows(), "-t", ENDS];
    let (recorded, output) = match when {
        When::Before => {
            let mut recording = Recording::start(options, LIMIT)?;
            recording.until_running()?;
            let finished = run(&mut load.command(seconds, work), LIMIT)?;
            (recording.stop()?, finished.stdout)
        }
        When::Attached => {
            let running = Running::start(&mut load.command(seconds + LONGER_S, work), LIMIT)?;
            sleep(BEFORE_ATTACH);
            let mut recording = Recording::start(options, LIMIT)?;
            recording.until_running()?;
            sleep(Duration::from_secs(seconds));
            let recorded = recording.stop()?;
            (recorded, running.finish()?.stdout)
        }
    };
    Agreement::of(&recorded.experiment()?, &load.rules(&output))
}

fn prepare(command: &mut Command, work: &Path) {
    let mut path = OsString::from("/usr/bin:/bin:/usr/sbin:/sbin:");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    command
        .env("PATH", path)
        .env("LC_ALL", "C.UTF-8")
        .env("HOME", work)
        .current_dir(work);
}
