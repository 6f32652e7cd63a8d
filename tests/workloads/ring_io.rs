//! `ring_io DIRECTORY ROUNDS`: reads and writes by `io_uring`, and counts on each file what it
//! handed over and what came of it, as `io_calls` does.
//!
//! Two functions hand over in turn from the same depth of the stack, so that their stacks differ in
//! return addresses alone. A read of an empty pipe is handed over before all of that and completes
//! after it, and after others that are handed over at the same depth. A receive completes again and
//! again.
//!
//! `ring_io under-way COUNT`: COUNT reads of an empty pipe are in flight at a time.
//!
//! `ring_io registered DIRECTORY`: operations on registered files, whose slots get other files in
//! every possible way, also while operations are in flight.
//!
//! `ring_io overflow DIRECTORY`: operations whose completions find no space in the ring.
//!
//! `ring_io skipped DIRECTORY`: operations that post no completion. Prints how many of these can't
//! be seen: `unseen COUNT`.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::fd::{AsRawFd as _, IntoRawFd, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use io_uring::{IoUring, cqueue, opcode, squeue, types};

/// Operations that are handed over at once.
const BATCH: u64 = 8;
/// The bytes of the shortest of them; the others have one, two and so on more.
const SHORTEST: u64 = 100;
/// Messages that a receive gets.
const MESSAGES: u64 = 5;
/// The group of the buffers that it gets them into, and their size.
const BUFFERS: (u16, i32) = (1, 64);
/// No system call takes as long.
const A_CALL: Duration = Duration::from_secs(1);
/// What is looked up is there for at least so long after it was opened; and so long after the start
/// the unwind tables are there.
const KNOWN: Duration = Duration::from_millis(1200);

/// What was done to a file, in the order of `tests::workload::io_calls::Calls`, and how long it
/// took.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    reads: u64,
    read_bytes: u64,
    writes: u64,
    written: u64,
    others: u64,
    errors: u64,
    nanos: u128,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Read,
    Write,
    Other,
}

#[derive(Default)]
struct Files(BTreeMap<String, Counts>);

impl Files {
    fn count(&mut self, name: &str, kind: Kind, result: i32, took: Duration) {
        let counts = self.0.entry(name.to_owned()).or_default();
        counts.nanos += took.as_nanos();
        let bytes = u64::try_from(result);
        match (kind, bytes) {
            (_, Err(_)) => counts.errors += 1,
            (Kind::Read, Ok(bytes)) => {
                counts.reads += 1;
                counts.read_bytes += bytes;
            }
            (Kind::Write, Ok(bytes)) => {
                counts.writes += 1;
                counts.written += bytes;
            }
            (Kind::Other, Ok(_)) => counts.others += 1,
        }
    }

    /// Counts a system call that succeeded.
    fn other(&mut self, name: &str) {
        self.count(name, Kind::Other, 0, A_CALL);
    }
}

/// The ring, and the data of what was handed over.
struct Ring {
    ring: IoUring,
    buffer: Vec<u8>,
}

impl Ring {
    fn new(entries: u32, completions: u32) -> Result<Ring> {
        let mut builder = IoUring::builder();
        Ok(Ring {
            ring: builder.setup_cqsize(completions).build(entries)?,
            buffer: vec![b'x'; 4096],
        })
    }

    fn push(&mut self, entry: &squeue::Entry) -> Result<()> {
        // SAFETY: what an entry points to lives as long as the ring, or until its completion, which
        // is waited for.
        unsafe { self.ring.submission().push(entry) }.context("the queue is full")
    }

    /// Submits `count` operations, each time as many as fit.
    fn hand_over(&mut self, count: u32, entry: impl Fn(u32) -> squeue::Entry) -> Result<()> {
        for number in 0..count {
            self.push(&entry(number))?;
            if number % ENTRIES == ENTRIES - 1 {
                self.ring.submit()?;
            }
        }
        Ok(())
    }

    /// Submits what was pushed, and waits for `count` completions. Returns them.
    fn wait(&mut self, count: usize) -> Result<Vec<cqueue::Entry>> {
        self.ring.submit_and_wait(count)?;
        let completed: Vec<_> = self.ring.completion().collect();
        ensure!(completed.len() == count, "{completed:?}");
        Ok(completed)
    }

