//! The microstates of a thread, with the numbers, names and metrics that gprofng uses.
//!
//! The numbers are the values of the MSTATE field of a clock packet. An integer in `log.xml`,
//! [`NumStates`], decides which of them gprofng shows: with the wrong one, ticks are in the file
//! and in no column.

use num_enum::{FromPrimitive, IntoPrimitive, TryFromPrimitive};

/// The state of a thread during a tick of its wall time.
///
/// States 0 to 9 partition the wall time of every thread. The two others are not part of any
/// thread's total.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, TryFromPrimitive)]
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
    /// User and system time together, as measured by the CPU timer of a thread (`gprofng collect`).
    LinuxCpu = 10,
    /// A tick of a CPU, whichever thread it ran: the state in an experiment of the kernel.
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

    /// The number of states that partition a thread's wall time: those numbered 0 to 9.
    pub const PER_THREAD: usize = 10;

    /// Returns the number in the file; [`Microstate::try_from`] is the reverse.
    pub const fn number(self) -> u32 {
        self as u32
    }

    /// Returns the internal name, as packet dumps print it.
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

    /// Returns the label in gprofng's views.
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

    /// Returns the keyword of the metric of this state alone, as in `-metrics e.user`.
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

    /// Returns whether the metric `total`, Total Thread Time, includes this state.
    pub const fn in_total(self) -> bool {
        !matches!(self, Microstate::LinuxCpu | Microstate::KernelCpu)
    }

    /// Returns whether the metric `totalcpu`, Total CPU Time, includes this state.
    pub const fn in_total_cpu(self) -> bool {
        matches!(
            self,
            Microstate::User | Microstate::System | Microstate::Trap | Microstate::LinuxCpu
        )
    }
}

/// Returns the keyword of a metric in a form that is short enough for the title of a table with
/// ten states.
#[must_use]
pub fn short_metric(keyword: &str) -> &str {
    match keyword {
        "textpfault" => "tfault",
        "datapfault" => "dfault",
        "kernelpfault" => "kfault",
        other => other,
    }
}

/// The `numstates` of a clock table: an integer that decides which metrics gprofng offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, FromPrimitive, IntoPrimitive)]
#[repr(i32)]
pub enum NumStates {
    /// One state: what `gprofng collect` writes on Linux.
    LinuxCollect = 1,
    /// Two states: er_kernel's experiment of a user process.
    KernelUser = 2,
    /// Three states: er_kernel's experiment of the kernel.
    Kernel = 3,
    /// The ten states of Solaris.
    Solaris = 10,
    /// Any other number: gprofng shows no clock data.
    #[num_enum(catch_all)]
    Other(i32),
}

impl NumStates {
    /// Returns the keywords of the metrics that gprofng offers, in its order.
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
            assert_eq!(Microstate::try_from(state.number()), Ok(state));
        }
        assert!(Microstate::try_from(12).is_err());
        assert!(Microstate::try_from(u32::MAX).is_err());
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
    fn numbers_of_states_come_back() {
        for number in -1..=12i32 {
            assert_eq!(i32::from(NumStates::from(number)), number);
        }
    }
}
