//! Metrics by gprofng's keywords: which states or counters are summed, exclusive or inclusive,
//! shown as time or as a share.
//!
//! A list is typed as for gprofng's command `metrics`: `e.user:i.%total:name`. Each part has a
//! flavour (`e` exclusive, `i` inclusive, `ei` both), marks (`.` or `+` as time, `%` as a share of
//! the whole, `!` hidden) and a keyword. Without flavour and mark it stands for both flavours as
//! time. Clock ticks have no counts of their own, so `+` is the same as `.`.

use experiment_format::log::{CounterUnit, ProfileDecl};
use experiment_format::microstate::Microstate;

use crate::model::{Model, STATE_SLOTS, Sums};

/// A metric without a flavour: what is summed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BaseMetric {
    /// Total Thread Time: all states but ticks of CPUs and of Linux CPU timers.
    Total,
    /// Total CPU Time: on a CPU.
    TotalCpu,
    /// One state.
    State(Microstate),
    /// The events of a counter.
    Counter(CounterMetric),
    /// One counter divided by another.
    Ratio(RatioMetric),
}

/// A counter as a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CounterMetric {
    /// Position in [`Model::counters`].
    pub slot: u8,
    /// The keyword, allocated for the life of the program.
    pub keyword: &'static str,
    /// The title of its column.
    pub title: &'static str,
    /// The unit of its values.
    pub unit: CounterUnit,
}

/// A ratio of two counters, given by their positions in [`Model::counters`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RatioMetric {
    /// The dividend.
    pub over: u8,
    /// The divisor.
    pub under: u8,
    /// The keyword, which is its title too.
    pub keyword: &'static str,
}

/// gprofng's ratios: keyword, dividend, divisor.
const RATIOS: [(&str, &str, &str); 4] = [
    ("IPC", "insts", "cycles"),
    ("CPI", "cycles", "insts"),
    ("K_IPC", "K_insts", "K_cycles"),
    ("K_CPI", "K_cycles", "K_insts"),
];

/// er_kernel's names of two metrics.
const ALIASES: [(&str, BaseMetric); 2] = [
    ("kcycles", BaseMetric::State(Microstate::KernelCpu)),
    ("kucycles", BaseMetric::TotalCpu),
];

impl BaseMetric {
    /// All metrics of states, in the order in which tables show them.
    pub const ALL: [BaseMetric; 13] = [
        BaseMetric::Total,
        BaseMetric::TotalCpu,
        BaseMetric::State(Microstate::User),
        BaseMetric::State(Microstate::System),
        BaseMetric::State(Microstate::Trap),
        BaseMetric::State(Microstate::DataFault),
        BaseMetric::State(Microstate::TextFault),
        BaseMetric::State(Microstate::KernelFault),
        BaseMetric::State(Microstate::UserLock),
        BaseMetric::State(Microstate::Sleep),
        BaseMetric::State(Microstate::WaitCpu),
        BaseMetric::State(Microstate::Stopped),
        BaseMetric::State(Microstate::KernelCpu),
    ];

