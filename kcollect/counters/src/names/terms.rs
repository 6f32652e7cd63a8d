//! What stands between the slashes of a PMU's event: `event=0x3c,umask=0`, `cpu-cycles`,
//! `mem-loads,ldlat=30`, `r3c`, `config=0x3c,name=mine`.

use host::Root;

use crate::names::error::CounterError;
use crate::names::event::{Encoding, Event};
use crate::names::found::{everywhere, own, own_of, plain, raw};
use crate::names::generic::Generic;
use crate::names::grammar::tokens::number;
use crate::names::sysfs::format::Words;
use crate::names::sysfs::pmu::{self, Pmu};

/// The event of one PMU that the terms say. A term without a value is, in this order: an event of
/// the PMU in sysfs, one of the kernel's own where the PMU is that of the CPUs, a raw number, a
/// field of one bit that is set.
///
/// # Errors
/// A term that the PMU does not know, a value that does not fit, or one that is missing.
pub(crate) fn terms(pmu: &Pmu<'_>, inside: &str, root: &Root) -> Result<Event, CounterError> {
    let mut event = plain(&title(pmu, inside), everywhere(pmu.kind)).event;
    event.cpus = places(pmu, root);
    let mut words: Words = [0; 4];
    // Fields of the event in sysfs that are left to the user.
    let mut missing: Vec<String> = Vec::new();
    for term in inside
        .split(',')
        .map(str::trim)
        .filter(|term| !term.is_empty())
    {
        if let Some((field, value)) = term.split_once('=') {
            if field == "name" && !value.is_empty() {
                value.clone_into(&mut event.title);
                continue;
            }
            let value = number(value).ok_or_else(|| CounterError::Form {
                typed: term.to_owned(),
                what: "not a number",
                cure: "type it in decimal, or in hexadecimal as in event=0x3c",
            })?;
            pmu.set(&mut words, field, value)?;
            missing.retain(|missing| missing != field);
        } else if let Some(named) = pmu.event(term)? {
            for (field, value) in named.terms {
                match value {
                    Some(value) => pmu.set(&mut words, &field, value)?,
                    None => missing.push(field),
                }
            }
            event.scale = named.scale;
            event.unit = named.unit;
        } else if inside == term
            && pmu.is_of_cpus()
            && let Some(generic) = own(term).filter(Generic::is_of_cpus)
        {
            let several = pmu::of_cpus(root).len() > 1;
            event.encoding = own_of(&generic, several.then_some(pmu));
            event.title = match several {
                true => format!("{}, {}", generic.title, pmu.name),
                false => generic.title,
            };
            return Ok(event);
        } else if let Some(config) = raw(term) {
            words[0] = config;
        } else {
            pmu.set(&mut words, term, 1)?;
        }
    }
    if let Some(term) = missing.pop() {
        return Err(CounterError::Missing {
            pmu: pmu.name.clone(),
            term,
        });
    }
    let [config, config1, config2, config3] = words;
    event.encoding = Encoding {
        config,
        config1,
        config2,
        config3,
        ..event.encoding
    };
    Ok(event)
}

/// The CPUs an event of this PMU is opened on. None: any, as where all cores are of one kind.
fn places(pmu: &Pmu<'_>, root: &Root) -> Option<Vec<u32>> {
    match pmu.is_of_cpus() && pmu::of_cpus(root).len() < 2 {
        true => None,
        false => pmu.cpus(),
    }
}

fn title(pmu: &Pmu<'_>, inside: &str) -> String {
    format!("{}/{inside}/", pmu.name)
}
