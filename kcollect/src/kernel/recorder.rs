//! The founder: ticks and absences, in time order, become packets of the kernel's experiment.
//!
//! Each tick of a CPU is Kernel CPU, as er_kernel has it, and, where a thread was on the CPU, a
//! tick array of that thread: user, system or trap. Each absence of a thread from the CPUs that
//! boundaries fell into is a tick array with the kernel stack in which it was away.
//!
//! A tick in the kernel has its kernel stack; one in user mode the single frame `<NAME_PID_pid>`;
//! one of an idle CPU `<IDLE>`, as er_kernel has them. Such a frame is an artificial function at an
//! address where no kernel code can be.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use bpf_abi::{KernelStack, Mode, OffCpu, Overflow, RecordHeader, ThreadRecord, Tick};
use experiment_format::layout::printable;
use experiment_format::log::LogEvent;
use experiment_format::map::MapEvent;
use experiment_format::microstate::Microstate;
use experiment_format::packet::{ClockTick, CounterEvent, Detail, TickArray};
use experiment_format::stacks::{StackEnd, StackUid};
use experiment_format::usage::UsageRecord;
use experiment_format::writer::ExperimentWriter;
use user_collector::names::ThreadNames;
use user_collector::process::{Name, Process, Processes};

use super::accounts::{Accounts, Owner, StackTicks};
use super::counters::{self, Side};
use super::samples::Samples;
use super::symbols::Symbols;
use crate::cli::Target;
use crate::user::{Counted, Stay};

/// The frame that ends a truncated stack in [`Accounts::stacks`].
pub const TRUNCATED: u64 = u64::MAX;

/// Artificial functions lie here, one every [`STEP`] bytes, far below any kernel.
const IDLE_ADDRESS: u64 = 0x1000;
const FIRST_PROCESS_ADDRESS: u64 = 0x1_0000;
const STEP: u64 = 0x10;

/// What was recorded, what was not, and why.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recorded {
    /// Ticks written.
    pub ticks: u64,
    /// Packets written; one carries several ticks when a timer was held up.
    pub packets: u64,
    /// Tick arrays written: of ticks on a CPU, and of absences.
    pub arrays: u64,
    /// Ticks in them.
    pub array_ticks: u64,
    /// Ticks of processes whose name nothing had told.
    pub unnamed: u64,
    /// Ticks and absences whose stack was cut at the kernel's depth limit.
    pub truncated: u64,
    /// Ticks and absences for which the kernel gave no stack, or which it did not show: who leaves
    /// a CPU and was not seen to come to it was away for a known time in an unknown place.
    pub no_stack: u64,
    /// Ticks in which an interrupt or softirq had borrowed the CPU.
    pub irq_work: u64,
    /// Overflows of counters written.
    pub overflows: u64,
}

/// Turns ticks into the founder's packets.
#[derive(Debug)]
pub struct Recorder {
    start: u64,
    interrupt_entries: Vec<(u64, u64)>,
    trap_entries: Vec<(u64, u64)>,
    schedule: (u64, u64),
    user_frames: HashMap<u32, UserFrame>,
    next_address: u64,
    idle: Option<StackUid>,
    names: ThreadNames,
    samples: Samples,
    /// Sums for the summary.
    pub accounts: Accounts,
    /// Counts for the summary.
    pub recorded: Recorded,
}

/// The frame of a process in user mode, under one name.
#[derive(Debug)]
struct UserFrame {
    serial: u64,
    name: Option<Name>,
    uid: StackUid,
}

