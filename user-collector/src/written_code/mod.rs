//! The code of one followed process, as far as it is written into its experiment: where load
//! objects are mapped, and JIT functions with their machine code.
//!
//! A process maps much more code than its stacks are in. So what has no frame of a stack is kept,
//! within bounds, until one has.

mod byte_budget;
mod unused_functions;
mod used_objects;
mod written_maps;

use std::collections::{BTreeMap, HashMap, HashSet};

use experiment_format::Result;
use experiment_format::map::{MapEvent, READ_EXECUTE};
use experiment_format::stacks::{StackEnd, StackUid};
use experiment_format::units::Nanos;
use experiment_format::writer::ExperimentWriter;

use crate::jit::{self, FunctionCode, JitChange};
use crate::objects::ObjectId;
use crate::space::{Mapping, MappingChange, MappingEvent, mapping_at, mappings_between};
pub use byte_budget::ByteBudget;
use unused_functions::{SeenFrames, UnusedFunctions};
pub use used_objects::UsedObjects;
pub use written_maps::ObjectMaps;
use written_maps::WrittenMaps;

/// Max number of a process's mappings that are written, about 12 MB: as many as a process can have
/// at a time (vm.max_map_count).
const MAX_SEGMENTS: u64 = 65_536;
/// Max events of mappings that are kept of one process for later stacks, about 250 KB. Of one that
/// has more, all are written.
const MAX_KEPT_MAPS: usize = 1000;
/// Max addresses of stacks that are kept of one process for later mappings, likewise.
const MAX_KEPT_ADDRESSES: usize = 10_000;
/// Max bytes of mappings and functions that are written of one process: readers refuse a `map.xml`
/// of more than twice this.
const MAX_MAP_BYTES: u64 = 128 << 20;
/// Beyond this, only functions that have a frame in some stack are written.
const MAX_UNUSED_MAP_BYTES: u64 = MAX_MAP_BYTES / 2;

/// Max bytes of the event that ends a mapping or a function, whatever its time and its address.
const MAX_END_BYTES: u64 = 80;

/// Where a file is mapped.
#[derive(Clone, Copy, Debug)]
struct Segment {
    /// When it was mapped, nanoseconds of the events' clock.
    at_ns: Nanos,
    /// First address after it.
    end: u64,
    object: ObjectId,
}

/// The code of a followed process, as its experiment has it. All methods that write get the
/// experiment's writer, which is always the same.
#[derive(Debug)]
pub struct WrittenCode {
    start_ns: Nanos,
    /// Where the process's load objects are and were; None if all of them are written.
    maps: Option<ObjectMaps>,
    /// Those that are mapped, by their first addresses.
    segments: BTreeMap<u64, Segment>,
    /// Files that hold JIT functions. Where they are mapped is not written: a report would name the
    /// functions by the file.
    function_files: HashSet<ObjectId>,
    segments_seen: u64,
    /// Which of them are written: those in which stacks have a frame.
    written: WrittenMaps,
    /// First addresses of those that were left out because of the limit of bytes.
    left_out: HashSet<u64>,
    /// How many were written that have not ended.
    segments_to_end: u64,
    /// The JIT functions that were written and have not ended, by their first addresses, with the
    /// times of their beginnings.
    functions: HashMap<u64, Nanos>,
    /// Those that are written when a stack has a frame in them.
    unused_functions: UnusedFunctions,
    seen_frames: SeenFrames,
    /// The load objects that stacks are in, if they are noted.
    pub used: Option<UsedObjects>,
    kernel: WrittenMaps,
    newest_stack: Option<StackUid>,
    /// Mappings that were not written, because of `MAX_SEGMENTS` or a limit of bytes.
    pub unwritten_mappings: u64,
    /// JIT functions that were not written, because of a limit of bytes, and are not
    /// [kept](WrittenCode::unused_functions) for a stack with a frame in them.
    pub unwritten_functions: u64,
    /// JIT functions whose machine code was not written, because of a limit of bytes.
    pub unwritten_code: u64,
    budget: ByteBudget,
    map_bytes: u64,
    max_unused_bytes: u64,
}

