//! The writer of the machine's experiment, `ktest.1.er`, from its first byte to its last. gprofng
//! calls it the founder of the subexperiments in it.
//!
//! Each tick of a CPU is Kernel CPU, as er_kernel has it. Each state interval of a thread that no
//! subexperiment holds is one packet. A tick in the kernel has its kernel stack; one in user mode
//! and one of an idle or stolen CPU have an artificial frame (`frames`).

mod frames;

use std::collections::HashSet;
use std::rc::Rc;

use bpf::UserStackCapture;
use bpf_abi::{KernelStack, RecordHeader, ThreadRecord};
use counters::names::event::CounterRequest;
use experiment_format::Error;
use experiment_format::cause::Cause;
use experiment_format::directory::ExperimentDir;
use experiment_format::ids::{Pid, Tid};
use experiment_format::log::LogEvent;
use experiment_format::losses::Losses;
use experiment_format::map::MapEvent;
use experiment_format::microstate::Microstate;
use experiment_format::packet::Detail;
use experiment_format::stacks::{StackEnd, StackUid};
use experiment_format::text::printable;
use experiment_format::units::{Nanos, Ticks};
use experiment_format::writer::ExperimentWriter;
use user_collector::process::ThreadNames;
use user_collector::written_code::ObjectMaps;

use self::frames::ArtificialFrames;
use super::accounts::Accounts;
use super::code::KernelCode;
use super::decode::{CpuOverflow, CpuTick, OffCpu};
use super::header::{self, Inherited};
use super::samples::Samples;
use super::shown_names::{name_of, shown_name};
use super::times::Times;
use crate::plan::{Archive, Plan};
use crate::record::activity::TypedHeader;
use crate::record::activity::{ActivityKind, StateInterval, ThreadActivity, ThreadEvent};
use crate::record::processes::{Process, Processes};

/// What was recorded, and how complete it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MachineCounts {
    /// Ticks of CPUs written.
    pub ticks: Ticks,
    /// Packets of them written; one carries several ticks when a timer was late.
    pub packets: u64,
    /// Packets of threads' ticks written.
    pub thread_packets: u64,
    /// Ticks in them.
    pub thread_ticks: Ticks,
    /// Ticks of processes whose name is not known.
    pub unnamed: Ticks,
    /// Ticks and off-CPU intervals whose stack was cut at the kernel's depth limit.
    pub truncated: u64,
    /// Ticks and off-CPU intervals without a kernel stack: the kernel returned no stack, or the
    /// thread was off the CPU for a known time without a recorded switch.
    pub no_stack: u64,
    /// Ticks in which an interrupt or softirq had borrowed the CPU.
    pub irq_work: Ticks,
    /// Overflows of counters written.
    pub overflows: u64,
}

/// The experiment of the machine, being written.
#[derive(Debug)]
pub struct MachineWriter {
    writer: ExperimentWriter,
    start_ns: Nanos,
    archive: Archive,
    frames: ArtificialFrames,
    names: ThreadNames,
    /// Where ticks and off-CPU intervals were in the kernel, if only used load objects are
    /// archived.
    used_addresses: HashSet<u64>,
    samples: Samples,
    /// Counts for the summary.
    pub recorded: MachineCounts,
}

