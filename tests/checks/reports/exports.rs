//! What `kcollect export` and `kcollect flame` write has the sums of `kcollect report`, in every
//! format and with any names; and the programs of these formats read it, if they are installed
//! here.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use analysis::aggregate;
use analysis::export::ExportFormat;
use analysis::export::folded::GroupBy;
use analysis::export::selected::{Selected, state_name, state_title};
use analysis::filter::{Filter, Selection};
use analysis::metric::BaseMetric;
use analysis::model::{Model, STATE_SLOTS};
use anyhow::{Context, Result, ensure};
use experiment_format::directory::{ExperimentDir, NameRequest};
use experiment_format::elf_image::{ElfImage, ImageSymbol, TextSection};
use experiment_format::ids::{Pid, Tid};
use experiment_format::log::{Cpu, LogEvent, LogHeader, ProfileDecl, StartTime, System};
use experiment_format::map::{MapEvent, READ_EXECUTE};
use experiment_format::microstate::{Microstate, NumStates};
use experiment_format::packet::{ClockTick, TickArray};
use experiment_format::stacks::StackEnd;
use experiment_format::writer::ExperimentWriter;
use flate2::read::GzDecoder;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tests::experiment::exported::{self, States};
use tests::experiment::synthetic::{DYNAMIC, KERNEL, LIBRARY, PROGRAM, Plan, STEP, StateInterval};
use tests::kcollect::{record, run_in};
use tests::machine::{Shared, work_cpu};
use tests::{command, workload};

/// How long a program that reads may take.
const READER: Duration = Duration::from_secs(120);

/// Sums of a report by state, under a name of each.
fn reported(model: &Model, filter: &Filter, name: fn(usize) -> &'static str) -> States {
    let totals = aggregate::totals(model, &Selection::new(model, filter)).all;
    let mut states = States::new();
    for (slot, sum) in totals.into_iter().enumerate() {
        if sum != 0 {
            *states.entry(name(slot).to_owned()).or_default() += sum;
        }
    }
    states
}

fn threads_only() -> Filter {
    Filter {
        states: Some(std::array::from_fn(|slot| {
            slot != Microstate::KernelCpu as usize
        })),
        ..Filter::default()
    }
}

fn written(model: &Model, filter: &Filter, format: ExportFormat, by: GroupBy) -> Result<Vec<u8>> {
    let selected = Selected::new(model, filter);
    let mut bytes = Vec::new();
    format.write(&selected, by, "made.1.er", &mut bytes)?;
    Ok(bytes)
}

fn unpacked(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut plain = Vec::new();
    GzDecoder::new(bytes).read_to_end(&mut plain)?;
    Ok(plain)
}

/// All formats have the sums of the report.
fn agree(model: &Model, filter: &Filter) -> Result<()> {
    let totals = aggregate::totals(model, &Selection::new(model, filter)).all;
    let expected = reported(model, filter, state_name);
    if expected.is_empty() {
        // It is refused, and never written.
        return Ok(());
    }

    for (by, _) in GroupBy::ALL {
        let text = String::from_utf8(written(model, filter, ExportFormat::Folded, by)?)?;
        ensure!(exported::folded(&text)? == expected, "folded {by:?}");
        ensure!(
            drawn(&text)? == totals.iter().sum::<i64>(),
            "inferno {by:?}"
        );
    }

    let bytes = written(model, filter, ExportFormat::Speedscope, GroupBy::Name)?;
    let sums = exported::speedscope(&serde_json::from_slice(&bytes)?)?;
    ensure!(sums == expected, "speedscope: {sums:?} {expected:?}");

    let bytes = written(model, filter, ExportFormat::Firefox, GroupBy::Name)?;
    let sums = exported::firefox(&serde_json::from_slice(&bytes)?)?;
    ensure!(sums == expected, "firefox: {sums:?} {expected:?}");

    let mut sums = exported::pprof(&unpacked(&written(
        model,
        filter,
        ExportFormat::Pprof,
        GroupBy::Name,
    )?)?)?;
    let ticks = sums.remove("ticks").unwrap_or(0);
    let metrics = [BaseMetric::Total, BaseMetric::TotalCpu]
        .map(|base| sums.remove(base.keyword()).unwrap_or(0));
    ensure!(
        metrics
            == [
                BaseMetric::Total.of(&totals),
                BaseMetric::TotalCpu.of(&totals)
            ]
    );
    ensure!(sums == expected, "pprof: {sums:?} {expected:?}");
    let selection = Selection::new(model, filter);
    let rows = model.rows.iter().filter(|row| selection.passes(row));
    ensure!(rows.map(|row| i64::from(row.ticks)).sum::<i64>() == ticks);

    let trace = exported::perfetto(&written(
        model,
        filter,
        ExportFormat::Perfetto,
        GroupBy::Name,
    )?)?;
    ensure!(
        trace.states == reported(model, filter, state_title),
        "perfetto: {:?}",
        trace.states
    );
    let rows = model.rows.iter().filter(|row| selection.passes(row));
    let on_cpu = rows.filter(|row| BaseMetric::TotalCpu.has(row.slot()));
    ensure!(on_cpu.map(|row| i64::from(row.ticks)).sum::<i64>() == trace.samples);
    Ok(())
}