    /// Hands over one entry, and does not wait for it.
    #[inline(never)]
    fn begin(&mut self, entry: &squeue::Entry) -> Result<Instant> {
        self.push(entry)?;
        let began = Instant::now();
        self.ring.submit()?;
        Ok(began)
    }

    /// Hands over one entry, and returns its result and how long that took.
    fn one(&mut self, entry: &squeue::Entry) -> Result<(i32, Duration)> {
        let began = Instant::now();
        self.push(entry)?;
        let completed = self.wait(1)?;
        Ok((completed[0].result(), began.elapsed()))
    }
}

/// Writes a batch to a file.
#[inline(never)]
fn write_by_ring(ring: &mut Ring, files: &mut Files, file: types::Fd, name: &str) -> Result<()> {
    let began = Instant::now();
    for number in 0..BATCH {
        let length = u32::try_from(SHORTEST + number)?;
        let entry = opcode::Write::new(file, ring.buffer.as_ptr(), length);
        ring.push(&entry.offset(number * 4096).build())?;
    }
    for completed in ring.wait(usize::try_from(BATCH)?)? {
        files.count(name, Kind::Write, completed.result(), began.elapsed());
    }
    Ok(())
}

/// Reads a batch from a file.
#[inline(never)]
fn read_by_ring(ring: &mut Ring, files: &mut Files, file: types::Fd, name: &str) -> Result<()> {
    let began = Instant::now();
    for number in 0..BATCH {
        let length = u32::try_from(SHORTEST + number)?;
        let entry = opcode::Read::new(file, ring.buffer.as_mut_ptr(), length);
        ring.push(&entry.offset(number * 4096).build())?;
    }
    for completed in ring.wait(usize::try_from(BATCH)?)? {
        files.count(name, Kind::Read, completed.result(), began.elapsed());
    }
    Ok(())
}

/// Closes a file by one system call: dropped, Rust's debug builds look at it first.
fn close(file: impl IntoRawFd) -> Result<()> {
    Ok(nix::unistd::close(file.into_raw_fd())?)
}

fn name_of(descriptor: RawFd) -> Result<String> {
    let target = std::fs::read_link(format!("/proc/self/fd/{descriptor}"))?;
    Ok(target.to_str().context("no UTF-8")?.to_owned())
}

fn main() -> Result<()> {
    let mut arguments = std::env::args_os().skip(1);
    let first = arguments.next().context("no directory")?;
    let second = arguments.next().context("no rounds")?;
    let files = match first.to_str() {
        Some("under-way") => return under_way(second.to_str().context("no number")?.parse()?),
        Some("registered") => registered(&Path::new(&second).canonicalize()?)?,
        Some("overflow") => overflow(&Path::new(&second).canonicalize()?)?,
        Some("skipped") => skipped(&Path::new(&second).canonicalize()?)?,
        _ => in_batches(
            &Path::new(&first).canonicalize()?,
            second.to_str().context("no number")?.parse()?,
        )?,
    };
    for (name, counts) in &files.0 {
        let Counts {
            reads,
            read_bytes,
            writes,
            written,
            others,
            errors,
            nanos,
        } = counts;
        println!("file {reads} {read_bytes} {writes} {written} {others} {errors} {nanos} {name}");
    }
    Ok(())
}

