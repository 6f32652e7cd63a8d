//! `kcollect -h`: what this machine can count.

use comfy_table::{ContentArrangement, Table};
use host::Root;
use serde::Serialize;

use crate::names::event::Encoding;
use crate::names::found::{own, own_of};
use crate::names::generic::{self, Generic};
use crate::names::resolve::is_virtual;
use crate::names::sysfs::tracepoint::Tracepoints;
use crate::names::{alias, cache, sysfs::pmu};

/// All of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Listing {
    /// How many counters of the hardware count at once; beyond, they take turns. None: there are
    /// none, or it is not known.
    pub at_once: Option<usize>,
    /// There are counters of the hardware.
    pub hardware_counters: bool,
    /// It is a virtual machine, which seldom has them.
    pub virtual_machine: bool,
    /// gprofng's short names.
    pub aliases: Vec<Line>,
    /// Events of the hardware that the kernel knows on any machine.
    pub hardware: Vec<Line>,
    /// Events of the kernel.
    pub software: Vec<Line>,
    /// Events of PMUs that have a name in sysfs, by PMU.
    pub sysfs: Vec<Line>,
    /// The kernel's tracepoints, `group:event`. None: they cannot be read.
    pub tracepoints: Option<Vec<String>>,
}

/// One event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Line {
    /// What can be typed.
    pub name: String,
    /// Other names of the same.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub also: Vec<String>,
    /// What it is: a title, or the terms of sysfs and the unit.
    pub what: String,
}

/// Names that are events, but count nothing by themselves.
const IDLE: [&str; 2] = ["dummy", "bpf-output"];

