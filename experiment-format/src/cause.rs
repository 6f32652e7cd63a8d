//! Why a thread was blocked: because of what, and whether it suffered or was idle.
//!
//! [docs/waits.md](../../docs/waits.md) has the rule by which a recording decides.

use num_enum::TryFromPrimitive;

/// Why a thread was blocked. The numbers are those of the field `KCAUSE` of a clock packet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, TryFromPrimitive)]
#[repr(u8)]
pub enum Cause {
    /// What ended the wait says too little, or was not seen.
    #[default]
    Undecided = 0,
    /// Block I/O.
    Device = 1,
    /// A lock of the kernel, memory, or another wait that no signal ends.
    Kernel = 2,
    /// A lock of the program.
    Lock = 3,
    /// A child process.
    Child = 4,
    /// Space in something that the thread writes to.
    Write = 5,
    /// The end of a thread.
    ThreadEnd = 6,
    /// An answer to what the thread had asked.
    Answer = 7,
    /// Another thread, in the middle of work.
    Middle = 8,
    /// The thread's own timer.
    Timer = 9,
    /// An interrupt: the network, a terminal, another device.
    Outside = 10,
    /// Work that the thread had not asked for.
    NewWork = 11,
    /// The thread was still blocked when the account ended.
    NotEnded = 12,
}

/// What a wait was for the thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WaitKind {
    /// It needed something in the middle of work.
    Suffered,
    /// It had nothing to do.
    Idle,
    /// Neither is known.
    Undecided,
}

impl Cause {
    /// All causes, in the order of their numbers.
    pub const ALL: [Cause; 13] = [
        Cause::Undecided,
        Cause::Device,
        Cause::Kernel,
        Cause::Lock,
        Cause::Child,
        Cause::Write,
        Cause::ThreadEnd,
        Cause::Answer,
        Cause::Middle,
        Cause::Timer,
        Cause::Outside,
        Cause::NewWork,
        Cause::NotEnded,
    ];

    /// The number of causes.
    pub const COUNT: usize = Self::ALL.len();

    /// Returns the number in the file; [`Cause::try_from`] is the reverse.
    #[must_use]
    pub const fn number(self) -> u32 {
        self as u32
    }

    /// Returns whether the thread suffered or was idle.
    #[must_use]
    pub const fn kind(self) -> WaitKind {
        match self {
            Cause::Device
            | Cause::Kernel
            | Cause::Lock
            | Cause::Child
            | Cause::Write
            | Cause::ThreadEnd
            | Cause::Answer
            | Cause::Middle => WaitKind::Suffered,
            Cause::Timer | Cause::Outside | Cause::NewWork => WaitKind::Idle,
            Cause::Undecided | Cause::NotEnded => WaitKind::Undecided,
        }
    }

    /// Returns the keyword of options and of JSON.
    #[must_use]
    pub const fn keyword(self) -> &'static str {
        match self {
            Cause::Undecided => "undecided",
            Cause::Device => "device",
            Cause::Kernel => "kernel",
            Cause::Lock => "lock",
            Cause::Child => "child",
            Cause::Write => "write",
            Cause::ThreadEnd => "thread-end",
            Cause::Answer => "answer",
            Cause::Middle => "middle",
            Cause::Timer => "timer",
            Cause::Outside => "outside",
            Cause::NewWork => "new-work",
            Cause::NotEnded => "not-ended",
        }
    }

    /// Returns what the thread waited for, in a few words.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Cause::Undecided => "not known",
            Cause::Device => "block I/O",
            Cause::Kernel => "the kernel",
            Cause::Lock => "a lock",
            Cause::Child => "a child process",
            Cause::Write => "space to write",
            Cause::ThreadEnd => "a thread's end",
            Cause::Answer => "an answer",
            Cause::Middle => "another thread",
            Cause::Timer => "its own timer",
            Cause::Outside => "something outside",
            Cause::NewWork => "new work",
            Cause::NotEnded => "it did not end",
        }
    }

    /// Returns the cause of a keyword.
    #[must_use]
    pub fn of_keyword(keyword: &str) -> Option<Cause> {
        Self::ALL
            .into_iter()
            .find(|cause| cause.keyword() == keyword)
    }
}

impl WaitKind {
    /// Returns the keyword of JSON and of columns.
    #[must_use]
    pub const fn keyword(self) -> &'static str {
        match self {
            WaitKind::Suffered => "suffered",
            WaitKind::Idle => "idle",
            WaitKind::Undecided => "undecided",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_causes_are_positions() {
        for (position, cause) in Cause::ALL.into_iter().enumerate() {
            assert_eq!(cause.number() as usize, position);
            assert_eq!(Cause::try_from(position as u8), Ok(cause));
            assert_eq!(Cause::of_keyword(cause.keyword()), Some(cause));
        }
        assert!(Cause::try_from(13).is_err());
    }
}
