//! Names of the kernel's side of an experiment that writer and reader share.

/// The load object of the kernel itself.
pub const KERNEL: &str = "vmlinux";
/// The load object of the code that the kernel makes as it runs, called so by kallsyms: BPF
/// programs and trampolines. `[__builtin__ftrace]` and its like, the trampolines of tracing, are
/// put to it.
pub const BPF: &str = "[bpf]";

/// Functions in which every absence ends: they say nothing of its reason. Nor does the innermost of
/// a futex, which may be compiled into its caller or not.
#[must_use]
pub fn is_scheduler(name: &str) -> bool {
    let name = name.trim_start_matches('_');
    [
        "schedule",
        "io_schedule",
        "preempt_schedule",
        "cond_resched",
        "bit_wait",
        "futex_do_wait",
        "futex_wait_queue",
    ]
    .iter()
    .any(|prefix| name.starts_with(prefix))
}
