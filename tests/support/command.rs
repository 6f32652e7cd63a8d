//! Programs with a time limit.
//!
//! A check that hangs shows nothing, so every program here has a limit. After it the program
//! is killed, and the check fails with its output so far. Output goes to files, not pipes: a full
//! pipe would stop the program that is being watched.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// How often a running program is looked at.
pub const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Maximum time that a copy takes.
const COPY_LIMIT: Duration = Duration::from_secs(60);

/// A program that runs. It is killed when this value is dropped.
#[derive(Debug)]
pub struct Running {
    child: Child,
    what: String,
    stdout: File,
    stderr: File,
    started: Instant,
    limit: Duration,
}

/// A program that has ended.
#[derive(Debug)]
pub struct Finished {
    /// The command line.
    pub what: String,
    /// How it ended.
    pub status: ExitStatus,
    /// Its standard output. Bytes that are not UTF-8 are replaced.
    pub stdout: String,
    /// Its standard error, likewise.
    pub stderr: String,
    /// From start to end, by the clock of this process.
    pub elapsed: Duration,
}

impl Running {
    /// Starts a program.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(command: &mut Command, limit: Duration) -> Result<Self> {
        let what = describe(command);
        let stdout = tempfile::tempfile()?;
        let stderr = tempfile::tempfile()?;
        let child = command
            .stdin(Stdio::null())
            .stdout(stdout.try_clone()?)
            .stderr(stderr.try_clone()?)
            .spawn()
            .with_context(|| format!("cannot run {what}"))?;
        Ok(Self {
            child,
            what,
            stdout,
            stderr,
            started: Instant::now(),
            limit,
        })
    }

    /// Returns its process id.
    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }

    /// Sends the program a signal.
    ///
    /// # Errors
    /// When it has ended already.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        kill(self.pid(), signal).with_context(|| format!("cannot send {signal} to {}", self.what))
    }

    /// Returns whether it has ended.
    ///
    /// # Errors
    /// When it cannot be waited for.
    pub fn ended(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }

    /// Returns whether it has printed anything to its standard output.
    ///
    /// # Errors
    /// When the file cannot be examined.
    pub fn has_printed(&self) -> Result<bool> {
        Ok(self.stdout.metadata()?.len() > 0)
    }

    /// Returns its standard output and then its standard error, so far.
    ///
    /// # Errors
    /// When the files cannot be read.
    pub fn output(&self) -> Result<String> {
        Ok(format!(
            "{}{}",
            contents(&self.stdout)?,
            contents(&self.stderr)?
        ))
    }

    /// Waits until a condition holds.
    ///
    /// # Errors
    /// When the program ends before, or its time is over.
    pub fn until(&mut self, what: &str, mut holds: impl FnMut() -> bool) -> Result<()> {
        while !holds() {
            if self.ended()? {
                bail!(
                    "{} ended before {what}; its output:\n{}",
                    self.what,
                    self.output()?
                );
            }
            if self.started.elapsed() > self.limit {
                bail!(
                    "{}: no {what} in {:?}; its output:\n{}",
                    self.what,
                    self.limit,
                    self.output()?
                );
            }
            sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    /// Waits until it has printed anything to its standard output.
    ///
    /// # Errors
    /// When the program ends before, or its time is over.
    pub fn until_printed(&mut self) -> Result<()> {
        let stdout = self.stdout.try_clone()?;
        let has_printed = || stdout.metadata().is_ok_and(|file| file.len() > 0);
        self.until("its first line", has_printed)
    }

    /// Waits for the program's end.
    ///
    /// # Errors
    /// When its time is over. It is killed then.
    pub fn finish(mut self) -> Result<Finished> {
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(Finished {
                    what: self.what.clone(),
                    status,
                    stdout: contents(&self.stdout)?,
                    stderr: contents(&self.stderr)?,
                    elapsed: self.started.elapsed(),
                });
            }
            self.in_time()?;
            sleep(POLL_INTERVAL);
        }
    }

    /// Passes if its time is not over.
    ///
    /// # Errors
    /// When it is.
    pub fn in_time(&self) -> Result<()> {
        if self.started.elapsed() > self.limit {
            bail!(
                "{} did not end in {:?}; its output:\n{}",
                self.what,
                self.limit,
                self.output()?
            );
        }
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail if the child was waited for already, which is all right.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Finished {
    /// The exit code as a shell would show it: 128 and the number for a signal.
    pub fn code(&self) -> i32 {
        self.status
            .code()
            .unwrap_or_else(|| 128 + self.status.signal().unwrap_or(0))
    }

    /// Passes a program on that ended with code 0.
    ///
    /// # Errors
    /// When it ended otherwise.
    pub fn succeeded(self) -> Result<Self> {
        if self.code() != 0 {
            bail!("{self}");
        }
        Ok(self)
    }
}

impl fmt::Display for Finished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            what,
            stdout,
            stderr,
            elapsed,
            ..
        } = self;
        write!(
            f,
            "{what}\nended with code {} after {elapsed:?}\n",
            self.code()
        )?;
        write!(
            f,
            "--- standard output\n{stdout}\n--- standard error\n{stderr}"
        )
    }
}

/// Copies a program that is to be executed. Another process does it: while this one had the copy
/// open for writing, a process that another thread forks would have it open too until it executes,
/// and the kernel executes no program that is open for writing (ETXTBSY).
///
/// # Errors
/// When it cannot be copied.
pub fn copy_program(from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
    let mut copy = Command::new("cp");
    copy.arg("--preserve=mode");
    run(copy.arg(from.as_ref()).arg(to.as_ref()), COPY_LIMIT)?.succeeded()?;
    Ok(())
}

/// Runs a program to its end.
///
/// # Errors
/// When it cannot be started or does not end in time. An exit code is the caller's to judge.
pub fn run(command: &mut Command, limit: Duration) -> Result<Finished> {
    Running::start(command, limit)?.finish()
}

fn describe(command: &Command) -> String {
    std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|word| word.to_string_lossy())
        .collect::<Vec<_>>()
        .join(" ")
}

/// All of a file, read through an opening of its own: the program writes where the position of its
/// opening is.
fn contents(file: &File) -> Result<String> {
    let mut reading = File::open(format!(
        "/proc/self/fd/{}",
        std::os::fd::AsRawFd::as_raw_fd(file)
    ))?;
    let mut bytes = Vec::new();
    reading.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_and_code_arrive() {
        let finished = run(
            Command::new("sh").args(["-c", "echo out; echo err >&2; exit 3"]),
            Duration::from_secs(5),
        )
        .unwrap();
        assert_eq!(
            (
                finished.stdout.as_str(),
                finished.stderr.as_str(),
                finished.code()
            ),
            ("out\n", "err\n", 3)
        );
        assert!(
            finished
                .succeeded()
                .unwrap_err()
                .to_string()
                .contains("ended with code 3")
        );
    }

    #[test]
    fn a_program_that_hangs_is_an_error_with_its_output() {
        let error = run(
            Command::new("sh").args(["-c", "echo well; exec sleep 60"]),
            Duration::from_millis(300),
        );
        let text = error.unwrap_err().to_string();
        assert!(
            text.contains("did not end") && text.contains("well"),
            "{text}"
        );
    }

    #[test]
    fn a_signal_has_a_code() {
        let running =
            Running::start(Command::new("sleep").arg("60"), Duration::from_secs(5)).unwrap();
        running.signal(Signal::SIGTERM).unwrap();
        assert_eq!(running.finish().unwrap().code(), 128 + 15);
    }
}
