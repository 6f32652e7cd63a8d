//! The reader: a thread with real-time priority that empties the rings and does nothing else.
//!
//! The records in the rings may take long to apply: when hundreds of processes start at once, when
//! a disk is slow, when the machine has more work than CPUs. The kernel does not wait, and a record
//! that finds its ring full is lost, so a profile of an overload would have holes. So the thread
//! takes the records out of the rings at once, as bytes, and keeps them in memory.
//!
//! That memory is bounded: while [`MAX_WAITING_BYTES`] wait the rings are not emptied, and what is
//! lost is counted as before.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use counters::perf::ring::PerfRing;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::record::hardening::priority;

/// Waiting bytes above which the rings are not emptied: some 30 seconds of records when two CPUs
/// run one short-lived process after the other.
pub const MAX_WAITING_BYTES: usize = 64 << 20;

/// Waiting bytes that the BPF programs take for a full backlog. Most of them are stack copies when
/// many processes start at once: the programs make fewer when a quarter of this waits, and none
/// when a half waits.
const FULL_BACKLOG_BYTES: usize = 32 << 20;

/// Waiting bytes above which the next round begins at once.
const WAKE_THRESHOLD_BYTES: usize = 1 << 20;

/// The epoll data of the eventfd that wakes the thread.
const WAKE_EVENT: u64 = 0;
/// The epoll data of every ring.
const RING_EVENT: u64 = 1;

/// Bytes read from the rings.
#[derive(Debug, Default)]
pub struct Bytes {
    /// Records of the BPF programs, unordered across CPUs.
    pub records: Vec<u8>,
    /// Records of the side-band, ordered within a CPU, unordered across CPUs.
    pub sideband: Vec<u8>,
}

impl Bytes {
    fn len(&self) -> usize {
        self.records.len() + self.sideband.len()
    }

    /// Removes the bytes. Their memory is kept for the next ones, except after a peak.
    fn clear(&mut self) {
        for bytes in [&mut self.records, &mut self.sideband] {
            bytes.clear();
            bytes.shrink_to(WAKE_THRESHOLD_BYTES);
        }
    }

    /// Returns how much waits, in eighths of [`FULL_BACKLOG_BYTES`], 8 at most.
    fn backlog_eighths(&self) -> u32 {
        (8 * self.len() / FULL_BACKLOG_BYTES).min(8) as u32
    }
}

/// The rings, and the thread that empties them once it is started. Without the thread, they are
/// emptied by [`Reader::take`] alone.
#[derive(Debug)]
pub struct Reader {
    state: Arc<ReaderState>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct ReaderState {
    rings: Mutex<Rings>,
    /// Wakes the thread: the set of rings has changed, or the reader is dropped.
    thread_wake: EventFd,
    /// Wakes the session: more than [`WAKE_THRESHOLD_BYTES`] wait, or a stack copy, whose table can
    /// be made while its process still runs.
    session_wake: EventFd,
    /// The reader is dropped.
    stopped: AtomicBool,
}

#[derive(Debug)]
struct Rings {
    programs: bpf::Rings,
    /// The side-band ring of each CPU.
    sideband: BTreeMap<u32, PerfRing>,
    /// Bytes that were read from the rings and not returned by [`Reader::take`] yet.
    waiting: Bytes,
}

impl Reader {
    /// Returns a reader of the BPF programs' rings, without side-band and without a thread.
    ///
    /// # Errors
    /// As `eventfd(2)`.
    pub fn new(programs: bpf::Rings) -> io::Result<Reader> {
        let rings = Rings {
            programs,
            sideband: BTreeMap::new(),
            waiting: Bytes::default(),
        };
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        Ok(Reader {
            state: Arc::new(ReaderState {
                rings: Mutex::new(rings),
                thread_wake: EventFd::from_flags(flags)?,
                session_wake: EventFd::from_flags(flags)?,
                stopped: AtomicBool::new(false),
            }),
            thread: None,
        })
    }

    /// Starts the thread, with the privileges that the caller still has.
    ///
    /// # Errors
    /// When no thread can be started; or `EPERM` when it runs without real-time priority: without
    /// `CAP_SYS_NICE`, or in a cgroup without real-time bandwidth.
    pub fn start(&mut self) -> io::Result<()> {
        let state = Arc::clone(&self.state);
        let (sender, receiver) = channel();
        let thread = thread::Builder::new()
            .name("reader".to_owned())
            .spawn(move || {
                // The receiver waits for it below, so this can't fail.
                let _ = sender.send(priority::set_real_time());
                // Without descriptors there is nothing to wait for: the rings are then emptied by
                // `take` alone.
                let _ = state.keep_empty();
            })?;
        self.thread = Some(thread);
        Ok(receiver.recv().unwrap_or(Ok(()))?)
    }

