//! From names to events: what a counter that was typed means on this machine.
//!
//! In this order: an [`alias`](crate::names::alias), one of the kernel's [`generic`](crate::names::generic)
//! events, `rHEX`, `type:config`, a name that a PMU has in sysfs, `group:tracepoint`. Slashes and
//! `mem:` say what they are themselves.
//!
//! A name gives several events where several PMUs know it: one for each kind of core, one for each
//! channel of a memory controller. Events of the kernel's own are then given the PMU's number in
//! the upper half of `config`, as Linux wants it since 5.13 (6.6 on arm64); on machines with one
//! kind of core they are plain.
//!
//! Events are encoded as perf encodes them, with one difference: where a term is given twice, as in
//! `cpu/mem-loads,ldlat=30/` whose event already has `ldlat=3`, the last one stands. perf ORs the
//! two.

use host::Root;
use perf_event_open_sys::bindings as sys;

use crate::names::error::CounterError;
use crate::names::event::{Encoding, Event};
use crate::names::found::{Found, everywhere, own, own_of, plain, raw};
use crate::names::grammar::Counter;
use crate::names::grammar::tokens::number;
use crate::names::modifiers::{Modifiers, look_like};
use crate::names::nearest::nearest;
use crate::names::sysfs::pmu::{self, Pmu};
use crate::names::sysfs::tracepoint::Tracepoints;
use crate::names::terms::terms;
use crate::names::{attributes, breakpoint, list};

/// What a counter means; at least one event.
///
/// # Errors
/// That of the part that is not understood, or that this machine does not have.
pub(crate) fn events<'a>(
    counter: &Counter,
    root: &'a Root,
) -> Result<Vec<Found<'a>>, CounterError> {
    let (mut found, letters) = named(&counter.name, root)?;
    let modifiers = Modifiers::parse(letters).ok_or_else(|| CounterError::Form {
        typed: counter.name.clone(),
        what: "modifiers that are not understood",
        cure: "type u (user mode), k (kernel), h (hypervisor), p to ppp or P (precise), as in cycles:u",
    })?;
    let several = found.len() > 1;
    for Found { event, pmu } in &mut found {
        modifiers.apply(&mut event.encoding, most_precise(root));
        for (attribute, value) in &counter.attributes {
            attributes::set(&mut event.encoding, pmu.as_ref(), attribute, *value)
                .ok_or_else(|| no_attribute(counter))??;
        }
        if !event.encoding.user && !event.encoding.kernel && !event.encoding.hypervisor {
            return Err(CounterError::Form {
                typed: counter.to_string(),
                what: "it is counted nowhere",
                cure: "leave one of user=0 and system=0 out",
            });
        }
        let counted = Counter {
            name: match (several, &*pmu) {
                (true, Some(pmu)) => of_pmu(&counter.name, letters, &pmu.name),
                _ => counter.name.clone(),
            },
            attributes: counter.attributes.clone(),
        };
        event.name = counted.to_string();
        event.title.push_str(place(&event.encoding));
    }
    Ok(found)
}

fn no_attribute(counter: &Counter) -> CounterError {
    CounterError::Form {
        typed: counter.to_string(),
        what: "no such attribute",
        cure: "type user, system or hv with 0 or 1; an event of a PMU has its fields too, as in r01c2~edge=1",
    }
}

/// A name as it is typed for one PMU of several.
fn of_pmu(name: &str, letters: &str, pmu: &str) -> String {
    match name.split_once('/') {
        Some((_, rest)) => format!("{pmu}/{rest}"),
        None => {
            let bare = name.strip_suffix(letters).unwrap_or(name);
            format!("{pmu}/{}/{letters}", bare.trim_end_matches(':'))
        }
    }
}

/// What a title says of where it is counted.
fn place(encoding: &Encoding) -> &'static str {
    match (encoding.user, encoding.kernel, encoding.hypervisor) {
        (true, false, false) => " (User)",
        (false, true, false) => " (Kernel)",
        (false, false, true) => " (Hypervisor)",
        _ => "",
    }
}

/// The events of a name, and the modifiers at its end.
fn named<'t, 'a>(name: &'t str, root: &'a Root) -> Result<(Vec<Found<'a>>, &'t str), CounterError> {
    if let Some(place) = name.strip_prefix(breakpoint::PREFIX) {
        let (encoding, letters) = breakpoint::encoding(place, root)?;
        return Ok((vec![plain(name, encoding)], letters));
    }
    if let Some((pmu, rest)) = name.split_once('/') {
        let (inside, letters) = rest.rsplit_once('/').unwrap_or((rest, ""));
        let letters = letters.strip_prefix(':').unwrap_or(letters);
        return Ok((of_terms(name, pmu, inside, root)?, letters));
    }
    if let Some(found) = bare(name, root)? {
        return Ok((found, ""));
    }
    let (before, after) = name.rsplit_once(':').unwrap_or((name, ""));
    let letters = look_like(after);
    if letters && let Some(found) = bare(before, root)? {
        return Ok((found, after));
    }
    if let Some((group, event)) = name.split_once(':')
        && !(letters && before == group)
    {
        let (event, letters) = event.split_once(':').unwrap_or((event, ""));
        let config = Tracepoints::open(root, name)?.id(group, event)?;
        let encoding = Encoding {
            config,
            ..everywhere(sys::PERF_TYPE_TRACEPOINT)
        };
        return Ok((vec![plain(&format!("{group}:{event}"), encoding)], letters));
    }
    let wanted = if letters { before } else { name };
    Err(CounterError::NoEvent {
        name: wanted.to_owned(),
        nearest: nearest(list::names(root), wanted),
    })
}

