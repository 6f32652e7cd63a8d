//! Measures the cost of an allocator's probe on this machine: calls functions of kcollect's own
//! with the probes and programs of a recording.
//!
//! The cost depends on the CPU, on the mitigations of its faults, on a hypervisor and on the
//! kernel, from 0.2 µs to 30 µs.

use std::path::Path;
use std::time::Instant;

use bpf::{AllocatorProbe, AttachedProbes, ProbedProcess, Programs};
use bpf_abi::layout::{
    AllocatorFunction, MEASURED_PROBE_USE, PROBE_CLASSES, PROBE_FREES, PROBE_STEPS,
};
use experiment_format::ids::Pid;
use user_collector::space::mapping_at;

use super::budget::ProbeCosts;
use crate::record::input::snapshot;

/// Calls that are timed together, so that the time to read the clock does not matter.
const CALLS: u32 = 20;

/// How often they are timed; the median counts.
const ROUNDS: usize = 15;

/// A function of the form of `malloc` and `free`.
type Probed = extern "C" fn(u64) -> u64;

/// Defines functions whose first instruction is the one that is probed.
macro_rules! probed_functions {
    ($($name:ident: $($instruction:literal),+;)+) => {$(
        #[unsafe(naked)]
        extern "C" fn $name(_: u64) -> u64 {
            std::arch::naked_asm!($($instruction),+)
        }
    )+};
}

// Pushes are emulated, as at the beginning of most allocators; moves are single-stepped.
#[cfg(target_arch = "x86_64")]
probed_functions! {
    allocates: "push rbp", "pop rbp", "xor eax, eax", "ret";
    frees: "push rbx", "pop rbx", "xor eax, eax", "ret";
    allocates_stepped: "mov eax, 0", "ret";
    frees_stepped: "mov edx, 0", "xor eax, eax", "ret";
}

#[cfg(target_arch = "aarch64")]
probed_functions! {
    allocates: "nop", "mov x0, #0", "ret";
    frees: "nop", "nop", "mov x0, #0", "ret";
    allocates_stepped: "mov x0, #0", "ret";
    frees_stepped: "mov x1, #0", "mov x0, #0", "ret";
}

/// Returns the functions by class.
fn functions() -> [Probed; PROBE_CLASSES] {
    let mut functions: [Probed; PROBE_CLASSES] = [allocates; PROBE_CLASSES];
    functions[PROBE_FREES] = frees;
    functions[PROBE_STEPS] = allocates_stepped;
    functions[PROBE_STEPS | PROBE_FREES] = frees_stepped;
    functions
}

/// Measures the cost of a probe of each class. This takes some ten milliseconds. The probes are
/// returned, since dropping them takes longer.
///
/// # Errors
/// A sentence: the functions can't be found in kcollect's own file, or not be probed.
pub(super) fn measure(programs: &Programs) -> Result<(ProbeCosts, AttachedProbes), String> {
    let mappings = snapshot::mappings(Pid(std::process::id()));
    let probe = |(class, function): (usize, &Probed)| {
        let address = *function as usize as u64;
        let mapping = mapping_at(&mappings, address)?;
        Some(AllocatorProbe {
            offset: address - mapping.start + mapping.offset,
            function: match class & PROBE_FREES {
                0 => AllocatorFunction::Malloc,
                _ => AllocatorFunction::Free,
            },
            emulated: class & PROBE_STEPS == 0,
        })
    };
    let functions = functions();
    let probes: Option<Vec<_>> = functions.iter().enumerate().map(probe).collect();
    let probes = probes.ok_or("kcollect's own code is not mapped")?;
    let process = ProbedProcess {
        pid: std::process::id(),
        thread: std::process::id(),
        use_index: MEASURED_PROBE_USE,
    };
    let text = |error: bpf::Error| error.to_string();
    programs.open_probe_use(MEASURED_PROBE_USE).map_err(text)?;
    let attached = programs
        .probe_allocator(process, Path::new("/proc/self/exe"), &probes)
        .map_err(text)?;
    let costs = std::array::from_fn(|class| {
        // No byte is allocated, and no block is at this address.
        let argument = if class & PROBE_FREES == 0 { 0 } else { 1 };
        median_ns(functions[class], argument)
    });
    Ok((ProbeCosts(costs), attached))
}

/// Returns the time of a call, nanoseconds.
fn median_ns(function: Probed, argument: u64) -> f64 {
    let mut rounds: [f64; ROUNDS] = std::array::from_fn(|_| {
        let began = Instant::now();
        for _ in 0..CALLS {
            std::hint::black_box(function(argument));
        }
        began.elapsed().as_nanos() as f64 / f64::from(CALLS)
    });
    rounds.sort_by(f64::total_cmp);
    rounds[ROUNDS / 2]
}
