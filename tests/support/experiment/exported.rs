//! Readers of what `kcollect export` wrote, without any of the code that wrote it: they return sums
//! by state, and check what each format requires.
//!
//! Field numbers come from the published schemas: `profile.proto` of pprof, `perfetto_trace.proto`
//! of Perfetto.

use std::collections::{BTreeMap, HashMap, HashSet};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

/// Microseconds by state, without zeros. The states have the names of the format.
pub type States = BTreeMap<String, i64>;

/// Returns the state of a leaf such as `[lock]`.
fn state(leaf: &str) -> Result<String> {
    let inner = leaf
        .strip_prefix('[')
        .and_then(|leaf| leaf.strip_suffix(']'));
    Ok(inner
        .with_context(|| format!("{leaf} is no state"))?
        .to_owned())
}

/// Reads folded stacks: each line has frames, none of them empty, and a number.
///
/// # Errors
/// A malformed line.
pub fn folded(text: &str) -> Result<States> {
    let mut states = States::new();
    for line in text.lines() {
        let (stack, number) = line.rsplit_once(' ').context("no number")?;
        ensure!(
            stack.split(';').all(|frame| !frame.trim().is_empty()),
            "{line}"
        );
        let leaf = stack.rsplit(';').next().unwrap_or_default();
        *states.entry(state(leaf)?).or_default() += number.parse::<i64>()?;
    }
    Ok(states)
}

fn list<'a>(value: &'a Value, key: &str) -> Result<&'a Vec<Value>> {
    value[key]
        .as_array()
        .with_context(|| format!("{key} is no list"))
}

fn index(value: &Value, below: usize) -> Result<usize> {
    let index = value.as_u64().context("no number")? as usize;
    ensure!(index < below, "{index} of {below}");
    Ok(index)
}

/// Reads a file of speedscope: profiles of type `sampled`, in microseconds.
///
/// # Errors
/// What the format does not permit.
pub fn speedscope(file: &Value) -> Result<States> {
    let mut states = States::new();
    let frames = list(&file["shared"], "frames")?;
    let names: Vec<_> = frames.iter().map(|frame| frame["name"].as_str()).collect();
    ensure!(names.iter().all(Option::is_some), "a frame without a name");
    let profiles = list(file, "profiles")?;
    index(&file["activeProfileIndex"], profiles.len())?;
    for profile in profiles {
        ensure!(profile["type"] == "sampled" && profile["unit"] == "microseconds");
        let (samples, weights) = (list(profile, "samples")?, list(profile, "weights")?);
        ensure!(samples.len() == weights.len() && !samples.is_empty());
        let mut whole = 0;
        for (sample, weight) in samples.iter().zip(weights) {
            let mut leaf = None;
            for frame in sample.as_array().context("no stack")? {
                leaf = names[index(frame, names.len())?];
            }
            let weight = weight.as_i64().context("no weight")?;
            ensure!(weight >= 0);
            whole += weight;
            if sample.as_array().is_some_and(Vec::is_empty) {
                // No ticks.
                continue;
            }
            *states
                .entry(state(leaf.context("an empty stack")?)?)
                .or_default() += weight;
        }
        let ends = [&profile["startValue"], &profile["endValue"]].map(Value::as_i64);
        ensure!(ends == [Some(0), Some(whole)], "{ends:?} {whole}");
    }
    states.retain(|_, sum| *sum != 0);
    Ok(states)
}

