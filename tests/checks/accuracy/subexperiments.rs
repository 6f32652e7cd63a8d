//! What the experiment of a followed process covers: exactly one process instance, each thread
//! once, before and after it executes another program, and not the next process with its number.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;
use std::time::Duration;

use analysis::model::{GroupKind, Model};
use anyhow::{Context, Result, ensure};
use experiment_format::ids::Pid;
use experiment_format::log::{Container, LogEvent};
use experiment_format::microstate::Microstate;
use experiment_format::packet::Detail;
use experiment_format::reader::Experiment;
use experiment_format::units::Nanos;
use tests::command::Running;
use tests::experiment::followed::{Followed, FollowedProcess};
use tests::gprofng::Table;
use tests::kcollect::{FinishedRecording, Recording, record};
use tests::machine::cgroup::{DeepGroup, Quota};
use tests::machine::{Exclusive, alone, stolen_meanwhile, work_cpu};
use tests::oracle::statistics::Band;
use tests::workload;
use tests::workload::proctorture::{
    INSIDE, MAX_OUTSIDE_ACTION_SHARE, PROCTORTURE, find_report, finish, pid, start,
};

const LIMIT: Duration = Duration::from_secs(40);

/// They are fields, for programs that read the experiment; gprofng ignores them.
#[test]
fn root_alone_rank_and_container_are_recorded() -> Result<()> {
    let _machine = Exclusive::take()?;
    let id = "0123456789abcdef".repeat(4);
    let container = Quota::of_container(&id)?;
    let mut proctorture = Command::new(PROCTORTURE);
    proctorture.arg("one:20000").env("PMIX_RANK", "17");
    let inside = Running::start(&mut proctorture, LIMIT)?;
    container.take(pid(&inside))?;
    let outside = start(PROCTORTURE, &["one:20000"])?;
    let options = ["-p", "hi", "-t", "0.5", "-F", "=proctorture"];
    let recorded = record(&options, &[], LIMIT)?;
    let followed = Followed::read(&recorded)?;

    let expected = Container {
        runtime: "docker".to_owned(),
        id: id.clone(),
    };
    for (running, rank, container) in [(&inside, Some(17), Some(expected)), (&outside, None, None)]
    {
        let sub = followed.the(pid(running))?;
        let experiment = Experiment::open(&sub.path)?;
        let header = experiment.header();
        ensure!(
            (header.mpi_rank, &header.container) == (rank, &container),
            "{header:?}"
        );
        let comments = [
            rank.map(|rank| format!("MPI rank: {rank}")),
            container.map(|container| format!("container: {} {}", container.runtime, container.id)),
        ];
        for comment in comments.iter().flatten() {
            ensure!(header.comments.contains(comment), "{header:?}");
        }
        let record = followed.summary.followed()?.named(&sub.name)?;
        let part = |part: &str| Some(record.container.as_ref()?.get(part)?.as_str());
        let docker = rank.map(|_| ("docker", id.as_str()));
        ensure!(
            record.mpi_rank == rank && part("runtime").zip(part("id")) == docker,
            "{record:?}"
        );
        // Stock gprofng opens it without a word.
        ensure!(sub.functions(None)?.get("burn_one") > 0.0);
    }
    Ok(())
}

