//! Which processes kcollect follows, and what the experiment of a followed process covers: exactly
//! one process instance, each thread once, before and after it executes another program, and not
//! the next process with its number.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use experiment_format::log::{Container, LogEvent};
use experiment_format::microstate::Microstate;
use experiment_format::packet::Detail;
use experiment_format::reader::Experiment;
use serde_json::Value;
use tests::command::{Running, copy_program, run};
use tests::experiment::followed::{Followed, FollowedProcess, directories};
use tests::gprofng::Table;
use tests::kcollect::{FinishedRecording, Recording, command, record};
use tests::machine::cgroup::Quota;
use tests::machine::disturbance::judge_times;
use tests::machine::{Exclusive, alone, stolen_meanwhile, work_cpu};
use tests::oracle::statistics::Band;
use tests::workload;
use tests::workload::proctorture::{
    INSIDE, PROCTORTURE, find_report, finish, name_action, pid, start,
};

const LIMIT: Duration = Duration::from_secs(40);

/// The share of a proctorture's CPU time that the kernel has, with its interrupts, and the C
/// library and the loader, at most.
const MAX_OUTSIDE_ACTION: f64 = 0.12;

#[test]
fn root_alone_follow_on_takes_processes_with_a_tick_and_all_takes_every_process() -> Result<()> {
    let _machine = Exclusive::take()?;
    let sleeper = start(PROCTORTURE, &["sleep:60000"])?;
    let spinner = start(PROCTORTURE, &["one:60000"])?;
    let (sleeping, spinning) = (pid(&sleeper), pid(&spinner));

    let off = record(&["-t", "0.3", "-F", "off"], &[], LIMIT)?;
    ensure!(
        directories(&off.experiment()?)?.is_empty(),
        "-F off follows"
    );

    let kernel_threads = kernel_threads()?;
    let on = Followed::read(&record(&["-p", "hi", "-t", "1", "-F", "on"], &[], LIMIT)?)?;
    let ticked: BTreeSet<u32> = on
        .kernel_cpu
        .keys()
        .copied()
        .filter(|pid| *pid != 0)
        .collect();
    let kernel_threads: BTreeSet<u32> = &kernel_threads | &self::kernel_threads()?;
    let expected: BTreeSet<u32> = &ticked - &kernel_threads;
    ensure!(
        on.pids() == expected,
        "followed: {:?}; with a tick: {expected:?}",
        on.pids()
    );
    ensure!(expected.contains(&spinning) && !expected.contains(&sleeping));
    on.the(spinning)?;
    on.lost_nothing()?;

    let all = Followed::read(&record(&["-p", "hi", "-t", "1", "-F", "all"], &[], LIMIT)?)?;
    ensure!(
        all.pids().contains(&sleeping) && all.pids().contains(&spinning),
        "{:?}",
        all.pids()
    );
    let (user, _) = all.the(sleeping)?.user_ticks(|_| true);
    ensure!(user == 0, "the sleeper spun {user} ticks");
    Ok(())
}

#[test]
fn root_alone_a_pattern_is_a_name_a_number_or_a_program() -> Result<()> {
    let _machine = Exclusive::take()?;
    let directory = tempfile::tempdir()?;
    let program = directory.path().join("kc-program");
    copy_program(PROCTORTURE, &program)?;
    let spin = |program: &str, name: &str| {
        start(
            program,
            &[name_action(name.as_bytes()), "one:20000".to_owned()],
        )
    };
    let program = program.to_str().context("a path")?;
    let by_name = spin(PROCTORTURE, "kc-name")?;
    let by_number = spin(PROCTORTURE, "kc-other")?;
    let by_program = spin(program, "kc-renamed")?;
    let none = spin(PROCTORTURE, "kc-names")?;
    std::thread::sleep(Duration::from_millis(50));

    let pattern = format!("=kc-name|{}|kc-program", pid(&by_number));
    let mut recording = Recording::start(["-p", "hi", "-F", &pattern], LIMIT)?;
    recording.until_running()?;
    let later = spin(program, "kc-later")?;
    std::thread::sleep(Duration::from_millis(700));
    let followed = Followed::read(&recording.stop()?)?;
    let expected = [&by_name, &by_number, &by_program, &later].map(pid);
    ensure!(
        followed.pids() == BTreeSet::from(expected),
        "followed: {:?}, not {expected:?}",
        followed
            .subs
            .iter()
            .map(|sub| &sub.name)
            .collect::<Vec<_>>()
    );
    let names = followed.subs.iter().map(|sub| sub.name.as_str());
    let name = format!("_kc-name_PID_{}.1.er", pid(&by_name));
    ensure!(
        names.clone().any(|found| found == name),
        "{:?}",
        names.collect::<Vec<_>>()
    );

    // A process that -T names is followed with any -F.
    let number = pid(&none).to_string();
    let recorded = record(
        &["-p", "hi", "-t", "0.5", "-F", "off", "-T", &number],
        &[],
        LIMIT,
    )?;
    let followed = Followed::read(&recorded)?;
    ensure!(
        followed.pids() == BTreeSet::from([pid(&none)]),
        "{:?}",
        followed.pids()
    );
    Ok(())
}

