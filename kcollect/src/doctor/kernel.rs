//! Checks of the kernel's configuration: version, BTF, lockdown, symbols, the BPF compiler.

use host::exit::ExitKind;

use super::privilege::EffectiveCapabilities;
use super::tested::{self, parse_version};
use super::{Finding, Root};

/// The oldest kernel that is tested, major and minor version.
const MIN_KERNEL_VERSION: (u32, u32) = (6, 1);

pub(super) fn version(root: &Root) -> Finding {
    const NAME: &str = "kernel";
    let (major, minor) = MIN_KERNEL_VERSION;
    let hint = format!("boot Linux {major}.{minor} or later");
    let Some(release) = root.text("/proc/sys/kernel/osrelease") else {
        return Finding::fail(
            NAME,
            ExitKind::Unavailable,
            "/proc is not mounted",
            "mount it: mount -t proc proc /proc",
        );
    };
    match parse_version(&release) {
        Some(version) if version >= MIN_KERNEL_VERSION => {
            let known = tested::describe(version);
            Finding::ok(NAME, format!("{release}, {known}"))
        }
        Some(_) => Finding::fail(
            NAME,
            ExitKind::Unavailable,
            format!("{release}, which is too old"),
            hint,
        ),
        None => Finding::warn(
            NAME,
            format!("{release}, which is not a version number"),
            hint,
        ),
    }
}

pub(super) fn btf(root: &Root) -> Finding {
    const NAME: &str = "BTF";
    const PATH: &str = "/sys/kernel/btf/vmlinux";
    if root.exists(PATH) {
        return Finding::ok(NAME, PATH);
    }
    let (found, hint) = if root.exists("/sys/kernel") {
        (
            format!("{PATH} does not exist"),
            "boot a kernel built with CONFIG_DEBUG_INFO_BTF=y, such as Debian's or Ubuntu's",
        )
    } else {
        (
            "/sys is not mounted".to_owned(),
            "mount it: mount -t sysfs sysfs /sys",
        )
    };
    Finding::fail(NAME, ExitKind::Unavailable, found, hint)
}

pub(super) fn lockdown(root: &Root) -> Finding {
    const NAME: &str = "lockdown";
    let Some(text) = root.text("/sys/kernel/security/lockdown") else {
        return Finding::ok(
            NAME,
            "none (not in this kernel, or securityfs is not mounted)",
        );
    };
    // The current mode is in brackets: "none [integrity] confidentiality".
    let mode = text.split(['[', ']']).nth(1).unwrap_or(&text);
    match mode {
        // It also forbids perf and BPF to read kernel memory (security.h: LOCKDOWN_BPF_READ_KERNEL,
        // LOCKDOWN_PERF).
        "confidentiality" => Finding::fail(
            NAME,
            ExitKind::Unavailable,
            "confidentiality, which forbids BPF to read kernel memory",
            "boot without lockdown=confidentiality on the kernel command line (lockdown=integrity works)",
        ),
        _ => Finding::ok(NAME, mode),
    }
}

pub(super) fn symbols(root: &Root) -> Finding {
    const NAME: &str = "kernel symbols";
    let restrict = root
        .text("/proc/sys/kernel/kptr_restrict")
        .unwrap_or_else(|| "unknown".to_owned());
    let Ok(head) = root.head("/proc/kallsyms", 4096) else {
        return Finding::warn(
            NAME,
            "/proc/kallsyms cannot be read: kernel functions will have no names",
            "boot a kernel built with CONFIG_KALLSYMS=y",
        );
    };
    // A hidden address is written as zeros. The first symbols may be per-CPU offsets, which are
    // small, but only one of them is 0.
    let visible = String::from_utf8_lossy(&head).lines().any(|line| {
        let address = line.split(' ').next().unwrap_or_default();
        address.len() >= 8 && address.bytes().any(|byte| byte != b'0')
    });
    if visible {
        return Finding::ok(
            NAME,
            format!("/proc/kallsyms has addresses (kernel.kptr_restrict = {restrict})"),
        );
    }
    let found = format!(
        "/proc/kallsyms hides addresses (kernel.kptr_restrict = {restrict}): kernel functions will have no names"
    );
    if EffectiveCapabilities::read(root).is_some_and(EffectiveCapabilities::syslog) {
        Finding::warn(NAME, found, "sudo sysctl kernel.kptr_restrict=1")
    } else {
        Finding::warn(NAME, found, "run kcollect with sudo, or with CAP_SYSLOG")
    }
}

pub(super) fn jit(root: &Root) -> Finding {
    const NAME: &str = "BPF compiler";
    match root.number::<u32>("/proc/sys/net/core/bpf_jit_enable") {
        Some(0) => Finding::warn(
            NAME,
            "off: BPF programs are interpreted, so that recording costs several times as much",
            "sudo sysctl net.core.bpf_jit_enable=1",
        ),
        Some(_) => Finding::ok(NAME, "on"),
        // The network namespace of a container does not have the sysctl. A kernel with
        // CONFIG_BPF_JIT_ALWAYS_ON does.
        None => Finding::ok(NAME, "unknown: the sysctl cannot be read"),
    }
}

