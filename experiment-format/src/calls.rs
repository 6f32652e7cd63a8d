//! The system calls of an experiment: their numbers in `iotrace`, and what each does to which
//! descriptor.
//!
//! Numbers are from the processor that this is built for, and for 32-bit programs on x86-64 from
//! `arch/x86/entry/syscalls/syscall_32.tbl`. Operations of `io_uring` have numbers and names of
//! their own (`include/uapi/linux/io_uring.h`). Calls that wait for descriptors (poll, select,
//! epoll_wait) move no bytes and are left out, as gprofng's own recorder leaves them out; so are
//! mappings of files.
//!
//! In an experiment a call has its number in 64-bit programs. A call that only 32-bit programs have
//! has their number plus [`CALLS_PER_TABLE`], and an operation of `io_uring` its number plus twice
//! as many.

use std::sync::LazyLock;

use nix::libc;

/// Calls with a number below this one can be recorded, of each of the three kinds of numbers.
pub const CALLS_PER_TABLE: usize = 512;
/// Number of kinds of numbers.
const TABLES: usize = 3;

/// A system call that changes what memory a process may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryCall {
    /// `mmap`.
    Map,
    /// `munmap`.
    Unmap,
    /// `mremap`.
    Remap,
    /// `mprotect`.
    Protect,
    /// `brk`.
    Break,
}