#[test]
fn root_alone_a_subexperiment_covers_one_process_instance() -> Result<()> {
    alone(|| {
        let mut recording = Recording::start(["-p", "hi", "-F", "on"], LIMIT)?;
        recording.until_running()?;
        std::thread::sleep(Duration::from_millis(200));
        let again = format!("exec:{INSIDE}");
        let actions = [
            "name:6d696e65",
            "one:300",
            "name:796f757273",
            "two:300",
            "say:exec",
            &again,
            "one:300",
        ];
        let changing = start(PROCTORTURE, &actions)?;
        let twins = start(PROCTORTURE, &["twin:300", "two:300"])?;
        let killed = start(PROCTORTURE, &["one:200", "say:die", "die"])?;
        let leaderless = start(PROCTORTURE, &["leader:300"])?;
        let pids = [&changing, &killed, &leaderless].map(pid);
        let output: Vec<String> = finish(vec![changing, twins, killed, leaderless])?
            .into_iter()
            .map(|finished| finished.stdout)
            .collect();
        std::thread::sleep(Duration::from_millis(150));
        let recorded = recording.stop()?;
        let followed = Followed::read(&recorded)?;

        judge_exec(&followed, followed.the(pids[0])?, &output[0])?;
        judge_twins(&followed, &output[1])?;
        // Its first thread ended long before it.
        judge(&followed, followed.the(pids[2])?, &[("burn_two", 300)])?;
        let killed = followed.the(pids[1])?;
        judge(&followed, killed, &[("burn_one", 200)])?;
        judge_kill(killed, &output[2])?;
        for sub in &followed.subs {
            nothing_after_the_exit(sub)?;
        }
        followed.lost_nothing()
    })
}

/// Judges the experiment of a process that renamed itself and executed another program.
fn judge_exec(followed: &Followed, changing: &FollowedProcess, output: &str) -> Result<()> {
    // It has the name that it was first seen with; but not its parent's, which it had between fork
    // and exec.
    ensure!(
        ["_proctorture", "_mine"]
            .iter()
            .any(|name| changing.name.starts_with(name)),
        "{}",
        changing.name
    );
    judge(
        followed,
        changing,
        &[("burn_one", 300), ("burn_two", 300), ("burn_inside", 300)],
    )?;
    let executed = Nanos(find_report(output, "exec")?.numbers[0]);
    for state_interval in &changing.state_intervals {
        for object in state_interval.objects.iter().flatten() {
            // It takes a moment from the report to the action.
            ensure!(
                object != INSIDE || state_interval.time_ns >= executed,
                "{object} {} ns before the exec",
                executed - state_interval.time_ns
            );
            ensure!(
                object != PROCTORTURE
                    || state_interval.time_ns <= executed + Nanos::from_millis(100),
                "{object} {} ns after the exec",
                state_interval.time_ns - executed
            );
        }
    }
    Ok(())
}

/// Judges the experiments of two processes that had one number, one after the other.
fn judge_twins(followed: &Followed, output: &str) -> Result<()> {
    let (first, second) = (
        find_report(output, "first")?,
        find_report(output, "second")?,
    );
    ensure!(first.pid == second.pid, "{output:?}");
    let twins = followed.of(first.pid);
    let names: Vec<&str> = twins.iter().map(|sub| sub.name.as_str()).collect();
    ensure!(
        twins.len() == 2
            && names
                .iter()
                .any(|name| name.ends_with(&format!("_{}.2.er", first.pid))),
        "{names:?}"
    );
    let (one, two) = if names[0].ends_with(".1.er") {
        (twins[0], twins[1])
    } else {
        (twins[1], twins[0])
    };
    judge(followed, one, &[("burn_one", 300)])?;
    judge(followed, two, &[("burn_two", 300)])?;
    let last = times(one).max();
    let next = times(two).min();
    ensure!(
        last < next,
        "the first twin's last {last:?}, the second's first {next:?}"
    );
    Ok(())
}

/// Judges the end of the experiment of a process that killed itself.
fn judge_kill(killed: &FollowedProcess, output: &str) -> Result<()> {
    let died = find_report(output, "die")?.numbers[0];
    let end = killed.end_ns.context("it is not closed")?;
    ensure!(
        end >= Nanos(died) && end < Nanos(died + 100_000_000),
        "it died at {died}, its experiment ends at {end}"
    );
    Ok(())
}

/// Returns the times of a process's state intervals.
fn times(sub: &FollowedProcess) -> impl Iterator<Item = Nanos> {
    let state_intervals = sub.state_intervals.iter();
    state_intervals.map(|state_interval| state_interval.time_ns)
}

/// Checks that no tick and no sample of a process is after its exit, though the process ends later
/// than its leading thread.
fn nothing_after_the_exit(sub: &FollowedProcess) -> Result<()> {
    let end = sub.end_ns.context("it is not closed")?;
    let last = times(sub).max();
    ensure!(
        last <= Some(end),
        "{} ends at {end}, and has something of {last:?}",
        sub.name
    );
    samples_end_with_it(sub)
}