#[test]
fn root_alone_a_load_and_its_descendants_are_followed() -> Result<()> {
    judge_times(|| {
        // The load has two children and the first of them one; these two without children execute
        // another program. The load ends last.
        let again = format!("exec:{INSIDE}");
        let load = [
            PROCTORTURE,
            "one:100",
            "both",
            "one:100",
            "fork",
            "two:100",
            &again,
            "one:100",
        ];
        let options = ["-p", "hi", "-F", "=proctorture", "--descendants"];
        let followed = Followed::read(&record(&options, &load, LIMIT)?)?;
        judge_descendants(&followed, &["_f1.er", "_f1_f1.er", "_f2.er"])?;
        for sub in followed
            .subs
            .iter()
            .filter(|sub| ["_f1_f1.er", "_f2.er"].contains(&sub.name.as_str()))
        {
            let (_, inside) = sub.user_ticks(|object| object == Some(INSIDE));
            Band::time(100e6, 100e6, followed.interval_ns)
                .with_edges(MAX_OUTSIDE_ACTION * 100.0)
                .with_edges(stolen_meanwhile()? / followed.interval_ns)
                .judge(&format!("{} after its exec", sub.name), inside as f64)?;
        }

        let load = [workload!("spin_user"), "0.5", &work_cpu()?.to_string()];
        let recorded = record(&["-p", "hi", "-F", "on"], &load, LIMIT)?;
        let truth = recorded.truth()?;
        Followed::read(&recorded)?.the(truth.pid.cast_unsigned())?;
        Ok(())
    })
}

/// A fork that executes a program later is another thing than a call that does both, which holds
/// its caller meanwhile.
#[test]
fn root_alone_descendants_are_named_by_fork_or_spawn() -> Result<()> {
    /// A shell that does this runs no other program.
    const BURN: &str = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done";
    let _machine = Exclusive::take()?;
    let (system, popen) = (format!("system:{BURN}"), format!("popen:{BURN}"));
    let load = [
        PROCTORTURE,
        "one:50",
        "start:one:100",
        "spawn:one:100",
        "vfork:one:100",
        &system,
        "start:one:100",
        &popen,
        "spawn:spawn:one:100",
    ];
    let options = ["-p", "hi", "-F", "=proctorture", "--descendants"];
    let followed = Followed::read(&record(&options, &load, LIMIT)?)?;
    let expected = [
        "_c1.er",
        "_c2.er",
        "_c3.er",
        "_c4.er",
        "_c5.er",
        "_c5_c1.er",
        "_f1_x1.er",
        "_f2_x1.er",
    ];
    judge_descendants(&followed, &expected)?;
    for (name, shell) in expected.into_iter().zip([false, false, true, true]) {
        let sub = followed.subs.iter().find(|sub| sub.name == name);
        let sub = sub.context("it is there")?;
        let object = sub.main_object().context("it has a load object")?;
        ensure!((object != PROCTORTURE) == shell, "{name} is {object}");
    }
    followed.lost_nothing()
}

/// As fields, for programs that read the experiment; gprofng ignores them.
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