    /// Returns gprofng's keyword.
    #[must_use]
    pub const fn keyword(self) -> &'static str {
        match self {
            BaseMetric::Total => "total",
            BaseMetric::TotalCpu => "totalcpu",
            BaseMetric::State(state) => match state.metric() {
                Some(keyword) => keyword,
                None => "",
            },
            BaseMetric::Counter(counter) => counter.keyword,
            BaseMetric::Ratio(ratio) => ratio.keyword,
        }
    }

    /// Returns the metric of a keyword.
    #[must_use]
    pub fn from_keyword(keyword: &str) -> Option<BaseMetric> {
        let alias = ALIASES.iter().find(|(name, _)| *name == keyword);
        let own = || {
            BaseMetric::ALL
                .into_iter()
                .find(|base| base.keyword() == keyword)
        };
        alias.map(|(_, base)| *base).or_else(own)
    }

    /// Returns its name in the title of a column.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            BaseMetric::Total => "Total",
            BaseMetric::TotalCpu => "Total CPU",
            BaseMetric::State(state) => state.label(),
            BaseMetric::Counter(counter) => counter.title,
            BaseMetric::Ratio(ratio) => ratio.keyword,
        }
    }

    /// Returns whether it is a time.
    #[must_use]
    pub const fn is_time(self) -> bool {
        match self {
            BaseMetric::Counter(counter) => matches!(counter.unit, CounterUnit::Nanoseconds),
            BaseMetric::Ratio(_) => false,
            _ => true,
        }
    }

    /// Returns its unit in the title of a column.
    #[must_use]
    pub const fn unit(self) -> &'static str {
        match self {
            BaseMetric::Ratio(_) => "",
            _ if self.is_time() => "sec.",
            _ => "#",
        }
    }

    /// Returns whether the state at a position of [`Sums`] belongs to it.
    #[must_use]
    pub fn has(self, slot: usize) -> bool {
        let state = Microstate::ALL.get(slot).copied();
        match self {
            BaseMetric::Total => state.is_none_or(Microstate::in_total),
            BaseMetric::TotalCpu => state.is_some_and(Microstate::in_total_cpu),
            BaseMetric::State(own) => state == Some(own),
            BaseMetric::Counter(_) | BaseMetric::Ratio(_) => false,
        }
    }

    /// Returns its value in sums of times, in microseconds. Counters have none.
    #[must_use]
    pub fn of(self, times: &Sums) -> i64 {
        let parts = (0..STATE_SLOTS).filter(|slot| self.has(*slot));
        parts.map(|slot| times[slot]).sum()
    }

    /// Returns its value in sums of times or of counters: microseconds, events, nanoseconds for
    /// counters of time, and millionths for ratios.
    #[must_use]
    pub fn measure(self, times: &Sums, counts: &Sums) -> i64 {
        match self {
            BaseMetric::Counter(counter) => counts[usize::from(counter.slot)],
            BaseMetric::Ratio(RatioMetric { over, under, .. }) => {
                let [over, under] = [over, under].map(|slot| counts[usize::from(slot)]);
                match under {
                    0 => 0,
                    under => (over as f64 / under as f64 * 1e6) as i64,
                }
            }
            _ => self.of(times),
        }
    }
}

/// The part of an entity's time that is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Flavor {
    /// Its own.
    Exclusive,
    /// Its own and its callees' time; each stack counts once, however often the entity is in it.
    Inclusive,
    /// The part of another entity's inclusive time that is attributed to it.
    Attributed,
}

/// A column or two of a table: a metric with its flavour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Metric {
    /// What is summed.
    pub base: BaseMetric,
    /// The flavour.
    pub flavor: Flavor,
    /// Whether it is shown as time.
    pub time: bool,
    /// Whether it is shown as a share of the whole.
    pub percent: bool,
}

/// The metrics of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Metrics {
    /// The metrics, in order, each base and flavour once.
    pub list: Vec<Metric>,
    /// The number of metrics left of the name.
    pub name_at: usize,
}

/// Why a list of metrics is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MetricError {
    /// An unknown keyword.
    #[error("{0} is no metric")]
    Unknown(String),
    /// A metric without data in these experiments.
    #[error("no data recorded to support {0}")]
    NoData(String),
    /// A metric that appears twice.
    #[error("{0} appears twice")]
    Twice(String),
    /// All metrics are hidden.
    #[error("no metric is left to be shown")]
    None,
}

/// Returns the metrics with data in any of the experiments, as gprofng offers them.
#[must_use]
pub fn offered(model: &Model) -> Vec<BaseMetric> {
    let headers = model.experiments.iter().map(|info| info.source.header());
    let keywords: Vec<_> = headers
        .flat_map(|header| &header.profiles)
        .filter_map(|profile| match profile {
            ProfileDecl::Clock { states, .. } => Some(states.metrics()),
            _ => None,
        })
        .flatten()
        .collect();
    let mut offered = BaseMetric::ALL.to_vec();
    offered.retain(|base| keywords.contains(&&base.keyword()));
    let word = |text: &str| -> &'static str { String::leak(text.to_owned()) };
    let counters = (0..).zip(&model.counters);
    offered.extend(counters.map(|(slot, counter)| {
        BaseMetric::Counter(CounterMetric {
            slot,
            keyword: word(&counter.name),
            title: word(&counter.title),
            unit: counter.unit,
        })
    }));
    let position = |name| {
        let mut counters = model.counters.iter();
        counters.position(|counter| counter.name == name)
    };
    offered.extend(RATIOS.iter().filter_map(|(keyword, over, under)| {
        Some(BaseMetric::Ratio(RatioMetric {
            over: position(*over)? as u8,
            under: position(*under)? as u8,
            keyword,
        }))
    }));
    offered
}

