//! The terms between the slashes of a PMU's event: `event=0x3c,umask=0`, `cpu-cycles`,
//! `mem-loads,ldlat=30`, `r3c`, `config=0x3c,name=mine`.

use host::Root;

use crate::names::error::CounterError;
use crate::names::event::PerfEvent;
use crate::names::generic::GenericEvent;
use crate::names::grammar::tokens::parse_number;
use crate::names::resolved::{all_modes, generic_encoding, generic_event, plain_event, raw_code};
use crate::names::sysfs::format::ConfigWords;
use crate::names::sysfs::pmu::{self, Pmu};

/// Returns the event of one PMU that the terms describe. A term without a value is, in this order:
/// an event of the PMU in sysfs, a generic event where the PMU is a core PMU, a raw code, or a
/// field of one bit that is set.
///
/// # Errors
/// A term that the PMU does not have, a value that does not fit, or a missing value.
pub(crate) fn terms(pmu: &Pmu<'_>, inside: &str, root: &Root) -> Result<PerfEvent, CounterError> {
    let mut event = plain_event(&title(pmu, inside), all_modes(pmu.kind)).event;
    event.cpus = cpus_of(pmu, root);
    let mut words: ConfigWords = [0; 4];
    // Fields that sysfs leaves to the user.
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
            let value = parse_number(value).ok_or_else(|| CounterError::Form {
                typed: term.to_owned(),
                what: "not a number",
                hint: "type it in decimal, or in hexadecimal as in event=0x3c",
            })?;
            pmu.set_field(&mut words, field, value)?;
            missing.retain(|missing| missing != field);
        } else if let Some(named) = pmu.event(term)? {
            for (field, value) in named.terms {
                match value {
                    Some(value) => pmu.set_field(&mut words, &field, value)?,
                    None => missing.push(field),
                }
            }
            event.scale = named.scale;
            event.unit = named.unit;
        } else if inside == term
            && pmu.is_core()
            && let Some(generic) = generic_event(term).filter(GenericEvent::is_hardware)
        {
            let several = pmu::core_pmus(root).len() > 1;
            event.encoding = generic_encoding(&generic, several.then_some(pmu));
            event.title = if several {
                format!("{}, {}", generic.title, pmu.name)
            } else {
                generic.title
            };
            return Ok(event);
        } else if let Some(config) = raw_code(term) {
            words[0] = config;
        } else {
            pmu.set_field(&mut words, term, 1)?;
        }
    }
    if let Some(term) = missing.pop() {
        return Err(CounterError::Missing {
            pmu: pmu.name.clone(),
            term,
        });
    }
    event.encoding.set_config_words(words);
    Ok(event)
}

/// Returns the CPUs on which an event of this PMU is opened. None: any.
fn cpus_of(pmu: &Pmu<'_>, root: &Root) -> Option<Vec<u32>> {
    if pmu.is_core() && pmu::core_pmus(root).len() < 2 {
        None
    } else {
        pmu.cpus()
    }
}

fn title(pmu: &Pmu<'_>, inside: &str) -> String {
    format!("{}/{inside}/", pmu.name)
}