impl WrittenCode {
    /// No code yet. Times of the experiment count from `start_ns`; `budget` limits what is written.
    /// With `notes_used`, the load objects that stacks are in are noted.
    #[must_use]
    pub fn new(start_ns: Nanos, budget: ByteBudget, notes_used: bool) -> WrittenCode {
        WrittenCode {
            start_ns,
            maps: Some(ObjectMaps::default()),
            segments: BTreeMap::new(),
            function_files: HashSet::new(),
            segments_seen: 0,
            written: WrittenMaps::default(),
            left_out: HashSet::new(),
            segments_to_end: 0,
            functions: HashMap::new(),
            unused_functions: UnusedFunctions::default(),
            seen_frames: SeenFrames::default(),
            used: notes_used.then(UsedObjects::default),
            kernel: WrittenMaps::default(),
            newest_stack: None,
            unwritten_mappings: 0,
            unwritten_functions: 0,
            unwritten_code: 0,
            budget,
            map_bytes: 0,
            max_unused_bytes: MAX_UNUSED_MAP_BYTES,
        }
    }

    /// Adds changes of mappings, in the order of time, and writes those in which stacks have a
    /// frame already; others when one has. `object` returns the load object of a mapping and its
    /// name. A mapping without a name is left out: no report could open it.
    ///
    /// # Errors
    /// It can't be written.
    pub fn write_mappings(
        &mut self,
        writer: &mut ExperimentWriter,
        changes: &[MappingChange],
        mut object: impl FnMut(&Mapping) -> Option<(ObjectId, String)>,
    ) -> Result<()> {
        for change in changes {
            let at_ns = self.relative_ns(change.at_ns);
            let event = match &change.event {
                // A JIT function may begin at the same address as memory without a file, and must
                // not end with that.
                MappingEvent::Unmap(vaddr) => {
                    let ended = self.segments.remove(vaddr);
                    ended.map(|_| MapEvent::Unmap {
                        at_ns,
                        vaddr: *vaddr,
                    })
                }
                MappingEvent::Map(_) if self.segments_seen >= MAX_SEGMENTS => {
                    self.unwritten_mappings += 1;
                    None
                }
                MappingEvent::Map(mapping) => {
                    let found = object(mapping);
                    let found = found.filter(|(id, _)| !self.function_files.contains(id));
                    found.map(|(id, name)| {
                        if let Some(used) = &mut self.used {
                            used.mapped(mapping, id);
                        }
                        let (start, end) = (mapping.start, mapping.end);
                        let object = id;
                        let segment = Segment {
                            at_ns: change.at_ns,
                            end,
                            object,
                        };
                        self.segments.insert(start, segment);
                        self.segments_seen += 1;
                        MapEvent::Segment {
                            at_ns,
                            vaddr: start,
                            size: end - start,
                            file_offset: mapping.offset,
                            modes: READ_EXECUTE,
                            name,
                        }
                    })
                }
            };
            self.add_object(writer, event)?;
        }
        self.write_objects(writer, &[])
    }

    /// Adds a mapping or its end, which is written now or when a stack has a frame there.
    fn add_object(&mut self, writer: &mut ExperimentWriter, event: Option<MapEvent>) -> Result<()> {
        match (&mut self.maps, event) {
            (Some(maps), event) => maps.extend(event),
            (None, Some(event)) => self.write_object(writer, &event)?,
            (None, None) => {}
        }
        Ok(())
    }

    /// Ends the mappings of files in which a function lies, and of the same files elsewhere.
    /// Returns from when on the function can be there.
    fn end_segments_of(
        &mut self,
        writer: &mut ExperimentWriter,
        at_ns: Nanos,
        address: u64,
        size: u64,
    ) -> Result<Nanos> {
        let below = self.segments.range(..address.saturating_add(size));
        let files: Vec<ObjectId> = below
            .rev()
            .take_while(|(_, segment)| segment.end > address)
            .map(|(_, segment)| segment.object)
            .collect();
        if files.is_empty() {
            return Ok(at_ns);
        }
        let in_files = |_: &u64, segment: &mut Segment| files.contains(&segment.object);
        let ended: Vec<_> = self.segments.extract_if(.., in_files).collect();
        let mut from_ns = at_ns;
        for (vaddr, segment) in ended {
            let end_ns = at_ns.max(segment.at_ns + Nanos(1));
            from_ns = from_ns.max(end_ns + Nanos(1));
            let at_ns = self.relative_ns(end_ns);
            self.add_object(writer, Some(MapEvent::Unmap { at_ns, vaddr }))?;
        }
        self.function_files.extend(files);
        self.write_objects(writer, &[])?;
        Ok(from_ns)
    }

    /// Writes the load objects of the process in which these frames are, and those that came since
    /// in which earlier ones are; all, if too much would have to be kept.
    fn write_objects(&mut self, writer: &mut ExperimentWriter, frames: &[u64]) -> Result<()> {
        let Some(maps) = self.maps.take() else {
            return Ok(());
        };
        let new = self.written.add_frames(frames, &maps);
        let result = new
            .into_iter()
            .try_for_each(|it| self.write_object(writer, it));
        if maps.len() > MAX_KEPT_MAPS || self.written.missing() > MAX_KEPT_ADDRESSES {
            let written = std::mem::take(&mut self.written);
            return result.and_then(|()| {
                let mut rest = written.rest(&maps);
                rest.try_for_each(|it| self.write_object(writer, it))
            });
        }
        self.maps = Some(maps);
        result
    }

