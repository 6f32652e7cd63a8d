//! The thread or CPU for which a counter is opened.

use std::fmt;

use types::ids::Tid;

/// The thread or CPU of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CounterScope {
    /// A thread, on every CPU; 0 is the calling thread.
    Thread(Tid),
    /// A thread, on this CPU only.
    ThreadOn(Tid, u32),
    /// A CPU, with all threads that run on it.
    Cpu(u32),
}

impl fmt::Display for CounterScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CounterScope::Thread(tid) | CounterScope::ThreadOn(tid, _) => {
                write!(f, "on thread {tid}")
            }
            CounterScope::Cpu(cpu) => write!(f, "on CPU {cpu}"),
        }
    }
}
