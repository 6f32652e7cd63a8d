//! Machines of many CPUs: each is judged like the other machines, and a table shows how kcollect's
//! cost grows with the number of CPUs.
//!
//! One CPU of the host serves all of them in turn, so times mean nothing there. Numbers of records,
//! bytes and memory do.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tests::kcollect::experiment_in;

use crate::runs::{IDLE_CPUS, MANY_CPUS};

/// What kcollect took on a machine.
#[derive(Debug, Deserialize)]
pub(crate) struct Taken {
    elapsed_s: f64,
    ticks: u64,
    thread_ticks: u64,
    packets: u64,
    thread_packets: u64,
    cpus: Vec<Cpu>,
    cost: Cost,
    /// Peak memory of kcollect while the machine had nothing to do, bytes.
    #[serde(skip)]
    idle_bytes: u64,
}

/// What kcollect took on a machine that had nothing to do.
#[derive(Debug, Deserialize)]
struct Idle {
    cost: Cost,
}

#[derive(Debug, Deserialize)]
struct Cpu {
    lost: u64,
}

#[derive(Debug, Deserialize)]
struct Cost {
    cpu_s: f64,
    peak_rss_bytes: u64,
    bytes_written: u64,
}

impl Taken {
    /// Reads it from the results of a machine. None: the machine was not one with many CPUs.
    ///
    /// # Errors
    /// When the summary can't be read.
    pub(crate) fn of(results: &Path) -> Result<Option<Taken>> {
        let place = results.join(MANY_CPUS);
        if !place.exists() {
            return Ok(None);
        }
        let mut taken: Taken = summary(&place)?;
        taken.idle_bytes = summary::<Idle>(&results.join(IDLE_CPUS))?
            .cost
            .peak_rss_bytes;
        Ok(Some(taken))
    }
}

fn summary<T: DeserializeOwned>(place: &Path) -> Result<T> {
    let path = experiment_in(place)?.join("kcollect.json");
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    Ok(serde_json::from_str(&text)?)
}

/// Returns the table.
pub(crate) fn table(all: &[Taken]) -> Table {
    let mut table = Table::new();
    table.load_style(NOTHING);
    table.set_header([
        "CPUs",
        "seconds",
        "ticks",
        "lost",
        "of threads",
        "packets a tick",
        "B/thread tick",
        "CPU of a tick, ms in qemu",
        "memory, MB",
        "idle, MB",
        "more of each CPU, MB",
    ]);
    for column in table.column_iter_mut() {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let mut before: Option<(usize, f64)> = None;
    for taken in all {
        let (cpus, memory) = (taken.cpus.len(), taken.idle_bytes as f64 / 1e6);
        let more = before.filter(|(fewer, _)| *fewer < cpus);
        let more = more.map(|(fewer, less)| (memory - less) / (cpus - fewer) as f64);
        before = Some((cpus, memory));
        let of_ticks = |number: f64| number / taken.ticks.max(1) as f64;
        table.add_row([
            cpus.to_string(),
            format!("{:.1}", taken.elapsed_s),
            taken.ticks.to_string(),
            taken
                .cpus
                .iter()
                .map(|cpu| cpu.lost)
                .sum::<u64>()
                .to_string(),
            taken.thread_ticks.to_string(),
            format!(
                "{:.2}",
                of_ticks((taken.packets + taken.thread_packets) as f64)
            ),
            format!(
                "{:.1}",
                taken.cost.bytes_written as f64 / taken.thread_ticks.max(1) as f64
            ),
            format!("{:.2}", of_ticks(1000.0 * taken.cost.cpu_s)),
            format!("{:.1}", taken.cost.peak_rss_bytes as f64 / 1e6),
            format!("{memory:.1}"),
            more.map_or_else(|| "-".to_owned(), |more| format!("{more:.2}")),
        ]);
    }
    table
}
