//! Watches what probes take, and removes them from a process in which they take too much.

use bpf::Programs;
use experiment_format::ids::Pid;
use experiment_format::text::printable;
use experiment_format::units::Nanos;
use host::machine;

use super::TracedAllocators;
use super::budget::OverBudget;
use super::probes::{ProbedAllocators, cpu_time};
use crate::record::processes::Processes;
use crate::record::route::Router;
use crate::record::user::UserSpace;

impl TracedAllocators {
    /// Checks the probes of the processes whose check is due. Returns those whose budget is used
    /// up, with what their probes took, as a share of their own CPU time.
    fn check(&mut self, programs: &Programs, now_ns: Nanos) -> Vec<(Pid, f64)> {
        let Some(share) = self.sampling.and_then(|sampling| sampling.budget) else {
            return Vec::new();
        };
        let due = self
            .probed
            .iter_mut()
            .filter(|(_, process)| process.budget.next_check_ns <= now_ns);
        let check = |(pid, process): (&Pid, &mut ProbedAllocators)| {
            process.budget.plan_check(now_ns, false);
            let taken_ns = programs.probes_took(process.use_index).ok()?;
            let taken = process
                .budget
                .check(share, taken_ns, cpu_time(*pid)?, now_ns)?;
            Some((*pid, taken))
        };
        due.filter_map(check).collect()
    }

    /// Stops probing a process. Its probes do nothing from now on; removing them takes longer.
    fn stop(&mut self, programs: &Programs, pid: Pid, now_ns: Nanos) {
        if let Some(process) = self.probed.get(&pid)
            && let Err(error) = programs.close_probe_use(process.use_index)
        {
            self.warnings.push(format!("allocations: {error}"));
        }
        self.take_out(pid);
        let over_budget = OverBudget::new(self.over_budget.get(&pid), now_ns);
        self.set_over_budget(pid, over_budget);
    }

    /// Returns the processes whose wait is over. They are probed again.
    fn try_again(&mut self, now_ns: Nanos) -> Vec<Pid> {
        let mut due = Vec::new();
        for (pid, process) in &mut self.over_budget {
            if process.is_due(now_ns) {
                *process = process.probed_again();
                self.due.insert(*pid);
                due.push(*pid);
            }
        }
        due
    }
}

impl UserSpace {
    /// Stops probing the processes whose probes have used up their budget, and probes them again
    /// once their time has come. The blocks allocated before are dropped: their frees will not be
    /// observed.
    pub fn keep_trace_budget(
        &mut self,
        router: &mut Router,
        processes: &mut Processes,
        programs: &Programs,
    ) {
        let now_ns = machine::now();
        let name_of = |processes: &Processes, pid| {
            let process = processes.get(pid);
            let name = process.and_then(|process| process.name.clone());
            name.unwrap_or_default()
        };
        for (pid, share) in self.allocators.check(programs, now_ns) {
            self.allocators.stop(programs, pid, now_ns);
            let name = name_of(processes, pid);
            self.blocks_end(router, processes, (pid, &name), now_ns);
            self.allocators.warnings.push(format!(
                "allocations: the probes in {} (process {pid}) took {:.1} % of its own CPU time; from \
                 here on nothing of its memory is recorded (--trace-budget)",
                printable(&name),
                100.0 * share
            ));
        }
        for pid in self.allocators.try_again(now_ns) {
            self.allocators.warnings.push(format!(
                "allocations: the blocks of {} (process {pid}) are recorded again",
                printable(&name_of(processes, pid))
            ));
        }
    }

    /// Returns when [`UserSpace::keep_trace_budget`] has to be called at the latest.
    #[must_use]
    pub fn next_budget_look(&self) -> Option<Nanos> {
        self.allocators.sampling?.budget?;
        // The others are checked when there is something else to do.
        let budgets = self.allocators.probed.values();
        let urgent = budgets.filter(|process| process.budget.is_urgent);
        urgent.map(|process| process.budget.next_check_ns).min()
    }
}
