//! The user collector: the subexperiment of one followed process.
//!
//! Tick arrays of its threads with the kernel's frames above the user frames that called them, what
//! is mapped in it as it changes, the functions that a JIT compiler makes, the names of its
//! threads, and a sample of the whole process whenever one is taken. All of that comes in time
//! order; it is written in batches, and no file stays open in between, since there may be thousands
//! of collectors.

mod kernel_objects;
mod used_objects;

use std::collections::HashSet;

use experiment_format::Result;
use experiment_format::directory::ExperimentDir;
use experiment_format::ids::{Pid, Tid};
use experiment_format::log::{LogEvent, LogHeader, StartTime};
use experiment_format::map::{MapEvent, READ_EXECUTE};
use experiment_format::microstate::Microstate;
use experiment_format::packet::{CounterEvent, Detail, HeapEvent, IoEvent, SyncEvent, TickArray};
use experiment_format::stacks::{StackEnd, StackUid};
use experiment_format::subexperiment::SubexperimentWriter;
use experiment_format::text::printable;
use experiment_format::usage::UsageRecord;

use crate::io_calls::Operation;
use crate::jit::{self, FunctionCode, JitChange};
use crate::memory::Change;
use crate::objects::ObjectId;
use crate::process::ThreadNames;
use crate::space::Mapping;
use crate::space::{MappingChange, MappingEvent, mappings_between};
use kernel_objects::KernelObjects;
pub use used_objects::UsedObjects;

/// Buffered data are written when there are this many bytes,
const FLUSH_BYTES: usize = 64 << 10;
/// or when they are this old.
const FLUSH_AFTER_NS: u64 = 2_000_000_000;
/// Most mappings that are written of one process, about 12 MB: as many as one can have at a time
/// (vm.max_map_count).
const MAX_SEGMENTS: u64 = 65_536;
/// Most bytes of mappings and functions that are written of one process: readers refuse a larger
/// `map.xml` than twice this.
const MAX_MAP_BYTES: u64 = 128 << 20;

/// The stack of a thread at an instant.
#[derive(Clone, Copy, Debug)]
pub struct ThreadStack<'a> {
    /// When it was captured, nanoseconds of the events' clock.
    pub at: u64,
    /// The CPU.
    pub cpu: u32,
    /// The thread.
    pub tid: Tid,
    /// Its name.
    pub name: &'a [u8],
    /// Kernel frames and user frames, leaf first, callers as addresses inside the call.
    pub frames: &'a [u64],
    /// How they end.
    pub end: StackEnd,
}

/// Time of one thread in one state with one stack.
#[derive(Clone, Copy, Debug)]
pub struct StateTicks<'a> {
    /// The thread and its stack.
    pub thread: ThreadStack<'a>,
    /// The state.
    pub state: Microstate,
    /// Interval boundaries in it.
    pub ticks: u32,
    /// What else is known of the state.
    pub detail: Detail,
}

/// A followed process's experiment, being written.
#[derive(Debug)]
pub struct Collector {
    writer: SubexperimentWriter,
    pid: Pid,
    start: u64,
    group: String,
    names: ThreadNames,
    /// First addresses of the load objects that are mapped,
    segments: HashSet<u64>,
    segments_written: u64,
    /// and of the dynamic functions that live.
    functions: HashSet<u64>,
    flushed: u64,
    used: Option<UsedObjects>,
    kernel: KernelObjects,
    /// Tick arrays written.
    pub arrays: u64,
    /// Mappings not written, because there were more than 65,536 of this process, or no room,
    pub unwritten_mappings: u64,
    /// functions made at run time that there was no room for,
    pub unwritten_functions: u64,
    /// and such functions whose machine code there was no room for.
    pub unwritten_code: u64,
    /// Bytes that may still be written of what gives stacks their names: mappings, functions and
    /// their code.
    pub room: u64,
    map_bytes: u64,
}

