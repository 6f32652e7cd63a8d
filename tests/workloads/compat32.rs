//! `compat32 SECONDS CPU VARIANT`: a 32-bit child that waits in a futex (`futex`, or `futex_time64`
//! as newer libraries do) or sleeps (`nanosleep`). Both print their truth; the child's clocks are
//! its own, the sums are made here.

use std::io::Read;

use anyhow::{Context, Result, ensure};
use experiment_format::ids;
use experiment_format::microstate::Microstate;
use nix::sys::resource::UsageWho;
use nix::unistd::Pid;
use tests::workload::compat32::{Call, account, start};
use tests::workload::naps;
use tests::workload::truth::{Truth, Work, variant};

fn main() -> Result<()> {
    let call = Call::named(&variant()?)?;
    naps::end_exactly()?;
    let mut work = Work::start("compat32")?;
    let until_ns = work.until_ns();
    let mut child = work.blocked(Microstate::Sleep, || start(call, until_ns))??;
    let pid = Pid::from_raw(child.id().cast_signed());
    work.child(pid);
    let mut written = Vec::new();
    let mut output = child.stdout.take().context("the child has an output")?;
    work.blocked(Microstate::Sleep, || output.read_to_end(&mut written))??;
    let status = work.blocked(Microstate::Sleep, || child.wait())??;
    ensure!(status.success(), "the 32-bit program: {status}");

    let (start_ns, end_ns, spent) = account(&written, call)?;
    let truth = Truth {
        workload: "compat32_child".into(),
        pid: ids::Pid::from_raw(pid.as_raw()),
        cpu: work.cpu(),
        start_ns,
        end_ns,
        ..Truth::default()
    };
    // It is the only child, and it has ended.
    truth.spent(&spent, UsageWho::RUSAGE_CHILDREN)?.print()?;
    work.end(1)
}
