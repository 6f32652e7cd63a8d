//! The command line as typed: one field for each option, its value still text; and the text of
//! `--help`.
//!
//! Values stay text at this step so that their errors have kcollect's form and a hint: `values`
//! parses one value, [`super::command`] checks all of them together.
//!
//! An option with a value takes the next argument, even if it begins with a hyphen, as getopt does:
//! `-p -5` is then a negative interval, which has an error of its own, and `-C "-O3 build"` is a
//! comment.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{ArgAction, Args, CommandFactory, Parser, Subcommand};
use host::exit::ExitKind;

use super::pictures::{ExportArgs, FlameArgs};
use super::report::ReportArgs;
use super::track::{StatArgs, TrackArgs};
use super::view::ViewArgs;

const ABOUT: &str = "\
Profiles the whole machine. For every thread it records where the time went: on a CPU in user mode or in the kernel, \
waiting for a CPU, for a lock or for a page, asleep or stopped, each with the call stack from the thread's first \
function down into the kernel. It records until Ctrl-C, until the time of -t is over, or until LOAD has exited, and \
then prints a summary.

The record is an experiment, the directory ktest.1.er (then ktest.2.er, and so on). `kcollect report`, `view`, `flame` \
and `export` read it, and so does `gprofng display text`: on any machine, without privilege, also while it is being \
written. Recording needs root; `kcollect doctor` checks what this machine permits.

LOAD begins at the first argument that is neither an option nor an option's value. Write -- before a load that begins \
with a hyphen or has the name of a command.";

/// The arguments of `kcollect`.
#[derive(Debug, Default, PartialEq, Eq, Parser)]
#[command(
    name = "kcollect",
    bin_name = "kcollect",
    about = ABOUT,
    override_usage = "kcollect [OPTIONS] [LOAD [ARGUMENT...]]\n       kcollect report [EXPERIMENT...] [VIEW] [OPTIONS]\n       kcollect view [EXPERIMENT...] [-o FILE | --serve [PORT]]\n       kcollect flame [EXPERIMENT...] [OPTIONS]\n       kcollect export [EXPERIMENT...] --to FORMAT [OPTIONS]\n       kcollect list [DIRECTORY...] [--json]\n       kcollect pack EXPERIMENT... [-o FILE]\n       kcollect unpack FILE... [-d DIRECTORY]\n       kcollect track [OPTIONS] -p PID | COMMAND [ARGUMENT...]\n       kcollect stat [OPTIONS]\n       kcollect doctor [--json]",
    help_template = "{about-with-newline}\n{usage-heading} {usage}\n\n{all-args}{after-help}",
    disable_help_flag = true,
    disable_version_flag = true,
    disable_help_subcommand = true,
    args_conflicts_with_subcommands = true,
    next_line_help = true
)]
pub struct Arguments {
    #[command(subcommand)]
    pub(super) sub: Option<Sub>,
    /// The command to run while recording, found along PATH. Its exit status becomes kcollect's
    #[arg(value_name = "LOAD", trailing_var_arg = true)]
    pub(super) load: Vec<OsString>,
    #[command(flatten, next_help_heading = "What is recorded")]
    pub(super) data: DataArgs,
    #[command(flatten, next_help_heading = "When")]
    pub(super) time: TimeArgs,
    #[command(flatten, next_help_heading = "The experiment")]
    pub(super) experiment: ExperimentArgs,
    #[command(flatten, next_help_heading = "Output and help")]
    pub(super) output: OutputArgs,
}

