//! What was typed: one field for each option, its text not understood yet.
//!
//! The text of `--help` is here and nowhere else. Values stay text at this step because their
//! errors are ours to word: `values` understands one value, [`super::plan`] all of them together.
//!
//! An option that takes a value takes the next word, whatever that word begins with, as getopt
//! does: `-p -5` is then a negative interval, which has an error of its own, and `-C "-O3 build"` a
//! comment.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{ArgAction, Args, CommandFactory, Parser, Subcommand};
use host::exit::ExitKind;

use super::pictures::{Export, Flame};
use super::report::Report;
use super::track::{Stat, Track};
use super::view::View;

/// The words after `kcollect`.
#[derive(Debug, Default, PartialEq, Eq, Parser)]
#[command(
    name = "kcollect",
    bin_name = "kcollect",
    about = "Records where the time of the CPUs goes: every tick of every CPU, with the kernel's call stack or the \
             process that ran, on the whole machine, until Ctrl-C, until the time given by -t is over, or until the \
             load command has ended. The record is an experiment, the directory ktest.1.er (then \
             ktest.2.er, and so on), which `gprofng display text` opens, now or while it is being written. A summary \
             is printed at the end.\n\n\
             Everything from the first word that is neither an option nor an option's value belongs to the load \
             command. `--` before it separates them where they could be confused.",
    override_usage = "kcollect [OPTIONS] [LOAD [ARGUMENT...]]\n       kcollect report [EXPERIMENT...] [VIEW] [OPTIONS]\n       kcollect view [EXPERIMENT] [-o FILE | --serve [PORT]]\n       kcollect flame [EXPERIMENT...] [OPTIONS]\n       kcollect export [EXPERIMENT...] --to FORMAT [OPTIONS]\n       kcollect track [OPTIONS] -p PID | COMMAND [ARGUMENT...]\n       kcollect stat [OPTIONS]\n       kcollect doctor [--json]",
    help_template = "{about-with-newline}\n{usage-heading} {usage}\n\n{all-args}{after-help}",
    disable_help_flag = true,
    disable_version_flag = true,
    disable_help_subcommand = true,
    args_conflicts_with_subcommands = true,
    next_line_help = true
)]
pub struct Typed {
    #[command(subcommand)]
    pub(super) sub: Option<Sub>,
    /// The command to run while recording, looked up along PATH. Its exit status becomes kcollect's
    #[arg(value_name = "LOAD", trailing_var_arg = true)]
    pub(super) load: Vec<OsString>,
    #[command(flatten, next_help_heading = "What is recorded")]
    pub(super) what: What,
    #[command(flatten, next_help_heading = "When")]
    pub(super) when: When,
    #[command(flatten, next_help_heading = "The experiment")]
    pub(super) experiment: Experiment,
    #[command(flatten, next_help_heading = "Output and help")]
    pub(super) output: Output,
}

#[derive(Debug, PartialEq, Eq, Subcommand)]
pub(super) enum Sub {
    /// Checks what this machine permits, and names the cure for what it does not (a load called
    /// doctor goes after --)
    Doctor {
        /// For machines instead of people
        #[arg(long)]
        json: bool,
    },
    /// Shows where time went, by function, load object, thread, process or CPU; needs no privilege
    /// (a load called report goes after --)
    Report(Box<Report>),
    /// Draws a page for a browser: the timeline of every thread, a flame graph of what is selected,
    /// the processes (a load called view goes after --)
    View(View),
    /// Draws a flame graph of where time went; needs no privilege (a load called flame goes after
    /// --)
    Flame(Box<Flame>),
    /// Writes an experiment as folded stacks, or for pprof, the Firefox Profiler, Perfetto or
    /// speedscope; needs no privilege (a load called export goes after --)
    Export(Box<Export>),
    /// Counts events of a process or of a command, by thread: page faults, context switches, and
    /// what else this machine counts (a load called track goes after --)
    Track(Box<Track>),
    /// Counts events by CPU (a load called stat goes after --)
    Stat(Box<Stat>),
}