impl Recorder {
    /// `start` is the zero of the experiment's times, CLOCK_MONOTONIC nanoseconds; `targets` are
    /// counted apart.
    #[must_use]
    pub fn new(start: u64, interval_ns: u64, symbols: &Symbols, targets: &[Target]) -> Recorder {
        Recorder {
            start,
            interrupt_entries: ranges(symbols, is_entry),
            trap_entries: ranges(symbols, |name| is_entry(name) && name != PAGE_FAULT_ENTRY),
            schedule: symbols.extent("__schedule"),
            user_frames: HashMap::new(),
            next_address: FIRST_PROCESS_ADDRESS,
            idle: None,
            names: ThreadNames::default(),
            samples: Samples::new(start, interval_ns),
            accounts: Accounts::new(targets),
            recorded: Recorded::default(),
        }
    }

    /// Writes one tick of a CPU; `processes` is as it was at the tick's time. Gives what the thread
    /// did that was on it, for whoever writes what that process's threads do.
    ///
    /// # Errors
    /// When the experiment can't be written.
    pub fn tick(
        &mut self,
        writer: &mut ExperimentWriter,
        processes: &Processes,
        tick: Tick,
    ) -> experiment_format::Result<Option<Stay>> {
        let mut tick = tick;
        if tick.at_switch_out {
            self.drop_own_frames(&mut tick.stack);
        }
        let ticks = u64::from(tick.ticks);
        let head = tick.header;
        let process = processes.get(head.pid);
        let mut kernel: Arc<[u64]> = Arc::default();
        let stack = if tick.mode == Mode::Idle {
            self.idle(writer)?
        } else if tick.stack.frames.is_empty() {
            // In user mode, and where the kernel gave no stack, the process is all that is known.
            self.user_frame(writer, process, head)?
        } else {
            kernel = self.frames(&tick.stack);
            self.kernel_stack(writer, &kernel, tick.stack.truncated, |stack| {
                stack.ticks += ticks;
            })?
        };
        self.name_thread(writer, process, head)?;
        writer.tick(&ClockTick {
            cpu: head.cpu,
            time: head.time_ns,
            stack,
            tid: head.tid,
            pid: head.pid,
            state: Microstate::KernelCpu,
            ticks: tick.ticks,
        })?;

        self.recorded.ticks += ticks;
        self.recorded.packets += 1;
        self.recorded.truncated += u64::from(tick.stack.truncated);
        self.recorded.no_stack += u64::from(tick.stack.missing);
        self.recorded.irq_work += if tick.irq_work { ticks } else { 0 };
        if tick.mode == Mode::Idle {
            return Ok(None);
        }
        let name = process.and_then(|process| process.name.as_deref());
        if name.is_none() && head.pid != 0 {
            self.recorded.unnamed += ticks;
        }
        let state = match tick.mode {
            Mode::User => Microstate::User,
            _ if self.is_trap(&tick) => Microstate::Trap,
            _ => Microstate::System,
        };
        self.accounts.tick(owner(processes, head), state, ticks);
        Ok(Some(Stay {
            head,
            serial: process.map_or(0, |process| process.serial),
            kernel,
            truncated: tick.stack.truncated,
            state,
            ticks: tick.ticks,
            detail: Detail::None,
            counted: None,
        }))
    }

    /// Writes that a counter has overflowed on a CPU. Gives the same of the thread that was on it.
    ///
    /// # Errors
    /// When the experiment can't be written.
    pub fn overflow(
        &mut self,
        writer: &mut ExperimentWriter,
        processes: &Processes,
        overflow: &Overflow,
    ) -> experiment_format::Result<Stay> {
        let head = overflow.header;
        let process = processes.get(head.pid);
        let kernel = self.frames(&overflow.stack);
        let truncated = overflow.stack.truncated;
        let stack = match kernel.is_empty() {
            true => self.user_frame(writer, process, head)?,
            false => self.kernel_stack(writer, &kernel, truncated, |_| {})?,
        };
        self.name_thread(writer, process, head)?;
        let counted = |side| Counted {
            tag: counters::tag(overflow.counter, side),
            value: overflow.value,
        };
        writer.counted(&counter_event(head, stack, counted(Side::Cpu)))?;
        self.recorded.overflows += 1;
        let state = match kernel.is_empty() {
            true => Microstate::User,
            false => Microstate::System,
        };
        Ok(Stay {
            head,
            serial: process.map_or(0, |process| process.serial),
            kernel,
            truncated,
            state,
            ticks: 0,
            detail: Detail::None,
            counted: Some(counted(Side::Thread)),
        })
    }

