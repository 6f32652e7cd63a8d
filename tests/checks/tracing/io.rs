//! I/O (`-i`): a program that counts its own calls on each file is recorded with exactly these,
//! with their bytes and times, by gprofng and by our report; and as many as strace counts.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use analysis::metric::offered;
use analysis::model::Model;
use analysis::report::views::{TableOptions, View, make};
use anyhow::{Context, Result, ensure};
use experiment_format::calls::name_of;
use experiment_format::microstate::Microstate;
use experiment_format::packet::IoRecord;
use experiment_format::units::Nanos;
use tempfile::TempDir;
use tests::command::{Running, run};
use tests::experiment::states::States;
use tests::experiment::summary::RunSummary;
use tests::experiment::{addresses, io_records};
use tests::gprofng::script;
use tests::kcollect::{FinishedRecording, experiments_in, record, sub_experiment};
use tests::machine::disturbance::{judge_times, not_judged};
use tests::machine::{Exclusive, Shared, io_uring, work_cpu};
use tests::workload;
use tests::workload::compat32;
use tests::workload::io_calls::{
    Counted, INTERRUPTED, IO_CALLS, IO_STACKS, OVERFLOW_FILES, REGISTERED_FILES, RING_FILES,
    by_file, each_file, each_operation, reads_itself,
};

use super::allocations::number_of;

const LIMIT: Duration = Duration::from_secs(60);

/// How much longer a call may be by the program's clock than by the kernel's, waits for a CPU
/// excluded, on average of all calls on a file, nanoseconds: entering the kernel and returning, the
/// record, and a lock of the program's own.
const MAX_CALL_NS: u64 = 100_000;

const OPTIONS: &[&str] = &["-i", "on", "-F", "load", "--descendants"];

fn record_io(directory: &Path, rounds: &str) -> Result<(FinishedRecording, Vec<Counted>)> {
    let directory = directory.to_str().context("no UTF-8")?;
    let recorded = record(OPTIONS, &[IO_CALLS, directory, rounds], LIMIT)?;
    RunSummary::of(&recorded.experiment()?)?.complete()?;
    let counted = Counted::all(&recorded.finished.stdout)?;
    Ok((recorded, counted))
}

#[test]
fn root_alone_every_call_is_recorded_at_its_file() -> Result<()> {
    judge_times(|| {
        let directory = TempDir::new()?;
        let (recorded, counted) = record_io(directory.path(), "200")?;
        let model = Model::load(&[recorded.experiment()?])?;
        let experiments = experiments_in(&recorded.experiment()?)?;
        let records = experiments.iter().map(|experiment| io_records(experiment));
        let waited_s = waited_s(&recorded)?;
        for (file, nanos) in each_file(&counted, records.collect::<Result<_>>()?)? {
            let calls = file.calls;
            let calls = calls.reads + calls.writes + calls.others + calls.errors;
            let most = MAX_CALL_NS * calls + (waited_s * 1e9) as u64;
            ensure!(
                nanos <= file.nanos && file.nanos - nanos <= Nanos(most),
                "{nanos} ns are recorded of {file:?}, which waited {waited_s} s for a CPU"
            );
        }
        agrees_with_gprofng(&recorded, &counted)?;
        reported(&model, &counted)
    })
}

/// Returns how long the threads of both processes waited for a CPU, seconds.
fn waited_s(recorded: &FinishedRecording) -> Result<f64> {
    let states = States::of(&recorded.experiment()?)?;
    let own = states
        .processes
        .iter()
        .filter(|row| row.name.starts_with("io_calls"));
    Ok(own.map(|row| row.of(Microstate::WaitCpu)).sum())
}

/// Checks that gprofng's own reader has the same numbers for each name, of both processes together.
fn agrees_with_gprofng(recorded: &FinishedRecording, counted: &[Counted]) -> Result<()> {
    let metrics = "metrics e+ioreadcnt:e+ioreadbytes:e+iowritecnt:e+iowritebytes:name";
    let output = script(&[metrics, "ioactivity"], &recorded.experiment()?)?;
    let table = output.content()?.table(4);
    let mut sums: BTreeMap<&str, [u64; 4]> = BTreeMap::new();
    for file in counted {
        let calls = &file.calls;
        let own = [calls.reads, calls.read_bytes, calls.writes, calls.written];
        let sum = sums.entry(&file.name).or_default();
        sum.iter_mut().zip(own).for_each(|(sum, own)| *sum += own);
    }
    // gprofng has only the time of a file that was never read or written.
    sums.retain(|_, sum| *sum != [0; 4]);
    for (name, sum) in sums {
        let row = table.find(name).with_context(|| format!("no {name}"))?;
        let values: Vec<u64> = row.values.iter().map(|value| *value as u64).collect();
        ensure!(
            values == sum,
            "gprofng has {values:?} of {name}, not {sum:?}"
        );
    }
    let header = header(recorded)?;
    ensure!(header.contains("IO tracing"), "{header}");
    Ok(())
}

