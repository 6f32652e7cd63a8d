//! The Rust side of `c/wire.h`: ticks, absences, accounts of threads and entries to user mode,
//! decoded from bytes.
//!
//! Decoding copies and checks; nothing here trusts that a record is what its length says.

use std::fmt;
use std::ops::AddAssign;

use serde::Serialize;

use crate::Error;
use crate::unwind::{End, Registers};

/// As many frames as a record can have.
pub const MAX_FRAMES: usize = 127;

/// The states of a thread, numbered as in the experiment.
pub const STATES: usize = 10;

/// The last of them that the kernel's side tells apart: waiting for a CPU.
const WAIT_CPU: usize = 8;

const HEAD: usize = 56;
const THREAD: usize = 27 * 8;
const ENTRY: usize = 4 * 8;
const OVERFLOW: usize = 2 * 8;

/// As many words as can follow an entry.
const ENTRY_WORDS: usize = 8192;

/// General registers that a copied user side begins with, by DWARF number.
pub const REGISTERS: usize = 16;

/// A thread's name as the kernel keeps it: at most 15 bytes of any kind but NUL.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct ThreadName([u8; 16]);

impl ThreadName {
    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        let end = self.0.iter().position(|byte| *byte == 0);
        &self.0[..end.unwrap_or(self.0.len())]
    }
}

impl fmt::Debug for ThreadName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.bytes().escape_ascii().to_string())
    }
}

/// What every record says: when, where and of whom.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// CLOCK_MONOTONIC, nanoseconds.
    pub time: u64,
    /// The CPU's id.
    pub cpu: u32,
    /// The process, in the initial pid namespace; 0 is idle.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// Number of the thread's entry to user mode that tells the user stack of this; 0 where none is
    /// expected.
    pub entry: u32,
    /// The thread's name at that time.
    pub name: ThreadName,
    /// The thread is the kernel's own.
    pub kernel_thread: bool,
    /// The thread ends: it will not be in user mode again, and gives its memory up.
    pub exiting: bool,
}

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

/// A kernel stack as the kernel gave it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stack {
    /// Kernel addresses, leaf first, callers as return addresses.
    pub frames: Box<[u64]>,
    /// It was deeper than the kernel's limit: its root is missing.
    pub truncated: bool,
    /// The kernel gave no stack: `frames` is the leaf alone, or nothing.
    pub missing: bool,
}

/// One firing of one CPU's clock, or the idle time before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tick {
    /// When, where, and whose.
    pub head: Head,
    /// Interval boundaries this stands for: 1 unless the timer was held up.
    pub ticks: u32,
    /// What the CPU was doing.
    pub mode: Mode,
    /// An interrupt or softirq had borrowed the CPU from the thread.
    pub irq_work: bool,
    /// Taken when the thread left its CPU: the first frames of the stack are those of the taking,
    /// not the thread's.
    pub leaving: bool,
    /// Empty unless `mode` is [`Mode::Kernel`].
    pub stack: Stack,
}

/// What more is known of an absence than its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Detail {
    /// Blocked for block I/O, as the scheduler knows it.
    BlockIo,
    /// Waiting for a CPU that was taken away or given up, and not because of a wake-up.
    Preempted,
    /// Waiting for a CPU that was taken away because a cgroup's quota was used up.
    Throttled,
}

/// A thread came back to a CPU after interval boundaries had passed in its absence; or data stopped
/// in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Absence {
    /// When and where it came back, and who.
    pub head: Head,
    /// The state it went into, as the states are numbered in the experiment.
    pub state: u8,
    /// What more is known of that.
    pub detail: Option<Detail>,
    /// Boundaries in that state.
    pub blocked: u32,
    /// Boundaries from its wake-up on, waiting for a CPU.
    pub waited: u32,
    /// The kernel stack in which it was away.
    pub stack: Stack,
}

impl Absence {
    /// Boundaries by state, as the states are numbered in the experiment.
    #[must_use]
    pub fn counts(&self) -> [u32; STATES] {
        let mut counts = [0; STATES];
        counts[usize::from(self.state)] += self.blocked;
        counts[WAIT_CPU] += self.waited;
        counts
    }
}

