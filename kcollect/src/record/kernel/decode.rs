//! Decodes records of the BPF programs into what experiments hold: ticks of CPUs, and state
//! intervals of threads, with the frames of their kernel stacks as addresses inside calls.
//!
//! It depends only on the kernel's symbols, and neither on processes nor on experiments.

use std::sync::Arc;

use bpf_abi::{self as abi, KernelStack, Mode, RecordHeader};
use experiment_format::cause::Cause;
use experiment_format::ids::Tid;
use experiment_format::microstate::Microstate;
use experiment_format::packet::{Detail, UNKNOWN_KIND};
use experiment_format::units::{Nanos, Ticks};
use user_collector::process::ProcessInstance;

use super::counter_tags::{self, Side};
use super::symbols::Symbols;
use crate::record::activity::{
    ActivityKind, LockWaitEvent, OverflowEvent, StateInterval, ThreadActivity, ThreadEvent,
};

/// A tick of a CPU.
#[derive(Clone, Debug)]
pub struct CpuTick {
    /// Time, CPU, process and thread.
    pub header: RecordHeader,
    /// Tick boundaries at which the CPU ran.
    pub ticks: Ticks,
    /// Tick boundaries at which the hypervisor ran something else.
    pub stolen: Ticks,
    /// The state of the thread that was on the CPU; None for an idle CPU.
    pub state: Option<Microstate>,
    /// An interrupt or softirq had borrowed the CPU from the thread.
    pub irq_work: bool,
    /// Empty unless the CPU was in the kernel.
    pub stack: KernelStack,
}

impl CpuTick {
    /// What the thread on the CPU did: intervals with at least one tick each; none for an idle
    /// thread. While its CPU was stolen, it waited for a CPU.
    pub fn intervals(self, instance: ProcessInstance) -> impl Iterator<Item = ThreadActivity> {
        let part = |state, ticks, detail| ThreadActivity {
            header: self.header,
            instance,
            kernel: Arc::clone(&self.stack.frames),
            truncated: self.stack.truncated,
            kind: ActivityKind::Interval(StateInterval {
                state,
                ticks,
                detail,
                cause: Cause::Undecided,
                waker: Tid(0),
            }),
        };
        let parts = self.state.map(|state| {
            [
                part(Microstate::WaitCpu, self.stolen, Detail::Stolen),
                part(state, self.ticks, Detail::None),
            ]
        });
        let parts = parts.into_iter().flatten();
        parts.filter(|part| part.ticks() > Ticks::ZERO)
    }
}

/// An interval off the CPU: the thread was blocked, then waited for a CPU.
#[derive(Clone, Debug)]
pub struct OffCpu {
    /// The kernel stack at the switch.
    pub stack: KernelStack,
    /// Its two parts. Either may be without a tick.
    pub parts: [ThreadActivity; 2],
}

/// An overflow of a counter on a CPU.
#[derive(Clone, Debug)]
pub struct CpuOverflow {
    /// What the founder holds of the CPU.
    pub cpu: OverflowEvent,
    /// What the thread did that was on it.
    pub thread: ThreadActivity,
}

/// Turns records into ticks and intervals.
#[derive(Debug, Default)]
pub struct Decoder {
    interrupt_entries: Vec<(u64, u64)>,
    trap_entries: Vec<(u64, u64)>,
    schedule: (u64, u64),
}

impl Decoder {
    /// Returns a decoder for a kernel with these functions.
    #[must_use]
    pub fn new(symbols: &Symbols) -> Decoder {
        Decoder {
            interrupt_entries: ranges(symbols, is_entry),
            trap_entries: ranges(symbols, |name| is_entry(name) && name != PAGE_FAULT_ENTRY),
            schedule: symbols.extent("__schedule"),
        }
    }

