//! The PMUs of the machine: `/sys/bus/event_source/devices`.
//!
//! Each directory is a PMU: `type` is its number for `perf_event_open(2)`, `format/` has the fields
//! of its events ([`crate::names::sysfs::format`]), `events/` the events that have a name, as
//! values of those fields, some with a `.scale` and a `.unit`. A core PMU counts what happens in a
//! CPU; where there are several kinds of cores it has the file `cpus`. An uncore PMU counts for a
//! whole package; its `cpumask` is the one CPU of each package on which it is opened.
//! (Documentation/ABI/testing/sysfs-bus-event_source-devices-{events,format} of the kernel.)
//!
//! The library perf-event2 reads the same files in `Dynamic`, but of the running machine only,
//! without `config3`, without fields of several ranges (AMD's event number is one), and without
//! cpus, scales and units. perf-event-open does not read sysfs.

use host::Root;
use host::machine::parse_cpu_list;

use crate::names::error::CounterError;
use crate::names::grammar::tokens::parse_number;
use crate::names::nearest::nearest;
use crate::names::sysfs::format::{CONFIG_WORDS, ConfigWords, FormatField};

const DEVICES: &str = "/sys/bus/event_source/devices";

/// Endings of files in `events/` that are not events.
const NOT_EVENTS: [&str; 4] = [".scale", ".unit", ".per-pkg", ".snapshot"];

/// A PMU of the machine.
#[derive(Clone, Debug)]
pub struct Pmu<'a> {
    root: &'a Root,
    /// The name of its directory.
    pub name: String,
    /// `type`: its number.
    pub kind: u32,
}

/// An event that sysfs has a name for.
#[derive(Clone, Debug, PartialEq)]
pub struct PmuEvent {
    /// Fields with their values. None: the user has to type a value.
    pub terms: Vec<(String, Option<u64>)>,
    /// The factor that converts a count to `unit`.
    pub scale: f64,
    /// The unit of a converted count. Empty: none.
    pub unit: String,
}

/// Returns all PMUs that have a number, sorted by name.
#[must_use]
pub fn all(root: &Root) -> Vec<Pmu<'_>> {
    root.names(DEVICES)
        .into_iter()
        .filter_map(|name| {
            let kind = root.number(&format!("{DEVICES}/{name}/type"))?;
            Some(Pmu { root, name, kind })
        })
        .collect()
}

/// Returns the core PMUs: none in most virtual machines, one for each kind of core elsewhere.
#[must_use]
pub fn core_pmus(root: &Root) -> Vec<Pmu<'_>> {
    all(root).into_iter().filter(Pmu::is_core).collect()
}

/// Returns the PMUs that `name` means: the one of this name, or all that the kernel has numbered
/// (`uncore_imc` and `imc` both mean `uncore_imc_0`, `uncore_imc_1` and so on).
#[must_use]
pub fn matching<'a>(root: &'a Root, name: &str) -> Vec<Pmu<'a>> {
    let mut all = all(root);
    if let Some(exact) = all.iter().position(|pmu| pmu.name == name) {
        return vec![all.swap_remove(exact)];
    }
    let means = |full: &str| {
        let rest = full.strip_prefix("uncore_").unwrap_or(full);
        [full, rest].iter().any(|full| {
            full.strip_prefix(name).is_some_and(|rest| {
                rest.trim_start_matches('_')
                    .bytes()
                    .all(|byte| byte.is_ascii_digit())
            })
        })
    };
    all.retain(|pmu| !name.is_empty() && means(&pmu.name));
    all
}

