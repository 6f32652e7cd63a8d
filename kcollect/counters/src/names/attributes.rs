//! gprofng's attributes of a counter: `~user=0`, `~system=0`, and terms of its PMU such as
//! `~umask=2`.

use perf_event_open_sys::bindings as sys;

use crate::names::error::CounterError;
use crate::names::event::Encoding;
use crate::names::sysfs::pmu::Pmu;

/// Sets one: where it is counted, or a term of its PMU. None: neither.
pub(crate) fn set(
    encoding: &mut Encoding,
    pmu: Option<&Pmu<'_>>,
    attribute: &str,
    value: u64,
) -> Option<Result<(), CounterError>> {
    let place = match attribute {
        "user" => &mut encoding.user,
        "system" | "sys" | "kernel" => &mut encoding.kernel,
        "hv" | "hypervisor" => &mut encoding.hypervisor,
        _ => {
            // The kernel's own events have no terms.
            let pmu = pmu.filter(|pmu| [pmu.kind, sys::PERF_TYPE_RAW].contains(&encoding.kind))?;
            let mut words = words(encoding);
            let done = pmu.set(&mut words, attribute, value);
            write(encoding, words);
            return Some(done);
        }
    };
    *place = value != 0;
    // As perf's u and k: what is for one mode alone is not for a hypervisor.
    if value == 0 {
        encoding.hypervisor = false;
    }
    Some(Ok(()))
}

fn words(encoding: &Encoding) -> [u64; 4] {
    [
        encoding.config,
        encoding.config1,
        encoding.config2,
        encoding.config3,
    ]
}

fn write(encoding: &mut Encoding, words: [u64; 4]) {
    [
        encoding.config,
        encoding.config1,
        encoding.config2,
        encoding.config3,
    ] = words;
}
