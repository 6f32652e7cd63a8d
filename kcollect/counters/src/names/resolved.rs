//! The events that names were resolved to, and the encodings that need no look-up in sysfs.

use perf_event_open_sys::bindings as sys;

use crate::names::event::{Encoding, PerfEvent};
use crate::names::generic::GenericEvent;
use crate::names::sysfs::pmu::Pmu;
use crate::names::{alias, cache, generic};

/// An event, with the PMU whose fields its attributes may set.
pub(crate) struct ResolvedEvent<'a> {
    pub(crate) event: PerfEvent,
    pub(crate) pmu: Option<Pmu<'a>>,
}

/// Returns the generic event of this name or alias.
pub(crate) fn generic_event(name: &str) -> Option<GenericEvent> {
    if let Some((event, title)) = alias::find(name) {
        let event = hardware(event)?;
        return Some(GenericEvent {
            title: title.to_owned(),
            ..event
        });
    }
    hardware(name).or_else(|| generic::software(name))
}

/// Returns the event of the CPU or of its caches that has this name.
fn hardware(name: &str) -> Option<GenericEvent> {
    generic::hardware(name).or_else(|| cache::find(name))
}

/// Returns the encoding of a generic event. `pmu` is the PMU of its kind of core on machines with
/// several kinds.
pub(crate) fn generic_encoding(event: &GenericEvent, pmu: Option<&Pmu<'_>>) -> Encoding {
    let extended = pmu.map_or(0, |pmu| u64::from(pmu.kind) << sys::PERF_PMU_TYPE_SHIFT);
    Encoding {
        config: event.config | extended,
        ..all_modes(event.kind)
    }
}

/// Returns the code in `r` and hexadecimal digits.
pub(crate) fn raw_code(name: &str) -> Option<u64> {
    let digits = name.strip_prefix('r').filter(|digits| {
        !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
    })?;
    u64::from_str_radix(digits, 16).ok()
}

/// Returns an encoding of this type that is counted in every mode.
pub(crate) fn all_modes(kind: u32) -> Encoding {
    Encoding {
        kind,
        user: true,
        kernel: true,
        hypervisor: true,
        ..Encoding::default()
    }
}

/// Returns an event without PMU, unit or scale.
pub(crate) fn plain_event<'a>(title: &str, encoding: Encoding) -> ResolvedEvent<'a> {
    ResolvedEvent {
        event: PerfEvent {
            name: title.to_owned(),
            title: title.to_owned(),
            encoding,
            cpus: None,
            scale: 1.0,
            unit: String::new(),
            is_time: false,
        },
        pmu: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_alias_is_a_generic_event() {
        for (alias, event, _) in alias::ALIASES {
            assert!(hardware(event).is_some(), "{alias}");
            assert!(
                alias == event || hardware(alias).is_none(),
                "{alias} is taken"
            );
            assert!(generic::software(alias).is_none(), "{alias} is taken");
        }
    }

    #[test]
    fn branch_misses_are_not_a_cache_event() {
        assert_eq!(
            hardware("branch-misses").unwrap().kind,
            sys::PERF_TYPE_HARDWARE
        );
        assert_eq!(hardware("branches").unwrap().config, 4);
    }
}