impl MachineWriter {
    /// Writes what precedes the first tick: header, notes, the kernel's load objects,
    /// with their text where it can be read. On failure the experiment is removed. Returns what its
    /// subexperiments inherit too.
    ///
    /// The experiment's time begins here, with recording paused: so it can be opened from the first
    /// instant on, and the writing of images is not in the profile.
    ///
    /// # Errors
    /// When the experiment can't be written.
    pub fn create(
        dir: ExperimentDir,
        (plan, counters): (&Plan, &[CounterRequest]),
        (kernel, older): (&mut KernelCode, Option<&ExperimentDir>),
        (capture, start_ns): (Option<UserStackCapture>, Nanos),
        mut say: impl FnMut(&str),
    ) -> Result<(MachineWriter, Inherited), Error> {
        let run = header::run(start_ns);
        let header = header::header(plan, counters, capture);
        let mut machine = MachineWriter {
            writer: ExperimentWriter::create(dir, &header, run)?,
            start_ns,
            archive: plan.archive,
            frames: ArtificialFrames::new(),
            names: ThreadNames::default(),
            used_addresses: HashSet::new(),
            samples: Samples::new(start_ns, plan.tick_interval.nanos()),
            recorded: MachineCounts::default(),
        };
        match machine.write_start(plan, (kernel, older), &mut say) {
            Ok(maps) => {
                let mut kernel = ObjectMaps::default();
                kernel.extend(maps);
                let inherited = Inherited {
                    dir: Rc::clone(machine.writer.dir()),
                    header,
                    run,
                    kernel,
                };
                Ok((machine, inherited))
            }
            Err(error) => {
                // The first error is the one to report.
                let _ = machine.discard();
                Err(error)
            }
        }
    }

    fn write_start(
        &mut self,
        plan: &Plan,
        (kernel, older): (&mut KernelCode, Option<&ExperimentDir>),
        say: &mut impl FnMut(&str),
    ) -> Result<Vec<MapEvent>, Error> {
        self.writer.log(&LogEvent::Pause {
            at_ns: Nanos::ZERO,
            name: None,
        })?;
        for comment in &plan.comments {
            self.writer.note(comment)?;
        }
        for notice in &plan.notices {
            self.writer.warning(Nanos::ZERO, notice)?;
        }
        if self.archive == Archive::Off {
            return Ok(Vec::new());
        }
        let dirs = (self.dir(), older);
        let maps = kernel.archive(dirs, self.archive, say)?;
        self.kernel_objects(&maps)?;
        Ok(maps)
    }

    /// Writes a tick of a CPU; `process` is as it was at the tick's time.
    ///
    /// # Errors
    /// When the experiment can't be written.
    pub fn cpu_tick(&mut self, process: Option<&Process>, tick: &CpuTick) -> Result<(), Error> {
        let header = tick.header;
        self.name_thread(process, &header)?;
        self.count_stack(&tick.stack);
        if tick.stolen > Ticks::ZERO {
            let stack = self.frames.stolen(&mut self.writer)?;
            self.write_cpu_tick(&header, stack, tick.stolen)?;
        }
        if tick.ticks == Ticks::ZERO {
            return Ok(());
        }
        let stack = match tick.state {
            None => self.frames.idle(&mut self.writer)?,
            Some(_) => self.stack(process, &header, &tick.stack.frames, tick.stack.truncated)?,
        };
        self.write_cpu_tick(&header, stack, tick.ticks)?;
        self.recorded.irq_work += if tick.irq_work {
            tick.ticks
        } else {
            Ticks::ZERO
        };
        let name = process.and_then(|process| process.name.as_deref());
        if tick.state.is_some() && name.is_none() && header.pid() != Pid(0) {
            self.recorded.unnamed += tick.ticks;
        }
        Ok(())
    }

    fn write_cpu_tick(
        &mut self,
        header: &RecordHeader,
        stack: StackUid,
        ticks: Ticks,
    ) -> Result<(), Error> {
        let interval = StateInterval {
            state: Microstate::KernelCpu,
            ticks,
            detail: Detail::None,
            cause: Cause::Undecided,
            waker: Tid(0),
        };
        self.writer.tick(&interval.packet(header, stack))?;
        self.recorded.ticks += ticks;
        self.recorded.packets += 1;
        Ok(())
    }

    /// Writes an overflow of a counter on a CPU; `process` is as it was at its time.
    ///
    /// # Errors
    /// When the experiment can't be written.
    pub fn cpu_overflow(
        &mut self,
        process: Option<&Process>,
        overflow: &CpuOverflow,
    ) -> Result<(), Error> {
        let thread = &overflow.thread;
        let stack = self.stack(process, &thread.header, &thread.kernel, thread.truncated)?;
        self.name_thread(process, &thread.header)?;
        self.writer
            .counted(&overflow.cpu.packet(&thread.header, stack))?;
        self.recorded.overflows += 1;
        Ok(())
    }