pub(super) fn jit_symbols(root: &Root) -> Finding {
    const NAME: &str = "BPF symbols";
    let harden = root
        .number::<u32>("/proc/sys/net/core/bpf_jit_harden")
        .unwrap_or(0);
    match (
        harden,
        root.number::<u32>("/proc/sys/net/core/bpf_jit_kallsyms"),
    ) {
        (0, Some(0)) => Finding::warn(
            NAME,
            "off: BPF programs have no names in stacks",
            "sudo sysctl net.core.bpf_jit_kallsyms=1",
        ),
        // Hardening turns the symbols off, whatever their own sysctl is (bpf_jit_kallsyms_enabled
        // in linux/filter.h).
        (1.., _) => Finding::warn(
            NAME,
            format!(
                "off, because net.core.bpf_jit_harden = {harden}: BPF programs have no names in stacks"
            ),
            "sudo sysctl net.core.bpf_jit_harden=0, if the machine has no untrusted users",
        ),
        (_, Some(_)) => Finding::ok(NAME, "on"),
        (_, None) => Finding::ok(NAME, "unknown: the sysctl cannot be read"),
    }
}

pub(super) fn unprivileged_bpf(root: &Root) -> Finding {
    let found = match root.number::<u32>("/proc/sys/kernel/unprivileged_bpf_disabled") {
        Some(0) => "permitted; kcollect does not need it",
        Some(_) => "forbidden; kcollect does not need it",
        None => "unknown: the sysctl cannot be read",
    };
    Finding::ok("unprivileged BPF", found)
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;
    use host::tree::Tree;

    #[test]
    fn versions() {
        let verdict = |release: &str| {
            version(
                &Tree::new()
                    .file("/proc/sys/kernel/osrelease", release)
                    .root(),
            )
            .verdict
        };
        assert_eq!(verdict("5.15.0-97-generic\n"), Verdict::Fail);
        assert_eq!(verdict("6.1.0-18-amd64\n"), Verdict::Ok);
        assert_eq!(verdict("7.0.0\n"), Verdict::Ok);
        assert_eq!(verdict("custom\n"), Verdict::Warn);
    }

    #[test]
    fn lockdown_is_the_mode_in_brackets() {
        let of = |text: &str| {
            lockdown(
                &Tree::new()
                    .file("/sys/kernel/security/lockdown", text)
                    .root(),
            )
        };
        assert_eq!(
            of("none [integrity] confidentiality\n").verdict,
            Verdict::Ok
        );
        assert_eq!(
            of("none integrity [confidentiality]\n").kind,
            ExitKind::Unavailable
        );
        assert_eq!(lockdown(&Tree::new().root()).verdict, Verdict::Ok);
    }

    #[test]
    fn btf_distinguishes_a_missing_mount_from_a_missing_option() {
        insta::assert_debug_snapshot!([
            btf(&Tree::new().root()),
            btf(&Tree::new().file("/sys/kernel/x", "").root()),
        ]);
    }

    #[test]
    fn hidden_symbols() {
        let hidden = || {
            Tree::good().file(
                "/proc/kallsyms",
                "0000000000000000 A fixed_percpu_data\n0000000000000000 T _stext\n",
            )
        };
        let restricted = hidden().file("/proc/sys/kernel/kptr_restrict", "2\n");
        let unprivileged = hidden().file("/proc/self/status", "CapEff:\t0000008000000000\n");
        insta::assert_debug_snapshot!([
            symbols(&restricted.root()),
            symbols(&unprivileged.root()),
            symbols(&Tree::good().without("/proc/kallsyms").root()),
        ]);
        let offsets = Tree::good().file(
            "/proc/kallsyms",
            "0000000000000000 A first\nffffffff81000000 T _stext\n",
        );
        assert_eq!(symbols(&offsets.root()).verdict, Verdict::Ok);
    }

    #[test]
    fn the_sysctls_of_the_bpf_compiler() {
        let set = |name: &str, value: &str| {
            Tree::good().file(&format!("/proc/sys/net/core/{name}"), value)
        };
        assert_eq!(
            jit(&set("bpf_jit_enable", "0\n").root()).verdict,
            Verdict::Warn
        );
        assert_eq!(
            jit_symbols(&set("bpf_jit_kallsyms", "0\n").root()).verdict,
            Verdict::Warn
        );
        assert_eq!(
            jit_symbols(&set("bpf_jit_harden", "1\n").root()).verdict,
            Verdict::Warn
        );
        assert_eq!(jit(&Tree::new().root()).verdict, Verdict::Ok);
        assert_eq!(jit_symbols(&Tree::new().root()).verdict, Verdict::Ok);
    }
}
