//! Which processes kcollect follows: processes with a tick or a matching name, the load and its
//! descendants, the processes of a container or a user.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use experiment_format::ids::Pid;
use experiment_format::reader::Experiment;
use serde_json::Value;
use tests::command::{Running, copy_program, run};
use tests::experiment::followed::{Followed, directories};
use tests::kcollect::{Recording, command, record};
use tests::machine::cgroup::Quota;
use tests::machine::disturbance::judge_times;
use tests::machine::{Exclusive, stolen_meanwhile, work_cpu};
use tests::oracle::statistics::Band;
use tests::workload;
use tests::workload::proctorture::{
    INSIDE, MAX_OUTSIDE_ACTION_SHARE, PROCTORTURE, name_action, pid, start,
};

const LIMIT: Duration = Duration::from_secs(40);

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
    let ticked: BTreeSet<Pid> = on
        .kernel_cpu
        .keys()
        .copied()
        .filter(|pid| *pid != Pid(0))
        .collect();
    let kernel_threads: BTreeSet<Pid> = &kernel_threads | &self::kernel_threads()?;
    let expected: BTreeSet<Pid> = &ticked - &kernel_threads;
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
                .with_edges(MAX_OUTSIDE_ACTION_SHARE * 100.0)
                .with_edges(stolen_meanwhile()? / followed.interval_ns)
                .judge(&format!("{} after its exec", sub.name), inside as f64)?;
        }

        let load = [workload!("spin_user"), "0.5", &work_cpu()?.to_string()];
        let recorded = record(&["-p", "hi", "-F", "on"], &load, LIMIT)?;
        let truth = recorded.truth()?;
        Followed::read(&recorded)?.the(truth.pid)?;
        Ok(())
    })
}

/// A call that makes a process of another program (posix_spawn, system, popen, vfork) is a fork and
/// an exec, like these two calls.
#[test]
fn root_alone_descendants_are_named_by_forks_and_execs() -> Result<()> {
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
        "_f1_x1.er",
        "_f2_x1.er",
        "_f3_x1.er",
        "_f4_x1.er",
        "_f5_x1.er",
        "_f6_x1.er",
        "_f7_x1.er",
        "_f7_x1_f1_x1.er",
    ];
    judge_descendants(&followed, &expected)?;
    let shells = [false, false, false, true, false, true];
    for (name, shell) in expected.into_iter().zip(shells) {
        let sub = followed.subs.iter().find(|sub| sub.name == name);
        let sub = sub.context("it is there")?;
        let object = sub.main_object().context("it has a load object")?;
        ensure!((object != PROCTORTURE) == shell, "{name} is {object}");
    }
    followed.lost_nothing()
}

/// A container's followed processes are the ones that run in it at the start, that are forked
/// there, or that enter it and execute their program there; and no others.
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
    let shell = Pid(shell.context("the shell")?.parse()?);
    // A process that waits long for a CPU before its exec has the name that it had then.
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

/// Checks that the followed processes are the proctorture and its descendants of these names.
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

/// Returns the threads of the kernel.
fn kernel_threads() -> Result<BTreeSet<Pid>> {
    const PF_KTHREAD: u64 = 0x20_0000;
    const FLAGS: usize = 6;
    let mut found = BTreeSet::new();
    for pid in tests::machine::processes()? {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let flags = stat
            .rsplit_once(") ")
            .and_then(|(_, rest)| rest.split(' ').nth(FLAGS)?.parse::<u64>().ok());
        if flags.is_some_and(|flags| flags & PF_KTHREAD != 0) {
            found.insert(pid);
        }
    }
    Ok(found)
}