/// What one thread did, from the time that it was watched first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadTimes {
    /// When this was told, and of whom.
    pub head: Head,
    /// It has ended. Else it lives on.
    pub ended: bool,
    /// The state it is in, as the states are numbered in the experiment; a thread on a CPU is in
    /// user.
    pub state: u8,
    /// Tells it from all threads that live at that time.
    pub task: u64,
    /// What follows is what it did until then, CLOCK_MONOTONIC, nanoseconds.
    pub as_of: u64,
    /// Since when it is in that state, CLOCK_MONOTONIC, nanoseconds.
    pub since: u64,
    /// For how long it was watched, nanoseconds.
    pub lived: u64,
    /// Nanoseconds by state, as the states are numbered in the experiment; all of its time on a
    /// CPU, in whatever mode, is under user.
    pub ns: [u64; STATES],
    /// What more is known of some of that time.
    pub details: Details,
    /// What the kernel counted of it meanwhile.
    pub counts: Counts,
}

/// A struct of sums that stand one after the other in a record.
macro_rules! sums {
    ($(#[$about:meta])* $name:ident { $($(#[$what:meta])* $sum:ident,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
        pub struct $name {
            $($(#[$what])* pub $sum: u64,)*
        }

        impl $name {
            fn decode(mut words: impl Iterator<Item = u64>) -> $name {
                $name { $($sum: words.next().unwrap_or_default(),)* }
            }
        }

        impl AddAssign for $name {
            fn add_assign(&mut self, other: $name) {
                $(self.$sum += other.$sum;)*
            }
        }
    };
}

sums! {
    /// What more is known of some of the time of a thread, nanoseconds.
    Details {
        /// Of the time blocked, in whatever state: the scheduler knows it as a wait for block I/O.
        block_io,
        /// Of the wait for a CPU: it was taken away or given up. The rest is from a wake-up on.
        preempted,
        /// Of the wait for a CPU: it was taken away because a cgroup's quota was used up.
        throttled,
    }
}

sums! {
    /// What the kernel counts of a thread by itself.
    Counts {
        /// Page faults without I/O.
        minor_faults,
        /// Page faults with I/O.
        major_faults,
        /// Times it gave its CPU up.
        voluntary_switches,
        /// Times it lost its CPU.
        involuntary_switches,
        /// Bytes read by `read(2)` and the like, from anything.
        read_chars,
        /// Bytes written so.
        written_chars,
        /// System calls that read.
        read_calls,
        /// System calls that write.
        write_calls,
        /// Bytes read from block devices.
        read_bytes,
        /// Bytes to be written to block devices.
        written_bytes,
    }
}

/// A thread went back to user mode, or was there: its user stack is that of all records with this
/// number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// When and where, who, and the number.
    pub head: Head,
    /// The address at which it goes on in user mode.
    pub ip: u64,
    /// Its stack pointer there.
    pub sp: u64,
    /// How often it had executed a program until then, counted from any number.
    pub execution: u32,
    /// Its stack there.
    pub user: UserSide,
}

/// A user stack, or what it can be walked by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UserSide {
    /// Walked in the kernel.
    Walked {
        /// User addresses, leaf first: where it was interrupted; of callers, inside the call.
        frames: Box<[u64]>,
        /// Why there are no more.
        end: End,
        /// A frame was left by its frame pointer, for want of a table.
        guessed: bool,
        /// The version of the process's mappings by which it was walked; 0: of none.
        version: u32,
    },
    /// Copied from some frame on, because something that the walk needs was not there.
    Copied {
        /// User addresses of the frames that were left, leaf first.
        walked: Box<[u64]>,
        /// One of these was left by its frame pointer, for want of a table.
        guessed: bool,
        /// The version of the process's mappings by which they were left; 0: of none.
        version: u32,
        /// What is known of the next frame.
        registers: Box<Registers>,
        /// Words of the stack, from 128 bytes below its pointer on.
        stack: Box<[u64]>,
    },
}

/// One record of a ring, or of a walk over all threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// A clock fired.
    Tick(Tick),
    /// A thread came back.
    Absence(Absence),
    /// The account of a thread.
    Thread(Box<ThreadTimes>),
    /// A thread goes back to user mode.
    Entry(Entry),
    /// A process was made whose parent waits until it has executed a program or ended
    /// (`CLONE_VFORK`). Of the moment at which the kernel says that it started, which is before any
    /// other record tells of it.
    Birth(Head),
    /// A counter has overflowed.
    Overflow(Overflow),
}

/// A counter has overflowed in a thread that was on the CPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overflow {
    /// When, where, and whose.
    pub head: Head,
    /// Which counter: its number in [`crate::TickCollector::attach_counter`].
    pub counter: u32,
    /// How many events it stands for.
    pub value: u64,
    /// An interrupt or softirq had borrowed the CPU from the thread.
    pub irq_work: bool,
    /// The kernel's stack; empty in user mode.
    pub stack: Stack,
}