/// The action of a call. Its descriptor is the first argument unless another one is named here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A read; the result is its byte count.
    Read,
    /// A write; the result is its byte count.
    Write,
    /// A read of several messages; the result is their number.
    ReadMessages,
    /// A write of several messages; the result is their number.
    WriteMessages,
    /// A transfer between two descriptors; the result is its byte count.
    Transfer {
        /// Index of the argument with the descriptor that is read.
        from: usize,
        /// Index of the argument with the descriptor that is written.
        to: usize,
    },
    /// An open of a path; the result is the descriptor.
    Open,
    /// An open of a path relative to a directory's descriptor; the result is the descriptor.
    OpenAt,
    /// An open or the creation of something whose name is looked up; the result is the descriptor.
    /// This is its name if it is gone.
    Find(&'static str),
    /// The creation of something without a path, which gets this name; the result is the
    /// descriptor.
    Make(&'static str),
    /// `memfd_create`; the result is the descriptor.
    MakeMemory,
    /// The creation of a socket; the result is the descriptor.
    Socket,
    /// The acceptance of a connection; the result is the descriptor.
    Accept,
    /// The creation of two descriptors, which get this name.
    Pair(&'static str),
    /// The duplication of a descriptor; the result is the new one.
    Duplicate,
    /// `fcntl`, which may duplicate the descriptor.
    Control,
    /// A close.
    Close,
    /// A close of all descriptors from the first argument to the second one.
    CloseRange,
    /// The assignment of a socket's own address.
    Bind,
    /// The assignment of the address of a socket's peer.
    Connect,
    /// A change of the working directory to a path.
    ChangeDirectory,
    /// A change of the working directory to a descriptor's directory.
    ChangeDirectoryTo,
    /// Another operation on a descriptor.
    Other,
    /// Another operation, without a descriptor.
    OtherPath,
    /// A change of the memory that the process may use. No I/O: traced by `-H growth`.
    Memory(MemoryCall),
}

/// A system call that is traced.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// Its name.
    pub name: &'static str,
    /// Its number.
    pub number: i64,
    /// Its number in a 32-bit program; −1 if it has none.
    compat: i64,
    /// Its action.
    pub action: Action,
}

impl Call {
    /// The call's number in an experiment, if a program calls it by `number`, which counts through
    /// all tables.
    #[must_use]
    pub fn recorded_number(&self, number: u32) -> u32 {
        u32::try_from(self.number).unwrap_or(number)
    }
}

/// A row for each call: name, number in a 32-bit program, action.
macro_rules! calls {
    ($($name:ident $symbol:ident $compat:literal $action:expr;)*) => {
        [$(Call {
            name: stringify!($name),
            number: libc::$symbol,
            compat: $compat,
            action: $action,
        }),*]
    };
}

use Action::{
    Accept, Bind, ChangeDirectory, ChangeDirectoryTo, Close, CloseRange, Connect, Control,
    Duplicate, Find, Make, MakeMemory, Memory, Open, OpenAt, Other, OtherPath, Pair, Read,
    ReadMessages, Socket, Transfer, Write, WriteMessages,
};

const CALLS: [Call; 83] = calls! {
    read SYS_read 3 Read;
    pread64 SYS_pread64 180 Read;
    readv SYS_readv 145 Read;
    preadv SYS_preadv 333 Read;
    preadv2 SYS_preadv2 378 Read;
    recvfrom SYS_recvfrom 371 Read;
    recvmsg SYS_recvmsg 372 Read;
    write SYS_write 4 Write;
    pwrite64 SYS_pwrite64 181 Write;
    writev SYS_writev 146 Write;
    pwritev SYS_pwritev 334 Write;
    pwritev2 SYS_pwritev2 379 Write;
    sendto SYS_sendto 369 Write;
    sendmsg SYS_sendmsg 370 Write;
    vmsplice SYS_vmsplice 316 Write;
    sendfile SYS_sendfile 187 Transfer { from: 1, to: 0 };
    splice SYS_splice 313 Transfer { from: 0, to: 2 };
    tee SYS_tee 315 Transfer { from: 0, to: 1 };
    copy_file_range SYS_copy_file_range 377 Transfer { from: 0, to: 2 };
    openat SYS_openat 295 OpenAt;
    openat2 SYS_openat2 437 OpenAt;
    memfd_create SYS_memfd_create 356 MakeMemory;
    eventfd2 SYS_eventfd2 328 Make("eventfd");
    epoll_create1 SYS_epoll_create1 329 Make("epoll");
    timerfd_create SYS_timerfd_create 322 Make("timerfd");
    signalfd4 SYS_signalfd4 327 Make("signalfd");
    inotify_init1 SYS_inotify_init1 332 Make("inotify");
    pidfd_open SYS_pidfd_open 434 Make("pidfd");
    pidfd_getfd SYS_pidfd_getfd 438 Find("file of another process");
    io_uring_setup SYS_io_uring_setup 425 Make("io_uring");
    socket SYS_socket 359 Socket;
    socketpair SYS_socketpair 360 Pair("socketpair");
    accept SYS_accept -1 Accept;
    accept4 SYS_accept4 364 Accept;
    pipe2 SYS_pipe2 331 Pair("pipe");
    dup SYS_dup 41 Duplicate;
    dup3 SYS_dup3 330 Duplicate;
    fcntl SYS_fcntl 55 Control;
    close SYS_close 6 Close;
    close_range SYS_close_range 436 CloseRange;
    bind SYS_bind 361 Bind;
    connect SYS_connect 362 Connect;
    chdir SYS_chdir 12 ChangeDirectory;
    fchdir SYS_fchdir 133 ChangeDirectoryTo;
    lseek SYS_lseek 19 Other;
    fsync SYS_fsync 118 Other;
    fdatasync SYS_fdatasync 148 Other;
    syncfs SYS_syncfs 344 Other;
    sync_file_range SYS_sync_file_range 314 Other;
    flock SYS_flock 143 Other;
    ftruncate SYS_ftruncate 93 Other;
    fallocate SYS_fallocate 324 Other;
    fadvise64 SYS_fadvise64 250 Other;
    readahead SYS_readahead 225 Other;
    fstatfs SYS_fstatfs 100 Other;
    fstat SYS_fstat 108 Other;
    fchmod SYS_fchmod 94 Other;
    fchown SYS_fchown 95 Other;
    getdents64 SYS_getdents64 220 Other;
    ioctl SYS_ioctl 54 Other;
    listen SYS_listen 363 Other;
    shutdown SYS_shutdown 373 Other;
    recvmmsg SYS_recvmmsg 337 ReadMessages;
    sendmmsg SYS_sendmmsg 345 WriteMessages;
    io_uring_enter SYS_io_uring_enter 426 Other;
    io_submit SYS_io_submit 248 OtherPath;
    io_getevents SYS_io_getevents 247 OtherPath;
    sync SYS_sync 36 OtherPath;
    statfs SYS_statfs 99 OtherPath;
    statx SYS_statx 383 OtherPath;
    faccessat SYS_faccessat 307 OtherPath;
    faccessat2 SYS_faccessat2 439 OtherPath;
    fchmodat SYS_fchmodat 306 OtherPath;
    fchownat SYS_fchownat 298 OtherPath;
    renameat SYS_renameat 302 OtherPath;
    renameat2 SYS_renameat2 353 OtherPath;
    mkdirat SYS_mkdirat 296 OtherPath;
    unlinkat SYS_unlinkat 301 OtherPath;
    linkat SYS_linkat 303 OtherPath;
    symlinkat SYS_symlinkat 304 OtherPath;
    readlinkat SYS_readlinkat 305 OtherPath;
    truncate SYS_truncate 92 OtherPath;
    utimensat SYS_utimensat 320 OtherPath;
};

/// Calls that change what memory a process may use. A 32-bit program's `old_mmap` has its arguments
/// in memory, and is left out.
const MEMORY_CALLS: [Call; 5] = calls! {
    mmap SYS_mmap 192 Memory(MemoryCall::Map);
    munmap SYS_munmap 91 Memory(MemoryCall::Unmap);
    mremap SYS_mremap 163 Memory(MemoryCall::Remap);
    mprotect SYS_mprotect 125 Memory(MemoryCall::Protect);
    brk SYS_brk 45 Memory(MemoryCall::Break);
};

/// Calls that newer architectures do not have.
#[cfg(target_arch = "x86_64")]
const OLD_CALLS: [Call; 25] = calls! {
    open SYS_open 5 Open;
    creat SYS_creat 8 Open;
    eventfd SYS_eventfd 323 Make("eventfd");
    epoll_create SYS_epoll_create 254 Make("epoll");
    signalfd SYS_signalfd 321 Make("signalfd");
    inotify_init SYS_inotify_init 291 Make("inotify");
    pipe SYS_pipe 42 Pair("pipe");
    dup2 SYS_dup2 63 Duplicate;
    getdents SYS_getdents 141 Other;
    stat SYS_stat 106 OtherPath;
    lstat SYS_lstat 107 OtherPath;
    newfstatat SYS_newfstatat 300 OtherPath;
    access SYS_access 33 OtherPath;
    chmod SYS_chmod 15 OtherPath;
    chown SYS_chown 182 OtherPath;
    lchown SYS_lchown 16 OtherPath;
    rename SYS_rename 38 OtherPath;
    mkdir SYS_mkdir 39 OtherPath;
    rmdir SYS_rmdir 40 OtherPath;
    unlink SYS_unlink 10 OtherPath;
    link SYS_link 9 OtherPath;
    symlink SYS_symlink 83 OtherPath;
    readlink SYS_readlink 85 OtherPath;
    mknod SYS_mknod 14 OtherPath;
    utimes SYS_utimes 271 OtherPath;
};

/// No call is missing there.
#[cfg(not(target_arch = "x86_64"))]
const OLD_CALLS: [Call; 1] = calls! {
    newfstatat SYS_newfstatat -1 OtherPath;
};

/// Further numbers of 32-bit programs: those with 64-bit offsets, and their own forms.
const COMPAT_ALIASES: [(i64, &str); 17] = [
    (140, "lseek"),
    (193, "truncate"),
    (194, "ftruncate"),
    (195, "stat"),
    (196, "lstat"),
    (197, "fstat"),
    (198, "lchown"),
    (207, "fchown"),
    (212, "chown"),
    (221, "fcntl"),
    (239, "sendfile"),
    (268, "statfs"),
    (269, "fstatfs"),
    (272, "fadvise64"),
    (412, "utimensat"),
    (417, "recvmmsg"),
    // All socket calls in one. Its descriptor is in memory, and not known.
    (102, "socketcall"),
];

/// `socketcall` of 32-bit programs.
const SOCKET_CALL: Call = Call {
    name: "socketcall",
    number: -1,
    compat: 102,
    action: OtherPath,
};

/// A row for each operation of `io_uring`: name, number, action.
macro_rules! operations {
    ($($name:ident $number:literal $action:expr;)*) => {
        [$(($number, Call {
            name: stringify!($name),
            number: -1,
            compat: -1,
            action: $action,
        })),*]
    };
}

/// Operations of `io_uring` that do I/O. Their descriptor is the first argument. Of those that move
/// bytes from one file to another, that is the file that is written, and the other is not known.
const OPERATIONS: [(i64, Call); 42] = operations! {
    IORING_OP_READV 1 Read;
    IORING_OP_WRITEV 2 Write;
    IORING_OP_FSYNC 3 Other;
    IORING_OP_READ_FIXED 4 Read;
    IORING_OP_WRITE_FIXED 5 Write;
    IORING_OP_SYNC_FILE_RANGE 8 Other;
    IORING_OP_SENDMSG 9 Write;
    IORING_OP_RECVMSG 10 Read;
    IORING_OP_ACCEPT 13 Accept;
    IORING_OP_CONNECT 16 Connect;
    IORING_OP_FALLOCATE 17 Other;
    IORING_OP_OPENAT 18 Find("file opened by io_uring");
    IORING_OP_CLOSE 19 Close;
    IORING_OP_STATX 21 OtherPath;
    IORING_OP_READ 22 Read;
    IORING_OP_WRITE 23 Write;
    IORING_OP_FADVISE 24 Other;
    IORING_OP_SEND 26 Write;
    IORING_OP_RECV 27 Read;
    IORING_OP_OPENAT2 28 Find("file opened by io_uring");
    IORING_OP_SPLICE 30 Write;
    IORING_OP_TEE 33 Write;
    IORING_OP_SHUTDOWN 34 Other;
    IORING_OP_RENAMEAT 35 OtherPath;
    IORING_OP_UNLINKAT 36 OtherPath;
    IORING_OP_MKDIRAT 37 OtherPath;
    IORING_OP_SYMLINKAT 38 OtherPath;
    IORING_OP_LINKAT 39 OtherPath;
    IORING_OP_FSETXATTR 41 Other;
    IORING_OP_FGETXATTR 43 Other;
    IORING_OP_SOCKET 45 Find("socket");
    IORING_OP_URING_CMD 46 Other;
    IORING_OP_SEND_ZC 47 Write;
    IORING_OP_SENDMSG_ZC 48 Write;
    IORING_OP_READ_MULTISHOT 49 Read;
    IORING_OP_FIXED_FD_INSTALL 54 Find("file opened by io_uring");
    IORING_OP_FTRUNCATE 55 Other;
    IORING_OP_BIND 56 Bind;
    IORING_OP_LISTEN 57 Other;
    IORING_OP_RECV_ZC 58 Read;
    IORING_OP_READV_FIXED 60 Read;
    IORING_OP_WRITEV_FIXED 61 Write;
};

type CallsByNumber = [Option<&'static Call>; TABLES * CALLS_PER_TABLE];

/// The calls by number, one table after the other.
static BY_NUMBER: LazyLock<Box<CallsByNumber>> = LazyLock::new(|| {
    let mut calls: Box<CallsByNumber> = Box::new([None; TABLES * CALLS_PER_TABLE]);
    let mut put = |number: i64, table: usize, call: &'static Call| {
        let number = usize::try_from(number).ok();
        if let Some(number) = number.filter(|number| *number < CALLS_PER_TABLE) {
            calls[table * CALLS_PER_TABLE + number] = Some(call);
        }
    };
    const NATIVE: usize = 0;
    const COMPAT: usize = 1;
    const IO_URING: usize = 2;
    // Other processors' 32-bit programs are not traced.
    let has_compat = cfg!(target_arch = "x86_64");
    let io = || CALLS.iter().chain(&OLD_CALLS).chain([&SOCKET_CALL]);
    let all = || io().chain(&MEMORY_CALLS);
    for call in all() {
        put(call.number, NATIVE, call);
    }
    for call in all().filter(|_| has_compat) {
        put(call.compat, COMPAT, call);
    }
    for (number, name) in COMPAT_ALIASES.into_iter().filter(|_| has_compat) {
        if let Some(call) = all().find(|call| call.name == name) {
            put(number, COMPAT, call);
        }
    }
    for (number, operation) in &OPERATIONS {
        put(*number, IO_URING, operation);
    }
    calls
});

/// Returns the call that a program makes by a number, which counts through all tables; `None` if it
/// is not traced.
#[must_use]
pub fn call_of(number: u32) -> Option<&'static Call> {
    *BY_NUMBER.get(usize::try_from(number).ok()?)?
}

