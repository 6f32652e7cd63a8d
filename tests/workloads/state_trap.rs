//! `state_trap SECONDS CPU`: breakpoint after breakpoint, with a handler that does nothing. Each is
//! a trap that delivers a signal, a little user time, and the system call that ends the handler.
//! How the time on CPU divides among the three the workload cannot measure, but the trap has a good
//! part of it.

use anyhow::Result;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use tests::workload::truth::Work;

extern "C" fn step_on(_signal: i32) {}

fn main() -> Result<()> {
    let work = Work::start("state_trap")?;
    let action = SigAction::new(
        SigHandler::Handler(step_on),
        SaFlags::empty(),
        SigSet::empty(),
    );
    // SAFETY: the handler does nothing, which it may do at any instruction.
    unsafe { sigaction(Signal::SIGTRAP, &action) }?;
    let mut traps = 0;
    while !work.over()? {
        // Sixteen traps to one look at the clock.
        for _ in 0..16 {
            // SAFETY: execution continues after the instruction once the handler has returned;
            // nothing is changed.
            unsafe { std::arch::asm!("int3") };
            traps += 1;
        }
    }
    work.end(traps)
}
