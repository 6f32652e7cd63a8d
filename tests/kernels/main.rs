//! The kernels that kcollect has to work on in addition to the one that runs: `make test-kernels`.
//! Each is booted as Debian ships it, in qemu without KVM and without root; the release build of
//! kcollect records the workloads in there, and the results are copied out and judged here, as the
//! recordings of this machine are.
//!
//! Each is booted twice. With one CPU the machine's clock counts instructions: a busy host makes
//! nothing late in there, and a sleep takes no time, so that states and stacks can be judged.
//! With two, which that clock does not serve alike, its CPUs are threads of qemu and it has the
//! host's clock, as slow as it may be: time is conserved all the same.
//!
//! With `RUNS=states,ring` only these recordings are made ([`runs`]). With `CPUS=8,16` the newest
//! kernel is booted with that many CPUs instead ([`cpus`]).
//!
//! This one program has all parts: on the host it makes the machines and judges ([`host`]), as
//! the first process of a machine it runs kcollect ([`guest`]), and as the load of that it runs
//! the workloads ([`load`]).
//!
//! `make test` does not run it, since it fetches packages.

mod counters;
mod cpus;
mod elf;
mod guest;
mod host;
mod initramfs;
mod judge;
mod kernel;
mod load;
mod runs;
mod tested;
mod verifier;

use std::process::ExitCode;

fn main() -> ExitCode {
    let done = match std::env::args().nth(1).as_deref() {
        Some(runs::LOAD) => load::main(),
        _ if std::process::id() == 1 => guest::main(),
        _ => host::main(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}
