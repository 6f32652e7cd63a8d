//! `ring_io DIRECTORY ROUNDS`: reads and writes by `io_uring`, and counts on each file what it
//! handed over and what came of it, as `io_calls` does.
//!
//! Two functions hand over in turn from the same depth of the stack, so that their stacks differ in
//! return addresses alone. A read of an empty pipe is handed over before all of that and completes
//! after it, and after others that are handed over at the same depth. A receive completes again and
//! again.
//!
//! `ring_io under-way COUNT`: so many reads of an empty pipe are under way at a time.

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
const KNOWN: Duration = Duration::from_millis(700);

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
    fn push(&mut self, entry: &squeue::Entry) -> Result<()> {
        // SAFETY: what an entry points to lives as long as the ring, or until its completion, which
        // is waited for.
        unsafe { self.ring.submission().push(entry) }.context("the queue is full")
    }

    /// Hands over what was pushed, and waits for so many completions. Returns them.
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
    let directory = arguments.next().context("no directory")?;
    if directory == "under-way" {
        let count = arguments.next().context("no count")?;
        return under_way(count.to_str().context("no number")?.parse()?);
    }
    let rounds: u64 = arguments
        .next()
        .context("no rounds")?
        .to_str()
        .context("no number")?
        .parse()?;
    let directory = Path::new(&directory).canonicalize()?;
    let mut files = Files::default();
    let mut ring = Ring {
        ring: IoUring::new(64)?,
        buffer: vec![b'x'; 4096],
    };
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

    let opened = open_by_ring(&mut ring, &mut files, &directory)?;
    fail(&mut ring, &mut files, &directory)?;
    registered(&mut ring, &mut files, &file)?;
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

/// Reads a file that is registered with the ring.
fn registered(ring: &mut Ring, files: &mut Files, file: &File) -> Result<()> {
    ring.ring
        .submitter()
        .register_files(&[-1, file.as_raw_fd()])?;
    let entry = opcode::Read::new(types::Fixed(1), ring.buffer.as_mut_ptr(), 50);
    let (result, took) = ring.one(&entry.build())?;
    files.count("io_uring file 1", Kind::Read, result, took);
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

/// Hands over so many reads of an empty pipe, which complete when it is closed.
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
