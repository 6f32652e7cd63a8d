//! `io_calls`, a program that counts the calls that it makes on each file (`workloads/io_calls.c`),
//! and its output.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use experiment_format::packet::{IoKind, IoRecord};
use experiment_format::units::Nanos;

/// The path of the program.
pub const IO_CALLS: &str = env!("IO_CALLS_PROGRAM");

/// The path of a program that writes from stacks that are alike (`workloads/io_stacks.c`).
pub const IO_STACKS: &str = env!("IO_STACKS_PROGRAM");

/// The path of a program whose calls are refused and interrupted (`workloads/interrupted.c`).
pub const INTERRUPTED: &str = env!("INTERRUPTED_PROGRAM");

/// The number of files that it and its child count calls on; with sockets there are two more.
const FILES: usize = 9;

/// The number of files of `ring_io DIRECTORY`.
pub const RING_FILES: usize = 5;
/// The number of files of `ring_io registered`.
pub const REGISTERED_FILES: usize = 9;
/// The number of files of `ring_io overflow`.
pub const OVERFLOW_FILES: usize = 3;

/// The calls on a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    /// Calls that read.
    pub reads: u64,
    /// The bytes that they read.
    pub read_bytes: u64,
    /// Calls that write.
    pub writes: u64,
    /// The bytes that they wrote.
    pub written: u64,
    /// Calls that open, close or do something else.
    pub others: u64,
    /// Calls that failed.
    pub errors: u64,
}

/// The calls that a process has counted on a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counted {
    /// Whether the child process made them.
    pub child: bool,
    /// The name of the file.
    pub name: String,
    /// The calls.
    pub calls: Calls,
    /// Their time, from before each call to after it.
    pub nanos: Nanos,
}

impl Counted {
    /// Returns all calls in the program's output.
    ///
    /// # Errors
    /// When the output is not the program's.
    pub fn all(output: &str) -> Result<Vec<Counted>> {
        let counted = Counted::of(output);
        ensure!(counted.len() >= FILES, "{output}");
        Ok(counted)
    }

    /// Returns those in the output of a program that counts its operations as this one does.
    #[must_use]
    pub fn of(output: &str) -> Vec<Counted> {
        output.lines().filter_map(Counted::parse).collect()
    }

    fn parse(line: &str) -> Option<Counted> {
        let (word, line) = line.split_once(' ')?;
        let words: Vec<&str> = line.splitn(8, ' ').collect();
        let number = |place: usize| words.get(place)?.parse().ok();
        Some(Counted {
            child: match word {
                "child" => true,
                "file" => false,
                _ => return None,
            },
            calls: Calls {
                reads: number(0)?,
                read_bytes: number(1)?,
                writes: number(2)?,
                written: number(3)?,
                others: number(4)?,
                errors: number(5)?,
            },
            nanos: Nanos(words.get(6)?.parse().ok()?),
            name: (*words.get(7)?).to_owned(),
        })
    }
}

/// Calls and their time.
pub type CallTime = (Calls, Nanos);

/// Checks that reads of itself of a program that [waits](IO_CALLS) are recorded under its name, so
/// many at the least.
///
/// # Errors
/// When they are not.
pub fn reads_itself(records: Vec<IoRecord>, program: &str, least: u64) -> Result<()> {
    let files = by_file(records);
    let (calls, _) = files.get(program).with_context(|| format!("{files:?}"))?;
    ensure!(
        calls.reads >= least && calls.read_bytes == 100 * calls.reads,
        "{calls:?}"
    );
    Ok(())
}

/// Returns the calls on each file that were recorded in the experiment of a process. A
/// descriptor has the name in the record of its open call.
#[must_use]
pub fn by_file(mut records: Vec<IoRecord>) -> BTreeMap<String, CallTime> {
    records.sort_by_key(|record| record.shared.time_ns);
    let mut names: BTreeMap<i32, String> = BTreeMap::new();
    let mut sums: BTreeMap<String, CallTime> = BTreeMap::new();
    for record in records {
        if let Some(name) = &record.name
            && !record.failed
        {
            let name = String::from_utf8_lossy(name).into_owned();
            names.insert(record.descriptor, name);
        }
        if record.names_only {
            continue;
        }
        let failed_open = record.name.as_deref().filter(|_| record.failed);
        let name = match failed_open {
            Some(name) => String::from_utf8_lossy(name).into_owned(),
            None => names.get(&record.descriptor).cloned().unwrap_or_default(),
        };
        let (calls, nanos) = sums.entry(name).or_default();
        *nanos += record.shared.time_ns - record.requested_ns;
        match record.kind {
            _ if record.failed => calls.errors += 1,
            IoKind::Read => {
                calls.reads += 1;
                calls.read_bytes += record.bytes;
            }
            IoKind::Write => {
                calls.writes += 1;
                calls.written += record.bytes;
            }
            IoKind::Open | IoKind::Close | IoKind::Other => calls.others += 1,
        }
        if record.kind == IoKind::Close && !record.failed {
            names.remove(&record.descriptor);
        }
    }
    sums
}

/// Checks that the calls on each file that the program has counted are recorded in the experiment
/// of its process, as many and with as many bytes. Returns each with its recorded time.
///
/// # Errors
/// When one is missing, or one is there that was not.
pub fn each_file(
    counted: &[Counted],
    processes: Vec<Vec<IoRecord>>,
) -> Result<Vec<(&Counted, Nanos)>> {
    let mut processes: Vec<_> = processes.into_iter().map(by_file).collect();
    processes.sort_by_key(BTreeMap::len);
    ensure!(processes.len() == 2, "{} experiments", processes.len());
    let mut each = Vec::new();
    for file in counted {
        // The child uses fewer files.
        let recorded = &processes[usize::from(!file.child)];
        let found = recorded.get(&file.name);
        let (calls, nanos) = found.with_context(|| format!("{file:?}: not recorded"))?;
        ensure!(*calls == file.calls, "{calls:?} are recorded of {file:?}");
        each.push((file, *nanos));
    }
    Ok(each)
}

/// Checks that what a program handed to `io_uring` and has counted (`workloads/ring_io.rs`) is
/// recorded in its experiment, with the right number of files: as often, with as many bytes, and
/// not longer than it took.
///
/// # Errors
/// When it is not, or the output is not the program's.
pub fn each_operation(
    output: &str,
    records: Vec<IoRecord>,
    of_files: usize,
) -> Result<Vec<Counted>> {
    let counted = Counted::of(output);
    ensure!(counted.len() == of_files, "{output}");
    let files = by_file(records);
    let mut wrong = Vec::new();
    for file in &counted {
        let found = files.get(&file.name);
        if !found.is_some_and(|(calls, nanos)| *calls == file.calls && *nanos <= file.nanos) {
            wrong.push(format!("{found:?} of {file:?}"));
        }
    }
    ensure!(wrong.is_empty(), "{}\n{files:?}", wrong.join("\n"));
    Ok(counted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_file() {
        let line = "child 1 2 3 4 5 6 7 /a b";
        let counted = Counted::parse(line).unwrap();
        assert_eq!((counted.child, counted.nanos), (true, Nanos(7)));
        assert_eq!(counted.name, "/a b");
        assert_eq!(counted.calls.errors, 6);
        assert_eq!(Counted::parse("call 1.5"), None);
    }
}
