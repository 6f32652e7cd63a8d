//! Runs of kcollect, and the experiments that they made.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::command::{Finished, Running, run};
use crate::machine::{self, work_cpu};
use crate::workload::truth::Truth;

/// The path of a workload of this package, known when a check is compiled.
#[macro_export]
macro_rules! workload {
    ($name:literal) => {
        env!(concat!("CARGO_BIN_EXE_", $name))
    };
}

/// Returns the path of the kcollect under test: what the environment variable `KCOLLECT` names, or
/// else the release build of the workspace.
///
/// # Errors
/// When it has not been built.
pub fn binary() -> Result<PathBuf> {
    let path = std::env::var_os("KCOLLECT").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/release/kcollect"),
        PathBuf::from,
    );
    ensure!(
        path.is_file(),
        "{} is missing: run `make test`, which builds it",
        path.display()
    );
    Ok(path.canonicalize()?)
}

/// Returns the command of kcollect with arguments, in an environment that does not depend on the
/// user who runs the checks.
///
/// # Errors
/// When it has not been built.
pub fn command<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> Result<Command> {
    let mut command = Command::new(binary()?);
    command.args(arguments);
    for variable in ["SUDO_UID", "SUDO_GID", "SUDO_USER"] {
        command.env_remove(variable);
    }
    Ok(command)
}

/// A kcollect that records into a directory of its own.
#[derive(Debug)]
pub struct Recording {
    directory: TempDir,
    running: Running,
}

/// A recording that has ended.
#[derive(Debug)]
pub struct FinishedRecording {
    directory: TempDir,
    /// How it ended, and its output.
    pub finished: Finished,
}

impl Recording {
    /// Starts a recording. The directory is given by `-d`; the load, if any, is the end of the
    /// arguments. No process is followed unless the arguments have `-F`: most checks are of the
    /// founder alone.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start<A: AsRef<OsStr>>(
        arguments: impl IntoIterator<Item = A>,
        limit: Duration,
    ) -> Result<Self> {
        machine::taken()?;
        let directory = TempDir::new()?;
        let mut command = command(["-d".as_ref(), directory.path().as_os_str()])?;
        let arguments: Vec<_> = arguments
            .into_iter()
            .map(|argument| argument.as_ref().to_owned())
            .collect();
        if !arguments.iter().any(|argument| argument == "-F") {
            command.args(["-F", "off"]);
        }
        command.args(arguments).current_dir(directory.path());
        let running = Running::start(&mut command, limit)?;
        Ok(Self { directory, running })
    }

    /// Waits until recording has started (`resume` in the experiment's log), and returns the
    /// experiment. That takes seconds on a busy machine.
    ///
    /// # Errors
    /// When kcollect ends before.
    pub fn until_running(&mut self) -> Result<PathBuf> {
        self.until_logged("resume")
    }

    /// Waits until the experiment exists, for a recording that begins paused.
    ///
    /// # Errors
    /// When kcollect ends before.
    pub fn until_open(&mut self) -> Result<PathBuf> {
        self.until_logged("run")
    }

    fn until_logged(&mut self, kind: &str) -> Result<PathBuf> {
        let directory = self.directory.path().to_owned();
        let event = format!("<event kind=\"{kind}\"");
        self.running.until(&format!("{event} in the log"), || {
            experiment_in(&directory)
                .and_then(|path| Ok(fs::read_to_string(path.join("log.xml"))?))
                .is_ok_and(|log| log.contains(&event))
        })?;
        experiment_in(&directory)
    }

    /// Starts a recording of every tick with a load, a workload's path, which runs for `seconds`
    /// seconds, and waits until recording has started. Returns the experiment too.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn of(workload: &str, seconds: u32, limit: Duration) -> Result<(Self, PathBuf)> {
        let (seconds, cpu) = (seconds.to_string(), work_cpu()?.to_string());
        let load = ["-p", "hi", "-x", "off", "--", workload, &seconds, &cpu];
        let mut recording = Self::start(load, limit)?;
        let experiment = recording.until_running()?;
        Ok((recording, experiment))
    }

    /// Returns the experiment.
    ///
    /// # Errors
    /// No experiment.
    pub fn experiment(&self) -> Result<PathBuf> {
        experiment_in(self.directory.path())
    }

    /// Returns the running program.
    pub fn running(&mut self) -> &mut Running {
        &mut self.running
    }

    /// Sends kcollect a signal.
    ///
    /// # Errors
    /// When it has ended.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        self.running.signal(signal)
    }

    /// Waits for kcollect's end.
    ///
    /// # Errors
    /// When it does not end in time.
    pub fn finish(self) -> Result<FinishedRecording> {
        Ok(FinishedRecording {
            finished: self.running.finish()?,
            directory: self.directory,
        })
    }

    /// Ends the recording as Ctrl-C does.
    ///
    /// # Errors
    /// When it does not end in time, or not with code 0.
    pub fn stop(self) -> Result<FinishedRecording> {
        self.signal(Signal::SIGINT)?;
        self.finish()?.succeeded()
    }
}