/// Checks that none of a process's samples is after its exit.
fn samples_end_with_it(sub: &FollowedProcess) -> Result<()> {
    let experiment = Experiment::open(&sub.path)?;
    let exit = experiment.events().iter().find_map(|event| match event {
        LogEvent::Exit { at_ns } => Some(*at_ns),
        _ => None,
    });
    let samples = experiment.samples()?;
    let last = samples.iter().map(|sample| sample.at_ns).max();
    ensure!(
        last.is_some() && last <= exit,
        "{} ends at {exit:?}, and has a sample of {last:?}",
        sub.name
    );
    Ok(())
}

/// Judges a proctorture that burnt these milliseconds in functions: stock gprofng shows that time
/// for them, and no other function has any.
fn judge(followed: &Followed, sub: &FollowedProcess, burnt: &[(&str, u64)]) -> Result<()> {
    let table = sub.functions(None)?;
    let mut rest = table.total()?;
    for (name, ms) in burnt {
        let expected = *ms as f64 * 1e6;
        let seconds = table.get(name);
        rest -= seconds;
        Band::time(expected, expected, followed.interval_ns)
            .with_edges(MAX_OUTSIDE_ACTION_SHARE * expected / followed.interval_ns)
            .with_edges(stolen_meanwhile()? / followed.interval_ns)
            .judge(
                &format!("{name} in {}", sub.name),
                seconds * 1e9 / followed.interval_ns,
            )
            .with_context(|| first_rows(&table))?;
    }
    let whole: u64 = burnt.iter().map(|(_, ms)| ms).sum();
    ensure!(
        rest < MAX_OUTSIDE_ACTION_SHARE * whole as f64 / 1e3 + 0.02,
        "{rest} s elsewhere in {}: {}",
        sub.name,
        first_rows(&table)
    );
    Ok(())
}

fn first_rows(table: &Table) -> String {
    let rows = table.rows.iter().take(8);
    let rows = rows.map(|row| format!("{:?} {}", row.values, row.name));
    rows.collect::<Vec<_>>().join("; ")
}

#[test]
fn root_alone_founder_and_subexperiments_hold_each_thread_once() -> Result<()> {
    alone(|| {
        let cpu = work_cpu()?.to_string();
        for follow in ["on", "=state_lock"] {
            let load = [workload!("state_lock"), "2", &cpu, "mutex"];
            let recorded = record(&["-p", "hi", "-F", follow], &load, LIMIT)?;
            let followed = Followed::read(&recorded)?;
            let mut sums: BTreeMap<Pid, [u64; Microstate::PER_THREAD]> = BTreeMap::new();
            // At these the CPU was stolen, and the thread waited for it.
            let mut stolen: BTreeMap<Pid, u64> = BTreeMap::new();
            for sub in &followed.subs {
                for state_interval in &sub.state_intervals {
                    if state_interval.detail == Detail::Stolen.number() {
                        *stolen.entry(sub.pid).or_default() += state_interval.ticks;
                    }
                    sums.entry(sub.pid).or_default()[state_interval.state as usize] +=
                        state_interval.ticks;
                }
                let recorded = followed.summary.followed()?.named(&sub.name)?.ticks;
                ensure!(
                    recorded == sub.ticks(),
                    "{}: {} of {recorded}",
                    sub.name,
                    sub.ticks()
                );
                ensure!(sub.ticks() > 0, "{} is empty", sub.name);
            }
            if follow == "on" {
                // What a followed process did is in its experiment alone: it is followed from its
                // first moment on.
                let both: Vec<_> = followed
                    .thread_ticks
                    .keys()
                    .filter(|(pid, _)| sums.contains_key(pid))
                    .collect();
                ensure!(both.is_empty(), "also in the founder: {both:?}");
            }
            // On a CPU each tick is Kernel CPU in the founder once, and once a thread's
            // somewhere.
            for (pid, ticks) in followed
                .kernel_cpu
                .iter()
                .filter(|(pid, _)| **pid != Pid(0))
            {
                if let Some(states) = sums.get(pid).filter(|_| follow == "on") {
                    let on_cpu: u64 = states[..=Microstate::Trap as usize].iter().sum();
                    let stolen = stolen.get(pid).copied().unwrap_or_default();
                    ensure!(
                        on_cpu + stolen == *ticks,
                        "process {pid}: {on_cpu} ticks on a CPU and {stolen} of one that was \
                         stolen, of {ticks}"
                    );
                }
            }
            // Off the CPU too, by the exact account of the process.
            let truth = recorded.truth()?;
            let load = truth.pid;
            let found: u64 = sums
                .get(&load)
                .context("the load is followed")?
                .iter()
                .sum();
            let inside: u64 = followed
                .thread_ticks
                .iter()
                .filter(|((pid, _), _)| *pid == load)
                .map(|(_, ticks)| ticks)
                .sum();
            let processes = followed.json["processes"]
                .as_array()
                .context("no processes")?;
            let account = processes
                .iter()
                .find(|process| process["pid"] == load.0)
                .context("the load has an account")?;
            let tracked_ticks =
                account["tracked_s"].as_f64().context("tracked_s")? * 1e9 / followed.interval_ns;
            let threads = account["threads"].as_f64().context("threads")?;
            Band::of(tracked_ticks, 1.0)
                .with_edges(3.0 * threads + 0.001 * tracked_ticks)
                .judge("the load's threads", (found + inside) as f64)?;
            followed.lost_nothing()?;
        }
        Ok(())
    })
}

