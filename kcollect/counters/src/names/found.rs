//! What a name was found to be, and the encodings of what needs no looking up.

use perf_event_open_sys::bindings as sys;

use crate::names::event::{Encoding, Event};
use crate::names::generic::Generic;
use crate::names::sysfs::pmu::Pmu;
use crate::names::{alias, generic};

/// An event, with the PMU whose terms its attributes may be.
pub(crate) struct Found<'a> {
    pub(crate) event: Event,
    pub(crate) pmu: Option<Pmu<'a>>,
}

/// An alias, or an event of the kernel's own.
pub(crate) fn own(name: &str) -> Option<Generic> {
    if let Some((event, title)) = alias::find(name) {
        let event = generic::hardware(event)?;
        return Some(Generic {
            title: title.to_owned(),
            ..event
        });
    }
    generic::hardware(name).or_else(|| generic::software(name))
}

/// Its encoding, for the cores of one PMU where there are several kinds.
pub(crate) fn own_of(event: &Generic, pmu: Option<&Pmu<'_>>) -> Encoding {
    let of = pmu.map_or(0, |pmu| u64::from(pmu.kind) << sys::PERF_PMU_TYPE_SHIFT);
    Encoding {
        config: event.config | of,
        ..everywhere(event.kind)
    }
}

/// `r` and hexadecimal digits.
pub(crate) fn raw(name: &str) -> Option<u64> {
    let digits = name.strip_prefix('r').filter(|digits| {
        !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
    })?;
    u64::from_str_radix(digits, 16).ok()
}

/// An encoding that counts in every mode.
pub(crate) fn everywhere(kind: u32) -> Encoding {
    Encoding {
        kind,
        user: true,
        kernel: true,
        hypervisor: true,
        ..Encoding::default()
    }
}

/// A plain count of no PMU in particular.
pub(crate) fn plain<'a>(title: &str, encoding: Encoding) -> Found<'a> {
    Found {
        event: Event {
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
