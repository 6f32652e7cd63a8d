//! `overview`: one record of resource usage per sample.
//!
//! The file is an array of records of 504 bytes; the one at position k belongs to the `sample`
//! event with id k. It has no header, so a partial record is one that gprofng fails on: it is
//! written whole or not at all.

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

/// Bytes of a record.
pub const USAGE_BYTES: usize = 504;
/// Where the time stamp, and then the other times in order, begin.
const TIMES: usize = 8;
/// Where the counters begin: behind the times there is room for six more.
const COUNTERS: usize = 328;
const NANOSECONDS: u64 = 1_000_000_000;

impl UsageRecord {
    /// The record as it stands in `overview`. Times are split into seconds and nanoseconds.
    pub fn encode(&self) -> [u8; USAGE_BYTES] {
        let mut record = [0; USAGE_BYTES];
        record[4..8].copy_from_slice(&self.threads.to_le_bytes());
        let mut put = |offset: usize, value: u64| {
            record[offset..offset + 8].copy_from_slice(&value.to_le_bytes());
        };
        for (index, time) in self.times().into_iter().enumerate() {
            put(TIMES + 16 * index, time / NANOSECONDS);
            put(TIMES + 16 * index + 8, time % NANOSECONDS);
        }
        for (index, counter) in self.counters().into_iter().enumerate() {
            put(COUNTERS + 8 * index, counter);
        }
        record
    }

    /// The record in these bytes. A time too large for 64 bits becomes the largest one.
    pub fn decode(record: &[u8; USAGE_BYTES]) -> Self {
        let word = |offset: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&record[offset..offset + 8]);
            u64::from_le_bytes(bytes)
        };
        let time = |index: usize| {
            let at = TIMES + 16 * index;
            word(at)
                .saturating_mul(NANOSECONDS)
                .saturating_add(word(at + 8))
        };
        let counter = |index: usize| word(COUNTERS + 8 * index);
        UsageRecord {
            threads: (word(0) >> 32) as u32,
            time: time(0),
            created: time(1),
            terminated: time(2),
            real: time(3),
            states: std::array::from_fn(|state| time(4 + state)),
            minor_faults: counter(0),
            major_faults: counter(1),
            swaps: counter(2),
            blocks_in: counter(3),
            blocks_out: counter(4),
            messages_sent: counter(5),
            messages_received: counter(6),
            signals: counter(7),
            voluntary_switches: counter(8),
            involuntary_switches: counter(9),
            system_calls: counter(10),
            io_chars: counter(11),
        }
    }

    fn times(&self) -> [u64; 4 + Microstate::PER_THREAD] {
        let [a, b, c, d, e, f, g, h, i, j] = self.states;
        let (t, n, x, r) = (self.time, self.created, self.terminated, self.real);
        [t, n, x, r, a, b, c, d, e, f, g, h, i, j]
    }

    fn counters(&self) -> [u64; 12] {
        [
            self.minor_faults,
            self.major_faults,
            self.swaps,
            self.blocks_in,
            self.blocks_out,
            self.messages_sent,
            self.messages_received,
            self.signals,
            self.voluntary_switches,
            self.involuntary_switches,
            self.system_calls,
            self.io_chars,
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn fields_stand_where_the_format_has_them() {
        let record = UsageRecord {
            threads: 3,
            time: 2_000_000_005,
            states: [0, 0, 0, 0, 0, 0, 0, 1_000_000_007, 0, 0],
            io_chars: 9,
            ..UsageRecord::default()
        }
        .encode();
        assert_eq!(record[4], 3);
        assert_eq!((record[8], record[16]), (2, 5));
        assert_eq!((record[184], record[192]), (1, 7));
        assert_eq!(record[416], 9);
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(threads: u32, times: [u64; 14], counters: [u64; 12]) {
            let mut states = [0; 10];
            states.copy_from_slice(&times[4..]);
            let [a, b, c, d, e, f, g, h, i, j, k, l] = counters;
            let record = UsageRecord {
                threads,
                time: times[0],
                created: times[1],
                terminated: times[2],
                real: times[3],
                states,
                minor_faults: a,
                major_faults: b,
                swaps: c,
                blocks_in: d,
                blocks_out: e,
                messages_sent: f,
                messages_received: g,
                signals: h,
                voluntary_switches: i,
                involuntary_switches: j,
                system_calls: k,
                io_chars: l,
            };
            prop_assert_eq!(UsageRecord::decode(&record.encode()), record);
        }

        #[test]
        fn any_bytes_decode(bytes in prop::collection::vec(any::<u8>(), USAGE_BYTES)) {
            let record: [u8; USAGE_BYTES] = bytes.try_into().unwrap();
            let _ = UsageRecord::decode(&record);
        }
    }
}
