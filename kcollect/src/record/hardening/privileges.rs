//! What kcollect may still do once all is open: no more than it needs.
//!
//! It is started as root, mostly, and then reads files and memory of whoever runs on the machine,
//! for hours. So before the first of them is read, and before the threads that read them are born,
//! it gives up what it has no use for, for good (`no_new_privs` too). Kept, of what it has, are
//!
//! * `BPF` and `PERFMON`: a CPU that comes online gets its clock and its side-band then, and unwind
//!   tables their maps as they grow;
//! * `SYS_PTRACE`, `DAC_READ_SEARCH` and `CHECKPOINT_RESTORE`: the maps and files of processes that
//!   come, by `/proc/PID/maps`, `map_files`, `root` and `mem`, whosever they are;
//! * `SYSLOG`: the addresses in `/proc/kallsyms`, read again for modules that came;
//! * `SYS_NICE`: to read the rings before others ([`crate::record::input::reader`]); `IPC_LOCK`: a ring for a CPU
//!   that comes, beyond a user's allowance;
//! * `CHOWN`, `DAC_OVERRIDE` and `FOWNER`, but only where the experiment, its directory or its
//!   group file are somebody else's than the user it runs as, under sudo above all: subexperiments
//!   are made in it, handed over, and taken back if the start fails;
//! * `SYS_ADMIN`, but only where `kernel.perf_event_paranoid` is above 2: Debian and Ubuntu then
//!   let nothing else open a perf event, nor for a CPU that comes.
//!
//! And system calls that a recording never makes are refused ([`crate::record::hardening::seccomp`]).
//!
//! **The load gets none of this.** It is to start with exactly what kcollect was started with, and
//! capabilities that are ambient are lost with permitted ones, `no_new_privs` and the refusals are
//! inherited, and root itself could not execute another user's private program without
//! `DAC_OVERRIDE`. All of that is a thread's own, not the process's. So the thread that starts the
//! load ([`host::load::Starter`]) is born before this, starts it when it is time, and ends. The
//! bounding and inheritable sets stay as they are: with `no_new_privs` they give nothing back.
//!
//! This refuses to guess about threads: those that are there already keep what they have, which is
//! why it has to be called before all but that one.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use host::machine;
use nix::unistd::geteuid;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_no_new_privs,
};

use super::seccomp;
use crate::plan::Plan;

const ALWAYS: CapabilitySet = CapabilitySet::BPF
    .union(CapabilitySet::PERFMON)
    .union(CapabilitySet::SYS_PTRACE)
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::CHECKPOINT_RESTORE)
    .union(CapabilitySet::SYSLOG)
    .union(CapabilitySet::SYS_NICE)
    .union(CapabilitySet::IPC_LOCK);

const FOR_OTHERS: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER);

/// The level above which only `SYS_ADMIN` opens perf events, on distributions that have such
/// levels.
const ORDINARY_PARANOIA: i32 = 2;

/// What a recording needs from here on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs {
    /// What is written belongs to somebody else, or lies in a directory that does.
    pub for_others: bool,
    /// Perf events are opened by `SYS_ADMIN` alone.
    pub paranoid: bool,
}

impl Needs {
    /// Those of a plan, on this machine.
    #[must_use]
    pub fn of(plan: &Plan) -> Needs {
        let group = plan.group.as_deref().map(|group| match group.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        });
        let others = |directory: &Path| {
            fs::metadata(directory).is_ok_and(|found| found.uid() != geteuid().as_raw())
        };
        let level = fs::read_to_string("/proc/sys/kernel/perf_event_paranoid");
        let level = level.ok().and_then(|text| text.trim().parse::<i32>().ok());
        Needs {
            for_others: machine::sudo_user().is_some()
                || others(&plan.directory)
                || group.is_some_and(others),
            paranoid: level.is_some_and(|level| level > ORDINARY_PARANOIA),
        }
    }

    fn kept(self) -> CapabilitySet {
        let mut kept = ALWAYS;
        kept.set(FOR_OTHERS, self.for_others);
        kept.set(CapabilitySet::SYS_ADMIN, self.paranoid);
        kept
    }
}

/// Gives up, in the calling thread and those that it makes, what is not needed.
///
/// # Errors
/// What the kernel says; something may be given up even so.
pub fn give_up(needs: Needs) -> io::Result<()> {
    let has = capabilities(None)?;
    set_capabilities(None, left(has, needs))?;
    set_no_new_privs(true)?;
    seccomp::refuse()
}

fn left(has: CapabilitySets, needs: Needs) -> CapabilitySets {
    CapabilitySets {
        effective: has.effective & needs.kept(),
        permitted: has.permitted & needs.kept(),
        inheritable: has.inheritable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALONE: Needs = Needs {
        for_others: false,
        paranoid: false,
    };

    fn of_root(needs: Needs) -> CapabilitySets {
        let all = CapabilitySet::from_bits_retain((1 << 41) - 1);
        let has = CapabilitySets {
            effective: all,
            permitted: all,
            inheritable: CapabilitySet::CHOWN,
        };
        left(has, needs)
    }

    #[test]
    fn root_without_others_keeps_eight() {
        let left = of_root(ALONE);
        assert_eq!(left.permitted.bits().count_ones(), 8);
        assert_eq!(left.effective, left.permitted);
        assert_eq!(left.inheritable, CapabilitySet::CHOWN);
        assert!(
            !left
                .permitted
                .intersects(FOR_OTHERS | CapabilitySet::SYS_ADMIN)
        );
    }

    #[test]
    fn what_is_needed_for_others_or_by_paranoia_is_kept() {
        let for_others = Needs {
            for_others: true,
            ..ALONE
        };
        assert!(of_root(for_others).permitted.contains(FOR_OTHERS));
        let paranoid = Needs {
            paranoid: true,
            ..ALONE
        };
        let left = of_root(paranoid).permitted;
        assert!(left.contains(CapabilitySet::SYS_ADMIN) && !left.intersects(FOR_OTHERS));
    }

    #[test]
    fn nothing_is_gained() {
        let five = CapabilitySet::BPF | CapabilitySet::PERFMON;
        let has = CapabilitySets {
            effective: CapabilitySet::BPF,
            permitted: five,
            inheritable: CapabilitySet::empty(),
        };
        assert_eq!(left(has, ALONE), has);
    }
}
