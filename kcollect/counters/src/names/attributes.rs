//! gprofng's attributes of a counter: `~user=0`, `~system=0`, and fields of its PMU such as
//! `~umask=2`.

use perf_event_open_sys::bindings as sys;

use crate::names::error::CounterError;
use crate::names::event::Encoding;
use crate::names::sysfs::pmu::Pmu;

/// Applies one attribute: a mode in which the event is counted, or a field of its PMU. Returns None
/// where it is neither.
pub(crate) fn apply_attribute(
    encoding: &mut Encoding,
    pmu: Option<&Pmu<'_>>,
    attribute: &str,
    value: u64,
) -> Option<Result<(), CounterError>> {
    let mode = match attribute {
        "user" => &mut encoding.user,
        "system" | "sys" | "kernel" => &mut encoding.kernel,
        "hv" | "hypervisor" => &mut encoding.hypervisor,
        _ => {
            // Generic events have no fields.
            let pmu = pmu.filter(|pmu| [pmu.kind, sys::PERF_TYPE_RAW].contains(&encoding.kind))?;
            let mut words = encoding.config_words();
            let done = pmu.set_field(&mut words, attribute, value);
            encoding.set_config_words(words);
            return Some(done);
        }
    };
    *mode = value != 0;
    // As with perf's u and k: an event that excludes a mode is not counted in a hypervisor.
    if value == 0 {
        encoding.hypervisor = false;
    }
    Some(Ok(()))
}
