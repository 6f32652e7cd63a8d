//! The times that the page should have, tick by tick.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use analysis::view::{PageTick, Payload};
use anyhow::{Result, ensure};
use experiment_format::microstate::Microstate;
use serde_json::{Value, json};

/// A selection; what is `None` is not restricted.
#[derive(Clone, Debug, Default)]
pub(crate) struct Selection {
    pub(crate) time: Option<[u64; 2]>,
    pub(crate) states: Option<BTreeSet<u32>>,
    pub(crate) processes: Option<BTreeSet<u32>>,
    pub(crate) cpus: Option<BTreeSet<u16>>,
}

impl Selection {
    /// Returns the argument of the page's `select`.
    pub(crate) fn argument(&self) -> String {
        let mut argument = json!({});
        if let Some(time) = &self.time {
            argument["time"] = json!(time);
        }
        if let Some(states) = &self.states {
            argument["states"] = json!(states);
        }
        if let Some(processes) = &self.processes {
            argument["processes"] = json!(processes);
        }
        if let Some(cpus) = &self.cpus {
            argument["cpus"] = json!(cpus);
        }
        argument.to_string()
    }

    /// Returns whether a row is selected, whenever its ticks passed.
    fn has(&self, payload: &Payload, row: &PageTick) -> bool {
        let process = payload.threads[row.thread as usize].process;
        let state = row.state.number();
        self.states
            .as_ref()
            .is_none_or(|some| some.contains(&state))
            && self
                .processes
                .as_ref()
                .is_none_or(|some| some.contains(&process))
            && self
                .cpus
                .as_ref()
                .is_none_or(|some| some.contains(&row.cpu))
    }

    /// Returns whether a tick that passed at this time is selected, whatever it is of.
    pub(crate) fn has_time(&self, payload: &Payload, passed: i64) -> bool {
        self.time.is_none_or(|[from, to]| {
            (from == 0 || passed > from as i64)
                && (to >= payload.duration_ns.0 || passed <= to as i64)
        })
    }
}

type States = [u64; Microstate::PER_THREAD];

/// Sums of a selection.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Truth {
    pub(crate) states: States,
    pub(crate) processes: BTreeMap<u64, States>,
    /// Microseconds by state with callees, and its own, by path of (name, object) from the root.
    pub(crate) frames: BTreeMap<Vec<(String, String)>, (States, u64)>,
}

/// A profile, and when the last tick of each of its rows passed.
pub(crate) struct Profile<'a> {
    payload: &'a Payload,
    last: Vec<i64>,
}