/// Looks. `exists` tells whether the kernel knows an event, `at_once` how many of one are counted
/// at once.
#[must_use]
pub fn look(
    root: &Root,
    exists: impl Fn(&Encoding) -> bool,
    at_once: impl Fn(&Encoding) -> Option<usize>,
) -> Listing {
    let cores = pmu::of_cpus(root);
    let core = if cores.len() > 1 { cores.first() } else { None };
    let known = |event: &Generic| match event.is_of_cpus() {
        true => !cores.is_empty() && exists(&own_of(event, core)),
        false => exists(&own_of(event, None)),
    };
    let line = |names: &[&str]| {
        let (name, also) = names.split_first()?;
        let event = own(name).filter(known)?;
        Some(Line {
            name: (*name).to_owned(),
            also: also.iter().map(|name| (*name).to_owned()).collect(),
            what: event.title,
        })
    };
    let caches: Vec<String> = cache::names().collect();
    let sysfs = pmu::all(root).into_iter().flat_map(|pmu| {
        let events = pmu.events();
        let lines = events.into_iter().filter_map(move |event| {
            Some(Line {
                name: format!("{}/{event}/", pmu.name),
                also: Vec::new(),
                what: match pmu.event(&event) {
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
        // Few CPUs have a counter for branches alone, so that these take any of the programmable
        // ones.
        at_once: own("branches").and_then(|event| match cores.is_empty() {
            true => None,
            false => at_once(&own_of(&event, core)),
        }),
        hardware_counters: !cores.is_empty(),
        virtual_machine: is_virtual(root),
        aliases: alias::ALIASES
            .iter()
            .filter_map(|(alias, ..)| line(&[alias]))
            .collect(),
        hardware: generic::HARDWARE
            .iter()
            .map(|row| row.0)
            .filter_map(line)
            .chain(caches.iter().filter_map(|name| line(&[name])))
            .collect(),
        software: generic::SOFTWARE
            .iter()
            .map(|row| row.0)
            .filter(|names| !names.iter().any(|name| IDLE.contains(name)))
            .filter_map(line)
            .collect(),
        sysfs: sysfs.collect(),
        tracepoints: Tracepoints::open(root, "").ok().map(|all| all.names()),
    }
}

/// Every name that an event can have without a colon, for those who mistyped one.
pub(crate) fn names(root: &Root) -> Vec<String> {
    let aliases = alias::ALIASES.iter().map(|(alias, ..)| *alias);
    let rows = generic::HARDWARE.iter().chain(&generic::SOFTWARE);
    let own = aliases.chain(rows.flat_map(|row| row.0.iter().copied()));
    let own = own.map(str::to_owned).chain(cache::names());
    own.chain(pmu::all(root).iter().flat_map(pmu::Pmu::events))
        .collect()
}

impl Listing {
    /// For people; lines no wider than `width` columns. None: as long as they need be, which is
    /// right for a pipe.
    #[must_use]
    pub fn text(&self, width: Option<u16>) -> String {
        let first = match (self.hardware_counters, self.at_once) {
            (true, Some(count)) => {
                format!("Hardware counters: {count} at once; more of them take turns.")
            }
            (true, None) => "Hardware counters: how many at once is not known.".to_owned(),
            (false, _) => format!(
                "This {} has no hardware counters. Events of the kernel are counted all the same.",
                if self.virtual_machine {
                    "virtual machine"
                } else {
                    "machine"
                }
            ),
        };
        let mut text = format!("{}\n", sentence(&first, width));
        let mut part = |title: &str, lines: &[(String, &str)]| {
            if !lines.is_empty() {
                text.push_str(&format!("\n{title}\n{}\n", table(lines, width)));
            }
        };
        part("Short names:", &rows(&self.aliases));
        part("Events of the CPU:", &rows(&self.hardware));
        part("Events of the kernel:", &rows(&self.software));
        part("Events of PMUs, from sysfs:", &rows(&self.sysfs));
        let tracepoints = match &self.tracepoints {
            Some(all) => format!("one of {} tracepoints; --json names them", all.len()),
            None => "a tracepoint (as root)".to_owned(),
        };
        let mut others = vec![
            ("GROUP:EVENT".to_owned(), tracepoints.as_str()),
            (
                "mem:0xADDRESS[/LENGTH][:rwx]".to_owned(),
                "a breakpoint: reads, writes, execution",
            ),
            (
                "PMU/FIELD=N,.../".to_owned(),
                "a code by its fields: ls /sys/bus/event_source/devices/*/format",
            ),
        ];
        if self.hardware_counters {
            others.push(("rHEX".to_owned(), "a code as the CPU's manual has it"));
        }
        part("By place or number:", &others);
        part(
            "After a name:",
            &[
                (
                    ":u :k :h".to_owned(),
                    "in user mode, the kernel, a hypervisor alone; so do ~user=0 and ~system=0",
                ),
                (
                    ":p :pp :ppp :P".to_owned(),
                    "with a more precise place, with the most precise",
                ),
                (
                    ",on ,hi ,lo ,N".to_owned(),
                    "recorded about 100 times a second, 1000, 10; at every Nth",
                ),
            ],
        );
        text
    }

    /// For machines: one object with the fields of [`Listing`].
    #[must_use]
    pub fn json(&self) -> String {
        // Of strings and numbers alone, it cannot fail.
        serde_json::to_string_pretty(self).unwrap_or_default()
    }
}

fn rows(lines: &[Line]) -> Vec<(String, &str)> {
    lines
        .iter()
        .map(|line| {
            let names: Vec<&str> = std::iter::once(&line.name)
                .chain(&line.also)
                .map(String::as_str)
                .collect();
            (names.join(", "), line.what.as_str())
        })
        .collect()
}

/// One sentence, on as many lines as it needs.
fn sentence(text: &str, width: Option<u16>) -> String {
    let mut table = plain(width);
    table.add_row([text]);
    let lines: Vec<String> = table.lines().map(|line| line.trim().to_owned()).collect();
    lines.join("\n")
}

fn table(lines: &[(String, &str)], width: Option<u16>) -> String {
    let mut table = plain(width);
    for (name, what) in lines {
        table.add_row([name.as_str(), what]);
    }
    let rows: Vec<String> = table
        .lines()
        .map(|line| line.trim_end().to_owned())
        .collect();
    rows.join("\n")
}

fn plain(width: Option<u16>) -> Table {
    let mut table = Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    match width {
        Some(width) => table
            .set_content_arrangement(ContentArrangement::Dynamic)
            .set_width(width.max(40)),
        None => table.set_content_arrangement(ContentArrangement::Disabled),
    };
    table
}
