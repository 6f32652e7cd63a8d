//! `reaped PROGRAM ARGUMENT…`: runs a program, and prints how much CPU time the kernel says that it
//! had, its end included, which is in no clock that it could read itself.

use std::process::{Command, exit};

use anyhow::{Context, Result};
use experiment_format::ids::Pid;
use tests::workload::truth::Reaped;

fn main() -> Result<()> {
    let mut arguments = std::env::args_os().skip(1);
    let program = arguments
        .next()
        .context("usage: reaped PROGRAM ARGUMENT…")?;
    let mut child = Command::new(program).args(arguments).spawn()?;
    let pid = child.id();
    let status = child.wait()?;
    Reaped::now(Pid(pid))?.print()?;
    exit(status.code().unwrap_or(1))
}