    /// Writes where a load object of the process is, or that it is no longer mapped.
    fn write_object(&mut self, writer: &mut ExperimentWriter, event: &MapEvent) -> Result<()> {
        match event {
            MapEvent::Unmap { vaddr, .. } if self.left_out.remove(vaddr) => return Ok(()),
            MapEvent::Unmap { .. } => {
                self.segments_to_end = self.segments_to_end.saturating_sub(1);
            }
            MapEvent::Segment { vaddr, .. } if self.is_full() => {
                self.left_out.insert(*vaddr);
                self.unwritten_mappings += 1;
                return Ok(());
            }
            _ => self.segments_to_end += 1,
        }
        self.write_name(writer, event)
    }

    /// Returns whether no further mapping or function is written. What was written still ends.
    fn is_full(&self) -> bool {
        self.budget.is_used_up() || self.map_bytes >= MAX_MAP_BYTES
    }

    fn write_name(&mut self, writer: &mut ExperimentWriter, event: &MapEvent) -> Result<()> {
        let before = writer.bytes_written();
        writer.map(event)?;
        let bytes = writer.bytes_written() - before;
        self.map_bytes += bytes;
        let end_bytes = match event {
            MapEvent::Unmap { .. } => 0,
            _ => MAX_END_BYTES,
        };
        self.budget.take(bytes + end_bytes);
        Ok(())
    }

    /// Writes the kernel's load objects that are new since the last stack and in which earlier
    /// stacks have a frame. `kernel` as in [`WrittenCode::stack`].
    ///
    /// # Errors
    /// It can't be written.
    pub fn write_kernel_objects(
        &mut self,
        writer: &mut ExperimentWriter,
        kernel: &ObjectMaps,
    ) -> Result<()> {
        self.add_kernel_frames(writer, &[], kernel)
    }

    fn add_kernel_frames(
        &mut self,
        writer: &mut ExperimentWriter,
        frames: &[u64],
        kernel: &ObjectMaps,
    ) -> Result<()> {
        let new = self.kernel.add_frames(frames, kernel);
        new.into_iter().try_for_each(|event| writer.map(event))
    }

    /// Writes JIT functions that began or ended. `code` are the mappings of the process.
    ///
    /// Functions in a file are left out: a perf map may name some, as node's does its builtins. The
    /// file has its own functions, and one that reached into a mapping of a file would hide the
    /// whole file from a report. A file that holds no ELF image is anonymous memory here
    /// ([`ProcessCode::areas`](crate::loaded_code::ProcessCode::areas)).
    ///
    /// # Errors
    /// It can't be written.
    pub fn write_functions(
        &mut self,
        writer: &mut ExperimentWriter,
        changes: &[JitChange],
        code: &[Mapping],
    ) -> Result<()> {
        let in_file = |address: u64, size: u64| {
            mappings_between(code, address, address.saturating_add(size))
                .any(|mapping| !jit::is_anonymous(&mapping.file))
        };
        for change in changes {
            match change {
                JitChange::Begin { address, size, .. } if in_file(*address, *size) => {}
                JitChange::Begin {
                    at_ns,
                    address,
                    size,
                    name,
                    ..
                } => {
                    let at_ns = match mapping_at(code, *address) {
                        Some(_) => self.end_segments_of(writer, *at_ns, *address, *size)?,
                        None => *at_ns,
                    };
                    let used = self.seen_frames.any_in(*address, *size);
                    if !used && self.map_bytes >= self.max_unused_bytes {
                        self.unused_functions.add(at_ns, *address, *size, name);
                    } else {
                        self.write_function(writer, at_ns, *address, *size, name)?;
                    }
                }
                JitChange::End { at_ns, address } => {
                    self.unused_functions.remove(*address);
                    // A function that was not written has no end either.
                    if let Some(from_ns) = self.functions.remove(address) {
                        self.write_name(
                            writer,
                            &MapEvent::Unmap {
                                at_ns: self.relative_ns((*at_ns).max(from_ns + Nanos(1))),
                                vaddr: *address,
                            },
                        )?;
                    }
                }
            }
        }
        Ok(())
    }