impl Collector {
    /// Creates the experiment in the founder's directory. `run` has the zero of its times.
    ///
    /// # Errors
    /// It can't be written.
    pub fn create(
        founder: &ExperimentDir,
        name: &str,
        header: &LogHeader,
        run: StartTime,
    ) -> Result<Collector> {
        let start = run.tstamp_ns;
        Ok(Collector {
            writer: SubexperimentWriter::create(founder, name, header, run)?,
            pid: header.pid,
            start,
            group: format!("pid {}", header.pid),
            names: ThreadNames::default(),
            segments: HashSet::new(),
            segments_written: 0,
            functions: HashSet::new(),
            flushed: start,
            used: None,
            kernel: KernelObjects::default(),
            arrays: 0,
            unwritten_mappings: 0,
            unwritten_functions: 0,
            unwritten_code: 0,
            room: u64::MAX,
            map_bytes: 0,
        })
    }

    /// Notes from here on which load objects its stacks are in. To be called before anything is
    /// mapped.
    pub fn note_used_objects(&mut self) {
        self.used = Some(UsedObjects::default());
    }

    /// Returns which load objects its stacks are in, where that is noted.
    pub fn used_objects(&mut self) -> Option<&mut UsedObjects> {
        self.used.as_mut()
    }

    /// Its directory's name.
    pub fn name(&self) -> &str {
        self.writer.name()
    }

    /// Writes what was mapped and unmapped, by time. `object` returns the load object of a mapping
    /// and its name; a report could not open an object without a name.
    ///
    /// # Errors
    /// It can't be written.
    pub fn write_mappings(
        &mut self,
        changes: &[MappingChange],
        mut object: impl FnMut(&Mapping) -> Option<(ObjectId, String)>,
    ) -> Result<()> {
        for change in changes {
            let at = self.at(change.at);
            let event = match &change.event {
                // Where memory without a file begins, a dynamic function may begin too: it would
                // end.
                MappingEvent::Unmap(vaddr) => {
                    self.segments.remove(vaddr).then_some(MapEvent::Unmap {
                        at_ns: at,
                        vaddr: *vaddr,
                    })
                }
                MappingEvent::Map(_) if self.segments_written >= MAX_SEGMENTS || self.is_full() => {
                    self.unwritten_mappings += 1;
                    None
                }
                MappingEvent::Map(mapping) => object(mapping).map(|(id, name)| {
                    if let Some(used) = &mut self.used {
                        used.mapped(mapping, id);
                    }
                    MapEvent::Segment {
                        at_ns: at,
                        vaddr: mapping.start,
                        size: mapping.end - mapping.start,
                        file_offset: mapping.offset,
                        modes: READ_EXECUTE,
                        name,
                    }
                }),
            };
            if let Some(MapEvent::Segment { vaddr, .. }) = event {
                self.segments.insert(vaddr);
                self.segments_written += 1;
            }
            event.map_or(Ok(()), |event| self.write_name(&event))?;
        }
        Ok(())
    }

    /// Returns whether no further mapping or function is written. What was written still ends.
    fn is_full(&self) -> bool {
        self.room == 0 || self.map_bytes >= MAX_MAP_BYTES
    }

    fn write_name(&mut self, event: &MapEvent) -> Result<()> {
        let before = self.writer.bytes_written();
        self.writer.map(event)?;
        let bytes = self.writer.bytes_written() - before;
        self.map_bytes += bytes;
        self.room = self.room.saturating_sub(bytes);
        Ok(())
    }

    /// Writes the load objects of these kernel frames, without which the frames have no names.
    /// `all` has the places of the kernel's load objects; it is the same every time, with later
    /// events at its end, which are looked at even without frames.
    ///
    /// # Errors
    /// It can't be written.
    pub fn write_kernel_objects(&mut self, frames: &[u64], all: &[MapEvent]) -> Result<()> {
        let new = self.kernel.add_frames(frames, all);
        new.into_iter().try_for_each(|event| self.writer.map(event))
    }

