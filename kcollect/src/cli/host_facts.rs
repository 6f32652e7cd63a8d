//! The facts of the machine on which the meaning of a command line depends.

use host::Root;

/// Facts of the machine that the command line is resolved against.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostFacts {
    /// `kernel.perf_event_max_sample_rate`, in ticks per second and CPU. None: unknown.
    pub max_sample_rate: Option<u64>,
    /// The width of the terminal, for the help. None: not a terminal.
    pub terminal_columns: Option<u16>,
}

impl HostFacts {
    /// Reads them from the running machine. What cannot be read is unknown.
    #[must_use]
    pub fn read() -> Self {
        HostFacts {
            max_sample_rate: Root::machine().number("/proc/sys/kernel/perf_event_max_sample_rate"),
            terminal_columns: terminal_size::terminal_size().map(|(width, _)| width.0),
        }
    }
}
