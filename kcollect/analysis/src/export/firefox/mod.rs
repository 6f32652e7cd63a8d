//! Exports to the Firefox Profiler's format, for <https://profiler.firefox.com>: threads by process
//! on one timeline.
//!
//! A sample weighs ticks, ends when they ended, and holds the CPU time among them, which is the
//! height of the graphs. Its leaf is the state, `[lock]`, in a category with its own colour. Other
//! categories separate kernel, user and JIT code. Off-CPU time is a marker too, with its stack; a
//! marker of blocked time has its cause, its kind and the thread that ended it. Colours are from
//! the profiler's palette. The threads with most time on CPUs are visible at first.
//!
//! The crate keeps the whole profile in memory until it is written: about 150 bytes for each tick
//! array, and the stacks once for each thread.

mod libraries;
mod lifetimes;

use std::io::{self, Write};

use experiment_format::units::Nanos;
use fxprof_processed_profile::{
    CategoryColor, CategoryHandle, CpuDelta, Frame, FrameFlags, FrameHandle, FrameInfo,
    MarkerFieldFlags, MarkerFieldFormat, MarkerTiming, Profile, ReferenceTimestamp,
    SamplingInterval, StackHandle, StaticSchemaMarker, StaticSchemaMarkerField, StringHandle,
    ThreadHandle, Timestamp,
};
use rustc_hash::FxHashMap;

use self::libraries::Libraries;
use self::lifetimes::TaskLifetimes;
use super::NO_STACK;
use super::folded::state_frame;
use super::selected::{Selected, SelectedThread, Slice, state_title};
use crate::metric::BaseMetric;
use crate::model::traced::pieces;
use crate::model::{FrameId, Model, ObjectKind, ProcessId, STATE_SLOTS, StackId, TickRow};
use crate::wakers::Wakers;

/// Maximum number of threads that are visible when the profile is opened, which is what fits on a
/// screen.
const MAX_VISIBLE_THREADS: usize = 15;

/// The colours of states, by their positions in sums.
const STATE_COLORS: [CategoryColor; STATE_SLOTS] = [
    CategoryColor::Yellow,
    CategoryColor::Orange,
    CategoryColor::Brown,
    CategoryColor::LightRed,
    CategoryColor::LightRed,
    CategoryColor::LightRed,
    CategoryColor::Magenta,
    CategoryColor::LightBlue,
    CategoryColor::Red,
    CategoryColor::DarkGray,
    CategoryColor::Yellow,
    CategoryColor::Orange,
    CategoryColor::Gray,
];

/// A marker of off-CPU time.
struct OffCpuMarker {
    state: StringHandle,
    category: CategoryHandle,
}

impl StaticSchemaMarker for OffCpuMarker {
    const UNIQUE_MARKER_TYPE_NAME: &'static str = "Off-CPU";
    const FIELDS: &'static [StaticSchemaMarkerField] = &[];

    fn name(&self, _profile: &mut Profile) -> StringHandle {
        self.state
    }

    fn category(&self, _profile: &mut Profile) -> CategoryHandle {
        self.category
    }

    fn string_field_value(&self, _field: u32) -> StringHandle {
        self.state
    }

    fn number_field_value(&self, _field: u32) -> f64 {
        0.0
    }
}

/// A marker of blocked time.
struct BlockedMarker {
    state: StringHandle,
    category: CategoryHandle,
    /// Cause, kind and waker, as [`BlockedMarker::FIELDS`].
    fields: [StringHandle; 3],
}

const fn text_field(key: &'static str, label: &'static str) -> StaticSchemaMarkerField {
    StaticSchemaMarkerField {
        key,
        label,
        format: MarkerFieldFormat::String,
        flags: MarkerFieldFlags::SEARCHABLE,
    }
}

impl StaticSchemaMarker for BlockedMarker {
    const UNIQUE_MARKER_TYPE_NAME: &'static str = "Blocked";
    const TABLE_LABEL: Option<&'static str> =
        Some("{marker.name}: {marker.data.waitCause}, {marker.data.kind}");
    // The key `cause` is the profiler's own.
    const FIELDS: &'static [StaticSchemaMarkerField] = &[
        text_field("waitCause", "Waited for"),
        text_field("kind", "Kind"),
        text_field("waker", "Woken by"),
    ];

    fn name(&self, _profile: &mut Profile) -> StringHandle {
        self.state
    }

    fn category(&self, _profile: &mut Profile) -> CategoryHandle {
        self.category
    }

    fn string_field_value(&self, field: u32) -> StringHandle {
        self.fields[field as usize]
    }

    fn number_field_value(&self, _field: u32) -> f64 {
        0.0
    }
}

