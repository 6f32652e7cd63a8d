//! The settings that are compared: no profiler, kcollect, or one of its peers.
//!
//! A profiler is started, waited for until it records, and stopped as Ctrl-C does. It is a child of
//! this process in a process group of its own, which is killed when its value is dropped, and has a
//! directory of its own, which stays.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::ValueEnum;
use nix::time::{clock_getcpuclockid, clock_gettime};
use tempfile::TempDir;
use tests::command::Running;
use tests::experiment::files_below;
use tests::kcollect::experiment_in;

use crate::empty::Empty;
use crate::load::bench;
use crate::took::Took;

/// The size from which a file is removed as soon as it has been read, bytes.
const LARGE_FILE_BYTES: u64 = 1 << 20;

/// Maximum time that a profiler may run.
const PROFILER_LIMIT: Duration = Duration::from_secs(120);

/// The time from when a profiler has opened its events to the load, waited without a profiler too.
const SETTLE_TIME: Duration = Duration::from_millis(300);

/// How long a profiler records when it is tried out.
const TRIAL_TIME: Duration = Duration::from_millis(200);

/// Debian's name of profile.
const PROFILE: &str = "profile-bpfcc";

/// A script that mounts debugfs for lightswitch alone, where it is not mounted: it looks for
/// tracefs below it.
const WITH_DEBUGFS: &str = "test -e /sys/kernel/debug/tracing || \
    mount -t debugfs nodev /sys/kernel/debug && test -e /sys/kernel/debug/tracing/events && exec \"$@\"";

/// Debian's memleak, run with a command.
const MEMLEAK: &str = include_str!("memleak.sh");

/// A script that mounts tracefs for perf alone, where it is not mounted: perf needs it for the
/// names of its events.
const WITH_TRACEFS: &str = "test -e /sys/kernel/tracing/events || \
    mount -t tracefs nodev /sys/kernel/tracing && exec \"$@\"";

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// No profiler: what all others are compared with
    Nothing,
    /// No profiler once more: how far two equal things seem to differ here
    Again,
    /// An empty BPF program on the switch: the least that a profiler of switches can cost
    Empty,
    /// kcollect -p on -F off: 100 Hz, the kernel alone
    OnKernel,
    /// kcollect -p on -F on: with the user stacks of all that runs
    On,
    /// kcollect -p on -F =.*: the same of all processes, which can be traced
    Matched,
    /// kcollect -p on -F =.* -s on: with each wait for a lock
    Locks,
    /// kcollect -p on -F =.* -i on: with each call on a file
    Io,
    /// kcollect -p on -F =no-such-program -i on: what tracing costs the processes that are not
    /// traced
    IoOfOthers,
    /// kcollect -p on -F =.* -H on: with the blocks of allocators, within --trace-budget
    Heap,
    /// kcollect -p on -F =.* -H on --trace-budget off: with all of them, whatever it takes
    HeapAll,
    /// strace -f -c of the load: calls are counted, each stops its thread twice
    Strace,
    /// perf trace -s of the load: calls are counted; only if it is named, as those that follow
    PerfTrace,
    /// ltrace -f -c -e malloc+free of the load: each call stops its thread
    Ltrace,
    /// heaptrack of the load: each block is recorded, by a library in the process
    Heaptrack,
    /// memleak of the BPF compiler collection, of the load: blocks of libc's allocator
    Memleak,
    /// kcollect -p hi -F off: 1000 Hz
    HiKernel,
    /// kcollect -p hi -F on
    Hi,
    /// perf record -a -g -F 100: user stacks by frame pointers
    Perf,
    /// perf record -a --call-graph dwarf -F 100: a copy of each user stack
    Dwarf,
    /// perf record -a --call-graph dwarf -F 1000
    DwarfHi,
    /// perf record -a -g of every switch and wake-up
    Sched,
    /// offcputime of the BPF compiler collection, in C (libbpf-tools)
    Offcputime,
    /// profile of the BPF compiler collection, at 100 Hz: kernel and user stacks by frame pointers
    Profile,
    /// lightswitch at 101 Hz: user stacks without frame pointers, as here, of ticks on a CPU
    Lightswitch,
    /// samply record at 100 Hz, of the load alone
    Samply,
    /// gprofng collect app, of the load and what it starts alone
    Collect,
}

