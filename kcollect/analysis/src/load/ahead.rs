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

/// The ticks of a batch, at least.
const TICKS_PER_BATCH: usize = 4096;
/// The batches that may wait, so that what is read ahead takes little memory, however large a file
/// is.
const MAX_QUEUED_BATCHES: usize = 8;

/// A message from the reading thread. An experiment arrives as its stacks, then batches of its
/// ticks, then its end.
enum Batch {
    Stacks(StackTable),
    Ticks(Vec<ClockRecord>),
    /// The number of damaged records in the file of the ticks, or why it cannot be read.
    End(Result<u64, Error>),
}

/// Experiments that are read ahead, in their order.
pub(super) struct ReadAhead {
    batches: Receiver<Batch>,
    /// The damaged records in the file of the last experiment's ticks, once all of it is read.
    pub(super) invalid: u64,
}

impl ReadAhead {
    /// Begins to read these experiments.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub(super) fn start<'scope>(
        scope: &'scope Scope<'scope, '_>,
        experiments: Vec<Arc<Experiment>>,
    ) -> Result<ReadAhead, Failure> {
        let (to, batches) = sync_channel(MAX_QUEUED_BATCHES);
        let read_all = move || {
            for experiment in experiments {
                let end = read(&experiment, &to);
                // The loader has ended early.
                if to.send(Batch::End(end)).is_err() {
                    return;
                }
            }
        };
        Builder::new()
            .name("read ahead".to_owned())
            .spawn_scoped(scope, read_all)
            .map_err(|error| Failure::of_system("a thread that reads ahead", &error))?;
        Ok(ReadAhead {
            batches,
            invalid: 0,
        })
    }

    /// Returns the stacks of the next experiment. After that all its ticks have to be taken.
    ///
    /// # Errors
    /// A system error.
    pub(super) fn stacks(&mut self) -> Result<StackTable, Error> {
        match self.batches.recv() {
            Ok(Batch::Stacks(stacks)) => Ok(stacks),
            Ok(Batch::End(Err(error))) => Err(error),
            // The thread panicked, and so does what waits for its end.
            _ => Ok(StackTable::default()),
        }
    }

    /// Returns the next ticks of the experiment, none at its end.
    ///
    /// # Errors
    /// A system error, after which its ticks have ended.
    pub(super) fn ticks(&mut self) -> Result<Option<Vec<ClockRecord>>, Error> {
        match self.batches.recv() {
            Ok(Batch::Ticks(ticks)) => Ok(Some(ticks)),
            Ok(Batch::End(end)) => {
                self.invalid = end?;
                Ok(None)
            }
            _ => Ok(None),
        }
    }
}

/// Reads an experiment. Returns the number of damaged records in the file of its ticks.
fn read(experiment: &Experiment, to: &SyncSender<Batch>) -> Result<u64, Error> {
    let mut packets = experiment.packets()?;
    // Sending fails only if the loader has ended, which the caller notices at the experiment's end.
    let _ = to.send(Batch::Stacks(experiment.stacks()?));
    let mut ticks = Vec::with_capacity(TICKS_PER_BATCH);
    while let Some(packet) = packets.next_packet()? {
        ticks.extend(packet.ticks());
        if ticks.len() >= TICKS_PER_BATCH {
            let full = std::mem::replace(&mut ticks, Vec::with_capacity(TICKS_PER_BATCH));
            let _ = to.send(Batch::Ticks(full));
        }
    }
    let _ = to.send(Batch::Ticks(ticks));
    Ok(packets.invalid())
}
