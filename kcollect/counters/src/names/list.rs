//! The list of counters of this machine that `kcollect -h` prints.

use host::Root;
use host::table::{Align, TextTable, wrap};
use serde::Serialize;

use crate::names::event::Encoding;
use crate::names::generic::{self, GenericEvent};
use crate::names::resolve::is_virtual;
use crate::names::resolved::{generic_encoding, generic_event};
use crate::names::sysfs::tracepoint::Tracepoints;
use crate::names::{alias, cache, sysfs::pmu};

/// All that can be counted on this machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Listing {
    /// The number of hardware events that are counted at the same time. If there are more, the
    /// kernel counts each of them for a part of the time. None: no hardware events, or the number
    /// is not known.
    pub at_once: Option<usize>,
    /// Whether there are hardware counters.
    pub hardware_counters: bool,
    /// Whether it is a virtual machine, which seldom has them.
    pub virtual_machine: bool,
    /// The short names of gprofng.
    pub aliases: Vec<ListedEvent>,
    /// The generic events of the hardware.
    pub hardware: Vec<ListedEvent>,
    /// The events of the kernel.
    pub software: Vec<ListedEvent>,
    /// The events that have a name in sysfs, sorted by PMU.
    pub sysfs: Vec<ListedEvent>,
    /// The tracepoints of the kernel, `group:event`. None: they cannot be read.
    pub tracepoints: Option<Vec<String>>,
}

/// One event of the list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ListedEvent {
    /// The name to type.
    pub name: String,
    /// Other names of the same event.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub other_names: Vec<String>,
    /// A title, or the terms in sysfs with the unit.
    pub description: String,
}

/// Events that count nothing by themselves.
const NOT_COUNTING: [&str; 2] = ["dummy", "bpf-output"];

/// Lists what can be counted. `exists` returns whether the kernel has an event, `at_once` how many
/// counters of an event count at the same time.
#[must_use]
pub fn list_counters(
    root: &Root,
    exists: impl Fn(&Encoding) -> bool,
    at_once: impl Fn(&Encoding) -> Option<usize>,
) -> Listing {
    let cores = pmu::core_pmus(root);
    let core = if cores.len() > 1 { cores.first() } else { None };
    let known = |event: &GenericEvent| {
        if event.is_hardware() {
            !cores.is_empty() && exists(&generic_encoding(event, core))
        } else {
            exists(&generic_encoding(event, None))
        }
    };
    let listed = |names: &[&str]| {
        let (name, others) = names.split_first()?;
        let event = generic_event(name).filter(known)?;
        Some(ListedEvent {
            name: (*name).to_owned(),
            other_names: others.iter().map(|name| (*name).to_owned()).collect(),
            description: event.title,
        })
    };
    let caches: Vec<String> = cache::names().collect();
    let sysfs = pmu::all(root).into_iter().flat_map(|pmu| {
        let events = pmu.events();
        let lines = events.into_iter().filter_map(move |event| {
            Some(ListedEvent {
                name: format!("{}/{event}/", pmu.name),
                other_names: Vec::new(),
                description: match pmu.event(&event) {
                    Ok(Some(named)) if !named.unit.is_empty() => {
                        format!("{} ({})", pmu.event_text(&event)?, named.unit)
                    }
                    _ => pmu.event_text(&event)?,
                },
            })
        });
        lines.collect::<Vec<_>>()
    });
    Listing {
        // Few CPUs have a counter for branches only, so branches use the programmable counters.
        at_once: generic_event("branches").and_then(|event| {
            if cores.is_empty() {
                None
            } else {
                at_once(&generic_encoding(&event, core))
            }
        }),
        hardware_counters: !cores.is_empty(),
        virtual_machine: is_virtual(root),
        aliases: alias::ALIASES
            .iter()
            .filter_map(|(alias, ..)| listed(&[alias]))
            .collect(),
        hardware: generic::HARDWARE
            .iter()
            .map(|row| row.0)
            .filter_map(listed)
            .chain(caches.iter().filter_map(|name| listed(&[name])))
            .collect(),
        software: generic::SOFTWARE
            .iter()
            .map(|row| row.0)
            .filter(|names| !names.iter().any(|name| NOT_COUNTING.contains(name)))
            .filter_map(listed)
            .collect(),
        sysfs: sysfs.collect(),
        tracepoints: Tracepoints::open(root, "").ok().map(|all| all.names()),
    }
}