    fn write_function(
        &mut self,
        writer: &mut ExperimentWriter,
        at_ns: Nanos,
        address: u64,
        size: u64,
        name: &str,
    ) -> Result<()> {
        if self.is_full() {
            self.unwritten_functions += 1;
            return Ok(());
        }
        self.functions.insert(address, at_ns);
        self.write_name(
            writer,
            &MapEvent::Function {
                at_ns: self.relative_ns(at_ns),
                vaddr: address,
                size,
                name: name.to_owned(),
            },
        )
    }

    /// Writes the functions in which these frames are and that were not written, because no stack
    /// had a frame in them.
    fn write_used_functions(
        &mut self,
        writer: &mut ExperimentWriter,
        frames: &[u64],
    ) -> Result<()> {
        for frame in frames {
            self.seen_frames.add(*frame);
            if let Some((address, function)) = self.unused_functions.take_at(*frame) {
                self.write_function(
                    writer,
                    function.at_ns,
                    address,
                    function.size,
                    &function.name,
                )?;
            }
        }
        Ok(())
    }

    /// Returns how many JIT functions were left out, because the process has very many and no stack
    /// has a frame in these.
    #[must_use]
    pub fn unused_functions(&self) -> u64 {
        self.unused_functions.left_out()
    }

    /// Returns whether a function at this address was written and has not ended.
    pub fn has_function(&self, address: u64) -> bool {
        self.functions.contains_key(&address)
    }

    /// Writes the machine code of functions that were written before.
    ///
    /// # Errors
    /// It can't be written.
    pub fn write_function_codes(
        &mut self,
        writer: &mut ExperimentWriter,
        codes: &[FunctionCode],
    ) -> Result<()> {
        for FunctionCode {
            at_ns,
            address,
            code,
        } in codes
        {
            if !self.budget.try_take(code.len() as u64) {
                self.unwritten_code += 1;
                continue;
            }
            let from_ns = self.functions.get(address).copied().unwrap_or_default();
            let at_ns = self.relative_ns((*at_ns).max(from_ns));
            writer.dynamic_code(at_ns, *address, code)?;
        }
        Ok(())
    }

    /// Interns a stack: kernel frames, then user frames, leaf first. Writes the load objects and
    /// functions in which it has the first frame.
    ///
    /// `kernel` is where the kernel's load objects are. Each call has the load objects of the
    /// previous call, and maybe more at the end, which may belong to earlier frames.
    ///
    /// # Errors
    /// It can't be written.
    pub fn stack(
        &mut self,
        writer: &mut ExperimentWriter,
        (frames, end): (&[u64], StackEnd),
        kernel: &ObjectMaps,
    ) -> Result<StackUid> {
        let stack = writer.stack(frames, end)?;
        // A new stack has a higher number than all before.
        if self.newest_stack < Some(stack) {
            self.newest_stack = Some(stack);
            // The upper half is the kernel's.
            let user = frames.iter().position(|frame| frame >> 63 == 0);
            let (kernel_frames, user) = frames.split_at(user.unwrap_or(frames.len()));
            self.add_kernel_frames(writer, kernel_frames, kernel)?;
            self.write_objects(writer, user)?;
            self.write_used_functions(writer, user)?;
            if let Some(used) = &mut self.used {
                used.stack(user);
            }
        }
        Ok(stack)
    }

    /// Returns the most bytes that the ends of mappings and functions will have, of those that have
    /// not ended: what was written still ends, whatever the limit.
    #[must_use]
    pub fn end_bytes(&self) -> u64 {
        (self.segments_to_end + self.functions.len() as u64) * MAX_END_BYTES
    }

    /// Writes warnings about what was left out, at a time of the events' clock: call it at the end.
    ///
    /// # Errors
    /// It can't be written.
    pub fn warn_of_limits(&self, writer: &mut ExperimentWriter, at_ns: Nanos) -> Result<()> {
        let at_ns = self.relative_ns(at_ns);
        let (mappings, functions) = (self.unwritten_mappings, self.unwritten_functions);
        if mappings > 0 {
            let text = format!(
                "{mappings} mappings are not in this experiment, because the process had more than {MAX_SEGMENTS}, or beyond a limit (-L): stacks there have no names"
            );
            writer.warning(at_ns, &text)?;
        }
        if functions > 0 {
            let text = format!(
                "{functions} JIT functions are not in this experiment, because they were beyond a limit (-L, or {} MB of one process): they have no names",
                MAX_MAP_BYTES >> 20
            );
            writer.warning(at_ns, &text)?;
        }
        Ok(())
    }

    /// Converts a time of the events' clock to the experiment's time, which counts from its start.
    fn relative_ns(&self, time_ns: Nanos) -> Nanos {
        time_ns.saturating_sub(self.start_ns)
    }
}

#[cfg(test)]
mod tests;
