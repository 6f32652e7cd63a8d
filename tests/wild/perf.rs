//! The functions at the addresses of `perf record`'s samples, in user mode and in the kernel,
//! against `perf script`. Both tools record the same run of each program, so the address spaces are
//! the same.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use analysis::symbol::demangle;
use anyhow::{Context, Result};
use experiment_format::address_space::RecordedAddressSpace;
use experiment_format::functions::Archives;
use experiment_format::reader::Experiment;
use experiment_format::units::Nanos;
use tempfile::TempDir;
use tests::experiment::followed::directories;
use tests::kcollect::record;
use tests::machine::Shared;

use crate::{Disagreement, Found, Sample, installed};

/// Programs of one recording.
const AT_A_TIME: usize = 100;
const LIMIT: Duration = Duration::from_secs(900);
/// Samples a second of CPU time. A prime, so that they are not in step with a program.
const FREQUENCY: &str = "4999";
const KERNEL: u64 = 1 << 63;

/// A sample as `perf script` prints it.
struct PerfSample<'a> {
    pid: &'a str,
    time: Nanos,
    address: u64,
    function: &'a str,
    object: &'a str,
}

impl<'a> PerfSample<'a> {
    /// Parses `13010 58565.430366123:      7ff62ed5bf05 code_dealloc (/usr/lib/libpython3.11.so)`.
    fn parse(line: &'a str) -> Option<PerfSample<'a>> {
        let (pid, rest) = line.trim_start().split_once(' ')?;
        let (time, rest) = rest.trim_start().split_once(':')?;
        let (seconds, nanoseconds) = time.split_once('.')?;
        let (address, rest) = rest.trim_start().split_once(' ')?;
        let (function, object) = rest.strip_suffix(')')?.rsplit_once(" (")?;
        let nanoseconds: u64 = nanoseconds.parse().ok()?;
        Some(PerfSample {
            pid,
            time: Nanos(seconds.parse::<u64>().ok()? * 1_000_000_000 + nanoseconds),
            address: u64::from_str_radix(address, 16).ok()?,
            function,
            object,
        })
    }
}

/// The address space of a process while it was followed.
struct Followed {
    space: RecordedAddressSpace,
    start: Nanos,
}

impl Followed {
    fn of(experiment: &Experiment) -> Result<Followed> {
        Ok(Followed {
            space: experiment.address_space()?,
            start: experiment.start().tstamp_ns,
        })
    }

    /// The names of the function at an address, and of its object.
    fn names_at(
        &self,
        archives: &mut Archives,
        address: u64,
        time: Nanos,
    ) -> Result<Option<(Vec<String>, String)>> {
        let at = time.saturating_sub(self.start);
        let Some(place) = self.space.find(address, at) else {
            return Ok(None);
        };
        let table = archives.functions(place.object)?;
        let names = match table.and_then(|table| table.find_all(place.offset)) {
            Some((names, _)) => names.map(str::to_owned).collect(),
            None => vec![place.object.to_owned()],
        };
        Ok(Some((names, place.object.to_owned())))
    }
}

pub(crate) fn check(sample: &mut Sample) -> Result<Found> {
    let mut found = Found::default();
    if Command::new("perf").arg("--version").output().is_err() {
        found.skipped.push("perf is not installed".to_owned());
        return Ok(found);
    }
    let _machine = Shared::take()?;
    for some in sample.of(installed::programs()?).chunks(AT_A_TIME) {
        let directory = TempDir::new()?;
        let script = installed::versions(directory.path(), some)?;
        let data = directory.path().join("perf.data");
        let data = data.to_str().context("no UTF-8")?;
        // Programs of BPF come and go with other tests, and perf 6.1 does not read that. And as
        // kcollect asks the kernel for build ids with mappings, perf has to: once one event has
        // them, Linux 6.18 marks the record for the next one too, which then has something else.
        let perf = format!(
            "perf record -q --no-bpf-event --buildid-mmap -N -e cpu-clock -k CLOCK_MONOTONIC \
             -F {FREQUENCY} -o {data} -- sh {script}; exit 0"
        );
        let load = ["sh", "-c", &perf];
        let recorded = record(&["-p", "hi", "-F", "all"], &load, LIMIT)?;
        compare(&recorded.experiment()?, data, &mut found)?;
    }
    Ok(found)
}

fn compare(path: &Path, data: &str, found: &mut Found) -> Result<()> {
    let mut script = Command::new("perf");
    script.args(["script", "--ns", "--no-demangle", "-F"]);
    script.args(["pid,time,ip,sym,dso", "-i", data]);
    let output = script.stdin(Stdio::null()).output()?;
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr);
        let first = error.lines().next().unwrap_or_default();
        found.skipped.push(format!("perf script fails: {first}"));
        return Ok(());
    }
    let text = String::from_utf8(output.stdout)?;

    let founder = Experiment::open(path)?;
    let kernel = Followed::of(&founder)?;
    let mut archives = founder.archives();
    let mut processes: BTreeMap<String, Vec<Followed>> = BTreeMap::new();
    for path in directories(path)? {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let pid = name.rsplit_once("_PID_").context("no pid in the name")?.1;
        let pid = pid.split('.').next().unwrap_or(pid).to_owned();
        let followed = Followed::of(&Experiment::open(&path)?)?;
        processes.entry(pid).or_default().push(followed);
    }
    let (mut seen, mut unknown) = (BTreeSet::new(), 0);
    for sample in text.lines().filter_map(PerfSample::parse) {
        if sample.function == "[unknown]" || !seen.insert((sample.pid, sample.address)) {
            continue;
        }
        let spaces = match processes.get(sample.pid) {
            _ if sample.address >= KERNEL => std::slice::from_ref(&kernel),
            Some(spaces) => &spaces[..],
            // It had no tick of kcollect's.
            None => {
                unknown += 1;
                continue;
            }
        };
        let mut ours = Vec::new();
        for space in spaces {
            ours.extend(space.names_at(&mut archives, sample.address, sample.time)?);
        }
        // Mappings are recorded that a stack leads to.
        if ours.is_empty() && sample.address < KERNEL {
            unknown += 1;
            continue;
        }
        found.compared += 1;
        // perf 6.1 names the entries of a procedure linkage table in the order of its relocations.
        // The entries have another order where functions are chosen at start (memchr in libc).
        let same = |name: &String| {
            *name == sample.function
                || demangle(name) == sample.function
                || sample.function.ends_with("@plt") && name.ends_with("@plt")
        };
        if !ours.iter().any(|(names, _)| names.iter().any(same)) {
            found.disagreements.push(Disagreement {
                subject: format!("{}+{}", sample.object, sample.function),
                ours: format!("{ours:?} at {:#x} of {}", sample.address, sample.pid),
                theirs: sample.function.to_owned(),
            });
        }
    }
    found.skipped.push(format!(
        "{unknown} addresses where none of kcollect's ticks was"
    ));
    Ok(())
}
