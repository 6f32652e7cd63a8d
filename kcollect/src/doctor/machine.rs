//! Checks of the machine around the kernel: namespaces, clock, CPUs, /proc/kcore, gprofng.

use bpf_abi::layout::CPUS_PER_RING;
use host::exit::ExitKind;
use host::machine::parse_cpu_list;
use user_collector::files::FREE_DESCRIPTORS;

use super::{Finding, Root};

/// Inodes of the initial namespaces, fixed in the kernel (linux/proc_ns.h: PROC_PID_INIT_INO,
/// PROC_USER_INIT_INO).
const INITIAL_PID_NAMESPACE: u64 = 0xEFFF_FFFC;
const INITIAL_USER_NAMESPACE: u64 = 0xEFFF_FFFD;

/// Approximate number of descriptors that a recording holds besides the CPUs' descriptors: BPF
/// programs and maps, signal pipes, files of the founder.
const BASE_DESCRIPTORS: u64 = 80;
/// Descriptors of a CPU: the clock's and the side-band's.
const CPU_DESCRIPTORS: u64 = 4;
/// Descriptors of a counter on one CPU.
const COUNTER_DESCRIPTORS: u64 = 3;

/// Returns how many files have to be open at once in a recording.
#[must_use]
pub fn descriptors_needed(online_cpus: u64, possible_cpus: u64, counters: u64) -> u64 {
    let of_cpu = CPU_DESCRIPTORS + COUNTER_DESCRIPTORS * counters;
    let rings = possible_cpus.div_ceil(CPUS_PER_RING.into());
    BASE_DESCRIPTORS + rings + of_cpu * online_cpus + FREE_DESCRIPTORS
}

/// How to permit `needed` open files.
#[must_use]
pub fn raise_open_files(needed: u64) -> String {
    let limit = needed.next_power_of_two();
    format!(
        "raise the hard limit: `ulimit -n {limit}` as root, or LimitNOFILE={limit} of a service"
    )
}

pub(super) fn open_files(root: &Root) -> Finding {
    const NAME: &str = "open files";
    // `Max open files            1024                 524288               files`: the second
    // number is the hard limit, to which kcollect raises the first.
    let limits = root.text("/proc/self/limits").unwrap_or_default();
    let hard: Option<u64> = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"))
        .and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
    let Some(hard) = hard else {
        return Finding::ok(NAME, "unknown: RLIMIT_NOFILE cannot be read");
    };
    let cpus = |which: &str| {
        let text = root.text(&format!("/sys/devices/system/cpu/{which}"))?;
        u64::try_from(count(&text)?).ok()
    };
    let online = cpus("online").unwrap_or(1);
    let needed = descriptors_needed(online, cpus("possible").unwrap_or(online), 0);
    let found = format!("{hard} at most, and a recording needs {needed}");
    if hard >= needed {
        Finding::ok(NAME, found)
    } else {
        Finding::fail(NAME, ExitKind::Unavailable, found, raise_open_files(needed))
    }
}

/// Returns the number in `pid:[4026531836]`.
fn namespace(root: &Root, which: &str) -> Option<u64> {
    let link = root.link(&format!("/proc/self/ns/{which}"))?;
    link.strip_prefix(which)?
        .strip_prefix(":[")?
        .strip_suffix(']')?
        .parse()
        .ok()
}

pub(super) fn pid_namespace(root: &Root) -> Finding {
    const NAME: &str = "pid namespace";
    match namespace(root, "pid") {
        Some(INITIAL_PID_NAMESPACE) => Finding::ok(NAME, "the initial one"),
        Some(_) => Finding::fail(
            NAME,
            ExitKind::Unavailable,
            "a container's: BPF programs see the process ids of the host, which differ from those in /proc here",
            "run kcollect outside of the container, or start the container with --pid=host",
        ),
        None => Finding::warn(
            NAME,
            "unknown: /proc/self/ns/pid cannot be read",
            "mount /proc: mount -t proc proc /proc",
        ),
    }
}

pub(super) fn user_namespace(root: &Root) -> Finding {
    const NAME: &str = "user namespace";
    match namespace(root, "user") {
        Some(INITIAL_USER_NAMESPACE) | None => Finding::ok(NAME, "the initial one"),
        Some(_) => Finding::fail(
            NAME,
            ExitKind::NoPerm,
            "a container's: its capabilities do not permit profiling the machine",
            "run kcollect outside of the rootless container, as root of the host",
        ),
    }
}

pub(super) fn clock_source(root: &Root) -> Finding {
    const NAME: &str = "clock source";
    const DIRECTORY: &str = "/sys/devices/system/clocksource/clocksource0";
    let Some(current) = root.text(&format!("{DIRECTORY}/current_clocksource")) else {
        return Finding::ok(NAME, "unknown: it cannot be read from /sys");
    };
    match current.as_str() {
        "tsc" | "kvm-clock" | "arch_sys_counter" | "xen" => Finding::ok(NAME, current),
        name if name.starts_with("hyperv_clocksource") => Finding::ok(NAME, current),
        _ => {
            let available = root
                .text(&format!("{DIRECTORY}/available_clocksource"))
                .unwrap_or_default();
            let hint = if available.split_whitespace().any(|name| name == "tsc") {
                format!("echo tsc | sudo tee {DIRECTORY}/current_clocksource")
            } else {
                "look in dmesg why the TSC is not used; firmware and hypervisor settings affect it"
                    .to_owned()
            };
            Finding::warn(
                NAME,
                format!("{current}: reading it is slow, and each tick reads it several times"),
                hint,
            )
        }
    }
}