/// Reads the Firefox Profiler's processed format: tables of the declared length, indexes that point
/// into them, each prefix before the stacks that continue it, times that ascend.
///
/// # Errors
/// What the format does not permit.
pub fn firefox(file: &Value) -> Result<States> {
    let mut states = States::new();
    let tick_us = file["meta"]["interval"].as_f64().context("no interval")? * 1000.0;
    let categories = list(&file["meta"], "categories")?;
    let mut ids = HashSet::new();
    let libraries = list(file, "libs")?;
    let threads = list(file, "threads")?;
    let visible = list(&file["meta"], "initialVisibleThreads")?;
    ensure!(!visible.is_empty());
    for position in visible {
        index(position, threads.len())?;
    }
    for thread in threads {
        let id = (thread["pid"].as_str(), thread["tid"].as_str());
        ensure!(id.0.is_some() && id.1.is_some() && ids.insert(id), "{id:?}");
        let time = |name: &str| thread[name].as_f64();
        let begin = time("registerTime").context("no registerTime")?;
        ensure!(time("processStartupTime").is_some_and(|process| process <= begin));
        ensure!(time("unregisterTime").is_none_or(|end| begin <= end));
        ensure!(time("processShutdownTime").is_none_or(|end| time("unregisterTime") <= Some(end)));
        let strings = list(thread, "stringArray")?;
        let columns = |table: &str, names: &[&str]| -> Result<usize> {
            let table = &thread[table];
            let length = index(&table["length"], usize::MAX)?;
            for name in names {
                ensure!(list(table, name)?.len() == length, "{name}");
            }
            Ok(length)
        };
        let stacks = columns("stackTable", &["prefix", "frame"])?;
        let frames = columns("frameTable", &["func", "category", "address"])?;
        let functions = columns("funcTable", &["name"])?;
        let samples = columns(
            "samples",
            &["stack", "timeDeltas", "weight", "threadCPUDelta"],
        )?;
        let markers = columns(
            "markers",
            &["name", "startTime", "endTime", "category", "phase"],
        )?;
        for (at, prefix) in list(&thread["stackTable"], "prefix")?.iter().enumerate() {
            ensure!(
                prefix.is_null() || index(prefix, at).is_ok(),
                "{prefix} at {at}"
            );
        }
        let each = |table: &str, name: &str, below: usize| -> Result<()> {
            for value in list(&thread[table], name)? {
                index(value, below)?;
            }
            Ok(())
        };
        let resources = columns("resourceTable", &["lib", "name", "type"])?;
        each("resourceTable", "lib", libraries.len())?;
        for resource in list(&thread["funcTable"], "resource")? {
            ensure!(
                resource == -1 || index(resource, resources).is_ok(),
                "{resource}"
            );
        }
        each("stackTable", "frame", frames)?;
        each("frameTable", "func", functions)?;
        each("frameTable", "category", categories.len())?;
        each("funcTable", "name", strings.len())?;
        each("markers", "name", strings.len())?;
        ensure!(
            list(&thread["samples"], "timeDeltas")?
                .iter()
                .all(|delta| delta.as_f64() >= Some(0.0))
        );
        for at in 0..samples {
            let stack = index(&thread["samples"]["stack"][at], stacks)?;
            let frame = index(&thread["stackTable"]["frame"][stack], frames)?;
            let function = index(&thread["frameTable"]["func"][frame], functions)?;
            let name = index(&thread["funcTable"]["name"][function], strings.len())?;
            let leaf = strings[name].as_str().context("no string")?;
            let weight = thread["samples"]["weight"][at]
                .as_i64()
                .context("no weight")?;
            *states.entry(state(leaf)?).or_default() += (weight as f64 * tick_us).round() as i64;
        }
        for at in 0..markers {
            let times = ["startTime", "endTime"].map(|name| thread["markers"][name][at].as_f64());
            ensure!(times[0].is_some() && times[0] <= times[1], "{times:?}");
        }
    }
    Ok(states)
}

/// A value of a protobuf message.
#[derive(Debug, Clone, Copy)]
enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

fn varint(bytes: &mut &[u8]) -> Result<u64> {
    let mut value = 0u64;
    for shift in (0..70).step_by(7) {
        let (byte, rest) = bytes.split_first().context("cut")?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    bail!("a number without end")
}

/// Returns the fields of a message, by number.
fn fields(mut bytes: &[u8]) -> Result<Vec<(u64, Field<'_>)>> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes)?;
        let value = match key & 7 {
            0 => Field::Number(varint(&mut bytes)?),
            1 => {
                let (value, rest) = bytes.split_first_chunk().context("cut")?;
                bytes = rest;
                Field::Number(u64::from_le_bytes(*value))
            }
            2 => {
                let length = varint(&mut bytes)? as usize;
                let (value, rest) = bytes.split_at_checked(length).context("cut")?;
                bytes = rest;
                Field::Bytes(value)
            }
            other => bail!("wire type {other}"),
        };
        fields.push((key >> 3, value));
    }
    Ok(fields)
}

/// Returns the fields of one number, each a message or a string.
fn messages<'a>(fields: &[(u64, Field<'a>)], number: u64) -> Vec<&'a [u8]> {
    let own = fields.iter().filter_map(|(own, value)| match value {
        Field::Bytes(bytes) if *own == number => Some(*bytes),
        _ => None,
    });
    own.collect()
}