impl Pmu<'_> {
    fn file(&self, name: &str) -> String {
        format!("{DEVICES}/{}/{name}", self.name)
    }

    /// Whether it counts what happens in a CPU, and can count for one thread.
    #[must_use]
    pub fn is_core(&self) -> bool {
        self.name == "cpu" || self.root.exists(&self.file("cpus"))
    }

    /// Whether it counts for a whole package, on one CPU of it.
    #[must_use]
    pub fn is_uncore(&self) -> bool {
        self.root.exists(&self.file("cpumask"))
    }

    /// Returns the CPUs on which it counts: `cpus` or `cpumask`. None: all.
    #[must_use]
    pub fn cpus(&self) -> Option<Vec<u32>> {
        let text = ["cpus", "cpumask"]
            .iter()
            .find_map(|name| self.root.text(&self.file(name)))?;
        parse_cpu_list(&text).map(|cpus| cpus.into_iter().collect())
    }

    /// Returns `caps/max_precise`, the largest `precise_ip`, 0 to 3. None: not known.
    #[must_use]
    pub fn max_precise(&self) -> Option<u8> {
        let max: u8 = self.root.number(&self.file("caps/max_precise"))?;
        Some(max.min(3))
    }

    /// Returns the sorted names of its events.
    #[must_use]
    pub fn events(&self) -> Vec<String> {
        let mut names = self.root.names(&self.file("events"));
        names.retain(|name| !NOT_EVENTS.iter().any(|end| name.ends_with(end)));
        names
    }

    /// Returns the sorted names of its fields.
    #[must_use]
    pub fn fields(&self) -> Vec<String> {
        self.root.names(&self.file("format"))
    }

    /// Returns the text of an event in `events/`. None: no such event.
    #[must_use]
    pub fn event_text(&self, name: &str) -> Option<String> {
        if !is_file_name(name) || NOT_EVENTS.iter().any(|end| name.ends_with(end)) {
            return None;
        }
        self.root.text(&self.file(&format!("events/{name}")))
    }

    /// Parses an event in `events/`. None: no such event.
    ///
    /// # Errors
    /// [`CounterError::Unknown`] where its terms cannot be parsed.
    pub fn event(&self, name: &str) -> Result<Option<PmuEvent>, CounterError> {
        let Some(text) = self.event_text(name) else {
            return Ok(None);
        };
        let of = |end: &str| self.root.text(&self.file(&format!("events/{name}{end}")));
        let terms = text.split(',').map(|term| {
            let (field, value) = term.split_once('=').unwrap_or((term, "1"));
            let value = match value {
                "?" => None,
                value => Some(parse_number(value)?),
            };
            Some((field.to_owned(), value))
        });
        let terms: Option<Vec<_>> = terms.collect();
        Ok(Some(PmuEvent {
            terms: terms.ok_or_else(|| self.unknown(name, &text))?,
            scale: of(".scale")
                .map_or(Some(1.0), |text| text.parse().ok())
                .filter(|scale: &f64| scale.is_finite() && *scale > 0.0)
                .unwrap_or(1.0),
            unit: of(".unit").unwrap_or_default(),
        }))
    }

    /// Sets a field of `words`, or one of the words itself.
    ///
    /// # Errors
    /// No such field, a value that does not fit, or a field whose description cannot be parsed.
    pub fn set_field(
        &self,
        words: &mut ConfigWords,
        field: &str,
        value: u64,
    ) -> Result<(), CounterError> {
        let text = if is_file_name(field) {
            self.root.text(&self.file(&format!("format/{field}")))
        } else {
            None
        };
        let Some(text) = text else {
            let word = CONFIG_WORDS.iter().position(|word| *word == field);
            words[word.ok_or_else(|| self.no_term(field))?] = value;
            return Ok(());
        };
        let bits = FormatField::parse(&text).ok_or_else(|| self.unknown(field, &text))?;
        if value > bits.max_value() {
            return Err(CounterError::TooLarge {
                pmu: self.name.clone(),
                term: field.to_owned(),
                value,
                max: bits.max_value(),
            });
        }
        bits.set(words, value);
        Ok(())
    }

    fn unknown(&self, term: &str, text: &str) -> CounterError {
        CounterError::Unknown {
            pmu: self.name.clone(),
            term: term.to_owned(),
            text: text.to_owned(),
        }
    }

    /// Returns the error of a name that is neither a field nor an event.
    #[must_use]
    pub fn no_term(&self, term: &str) -> CounterError {
        let known = self.events().into_iter().chain(self.fields());
        CounterError::NoTerm {
            pmu: self.name.clone(),
            term: term.to_owned(),
            nearest: nearest(known, term),
        }
    }
}

/// Whether a name cannot lead out of its directory.
pub(crate) fn is_file_name(name: &str) -> bool {
    !name.is_empty() && !name.starts_with('.') && !name.contains('/')
}
