//! What the programs need to know why a thread waits: see `c/cause.h` and `c/waking.bpf.c`.

use bpf_abi::layout::{CALL_READS, Cause, IO_CALLS};
use nix::libc;

use crate::KernelTypes;
use crate::kernel_types::Feature;

/// System calls whose number says why a thread waits in them, if nothing else does.
const CALLS: &[(Cause, &[libc::c_long])] = &[
    (
        Cause::Child,
        &[
            libc::SYS_wait4,
            libc::SYS_waitid,
            libc::SYS_clone,
            libc::SYS_clone3,
        ],
    ),
    (Cause::Lock, &[libc::SYS_flock, libc::SYS_fcntl]),
    (Cause::Answer, &[libc::SYS_connect]),
    (
        Cause::Write,
        &[
            libc::SYS_write,
            libc::SYS_writev,
            libc::SYS_pwrite64,
            libc::SYS_pwritev,
            libc::SYS_pwritev2,
            libc::SYS_sendto,
            libc::SYS_sendmsg,
            libc::SYS_sendmmsg,
            libc::SYS_sendfile,
            libc::SYS_splice,
            libc::SYS_tee,
            libc::SYS_vmsplice,
            libc::SYS_copy_file_range,
            libc::SYS_msgsnd,
            libc::SYS_mq_timedsend,
            libc::SYS_fsync,
            libc::SYS_fdatasync,
            libc::SYS_sync,
            libc::SYS_syncfs,
            libc::SYS_sync_file_range,
            libc::SYS_msync,
            libc::SYS_close,
            libc::SYS_shutdown,
        ],
    ),
    (
        Cause::Timer,
        &[libc::SYS_nanosleep, libc::SYS_clock_nanosleep],
    ),
    (Cause::NewWork, &[libc::SYS_accept, libc::SYS_accept4]),
];

/// System calls that take something out of what they read.
const READS: &[libc::c_long] = &[
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_preadv2,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    libc::SYS_msgrcv,
    libc::SYS_mq_timedreceive,
];

/// Returns what the programs know of each system call by its number.
pub(crate) fn of_calls() -> [u8; IO_CALLS] {
    let mut facts = [0; IO_CALLS];
    let mut set = |call: libc::c_long, fact: u8| {
        let known = usize::try_from(call).ok().and_then(|at| facts.get_mut(at));
        if let Some(known) = known {
            *known |= fact;
        }
    };
    for (cause, calls) in CALLS {
        calls.iter().for_each(|call| set(*call, *cause as u8));
    }
    #[cfg(target_arch = "x86_64")]
    set(libc::SYS_vfork, Cause::Child as u8);
    READS.iter().for_each(|call| set(*call, CALL_READS as u8));
    facts
}

/// Where a CPU's variables are, as distances from its run queue, modulo 2^64; 0: this kernel does
/// not have it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CpuVariables {
    pub(crate) preempt_count: u64,
    pub(crate) hrtimers: u64,
    pub(crate) timers: u64,
}

impl CpuVariables {
    pub(crate) fn of(types: &KernelTypes) -> CpuVariables {
        let distance = |name: &str| types.distance_from_run_queue(name);
        // Linux 6.2 to 6.14: a structure of the variables that are used most.
        let in_hot = || {
            let member = types.offset("pcpu_hot", "preempt_count")?;
            Some(distance("pcpu_hot")?.wrapping_add(member.into()))
        };
        CpuVariables {
            preempt_count: distance("__preempt_count").or_else(in_hot).unwrap_or(0),
            hrtimers: distance("hrtimer_bases").unwrap_or(0),
            timers: distance("timer_bases").unwrap_or(0),
        }
    }
}

/// Whether it can be told in which context a thread is woken: by another thread, or by an
/// interrupt. Otherwise wake-ups are not watched.
#[must_use]
pub(crate) fn can_watch_wakers(types: &KernelTypes) -> bool {
    let counted = cfg!(target_arch = "aarch64") || CpuVariables::of(types).preempt_count != 0;
    counted && types.has_tracepoint("sched_waking") && types.permits(Feature::Wakers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_has_one_cause() {
        let facts = of_calls();
        let fact = |call: libc::c_long| facts[usize::try_from(call).unwrap()];
        assert_eq!(fact(libc::SYS_wait4), Cause::Child as u8);
        assert_eq!(usize::from(fact(libc::SYS_read)), CALL_READS);
        assert_eq!(fact(libc::SYS_epoll_pwait), 0);
        let calls = CALLS.iter().flat_map(|(_, calls)| *calls).chain(READS);
        let mut all: Vec<_> = calls.collect();
        let listed = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), listed);
        // The number of no system call, and the one in which it is looked up.
        assert_eq!(facts[IO_CALLS - 1], 0);
    }
}