/// Returns the name of a call by its number in an experiment of a machine of this architecture;
/// `None` if it is not traced.
#[must_use]
pub fn name_of(number: u32) -> Option<&'static str> {
    call_of(number).map(|call| call.name)
}

/// Returns whether a call moves bytes from one descriptor to another. Such a call has two packets
/// in an experiment: a write with its time, and a read without.
#[must_use]
pub fn is_transfer(name: &str) -> bool {
    let mut all = CALLS.iter();
    all.any(|call| call.name == name && matches!(call.action, Transfer { .. }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_found_by_number() {
        let compat = |number: u32| CALLS_PER_TABLE as u32 + number;
        assert_eq!(name_of(libc::SYS_read as u32), Some("read"));
        assert_eq!(name_of(libc::SYS_futex as u32), None);
        assert_eq!(name_of(u32::MAX), None);
        let read = 2 * CALLS_PER_TABLE as u32 + 22;
        assert_eq!(name_of(read), Some("IORING_OP_READ"));
        assert_eq!(call_of(read).unwrap().recorded_number(read), read);
        assert!(is_transfer("sendfile") && !is_transfer("write"));
        if cfg!(target_arch = "x86_64") {
            assert_eq!(name_of(compat(3)), Some("read"));
            assert_eq!(
                call_of(compat(3)).unwrap().recorded_number(compat(3)),
                libc::SYS_read as u32
            );
            assert_eq!(name_of(compat(140)), Some("lseek"));
            assert_eq!(name_of(compat(102)), Some("socketcall"));
            assert_eq!(SOCKET_CALL.recorded_number(compat(102)), compat(102));
        }
    }

    #[test]
    fn no_number_is_given_twice() {
        let all: Vec<_> = CALLS
            .iter()
            .chain(&OLD_CALLS)
            .chain(&MEMORY_CALLS)
            .collect();
        let numbers = |of: fn(&Call) -> i64| {
            let mut numbers: Vec<_> = all.iter().map(|call| of(call)).collect();
            numbers.retain(|number| *number >= 0);
            numbers.extend(COMPAT_ALIASES.map(|(number, _)| number + 10_000));
            numbers.sort_unstable();
            numbers
        };
        for of in [(|call: &Call| call.number) as fn(&Call) -> i64, |call| {
            call.compat
        }] {
            let numbers = numbers(of);
            assert!(
                numbers.windows(2).all(|pair| pair[0] < pair[1]),
                "{numbers:?}"
            );
        }
        for (_, alias) in COMPAT_ALIASES {
            let known = all.iter().any(|call| call.name == alias);
            assert!(
                known || alias == "socketcall" || cfg!(not(target_arch = "x86_64")),
                "{alias}"
            );
        }
    }
}
