//! `overview`: one record of resource usage per sample.
//!
//! The file is an array of records of 504 bytes (`FileRecord`); the one at position k belongs to
//! the `sample` event with id k. The file has no header, and gprofng fails on a partial record: a
//! record is written whole or not at all.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, transmute};

use crate::microstate::Microstate;
use crate::units::Nanos;

/// The resource usage of a process, or of the whole system, since it began. All values are
/// cumulative; a report shows the differences between neighbouring records.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UsageRecord {
    /// The number of threads.
    pub threads: u32,
    /// The time at which the record was taken, by the clock of
    /// [`crate::log::StartTime::tstamp_ns`].
    pub time_ns: Nanos,
    /// The time at which the process began, by the same clock.
    pub created_ns: Nanos,
    /// The time at which the process ended, by the same clock; 0 while it runs.
    pub terminated_ns: Nanos,
    /// Elapsed time, summed over the threads.
    pub real_ns: Nanos,
    /// Time in each of the ten states, by [`Microstate::number`], summed over the threads. The rest
    /// of `real_ns` is shown as sleep.
    pub states_ns: [Nanos; Microstate::PER_THREAD],
    /// The number of page faults without I/O.
    pub minor_faults: u64,
    /// The number of page faults with I/O.
    pub major_faults: u64,
    /// The number of swaps.
    pub swaps: u64,
    /// The number of blocks read.
    pub blocks_in: u64,
    /// The number of blocks written.
    pub blocks_out: u64,
    /// The number of messages sent.
    pub messages_sent: u64,
    /// The number of messages received.
    pub messages_received: u64,
    /// The number of signals received.
    pub signals: u64,
    /// The number of voluntary context switches.
    pub voluntary_switches: u64,
    /// The number of involuntary context switches.
    pub involuntary_switches: u64,
    /// The number of system calls.
    pub system_calls: u64,
    /// The number of characters read and written.
    pub io_chars: u64,
}

/// The size of a record.
pub const USAGE_BYTES: usize = size_of::<FileRecord>();
const NS_PER_S: u64 = 1_000_000_000;

/// A time in the file.
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes)]
#[repr(C)]
struct FileTime {
    seconds: U64,
    nanoseconds: U64,
}

impl FileTime {
    fn new(time_ns: Nanos) -> Self {
        FileTime {
            seconds: (time_ns.0 / NS_PER_S).into(),
            nanoseconds: (time_ns.0 % NS_PER_S).into(),
        }
    }

    /// Returns nanoseconds, the largest number if there are too many.
    fn ns(self) -> Nanos {
        Nanos::from_secs(self.seconds.get()).saturating_add(Nanos(self.nanoseconds.get()))
    }
}

/// A record in the file.
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes)]
#[repr(C)]
struct FileRecord {
    unused: U32,
    threads: U32,
    /// `time_ns`, `created_ns`, `terminated_ns`, `real_ns`, the ten states, and space for six more.
    times: [FileTime; 20],
    /// The other fields, in order, and space for ten more.
    counters: [U64; 22],
}

impl UsageRecord {
    /// Returns the record as it is in `overview`.
    pub fn encode(&self) -> [u8; USAGE_BYTES] {
        let mut record = FileRecord::new_zeroed();
        record.threads = self.threads.into();
        let times = [
            self.time_ns,
            self.created_ns,
            self.terminated_ns,
            self.real_ns,
        ];
        let times = times.into_iter().chain(self.states_ns);
        for (field, time_ns) in record.times.iter_mut().zip(times) {
            *field = FileTime::new(time_ns);
        }
        for (field, counter) in record.counters.iter_mut().zip(self.counters()) {
            field.set(counter);
        }
        transmute!(record)
    }

    /// Returns the record in these bytes. A time too large for 64 bits becomes the largest one.
    pub fn decode(bytes: &[u8; USAGE_BYTES]) -> Self {
        let record: FileRecord = transmute!(*bytes);
        let [time_ns, created_ns, terminated_ns, real_ns, states_ns @ ..] =
            record.times.map(FileTime::ns);
        let counter = |index: usize| record.counters[index].get();
        UsageRecord {
            threads: record.threads.get(),
            time_ns,
            created_ns,
            terminated_ns,
            real_ns,
            states_ns: std::array::from_fn(|state| states_ns[state]),
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
            time_ns: Nanos(2_000_000_005),
            states_ns: [
                Nanos::ZERO,
                Nanos::ZERO,
                Nanos::ZERO,
                Nanos::ZERO,
                Nanos::ZERO,
                Nanos::ZERO,
                Nanos::ZERO,
                Nanos(1_000_000_007),
                Nanos::ZERO,
                Nanos::ZERO,
            ],
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
            let states_ns = std::array::from_fn(|state| Nanos(times[4 + state]));
            let [a, b, c, d, e, f, g, h, i, j, k, l] = counters;
            let record = UsageRecord {
                threads,
                time_ns: Nanos(times[0]),
                created_ns: Nanos(times[1]),
                terminated_ns: Nanos(times[2]),
                real_ns: Nanos(times[3]),
                states_ns,
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