fn in_batches(directory: &Path, rounds: u64) -> Result<Files> {
    let mut files = Files::default();
    let mut ring = Ring::new(64, 128)?;
    let (reader, mut writer) = std::io::pipe()?;
    let pipe = name_of(reader.as_raw_fd())?;
    files.other(&pipe);
    let mut byte = [0];
    let read = opcode::Read::new(types::Fd(reader.as_raw_fd()), byte.as_mut_ptr(), 1);
    let pipe_read = ring.begin(&read.build())?;

    std::thread::sleep(KNOWN);
    let path = directory.join("data");
    let name = path.to_str().context("no UTF-8")?.to_owned();
    let mut options = OpenOptions::new();
    let file = options
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(&path)?;
    files.other(&name);
    let descriptor = types::Fd(file.as_raw_fd());
    for _ in 0..rounds {
        write_by_ring(&mut ring, &mut files, descriptor, &name)?;
        read_by_ring(&mut ring, &mut files, descriptor, &name)?;
    }
    let began = ring.begin(&opcode::Fsync::new(descriptor).build())?;
    let completed = ring.wait(1)?;
    files.count(&name, Kind::Other, completed[0].result(), began.elapsed());

    let opened = open_by_ring(&mut ring, &mut files, directory)?;
    fail(&mut ring, &mut files, directory)?;
    receive(&mut ring, &mut files)?;

    writer.write_all(b"y")?;
    files.count(&pipe, Kind::Write, 1, A_CALL);
    let completed = ring.wait(1)?;
    files.count(
        &pipe,
        Kind::Read,
        completed[0].result(),
        pipe_read.elapsed(),
    );
    ensure!(byte == [b'y'], "{byte:?}");

    std::thread::sleep(KNOWN);
    let (result, took) = ring.one(&opcode::Close::new(types::Fd(opened.0)).build())?;
    files.count(&opened.1, Kind::Other, result, took);
    close(file)?;
    files.other(&name);
    // What closes them is not counted.
    std::mem::forget((reader, writer));
    Ok(files)
}

/// Opens a file through the ring. Returns its descriptor and name.
fn open_by_ring(ring: &mut Ring, files: &mut Files, directory: &Path) -> Result<(i32, String)> {
    let path = directory.join("opened");
    let c_path = std::ffi::CString::new(path.as_os_str().as_bytes())?;
    let entry = opcode::OpenAt::new(types::Fd(libc::AT_FDCWD), c_path.as_ptr())
        .flags(libc::O_CREAT | libc::O_RDWR)
        .mode(0o600);
    let (descriptor, took) = ring.one(&entry.build())?;
    let name = path.to_str().context("no UTF-8")?.to_owned();
    files.count(&name, Kind::Other, descriptor, took);
    write_by_ring(ring, files, types::Fd(descriptor), &name)?;
    Ok((descriptor, name))
}

/// Reads a directory, which fails.
fn fail(ring: &mut Ring, files: &mut Files, directory: &Path) -> Result<()> {
    let name = directory.to_str().context("no UTF-8")?;
    let opened = File::open(directory)?;
    files.other(name);
    let entry = opcode::Read::new(types::Fd(opened.as_raw_fd()), ring.buffer.as_mut_ptr(), 10);
    let (result, took) = ring.one(&entry.build())?;
    ensure!(result == -libc::EISDIR, "{result}");
    files.count(name, Kind::Read, result, took);
    close(opened)?;
    files.other(name);
    Ok(())
}

/// Receives several messages, and the end of them, by one operation.
fn receive(ring: &mut Ring, files: &mut Files) -> Result<()> {
    let (group, bytes) = BUFFERS;
    let count = u16::try_from(MESSAGES + 2)?;
    let mut memory = vec![0_u8; usize::from(count) * usize::try_from(bytes)?];
    let provide = opcode::ProvideBuffers::new(memory.as_mut_ptr(), bytes, count, group, 0);
    ring.one(&provide.build())?;
    let (receiver, mut sender) = UnixStream::pair()?;
    let name = "socketpair";
    files.other(name);
    let began = Instant::now();
    ring.push(
        &opcode::RecvMulti::new(types::Fd(receiver.as_raw_fd()), group)
            .build()
            .user_data(7),
    )?;
    ring.ring.submit()?;
    for number in 0..MESSAGES {
        let length = usize::try_from(10 + number)?;
        sender.write_all(&ring.buffer[..length])?;
        files.count(name, Kind::Write, i32::try_from(length)?, A_CALL);
        let completed = ring.wait(1)?;
        ensure!(cqueue::more(completed[0].flags()), "{completed:?}");
        files.count(name, Kind::Read, completed[0].result(), began.elapsed());
    }
    close(sender)?;
    files.other(name);
    let completed = ring.wait(1)?;
    files.count(name, Kind::Read, completed[0].result(), began.elapsed());
    close(receiver)?;
    files.other(name);
    Ok(())
}