#[derive(Debug, PartialEq, Eq, Subcommand)]
pub(super) enum Sub {
    /// Checks what this machine permits, and names the hint for what it does not permit
    Doctor {
        /// Print the findings as JSON
        #[arg(long)]
        json: bool,
    },
    /// Shows where time went, by function, load object, thread, process or CPU
    Report(Box<ReportArgs>),
    /// Draws a page for a browser: the timeline of every thread, a flame graph of what is selected,
    /// the processes
    View(ViewArgs),
    /// Draws a flame graph of where time went
    Flame(Box<FlameArgs>),
    /// Writes an experiment as folded stacks, or for pprof, the Firefox Profiler, Perfetto or
    /// speedscope
    Export(Box<ExportArgs>),
    /// Lists the experiments of a directory: when each began, how long it is, its size
    List {
        /// The directories; the default is the current one
        #[arg(value_name = "DIRECTORY")]
        directories: Vec<PathBuf>,
        /// Print the list as JSON
        #[arg(long)]
        json: bool,
    },
    /// Packs an experiment into one file, to be kept or carried away. All commands read it as it is
    #[command(alias = "archive")]
    Pack {
        /// The experiments, which are left as they are
        #[arg(value_name = "EXPERIMENT", required = true)]
        experiments: Vec<PathBuf>,
        /// The file, whose name ends in .er.zst; the default is the experiment's name with .zst, in
        /// the current directory
        #[arg(short = 'o', long, value_name = "FILE", allow_hyphen_values = true)]
        output: Option<PathBuf>,
    },
    /// Unpacks experiments, for gprofng
    Unpack {
        /// The files
        #[arg(value_name = "EXPERIMENT.zst", required = true)]
        files: Vec<PathBuf>,
        /// The existing directory in which they are unpacked; the default is the current one
        #[arg(
            short = 'd',
            long,
            value_name = "DIRECTORY",
            allow_hyphen_values = true
        )]
        directory: Option<PathBuf>,
    },
    /// Counts events of a process or of a command, by thread: page faults, context switches, and
    /// what else this machine counts
    Track(Box<TrackArgs>),
    /// Counts events by CPU
    Stat(Box<StatArgs>),
}

#[derive(Debug, Default, PartialEq, Eq, Args)]
pub(super) struct DataArgs {
    /// The time between two ticks: on (10.007 ms, the default), lo or low (100.003 ms), hi or high
    /// (997 us), or a number of milliseconds (suffix m: milliseconds, u: microseconds). The minimum
    /// is 100 us, or what kernel.perf_event_max_sample_rate permits; a shorter interval is raised
    /// to it. The maximum is 1 s
    #[arg(short = 'p', long, value_name = "INTERVAL", allow_hyphen_values = true)]
    pub(super) interval: Option<String>,
    /// Record counters of the hardware and events of the kernel when they overflow:
    /// NAME[~ATTRIBUTE=N][,INTERVAL], separated by commas, or on, hi, lo for cycles and
    /// instructions. INTERVAL is on, hi, lo, or a number of events. Names are gprofng's or perf's.
    /// -h alone lists what this machine can count
    #[arg(short = 'h', long, value_name = "COUNTER[,INTERVAL]", num_args = 0..=1, action = ArgAction::Append)]
    pub(super) counters: Option<Vec<String>>,
    /// Follow processes into their user code, each into a subexperiment of its own: on (processes
    /// that were on a CPU at a tick, the default), all (also processes that only waited), load (the
    /// load alone; the default with -s, -i and -H), off (the kernel only), =REGEXP, which has to
    /// match the whole of a process's name, of its program's file name, or of its number; or those
    /// that belong together: unit:NAME (of systemd), container:ID, cgroup:PATH, pod:UID (of
    /// Kubernetes) or user:NAME
    #[arg(short = 'F', long, value_name = "WHICH", allow_hyphen_values = true)]
    pub(super) follow: Option<String>,
    /// Follow also the processes that a followed process forks
    #[arg(long)]
    pub(super) descendants: bool,
    /// Follow this running process, and give it, or this thread of it, a row of its own in the
    /// summary. The whole machine is recorded in any case. 0/TID is a thread of the kernel. May be
    /// repeated
    #[arg(
        short = 'T',
        long,
        value_name = "PID[/TID]",
        allow_hyphen_values = true
    )]
    pub(super) target: Vec<String>,
    /// Record each wait for a lock of the followed processes, with its stack: on or calibrate
    /// (waits longer than taking a free lock, which is measured), MICROSECONDS (waits of at least
    /// this time), all, or off (the default). A lock is a futex: the locks of C, C++, Rust and Go,
    /// also condition variables, joins and semaphores. Name the processes by a load, -T or -F
    /// =REGEXP; with -F on or all it is an error
    #[arg(
        short = 's',
        long,
        value_name = "on|off|all|MICROSECONDS",
        allow_hyphen_values = true
    )]
    pub(super) sync: Option<String>,
    /// Record each system call of the followed processes that does I/O, with its file, bytes, time
    /// and stack: on or off (the default). While it is on, every system call of every process takes
    /// 0.1 to 0.2 us longer. Name the processes as for -s
    #[arg(short = 'i', long, value_name = "on|off", allow_hyphen_values = true)]
    pub(super) io: Option<String>,
    /// Record the memory that the followed processes allocate and free, with stacks. on: the
    /// blocks of their allocators (malloc and the like, probed from outside), of which one byte in
    /// 524288 is sampled; BYTES: one byte in that many; all: each block. growth: what a process
    /// gets from the kernel and gives back (mmap, munmap, mremap, mprotect, brk), which costs other
    /// processes what -i does. off (the default): nothing. Name the processes as for -s
    #[arg(
        short = 'H',
        long,
        value_name = "on|off|all|BYTES|growth",
        allow_hyphen_values = true
    )]
    pub(super) heap: Option<String>,
    /// What the probes of -H on may take of a process, as a share of its own CPU time: 2% unless
    /// something else is typed. If they take more, the process is not probed for some time, and the
    /// experiment says so. off: any (the default with -H all)
    #[arg(long, value_name = "PERCENT|off", allow_hyphen_values = true)]
    pub(super) trace_budget: Option<String>,
    /// Watch what wakes each thread, for the cause of each wait: on, or off (the default). Without
    /// it, a wait has a cause where the waiting thread's own state says it
    #[arg(short = 'W', long, value_name = "on|off", allow_hyphen_values = true)]
    pub(super) wakers: Option<String>,
    /// Leave out the ticks of idle CPUs: on (the default) or off. With off, the ticks add up to the
    /// time of all CPUs
    #[arg(short = 'x', long, value_name = "on|off", allow_hyphen_values = true)]
    pub(super) skip_idle: Option<String>,
    /// Record a sample of resource usage: on (every second, the default), off, or every SECONDS
    #[arg(
        short = 'S',
        long,
        value_name = "on|off|SECONDS",
        allow_hyphen_values = true
    )]
    pub(super) sample: Option<String>,
    /// Record a sample also when kcollect receives this signal: a name, with or without SIG, or a
    /// number
    #[arg(short = 'l', long, value_name = "SIGNAL", allow_hyphen_values = true)]
    pub(super) sample_signal: Option<String>,
}

