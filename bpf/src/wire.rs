//! The Rust side of `c/wire.h`: ticks, absences, accounts of threads and the books of a CPU, decoded
//! from bytes.
//!
//! Decoding copies and checks; nothing here trusts that a record is what its length says.

use crate::Error;

/// As many frames as a record can have.
pub const MAX_FRAMES: usize = 127;

/// The states of a thread, numbered as in the experiment.
pub const STATES: usize = 10;

/// Bytes of a `struct thread_record`.
pub(crate) const THREAD: usize = HEADER + STATES * 8 + 8;

const HEADER: usize = 32;
const BOOKS: usize = 192;

/// What the CPU was doing at a tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// In user mode.
    User,
    /// In the kernel.
    Kernel,
    /// In the idle task, with no interrupt's work on top.
    Idle,
}

/// One firing of one CPU's clock, or the idle time before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tick {
    /// CLOCK_MONOTONIC, nanoseconds.
    pub time: u64,
    /// The CPU's id.
    pub cpu: u32,
    /// The process, in the initial pid namespace; 0 is idle.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// Interval boundaries this stands for: 1 unless the timer was held up.
    pub ticks: u32,
    /// What the CPU was doing.
    pub mode: Mode,
    /// An interrupt or softirq had borrowed the CPU from the thread.
    pub irq_work: bool,
    /// The stack was deeper than the kernel's limit: its root is missing.
    pub truncated: bool,
    /// The kernel gave no stack, so `stack` is the leaf alone.
    pub no_stack: bool,
    /// Kernel addresses, leaf first, callers as return addresses; empty unless `mode` is
    /// [`Mode::Kernel`].
    pub stack: Box<[u64]>,
}

/// A thread came back to a CPU after interval boundaries had passed in its absence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Absence {
    /// When it came back, CLOCK_MONOTONIC, nanoseconds.
    pub time: u64,
    /// The CPU that it came back to.
    pub cpu: u32,
    /// Its process, in the initial pid namespace.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// Boundaries by state, as the states are numbered in the experiment.
    pub counts: [u32; STATES],
    /// The stack was deeper than the kernel's limit: its root is missing.
    pub truncated: bool,
    /// The kernel gave no stack.
    pub no_stack: bool,
    /// The kernel stack in which it was away, leaf first, callers as return addresses.
    pub stack: Box<[u64]>,
}

/// What one thread did since it was watched, or since it was last told of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadTimes {
    /// When this was told, CLOCK_MONOTONIC, nanoseconds.
    pub time: u64,
    /// Its process, in the initial pid namespace.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// Nanoseconds by state, as the states are numbered in the experiment; all of its time on a CPU, in
    /// whatever mode, is under user.
    pub ns: [u64; STATES],
    /// For how long it was watched, nanoseconds.
    pub lived: u64,
}

/// One record of a ring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// A clock fired.
    Tick(Tick),
    /// A thread came back.
    Absence(Absence),
    /// A thread ended.
    Thread(ThreadTimes),
}

impl Record {
    /// When it happened, CLOCK_MONOTONIC, nanoseconds.
    #[must_use]
    pub fn time(&self) -> u64 {
        match self {
            Record::Tick(tick) => tick.time,
            Record::Absence(absence) => absence.time,
            Record::Thread(thread) => thread.time,
        }
    }

