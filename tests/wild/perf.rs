//! The functions at the addresses of `perf record`'s samples, in user mode and in the kernel,
//! against `perf script`. Both tools record the same run of each program, so the address spaces are
//! the same.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use analysis::symbol::demangle;
use anyhow::{Context, Result};
use experiment_format::address_space::RecordedAddressSpace;
use experiment_format::functions::Archives;
use experiment_format::reader::Experiment;
use experiment_format::units::Nanos;
use object::{Object, ObjectSection};
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

    /// What is at an address.
    fn named_at(
        &self,
        archives: &mut Archives,
        address: u64,
        time: Nanos,
    ) -> Result<Option<Named>> {
        let at = time.saturating_sub(self.start);
        let Some(place) = self.space.find(address, at) else {
            return Ok(None);
        };
        let table = archives.functions(place.object)?;
        let names = match table.and_then(|table| table.find_all(place.offset)) {
            Some((names, _)) => names.map(str::to_owned).collect(),
            None => vec![place.object.to_owned()],
        };
        Ok(Some(Named {
            names,
            object: place.object.to_owned(),
            offset: place.offset,
        }))
    }
}

/// What kcollect's experiment says of an address.
#[derive(Debug)]
struct Named {
    /// The names of the function.
    names: Vec<String>,
    object: String,
    /// The offset in the object's file.
    offset: u64,
}

/// Where the procedure linkage tables of objects are, as offsets in their files.
///
/// perf 6.1 names an entry of such a table by the order of its relocations, which is another one
/// where functions are chosen at start (memchr in libc), and it names the head of the table by the
/// symbol before it. So inside a table the sections of the file are the truth, not perf.
#[derive(Default)]
struct LinkageTables(BTreeMap<String, Vec<Range<u64>>>);

impl LinkageTables {
    fn contain(&mut self, named: &Named) -> bool {
        let tables = self
            .0
            .entry(named.object.clone())
            .or_insert_with_key(|path| Self::of(path).unwrap_or_default());
        tables.iter().any(|table| table.contains(&named.offset))
    }

    fn of(path: &str) -> Result<Vec<Range<u64>>> {
        let bytes = std::fs::read(path)?;
        let file = object::File::parse(&*bytes)?;
        Ok(file
            .sections()
            .filter(|section| section.name().is_ok_and(|name| name.starts_with(".plt")))
            .filter_map(|section| section.file_range())
            .map(|(start, size)| start..start + size)
            .collect())
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
    let mut linkage_tables = LinkageTables::default();
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
            ours.extend(space.named_at(&mut archives, sample.address, sample.time)?);
        }
        // Mappings are recorded that a stack leads to.
        if ours.is_empty() && sample.address < KERNEL {
            unknown += 1;
            continue;
        }
        found.compared += 1;
        let agrees = ours.iter().any(|named| {
            let in_linkage_table = linkage_tables.contain(named);
            named.names.iter().any(|name| {
                if in_linkage_table {
                    name.ends_with("@plt")
                } else {
                    *name == sample.function || demangle(name) == sample.function
                }
            })
        });
        if !agrees {
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