/// A name without modifiers, of which nothing tells what it is. None: no event.
fn bare<'a>(name: &str, root: &'a Root) -> Result<Option<Vec<Found<'a>>>, CounterError> {
    if let Some(event) = own(name) {
        if event.is_of_cpus() {
            return of_cpus(name, root, |pmu, several| {
                own_of(&event, several.then_some(pmu))
            })
            .map(Some);
        }
        let mut found = plain(&event.title, own_of(&event, None));
        found.event.is_time = event.is_time();
        return Ok(Some(vec![found]));
    }
    if let Some(config) = raw(name) {
        return of_cpus(name, root, |pmu, several| Encoding {
            config,
            ..everywhere(if several {
                pmu.kind
            } else {
                sys::PERF_TYPE_RAW
            })
        })
        .map(Some);
    }
    if let Some((kind, config)) = name.split_once(':')
        && let (Some(kind), Some(config)) = (number(kind), number(config))
        && let Ok(kind) = u32::try_from(kind)
    {
        let encoding = Encoding {
            config,
            ..everywhere(kind)
        };
        return Ok(Some(vec![plain(name, encoding)]));
    }
    let (cores, others): (Vec<_>, Vec<_>) = pmu::all(root)
        .into_iter()
        .filter(|pmu| pmu.event_text(name).is_some())
        .partition(Pmu::is_of_cpus);
    let pmus = if cores.is_empty() { others } else { cores };
    let found = pmus.into_iter().map(|pmu| of_one(pmu, name, root));
    let found: Vec<_> = found.collect::<Result<_, _>>()?;
    Ok(Some(found).filter(|found| !found.is_empty()))
}

/// One event for each kind of core. `encoding` is told whether there are several.
fn of_cpus<'a>(
    name: &str,
    root: &'a Root,
    encoding: impl Fn(&Pmu<'_>, bool) -> Encoding,
) -> Result<Vec<Found<'a>>, CounterError> {
    let pmus = pmu::of_cpus(root);
    if pmus.is_empty() {
        return Err(no_counters(name, root));
    }
    let several = pmus.len() > 1;
    let title = own(name).map(|event| event.title);
    let found = pmus.into_iter().map(|pmu| Found {
        event: Event {
            cpus: several.then(|| pmu.cpus()).flatten(),
            title: match (&title, several) {
                (Some(title), true) => format!("{title}, {}", pmu.name),
                (Some(title), false) => title.clone(),
                (None, true) => format!("{}/{name}/", pmu.name),
                (None, false) => name.to_owned(),
            },
            ..plain("", encoding(&pmu, several)).event
        },
        pmu: Some(pmu),
    });
    Ok(found.collect())
}

/// `pmu/terms/`.
fn of_terms<'a>(
    name: &str,
    pmu: &str,
    inside: &str,
    root: &'a Root,
) -> Result<Vec<Found<'a>>, CounterError> {
    let pmus = pmu::called(root, pmu);
    if pmus.is_empty() {
        if pmu == "cpu" && pmu::of_cpus(root).is_empty() {
            return Err(no_counters(name, root));
        }
        let names = pmu::all(root).into_iter().map(|pmu| pmu.name);
        return Err(CounterError::NoPmu {
            pmu: pmu.to_owned(),
            nearest: nearest(names, pmu),
        });
    }
    pmus.into_iter()
        .map(|pmu| of_one(pmu, inside, root))
        .collect()
}

fn of_one<'a>(pmu: Pmu<'a>, inside: &str, root: &Root) -> Result<Found<'a>, CounterError> {
    let event = terms(&pmu, inside, root)?;
    Ok(Found {
        event,
        pmu: Some(pmu),
    })
}

fn no_counters(name: &str, root: &Root) -> CounterError {
    CounterError::NoCounters {
        name: name.to_owned(),
        virtual_machine: is_virtual(root),
    }
}

/// Whether it is known to be a virtual machine: x86 alone tells, in the flags of its CPUs.
pub(crate) fn is_virtual(root: &Root) -> bool {
    let info = root.text("/proc/cpuinfo").unwrap_or_default();
    info.split_ascii_whitespace()
        .any(|flag| flag == "hypervisor")
}

/// How precise the CPU says it can be: what perf's `P` asks for.
fn most_precise(root: &Root) -> u8 {
    let pmus = pmu::of_cpus(root);
    pmus.iter().filter_map(Pmu::most_precise).min().unwrap_or(0)
}
