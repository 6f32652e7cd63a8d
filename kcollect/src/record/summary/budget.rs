//! The part of the summary about the budget (`--budget`).

use experiment_format::units::Nanos;
use serde::Serialize;

use crate::record::governor::{BudgetChange, BudgetLevel, Governor};

/// The budget, and how far detail was reduced for it.
#[derive(Debug, Serialize)]
pub struct BudgetSummary {
    /// The share of one CPU that kcollect's own process may take, and of all CPUs that its programs
    /// in the kernel may.
    pub percent: f64,
    /// The changes of the level, in order.
    pub changes: Vec<BudgetChangeSummary>,
}

/// A change of the level.
#[derive(Debug, Serialize)]
pub struct BudgetChangeSummary {
    /// When, since the start.
    pub at_s: f64,
    /// The level from then on.
    #[serde(rename = "given_up")]
    pub level: BudgetLevel,
    /// The share of one CPU that kcollect's own process took in the five seconds before. None: the
    /// level was reached before the experiment began.
    pub cpu_percent: Option<f64>,
    /// The share of all CPUs that its programs in the kernel took then.
    pub programs_percent: Option<f64>,
}

impl BudgetSummary {
    /// The budget summary of an experiment that began at `began_ns`.
    #[must_use]
    pub fn new(governor: &Governor, began_ns: Nanos) -> BudgetSummary {
        let change = |change: &BudgetChange| BudgetChangeSummary {
            at_s: change.at_ns.saturating_sub(began_ns).as_secs_f64(),
            level: change.level,
            cpu_percent: change.shares.map(|shares| 100.0 * shares.own),
            programs_percent: change.shares.map(|shares| 100.0 * shares.programs),
        };
        BudgetSummary {
            percent: 100.0 * governor.budget(),
            changes: governor.changes().iter().map(change).collect(),
        }
    }
}