#[derive(Debug, Default, PartialEq, Eq, Args)]
pub(super) struct What {
    /// Clock interval: on (10.007 ms, the default), lo or low (100.003 ms), hi or high (997 us), or
    /// a number of milliseconds (suffix u: microseconds, m: milliseconds). At least 100 us, or what
    /// kernel.perf_event_max_sample_rate permits: less is raised to it. At most 1 s. off or 0: no
    /// clock profiling
    #[arg(short = 'p', long, value_name = "INTERVAL", allow_hyphen_values = true)]
    pub(super) interval: Option<String>,
    /// Hardware counters, and events of the kernel: NAME[~ATTRIBUTE=N][,INTERVAL], joined by
    /// commas, or on, hi, lo for cycles and instructions. INTERVAL: on, hi, lo, or after how many
    /// events. Names as gprofng or perf writes them. Alone: lists what this machine can count
    #[arg(short = 'h', long, value_name = "COUNTER[,INTERVAL]", num_args = 0..=1, action = ArgAction::Append)]
    pub(super) counters: Option<Vec<String>>,
    /// Follow processes into their user code, each in an experiment of its own inside: on (those
    /// that were on a CPU at a tick, the default), all (also those that only waited), off (the
    /// kernel only), or =REGEXP, which has to match the whole of a name, of the program's file name
    /// or of the number
    #[arg(short = 'F', long, value_name = "WHICH", allow_hyphen_values = true)]
    pub(super) follow: Option<String>,
    /// Follow what a followed process forks too
    #[arg(long)]
    pub(super) descendants: bool,
    /// Follow this process, count it apart, or this thread of it, and show it whatever its rank;
    /// the whole machine is recorded all the same. It exists already. 0/TID is a thread of the
    /// kernel. May be repeated
    #[arg(
        short = 'T',
        long,
        value_name = "PID[/TID]",
        allow_hyphen_values = true
    )]
    pub(super) target: Vec<String>,
    /// Leave idle CPUs out: on (the default) or off; with off all CPU time adds up
    #[arg(short = 'x', long, value_name = "on|off", allow_hyphen_values = true)]
    pub(super) skip_idle: Option<String>,
    /// Sample resource usage: on (every second, the default), off, or every SECONDS
    #[arg(
        short = 'S',
        long,
        value_name = "on|off|SECONDS",
        allow_hyphen_values = true
    )]
    pub(super) sample: Option<String>,
    /// This signal to kcollect records a sample too: a name, with or without SIG, or a number
    #[arg(short = 'l', long, value_name = "SIGNAL", allow_hyphen_values = true)]
    pub(super) sample_signal: Option<String>,
}

#[derive(Debug, Default, PartialEq, Eq, Args)]
pub(super) struct When {
    /// End after this time, in seconds (suffix s) or minutes (suffix m). A-B: paused until A, ends
    /// at B; A-0: no end. The load is left running
    #[arg(short = 't', long, value_name = "TIME|A-B", allow_hyphen_values = true)]
    pub(super) time: Option<String>,
    /// Record this long before the load starts, and again after it has ended; the default is 0
    #[arg(short = 'q', long, value_name = "SECONDS", allow_hyphen_values = true)]
    pub(super) quiet_time: Option<String>,
    /// This signal to kcollect pauses and resumes. Recording begins paused, or with ,r at once.
    /// Samples are always recorded
    #[arg(
        short = 'y',
        long,
        value_name = "SIGNAL[,r]",
        allow_hyphen_values = true
    )]
    pub(super) pause_signal: Option<String>,
    /// Data stop at this many MB (1048576 bytes), about; samples go on. The default is unlimited,
    /// also called none
    #[arg(short = 'L', long, value_name = "MB", allow_hyphen_values = true)]
    pub(super) limit: Option<String>,
}

