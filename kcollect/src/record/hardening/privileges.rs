//! Dropping privileges once everything is open.
//!
//! kcollect is usually started as root, and then reads files and memory of all users for hours. So
//! before it reads the first of them, and before it starts the threads that read them, it drops the
//! capabilities that it does not need, permanently (with `no_new_privs`). Of the capabilities that
//! it has, it keeps
//!
//! * `BPF` and `PERFMON`: a CPU that comes online gets its clock and its side-band then, and unwind
//!   tables get their maps as they grow;
//! * `SYS_PTRACE`, `DAC_READ_SEARCH` and `CHECKPOINT_RESTORE`: the mappings and files of new
//!   processes of all users, from `/proc/PID/maps`, `map_files`, `root` and `mem`;
//! * `SYSLOG`: the addresses in `/proc/kallsyms`, which is read again for new modules;
//! * `SYS_NICE`: real-time priority for the [reader](crate::record::input::reader); `IPC_LOCK`: the
//!   ring of a CPU that comes online, beyond a user's allowance;
//! * `CHOWN`, `DAC_OVERRIDE` and `FOWNER`, only if the experiment, its directory or its group file
//!   belong to another user than the one it runs as, as under sudo: subexperiments are made in it,
//!   change their owner, and are removed if the start fails;
//! * `SYS_ADMIN`, only if `kernel.perf_event_paranoid` is above 2: on Debian and Ubuntu only this
//!   capability then opens perf events, also for a CPU that comes online.
//!
//! System calls that a recording never makes are filtered too ([`seccomp`]).
//!
//! **The load is not affected.** It has to start with exactly the privileges of kcollect's start.
//! But ambient capabilities are lost with permitted ones, `no_new_privs` and the filter are
//! inherited, and root could not execute another user's private program without `DAC_OVERRIDE`. All
//! these belong to a thread, not to the process. So the thread that starts the load
//! ([`host::load::Starter`]) is created before privileges are dropped, starts the load when it is
//! time, and exits. The bounding and inheritable sets are not changed: with `no_new_privs` they
//! restore nothing.
//!
//! Threads that exist already keep their privileges. So this has to run before all other threads
//! are created.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use host::{Root, machine};
use nix::unistd::geteuid;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_no_new_privs,
};

use super::seccomp;
use crate::plan::Place;

/// Capabilities that are always kept.
const ALWAYS_KEPT: CapabilitySet = CapabilitySet::BPF
    .union(CapabilitySet::PERFMON)
    .union(CapabilitySet::SYS_PTRACE)
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::CHECKPOINT_RESTORE)
    .union(CapabilitySet::SYSLOG)
    .union(CapabilitySet::SYS_NICE)
    .union(CapabilitySet::IPC_LOCK);

/// Capabilities that are kept if files belong to another user.
const KEPT_FOR_OTHER_OWNERS: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER);

/// The level of `kernel.perf_event_paranoid` above which only `SYS_ADMIN` opens perf events, on
/// distributions that have such levels.
const MAX_UPSTREAM_PARANOIA: i32 = 2;

/// The facts that decide which capabilities a recording keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Requirements {
    /// Files that are written, or their directory, belong to another user.
    pub other_owner: bool,
    /// Only `SYS_ADMIN` opens perf events.
    pub paranoid: bool,
}

impl Requirements {
    /// The requirements on this machine of a recording that writes to `place`.
    /// `probes_need_sys_admin`: it opens perf events for which only `SYS_ADMIN` suffices here.
    #[must_use]
    pub fn of(place: &Place, probes_need_sys_admin: bool) -> Requirements {
        let group = place.group.as_deref().map(|group| match group.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        });
        let has_other_owner = |directory: &Path| {
            fs::metadata(directory).is_ok_and(|found| found.uid() != geteuid().as_raw())
        };
        let level = Root::machine().number::<i32>("/proc/sys/kernel/perf_event_paranoid");
        Requirements {
            other_owner: machine::sudo_user().is_some()
                || has_other_owner(&place.directory)
                || group.is_some_and(has_other_owner),
            paranoid: level.is_some_and(|level| level > MAX_UPSTREAM_PARANOIA)
                || probes_need_sys_admin,
        }
    }

    fn kept(self) -> CapabilitySet {
        let mut kept = ALWAYS_KEPT;
        kept.set(KEPT_FOR_OTHER_OWNERS, self.other_owner);
        kept.set(CapabilitySet::SYS_ADMIN, self.paranoid);
        kept
    }
}

/// Drops the privileges that are not required, in the calling thread and the threads that it
/// starts.
///
/// # Errors
/// Errors of the kernel; some privileges may be dropped nevertheless.
pub fn drop_privileges(requirements: Requirements) -> io::Result<()> {
    let has = capabilities(None)?;
    set_capabilities(None, remaining(has, requirements))?;
    set_no_new_privs(true)?;
    seccomp::install_filter()
}

/// Returns what remains of the capabilities of a thread.
fn remaining(has: CapabilitySets, requirements: Requirements) -> CapabilitySets {
    CapabilitySets {
        effective: has.effective & requirements.kept(),
        permitted: has.permitted & requirements.kept(),
        inheritable: has.inheritable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONLY_OWN_FILES: Requirements = Requirements {
        other_owner: false,
        paranoid: false,
    };

    fn remaining_of_root(requirements: Requirements) -> CapabilitySets {
        let all = CapabilitySet::from_bits_retain((1 << 41) - 1);
        let has = CapabilitySets {
            effective: all,
            permitted: all,
            inheritable: CapabilitySet::CHOWN,
        };
        remaining(has, requirements)
    }

    #[test]
    fn root_with_its_own_files_keeps_eight_capabilities() {
        let left = remaining_of_root(ONLY_OWN_FILES);
        assert_eq!(left.permitted.bits().count_ones(), 8);
        assert_eq!(left.effective, left.permitted);
        assert_eq!(left.inheritable, CapabilitySet::CHOWN);
        assert!(
            !left
                .permitted
                .intersects(KEPT_FOR_OTHER_OWNERS | CapabilitySet::SYS_ADMIN)
        );
    }

    #[test]
    fn capabilities_for_other_owners_and_paranoia_are_kept() {
        let other_owner = Requirements {
            other_owner: true,
            ..ONLY_OWN_FILES
        };
        let left = remaining_of_root(other_owner).permitted;
        assert!(left.contains(KEPT_FOR_OTHER_OWNERS));
        let paranoid = Requirements {
            paranoid: true,
            ..ONLY_OWN_FILES
        };
        let left = remaining_of_root(paranoid).permitted;
        assert!(left.contains(CapabilitySet::SYS_ADMIN));
        assert!(!left.intersects(KEPT_FOR_OTHER_OWNERS));
    }

    #[test]
    fn no_capability_is_added() {
        let five = CapabilitySet::BPF | CapabilitySet::PERFMON;
        let has = CapabilitySets {
            effective: CapabilitySet::BPF,
            permitted: five,
            inheritable: CapabilitySet::empty(),
        };
        assert_eq!(remaining(has, ONLY_OWN_FILES), has);
    }
}
