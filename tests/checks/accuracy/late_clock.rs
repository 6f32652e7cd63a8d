//! A CPU's clock that starts long after its grid of boundaries was begun, as happens where more
//! threads want to run than there are CPUs. If the boundaries stayed where they were, each context
//! switch between a boundary and its timer would look like one before an overdue timer, and the
//! tick would be charged to the scheduler on behalf of the thread that is switched out.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use experiment_format::microstate::Microstate;
use experiment_format::reader::Experiment;
use tempfile::TempDir;
use tests::command::run;
use tests::experiment::followed::directories;
use tests::kcollect::{binary, experiment_in};
use tests::machine::alone;
use tests::workload::proctorture::PROCTORTURE;

const LIMIT: Duration = Duration::from_secs(60);

const ON_CPU: [Microstate; 3] = [Microstate::User, Microstate::System, Microstate::Trap];

/// Programs that only calculate, more than there are CPUs on a small machine.
const PROGRAMS: usize = 6;

/// Minimum share of their time on a CPU that they have in user mode, with the few calls that ask
/// what time it is.
const MIN_USER_SHARE: f64 = 0.88;

#[test]
fn root_alone_a_clock_that_starts_late_counts_alike() -> Result<()> {
    alone(|| {
        let directory = TempDir::new()?;
        let mut strace = Command::new("strace");
        strace
            .args(["-f", "--seccomp-bpf", "-qq", "-e", "trace=ioctl", "-e"])
            // The grid begins, and the clock is started half an interval later.
            .args(["inject=ioctl:delay_enter=5000", "-o", "/dev/null"])
            .arg(binary()?)
            .args(["-p", "on", "-F", "=^proctorture$", "-d"])
            .args([directory.path(), Path::new("--")])
            .args(["sh", "-c"])
            .arg(format!(
                "{}wait",
                format!("{PROCTORTURE} two:900 & ").repeat(PROGRAMS)
            ));
        run(&mut strace, LIMIT)?.succeeded()?;
        let programs = directories(&experiment_in(directory.path())?)?;
        ensure!(programs.len() == PROGRAMS, "{programs:?}");
        let (mut user, mut all) = (0, 0);
        for program in programs {
            for tick in Experiment::open(&program)?.ticks()? {
                let tick = tick?;
                let is =
                    |states: &[Microstate]| states.iter().any(|state| tick.state == state.number());
                let ticks = u64::try_from(tick.ticks)?;
                user += if is(&[Microstate::User]) { ticks } else { 0 };
                all += if is(&ON_CPU) { ticks } else { 0 };
            }
        }
        let share = user as f64 / all as f64;
        ensure!(
            all > 300 && share >= MIN_USER_SHARE,
            "{user} of {all} ticks"
        );
        Ok(())
    })
}
