//! Exports to pprof's format, compressed, for `go tool pprof` and everything that reads its files.
//!
//! A sample is a thread with a stack; its values are the ticks, and `total`, `totalcpu` (as in
//! reports) and each state in nanoseconds; of memory its bytes, by the names that pprof uses. Its
//! labels are `pid`, `tid`, `comm` and `thread`; of blocked time also `cause`, `kind` (suffered,
//! idle or undecided), and `waker` if the thread that ended it is known. Load objects are
//! mappings, with build ids if the experiment has copies of the files. Addresses are synthetic:
//! load objects are placed one after the other, so that an address minus the start of its mapping
//! is the position in the file. Real mappings differ between the processes that share a profile. A
//! stack without frames has one here, `<no stack>`: `go tool pprof` drops samples without a
//! location.
//!
//! Samples are written as they are made; the tables are kept until the end.

mod proto;

use std::io::{self, Write};

use experiment_format::cause::Cause;
use experiment_format::units::Nanos;
use flate2::Compression;
use flate2::write::GzEncoder;
use prost::Message;
use rustc_hash::FxHashMap;

use self::proto::{Function, Label, Line, Location, Mapping, Profile, Sample, ValueType};
use super::NO_STACK;
use super::selected::{Selected, state_name};
use crate::load::build_ids;
use crate::metric::BaseMetric;
use crate::model::{
    FrameId, Model, ObjectInfo, ObjectKind, STATE_SLOTS, StackId, Sums, TracedEvents,
};
use crate::wakers::{WakerNames, Wakers};

/// The distance between the addresses of two load objects.
const OBJECT_SPACING_BYTES: u64 = 1 << 40;

/// The string table of a profile.
#[derive(Default)]
struct StringTable {
    positions: FxHashMap<String, i64>,
    list: Vec<String>,
}

impl StringTable {
    fn new() -> StringTable {
        let mut strings = StringTable::default();
        strings.get("");
        strings
    }

    fn get(&mut self, text: &str) -> i64 {
        if let Some(position) = self.positions.get(text) {
            return *position;
        }
        let position = self.list.len() as i64;
        self.positions.insert(text.to_owned(), position);
        self.list.push(text.to_owned());
        position
    }
}

/// The parts of a model that samples refer to: flags by their positions.
struct Used {
    frames: Vec<bool>,
    functions: Vec<bool>,
    objects: Vec<bool>,
    /// The stack without frames.
    no_stack: bool,
}

/// Writes the profile.
///
/// # Errors
/// When writing fails.
pub fn write(selected: &Selected<'_>, out: &mut dyn Write) -> io::Result<()> {
    let mut out = GzEncoder::new(out, Compression::fast());
    let mut strings = StringTable::new();
    part(&mut out, &head(selected, &mut strings))?;
    let used = samples(selected, &mut strings, &mut out)?;
    tables(selected.model, &used, &mut strings, &mut out)?;
    part(
        &mut out,
        &Profile {
            string_table: strings.list,
            ..Profile::default()
        },
    )?;
    out.finish()?;
    Ok(())
}

fn part(out: &mut impl Write, part: &Profile) -> io::Result<()> {
    out.write_all(&part.encode_to_vec())
}

/// Returns the name of the one value of memory's samples. None: the samples are of time.
fn memory_type(model: &Model) -> Option<&'static str> {
    match model.shows {
        Some(TracedEvents::Allocated) => Some("alloc_space"),
        Some(TracedEvents::Live) => Some("inuse_space"),
        Some(TracedEvents::Locks | TracedEvents::Io) | None => None,
    }
}

/// Returns the states that occur; each has a value of its own.
fn columns(selected: &Selected<'_>) -> impl Iterator<Item = usize> {
    let sums = selected.sums;
    (0..STATE_SLOTS).filter(move |slot| sums[*slot] != 0)
}

fn head(selected: &Selected<'_>, strings: &mut StringTable) -> Profile {
    let nanoseconds = strings.get("nanoseconds");
    let memory = memory_type(selected.model);
    let sample_type = match memory {
        Some(name) => vec![ValueType {
            r#type: strings.get(name),
            unit: strings.get("bytes"),
        }],
        None => time_types(selected, strings),
    };
    let founder = selected.model.experiments.first();
    let wall = founder.map_or(Nanos::ZERO, |founder| founder.source.start().wall_ns());
    let tick_us = founder.map_or(0, |founder| founder.tick_us);
    let on_cpu = BaseMetric::TotalCpu.of(&selected.sums) > 0;
    let shown = if on_cpu {
        BaseMetric::TotalCpu
    } else {
        BaseMetric::Total
    };
    Profile {
        sample_type,
        time_nanos: i64::try_from(wall.0).unwrap_or(i64::MAX),
        duration_nanos: i64::try_from(selected.model.end_ns().0).unwrap_or(i64::MAX),
        period_type: Some(ValueType {
            r#type: strings.get("wall"),
            unit: nanoseconds,
        }),
        period: i64::from(tick_us) * 1000,
        comment: founder
            .iter()
            .map(|founder| strings.get(&format!("kcollect {}", founder.name)))
            .collect(),
        default_sample_type: strings.get(memory.unwrap_or(shown.keyword())),
        ..Profile::default()
    }
}