fn header(recorded: &FinishedRecording) -> Result<String> {
    let own = sub_experiment(&recorded.experiment()?, "_io_calls_PID_")?;
    Ok(tests::gprofng::display(&own, &["-header"]))
}

/// Checks that our report has them by file, and the function of the program that made most calls.
fn reported(model: &Model, counted: &[Counted]) -> Result<()> {
    let words: Vec<_> = offered(model).iter().map(|base| base.keyword()).collect();
    ensure!(
        words.contains(&"ioreadtime") && words.contains(&"iowritebytes"),
        "{words:?}"
    );
    let report = make(model, View::Files, &TableOptions::default())?.json();
    let rows = report["rows"].as_array().context("no rows")?;
    for file in counted
        .iter()
        .filter(|file| !file.name.ends_with("inherited"))
    {
        let row = rows.iter().find(|row| row["file"] == file.name.as_str());
        let row = row.with_context(|| format!("no {} in {report}", file.name))?;
        ensure!(
            row["ioreadcnt"] == file.calls.reads && row["iowritebytes"] == file.calls.written,
            "{row}"
        );
    }
    let options = TableOptions {
        metrics: Some("i+iowritebytes:e+iowritebytes:name".to_owned()),
        ..TableOptions::default()
    };
    let functions = make(model, View::Functions, &options)?.json();
    let rows = functions["rows"].as_array().context("no rows")?;
    let written = |name: &str| {
        let mut rows = rows.iter();
        let row = rows.find(|row| row["name"].as_str().is_some_and(|own| own == name))?;
        row["i.iowritebytes"].as_u64()
    };
    let shared = counted.iter().find(|file| file.name.ends_with("shared"));
    let shared = shared.context("no file is shared")?;
    ensure!(
        written("write_shared") == Some(shared.calls.written),
        "{functions}"
    );
    Ok(())
}

/// A program that has exited when its calls are applied was started in kcollect's directory, and
/// wrote to its standard output.
#[test]
fn root_a_load_that_is_gone_has_the_names_of_its_start() -> Result<()> {
    const FILE: &str = "no-such-file";
    let _machine = Shared::take()?;
    // It is over before the first tick.
    let options = [OPTIONS, &["-q", "0.3"]].concat();
    let script = format!("read line < {FILE} || echo none");
    let recorded = record(&options, &["sh", "-c", &script], LIMIT)?;
    let experiment = recorded.experiment()?;
    let records = io_records(&sub_experiment(&experiment, "_sh_PID_")?)?;
    let here = experiment.parent().context("no directory")?.join(FILE);
    let named = |path: &Path| {
        let name = path.as_os_str().as_encoded_bytes();
        records
            .iter()
            .any(|record| record.name.as_deref() == Some(name))
    };
    ensure!(named(&here), "{records:?}");
    let output = records
        .iter()
        .any(|record| record.descriptor == 1 && record.name.is_some());
    ensure!(output, "{records:?}");
    Ok(())
}

/// Each function has the calls that it made, though the stacks below and above it are alike.
#[test]
fn root_stacks_with_the_same_pointer_are_distinct() -> Result<()> {
    let _machine = Shared::take()?;
    let recorded = record(OPTIONS, &[IO_STACKS, "12000"], LIMIT)?;
    RunSummary::of(&recorded.experiment()?)?.complete()?;
    let options = TableOptions {
        metrics: Some("i+iowritecnt:name".to_owned()),
        ..TableOptions::default()
    };
    let model = Model::load(&[recorded.experiment()?])?;
    let functions = make(&model, View::Functions, &options)?.json();
    let rows = functions["rows"].as_array().context("no rows")?;
    for line in recorded.finished.stdout.lines().take(6) {
        let (name, calls) = line.split_once(' ').context("no count")?;
        let row = rows.iter().find(|row| row["name"] == name);
        let row = row.with_context(|| format!("no {name} in {functions}"))?;
        ensure!(
            row["i.iowritecnt"] == calls.parse::<u64>()?,
            "{row}, of {calls}"
        );
    }
    Ok(())
}