/// A setting that is compared.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    pub(crate) kind: Kind,
    /// Its name in the tables.
    pub(crate) name: String,
    /// The kcollect that it starts, if it starts one.
    binary: PathBuf,
    /// The directory in which it makes its directories.
    place: PathBuf,
}

/// A running profiler.
#[derive(Debug)]
pub(crate) enum Profiler {
    None,
    Program(Empty),
    /// A profiler that records only what it starts itself.
    Starter {
        kind: Kind,
        directory: PathBuf,
    },
    Process {
        kind: Kind,
        running: Running,
        directory: PathBuf,
    },
}

impl Setting {
    /// Returns the directory that stays until the end.
    pub(crate) fn place(&self) -> &Path {
        &self.place
    }

    /// Returns the settings of the wanted kinds. With another kcollect binary, its settings are
    /// added.
    pub(crate) fn all(
        kinds: &[Kind],
        binary: &Path,
        other: Option<&Path>,
        place: &Path,
    ) -> Vec<Self> {
        let setting = |kind: Kind, name: String, binary: &Path| Self {
            kind,
            name,
            binary: binary.to_owned(),
            place: place.to_owned(),
        };
        let mut settings = Vec::new();
        for &kind in Kind::value_variants() {
            if kind != Kind::Nothing && !kinds.contains(&kind) {
                continue;
            }
            let name = kind.name();
            if let (true, Some(other)) = (kind.is_kcollect(), other) {
                settings.push(setting(kind, format!("{name} (other)"), other));
            }
            settings.push(setting(kind, name, binary));
        }
        settings
    }

    /// Returns whether a failure is kcollect's own, and not a row of the table.
    pub(crate) fn must_work(&self) -> bool {
        matches!(self.kind, Kind::Nothing | Kind::Again) || self.kind.is_kcollect()
    }

    /// Describes what runs; the tables show it.
    pub(crate) fn describe(&self) -> String {
        match self.kind {
            Kind::Nothing => "no profiler: the baseline".into(),
            Kind::Again => "no profiler, measured a second time: the noise of the machine".into(),
            Kind::Empty => "an empty BPF program on tp_btf/sched_switch".into(),
            Kind::Offcputime => "offcputime, of libbpf-tools".into(),
            Kind::Profile => format!("{PROFILE} {}", args(self.kind)),
            Kind::Lightswitch => format!("lightswitch {}", args(self.kind)),
            Kind::PerfTrace => "perf trace -s COMMAND, with tracefs".into(),
            Kind::Memleak => "memleak-bpfcc -p of the load, once it watches".into(),
            Kind::Heaptrack => format!(
                "{} COMMAND: a load of one command is bound to no CPU",
                args(self.kind)
            ),
            kind if kind.is_starter() => format!(
                "{} COMMAND: it starts what it watches, so its own start and end are in the time, \
                 unless the load says its own",
                args(kind)
            ),
            kind if kind.is_perf() => format!("perf record -a {}", args(kind)),
            kind => format!("kcollect {}", args(kind)),
        }
    }

    /// Makes a new directory for what it writes.
    fn directory(&self) -> Result<PathBuf> {
        Ok(TempDir::new_in(&self.place)?.keep())
    }

    /// Starts the profiler, and waits until it records.
    pub(crate) fn start(&self) -> Result<Profiler> {
        let profiler = match self.kind {
            Kind::Nothing | Kind::Again => Profiler::None,
            Kind::Empty => Profiler::Program(Empty::attach()?),
            kind if kind.is_starter() => Profiler::Starter {
                kind,
                directory: self.directory()?,
            },
            kind => {
                let directory = self.directory()?;
                let mut command = self.command();
                command.current_dir(&directory).process_group(0);
                let mut running = Running::start(&mut command, PROFILER_LIMIT)?;
                let pid = running.pid();
                running.until("sign that it watches", || match kind {
                    kind if kind.is_kcollect() => runs(&directory),
                    Kind::Offcputime => has_open(pid.as_raw(), "bpf_link"),
                    _ => has_open(pid.as_raw(), "[perf_event]"),
                })?;
                Profiler::Process {
                    kind,
                    running,
                    directory,
                }
            }
        };
        sleep(SETTLE_TIME);
        Ok(profiler)
    }

