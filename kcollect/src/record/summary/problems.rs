//! What makes a whole recording implausible, whatever the machine did.

use super::Summary;
use crate::record::problem::{Problem, Subject};

/// A recording that is shorter may have seen no context switch, seconds.
const MIN_SWITCHING_S: f64 = 0.1;
/// Failed attempts to track threads, for each thread that was tracked.
const UNTRACKED_PER_THREAD: u64 = 10;
/// The number of failed attempts, of user ticks and of user stacks from which on something is said.
const ENOUGH: u64 = 100;
const ENOUGH_STACKS: u64 = 50;
/// Accounts have at least this share of the time that CPUs were in user mode.
const MIN_ACCOUNTED: f64 = 0.1;
/// One program without unwind information has no complete stack; this many together are a problem.
const ENOUGH_PROCESSES: usize = 3;

impl Summary {
    /// Checks for results that cannot be right. `has_seen_switches`: the hook on context switches
    /// has run; `has_own_stack`: a user stack of kcollect's own thread has arrived.
    #[must_use]
    pub(in crate::record) fn implausible(
        &self,
        has_seen_switches: bool,
        has_own_stack: bool,
    ) -> Vec<Problem> {
        let mut problems = Vec::new();
        let recorded = self.cpus.iter().map(|cpu| cpu.recorded_ns).max();
        if !has_seen_switches && recorded.unwrap_or_default().as_secs_f64() >= MIN_SWITCHING_S {
            problems.push(Problem::new(
                Subject::ContextSwitches,
                "the hook on context switches (sched_switch) never ran",
            ));
        } else {
            problems.extend(self.missing_accounts());
        }
        problems.extend(self.missing_user_stacks(has_own_stack));
        problems
    }

    fn missing_accounts(&self) -> Option<Problem> {
        let untracked = self.losses.untracked_threads;
        let threads: u64 = self.processes.iter().map(|row| row.threads).sum();
        if untracked >= ENOUGH && untracked >= threads.saturating_mul(UNTRACKED_PER_THREAD) {
            return Some(Problem::no_storage(untracked));
        }
        // All time on a CPU is in the first three states.
        let on_cpu = |row: &super::ProcessSummary| row.states_s.iter().take(3).sum::<f64>();
        let accounted: f64 = self.processes.iter().map(on_cpu).sum();
        let user_ticks: u64 = self.cpus.iter().map(|cpu| cpu.user).sum();
        if user_ticks < ENOUGH || accounted >= MIN_ACCOUNTED * self.cpu_time.user {
            return None;
        }
        if untracked > 0 {
            return Some(Problem::no_storage(untracked));
        }
        Some(Problem::new(
            Subject::Accounts,
            format!(
                "CPUs were in user mode for {:.3} s, and the accounts of all threads have {accounted:.3} s on a CPU",
                self.cpu_time.user
            ),
        ))
    }

    fn missing_user_stacks(&self, has_own_stack: bool) -> Option<Problem> {
        let followed = self.followed.as_ref()?;
        let (complete, tried) = followed.user_stacks.complete();
        let missing = followed.user_stacks.missing;
        let complete = complete + followed.user_stacks.unverified();
        let is_said = complete.0 > 0 || tried.0 < ENOUGH_STACKS || has_own_stack;
        if is_said || missing.0 * 2 < tried.0 && followed.processes.len() < ENOUGH_PROCESSES {
            return None;
        }
        Some(Problem::new(
            Subject::UserStacks,
            format!(
                "none of {tried} ticks of followed processes has a complete user stack, {missing} have none at all"
            ),
        ))
    }
}

#[cfg(test)]
mod tests {
    use bpf_abi::unwind::UnwindEnd;
    use experiment_format::units::{Nanos, Ticks};

    use super::super::tests::full;
    use super::*;

    fn subjects(summary: &Summary, has_seen_switches: bool, has_own_stack: bool) -> Vec<Subject> {
        let problems = summary.implausible(has_seen_switches, has_own_stack);
        problems.iter().map(|problem| problem.subject).collect()
    }

    #[test]
    fn a_plausible_recording_has_no_problem() {
        assert_eq!(subjects(&full(), true, false), []);
    }

    #[test]
    fn accounts_have_the_time_of_the_cpus() {
        let mut summary = full();
        summary.cpus[0].user = 150;
        assert_eq!(subjects(&summary, true, true), []);
        summary.processes[0].states_s[0] = 0.01;
        summary.processes[0].states_s[1] = 0.0;
        assert_eq!(subjects(&summary, true, true), [Subject::Accounts]);
        // On an idle machine that says nothing.
        summary.cpus[0].user = 50;
        assert_eq!(subjects(&summary, true, true), []);
    }

    #[test]
    fn threads_without_storage_are_a_problem_if_they_are_most() {
        let mut summary = full();
        summary.losses.untracked_threads = 1000;
        assert_eq!(subjects(&summary, true, true), [Subject::Storage]);
        summary.processes[0].threads = 900;
        assert_eq!(subjects(&summary, true, true), []);
        summary.processes.clear();
        assert_eq!(subjects(&summary, true, true), [Subject::Storage]);
    }

    #[test]
    fn the_hook_on_context_switches_has_to_run() {
        let mut summary = full();
        assert_eq!(subjects(&summary, false, true), [Subject::ContextSwitches]);
        summary.cpus[0].recorded_ns = Nanos::from_millis(50);
        assert_eq!(subjects(&summary, false, true), []);
    }

    #[test]
    fn some_user_stack_is_complete() {
        let mut summary = full();
        let stacks = &mut summary.followed.as_mut().unwrap().user_stacks;
        stacks.by_end = [(UnwindEnd::NoTable, Ticks(60))].into();
        // One program may have no unwind information at all.
        assert_eq!(subjects(&summary, true, false), []);
        let stacks = &mut summary.followed.as_mut().unwrap().user_stacks;
        stacks.missing = Ticks(90);
        assert_eq!(subjects(&summary, true, false), [Subject::UserStacks]);
        assert_eq!(subjects(&summary, true, true), []);
    }
}