impl Metrics {
    /// Parses a list of metrics, which must be in `offered`.
    ///
    /// # Errors
    /// When a part is not a possible metric.
    pub fn parse(text: &str, offered: &[BaseMetric]) -> Result<Metrics, MetricError> {
        let mut metrics = Metrics {
            list: Vec::new(),
            name_at: usize::MAX,
        };
        for part in text.split(':').filter(|part| !part.is_empty()) {
            let (flavors, (time, percent), keyword) = split(part);
            if keyword == "name" {
                metrics.name_at = metrics.list.len();
                continue;
            }
            let any = matches!(keyword, "any" | "all");
            let bases: Vec<_> = if any {
                offered.to_vec()
            } else {
                let own = offered.iter().find(|base| base.keyword() == keyword);
                let base = own.copied().or_else(|| BaseMetric::from_keyword(keyword));
                vec![base.ok_or_else(|| MetricError::Unknown(part.to_owned()))?]
            };
            for base in bases {
                if !offered.contains(&base) {
                    return Err(MetricError::NoData(part.to_owned()));
                }
                for flavor in &flavors {
                    if metrics.position(base, *flavor).is_some() {
                        return Err(MetricError::Twice(part.to_owned()));
                    }
                    metrics.list.push(Metric {
                        base,
                        flavor: *flavor,
                        time,
                        percent,
                    });
                }
            }
        }
        let shown = |metric: &Metric| metric.time || metric.percent;
        let ahead = metrics.list.iter().take(metrics.name_at);
        metrics.name_at = ahead.filter(|metric| shown(metric)).count();
        metrics.list.retain(shown);
        if metrics.list.is_empty() {
            return Err(MetricError::None);
        }
        Ok(metrics)
    }

    /// Returns the position of a metric.
    fn position(&self, base: BaseMetric, flavor: Flavor) -> Option<usize> {
        let mut list = self.list.iter();
        list.position(|metric| (metric.base, metric.flavor) == (base, flavor))
    }

    /// Returns the default metrics of functions.
    #[must_use]
    pub fn of_functions(offered: &[BaseMetric]) -> Metrics {
        let text = if offered.contains(&BaseMetric::Total) {
            "e.%totalcpu:i.%totalcpu:i.total"
        } else if offered.contains(&BaseMetric::TotalCpu) {
            "e.%totalcpu:i.%totalcpu"
        } else {
            "e.%kcpu:i.%kcpu"
        };
        let otherwise = |_| Metrics::parse("ei.any", offered);
        Metrics::parse(text, offered)
            .or_else(otherwise)
            .unwrap_or(Metrics {
                list: Vec::new(),
                name_at: 0,
            })
    }

    /// Returns the default metrics of threads, processes and CPUs: all that have data.
    #[must_use]
    pub fn of_entities(offered: &[BaseMetric]) -> Metrics {
        Metrics::parse("e.any", offered).unwrap_or(Metrics {
            list: Vec::new(),
            name_at: 0,
        })
    }

    /// Returns the metrics for entities without callees: inclusive ones become exclusive, and each
    /// is there once.
    #[must_use]
    pub fn exclusive(&self) -> Metrics {
        self.only(Flavor::Exclusive)
    }

    /// Returns the metrics in one flavour, each once.
    #[must_use]
    pub fn only(&self, flavor: Flavor) -> Metrics {
        let mut own = Metrics {
            list: Vec::new(),
            name_at: 0,
        };
        for (index, metric) in self.list.iter().enumerate() {
            if own.position(metric.base, flavor).is_none() {
                own.list.push(Metric { flavor, ..*metric });
                own.name_at += usize::from(index < self.name_at);
            }
        }
        own
    }
}

/// Splits a part into flavours, marks for time and share, and the keyword. As in gprofng, letters
/// are flavours only if a mark follows.
fn split(part: &str) -> (Vec<Flavor>, (bool, bool), &str) {
    let both = vec![Flavor::Exclusive, Flavor::Inclusive];
    let letters = part.len() - part.trim_start_matches(['e', 'i']).len();
    let rest = &part[letters..];
    let keyword = rest.trim_start_matches(['.', '+', '%', '!']);
    let marks = &rest[..rest.len() - keyword.len()];
    if marks.is_empty() {
        return (both, (true, false), part);
    }
    let mut flavors = Vec::new();
    for letter in part[..letters].chars() {
        let flavor = match letter {
            'e' => Flavor::Exclusive,
            _ => Flavor::Inclusive,
        };
        if !flavors.contains(&flavor) {
            flavors.push(flavor);
        }
    }
    let hidden = marks.contains('!');
    let time = !hidden && marks.contains(['.', '+']);
    let percent = !hidden && marks.contains('%');
    (
        if flavors.is_empty() { both } else { flavors },
        (time, percent),
        keyword,
    )
}