/// What inferno makes of folded stacks: how much its picture shows in all.
fn drawn(text: &str) -> Result<i64> {
    let mut svg = Vec::new();
    let mut options = inferno::flamegraph::Options::default();
    inferno::flamegraph::from_lines(&mut options, text.lines(), &mut svg)?;
    total_of(&String::from_utf8(svg)?)
}

/// What a flame graph shows in all.
fn total_of(svg: &str) -> Result<i64> {
    let (_, rest) = svg.split_once("total_samples=\"").context("no total")?;
    Ok(rest.split('"').next().unwrap_or_default().parse()?)
}

fn addresses() -> impl Strategy<Value = u64> {
    prop_oneof![
        3 => (0..12 * STEP).prop_map(|offset| KERNEL + offset),
        3 => (0..12 * STEP).prop_map(|offset| PROGRAM + offset),
        3 => (0..12 * STEP).prop_map(|offset| LIBRARY + offset),
        1 => (0u64..256).prop_map(|offset| DYNAMIC + offset),
        1 => (0u64..256).prop_map(|offset| 0x9999_0000 + offset),
    ]
}

fn state_intervals(
    tids: std::ops::Range<u32>,
    cpus: bool,
) -> impl Strategy<Value = Vec<StateInterval>> {
    let ends = vec![
        StackEnd::Complete,
        StackEnd::Truncated,
        StackEnd::UnwindFailed,
    ];
    let ticks = prop::array::uniform10(prop_oneof![3 => Just(0u32), 1 => 1u32..500]);
    let frames = prop::collection::vec(addresses(), 0..8);
    let end = prop::sample::select(ends);
    let place = (0u32..4, tids, 0u64..1_000_000_000);
    let state_interval = (place, frames, end, ticks, any::<bool>());
    let state_interval =
        state_interval.prop_map(move |((cpu, tid, at), frames, end, ticks, kernel_cpu)| {
            StateInterval {
                cpu,
                tid,
                at,
                frames,
                end,
                ticks,
                kernel_cpu: cpus && kernel_cpu,
            }
        });
    prop::collection::vec(state_interval, 0..40)
}

fn plans() -> impl Strategy<Value = Plan> {
    let tick_us = prop::sample::select(vec![997, 10_007, 100_003]);
    (
        tick_us,
        state_intervals(100..110, true),
        state_intervals(10..13, false),
    )
        .prop_map(|(tick_us, founder, process)| Plan {
            tick_us,
            functions: 12,
            founder: founder
                .into_iter()
                .map(|state_interval| (state_interval.tid / 4, state_interval))
                .collect(),
            processes: vec![(10, process)],
        })
}

