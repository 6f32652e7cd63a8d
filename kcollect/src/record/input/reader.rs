//! The reader: a thread that empties the rings, does nothing else, and goes before others.
//!
//! What is in the rings may take long to apply: hundreds of processes begin at once, a disk is
//! slow, the machine has more work than CPUs. The kernel does not wait for that, and what finds a
//! ring full is lost: the profile of the very overload that somebody wants to understand would have
//! holes. So it is taken out of the rings at once, as bytes, and waits in memory instead.
//!
//! Memory has an end too: where [`MOST_WAITING`] bytes wait already, the rings fill up, and the
//! losses are counted as ever.

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

use crate::record::hardening::rt_priority;

/// So much may wait, bytes: some half a minute of what brief programs on two CPUs say, one after
/// the other.
pub const MOST_WAITING: usize = 64 << 20;

/// Copies of stacks are the most of it, where many processes begin at once. The programs make fewer
/// when a quarter of this waits, bytes, and none from the half on.
const ROOM_FOR_COPIES: usize = 32 << 20;

/// When so much waits, bytes, it should not wait for the next round.
const MUCH: usize = 1 << 20;

/// What a descriptor is that wakes the thread.
const BELL: u64 = 0;
const RING: u64 = 1;

/// Bytes out of the rings.
#[derive(Debug, Default)]
pub struct Bytes {
    /// Records of the programs, in no order across CPUs.
    pub records: Vec<u8>,
    /// Records of the side-band, in order within a CPU, in none across CPUs.
    pub sideband: Vec<u8>,
}

impl Bytes {
    fn len(&self) -> usize {
        self.records.len() + self.sideband.len()
    }

    /// Keeps the memory, unless it was for a rush.
    fn clear(&mut self) {
        for bytes in [&mut self.records, &mut self.sideband] {
            bytes.clear();
            bytes.shrink_to(MUCH);
        }
    }

    /// Of the room for copies.
    fn eighths(&self) -> u32 {
        (8 * self.len() / ROOM_FOR_COPIES).min(8) as u32
    }
}

/// The rings, and the thread that empties them, once it was started. Until then, and without it,
/// they are emptied when somebody [takes](Reader::take) what is in them.
#[derive(Debug)]
pub struct Reader {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    rings: Mutex<Rings>,
    /// The rings are others now, or the end has come.
    bell: EventFd,
    /// Much has come.
    come: EventFd,
    ended: AtomicBool,
}

#[derive(Debug)]
struct Rings {
    programs: bpf::Rings,
    /// By CPU.
    sideband: BTreeMap<u32, PerfRing>,
    waiting: Bytes,
}

impl Reader {
    /// Of the programs' rings; no side-band yet, and no thread.
    ///
    /// # Errors
    /// What `eventfd(2)` says.
    pub fn new(programs: bpf::Rings) -> io::Result<Reader> {
        let rings = Rings {
            programs,
            sideband: BTreeMap::new(),
            waiting: Bytes::default(),
        };
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        Ok(Reader {
            shared: Arc::new(Shared {
                rings: Mutex::new(rings),
                bell: EventFd::from_flags(flags)?,
                come: EventFd::from_flags(flags)?,
                ended: AtomicBool::new(false),
            }),
            thread: None,
        })
    }

    /// Starts the thread, with the privileges that the caller has by now.
    ///
    /// # Errors
    /// When no thread can be started; or `EPERM`, when it runs, but not before others: without
    /// `CAP_SYS_NICE`, or in a cgroup that has no share of real time.
    pub fn start(&mut self) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        let (tell, told) = channel();
        let thread = thread::Builder::new()
            .name("reader".to_owned())
            .spawn(move || {
                // Whoever asks waits for it.
                let _ = tell.send(rt_priority::always());
                // Without descriptors there is nothing to wait for: the rings are emptied by
                // whoever takes what is in them.
                let _ = shared.keep_empty();
            })?;
        self.thread = Some(thread);
        Ok(told.recv().unwrap_or(Ok(()))?)
    }

    /// Becomes readable when much has come.
    #[must_use]
    pub fn wake_fd(&self) -> BorrowedFd<'_> {
        self.shared.come.as_fd()
    }

    /// Reads the side-band of a CPU too.
    pub(crate) fn listen(&self, cpu: u32, ring: PerfRing) {
        self.shared.lock().sideband.insert(cpu, ring);
        self.shared.ring_the_bell();
    }

    /// Reads the last records of a CPU's side-band.
    pub fn unlisten(&self, cpu: u32) {
        let mut rings = self.shared.lock();
        if let Some(ring) = rings.sideband.remove(&cpu) {
            ring.take(&mut rings.waiting.sideband);
        }
        drop(rings);
        self.shared.ring_the_bell();
    }

    /// All that came since the last time, up to this instant, in place of what is in `bytes`, whose
    /// memory is used again.
    ///
    /// # Errors
    /// [`bpf::Error::Step`] when a ring can't be read.
    pub fn take(&self, bytes: &mut Bytes) -> Result<(), bpf::Error> {
        bytes.clear();
        let mut rings = self.shared.lock();
        let _ = self.shared.come.read();
        rings.empty()?;
        rings.programs.set_backlog(0);
        std::mem::swap(&mut rings.waiting, bytes);
        Ok(())
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Release);
        // One that can't be told is not waited for.
        if self.shared.ring_the_bell() {
            let _ = self.thread.take().map(JoinHandle::join);
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Rings> {
        self.rings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Is it heard?
    fn ring_the_bell(&self) -> bool {
        self.bell.write(1).is_ok()
    }

    /// What the thread does.
    fn keep_empty(&self) -> io::Result<()> {
        while !self.ended.load(Ordering::Acquire) {
            // Not those of the rings themselves, which may be closed meanwhile.
            let descriptors = self.lock().descriptors()?;
            let wakers = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
            wakers.add(&self.bell, EpollEvent::new(EpollFlags::EPOLLIN, BELL))?;
            // Edges alone: a ring is readable as soon as anything is in it, but wakes when it is
            // time to come.
            let edges = EpollFlags::EPOLLIN | EpollFlags::EPOLLET;
            for descriptor in &descriptors {
                wakers.add(descriptor, EpollEvent::new(edges, RING))?;
            }
            while !rings(&wakers) {
                let mut rings = self.lock();
                if rings.waiting.len() < MOST_WAITING {
                    // Whoever takes what has come is told the same.
                    let _ = rings.empty();
                }
                // Who waits for it comes once.
                if rings.waiting.len() > MUCH {
                    let _ = self.come.write(1);
                }
            }
            let _ = self.bell.read();
        }
        Ok(())
    }
}

/// Waits for a ring, or for the bell. Does it ring?
fn rings(wakers: &Epoll) -> bool {
    let mut events = [EpollEvent::empty(); 8];
    // An interrupted wait is one that has ended.
    let count = wakers.wait(&mut events, EpollTimeout::NONE).unwrap_or(0);
    events[..count].iter().any(|event| event.data() == BELL)
}

impl Rings {
    fn empty(&mut self) -> Result<(), bpf::Error> {
        for ring in self.sideband.values() {
            ring.take(&mut self.waiting.sideband);
        }
        self.programs.take(&mut self.waiting.records)?;
        self.programs.set_backlog(self.waiting.eighths());
        Ok(())
    }

    /// Wake when a ring is well filled.
    fn descriptors(&self) -> io::Result<Vec<OwnedFd>> {
        let sideband = self.sideband.values().map(|ring| ring.as_fd());
        let all = sideband.chain(self.programs.descriptors());
        all.map(|fd| fd.try_clone_to_owned()).collect()
    }
}