/// What `io_uring` does is recorded at its file, with its bytes and the stack of what handed it
/// over, also where that was long before.
#[test]
fn root_operations_of_io_uring_are_recorded_at_their_files() -> Result<()> {
    let _machine = Shared::take()?;
    if let Err(error) = io_uring() {
        not_judged(format_args!("this kernel permits no io_uring: {error:#}"));
        return Ok(());
    }
    let directory = TempDir::new()?;
    let path = directory.path().to_str().context("no UTF-8")?;
    let recorded = record(OPTIONS, &[workload!("ring_io"), path, "200"], LIMIT)?;
    RunSummary::of(&recorded.experiment()?)?.complete()?;
    let own = sub_experiment(&recorded.experiment()?, "_ring_io_PID_")?;
    let counted = each_operation(&recorded.finished.stdout, io_records(&own)?, RING_FILES)?;
    let model = Model::load(&[recorded.experiment()?])?;
    let options = TableOptions {
        metrics: Some("i+iowritebytes:i+ioreadcnt:name".to_owned()),
        ..TableOptions::default()
    };
    let functions = make(&model, View::Functions, &options)?.json();
    let rows = functions["rows"].as_array().context("no rows")?;
    let of = |name: &str, metric: &str| {
        let own = |row: &&serde_json::Value| {
            let found = row["name"].as_str().map(|own| own.ends_with(name));
            found.unwrap_or_default()
        };
        rows.iter().find(own)?[metric].as_u64()
    };
    let written = |file: &&Counted| file.name.ends_with("data") || file.name.ends_with("opened");
    let bytes = counted
        .iter()
        .filter(written)
        .map(|file| file.calls.written);
    let reads = counted.iter().map(|file| file.calls.reads);
    ensure!(
        of("write_by_ring", "i.iowritebytes") == Some(bytes.sum())
            && of("read_by_ring", "i.ioreadcnt") == Some(8 * 200)
            && of("ring_io::main", "i.ioreadcnt") == Some(reads.sum()),
        "{functions}"
    );
    Ok(())
}

/// Records `ring_io` with its files, and checks that each operation that it has counted is
/// recorded. Returns the recording, and the names of what was used; `None` where there is no
/// io_uring.
fn record_ring(what: &str, of_files: usize) -> Result<Option<(FinishedRecording, Vec<String>)>> {
    if let Err(error) = io_uring() {
        not_judged(format_args!("this kernel permits no io_uring: {error:#}"));
        return Ok(None);
    }
    let directory = TempDir::new()?;
    let path = directory.path().to_str().context("no UTF-8")?;
    let recorded = record(OPTIONS, &[workload!("ring_io"), what, path], LIMIT)?;
    let own = sub_experiment(&recorded.experiment()?, "_ring_io_PID_")?;
    each_operation(&recorded.finished.stdout, io_records(&own)?, of_files)?;
    let used = by_file(io_records(&own)?).into_keys().collect();
    Ok(Some((recorded, used)))
}

/// A registered file has its own name, whatever was or will be at its place.
#[test]
fn root_registered_files_of_io_uring_have_their_names() -> Result<()> {
    let _machine = Shared::take()?;
    let Some((recorded, used)) = record_ring("registered", REGISTERED_FILES)? else {
        return Ok(());
    };
    RunSummary::of(&recorded.experiment()?)?.complete()?;
    let unnamed = used.iter().any(|name| name.starts_with("io_uring file"));
    ensure!(!unnamed, "{used:?}");
    Ok(())
}

/// Completions for which there was no space are recorded as all others are.
#[test]
fn root_completions_that_overflow_are_recorded() -> Result<()> {
    let _machine = Shared::take()?;
    let Some((recorded, _)) = record_ring("overflow", OVERFLOW_FILES)? else {
        return Ok(());
    };
    RunSummary::of(&recorded.experiment()?)?.complete()
}

/// An operation without a completion is counted as lost, and no other one is taken for it. Alone:
/// other recordings count it too until they know that its process is not followed.
#[test]
fn root_alone_operations_without_completions_are_counted() -> Result<()> {
    let _machine = Exclusive::take()?;
    let Some((recorded, _)) = record_ring("skipped", 1)? else {
        return Ok(());
    };
    let mut lines = recorded.finished.stdout.lines();
    let unseen = lines.find_map(|line| line.strip_prefix("unseen "));
    let unseen: u64 = unseen.context("no count")?.parse()?;
    let lost = number_of(&recorded.experiment()?, "io_calls", "lost")?;
    ensure!(lost == unseen, "{lost} are lost, not {unseen}");
    Ok(())
}

