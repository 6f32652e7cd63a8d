//! The rows that `kcollect track` and `kcollect stat` print, as text and as JSON.
//!
//! Text has the same number of columns on every line before the `#`, separated by blanks, so that
//! awk can read it; `-` stands where there is no number. After `#` follow notes: the name of a
//! program, the number of a child, which counts were scaled, and the time that a hypervisor stole.
//! Widths of columns are constants: a row is printed when it happens, while a table of
//! [`host::table`] measures all its rows before it prints the first.
//!
//! As JSON, each row is an object on a line of its own. Counts have there the value, whether it was
//! scaled, and the count and times that it was computed from.

use std::fmt::Write as _;

use serde_json::{Map, Value as Json, json};
use types::text::printable;
use types::units::Nanos;

use crate::names::event::PerfEvent;
use crate::perf::reading::{CounterValue, Estimate};
use crate::rows::{CountRow, RowKind};

/// What the rows of an output are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowSubject {
    /// Threads, by process and thread.
    Threads,
    /// CPUs.
    Cpus,
}

/// How rows are printed.
#[derive(Clone, Debug)]
pub struct RowFormat<'a> {
    /// What the rows are of.
    pub subject: RowSubject,
    /// The events, in the order of their columns.
    pub events: &'a [PerfEvent],
    /// When counting began, CLOCK_MONOTONIC nanoseconds. Times are printed relative to it.
    pub start_ns: Nanos,
    /// Whether there are columns of how long the events were enabled, and how long the event that
    /// had a counter for the shortest time had it.
    pub times: bool,
}