    /// Writes functions that began and ended in memory without a file. `code` is what is mapped in
    /// the process.
    ///
    /// A perf map may name functions of a file too, as node's does its builtins. A report would not
    /// accept them there, and the file has its own; and one that reached into a file from before it
    /// would make the whole file unknown to a report.
    ///
    /// # Errors
    /// It can't be written.
    pub fn write_functions(&mut self, changes: &[JitChange], code: &[Mapping]) -> Result<()> {
        let in_file = |address: u64, size: u64| {
            mappings_between(code, address, address.saturating_add(size))
                .any(|mapping| !jit::is_anonymous(&mapping.file))
        };
        for change in changes {
            match change {
                JitChange::Begin { address, size, .. } if in_file(*address, *size) => continue,
                JitChange::Begin { .. } if self.is_full() => {
                    self.unwritten_functions += 1;
                    continue;
                }
                JitChange::Begin { address, .. } => {
                    self.functions.insert(*address);
                }
                // One that was not written does not end.
                JitChange::End { address, .. } if !self.functions.remove(address) => continue,
                JitChange::End { .. } => {}
            }
            let event = match change {
                JitChange::Begin {
                    at,
                    address,
                    size,
                    name,
                    ..
                } => MapEvent::Function {
                    at_ns: self.at(*at),
                    vaddr: *address,
                    size: *size,
                    name: name.to_string(),
                },
                JitChange::End { at, address, .. } => MapEvent::Unmap {
                    at_ns: self.at(*at),
                    vaddr: *address,
                },
            };
            self.write_name(&event)?;
        }
        Ok(())
    }

    /// Returns whether a function that was written begins at an address and has not ended.
    pub fn has_function(&self, address: u64) -> bool {
        self.functions.contains(&address)
    }

    /// Writes the machine code of functions that were written before.
    ///
    /// # Errors
    /// It can't be written.
    pub fn write_function_codes(&mut self, codes: &[FunctionCode]) -> Result<()> {
        for FunctionCode { at, address, code } in codes {
            let bytes = code.len() as u64;
            if self.room < bytes {
                self.unwritten_code += 1;
                continue;
            }
            self.room -= bytes;
            self.writer.dynamic_code(self.at(*at), *address, code)?;
        }
        Ok(())
    }

    /// Writes a tick array.
    ///
    /// # Errors
    /// It can't be written.
    pub fn write_ticks(&mut self, of_state: &StateTicks<'_>) -> Result<()> {
        let stack = self.stack(&of_state.thread)?;
        let mut ticks = [0; Microstate::PER_THREAD];
        ticks[of_state.state.number() as usize] = of_state.ticks;
        self.arrays += 1;
        self.writer.tick_array(&TickArray {
            cpu: of_state.thread.cpu,
            time_ns: of_state.thread.at,
            stack,
            tid: of_state.thread.tid,
            pid: self.pid,
            ticks,
            detail: of_state.detail.number(),
        })
    }

    /// Writes that a counter has overflowed in a thread: which one, and how many events that stands
    /// for.
    ///
    /// # Errors
    /// It can't be written.
    pub fn write_overflow(&mut self, thread: &ThreadStack<'_>, tag: u32, value: u64) -> Result<()> {
        let stack = self.stack(thread)?;
        self.writer.counted(&CounterEvent {
            cpu: thread.cpu,
            time_ns: thread.at,
            stack,
            tid: thread.tid,
            pid: self.pid,
            tag,
            value,
        })
    }

    /// Writes that a thread has waited for a lock: since when, which lock, and the kind of the
    /// wait.
    ///
    /// # Errors
    /// It can't be written.
    pub fn write_wait(
        &mut self,
        thread: &ThreadStack<'_>,
        requested: u64,
        object: u64,
        kind: u32,
    ) -> Result<()> {
        let stack = self.stack(thread)?;
        self.writer.waited(&SyncEvent {
            cpu: thread.cpu,
            requested_ns: requested,
            ended_ns: thread.at,
            stack,
            tid: thread.tid,
            pid: self.pid,
            object,
            kind,
        })
    }

