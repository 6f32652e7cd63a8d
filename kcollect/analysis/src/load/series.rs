//! Finds which of the opened experiments are one recording: a series (`--rotate`), in which one
//! begins at the very instant at which another ends.
//!
//! Their times are on one axis, and a process that continues is one process. A process that ended
//! at a rotation, and whose pid was at once another's, cannot be distinguished from that.

use experiment_format::log::LogEvent;
use experiment_format::reader::Experiment;
use experiment_format::units::Nanos;
use rustc_hash::FxHashMap;

use super::open::Opened;

/// The series among opened experiments, by their positions.
#[derive(Debug)]
pub(super) struct Series {
    /// For each experiment, the first of its recording, which is a founder.
    pub(super) first: Vec<usize>,
    /// For each experiment, the first opened one of the same process. Without another it is itself.
    pub(super) same: Vec<usize>,
}

impl Series {
    pub(super) fn of(opened: &[Opened]) -> Series {
        let mut series = Series {
            first: (0..opened.len()).collect(),
            same: (0..opened.len()).collect(),
        };
        // Subexperiments that have ended, by founder, pid and time; and founders by host and time.
        let (mut followed, mut founders) = (FxHashMap::default(), FxHashMap::default());
        for (index, Opened { source, founder }) in opened.iter().enumerate() {
            if let Some(end) = ended(source).filter(|_| *founder != index) {
                followed.insert((*founder, source.header().pid, end), index);
            }
        }
        let is_founder = |index: &usize| opened[*index].founder == *index;
        let mut by_start: Vec<_> = (0..opened.len()).filter(is_founder).collect();
        by_start.sort_by_key(|index| opened[*index].source.start().tstamp_ns);
        for founder in by_start {
            let source = &opened[founder].source;
            let host = source.header().system.hostname.as_str();
            let start = source.start().tstamp_ns;
            let before = founders.get(&(host, start)).copied();
            let first = before.map_or(founder, |before| series.first[before]);
            let family = opened.iter().enumerate();
            for (index, own) in family.filter(|(_, own)| own.founder == founder) {
                series.first[index] = first;
                let (Some(before), false) = (before, index == founder) else {
                    continue;
                };
                // If two have the same pid, such as before and after an exec, only one continues
                // it.
                let key = (before, own.source.header().pid, start);
                if let Some(before) = followed.remove(&key) {
                    series.same[index] = series.same[before];
                }
            }
            if let Some(end) = ended(source).filter(|end| *end > start) {
                founders.insert((host, end), founder);
            }
        }
        let mut opened_first = FxHashMap::default();
        for (index, same) in series.same.iter_mut().enumerate() {
            *same = *opened_first.entry(*same).or_insert(index);
        }
        series
    }
}

/// Returns when an experiment was closed, by the clock of its packets.
fn ended(source: &Experiment) -> Option<Nanos> {
    source.events().iter().find_map(|event| match event {
        LogEvent::Exit { at_ns } => source.start().tstamp_ns.checked_add(*at_ns),
        _ => None,
    })
}