    fn command(&self) -> Command {
        let mut command = match self.kind {
            Kind::Perf | Kind::Dwarf | Kind::DwarfHi => Command::new("perf"),
            Kind::Sched => {
                let mut command = Command::new("unshare");
                command.args(["-m", "sh", "-c", WITH_TRACEFS, "sh", "perf"]);
                command
            }
            Kind::Offcputime => Command::new("offcputime"),
            Kind::Profile => Command::new(PROFILE),
            Kind::Lightswitch => {
                let mut command = Command::new("unshare");
                command.args(["-m", "sh", "-c", WITH_DEBUGFS, "sh", "lightswitch"]);
                // Its tables of one run are there for the next, as kcollect's are.
                command.arg("--cache-dir-base").arg(&self.place);
                command
            }
            _ => {
                let mut command = Command::new(&self.binary);
                for variable in ["SUDO_UID", "SUDO_GID", "SUDO_USER"] {
                    command.env_remove(variable);
                }
                command
            }
        };
        if self.kind.is_perf() {
            command.args(["record", "-a"]);
        }
        command.args(self.kind.options());
        command
    }
}

impl Kind {
    /// Returns those that are measured unless others are named.
    pub(crate) fn by_default() -> Vec<Self> {
        let mut kinds = Self::value_variants().to_vec();
        kinds.retain(|kind| !kind.only_if_named());
        kinds
    }

    fn only_if_named(self) -> bool {
        matches!(
            self,
            Self::PerfTrace | Self::Ltrace | Self::Heaptrack | Self::Memleak
        )
    }

    /// Returns its name on the command line.
    fn name(self) -> String {
        self.to_possible_value()
            .map(|value| value.get_name().to_owned())
            .unwrap_or_default()
    }

    pub(crate) fn is_kcollect(self) -> bool {
        matches!(
            self,
            Self::OnKernel
                | Self::On
                | Self::Matched
                | Self::Locks
                | Self::Io
                | Self::IoOfOthers
                | Self::Heap
                | Self::HeapAll
                | Self::HiKernel
                | Self::Hi
        )
    }

    /// Returns whether it records only what it starts itself.
    pub(crate) fn is_starter(self) -> bool {
        matches!(self, Self::Samply | Self::Collect | Self::Strace) || self.only_if_named()
    }

    fn is_perf(self) -> bool {
        matches!(self, Self::Perf | Self::Dwarf | Self::DwarfHi | Self::Sched)
    }

    /// The arguments in which it differs from other settings of the same program.
    fn options(self) -> &'static [&'static str] {
        match self {
            Self::OnKernel => &["-p", "on", "-F", "off"],
            Self::On => &["-p", "on", "-F", "on"],
            Self::Matched => &["-p", "on", "-F", "=.*"],
            Self::Locks => &["-p", "on", "-F", "=.*", "-s", "on"],
            Self::Io => &["-p", "on", "-F", "=.*", "-i", "on"],
            Self::IoOfOthers => &["-p", "on", "-F", "=no-such-program", "-i", "on"],
            Self::Heap => &["-p", "on", "-F", "=.*", "-H", "on"],
            Self::HeapAll => &["-p", "on", "-F", "=.*", "-H", "on", "--trace-budget", "off"],
            Self::Strace => &["strace", "-f", "-c", "-o", "counts"],
            Self::PerfTrace => &[
                "unshare",
                "-m",
                "sh",
                "-c",
                WITH_TRACEFS,
                "sh",
                "perf",
                "trace",
                "-s",
                "-o",
                "counts",
            ],
            Self::Ltrace => &["ltrace", "-f", "-c", "-e", "malloc+free", "-o", "counts"],
            Self::Heaptrack => &["heaptrack", "-o", "heap"],
            Self::Memleak => &["sh", "-c", MEMLEAK, "sh"],
            Self::HiKernel => &["-p", "hi", "-F", "off"],
            Self::Hi => &["-p", "hi", "-F", "on"],
            Self::Perf => &["-g", "-F", "100"],
            Self::Dwarf => &["--call-graph", "dwarf", "-F", "100"],
            Self::DwarfHi => &["--call-graph", "dwarf", "-F", "1000"],
            Self::Sched => &["-g", "-e", "sched:sched_switch", "-e", "sched:sched_wakeup"],
            Self::Profile => &["-F", "100"],
            Self::Lightswitch => &["--sample-freq", "101", "--profile-format", "pprof"],
            Self::Samply => &[
                "samply",
                "record",
                "--save-only",
                "-r",
                "100",
                "-o",
                "profile.json",
                "--",
            ],
            Self::Collect => &["gprofng", "collect", "app", "-p", "on", "-o", "test.er"],
            Self::Nothing | Self::Again | Self::Empty | Self::Offcputime => &[],
        }
    }
}

