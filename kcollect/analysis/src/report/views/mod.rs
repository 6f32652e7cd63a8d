//! The views: each makes a [`Table`](super::table::Table) from a model and options.

mod blocks;
mod callers_callees;
mod calls;
mod calltree;
mod chains;
mod chosen_function;
pub mod compare;
mod context;
mod critical_path;
mod disasm;
mod exact;
mod experiments;
mod files;
mod functions;
mod headline;
mod heap;
mod lines;
mod locks;
mod samples;
mod source;
mod suffered;
mod threads;
mod triage;
mod unnamed;
mod waiting;
mod waits;

use host::exit::Failure;

use super::table::Report;
use crate::filter::Filter;
use crate::load::lines::LookupPaths;
use crate::metric::offered;
use crate::model::{GroupKind, Model};
use context::ViewContext;
pub use triage::FirstTables;

/// Maximum bytes of a program's debug information to read for a summary.
const MAX_DEBUG_BYTES: u64 = 8 << 20;

/// A way to show an experiment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum View {
    /// Where to look first.
    Triage,
    /// Functions by their time.
    Functions,
    /// Callers and callees of one function.
    CallersCallees,
    /// Functions under those that called them.
    CallTree,
    /// Load objects by the time of their functions.
    Objects,
    /// Source lines by their time.
    Lines,
    /// The source of a function's file, with the time of each line.
    Source,
    /// The instructions of a function, with the time of each.
    Disasm,
    /// Threads, by exact times where there are any.
    Threads,
    /// Processes, by exact times where there are any.
    Processes,
    /// CPUs.
    Cpus,
    /// Waits by what threads waited for, and because of whom.
    Waits,
    /// Suffered time by what the threads did that ended it.
    Chains,
    /// What the end of a process waited for.
    CriticalPath,
    /// Locks by the traced waits for them.
    Locks,
    /// Files by the traced system calls that do I/O.
    Files,
    /// Traced system calls that do I/O, by name.
    Calls,
    /// Functions by the memory that they allocated.
    Heap,
    /// Allocations of memory by the size of the block.
    Blocks,
    /// Exact times from sample to sample.
    Samples,
    /// Exact times of the whole run.
    Statistics,
    /// How the experiments were recorded.
    Header,
    /// The experiments.
    Experiments,
    /// All metrics, for everything together.
    Overview,
}

impl View {
    /// All views with their names and descriptions.
    pub const ALL: [(View, &'static str, &'static str); 24] = [
        (
            View::Triage,
            "triage",
            "where to look first: the run, its losses, processes, hot functions, waiting places; the default",
        ),
        (View::Functions, "functions", "functions by their time"),
        (
            View::CallersCallees,
            "callers-callees",
            "followed by a function: its callers and callees, with the time attributed to them",
        ),
        (
            View::CallTree,
            "calltree",
            "functions below their callers, down to --depth and --percent",
        ),
        (
            View::Objects,
            "objects",
            "load objects by the time of their functions",
        ),
        (View::Lines, "lines", "source lines by their time"),
        (
            View::Source,
            "source",
            "followed by a function: the source of its file, with the time of each line",
        ),
        (
            View::Disasm,
            "disasm",
            "followed by a function: its instructions, with the time of each",
        ),
        (
            View::Threads,
            "threads",
            "threads, by exact times if recorded and without -m",
        ),
        (View::Processes, "processes", "processes, in the same way"),
        (View::Cpus, "cpus", "CPUs"),
        (
            View::Overview,
            "overview",
            "all metrics, for everything together",
        ),
        (
            View::Waits,
            "waits",
            "waits that threads suffered: for what, where, and because of whom; with --all idle ones too",
        ),
        (
            View::Chains,
            "chains",
            "suffered time by what the threads did that ended it, and by whom those waited for; the waker of a lock is who released it, perhaps not who held it all the time",
        ),
        (
            View::CriticalPath,
            "critical-path",
            "what the end of a process (--process; else the load) waited for, back to its start",
        ),
        (
            View::Locks,
            "locks",
            "locks by the time that threads waited for them, if recorded with -s",
        ),
        (
            View::Files,
            "files",
            "files by the time that was spent on their reads, writes and other calls, if recorded with -i",
        ),
        (View::Calls, "calls", "these calls by name, in the same way"),
        (
            View::Heap,
            "heap",
            "functions by the memory that they, and what they call, allocated and that was not freed, if recorded with -H",
        ),
        (
            View::Blocks,
            "blocks",
            "allocations by size, with how long ago those were made that were not freed, in the same way",
        ),
        (
            View::Samples,
            "samples",
            "exact times from sample to sample",
        ),
        (
            View::Statistics,
            "statistics",
            "exact times of the whole run",
        ),
        (
            View::Header,
            "header",
            "how it was recorded, and what was lost",
        ),
        (
            View::Experiments,
            "experiments",
            "the experiments, with their numbers in gprofng",
        ),
    ];