impl Record {
    /// When it happened, CLOCK_MONOTONIC, nanoseconds.
    #[must_use]
    pub fn time(&self) -> u64 {
        match self {
            Record::Tick(tick) => tick.head.time,
            Record::Absence(absence) => absence.head.time,
            Record::Thread(thread) => thread.head.time,
            Record::Entry(entry) => entry.head.time,
            Record::Birth(head) => head.time,
            Record::Overflow(overflow) => overflow.head.time,
        }
    }

    /// Decodes records that follow each other.
    ///
    /// # Errors
    /// [`Error::Record`] when any of the bytes are none of the structures of `c/wire.h`.
    pub fn decode_all(mut bytes: &[u8]) -> Result<Vec<Record>, Error> {
        let mut records = Vec::new();
        while !bytes.is_empty() {
            let record;
            (record, bytes) = Record::decode_first(bytes)?;
            records.push(record);
        }
        Ok(records)
    }

    /// Decodes the first of several records that follow each other, and gives the rest.
    ///
    /// # Errors
    /// [`Error::Record`] when the bytes begin with none of the structures of `c/wire.h`.
    pub fn decode_first(bytes: &[u8]) -> Result<(Record, &[u8]), Error> {
        let refuse = |why| Error::Record {
            size: bytes.len(),
            why,
        };
        let (head, rest) = bytes
            .split_first_chunk::<HEAD>()
            .ok_or(refuse("shorter than its head"))?;
        let [kind, state, detail, flags] = [head[32], head[33], head[34], head[35]];
        let frames = usize::from(u16::from_ne_bytes([head[36], head[37]]));
        let body = match kind {
            0..=3 if frames <= MAX_FRAMES => frames * 8,
            4 if frames == 0 => THREAD,
            5 if frames <= ENTRY_WORDS => ENTRY + frames * 8,
            6 if frames == 0 => 0,
            7 if frames <= MAX_FRAMES => OVERFLOW + frames * 8,
            0..=7 => return Err(refuse("more frames than there can be")),
            _ => return Err(refuse("unknown kind")),
        };
        if usize::from(state) >= STATES {
            return Err(refuse("unknown state"));
        }
        let (body, rest) = rest
            .split_at_checked(body)
            .ok_or(refuse("shorter than it says"))?;
        let [ticks, blocked] = [half(head, 20), half(head, 24)];
        let head = Head {
            time: word(head, 0),
            cpu: half(head, 8),
            pid: half(head, 12),
            tid: half(head, 16),
            entry: half(head, 28),
            name: ThreadName(std::array::from_fn(|at| head[40 + at])),
            kernel_thread: flags & 128 != 0,
            exiting: flags & 16 != 0,
        };
        let flag = |bit: u8| flags & bit != 0;
        let fixed = if kind == 7 { OVERFLOW } else { 0 };
        let stack = || Stack {
            frames: (0..frames)
                .map(|frame| word(body, fixed + frame * 8))
                .collect(),
            truncated: flag(2),
            missing: flag(4),
        };
        let record = match kind {
            3 => Record::Absence(Absence {
                head,
                state,
                detail: match detail {
                    10 => Some(Detail::BlockIo),
                    11 => Some(Detail::Preempted),
                    12 => Some(Detail::Throttled),
                    _ => None,
                },
                blocked,
                waited: ticks
                    .checked_sub(blocked)
                    .ok_or(refuse("blocked for longer than away"))?,
                stack: stack(),
            }),
            4 => Record::Thread(Box::new(thread(head, state, flag(8), body))),
            5 => {
                let (fixed, words) = body.split_at(ENTRY);
                Record::Entry(Entry {
                    head,
                    ip: word(fixed, 0),
                    sp: word(fixed, 8),
                    execution: half(fixed, 16),
                    user: user_side(fixed, words, flag(64)).map_err(refuse)?,
                })
            }
            6 => Record::Birth(head),
            7 => Record::Overflow(Overflow {
                head,
                value: word(body, 0),
                counter: half(body, 8),
                irq_work: flag(1),
                stack: stack(),
            }),
            kind => Record::Tick(Tick {
                head,
                ticks,
                mode: match kind {
                    0 => Mode::User,
                    1 => Mode::Kernel,
                    _ => Mode::Idle,
                },
                irq_work: flag(1),
                leaving: flag(32),
                stack: stack(),
            }),
        };
        Ok((record, rest))
    }
}