impl RowFormat<'_> {
    /// Returns the line with the names of the columns.
    #[must_use]
    pub fn header(&self) -> String {
        let keys = match self.subject {
            RowSubject::Threads => {
                format!("{:>12} {:>8} {:>8} {:>10}", "time", "pid", "lwp", "event")
            }
            RowSubject::Cpus => format!("{:>12} {:>4} {:>10}", "time", "cpu", "event"),
        };
        let times = if self.times {
            format!(" {:>12} {:>12}", "enabled", "running")
        } else {
            String::new()
        };
        let titles = self.events.iter();
        let titles = titles.map(|event| format!(" {:>12}", title(event)));
        format!("{keys}{times}{}", titles.collect::<String>())
    }

    /// Returns a row as text, without the end of the line.
    #[must_use]
    pub fn text(&self, row: &CountRow) -> String {
        fn id(id: Option<impl ToString>) -> String {
            id.map_or_else(|| "-".to_owned(), |id| id.to_string())
        }
        let mut line = format!("{:12.6} ", self.seconds(row));
        // Writing to a String cannot fail.
        let _ = match self.subject {
            RowSubject::Threads => write!(line, "{:>8} {:>8} ", id(row.pid), id(row.lwp)),
            RowSubject::Cpus => write!(line, "{:>4} ", id(row.cpu)),
        };
        let _ = write!(line, "{:>10}", row.kind.word());
        let mut notes = self.notes(row);
        if self.times {
            let _ = match row.values.as_deref().and_then(times_ns) {
                Some((enabled, running)) => write!(
                    line,
                    " {:>12.6} {:>12.6}",
                    enabled.as_secs_f64(),
                    running.as_secs_f64()
                ),
                None => write!(line, " {:>12} {:>12}", "-", "-"),
            };
        }
        for (number, event) in self.events.iter().enumerate() {
            let value = row.values.as_ref().and_then(|values| values.get(number));
            let value = value.filter(|value| self.counted(value));
            let estimate = value.map(|value| value.estimate());
            let width = title(event).chars().count().max(12);
            let count = estimate.and_then(Estimate::number);
            let count = count.map_or_else(|| "-".to_owned(), |count| shown(event, count));
            let _ = write!(line, " {count:>width$}");
            match estimate {
                Some(Estimate::Scaled { share, .. }) => {
                    notes.push(format!("{} scaled from {:.2}%", event.name, 100.0 * share));
                }
                Some(Estimate::Never) => notes.push(format!("{} had no counter", event.name)),
                _ => {}
            }
        }
        if !notes.is_empty() {
            let _ = write!(line, " # {}", notes.join(", "));
        }
        line
    }

    /// Returns a row as a JSON object: `time` in seconds as in the text, `monotonic_ns`, the ids,
    /// `event`, of a CPU `stolen_ns`, and `counts`. These have for each event its `value`, whether
    /// that is `scaled`, and the `count`, `enabled_ns` and `running_ns` that it was computed from.
    #[must_use]
    pub fn json(&self, row: &CountRow) -> Json {
        let mut object = Map::new();
        let mut put = |key: &str, value: Json| object.insert(key.to_owned(), value);
        put("time", json!(self.seconds(row)));
        put("monotonic_ns", json!(row.time_ns));
        match self.subject {
            RowSubject::Threads => {
                put("pid", json!(row.pid));
                put("lwp", json!(row.lwp));
            }
            RowSubject::Cpus => drop(put("cpu", json!(row.cpu))),
        }
        put("event", json!(row.kind.word()));
        match &row.kind {
            RowKind::Fork(child) => drop(put("child", json!(child))),
            RowKind::Exec(name) => drop(put("name", json!(name))),
            RowKind::Total(number) => drop(put("of", json!(number))),
            _ => {}
        }
        if row.incomplete {
            put("incomplete", json!(true));
        }
        if let Some(stolen_ns) = row.stolen_ns {
            put("stolen_ns", json!(stolen_ns));
        }
        if let Some(values) = &row.values {
            let pairs = self.events.iter().zip(values);
            let pairs = pairs.filter(|(_, value)| self.counted(value));
            let counts =
                pairs.map(|(event, value)| (event.name.clone(), count_json(event, *value)));
            put("counts", Json::Object(counts.collect()));
        }
        Json::Object(object)
    }

    /// Whether the row's CPU or thread counts the event of a value. Counters of CPUs are enabled
    /// all the time, unless the event is counted on other CPUs, such as a memory controller's.
    fn counted(&self, value: &CounterValue) -> bool {
        self.subject == RowSubject::Threads || value.enabled_ns > Nanos::ZERO
    }

    fn seconds(&self, row: &CountRow) -> f64 {
        row.time_ns.saturating_sub(self.start_ns).as_secs_f64()
    }

    fn notes(&self, row: &CountRow) -> Vec<String> {
        let mut notes = Vec::new();
        match (&row.kind, self.subject) {
            (RowKind::Fork(child), _) => notes.push(child.to_string()),
            (RowKind::Exec(name), _) => notes.push(printable(name.as_bytes())),
            (RowKind::Total(1), RowSubject::Threads) => notes.push("1 thread".to_owned()),
            (RowKind::Total(1), RowSubject::Cpus) => notes.push("1 CPU".to_owned()),
            (RowKind::Total(number), RowSubject::Threads) => {
                notes.push(format!("{number} threads"))
            }
            (RowKind::Total(number), RowSubject::Cpus) => notes.push(format!("{number} CPUs")),
            _ => {}
        }
        if row.incomplete {
            notes.push("incomplete".to_owned());
        }
        if let Some(stolen_ns) = row.stolen_ns.filter(|stolen_ns| *stolen_ns > Nanos::ZERO) {
            notes.push(format!("stolen {:.2} s", stolen_ns.as_secs_f64()));
        }
        notes
    }
}

/// Returns how long the events were enabled, and the shortest time for which one had a counter.
fn times_ns(values: &[CounterValue]) -> Option<(Nanos, Nanos)> {
    let enabled = values.iter().map(|value| value.enabled_ns).max()?;
    let running = values.iter().map(|value| value.running_ns).min()?;
    Some((enabled, running))
}

fn title(event: &PerfEvent) -> String {
    match (&*event.unit, event.is_time) {
        (_, true) => format!("{}[ns]", event.name),
        ("", _) => event.name.clone(),
        (unit, _) => format!("{}[{unit}]", event.name),
    }
}

/// Returns a plain count as a whole number, a converted one with six decimals.
fn shown(event: &PerfEvent, count: u64) -> String {
    if event.scale == 1.0 {
        count.to_string()
    } else {
        format!("{:.6}", count as f64 * event.scale)
    }
}