    /// Notes what a thread did; `processes` is as it was when this was told.
    ///
    /// # Errors
    /// When the experiment can't be written.
    pub fn thread(
        &mut self,
        writer: &mut ExperimentWriter,
        processes: &Processes,
        thread: &ThreadRecord,
    ) -> experiment_format::Result<()> {
        if !thread.exited {
            self.accounts.lives(*thread);
            return Ok(());
        }
        let times = self.accounts.ends(owner(processes, thread.header), thread);
        self.samples.ended(writer, thread, &times)
    }

    /// The last has been told of the threads that live.
    pub fn close_threads(&mut self, processes: &Processes) {
        let mut living: Vec<_> = self.accounts.living().map(|(thread, _)| *thread).collect();
        living.sort_by_key(|thread| (thread.header.pid, thread.header.tid));
        for thread in living {
            self.accounts.ends(owner(processes, thread.header), &thread);
        }
    }

    /// Writes a sample of an instant of which all is known.
    ///
    /// # Errors
    /// When the experiment can't be written.
    pub fn sample(
        &mut self,
        writer: &mut ExperimentWriter,
        at: u64,
        label: &str,
    ) -> experiment_format::Result<()> {
        self.samples.take(writer, &self.accounts, at, label)
    }

    /// The sample records of all processes of an instant of which all is known, by number and
    /// serial.
    pub fn usage_by_process(
        &mut self,
        processes: &Processes,
        at: u64,
    ) -> HashMap<(u32, u64), UsageRecord> {
        let serial = |pid| processes.get(pid).map_or(0, |process| process.serial);
        self.samples.of_processes(&self.accounts, at, serial)
    }

    /// Writes what a thread did that nobody follows; `processes` as it is by now, when another one
    /// may have the number.
    ///
    /// # Errors
    /// When the experiment can't be written.
    pub fn stay(
        &mut self,
        writer: &mut ExperimentWriter,
        processes: &Processes,
        stay: &Stay,
    ) -> experiment_format::Result<()> {
        if stay.ticks == 0 && stay.counted.is_none() {
            return Ok(());
        }
        let head = stay.head;
        let process = processes.with_serial(head.pid, stay.serial);
        let stack = match stay.kernel.is_empty() {
            true => self.user_frame(writer, process, head)?,
            false => self.kernel_stack(writer, &stay.kernel, stay.truncated, |_| {})?,
        };
        self.name_thread(writer, process, head)?;
        if let Some(counted) = stay.counted {
            return writer.counted(&counter_event(head, stack, counted));
        }
        let mut counts = [0; Microstate::PER_THREAD];
        counts[stay.state.number() as usize] = stay.ticks;
        self.recorded.arrays += 1;
        self.recorded.array_ticks += u64::from(stay.ticks);
        writer.tick_array(&TickArray {
            cpu: head.cpu,
            time: head.time_ns,
            stack,
            tid: head.tid,
            pid: head.pid,
            ticks: counts,
            detail: stay.detail.number(),
        })
    }

    fn name_thread(
        &mut self,
        writer: &mut ExperimentWriter,
        process: Option<&Process>,
        head: RecordHeader,
    ) -> experiment_format::Result<()> {
        let at = head.time_ns.saturating_sub(self.start);
        let Some(at) = self.names.tell(head.pid, head.tid, head.name.bytes(), at) else {
            return Ok(());
        };
        let name = match head.tid {
            0 => "swapper".to_owned(),
            _ => printable(head.name.bytes()),
        };
        let process = shown(
            head.pid,
            process.and_then(|process| process.name.as_deref()),
        );
        writer.log(&LogEvent::Thread {
            at,
            tid: head.tid,
            name,
            group: format!("{process}, pid {}", head.pid),
        })
    }

