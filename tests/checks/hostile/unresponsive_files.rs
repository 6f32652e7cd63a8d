//! Files on a file system that does not answer any more, as with a file server that is down:
//! kcollect reports it, records every other process, and ends.
//!
//! The file system is in user space and blocks in the middle of a request. The next process that
//! calls it waits until it answers again, or until it is killed. The process that executes its file
//! is not affected: all pages of the file have been read by then.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags,
    Generation, INodeNo, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyEntry, ReplyOpen,
    Request,
};
use nix::mount::{MntFlags, umount2};
use nix::sys::signal::Signal;
use serde_json::Value;
use tempfile::TempDir;
use tests::command::Running;
use tests::experiment::opened::opened;
use tests::kcollect::{Recording, command, experiment_in};
use tests::machine::Shared;
use tests::machine::disturbance::not_judged;
use tests::workload::proctorture::{PROCTORTURE, start};

const LIMIT: Duration = Duration::from_secs(60);

/// How long the kernel keeps the answer to a lookup. Attributes are requested each time.
const ATTRIBUTES_VALID: Duration = Duration::from_secs(600);

const FILE: INodeNo = INodeNo(2);
/// The name whose lookup blocks the file system.
const STOP: &str = "stop";

/// Padding after the program, bytes: so large that its pages and its tables were read long before.
const PADDING_BYTES: usize = 32 << 20;

/// How long a slow answer takes.
const SLOW_ANSWER: Duration = Duration::from_millis(50);

/// Whether the file system answers. One thread serves all requests, so that the kernel keeps the
/// later ones: a process can be killed while it waits for one that the server has not read.
#[derive(Debug, Default)]
struct Switch {
    blocked: Mutex<bool>,
    changed: Condvar,
}

impl Switch {
    fn set(&self, blocked: bool) {
        *self.blocked.lock().unwrap_or_else(PoisonError::into_inner) = blocked;
        self.changed.notify_all();
    }

    fn wait_until(&self, blocked: bool) {
        let now = self.blocked.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.changed.wait_while(now, |now| *now != blocked));
    }
}

/// A file system with one file.
struct OneFile {
    name: &'static str,
    bytes: Vec<u8>,
    /// Reads from this offset on are answered after [`SLOW_ANSWER`].
    slow_from: u64,
    switch: Arc<Switch>,
}

impl OneFile {
    fn attributes(&self, inode: INodeNo) -> FileAttr {
        let (kind, size) = match inode {
            INodeNo::ROOT => (FileType::Directory, 0),
            _ => (FileType::RegularFile, self.bytes.len() as u64),
        };
        FileAttr {
            ino: inode,
            size,
            blocks: size.div_ceil(512),
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind,
            perm: 0o755,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            flags: 0,
            blksize: 4096,
        }
    }
}

impl Filesystem for OneFile {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if name == self.name {
            return reply.entry(&ATTRIBUTES_VALID, &self.attributes(FILE), Generation(0));
        }
        if name == STOP {
            self.switch.set(true);
            self.switch.wait_until(false);
        }
        reply.error(Errno::ENOENT);
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&Duration::ZERO, &self.attributes(inode));
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE);
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        if offset >= self.slow_from {
            sleep(SLOW_ANSWER);
        }
        let rest = self.bytes.get(offset as usize..).unwrap_or_default();
        reply.data(&rest[..rest.len().min(size as usize)]);
    }
}

/// A directory with a program in it.
struct Server {
    name: &'static str,
    session: Option<BackgroundSession>,
    switch: Arc<Switch>,
    blocked_threads: Vec<JoinHandle<()>>,
    directory: TempDir,
}

impl Server {
    /// Starts one that answers, slowly from this offset in its program on; returns none where the
    /// kernel has no such file systems. No other check follows programs of this name: its recording
    /// would have a file that does not answer, and gprofng would wait for it.
    fn start(name: &'static str, slow_from: u64) -> Result<Option<Self>> {
        if !Path::new("/dev/fuse").exists() {
            not_judged(format_args!("there is no /dev/fuse"));
            return Ok(None);
        }
        let directory = tempfile::tempdir()?;
        let switch = Arc::new(Switch::default());
        let mut bytes = fs::read(PROCTORTURE)?;
        bytes.resize(bytes.len() + PADDING_BYTES, 0);
        let files = OneFile {
            name,
            bytes,
            slow_from,
            switch: Arc::clone(&switch),
        };
        let session = fuser::spawn_mount(files, directory.path(), &Config::default());
        Ok(Some(Self {
            name,
            session: Some(session.context("a file system in user space")?),
            switch,
            blocked_threads: Vec::new(),
            directory,
        }))
    }

    fn program(&self) -> std::path::PathBuf {
        self.directory.path().join(self.name)
    }

    /// Returns what `-F` chooses its program by.
    fn follow(&self) -> String {
        format!("=^{}$", self.name)
    }