    /// Notes the kernel stack of an off-CPU interval.
    pub fn note_off_cpu(&mut self, off_cpu: &OffCpu) {
        self.count_stack(&off_cpu.stack);
        self.note_kernel_stack(&off_cpu.stack.frames);
    }

    fn note_kernel_stack(&mut self, frames: &[u64]) {
        if self.archive == Archive::UsedLoadObjects {
            self.used_addresses.extend(frames);
        }
    }

    /// Writes what a thread did that no subexperiment holds; `process` may be of a later time,
    /// when another process has its number.
    ///
    /// # Errors
    /// When the experiment can't be written.
    pub fn activity(
        &mut self,
        process: Option<&Process>,
        activity: &ThreadActivity,
    ) -> Result<(), Error> {
        let header = &activity.header;
        match &activity.kind {
            ActivityKind::Interval(interval) if interval.ticks > Ticks::ZERO => {
                let stack = self.stack_of(process, activity)?;
                self.recorded.thread_packets += 1;
                self.recorded.thread_ticks += interval.ticks;
                self.writer.tick(&interval.packet(header, stack))
            }
            ActivityKind::Event(ThreadEvent::Overflow(overflow)) => {
                let stack = self.stack_of(process, activity)?;
                self.writer.counted(&overflow.packet(header, stack))
            }
            // Only followed processes are traced.
            ActivityKind::Interval(_) | ActivityKind::Event(_) => Ok(()),
        }
    }

    /// The number of the stack of what a thread did. Writes the name of the thread too, if it is
    /// new.
    fn stack_of(
        &mut self,
        process: Option<&Process>,
        activity: &ThreadActivity,
    ) -> Result<StackUid, Error> {
        let header = &activity.header;
        let stack = self.stack(process, header, &activity.kernel, activity.truncated)?;
        self.name_thread(process, header)?;
        Ok(stack)
    }

    /// Writes the sample of a thread that exited, with its times; `process` is the name of its
    /// process.
    ///
    /// # Errors
    /// When the experiment can't be written.
    pub fn thread_exited(
        &mut self,
        process: &str,
        thread: &ThreadRecord,
        times: &Times,
    ) -> Result<(), Error> {
        self.samples.ended(&mut self.writer, process, thread, times)
    }

    /// Returns how often a thread had a name that is not in the experiment, because it had too
    /// many.
    #[must_use]
    pub fn unwritten_names(&self) -> u64 {
        self.names.unwritten()
    }

    /// Writes a sample of an instant up to which `accounts` are complete.
    ///
    /// # Errors
    /// When the experiment can't be written.
    pub fn sample(
        &mut self,
        processes: &Processes,
        accounts: &Accounts,
        at_ns: Nanos,
        label: &str,
    ) -> Result<(), Error> {
        let name = |pid| name_of(processes, pid);
        self.samples
            .take(&mut self.writer, accounts, name, at_ns, label)
    }

    /// Writes where the kernel's load objects are, or that they are gone.
    ///
    /// # Errors
    /// When the experiment can't be written.
    pub fn kernel_objects(&mut self, maps: &[MapEvent]) -> Result<(), Error> {
        maps.iter().try_for_each(|event| self.writer.map(event))
    }

    /// Where ticks and off-CPU intervals were in the kernel, if only used load objects are
    /// archived.
    #[must_use]
    pub fn used_addresses(&self) -> &HashSet<u64> {
        &self.used_addresses
    }

    /// Writes the losses into the header that every report shows: zeros as a comment, anything else
    /// as a warning.
    ///
    /// # Errors
    /// When the log can't be written.
    pub fn log_losses(&mut self, now_ns: Nanos, losses: &Losses) -> Result<(), Error> {
        let text = losses.line();
        self.log_at(now_ns, |at_ns| {
            if losses.none() {
                LogEvent::Comment { at_ns, text }
            } else {
                LogEvent::Warning { at_ns, text }
            }
        })
    }

