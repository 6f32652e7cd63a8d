//! `spawner SECONDS CPU`: forks and runs `/bin/true` in a loop. Each child runs for about a
//! millisecond and changes its name once, at exec; all of them are listed.

use anyhow::{Context, Result, ensure};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, execv, fork};
use tests::workload::truth::Work;

fn main() -> Result<()> {
    let mut work = Work::start("spawner")?;
    let program = c"/bin/true";
    let mut spawned = 0;
    while !work.over()? {
        // A plain fork, not vfork as std would do: the child has to run a while under its parent's
        // name. SAFETY: this process has one thread, so the child may do whatever the parent could.
        match unsafe { fork() }.context("fork")? {
            ForkResult::Child => {
                execv(program, &[program])?;
            }
            ForkResult::Parent { child } => {
                let end = waitpid(child, None)?;
                ensure!(
                    end == WaitStatus::Exited(child, 0),
                    "/bin/true ended with {end:?}"
                );
                work.child(child);
                spawned += 1;
            }
        }
    }
    work.end(spawned)
}
