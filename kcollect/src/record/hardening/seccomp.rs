//! System calls that a recording never makes, refused by the kernel: the second wall, behind
//! capabilities that are gone.
//!
//! What kcollect reads is other people's, and should any of it ever turn a reader into the reader's
//! tool, that tool starts no program, opens no network, takes hold of no process, and changes
//! nothing of the machine. All else is allowed: a list of what is needed would be another one for
//! each C library and kernel, and who finds out that it lacks something is somebody in the middle
//! of a recording.
//!
//! Such a call fails with `EPERM`. The filter is a thread's, and of those that it makes from then
//! on; so it does not reach the load, which is another thread's to start (see
//! [`crate::record::hardening::privileges`]).

use std::collections::BTreeMap;
use std::env::consts::ARCH;
use std::io;

use nix::libc;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, apply_filter};

/// They come in groups: programs; other processes; the network; namespaces and mounts; the kernel
/// and its clocks; who one is; and ways around a filter of system calls.
const NEVER: [libc::c_long; 42] = [
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

/// Refuses them to the calling thread and to those that it makes, for good. It must have
/// `no_new_privs` or `CAP_SYS_ADMIN`.
///
/// # Errors
/// What the kernel says: it may have no such filters (`CONFIG_SECCOMP_FILTER`).
pub fn refuse() -> io::Result<()> {
    let rules: BTreeMap<_, _> = NEVER.iter().map(|call| (*call, Vec::new())).collect();
    let (other, these) = (
        SeccompAction::Allow,
        SeccompAction::Errno(libc::EPERM.cast_unsigned()),
    );
    let filter = ARCH
        .try_into()
        .and_then(|arch| SeccompFilter::new(rules, other, these, arch))
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

    /// In a thread of its own: it is for good.
    #[test]
    fn no_program_and_no_network_and_all_else() {
        let refused = thread::spawn(|| {
            refuse().unwrap();
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
