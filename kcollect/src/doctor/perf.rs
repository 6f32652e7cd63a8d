//! Checks of what limits perf events: sysctls, locked memory, the hardware.

use counters::perf::refusal::core_pmu;

use super::privilege::EffectiveCapabilities;
use super::{Finding, Root};

/// Ticks per second and CPU at `-p hi` (997 µs) and at `-p on` (10.007 ms), rounded up.
const HIGH_TICKS_PER_SECOND: u64 = 1004;
const ON_TICKS_PER_SECOND: u64 = 100;

/// The size of the side-band's ring of one CPU: 128 pages of data and one of control. The kernel
/// permits exactly this size by default.
const RING_KIB: u64 = 516;

/// The kernel's default limit of frames in a stack (PERF_MAX_STACK_DEPTH).
const DEFAULT_STACK_FRAMES: u32 = 127;

pub(super) fn paranoid(root: &Root) -> Finding {
    const NAME: &str = "perf_event_paranoid";
    let Some(level) = root.number::<i32>("/proc/sys/kernel/perf_event_paranoid") else {
        return Finding::warn(
            NAME,
            "does not exist: this kernel has no perf events, or /proc/sys is hidden",
            "boot a kernel built with CONFIG_PERF_EVENTS=y; start a container with --privileged",
        );
    };
    // kcollect opens events of whole CPUs with kernel stacks, which perf_event_open(2) permits to
    // every user at 0 and below.
    if level <= 0 {
        return Finding::ok(
            NAME,
            format!("{level}, which permits perf events to every user"),
        );
    }
    let effective = EffectiveCapabilities::read(root);
    if effective.is_some_and(EffectiveCapabilities::sys_admin) {
        return Finding::ok(NAME, format!("{level}, which does not restrict root"));
    }
    // Debian forbids all perf events at 3 and Ubuntu at 4, except with CAP_SYS_ADMIN. The upstream
    // kernel has no such level.
    if level < 3 && effective.is_some_and(EffectiveCapabilities::perfmon) {
        return Finding::ok(
            NAME,
            format!("{level}, which does not restrict CAP_PERFMON"),
        );
    }
    Finding::warn(
        NAME,
        format!("{level}, which may forbid perf events to this user"),
        if level < 3 {
            "run kcollect with sudo"
        } else {
            "run kcollect with sudo, or: sudo sysctl kernel.perf_event_paranoid=2"
        },
    )
}

pub(super) fn sample_rate(root: &Root) -> Finding {
    const NAME: &str = "sample rate";
    let Some(rate) = root.number::<u64>("/proc/sys/kernel/perf_event_max_sample_rate") else {
        return Finding::ok(NAME, "unknown: perf_event_max_sample_rate cannot be read");
    };
    let percent = root.number::<u32>("/proc/sys/kernel/perf_cpu_time_max_percent");
    let throttle = match percent {
        Some(0 | 100) => "the kernel never lowers it".to_owned(),
        Some(percent) => {
            format!("the kernel lowers it if sampling takes more than {percent} % of a CPU")
        }
        None => "the kernel may lower it".to_owned(),
    };
    let hint = "sudo sysctl kernel.perf_event_max_sample_rate=100000";
    let found = format!("up to {rate}/s; {throttle}");
    match rate {
        HIGH_TICKS_PER_SECOND.. => Finding::ok(NAME, found),
        ON_TICKS_PER_SECOND.. => Finding::warn(
            NAME,
            format!("{found}: the interval of -p hi is lengthened to match"),
            hint,
        ),
        _ => Finding::warn(
            NAME,
            format!("{found}: even the interval of -p on is lengthened to match"),
            hint,
        ),
    }
}

pub(super) fn stack_depth(root: &Root) -> Finding {
    const NAME: &str = "stack depth";
    match root.number::<u32>("/proc/sys/kernel/perf_event_max_stack") {
        Some(frames) if frames < DEFAULT_STACK_FRAMES => Finding::warn(
            NAME,
            format!("{frames} frames: deeper kernel stacks are cut off"),
            format!(
                "while no profiler runs: sudo sysctl kernel.perf_event_max_stack={DEFAULT_STACK_FRAMES}"
            ),
        ),
        Some(frames) => Finding::ok(NAME, format!("{frames} frames")),
        None => Finding::ok(NAME, "unknown: perf_event_max_stack cannot be read"),
    }
}

pub(super) fn locked_memory(root: &Root) -> Finding {
    const NAME: &str = "locked memory";
    // `Max locked memory         8388608              8388608              bytes`: the first number
    // is the soft limit, which applies.
    let limits = root.text("/proc/self/limits").unwrap_or_default();
    let soft = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max locked memory"))
        .and_then(|line| line.split_whitespace().next());
    let Some(soft) = soft else {
        return Finding::ok(NAME, "unknown: RLIMIT_MEMLOCK cannot be read");
    };
    let shown = soft
        .parse::<u64>()
        .map_or_else(|_| soft.to_owned(), |bytes| format!("{} KiB", bytes / 1024));
    let is_exempt = EffectiveCapabilities::read(root).is_some_and(EffectiveCapabilities::ipc_lock);
    if soft == "unlimited" || is_exempt {
        return Finding::ok(
            NAME,
            format!("RLIMIT_MEMLOCK {shown}, which does not restrict this user"),
        );
    }
    // perf_mmap() permits what fits into the allowance of each user and CPU, and applies the limit
    // only to the rest. BPF maps do not count since Linux 5.11.
    let allowance = root
        .number::<u64>("/proc/sys/kernel/perf_event_mlock_kb")
        .unwrap_or(RING_KIB);
    let found = format!("RLIMIT_MEMLOCK {shown}, and {allowance} KiB per CPU for perf's rings");
    if allowance >= RING_KIB {
        return Finding::ok(NAME, found);
    }
    Finding::warn(
        NAME,
        format!("{found}; kcollect needs {RING_KIB} KiB per CPU"),
        format!("run kcollect with sudo, or: sudo sysctl kernel.perf_event_mlock_kb={RING_KIB}"),
    )
}

pub(super) fn pmu(root: &Root) -> Finding {
    Finding::ok(
        "hardware counters",
        match core_pmu(root) {
            Some(name) => format!("present ({name})"),
            None => "none, as in many virtual machines; only -h with hardware events needs them"
                .to_owned(),
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
    fn paranoid_restricts_only_without_the_capability() {
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
    fn locked_memory_restricts_perf_rings_without_ipc_lock() {
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