    /// Decodes one ring record.
    ///
    /// # Errors
    /// [`Error::Record`] when the bytes are none of the structures of `c/wire.h`.
    pub fn decode(bytes: &[u8]) -> Result<Record, Error> {
        let refuse = |why| Error::Record {
            size: bytes.len(),
            why,
        };
        let (head, rest) = bytes
            .split_first_chunk::<HEADER>()
            .ok_or(refuse("shorter than its header"))?;
        let frames = usize::from(u16::from_ne_bytes([head[26], head[27]]));
        let (body, mode) = match head[24] {
            0 => (0, Some(Mode::User)),
            1 => (0, Some(Mode::Kernel)),
            2 => (0, Some(Mode::Idle)),
            3 => (STATES * 4, None),
            4 => (STATES * 8 + 8, None),
            _ => return Err(refuse("unknown kind")),
        };
        if frames > MAX_FRAMES || rest.len() != body + frames * 8 {
            return Err(refuse("frames and length differ"));
        }
        let (body, stack) = rest.split_at(body);
        let stack = (0..frames).map(|frame| word(stack, frame * 8)).collect();
        let (time, cpu) = (word(head, 0), half(head, 8));
        let (pid, tid) = (half(head, 12), half(head, 16));
        let flag = |bit: u8| head[25] & bit != 0;
        Ok(match mode {
            Some(mode) => Record::Tick(Tick {
                time,
                cpu,
                pid,
                tid,
                ticks: half(head, 20),
                mode,
                irq_work: flag(1),
                truncated: flag(2),
                no_stack: flag(4),
                stack,
            }),
            None if head[24] == 3 => Record::Absence(Absence {
                time,
                cpu,
                pid,
                tid,
                counts: std::array::from_fn(|state| half(body, state * 4)),
                truncated: flag(2),
                no_stack: flag(4),
                stack,
            }),
            None => Record::Thread(ThreadTimes {
                time,
                pid,
                tid,
                ns: std::array::from_fn(|state| word(body, state * 8)),
                lived: word(body, STATES * 8),
            }),
        })
    }
}

/// The books of one CPU: interval boundaries by what became of them, since it was first recorded.
///
/// `user + kernel + idle` is what the CPU lived through; of that `unsent` was left out by request
/// and `lost` found no room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuBooks {
    pub(crate) origin: u64,
    pub(crate) index: u64,
    /// Boundaries in user mode.
    pub user: u64,
    /// Boundaries in the kernel.
    pub kernel: u64,
    /// Boundaries in the idle task.
    pub idle: u64,
    /// Idle boundaries not sent, because idle is not recorded.
    pub unsent: u64,
    /// Boundaries whose record found the ring full.
    pub lost: u64,
    /// Records that found the ring full.
    pub lost_records: u64,
    /// Boundaries beyond the first of a firing on a busy CPU: its timer had been held up for that long.
    pub made_up: u64,
    /// Records whose stack was cut at the kernel's depth limit.
    pub truncated: u64,
    /// Records for which the kernel gave no stack.
    pub no_stack: u64,
    /// When the clock last fired or idleness was last counted, CLOCK_MONOTONIC nanoseconds; 0 before.
    pub last: u64,
    pub(crate) in_idle: u64,
    /// Boundaries in absences of threads whose record found the ring full.
    pub absences_lost: u64,
    /// Threads whose account is lost: the ring was full, or there was no memory for it.
    pub threads_lost: u64,
}

impl CpuBooks {
    /// Size of `struct cpu_books`.
    pub(crate) const SIZE: usize = BOOKS;

