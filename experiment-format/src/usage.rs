//! `overview`: one record of resource usage per sample.

use crate::microstate::Microstate;

/// Usage of a process, or of the whole system, since it began. All values are cumulative; a
/// report shows the differences of neighbours. Times are in nanoseconds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UsageRecord {
    /// Threads that contribute.
    pub threads: u32,
    /// When it was taken, by the clock of [`crate::log::Run::tstamp`].
    pub time: u64,
    /// When the process began, by the same clock.
    pub created: u64,
    /// When it ended, by the same clock; 0 while it lives.
    pub terminated: u64,
    /// Elapsed time, summed over the threads.
    pub real: u64,
    /// Time in each of the ten states, at the position of its [`Microstate::number`], summed over
    /// the threads. What is missing from `real` is shown as sleep.
    pub states: [u64; Microstate::PER_THREAD],
    /// Page faults without I/O.
    pub minor_faults: u64,
    /// Page faults with I/O.
    pub major_faults: u64,
    /// Swaps.
    pub swaps: u64,
    /// Blocks read.
    pub blocks_in: u64,
    /// Blocks written.
    pub blocks_out: u64,
    /// Messages sent.
    pub messages_sent: u64,
    /// Messages received.
    pub messages_received: u64,
    /// Signals received.
    pub signals: u64,
    /// Context switches by own will.
    pub voluntary_switches: u64,
    /// Context switches by force.
    pub involuntary_switches: u64,
    /// System calls.
    pub system_calls: u64,
    /// Characters read and written.
    pub io_chars: u64,
}