#[derive(Debug, Default, PartialEq, Eq, Args)]
pub(super) struct TimeArgs {
    /// End after this time, in seconds (suffix s), minutes (m), hours (h) or days (d). With A-B,
    /// data are recorded from A to B; with A-0, from A on. The load is left running
    #[arg(short = 't', long, value_name = "TIME|A-B", allow_hyphen_values = true)]
    pub(super) time: Option<String>,
    /// Record for this time before the load starts, and again after it has exited; the default is 0
    #[arg(short = 'q', long, value_name = "SECONDS", allow_hyphen_values = true)]
    pub(super) quiet_time: Option<String>,
    /// Pause and resume when kcollect receives this signal. Recording starts paused, or at once
    /// with ,r. Samples are always recorded
    #[arg(
        short = 'y',
        long,
        value_name = "SIGNAL[,r]",
        allow_hyphen_values = true
    )]
    pub(super) pause_signal: Option<String>,
    /// Stop recording data at about this many MiB (1048576 bytes), while samples continue. The
    /// default is unlimited, also called none
    #[arg(short = 'L', long, value_name = "MIB", allow_hyphen_values = true)]
    pub(super) limit: Option<String>,
    /// Close the experiment after this time and continue in the next one (ktest.2.er after
    /// ktest.1.er), without a gap: 10m, 1h, at least 1 s. -L is of each of them
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub(super) rotate: Option<String>,
    /// With --rotate, remove the oldest experiments of the series when those that are complete take
    /// more than this space (500M, 20G) or are older than this (12h, 7d). One that is being read
    /// stays
    #[arg(long, value_name = "SIZE|TIME", allow_hyphen_values = true)]
    pub(super) keep: Option<String>,
    /// With --rotate, pack each experiment in its directory once it is complete, at a quarter of
    /// --budget, or else 5 % of one CPU. Its data take a fifth of the space. kcollect reads it as
    /// before; kcollect unpack makes it one for gprofng
    #[arg(long)]
    pub(super) pack: bool,
    /// When kcollect's own process takes more than this share of one CPU (1%, 0.5%) for five
    /// seconds, reduce detail, one step after the other: copies of stacks, experiments of short
    /// processes, half and then three quarters of the ticks' stacks. A step is restored after a
    /// minute below half of the budget. The experiment says what was reduced, and when
    #[arg(long, value_name = "PERCENT", allow_hyphen_values = true)]
    pub(super) budget: Option<String>,
}