impl<'a> Profile<'a> {
    pub(crate) fn new(payload: &'a Payload) -> Profile<'a> {
        let interval = i64::from(payload.interval_us) * 1000;
        let mut last = vec![0; payload.ticks.len()];
        let mut together: BTreeMap<(u32, u64), Vec<usize>> = BTreeMap::new();
        // Rows without time are not on the page.
        let rows = payload.ticks.iter().enumerate();
        for (index, row) in rows.filter(|(_, row)| row.micros > 0) {
            let key = (row.thread, row.time_ns.0);
            together.entry(key).or_default().push(index);
        }
        for ((_, time), mut rows) in together {
            // The first is what the thread did last. Of the same kind it is the one of the higher
            // number, as on the page; which one it was is not known.
            rows.sort_by_key(|&index| {
                let state = payload.ticks[index].state;
                let kind = match state {
                    Microstate::User | Microstate::System | Microstate::Trap => 0,
                    Microstate::WaitCpu => 1,
                    _ => 2,
                };
                (kind, Reverse(state.number()))
            });
            let mut passed = time as i64;
            for index in rows {
                last[index] = passed;
                passed -= i64::from(payload.ticks[index].ticks) * interval;
            }
        }
        Profile { payload, last }
    }

    /// Adds up the ticks of a selection, one by one where a row is not selected as a whole. With
    /// `by_process` paths begin with the process.
    pub(crate) fn count(&self, selection: &Selection, by_process: bool) -> Truth {
        let payload = self.payload;
        let interval = i64::from(payload.interval_us) * 1000;
        let mut stacks: BTreeMap<(u32, u32), States> = BTreeMap::new();
        for (row, &last) in payload.ticks.iter().zip(&self.last) {
            if !selection.has(payload, row) {
                continue;
            }
            let count = u64::from(row.ticks);
            let part = |ticks: u64| row.micros * ticks / count.max(1);
            let micros = match selection.time {
                None => row.micros,
                Some(_) if count == 0 && selection.has_time(payload, last) => row.micros,
                Some(_) => {
                    let has =
                        |tick: &u64| selection.has_time(payload, last - *tick as i64 * interval);
                    let mut selected = (0..count).filter(has);
                    let first = selected.next();
                    let last = selected.next_back().or(first);
                    last.map_or(0, |last| part(last + 1)) - first.map_or(0, part)
                }
            };
            if micros > 0 {
                let process = payload.threads[row.thread as usize].process;
                let states = stacks.entry((process, row.stack)).or_default();
                states[row.state.number() as usize] += micros;
            }
        }
        let mut truth = Truth::default();
        for ((process, node), states) in stacks {
            truth.add(payload, process, node, &states, by_process);
        }
        truth
    }
}

impl Truth {
    fn add(
        &mut self,
        payload: &Payload,
        process: u32,
        node: u32,
        micros: &States,
        by_process: bool,
    ) {
        let sum = |into: &mut States| {
            into.iter_mut()
                .zip(micros)
                .for_each(|(into, micros)| *into += micros)
        };
        sum(&mut self.states);
        sum(self.processes.entry(process.into()).or_default());
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let mut frames = Vec::new();
        let mut at = node;
        while at != 0 {
            let function = &payload.functions[payload.stacks.functions()[at as usize] as usize];
            frames.push((text(&function.name), text(&function.object)));
            at = payload.stacks.parents()[at as usize];
        }
        if by_process {
            let process = &payload.processes[process as usize];
            let name = format!("{} {}", text(&process.name), process.pid);
            frames.push((name, String::new()));
        }
        frames.reverse();
        for depth in 0..=frames.len() {
            let (states, own) = self.frames.entry(frames[..depth].to_vec()).or_default();
            sum(states);
            if depth == frames.len() {
                *own += micros.iter().sum::<u64>();
            }
        }
    }

    /// Reads the counts that the page has: `totals()` and `flame()`.
    pub(crate) fn of_page(totals: &Value, flame: &Value) -> Result<Truth> {
        let mut truth = Truth {
            states: states(&totals["states"]),
            ..Truth::default()
        };
        ensure!(
            totals["micros"] == truth.states.iter().sum::<u64>(),
            "{}",
            totals["micros"]
        );
        for process in totals["processes"].as_array().into_iter().flatten() {
            let number = process["process"].as_u64().unwrap_or(u64::MAX);
            truth.processes.insert(number, states(&process["states"]));
        }
        let mut path = Vec::new();
        for frame in flame.as_array().into_iter().flatten() {
            let depth = frame["depth"].as_u64().unwrap_or(u64::MAX) as usize;
            let text = |what: &str| frame[what].as_str().unwrap_or("?").to_owned();
            ensure!(depth <= path.len() + 1, "a frame hangs in the air: {frame}");
            if depth > 0 {
                path.truncate(depth - 1);
                path.push((text("name"), text("object")));
            }
            let states = states(&frame["states"]);
            ensure!(frame["micros"] == states.iter().sum::<u64>(), "{frame}");
            let own = frame["self"].as_u64().unwrap_or(u64::MAX);
            let double = truth.frames.insert(path.clone(), (states, own));
            ensure!(double.is_none(), "two frames of one stack: {path:?}");
        }
        truth
            .frames
            .retain(|_, (states, _)| states.iter().sum::<u64>() > 0);
        Ok(truth)
    }
}

fn states(value: &Value) -> States {
    std::array::from_fn(|state| value[state].as_u64().unwrap_or(u64::MAX))
}
