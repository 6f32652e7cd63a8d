//! The list of all workloads that report their microstates.

use std::fmt;
use std::path::Path;

use anyhow::Result;
use experiment_format::microstate::Microstate;

use crate::machine;
use crate::machine::cgroup;
use crate::machine::disturbance::not_judged;
use crate::workload::compat32;

/// A workload that reports its microstates.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    program: &'static str,
    variant: Option<&'static str>,
    needs: fn() -> Result<()>,
    /// How many processes print a truth.
    pub truths: usize,
    /// The name in the truth of its main process.
    pub subject: &'static str,
    /// The state that this process is mostly in. None is on-CPU, which is exact only as a whole.
    pub state: Option<Microstate>,
}

/// All workloads, also those that the machine cannot run.
const ALL: [Load; 26] = [
    Load::on_cpu("spin_user"),
    Load::on_cpu("read_zero"),
    Load::on_cpu("state_trap"),
    Load::off_cpu("state_tfault", None, Microstate::TextFault),
    Load::off_cpu("state_dfault", None, Microstate::DataFault),
    Load::off_cpu("state_kfault", None, Microstate::KernelFault),
    Load::off_cpu("state_lock", Some("mutex"), Microstate::UserLock),
    Load::off_cpu("state_lock", Some("condvar"), Microstate::UserLock),
    Load::off_cpu("state_lock", Some("pi"), Microstate::UserLock),
    Load::off_cpu("compat32", Some("futex"), Microstate::UserLock).of(
        2,
        "compat32_child",
        compat32::supported,
    ),
    Load::off_cpu("compat32", Some("futex_time64"), Microstate::UserLock).of(
        2,
        "compat32_child",
        compat32::supported,
    ),
    Load::off_cpu("compat32", Some("nanosleep"), Microstate::Sleep).of(
        2,
        "compat32_child",
        compat32::supported,
    ),
    Load::off_cpu("state_sleep", Some("nanosleep"), Microstate::Sleep),
    Load::off_cpu("state_sleep", Some("pipe"), Microstate::Sleep),
    Load::off_cpu("state_sleep", Some("poll"), Microstate::Sleep),
    Load::off_cpu("state_sleep", Some("epoll"), Microstate::Sleep),
    Load::off_cpu("state_sleep", Some("io_uring"), Microstate::Sleep).of(
        1,
        "state_sleep_io_uring",
        machine::io_uring,
    ),
    Load::off_cpu("state_sleep", Some("fsync"), Microstate::Sleep),
    Load::off_cpu("vfork_parent", None, Microstate::Sleep),
    Load::off_cpu("thread_starts", Some("fifo"), Microstate::Sleep),
    Load::off_cpu("state_wait", None, Microstate::WaitCpu),
    Load::off_cpu("state_latency", None, Microstate::WaitCpu).of(3, "state_latency", nothing),
    Load::off_cpu("throttled", Some("5"), Microstate::WaitCpu).of(1, "throttled", cgroup::possible),
    Load::off_cpu("migrate", None, Microstate::Sleep).of(1, "migrate", machine::several_cpus),
    Load::off_cpu("state_stop", Some("signal"), Microstate::Stopped).of(
        2,
        "state_stop_child",
        nothing,
    ),
    Load::off_cpu("state_stop", Some("ptrace"), Microstate::Stopped).of(
        2,
        "state_stop_child",
        nothing,
    ),
];

/// The needs of a workload that every machine can run.
fn nothing() -> Result<()> {
    Ok(())
}

impl Load {
    const fn on_cpu(program: &'static str) -> Self {
        Self {
            program,
            variant: None,
            needs: nothing,
            truths: 1,
            subject: program,
            state: None,
        }
    }

    const fn off_cpu(
        program: &'static str,
        variant: Option<&'static str>,
        state: Microstate,
    ) -> Self {
        Self {
            variant,
            state: Some(state),
            ..Self::on_cpu(program)
        }
    }

    const fn of(self, truths: usize, subject: &'static str, needs: fn() -> Result<()>) -> Self {
        Self {
            truths,
            subject,
            needs,
            ..self
        }
    }

    /// Passes if this machine can run it.
    ///
    /// # Errors
    /// When it cannot; the message says why.
    pub fn possible(&self) -> Result<()> {
        (self.needs)()
    }

    /// Returns whether its state is a wait for the disk, whose length depends on the disk.
    pub fn waits_for_the_disk(&self) -> bool {
        use Microstate::{DataFault, KernelFault, TextFault};
        self.variant == Some("fsync")
            || matches!(self.state, Some(TextFault | DataFault | KernelFault))
    }

    /// Returns whether it waits nearly all of the time, and for no disk: it uses no CPU that
    /// another one would miss.
    pub fn is_quiet(&self) -> bool {
        let waits = ["compat32", "state_sleep", "state_stop", "vfork_parent"];
        waits.contains(&self.program) && !self.waits_for_the_disk()
    }

    /// Returns its command line, to work for so long on a CPU. `sibling` is the path of any of the
    /// workloads.
    pub fn args(&self, sibling: &Path, seconds: &str, cpu: usize) -> Vec<String> {
        let program = sibling.with_file_name(self.program);
        let mut args = vec![
            program.display().to_string(),
            seconds.to_owned(),
            cpu.to_string(),
        ];
        args.extend(self.variant.map(str::to_owned));
        args
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.program)?;
        self.variant
            .map_or(Ok(()), |variant| write!(f, " {variant}"))
    }
}

/// Returns all workloads, also those that the machine cannot run.
pub fn all() -> impl Iterator<Item = Load> {
    ALL.into_iter()
}

/// Returns the workloads that this machine can run.
pub fn possible() -> impl Iterator<Item = Load> {
    all().filter(|load| match load.possible() {
        Ok(()) => true,
        Err(error) => {
            not_judged(format_args!("{load}: {error:#}"));
            false
        }
    })
}
