//! Imitations of machines, made of files, for tests.

#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot make its files has failed"
)]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use crate::Root;

/// A directory that imitates a machine. It is removed when this is dropped.
#[derive(Debug)]
pub struct Tree(tempfile::TempDir);

impl Tree {
    #[expect(
        clippy::new_without_default,
        reason = "`new` reads better before `file`"
    )]
    /// Returns an empty machine.
    #[must_use]
    pub fn new() -> Self {
        Tree(tempfile::tempdir().unwrap())
    }

    /// Returns a machine on which no check of the doctor fails.
    #[must_use]
    pub fn good() -> Self {
        Tree::new()
            .file("/proc/sys/kernel/osrelease", "6.12.9-amd64\n")
            .file(
                "/proc/self/status",
                "Uid:\t0\t0\t0\t0\nCapEff:\t000001ffffffffff\n",
            )
            .file("/proc/self/limits", LIMITS)
            .link("/proc/self/ns/pid", "pid:[4026531836]")
            .link("/proc/self/ns/user", "user:[4026531837]")
            .file(
                "/sys/kernel/security/lockdown",
                "[none] integrity confidentiality\n",
            )
            .file("/sys/kernel/btf/vmlinux", "\u{1}")
            .file("/proc/kallsyms", "ffffffff81000000 T _stext\n")
            .file("/proc/kcore", "\u{7f}ELF")
            .file("/proc/sys/kernel/kptr_restrict", "0\n")
            .file("/proc/sys/kernel/perf_event_paranoid", "2\n")
            .file("/proc/sys/kernel/perf_event_max_sample_rate", "100000\n")
            .file("/proc/sys/kernel/perf_cpu_time_max_percent", "25\n")
            .file("/proc/sys/kernel/perf_event_max_stack", "127\n")
            .file("/proc/sys/kernel/perf_event_mlock_kb", "516\n")
            .file("/proc/sys/kernel/unprivileged_bpf_disabled", "2\n")
            .file("/proc/sys/net/core/bpf_jit_enable", "1\n")
            .file("/proc/sys/net/core/bpf_jit_kallsyms", "1\n")
            .file("/proc/sys/net/core/bpf_jit_harden", "0\n")
            .file(
                "/sys/devices/system/clocksource/clocksource0/current_clocksource",
                "tsc\n",
            )
            .file(
                "/sys/devices/system/clocksource/clocksource0/available_clocksource",
                "tsc hpet acpi_pm\n",
            )
            .file("/sys/devices/system/cpu/possible", "0-3\n")
            .file("/sys/devices/system/cpu/online", "0-3\n")
            .file("/sys/bus/event_source/devices/cpu/type", "4\n")
            .file("/usr/bin/gprofng", "")
    }

    fn place(&self, path: &str) -> PathBuf {
        let place = self.0.path().join(path.trim_start_matches('/'));
        fs::create_dir_all(place.parent().unwrap()).unwrap();
        place
    }

    /// Writes a file.
    #[must_use]
    pub fn file(self, path: &str, text: &str) -> Self {
        fs::write(self.place(path), text).unwrap();
        self
    }

    /// Makes a symbolic link, in place of what is there.
    #[must_use]
    pub fn link(self, path: &str, target: &str) -> Self {
        let place = self.place(path);
        let _ = fs::remove_file(&place);
        symlink(target, place).unwrap();
        self
    }

    /// Removes a file or a directory.
    #[must_use]
    pub fn without(self, path: &str) -> Self {
        let place = self.place(path);
        if place.is_dir() {
            fs::remove_dir_all(place).unwrap()
        } else {
            fs::remove_file(place).unwrap()
        }
        self
    }

    /// Returns it as the root of `/proc` and `/sys`.
    #[must_use]
    pub fn root(&self) -> Root {
        Root::at(self.0.path())
    }
}

const LIMITS: &str = "\
Limit                     Soft Limit           Hard Limit           Units     \n\
Max file size             unlimited            unlimited            bytes     \n\
Max locked memory         8388608              8388608              bytes     \n";
