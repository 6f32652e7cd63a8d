//! The sums of threads and processes, which every record of them adds to, and the samples that are
//! taken of them.

use bpf_abi::ThreadRecord;
use experiment_format::Result;
use experiment_format::units::{Nanos, Ticks};
use user_collector::process::ProcessInstance;

use super::Router;
use crate::record::activity::TypedHeader;
use crate::record::kernel::accounts::{LivingThreads, Owner};
use crate::record::kernel::code::KernelCode;
use crate::record::kernel::decode::CpuTick;
use crate::record::kernel::shown_names::name_of;
use crate::record::processes::{Process, Processes};

/// How many threads without a last record are named in the log.
const MAX_UNCLOSED_NAMED: usize = 10;

impl Router {
    /// Writes a tick of a CPU into the founder, and adds it to the sums; `process` is as it was at
    /// the tick's time.
    ///
    /// # Errors
    /// When the experiment can't be written.
    pub fn cpu_tick(&mut self, process: Option<&Process>, tick: &CpuTick) -> Result<()> {
        self.founder.cpu_tick(process, tick)?;
        if let Some(state) = tick.state.filter(|_| tick.ticks > Ticks::ZERO) {
            let owner = Owner::of(process, &tick.header);
            self.accounts.tick(owner, state, tick.ticks);
        }
        Ok(())
    }

    /// Adds the exact times of a thread; `process` is as it was at the record's time.
    pub fn thread(&mut self, process: Option<&Process>, thread: &ThreadRecord) {
        if !thread.exited {
            return self.accounts.update_living(*thread);
        }
        let owner = Owner::of(process, &thread.header);
        let process = owner.name.clone();
        let times = self.accounts.add_exited(owner, thread);
        let result = self.founder.thread_exited(&process, thread, &times);
        self.note(result);
    }

    /// Adds the exact times of the threads that still live: the recording ended at `at_ns`.
    pub fn close_threads(&mut self, processes: &Processes, at_ns: Nanos) {
        let unclosed: Vec<_> = self.accounts.unclosed().copied().collect();
        self.unclosed_threads += unclosed.len() as u64;
        for thread in unclosed.iter().take(MAX_UNCLOSED_NAMED) {
            let (tid, name) = (thread.header.tid(), name_of(processes, thread.header.pid()));
            let missing = at_ns.saturating_sub(Nanos(thread.as_of_ns));
            let text = format!(
                "thread {tid} of {name}: its last {:.3} s are missing",
                missing.as_secs_f64()
            );
            self.warn(at_ns, text);
        }
        self.last_threads = self.accounts.take_living();
        let mut living: Vec<_> = self.last_threads.values().copied().collect();
        living.sort_by_key(|thread| (thread.header.pid(), thread.header.tid()));
        for thread in living {
            let process = processes.get(thread.header.pid());
            let owner = Owner::of(process, &thread.header);
            self.accounts.add_exited(owner, &thread);
        }
    }

    /// Moves out the state that the next experiment inherits: the kernel's code, and what the
    /// living threads have done until now. Only `close` may follow.
    pub fn take_carryover(&mut self) -> (KernelCode, LivingThreads) {
        let kernel = std::mem::replace(&mut self.kernel, KernelCode::none());
        (kernel.for_next(), std::mem::take(&mut self.last_threads))
    }

    /// Whether samples may still be written: they continue when recording has stopped, but not
    /// without end.
    #[must_use]
    pub fn may_write_samples(&self) -> bool {
        self.sample_budget > 0
    }

    /// Counts what was written since `bytes_before` as a sample, once recording has stopped.
    pub fn count_sample(&mut self, bytes_before: u64, at_ns: Nanos) {
        if !self.reached_limit() || !self.may_write_samples() {
            return;
        }
        let bytes = self.bytes_written() - bytes_before;
        self.sample_budget = self.sample_budget.saturating_sub(bytes);
        if !self.may_write_samples() {
            let text =
                "samples end: they have taken half of the limit (-L) since recording stopped";
            self.warn(at_ns, text.to_owned());
        }
    }

    /// Writes a sample of the machine at an instant whose records have all been applied.
    pub fn sample(&mut self, processes: &Processes, at_ns: Nanos, label: &str) {
        let accounts = &self.accounts;
        let result = self.founder.sample(processes, accounts, at_ns, label);
        self.note(result);
    }

    /// Writes the same sample of each followed process.
    pub fn sample_followed(&mut self, processes: &Processes, (at_ns, label): (Nanos, &str)) {
        let instance = |pid| processes.instance_of(pid);
        let outputs = self.outputs.iter();
        let open = outputs.filter(|(_, output)| output.writer().is_some());
        let open = open.map(|(instance, _)| *instance);
        let times = self.accounts.of_processes(open, instance);
        self.each(
            |instance, writer| match (processes.instance(instance), times.get(&instance)) {
                (Some(process), Some(times)) => {
                    writer.sample(at_ns, label, times, process.exited_ns())
                }
                _ => Ok(()),
            },
        );
    }

    /// Writes the last samples of processes that have exited, unless they are already written.
    pub fn sample_exits(&mut self, processes: &Processes, instances: &[ProcessInstance]) {
        let unsampled = |instance: &&ProcessInstance| {
            let writer = self.writer(**instance);
            writer.is_some_and(|writer| !writer.sampled_exit())
        };
        let unsampled: Vec<_> = instances.iter().filter(unsampled).copied().collect();
        if unsampled.is_empty() {
            return;
        }
        let instance = |pid| processes.instance_of(pid);
        for (instance, (times, _)) in self.accounts.of_processes(unsampled.into_iter(), instance) {
            if let Some(process) = processes.instance(instance) {
                let at = process.exited_ns().unwrap_or(Nanos::ZERO);
                self.with(instance, |experiment| {
                    experiment.sample(at, "exit", &(times, 0), Some(at))
                });
            }
        }
    }
}
