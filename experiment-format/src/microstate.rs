//! The microstates of a thread, with the numbers, names and metrics that gprofng knows them by.
//!
//! The numbers are those of the MSTATE field of a clock packet, and the positions in a tick array.
//! Which of them the reader shows is decided by one integer in `log.xml`, [`NumStates`]: without
//! the right one the ticks are there and no column shows them.

/// What a thread was doing when a tick of its wall time passed.
///
/// States 0 to 9 partition the wall time of every thread. The two others stand apart: they count
/// in no thread's total.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u32)]
pub enum Microstate {
    /// On a CPU, in user mode.
    User = 0,
    /// On a CPU, in a system call or working off a fault.
    System = 1,
    /// On a CPU, in another trap or an interrupt.
    Trap = 2,
    /// Blocked in a page fault of an instruction fetch.
    TextFault = 3,
    /// Blocked in any other page fault of user mode.
    DataFault = 4,
    /// Blocked in a page fault taken in kernel mode.
    KernelFault = 5,
    /// Blocked on a user lock.
    UserLock = 6,
    /// Blocked for any other reason.
    Sleep = 7,
    /// Runnable, waiting for a CPU.
    WaitCpu = 8,
    /// Stopped or traced.
    Stopped = 9,
    /// User and system time together, as the Linux thread CPU timer of `gprofng collect` has it.
    LinuxCpu = 10,
    /// A tick of a CPU, whoever ran on it: the state of a kernel founder.
    KernelCpu = 11,
}

impl Microstate {
    /// All states, in the order of their numbers.
    pub const ALL: [Microstate; 12] = [
        Microstate::User,
        Microstate::System,
        Microstate::Trap,
        Microstate::TextFault,
        Microstate::DataFault,
        Microstate::KernelFault,
        Microstate::UserLock,
        Microstate::Sleep,
        Microstate::WaitCpu,
        Microstate::Stopped,
        Microstate::LinuxCpu,
        Microstate::KernelCpu,
    ];

    /// How many states partition a thread's wall time: those numbered 0 to 9.
    pub const PER_THREAD: usize = 10;

    /// The number in the file.
    pub const fn number(self) -> u32 {
        self as u32
    }

    /// The state of a number, if it is one that has a name.
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.get(usize::try_from(number).ok()?).copied()
    }

    /// The internal name, as packet dumps print it.
    pub const fn name(self) -> &'static str {
        match self {
            Microstate::User => "USER",
            Microstate::System => "SYSTEM",
            Microstate::Trap => "TRAP",
            Microstate::TextFault => "TFAULT",
            Microstate::DataFault => "DFAULT",
            Microstate::KernelFault => "KFAULT",
            Microstate::UserLock => "USER_LOCK",
            Microstate::Sleep => "SLEEP",
            Microstate::WaitCpu => "WAIT_CPU",
            Microstate::Stopped => "STOPPED",
            Microstate::LinuxCpu => "LINUX_CPU",
            Microstate::KernelCpu => "KERNEL_CPU",
        }
    }

    /// The label in gprofng's views.
    pub const fn label(self) -> &'static str {
        match self {
            Microstate::User => "User CPU",
            Microstate::System => "System CPU",
            Microstate::Trap => "Trap CPU",
            Microstate::TextFault => "Text Page Fault",
            Microstate::DataFault => "Data Page Fault",
            Microstate::KernelFault => "Kernel Page Fault",
            Microstate::UserLock => "User Lock",
            Microstate::Sleep => "Sleep",
            Microstate::WaitCpu => "Wait CPU",
            Microstate::Stopped => "Stopped",
            Microstate::LinuxCpu => "User+System CPU",
            Microstate::KernelCpu => "Kernel CPU",
        }
    }

    /// The keyword of the metric that is this state alone, as in `-metrics e.user`.
    ///
    /// [`Microstate::LinuxCpu`] has none: it is only part of `totalcpu`.
    pub const fn metric(self) -> Option<&'static str> {
        match self {
            Microstate::User => Some("user"),
            Microstate::System => Some("system"),
            Microstate::Trap => Some("trap"),
            Microstate::TextFault => Some("textpfault"),
            Microstate::DataFault => Some("datapfault"),
            Microstate::KernelFault => Some("kernelpfault"),
            Microstate::UserLock => Some("lock"),
            Microstate::Sleep => Some("sleep"),
            Microstate::WaitCpu => Some("wait"),
            Microstate::Stopped => Some("stop"),
            Microstate::LinuxCpu => None,
            Microstate::KernelCpu => Some("kcpu"),
        }
    }

    /// Whether the metric `total`, Total Thread Time, includes this state.
    pub const fn in_total(self) -> bool {
        !matches!(self, Microstate::LinuxCpu | Microstate::KernelCpu)
    }

    /// Whether the metric `totalcpu`, Total CPU Time, includes this state.
    pub const fn in_total_cpu(self) -> bool {
        matches!(
            self,
            Microstate::User | Microstate::System | Microstate::Trap | Microstate::LinuxCpu
        )
    }
}

/// The `numstates` of a clock declaration: the one integer that decides which metrics exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NumStates {
    /// 1: what `gprofng collect` writes on Linux.
    LinuxCollect,
    /// 2: er_kernel's experiment of a user process.
    KernelUser,
    /// 3: er_kernel's experiment of the kernel.
    Kernel,
    /// 10: the ten states of Solaris.
    Solaris,
    /// Any other number: the reader shows no clock data at all.
    Other(i32),
}

impl NumStates {
    /// The number in the file.
    pub const fn number(self) -> i32 {
        match self {
            NumStates::LinuxCollect => 1,
            NumStates::KernelUser => 2,
            NumStates::Kernel => 3,
            NumStates::Solaris => 10,
            NumStates::Other(number) => number,
        }
    }

    /// The meaning of a number found in a file.
    pub const fn from_number(number: i32) -> Self {
        match number {
            1 => NumStates::LinuxCollect,
            2 => NumStates::KernelUser,
            3 => NumStates::Kernel,
            10 => NumStates::Solaris,
            other => NumStates::Other(other),
        }
    }

    /// The keywords of the metrics that gprofng offers for it, in its order.
    pub const fn metrics(self) -> &'static [&'static str] {
        match self {
            NumStates::LinuxCollect => &["totalcpu"],
            NumStates::KernelUser => &["totalcpu", "user", "system"],
            NumStates::Kernel => &["kcpu"],
            NumStates::Solaris => &[
                "total",
                "totalcpu",
                "user",
                "system",
                "trap",
                "datapfault",
                "textpfault",
                "kernelpfault",
                "stop",
                "wait",
                "sleep",
                "lock",
            ],
            NumStates::Other(_) => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_positions() {
        for (position, state) in Microstate::ALL.into_iter().enumerate() {
            assert_eq!(state.number() as usize, position);
            assert_eq!(Microstate::from_number(state.number()), Some(state));
        }
        assert_eq!(Microstate::from_number(12), None);
        assert_eq!(Microstate::from_number(u32::MAX), None);
    }

    #[test]
    fn the_ten_states_have_each_a_metric_of_the_solaris_set() {
        for state in &Microstate::ALL[..Microstate::PER_THREAD] {
            let metric = state.metric().unwrap();
            assert!(NumStates::Solaris.metrics().contains(&metric), "{metric}");
            assert!(state.in_total());
        }
        assert!(!Microstate::KernelCpu.in_total());
        assert!(!Microstate::KernelCpu.in_total_cpu());
    }

    #[test]
    fn magic_numbers_roundtrip() {
        for number in -1..=12 {
            assert_eq!(NumStates::from_number(number).number(), number);
        }
    }
}
