//! Packs the experiments of a series once they are complete, and compresses their copies of load
//! objects (`--pack`).
//!
//! Two threads do it, each with a queue of its own. So no experiment waits to be packed until the
//! load objects of earlier ones are compressed, which takes minutes if there are many. The load
//! objects of a packed experiment are compressed when another experiment is complete.
//!
//! Both threads are slow: after each write they sleep until their CPU time is no more than their
//! share of the time that has passed. An experiment that another process reads is packed once it is
//! no longer read. What is left when the recording ends is done by the next recording of the series
//! that packs: the log of an experiment says that it has to be packed.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use experiment_format::directory::OlderExperiment;
use experiment_format::packed::{PackStep, compress_copies, pack_in_place};
use host::output::Output;
use nix::time::{ClockId, clock_gettime};

use crate::plan::CpuShare;

/// The share of one CPU where there is no budget.
const SHARE: f64 = 0.05;
/// The part of a budget.
const PART_OF_BUDGET: f64 = 0.25;
/// How many threads divide it.
const THREADS: f64 = 2.0;
/// Max number of experiments that wait for a thread. Each holds descriptors.
const MAX_WAITING: usize = 16;
/// The time between two checks whether an experiment is still in use.
const IN_USE_PERIOD: Duration = Duration::from_millis(500);
/// An experiment that has been in use for this long is left as it is.
const MAX_IN_USE: Duration = Duration::from_secs(3600);
/// The longest that the end of the recording waits for a thread.
const MAX_AT_THE_END: Duration = Duration::from_secs(1);

/// The threads.
#[derive(Debug)]
pub(super) struct Packer {
    packing: Work,
    compressing: Work,
    results: Receiver<PackResult>,
}

/// What a thread has to do.
#[derive(Debug)]
struct Work {
    waiting: SyncSender<OlderExperiment>,
    /// The number in the series of the last that was added.
    added: u64,
    /// The thread stops when this is dropped.
    _running: Sender<()>,
}

/// What became of an experiment.
#[derive(Debug)]
enum PackResult {
    /// With the bytes of its files and of the packed file, unless it was packed before.
    Packed(String, Option<(u64, u64)>),
    NotPacked(String, experiment_format::Error),
    NotCompressed(String, experiment_format::Error),
}

impl Packer {
    /// Starts the threads.
    ///
    /// # Errors
    /// A thread cannot be spawned.
    pub(super) fn start(budget: Option<CpuShare>) -> io::Result<Packer> {
        let (done, results) = channel();
        let share = budget.map_or(SHARE, |budget| budget.share() * PART_OF_BUDGET) / THREADS;
        let (packing, to_pack, stop_packing) = Work::new();
        let (compressing, to_compress, stop_compressing) = Work::new();
        let also_done = done.clone();
        let pack = move || {
            for older in to_pack {
                let mut pace = Pace::new(share, &stop_packing);
                let bytes = pack_in_place(&older, &mut |step| pace.wait(step));
                let result = PackResult::of_packing(older.name(), bytes);
                // By `--keep`, meanwhile.
                if older.is_removed() {
                    continue;
                }
                if pace.is_over || done.send(result).is_err() {
                    return;
                }
            }
        };
        let compress = move || {
            let mut before = None;
            for older in to_compress {
                let mut pace = Pace::new(share, &stop_compressing);
                let mut wait = |step| pace.wait(step);
                let compressed = compress_copies(&older, before.as_ref(), &mut wait);
                if pace.is_over {
                    return;
                }
                if let Err(error) = compressed
                    && !older.is_removed()
                {
                    let name = older.name().to_owned();
                    let _ = also_done.send(PackResult::NotCompressed(name, error));
                }
                before = Some(older);
            }
        };
        let thread = |name: &str| thread::Builder::new().name(name.to_owned());
        thread("pack").spawn(pack)?;
        thread("compress").spawn(compress)?;
        Ok(Packer {
            packing,
            compressing,
            results,
        })
    }

    /// Queues the complete experiments that need packing or compressing, the oldest first. When too
    /// many wait, the rest has to be added later.
    pub(super) fn add(&mut self, older_experiments: Vec<OlderExperiment>) {
        let is_to_be_packed = |older: &OlderExperiment| older.is_to_be_packed;
        let (to_pack, others): (Vec<_>, Vec<_>) =
            older_experiments.into_iter().partition(is_to_be_packed);
        let to_compress = others.into_iter();
        self.packing.add(to_pack.into_iter());
        self.compressing
            .add(to_compress.filter(|older| older.is_to_be_compressed));
    }

    /// Prints the results of packing since the last call.
    pub(super) fn report(&self, output: &mut Output) {
        for result in self.results.try_iter() {
            result.report(output);
        }
    }

    /// Ends the threads. An experiment that is not packed yet stays as it is.
    pub(super) fn end(self, output: &mut Output) {
        drop((self.packing, self.compressing));
        // The threads end at their next write, and drop their ends of the channel then.
        while let Ok(result) = self.results.recv_timeout(MAX_AT_THE_END) {
            result.report(output);
        }
    }
}