#[test]
fn exports_of_random_experiments_have_the_sums_of_the_report() {
    let mut runner = TestRunner::new(Config {
        cases: 24,
        max_shrink_iters: 100,
        failure_persistence: None,
        ..Config::default()
    });
    let check = |plan: &Plan| -> Result<()> {
        let directory = tempfile::tempdir()?;
        let model = Model::load(&[plan.write(directory.path())?])?;
        agree(&model, &threads_only())?;
        let all = Filter {
            states: Some([true; STATE_SLOTS]),
            ..Filter::default()
        };
        agree(&model, &all)?;
        let some = Filter {
            threads: vec![10, 101, 104],
            time: Some(100_000_000..800_000_000),
            ..threads_only()
        };
        agree(&model, &some)
    };
    let outcome = runner.run(&plans(), |plan| {
        check(&plan).map_err(|error| TestCaseError::fail(format!("{error:#}")))
    });
    outcome.unwrap();
}

/// What is in other people's power: names of threads, of functions and of files.
const NAMES: [&str; 10] = [
    "a;b",
    "line\nbreak\r\tand more",
    "\"quoted\" 'and' \\back\\slash",
    "<xml & co> ]]> <!--",
    "count 7 42",
    " ",
    "\u{1}\u{7f}\u{fffe}\u{2028}\u{202e}",
    "# a remark",
    "--",
    "[lock]_[k]",
];

/// An experiment with such names wherever the format lets them be.
fn hostile(parent: &Path) -> Result<PathBuf> {
    let request = NameRequest::Exactly("made.1.er".into());
    let (dir, _) = ExperimentDir::create(parent, &request, None)?;
    let mut symbols: Vec<Vec<u8>> = NAMES.iter().map(|name| name.as_bytes().to_vec()).collect();
    symbols.push(b"\xff\xfe not UTF-8 \xc3".to_vec());
    let symbols_at = (0..).zip(&symbols).map(|(number, name)| ImageSymbol {
        address: KERNEL + 256 * number,
        size: 256,
        name,
        global: true,
    });
    let image = ElfImage {
        texts: vec![TextSection {
            address: KERNEL,
            size: 0x1000,
            bits: None,
        }],
        symbols: symbols_at.collect(),
    };
    let object = "vm\"l;i <n>&ux";
    dir.archive(object, &image.to_bytes()?)?;
    let clock = |states, packet| ProfileDecl::Clock {
        tick_us: 10_007,
        states,
        packets: vec![packet],
    };
    let header = LogHeader {
        system: System {
            hostname: "no;where".into(),
            arch: "x86_64".into(),
            page_size: 4096,
            pages: 1024,
            cpus: vec![Cpu { id: 0, mhz: 2600 }],
        },
        command_line: "kernel".into(),
        profiles: vec![
            ProfileDecl::ThreadNames,
            clock(NumStates::Kernel, ClockTick::declaration()),
            clock(NumStates::Solaris, TickArray::declaration()),
        ],
        ..LogHeader::default()
    };
    let start = 1_000_000_000;
    let run = StartTime {
        tstamp_ns: start,
        wall_s: 1_795_205_070,
        wall_subsec_ns: 0,
        tm_zone_s: 0,
    };
    let mut founder = ExperimentWriter::create(dir, &header, run)?;
    founder.map(&MapEvent::Segment {
        at: 0,
        vaddr: KERNEL,
        size: 0x4000,
        file_offset: 0x1000,
        modes: READ_EXECUTE,
        name: object.into(),
    })?;
    for (number, name) in (1..).zip(NAMES) {
        founder.map(&MapEvent::Function {
            at: 0,
            vaddr: 0x1000 * u64::from(number),
            size: 256,
            name: name.into(),
        })?;
        founder.log(&LogEvent::Thread {
            at: 0,
            tid: Tid(number),
            name: name.into(),
            group: format!("{name}, pid {number}"),
        })?;
    }
    for number in 0..symbols.len() as u32 {
        let frames = [
            KERNEL + 256 * u64::from(number),
            0x1000 * u64::from(1 + number % NAMES.len() as u32),
        ];
        let stack = founder.stack(&frames, StackEnd::Complete)?;
        let mut ticks = [0; Microstate::PER_THREAD];
        ticks[number as usize % Microstate::PER_THREAD] = 3 + number;
        founder.tick_array(&TickArray {
            cpu: 0,
            time: start + 1_000_000 * u64::from(number),
            stack,
            tid: Tid(number),
            pid: Pid(number),
            ticks,
            detail: 0,
        })?;
    }
    Ok(founder.close(60_000_000_000)?)
}

