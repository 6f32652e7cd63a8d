//! Exports to Perfetto's trace format, for <https://ui.perfetto.dev> and trace_processor.
//!
//! Each thread has a track with its states as slices, and each slice has its stack. On-CPU ticks
//! are also stack samples (`PerfSample`), so that the UI draws flame graphs of any time range;
//! samples have no weight, so there are as many as ticks fit into the thread's exact time. Off-CPU
//! ticks are not: the format has no weight for samples that current readers support, and one hour
//! of sleep would be about 360,000 samples.
//!
//! Slices of blocked time have their cause and the thread that ended it as annotations. If that
//! thread has a track, it has an instant "wakes" there at that time, with a flow to the slice with
//! which the woken thread continues: readers draw a flow to the beginning of a slice, so that one
//! to the wait itself would point to its start.
//!
//! Times are on the recording's clock. The trace is written packet by packet. For interned data
//! only a flag per entry stays in memory.

mod proto;
mod wakes;

use std::io::{self, Write};

use experiment_format::ids::{Pid, Tid};
use experiment_format::units::Nanos;
use prost::Message;

use self::proto::{
    BOOTTIME, Callstack, Clock, ClockSnapshot, DebugAnnotation, Frame, INCREMENTAL_STATE_CLEARED,
    INSTANT, InternedData, MODE_KERNEL, MODE_USER, Mapping, NEEDS_INCREMENTAL_STATE, Named,
    PerfSample, PerfSampleDefaults, ProcessDescriptor, REALTIME, SLICE_BEGIN, SLICE_END,
    SW_CPU_CLOCK, ThreadDescriptor, Timebase, Trace, TracePacket, TracePacketDefaults,
    TrackDescriptor, TrackEvent,
};
use self::wakes::{Wake, Wakes};
use super::selected::{Selected, SelectedThread, Slice, state_title};
use crate::load::build_ids;
use crate::metric::BaseMetric;
use crate::model::{FrameId, Model, ObjectKind, STATE_SLOTS, StackId, ThreadId, TickRow};
use crate::wakers::Waker;

/// The id of the only sequence of packets.
const SEQUENCE_ID: u32 = 1;
/// The id of the track of the first process.
const PROCESS_TRACKS: u64 = 1 << 32;
/// The id of the track of the first thread.
const THREAD_TRACKS: u64 = 1 << 33;
/// Maximum number of samples. That is more than any reader accepts: a day of one CPU at 1 ms.
const MAX_SAMPLES: u64 = 100_000_000;
/// The number of the category of states.
const STATE_CATEGORY: u64 = 1;
/// The number of the category of wake-ups.
const WAKE_CATEGORY: u64 = 2;
/// The number of the name of wake-ups, after those of states.
const WAKE_NAME: u64 = STATE_SLOTS as u64 + 1;

/// What annotations are named.
#[derive(Debug, Clone, Copy)]
enum Annotation {
    Cause,
    Kind,
    Waker,
    Woken,
}

impl Annotation {
    const ALL: [(Annotation, &'static str); 4] = [
        (Annotation::Cause, "cause"),
        (Annotation::Kind, "kind"),
        (Annotation::Waker, "waker"),
        (Annotation::Woken, "woken"),
    ];

    fn with(self, value: impl Into<String>) -> DebugAnnotation {
        DebugAnnotation {
            name_iid: self as u64 + 1,
            string_value: value.into(),
        }
    }
}

/// Writes the trace.
///
/// # Errors
/// When writing fails, or there are more on-CPU ticks than a trace can hold.
pub fn write(selected: &Selected<'_>, out: &mut dyn Write) -> io::Result<()> {
    let model = selected.model;
    let samples = selected
        .rows()
        .filter(|row| BaseMetric::TotalCpu.has(row.slot()));
    let tick_us = |row: &TickRow| u64::from(model.experiment(row.experiment).tick_us).max(1);
    let samples: u64 = samples
        .map(|row| row.micros.unsigned_abs() / tick_us(row))
        .fold(0, u64::saturating_add);
    if samples > MAX_SAMPLES {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!(
                "{samples} on-CPU ticks are more than a trace can hold; select a part with --time"
            ),
        ));
    }
    let mut writer = Writer {
        model,
        out,
        buffer: Vec::new(),
        build_ids: build_ids::of(model),
        origin_ns: model
            .experiments
            .first()
            .map_or(Nanos::ZERO, |founder| founder.source.start().tstamp_ns),
        functions: vec![false; model.functions.len()],
        frames: vec![false; model.frames.len()],
        objects: vec![false; model.objects.len()],
        stacks: vec![false; model.stacks.len()],
        processes: vec![false; model.processes.len()],
        wakes: Wakes::of(selected),
    };
    writer.head()?;
    for of in selected.threads() {
        writer.thread(&of)?;
    }
    writer.flush()
}