    /// Decodes a tick of a CPU.
    #[must_use]
    pub fn tick(&self, mut tick: abi::TickRecord) -> CpuTick {
        if tick.at_switch_out {
            self.drop_own_frames(&mut tick.stack);
        }
        let state = match tick.mode {
            Mode::Idle => None,
            Mode::User => Some(Microstate::User),
            Mode::Kernel if self.is_trap(&tick) => Some(Microstate::Trap),
            Mode::Kernel => Some(Microstate::System),
        };
        CpuTick {
            header: tick.header,
            ticks: Ticks((tick.ticks - tick.stolen_ticks).into()),
            stolen: Ticks(tick.stolen_ticks.into()),
            state,
            irq_work: tick.irq_work,
            stack: self.stack(tick.stack),
        }
    }

    /// Decodes an interval off the CPU of a process instance.
    #[must_use]
    pub fn off_cpu(&self, record: abi::OffCpuRecord, instance: ProcessInstance) -> OffCpu {
        let stack = self.stack(record.stack);
        let blocked = match record.detail {
            Some(abi::OffCpuDetail::BlockIo) => Detail::BlockIo,
            _ => Detail::None,
        };
        let waited = match record.detail {
            Some(abi::OffCpuDetail::Preempted) => Detail::Preempted,
            Some(abi::OffCpuDetail::Throttled) => Detail::Throttled,
            _ => Detail::Woken,
        };
        let part = |state, ticks, detail, cause, waker| ThreadActivity {
            header: record.header,
            instance,
            kernel: Arc::clone(&stack.frames),
            truncated: stack.truncated,
            kind: ActivityKind::Interval(StateInterval {
                state,
                ticks,
                detail,
                cause,
                waker,
            }),
        };
        let state = Microstate::ALL[usize::from(record.state)];
        OffCpu {
            parts: [
                part(
                    state,
                    Ticks(record.blocked_ticks.into()),
                    blocked,
                    cause_of(record.cause),
                    Tid(record.waker.unwrap_or(0)),
                ),
                part(
                    Microstate::WaitCpu,
                    Ticks(record.waited_ticks.into()),
                    waited,
                    Cause::Undecided,
                    Tid(0),
                ),
            ],
            stack,
        }
    }

    /// Decodes an overflow of a counter in a process instance.
    #[must_use]
    pub fn overflow(&self, record: abi::OverflowRecord, instance: ProcessInstance) -> CpuOverflow {
        let stack = self.stack(record.stack);
        let side = |side| OverflowEvent {
            tag: counter_tags::tag(record.counter, side),
            value: record.value,
        };
        CpuOverflow {
            cpu: side(Side::Cpu),
            thread: ThreadActivity {
                header: record.header,
                instance,
                kernel: stack.frames,
                truncated: stack.truncated,
                kind: ActivityKind::Event(ThreadEvent::Overflow(side(Side::Thread))),
            },
        }
    }

    /// Decodes a process instance's wait for a lock. An unknown kind has the same number in both.
    #[must_use]
    pub fn lock_wait(
        &self,
        record: abi::LockWaitRecord,
        instance: ProcessInstance,
    ) -> ThreadActivity {
        const { assert!(abi::layout::OPERATION_UNKNOWN == UNKNOWN_KIND) };
        let stack = self.stack(record.stack);
        ThreadActivity {
            header: record.header,
            instance,
            kernel: stack.frames,
            truncated: stack.truncated,
            kind: ActivityKind::Event(ThreadEvent::LockWait(LockWaitEvent {
                begin_ns: Nanos(record.begin_ns),
                object: record.object,
                kind: record.operation,
            })),
        }
    }

    fn stack(&self, mut stack: KernelStack) -> KernelStack {
        // All empty stacks share one memory, which would be copied.
        if !stack.frames.is_empty() {
            self.point_at_calls(Arc::make_mut(&mut stack.frames));
        }
        stack
    }

