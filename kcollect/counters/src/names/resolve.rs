//! From names to events: what a typed counter means on this machine.
//!
//! A name is looked up in this order: an [`alias`](crate::names::alias), a
//! [`generic`](crate::names::generic) event, `rHEX`, `type:config`, a name of a PMU in sysfs,
//! `group:tracepoint`. Names with slashes are terms of a PMU, names with `mem:` breakpoints.
//!
//! A name means several events where several PMUs have it: one for each kind of core, one for each
//! channel of a memory controller. Generic events then have the PMU's number in the upper half of
//! `config`, as Linux requires since 5.13 (6.6 on arm64); on machines with one kind of core they do
//! not.
//!
//! Events are encoded as perf encodes them, with one difference: where a term is given twice, as in
//! `cpu/mem-loads,ldlat=30/` whose event already has `ldlat=3`, the last value counts. perf ORs the
//! two.

use host::Root;
use perf_event_open_sys::bindings as sys;

use crate::names::error::CounterError;
use crate::names::event::{Encoding, PerfEvent};
use crate::names::grammar::CounterSpec;
use crate::names::grammar::tokens::parse_number;
use crate::names::modifiers::{Modifiers, are_perf_modifiers};
use crate::names::nearest::nearest;
use crate::names::resolved::{
    ResolvedEvent, all_modes, generic_encoding, generic_event, plain_event, raw_code,
};
use crate::names::sysfs::pmu::{self, Pmu};
use crate::names::sysfs::tracepoint::Tracepoints;
use crate::names::terms::terms;
use crate::names::{alias, attributes, breakpoint, cache, generic};

/// Returns the events that a counter means; at least one.
///
/// # Errors
/// The part that cannot be parsed, or that this machine does not have.
pub(crate) fn events<'a>(
    counter: &CounterSpec,
    root: &'a Root,
) -> Result<Vec<ResolvedEvent<'a>>, CounterError> {
    let (mut resolved, letters) = split_modifiers(&counter.name, root)?;
    let modifiers = Modifiers::parse(letters).ok_or_else(|| CounterError::Form {
        typed: counter.name.clone(),
        what: "unknown modifiers",
        hint: "type u (user mode), k (kernel), h (hypervisor), p to ppp or P (precise), as in cycles:u",
    })?;
    let several = resolved.len() > 1;
    for ResolvedEvent { event, pmu } in &mut resolved {
        modifiers.apply(&mut event.encoding, max_precise(root));
        for (attribute, value) in &counter.attributes {
            attributes::apply_attribute(&mut event.encoding, pmu.as_ref(), attribute, *value)
                .ok_or_else(|| no_attribute(counter))??;
        }
        if !event.encoding.user && !event.encoding.kernel && !event.encoding.hypervisor {
            return Err(CounterError::Form {
                typed: counter.to_string(),
                what: "it is not counted in any mode",
                hint: "leave out user=0 or system=0",
            });
        }
        let counted = CounterSpec {
            name: match (several, &*pmu) {
                (true, Some(pmu)) => of_pmu(&counter.name, letters, &pmu.name),
                _ => counter.name.clone(),
            },
            attributes: counter.attributes.clone(),
        };
        event.name = counted.to_string();
        event.title.push_str(mode_of(&event.encoding));
    }
    Ok(resolved)
}

fn no_attribute(counter: &CounterSpec) -> CounterError {
    CounterError::Form {
        typed: counter.to_string(),
        what: "no such attribute",
        hint: "type user, system or hv with 0 or 1, or a field of the event's PMU, as in r01c2~edge=1",
    }
}

/// Returns a name as it is typed for one PMU of several.
fn of_pmu(name: &str, letters: &str, pmu: &str) -> String {
    match name.split_once('/') {
        Some((_, rest)) => format!("{pmu}/{rest}"),
        None => {
            let bare = name.strip_suffix(letters).unwrap_or(name);
            format!("{pmu}/{}/{letters}", bare.trim_end_matches(':'))
        }
    }
}

/// Returns the end of a title that names the only mode in which an event is counted.
fn mode_of(encoding: &Encoding) -> &'static str {
    match (encoding.user, encoding.kernel, encoding.hypervisor) {
        (true, false, false) => " (User)",
        (false, true, false) => " (Kernel)",
        (false, false, true) => " (Hypervisor)",
        _ => "",
    }
}

/// Returns the events of a name, and the modifiers at its end.
fn split_modifiers<'t, 'a>(
    name: &'t str,
    root: &'a Root,
) -> Result<(Vec<ResolvedEvent<'a>>, &'t str), CounterError> {
    if let Some(place) = name.strip_prefix(breakpoint::PREFIX) {
        let (encoding, letters) = breakpoint::encoding(place, root)?;
        return Ok((vec![plain_event(name, encoding)], letters));
    }
    if let Some((pmu, rest)) = name.split_once('/') {
        let (inside, letters) = rest.rsplit_once('/').unwrap_or((rest, ""));
        let letters = letters.strip_prefix(':').unwrap_or(letters);
        return Ok((of_terms(name, pmu, inside, root)?, letters));
    }
    if let Some(found) = unqualified(name, root)? {
        return Ok((found, ""));
    }
    let (before, after) = name.rsplit_once(':').unwrap_or((name, ""));
    let letters = are_perf_modifiers(after);
    if letters && let Some(found) = unqualified(before, root)? {
        return Ok((found, after));
    }
    if let Some((group, event)) = name.split_once(':')
        && !(letters && before == group)
    {
        let (event, letters) = event.split_once(':').unwrap_or((event, ""));
        let config = Tracepoints::open(root, name)?.id(group, event)?;
        let encoding = Encoding {
            config,
            ..all_modes(sys::PERF_TYPE_TRACEPOINT)
        };
        return Ok((
            vec![plain_event(&format!("{group}:{event}"), encoding)],
            letters,
        ));
    }
    let wanted = if letters { before } else { name };
    Err(CounterError::NoEvent {
        name: wanted.to_owned(),
        nearest: nearest(event_names(root), wanted),
    })
}

