//! Processes that exit within milliseconds: a shell's loop of `true`, and a parallel build. Each
//! that had a tick on a CPU is in the summary under a name that it had, by perf's own side-band,
//! and has a subexperiment with its time, its load objects and its stacks.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use experiment_format::address_space::RecordedAddressSpace;
use experiment_format::ids::Pid;
use experiment_format::log::LogEvent;
use experiment_format::microstate::Microstate;
use experiment_format::packet::Detail;
use experiment_format::reader::Experiment;
use tests::experiment::states::States;
use tests::experiment::summary::{FollowedStats, RunSummary, complete};
use tests::experiment::{began_ns, thread_ticks};
use tests::kcollect::record;
use tests::machine::alone;
use tests::oracle::audit::{Audit, AuditedProcess};

const LIMIT: Duration = Duration::from_secs(60);
/// How many times the shell runs `true`.
const PROGRAMS: usize = 1000;
/// Seconds between a first run of the program and the loop, in which its unwind tables are made.
const LEARNING_S: &str = "1.5";
/// How many files are compiled.
const FILES: usize = 30;
/// Minimum share of the ticks with a user stack that have a complete one, once there is an unwind
/// table for their code.
const MIN_COMPLETE_SHARE: f64 = 0.95;
/// Maximum share of them that comes before that: the compiler's table takes a second to make, and
/// the compiler wants the CPUs too.
const MAX_SHARE_BEFORE_TABLES: f64 = 0.3;
/// The same of programs that run for a millisecond, and that ran before: 99 %, and three
/// standard deviations below that for the 500 ticks that there are at least.
const MIN_COMPLETE_SHARE_SHORT_LIVED: f64 = 0.976;
/// Maximum share of the user frames that are in no load object.
const MAX_UNMAPPED_SHARE: f64 = 0.01;

#[test]
fn root_alone_a_loop_of_short_lived_processes() -> Result<()> {
    alone(|| {
        let script = format!(
            "/bin/true; sleep {LEARNING_S}; i=0; while [ $i -lt {PROGRAMS} ]; do /bin/true; i=$((i+1)); done"
        );
        judge(
            &["sh", "-c", &script],
            PROGRAMS,
            &["sh", "true"],
            MIN_COMPLETE_SHARE_SHORT_LIVED,
        )
    })
}

#[test]
fn root_alone_a_parallel_build() -> Result<()> {
    alone(|| {
        let directory = tempfile::tempdir()?;
        let place = directory.path().to_str().context("a path that is text")?;
        let sources: Vec<_> = (0..FILES).map(|number| format!("f{number}")).collect();
        for (number, name) in sources.iter().enumerate() {
            let text = format!(
                "#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n\
                 int work{number}(int count, char **words)\n{{\n\tint sum = 0;\n\
                 \tfor (int at = 0; at < count; at++) sum += (int)strlen(words[at]) * atoi(words[at]);\n\
                 \treturn printf(\"%d\\n\", sum);\n}}\n"
            );
            fs::write(directory.path().join(format!("{name}.c")), text)?;
        }
        let objects: Vec<_> = sources.iter().map(|name| format!("{name}.o")).collect();
        let makefile = format!(
            "all: {}\n%.o: %.c\n\tcc -O2 -c -o $@ $<\n",
            objects.join(" ")
        );
        fs::write(directory.path().join("Makefile"), makefile)?;
        let script =
            format!("cd {place} && make -s -j2 f0.o f1.o && sleep {LEARNING_S} && make -s -j2");
        judge(
            &["sh", "-c", &script],
            2 * FILES,
            &["make", "cc"],
            MIN_COMPLETE_SHARE,
        )
    })
}

