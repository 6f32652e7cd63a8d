//! The rows that `kcollect track` and `kcollect stat` print, as text and as JSON.
//!
//! Words between blanks, as many on every line before the `#`, so that awk and cut can read them;
//! `-` is where there is no number. Behind `#` stands what is said besides: a program's name, a
//! child's number, and which figures were scaled. The words of events are cputrack's and cpustat's.
//!
//! As JSON, each row is an object on a line of its own; figures have there the count itself, both
//! times, and whether the value was scaled.

use std::fmt::Write as _;

use serde_json::{Map, Value as Json, json};

use crate::names::event::Event;
use crate::perf::reading::{Estimate, Value};
use crate::rows::{Row, What};

/// Whose rows they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    /// Threads, by process and thread.
    Threads,
    /// CPUs.
    Cpus,
}

/// How rows are printed.
#[derive(Clone, Debug)]
pub struct Style<'a> {
    /// Whose they are.
    pub of: Of,
    /// The events, whose columns stand in this order.
    pub events: &'a [Event],
    /// When the run began, CLOCK_MONOTONIC nanoseconds. Times are told since.
    pub start_ns: u64,
    /// With columns of how long the events were enabled, and how long the one that had its counter
    /// least had it.
    pub times: bool,
}

impl Style<'_> {
    /// The line above all rows.
    #[must_use]
    pub fn header(&self) -> String {
        let keys = match self.of {
            Of::Threads => format!("{:>12} {:>8} {:>8} {:>10}", "time", "pid", "lwp", "event"),
            Of::Cpus => format!("{:>12} {:>4} {:>10}", "time", "cpu", "event"),
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

    /// A row as text, without the end of the line.
    #[must_use]
    pub fn text(&self, row: &Row) -> String {
        let id = |id: Option<u32>| id.map_or_else(|| "-".to_owned(), |id| id.to_string());
        let mut line = format!("{:12.6} ", self.seconds(row));
        // Writing to a String cannot fail.
        let _ = match self.of {
            Of::Threads => write!(line, "{:>8} {:>8} ", id(row.pid), id(row.lwp)),
            Of::Cpus => write!(line, "{:>4} ", id(row.cpu)),
        };
        let _ = write!(line, "{:>10}", row.what.word());
        let mut notes = self.notes(row);
        if self.times {
            let _ = match row.values.as_deref().and_then(least) {
                Some((enabled, running)) => write!(
                    line,
                    " {:>12.6} {:>12.6}",
                    enabled as f64 / 1e9,
                    running as f64 / 1e9
                ),
                None => write!(line, " {:>12} {:>12}", "-", "-"),
            };
        }
        for (number, event) in self.events.iter().enumerate() {
            let value = row.values.as_ref().and_then(|values| values.get(number));
            let value = value.filter(|value| self.counted(value));
            let estimate = value.map(|value| value.estimate());
            let width = title(event).chars().count().max(12);
            let figure = estimate.and_then(Estimate::number);
            let figure = figure.map_or_else(|| "-".to_owned(), |figure| shown(event, figure));
            let _ = write!(line, " {figure:>width$}");
            match estimate {
                Some(Estimate::Scaled { share, .. }) => {
                    notes.push(format!("{} scaled from {:.2}%", event.name, 100.0 * share));
                }
                Some(Estimate::Never) => notes.push(format!("{} found no counter", event.name)),
                _ => {}
            }
        }
        if !notes.is_empty() {
            let _ = write!(line, " # {}", notes.join(", "));
        }
        line
    }

    /// A row as a JSON object: `time` in seconds as in the text, `monotonic_ns`, the ids, `event`,
    /// and `counts`, for each event `value`, whether it is `scaled`, and the `count` with
    /// `enabled_ns` and `running_ns` it comes from.
    #[must_use]
    pub fn json(&self, row: &Row) -> Json {
        let mut object = Map::new();
        let mut put = |key: &str, value: Json| object.insert(key.to_owned(), value);
        put("time", json!(self.seconds(row)));
        put("monotonic_ns", json!(row.time_ns));
        match self.of {
            Of::Threads => {
                put("pid", json!(row.pid));
                put("lwp", json!(row.lwp));
            }
            Of::Cpus => drop(put("cpu", json!(row.cpu))),
        }
        put("event", json!(row.what.word()));
        match &row.what {
            What::Fork(child) => drop(put("child", json!(child))),
            What::Exec(name) => drop(put("name", json!(name))),
            What::Total(number) => drop(put("of", json!(number))),
            _ => {}
        }
        if row.incomplete {
            put("incomplete", json!(true));
        }
        if let Some(values) = &row.values {
            let pairs = self.events.iter().zip(values);
            let pairs = pairs.filter(|(_, value)| self.counted(value));
            let counts = pairs.map(|(event, value)| (event.name.clone(), figure(event, *value)));
            put("counts", Json::Object(counts.collect()));
        }
        Json::Object(object)
    }

    /// A CPU's counter is enabled all the time. One that never was is of an event that this CPU
    /// does not count, as those of memory controllers, which have one CPU for all.
    fn counted(&self, value: &Value) -> bool {
        self.of == Of::Threads || value.enabled_ns > 0
    }

    fn seconds(&self, row: &Row) -> f64 {
        row.time_ns.saturating_sub(self.start_ns) as f64 / 1e9
    }

    fn notes(&self, row: &Row) -> Vec<String> {
        let mut notes = Vec::new();
        match (&row.what, self.of) {
            (What::Fork(child), _) => notes.push(child.to_string()),
            (What::Exec(name), _) => notes.push(printable(name)),
            (What::Total(1), Of::Threads) => notes.push("1 thread".to_owned()),
            (What::Total(1), Of::Cpus) => notes.push("1 CPU".to_owned()),
            (What::Total(number), Of::Threads) => notes.push(format!("{number} threads")),
            (What::Total(number), Of::Cpus) => notes.push(format!("{number} CPUs")),
            _ => {}
        }
        if row.incomplete {
            notes.push("incomplete".to_owned());
        }
        notes
    }
}

/// For how long they were enabled, and the shortest time that one had a counter.
fn least(values: &[Value]) -> Option<(u64, u64)> {
    let enabled = values.iter().map(|value| value.enabled_ns).max()?;
    let running = values.iter().map(|value| value.running_ns).min()?;
    Some((enabled, running))
}

fn title(event: &Event) -> String {
    match (&*event.unit, event.is_time) {
        (_, true) => format!("{}[ns]", event.name),
        ("", _) => event.name.clone(),
        (unit, _) => format!("{}[{unit}]", event.name),
    }
}

/// A count is a whole number, in anything else it has six decimals.
fn shown(event: &Event, figure: u64) -> String {
    match event.scale == 1.0 {
        true => figure.to_string(),
        false => format!("{:.6}", figure as f64 * event.scale),
    }
}

fn figure(event: &Event, value: Value) -> Json {
    let estimate = value.estimate();
    let number = estimate.number().map(|number| match event.scale == 1.0 {
        true => json!(number),
        false => json!(number as f64 * event.scale),
    });
    json!({
        "value": number,
        "scaled": matches!(estimate, Estimate::Scaled { .. }),
        "count": value.count,
        "enabled_ns": value.enabled_ns,
        "running_ns": value.running_ns,
    })
}

/// A name without what a terminal would obey, or what would end the line: names are anybody's.
fn printable(name: &str) -> String {
    let escape = |character: char| match character.is_control() {
        true => character.escape_default().to_string(),
        false => character.to_string(),
    };
    name.chars().map(escape).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::parse_events;
    use host::Root;

    fn events(text: &str) -> Result<Vec<Event>, crate::names::CounterError> {
        parse_events(text, &Root::machine())
    }

    fn value(count: u64, enabled_ms: u64, running_ms: u64) -> Value {
        Value {
            count,
            enabled_ns: enabled_ms * 1_000_000,
            running_ns: running_ms * 1_000_000,
        }
    }

    fn joules() -> Event {
        Event {
            name: "power/energy-pkg/".to_owned(),
            scale: 0.5,
            unit: "Joules".to_owned(),
            is_time: false,
            ..events("page-faults").unwrap().remove(0)
        }
    }

    fn threads() -> Vec<Row> {
        let some = |clock, faults| Some(vec![value(clock, 500, 500), value(faults, 500, 500)]);
        let mut lost = Row::of(2_600_000_000, 7, 9, What::LwpExit, None);
        lost.incomplete = true;
        vec![
            Row::of(
                1_000_000_000,
                7,
                7,
                What::Exec("make\n\x1b[2J".to_owned()),
                None,
            ),
            Row::of(1_200_000_000, 7, 8, What::LwpCreate, None),
            Row::of(1_300_000_000, 7, 7, What::Fork(4242), None),
            Row::of(2_000_000_001, 7, 7, What::Tick, some(500_000_000, 3)),
            Row::of(2_500_000_000, 7, 8, What::LwpExit, some(1 << 40, u64::MAX)),
            lost,
            Row::of(
                2_700_000_000,
                7,
                7,
                What::Exit,
                Some(vec![value(8, 400, 100), value(0, 400, 0)]),
            ),
            Row::on(2_800_000_000, None, What::Total(3), some(1, 2)),
        ]
    }

    #[test]
    fn threads_as_text() {
        let events = events("task-clock,page-faults").unwrap();
        let mut style = Style {
            of: Of::Threads,
            events: &events,
            start_ns: 1_000_000_000,
            times: false,
        };
        let print = |style: &Style<'_>| -> String {
            let rows = threads();
            let rows = rows.iter().map(|row| style.text(row) + "\n");
            style.header() + "\n" + &rows.collect::<String>()
        };
        insta::assert_snapshot!("threads", print(&style));
        style.times = true;
        insta::assert_snapshot!("threads_with_times", print(&style));
        let words = |line: &str| line.split('#').next().unwrap().split_whitespace().count();
        assert!(print(&style).lines().all(|line| words(line) == 8));
    }

    #[test]
    fn cpus_as_text() {
        let mut events = events("page-faults").unwrap();
        events.push(joules());
        let style = Style {
            of: Of::Cpus,
            events: &events,
            start_ns: 0,
            times: false,
        };
        let values = || Some(vec![value(5, 1000, 1000), value(3, 1000, 1000)]);
        let rows = [
            Row::on(1_000_000_000, Some(0), What::Tick, values()),
            Row::on(1_500_000_000, Some(127), What::Offline, values()),
            Row::on(1_600_000_000, Some(127), What::Online, None),
            Row::on(2_000_000_000, None, What::Total(128), values()),
        ];
        let rows = rows.iter().map(|row| style.text(row) + "\n");
        insta::assert_snapshot!("cpus", style.header() + "\n" + &rows.collect::<String>());
    }

    #[test]
    fn threads_as_json() {
        let events = events("task-clock,page-faults").unwrap();
        let style = Style {
            of: Of::Threads,
            events: &events,
            start_ns: 1_000_000_000,
            times: false,
        };
        let rows = threads();
        let lines = rows.iter().map(|row| style.json(row).to_string() + "\n");
        insta::assert_snapshot!("threads_json", lines.collect::<String>());
    }
}