#[test]
fn root_alone_a_thousand_short_processes_leave_nothing_open_and_nothing_empty() -> Result<()> {
    let _machine = Exclusive::take()?;
    let cpu = work_cpu()?.to_string();
    let load = [
        "-p",
        "hi",
        "-F",
        "on",
        "--",
        workload!("short_lived"),
        "4",
        &cpu,
    ];
    let mut recording = Recording::start(load, Duration::from_secs(60))?;
    recording.until_running()?;
    let before = descriptors(recording.running())?;
    let mut most = before;
    while !recording.running().ended()? {
        most = most.max(descriptors(recording.running()).unwrap_or(0));
        std::thread::sleep(Duration::from_millis(50));
    }
    let recorded: FinishedRecording = recording.finish()?.succeeded()?;
    let truth = recorded.truth()?;
    let followed = Followed::read(&recorded)?;
    let children: BTreeSet<Pid> = truth.children.iter().copied().collect();
    // Three milliseconds of CPU time are three ticks.
    let missing = &children - &followed.pids();
    ensure!(
        missing.is_empty(),
        "of {} not followed: {missing:?}",
        children.len()
    );
    ensure!(children.len() >= 500, "only {} children", children.len());
    for sub in &followed.subs {
        ensure!(sub.ticks() > 0, "{} is empty", sub.name);
    }
    // What is mapped is held open until the end, each file once, and once more while its table is
    // made.
    let tables = &followed.json["followed"]["tables"];
    let objects = ["built", "cached", "failed"]
        .iter()
        .filter_map(|how| tables[how].as_u64());
    let objects = usize::try_from(objects.sum::<u64>())?;
    ensure!(
        most <= before + 2 * objects + 20 && children.len() > 2 * (most - before),
        "{most} open descriptors for {} processes and {objects} load objects, {before} before",
        followed.subs.len()
    );
    followed.lost_nothing()?;
    let losses = &followed.json["followed"]["losses"];
    ensure!(
        losses["dropped_copies"] == 0 && losses["not_held"] == 0,
        "{losses}"
    );
    Ok(())
}

fn descriptors(running: &Running) -> Result<usize> {
    Ok(fs::read_dir(format!("/proc/{}/fd", running.pid()))?.count())
}