fn user_side(fixed: &[u8], words: &[u8], copied: bool) -> Result<UserSide, &'static str> {
    let quarter = |at: usize| u16::from_ne_bytes([fixed[at], fixed[at + 1]]);
    let (guessed, version) = (fixed[25] != 0, half(fixed, 20));
    let mut words = words.chunks_exact(8).map(|bytes| word(bytes, 0));
    if !copied {
        return Ok(UserSide::Walked {
            frames: words.collect(),
            end: End::try_from(fixed[24]).map_err(|_| "unknown end of a stack")?,
            guessed,
            version,
        });
    }
    let walked = usize::from(quarter(26));
    if words.len() <= walked + REGISTERS {
        return Err("a copy without registers");
    }
    Ok(UserSide::Copied {
        walked: words.by_ref().take(walked).collect(),
        guessed,
        version,
        registers: Box::new(Registers {
            general: std::array::from_fn(|_| words.next().unwrap_or_default()),
            pc: words.next().unwrap_or_default(),
            known: quarter(28),
            exact: quarter(30) != 0,
        }),
        stack: words.collect(),
    })
}

fn thread(head: Head, state: u8, ended: bool, body: &[u8]) -> ThreadTimes {
    let times = |at: usize| word(body, 32 + at * 8);
    ThreadTimes {
        head,
        ended,
        state,
        task: word(body, 0),
        as_of: word(body, 8),
        since: word(body, 16),
        lived: word(body, 24),
        ns: std::array::from_fn(times),
        details: Details::decode((STATES..STATES + 3).map(times)),
        counts: Counts::decode((STATES + 3..STATES + 13).map(times)),
    }
}