impl FinishedRecording {
    /// Passes on a recording that ended with code 0.
    ///
    /// # Errors
    /// When it did not.
    pub fn succeeded(self) -> Result<Self> {
        ensure!(self.finished.code() == 0, "{}", self.finished);
        Ok(self)
    }

    /// Returns the experiment.
    ///
    /// # Errors
    /// No experiment, or more than one.
    pub fn experiment(&self) -> Result<PathBuf> {
        experiment_in(self.directory.path()).with_context(|| self.finished.to_string())
    }

    /// Returns the directory that it recorded into.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Returns the truth that the load printed.
    ///
    /// # Errors
    /// When it printed none.
    pub fn truth(&self) -> Result<Truth> {
        Truth::find(&self.finished.stdout)
    }
}

/// Records a load from its start to its end.
///
/// # Errors
/// When kcollect does not end in time or not with code 0.
pub fn record(options: &[&str], load: &[&str], limit: Duration) -> Result<FinishedRecording> {
    let args = options
        .iter()
        .copied()
        .chain((!load.is_empty()).then_some("--"))
        .chain(load.iter().copied());
    Recording::start(args, limit)?.finish()?.succeeded()
}

/// Runs kcollect to its end in a directory.
///
/// # Errors
/// When it does not end in time. Its code is the caller's to judge.
pub fn run_in(directory: &Path, arguments: &[&str], limit: Duration) -> Result<Finished> {
    run(command(arguments)?.current_dir(directory), limit)
}

/// Returns the one experiment in a directory.
///
/// # Errors
/// No experiment, or more than one.
pub fn experiment_in(directory: &Path) -> Result<PathBuf> {
    let mut found = experiments_in(directory)?;
    match (found.pop(), found.is_empty()) {
        (Some(path), true) => Ok(path),
        (None, _) => bail!("no experiment in {}", directory.display()),
        _ => bail!("more than one experiment in {}", directory.display()),
    }
}

/// Returns the experiment of a followed process, by the beginning of its name.
///
/// # Errors
/// No such experiment.
pub fn sub_experiment(founder: &Path, begins: &str) -> Result<PathBuf> {
    let named = |path: &PathBuf| {
        let name = path.file_name().map(|name| name.to_string_lossy());
        name.is_some_and(|name| name.starts_with(begins))
    };
    let mut found = experiments_in(founder)?.into_iter().filter(named);
    found
        .next()
        .with_context(|| format!("no {begins}* in {}", founder.display()))
}

/// Returns all experiments in a directory.
///
/// # Errors
/// When the directory cannot be read.
pub fn experiments_in(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.extension() == Some("er".as_ref()) {
            found.push(path);
        }
    }
    Ok(found)
}
