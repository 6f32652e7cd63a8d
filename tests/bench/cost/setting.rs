//! What watches the machine: nothing, kcollect, or one of its peers.
//!
//! A profiler is started, waited for until it does watch, and stopped as Ctrl-C does. It is a process of this one's, in
//! a group of its own and with a directory of its own; both go with the value that stands for it.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use nix::sys::resource::UsageWho;
use nix::sys::signal::Signal;
use nix::time::{clock_getcpuclockid, clock_gettime};
use serde::Deserialize;
use tempfile::TempDir;
use tests::command::{Finished, Running};
use tests::kcollect::experiment_in;
use tests::perf_losses::lost_events;

use crate::empty::Empty;
use crate::load::cpu_time;

/// The longest that a profiler may live.
const LIMIT: Duration = Duration::from_secs(120);

/// From when a profiler has opened what it watches with, to the load. With nothing running as well.
const SETTLE: Duration = Duration::from_millis(300);

/// perf needs tracefs for the names of its events. Where it is not mounted it is, for perf alone.
const WITH_TRACEFS: &str = "test -e /sys/kernel/tracing/events || \
    mount -t tracefs nodev /sys/kernel/tracing && exec \"$@\"";

const SWITCHES: [&str; 4] = ["-e", "sched:sched_switch", "-e", "sched:sched_wakeup"];

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// No profiler: what all others are compared with
    Nothing,
    /// No profiler once more: how far two equal things seem to differ here
    Again,
    /// An empty BPF program on the switch: the least that a profiler of switches can cost
    Empty,
    /// kcollect -p on (100 Hz)
    On,
    /// kcollect -p hi (1000 Hz)
    Hi,
    /// perf record -a -g -F 100
    Perf,
    /// perf record -a -g of every switch and wake-up
    Sched,
    /// offcputime of the BPF compiler collection, in C (libbpf-tools)
    Offcputime,
}

/// One of the things compared.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    pub(crate) kind: Kind,
    /// How it is called in the tables.
    pub(crate) name: String,
    /// The kcollect it starts, if it does.
    binary: PathBuf,
}

/// A profiler that watches.
#[derive(Debug)]
pub(crate) enum Profiler {
    None,
    Program(Empty),
    Process {
        kind: Kind,
        running: Running,
        directory: TempDir,
    },
}

/// What a profiler took, from its start to its end.
#[derive(Clone, Debug, Default)]
pub(crate) struct Took {
    /// CPU time of its process, seconds. What its hooks take of others is not in it: that is what the loads show.
    pub(crate) cpu_s: Option<f64>,
    /// What it wrote: an experiment, `perf.data`, or the text that it printed.
    pub(crate) bytes: Option<u64>,
    /// What it says that it did not record: ticks, threads, events.
    pub(crate) lost: Option<u64>,
    pub(crate) own: Option<Own>,
}

/// What kcollect says of itself.
#[derive(Clone, Debug)]
pub(crate) struct Own {
    pub(crate) ticks: u64,
    pub(crate) packets: u64,
    pub(crate) cpu_s: f64,
    /// Recorded, but not as it should be: cut stacks, late events.
    pub(crate) impaired: u64,
}

