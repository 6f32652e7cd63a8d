//! The filter of system calls that a recording never makes: a second line of defence, after
//! dropping capabilities.
//!
//! kcollect reads data of other users. If such data ever took control of a thread, the filter keeps
//! that thread from starting programs, opening network connections, tracing processes and changing
//! the machine. All other calls are permitted: a list of the permitted calls would differ with each
//! C library and kernel, and a call missing from it would fail in the middle of a recording.
//!
//! A filtered call fails with `EPERM`. The filter applies to the calling thread and the threads
//! that it starts, and therefore not to the load, which another thread starts (see
//! [`privileges`](super::privileges)).

use std::collections::BTreeMap;
use std::env::consts::ARCH;
use std::io;

use nix::libc;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, apply_filter};

/// The filtered calls, in groups: programs; other processes; the network; namespaces and mounts;
/// the kernel and its clocks; credentials; ways around a filter of system calls.
const FILTERED_CALLS: [libc::c_long; 42] = [
    libc::SYS_execve,
    libc::SYS_execveat,
    //
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_pidfd_getfd,
    libc::SYS_userfaultfd,
    //
    libc::SYS_socket,
    libc::SYS_socketpair,
    libc::SYS_connect,
    libc::SYS_bind,
    libc::SYS_listen,
    //
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_chroot,
    libc::SYS_pivot_root,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsmount,
    libc::SYS_mount_setattr,
    //
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_sethostname,
    //
    libc::SYS_setuid,
    libc::SYS_setgid,
    libc::SYS_setresuid,
    libc::SYS_setgroups,
    libc::SYS_add_key,
    libc::SYS_keyctl,
    //
    libc::SYS_io_uring_setup,
    libc::SYS_personality,
];

/// Installs the filter for the calling thread and the threads that it starts, permanently. The
/// thread must have `no_new_privs` or `CAP_SYS_ADMIN`.
///
/// # Errors
/// Errors of the kernel, which may be built without filters (`CONFIG_SECCOMP_FILTER`).
pub fn install_filter() -> io::Result<()> {
    let rules: BTreeMap<_, _> = FILTERED_CALLS
        .iter()
        .map(|call| (*call, Vec::new()))
        .collect();
    let others = SeccompAction::Allow;
    let filtered = SeccompAction::Errno(libc::EPERM.cast_unsigned());
    let filter = ARCH
        .try_into()
        .and_then(|arch| SeccompFilter::new(rules, others, filtered, arch))
        .and_then(BpfProgram::try_from)
        .map_err(io::Error::other)?;
    apply_filter(&filter).map_err(|error| match error {
        seccompiler::Error::Prctl(error) | seccompiler::Error::Seccomp(error) => error,
        error => io::Error::other(error),
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::net::TcpListener;
    use std::process::Command;
    use std::thread;

    use super::*;

    /// In a thread of its own, since the filter is permanent.
    #[test]
    fn programs_and_networks_are_filtered_and_files_are_not() {
        let refused = thread::spawn(|| {
            install_filter().unwrap();
            let program = Command::new("true").status().unwrap_err();
            let network = TcpListener::bind("127.0.0.1:0").unwrap_err();
            let file = fs::read_to_string("/proc/thread-self/status").unwrap();
            assert!(file.contains("Seccomp:\t2"), "{file}");
            let inherited = thread::spawn(|| TcpListener::bind("127.0.0.1:0").is_err());
            assert!(inherited.join().unwrap());
            [program, network].map(|error| error.raw_os_error())
        });
        let refused = refused.join().unwrap();
        assert_eq!(refused, [Some(libc::EPERM); 2]);
        assert!(Command::new("true").status().unwrap().success());
    }
}