/// Returns every name without a colon that an event can have, for suggestions.
fn event_names(root: &Root) -> Vec<String> {
    let aliases = alias::ALIASES.iter().map(|(alias, ..)| *alias);
    let rows = generic::HARDWARE.iter().chain(&generic::SOFTWARE);
    let generic = aliases.chain(rows.flat_map(|row| row.0.iter().copied()));
    let generic = generic.map(str::to_owned).chain(cache::names());
    generic
        .chain(pmu::all(root).iter().flat_map(Pmu::events))
        .collect()
}

/// Returns the events of a name without modifiers, slashes or group. None: no such event.
fn unqualified<'a>(
    name: &str,
    root: &'a Root,
) -> Result<Option<Vec<ResolvedEvent<'a>>>, CounterError> {
    if let Some(event) = generic_event(name) {
        if event.is_hardware() {
            return for_each_core_pmu(name, root, |pmu, several| {
                generic_encoding(&event, several.then_some(pmu))
            })
            .map(Some);
        }
        let mut found = plain_event(&event.title, generic_encoding(&event, None));
        found.event.is_time = event.is_time();
        return Ok(Some(vec![found]));
    }
    if let Some(config) = raw_code(name) {
        return for_each_core_pmu(name, root, |pmu, several| Encoding {
            config,
            ..all_modes(if several {
                pmu.kind
            } else {
                sys::PERF_TYPE_RAW
            })
        })
        .map(Some);
    }
    if let Some((kind, config)) = name.split_once(':')
        && let (Some(kind), Some(config)) = (parse_number(kind), parse_number(config))
        && let Ok(kind) = u32::try_from(kind)
    {
        let encoding = Encoding {
            config,
            ..all_modes(kind)
        };
        return Ok(Some(vec![plain_event(name, encoding)]));
    }
    let (cores, others): (Vec<_>, Vec<_>) = pmu::all(root)
        .into_iter()
        .filter(|pmu| pmu.event_text(name).is_some())
        .partition(Pmu::is_core);
    let pmus = if cores.is_empty() { others } else { cores };
    let found = pmus.into_iter().map(|pmu| of_one(pmu, name, root));
    let found: Vec<_> = found.collect::<Result<_, _>>()?;
    Ok(Some(found).filter(|found| !found.is_empty()))
}

/// Returns one event for each kind of core. The second argument of `encoding` is whether there are
/// several kinds.
fn for_each_core_pmu<'a>(
    name: &str,
    root: &'a Root,
    encoding: impl Fn(&Pmu<'_>, bool) -> Encoding,
) -> Result<Vec<ResolvedEvent<'a>>, CounterError> {
    let pmus = pmu::core_pmus(root);
    if pmus.is_empty() {
        return Err(no_counters(name, root));
    }
    let several = pmus.len() > 1;
    let title = generic_event(name).map(|event| event.title);
    let found = pmus.into_iter().map(|pmu| ResolvedEvent {
        event: PerfEvent {
            cpus: several.then(|| pmu.cpus()).flatten(),
            title: match (&title, several) {
                (Some(title), true) => format!("{title}, {}", pmu.name),
                (Some(title), false) => title.clone(),
                (None, true) => format!("{}/{name}/", pmu.name),
                (None, false) => name.to_owned(),
            },
            ..plain_event("", encoding(&pmu, several)).event
        },
        pmu: Some(pmu),
    });
    Ok(found.collect())
}

/// Returns the events of `pmu/terms/`.
fn of_terms<'a>(
    name: &str,
    pmu: &str,
    inside: &str,
    root: &'a Root,
) -> Result<Vec<ResolvedEvent<'a>>, CounterError> {
    let pmus = pmu::matching(root, pmu);
    if pmus.is_empty() {
        if pmu == "cpu" && pmu::core_pmus(root).is_empty() {
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

fn of_one<'a>(pmu: Pmu<'a>, inside: &str, root: &Root) -> Result<ResolvedEvent<'a>, CounterError> {
    let event = terms(&pmu, inside, root)?;
    Ok(ResolvedEvent {
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

/// Whether it is known to be a virtual machine. Only x86 has a flag of its CPUs for that.
pub(crate) fn is_virtual(root: &Root) -> bool {
    let info = root.text("/proc/cpuinfo").unwrap_or_default();
    info.split_ascii_whitespace()
        .any(|flag| flag == "hypervisor")
}

/// Returns the highest precision of the CPUs, which perf's `P` selects.
fn max_precise(root: &Root) -> u8 {
    let pmus = pmu::core_pmus(root);
    pmus.iter().filter_map(Pmu::max_precise).min().unwrap_or(0)
}
