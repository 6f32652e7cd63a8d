//! Names in an experiment of the kernel that collectors and reports share.

/// The load object of the kernel itself.
pub const KERNEL: &str = "vmlinux";
/// The load object of the code that the kernel generates: BPF programs and trampolines. kallsyms
/// uses this name for most of it; trampolines of tracing (`[__builtin__ftrace]` and the like) are
/// added.
pub const BPF: &str = "[bpf]";

/// Returns whether a function belongs to the scheduler. Every off-CPU interval begins in such
/// functions, so they do not show its reason. The innermost function of a futex is one of them:
/// compilers inline it or not.
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
