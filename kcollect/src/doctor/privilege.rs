//! Whether this process has the capabilities that profiling needs, and which one is missing.
//!
//! Capabilities are asked, not the user id: root in a container often lacks them, and a binary with
//! file capabilities needs no root.

use host::exit::ExitKind;

use super::{Finding, Root};

/// A capability, and what is lost without it.
struct Needed {
    name: &'static str,
    /// Bits of the effective set of which any one is enough (linux/capability.h).
    bits: &'static [u32],
    /// None: no recording without it.
    loses: Option<&'static str>,
}

const CAP_DAC_OVERRIDE: u32 = 1;
const CAP_DAC_READ_SEARCH: u32 = 2;
const CAP_IPC_LOCK: u32 = 14;
const CAP_SYS_PTRACE: u32 = 19;
const CAP_SYS_ADMIN: u32 = 21;
const CAP_SYSLOG: u32 = 34;
const CAP_PERFMON: u32 = 38;
const CAP_BPF: u32 = 39;

const NEEDED: [Needed; 5] = [
    Needed {
        name: "CAP_BPF",
        bits: &[CAP_BPF, CAP_SYS_ADMIN],
        loses: None,
    },
    Needed {
        name: "CAP_PERFMON",
        bits: &[CAP_PERFMON, CAP_SYS_ADMIN],
        loses: None,
    },
    Needed {
        name: "CAP_SYS_PTRACE",
        bits: &[CAP_SYS_PTRACE],
        loses: Some("maps of other users' processes"),
    },
    Needed {
        name: "CAP_SYSLOG",
        bits: &[CAP_SYSLOG],
        loses: Some("kernel addresses"),
    },
    Needed {
        name: "CAP_DAC_READ_SEARCH",
        bits: &[CAP_DAC_READ_SEARCH, CAP_DAC_OVERRIDE],
        loses: Some("files of other users"),
    },
];

/// The effective capabilities of this process.
#[derive(Clone, Copy)]
pub(super) struct Effective(u64);

impl Effective {
    /// None where /proc does not say.
    pub(super) fn read(root: &Root) -> Option<Self> {
        u64::from_str_radix(&status_field(root, "CapEff:")?, 16)
            .ok()
            .map(Effective)
    }

    fn any(self, bits: &[u32]) -> bool {
        bits.iter().any(|bit| self.0 >> bit & 1 == 1)
    }

    /// Not bound by `kernel.perf_event_paranoid`, also where Debian and Ubuntu have made that
    /// stricter.
    pub(super) fn admin(self) -> bool {
        self.any(&[CAP_SYS_ADMIN])
    }

    /// Not bound by `kernel.perf_event_paranoid` of the plain kernel.
    pub(super) fn perfmon(self) -> bool {
        self.any(&[CAP_PERFMON, CAP_SYS_ADMIN])
    }

    /// Sees kernel addresses where `kernel.kptr_restrict` is 0 or 1.
    pub(super) fn syslog(self) -> bool {
        self.any(&[CAP_SYSLOG])
    }

    /// Not bound by RLIMIT_MEMLOCK.
    pub(super) fn ipc_lock(self) -> bool {
        self.any(&[CAP_IPC_LOCK])
    }
}

fn status_field(root: &Root, field: &str) -> Option<String> {
    let status = root.text("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    // Of `Uid:` the second of four is the effective one; `CapEff:` has one word.
    let words: Vec<&str> = line.split_whitespace().collect();
    words
        .get(1)
        .or(words.first())
        .map(|word| (*word).to_owned())
}

pub(super) fn capabilities(root: &Root) -> Finding {
    const NAME: &str = "privileges";
    let uid = status_field(root, "Uid:").unwrap_or_else(|| "unknown".to_owned());
    let Some(effective) = Effective::read(root) else {
        return Finding::fail(
            NAME,
            ExitKind::NoPerm,
            "/proc/self/status cannot be read",
            "mount /proc: mount -t proc proc /proc",
        );
    };
    let missing: Vec<&Needed> = NEEDED
        .iter()
        .filter(|needed| !effective.any(needed.bits))
        .collect();
    if missing.is_empty() {
        return Finding::ok(
            NAME,
            format!("effective uid {uid}, with all capabilities needed"),
        );
    }
    let names = missing.iter().map(|needed| needed.name).collect::<Vec<_>>();
    let found = format!("effective uid {uid}, without {}", names.join(", "));
    let cure = if uid == "0" {
        let flags: Vec<_> = names
            .iter()
            .map(|name| format!("--cap-add={}", name.trim_start_matches("CAP_")))
            .collect();
        format!(
            "root without them is root in a container: start that with --privileged or {}",
            flags.join(" ")
        )
    } else {
        format!(
            "run it with sudo, or once: sudo setcap {}+ep \"$(command -v kcollect)\"",
            NEEDED.map(|needed| needed.name.to_lowercase()).join(",")
        )
    };
    if missing.iter().any(|needed| needed.loses.is_none()) {
        return Finding::fail(NAME, ExitKind::NoPerm, found, cure);
    }
    let lost: Vec<_> = missing.iter().filter_map(|needed| needed.loses).collect();
    Finding::warn(NAME, format!("{found}: lost are {}", lost.join(", ")), cure)
}

#[cfg(test)]
mod tests {
    use super::*;
    use host::tree::Tree;

    fn with(uid: &str, capabilities: u64) -> Finding {
        let status = format!("Name:\tx\nUid:\t1000\t{uid}\t0\t0\nCapEff:\t{capabilities:016x}\n");
        capabilities_of(&status)
    }

    fn capabilities_of(status: &str) -> Finding {
        capabilities(&Tree::new().file("/proc/self/status", status).root())
    }

    #[test]
    fn names_what_is_missing() {
        insta::assert_debug_snapshot!([
            with("1000", 0),
            with("0", 1 << CAP_BPF | 1 << CAP_SYS_PTRACE),
            with("1000", 1 << CAP_BPF | 1 << CAP_PERFMON | 1 << CAP_SYSLOG),
            with(
                "1000",
                1 << CAP_SYS_ADMIN | 1 << CAP_SYSLOG | 1 << CAP_SYS_PTRACE | 1 << CAP_DAC_OVERRIDE
            ),
            capabilities_of("Uid:\nCapEff:\tzz\n"),
        ]);
    }
}