    /// Drops the frames of processes that are gone.
    pub fn evict(&mut self, processes: &Processes) {
        self.frames.evict(processes);
    }

    /// Writes an event of the run: pause, resume, comment. It is made from its time in the
    /// experiment; `now_ns` is CLOCK_MONOTONIC nanoseconds.
    ///
    /// # Errors
    /// When the log can't be written.
    pub fn log_at(
        &mut self,
        now_ns: Nanos,
        event: impl FnOnce(Nanos) -> LogEvent,
    ) -> Result<(), Error> {
        self.writer.log(&event(self.at(now_ns)))
    }

    /// Returns an instant of CLOCK_MONOTONIC in the experiment's time.
    fn at(&self, now_ns: Nanos) -> Nanos {
        now_ns.saturating_sub(self.start_ns)
    }

    /// The experiment's directory.
    #[must_use]
    pub fn dir(&self) -> &ExperimentDir {
        self.writer.dir()
    }

    /// What is archived (`-A`).
    #[must_use]
    pub fn archive(&self) -> Archive {
        self.archive
    }

    /// The zero of the experiment's times, CLOCK_MONOTONIC nanoseconds.
    #[must_use]
    pub fn start_ns(&self) -> Nanos {
        self.start_ns
    }

    /// Bytes written, archives not counted.
    #[must_use]
    pub fn bytes_written(&self) -> u64 {
        self.writer.bytes_written()
    }

    /// Writes a file of our own as a whole.
    ///
    /// # Errors
    /// When it can't be written.
    pub fn side_file(&mut self, name: &str, text: &str) -> Result<(), Error> {
        self.writer.side_file(name, text.as_bytes())
    }

    /// Removes the experiment, after a start that failed late.
    ///
    /// # Errors
    /// When it can't be removed.
    pub fn discard(self) -> Result<(), Error> {
        self.writer.dir().remove_all()
    }

    /// Closes the experiment. `stopped_ns` is when recording stopped.
    ///
    /// # Errors
    /// When the closing can't be written.
    pub fn close(self, stopped_ns: Nanos) -> Result<(), Error> {
        let at = self.at(stopped_ns);
        self.writer.close(at).map(drop)
    }

    fn count_stack(&mut self, stack: &KernelStack) {
        self.recorded.truncated += u64::from(stack.truncated);
        self.recorded.no_stack += u64::from(stack.missing);
    }

    /// Names a thread in the log, unless it already has this name there.
    fn name_thread(
        &mut self,
        process: Option<&Process>,
        header: &RecordHeader,
    ) -> Result<(), Error> {
        let at = self.at(header.time_ns());
        let name = header.name.bytes();
        let Some(at) = self.names.update(header.pid(), header.tid(), name, at) else {
            return Ok(());
        };
        let process = process.and_then(|process| process.name.as_deref());
        let name = match header.tid() {
            Tid(0) => "swapper".to_owned(),
            _ if name.is_empty() => shown_name(header.pid(), process),
            _ => printable(name),
        };
        self.writer.log(&LogEvent::Thread {
            at_ns: at,
            tid: header.tid(),
            name,
            group: format!(
                "{}, pid {}",
                shown_name(header.pid(), process),
                header.pid()
            ),
        })
    }

    /// The number of the kernel stack, or if it is empty, of the stack that stands for the process
    /// in user mode.
    fn stack(
        &mut self,
        process: Option<&Process>,
        header: &RecordHeader,
        frames: &[u64],
        truncated: bool,
    ) -> Result<StackUid, Error> {
        if frames.is_empty() {
            let at = self.at(header.time_ns());
            return self
                .frames
                .user(&mut self.writer, process, header.pid(), at);
        }
        self.note_kernel_stack(frames);
        let end = if truncated {
            StackEnd::Truncated
        } else {
            StackEnd::Complete
        };
        self.writer.stack(frames, end)
    }
}