    /// Writes that a thread has made a system call that does I/O, or what a descriptor is called.
    ///
    /// # Errors
    /// It can't be written.
    pub fn write_call(&mut self, thread: &ThreadStack<'_>, operation: &Operation) -> Result<()> {
        let stack = self.stack(thread)?;
        self.writer.called(&IoEvent {
            cpu: thread.cpu,
            requested_ns: operation.begin_ns,
            ended_ns: operation.end_ns,
            stack,
            tid: thread.tid,
            pid: self.pid,
            kind: operation.kind,
            failed: operation.failed,
            descriptor: operation.descriptor,
            bytes: operation.bytes,
            duplicated: operation.duplicated,
            call: operation.call,
            name: operation.name.as_deref().map(Box::from),
        })
    }

    /// Writes that memory of the process came or went, by a thread.
    ///
    /// # Errors
    /// It can't be written.
    pub fn write_memory(&mut self, thread: &ThreadStack<'_>, change: &Change) -> Result<()> {
        let stack = self.stack(thread)?;
        self.writer.allocated(&HeapEvent {
            cpu: thread.cpu,
            time_ns: thread.at,
            stack,
            tid: thread.tid,
            pid: self.pid,
            kind: change.kind,
            bytes: change.bytes,
            address: change.address,
        })
    }

    /// Interns a thread's stack, after writing the name of the thread if it is new.
    fn stack(&mut self, thread: &ThreadStack<'_>) -> Result<StackUid> {
        if let Some(at) = self
            .names
            .update(self.pid, thread.tid, thread.name, self.at(thread.at))
        {
            self.writer.log(&LogEvent::Thread {
                at_ns: at,
                tid: thread.tid,
                name: printable(thread.name),
                group: self.group.clone(),
            })?;
        }
        let stack = self.writer.stack(thread.frames, thread.end)?;
        if let Some(used) = &mut self.used {
            used.stack(stack, thread.frames);
        }
        Ok(stack)
    }

    /// Writes a sample of the process at an instant.
    ///
    /// # Errors
    /// It can't be written.
    pub fn write_sample(&mut self, at: u64, label: &str, usage: &UsageRecord) -> Result<()> {
        self.writer.sample(self.at(at), label, usage)
    }

    /// Writes an event, made from its time in the experiment.
    ///
    /// # Errors
    /// It can't be written.
    pub fn write_log(&mut self, at: u64, event: impl FnOnce(u64) -> LogEvent) -> Result<()> {
        self.writer.log(&event(self.at(at)))
    }

    /// Returns the bytes written, buffered ones included.
    pub fn bytes_written(&self) -> u64 {
        self.writer.bytes_written()
    }

    /// Writes buffered data if they are many or old. To be called once a round.
    ///
    /// # Errors
    /// It can't be written.
    pub fn maintain(&mut self, founder: &ExperimentDir, now: u64) -> Result<()> {
        let waits = self.writer.buffered();
        if waits == 0 || (waits < FLUSH_BYTES && now.saturating_sub(self.flushed) < FLUSH_AFTER_NS)
        {
            return Ok(());
        }
        self.flushed = now;
        self.writer.flush(founder)
    }

    /// Writes what waits in memory.
    ///
    /// # Errors
    /// It can't be written.
    pub fn flush(&mut self, founder: &ExperimentDir) -> Result<()> {
        self.writer.flush(founder)
    }

    /// Ends the experiment at an instant.
    ///
    /// # Errors
    /// It can't be written.
    pub fn close(mut self, founder: &ExperimentDir, at: u64) -> Result<()> {
        let at = self.at(at);
        let (mappings, functions) = (self.unwritten_mappings, self.unwritten_functions);
        if mappings > 0 {
            let text = format!(
                "{mappings} mappings are not in this experiment, because the process had more than {MAX_SEGMENTS}, or beyond a limit (-L): stacks there have no names"
            );
            self.writer.warning(at, &text)?;
        }
        if functions > 0 {
            let text = format!(
                "{functions} functions made at run time are not in this experiment, because they were beyond a limit (-L, or {} MB of one process): they have no names",
                MAX_MAP_BYTES >> 20
            );
            self.writer.warning(at, &text)?;
        }
        self.writer.close(founder, at)
    }

    fn at(&self, time: u64) -> u64 {
        time.saturating_sub(self.start)
    }
}
