//! Reads exact times of threads, in nanoseconds, from the founder's `threads.jsonl`.
//!
//! A thread without a line at the last sample has stayed in the state of its last line, and gets
//! the rest of the time in that state; on a CPU, as user time. Experiments of other collectors have
//! no such file.

use experiment_format::Error;
use experiment_format::microstate::Microstate;
use experiment_format::reader::Experiment;
use rustc_hash::FxHashMap;
use serde::Deserialize;

/// The file's name in the founder's directory.
const THREADS_FILE: &str = "threads.jsonl";

/// Nanoseconds by state, indexed by the state's number.
pub type States = [u64; Microstate::PER_THREAD];

/// The exact times of one thread.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ThreadTimes {
    /// Its pid.
    pub pid: u32,
    /// Its tid.
    pub tid: u32,
    /// Its last name.
    pub name: String,
    /// Nanoseconds by state, since the recording began.
    pub states: States,
    /// Whether it exited during the recording.
    pub ended: bool,
}

/// The exact times of all threads of an experiment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExactTimes {
    /// The threads, in the order of their first lines.
    pub threads: Vec<ThreadTimes>,
    /// How many threads lasted for less than an interval, and so have no line of their own.
    pub short_lived: u64,
    /// Their times, all together.
    pub short_lived_states: States,
}

#[derive(Deserialize)]
struct ThreadLine<'a> {
    pid: Option<u32>,
    tid: Option<u32>,
    #[serde(borrow)]
    name: Option<std::borrow::Cow<'a, str>>,
    at_ns: Option<u64>,
    #[serde(default)]
    ended: bool,
    #[serde(borrow)]
    state: Option<std::borrow::Cow<'a, str>>,
    short_lived: Option<u64>,
    #[serde(default)]
    states_ns: FxHashMap<String, u64>,
}

impl ThreadLine<'_> {
    fn states(&self) -> States {
        let mut states = [0; Microstate::PER_THREAD];
        for (slot, state) in Microstate::ALL[..Microstate::PER_THREAD].iter().enumerate() {
            let keyword = state.metric().unwrap_or_default();
            states[slot] = self.states_ns.get(keyword).copied().unwrap_or(0);
        }
        states
    }

    /// The position of the state that the thread is in.
    fn slot(&self) -> usize {
        let states = &Microstate::ALL[..Microstate::PER_THREAD];
        let found = states
            .iter()
            .position(|state| state.metric() == self.state.as_deref());
        found.unwrap_or(Microstate::User as usize)
    }
}

impl ExactTimes {
    /// Reads the times of an experiment. None: it has none. Lines that do not parse are skipped,
    /// since the last may be cut.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn read(source: &Experiment) -> Result<Option<ExactTimes>, Error> {
        let Some(bytes) = source.side_file(THREADS_FILE)? else {
            return Ok(None);
        };
        Ok(Some(ExactTimes::parse(&bytes)))
    }

    fn parse(bytes: &[u8]) -> ExactTimes {
        let mut times = ExactTimes::default();
        // Threads that have not exited: position, state, and the time of their last line.
        let mut living: FxHashMap<(u32, u32), (usize, usize, u64)> = FxHashMap::default();
        let mut end = 0;
        for line in bytes.split(|byte| *byte == b'\n') {
            let Ok(line) = serde_json::from_slice::<ThreadLine<'_>>(line) else {
                continue;
            };
            let at = line.at_ns.unwrap_or(0);
            end = end.max(at);
            let states = line.states();
            if let Some(short_lived) = line.short_lived {
                times.short_lived += short_lived;
                add(&mut times.short_lived_states, &states);
            }
            let (Some(pid), Some(tid)) = (line.pid, line.tid) else {
                continue;
            };
            let next = times.threads.len();
            let known = living.remove(&(pid, tid));
            let position = known.map_or(next, |(position, ..)| position);
            if position == next {
                times.threads.push(ThreadTimes::default());
            }
            times.threads[position] = ThreadTimes {
                pid,
                tid,
                name: line.name.as_deref().unwrap_or_default().to_owned(),
                states,
                ended: line.ended,
            };
            if !line.ended {
                living.insert((pid, tid), (position, line.slot(), at));
            }
        }
        for (position, slot, at) in living.into_values() {
            times.threads[position].states[slot] += end.saturating_sub(at);
        }
        times
    }
}

/// Adds `states` to `to`.
pub fn add(to: &mut States, states: &States) {
    for (to, ns) in to.iter_mut().zip(states) {
        *to += ns;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_last_line_of_a_thread_counts_and_the_rest_is_in_its_state() {
        let times = ExactTimes::parse(
            br#"
{"pid":7,"tid":7,"name":"a","at_ns":100,"state":"sleep","since_ns":40,"states_ns":{"user":60,"sleep":40}}

{"sample":0,"at_ns":100}
{"pid":7,"tid":8,"name":"b","at_ns":150,"ended":true,"states_ns":{"lock":50}}
{"short_lived":3,"states_ns":{"user":5}}
{"sample":1,"at_ns":200}
{"pid":7,"tid":8,"name":"again","at_ns":210,"state":"cpu","states_ns":{"wait":1}}
{"sample":2,"at_ns":300}
{"pid":7,"tid":"#,
        );
        let rows: Vec<_> = times
            .threads
            .iter()
            .map(|thread| (thread.name.as_str(), thread.states))
            .collect();
        let mut states = [[0; 10]; 3];
        (states[0][0], states[0][7]) = (60, 240);
        states[1][6] = 50;
        (states[2][0], states[2][8]) = (90, 1);
        assert_eq!(
            rows,
            [("a", states[0]), ("b", states[1]), ("again", states[2])]
        );
        assert_eq!((times.short_lived, times.short_lived_states[0]), (3, 5));
    }

    proptest! {
        #[test]
        fn any_bytes_are_taken(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = ExactTimes::parse(&bytes);
        }
    }
}