/// Only a bounded number of operations can be in flight at a time (`c/io_uring.bpf.c`); others
/// count as lost.
#[test]
fn root_alone_operations_beyond_the_bound_are_counted() -> Result<()> {
    const BOUND: u64 = 16_384;
    const UNDER_WAY: u64 = 20_000;
    let _machine = Exclusive::take()?;
    if let Err(error) = io_uring() {
        not_judged(format_args!("this kernel permits no io_uring: {error:#}"));
        return Ok(());
    }
    let load = [workload!("ring_io"), "under-way", &UNDER_WAY.to_string()];
    let recorded = record(OPTIONS, &load, LIMIT)?;
    let own = sub_experiment(&recorded.experiment()?, "_ring_io_PID_")?;
    let records = io_records(&own)?;
    let name = |call: &IoRecord| call.call.and_then(name_of);
    let reads = records
        .iter()
        .filter(|call| name(call) == Some("IORING_OP_READ"));
    let reads = reads.count() as u64;
    let lost = number_of(&recorded.experiment()?, "io_calls", "lost")?;
    // The ring of records may lose some as well.
    ensure!(
        reads <= BOUND && reads + lost >= UNDER_WAY && reads > 0,
        "{reads} are recorded, and {lost} are lost"
    );
    Ok(())
}

/// strace counts each call by its name, in both processes.
#[test]
fn root_as_many_calls_as_strace_counts() -> Result<()> {
    let _machine = Shared::take()?;
    let directory = TempDir::new()?;
    let (recorded, _) = record_io(directory.path(), "50")?;
    let mut counts: BTreeMap<&str, [u64; 2]> = BTreeMap::new();
    for experiment in experiments_in(&recorded.experiment()?)? {
        for call in io_records(&experiment)? {
            let Some(number) = call.call else {
                continue;
            };
            let name = name_of(number).context("an unknown call")?;
            let [calls, errors] = counts.entry(name).or_default();
            *calls += 1;
            *errors += u64::from(call.failed);
        }
    }
    // One call, two packets.
    for name in ["sendfile", "copy_file_range"] {
        counts.entry(name).and_modify(|[calls, _]| *calls /= 2);
    }
    let output = directory.path().join("counts");
    let other = TempDir::new()?;
    run(
        Command::new("strace")
            .args(["-f", "-c", "-U", "calls,errors,name", "-o"])
            .args([&output, Path::new(IO_CALLS), other.path()])
            .arg("50"),
        LIMIT,
    )?
    .succeeded()?;
    let text = std::fs::read_to_string(&output)?;
    let mut wrong = Vec::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let Some((name, numbers)) = words.split_last() else {
            continue;
        };
        let numbers: Vec<u64> = numbers
            .iter()
            .filter_map(|word| word.parse().ok())
            .collect();
        let Some(calls) = numbers.first() else {
            continue;
        };
        let errors = numbers.get(1).copied().unwrap_or(0);
        let own = counts.remove(name).unwrap_or_default();
        if own != [0, 0] && own != [*calls, errors] {
            wrong.push(format!("{name}: {own:?}, not {:?}", [*calls, errors]));
        }
    }
    ensure!(
        wrong.is_empty() && counts.is_empty(),
        "{wrong:?} {counts:?} {text}"
    );
    Ok(())
}

/// A call that seccomp refuses, that a signal interrupts, or that the kernel makes again counts as
/// often as the program sees it, and a return from a signal's handler is no call.
#[test]
fn root_calls_that_are_refused_or_interrupted_count_once() -> Result<()> {
    let _machine = Shared::take()?;
    let directory = TempDir::new()?;
    let path = directory.path().to_str().context("no UTF-8")?;
    let recorded = record(OPTIONS, &[INTERRUPTED, path], LIMIT)?;
    RunSummary::of(&recorded.experiment()?)?.complete()?;
    let counted = Counted::of(&recorded.finished.stdout);
    ensure!(counted.len() == 9, "{counted:?}");
    let experiments = experiments_in(&recorded.experiment()?)?;
    let records: Vec<_> = experiments
        .iter()
        .map(|experiment| io_records(experiment))
        .collect::<Result<_>>()?;
    for (file, nanos) in each_file(&counted, records.clone())? {
        // From the first entry to the last exit; the program's clock is read outside of these.
        let whole = file.calls.errors > 0 || nanos >= Nanos(file.nanos.0 / 10 * 9);
        ensure!(whole, "{nanos} ns are recorded of {file:?}");
    }
    let nameless = by_file(records.concat());
    let nameless = nameless
        .iter()
        .filter(|(name, _)| name.starts_with("fd ") || name.parse::<f64>().is_ok());
    let nameless: Vec<_> = nameless.collect();
    ensure!(nameless.is_empty(), "{nameless:?}");
    Ok(())
}

