//! The messages of Perfetto's traces, with the fields that are written.
//!
//! Names and numbers come from `protos/perfetto/trace/perfetto_trace.proto`, package
//! `perfetto.protos`, of <https://github.com/google/perfetto>. Fields that are optional there are
//! plain here if they are always written. Why the structs are not generated: see pprof's.

use prost::Message;

/// Returns a pid or tid as the type of the fields for them.
pub(super) fn id(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

/// A trace or a part of one: concatenated parts are a whole trace.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Trace {
    #[prost(message, repeated, tag = "1")]
    pub(super) packet: Vec<TracePacket>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TracePacket {
    #[prost(message, optional, tag = "6")]
    pub(super) clock_snapshot: Option<ClockSnapshot>,
    /// Nanoseconds of CLOCK_BOOTTIME.
    #[prost(uint64, optional, tag = "8")]
    pub(super) timestamp: Option<u64>,
    #[prost(uint32, tag = "10")]
    pub(super) trusted_packet_sequence_id: u32,
    #[prost(message, optional, tag = "11")]
    pub(super) track_event: Option<TrackEvent>,
    #[prost(message, optional, tag = "12")]
    pub(super) interned_data: Option<InternedData>,
    /// [`INCREMENTAL_STATE_CLEARED`] or [`NEEDS_INCREMENTAL_STATE`].
    #[prost(uint32, tag = "13")]
    pub(super) sequence_flags: u32,
    #[prost(message, optional, tag = "59")]
    pub(super) trace_packet_defaults: Option<TracePacketDefaults>,
    #[prost(message, optional, tag = "60")]
    pub(super) track_descriptor: Option<TrackDescriptor>,
    #[prost(message, optional, tag = "66")]
    pub(super) perf_sample: Option<PerfSample>,
}

/// `TracePacket.SequenceFlags`: earlier interned data is void.
pub(super) const INCREMENTAL_STATE_CLEARED: u32 = 1;
/// `TracePacket.SequenceFlags`: the packet refers to interned data.
pub(super) const NEEDS_INCREMENTAL_STATE: u32 = 2;

#[derive(Clone, PartialEq, Message)]
pub(super) struct ClockSnapshot {
    #[prost(message, repeated, tag = "1")]
    pub(super) clocks: Vec<Clock>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Clock {
    /// [`REALTIME`] or [`BOOTTIME`].
    #[prost(uint32, tag = "1")]
    pub(super) clock_id: u32,
    #[prost(uint64, tag = "2")]
    pub(super) timestamp: u64,
}

/// `BuiltinClock`.
pub(super) const REALTIME: u32 = 1;
/// `BuiltinClock`.
pub(super) const BOOTTIME: u32 = 6;

#[derive(Clone, PartialEq, Message)]
pub(super) struct TracePacketDefaults {
    #[prost(message, optional, tag = "12")]
    pub(super) perf_sample_defaults: Option<PerfSampleDefaults>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PerfSampleDefaults {
    #[prost(message, optional, tag = "1")]
    pub(super) timebase: Option<Timebase>,
}

/// `PerfEvents.Timebase`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Timebase {
    /// Nanoseconds, of this counter.
    #[prost(uint64, tag = "1")]
    pub(super) period: u64,
    /// [`SW_CPU_CLOCK`].
    #[prost(int32, tag = "4")]
    pub(super) counter: i32,
}

/// `PerfEvents.Counter`.
pub(super) const SW_CPU_CLOCK: i32 = 1;

#[derive(Clone, PartialEq, Message)]
pub(super) struct TrackDescriptor {
    #[prost(uint64, tag = "1")]
    pub(super) uuid: u64,
    #[prost(message, optional, tag = "3")]
    pub(super) process: Option<ProcessDescriptor>,
    #[prost(message, optional, tag = "4")]
    pub(super) thread: Option<ThreadDescriptor>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ProcessDescriptor {
    #[prost(int32, tag = "1")]
    pub(super) pid: i32,
    #[prost(string, tag = "6")]
    pub(super) process_name: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ThreadDescriptor {
    #[prost(int32, tag = "1")]
    pub(super) pid: i32,
    #[prost(int64, tag = "2")]
    pub(super) tid: i64,
    #[prost(string, tag = "5")]
    pub(super) thread_name: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TrackEvent {
    #[prost(uint64, repeated, packed = "false", tag = "3")]
    pub(super) category_iids: Vec<u64>,
    #[prost(message, repeated, tag = "4")]
    pub(super) debug_annotations: Vec<DebugAnnotation>,
    /// [`SLICE_BEGIN`], [`SLICE_END`] or [`INSTANT`].
    #[prost(int32, tag = "9")]
    pub(super) r#type: i32,
    #[prost(uint64, optional, tag = "10")]
    pub(super) name_iid: Option<u64>,
    #[prost(uint64, tag = "11")]
    pub(super) track_uuid: u64,
    /// The flows that begin here.
    #[prost(fixed64, repeated, packed = "false", tag = "47")]
    pub(super) flow_ids: Vec<u64>,
    /// The flows that end here.
    #[prost(fixed64, repeated, packed = "false", tag = "48")]
    pub(super) terminating_flow_ids: Vec<u64>,
    #[prost(uint64, optional, tag = "56")]
    pub(super) callstack_iid: Option<u64>,
}

/// A value with its name in the details of an event.
#[derive(Clone, PartialEq, Message)]
pub(super) struct DebugAnnotation {
    #[prost(uint64, tag = "1")]
    pub(super) name_iid: u64,
    #[prost(string, tag = "6")]
    pub(super) string_value: String,
}

/// `TrackEvent.Type`.
pub(super) const SLICE_BEGIN: i32 = 1;
/// `TrackEvent.Type`.
pub(super) const SLICE_END: i32 = 2;
/// `TrackEvent.Type`.
pub(super) const INSTANT: i32 = 3;

#[derive(Clone, PartialEq, Message)]
pub(super) struct PerfSample {
    /// Readers take a sample without it as one of no CPU, so 0 is written too.
    #[prost(uint32, optional, tag = "1")]
    pub(super) cpu: Option<u32>,
    #[prost(uint32, tag = "2")]
    pub(super) pid: u32,
    #[prost(uint32, tag = "3")]
    pub(super) tid: u32,
    #[prost(uint64, optional, tag = "4")]
    pub(super) callstack_iid: Option<u64>,
    /// [`MODE_KERNEL`] or [`MODE_USER`].
    #[prost(int32, tag = "5")]
    pub(super) cpu_mode: i32,
}

/// `Profiling.CpuMode`.
pub(super) const MODE_KERNEL: i32 = 1;
/// `Profiling.CpuMode`.
pub(super) const MODE_USER: i32 = 2;

/// Interned data: ids, from 1, of what is used often.
#[derive(Clone, PartialEq, Message)]
pub(super) struct InternedData {
    #[prost(message, repeated, tag = "1")]
    pub(super) event_categories: Vec<Named>,
    #[prost(message, repeated, tag = "2")]
    pub(super) event_names: Vec<Named>,
    #[prost(message, repeated, tag = "3")]
    pub(super) debug_annotation_names: Vec<Named>,
    #[prost(message, repeated, tag = "5")]
    pub(super) function_names: Vec<Named>,
    #[prost(message, repeated, tag = "6")]
    pub(super) frames: Vec<Frame>,
    #[prost(message, repeated, tag = "7")]
    pub(super) callstacks: Vec<Callstack>,
    #[prost(message, repeated, tag = "16")]
    pub(super) build_ids: Vec<Named>,
    #[prost(message, repeated, tag = "17")]
    pub(super) mapping_paths: Vec<Named>,
    #[prost(message, repeated, tag = "19")]
    pub(super) mappings: Vec<Mapping>,
}

/// `EventCategory`, `EventName`, `DebugAnnotationName` and `InternedString`, which have the same
/// fields.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Named {
    #[prost(uint64, tag = "1")]
    pub(super) iid: u64,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) name: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Mapping {
    #[prost(uint64, tag = "1")]
    pub(super) iid: u64,
    #[prost(uint64, optional, tag = "2")]
    pub(super) build_id: Option<u64>,
    #[prost(uint64, tag = "4")]
    pub(super) start: u64,
    #[prost(uint64, tag = "5")]
    pub(super) end: u64,
    /// Each path with a leading `/`.
    #[prost(uint64, repeated, packed = "false", tag = "7")]
    pub(super) path_string_ids: Vec<u64>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Frame {
    #[prost(uint64, tag = "1")]
    pub(super) iid: u64,
    #[prost(uint64, tag = "2")]
    pub(super) function_name_id: u64,
    /// Readers of 2025 ignore frames without a mapping.
    #[prost(uint64, tag = "3")]
    pub(super) mapping_id: u64,
    #[prost(uint64, tag = "4")]
    pub(super) rel_pc: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Callstack {
    #[prost(uint64, tag = "1")]
    pub(super) iid: u64,
    /// Outermost frame first.
    #[prost(uint64, repeated, packed = "false", tag = "2")]
    pub(super) frame_ids: Vec<u64>,
}