/// The strings and categories that all threads share.
struct ProfileNames {
    functions: Vec<(StringHandle, CategoryHandle)>,
    /// For each state: its frame, title and category.
    states: Vec<(StringHandle, StringHandle, CategoryHandle)>,
    no_stack: (StringHandle, CategoryHandle),
}

/// Writes the profile.
///
/// # Errors
/// When writing fails.
pub fn write(selected: &Selected<'_>, name: &str, out: &mut dyn Write) -> io::Result<()> {
    let model = selected.model;
    let founder = model.experiments.first();
    let wall = founder.map_or(Nanos::ZERO, |founder| founder.source.start().wall_ns());
    let mut profile = Profile::new(
        name,
        ReferenceTimestamp::from_duration_since_unix_epoch(wall.into()),
        // The weight of a sample is the time that it stands for.
        SamplingInterval::from_nanos(1000),
    );
    profile.set_symbolicated(true);
    if let Some(founder) = founder {
        let system = &founder.source.header().system;
        profile.set_os_name(&format!("Linux {}, {}", system.arch, system.hostname));
    }
    let names = names(model, &mut profile);
    let libraries = Libraries::add(model, &mut profile);
    let lifetimes = TaskLifetimes::of(selected);
    let wakers = Wakers::new(model);
    let at = |ns: Nanos| Timestamp::from_nanos_since_reference(ns.0);
    let mut processes = FxHashMap::default();
    let mut busy = Vec::new();
    for of in selected.threads() {
        let thread = of.thread();
        let process = model.process(thread.process);
        let lifetime = lifetimes.thread(&of);
        let begins = at(lifetime.begin_ns);
        let handle = *processes
            .entry(thread.process)
            .or_insert_with(|| add_process(model, thread.process, &lifetimes, &mut profile));
        let tid = u32::try_from(thread.tid).unwrap_or(u32::MAX);
        let main = thread.tid == u64::from(process.pid);
        let handle = profile.add_thread(handle, tid, begins, main);
        profile.set_thread_name(handle, &model.thread_name(thread));
        if let Some(end_ns) = lifetime.end_ns {
            profile.set_thread_end_time(handle, at(end_ns));
        }
        busy.push((on_cpu_us(&of), handle));
        OneThread {
            model,
            names: &names,
            libraries: &libraries,
            wakers: &wakers,
            profile: &mut profile,
            thread: handle,
            stacks: FxHashMap::default(),
        }
        .fill(&of);
    }
    busy.sort_by_key(|(on_cpu_us, _)| std::cmp::Reverse(*on_cpu_us));
    for (_, handle) in busy.iter().take(MAX_VISIBLE_THREADS) {
        profile.add_initial_visible_thread(*handle);
    }
    if let Some((_, busiest)) = busy.first() {
        profile.add_initial_selected_thread(*busiest);
    }
    super::json::write(&profile, out)
}

/// Returns a thread's selected time on CPUs, in microseconds.
fn on_cpu_us(of: &SelectedThread<'_, '_>) -> i64 {
    let on_cpu = |row: &&TickRow| BaseMetric::TotalCpu.has(row.slot());
    of.rows().filter(on_cpu).map(|row| row.micros).sum()
}

/// Adds a process to the profile.
fn add_process(
    model: &Model,
    id: ProcessId,
    lifetimes: &TaskLifetimes,
    profile: &mut Profile,
) -> fxprof_processed_profile::ProcessHandle {
    let process = model.process(id);
    let name = match process.name.as_str() {
        "" => format!("pid {}", process.pid),
        name => name.to_owned(),
    };
    let lifetime = lifetimes.process(id);
    let at = |ns: Nanos| Timestamp::from_nanos_since_reference(ns.0);
    let handle = profile.add_process(&name, process.pid.0, at(lifetime.begin_ns));
    if let Some(end_ns) = lifetime.end_ns {
        profile.set_process_end_time(handle, at(end_ns));
    }
    handle
}

fn names(model: &Model, profile: &mut Profile) -> ProfileNames {
    let user = profile.add_category("User code", CategoryColor::Yellow);
    let kernel = profile.add_category("Kernel code", CategoryColor::Orange);
    let jit = profile.add_category("JIT code", CategoryColor::Green);
    let mut states = Vec::new();
    for (slot, color) in STATE_COLORS.into_iter().enumerate() {
        states.push((
            profile.intern_string(&state_frame(slot)),
            profile.intern_string(state_title(slot)),
            profile.add_category(state_title(slot), color),
        ));
    }
    let functions = model.functions.iter().map(|function| {
        let category = match model.object(function.object).kind {
            _ if function.kernel => kernel,
            ObjectKind::File => user,
            ObjectKind::Dynamic if model.is_jit_code(function) => jit,
            ObjectKind::Dynamic | ObjectKind::Special => CategoryHandle::OTHER,
        };
        (profile.intern_string(&function.name), category)
    });
    let functions = functions.collect();
    ProfileNames {
        functions,
        states,
        no_stack: (profile.intern_string(NO_STACK), CategoryHandle::OTHER),
    }
}