/// The order of a table's rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sort {
    /// The metric. None: the name.
    pub by: Option<(BaseMetric, Flavor)>,
    /// Whether the order is reversed: smallest value first, or last name first.
    pub reverse: bool,
}

impl Sort {
    /// Parses `e.user`, `i.total`, `user` (short for `e.user`) or `name`, each with a leading `-`
    /// to reverse it.
    ///
    /// # Errors
    /// When it is not a possible metric.
    pub fn parse(text: &str, offered: &[BaseMetric]) -> Result<Sort, MetricError> {
        let (reverse, text) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let by = match text {
            "name" => None,
            text => Metrics::parse(text, offered)?
                .list
                .first()
                .map(|metric| (metric.base, metric.flavor)),
        };
        Ok(Sort { by, reverse })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ZERO_SUMS;
    use proptest::prelude::*;

    fn shown(text: &str) -> String {
        let metrics = match Metrics::parse(text, &BaseMetric::ALL) {
            Ok(metrics) => metrics,
            Err(error) => return error.to_string(),
        };
        let mut words: Vec<_> = metrics
            .list
            .iter()
            .map(|metric| {
                let flavor = match metric.flavor {
                    Flavor::Exclusive => "e",
                    Flavor::Inclusive => "i",
                    Flavor::Attributed => "a",
                };
                let time = if metric.time { "." } else { "" };
                let percent = if metric.percent { "%" } else { "" };
                format!("{flavor}{time}{percent}{}", metric.base.keyword())
            })
            .collect();
        words.insert(metrics.name_at, "name".to_owned());
        words.join(":")
    }

    #[test]
    fn lists_are_understood_as_gprofng_does() {
        for (text, list) in [
            ("e.user:i.total:e.lock", "e.user:i.total:e.lock:name"),
            ("e.%user:name:i%user", "e.%user:name:i%user"),
            ("ei.user", "e.user:i.user:name"),
            ("user", "e.user:i.user:name"),
            ("i+trap", "i.trap:name"),
            ("e.kcycles:e.kucycles", "e.kcpu:e.totalcpu:name"),
            ("e!user:e.wait", "e.wait:name"),
            ("e!user:name:e.wait", "name:e.wait"),
            ("e!user", "no metric is left to be shown"),
            ("e.nothing", "e.nothing is no metric"),
            ("e.user:ie.user", "ie.user appears twice"),
        ] {
            assert_eq!(shown(text), list, "{text}");
        }
        assert_eq!(shown("e.any").split(':').count(), 14);
        let kernel = [BaseMetric::State(Microstate::KernelCpu)];
        let error = Metrics::parse("e.kcpu:e.total", &kernel).unwrap_err();
        assert_eq!(error, MetricError::NoData("e.total".to_owned()));
        assert_eq!(Metrics::of_functions(&kernel).list.len(), 2);
    }

    #[test]
    fn things_have_exclusive_metrics_only() {
        let metrics = Metrics::parse("i.user:name:e.user:e.wait", &BaseMetric::ALL).unwrap();
        let own = metrics.exclusive();
        assert_eq!((own.list.len(), own.name_at), (2, 1));
    }

    #[test]
    fn sorts_are_understood() {
        let parse = |text| Sort::parse(text, &BaseMetric::ALL);
        let user = BaseMetric::State(Microstate::User);
        let by = |by, reverse| Ok(Sort { by, reverse });
        assert_eq!(parse("name"), by(None, false));
        assert_eq!(parse("-i.user"), by(Some((user, Flavor::Inclusive)), true));
        assert_eq!(parse("user"), by(Some((user, Flavor::Exclusive)), false));
        assert!(parse("nothing").is_err());
    }

    #[test]
    fn totals_are_made_of_states() {
        let sums = std::array::from_fn(|slot| 1 << slot);
        assert_eq!(BaseMetric::TotalCpu.of(&sums), 0b100_0000_0111);
        assert_eq!(BaseMetric::Total.of(&sums), 0b1_0011_1111_1111);
        assert_eq!(BaseMetric::State(Microstate::KernelCpu).of(&sums), 1 << 11);
        let cpi = BaseMetric::Ratio(RatioMetric {
            over: 3,
            under: 1,
            keyword: "CPI",
        });
        assert_eq!(
            (cpi.measure(&ZERO_SUMS, &sums), cpi.of(&sums)),
            (4_000_000, 0)
        );
    }

    proptest! {
        #[test]
        fn any_text_is_taken(text in "[eiad.%+!:a-z-]{0,20}") {
            let _ = Metrics::parse(&text, &BaseMetric::ALL);
            let _ = Sort::parse(&text, &BaseMetric::ALL);
        }
    }
}