/// Records a load that executes at least `programs` programs, some with these names, and compares
/// it with the audit; `share` is the minimum share of complete user stacks.
fn judge(load: &[&str], programs: usize, names: &[&str], share: f64) -> Result<()> {
    let audit = Audit::start(LIMIT)?;
    let recorded = record(&["-p", "hi", "-F", "on"], load, LIMIT)?;
    let lives = audit.end()?;
    let founder = recorded.experiment()?;
    let summary = RunSummary::of(&founder)?;
    summary.complete()?;
    let states = States::of(&founder)?;
    let followed = summary.followed()?;
    ensure!(
        ["dropped_copies", "not_held"]
            .iter()
            .all(|loss| followed.losses.get(*loss) == Some(&0)),
        "{:?}",
        followed.losses
    );
    let short_lived = short_lived(&lives, programs, names)?;
    // `-F on` follows processes with a tick on a CPU; one that only waited is in the founder.
    let on_cpu = states.processes.iter().filter(|row| row.ticks > 0);
    let with_ticks: BTreeSet<Pid> = on_cpu.map(|row| row.pid).collect();
    let mut wrong = Vec::new();
    let (mut early, mut stacks): (BTreeMap<String, u64>, BTreeMap<String, u64>) =
        Default::default();
    let (mut count, mut frames, mut nowhere, mut kernelless) = (0, 0, 0, 0);
    let learnt_ns = began_ns(&founder)? + 1_000_000_000;
    let kernel = Experiment::open(&founder)?.address_space()?;
    for (pid, life) in &short_lived {
        if !with_ticks.contains(pid) {
            continue;
        }
        count += 1;
        let found = match one((&founder, &kernel), &states, followed, *pid, life) {
            Ok(found) => found,
            Err(error) => {
                wrong.push(format!("process {pid}, {life:?}: {error:#}"));
                continue;
            }
        };
        frames += found.frames;
        nowhere += found.nowhere;
        kernelless += found.kernelless;
        let sums = if found.first_tick_ns < learnt_ns {
            &mut early
        } else {
            &mut stacks
        };
        for (end, ticks) in followed.all(*pid).flat_map(|process| &process.user_stacks) {
            *sums.entry(end.clone()).or_default() += ticks;
        }
    }
    println!(
        "{} short-lived processes by the audit, {count} with ticks; user stacks {stacks:?}, {:.2} % complete, \
         of those started in the first second {early:?}; {nowhere} of {frames} user frames are nowhere",
        short_lived.len(),
        complete(&stacks) * 100.0
    );
    ensure!(
        wrong.is_empty(),
        "{} of {count} are wrong:\n{}",
        wrong.len(),
        wrong[..wrong.len().min(8)].join("\n")
    );
    let all: u64 = stacks.values().sum();
    let untabled = stacks.remove("no_table").unwrap_or_default();
    ensure!(
        untabled as f64 <= MAX_SHARE_BEFORE_TABLES * all as f64,
        "{untabled} of {all} ticks came before there was a table"
    );
    let missing = summary.losses.get("missing_stacks").copied();
    let missing = usize::try_from(missing.context("missing stacks are counted")?)?;
    ensure!(
        kernelless <= missing,
        "{kernelless} records of the kernel without its functions, of {missing} in the statistics"
    );
    ensure!(count >= 20, "only {count} of them had a tick");
    ensure!(
        complete(&stacks) >= share,
        "only {:.4} of the user stacks are complete: {stacks:?}",
        complete(&stacks)
    );
    ensure!(
        nowhere as f64 <= MAX_UNMAPPED_SHARE * frames as f64,
        "{nowhere} of {frames} frames in no load object"
    );
    Ok(())
}

/// The processes that the audit saw from fork to exit, with all their names: others run as long as
/// the machine.
fn short_lived<'a>(
    lives: &'a BTreeMap<Pid, AuditedProcess>,
    programs: usize,
    names: &[&str],
) -> Result<BTreeMap<Pid, &'a AuditedProcess>> {
    let short_lived: BTreeMap<Pid, &AuditedProcess> = lives
        .iter()
        .filter(|(_, life)| life.forked && life.exited && life.programs > 0)
        .map(|(pid, life)| (*pid, life))
        .collect();
    ensure!(
        short_lived.len() >= programs,
        "the audit has {} programs of {} processes",
        short_lived.len(),
        lives.len()
    );
    let called: BTreeSet<&str> = short_lived
        .values()
        .flat_map(|life| life.names.iter().map(String::as_str))
        .collect();
    ensure!(
        names.iter().all(|name| called.contains(name)),
        "the audit has {called:?}"
    );
    Ok(short_lived)
}