    /// Returns whether the CPU was in a trap: an interrupt, or an exception other than a page
    /// fault. Then its entry is at the root of the stack; a system call's and a kernel thread's
    /// roots are others.
    fn is_trap(&self, tick: &abi::TickRecord) -> bool {
        let within = |pc: &u64| {
            let next = self.trap_entries.partition_point(|(from, _)| from <= pc);
            next > 0 && *pc < self.trap_entries[next - 1].1
        };
        tick.irq_work || tick.stack.frames.last().is_some_and(within)
    }

    /// Removes the frames above the scheduler in a stack that was taken in it: our BPF program, and
    /// what calls it.
    fn drop_own_frames(&self, stack: &mut KernelStack) {
        let (from, to) = self.schedule;
        let scheduler = |pc: &u64| (from..to).contains(pc);
        if let Some(own) = stack.frames.iter().position(scheduler) {
            stack.frames = stack.frames[own..].into();
        }
    }

    /// Turns return addresses into addresses inside the call, by one byte. A frame under an
    /// interrupt's entry is no return address: it is where the interrupt struck, and stays exact.
    fn point_at_calls(&self, frames: &mut [u64]) {
        let mut exact = true;
        for frame in frames {
            let pc = *frame;
            if !exact {
                *frame = pc.wrapping_sub(1);
            }
            let next = self
                .interrupt_entries
                .partition_point(|(from, _)| *from <= pc);
            exact = next > 0 && pc < self.interrupt_entries[next - 1].1;
        }
    }
}

/// Returns the cause as experiments have it: the numbers are the same.
fn cause_of(cause: abi::layout::Cause) -> Cause {
    const { assert!(abi::layout::CAUSES == Cause::COUNT) };
    Cause::try_from(cause as u8).unwrap_or_default()
}

/// The entry of x86-64's page faults.
const PAGE_FAULT_ENTRY: &str = "asm_exc_page_fault";

/// Returns whether interrupts and exceptions enter the kernel in this function. The frame under
/// such a function was interrupted, it called nothing. x86-64's entry stubs begin with `asm_`,
/// aarch64's with `el1h_64_`.
fn is_entry(name: &str) -> bool {
    [
        "asm_exc_",
        "asm_sysvec_",
        "asm_common_interrupt",
        "asm_spurious",
        "el1h_64_",
    ]
    .iter()
    .any(|prefix| name.starts_with(prefix))
}

/// Returns the address ranges of the functions with a chosen name, in order.
fn ranges(symbols: &Symbols, chosen: impl Fn(&str) -> bool) -> Vec<(u64, u64)> {
    let mut ranges: Vec<_> = symbols
        .objects()
        .flat_map(|(_, object)| object.symbols())
        .filter(|symbol| chosen(symbol.name))
        .map(|symbol| (symbol.address, symbol.address.saturating_add(symbol.size)))
        .collect();
    ranges.sort_unstable();
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_taken_in_the_scheduler_begins_there() {
        let text = "1000 t trace\n1100 t __schedule\n1200 T schedule\n1300 D end\n";
        let decoder = Decoder::new(&Symbols::parse(text).unwrap());
        let mut stack = KernelStack {
            frames: Arc::new([0xf000, 0x1010, 0x1120, 0x1210]),
            ..KernelStack::default()
        };
        decoder.drop_own_frames(&mut stack);
        assert_eq!(*stack.frames, [0x1120, 0x1210]);
        stack.frames = Arc::new([0xf000, 0x1210]);
        decoder.drop_own_frames(&mut stack);
        assert_eq!(*stack.frames, [0xf000, 0x1210]);
    }

    #[test]
    fn callers_point_into_their_calls_but_the_interrupted_stay_exact() {
        let text = "\
1000 T asm_sysvec_apic_timer_interrupt
1100 T handle_softirqs
1200 t do_idle
1300 t cpu_startup_entry
1400 D end
";
        let decoder = Decoder::new(&Symbols::parse(text).unwrap());
        let mut frames = [0x1150, 0x1010, 0x1200, 0x1310];
        decoder.point_at_calls(&mut frames);
        assert_eq!(frames, [0x1150, 0x100f, 0x1200, 0x130f]);
    }
}
