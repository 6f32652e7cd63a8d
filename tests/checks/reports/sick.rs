//! Sick machines: in each of them it is known which thread suffers, from what, and who ends its
//! waits. The recording says the same, in what programs read: `kcollect.json`, `threads.jsonl`, and
//! the causes and wakers of the ticks.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use analysis::load::exact::{ExactSums, ExactTimes};
use analysis::model::Model;
use anyhow::{Context, Result, ensure};
use experiment_format::cause::{Cause, WaitKind};
use experiment_format::ids::Pid;
use experiment_format::microstate::Microstate;
use serde_json::Value;
use tests::command::run;
use tests::experiment::states::States;
use tests::kcollect::{FinishedRecording, Recording, record};
use tests::machine::disturbance::{judge_times, not_judged};
use tests::machine::limited::Limited;
use tests::machine::{cgroup, work_cpu};
use tests::workload;
use tests::workload::waits::{SICK, Subject, WAITS};

const LIMIT: Duration = Duration::from_secs(60);
/// How long a machine is sick, seconds.
const SICK_S: &str = "3";
/// The least share of what a thread suffers that comes from the illness.
const DOMINATES: f64 = 0.8;

/// The recording of a sick machine.
struct Sick {
    model: Model,
    exact: ExactTimes,
    summary: Value,
    subjects: Vec<Subject>,
}

impl Sick {
    /// Records a load from its start to its end.
    fn record(load: &[&str]) -> Result<Self> {
        let options = ["-W", "on", "-p", "hi", "-F", "load", "--descendants"];
        Self::of(&record(&options, load, LIMIT)?)
    }

    fn of(recorded: &FinishedRecording) -> Result<Self> {
        let experiment = recorded.experiment()?;
        let summary = std::fs::read_to_string(experiment.join("kcollect.json"))?;
        let summary: Value = serde_json::from_str(&summary)?;
        ensure!(summary["wakers_watched"] == true, "{summary}");
        let model = Model::load(&[experiment])?;
        let exact = ExactTimes::read(&model.experiments[0].source)?.context("no exact times")?;
        let subjects = Subject::all(&recorded.finished.stdout);
        let sick = Self {
            model,
            exact,
            summary,
            subjects,
        };
        for subject in &sick.subjects {
            sick.agrees_with_the_summary(subject.pid)?;
        }
        Ok(sick)
    }

    fn subject(&self, name: &str) -> Result<&Subject> {
        Subject::find(&self.subjects, name)
    }

    /// Returns the threads with a name.
    fn named(&self, name: &str) -> Vec<&Subject> {
        let all = self.subjects.iter();
        all.filter(|subject| subject.thread == name).collect()
    }

    /// Returns the exact times of a thread.
    fn times(&self, thread: &Subject) -> Result<&ExactSums> {
        let mut threads = self.exact.threads.iter();
        let found = threads.find(|one| (one.pid, one.tid) == (thread.pid, thread.tid));
        let found = found.with_context(|| format!("no times of {thread:?}"))?;
        Ok(&found.times)
    }

    /// The process's row in the summary has the sums of its threads.
    fn agrees_with_the_summary(&self, pid: Pid) -> Result<()> {
        let mut rows = self.summary["processes"].as_array().into_iter().flatten();
        let row = rows.find(|row| row["pid"] == pid.0);
        let row = row.with_context(|| format!("no row of process {pid} in the summary"))?;
        for (kind, name) in [
            (WaitKind::Suffered, "suffered"),
            (WaitKind::Idle, "idle"),
            (WaitKind::Undecided, "undecided"),
        ] {
            let shown_s = row["waited_s"][name].as_f64().context("no waited_s")?;
            let threads = self.exact.threads.iter().filter(|one| one.pid == pid);
            let exact_s: f64 = threads
                .map(|one| one.times.of_kind(kind).as_secs_f64())
                .sum();
            ensure!(
                (shown_s - exact_s).abs() < 0.02 * exact_s + 0.02,
                "{name}: {shown_s} s in the summary, {exact_s} s by the threads: {row}"
            );
        }
        Ok(())
    }

    /// A thread suffers from these causes for `min_s` seconds or more, and from little else.
    fn suffers(&self, thread: &Subject, causes: &[Cause], min_s: f64) -> Result<()> {
        let times = self.times(thread)?;
        let from_these: f64 = causes.iter().map(|cause| cause_s(times, *cause)).sum();
        let all_s = times.of_kind(WaitKind::Suffered).as_secs_f64();
        ensure!(
            from_these >= min_s && from_these >= DOMINATES * all_s,
            "{} suffers for {from_these} of {all_s} s from {causes:?}: {}; {}",
            thread.thread,
            by_cause(times),
            self.wakers(thread)
        );
        Ok(())
    }

