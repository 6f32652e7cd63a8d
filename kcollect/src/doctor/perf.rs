//! What perf events are bound by: the sysctls, locked memory, and the hardware that is there.

use super::privilege::Effective;
use super::{Finding, Root};

/// Ticks per second and CPU at `-p hi` (997 µs) and at `-p on` (10.007 ms), rounded up.
const RATE_HIGH: u64 = 1004;
const RATE_ON: u64 = 100;

/// The side-band's ring of one CPU: 128 pages of data and one of control. The kernel allows exactly
/// that by default.
const RING_KIB: u64 = 516;

/// How deep the kernel records stacks unless told otherwise (PERF_MAX_STACK_DEPTH).
const USUAL_DEPTH: u32 = 127;

pub(super) fn paranoid(root: &Root) -> Finding {
    const NAME: &str = "perf_event_paranoid";
    let Some(level) = root.number::<i32>("/proc/sys/kernel/perf_event_paranoid") else {
        return Finding::warn(
            NAME,
            "absent: this kernel has no perf events, or /proc/sys is hidden",
            "boot a kernel built with CONFIG_PERF_EVENTS=y; in a container, run it with --privileged",
        );
    };
    // kcollect opens events of whole CPUs with kernel stacks, which perf_event_open(2) grants to
    // everyone at 0 and below.
    if level <= 0 {
        return Finding::ok(
            NAME,
            format!("{level}, which grants everyone what kcollect opens"),
        );
    }
    let effective = Effective::read(root);
    if effective.is_some_and(Effective::admin) {
        return Finding::ok(NAME, format!("{level}, which does not bind root"));
    }
    // Debian bars everything at 3 and Ubuntu at 4, and lets CAP_SYS_ADMIN pass only; the plain
    // kernel knows no such level.
    if level < 3 && effective.is_some_and(Effective::perfmon) {
        return Finding::ok(NAME, format!("{level}, which does not bind CAP_PERFMON"));
    }
    Finding::warn(
        NAME,
        format!("{level}, which may bar perf events for this user"),
        if level < 3 {
            "run it with sudo"
        } else {
            "run it with sudo, or: sudo sysctl kernel.perf_event_paranoid=2"
        },
    )
}

pub(super) fn sample_rate(root: &Root) -> Finding {
    const NAME: &str = "sample rate";
    let Some(rate) = root.number::<u64>("/proc/sys/kernel/perf_event_max_sample_rate") else {
        return Finding::ok(NAME, "perf_event_max_sample_rate is not visible from here");
    };
    let percent = root.number::<u32>("/proc/sys/kernel/perf_cpu_time_max_percent");
    let throttle = match percent {
        Some(0 | 100) => "the kernel never lowers it".to_owned(),
        Some(percent) => {
            format!("lowered by the kernel when sampling takes more than {percent} % of a CPU")
        }
        None => "when the kernel lowers it is not visible".to_owned(),
    };
    let cure = "sudo sysctl kernel.perf_event_max_sample_rate=100000";
    let found = format!("up to {rate}/s, {throttle}");
    match rate {
        RATE_HIGH.. => Finding::ok(NAME, found),
        RATE_ON.. => Finding::warn(
            NAME,
            format!("{found}: -p hi is raised to what it permits"),
            cure,
        ),
        _ => Finding::warn(
            NAME,
            format!("{found}: even -p on is raised to what it permits"),
            cure,
        ),
    }
}

pub(super) fn stack_depth(root: &Root) -> Finding {
    const NAME: &str = "stack depth";
    match root.number::<u32>("/proc/sys/kernel/perf_event_max_stack") {
        Some(depth) if depth < USUAL_DEPTH => Finding::warn(
            NAME,
            format!("{depth} frames: deeper stacks are cut off"),
            format!(
                "while no profiler runs: sudo sysctl kernel.perf_event_max_stack={USUAL_DEPTH}"
            ),
        ),
        Some(depth) => Finding::ok(NAME, format!("{depth} frames")),
        None => Finding::ok(NAME, "perf_event_max_stack is not visible from here"),
    }
}