    /// Was the CPU in a trap: an interrupt, or an exception that is no page fault? Then its entry
    /// is at the root of the stack; a system call's and a kernel thread's roots are others.
    fn is_trap(&self, tick: &Tick) -> bool {
        let within = |pc: &u64| {
            let next = self.trap_entries.partition_point(|(from, _)| from <= pc);
            next > 0 && *pc < self.trap_entries[next - 1].1
        };
        tick.irq_work || tick.stack.frames.last().is_some_and(within)
    }

    /// The processes that have threads.
    #[must_use]
    pub fn living_processes(&self) -> HashSet<u32> {
        let living = self.accounts.living();
        living.map(|(thread, _)| thread.header.pid).collect()
    }

    /// Forgets the frames of processes that are no longer known.
    pub fn forget(&mut self, processes: &Processes) {
        self.user_frames
            .retain(|pid, _| processes.get(*pid).is_some());
    }

    fn idle(&mut self, writer: &mut ExperimentWriter) -> experiment_format::Result<StackUid> {
        if let Some(uid) = self.idle {
            return Ok(uid);
        }
        let uid = artificial(writer, 0, IDLE_ADDRESS, "<IDLE>".to_owned())?;
        self.idle = Some(uid);
        Ok(uid)
    }

    fn user_frame(
        &mut self,
        writer: &mut ExperimentWriter,
        process: Option<&Process>,
        head: RecordHeader,
    ) -> experiment_format::Result<StackUid> {
        let pid = head.pid;
        let serial = process.map_or(0, |process| process.serial);
        let name = process.and_then(|process| process.name.as_ref());
        if let Some(known) = self.user_frames.get(&pid)
            && known.serial == serial
            && known.name.as_ref() == name
        {
            return Ok(known.uid);
        }
        let function = format!("<{}_PID_{}>", shown(pid, name.map(|name| &**name)), pid);
        let at = head.time_ns.saturating_sub(self.start);
        let uid = artificial(writer, at, self.next_address, function)?;
        self.next_address += STEP;
        let name = name.cloned();
        self.user_frames
            .insert(pid, UserFrame { serial, name, uid });
        Ok(uid)
    }

    /// The frames of a kernel stack as they are in the experiment.
    fn frames(&self, stack: &KernelStack) -> Arc<[u64]> {
        let mut frames = stack.frames.to_vec();
        self.point_at_calls(&mut frames);
        frames.into()
    }

    /// The number of a kernel stack; `count` adds to its ticks.
    fn kernel_stack(
        &mut self,
        writer: &mut ExperimentWriter,
        kernel: &[u64],
        truncated: bool,
        count: impl FnOnce(&mut StackTicks),
    ) -> experiment_format::Result<StackUid> {
        let (mut frames, mut end) = (kernel.to_vec(), StackEnd::Complete);
        if truncated {
            frames.push(TRUNCATED);
            end = StackEnd::Truncated;
        }
        if let Some(known) = self.accounts.stacks.get_mut(&*frames) {
            count(known);
            return Ok(known.uid);
        }
        let uid = writer.stack(kernel, end)?;
        let mut ticks = StackTicks::new(uid);
        count(&mut ticks);
        self.accounts.stacks.insert(frames.into(), ticks);
        Ok(uid)
    }