impl Listing {
    /// Returns the list as text, with lines of at most `width` columns. None: lines of any length,
    /// as for a pipe.
    #[must_use]
    pub fn text(&self, width: Option<u16>) -> String {
        let first = match (self.hardware_counters, self.at_once) {
            (true, Some(count)) => {
                format!(
                    "Hardware counters: {count} events are counted at the same time. Of more, each is counted for a part of the time."
                )
            }
            (true, None) => {
                "Hardware counters: how many events are counted at the same time is not known."
                    .to_owned()
            }
            (false, _) => format!(
                "This {} has no hardware counters. Events of the kernel can be counted.",
                if self.virtual_machine {
                    "virtual machine"
                } else {
                    "machine"
                }
            ),
        };
        let mut text = format!("{}\n", wrapped(&first, width));
        let mut section = |title: &str, lines: &[(String, &str)]| {
            if !lines.is_empty() {
                text.push_str(&format!("\n{title}\n{}\n", table(lines, width)));
            }
        };
        section("Short names:", &rows(&self.aliases));
        section("Events of the CPU:", &rows(&self.hardware));
        section("Events of the kernel:", &rows(&self.software));
        section("Events of PMUs, from sysfs:", &rows(&self.sysfs));
        let tracepoints = match &self.tracepoints {
            Some(all) => format!(
                "one of {} tracepoints; kcollect -h --json lists them",
                all.len()
            ),
            None => "a tracepoint (list and use them as root)".to_owned(),
        };
        let mut others = vec![
            ("GROUP:EVENT".to_owned(), tracepoints.as_str()),
            (
                "mem:0xADDRESS[/LENGTH][:rwx]".to_owned(),
                "a breakpoint: read (r), write (w), execute (x)",
            ),
            (
                "PMU/FIELD=N,.../".to_owned(),
                "an event by its fields: ls /sys/bus/event_source/devices/*/format",
            ),
        ];
        if self.hardware_counters {
            others.push((
                "rHEX".to_owned(),
                "an event by its code in the CPU's manual",
            ));
        }
        section("Events by name or number:", &others);
        section(
            "After a name:",
            &[
                (
                    ":u :k :h".to_owned(),
                    "count in user mode, in the kernel, in a hypervisor only; or ~user=0, ~system=0",
                ),
                (
                    ":p :pp :ppp :P".to_owned(),
                    "with a more precise address of the overflow; P: the most precise",
                ),
                (
                    ",on ,hi ,lo ,N".to_owned(),
                    "record about 100, 1000, 10 times a second, or every Nth event",
                ),
            ],
        );
        text
    }

    /// Returns the list as a JSON object with the fields of [`Listing`].
    #[must_use]
    pub fn json(&self) -> String {
        // Serialising strings and numbers cannot fail.
        serde_json::to_string_pretty(self).unwrap_or_default()
    }
}

fn rows(lines: &[ListedEvent]) -> Vec<(String, &str)> {
    lines
        .iter()
        .map(|line| {
            let names: Vec<&str> = std::iter::once(&line.name)
                .chain(&line.other_names)
                .map(String::as_str)
                .collect();
            (names.join(", "), line.description.as_str())
        })
        .collect()
}

/// Wraps a paragraph at `width` columns.
fn wrapped(text: &str, width: Option<u16>) -> String {
    match columns(width) {
        Some(width) => wrap(text, width).join("\n"),
        None => text.to_owned(),
    }
}

fn table(lines: &[(String, &str)], width: Option<u16>) -> String {
    let mut table = TextTable::new([Align::Left; 2]).indented(1);
    for (name, description) in lines {
        table.row([name.as_str(), description]);
    }
    let mut text = table.text(columns(width));
    text.truncate(text.trim_end().len());
    text
}

/// The columns of a table on a narrower terminal.
const MIN_WIDTH: usize = 40;

fn columns(width: Option<u16>) -> Option<usize> {
    width.map(|width| usize::from(width).max(MIN_WIDTH))
}