impl Profiler {
    /// Returns a command as it is run under this profiler.
    pub(crate) fn around(&self, command: Command) -> Command {
        let Self::Starter { kind, directory } = self else {
            return command;
        };
        let [program, options @ ..] = kind.options() else {
            return command;
        };
        let mut words = vec![command.get_program()];
        words.extend(command.get_args());
        // heaptrack watches the program that it starts until that executes another, as taskset
        // does: with its option and the CPU, these are three words.
        if *kind == Kind::Heaptrack && words[0] == "taskset" {
            words.drain(..3);
        }
        let mut whole = Command::new(program);
        whole.args(options).args(words).current_dir(directory);
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => whole.env(name, value),
                None => whole.env_remove(name),
            };
        }
        whole
    }

    /// Gives it something to record: one that has recorded nothing ends with an error.
    pub(crate) fn try_out(&self) -> Result<()> {
        if let Self::Starter { kind, .. } = self {
            // The shell allocates blocks in each turn, and ltrace stops it at each one.
            let turns = match kind {
                Kind::Ltrace => 100,
                _ => 100_000,
            };
            let mut shell = Command::new("sh");
            shell.arg("-c");
            shell.arg(format!(
                "i=0; while [ $i -lt {turns} ]; do i=$((i+1)); done"
            ));
            bench(self.around(shell)).map(drop)
        } else {
            let start = Instant::now();
            while start.elapsed() < TRIAL_TIME {
                std::hint::spin_loop();
            }
            Ok(())
        }
    }

    /// Returns the CPU time of its process so far; `None` if it has none.
    pub(crate) fn cpu(&self) -> Result<Option<Duration>> {
        let Self::Process { running, .. } = self else {
            return Ok(None);
        };
        Ok(Some(
            clock_gettime(clock_getcpuclockid(running.pid())?)?.into(),
        ))
    }

    /// Ends the profiler, and returns what it took.
    pub(crate) fn stop(self) -> Result<Took> {
        match self {
            Self::None => Ok(Took::default()),
            Self::Program(program) => {
                drop(program);
                Ok(Took::default())
            }
            Self::Starter { directory, .. } => {
                let took = Took::written_in(&directory);
                took.and_then(|took| shrink(&directory).map(|()| took))
            }
            Self::Process {
                kind,
                running,
                directory,
            } => {
                let took = Took::of(kind, running, &directory);
                took.and_then(|took| shrink(&directory).map(|()| took))
            }
        }
    }
}

/// Removes large files. The rest stays until the end: ext4 examines every file that was deleted in
/// the last minute whenever one is made, and an experiment of many processes has thousands, which
/// would slow the next run down.
fn shrink(directory: &Path) -> Result<()> {
    for path in files_below(directory)? {
        let file = path.symlink_metadata()?;
        if file.is_file() && file.len() > LARGE_FILE_BYTES {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}

/// Returns the arguments that kcollect is started with.
fn args(kind: Kind) -> String {
    kind.options().join(" ")
}

/// Returns whether recording has started, by the experiment's log: its run begins paused, until the
/// unwind tables of what runs are there.
fn runs(directory: &Path) -> bool {
    experiment_in(directory)
        .and_then(|path| Ok(fs::read_to_string(path.join("log.xml"))?))
        .is_ok_and(|log| log.contains("kind=\"resume\""))
}

/// Returns whether a process has a file open whose name ends with `end`.
fn has_open(pid: i32, end: &str) -> bool {
    fs::read_dir(format!("/proc/{pid}/fd")).is_ok_and(|mut files| {
        files.any(|file| {
            file.and_then(|file| fs::read_link(file.path()))
                .is_ok_and(|target| target.to_string_lossy().ends_with(end))
        })
    })
}