/// That the followed are the proctorture and its descendants of these names.
/// Of a container are followed what runs in it at the start, what is forked there, and what enters
/// it and executes its program there; and nothing else.
#[test]
fn root_alone_processes_of_a_container_or_a_user_are_followed() -> Result<()> {
    let _machine = Exclusive::take()?;
    let id = "fedcba9876543210".repeat(4);
    let container = Quota::of_container(&id)?;
    let inside = start(PROCTORTURE, &["one:20000"])?;
    container.take(pid(&inside))?;
    let mut as_another = Command::new("setpriv");
    as_another.args(["--reuid", "65431", "--clear-groups", "--"]);
    let another = Running::start(as_another.args([PROCTORTURE, "one:20000"]), LIMIT)?;
    // It is forked outside, enters, and executes; its own child is forked inside.
    let enters = format!(
        "echo shell $$; echo $$ >{}; exec sh -c '{PROCTORTURE} one:300; {PROCTORTURE} one:300'",
        container.procs().display()
    );
    let record_of = |group: &str| {
        let options = ["-p", "hi", "-F", group];
        record(&options, &["sh", "-c", &enters], LIMIT)
    };

    let of_container = record_of(&format!("container:{}", &id[..12]))?;
    let followed = Followed::read(&of_container)?;
    let output = &of_container.finished.stdout;
    let shell = output.lines().find_map(|line| line.strip_prefix("shell "));
    let shell: u32 = shell.context("the shell")?.parse()?;
    // One that waits long for a CPU before it executes is called as it was then.
    let others: Vec<_> = followed
        .subs
        .iter()
        .filter(|sub| sub.pid != shell)
        .collect();
    ensure!(others.len() == 3, "{others:?}");
    followed.the(pid(&inside))?;
    let name = format!("docker-{id}.scope");
    for sub in &followed.subs {
        let experiment = Experiment::open(&sub.path)?;
        let comments = &experiment.header().comments;
        // The shell's own begins before it enters.
        ensure!(
            sub.pid == shell || comments.contains(&format!("unit: {name}")),
            "{}: {comments:?}",
            sub.name
        );
    }
    followed.lost_nothing()?;
    // What is followed has its group in reports.
    let experiment = of_container.experiment()?;
    let path = experiment.to_string_lossy();
    let report = |arguments: &[&str]| -> Result<Value> {
        let words = [&["report", &path, "--json", "-m", "e.total"], arguments].concat();
        let text = run(&mut command(words)?, LIMIT)?.succeeded()?.stdout;
        Ok(serde_json::from_str(&text)?)
    };
    let by_unit = report(&["--by", "unit"])?;
    let rows = by_unit["rows"].as_array().context("rows")?;
    let row = rows.iter().find(|row| row["name"] == name.as_str());
    let seconds = row.context("the unit")?["e.total"].as_f64();
    let chosen = report(&["processes", "--container", &id[..12]])?;
    let total = chosen["rows"][0]["e.total"].as_f64();
    ensure!(
        seconds > Some(0.5) && seconds == total,
        "{seconds:?} of the unit, {total:?} of the container"
    );

    let of_user = Followed::read(&record_of("user:65431")?)?;
    let names: Vec<_> = of_user.subs.iter().map(|sub| sub.pid).collect();
    ensure!(names == [pid(&another)], "{names:?}");
    Ok(())
}

fn judge_descendants(followed: &Followed, expected: &[&str]) -> Result<()> {
    let mut names: Vec<&str> = followed.subs.iter().map(|sub| sub.name.as_str()).collect();
    names.sort_unstable();
    let own = names
        .iter()
        .position(|name| name.starts_with("_proctorture_PID_"));
    names.remove(own.with_context(|| format!("{names:?}"))?);
    ensure!(names == expected, "descendants: {names:?}");
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

        let changing = followed.the(pids[0])?;
        // As it was called when it was first seen; but not by its parent's name, as between fork
        // and exec.
        ensure!(
            ["_proctorture", "_mine"]
                .iter()
                .any(|name| changing.name.starts_with(name)),
            "{}",
            changing.name
        );
        judge(
            &followed,
            changing,
            &[("burn_one", 300), ("burn_two", 300), ("burn_inside", 300)],
        )?;
        let executed = find_report(&output[0], "exec")?.numbers[0];
        for state_interval in &changing.state_intervals {
            for object in state_interval.objects.iter().flatten() {
                // It takes a moment from the word to the action.
                ensure!(
                    object != INSIDE || state_interval.time >= executed,
                    "{object} {} ns before the exec",
                    executed - state_interval.time
                );
                ensure!(
                    object != PROCTORTURE || state_interval.time <= executed + 100_000_000,
                    "{object} {} ns after the exec",
                    state_interval.time - executed
                );
            }
        }

        let (first, second) = (
            find_report(&output[1], "first")?,
            find_report(&output[1], "second")?,
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
        let (one, two) = match names[0].ends_with(".1.er") {
            true => (twins[0], twins[1]),
            false => (twins[1], twins[0]),
        };
        judge(&followed, one, &[("burn_one", 300)])?;
        judge(&followed, two, &[("burn_two", 300)])?;
        let last = one
            .state_intervals
            .iter()
            .map(|state_interval| state_interval.time)
            .max();
        let next = two
            .state_intervals
            .iter()
            .map(|state_interval| state_interval.time)
            .min();
        ensure!(
            last < next,
            "the first twin's last {last:?}, the second's first {next:?}"
        );

        // Its first thread ended long before it.
        judge(&followed, followed.the(pids[2])?, &[("burn_two", 300)])?;

        let killed = followed.the(pids[1])?;
        judge(&followed, killed, &[("burn_one", 200)])?;
        let died = find_report(&output[2], "die")?.numbers[0];
        let end = killed.end_ns.context("it is not closed")?;
        ensure!(
            end >= died && end < died + 100_000_000,
            "it died at {died}, its experiment ends at {end}"
        );
        for sub in &followed.subs {
            let end = sub.end_ns.context("it is not closed")?;
            let last = sub
                .state_intervals
                .iter()
                .map(|state_interval| state_interval.time)
                .max();
            ensure!(
                last <= Some(end),
                "{} ends at {end}, and has something of {last:?}",
                sub.name
            );
            samples_end_with_it(sub)?;
        }
        followed.lost_nothing()
    })
}

