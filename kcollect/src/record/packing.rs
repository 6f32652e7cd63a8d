//! Packs the experiments of a series once they are complete (`--pack`).
//!
//! One thread packs one experiment after the other. It is slow: after each write it sleeps until
//! its CPU time is no more than its share of the time that has passed. At each rotation it gets the
//! experiments that are not packed yet, unless it still has others. An experiment that another
//! process reads is left for the next time. What is left when the recording ends is packed by the
//! next recording of the series that packs: the log of an experiment says that it has to be packed.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use experiment_format::directory::OlderExperiment;
use experiment_format::packed::{PackedInPlace, pack_in_place};
use host::output::Output;
use nix::time::{ClockId, clock_gettime};

use crate::plan::CpuShare;

/// The share of one CPU where there is no budget.
const SHARE: f64 = 0.05;
/// The part of a budget.
const PART_OF_BUDGET: f64 = 0.25;
/// Max number of experiments that the thread gets at once. Each holds descriptors.
const MAX_AT_ONCE: usize = 16;
/// The longest that the end of the recording waits for the thread.
const MAX_AT_THE_END: Duration = Duration::from_secs(1);

/// The thread.
#[derive(Debug)]
pub(super) struct Packer {
    to_pack: SyncSender<Vec<OlderExperiment>>,
    results: Receiver<PackResult>,
    /// The thread stops when this is dropped.
    running: Sender<()>,
}

/// What became of an experiment, by its name.
type PackResult = (String, Result<PackedInPlace, experiment_format::Error>);

impl Packer {
    /// Starts the thread.
    ///
    /// # Errors
    /// The thread cannot be spawned.
    pub(super) fn start(budget: Option<CpuShare>) -> io::Result<Packer> {
        let share = budget.map_or(SHARE, |budget| budget.share() * PART_OF_BUDGET);
        let (to_pack, experiments) = sync_channel::<Vec<OlderExperiment>>(1);
        let (done, results) = channel();
        let (running, stopped) = channel();
        let pack = move || {
            for older in experiments.into_iter().flatten() {
                let mut pace = Pace::new(share, &stopped);
                let result = pack_in_place(&older, &mut || pace.wait());
                if pace.is_over {
                    return;
                }
                // By `--keep`, meanwhile.
                if older.is_removed() {
                    continue;
                }
                if done.send((older.name().to_owned(), result)).is_err() {
                    return;
                }
            }
        };
        let thread = thread::Builder::new().name("pack".to_owned());
        thread.spawn(pack)?;
        Ok(Packer {
            to_pack,
            results,
            running,
        })
    }

    /// Hands the complete experiments that are not packed yet to the thread, the oldest first. Call
    /// it again with those that are left then.
    pub(super) fn add(&self, older_experiments: Vec<OlderExperiment>) {
        let to_pack = older_experiments.into_iter();
        let to_pack = to_pack.filter(|older| older.is_to_be_packed);
        let to_pack: Vec<_> = to_pack.take(MAX_AT_ONCE).collect();
        if !to_pack.is_empty() {
            let _ = self.to_pack.try_send(to_pack);
        }
    }

    /// Prints the results of packing since the last call.
    pub(super) fn report(&self, output: &mut Output) {
        for result in self.results.try_iter() {
            report(result, output);
        }
    }

    /// Ends the thread. An experiment that is not packed yet stays as it is.
    pub(super) fn end(self, output: &mut Output) {
        drop((self.to_pack, self.running));
        // The thread ends at its next write, and drops its end of the channel then.
        while let Ok(result) = self.results.recv_timeout(MAX_AT_THE_END) {
            report(result, output);
        }
    }
}

fn report((name, result): PackResult, output: &mut Output) {
    match result {
        Ok(PackedInPlace::Packed { before, packed }) => output.detail(&format!(
            "{name} is packed: {:.1} of {:.1} MB (--pack)",
            packed as f64 / 1e6,
            before as f64 / 1e6
        )),
        Ok(PackedInPlace::Before) => {}
        Ok(PackedInPlace::InUse) => {
            output.detail(&format!("{name} is in use, and is packed later (--pack)"))
        }
        Err(error) => output.say(&format!("{name} is not packed (--pack): {error}")),
    }
}

/// How fast the thread works on an experiment.
struct Pace<'a> {
    share: f64,
    stopped: &'a Receiver<()>,
    since: Instant,
    cpu: Duration,
    /// Whether the recording has ended.
    is_over: bool,
}

impl<'a> Pace<'a> {
    fn new(share: f64, stopped: &'a Receiver<()>) -> Pace<'a> {
        Pace {
            share,
            stopped,
            since: Instant::now(),
            cpu: cpu_of_thread(),
            is_over: false,
        }
    }

    /// Sleeps until the thread's share of the time since the last call covers its CPU time.
    fn wait(&mut self) -> io::Result<()> {
        let cpu = cpu_of_thread();
        let used = cpu.saturating_sub(std::mem::replace(&mut self.cpu, cpu));
        let due = Duration::try_from_secs_f64(used.as_secs_f64() / self.share);
        let time = due
            .unwrap_or(Duration::MAX)
            .saturating_sub(self.since.elapsed());
        let stopped = self.stopped.recv_timeout(time);
        self.since = Instant::now();
        match stopped {
            Err(RecvTimeoutError::Timeout) => Ok(()),
            _ => {
                self.is_over = true;
                Err(io::Error::other("the recording has ended"))
            }
        }
    }
}

fn cpu_of_thread() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::path::{Path, PathBuf};

    use experiment_format::directory::{ExperimentDir, NameRequest, TO_BE_PACKED};

    use super::*;

    /// The longest that a small experiment takes, with much else on the machine.
    const LIMIT: Duration = Duration::from_secs(60);

    fn experiment(parent: &Path, number: usize) -> ExperimentDir {
        let request = NameRequest::Exactly(format!("k.{number}.er"));
        ExperimentDir::create(parent, &request, None).unwrap().0
    }

    #[test]
    fn every_experiment_is_packed_even_one_that_is_read_meanwhile() {
        let tmp = tempfile::tempdir().unwrap();
        let paths: Vec<PathBuf> = (1..=MAX_AT_ONCE + 2)
            .map(|number| {
                let path: PathBuf = experiment(tmp.path(), number).path().into();
                let log = "<experiment>\n<collector>kcollect 0.1.0</collector>\n";
                fs::write(path.join("log.xml"), format!("{log}{TO_BE_PACKED}/>\n")).unwrap();
                path
            })
            .collect();
        let newest = experiment(tmp.path(), paths.len() + 1);
        let reader = File::open(&paths[1]).unwrap();
        reader.lock_shared().unwrap();

        let packer = Packer::start(Some(CpuShare { ppm: 1_000_000 })).unwrap();
        let since = Instant::now();
        let are_packed = |paths: &[PathBuf]| {
            packer.add(newest.older_experiments().unwrap());
            let is_packed = |path: &PathBuf| {
                path.join("kcollect.tar.zst").exists() && !path.join("log.xml").exists()
            };
            paths.iter().all(is_packed)
        };
        let until_packed = |paths: &[PathBuf]| {
            while !are_packed(paths) {
                assert!(since.elapsed() < LIMIT);
                thread::sleep(Duration::from_millis(10));
            }
        };
        until_packed(&paths[2..]);
        assert!(paths[1].join("log.xml").exists());
        drop(reader);
        until_packed(&paths);
        packer.end(&mut Output::standard());
    }
}