#[test]
fn hostile_names_break_no_format() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let experiment = hostile(directory.path())?;
    let model = Model::load(std::slice::from_ref(&experiment))?;
    ensure!(model.warnings.is_empty(), "{:?}", model.warnings);
    let names: Vec<_> = model
        .functions
        .iter()
        .map(|function| function.name.as_str())
        .collect();
    ensure!(
        names.contains(&"a;b") && names.len() >= 2 * NAMES.len(),
        "{names:?}"
    );
    agree(&model, &threads_only())?;
    read_by_others(&experiment)
}

/// A program of ours.
fn kcollect(arguments: &[&str], experiment: &Path) -> Result<String> {
    let directory = experiment.parent().context("no parent")?;
    let experiment = experiment.to_str().context("its name is no text")?;
    let arguments = [arguments, &[experiment]].concat();
    Ok(run_in(directory, &arguments, READER)?.succeeded()?.stdout)
}

/// Output of a program that reads a file; none if it is not installed, which is reported.
fn reader(typed: &mut Command) -> Result<Option<String>> {
    let name = typed.get_program().to_string_lossy().into_owned();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut there = std::env::split_paths(&path);
    if !there.any(|directory| directory.join(&name).is_file()) {
        eprintln!("{name} is not installed: nothing is read by it");
        return Ok(None);
    }
    Ok(Some(command::run(typed, READER)?.succeeded()?.stdout))
}

/// Reads with python's `perfetto` package: the published schema, and trace_processor, if it can be
/// had.
const PERFETTO: &str = r#"
import sys
try:
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as schema
except ImportError:
    sys.exit(print("no package"))
trace = schema.Trace.FromString(open(sys.argv[1], "rb").read())
from google.protobuf.unknown_fields import UnknownFieldSet
def known(message):
    assert len(UnknownFieldSet(message)) == 0, message
    for field, value in message.ListFields():
        if field.message_type:
            [known(one) for one in (value if hasattr(value, "__len__") else [value])]
[known(packet) for packet in trace.packet]
print("schema", sum(packet.HasField("perf_sample") for packet in trace.packet))
if len(sys.argv) < 3:
    sys.exit(0)
from perfetto.trace_processor import TraceProcessor, TraceProcessorConfig
processor = TraceProcessor(trace=sys.argv[1], config=TraceProcessorConfig(bin_path=sys.argv[2]))
print("samples", [row.n for row in processor.query("select count(*) n from perf_sample")][0])
for row in processor.query("select name, sum(dur) / 1000 us from slice group by name"):
    print("slice", row.us, row.name)
for row in processor.query("select name, value from stats where severity = 'error' and value > 0"):
    print("error", row.value, row.name)
processor.close()
"#;

/// Reads with the JSON schema that speedscope is published with.
const SPEEDSCOPE: &str = r#"
import json, sys
try:
    import jsonschema
except ImportError:
    sys.exit(print("no package"))
jsonschema.validate(json.load(open(sys.argv[1])), json.load(open(sys.argv[2])))
print("valid")
"#;

