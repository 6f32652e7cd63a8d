//! Reads the ticks and the stacks of experiments ahead, in a thread of its own, while the loader
//! resolves those before them.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{Builder, Scope};

use experiment_format::Error;
use experiment_format::packet::ClockRecord;
use experiment_format::reader::Experiment;
use experiment_format::stacks::table::StackTable;
use host::exit::Failure;

/// The ticks that are handed over at a time.
const TICKS: usize = 4096;
/// How often so many may wait: what is read ahead takes little memory, however large a file is.
const WAITING: usize = 8;

/// A tick as it is in its packet.
pub(super) struct Tick {
    pub(super) record: ClockRecord,
    /// Whether it is the first of its packet.
    pub(super) first: bool,
}

/// What is read of an experiment: its stacks, its ticks, and the end.
enum Part {
    Stacks(StackTable),
    Ticks(Vec<Tick>),
    /// With the number of damaged places in the file of the ticks.
    End(Result<u64, Error>),
}

/// Experiments that are read ahead, in their order.
pub(super) struct ReadAhead {
    parts: Receiver<Part>,
    /// The damaged places in the file of the ticks, once all of them are read.
    pub(super) invalid: u64,
}

impl ReadAhead {
    /// Begins to read these experiments.
    ///
    /// # Errors
    /// When there can be no thread.
    pub(super) fn start<'scope>(
        scope: &'scope Scope<'scope, '_>,
        experiments: Vec<Arc<Experiment>>,
    ) -> Result<ReadAhead, Failure> {
        let (to, parts) = sync_channel(WAITING);
        let read_all = move || {
            for experiment in experiments {
                let end = read(&experiment, &to);
                // The loader has given up.
                if to.send(Part::End(end)).is_err() {
                    return;
                }
            }
        };
        Builder::new()
            .name("read ahead".to_owned())
            .spawn_scoped(scope, read_all)
            .map_err(|error| Failure::of_system("a thread that reads ahead", &error))?;
        Ok(ReadAhead { parts, invalid: 0 })
    }

    /// Returns the stacks of the next experiment, all of whose ticks have to be taken after that.
    ///
    /// # Errors
    /// A system error.
    pub(super) fn stacks(&mut self) -> Result<StackTable, Error> {
        match self.parts.recv() {
            Ok(Part::Stacks(stacks)) => Ok(stacks),
            Ok(Part::End(Err(error))) => Err(error),
            // The thread panicked, and so does what waits for its end.
            _ => Ok(StackTable::default()),
        }
    }

    /// Returns the next ticks of the experiment, none at its end.
    ///
    /// # Errors
    /// A system error, after which its ticks have ended.
    pub(super) fn ticks(&mut self) -> Result<Option<Vec<Tick>>, Error> {
        match self.parts.recv() {
            Ok(Part::Ticks(ticks)) => Ok(Some(ticks)),
            Ok(Part::End(end)) => {
                self.invalid = end?;
                Ok(None)
            }
            _ => Ok(None),
        }
    }
}

/// Reads an experiment. Returns the number of damaged places in the file of its ticks.
fn read(experiment: &Experiment, to: &SyncSender<Part>) -> Result<u64, Error> {
    let mut packets = experiment.packets()?;
    // An error of the receiver is that it is gone, which the end notices too.
    let _ = to.send(Part::Stacks(experiment.stacks()?));
    let mut ticks = Vec::with_capacity(TICKS);
    while let Some(packet) = packets.next_packet()? {
        let mut first = true;
        for record in packet.ticks().into_iter().flatten() {
            ticks.push(Tick { record, first });
            first = false;
        }
        if ticks.len() >= TICKS {
            let full = std::mem::replace(&mut ticks, Vec::with_capacity(TICKS));
            let _ = to.send(Part::Ticks(full));
        }
    }
    let _ = to.send(Part::Ticks(ticks));
    Ok(packets.invalid())
}
