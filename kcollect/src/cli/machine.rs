//! The few facts about the machine that a command line's meaning depends on.

use host::Root;

/// What resolution needs to know of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// `kernel.perf_event_max_sample_rate`, in ticks per second and CPU. None: not known.
    pub max_sample_rate: Option<u64>,
    /// Columns of the terminal, for the help. None: not a terminal.
    pub width: Option<u16>,
}

impl Machine {
    /// Reads it from the running machine. What cannot be read is not known.
    #[must_use]
    pub fn read() -> Self {
        Machine {
            max_sample_rate: Root::machine().number("/proc/sys/kernel/perf_event_max_sample_rate"),
            width: terminal_size::terminal_size().map(|(width, _)| width.0),
        }
    }
}