struct Writer<'a> {
    model: &'a Model,
    out: &'a mut dyn Write,
    buffer: Vec<u8>,
    build_ids: Vec<String>,
    /// The start of the founder.
    origin_ns: Nanos,
    // For each of the model's functions, frames and so on, whether it was written.
    functions: Vec<bool>,
    frames: Vec<bool>,
    objects: Vec<bool>,
    stacks: Vec<bool>,
    processes: Vec<bool>,
    wakes: Wakes,
}

/// Returns whether a position is new, and notes that it was seen.
fn first(seen: &mut [bool], index: usize) -> bool {
    !std::mem::replace(&mut seen[index], true)
}

fn named(iid: usize, name: &str) -> Named {
    Named {
        iid: iid as u64 + 1,
        name: name.as_bytes().to_vec(),
    }
}

/// The flows that end at a slice.
struct SliceFlows {
    /// The one from the thread that ended the wait before the slice.
    to_begin: Option<u64>,
    /// The one from the thread that ended this wait, if no slice follows at once.
    to_end: Option<u64>,
}

impl Writer<'_> {
    fn packet(&mut self, mut packet: TracePacket) -> io::Result<()> {
        packet.trusted_packet_sequence_id = SEQUENCE_ID;
        packet.sequence_flags |= NEEDS_INCREMENTAL_STATE;
        let trace = Trace {
            packet: vec![packet],
        };
        // Writing into a Vec does not fail.
        let _ = trace.encode(&mut self.buffer);
        if self.buffer.len() > 1 << 16 {
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.write_all(&self.buffer)?;
        self.buffer.clear();
        Ok(())
    }

    /// Writes the clocks, the length of a tick and the names of states.
    fn head(&mut self) -> io::Result<()> {
        let founder = self.model.experiments.first();
        let wall = founder.map_or(Nanos::ZERO, |founder| founder.source.start().wall_ns());
        let tick_us = founder.map_or(0, |founder| founder.tick_us);
        let states = (0..STATE_SLOTS).map(|slot| named(slot, state_title(slot)));
        let annotations =
            Annotation::ALL.map(|(annotation, name)| named(annotation as usize, name));
        let interned = InternedData {
            event_categories: vec![named(0, "state"), named(1, "wake")],
            event_names: states.chain([named(STATE_SLOTS, "wakes")]).collect(),
            debug_annotation_names: annotations.to_vec(),
            ..InternedData::default()
        };
        let clocks = [(BOOTTIME, self.origin_ns), (REALTIME, wall)];
        let clocks = clocks.map(|(clock_id, time_ns)| Clock {
            clock_id,
            timestamp: time_ns.0,
        });
        let timebase = Timebase {
            period: u64::from(tick_us) * 1000,
            counter: SW_CPU_CLOCK,
        };
        self.packet(TracePacket {
            sequence_flags: INCREMENTAL_STATE_CLEARED,
            timestamp: Some(self.origin_ns.0),
            clock_snapshot: Some(ClockSnapshot {
                clocks: clocks.to_vec(),
            }),
            ..TracePacket::default()
        })?;
        self.packet(TracePacket {
            timestamp: Some(self.origin_ns.0),
            interned_data: Some(interned),
            trace_packet_defaults: Some(TracePacketDefaults {
                perf_sample_defaults: Some(PerfSampleDefaults {
                    timebase: Some(timebase),
                }),
            }),
            ..TracePacket::default()
        })
    }

    fn thread(&mut self, of: &SelectedThread<'_, '_>) -> io::Result<()> {
        let thread = of.thread();
        let process = self.model.process(thread.process);
        let pid = process.pid;
        let tid = Tid(u32::try_from(thread.tid).unwrap_or(u32::MAX));
        let descriptor = |descriptor| TracePacket {
            track_descriptor: Some(descriptor),
            ..TracePacket::default()
        };
        if first(&mut self.processes, thread.process.index()) {
            self.packet(descriptor(TrackDescriptor {
                uuid: PROCESS_TRACKS + u64::from(thread.process.0),
                process: Some(ProcessDescriptor {
                    pid: proto::id(pid.0),
                    process_name: self.model.process_name(thread),
                }),
                ..TrackDescriptor::default()
            }))?;
        }
        self.packet(descriptor(TrackDescriptor {
            uuid: THREAD_TRACKS + u64::from(of.id.0),
            thread: Some(ThreadDescriptor {
                pid: proto::id(pid.0),
                tid: proto::id(tid.0).into(),
                thread_name: self.model.thread_name(thread),
            }),
            ..TrackDescriptor::default()
        }))?;
        let mut rest_us = 0;
        let wakes = self.wakes.take(of.id);
        let mut wakes = wakes.iter().copied().peekable();
        // The flow to the next slice.
        let mut flow = None;
        let mut slices = of.slices().peekable();
        while let Some(slice) = slices.next() {
            let callstack = self.callstack(slice.row.stack)?;
            let tick_us = u64::from(self.model.experiment(slice.row.experiment).tick_us).max(1);
            if slice.row.ticks != 0 {
                let continues = slices.peek().is_some_and(|next| {
                    next.row.ticks != 0
                        && next.start_ns - slice.end_ns < Nanos::from_micros(tick_us)
                });
                let woken = self.wakes.next_flow(self.model, &slice);
                let woken = woken.map(|(_, flow)| flow);
                let flows = SliceFlows {
                    to_begin: flow.take(),
                    to_end: woken.filter(|_| !continues),
                };
                flow = woken.filter(|_| continues);
                let track = of.id;
                while let Some(wake) = wakes.next_if(|wake| wake.time_ns < slice.start_ns) {
                    self.wake(track, &wake)?;
                }
                self.slice_begin(&slice, callstack, &flows)?;
                while let Some(wake) = wakes.next_if(|wake| wake.time_ns <= slice.end_ns) {
                    self.wake(track, &wake)?;
                }
                self.slice_end(&slice, &flows)?;
            }
            if slice.on_cpu() {
                // A sample has no weight, so write as many as ticks fit into the exact time.
                let micros: u64 = rest_us + slice.row.micros.unsigned_abs();
                rest_us = micros % tick_us;
                self.samples(&slice, micros / tick_us, callstack, (pid, tid))?;
            }
        }
        wakes.try_for_each(|wake| self.wake(of.id, &wake))
    }

    /// Returns a time of the model as a timestamp of the trace.
    fn timestamp(&self, time_ns: Nanos) -> Option<u64> {
        // Readers treat it as signed.
        Some(
            self.origin_ns
                .saturating_add(time_ns)
                .0
                .min(i64::MAX as u64),
        )
    }

    fn slice_begin(
        &mut self,
        slice: &Slice,
        callstack_iid: Option<u64>,
        flows: &SliceFlows,
    ) -> io::Result<()> {
        let event = TrackEvent {
            r#type: SLICE_BEGIN,
            track_uuid: THREAD_TRACKS + u64::from(slice.row.thread.0),
            category_iids: vec![STATE_CATEGORY],
            name_iid: Some(slice.row.slot() as u64 + 1),
            debug_annotations: self.wait_annotations(slice),
            terminating_flow_ids: flows.to_begin.into_iter().collect(),
            callstack_iid,
            ..TrackEvent::default()
        };
        self.event(slice.start_ns, event)
    }

    fn slice_end(&mut self, slice: &Slice, flows: &SliceFlows) -> io::Result<()> {
        let event = TrackEvent {
            r#type: SLICE_END,
            track_uuid: THREAD_TRACKS + u64::from(slice.row.thread.0),
            terminating_flow_ids: flows.to_end.into_iter().collect(),
            ..TrackEvent::default()
        };
        self.event(slice.end_ns, event)
    }

    /// Writes that the thread of a track woke another.
    fn wake(&mut self, track: ThreadId, wake: &Wake) -> io::Result<()> {
        let woken = self.wakes.title(self.model, Waker::Thread(wake.woken));
        let event = TrackEvent {
            r#type: INSTANT,
            track_uuid: THREAD_TRACKS + u64::from(track.0),
            category_iids: vec![WAKE_CATEGORY],
            name_iid: Some(WAKE_NAME),
            debug_annotations: vec![Annotation::Woken.with(woken)],
            flow_ids: vec![wake.flow],
            ..TrackEvent::default()
        };
        self.event(wake.time_ns, event)
    }

    fn event(&mut self, time_ns: Nanos, event: TrackEvent) -> io::Result<()> {
        self.packet(TracePacket {
            timestamp: self.timestamp(time_ns),
            track_event: Some(event),
            ..TracePacket::default()
        })
    }

    /// Returns why the thread of a slice was blocked; nothing if it was not.
    fn wait_annotations(&self, slice: &Slice) -> Vec<DebugAnnotation> {
        let Some(cause) = self.model.cause(&slice.row) else {
            return Vec::new();
        };
        let waker = self.wakes.waker(slice);
        let waker = waker.map(|waker| Annotation::Waker.with(self.wakes.title(self.model, waker)));
        let known = [
            Annotation::Cause.with(cause.keyword()),
            Annotation::Kind.with(cause.kind().keyword()),
        ];
        known.into_iter().chain(waker).collect()
    }

    /// Writes samples, each at the end of its own part of the slice.
    fn samples(
        &mut self,
        slice: &Slice,
        samples: u64,
        callstack_iid: Option<u64>,
        (pid, tid): (Pid, Tid),
    ) -> io::Result<()> {
        let part_ns = (slice.end_ns - slice.start_ns) / samples.max(1);
        let user = slice.row.slot() == 0;
        for number in 1..=samples {
            self.packet(TracePacket {
                timestamp: self.timestamp(slice.start_ns + part_ns * number),
                perf_sample: Some(PerfSample {
                    cpu: Some(self.model.cpus[slice.row.cpu.index()]),
                    pid: proto::id(pid.0).unsigned_abs(),
                    tid: proto::id(tid.0).unsigned_abs(),
                    callstack_iid,
                    cpu_mode: if user { MODE_USER } else { MODE_KERNEL },
                }),
                ..TracePacket::default()
            })?;
        }
        Ok(())
    }

    /// Returns the id of a stack, interned if it is new. The empty stack has none: readers refuse
    /// it.
    fn callstack(&mut self, stack: StackId) -> io::Result<Option<u64>> {
        if stack == StackId::EMPTY {
            return Ok(None);
        }
        let iid = u64::from(stack.0);
        if !first(&mut self.stacks, stack.index()) {
            return Ok(Some(iid));
        }
        let mut interned = InternedData::default();
        let mut frames: Vec<_> = self.model.stacks.frames(stack).collect();
        frames.reverse();
        for frame in &frames {
            self.frame(*frame, &mut interned);
        }
        interned.callstacks.push(Callstack {
            iid,
            frame_ids: frames.iter().map(|frame| u64::from(frame.0) + 1).collect(),
        });
        self.packet(TracePacket {
            interned_data: Some(interned),
            ..TracePacket::default()
        })?;
        Ok(Some(iid))
    }

    fn frame(&mut self, id: FrameId, interned: &mut InternedData) {
        if !first(&mut self.frames, id.index()) {
            return;
        }
        let frame = self.model.frame(id);
        let function = self.model.function(frame.function);
        if first(&mut self.functions, frame.function.index()) {
            let name = named(frame.function.index(), &function.name);
            interned.function_names.push(name);
        }
        let index = function.object.index();
        if first(&mut self.objects, index) {
            let object = self.model.object(function.object);
            // Readers put a `/` before it.
            let path = object.path.strip_prefix('/').unwrap_or(&object.path);
            interned.mapping_paths.push(named(index, path));
            let id = &self.build_ids[index];
            let known = !id.is_empty() && object.kind == ObjectKind::File;
            if known {
                interned.build_ids.push(Named {
                    iid: index as u64 + 1,
                    name: hex::decode(id).unwrap_or_default(),
                });
            }
            interned.mappings.push(Mapping {
                iid: index as u64 + 1,
                build_id: known.then_some(index as u64 + 1),
                start: 0,
                end: i64::MAX as u64,
                path_string_ids: vec![index as u64 + 1],
            });
        }
        interned.frames.push(Frame {
            iid: u64::from(id.0) + 1,
            function_name_id: u64::from(frame.function.0) + 1,
            mapping_id: index as u64 + 1,
            rel_pc: frame.offset,
        });
    }
}

