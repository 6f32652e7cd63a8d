//! The check of capabilities: which of the ones needed for profiling this process does not have.
//!
//! It checks capabilities and not the user id: root in a container often does not have them, and a
//! program with file capabilities needs no root.

use host::exit::ExitKind;
use rustix::thread::CapabilitySet;

use super::{Finding, Root};

/// A capability that profiling needs.
struct RequiredCapability {
    name: &'static str,
    /// Any one of these is enough.
    any_of: CapabilitySet,
    /// What the recording misses without it. None: without it, no recording is possible.
    loss: Option<&'static str>,
}

const REQUIRED: [RequiredCapability; 5] = [
    RequiredCapability {
        name: "CAP_BPF",
        any_of: CapabilitySet::BPF.union(CapabilitySet::SYS_ADMIN),
        loss: None,
    },
    RequiredCapability {
        name: "CAP_PERFMON",
        any_of: CapabilitySet::PERFMON.union(CapabilitySet::SYS_ADMIN),
        loss: None,
    },
    RequiredCapability {
        name: "CAP_SYS_PTRACE",
        any_of: CapabilitySet::SYS_PTRACE,
        loss: Some("mappings of other users' processes"),
    },
    RequiredCapability {
        name: "CAP_SYSLOG",
        any_of: CapabilitySet::SYSLOG,
        loss: Some("kernel addresses"),
    },
    RequiredCapability {
        name: "CAP_DAC_READ_SEARCH",
        any_of: CapabilitySet::DAC_READ_SEARCH.union(CapabilitySet::DAC_OVERRIDE),
        loss: Some("files of other users"),
    },
];

/// The effective capabilities of this process.
#[derive(Clone, Copy)]
pub(super) struct EffectiveCapabilities(CapabilitySet);

impl EffectiveCapabilities {
    /// Reads them from `/proc/self/status`. None if it does not have them.
    pub(super) fn read(root: &Root) -> Option<Self> {
        let bits = u64::from_str_radix(&status_field(root, "CapEff:")?, 16).ok()?;
        Some(EffectiveCapabilities(CapabilitySet::from_bits_retain(bits)))
    }

    fn any(self, set: CapabilitySet) -> bool {
        self.0.intersects(set)
    }

    /// Returns whether `kernel.perf_event_paranoid` does not apply, not even the stricter levels of
    /// Debian and Ubuntu.
    pub(super) fn sys_admin(self) -> bool {
        self.any(CapabilitySet::SYS_ADMIN)
    }

    /// Returns whether the levels of `kernel.perf_event_paranoid` of the upstream kernel do not
    /// apply.
    pub(super) fn perfmon(self) -> bool {
        self.any(CapabilitySet::PERFMON | CapabilitySet::SYS_ADMIN)
    }

    /// Returns whether kernel addresses are visible if `kernel.kptr_restrict` is 0 or 1.
    pub(super) fn syslog(self) -> bool {
        self.any(CapabilitySet::SYSLOG)
    }

    /// Returns whether RLIMIT_MEMLOCK does not apply.
    pub(super) fn ipc_lock(self) -> bool {
        self.any(CapabilitySet::IPC_LOCK)
    }
}

fn status_field(root: &Root, field: &str) -> Option<String> {
    let status = root.text("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    // `Uid:` has four numbers, the second of which is the effective one; `CapEff:` has one.
    let words: Vec<&str> = line.split_whitespace().collect();
    words
        .get(1)
        .or(words.first())
        .map(|word| (*word).to_owned())
}

pub(super) fn capabilities(root: &Root) -> Finding {
    const NAME: &str = "privileges";
    let uid = status_field(root, "Uid:").unwrap_or_else(|| "unknown".to_owned());
    let Some(effective) = EffectiveCapabilities::read(root) else {
        return Finding::fail(
            NAME,
            ExitKind::NoPerm,
            "/proc/self/status cannot be read",
            "mount /proc: mount -t proc proc /proc",
        );
    };
    let missing: Vec<&RequiredCapability> = REQUIRED
        .iter()
        .filter(|required| !effective.any(required.any_of))
        .collect();
    if missing.is_empty() {
        return Finding::ok(
            NAME,
            format!("effective uid {uid}, with all required capabilities"),
        );
    }
    let names = missing
        .iter()
        .map(|required| required.name)
        .collect::<Vec<_>>();
    let found = format!("effective uid {uid}, without {}", names.join(", "));
    let hint = if uid == "0" {
        let flags: Vec<_> = names
            .iter()
            .map(|name| format!("--cap-add={}", name.trim_start_matches("CAP_")))
            .collect();
        format!(
            "root does not have them in a container: start the container with --privileged or {}",
            flags.join(" ")
        )
    } else {
        format!(
            "run kcollect with sudo, or once: sudo setcap {}+ep \"$(command -v kcollect)\"",
            REQUIRED
                .map(|required| required.name.to_lowercase())
                .join(",")
        )
    };
    if missing.iter().any(|required| required.loss.is_none()) {
        return Finding::fail(NAME, ExitKind::NoPerm, found, hint);
    }
    let lost: Vec<_> = missing
        .iter()
        .filter_map(|required| required.loss)
        .collect();
    Finding::warn(
        NAME,
        format!("{found}: the recording misses {}", lost.join(", ")),
        hint,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use host::tree::Tree;

    fn with(uid: &str, capabilities: CapabilitySet) -> Finding {
        let capabilities = capabilities.bits();
        let status = format!("Name:\tx\nUid:\t1000\t{uid}\t0\t0\nCapEff:\t{capabilities:016x}\n");
        capabilities_of(&status)
    }

    fn capabilities_of(status: &str) -> Finding {
        capabilities(&Tree::new().file("/proc/self/status", status).root())
    }

    #[test]
    fn missing_capabilities_are_named() {
        insta::assert_debug_snapshot!([
            with("1000", CapabilitySet::empty()),
            with("0", CapabilitySet::BPF | CapabilitySet::SYS_PTRACE),
            with(
                "1000",
                CapabilitySet::BPF | CapabilitySet::PERFMON | CapabilitySet::SYSLOG
            ),
            with(
                "1000",
                CapabilitySet::SYS_ADMIN
                    | CapabilitySet::SYSLOG
                    | CapabilitySet::SYS_PTRACE
                    | CapabilitySet::DAC_OVERRIDE
            ),
            capabilities_of("Uid:\nCapEff:\tzz\n"),
        ]);
    }
}
