//! `renamer SECONDS CPU`: sets its name to what a file name, an XML document or a terminal cannot
//! hold, and spins under each for an equal part of the time.

use anyhow::{Context, Result};
use experiment_format::ids::Pid;
use nix::sys::prctl::set_name;
use std::ffi::CString;
use tests::workload::truth::{Named, Work, monotonic_ns, process_cpu_ns, spin_until};

/// The names. The kernel keeps 15 bytes of each.
const NAMES: [&[u8]; 9] = [
    b"plain",
    b"/",
    b"a\nb",
    b"..",
    b"../../../etc/x",
    &[0xff; 15],
    b"\"<&%41%'>",
    b"\x1b[2J\x07",
    b"<IDLE>",
];

fn main() -> Result<()> {
    let mut work = Work::start("renamer")?;
    let start_ns = monotonic_ns()?;
    let piece = (work.until_ns() - start_ns) / NAMES.len() as u64;
    for (index, name) in NAMES.iter().enumerate() {
        set_name(&CString::new(*name)?).context("PR_SET_NAME")?;
        let (since_ns, cpu_before) = (monotonic_ns()?, process_cpu_ns()?);
        spin_until(start_ns + piece * (index as u64 + 1))?;
        work.named(Named {
            pid: Pid(std::process::id()),
            name: name.to_vec(),
            since_ns,
            until_ns: monotonic_ns()?,
            cpu_ns: process_cpu_ns()? - cpu_before,
        });
    }
    work.end(NAMES.len() as u64)
}