    /// Notes a thread's absence; `processes` is as it was when the thread came back. Gives what it
    /// was: blocked, and waiting for a CPU.
    ///
    /// # Errors
    /// When the experiment can't be written.
    pub fn absence(
        &mut self,
        writer: &mut ExperimentWriter,
        processes: &Processes,
        absence: &OffCpu,
    ) -> experiment_format::Result<[Stay; 2]> {
        let (counts, head) = (absence.counts(), absence.header);
        self.recorded.truncated += u64::from(absence.stack.truncated);
        self.recorded.no_stack += u64::from(absence.stack.missing);
        let kernel = self.frames(&absence.stack);
        if !kernel.is_empty() {
            self.kernel_stack(writer, &kernel, absence.stack.truncated, |stack| {
                for (sum, ticks) in stack.away.iter_mut().zip(counts) {
                    *sum += u64::from(ticks);
                }
            })?;
        }
        let blocked = match absence.detail {
            Some(bpf_abi::Detail::BlockIo) => Detail::BlockIo,
            _ => Detail::None,
        };
        let waited = match absence.detail {
            Some(bpf_abi::Detail::Preempted) => Detail::Preempted,
            Some(bpf_abi::Detail::Throttled) => Detail::Throttled,
            _ => Detail::Woken,
        };
        let state = Microstate::ALL[usize::from(absence.state)];
        let serial = processes.get(head.pid).map_or(0, |process| process.serial);
        let stay = |state, ticks, detail| Stay {
            head,
            serial,
            kernel: Arc::clone(&kernel),
            truncated: absence.stack.truncated,
            state,
            ticks,
            detail,
            counted: None,
        };
        Ok([
            stay(state, absence.blocked, blocked),
            stay(Microstate::WaitCpu, absence.waited, waited),
        ])
    }

    /// Leaves out what is on top of the scheduler in a stack that was taken in it: our program, and
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

fn counter_event(head: RecordHeader, stack: StackUid, counted: Counted) -> CounterEvent {
    CounterEvent {
        cpu: head.cpu,
        time: head.time_ns,
        stack,
        tid: head.tid,
        pid: head.pid,
        tag: counted.tag,
        value: counted.value,
    }
}

fn owner(processes: &Processes, head: RecordHeader) -> Owner {
    let process = processes.get(head.pid);
    Owner {
        pid: head.pid,
        serial: process.map_or(0, |process| process.serial),
        tid: head.tid,
        name: shown(
            head.pid,
            process.and_then(|process| process.name.as_deref()),
        ),
    }
}

/// A process's name as the experiment and the summary show it.
fn shown(pid: u32, name: Option<&[u8]>) -> String {
    match name {
        Some(name) => printable(name),
        None if pid == 0 => "swapper".to_owned(),
        None => "unknown".to_owned(),
    }
}

fn artificial(
    writer: &mut ExperimentWriter,
    at: u64,
    vaddr: u64,
    name: String,
) -> experiment_format::Result<StackUid> {
    writer.map(&MapEvent::Function {
        at,
        vaddr,
        size: STEP,
        name,
    })?;
    writer.stack(&[vaddr], StackEnd::Complete)
}

/// The entry of x86-64's page faults.
const PAGE_FAULT_ENTRY: &str = "asm_exc_page_fault";

/// Is it where interrupts and exceptions enter the kernel? The frame under such a function was
/// interrupted, it called nothing. x86-64's entry stubs begin with `asm_`, aarch64's with
/// `el1h_64_`.
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

/// Where the functions lie that have such a name, in order.
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
        let recorder = Recorder::new(0, 1, &Symbols::parse(text).unwrap(), &[]);
        let mut stack = KernelStack {
            frames: Box::new([0xf000, 0x1010, 0x1120, 0x1210]),
            ..KernelStack::default()
        };
        recorder.drop_own_frames(&mut stack);
        assert_eq!(*stack.frames, [0x1120, 0x1210]);
        stack.frames = Box::new([0xf000, 0x1210]);
        recorder.drop_own_frames(&mut stack);
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
        let symbols = Symbols::parse(text).unwrap();
        let recorder = Recorder::new(0, 1, &symbols, &[]);
        let mut frames = [0x1150, 0x1010, 0x1200, 0x1310];
        recorder.point_at_calls(&mut frames);
        assert_eq!(frames, [0x1150, 0x100f, 0x1200, 0x130f]);
    }
}