/// The contents of a subexperiment.
struct Found {
    /// The time of its first tick.
    first_tick_ns: u64,
    /// User frames, and how many of them are in no load object.
    frames: u64,
    nowhere: u64,
    /// Records of ticks in the kernel that have no function of it: each is of a thread and a time,
    /// of whatever states.
    kernelless: usize,
}

/// Judges a process that had ticks. `kernel` is the founder's address space.
fn one(
    (founder, kernel): (&Path, &RecordedAddressSpace),
    states: &States,
    followed: &FollowedStats,
    pid: Pid,
    life: &AuditedProcess,
) -> Result<Found> {
    let row = states.row(pid)?;
    ensure!(
        life.names.last() == Some(&row.name),
        "it is called {:?}",
        row.name
    );
    let (process, path) = followed.one(founder, pid)?;
    // It may have had its first tick before its first program: under the name of the process that
    // forked it.
    let own_names = life.names.iter().map(String::as_str);
    let inherited = states.processes.iter().map(|row| row.name.as_str());
    let expected = |name: &str| process.experiment == format!("_{name}_PID_{pid}.1.er");
    ensure!(
        own_names.chain(inherited).any(expected),
        "its experiment is {}",
        process.experiment
    );
    let ticks = thread_ticks(&path, None)?;
    ensure!(
        ticks == process.ticks && ticks >= row.ticks,
        "{ticks} ticks in its experiment, of {} on a CPU: {process:?}",
        row.ticks
    );
    let twice = thread_ticks(founder, Some(pid))?;
    ensure!(twice == 0, "{twice} of its ticks are in the founder too");

    let experiment = Experiment::open(&path)?;
    ensure!(experiment.is_closed(), "its experiment is not closed");
    let (space, stacks) = (experiment.address_space()?, experiment.stacks()?);
    let start = experiment.start().tstamp_ns;
    let mut found = Found {
        first_tick_ns: u64::MAX,
        frames: 0,
        nowhere: 0,
        kernelless: 0,
    };
    let mut kernelless = BTreeSet::new();
    for tick in experiment.ticks()? {
        let tick = tick?;
        let stack = tick.shared.stack.and_then(|stack| stacks.get(stack));
        let stack = stack.context("a tick without a stack")?;
        found.first_tick_ns = found.first_tick_ns.min(tick.shared.time_ns.0);
        // Time is stolen in user mode too.
        let in_user_mode =
            tick.state == Microstate::User.number() || tick.detail == Detail::Stolen.number();
        if !in_user_mode && !stack.frames.iter().any(is_of_kernel) {
            kernelless.insert((tick.shared.thread, tick.shared.time_ns));
        }
        let at_ns = tick.shared.time_ns.saturating_sub(start);
        for frame in stack.frames.iter() {
            let of = |space: &'_ RecordedAddressSpace| {
                let found = space.find(*frame, at_ns);
                found.map(|place| (place.object.to_owned(), place.offset))
            };
            let place = of(&space);
            if is_of_kernel(frame) {
                let expected = of(kernel);
                ensure!(
                    place == expected,
                    "{frame:#x} lies in {place:?}, not in {expected:?}"
                );
            } else {
                found.frames += 1;
                found.nowhere += u64::from(place.is_none());
            }
        }
    }
    let exit = experiment.events().iter().find_map(|event| match event {
        LogEvent::Exit { at_ns } => Some(*at_ns),
        _ => None,
    });
    let samples = experiment.samples()?;
    ensure!(
        samples.iter().all(|sample| Some(sample.at_ns) <= exit),
        "it ended at {exit:?}, and has the samples {samples:?}"
    );
    found.kernelless = kernelless.len();
    Ok(found)
}

/// Returns whether an address is in the upper half of the address space, the kernel's.
fn is_of_kernel(address: &u64) -> bool {
    *address >> 63 == 1
}
