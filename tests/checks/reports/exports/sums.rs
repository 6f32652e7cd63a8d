//! The sums of each format, compared with the report's.

use std::collections::BTreeMap;
use std::io::Read;

use analysis::aggregate;
use analysis::export::ExportFormat;
use analysis::export::folded::GroupBy;
use analysis::export::selected::{Selected, state_name, state_title};
use analysis::filter::{Filter, Selection, TimeRange};
use analysis::metric::BaseMetric;
use analysis::model::{Model, STATE_SLOTS, ThreadId};
use anyhow::{Context, Result, ensure};
use experiment_format::microstate::Microstate;
use experiment_format::stacks::StackEnd;
use experiment_format::units::{Nanos, Ticks};
use flate2::read::GzDecoder;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tests::experiment::exported::{self, States};
use tests::experiment::synthetic::{DYNAMIC, KERNEL, LIBRARY, PROGRAM, Plan, STEP, StateInterval};

/// Returns the sums of a report by state, under a name of each.
pub(super) fn reported(model: &Model, filter: &Filter, name: fn(usize) -> &'static str) -> States {
    let totals = aggregate::totals(model, &Selection::new(model, filter)).all;
    let mut states = States::new();
    for (slot, sum) in totals.into_iter().enumerate() {
        if sum != 0 {
            *states.entry(name(slot).to_owned()).or_default() += sum;
        }
    }
    states
}

pub(super) fn threads_only() -> Filter {
    Filter {
        states: Some(std::array::from_fn(|slot| {
            slot != Microstate::KernelCpu as usize
        })),
        ..Filter::default()
    }
}

pub(super) fn written(
    model: &Model,
    filter: &Filter,
    format: ExportFormat,
    by: GroupBy,
) -> Result<Vec<u8>> {
    let selected = Selected::new(model, filter);
    let mut bytes = Vec::new();
    format.write(&selected, by, "made.1.er", &mut bytes)?;
    Ok(bytes)
}

pub(super) fn unpacked(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut plain = Vec::new();
    GzDecoder::new(bytes).read_to_end(&mut plain)?;
    Ok(plain)
}

/// Checks that all formats have the sums of the report.
pub(super) fn agree(model: &Model, filter: &Filter) -> Result<()> {
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
    // Its timeline shows the ticks. Samples have no weight: there are as many as ticks fit into the
    // exact time of a thread.
    let mut lengths = States::new();
    let mut on_cpu: BTreeMap<ThreadId, i64> = BTreeMap::new();
    for row in model.rows.iter().filter(|row| selection.passes(row)) {
        let length = (model.length_of_ticks(row) / Nanos::from_micros(1)) as i64;
        if length > 0 {
            *lengths
                .entry(state_title(row.slot()).to_owned())
                .or_default() += length;
        }
        if BaseMetric::TotalCpu.has(row.slot()) {
            *on_cpu.entry(row.thread).or_default() += row.micros;
        }
    }
    ensure!(trace.states == lengths, "perfetto: {:?}", trace.states);
    let tick_us = i64::from(model.experiments[0].tick_us);
    let samples: i64 = on_cpu.values().map(|micros| micros / tick_us).sum();
    ensure!(
        samples == trace.samples.values().sum::<i64>(),
        "perfetto: {:?}",
        trace.samples
    );
    let begun = model.experiments[0].source.start();
    let wall_ns = begun.wall_s as u64 * 1_000_000_000 + u64::from(begun.wall_subsec_ns);
    ensure!(trace.wall_ns == wall_ns, "{} {wall_ns}", trace.wall_ns);
    Ok(())
}

/// Returns the total of the flame graph that inferno draws of folded stacks.
pub(super) fn drawn(text: &str) -> Result<i64> {
    let mut svg = Vec::new();
    let mut options = inferno::flamegraph::Options::default();
    inferno::flamegraph::from_lines(&mut options, text.lines(), &mut svg)?;
    total_of(&String::from_utf8(svg)?)
}

/// Returns the total of a flame graph.
pub(super) fn total_of(svg: &str) -> Result<i64> {
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
                ticks: ticks.map(|ticks| Ticks(ticks.into())),
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
        let mut model = Model::load(&[plan.write(directory.path())?])?;
        agree(&model, &threads_only())?;
        let all = Filter {
            states: Some([true; STATE_SLOTS]),
            ..Filter::default()
        };
        agree(&model, &all)?;
        let some = Filter {
            threads: vec![10, 101, 104],
            time: Some(TimeRange::SinceStart(
                Nanos(100_000_000)..Nanos(800_000_000),
            )),
            ..threads_only()
        };
        agree(&model, &some)?;
        model.show_ticks();
        agree(&model, &some)
    };
    let outcome = runner.run(&plans(), |plan| {
        check(&plan).map_err(|error| TestCaseError::fail(format!("{error:#}")))
    });
    outcome.unwrap();
}