    /// Blocks it by a request of this process, whose thread cannot be killed.
    fn stop(&mut self) {
        let stop = self.directory.path().join(STOP);
        self.blocked_threads
            .push(spawn(move || drop(fs::metadata(stop))));
        self.switch.wait_until(true);
    }

    /// Lets it answer again: gprofng and others read its files.
    fn resume(&self) {
        self.switch.set(false);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.resume();
        for thread in self.blocked_threads.drain(..) {
            let _ = thread.join();
        }
        // At once, though another recording may be reading the program.
        let _ = umount2(self.directory.path(), MntFlags::MNT_DETACH);
        drop(self.session.take());
    }
}

/// Runs the program of a server, in pages that are in memory by the time this returns.
fn run(program: &Path) -> Result<Running> {
    let running = start(program, &["one:4000"])?;
    sleep(Duration::from_millis(300));
    Ok(running)
}

/// What an experiment says of its archive.
fn archive_of(experiment: &Path) -> Result<Value> {
    ensure!(opened(experiment)?.closed, "it is not closed");
    let text = fs::read_to_string(experiment.join("kcollect.json"))?;
    let mut summary: Value = serde_json::from_str(&text)?;
    Ok(summary["archive"].take())
}

/// The cause for which the program's file is not archived.
fn cause(archive: &Value, program: &Path) -> Result<Value> {
    let mut left = archive["left_out"].as_array().into_iter().flatten();
    let name = program.to_string_lossy();
    let row = left
        .find(|left| left["name"] == *name)
        .with_context(|| format!("{name} is not named in {archive}"))?;
    Ok(row["cause"].clone())
}

#[test]
fn root_a_file_server_that_is_down_is_reported_and_not_waited_for() -> Result<()> {
    let _machine = Shared::take()?;
    let Some(mut server) = Server::start("down", u64::MAX)? else {
        return Ok(());
    };
    let program = server.program();
    let load = run(&program)?;
    server.stop();
    let began = Instant::now();
    let recording = Recording::start(["-p", "hi", "-F", &server.follow(), "-t", "2"], LIMIT)?;
    let recorded = recording.finish()?.succeeded()?;
    let took = began.elapsed();
    ensure!(took < Duration::from_secs(40), "it took {took:?}");
    server.resume();
    load.finish()?.succeeded()?;
    let archive = archive_of(&recorded.experiment()?)?;
    ensure!(archive["given_up"] == false, "it waited: {archive}");
    ensure!(cause(&archive, &program)? == "no_answer", "{archive}");
    Ok(())
}

#[test]
fn root_a_file_server_that_stops_answering_is_given_up() -> Result<()> {
    let _machine = Shared::take()?;
    let Some(mut server) = Server::start("stops", 16 << 20)? else {
        return Ok(());
    };
    let program = server.program();
    let load = run(&program)?;
    let mut recording = Recording::start(["-p", "hi", "-F", &server.follow()], LIMIT)?;
    recording.until_running()?;
    // Its copy is being made.
    sleep(Duration::from_secs(1));
    server.stop();
    recording.signal(Signal::SIGINT)?;
    sleep(Duration::from_secs(1));
    ensure!(
        !recording.running().ended()?,
        "nothing was left to be archived"
    );
    let began = Instant::now();
    let recorded = recording.stop()?;
    let took = began.elapsed();
    ensure!(took < Duration::from_secs(10), "it took {took:?}");
    server.resume();
    load.finish()?.succeeded()?;
    let archive = archive_of(&recorded.experiment()?)?;
    ensure!(cause(&archive, &program)? == "given_up", "{archive}");
    Ok(())
}

/// One that has a file left when it is to stop is not waited for until systemd kills it.
#[test]
fn root_a_service_has_so_much_time_to_archive() -> Result<()> {
    let _machine = Shared::take()?;
    let Some(mut server) = Server::start("stops_service", 16 << 20)? else {
        return Ok(());
    };
    let program = server.program();
    let load = run(&program)?;
    let place = tempfile::tempdir()?;
    let systemd = UnixDatagram::bind(place.path().join("notify"))?;
    systemd.set_read_timeout(Some(LIMIT))?;
    let mut command = command(["-p", "hi", "-x", "off", "-F", &server.follow()])?;
    command.current_dir(place.path());
    command.env("NOTIFY_SOCKET", place.path().join("notify"));
    let mut service = Running::start(&mut command, LIMIT)?;
    let mut message = [0; 100];
    let length = systemd.recv(&mut message)?;
    ensure!(message[..length].starts_with(b"READY=1"), "{message:?}");
    // Its copy is being made.
    sleep(Duration::from_secs(1));
    server.stop();
    ensure!(!service.ended()?, "it ended");
    service.signal(Signal::SIGTERM)?;
    let began = Instant::now();
    let finished = service.finish()?.succeeded()?;
    let took = began.elapsed();
    ensure!(took < Duration::from_secs(45), "it took {took:?}");
    server.resume();
    load.finish()?.succeeded()?;
    let archive = archive_of(&experiment_in(place.path())?)?;
    ensure!(archive["given_up"] == true, "{archive}: {finished}");
    Ok(())
}
