//! What the kernel says of its PMUs: `/sys/bus/event_source/devices`.
//!
//! Each directory is a PMU: `type` is its number for `perf_event_open(2)`, `format/` the fields of
//! its events ([`crate::names::sysfs::format`]), `events/` the events that have a name, as terms of those fields,
//! some with a `.scale` and a `.unit`. `cpus` are the cores of a PMU of the CPU where there are
//! several kinds of them; `cpumask` the one CPU of a package on which a PMU of the whole package is
//! opened. (Documentation/ABI/testing/sysfs-bus-event_source-devices-{events,format} of the
//! kernel.)
//!
//! perf-event2's `Dynamic` reads the same files, but of the running machine only, without
//! `config3`, without fields of several ranges (AMD's event number is one), without cpus, scales
//! and units; perf-event-open leaves sysfs to its caller. So this is our own.

use host::Root;

use crate::names::error::CounterError;
use crate::names::grammar::tokens::number;
use crate::names::nearest::nearest;
use crate::names::sysfs::format::{Field, WORDS, Words};

const DEVICES: &str = "/sys/bus/event_source/devices";

/// What `events/` has beside events.
const NO_EVENTS: [&str; 4] = [".scale", ".unit", ".per-pkg", ".snapshot"];

/// One PMU.
#[derive(Clone, Debug)]
pub struct Pmu<'a> {
    root: &'a Root,
    /// The name of its directory.
    pub name: String,
    /// `type`: its number.
    pub kind: u32,
}

/// An event that a PMU has a name for.
#[derive(Clone, Debug, PartialEq)]
pub struct Named {
    /// Its terms: fields with their values, `None` where the user has to give one.
    pub terms: Vec<(String, Option<u64>)>,
    /// By what a count is multiplied.
    pub scale: f64,
    /// The unit of a count that was multiplied. Empty: none.
    pub unit: String,
}

/// All PMUs that have a number, by name.
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

/// The PMUs of the CPUs: none in most virtual machines, two and more where cores are of several
/// kinds.
#[must_use]
pub fn of_cpus(root: &Root) -> Vec<Pmu<'_>> {
    all(root).into_iter().filter(Pmu::is_of_cpus).collect()
}

/// The PMUs that `name` means: that of this name, or those of which the kernel has numbered several
/// (`uncore_imc` means `uncore_imc_0` and its sisters, and so does `imc`).
#[must_use]
pub fn called<'a>(root: &'a Root, name: &str) -> Vec<Pmu<'a>> {
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

    /// It counts what happens in a CPU, and for one thread if need be.
    #[must_use]
    pub fn is_of_cpus(&self) -> bool {
        self.name == "cpu" || self.root.exists(&self.file("cpus"))
    }

    /// It counts for a whole package, on one CPU of it.
    #[must_use]
    pub fn is_of_package(&self) -> bool {
        self.root.exists(&self.file("cpumask"))
    }

    /// The CPUs it says it counts on: `cpus` or `cpumask`. None: all.
    #[must_use]
    pub fn cpus(&self) -> Option<Vec<u32>> {
        let text = ["cpus", "cpumask"]
            .iter()
            .find_map(|name| self.root.text(&self.file(name)))?;
        cpu_list(&text)
    }

    /// `caps/max_precise`: the largest `precise_ip`, 0 to 3. None: it does not say.
    #[must_use]
    pub fn most_precise(&self) -> Option<u8> {
        let most: u8 = self.root.number(&self.file("caps/max_precise"))?;
        Some(most.min(3))
    }

    /// The names of its events, by name.
    #[must_use]
    pub fn events(&self) -> Vec<String> {
        let mut names = self.root.names(&self.file("events"));
        names.retain(|name| !NO_EVENTS.iter().any(|end| name.ends_with(end)));
        names
    }

    /// The names of its fields, by name.
    #[must_use]
    pub fn fields(&self) -> Vec<String> {
        self.root.names(&self.file("format"))
    }

    /// What `events/` says of an event, as it stands there. None: no such event.
    #[must_use]
    pub fn event_text(&self, name: &str) -> Option<String> {
        if !plain(name) || NO_EVENTS.iter().any(|end| name.ends_with(end)) {
            return None;
        }
        self.root.text(&self.file(&format!("events/{name}")))
    }

    /// What `events/` says of an event. None: no such event.
    ///
    /// # Errors
    /// [`CounterError::Unknown`] where its terms are not understood.
    pub fn event(&self, name: &str) -> Result<Option<Named>, CounterError> {
        let Some(text) = self.event_text(name) else {
            return Ok(None);
        };
        let of = |end: &str| self.root.text(&self.file(&format!("events/{name}{end}")));
        let terms = text.split(',').map(|term| {
            let (field, value) = term.split_once('=').unwrap_or((term, "1"));
            let value = match value {
                "?" => None,
                value => Some(number(value)?),
            };
            Some((field.to_owned(), value))
        });
        let terms: Option<Vec<_>> = terms.collect();
        Ok(Some(Named {
            terms: terms.ok_or_else(|| self.unknown(name, &text))?,
            scale: of(".scale")
                .map_or(Some(1.0), |text| text.parse().ok())
                .filter(|scale: &f64| scale.is_finite() && *scale > 0.0)
                .unwrap_or(1.0),
            unit: of(".unit").unwrap_or_default(),
        }))
    }

    /// Writes a field, or one of the words themselves, over what it was before.
    ///
    /// # Errors
    /// No such field, a value that does not fit, or a field that the kernel describes in a way not
    /// known here.
    pub fn set(&self, words: &mut Words, field: &str, value: u64) -> Result<(), CounterError> {
        let text = match plain(field) {
            true => self.root.text(&self.file(&format!("format/{field}"))),
            false => None,
        };
        let Some(text) = text else {
            let word = WORDS.iter().position(|word| *word == field);
            words[word.ok_or_else(|| self.no_term(field))?] = value;
            return Ok(());
        };
        let bits = Field::parse(&text).ok_or_else(|| self.unknown(field, &text))?;
        if value > bits.most() {
            return Err(CounterError::TooLarge {
                pmu: self.name.clone(),
                term: field.to_owned(),
                value,
                most: bits.most(),
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

    /// Neither a field nor an event.
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

/// A name that stays in its directory.
pub(crate) fn plain(name: &str) -> bool {
    !name.is_empty() && !name.starts_with('.') && !name.contains('/')
}

/// The kernel's list of CPUs, `0-3,8`. None: not a list, or more than any machine has.
fn cpu_list(text: &str) -> Option<Vec<u32>> {
    const MOST: u32 = 1 << 16;
    let mut cpus = Vec::new();
    for range in text.split(',').filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        if last >= MOST {
            return None;
        }
        cpus.extend(first..=last);
    }
    Some(cpus)
}
