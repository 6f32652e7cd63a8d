//! The 32-bit program, `workloads/compat32.c`, and its account of its time.

use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use experiment_format::microstate::Microstate;

use crate::machine::disturbance::not_judged;
use crate::workload::thread_times::{ThreadClocks, TimeAccount};

/// The path of the program.
pub const PROGRAM: &str = env!("COMPAT32_PROGRAM");
/// The size of an instant as the program writes it, bytes: two numbers and a text.
const INSTANT: usize = 2 * size_of::<u64>() + 64;

/// A system call of a 32-bit program.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// Its number, in the table of i386.
    pub number: u32,
    /// The state of a thread that it blocks.
    pub state: Microstate,
}

impl Call {
    /// Returns a call by its name.
    ///
    /// # Errors
    /// When the program makes no such call.
    pub fn named(name: &str) -> Result<Self> {
        let (number, state) = match name {
            "nanosleep" => (162, Microstate::Sleep),
            "futex" => (240, Microstate::UserLock),
            "futex_time64" => (422, Microstate::UserLock),
            other => bail!("no variant {other:?}"),
        };
        Ok(Self { number, state })
    }
}

/// Passes if this machine runs 32-bit programs: kernels can be built, or booted, without them.
///
/// # Errors
/// When it does not; the message says what the kernel answered.
pub fn supported() -> Result<()> {
    let status = Command::new(PROGRAM)
        .status()
        .with_context(|| format!("cannot run {PROGRAM:?}"))?;
    ensure!(status.success(), "{PROGRAM}: {status}");
    Ok(())
}

/// Returns whether this machine runs 32-bit programs, and reports that a check is not judged if
/// not.
#[must_use]
pub fn is_supported() -> bool {
    let supported = supported().inspect_err(|error| {
        not_judged(format_args!(
            "this machine runs no 32-bit programs: {error:#}"
        ));
    });
    supported.is_ok()
}

/// Starts the program, which makes a call again and again until a moment of `CLOCK_MONOTONIC`.
///
/// # Errors
/// When it cannot be started.
pub fn start(call: Call, until_ns: u64) -> Result<Child> {
    Command::new(PROGRAM)
        .args([call.number.to_string(), until_ns.to_string()])
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {PROGRAM:?}"))
}

/// Returns what the program wrote: the first and the last instant of its work, `CLOCK_MONOTONIC`
/// nanoseconds, and its account in between. All blocked time is the call's.
///
/// # Errors
/// When it did not write two instants.
pub fn account(written: &[u8], call: Call) -> Result<(u64, u64, TimeAccount)> {
    ensure!(
        written.len() == 2 * INSTANT,
        "the 32-bit program wrote {} bytes",
        written.len()
    );
    let (first, last) = written.split_at(INSTANT);
    let (first, last) = (instant(first)?, instant(last)?);
    Ok((
        first.wall_ns,
        last.wall_ns,
        first.blocked_until(&last, call.state),
    ))
}

fn instant(written: &[u8]) -> Result<ThreadClocks> {
    let (wall_ns, rest) = number(written)?;
    let (cpu_ns, text) = number(rest)?;
    Ok(ThreadClocks {
        wall_ns,
        cpu_ns,
        waited_ns: crate::workload::thread_times::parse_waited(text)?,
    })
}

fn number(bytes: &[u8]) -> Result<(u64, &[u8])> {
    let (number, rest) = bytes.split_first_chunk().context("no number")?;
    Ok((u64::from_ne_bytes(*number), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_parsed() {
        let mut written = Vec::new();
        for (wall, cpu, waited) in [(1000u64, 10u64, "5 20 1\n"), (9000, 110, "90 1020 7\n")] {
            written.extend(wall.to_ne_bytes());
            written.extend(cpu.to_ne_bytes());
            written.extend(waited.as_bytes());
            written.resize(written.len().next_multiple_of(INSTANT), 0);
        }
        let call = Call::named("futex").unwrap();
        let (start, end, account) = account(&written, call).unwrap();
        assert_eq!((start, end, account.tracked_ns), (1000, 9000, 8030));
        assert_eq!(account.off_cpu_ns, [0, 0, 0, 0, 0, 0, 6900, 0, 1020, 0]);
        assert!(super::account(&written[1..], call).is_err());
    }
}
