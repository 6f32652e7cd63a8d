//! `locked`, a program whose threads wait for each other (`workloads/locked.c`), and its output.

use anyhow::{Result, bail, ensure};
use experiment_format::packet::SyncRecord;

/// The path of the program.
pub const LOCKED: &str = env!("LOCKED_PROGRAM");

/// The number of its locks: pthreads' locks, and the joins of all threads but the first.
const LOCKS: usize = 7;

/// The waits at a lock, as the program has counted them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lock {
    /// Its kind, such as `mutex`; `others` are joins, each of a thread at another address.
    pub name: String,
    /// Its address.
    pub address: u64,
    /// Its size.
    pub bytes: u64,
    /// How often threads were blocked at it, by the kernel's count of their context switches.
    pub waits: u64,
    /// For how long, from the call to its return.
    pub nanos: u64,
}

impl Lock {
    /// Returns all locks in the program's output.
    ///
    /// # Errors
    /// When the output is not the program's.
    pub fn all(output: &str) -> Result<Vec<Lock>> {
        let lines = output.lines().filter_map(|line| line.strip_prefix("lock "));
        let locks: Vec<Lock> = lines.map(Lock::parse).collect::<Result<_>>()?;
        ensure!(locks.len() == LOCKS, "{output}");
        Ok(locks)
    }

    fn parse(line: &str) -> Result<Lock> {
        let words: Vec<_> = line.split(' ').collect();
        let [name, address, bytes, waits, nanos] = words[..] else {
            bail!("{line:?}");
        };
        Ok(Lock {
            name: name.to_owned(),
            address: u64::from_str_radix(address.trim_start_matches("0x"), 16)?,
            bytes: bytes.parse()?,
            waits: waits.parse()?,
            nanos: nanos.parse()?,
        })
    }

    /// Returns whether a wait was at this lock.
    #[must_use]
    pub fn has(&self, wait: &SyncRecord) -> bool {
        (self.address..self.address + self.bytes).contains(&wait.object)
    }
}

/// Maximum share of the waits whose lock is unknown: the kernel does not run a BPF program that
/// interrupts one with the same storage, so the end of such a wait is found later. One of some
/// 3,000 was measured.
const MAX_UNKNOWN_SHARE: f64 = 0.002;

/// Checks that each wait that the program has counted is recorded, at its lock. Returns the
/// recorded waits of each lock.
///
/// # Errors
/// When one is missing, or one is there that was not.
pub fn each_wait<'w>(
    locks: &'w [Lock],
    waits: &'w [SyncRecord],
) -> Result<Vec<(&'w Lock, Vec<&'w SyncRecord>)>> {
    let unknown = waits.iter().filter(|wait| wait.object == 0).count() as u64;
    let total: u64 = locks.iter().map(|lock| lock.waits).sum();
    ensure!(
        waits.len() as u64 == total && unknown as f64 <= 1.0 + MAX_UNKNOWN_SHARE * total as f64,
        "{} waits of {total} are recorded, {unknown} of unknown locks",
        waits.len()
    );
    let mut each = Vec::new();
    for lock in locks.iter().filter(|lock| lock.name != "others") {
        let there: Vec<_> = waits.iter().filter(|wait| lock.has(wait)).collect();
        let fewest = lock.waits.saturating_sub(unknown);
        ensure!(
            lock.waits > 0 && (fewest..=lock.waits).contains(&(there.len() as u64)),
            "{} waits are recorded at {lock:?}",
            there.len()
        );
        each.push((lock, there));
    }
    Ok(each)
}