/// The programs that the formats are for read what ours writes, and find the same in it.
fn read_by_others(experiment: &Path) -> Result<()> {
    let model = Model::load(&[experiment.to_owned()])?;
    let filter = threads_only();
    let totals = aggregate::totals(&model, &Selection::new(&model, &filter)).all;
    let directory = experiment.parent().context("no parent")?;
    let stem = experiment.file_stem().context("no name")?.to_string_lossy();
    let made = |extension: &str| directory.join(format!("{stem}.{extension}"));
    for (_, name, extension, _) in ExportFormat::ALL {
        let output = kcollect(&["export", "--to", name], experiment)?;
        ensure!(
            output.starts_with(&format!("{stem}.{extension}: ")),
            "{output}"
        );
        ensure!(made(extension).is_file());
    }
    // Its own unit and colours, and the same sum.
    for (arguments, base) in [
        (&["flame"][..], BaseMetric::TotalCpu),
        (&["flame", "--all"], BaseMetric::Total),
    ] {
        if base.of(&totals) > 0 {
            kcollect(arguments, experiment)?;
            let svg = std::fs::read_to_string(made("svg"))?;
            ensure!(total_of(&svg)? == base.of(&totals));
        }
    }

    let columns = reader(
        Command::new("go")
            .args(["tool", "pprof", "-raw"])
            .arg(made("pb.gz")),
    )?;
    if let Some(raw) = columns {
        let sums = raw_sums(&raw)?;
        ensure!(
            sums.get("total") == Some(&BaseMetric::Total.of(&totals)),
            "{sums:?}"
        );
        let mut top = Command::new("go");
        top.args(["tool", "pprof", "-top", "-sample_index=total"]);
        let output = reader(top.arg(made("pb.gz")))?.context("go is gone")?;
        ensure!(output.contains("Type: total"), "{output}");
    }

    let mut python = Command::new("python3");
    python.args(["-c", PERFETTO]).arg(made("perfetto-trace"));
    let processor = std::env::var_os("TRACE_PROCESSOR");
    python.args(processor.as_slice());
    match reader(&mut python)?.as_deref() {
        None => {}
        Some("no package\n") => {
            eprintln!("python3 has no perfetto: the trace is read by our test alone")
        }
        Some(output) => {
            let trace = exported::perfetto(&std::fs::read(made("perfetto-trace"))?)?;
            ensure!(
                output.starts_with(&format!("schema {}\n", trace.samples)),
                "{output}"
            );
            if processor.is_some() {
                processed(output, &trace)?;
            } else {
                eprintln!(
                    "TRACE_PROCESSOR names no trace_processor_shell: the trace is not loaded"
                );
            }
        }
    }

    match std::env::var_os("SPEEDSCOPE_SCHEMA") {
        None => eprintln!(
            "SPEEDSCOPE_SCHEMA names no file-format-schema.json: nothing is held against it"
        ),
        Some(schema) => {
            let mut python = Command::new("python3");
            python
                .args(["-c", SPEEDSCOPE])
                .arg(made("speedscope.json"))
                .arg(schema);
            let output = reader(&mut python)?.unwrap_or_default();
            ensure!(output == "valid\n", "{output}");
        }
    }
    Ok(())
}

/// What trace_processor found.
fn processed(output: &str, trace: &exported::Trace) -> Result<()> {
    let mut states = States::new();
    for line in output.lines() {
        let mut words = line.splitn(3, ' ');
        let (kind, number) = (words.next(), words.next().unwrap_or_default());
        match (kind, words.next()) {
            (Some("slice"), Some(name)) => {
                states.insert(name.to_owned(), number.parse()?);
            }
            (Some("samples"), _) => ensure!(number.parse() == Ok(trace.samples), "{line}"),
            (Some("error"), _) => anyhow::bail!("{line}"),
            _ => {}
        }
    }
    ensure!(states == trace.states, "{states:?} {:?}", trace.states);
    Ok(())
}

/// Sums of the columns that `pprof -raw` prints, in microseconds where it is time.
fn raw_sums(raw: &str) -> Result<BTreeMap<String, i64>> {
    let mut lines = raw.lines().skip_while(|line| *line != "Samples:").skip(1);
    let heading = lines.next().context("no samples")?;
    let names = heading.split_whitespace().map(|name| {
        let name = name.trim_end_matches("[dflt]");
        name.split_once('/').unwrap_or((name, ""))
    });
    let names: Vec<_> = names.collect();
    let mut sums = vec![0i64; names.len()];
    for line in lines.take_while(|line| *line != "Locations") {
        let Some((values, _)) = line.split_once(':') else {
            continue;
        };
        let values: Result<Vec<i64>, _> = values.split_whitespace().map(str::parse).collect();
        let Ok(values) = values else { continue };
        if values.len() == sums.len() {
            sums.iter_mut()
                .zip(values)
                .for_each(|(sum, value)| *sum += value);
        }
    }
    let sums = names.into_iter().zip(sums).map(|((name, unit), sum)| {
        let sum = if unit == "nanoseconds" {
            sum / 1000
        } else {
            sum
        };
        (name.to_owned(), sum)
    });
    Ok(sums.collect())
}

