//! The experiments as a whole: all metrics, how they were recorded, and their list.

use experiment_format::log::LogEvent;
use experiment_format::units::Nanos;
use host::exit::Failure;

use super::View;
use super::context::{Entity, ViewContext, value_cell};
use crate::metric::Flavor;
use crate::model::{ExperimentInfo, Model};
use crate::report::table::{Cell, Column, PROBLEM, Table};

pub(super) fn overview(context: &ViewContext<'_>) -> Result<Table, Failure> {
    let totals = context.totals();
    let whole = Entity::new(Vec::new(), totals.whole());
    let rows = context.offered.iter().map(|base| {
        let value = whole.value(*base, Flavor::Exclusive);
        vec![
            Cell::Text(base.keyword().to_owned()),
            Cell::Text(base.title().to_owned()),
            value_cell(*base, value),
        ]
    });
    Ok(Table {
        view: View::Overview.name(),
        title: "All metrics".to_owned(),
        columns: vec![
            Column::text("metric", "Metric"),
            Column::text("title", "Time"),
            Column::number("seconds", "sec."),
        ],
        rows: rows.collect(),
        notes: stolen_note(context).into_iter().collect(),
        verbatim: false,
    })
}

/// Returns a note of the stolen part of the wait for CPUs. None: nothing was stolen.
fn stolen_note(context: &ViewContext<'_>) -> Option<String> {
    let stolen = super::threads::stolen_by_cpu(context);
    let cpus = context.model.cpus.iter().zip(stolen);
    let cpus = cpus.filter(|(_, nanoseconds)| *nanoseconds > Nanos::ZERO);
    let cpus =
        cpus.map(|(cpu, nanoseconds)| format!("CPU {cpu} {:.3} s", nanoseconds.as_secs_f64()));
    let cpus = cpus.collect::<Vec<_>>().join(", ");
    (!cpus.is_empty()).then(|| format!("Wait CPU includes what the hypervisor stole: {cpus}"))
}

pub(super) fn experiments(model: &Model) -> Table {
    let mut packets = vec![0u64; model.experiments.len()];
    for row in model.rows.iter().filter(|row| row.ticks != 0) {
        packets[row.experiment.index()] += 1;
    }
    let rows = (1..)
        .zip(&model.experiments)
        .zip(packets)
        .map(|((number, info), rows)| {
            let header = info.source.header();
            vec![
                Cell::Count(number),
                Cell::Count(header.pid.into()),
                Cell::Microseconds(info.tick_us.into()),
                Cell::Nanoseconds(info.end_ns),
                Cell::Count(rows),
                Cell::Text(
                    if info.source.is_closed() {
                        "closed"
                    } else {
                        "not closed"
                    }
                    .to_owned(),
                ),
                Cell::Text(info.source.named().display().to_string()),
            ]
        });
    Table {
        view: View::Experiments.name(),
        title: "Experiments".to_owned(),
        columns: vec![
            Column::number("number", "Number"),
            Column::number("pid", "PID"),
            Column::number("interval_s", "Interval\nsec."),
            Column::number("end_s", "End\nsec."),
            Column::number("rows", "Rows"),
            Column::text("state", "State"),
            Column::text("path", "Path"),
        ],
        rows: rows.collect(),
        ..Table::default()
    }
}

/// Makes the table of each founder's header and events, with the number of its subexperiments.
pub(super) fn header(model: &Model) -> Table {
    let mut rows = Vec::new();
    for (id, info) in model.founders() {
        of_founder(info, model.family(id).count() - 1, &mut rows);
    }
    for warning in &model.warnings {
        rows.push(("warning", Cell::Text(warning.clone())));
    }
    let rows = rows
        .into_iter()
        .map(|(key, cell)| vec![Cell::Text(key.to_owned()), cell]);
    Table {
        view: View::Header.name(),
        title: String::new(),
        columns: vec![Column::text("key", "What"), Column::text("value", "Value")],
        rows: rows.collect(),
        ..Table::default()
    }
}

fn of_founder(info: &ExperimentInfo, subexperiments: usize, rows: &mut Vec<(&str, Cell)>) {
    let text = |text: &str| Cell::Text(text.to_owned());
    let source = &info.source;
    let header = source.header();
    let mhz: Vec<_> = header.system.cpus.iter().map(|cpu| cpu.mhz).collect();
    let clock = match (mhz.iter().min(), mhz.iter().max()) {
        (Some(least), Some(most)) if least != most => format!(", {least} to {most} MHz"),
        (Some(mhz), _) => format!(", {mhz} MHz"),
        _ => String::new(),
    };
    rows.push((
        "experiment",
        Cell::Text(source.named().display().to_string()),
    ));
    rows.push(("collector", text(&header.collector)));
    rows.push(("host", text(&header.system.hostname)));
    rows.push((
        "machine",
        Cell::Text(format!("{}, {} CPUs{clock}", header.system.arch, mhz.len())),
    ));
    rows.push((
        "memory",
        Cell::Text(format!(
            "{} pages of {} bytes",
            header.system.pages, header.system.page_size
        )),
    ));
    rows.push(("command", text(&header.command_line)));
    rows.push(("pid", Cell::Count(header.pid.into())));
    rows.push((
        "interval",
        Cell::Text(format!("{} microseconds", info.tick_us)),
    ));
    rows.push((
        "duration",
        Cell::Text(format!("{:.9} seconds", info.end_ns.as_secs_f64())),
    ));
    rows.push((
        "closed",
        text(if source.is_closed() {
            "yes"
        } else {
            "no: it is being recorded, or the collector was killed"
        }),
    ));
    rows.push(("subexperiments", Cell::Count(subexperiments as u64)));
    if let Some(problems) = info.problems() {
        rows.push((PROBLEM, Cell::Text(problems)));
    }
    if let Some(losses) = info.losses() {
        rows.push(("losses", Cell::Text(losses.line())));
    }
    for line in source.notes().unwrap_or_default().lines() {
        rows.push(("note", text(line)));
    }
    for comment in &header.comments {
        rows.push(("comment", text(comment)));
    }
    let warnings = source.warnings().unwrap_or_default();
    for event in source.events().iter().chain(&warnings) {
        match event {
            LogEvent::Comment { text: message, .. } => rows.push(("comment", text(message))),
            LogEvent::Warning { text: message, .. } => {
                rows.push(("collector warning", text(message)))
            }
            LogEvent::Error { text: message, .. } => rows.push(("collector error", text(message))),
            _ => {}
        }
    }
}