    /// Boundaries that passed while this CPU was recorded.
    #[must_use]
    pub fn boundaries(&self) -> u64 {
        self.user + self.kernel + self.idle
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<CpuBooks> {
        let bytes: &[u8; BOOKS] = bytes.try_into().ok()?;
        Some(CpuBooks {
            origin: word(bytes, 0),
            index: word(bytes, 8),
            user: word(bytes, 16),
            kernel: word(bytes, 24),
            idle: word(bytes, 32),
            unsent: word(bytes, 40),
            lost: word(bytes, 48),
            lost_records: word(bytes, 56),
            made_up: word(bytes, 64),
            truncated: word(bytes, 72),
            no_stack: word(bytes, 80),
            last: word(bytes, 88),
            in_idle: word(bytes, 96),
            absences_lost: word(bytes, 128),
            threads_lost: word(bytes, 136),
        })
    }

    pub(crate) fn encode(&self) -> [u8; BOOKS] {
        let words = [
            self.origin,
            self.index,
            self.user,
            self.kernel,
            self.idle,
            self.unsent,
            self.lost,
            self.lost_records,
            self.made_up,
            self.truncated,
            self.no_stack,
            self.last,
            self.in_idle,
            // Of the clock that is gone.
            0,
            0,
            0,
            self.absences_lost,
            self.threads_lost,
        ];
        let mut bytes = [0; BOOKS];
        for (slot, word) in bytes.chunks_exact_mut(8).zip(words) {
            slot.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }
}

fn word(bytes: &[u8], at: usize) -> u64 {
    bytes[at..]
        .first_chunk()
        .map_or(0, |chunk| u64::from_ne_bytes(*chunk))
}

fn half(bytes: &[u8], at: usize) -> u32 {
    bytes[at..]
        .first_chunk()
        .map_or(0, |chunk| u32::from_ne_bytes(*chunk))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn record(mode: u8, flags: u8, stack: &[u64]) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(7_000_000_001_u64.to_ne_bytes());
        for half in [3_u32, 100, 101, 2] {
            bytes.extend(half.to_ne_bytes());
        }
        bytes.extend([mode, flags]);
        bytes.extend((stack.len() as u16).to_ne_bytes());
        bytes.extend([0; 4]);
        stack
            .iter()
            .for_each(|frame| bytes.extend(frame.to_ne_bytes()));
        bytes
    }

    #[test]
    fn a_kernel_tick_decodes() {
        let tick = Record::decode(&record(
            1,
            3,
            &[0xffff_ffff_8100_0010, 0xffff_ffff_8100_2000],
        ))
        .unwrap();
        assert_eq!(
            tick,
            Record::Tick(Tick {
                time: 7_000_000_001,
                cpu: 3,
                pid: 100,
                tid: 101,
                ticks: 2,
                mode: Mode::Kernel,
                irq_work: true,
                truncated: true,
                no_stack: false,
                stack: Box::new([0xffff_ffff_8100_0010, 0xffff_ffff_8100_2000]),
            })
        );
    }

    #[test]
    fn an_absence_and_a_thread_decode() {
        let counts: Vec<u8> = (0..10_u32).flat_map(u32::to_ne_bytes).collect();
        let mut bytes = record(3, 4, &[]);
        bytes.extend(counts);
        let Record::Absence(absence) = Record::decode(&bytes).unwrap() else {
            panic!("not an absence");
        };
        assert_eq!(absence.counts, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert!(absence.no_stack && absence.stack.is_empty());

        let mut bytes = record(4, 0, &[]);
        bytes.extend((0..11_u64).flat_map(u64::to_ne_bytes));
        let Record::Thread(thread) = Record::decode(&bytes).unwrap() else {
            panic!("not a thread");
        };
        assert_eq!((thread.ns[9], thread.lived, thread.tid), (9, 10, 101));
    }

    #[test]
    fn what_is_no_tick_is_refused() {
        let good = record(0, 0, &[1, 2, 3]);
        assert!(Record::decode(&good).is_ok());
        for cut in 0..good.len() {
            assert!(Record::decode(&good[..cut]).is_err(), "cut at {cut}");
        }
        assert!(Record::decode(&record(3, 0, &[])).is_err());
        assert!(Record::decode(&record(4, 0, &[])).is_err());
        assert!(Record::decode(&record(5, 0, &[])).is_err());
        assert!(Record::decode(&record(1, 0, &[0; MAX_FRAMES + 1])).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = Record::decode(&bytes);
        }

        #[test]
        fn books_survive_the_way_there_and_back(words in any::<[u64; 18]>()) {
            let mut bytes = [0; BOOKS];
            let clock = 13..16;
            for (at, (slot, word)) in bytes.chunks_exact_mut(8).zip(words).enumerate() {
                let kept = if clock.contains(&at) { 0 } else { word };
                slot.copy_from_slice(&kept.to_ne_bytes());
            }
            prop_assert_eq!(CpuBooks::decode(&bytes).unwrap().encode(), bytes);
        }
    }
}