/// Returns the values of samples of time.
fn time_types(selected: &Selected<'_>, strings: &mut StringTable) -> Vec<ValueType> {
    let nanoseconds = strings.get("nanoseconds");
    let mut types = vec![ValueType {
        r#type: strings.get("ticks"),
        unit: strings.get("count"),
    }];
    let sums = [BaseMetric::Total.keyword(), BaseMetric::TotalCpu.keyword()];
    let names = sums.into_iter().chain(columns(selected).map(state_name));
    types.extend(names.map(|name| ValueType {
        r#type: strings.get(name),
        unit: nanoseconds,
    }));
    types
}

/// Writes the samples. Returns the parts of the model that they refer to.
fn samples(
    selected: &Selected<'_>,
    strings: &mut StringTable,
    out: &mut impl Write,
) -> io::Result<Used> {
    let model = selected.model;
    let mut used = Used {
        frames: vec![false; model.frames.len()],
        functions: vec![false; model.functions.len()],
        objects: vec![false; model.objects.len()],
        no_stack: false,
    };
    let keys = ["pid", "tid", "comm", "thread"].map(|key| strings.get(key));
    let wakers = Wakers::new(model);
    for of in selected.threads() {
        let thread = of.thread();
        let label = |key, str, num| Label { key, str, num };
        let labels = vec![
            label(keys[0], 0, i64::from(model.process(thread.process).pid.0)),
            label(keys[1], 0, thread.tid as i64),
            label(keys[2], strings.get(&model.process_name(thread)), 0),
            label(keys[3], strings.get(&model.thread_name(thread)), 0),
        ];
        // Blocked time has a sample for each cause and waker.
        let mut stacks: FxHashMap<_, (i64, Sums)> = FxHashMap::default();
        for row in of.rows() {
            let cause = model.cause(row);
            let wait = cause.map(|cause| (cause, wakers.of(row)));
            let (ticks, sums) = stacks.entry((row.stack, wait)).or_default();
            *ticks += i64::from(row.ticks);
            sums[row.slot()] += row.micros;
        }
        let mut stacks: Vec<_> = stacks.into_iter().collect();
        stacks.sort_unstable_by_key(|(key, _)| *key);
        for ((stack, wait), (ticks, sums)) in stacks {
            let location_id = used.locations(model, stack);
            let mut labels = labels.clone();
            if let Some((cause, waker)) = wait {
                let waker = waker.map(|waker| wakers.names(model, waker));
                let own = wait_labels(cause, waker).into_iter();
                labels.extend(
                    own.map(|(key, value)| label(strings.get(key), strings.get(&value), 0)),
                );
            }
            let value = match memory_type(model) {
                Some(_) => vec![ticks],
                None => time_values(selected, ticks, &sums),
            };
            let sample = Sample {
                location_id,
                value,
                label: labels,
            };
            part(
                out,
                &Profile {
                    sample: vec![sample],
                    ..Profile::default()
                },
            )?;
        }
    }
    Ok(used)
}

/// Returns the labels of blocked time: their keys and values.
fn wait_labels(cause: Cause, waker: Option<WakerNames<'_>>) -> Vec<(&'static str, String)> {
    let mut labels = vec![
        ("cause", cause.keyword().to_owned()),
        ("kind", cause.kind().keyword().to_owned()),
    ];
    labels.extend(waker.map(|waker| ("waker", waker.numbered_title())));
    labels
}

/// Returns the values of a sample, as [`time_types`].
fn time_values(selected: &Selected<'_>, ticks: i64, sums: &Sums) -> Vec<i64> {
    let metrics = [BaseMetric::Total, BaseMetric::TotalCpu].map(|base| base.of(sums));
    let own = columns(selected).map(|slot| sums[slot]);
    let times = metrics.into_iter().chain(own);
    let times = times.map(|microseconds| microseconds.saturating_mul(1000));
    std::iter::once(ticks).chain(times).collect()
}

impl Used {
    /// Returns the ids of the locations of a stack, leaf first, and marks what they refer to.
    fn locations(&mut self, model: &Model, stack: StackId) -> Vec<u64> {
        if stack == StackId::EMPTY {
            self.no_stack = true;
            return vec![model.frames.len() as u64 + 1];
        }
        let frames = model.stacks.frames(stack);
        frames
            .map(|frame| {
                self.mark(model, frame);
                u64::from(frame.0) + 1
            })
            .collect()
    }

    fn mark(&mut self, model: &Model, frame: FrameId) {
        self.frames[frame.index()] = true;
        let function = model.frame(frame).function;
        self.functions[function.index()] = true;
        self.objects[model.function(function).object.index()] = true;
    }
}