/// A thread that is being written.
struct OneThread<'a> {
    model: &'a Model,
    names: &'a ProfileNames,
    libraries: &'a Libraries,
    wakers: &'a Wakers,
    profile: &'a mut Profile,
    thread: ThreadHandle,
    stacks: FxHashMap<StackId, StackHandle>,
}

impl OneThread<'_> {
    fn fill(mut self, of: &SelectedThread<'_, '_>) {
        for slice in of.slices() {
            self.slice(&slice);
        }
    }

    fn slice(&mut self, slice: &Slice) {
        let below = self.stack(slice.row.stack);
        let (frame, title, category) = self.names.states[slice.row.slot()];
        let leaf = self.frame(Frame::Label(frame), category);
        let stack = self.profile.intern_stack(self.thread, Some(below), leaf);
        let length = slice.end_ns - slice.start_ns;
        let cpu = if slice.on_cpu() { length } else { Nanos::ZERO };
        let at = |ns: Nanos| Timestamp::from_nanos_since_reference(ns.0);
        let mut cpu = CpuDelta::from_nanos(cpu.0);
        for micros in pieces(slice.row.micros.unsigned_abs()) {
            self.profile
                .add_sample(self.thread, at(slice.end_ns), Some(stack), cpu, micros);
            cpu = CpuDelta::ZERO;
        }
        if !slice.on_cpu() && length > Nanos::ZERO {
            let timing = MarkerTiming::Interval(at(slice.start_ns), at(slice.end_ns));
            let marker = match self.wait_fields(&slice.row) {
                Some(fields) => {
                    let marker = BlockedMarker {
                        state: title,
                        category,
                        fields,
                    };
                    self.profile.add_marker(self.thread, timing, marker)
                }
                None => {
                    let marker = OffCpuMarker {
                        state: title,
                        category,
                    };
                    self.profile.add_marker(self.thread, timing, marker)
                }
            };
            self.profile
                .set_marker_stack(self.thread, marker, Some(stack));
        }
    }

    /// Returns the fields of the marker of a row, if its thread was blocked.
    fn wait_fields(&mut self, row: &TickRow) -> Option<[StringHandle; 3]> {
        let cause = self.model.cause(row)?;
        let waker = self.wakers.of(row);
        let waker = waker.map(|waker| self.wakers.names(self.model, waker).numbered_title());
        let waker = waker.as_deref().unwrap_or("not known");
        let texts = [cause.title(), cause.kind().keyword(), waker];
        Some(texts.map(|text| self.profile.intern_string(text)))
    }

    fn frame(&mut self, frame: Frame, category: CategoryHandle) -> FrameHandle {
        let info = FrameInfo {
            frame,
            category_pair: category.into(),
            flags: FrameFlags::empty(),
        };
        self.profile.intern_frame(self.thread, info)
    }

    /// Returns the handle of a stack, interning its callers first.
    fn stack(&mut self, stack: StackId) -> StackHandle {
        if let Some(handle) = self.stacks.get(&stack) {
            return *handle;
        }
        let mut missing: Vec<(StackId, Option<FrameId>)> = Vec::new();
        let mut at = Some(stack);
        let mut handle = None;
        while let Some(next) = at {
            handle = self.stacks.get(&next).copied();
            if handle.is_some() {
                break;
            }
            missing.push((next, self.model.stacks.leaf(next)));
            at = self.model.stacks.caller(next);
        }
        let mut known = handle;
        for (stack, frame) in missing.into_iter().rev() {
            let Some(frame) = frame else { continue };
            let function = self.model.frame(frame).function;
            let (label, category) = self.names.functions[function.index()];
            let place = self.libraries.place(self.model, frame);
            let frame = self.frame(place.unwrap_or(Frame::Label(label)), category);
            let interned = self.profile.intern_stack(self.thread, known, frame);
            self.stacks.insert(stack, interned);
            known = Some(interned);
        }
        known.unwrap_or_else(|| {
            let (label, category) = self.names.no_stack;
            let frame = self.frame(Frame::Label(label), category);
            let interned = self.profile.intern_stack(self.thread, None, frame);
            self.stacks.insert(StackId::EMPTY, interned);
            interned
        })
    }
}