fn count_json(event: &PerfEvent, value: CounterValue) -> Json {
    let estimate = value.estimate();
    let number = estimate.number().map(|number| {
        if event.scale == 1.0 {
            json!(number)
        } else {
            json!(number as f64 * event.scale)
        }
    });
    json!({
        "value": number,
        "scaled": matches!(estimate, Estimate::Scaled { .. }),
        "count": value.count,
        "enabled_ns": value.enabled_ns,
        "running_ns": value.running_ns,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::parse_events;
    use host::Root;
    use types::ids::{Pid, Tid};

    fn events(text: &str) -> Result<Vec<PerfEvent>, crate::names::CounterError> {
        parse_events(text, &Root::machine())
    }

    fn value(count: u64, enabled_ms: u64, running_ms: u64) -> CounterValue {
        CounterValue {
            count,
            enabled_ns: Nanos(enabled_ms * 1_000_000),
            running_ns: Nanos(running_ms * 1_000_000),
        }
    }

    fn joules() -> PerfEvent {
        PerfEvent {
            name: "power/energy-pkg/".to_owned(),
            scale: 0.5,
            unit: "Joules".to_owned(),
            is_time: false,
            ..events("page-faults").unwrap().remove(0)
        }
    }

    fn threads() -> Vec<CountRow> {
        let some = |clock, faults| Some(vec![value(clock, 500, 500), value(faults, 500, 500)]);
        let mut lost =
            CountRow::of_thread(Nanos(2_600_000_000), Pid(7), Tid(9), RowKind::LwpExit, None);
        lost.incomplete = true;
        vec![
            CountRow::of_thread(
                Nanos(1_000_000_000),
                Pid(7),
                Tid(7),
                RowKind::Exec("make\n\x1b[2J".to_owned()),
                None,
            ),
            CountRow::of_thread(
                Nanos(1_200_000_000),
                Pid(7),
                Tid(8),
                RowKind::LwpCreate,
                None,
            ),
            CountRow::of_thread(
                Nanos(1_300_000_000),
                Pid(7),
                Tid(7),
                RowKind::Fork(Pid(4242)),
                None,
            ),
            CountRow::of_thread(
                Nanos(2_000_000_001),
                Pid(7),
                Tid(7),
                RowKind::Tick,
                some(500_000_000, 3),
            ),
            CountRow::of_thread(
                Nanos(2_500_000_000),
                Pid(7),
                Tid(8),
                RowKind::LwpExit,
                some(1 << 40, u64::MAX),
            ),
            lost,
            CountRow::of_thread(
                Nanos(2_700_000_000),
                Pid(7),
                Tid(7),
                RowKind::Exit,
                Some(vec![value(8, 400, 100), value(0, 400, 0)]),
            ),
            CountRow::of_cpu(Nanos(2_800_000_000), None, RowKind::Total(3), some(1, 2)),
        ]
    }

    #[test]
    fn threads_as_text() {
        let events = events("task-clock,page-faults").unwrap();
        let mut format = RowFormat {
            subject: RowSubject::Threads,
            events: &events,
            start_ns: Nanos(1_000_000_000),
            times: false,
        };
        let print = |format: &RowFormat<'_>| -> String {
            let rows = threads();
            let rows = rows.iter().map(|row| format.text(row) + "\n");
            format.header() + "\n" + &rows.collect::<String>()
        };
        insta::assert_snapshot!("threads", print(&format));
        format.times = true;
        insta::assert_snapshot!("threads_with_times", print(&format));
        let columns = |line: &str| line.split('#').next().unwrap().split_whitespace().count();
        assert!(print(&format).lines().all(|line| columns(line) == 8));
    }

    #[test]
    fn cpus_as_text() {
        let mut events = events("page-faults").unwrap();
        events.push(joules());
        let format = RowFormat {
            subject: RowSubject::Cpus,
            events: &events,
            start_ns: Nanos::ZERO,
            times: false,
        };
        let values = || Some(vec![value(5, 1000, 1000), value(3, 1000, 1000)]);
        let rows = [
            CountRow {
                stolen_ns: Some(Nanos(120_000_000)),
                ..CountRow::of_cpu(Nanos(1_000_000_000), Some(0), RowKind::Tick, values())
            },
            CountRow::of_cpu(Nanos(1_500_000_000), Some(127), RowKind::Offline, values()),
            CountRow::of_cpu(Nanos(1_600_000_000), Some(127), RowKind::Online, None),
            CountRow::of_cpu(Nanos(2_000_000_000), None, RowKind::Total(128), values()),
        ];
        let rows = rows.iter().map(|row| format.text(row) + "\n");
        insta::assert_snapshot!("cpus", format.header() + "\n" + &rows.collect::<String>());
    }

    #[test]
    fn threads_as_json() {
        let events = events("task-clock,page-faults").unwrap();
        let format = RowFormat {
            subject: RowSubject::Threads,
            events: &events,
            start_ns: Nanos(1_000_000_000),
            times: false,
        };
        let rows = threads();
        let lines = rows.iter().map(|row| format.json(row).to_string() + "\n");
        insta::assert_snapshot!("threads_json", lines.collect::<String>());
    }
}
