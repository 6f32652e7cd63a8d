//! The sampled blocks of a process that have not been freed.
//!
//! The record of a free may be lost, and then another block is allocated at the same address. A
//! reader that replays allocations would take the first of the two blocks for the one that is freed
//! later, and the second one for a leak. So when a block is allocated at the address of a known
//! block, the known one ends just before.
//!
//! A sampled block stands for others like it. A byte is sampled with probability 1 / mean,
//! independently of others, so a block is sampled with probability 1 − exp(−bytes / mean), and its
//! weight is the inverse of that. On average, the weighted sizes add up to all bytes, whatever the
//! sizes are. A block that the program has sampled itself has the weight that the program says.
//!
//! Records of one process come in the order of time.

use std::collections::BTreeSet;

use bpf_abi::BlockRecord;
use experiment_format::packet::WEIGHT_OF_ONE;
use experiment_format::units::Nanos;

/// A block that was allocated or freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockChange {
    /// When, CLOCK_MONOTONIC.
    pub at_ns: Nanos,
    /// It was freed.
    pub freed: bool,
    /// Its address.
    pub address: u64,
    /// The bytes that the program asked for; 0 where it was freed.
    pub bytes: u64,
    /// The bytes of all blocks that it stands for.
    pub weighted_bytes: u64,
    /// The number of these, times [`WEIGHT_OF_ONE`].
    pub weight: u64,
}

impl BlockChange {
    pub(super) fn end(at_ns: Nanos, address: u64) -> BlockChange {
        BlockChange {
            at_ns,
            freed: true,
            address,
            bytes: 0,
            weighted_bytes: 0,
            weight: WEIGHT_OF_ONE,
        }
    }
}

/// Number of allocations of `bytes` bytes that a sampled one stands for, if on average one byte of
/// `mean_bytes` is sampled; 0: each block is sampled.
pub(super) fn weight_of(bytes: u64, mean_bytes: u64) -> f64 {
    match (bytes, mean_bytes) {
        (0, _) | (_, 0) => 1.0,
        // exp_m1 is exact where the exponent is small.
        _ => -1.0 / (-(bytes as f64) / mean_bytes as f64).exp_m1(),
    }
}

/// The blocks of a process.
#[derive(Clone, Debug, Default)]
pub struct Blocks {
    addresses: BTreeSet<u64>,
}

impl Blocks {
    /// Returns the changes that a record makes: its own, and before it the end of a block that was
    /// at the same address. On average, one of `mean_bytes` allocated bytes is sampled.
    pub fn apply(&mut self, record: &BlockRecord, mean_bytes: u64) -> Vec<BlockChange> {
        let (at_ns, address) = (Nanos(record.header.time_ns), record.address);
        let Some(bytes) = record.allocated_bytes else {
            // What was not known changes nothing.
            return if self.addresses.remove(&address) {
                vec![BlockChange::end(at_ns, address)]
            } else {
                Vec::new()
            };
        };
        let weight = match record.weighted_bytes {
            Some(weighted) if bytes > 0 => weighted as f64 / bytes as f64,
            _ => weight_of(bytes, mean_bytes),
        };
        let change = BlockChange {
            at_ns,
            freed: false,
            address,
            bytes,
            weighted_bytes: (bytes as f64 * weight).round() as u64,
            weight: (weight * WEIGHT_OF_ONE as f64).round() as u64,
        };
        if self.addresses.insert(address) {
            vec![change]
        } else {
            let end = BlockChange::end(at_ns.saturating_sub(Nanos(1)), address);
            vec![end, change]
        }
    }

    /// Returns the changes where all blocks end.
    #[must_use]
    pub fn ends(&self, at_ns: Nanos) -> Vec<BlockChange> {
        let ends = self.addresses.iter();
        ends.map(|address| BlockChange::end(at_ns, *address))
            .collect()
    }

    /// Returns whether a block is at an address.
    #[must_use]
    pub fn has(&self, address: u64) -> bool {
        self.addresses.contains(&address)
    }

    /// Removes the blocks with the lowest addresses, at most `at_most`, and returns the addresses.
    pub fn take(&mut self, at_most: usize) -> Vec<u64> {
        std::iter::from_fn(|| self.addresses.pop_first())
            .take(at_most)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use bpf_abi::RecordHeader;

    use super::*;

    /// `+100:16` is a block of 16 bytes at 100, `-100` its end.
    fn shown(changes: &[BlockChange]) -> String {
        let each = changes.iter().map(|change| {
            if change.freed {
                format!("{}-{}", change.at_ns.0, change.address)
            } else {
                format!("{}+{}:{}", change.at_ns.0, change.address, change.bytes)
            }
        });
        each.collect::<Vec<_>>().join(" ")
    }

    fn record(time_ns: u64, address: u64, allocated_bytes: Option<u64>) -> BlockRecord {
        BlockRecord {
            header: RecordHeader {
                time_ns,
                ..RecordHeader::default()
            },
            address,
            allocated_bytes,
            weighted_bytes: None,
        }
    }

    #[test]
    fn a_lost_end_is_made_up_for() {
        let mut blocks = Blocks::default();
        let mut apply =
            |time, address, bytes| shown(&blocks.apply(&record(time, address, bytes), 0));
        assert_eq!(apply(10, 100, Some(16)), "10+100:16");
        assert_eq!(apply(20, 100, None), "20-100");
        assert_eq!(apply(30, 100, Some(8)), "30+100:8");
        assert_eq!(apply(40, 100, Some(24)), "39-100 40+100:24");
        assert_eq!(apply(50, 100, None), "50-100");
        assert_eq!(apply(60, 100, None), "");
    }

    #[test]
    fn all_blocks_end_at_once() {
        let mut blocks = Blocks::default();
        blocks.apply(&record(10, 300, Some(16)), 0);
        blocks.apply(&record(11, 200, Some(16)), 0);
        blocks.apply(&record(12, 100, Some(16)), 0);
        assert_eq!(blocks.take(1), [100]);
        assert!(!blocks.has(100) && blocks.has(200));
        assert_eq!(shown(&blocks.ends(Nanos(20))), "20-200 20-300");
        assert_eq!(blocks.take(2), [200, 300]);
        assert_eq!(shown(&blocks.ends(Nanos(21))), "");
    }

    #[test]
    fn a_block_has_the_weight_that_its_program_says() {
        let record = BlockRecord {
            weighted_bytes: Some(5000),
            ..record(10, 300, Some(1000))
        };
        let changes = Blocks::default().apply(&record, 524_288);
        assert_eq!((changes[0].bytes, changes[0].weighted_bytes), (1000, 5000));
        assert_eq!(changes[0].weight, 5 * WEIGHT_OF_ONE);
    }

    #[test]
    fn weights_are_inverse_probabilities() {
        let mean = 524_288;
        assert_eq!(weight_of(16, 0), 1.0);
        assert_eq!(weight_of(0, mean), 1.0);
        // A small block stands for as many as have the mean's bytes together, and half of one.
        assert!((weight_of(16, mean) - 32_768.5).abs() < 1e-3);
        assert!((weight_of(mean, mean) - 1.581_976_7).abs() < 1e-6);
        assert_eq!(weight_of(mean * 100, mean), 1.0);
    }
}