pub(super) fn locked_memory(root: &Root) -> Finding {
    const NAME: &str = "locked memory";
    // `Max locked memory         8388608              8388608              bytes`: the soft limit
    // binds.
    let limits = root.text("/proc/self/limits").unwrap_or_default();
    let soft = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max locked memory"))
        .and_then(|line| line.split_whitespace().next());
    let Some(soft) = soft else {
        return Finding::ok(NAME, "RLIMIT_MEMLOCK is not visible from here");
    };
    let shown = soft
        .parse::<u64>()
        .map_or_else(|_| soft.to_owned(), |bytes| format!("{} KiB", bytes / 1024));
    if soft == "unlimited" || Effective::read(root).is_some_and(Effective::ipc_lock) {
        return Finding::ok(
            NAME,
            format!(
                "RLIMIT_MEMLOCK {shown}, which does not bind here (BPF never asks it since Linux 5.11)"
            ),
        );
    }
    // perf_mmap() lets through what fits the allowance of each user and CPU, and asks the limit for
    // the rest only.
    let allowance = root
        .number::<u64>("/proc/sys/kernel/perf_event_mlock_kb")
        .unwrap_or(RING_KIB);
    let found = format!("RLIMIT_MEMLOCK {shown}, and {allowance} KiB a CPU for perf's rings");
    if allowance >= RING_KIB {
        return Finding::ok(NAME, found);
    }
    Finding::warn(
        NAME,
        format!("{found}, of which kcollect takes {RING_KIB}"),
        format!("run it with sudo, or: sudo sysctl kernel.perf_event_mlock_kb={RING_KIB}"),
    )
}

pub(super) fn pmu(root: &Root) -> Finding {
    const DEVICES: [&str; 3] = ["cpu", "cpu_core", "armv8_pmuv3_0"];
    let found = DEVICES
        .iter()
        .find(|name| root.exists(&format!("/sys/bus/event_source/devices/{name}")));
    Finding::ok(
        "hardware counters",
        match found {
            Some(name) => format!("present ({name})"),
            None => {
                "none, as in many virtual machines; the clock profile does not need them".to_owned()
            }
        },
    )
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;
    use host::tree::Tree;

    const BPF_AND_PERFMON: &str = "Uid:\t1000\t1000\t1000\t1000\nCapEff:\t000000c000000000\n";

    #[test]
    fn paranoid_binds_only_without_the_capability() {
        let of = |level: &str, status: &str| {
            let tree = Tree::good()
                .file("/proc/sys/kernel/perf_event_paranoid", level)
                .file("/proc/self/status", status);
            paranoid(&tree.root())
        };
        assert_eq!(
            of("4\n", "CapEff:\t000001ffffffffff\n").verdict,
            Verdict::Ok
        );
        assert_eq!(of("-1\n", "CapEff:\t0\n").verdict, Verdict::Ok);
        assert_eq!(of("2\n", BPF_AND_PERFMON).verdict, Verdict::Ok);
        insta::assert_debug_snapshot!([
            of("3\n", BPF_AND_PERFMON),
            of("2\n", "CapEff:\t0\n"),
            paranoid(&Tree::new().root())
        ]);
    }

    #[test]
    fn a_lowered_sample_rate() {
        let of = |rate: &str| {
            sample_rate(
                &Tree::good()
                    .file("/proc/sys/kernel/perf_event_max_sample_rate", rate)
                    .root(),
            )
        };
        insta::assert_debug_snapshot!([of("63000\n"), of("500\n"), of("99\n")]);
    }

    #[test]
    fn locked_memory_binds_perf_rings_without_ipc_lock() {
        let user = || Tree::good().file("/proc/self/status", BPF_AND_PERFMON);
        let tight = user().file("/proc/sys/kernel/perf_event_mlock_kb", "128\n");
        insta::assert_debug_snapshot!([
            locked_memory(&Tree::good().root()),
            locked_memory(&user().root()),
            locked_memory(&tight.root()),
        ]);
    }

    #[test]
    fn a_shallow_stack_and_no_counters() {
        let tree = Tree::good()
            .file("/proc/sys/kernel/perf_event_max_stack", "64\n")
            .without("/sys/bus/event_source/devices/cpu");
        assert_eq!(stack_depth(&tree.root()).verdict, Verdict::Warn);
        assert_eq!(pmu(&tree.root()).verdict, Verdict::Ok);
    }
}