/// None of a process's samples is after its exit, though it ends later than its leading thread.
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

/// Of a proctorture that burnt so many milliseconds in functions: they have that time, by stock
/// gprofng, and no other has.
fn judge(followed: &Followed, sub: &FollowedProcess, burnt: &[(&str, u64)]) -> Result<()> {
    let table = sub.functions(None)?;
    let mut rest = table.total()?;
    for (name, ms) in burnt {
        let expected = *ms as f64 * 1e6;
        let seconds = table.get(name);
        rest -= seconds;
        Band::time(expected, expected, followed.interval_ns)
            .with_edges(MAX_OUTSIDE_ACTION * expected / followed.interval_ns)
            .with_edges(stolen_meanwhile()? / followed.interval_ns)
            .judge(
                &format!("{name} in {}", sub.name),
                seconds * 1e9 / followed.interval_ns,
            )
            .with_context(|| first_rows(&table))?;
    }
    let whole: u64 = burnt.iter().map(|(_, ms)| ms).sum();
    ensure!(
        rest < MAX_OUTSIDE_ACTION * whole as f64 / 1e3 + 0.02,
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
            let mut sums: BTreeMap<u32, [u64; Microstate::PER_THREAD]> = BTreeMap::new();
            // At these the hypervisor had the CPU, and the thread waited for it.
            let mut stolen: BTreeMap<u32, u64> = BTreeMap::new();
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
                    .arrays
                    .keys()
                    .filter(|(pid, _)| sums.contains_key(pid))
                    .collect();
                ensure!(both.is_empty(), "also in the founder: {both:?}");
            }
            // On a CPU each tick is Kernel CPU in the founder once, and once in a tick array
            // somewhere.
            for (pid, ticks) in followed.kernel_cpu.iter().filter(|(pid, _)| **pid != 0) {
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
            // And away from it, by the exact accounts of the process.
            let truth = recorded.truth()?;
            let load = truth.pid.cast_unsigned();
            let found: u64 = sums
                .get(&load)
                .context("the load is followed")?
                .iter()
                .sum();
            let inside: u64 = followed
                .arrays
                .iter()
                .filter(|((pid, _), _)| *pid == load)
                .map(|(_, ticks)| ticks)
                .sum();
            let processes = followed.json["processes"]
                .as_array()
                .context("no processes")?;
            let account = processes
                .iter()
                .find(|process| process["pid"] == load)
                .context("the load has an account")?;
            let lived =
                account["tracked_s"].as_f64().context("tracked_s")? * 1e9 / followed.interval_ns;
            let threads = account["threads"].as_f64().context("threads")?;
            Band::of(lived, 1.0)
                .with_edges(3.0 * threads + 0.001 * lived)
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
    let children: BTreeSet<u32> = truth
        .children
        .iter()
        .map(|pid| pid.cast_unsigned())
        .collect();
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

/// The threads of the kernel.
fn kernel_threads() -> Result<BTreeSet<u32>> {
    const PF_KTHREAD: u64 = 0x20_0000;
    const FLAGS: usize = 6;
    let mut found = BTreeSet::new();
    for pid in tests::machine::processes()? {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let flags = stat
            .rsplit_once(") ")
            .and_then(|(_, rest)| rest.split(' ').nth(FLAGS)?.parse::<u64>().ok());
        if flags.is_some_and(|flags| flags & PF_KTHREAD != 0) {
            found.insert(pid.cast_unsigned());
        }
    }
    Ok(found)
}