    /// Most of the waits of a thread for a cause were ended by these threads.
    fn woken_by(&self, thread: &Subject, causes: &[Cause], wakers: &[&Subject]) -> Result<()> {
        let waits = self.waits(thread);
        Self::ended_by(waits, causes, wakers)
            .with_context(|| format!("{}: {}", thread.thread, self.wakers(thread)))
    }

    /// The same of a thread that waits with time-outs: its waits have steps that no thread ended.
    fn woken_by_if_at_all(
        &self,
        thread: &Subject,
        causes: &[Cause],
        wakers: &[&Subject],
    ) -> Result<()> {
        let waits = self.waits(thread).filter(|(_, waker, _)| *waker != 0);
        Self::ended_by(waits, causes, wakers)
            .with_context(|| format!("{}: {}", thread.thread, self.wakers(thread)))
    }

    fn ended_by(
        waits: impl Iterator<Item = (Cause, u32, i64)>,
        causes: &[Cause],
        wakers: &[&Subject],
    ) -> Result<()> {
        let (mut by_these, mut all) = (0, 0);
        for (_, waker, micros) in waits.filter(|(cause, ..)| causes.contains(cause)) {
            all += micros;
            if wakers.iter().any(|one| one.tid.0 == waker) {
                by_these += micros;
            }
        }
        ensure!(
            all > 0 && by_these as f64 >= DOMINATES * all as f64,
            "{by_these} of {all} us for {causes:?} were ended by {wakers:?}"
        );
        Ok(())
    }

    /// The waits of a thread's ticks: cause, waker, microseconds.
    fn waits(&self, thread: &Subject) -> impl Iterator<Item = (Cause, u32, i64)> {
        let rows = self.model.rows.iter().filter(|row| {
            let info = self.model.thread(row.thread);
            let pid = self.model.process(info.process).pid;
            pid == thread.pid && info.tid == u64::from(thread.tid) && row.cause != 0
        });
        rows.map(|row| {
            let cause = Cause::try_from(row.cause).unwrap_or_default();
            (cause, row.waker, row.micros)
        })
    }

    /// Returns who ended a thread's waits, for messages.
    fn wakers(&self, thread: &Subject) -> String {
        let mut sums = BTreeMap::new();
        for (cause, waker, micros) in self.waits(thread) {
            *sums.entry((cause, waker)).or_insert(0) += micros;
        }
        format!("ticks by cause and waker, us: {sums:?}")
    }
}

fn cause_s(times: &ExactSums, cause: Cause) -> f64 {
    times.of_cause(cause).as_secs_f64()
}

/// Returns a thread's times by cause, for messages.
fn by_cause(times: &ExactSums) -> String {
    let all = Cause::ALL.into_iter();
    let parts = all.map(|cause| format!("{} {:.3}", cause.keyword(), cause_s(times, cause)));
    parts.collect::<Vec<_>>().join(", ")
}

/// Each of three threads needs a mutex for two thirds of its time. Bounds in seconds are low, since
/// on a busy machine all wait for a CPU instead.
#[test]
fn root_alone_sick_of_a_lock_convoy() -> Result<()> {
    judge_times(|| {
        let sick = Sick::record(&[WAITS, "mutex", SICK_S])?;
        let lockers = sick.named("locker");
        ensure!(lockers.len() == 3, "{:?}", sick.subjects);
        for locker in &lockers {
            sick.suffers(locker, &[Cause::Lock], 0.2)?;
            sick.woken_by(locker, &[Cause::Lock], &lockers)?;
        }
        sick.suffers(sick.subject("lockers")?, &[Cause::ThreadEnd], 2.5)
    })
}

/// A process sleeps for 20 ms while it has the lock of a file that another one wants.
#[test]
fn root_alone_sick_of_a_long_transaction() -> Result<()> {
    judge_times(|| {
        let cpu = work_cpu()?.to_string();
        let sick = Sick::record(&[SICK, "transactions", SICK_S, &cpu])?;
        let long = sick.subject("long")?;
        let short = sick.subject("short")?;
        sick.suffers(short, &[Cause::Lock], 1.5)?;
        sick.woken_by(short, &[Cause::Lock], &[long])
    })
}