/// Returns the numbers in the fields of one number, packed or not.
fn numbers(fields: &[(u64, Field<'_>)], number: u64) -> Result<Vec<u64>> {
    let mut numbers = Vec::new();
    for (_, value) in fields.iter().filter(|(own, _)| *own == number) {
        match *value {
            Field::Number(value) => numbers.push(value),
            Field::Bytes(mut bytes) => {
                while !bytes.is_empty() {
                    numbers.push(varint(&mut bytes)?);
                }
            }
        }
    }
    Ok(numbers)
}

fn number(fields: &[(u64, Field<'_>)], of: u64) -> Result<u64> {
    Ok(numbers(fields, of)?.last().copied().unwrap_or(0))
}

/// Reads a profile of pprof, decompressed: all ids are there, once; samples have as many values as
/// there are types. Returns the sums of all columns, those in nanoseconds as microseconds.
///
/// # Errors
/// What the format does not permit.
pub fn pprof(bytes: &[u8]) -> Result<States> {
    let profile = fields(bytes)?;
    let strings = messages(&profile, 6);
    let strings: Vec<_> = strings
        .into_iter()
        .map(std::str::from_utf8)
        .collect::<Result<_, _>>()?;
    ensure!(strings.first() == Some(&""));
    let text = |index: u64| {
        strings
            .get(index as usize)
            .copied()
            .context("no such string")
    };
    let ids = |kind: u64| -> Result<HashSet<u64>> {
        let mut ids = HashSet::new();
        for message in messages(&profile, kind) {
            let id = number(&fields(message)?, 1)?;
            ensure!(id != 0 && ids.insert(id), "{kind}: {id}");
        }
        Ok(ids)
    };
    let (mappings, locations, functions) = (ids(3)?, ids(4)?, ids(5)?);
    for location in messages(&profile, 4) {
        let location = fields(location)?;
        let mapping = number(&location, 2)?;
        ensure!(mapping == 0 || mappings.contains(&mapping));
        for line in messages(&location, 4) {
            ensure!(functions.contains(&number(&fields(line)?, 1)?));
        }
    }
    for function in messages(&profile, 5) {
        let function = fields(function)?;
        for field in 2..=4 {
            text(number(&function, field)?)?;
        }
    }
    let mut types = Vec::new();
    for kind in messages(&profile, 1) {
        let kind = fields(kind)?;
        types.push((text(number(&kind, 1)?)?, text(number(&kind, 2)?)?));
    }
    let shown = text(number(&profile, 14)?)?;
    ensure!(types.iter().any(|(name, _)| *name == shown), "{shown}");
    let mut sums = vec![0; types.len()];
    for sample in messages(&profile, 2) {
        let sample = fields(sample)?;
        let stack = numbers(&sample, 1)?;
        ensure!(!stack.is_empty(), "`go tool pprof` drops it");
        ensure!(stack.iter().all(|id| locations.contains(id)));
        let values = numbers(&sample, 2)?;
        ensure!(values.len() == sums.len());
        for (sum, value) in sums.iter_mut().zip(values) {
            *sum += value as i64;
        }
        let labels = messages(&sample, 3).into_iter().map(|label| {
            let label = fields(label)?;
            text(number(&label, 2)?)?;
            text(number(&label, 1)?)
        });
        let labels: Vec<_> = labels.collect::<Result<_>>()?;
        let of_all = ["pid", "tid", "comm", "thread"];
        let of_waits = labels.strip_prefix(&of_all);
        let fits = matches!(
            of_waits,
            Some([] | ["cause", "kind"] | ["cause", "kind", "waker"])
        );
        ensure!(fits, "{labels:?}");
    }
    let sums = types.into_iter().zip(sums).filter(|(_, sum)| *sum != 0);
    let sums = sums.map(|((name, unit), sum)| {
        let sum = if unit == "nanoseconds" {
            sum / 1000
        } else {
            sum
        };
        (name.to_owned(), sum)
    });
    Ok(sums.collect())
}

/// The contents of a Perfetto trace.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// Sums of slices, by their names.
    pub states: States,
    /// Sums of the slices that have a stack.
    pub with_stack: i64,
    /// Samples of stacks, those without one included, by CPU.
    pub samples: BTreeMap<u32, i64>,
    /// The wall clock when the recording began, nanoseconds.
    pub wall_ns: u64,
    /// The number of wake-ups, each with a flow from the waker to the thread that was woken.
    pub wakes: usize,
}

/// The number of the wall clock in a Perfetto trace (`BUILTIN_CLOCK_REALTIME`).
const REALTIME: u64 = 1;

/// A slice whose end was not read yet.
struct OpenSlice {
    begin: u64,
    name: String,
    stack: bool,
}

/// Reads a Perfetto trace: what is referred to was interned before; slices of a track begin and end
/// in turn, and do not overlap; flows go from instants to slices, and do not go back in time.
///
/// # Errors
/// What readers would count as an error.
pub fn perfetto(bytes: &[u8]) -> Result<Trace> {
    // Numbers of what was interned, by the field of InternedData.
    let mut interned: HashMap<u64, HashSet<u64>> = HashMap::new();
    let mut names = HashMap::new();
    let mut tracks = HashSet::new();
    let mut open: HashMap<u64, (u64, Option<OpenSlice>)> = HashMap::new();
    // By the number of a flow: its times.
    let mut flows: HashMap<u64, [Option<u64>; 2]> = HashMap::new();
    let mut trace = Trace::default();
    for (at, packet) in messages(&fields(bytes)?, 1).into_iter().enumerate() {
        let packet = fields(packet)?;
        ensure!(number(&packet, 10)? == 1);
        ensure!(
            (number(&packet, 13)? & 1 == 1) == (at == 0),
            "cleared at {at}"
        );
        for data in messages(&packet, 12) {
            let data = fields(data)?;
            let known = |interned: &HashMap<u64, HashSet<u64>>, kind, id| {
                interned
                    .get(&kind)
                    .is_some_and(|ids: &HashSet<u64>| ids.contains(&id))
            };
            // Strings first, and what refers to them after them.
            for kind in [1, 2, 3, 5, 16, 17, 19, 6, 7] {
                for message in messages(&data, kind) {
                    let message = fields(message)?;
                    let id = number(&message, 1)?;
                    ensure!(id != 0 && interned.entry(kind).or_default().insert(id));
                    let refers: &[(u64, u64)] = match kind {
                        19 => &[(7, 17)],
                        6 => &[(2, 5), (3, 19)],
                        7 => &[(2, 6)],
                        _ => &[],
                    };
                    for (field, to) in refers {
                        let ids = numbers(&message, *field)?;
                        ensure!(!ids.is_empty() && ids.iter().all(|id| known(&interned, *to, *id)));
                    }
                    if kind == 2 {
                        let name = messages(&message, 2);
                        let name = String::from_utf8(name.concat())?;
                        names.insert(id, name);
                    }
                }
            }
        }
        for snapshot in messages(&packet, 6) {
            for clock in messages(&fields(snapshot)?, 1) {
                let clock = fields(clock)?;
                if number(&clock, 1)? == REALTIME {
                    trace.wall_ns = number(&clock, 2)?;
                }
            }
        }
        let time = number(&packet, 8)?;
        let stack_known = |ids: &[u64]| ids.iter().all(|id| interned[&7].contains(id));
        for descriptor in messages(&packet, 60) {
            ensure!(tracks.insert(number(&fields(descriptor)?, 1)?));
        }
        for event in messages(&packet, 11) {
            let event = fields(event)?;
            let track = number(&event, 11)?;
            ensure!(tracks.contains(&track));
            let (last, slice) = open.entry(track).or_default();
            ensure!(time >= *last, "{time} after {last}");
            let kind = number(&event, 9)?;
            for (at, field) in [47, 48].into_iter().enumerate() {
                let ids = numbers(&event, field)?;
                ensure!(ids.is_empty() || (kind == 3) == (at == 0));
                for id in ids {
                    let end = &mut flows.entry(id).or_default()[at];
                    ensure!(id != 0 && end.replace(time).is_none(), "flow {id}");
                }
            }
            for annotation in messages(&event, 4) {
                let name = number(&fields(annotation)?, 1)?;
                ensure!(interned[&3].contains(&name), "annotation {name}");
            }
            match kind {
                1 => {
                    let name = names.get(&number(&event, 10)?).context("no such name")?;
                    let stack = numbers(&event, 56)?;
                    ensure!(slice.is_none() && (stack.is_empty() || stack_known(&stack)));
                    *slice = Some(OpenSlice {
                        begin: time,
                        name: name.clone(),
                        stack: !stack.is_empty(),
                    });
                }
                2 => {
                    let OpenSlice { begin, name, stack } = slice.take().context("no beginning")?;
                    let length = ((time - begin) / 1000) as i64;
                    *trace.states.entry(name).or_default() += length;
                    trace.with_stack += if stack { length } else { 0 };
                }
                3 => {
                    ensure!(names.contains_key(&number(&event, 10)?), "no such name");
                    trace.wakes += 1;
                }
                other => bail!("type {other}"),
            }
            *last = time;
        }
        for sample in messages(&packet, 66) {
            let sample = fields(sample)?;
            let stack = numbers(&sample, 4)?;
            ensure!(stack.is_empty() || stack_known(&stack));
            // A number that is 0 is written too: without it the reader knows no CPU.
            ensure!(
                sample.iter().any(|(field, _)| *field == 1),
                "a sample without CPU"
            );
            let cpu = u32::try_from(number(&sample, 1)?)?;
            *trace.samples.entry(cpu).or_default() += 1;
        }
    }
    ensure!(open.values().all(|(_, slice)| slice.is_none()));
    for (id, times) in &flows {
        ensure!(
            matches!(times, [Some(from), Some(to)] if from <= to),
            "flow {id}: {times:?}"
        );
    }
    ensure!(flows.len() == trace.wakes);
    trace.states.retain(|_, sum| *sum != 0);
    Ok(trace)
}
