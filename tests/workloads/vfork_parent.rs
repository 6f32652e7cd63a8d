//! `vfork_parent SECONDS CPU`: waits, as after `vfork`, for children that sleep a little and exit.
//! Parent and child share one address space, and their threads are two processes.

use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use experiment_format::microstate::Microstate;
use nix::sched::{CloneFlags, clone};
use nix::sys::wait::{WaitStatus, waitpid};
use tests::workload::truth::Work;

/// How long a child runs.
const LIFE: Duration = Duration::from_millis(5);

fn main() -> Result<()> {
    let mut work = Work::start("vfork_parent")?;
    let mut stack = vec![0; 64 * 1024];
    let mut children = 0;
    while !work.over()? {
        let child = work.blocked(Microstate::Sleep, || {
            let flags = CloneFlags::CLONE_VM | CloneFlags::CLONE_VFORK;
            let life = Box::new(|| {
                sleep(LIFE);
                0
            });
            // SAFETY: the child has a stack of its own, changes nothing of its parent's, and has
            // exited when this returns.
            unsafe { clone(life, &mut stack, flags, Some(libc::SIGCHLD)) }
        })?;
        let child = child.context("clone")?;
        let end = work.blocked(Microstate::Sleep, || waitpid(child, None))??;
        ensure!(end == WaitStatus::Exited(child, 0), "the child: {end:?}");
        work.child(child);
        children += 1;
    }
    work.end(children)
}