/// Returns the first mapping, which pprof shows as the file of the whole profile. A machine has no
/// main program, so it is the experiment; no frame is in it.
fn main_mapping(model: &Model, strings: &mut StringTable) -> Mapping {
    let founder = model.experiments.first();
    Mapping {
        id: model.objects.len() as u64 + 1,
        memory_start: 1,
        memory_limit: 2,
        filename: strings.get(founder.map_or("", |founder| &founder.name)),
        build_id: 0,
        has_functions: true,
    }
}

/// Writes the tables of load objects, functions and frames that samples refer to.
fn tables(
    model: &Model,
    used: &Used,
    strings: &mut StringTable,
    out: &mut impl Write,
) -> io::Result<()> {
    let build_ids = build_ids::of(model);
    part(out, &of_mapping(main_mapping(model, strings)))?;
    for index in positions(&used.objects) {
        let object = &model.objects[index];
        if object.kind == ObjectKind::File {
            let mapping = mapping(index, object, &build_ids[index], strings);
            part(out, &of_mapping(mapping))?;
        }
    }
    for index in positions(&used.functions) {
        let function = function(model, index, strings);
        let functions = Profile {
            function: vec![function],
            ..Profile::default()
        };
        part(out, &functions)?;
    }
    for index in positions(&used.frames) {
        let locations = Profile {
            location: vec![location(model, index)],
            ..Profile::default()
        };
        part(out, &locations)?;
    }
    if used.no_stack {
        part(out, &no_stack(model, strings))?;
    }
    Ok(())
}

/// Returns the function and the location of the stack without frames. Their ids follow the model's
/// last ones.
fn no_stack(model: &Model, strings: &mut StringTable) -> Profile {
    let function = Function {
        id: model.functions.len() as u64 + 1,
        name: strings.get(NO_STACK),
        system_name: strings.get(NO_STACK),
        filename: strings.get(""),
    };
    let location = Location {
        id: model.frames.len() as u64 + 1,
        mapping_id: 0,
        address: 0,
        line: vec![Line {
            function_id: function.id,
        }],
    };
    Profile {
        function: vec![function],
        location: vec![location],
        ..Profile::default()
    }
}

/// Returns the positions whose flags are set.
fn positions(flags: &[bool]) -> impl Iterator<Item = usize> {
    (0..flags.len()).filter(|index| flags[*index])
}

/// Returns the part of a profile that consists of a mapping.
fn of_mapping(mapping: Mapping) -> Profile {
    Profile {
        mapping: vec![mapping],
        ..Profile::default()
    }
}

/// Returns the mapping of a load object. Ids begin with 1.
fn mapping(
    index: usize,
    object: &ObjectInfo,
    build_id: &str,
    strings: &mut StringTable,
) -> Mapping {
    let id = index as u64 + 1;
    Mapping {
        id,
        memory_start: OBJECT_SPACING_BYTES * id,
        memory_limit: OBJECT_SPACING_BYTES * (id + 1) - 1,
        filename: strings.get(&object.path),
        build_id: strings.get(build_id),
        has_functions: true,
    }
}

fn function(model: &Model, index: usize, strings: &mut StringTable) -> Function {
    let function = &model.functions[index];
    let object = model.object(function.object);
    let is_file = object.kind == ObjectKind::File;
    Function {
        id: index as u64 + 1,
        name: strings.get(&function.name),
        system_name: strings.get(function.symbol()),
        filename: strings.get(if is_file { &object.path } else { "" }),
    }
}

/// Returns the location of a frame. A frame without a file has no mapping and no address.
fn location(model: &Model, index: usize) -> Location {
    let frame = &model.frames[index];
    let object = model.function(frame.function).object;
    let is_file = model.object(object).kind == ObjectKind::File;
    let mapping_id = u64::from(object.0) + 1;
    // No file is as long as the distance.
    let address = OBJECT_SPACING_BYTES * mapping_id + frame.offset % OBJECT_SPACING_BYTES;
    Location {
        id: index as u64 + 1,
        mapping_id: if is_file { mapping_id } else { 0 },
        address: if is_file { address } else { 0 },
        line: vec![Line {
            function_id: u64::from(frame.function.0) + 1,
        }],
    }
}

/// Returns the labels of each sample with texts, and its milliseconds.
#[cfg(test)]
pub(super) fn labelled(bytes: &[u8]) -> Vec<(FxHashMap<String, String>, i64)> {
    let profile = Profile::decode(bytes).unwrap_or_default();
    let text = |position: i64| profile.string_table[position as usize].clone();
    let total = profile.sample_type.iter();
    let total = total
        .map(|kind| text(kind.r#type))
        .position(|kind| kind == "total");
    let each = profile.sample.iter().map(|sample| {
        let labels = sample
            .label
            .iter()
            .map(|label| (text(label.key), text(label.str)));
        let nanoseconds = total.map_or(0, |total| sample.value[total]);
        (labels.collect(), nanoseconds / 1_000_000)
    });
    each.collect()
}
