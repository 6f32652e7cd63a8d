use std::collections::BTreeMap;

use bpf_abi::RecordHeader;
use proptest::prelude::*;

use super::*;

/// The number of the registered file that is descriptor 0.
const FILE: u64 = 1 << 33;

/// What `/proc` would say.
#[derive(Default)]
struct Proc(BTreeMap<i32, &'static str>);

impl DescriptorLookup for Proc {
    fn descriptor(&mut self, descriptor: i32) -> Option<Vec<u8>> {
        Some(self.0.get(&descriptor)?.as_bytes().to_vec())
    }

    fn all(&mut self) -> Vec<(i32, Vec<u8>)> {
        let all = self.0.iter();
        all.map(|(number, name)| (*number, name.as_bytes().to_vec()))
            .collect()
    }

    fn registered(&mut self, file: u64) -> Option<Vec<u8>> {
        let descriptor = i32::try_from(file.checked_sub(FILE)?).ok()?;
        self.descriptor(descriptor)
    }

    fn directory(&mut self) -> Option<Vec<u8>> {
        Some(b"/home/me".to_vec())
    }
}

fn call(number: i64, arguments: [i64; 3], result: i64, extra: &[u8]) -> IoCallRecord {
    IoCallRecord {
        header: RecordHeader {
            time_ns: 2000,
            ..RecordHeader::default()
        },
        begin_ns: 1000,
        result,
        arguments: [arguments[0], arguments[1], arguments[2], 0].map(i64::cast_unsigned),
        files: 0,
        call: number as u32,
        table: CallTable::Native,
        call_site: 1,
        extra: extra.into(),
    }
}

/// A process, and the results of its calls.
#[derive(Default)]
struct Process {
    descriptors: Descriptors,
    proc: Proc,
}

impl Process {
    fn with(found: &[(i32, &'static str)]) -> Process {
        Process {
            proc: Proc(found.iter().copied().collect()),
            ..Process::default()
        }
    }

    /// Applies a call, and returns the result: a line for each operation.
    fn call(&mut self, number: i64, arguments: [i64; 3], result: i64, extra: &[u8]) -> String {
        self.apply(&call(number, arguments, result, extra))
    }

    /// The same of an operation of `io_uring`.
    fn operation(&mut self, number: i64, arguments: [i64; 2], result: i64) -> String {
        let [descriptor, slot] = arguments;
        self.operation_on(number, [descriptor, slot, 0, 0], result)
    }

    /// The same for an operation on the registered files of these descriptors; 0: file not known.
    fn operation_on(&mut self, number: i64, arguments: [i64; 4], result: i64) -> String {
        let [descriptor, slot, of, opened] = arguments;
        let file = |descriptor: i64| match descriptor {
            0 => 0,
            descriptor => FILE + descriptor.cast_unsigned(),
        };
        let mut record = IoCallRecord {
            table: CallTable::IoUring,
            ..call(number, [descriptor, slot, 0], result, b"")
        };
        record.arguments[2..].copy_from_slice(&[file(of), file(opened)]);
        self.apply(&record)
    }

    fn apply(&mut self, call: &IoCallRecord) -> String {
        let operations = self.descriptors.apply(call, &mut self.proc);
        let lines = operations.iter().map(|operation| {
            let name = operation.name.as_deref().map(String::from_utf8_lossy);
            format!(
                "{}{:?} {}{}{}{}",
                if operation.call.is_some() {
                    ""
                } else {
                    "said "
                },
                operation.kind,
                operation.descriptor,
                name.map_or(String::new(), |name| format!(" {name}")),
                if operation.failed { " failed" } else { "" },
                match operation.bytes {
                    0 => String::new(),
                    bytes => format!(" {bytes} bytes"),
                },
            )
        });
        lines.collect::<Vec<_>>().join("; ")
    }
}

#[test]
fn what_is_opened_is_named_and_what_was_there_is_said_once() {
    let mut process = Process::with(&[(0, "/dev/pts/3"), (9, "/var/log/x")]);
    let path = b"/etc/passwd";
    assert_eq!(
        process.call(libc::SYS_openat, [-100, 0, 0], 3, path),
        "Open 3 /etc/passwd"
    );
    assert_eq!(
        process.call(libc::SYS_read, [3, 0, 10], 10, b""),
        "Read 3 10 bytes"
    );
    assert_eq!(
        process.call(libc::SYS_write, [9, 0, 10], 7, b""),
        "said Open 9 /var/log/x; Write 9 7 bytes"
    );
    assert_eq!(
        process.call(libc::SYS_write, [9, 0, 10], 7, b""),
        "Write 9 7 bytes"
    );
    assert_eq!(process.call(libc::SYS_close, [9, 0, 0], 0, b""), "Close 9");
    assert_eq!(
        process.call(libc::SYS_read, [9, 0, 1], -9, b""),
        "Read 9 failed"
    );
    assert_eq!(
        process.call(libc::SYS_read, [77, 0, 1], 0, b""),
        "said Open 77 fd 77; Read 77"
    );
}

#[test]
fn paths_begin_at_the_root() {
    let mut process = Process::with(&[(5, "/srv")]);
    let mut open =
        |directory, path: &[u8]| process.call(libc::SYS_openat, [directory, 0, 0], 6, path);
    assert_eq!(open(-100, b"a/b"), "Open 6 /home/me/a/b");
    assert_eq!(open(-100, b"./c"), "Open 6 /home/me/c");
    assert_eq!(open(5, b"d"), "Open 6 /srv/d");
    assert_eq!(open(5, b"."), "Open 6 /srv");
    assert_eq!(
        process.call(libc::SYS_chdir, [0, 0, 0], 0, b"/tmp/"),
        "Other -1"
    );
    assert_eq!(
        process.call(libc::SYS_openat, [-100, 0, 0], -2, b"e"),
        "Open -1 /tmp/e failed"
    );
    let mut long = vec![b'x'; MAX_IO_EXTRA_BYTES];
    long[MAX_IO_EXTRA_BYTES - 1] = 0;
    let opened = process.call(libc::SYS_openat, [-100, 0, 0], 7, &long);
    assert!(opened.ends_with("xx…"), "{opened}");
}

#[test]
fn a_child_has_the_descriptors_of_its_parent() {
    let mut parent = Process::default();
    parent.call(libc::SYS_openat, [-100, 0, 0], 3, b"/a");
    let mut child = Process {
        descriptors: parent.descriptors.forked(),
        ..Process::default()
    };
    assert!(Arc::ptr_eq(
        &child.descriptors.table.open,
        &parent.descriptors.table.open
    ));
    assert_eq!(
        child.call(libc::SYS_read, [3, 0, 0], 1, b""),
        "said Open 3 /a; Read 3 1 bytes"
    );
    assert_eq!(child.call(libc::SYS_dup3, [3, 8, 0], 8, b""), "Open 8 /a");
    assert_eq!(
        child.call(libc::SYS_fcntl, [8, libc::F_DUPFD.into(), 20], 20, b""),
        "Open 20 /a"
    );
    assert_eq!(child.call(libc::SYS_fcntl, [8, 1, 0], 0, b""), "Other 8");
    assert_eq!(
        child.call(libc::SYS_close_range, [8, 30, 0], 0, b""),
        "Close 8"
    );
    assert_eq!(
        child.call(libc::SYS_read, [20, 0, 0], 1, b""),
        "said Open 20 fd 20; Read 20 1 bytes"
    );
}

#[test]
fn another_experiment_has_the_names_again() {
    let mut process = Process::default();
    process.call(libc::SYS_openat, [-100, 0, 0], 3, b"/a");
    for _ in 0..2 {
        process.descriptors.start_experiment();
        let read = [libc::SYS_read, 3];
        let twice = [(); 2].map(|()| process.call(read[0], [read[1], 0, 0], 1, b""));
        assert_eq!(twice, ["said Open 3 /a; Read 3 1 bytes", "Read 3 1 bytes"]);
    }
}

#[test]
fn a_transfer_reads_one_and_writes_another_in_the_time_of_one() {
    let mut process = Process::with(&[(3, "/a"), (4, "/b")]);
    assert_eq!(
        process.call(libc::SYS_sendfile, [4, 3, 0], 100, b""),
        "said Open 4 /b; Write 4 100 bytes; said Open 3 /a; Read 3 100 bytes"
    );
    let call = call(libc::SYS_sendfile, [4, 3, 0], 100, b"");
    let operations = process.descriptors.apply(&call, &mut process.proc);
    let times: Vec<u64> = operations
        .iter()
        .map(|one| (one.ended_ns - one.requested_ns).0)
        .collect();
    assert_eq!(times, [1000, 0]);
}

#[test]
fn messages_count_by_their_bytes() {
    let mut process = Process::with(&[(3, "tcp to 10.0.0.5:53")]);
    let bytes = 300_u64.to_ne_bytes();
    assert_eq!(
        process.call(libc::SYS_sendmmsg, [3, 0, 5], 4, &bytes),
        "said Open 3 tcp to 10.0.0.5:53; Write 3 300 bytes"
    );
    assert_eq!(
        process.call(libc::SYS_recvmmsg, [3, 0, 5], 1, &bytes),
        "Read 3 300 bytes"
    );
    assert_eq!(
        process.call(libc::SYS_recvmmsg, [3, 0, 5], -11, &[0; 8]),
        "Read 3 failed"
    );
}

#[test]
fn sockets_are_named_by_their_ends() {
    let mut process = Process::with(&[(7, "pipe:[12]")]);
    let stream = [libc::AF_INET.into(), libc::SOCK_STREAM.into(), 0];
    assert_eq!(
        process.call(libc::SYS_socket, stream, 3, b""),
        "Open 3 tcp socket"
    );
    // Port 6379 of 127.0.0.1, in network order.
    let mut address = (libc::AF_INET as u16).to_ne_bytes().to_vec();
    address.extend([0x18, 0xeb, 127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(
        process.call(libc::SYS_connect, [3, 0, 16], -115, &address),
        "Other 3 failed; said Open 3 tcp to 127.0.0.1:6379"
    );
    assert_eq!(
        process.call(libc::SYS_socket, stream, 4, b""),
        "Open 4 tcp socket"
    );
    assert_eq!(
        process.call(libc::SYS_bind, [4, 0, 16], 0, &address),
        "Other 4; said Open 4 tcp 127.0.0.1:6379"
    );
    address[3] = 0xec;
    assert_eq!(
        process.call(libc::SYS_accept4, [4, 1, 1], 5, &address),
        "Open 5 tcp 127.0.0.1:6379 - 127.0.0.1:6380"
    );
    assert_eq!(
        process.call(libc::SYS_accept4, [4, 0, 0], 6, b""),
        "Open 6 tcp 127.0.0.1:6379 (accepted)"
    );
    let both = [7_i32.to_ne_bytes(), 8_i32.to_ne_bytes()].concat();
    assert_eq!(
        process.call(libc::SYS_pipe2, [0, 0, 0], 0, &both),
        "Open 7 pipe:[12]; said Open 8 pipe"
    );
}

/// A descriptor that was closed by an exec and one that came in a message may have the same number.
#[test]
fn after_an_exec_messages_may_bring_any_descriptor() {
    let mut process = Process::default();
    let open = |process: &mut Process, number, path| {
        process.call(libc::SYS_openat, [-100, 0, 0], number, path);
    };
    open(&mut process, 3, b"/a");
    open(&mut process, 4, b"/b");
    process.descriptors.table.executed();
    let read = |process: &mut Process, number| process.call(libc::SYS_read, [number, 0, 0], 1, b"");
    process.proc.0.insert(4, "/c");
    // Nothing else can have come there yet.
    assert_eq!(read(&mut process, 4), "Read 4 1 bytes");
    process.call(libc::SYS_recvmsg, [9, 0, 0], -11, b"");
    assert_eq!(read(&mut process, 4), "Read 4 1 bytes");
    process.call(libc::SYS_recvmsg, [9, 0, 0], 1, b"");
    assert_eq!(read(&mut process, 4), "said Open 4 /c; Read 4 1 bytes");
    assert_eq!(read(&mut process, 4), "Read 4 1 bytes");
    // It is gone by now, and its last name is the best that is known.
    assert_eq!(read(&mut process, 3), "Read 3 1 bytes");
    open(&mut process, 4, b"/d");
    process.proc.0.insert(4, "/e");
    assert_eq!(read(&mut process, 4), "Read 4 1 bytes");
}

/// The numbers are from `include/uapi/linux/io_uring.h`.
#[test]
fn what_io_uring_opens_is_looked_up() {
    let found = [
        (3, "/tmp/x"),
        (4, "tcp 127.0.0.1:80"),
        (5, "tcp 127.0.0.1:80 - 127.0.0.1:81"),
    ];
    let mut process = Process::with(&found);
    let at = i64::from(libc::AT_FDCWD);
    assert_eq!(process.operation(18, [at, 0], 3), "Open 3 /tmp/x");
    assert_eq!(process.operation(23, [3, 0], 9), "Write 3 9 bytes");
    assert_eq!(process.operation(19, [3, 0], 0), "Close 3");
    assert_eq!(
        process.operation(28, [at, 0], 6),
        "Open 6 file opened by io_uring"
    );
    assert_eq!(
        process.operation(18, [at, 0], -2),
        "Open -1 file opened by io_uring failed"
    );
    assert_eq!(
        process.operation(13, [4, 0], 5),
        "said Open 4 tcp 127.0.0.1:80; Open 5 tcp 127.0.0.1:80 - 127.0.0.1:81"
    );
    assert_eq!(process.operation(45, [2, 0], 7), "Open 7 socket");
    process.proc.0.insert(7, "tcp 10.0.0.5:99 - 10.0.0.6:80");
    assert_eq!(
        process.operation(16, [7, 0], 0),
        "Other 7; said Open 7 tcp 10.0.0.5:99 - 10.0.0.6:80"
    );
}

#[test]
fn a_registered_file_has_a_number_of_its_own() {
    let mut process = Process::with(&[(0, "/dev/null"), (1, "/dev/pts/1")]);
    let first = i64::from(FIRST_REGISTERED_FILE);
    assert_eq!(
        process.operation(22, [first + 1, 0], 9),
        "said Open 1073741825 io_uring file 1; Read 1073741825 9 bytes"
    );
    let at = i64::from(libc::AT_FDCWD);
    // To the third place, and to any.
    assert_eq!(
        process.operation(18, [at, 3], 0),
        "Open 1073741826 io_uring file 2"
    );
    let any = i64::from(ANY_REGISTERED_FILE);
    assert_eq!(
        process.operation(18, [at, any], 0),
        "Open 1073741824 io_uring file 0"
    );
    assert_eq!(process.operation(19, [first, 0], 0), "Close 1073741824");
    assert_eq!(
        process.operation(22, [1, 0], 9),
        "said Open 1 /dev/pts/1; Read 1 9 bytes"
    );
}

#[test]
fn a_registered_file_has_its_name() {
    let sockets = [
        (3, "tcp 127.0.0.1:80"),
        (4, "tcp 127.0.0.1:80 - 127.0.0.1:81"),
    ];
    let files = [(1, "/tmp/a"), (2, "/tmp/b")];
    let mut process = Process::with(&[files, sockets].concat());
    let place = i64::from(FIRST_REGISTERED_FILE);
    let mut read = |file| process.operation_on(22, [place, 0, file, 0], 9);
    assert_eq!(
        [1, 1, 2, 0, 0].map(&mut read),
        [
            "said Open 1073741824 /tmp/a; Read 1073741824 9 bytes",
            "Read 1073741824 9 bytes",
            // It was replaced.
            "said Open 1073741824 /tmp/b; Read 1073741824 9 bytes",
            "said Open 1073741824 io_uring file 0; Read 1073741824 9 bytes",
            "Read 1073741824 9 bytes",
        ]
    );
    process.descriptors.start_experiment();
    assert_eq!(
        process.operation_on(22, [place, 0, 2, 0], 9),
        "said Open 1073741824 /tmp/b; Read 1073741824 9 bytes"
    );
    let at = i64::from(libc::AT_FDCWD);
    assert_eq!(
        process.operation_on(18, [at, 1, 0, 1], 0),
        "Open 1073741824 /tmp/a"
    );
    assert_eq!(
        process.operation_on(13, [place + 2, 2, 3, 4], 0),
        "said Open 1073741826 tcp 127.0.0.1:80; \
         Open 1073741825 tcp 127.0.0.1:80 - 127.0.0.1:81"
    );
    assert_eq!(
        process.operation_on(45, [2, 4, 0, 3], 0),
        "Open 1073741827 tcp 127.0.0.1:80"
    );
    process.proc.0.insert(3, "tcp 10.0.0.5:99 - 10.0.0.6:80");
    assert_eq!(
        process.operation_on(16, [place + 3, 0, 3, 0], 0),
        "Other 1073741827; said Open 1073741827 tcp 10.0.0.5:99 - 10.0.0.6:80"
    );
}

/// Which file is closed is known from when the close was submitted, and from what was opened in the
/// slot meanwhile.
#[test]
fn a_registered_file_is_closed_by_its_name() {
    let mut process = Process::with(&[(1, "/tmp/a"), (2, "/tmp/b")]);
    let place = i64::from(FIRST_REGISTERED_FILE);
    process.operation_on(22, [place, 0, 1, 0], 9);
    assert_eq!(
        process.operation_on(19, [place, 1, 2, 0], 0),
        "said Open 1073741824 /tmp/b; Close 1073741824"
    );
    process.operation_on(22, [place, 0, 1, 0], 9);
    assert_eq!(
        process.operation_on(19, [place, 1, 0, 0], 0),
        "said Open 1073741824 io_uring file 0; Close 1073741824"
    );
    let at = i64::from(libc::AT_FDCWD);
    process.operation_on(18, [at, 1, 0, 2], 0);
    assert_eq!(
        process.operation_on(19, [place, 1, 1, 0], 0),
        "Close 1073741824"
    );
}

proptest! {
    /// Whatever a process does, each call is one operation, or two if it moves bytes from one
    /// descriptor to another, and each descriptor is named before it is used.
    #[test]
    fn every_call_is_one_operation(
        calls in proptest::collection::vec(
            (0_u32..500, any::<bool>(), proptest::array::uniform3(-2_i64..12), -12_i64..12, proptest::collection::vec(any::<u8>(), 0..40)),
            0..60,
        ),
    ) {
        let mut process = Process::with(&[(0, "/dev/null"), (3, "/a")]);
        let mut named = std::collections::BTreeSet::new();
        for (number, by_ring, arguments, result, extra) in calls {
            let (number, table) = if by_ring { (number % 64, CallTable::IoUring) } else { (number, CallTable::Native) };
            let call = IoCallRecord {
                table,
                ..call(number.into(), arguments, result, &extra)
            };
            let operations = process.descriptors.apply(&call, &mut process.proc);
            let own = operations.iter().filter(|one| one.call.is_some()).count();
            match call_of(call.call, table).map(|known| known.action) {
                None | Some(Action::Memory(_)) => prop_assert_eq!(operations.len(), 0),
                Some(Action::Transfer { .. }) => prop_assert_eq!(own, 2),
                Some(_) => prop_assert_eq!(own, 1),
            }
            for one in &operations {
                if one.kind == IoKind::Open && !one.failed {
                    prop_assert!(one.name.is_some());
                    named.insert(one.descriptor);
                }
                let moved = matches!(one.kind, IoKind::Read | IoKind::Write) && !one.failed;
                if moved && one.descriptor >= 0 {
                    prop_assert!(named.contains(&one.descriptor));
                }
            }
        }
    }
}
