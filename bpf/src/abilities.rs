//! What the running kernel offers, and what is used instead of what it does not have.

use crate::causes::can_watch_wakers;
use crate::kernel_types::Feature;
use crate::load::{has_fault_tracepoint, has_run_queues, has_sched_info};
use crate::{CodeLookup, KernelTypes, ReturnProbes, UserStackCapture, io_uring};

/// How one task is done that kernels support differently.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ability {
    /// The task, in a word or two.
    pub name: &'static str,
    /// How it is done on this kernel.
    pub way: String,
    /// It is done worse than on other kernels, or not at all.
    pub reduced: bool,
}

impl KernelTypes {
    /// The ways that are taken on this kernel.
    #[must_use]
    pub fn abilities(&self) -> Vec<Ability> {
        let choose = |name, best: bool, first: &str, second: &str| Ability {
            name,
            way: if best { first } else { second }.to_owned(),
            reduced: !best,
        };
        let lookup = CodeLookup::of(self);
        let proxies = self.offset("rq", "donor") != self.offset("rq", "curr")
            && self.offset("rq", "donor").is_some();
        vec![
            Ability {
                name: "user stacks",
                way: format!("captured {}", UserStackCapture::of(self)),
                reduced: false,
            },
            Ability {
                name: "unwinding",
                way: lookup.to_string(),
                reduced: lookup != CodeLookup::MapleTree,
            },
            choose(
                "kernel page faults",
                has_fault_tracepoint(self),
                "noted as they happen (tracepoint page_fault_kernel)",
                "looked for in the stack of each thread that blocks",
            ),
            choose(
                "scheduler's clock",
                has_run_queues(self),
                "read from run queues",
                "CLOCK_MONOTONIC, set right at each arrival of a thread; stolen time is unknown",
            ),
            choose(
                "waits for a CPU",
                has_sched_info(self),
                "the scheduler's own sums",
                "summed at each wake-up and switch, which makes switches slower",
            ),
            choose(
                "causes of waits",
                has_run_queues(self) && can_watch_wakers(self),
                "what woke a thread is known (-W on)",
                "-W on has no effect: only the waiting thread's own state is known",
            ),
            Ability {
                name: "heap probes",
                way: match ReturnProbes::of(self) {
                    ReturnProbes::Session => "a return is probed only where the call asks for it",
                    ReturnProbes::Always => "each return is probed, which costs twice as much",
                }
                .to_owned(),
                reduced: false,
            },
            choose(
                "io_uring",
                self.permits(Feature::IoUring) && io_uring::is_traceable(self),
                "operations are traced with -i",
                "-i leaves its operations out: this kernel does not have the tracepoints",
            ),
            Ability {
                name: "proxy execution",
                way: if proxies {
                    "in this kernel: threads that wait for a mutex in the run queue are blocked"
                } else {
                    "not in this kernel"
                }
                .to_owned(),
                reduced: false,
            },
        ]
    }
}
