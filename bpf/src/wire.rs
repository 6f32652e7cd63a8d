//! The Rust side of `c/wire.h`: ticks and the books of a CPU, decoded from bytes.
//!
//! Decoding copies and checks; nothing here trusts that a record is what its length says.

use crate::Error;

/// As many frames as a record can have.
pub const MAX_FRAMES: usize = 127;

const HEADER: usize = 32;
const BOOKS: usize = 128;

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

impl Tick {
    /// Decodes one ring record.
    ///
    /// # Errors
    /// [`Error::Record`] when the bytes are not a `struct tick_record` with its frames.
    pub fn decode(bytes: &[u8]) -> Result<Tick, Error> {
        let refuse = |why| Error::Record {
            size: bytes.len(),
            why,
        };
        let (head, rest) = bytes
            .split_first_chunk::<HEADER>()
            .ok_or(refuse("shorter than its header"))?;
        let frames = usize::from(u16::from_ne_bytes([head[26], head[27]]));
        if frames > MAX_FRAMES || rest.len() != frames * 8 {
            return Err(refuse("frames and length differ"));
        }
        let mode = match head[24] {
            0 => Mode::User,
            1 => Mode::Kernel,
            2 => Mode::Idle,
            _ => return Err(refuse("unknown mode")),
        };
        let flags = head[25];
        Ok(Tick {
            time: word(head, 0),
            cpu: half(head, 8),
            pid: half(head, 12),
            tid: half(head, 16),
            ticks: half(head, 20),
            mode,
            irq_work: flags & 1 != 0,
            truncated: flags & 2 != 0,
            no_stack: flags & 4 != 0,
            stack: (0..frames).map(|frame| word(rest, frame * 8)).collect(),
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
        let tick = Tick::decode(&record(
            1,
            3,
            &[0xffff_ffff_8100_0010, 0xffff_ffff_8100_2000],
        ))
        .unwrap();
        assert_eq!(
            tick,
            Tick {
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
            }
        );
    }

    #[test]
    fn what_is_no_tick_is_refused() {
        let good = record(0, 0, &[1, 2, 3]);
        assert!(Tick::decode(&good).is_ok());
        for cut in 0..good.len() {
            assert!(Tick::decode(&good[..cut]).is_err(), "cut at {cut}");
        }
        assert!(Tick::decode(&record(3, 0, &[])).is_err());
        assert!(Tick::decode(&record(1, 0, &[0; MAX_FRAMES + 1])).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = Tick::decode(&bytes);
        }

        #[test]
        fn books_survive_the_way_there_and_back(words in any::<[u64; 13]>()) {
            let mut bytes = [0; BOOKS];
            for (slot, word) in bytes.chunks_exact_mut(8).zip(words) {
                slot.copy_from_slice(&word.to_ne_bytes());
            }
            prop_assert_eq!(CpuBooks::decode(&bytes).unwrap().encode(), bytes);
        }
    }
}