/// Submits `count` reads of an empty pipe, which complete when it is closed.
fn under_way(count: usize) -> Result<()> {
    let mut ring = Ring {
        ring: IoUring::new(u32::try_from(count.next_power_of_two())?)?,
        buffer: vec![0; 1],
    };
    let (reader, writer) = std::io::pipe()?;
    let pipe = types::Fd(reader.as_raw_fd());
    for _ in 0..count {
        let read = opcode::Read::new(pipe, ring.buffer.as_mut_ptr(), 1);
        ring.push(&read.build())?;
    }
    ring.ring.submit()?;
    drop(writer);
    ring.wait(count).map(drop)
}

/// Opens a file of the directory. Returns it with its name.
fn open(files: &mut Files, directory: &Path, name: &str) -> Result<(File, String)> {
    let path = directory.join(name);
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create(true).open(&path)?;
    let name = path.to_str().context("no UTF-8")?.to_owned();
    files.other(&name);
    Ok((file, name))
}

impl Ring {
    /// Writes to the registered file at `place`, whose name is `name`.
    fn write_at(&mut self, files: &mut Files, place: u32, bytes: u32, name: &str) -> Result<()> {
        let entry = opcode::Write::new(types::Fixed(place), self.buffer.as_ptr(), bytes);
        let (result, took) = self.one(&entry.build())?;
        ensure!(result == i32::try_from(bytes)?, "{result}");
        files.count(name, Kind::Write, result, took);
        Ok(())
    }

    /// Opens a file at a place, writes to it and closes it, all in one go.
    fn open_write_close(&mut self, files: &mut Files, path: &Path, place: u32) -> Result<()> {
        let c_path = std::ffi::CString::new(path.as_os_str().as_bytes())?;
        let slot = types::DestinationSlot::try_from_slot_target(place)
            .map_err(|slot| anyhow::anyhow!("no place {slot}"))?;
        let began = Instant::now();
        let open = opcode::OpenAt::new(types::Fd(libc::AT_FDCWD), c_path.as_ptr())
            .flags(libc::O_CREAT | libc::O_RDWR)
            .mode(0o600)
            .file_index(Some(slot));
        let write = opcode::Write::new(types::Fixed(place), self.buffer.as_ptr(), 77);
        let linked = squeue::Flags::IO_LINK;
        self.push(&open.build().flags(linked))?;
        self.push(&write.build().flags(linked))?;
        self.push(&opcode::Close::new(types::Fixed(place)).build())?;
        let results: Vec<i32> = self.wait(3)?.iter().map(cqueue::Entry::result).collect();
        ensure!(results == [0, 77, 0], "{results:?}");
        let name = path.to_str().context("no UTF-8")?;
        files.count(name, Kind::Other, 0, began.elapsed());
        files.count(name, Kind::Write, 77, began.elapsed());
        files.count(name, Kind::Other, 0, began.elapsed());
        Ok(())
    }
}