#[derive(Debug, Default, PartialEq, Eq, Args)]
pub(super) struct ExperimentArgs {
    /// The name, which ends in .er; the default is ktest.1.er. If NAME.N.er is in use, N becomes
    /// one more than the largest in use
    #[arg(short = 'o', long, value_name = "NAME.er", allow_hyphen_values = true)]
    pub(super) experiment: Option<PathBuf>,
    /// The existing directory in which the experiment is made; the default is the current one
    #[arg(
        short = 'd',
        long,
        value_name = "DIRECTORY",
        allow_hyphen_values = true
    )]
    pub(super) directory: Option<PathBuf>,
    /// Add the experiment to this group, a file that is created if it does not exist. The
    /// experiment's name is then NAME.1.er by default
    #[arg(short = 'g', long, value_name = "NAME.erg", allow_hyphen_values = true)]
    pub(super) group: Option<PathBuf>,
    /// What is copied into the experiment: on (load objects of the kernel and of followed
    /// processes, and their JIT code; the default), off, usedldobjects (load objects that the data
    /// refer to), src or all (load objects and all their sources), usedsrc (load objects, and
    /// sources that the data refer to); ldobjects and copy mean on
    #[arg(short = 'A', long, value_name = "WHAT", allow_hyphen_values = true)]
    pub(super) archive: Option<String>,
    /// Add a comment to the experiment's notes; up to ten
    #[arg(short = 'C', long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(super) comment: Vec<String>,
}

#[derive(Debug, Default, PartialEq, Eq, Args)]
pub(super) struct OutputArgs {
    /// Take options from this file too: lines like rotate = "10m", each key the long name of an
    /// option. What is typed has precedence
    #[arg(long, value_name = "FILE", allow_hyphen_values = true)]
    pub(super) config: Option<PathBuf>,
    /// Append kcollect's own output to this file, errors included. The load's output is not
    /// affected
    #[arg(short = 'O', long, value_name = "FILE", allow_hyphen_values = true)]
    pub(super) outfile: Option<PathBuf>,
    /// Print the summary as JSON
    #[arg(long)]
    pub(super) json: bool,
    /// Print what would be recorded, and record nothing; implies -v
    #[arg(short = 'n', long)]
    pub(super) dry_run: bool,
    /// Print more messages
    #[arg(short = 'v', long)]
    pub(super) verbose: bool,
    /// Print the version
    #[arg(short = 'V', long)]
    pub(super) version: bool,
    /// Print this help
    #[arg(long, global = true, action = ArgAction::HelpShort)]
    help: Option<bool>,
}

/// Returns the command for clap, with the parts of the help that are made from other tables.
/// `width` is the terminal's, in columns.
#[must_use]
pub fn command(width: Option<u16>) -> clap::Command {
    Arguments::command()
        .term_width(usize::from(width.unwrap_or(100)).clamp(40, 120))
        .after_help(after_help())
}

const EXAMPLES: &str = "\
Examples:
  kcollect doctor                     does this machine permit it?
  sudo kcollect -p on                 the whole machine, until Ctrl-C
  sudo kcollect -p on make -j4        while a load runs
  sudo kcollect -p hi -t 30           30 seconds at 1000 Hz
  sudo kcollect -t 5m -x off -S 10    5 min with idle time, samples every 10 s
  sudo kcollect -F =nginx             follow only nginx into its user code
  sudo kcollect -T 1264 -t 10         with a row for one process
  sudo kcollect -s on -T 1264 -t 10   with each of its waits for locks
  sudo kcollect -i on ./program       with each of its reads and writes
  kcollect report                     where to look first in ktest.N.er
  kcollect report ktest.1.er threads  exact times of every thread
  kcollect view                       a page with a timeline, for a browser
  kcollect flame --all                a flame graph of all states
  kcollect export --to firefox        for profiler.firefox.com
  kcollect list /var/profiles         which experiments are there?
  kcollect report --at 03:10-03:15    what happened then, of all that is here
  kcollect pack ktest.1.er            one file, to be kept or carried away
  kcollect track make                 faults and switches of each thread
  sudo kcollect stat -p 1             the same of each CPU, every second
";

const FILES: &str = "\
Files:
  ktest.N.er    the experiment, readable while it is written
  /proc/sys/kernel/perf_event_max_sample_rate
                limits how short the interval can be

See also:
  kcollect COMMAND --help: the options of a command
  gprofng(1), gp-display-text(1), perf-record(1), sysexits(3)";

fn after_help() -> String {
    use std::fmt::Write as _;
    let mut text = String::from(EXAMPLES);
    text.push_str("\nExit status:\n");
    for kind in ExitKind::ALL {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  {:<4}{}", kind.code(), kind.meaning());
    }
    text.push_str("  If none of these applies, the status is the load's: its exit status, 126 (it\n  cannot be executed), 127 (not found), or 128 plus the number of a signal\n\n");
    text.push_str(FILES);
    text
}