/// The tid of a thread, and milliseconds since the start of the recording.
#[cfg(test)]
type FlowEnd = (i64, u64);

/// Returns where each flow of a trace begins and ends, in the order of their numbers.
#[cfg(test)]
pub(super) fn flows(bytes: &[u8]) -> Vec<(FlowEnd, FlowEnd)> {
    use std::collections::BTreeMap;

    let trace = Trace::decode(bytes).unwrap_or_default();
    let mut tids = BTreeMap::new();
    let mut origin_ns = None;
    for packet in &trace.packet {
        origin_ns = origin_ns.or(packet.timestamp);
        if let Some(descriptor) = &packet.track_descriptor
            && let Some(thread) = &descriptor.thread
        {
            tids.insert(descriptor.uuid, thread.tid);
        }
    }
    let mut ends: BTreeMap<u64, [Option<FlowEnd>; 2]> = BTreeMap::new();
    for packet in &trace.packet {
        let (Some(event), Some(time_ns)) = (&packet.track_event, packet.timestamp) else {
            continue;
        };
        let since_ns = time_ns - origin_ns.unwrap_or(0);
        let end = (tids[&event.track_uuid], since_ns / 1_000_000);
        let both = [&event.flow_ids, &event.terminating_flow_ids];
        for (at, flows) in both.into_iter().enumerate() {
            for flow in flows {
                ends.entry(*flow).or_default()[at] = Some(end);
            }
        }
    }
    let flows = ends.into_values().filter_map(|[from, to]| from.zip(to));
    flows.collect()
}