fn registered(directory: &Path) -> Result<Files> {
    let mut files = Files::default();
    let (mut ring, mut other_ring) = (Ring::new(64, 128)?, Ring::new(64, 128)?);
    let (one, one_name) = open(&mut files, directory, "one")?;
    let (two, two_name) = open(&mut files, directory, "two")?;
    std::fs::create_dir(directory.join("sub"))?;
    let (three, three_name) = open(
        &mut files,
        directory,
        "sub/a file with a longer name: three",
    )?;
    let (reader, mut writer) = std::io::pipe()?;
    let pipe = name_of(reader.as_raw_fd())?;
    files.other(&pipe);
    let (socket, _peer) = UnixStream::pair()?;
    let socket_name = name_of(socket.as_raw_fd())?;
    let places = [
        -1,
        one.as_raw_fd(),
        socket.as_raw_fd(),
        reader.as_raw_fd(),
        -1,
    ];
    ring.ring.submitter().register_files(&places)?;
    let places = [two.as_raw_fd(), two.as_raw_fd()];
    other_ring.ring.submitter().register_files(&places)?;
    close(one)?;
    files.other(&one_name);

    let mut byte = [0];
    let read = opcode::Read::new(types::Fixed(3), byte.as_mut_ptr(), 1);
    let pipe_read = ring.begin(&read.build())?;
    // The same places of two rings.
    for _ in 0..10 {
        ring.write_at(&mut files, 1, 10, &one_name)?;
        other_ring.write_at(&mut files, 1, 20, &two_name)?;
    }
    other_ring.write_at(&mut files, 0, 21, &two_name)?;
    ring.write_at(&mut files, 2, 30, &socket_name)?;

    // Other files at the same places, with a descriptor that is closed at once.
    let submitter = ring.ring.submitter();
    submitter.register_files_update(1, &[three.as_raw_fd()])?;
    submitter.register_files_update(3, &[two.as_raw_fd()])?;
    ring.write_at(&mut files, 1, 40, &three_name)?;
    ring.write_at(&mut files, 3, 41, &two_name)?;
    writer.write_all(b"y")?;
    files.count(&pipe, Kind::Write, 1, A_CALL);
    let completed = ring.wait(1)?;
    let result = completed[0].result();
    files.count(&pipe, Kind::Read, result, pipe_read.elapsed());
    ensure!(byte == [b'y'], "{byte:?}");
    let (four, four_name) = open(&mut files, directory, "four")?;
    let descriptors = [four.as_raw_fd()];
    let update = opcode::FilesUpdate::new(descriptors.as_ptr(), 1).offset(1);
    let (result, _) = ring.one(&update.build())?;
    ensure!(result == 1, "{result}");
    close(four)?;
    files.other(&four_name);
    ring.write_at(&mut files, 1, 50, &four_name)?;

    // At an empty place, and at one that has a file.
    for (place, name) in [(4, "opened 1"), (4, "opened 2"), (1, "opened 3")] {
        ring.open_write_close(&mut files, &directory.join(name), place)?;
    }
    let (result, took) = ring.one(&opcode::Close::new(types::Fixed(3)).build())?;
    ensure!(result == 0, "{result}");
    files.count(&two_name, Kind::Other, result, took);
    std::thread::sleep(KNOWN);
    std::mem::forget((two, three, reader, writer));
    Ok(files)
}

/// Entries for completions.
const ENTRIES: u32 = 8;

/// Counts `count` completions of submitted operations, in any order.
fn collect(
    ring: &mut Ring,
    files: &mut Files,
    (count, name, kind): (u32, &str, Kind),
    began: Instant,
) -> Result<()> {
    for _ in 0..count {
        ring.ring.submit_and_wait(1)?;
        let completed = ring.ring.completion().next().context("no completion")?;
        // Not the no-ops, which have user data 1.
        if completed.user_data() == 0 {
            files.count(name, kind, completed.result(), began.elapsed());
        }
    }
    Ok(())
}