pub(super) fn cpus(root: &Root) -> Finding {
    const NAME: &str = "CPUs";
    let list = |which: &str| {
        let text = root.text(&format!("/sys/devices/system/cpu/{which}"))?;
        let count = count(&text)?;
        Some(format!("{count} {which} ({text})"))
    };
    match (list("online"), list("possible")) {
        (Some(online), Some(possible)) => Finding::ok(NAME, format!("{online}, {possible}")),
        _ => Finding::warn(
            NAME,
            "/sys/devices/system/cpu does not list them",
            "mount it: mount -t sysfs sysfs /sys",
        ),
    }
}

/// Returns how many CPUs a list such as `0-3,8` names. None if it is empty or not a list.
fn count(list: &str) -> Option<usize> {
    let cpus = parse_cpu_list(list)?;
    (!cpus.is_empty()).then_some(cpus.len())
}

pub(super) fn kcore(root: &Root) -> Finding {
    const NAME: &str = "/proc/kcore";
    const WITHOUT: &str = "kernel functions cannot be disassembled; nothing else needs it";
    match root.head(NAME, 4) {
        Ok(magic) if magic == b"\x7fELF" => Finding::ok(NAME, "readable"),
        Ok(_) => Finding::warn(
            NAME,
            format!("not an ELF file: {WITHOUT}"),
            "run kcollect outside of the container",
        ),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Finding::warn(
            NAME,
            format!("does not exist: {WITHOUT}"),
            "boot a kernel built with CONFIG_PROC_KCORE=y",
        ),
        Err(_) => Finding::warn(
            NAME,
            format!("cannot be read: {WITHOUT}"),
            "run kcollect with sudo (it needs CAP_SYS_RAWIO, and no lockdown=confidentiality)",
        ),
    }
}

pub(super) fn gprofng(root: &Root) -> Finding {
    const NAME: &str = "gprofng";
    match root.program("gprofng") {
        Some(path) => Finding::ok(NAME, path.display().to_string()),
        None => Finding::warn(
            NAME,
            "not found; kcollect reports experiments without it",
            "sudo apt-get install binutils (on Fedora: sudo dnf install binutils-gprofng)",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;
    use host::tree::Tree;

    #[test]
    fn containers() {
        let tree = Tree::good()
            .link("/proc/self/ns/pid", "pid:[4026532281]")
            .link("/proc/self/ns/user", "user:[4026532279]");
        insta::assert_debug_snapshot!([pid_namespace(&tree.root()), user_namespace(&tree.root())]);
    }

    #[test]
    fn clocks() {
        let of = |current: &str, available: &str| {
            let directory = "/sys/devices/system/clocksource/clocksource0";
            let tree = Tree::new()
                .file(&format!("{directory}/current_clocksource"), current)
                .file(&format!("{directory}/available_clocksource"), available);
            clock_source(&tree.root())
        };
        assert_eq!(of("kvm-clock\n", "").verdict, Verdict::Ok);
        assert_eq!(of("hyperv_clocksource_tsc_page\n", "").verdict, Verdict::Ok);
        insta::assert_debug_snapshot!([
            of("hpet\n", "tsc hpet \n"),
            of("acpi_pm\n", "hpet acpi_pm \n")
        ]);
    }

    #[test]
    fn few_open_files_are_an_obstacle() {
        let of = |hard: u64| {
            let line = format!("Max open files            64                   {hard}   files");
            open_files(&Tree::good().file("/proc/self/limits", &line).root())
        };
        assert_eq!(descriptors_needed(4, 4, 0), 161);
        assert_eq!(descriptors_needed(4, 4, 2), 185);
        assert_eq!(of(161).found, "161 at most, and a recording needs 161");
        assert_eq!(of(161).verdict, Verdict::Ok);
        let few = of(160);
        assert_eq!(
            (few.verdict, few.kind),
            (Verdict::Fail, ExitKind::Unavailable)
        );
        assert_eq!(
            few.hint.as_deref(),
            Some("raise the hard limit: `ulimit -n 256` as root, or LimitNOFILE=256 of a service")
        );
    }

    #[test]
    fn cpu_lists() {
        assert_eq!(count("0-3,8,10-11"), Some(7));
        assert_eq!(count("0"), Some(1));
        assert_eq!(count("3-1"), None);
        assert_eq!(count(""), None);
        assert_eq!(count("0-4294967295"), None);
        let holes = Tree::good().file("/sys/devices/system/cpu/online", "0,2-3\n");
        assert_eq!(
            cpus(&holes.root()).found,
            "3 online (0,2-3), 4 possible (0-3)"
        );
    }

    #[test]
    fn missing_files_are_warnings() {
        let tree = Tree::good()
            .without("/proc/kcore")
            .without("/usr/bin/gprofng");
        insta::assert_debug_snapshot!([kcore(&tree.root()), gprofng(&tree.root())]);
        assert_eq!(
            kcore(&Tree::good().file("/proc/kcore", "").root()).verdict,
            Verdict::Warn
        );
    }
}