/// A process wants each megabyte on the disk.
#[test]
fn root_alone_sick_of_a_slow_disk() -> Result<()> {
    judge_times(|| {
        let sick = Sick::record(&[WAITS, "fsync", SICK_S])?;
        // Block I/O, the file system's journal, and what fsync(2) waits for in addition.
        let causes = [Cause::Device, Cause::Kernel, Cause::Write];
        sick.suffers(sick.subject("saver")?, &causes, 0.1)
    })
}

/// A writer is faster than the reader of its pipe.
#[test]
fn root_alone_sick_of_a_full_pipe() -> Result<()> {
    judge_times(|| {
        let sick = Sick::record(&[WAITS, "pipeline", SICK_S])?;
        let (writer, reader) = (sick.subject("writer")?, sick.subject("reader")?);
        sick.suffers(writer, &[Cause::Write], 0.5)?;
        sick.woken_by(writer, &[Cause::Write], &[reader])
    })
}

/// Each name takes 50 ms to be resolved, by a server that is asked over UDP.
#[test]
fn root_alone_sick_of_a_slow_name_server() -> Result<()> {
    judge_times(|| {
        let cpu = work_cpu()?.to_string();
        let sick = Sick::record(&[SICK, "name-server", SICK_S, &cpu])?;
        let (asks, resolver) = (sick.subject("asks")?, sick.subject("resolver")?);
        sick.suffers(asks, &[Cause::Answer, Cause::Middle], 2.0)?;
        sick.woken_by(asks, &[Cause::Answer, Cause::Middle], &[resolver])
    })
}

/// A process that may use a twentieth of a CPU wants all of it.
#[test]
fn root_alone_sick_of_a_quota() -> Result<()> {
    if let Err(error) = cgroup::possible() {
        not_judged(format_args!(
            "no control group with a quota can be made: {error:#}"
        ));
        return Ok(());
    }
    judge_times(|| {
        let cpu = work_cpu()?.to_string();
        let recorded = record(
            &["-W", "on", "-p", "hi"],
            &[workload!("throttled"), SICK_S, &cpu, "5"],
            LIMIT,
        )?;
        let pid = recorded.truth()?.pid;
        let sick = Sick::of(&recorded)?;
        let thread = sick.exact.threads.iter().find(|one| one.pid == pid);
        let times = &thread.context("no times of the process")?.times;
        let throttled_s = times.detail.throttled_ns.as_secs_f64();
        let suffered_s = times.of_kind(WaitKind::Suffered).as_secs_f64();
        ensure!(
            throttled_s > 1.0 && throttled_s > DOMINATES * (throttled_s + suffered_s),
            "{throttled_s} s throttled, {suffered_s} s of other waits: {times:?}"
        );
        Ok(())
    })
}

/// A process with work for a fifth of a CPU shares it with two that spin.
#[test]
fn root_alone_sick_of_noisy_neighbours() -> Result<()> {
    judge_times(|| {
        let cpu = work_cpu()?.to_string();
        let recorded = record(
            &["-W", "on", "-p", "hi"],
            &[SICK, "neighbours", SICK_S, &cpu],
            LIMIT,
        )?;
        let sick = Sick::of(&recorded)?;
        let worker = sick.subject("worker")?;
        let times = sick.times(worker)?;
        let waited_s = times.of(Microstate::WaitCpu).as_secs_f64();
        let suffered_s = times.of_kind(WaitKind::Suffered).as_secs_f64();
        ensure!(
            waited_s > 0.1 && suffered_s < waited_s,
            "{waited_s} s for a CPU, {suffered_s} s of other waits: {times:?}"
        );
        // What it waited for was busy with the two: a fair scheduler gives them no less.
        let account = States::of(&recorded.experiment()?)?;
        let own_s = account.row(worker.pid)?.cpu_s();
        let noisy = sick.named("noisy");
        ensure!(noisy.len() == 2, "{:?}", sick.subjects);
        for one in noisy {
            let spun_s = account.row(one.pid)?.cpu_s();
            ensure!(spun_s > own_s, "{one:?}: {spun_s} s, {worker:?}: {own_s} s");
        }
        Ok(())
    })
}