    /// Returns the view of a name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<View> {
        let mut all = View::ALL.iter();
        all.find(|(_, own, _)| *own == name).map(|(view, ..)| *view)
    }

    /// Returns whether it needs [`crate::load::lines::add`].
    #[must_use]
    pub fn wants_lines(self) -> bool {
        matches!(self, View::Lines | View::Source | View::Disasm)
    }

    /// Returns whether it shows one function, [`TableOptions::function`].
    #[must_use]
    pub fn wants_function(self) -> bool {
        matches!(self, View::CallersCallees | View::Source | View::Disasm)
    }

    /// Returns its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        let mut all = View::ALL.iter();
        all.find(|(view, ..)| *view == self)
            .map_or("", |(_, name, _)| name)
    }
}

/// How a view's table is made.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TableOptions {
    /// The ticks that count.
    pub filter: Filter,
    /// The metrics as typed. None: the view's default.
    pub metrics: Option<String>,
    /// The sort order as typed. None: by the first metric.
    pub sort: Option<String>,
    /// Maximum number of rows in addition to `<Total>`. None: all.
    pub limit: Option<usize>,
    /// The function to show, as typed: its name or symbol, either with a load object after it, or a
    /// regular expression that matches one function.
    pub function: Option<String>,
    /// For processes: the kind of groups that have a row each, instead of processes.
    pub by: Option<GroupKind>,
    /// For functions: whether to show load objects with nameless functions, and what to install.
    pub unnamed: bool,
    /// For waits: whether to show those too that nobody suffered.
    pub all: bool,
    /// Where source and debug files are looked for.
    pub lookup: LookupPaths,
    /// Depth of the call tree: 1 is the outermost function of each thread. None: to its leaves.
    pub depth: Option<usize>,
    /// Branches of the call tree with less than this share of the whole, in millionths, are left
    /// out.
    pub min_ppm: Option<u32>,
}

/// Makes the report of a view.
///
/// # Errors
/// When a metric is unknown or has no data, or the view cannot be made.
pub fn make(model: &Model, view: View, options: &TableOptions) -> Result<Report, Failure> {
    let context = ViewContext {
        model,
        options,
        offered: offered(model),
    };
    let table = match view {
        View::Triage => return triage::page(&context).map(Report::Page),
        View::CriticalPath => return critical_path::page(&context).map(Report::Page),
        View::Chains => chains::chains(&context),
        View::Functions if options.unnamed => unnamed::unnamed(&context),
        View::Functions => functions::functions(&context),
        View::CallersCallees => callers_callees::callers_callees(&context),
        View::CallTree => calltree::calltree(&context),
        View::Objects => functions::objects(&context),
        View::Lines => lines::lines(&context),
        View::Source => source::source(&context),
        View::Disasm => disasm::disassembly(&context),
        View::Threads => threads::threads(&context),
        View::Processes => threads::processes(&context),
        View::Cpus => threads::cpus(&context),
        View::Overview => experiments::overview(&context),
        View::Waits => waits::table(&context),
        View::Locks => locks::locks(&context),
        View::Files => files::files(&context),
        View::Calls => calls::calls(&context),
        View::Heap => heap::heap(&context),
        View::Blocks => blocks::blocks(&context),
        View::Samples => samples::samples(&context),
        View::Statistics => samples::statistics(&context),
        View::Header => Ok(experiments::header(model)),
        View::Experiments => Ok(experiments::experiments(model)),
    };
    table.map(Report::Table)
}

/// Makes what the summary of a recording shows: sentences that say where to look first, and tables
/// of processes, hot functions, and places where threads waited. Tables without rows are left out.
/// Waits are attributed to inlined functions only in programs with little debug information: the
/// recorder has no memory for more.
///
/// # Errors
/// When exact times cannot be read.
pub fn first_tables(model: &Model) -> Result<FirstTables, Failure> {
    let lookup = LookupPaths {
        max_debug_bytes: Some(MAX_DEBUG_BYTES),
        ..LookupPaths::default()
    };
    let options = TableOptions {
        lookup,
        ..TableOptions::default()
    };
    let context = ViewContext {
        model,
        options: &options,
        offered: offered(model),
    };
    triage::first_tables(&context, &context.totals())
}
