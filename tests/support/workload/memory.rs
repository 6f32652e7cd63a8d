//! `growth` and `allocations`, programs whose functions count what they get and give back
//! (`workloads/growth.c`, `workloads/allocations.c`), and their output.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use experiment_format::packet::{HeapKind, WEIGHT_OF_ONE};
use experiment_format::reader::Experiment;

/// The path of the program whose functions get memory from the kernel.
pub const GROWTH: &str = env!("GROWTH_PROGRAM");

/// The path of the program whose functions get blocks from an allocator.
pub const ALLOCATIONS: &str = env!("ALLOCATIONS_PROGRAM");

/// The path of the program that samples its own allocations (`workloads/sampled.c`).
pub const SAMPLED: &str = env!("SAMPLED_PROGRAM");

/// The number of functions of [`ALLOCATIONS`] that count, unless it is to be sampled.
pub const FUNCTIONS: usize = 8;

/// Returns for each function the bytes that it still has, the bytes that it got, and in how many
/// pieces it got them.
///
/// # Errors
/// The output does not have `functions` functions.
pub fn counted(output: &str, functions: usize) -> Result<BTreeMap<&str, [u64; 3]>> {
    let lines = output
        .lines()
        .filter_map(|line| line.strip_prefix("memory "));
    let counted: BTreeMap<_, _> = lines
        .map(|line| -> Result<_> {
            let words: Vec<&str> = line.split(' ').collect();
            let [name, allocated, live, count] = words[..] else {
                bail!("{line:?}");
            };
            Ok((name, [live.parse()?, allocated.parse()?, count.parse()?]))
        })
        .collect::<Result<_>>()?;
    ensure!(counted.len() == functions, "{output}");
    Ok(counted)
}

/// Checks that an experiment has exactly the blocks that some functions of [`ALLOCATIONS`]
/// allocate, by their sizes, which no others have.
///
/// # Errors
/// When it has others, or cannot be read.
pub fn has_blocks(experiment: &Path) -> Result<()> {
    let mut packets = Experiment::open(experiment)?.heap_packets()?;
    let (mut live, mut found) = (BTreeMap::new(), BTreeMap::new());
    while let Some(packet) = packets.next_packet()? {
        let block = packet.allocated().context("no block in a packet")?;
        match block.kind {
            HeapKind::Allocated => {
                live.insert(block.address, block.own_bytes);
                *found.entry(block.own_bytes).or_insert(0) += 1;
            }
            _ => drop(live.remove(&block.address)),
        }
    }
    for (bytes, count, left) in [
        (1000, 101, 100),
        (48, 5000, 0),
        (300, 50, 25),
        (777, 200, 0),
    ] {
        let still = live.values().filter(|live| **live == bytes).count();
        ensure!(
            found.get(&bytes) == Some(&count) && still == left,
            "{:?} blocks of {bytes} bytes, {still} left; not {count}, {left}",
            found.get(&bytes)
        );
    }
    Ok(())
}

/// Checks that an experiment has the blocks that a program has sampled itself, of all its functions
/// together, with the weights that it says.
///
/// # Errors
/// When it has others, or cannot be read.
pub fn has_own_samples(experiment: &Path, output: &str) -> Result<()> {
    let mut expected = [0; 3];
    for sums in counted(output, 2)?.values() {
        expected
            .iter_mut()
            .zip(sums)
            .for_each(|(all, own)| *all += own);
    }
    let mut packets = Experiment::open(experiment)?.heap_packets()?;
    let (mut live, mut found) = (BTreeMap::new(), [0; 3]);
    while let Some(packet) = packets.next_packet()? {
        let block = packet.allocated().context("no block in a packet")?;
        match block.kind {
            HeapKind::Allocated => {
                live.insert(block.address, block.bytes);
                found[1] += block.bytes;
                found[2] += block.weight / WEIGHT_OF_ONE;
            }
            _ => drop(live.remove(&block.address)),
        }
    }
    found[0] = live.values().sum();
    ensure!(
        found == expected && found[2] > 0,
        "{found:?}, not {expected:?}"
    );
    Ok(())
}
