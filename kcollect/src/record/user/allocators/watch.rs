//! Watches what probes take, and traces less of a process in which they take too much.

use bpf::Programs;
use experiment_format::ids::Pid;
use experiment_format::text::printable;
use experiment_format::units::Nanos;
use host::machine;
use user_collector::process::ProcessTable;

use super::TracedAllocators;
use super::budget::{CHECK_INTERVAL_NS, ProbeCosts, Reduced, TraceLevel, UsedUp};
use super::costs;
use super::probes::{ProbedAllocators, cpu_time};
use crate::record::route::Router;
use crate::record::user::UserSpace;

/// What a probe takes where that can't be measured, nanoseconds, by class.
const USUAL_COSTS: ProbeCosts = ProbeCosts([1e3, 1e3, 2e4, 2e4]);

impl TracedAllocators {
    pub(super) fn measure_costs(&mut self, programs: &Programs) {
        let has_budget = self
            .sampling
            .is_some_and(|sampling| sampling.budget.is_some());
        if !has_budget || self.costs.is_some() {
            return;
        }
        match costs::measure(programs) {
            Ok((costs, probes)) => {
                self.costs = Some(costs);
                self.detach(probes);
            }
            Err(error) => {
                self.costs = Some(USUAL_COSTS);
                self.warnings.push(format!(
                    "--trace-budget: a probe is taken to last 1 µs, which could not be measured: {error}"
                ));
            }
        }
    }

    /// Checks the probes of the processes whose check is due. Returns the processes whose budget is
    /// used up.
    fn look(&mut self, programs: &Programs, now_ns: Nanos) -> Vec<(Pid, UsedUp)> {
        let budget = self.sampling.and_then(|sampling| sampling.budget);
        let (Some(share), Some(costs)) = (budget, self.costs) else {
            return Vec::new();
        };
        let reduced = &self.reduced;
        let due = self
            .probed
            .iter_mut()
            .filter(|(_, process)| process.next_check_ns <= now_ns);
        let look = |(pid, process): (&Pid, &mut ProbedAllocators)| {
            (process.next_check_ns, process.is_urgent) = (now_ns + CHECK_INTERVAL_NS, false);
            let level = reduced.get(pid).map(|reduced| reduced.level);
            let level = level.unwrap_or_default();
            let used = programs.probe_use(process.use_index).ok()?;
            let found = (used, cpu_time(*pid)?, now_ns);
            let used_up = process.budget.look(level, (share, &costs), found);
            process.next_check_ns = process.budget.next_check();
            process.is_urgent = process.next_check_ns < now_ns + CHECK_INTERVAL_NS;
            Some((*pid, used_up?))
        };
        let used_up = due.filter_map(look).collect();
        // The others are checked when there is something else to do.
        let urgent = self.probed.values().filter(|process| process.is_urgent);
        self.urgent_look_ns = urgent.map(|process| process.next_check_ns).min();
        used_up
    }

    /// Traces less of a process. Returns what is traced: nothing, if it has no function of `level`.
    fn reduce(
        &mut self,
        programs: &Programs,
        (pid, level): (Pid, TraceLevel),
        now_ns: Nanos,
    ) -> TraceLevel {
        let level = if self.can_probe(pid, level) {
            level
        } else {
            TraceLevel::Nothing
        };
        self.previously_probed += u64::from(level == TraceLevel::Nothing);
        let reduced = Reduced::to(level, self.reduced.get(&pid), now_ns);
        self.exchange(programs, pid, reduced);
        level
    }

    /// Traces everything again of the processes whose wait is over. Returns these processes.
    fn try_again(&mut self, programs: &Programs, now_ns: Nanos) -> Vec<Pid> {
        let reduced = self.reduced.iter();
        let due = reduced.filter(|(_, reduced)| reduced.is_due(now_ns));
        let due: Vec<_> = due.map(|(pid, reduced)| (*pid, *reduced)).collect();
        for (pid, reduced) in &due {
            self.exchange(programs, *pid, reduced.tried_again());
        }
        due.into_iter().map(|(pid, _)| pid).collect()
    }

    /// Removes a process's probes and attaches the probes of another level.
    fn exchange(&mut self, programs: &Programs, pid: Pid, reduced: Reduced) {
        if let Some(process) = self.probed.get(&pid)
            && let Err(error) = programs.close_probe_use(process.use_index)
        {
            self.warnings.push(format!("allocations: {error}"));
        }
        self.take_out(pid);
        self.reduce_to(pid, reduced);
        self.changed(pid);
    }
}

impl UserSpace {
    /// Traces less of the processes whose probes have used up their budget, and everything again
    /// once their time has come. The blocks allocated before are dropped: their frees will not be
    /// observed.
    pub fn keep_trace_budget(
        &mut self,
        router: &mut Router,
        processes: &ProcessTable,
        programs: &Programs,
    ) {
        let now_ns = machine::now();
        let name_of = |pid| processes.get(pid)?.name.as_deref();
        for (pid, UsedUp { level, share }) in self.allocators.look(programs, now_ns) {
            let level = self.allocators.reduce(programs, (pid, level), now_ns);
            let name = name_of(pid).unwrap_or_default();
            self.blocks_end(router, processes, (pid, name), now_ns);
            self.allocators.warnings.push(format!(
                "allocations: the probes in {} (process {pid}) took {:.1} % of its own CPU time; from \
                 here on {level} (--trace-budget)",
                printable(name),
                100.0 * share
            ));
        }
        for pid in self.allocators.try_again(programs, now_ns) {
            let name = name_of(pid).unwrap_or_default();
            self.memory_ends(router, processes, (pid, name), now_ns);
            self.allocators.warnings.push(format!(
                "allocations: the blocks of {} (process {pid}) are recorded again",
                printable(name)
            ));
        }
    }

    /// Returns when [`UserSpace::keep_trace_budget`] has to be called at the latest.
    #[must_use]
    pub fn next_budget_look(&self) -> Option<Nanos> {
        self.allocators.urgent_look_ns
    }
}