/// Three threads of an interpreter that lets one of them compute.
#[test]
fn root_alone_sick_of_an_interpreter_lock() -> Result<()> {
    const LOAD: &str = "import os, threading, time\n\
        end = time.monotonic() + 3\n\
        def spin():\n    \
            os.write(1, b'{\"thread\":\"spins\",\"pid\":%d,\"tid\":%d,\"waits\":{}}\\n' % (\
                os.getpid(), threading.get_native_id()))\n    \
            while time.monotonic() < end: sum(range(1000))\n\
        threads = [threading.Thread(target=spin) for one in range(3)]\n\
        for one in threads: one.start()\n\
        for one in threads: one.join()\n";
    let python = "/usr/bin/python3";
    if run(Command::new(python).arg("-V"), LIMIT).is_err() {
        not_judged(format_args!("there is no {python}"));
        return Ok(());
    }
    judge_times(|| {
        let sick = Sick::record(&[python, "-c", LOAD])?;
        let threads = sick.named("spins");
        ensure!(threads.len() == 3, "{:?}", sick.subjects);
        let mut sums = ExactSums::default();
        for thread in &threads {
            sums.add(sick.times(thread)?);
            let causes = [Cause::Lock, Cause::Answer, Cause::Middle];
            sick.woken_by_if_at_all(thread, &causes, &threads)?;
        }
        let suffered_s = sums.of_kind(WaitKind::Suffered).as_secs_f64();
        let idle_s = sums.of_kind(WaitKind::Idle).as_secs_f64();
        // A wait that ends by its time-out, and is not continued at once, is the timer's.
        ensure!(
            suffered_s > 1.0 && suffered_s > DOMINATES * (suffered_s + idle_s),
            "{suffered_s} s suffered, {idle_s} s idle: {}",
            by_cause(&sums)
        );
        Ok(())
    })
}

/// A parent waits for a child that sleeps.
#[test]
fn root_alone_sick_of_a_stuck_child() -> Result<()> {
    judge_times(|| {
        let cpu = work_cpu()?.to_string();
        let sick = Sick::record(&[SICK, "stuck-child", SICK_S, &cpu])?;
        let (parent, stuck) = (sick.subject("parent")?, sick.subject("stuck")?);
        sick.suffers(parent, &[Cause::Child], 2.5)?;
        sick.woken_by(parent, &[Cause::Child], &[stuck])?;
        // What the child itself waits for is its own time.
        let times = sick.times(stuck)?;
        ensure!(
            cause_s(times, Cause::Timer) > 2.5,
            "{}; {}",
            by_cause(times),
            sick.wakers(stuck)
        );
        Ok(())
    })
}

/// A thread needs a mutex of another one, which does not run: it is nice, and a third is not.
#[test]
fn root_alone_sick_of_a_priority_inversion() -> Result<()> {
    judge_times(|| {
        let cpu = work_cpu()?.to_string();
        let sick = Sick::record(&[SICK, "inversion", SICK_S, &cpu])?;
        let (high, low) = (sick.subject("high")?, sick.subject("low")?);
        sick.suffers(high, &[Cause::Lock], 1.0)?;
        sick.woken_by(high, &[Cause::Lock], &[low])?;
        let waited_s = sick.times(low)?.of(Microstate::WaitCpu).as_secs_f64();
        let blocked = sick.times(low)?.of_kind(WaitKind::Suffered);
        ensure!(
            waited_s > 1.5 && waited_s > blocked.as_secs_f64(),
            "{waited_s} s for a CPU, {blocked:?} of other waits"
        );
        Ok(())
    })
}

/// A process uses twice the memory that its group may have, again and again.
#[test]
fn root_alone_sick_of_too_little_memory() -> Result<()> {
    const MEMORY: u64 = 32 << 20;
    let limited = match Limited::memory(MEMORY) {
        Ok(limited) => limited,
        Err(error) => {
            not_judged(format_args!(
                "no control group with a limit on memory can be made: {error:#}"
            ));
            return Ok(());
        }
    };
    judge_times(|| {
        let cpu = work_cpu()?.to_string();
        let mut load = limited.command([SICK, "memory", SICK_S, &cpu]);
        let options = ["-W", "on", "-p", "hi", "-F", "=sick"];
        let mut recording = Recording::start(options, LIMIT)?;
        recording.until_running()?;
        let finished = run(&mut load, LIMIT)?.succeeded()?;
        let mut sick = Sick::of(&recording.stop()?)?;
        sick.subjects = Subject::all(&finished.stdout);
        let hungry = sick.subject("hungry")?;
        sick.suffers(hungry, &[Cause::Device, Cause::Kernel], 0.3)?;
        // In page faults, not in a call of its own.
        let times = sick.times(hungry)?;
        let faults_s = times.of(Microstate::DataFault).as_secs_f64();
        let blocked_s = times.of_kind(WaitKind::Suffered).as_secs_f64();
        ensure!(
            faults_s > DOMINATES * blocked_s,
            "{faults_s} s in page faults, {blocked_s} s suffered"
        );
        Ok(())
    })
}