#[test]
fn a_failed_export_is_reported_and_leaves_nothing() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let experiment = hostile(directory.path())?;
    let run = |arguments: &[&str]| -> Result<(i32, String)> {
        let done = run_in(directory.path(), arguments, READER)?;
        Ok((done.code(), done.stderr))
    };
    let name = "made.1.er";
    for (arguments, code, message) in [
        (&["export", name][..], 64, "--to is missing"),
        (&["export", name, "--to", "x"], 64, "--to x: no such format"),
        (
            &["export", "x", "--to", "pprof"],
            64,
            "x is not an experiment",
        ),
        (
            &["export", name, "--to", "pprof", "--process", "99"],
            65,
            "no tick passes the filters",
        ),
        (
            &["export", name, "--to", "pprof", "-o", "no/such/place"],
            73,
            "cannot write no/such/place",
        ),
        (
            &["export", name, "--to", "pprof", "-o", "x.er"],
            64,
            "-o x.er",
        ),
        (&["flame", "none.er"], 66, "there is no experiment none.er"),
        (&["flame", name, "--by", "x"], 64, "--by x"),
        (&["flame", "--state", "kcpu"], 66, "no experiment is named"),
    ] {
        let (was, output) = run(arguments)?;
        ensure!(
            was == code && output.contains(message),
            "{arguments:?}: {was} {output}"
        );
        ensure!(output.lines().count() == 1, "{output}");
    }
    let left: Vec<_> = std::fs::read_dir(directory.path())?.collect::<Result<_, _>>()?;
    ensure!(left.len() == 1, "{left:?}");
    // Not through a link, and what was there is replaced as a whole.
    let victim = directory.path().join("victim");
    std::fs::write(&victim, "precious")?;
    std::os::unix::fs::symlink(&victim, directory.path().join("made.1.folded"))?;
    kcollect(&["export", "--to", "folded"], &experiment)?;
    ensure!(std::fs::read_to_string(&victim)? == "precious");
    let (code, _) = run(&["flame", name, "-o", "/dev/null"])?;
    ensure!(code == 0);
    Ok(())
}

#[test]
fn two_experiments_are_compared() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let experiment = hostile(directory.path())?;
    let name = "made.1.er";
    let arguments = ["flame", "--all", "--diff", name, name, "-o", "-"];
    let svg = run_in(directory.path(), &arguments, READER)?
        .succeeded()?
        .stdout;
    let model = Model::load(&[experiment])?;
    let totals = aggregate::totals(&model, &Selection::new(&model, &threads_only())).all;
    ensure!(total_of(&svg)? == totals.iter().sum::<i64>());
    // Nothing has changed, and says so.
    ensure!(svg.matches("; 0.00%)").count() > NAMES.len(), "{svg}");
    ensure!(!svg.contains("%; +") && !svg.contains("%; -"));
    Ok(())
}

#[test]
fn root_a_recording_is_exported_and_read_by_other_programs() -> Result<()> {
    let _machine = Shared::take()?;
    let cpu = work_cpu()?.to_string();
    let recorded = record(
        &["-p", "hi", "-F", "=mixed|spawner"],
        &[workload!("spawner"), "1.3", &cpu],
        Duration::from_secs(40),
    )?;
    let experiment = recorded.experiment()?;
    let model = Model::load(std::slice::from_ref(&experiment))?;
    agree(&model, &threads_only())?;
    read_by_others(&experiment)
}