/// Files that were open before have their names, also with a million descriptors, or as many as may
/// be, which are more than are looked up at once; and other processes are not recorded.
#[test]
fn root_a_running_process_is_traced_from_here_on() -> Result<()> {
    let _machine = Shared::take()?;
    let mut chosen = waiting(&["60", "1000000"])?;
    let mut other = waiting(&["60"])?;
    let target = chosen.pid().to_string();
    let recorded = record(&["-i", "on", "-T", &target], &["sleep", "1"], LIMIT)?;
    ensure!(!chosen.ended()? && !other.ended()?, "a program has ended");
    let experiments = experiments_in(&recorded.experiment()?)?;
    ensure!(experiments.len() == 1, "{experiments:?}");
    reads_itself(io_records(&experiments[0])?, IO_CALLS, 20)
}

/// Each experiment of a series names what is open.
#[test]
fn root_every_experiment_of_a_series_has_the_names() -> Result<()> {
    let _machine = Shared::take()?;
    let mut chosen = waiting(&["60"])?;
    let target = chosen.pid().to_string();
    let options = ["-i", "on", "-T", &target, "--rotate", "1", "-A", "off"];
    let recorded = record(&options, &["sleep", "2.5"], LIMIT)?;
    ensure!(!chosen.ended()?, "the program has ended");
    let all = experiments_in(recorded.directory())?;
    ensure!(all.len() >= 3, "{all:?}");
    for founder in all {
        let experiment = sub_experiment(&founder, "_io_calls_PID_")?;
        // The last one may have begun just before the end.
        let records = io_records(&experiment)?;
        reads_itself(records, IO_CALLS, 1).with_context(|| experiment.display().to_string())?;
        let stacks = addresses(&experiment)?;
        ensure!(stacks.len() > 3, "{stacks:x?}");
    }
    Ok(())
}

/// Starts a program that reads itself a hundred times a second, and waits until it does. It runs
/// for longer than any recording, and ends with its handle.
fn waiting(arguments: &[&str]) -> Result<Running> {
    let mut command = Command::new(IO_CALLS);
    let mut running = Running::start(command.arg("wait").args(arguments), LIMIT)?;
    running.until_printed()?;
    Ok(running)
}

/// A descriptor keeps its name where another program is executed, and a shell's redirections are
/// followed.
#[test]
fn root_a_descriptor_outlives_exec() -> Result<()> {
    let _machine = Shared::take()?;
    let directory = TempDir::new()?;
    let path = directory.path().join("input");
    std::fs::write(&path, "four")?;
    let name = path.to_str().context("no UTF-8")?;
    let script = format!("exec 7<{name}; exec cat <&7");
    let recorded = record(&["-i", "on", "-F", "load"], &["sh", "-c", &script], LIMIT)?;
    let experiments = experiments_in(&recorded.experiment()?)?;
    ensure!(experiments.len() == 1, "{experiments:?}");
    let files = by_file(io_records(&experiments[0])?);
    let (calls, _) = files.get(name).with_context(|| format!("{files:?}"))?;
    ensure!(calls.read_bytes == 4 && calls.reads == 2, "{files:?}");
    Ok(())
}

/// A 32-bit program has other numbers of system calls and other registers.
#[test]
fn root_calls_of_a_32_bit_program() -> Result<()> {
    let _machine = Shared::take()?;
    if !compat32::is_supported() {
        return Ok(());
    }
    let cpu = work_cpu()?.to_string();
    let load = [workload!("compat32"), "0.2", &cpu, "nanosleep"];
    let recorded = record(OPTIONS, &load, LIMIT)?;
    let mut found = None;
    for experiment in experiments_in(&recorded.experiment()?)? {
        let files = by_file(io_records(&experiment)?);
        let narrow = files.get("/proc/self/schedstat").copied();
        found = found.or(narrow.filter(|(calls, _)| calls.reads == 2));
    }
    let (calls, _) = found.context("its two reads are not recorded")?;
    // One open, and a seek before each read.
    ensure!(calls.others == 3 && calls.read_bytes > 4, "{calls:?}");
    Ok(())
}