#[derive(Debug, Default, PartialEq, Eq, Args)]
pub(super) struct Experiment {
    /// Its name, which ends in .er; the default is ktest.1.er. Where NAME.N.er is in use, N is
    /// raised to one more than the largest there
    #[arg(short = 'o', long, value_name = "NAME.er", allow_hyphen_values = true)]
    pub(super) experiment: Option<PathBuf>,
    /// The directory it is made in, which exists; the default is the current one
    #[arg(
        short = 'd',
        long,
        value_name = "DIRECTORY",
        allow_hyphen_values = true
    )]
    pub(super) directory: Option<PathBuf>,
    /// Add it to this group, a file that is made if need be. It also gives the experiment its name:
    /// NAME.1.er
    #[arg(short = 'g', long, value_name = "NAME.erg", allow_hyphen_values = true)]
    pub(super) group: Option<PathBuf>,
    /// What is copied into it: on (load objects of the kernel and of followed processes, the
    /// default), off, usedldobjects (those the data refer to), src or all (on, and all sources),
    /// usedsrc (on, and sources the data refer to); ldobjects and copy mean on
    #[arg(short = 'A', long, value_name = "WHAT", allow_hyphen_values = true)]
    pub(super) archive: Option<String>,
    /// A comment for its notes; up to ten
    #[arg(short = 'C', long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(super) comment: Vec<String>,
}

#[derive(Debug, Default, PartialEq, Eq, Args)]
pub(super) struct Output {
    /// Append kcollect's own output to this file, errors included; the load's is left alone
    #[arg(short = 'O', long, value_name = "FILE", allow_hyphen_values = true)]
    pub(super) outfile: Option<PathBuf>,
    /// Print the summary for machines instead of people
    #[arg(long)]
    pub(super) json: bool,
    /// Say what would be recorded, and record nothing; implies -v
    #[arg(short = 'n', long)]
    pub(super) dry_run: bool,
    /// Say more
    #[arg(short = 'v', long)]
    pub(super) verbose: bool,
    /// Print the version
    #[arg(short = 'V', long)]
    pub(super) version: bool,
    /// Print this help
    #[arg(long, global = true, action = ArgAction::HelpShort)]
    help: Option<bool>,
}

/// The command as clap knows it, with the parts of the help that are made from other tables.
/// `width` is in columns.
#[must_use]
pub fn command(width: Option<u16>) -> clap::Command {
    Typed::command()
        .term_width(usize::from(width.unwrap_or(100)).clamp(40, 120))
        .after_help(after_help())
}

const EXAMPLES: &str = "\
Examples:
  sudo kcollect -p on                 the whole machine, until Ctrl-C
  sudo kcollect -p on make -j4        while a load runs
  sudo kcollect -p hi -t 30           30 seconds at 1000 Hz
  sudo kcollect -t 5m -x off -S 10    5 minutes with idle time, a sample every 10 seconds
  sudo kcollect -F =nginx             follow nginx alone into its user code
  sudo kcollect -T 1264 -t 10         with a line of its own for one process
  kcollect doctor                     does this machine permit it?
  kcollect report                     where to look first in ktest.N.er
  kcollect report ktest.1.er threads  exact times of the threads of an experiment
  kcollect flame --all                a flame graph of all states
  kcollect export --to firefox        for profiler.firefox.com
  kcollect track make                 faults and switches of each thread
  sudo kcollect stat -p 1             the same of each CPU, every second
";

const FILES: &str = "\
Files:
  ktest.N.er    the experiment, readable while it is written
  /proc/sys/kernel/perf_event_max_sample_rate
                limits how short the interval can be

See also:
  gprofng(1), gp-display-text(1), perf-record(1), sysexits(3)";

fn after_help() -> String {
    use std::fmt::Write as _;
    let mut text = String::from(EXAMPLES);
    text.push_str("\nExit status:\n");
    for kind in ExitKind::ALL {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  {:<4}{}", kind.code(), kind.meaning());
    }
    text.push_str("  Else the load's own: its status, or 126 (cannot be run), 127 (not found),\n  128 and the number of the signal that ended it\n\n");
    text.push_str(FILES);
    text
}