    /// A descriptor that becomes readable when so much waits that a round should begin at once.
    #[must_use]
    pub fn wake_fd(&self) -> BorrowedFd<'_> {
        self.state.session_wake.as_fd()
    }

    /// Adds the side-band ring of a CPU.
    pub(crate) fn listen(&self, cpu: u32, ring: PerfRing) {
        self.state.lock().sideband.insert(cpu, ring);
        self.state.wake_thread();
    }

    /// Reads the last records of a CPU's side-band ring and closes it.
    pub fn unlisten(&self, cpu: u32) {
        let mut rings = self.state.lock();
        if let Some(ring) = rings.sideband.remove(&cpu) {
            ring.take(&mut rings.waiting.sideband);
        }
        drop(rings);
        self.state.wake_thread();
    }

    /// Replaces `bytes`, whose memory is reused, by all bytes that arrived since the last time, up
    /// to this instant.
    pub fn take(&self, bytes: &mut Bytes) {
        bytes.clear();
        let mut rings = self.state.lock();
        let _ = self.state.session_wake.read();
        rings.empty();
        rings.programs.set_backlog(0);
        std::mem::swap(&mut rings.waiting, bytes);
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.state.stopped.store(true, Ordering::Release);
        // A thread that can't be woken would never be joined.
        if self.state.wake_thread() {
            let _ = self.thread.take().map(JoinHandle::join);
        }
    }
}

impl ReaderState {
    fn lock(&self) -> MutexGuard<'_, Rings> {
        self.rings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the thread. Returns whether that worked.
    fn wake_thread(&self) -> bool {
        self.thread_wake.write(1).is_ok()
    }

    /// Empties the rings until the reader is dropped: the body of the thread.
    fn keep_empty(&self) -> io::Result<()> {
        while !self.stopped.load(Ordering::Acquire) {
            // Duplicates, since a ring may be closed while the thread waits.
            let descriptors = self.lock().descriptors()?;
            let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
            epoll.add(
                &self.thread_wake,
                EpollEvent::new(EpollFlags::EPOLLIN, WAKE_EVENT),
            )?;
            // Edge-triggered: a ring is readable as soon as a record is in it, but has an edge only
            // when it is filled to its wake-up threshold.
            let edges = EpollFlags::EPOLLIN | EpollFlags::EPOLLET;
            for descriptor in &descriptors {
                epoll.add(descriptor, EpollEvent::new(edges, RING_EVENT))?;
            }
            while !woken(&epoll) {
                let mut rings = self.lock();
                let copies = if rings.waiting.len() < MAX_WAITING_BYTES {
                    rings.empty()
                } else {
                    false
                };
                // `take` resets it, so that it wakes the session once.
                if copies || rings.waiting.len() > WAKE_THRESHOLD_BYTES {
                    let _ = self.session_wake.write(1);
                }
            }
            let _ = self.thread_wake.read();
        }
        Ok(())
    }
}

/// Waits for a ring or for the wake event. Returns whether the wake event has occurred.
fn woken(epoll: &Epoll) -> bool {
    let mut events = [EpollEvent::empty(); 8];
    // A wait that a signal interrupts has no event.
    let count = epoll.wait(&mut events, EpollTimeout::NONE).unwrap_or(0);
    events[..count]
        .iter()
        .any(|event| event.data() == WAKE_EVENT)
}

impl Rings {
    /// Moves all bytes of the rings to those that wait. Returns whether a stack copy is among them.
    fn empty(&mut self) -> bool {
        for ring in self.sideband.values() {
            ring.take(&mut self.waiting.sideband);
        }
        let copies = self.programs.take(&mut self.waiting.records);
        self.programs.set_backlog(self.waiting.backlog_eighths());
        copies
    }

    /// Returns duplicates of the rings' descriptors, which wake when a ring is filled to its
    /// wake-up threshold.
    fn descriptors(&self) -> io::Result<Vec<OwnedFd>> {
        let sideband = self.sideband.values().map(|ring| ring.as_fd());
        let all = sideband.chain(self.programs.descriptors());
        all.map(|fd| fd.try_clone_to_owned()).collect()
    }
}