pub(crate) fn word(bytes: &[u8], at: usize) -> u64 {
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

    /// Bytes that are one record and nothing else.
    fn alone(bytes: &[u8]) -> Result<Record, Error> {
        match Record::decode_first(bytes)? {
            (record, []) => Ok(record),
            (_, rest) => Err(Error::Record {
                size: rest.len(),
                why: "beyond the end of a record",
            }),
        }
    }

    /// A record's bytes: kind, state, detail, flags, frames, and what follows the head.
    fn record([kind, state, detail, flags]: [u8; 4], frames: usize, body: &[u64]) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(7_000_000_001_u64.to_ne_bytes());
        for half in [3_u32, 100, 101, 5, 2, 9] {
            bytes.extend(half.to_ne_bytes());
        }
        bytes.extend([kind, state, detail, flags]);
        bytes.extend((frames as u16).to_ne_bytes());
        bytes.extend([0; 2]);
        bytes.extend(b"worker/7\0garbage");
        body.iter()
            .for_each(|word| bytes.extend(word.to_ne_bytes()));
        bytes
    }

    fn head() -> Head {
        let mut name = [0; 16];
        name.copy_from_slice(b"worker/7\0garbage");
        Head {
            time: 7_000_000_001,
            cpu: 3,
            pid: 100,
            tid: 101,
            entry: 9,
            name: ThreadName(name),
            kernel_thread: false,
            exiting: false,
        }
    }

    #[test]
    fn a_kernel_tick_decodes() {
        let frames = [0xffff_ffff_8100_0010, 0xffff_ffff_8100_2000];
        let tick = alone(&record([1, 0, 0, 3], 2, &frames)).unwrap();
        assert_eq!(
            tick,
            Record::Tick(Tick {
                head: head(),
                ticks: 5,
                mode: Mode::Kernel,
                irq_work: true,
                leaving: false,
                stack: Stack {
                    frames: Box::new(frames),
                    truncated: true,
                    missing: false,
                },
            })
        );
        assert_eq!(head().name.bytes(), b"worker/7");
    }

    #[test]
    fn an_absence_decodes() {
        let bytes = record([3, 6, 10, 4], 0, &[]);
        let Record::Absence(absence) = alone(&bytes).unwrap() else {
            panic!("not an absence");
        };
        assert_eq!(absence.counts(), [0, 0, 0, 0, 0, 0, 2, 0, 3, 0]);
        assert_eq!(absence.detail, Some(Detail::BlockIo));
        assert!(absence.stack.missing && absence.stack.frames.is_empty());
        // Preempted: nothing else than a wait.
        let Record::Absence(absence) = alone(&record([3, 8, 11, 4], 0, &[])).unwrap() else {
            panic!("not an absence");
        };
        assert_eq!(absence.counts(), [0, 0, 0, 0, 0, 0, 0, 0, 5, 0]);
    }

    #[test]
    fn a_thread_and_an_entry_decode() {
        let words: Vec<u64> = (0..27).collect();
        let Record::Thread(thread) = alone(&record([4, 7, 0, 8], 0, &words)).unwrap() else {
            panic!("not a thread");
        };
        assert!(thread.ended);
        assert_eq!((thread.task, thread.as_of), (0, 1));
        assert_eq!((thread.since, thread.lived), (2, 3));
        assert_eq!((thread.ns[0], thread.ns[9]), (4, 13));
        assert_eq!(thread.details.throttled, 16);
        assert_eq!(thread.counts.minor_faults, 17);
        assert_eq!(thread.counts.written_bytes, 26);

        let walked = [1, 2, 7 << 32 | 5, 0x0101, 0x1000, 0x2000];
        let entry = alone(&record([5, 0, 0, 0], 2, &walked)).unwrap();
        let expected = Entry {
            head: head(),
            ip: 1,
            sp: 2,
            execution: 5,
            user: UserSide::Walked {
                frames: Box::new([0x1000, 0x2000]),
                end: End::Complete,
                guessed: true,
                version: 7,
            },
        };
        assert_eq!(entry, Record::Entry(expected));

        // One frame was left, and the next is known by its frame pointer and stack pointer.
        let mut copied = vec![1, 2, 7 << 32 | 5, 0xc0 << 32 | 1 << 16 | 2];
        copied.push(0x1000);
        copied.extend(0..19);
        let Record::Entry(entry) = alone(&record([5, 0, 0, 64], 20, &copied)).unwrap() else {
            panic!("not an entry");
        };
        let expected = UserSide::Copied {
            walked: Box::new([0x1000]),
            guessed: false,
            version: 7,
            registers: Box::new(Registers {
                pc: 16,
                general: std::array::from_fn(|number| number as u64),
                known: 0xc0,
                exact: false,
            }),
            stack: Box::new([17, 18]),
        };
        assert_eq!(entry.user, expected);
    }

    #[test]
    fn a_birth_is_a_head() {
        let birth = alone(&record([6, 0, 0, 0], 0, &[])).unwrap();
        assert_eq!(birth, Record::Birth(head()));
    }

    #[test]
    fn an_overflow_decodes() {
        let frames = [0xffff_ffff_8100_0010, 0xffff_ffff_8100_2000];
        let bytes = record([7, 0, 0, 2], 2, &[&[1 << 40, 3][..], &frames].concat());
        let expected = Overflow {
            head: head(),
            counter: 3,
            value: 1 << 40,
            irq_work: false,
            stack: Stack {
                frames: Box::new(frames),
                truncated: true,
                missing: false,
            },
        };
        assert_eq!(alone(&bytes).unwrap(), Record::Overflow(expected));
    }

    #[test]
    fn records_that_follow_each_other_decode_one_by_one() {
        let mut bytes = record([3, 7, 0, 0], 2, &[1, 2]);
        bytes.extend(record([4, 7, 0, 0], 0, &[0; 27]));
        let records = Record::decode_all(&bytes).unwrap();
        assert!(matches!(
            records[..],
            [Record::Absence(_), Record::Thread(_)]
        ));
        assert_eq!(Record::decode_all(&[]).unwrap(), []);
        assert!(Record::decode_all(&bytes[..bytes.len() - 1]).is_err());
    }

    #[test]
    fn what_is_no_record_is_refused() {
        let good = record([0, 0, 0, 0], 3, &[1, 2, 3]);
        assert!(alone(&good).is_ok());
        for cut in 0..good.len() {
            assert!(alone(&good[..cut]).is_err(), "cut at {cut}");
        }
        let refused = [
            record([0, 0, 0, 0], 1, &[1, 2]),
            record([4, 0, 0, 0], 0, &[0; 26]),
            record([4, 0, 0, 0], 27, &[0; 27]),
            record([5, 0, 0, 0], 0, &[0; 3]),
            record([5, 0, 0, 0], 0, &[0, 0, 0, 200]),
            record([5, 0, 0, 64], 1, &[0; 5]),
            record(
                [5, 0, 0, 64],
                17,
                &[[0, 0, 0, 1 << 16].as_slice(), &[0; 17]].concat(),
            ),
            record([6, 0, 0, 0], 1, &[1]),
            record([7, 0, 0, 0], 0, &[]),
            record([7, 0, 0, 0], 2, &[9, 1, 1]),
            record([8, 0, 0, 0], 0, &[]),
            record([3, 10, 0, 0], 0, &[]),
            record([1, 0, 0, 0], MAX_FRAMES + 1, &[0; MAX_FRAMES + 1]),
        ];
        for bytes in refused {
            assert!(alone(&bytes).is_err(), "{bytes:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = alone(&bytes);
        }

        #[test]
        fn any_head_of_a_known_kind_decodes_or_is_refused(
            kind in 0_u8..8, bytes in proptest::collection::vec(any::<u8>(), 300..400)
        ) {
            let mut bytes = bytes;
            bytes[32] = kind;
            bytes[33] %= 10;
            bytes[37] = 0;
            let _ = Record::decode_first(&bytes);
        }
    }
}