fn overflow(directory: &Path) -> Result<Files> {
    const TIMES: u32 = 4;
    let mut files = Files::default();
    let mut ring = Ring::new(ENTRIES, ENTRIES)?;
    let (file, name) = open(&mut files, directory, "data")?;
    let descriptor = types::Fd(file.as_raw_fd());
    let began = Instant::now();
    // All with the same user data.
    let buffer = ring.buffer.as_mut_ptr();
    ring.hand_over(ENTRIES * TIMES, |number| {
        let entry = opcode::Write::new(descriptor, buffer, 100 + number);
        entry.offset(u64::from(number) * 4096).build()
    })?;
    collect(
        &mut ring,
        &mut files,
        (ENTRIES * TIMES, &name, Kind::Write),
        began,
    )?;
    // Each with the same result, and operations between them that are not recorded.
    let began = Instant::now();
    ring.hand_over(ENTRIES * TIMES, |number| match number % 2 {
        0 => opcode::Read::new(descriptor, buffer, 100).build(),
        _ => opcode::Nop::new().build().user_data(1),
    })?;
    collect(
        &mut ring,
        &mut files,
        (ENTRIES * TIMES, &name, Kind::Read),
        began,
    )?;

    // By a thread of the kernel.
    let began = Instant::now();
    ring.hand_over(ENTRIES * TIMES, |number| {
        let entry = opcode::Write::new(descriptor, buffer, 100 + number);
        entry.build().flags(squeue::Flags::ASYNC)
    })?;
    std::thread::sleep(A_CALL / 10);
    collect(
        &mut ring,
        &mut files,
        (ENTRIES * TIMES, &name, Kind::Write),
        began,
    )?;

    // All at once, long after they were handed over.
    let (reader, writer) = std::io::pipe()?;
    let pipe = name_of(reader.as_raw_fd())?;
    files.other(&pipe);
    let mut big = Ring::new(512, 512)?;
    let mut small = Ring::new(512, 512)?;
    let began = Instant::now();
    for _ in 0..3 {
        for ring in [&mut big, &mut small] {
            for _ in 0..500 {
                let buffer = ring.buffer.as_mut_ptr();
                let read = opcode::Read::new(types::Fd(reader.as_raw_fd()), buffer, 1);
                ring.push(&read.build())?;
            }
            ring.ring.submit()?;
        }
    }
    std::thread::sleep(KNOWN);
    close(writer)?;
    files.other(&pipe);
    for ring in [&mut big, &mut small] {
        collect(ring, &mut files, (1500, &pipe, Kind::Read), began)?;
    }

    // One that would complete again ends with the result for which there is no space.
    let (group, bytes) = BUFFERS;
    let mut memory = vec![0_u8; usize::try_from(bytes)?];
    let provide = opcode::ProvideBuffers::new(memory.as_mut_ptr(), bytes, 1, group, 0);
    ring.one(&provide.build())?;
    let (receiver, mut sender) = UnixStream::pair()?;
    let socket = "socketpair";
    files.other(socket);
    let began = Instant::now();
    let receive = opcode::RecvMulti::new(types::Fd(receiver.as_raw_fd()), group);
    ring.push(&receive.build())?;
    ring.ring.submit()?;
    for _ in 0..ENTRIES {
        ring.push(&opcode::Nop::new().build().user_data(1))?;
    }
    ring.ring.submit()?;
    sender.write_all(b"message")?;
    files.count(socket, Kind::Write, 7, A_CALL);
    collect(
        &mut ring,
        &mut files,
        (ENTRIES + 1, socket, Kind::Read),
        began,
    )?;
    std::thread::sleep(KNOWN);
    std::mem::forget((file, reader, receiver, sender));
    Ok(files)
}

fn skipped(directory: &Path) -> Result<Files> {
    const SKIPPED: u32 = 10;
    let mut files = Files::default();
    let mut ring = Ring::new(64, 128)?;
    let (file, name) = open(&mut files, directory, "data")?;
    let descriptor = types::Fd(file.as_raw_fd());
    for flags in [squeue::Flags::empty(), squeue::Flags::ASYNC] {
        for number in 0..SKIPPED {
            let entry = opcode::Write::new(descriptor, ring.buffer.as_ptr(), 100 + number);
            let flags = flags | squeue::Flags::SKIP_SUCCESS;
            ring.push(&entry.build().flags(flags))?;
        }
        ring.ring.submit()?;
    }
    std::thread::sleep(KNOWN);
    // One that fails, and one that is cancelled for it: only the first one has a completion.
    let opened = File::open(directory)?;
    let began = Instant::now();
    let failing = opcode::Read::new(types::Fd(opened.as_raw_fd()), ring.buffer.as_mut_ptr(), 10);
    let flags = squeue::Flags::SKIP_SUCCESS | squeue::Flags::IO_LINK;
    ring.push(&failing.build().flags(flags))?;
    let entry = opcode::Write::new(descriptor, ring.buffer.as_ptr(), 100);
    ring.push(&entry.build())?;
    let completed = ring.wait(1)?;
    ensure!(completed[0].result() == -libc::EISDIR, "{completed:?}");
    let cancelled = -libc::ECANCELED;
    files.count(&name, Kind::Write, cancelled, began.elapsed());
    // None of those that come after is taken for one of them.
    for _ in 0..20 {
        write_by_ring(&mut ring, &mut files, descriptor, &name)?;
    }
    std::mem::forget((file, opened));
    println!("unseen {}", 2 * SKIPPED + 1);
    Ok(files)
}