/// Processes of 30 ms are gone from `/proc` when their first tick is applied: their groups are
/// known by the record of their exit.
#[test]
fn root_alone_processes_that_are_gone_have_their_groups() -> Result<()> {
    let _machine = Exclusive::take()?;
    let id = "abcdef9876543210".repeat(4);
    // Deeper than what the tests themselves may be in.
    let path = format!("kcollect-check/a/b/c/docker-{id}.scope");
    let groups = DeepGroup::of_each_version(&path)?;
    ensure!(!groups.is_empty(), "the machine has no control groups");
    groups
        .iter()
        .try_for_each(|group| short_lived_in(group, (&id, &path)))
}

fn short_lived_in(group: &DeepGroup, (id, path): (&str, &str)) -> Result<()> {
    let one = format!("setpriv --reuid 65431 --clear-groups -- {PROCTORTURE} one:30");
    let enters = format!(
        "echo $$ >{}; for one in 1 2 3 4 5 6 7 8 9 10; do {one}; done",
        group.procs().display()
    );
    let options = ["-p", "hi", "-F", "=proctorture"];
    let recorded = record(&options, &["sh", "-c", &enters], LIMIT)?;
    let followed = Followed::read(&recorded)?;
    ensure!(followed.subs.len() == 10, "{:?}", followed.subs);
    let model = Model::load(&[recorded.experiment()?])?;
    let unit = path.rsplit('/').next().unwrap_or_default();
    let mut gone = 0;
    for sub in &followed.subs {
        let experiment = Experiment::open(&sub.path)?;
        gone += usize::from(experiment.header().container.is_none());
        let process = model.processes.iter().find(|it| it.pid == sub.pid);
        let process = process.context("no such process")?;
        let is = |kind, expected: &str| process.group(kind) == expected;
        ensure!(
            is(GroupKind::Container, id)
                && is(GroupKind::Unit, unit)
                && is(GroupKind::Cgroup, &format!("/{path}"))
                && is(GroupKind::User, "65431"),
            "{group:?}: {process:?}"
        );
        let record = followed.summary.followed()?.named(&sub.name)?;
        let container = record.container.as_ref().context("no container")?;
        ensure!(
            container.get("id").map(String::as_str) == Some(id),
            "{record:?}"
        );
        // Stock gprofng opens it without a word.
        ensure!(sub.functions(None)?.get("burn_one") > 0.0);
    }
    // One that waits long for a CPU may still be there.
    ensure!(gone >= 5, "{gone} of 10 were gone");
    Ok(())
}

/// Programs that have just started and sleep when the recording stops: the stack of each is copied,
/// with a large environment on it, since nothing is known about its file yet.
#[test]
fn root_alone_programs_asleep_at_the_end_have_their_times() -> Result<()> {
    const PROGRAMS: usize = 32;
    let _machine = Exclusive::take()?;
    let directory = tempfile::tempdir()?;
    let name = |number: usize| format!("asleep{number}");
    for number in 0..PROGRAMS {
        fs::copy("/bin/sleep", directory.path().join(name(number)))?;
    }
    // Between them are others, of which less is written, so that each finds another amount of
    // records that are not read yet.
    let script = format!(
        "large=$(head -c 60000 /dev/zero | tr '\\0' x)\n\
         for program in {}/*; do\n\
           LARGE=$large $program 3 &\n\
           others=$(( (others + 1) % 8 ))\n\
           for other in $(seq $others); do sleep 3 & done\n\
         done\n\
         sleep 0.01",
        directory.path().display()
    );
    let load = ["sh", "-c", &script];
    let recorded = record(&["-F", "all"], &load, Duration::from_secs(30))?;
    let followed = Followed::read(&recorded)?;
    let processes = followed.json["processes"].as_array();
    let names: BTreeSet<_> = processes
        .context("no processes")?
        .iter()
        .filter(|process| process["tracked_s"].as_f64() > Some(0.0))
        .filter_map(|process| process["name"].as_str())
        .collect();
    let missing: Vec<_> = (0..PROGRAMS)
        .map(name)
        .filter(|name| !names.contains(name.as_str()))
        .collect();
    ensure!(missing.is_empty(), "without a time: {missing:?}");
    followed.lost_nothing()
}