impl Setting {
    /// The settings of the kinds wanted, and those of kcollect once more for another binary, if there is one.
    pub(crate) fn all(kinds: &[Kind], binary: &Path, other: Option<&Path>) -> Vec<Self> {
        let setting = |kind: Kind, name: String, binary: &Path| Self {
            kind,
            name,
            binary: binary.to_owned(),
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

    /// Whether a failure is kcollect's own, and not a row of the table.
    pub(crate) fn must_work(&self) -> bool {
        matches!(self.kind, Kind::Nothing | Kind::Again) || self.kind.is_kcollect()
    }

    /// For people: what runs.
    pub(crate) fn describe(&self) -> String {
        match self.kind {
            Kind::Nothing => "no profiler: what the others are compared with".into(),
            Kind::Again => "no profiler once more: how far two equal things seem to differ".into(),
            Kind::Empty => "an empty BPF program on tp_btf/sched_switch".into(),
            Kind::On | Kind::Hi => format!("kcollect -p {}", self.kind.name()),
            Kind::Perf => "perf record -a -g -F 100".into(),
            Kind::Sched => format!("perf record -a -g {}", SWITCHES.join(" ")),
            Kind::Offcputime => "offcputime, of libbpf-tools".into(),
        }
    }

    /// Starts it, and waits until it watches.
    pub(crate) fn start(&self) -> Result<Profiler> {
        let profiler = match self.kind {
            Kind::Nothing | Kind::Again => Profiler::None,
            Kind::Empty => Profiler::Program(Empty::attach()?),
            kind => {
                let directory = TempDir::new()?;
                let mut command = self.command();
                command.current_dir(directory.path()).process_group(0);
                let mut running = Running::start(&mut command, LIMIT)?;
                let pid = running.pid();
                running.until("sign that it watches", || match kind {
                    Kind::On | Kind::Hi => runs(directory.path()),
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
        sleep(SETTLE);
        Ok(profiler)
    }

    fn command(&self) -> Command {
        let program = |name: &str, arguments: &[&str]| {
            let mut command = Command::new(name);
            command.args(arguments);
            command
        };
        match self.kind {
            Kind::Perf => program("perf", &["record", "-a", "-g", "-F", "100"]),
            Kind::Sched => {
                let mut command = program("unshare", &["-m", "sh", "-c", WITH_TRACEFS, "sh"]);
                command.args(["perf", "record", "-a", "-g"]).args(SWITCHES);
                command
            }
            Kind::Offcputime => program("offcputime", &[]),
            kind => {
                let mut command = Command::new(&self.binary);
                command.args(["-p", &kind.name()]);
                for variable in ["SUDO_UID", "SUDO_GID", "SUDO_USER"] {
                    command.env_remove(variable);
                }
                command
            }
        }
    }
}

impl Kind {
    /// As it is called on the command line.
    fn name(self) -> String {
        self.to_possible_value()
            .map(|value| value.get_name().to_owned())
            .unwrap_or_default()
    }

    fn is_kcollect(self) -> bool {
        matches!(self, Self::On | Self::Hi)
    }
}

impl Profiler {
    /// CPU time of its process so far; `None` where it has none.
    pub(crate) fn cpu(&self) -> Result<Option<Duration>> {
        let Self::Process { running, .. } = self else {
            return Ok(None);
        };
        Ok(Some(
            clock_gettime(clock_getcpuclockid(running.pid())?)?.into(),
        ))
    }

    /// Ends it, and asks what it took.
    pub(crate) fn stop(self) -> Result<Took> {
        let (kind, running, directory) = match self {
            Self::None => return Ok(Took::default()),
            Self::Program(program) => {
                drop(program);
                return Ok(Took::default());
            }
            Self::Process {
                kind,
                running,
                directory,
            } => (kind, running, directory),
        };
        // Of the children that have been waited for: meanwhile, only this one is.
        let before = cpu_time(UsageWho::RUSAGE_CHILDREN)?;
        running.signal(Signal::SIGINT)?;
        let finished = running.finish()?;
        let cpu_s = Some((cpu_time(UsageWho::RUSAGE_CHILDREN)? - before).as_secs_f64());
        match kind {
            Kind::On | Kind::Hi => {
                let books = Books::read(&experiment_in(directory.path())?, finished)?;
                let (lost, impaired) = books.losses();
                Ok(Took {
                    cpu_s,
                    bytes: Some(books.cost.bytes_written),
                    lost: Some(lost),
                    own: Some(Own {
                        ticks: books.ticks,
                        packets: books.packets,
                        cpu_s: books.cost.cpu_s,
                        impaired,
                    }),
                })
            }
            Kind::Offcputime => Ok(Took {
                cpu_s,
                bytes: Some(finished.succeeded()?.stdout.len() as u64),
                ..Took::default()
            }),
            _ => {
                // By Ctrl-C it ends with a signal, as it should; that it wrote is what it says last.
                ensure!(finished.stderr.contains("Captured and wrote"), "{finished}");
                let data = directory.path().join("perf.data");
                Ok(Took {
                    cpu_s,
                    bytes: Some(data.metadata()?.len()),
                    lost: Some(lost_events(&data)?),
                    own: None,
                })
            }
        }
    }
}

/// Losses of what is in the experiment all the same, but not as it should be. All others are of what is not in it.
const IMPAIRED: [&str; 5] = [
    "unnamed",
    "truncated_stacks",
    "missing_stacks",
    "made_up",
    "late_events",
];

/// What is used here of `kcollect.json`.
#[derive(Debug, Deserialize)]
struct Books {
    ticks: u64,
    packets: u64,
    cost: Cost,
    losses: BTreeMap<String, u64>,
}

#[derive(Debug, Deserialize)]
struct Cost {
    cpu_s: f64,
    bytes_written: u64,
}

impl Books {
    fn read(experiment: &Path, finished: Finished) -> Result<Self> {
        finished.succeeded()?;
        let path = experiment.join("kcollect.json");
        serde_json::from_str(&fs::read_to_string(&path)?)
            .with_context(|| path.display().to_string())
    }

    /// Things lost, and things impaired.
    fn losses(&self) -> (u64, u64) {
        let impaired = IMPAIRED
            .iter()
            .filter_map(|&name| self.losses.get(name))
            .sum();
        (self.losses.values().sum::<u64>() - impaired, impaired)
    }
}

/// Whether an experiment's log says that its run has begun.
fn runs(directory: &Path) -> bool {
    experiment_in(directory)
        .and_then(|path| Ok(fs::read_to_string(path.join("log.xml"))?))
        .is_ok_and(|log| log.contains("kind=\"run\""))
}

/// Whether a process has something open whose name ends so.
fn has_open(pid: i32, end: &str) -> bool {
    fs::read_dir(format!("/proc/{pid}/fd")).is_ok_and(|mut files| {
        files.any(|file| {
            file.and_then(|file| fs::read_link(file.path()))
                .is_ok_and(|target| target.to_string_lossy().ends_with(end))
        })
    })
}