impl Work {
    /// Returns the work of a thread, and the thread's ends of the channels: what it has to do, and
    /// whether it has to stop.
    fn new() -> (Work, Receiver<OlderExperiment>, Receiver<()>) {
        let (waiting, to_do) = sync_channel(MAX_WAITING);
        let (running, stopped) = channel();
        let work = Work {
            waiting,
            added: 0,
            _running: running,
        };
        (work, to_do, stopped)
    }

    /// Adds the experiments that are newer than the last one added, as long as there is space.
    fn add(&mut self, older_experiments: impl Iterator<Item = OlderExperiment>) {
        for older in older_experiments {
            let number = older.number();
            if number <= self.added {
                continue;
            }
            if self.waiting.try_send(older).is_err() {
                return;
            }
            self.added = number;
        }
    }
}

impl PackResult {
    fn of_packing(
        name: &str,
        bytes: Result<Option<(u64, u64)>, experiment_format::Error>,
    ) -> PackResult {
        let name = name.to_owned();
        match bytes {
            Ok(bytes) => PackResult::Packed(name, bytes),
            Err(error) => PackResult::NotPacked(name, error),
        }
    }

    fn report(self, output: &mut Output) {
        match self {
            PackResult::Packed(name, Some((before, packed))) => output.detail(&format!(
                "{name} is packed: {:.1} of {:.1} MB (--pack)",
                packed as f64 / 1e6,
                before as f64 / 1e6
            )),
            PackResult::Packed(name, None) => {
                output.detail(&format!("{name} was packed before (--pack)"));
            }
            PackResult::NotPacked(name, error) => {
                output.say(&format!("{name} is not packed (--pack): {error}"));
            }
            PackResult::NotCompressed(name, error) => output.say(&format!(
                "load objects of {name} are not compressed (--pack): {error}"
            )),
        }
    }
}

/// How fast a thread works on an experiment.
struct Pace<'a> {
    share: f64,
    stopped: &'a Receiver<()>,
    since: Instant,
    cpu: Duration,
    /// The time that the experiment has been in use.
    in_use: Duration,
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
            in_use: Duration::ZERO,
            is_over: false,
        }
    }

    fn wait(&mut self, step: PackStep) -> io::Result<()> {
        let time = match step {
            PackStep::Written => {
                let cpu = cpu_of_thread();
                let used = cpu.saturating_sub(std::mem::replace(&mut self.cpu, cpu));
                let due = used.as_secs_f64() / self.share;
                Duration::try_from_secs_f64(due)
                    .unwrap_or(Duration::MAX)
                    .saturating_sub(self.since.elapsed())
            }
            PackStep::InUse if self.in_use > MAX_IN_USE => {
                return Err(io::Error::other("it is in use"));
            }
            PackStep::InUse => {
                self.in_use += IN_USE_PERIOD;
                IN_USE_PERIOD
            }
        };
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
    use std::fs;
    use std::path::{Path, PathBuf};

    use experiment_format::directory::{ExperimentDir, NameRequest, TO_BE_PACKED};

    use super::*;

    /// The longest that a small experiment takes, with much else on the machine.
    const LIMIT: Duration = Duration::from_secs(60);

    fn experiment(parent: &Path, number: usize) -> ExperimentDir {
        let request = NameRequest::Exactly(format!("k.{number}.er"));
        ExperimentDir::create(parent, &request, None).unwrap().0
    }

    /// Bytes that can't be compressed.
    fn noise(length: usize) -> Vec<u8> {
        let mut state = 1u64;
        let next = |_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 56) as u8
        };
        (0..length).map(next).collect()
    }

    #[test]
    fn one_is_packed_while_the_objects_of_others_are_compressed() {
        let tmp = tempfile::tempdir().unwrap();
        // The object of the first one takes half a minute at this share, and the others are more
        // than wait for a thread.
        let share = CpuShare { ppm: 10_000 };
        let others = 2 * MAX_WAITING + 2;
        for number in 1..=others {
            let path: PathBuf = experiment(tmp.path(), number).path().into();
            fs::write(path.join("kcollect.tar.zst"), "").unwrap();
            fs::create_dir(path.join("archives")).unwrap();
            let length = if number == 1 { 16 << 20 } else { 16 };
            fs::write(path.join("archives/object"), noise(length)).unwrap();
        }
        let left: PathBuf = experiment(tmp.path(), others + 1).path().into();
        let log =
            format!("<experiment>\n<collector>kcollect 0.1.0</collector>\n{TO_BE_PACKED}/>\n");
        fs::write(left.join("log.xml"), log).unwrap();
        let older_experiments = experiment(tmp.path(), others + 2)
            .older_experiments()
            .unwrap();
        assert_eq!(older_experiments.len(), others + 1);

        let mut packer = Packer::start(Some(share)).unwrap();
        packer.add(older_experiments);
        let since = Instant::now();
        while !left.join("kcollect.tar.zst").exists() || left.join("log.xml").exists() {
            assert!(since.elapsed() < LIMIT, "it waits for others");
            thread::sleep(Duration::from_millis(10));
        }
        assert!(!tmp.path().join("k.2.er/archives/object.zst").exists());
        packer.end(&mut Output::standard());
    }
}
