//! Keeps kcollect within its budget (`--budget`): measures what it uses, and does what the
//! [governor](crate::record::governor) decides.

use std::time::Duration;

use experiment_format::units::Nanos;
use host::exit::Failure;
use host::output::Output;

use crate::plan::CpuShare;
use crate::record::governor::{BudgetChange, BudgetLevel, Governor, UsedShares, UsedTime};
use crate::record::input::inputs::Inputs;
use crate::record::route::Router;
use crate::record::summary::{BudgetSummary, own_use};

/// The budget, if there is one.
#[derive(Debug)]
pub(super) struct Budget {
    governor: Option<Governor>,
}

impl Budget {
    pub(super) fn new(share: Option<CpuShare>) -> Budget {
        Budget {
            governor: share.map(|share| Governor::new(share.share())),
        }
    }

    /// Reduces detail that costs too much, and restores it when CPU time is left.
    pub(super) fn keep(
        &mut self,
        time_ns: Nanos,
        inputs: &mut Inputs,
        router: &mut Router,
        output: &mut Output,
    ) -> Result<(), Failure> {
        let Some(governor) = &mut self.governor else {
            return Ok(());
        };
        if !governor.is_due(time_ns) {
            return Ok(());
        }
        let totals = inputs.totals()?;
        let programs_ns = totals.sum(|stats| stats.programs_ns) / totals.cpus.len().max(1) as u64;
        let used = UsedTime {
            own: Duration::from_secs_f64(own_use().0),
            programs: Duration::from_nanos(programs_ns),
        };
        let Some(BudgetChange { level, shares, .. }) = governor.decide(time_ns, used) else {
            return Ok(());
        };
        inputs
            .programs
            .set_few_copies(level >= BudgetLevel::FewCopies);
        inputs.set_boundaries_per_firing(level.boundaries_per_firing())?;
        router.min_intervals = level.min_intervals();
        let percent = |of: fn(&UsedShares) -> f64| 100.0 * shares.as_ref().map_or(0.0, of);
        let text = format!(
            "kcollect took {:.2} % of a CPU, and its BPF programs {:.2} % of all CPUs: from here on {level} \
             (--budget)",
            percent(|shares| shares.own),
            percent(|shares| shares.programs)
        );
        output.say(&text);
        router.warn(time_ns, text);
        Ok(())
    }

    /// Applies the level that was reached before to the experiment that begins at `at_ns`.
    pub(super) fn on_rotation(&mut self, at_ns: Nanos, router: &mut Router) {
        let Some(governor) = &mut self.governor else {
            return;
        };
        governor.on_rotation(at_ns);
        let level = governor.level();
        router.min_intervals = level.min_intervals();
        if level != BudgetLevel::None {
            router.warn(at_ns, format!("from the beginning {level} (--budget)"));
        }
    }

    /// The summary of the experiment that began at `start_ns`.
    pub(super) fn summary(&self, start_ns: Nanos) -> Option<BudgetSummary> {
        let governor = self.governor.as_ref()?;
        Some(BudgetSummary::new(governor, start_ns))
    }
}
