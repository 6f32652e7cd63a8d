//! Processes that are hard to follow, by accident or on purpose: with names that are no file names,
//! from deleted or replaced files, with code that moves, is generated, has no unwind tables or
//! wrong ones, and in containers. What can be known of them is right, the rest is marked, and no
//! other process's stacks suffer.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use experiment_format::ids::Pid;
use experiment_format::reader::Experiment;
use experiment_format::stacks::StackEnd;
use experiment_format::units::Nanos;
use tests::command::{Running, copy_program};
use tests::experiment::followed::{Followed, FollowedProcess};
use tests::gprofng;
use tests::kcollect::{FinishedRecording, Recording};
use tests::machine::disturbance::judge_times;
use tests::machine::{alone, stolen_meanwhile};
use tests::oracle::statistics::Band;
use tests::workload::broken_elf;
use tests::workload::proctorture::{
    INSIDE, MAX_OUTSIDE_ACTION_SHARE, NARROW, OUTSIDE, PROCTORTURE, SWAPPED, find_report, finish,
    name_action, pid, start,
};

const LIMIT: Duration = Duration::from_secs(60);

/// Maximum number of recorded frames of a stack.
const MAX_FRAMES: usize = 1000;

/// A process that has ended, and its output.
type Done = (Pid, String);

/// The programs that are followed, by the names of their files: what they call themselves is
/// anything.
const PROGRAMS: &str = "=proctorture|memfd:proctorture.*|narrow|inside|outside|program|deleted|fixed|linked|an?-.*|frames-.*|entries-.*|no-.*|the-.*|unwind-.*";

/// Records while programs perform their actions.
fn record_all(
    actions: impl FnOnce() -> Result<Vec<Done>>,
) -> Result<(Followed, Vec<Done>, FinishedRecording)> {
    let mut recording = Recording::start(["-p", "hi", "-F", PROGRAMS], LIMIT)?;
    recording.until_running()?;
    std::thread::sleep(Duration::from_millis(200));
    let done = actions()?;
    std::thread::sleep(Duration::from_millis(150));
    let recorded = recording.stop()?;
    Ok((Followed::read(&recorded)?, done, recorded))
}

/// Waits for the end of all programs, and returns them with their output.
fn all(running: Vec<Running>) -> Result<Vec<Done>> {
    let pids: Vec<Pid> = running.iter().map(pid).collect();
    let output = finish(running)?.into_iter().map(|finished| finished.stdout);
    Ok(pids.into_iter().zip(output).collect())
}

/// Runs programs one after the other: one CPU is left for kcollect.
fn in_turn<P: AsRef<Path>, A: AsRef<OsStr>>(programs: &[(P, Vec<A>)]) -> Result<Vec<Done>> {
    let mut done = Vec::new();
    for (program, actions) in programs {
        done.extend(all(vec![start(program, actions)?])?);
    }
    Ok(done)
}

/// Checks that this user time of some processes is recorded, milliseconds, within the error of a
/// sample.
fn judge(
    followed: &Followed,
    subs: &[&FollowedProcess],
    what: &str,
    ms: u64,
    ticks: f64,
) -> Result<()> {
    let expected = ms as f64 * 1e6;
    let mut switches = 0;
    for sub in subs {
        let usage = Experiment::open(&sub.path)?.usage()?;
        let last = usage.last().context("a sample of it")?;
        switches += last.voluntary_switches + last.involuntary_switches;
    }
    Band::time(expected, expected, followed.interval_ns)
        .with_stints(switches as f64)
        .with_edges(MAX_OUTSIDE_ACTION_SHARE * expected / followed.interval_ns)
        .with_edges(stolen_meanwhile()? / followed.interval_ns)
        .judge(what, ticks)
}

/// Checks a function's time in stock gprofng, milliseconds.
fn judge_function(
    followed: &Followed,
    sub: &FollowedProcess,
    function: &str,
    ms: u64,
) -> Result<()> {
    let table = sub.functions(None)?;
    let ticks = table.get(function) * 1e9 / followed.interval_ns;
    let first: Vec<_> = table.rows.iter().take(6).collect();
    let what = format!("{function} in {}", sub.name);
    judge(followed, &[sub], &what, ms, ticks).with_context(|| format!("{first:?}"))
}

#[test]
fn root_alone_process_names_cannot_leave_the_experiment() -> Result<()> {
    alone(|| {
        let names: [&[u8]; 9] = [
            b"/",
            b"..",
            b".",
            b"a\nb",
            b"\"'<&",
            b"-n",
            &[0xff; 15],
            b"",
            b"../../../etc/x",
        ];
        let (followed, _, recorded) = record_all(|| {
            // Under the name from the first instant on: the proctorture that does the work is a
            // child.
            let actions = |name| vec![name_action(name), "fork".into(), "one:80".into()];
            in_turn(&names.map(|name| (PROCTORTURE, actions(name))))
        })?;
        let founder = recorded.experiment()?;
        let siblings: Vec<_> = fs::read_dir(recorded.directory())?
            .map(|entry| Ok(entry?.file_name()))
            .collect::<Result<_>>()?;
        ensure!(siblings.len() == 1, "next to the experiment: {siblings:?}");
        let mut of_names = 0;
        for sub in &followed.subs {
            let stem = sub
                .name
                .strip_suffix(".er")
                .context("a name that ends in .er")?;
            let safe =
                |character: char| character.is_alphanumeric() || "._-+:@=,".contains(character);
            ensure!(
                stem.starts_with('_') && stem.chars().all(safe),
                "{:?}",
                sub.name
            );
            ensure!(fs::symlink_metadata(&sub.path)?.is_dir(), "{:?}", sub.name);
            ensure!(sub.path.parent() == Some(&*founder), "{:?}", sub.path);
            let (_, burnt) = sub.user_ticks(|object| object == Some(PROCTORTURE));
            of_names += u64::from(burnt as f64 * followed.interval_ns > 60e6);
        }
        ensure!(
            of_names == names.len() as u64,
            "{of_names} children did their work"
        );
        // All of it opens.
        let functions = gprofng::script(&["metrics e.user:i.user:name", "functions"], &founder)?;
        let burnt = functions.content()?.table(2).get("burn_one") * 1e9 / followed.interval_ns;
        let all = 80 * names.len() as u64;
        let subs: Vec<_> = followed.subs.iter().collect();
        judge(&followed, &subs, "burn_one of all", all, burnt)?;
        followed.lost_nothing()
    })
}

#[test]
fn root_alone_deleted_and_replaced_files_are_distinct() -> Result<()> {
    alone(|| {
        let directory = tempfile::tempdir()?;
        let (program, other) = (
            directory.path().join("program"),
            directory.path().join("other"),
        );
        let deleted = directory.path().join("deleted");
        copy_program(INSIDE, &program)?;
        copy_program(OUTSIDE, &other)?;
        copy_program(INSIDE, &deleted)?;
        let (followed, done, _recorded) = record_all(|| {
            let first = start(&program, &["one:500"])?;
            let gone = start(&deleted, &["one:500"])?;
            std::thread::sleep(Duration::from_millis(150));
            fs::rename(&other, &program)?;
            fs::remove_file(&deleted)?;
            all(vec![first, gone, start(&program, &["one:500"])?])
        })?;
        let subs = done.iter().map(|(pid, _)| followed.the(*pid));
        let subs = subs.collect::<Result<Vec<_>>>()?;
        let objects: Vec<String> = subs
            .iter()
            .map(|sub| sub.main_object().context("it has a load object"))
            .collect::<Result<_>>()?;
        ensure!(
            objects[0] != objects[2],
            "two files under one name: {objects:?}"
        );
        ensure!(
            objects[1].starts_with(&*deleted.to_string_lossy()),
            "{objects:?}"
        );
        for (sub, (object, function)) in
            subs.iter().zip(
                objects
                    .iter()
                    .zip(["burn_inside", "burn_inside", "burn_outside"]),
            )
        {
            let (_, ticks) = sub.user_ticks(|found| found == Some(object));
            judge(&followed, &[sub], &sub.name, 500, ticks as f64)?;
            judge_function(&followed, sub, function, 500)?;
        }
        Ok(())
    })
}

#[test]
fn root_alone_libraries_mapped_in_turn_at_one_address_are_distinct() -> Result<()> {
    alone(|| {
        const TIMES: u64 = 3000;
        const US: u64 = 200;
        let (followed, done, _recorded) = record_all(|| {
            let action = format!("swap:{},{},{TIMES},{US}", SWAPPED[0], SWAPPED[1]);
            in_turn(&[(PROCTORTURE, vec![action])])
        })?;
        let sub = followed.the(done[0].0)?;
        let spent = find_report(&done[0].1, "swapped")?.numbers;
        ensure!(
            spent[2] == 2 * TIMES,
            "they were not always at one address: {spent:?}"
        );
        // The leaf: by time.
        let table = sub.functions(None)?;
        let whole: u64 = spent[..2].iter().sum();
        for (function, ns) in ["leaf_one", "leaf_two"].into_iter().zip(&spent) {
            let ticks = table.get(function) * 1e9 / followed.interval_ns;
            Band::time(*ns as f64, whole as f64, followed.interval_ns)
                .with_edges(MAX_OUTSIDE_ACTION_SHARE * *ns as f64 / followed.interval_ns)
                .with_edges(stolen_meanwhile()? / followed.interval_ns)
                .judge(function, ticks)?;
        }
        // And no function of the one calls one of the other.
        for (caller, other) in [("middle_one", "leaf_two"), ("middle_two", "leaf_one")] {
            let filter = format!("'(FNAME(\"{caller}\") SOME IN STACK)'");
            let table = sub.functions(Some(&filter))?;
            ensure!(
                table.get(other) == 0.0,
                "{caller} calls {other}: {:?}",
                table.find(other)
            );
        }
        let mixed = sub.state_intervals.iter().filter(|state_interval| {
            let of = |library: &str| {
                state_interval
                    .objects
                    .iter()
                    .flatten()
                    .any(|object| object == library)
            };
            of(SWAPPED[0]) && of(SWAPPED[1])
        });
        ensure!(mixed.count() == 0, "stacks with frames in both");
        let ends = followed.ends(sub)?;
        let complete = ends.get("complete").copied().unwrap_or(0);
        // A table that is a moment old is of the library that was there then, and is not used for
        // the other.
        ensure!(complete > 0 && complete <= sub.ticks(), "{ends:?}");
        Ok(())
    })
}

#[test]
fn root_alone_code_without_files_tables_or_stacks() -> Result<()> {
    judge_times(|| {
        let (followed, done, _recorded) = record_all(|| {
            in_turn(&[
                (PROCTORTURE, vec!["two:600"]),
                // What it has mapped goes with it, and has to be read before.
                (PROCTORTURE, vec!["moved:900"]),
                // So does its file.
                (PROCTORTURE, vec!["memory", "one:900"]),
                (PROCTORTURE, vec!["jit:200"]),
                (PROCTORTURE, vec!["jitfp:200"]),
                (NARROW, vec!["one:600"]),
                // Its stacks are copied for a third of a second, until the BPF programs have its
                // mappings; and copies are short while many wait.
                (PROCTORTURE, vec!["deep:20000,1200"]),
                (PROCTORTURE, vec!["nowhere:100"]),
                (PROCTORTURE, vec!["one:200", "die"]),
                (PROCTORTURE, vec!["space", "say:inside", "one:200"]),
            ])
        })?;
        let the = |index: usize| followed.the(done[index].0);
        let (ordinary, moved, memory, narrow) = (the(0)?, the(1)?, the(2)?, the(5)?);

        judge_function(&followed, ordinary, "burn_two", 600)?;
        let ends = followed.ends(ordinary)?;
        let complete = ends.get("complete").copied().unwrap_or(0) as f64;
        ensure!(
            complete >= 0.97 * ordinary.ticks() as f64,
            "the ordinary one's stacks: {ends:?}, cut at {:?} ms of its life; {}, {}",
            when_cut(ordinary),
            followed.json["losses"],
            followed.json["followed"]
        );

        // The kernel does not report that a mapping moves: it is read where it went once code runs
        // there, and stacks are unwound by it.
        judge_function(&followed, moved, "spin_moved", 900)?;
        let ends = followed.ends(moved)?;
        let complete = ends.get("complete").copied().unwrap_or(0) as f64;
        ensure!(
            complete >= 0.97 * moved.ticks() as f64,
            "stacks from where code moved to: {ends:?}"
        );
        // A process whose stacks have unknown places until its end may have exited when its
        // mappings are read for the last of them: `nowhere` ends about when they would be read a
        // second time. Without the first reading most of the 900 stacks above would have waited in
        // vain.
        let losses = &followed.summary.followed()?.losses;
        let unread = losses["unread_mappings"];
        ensure!(unread < 10, "stacks waited in vain: {losses:?}");
        for index in [3, 4] {
            judge_function(&followed, the(index)?, "<Unknown>", 200)?;
        }
        // Called with a frame pointer, code without a file has its callers.
        let called = the(4)?.functions(None)?;
        let inclusive = called.find("call_made").map_or(0.0, |row| row.values[1]);
        judge(
            &followed,
            &[the(4)?],
            "callers of jitfp",
            200,
            inclusive * 1e9 / followed.interval_ns,
        )?;

        let object = memory
            .main_object()
            .context("the program in memory has a load object")?;
        ensure!(object.starts_with("/memfd:proctorture"), "{object}");
        judge_function(&followed, memory, "burn_one", 900)?;
        judge_function(&followed, narrow, "burn_narrow", 600)?;

        judge_deep(&followed, the(6)?)?;

        judge_function(&followed, the(7)?, "spin_nowhere", 100)?;
        let killed = the(8)?;
        judge_function(&followed, killed, "burn_one", 200)?;
        ensure!(killed.end_ns.is_some(), "{} is not closed", killed.name);

        // By the pid in the initial namespace, not in its own.
        let inside = find_report(&done[9].1, "inside")?.pid;
        ensure!(inside == Pid(1), "it is number {inside} in its namespace");
        let outside = find_report(&done[9].1, "space")?.pid;
        judge_function(&followed, followed.the(outside)?, "burn_one", 200)?;
        followed.lost_nothing()
    })
}

/// Stacks that are deeper than the limit end there, and say so.
fn judge_deep(followed: &Followed, deep: &FollowedProcess) -> Result<()> {
    judge_function(followed, deep, "burn_deep", 1200)?;
    let ends = followed.ends(deep)?;
    let cut = ends.get("depth_limit").copied().unwrap_or(0);
    let (user, _) = deep.user_ticks(|_| true);
    ensure!(
        cut as f64 >= 0.5 * user as f64,
        "of {user} ticks at the bottom: {ends:?}"
    );
    for state_interval in &deep.state_intervals {
        ensure!(
            state_interval.frames <= MAX_FRAMES,
            "{} frames",
            state_interval.frames
        );
        ensure!(
            state_interval.frames < MAX_FRAMES || state_interval.end == StackEnd::Truncated,
            "{state_interval:?}"
        );
    }
    let table = deep.functions(None)?;
    let truncated = table
        .find("<Truncated-stack>")
        .map_or(0.0, |row| row.values[1]);
    ensure!(truncated > 0.5, "<Truncated-stack> {truncated} s");
    Ok(())
}

#[test]
fn root_alone_wrong_unwind_tables_harm_no_other_process() -> Result<()> {
    judge_times(|| {
        let directory = tempfile::tempdir()?;
        let programs = broken_elf::variants(Path::new(PROCTORTURE), directory.path())?;
        let (followed, done, _recorded) = record_all(|| {
            let ordinary = start(PROCTORTURE, &["two:1000"])?;
            let programs: Vec<_> = programs.keys().map(|path| (path, vec!["one:80"])).collect();
            let mut done = in_turn(&programs)?;
            done.splice(0..0, all(vec![ordinary])?);
            Ok(done)
        })?;
        let ordinary = followed.the(done[0].0)?;
        judge_function(&followed, ordinary, "burn_two", 1000)?;
        let ends = followed.ends(ordinary)?;
        let complete = ends.get("complete").copied().unwrap_or(0) as f64;
        ensure!(
            complete >= 0.97 * ordinary.ticks() as f64,
            "the ordinary one's stacks: {ends:?}, cut at {:?} ms of its life; {}, {}",
            when_cut(ordinary),
            followed.json["losses"],
            followed.json["followed"]
        );
        for ((pid, _), (program, what)) in done[1..].iter().zip(&programs) {
            let sub = followed.the(*pid)?;
            let (_, burnt) =
                sub.user_ticks(|object| object.is_some_and(|object| Path::new(object) == program));
            judge(&followed, &[sub], what, 80, burnt as f64)?;
            ensure!(
                sub.state_intervals
                    .iter()
                    .all(|state_interval| state_interval.frames <= MAX_FRAMES),
                "{what}: too deep a stack"
            );
        }
        let peak = followed.json["cost"]["peak_rss_bytes"]
            .as_u64()
            .context("a peak")?;
        ensure!(peak < 256 << 20, "{peak} bytes");
        followed.lost_nothing()
    })
}

/// Returns when the state intervals without a complete stack were, milliseconds since the first.
fn when_cut(sub: &FollowedProcess) -> Vec<u64> {
    let first = sub
        .state_intervals
        .iter()
        .map(|state_interval| state_interval.time_ns)
        .min();
    let cut = sub
        .state_intervals
        .iter()
        .filter(|state_interval| state_interval.end != StackEnd::Complete);
    cut.map(|state_interval| {
        (state_interval.time_ns - first.unwrap_or_default()) / Nanos::from_millis(1)
    })
    .collect()
}

#[test]
fn root_alone_a_container_has_its_own_files_and_numbers() -> Result<()> {
    alone(|| {
        let (host, root) = (tempfile::tempdir()?, tempfile::tempdir()?);
        // Every user may read the container's root, since its own user is `nobody` outside.
        fs::set_permissions(root.path(), fs::Permissions::from_mode(0o755))?;
        let inside = |path: &Path| -> Result<_> { Ok(root.path().join(path.strip_prefix("/")?)) };
        let (fixed, linked) = (host.path().join("fixed"), host.path().join("linked"));
        fs::create_dir_all(inside(host.path())?)?;
        copy_program(INSIDE, inside(&fixed)?)?;
        copy_program(PROCTORTURE, inside(&linked)?)?;
        // The host has other files at these paths.
        copy_program(OUTSIDE, &fixed)?;
        copy_program(OUTSIDE, &linked)?;
        for library in libraries()? {
            let to = inside(Path::new(&library))?;
            fs::create_dir_all(to.parent().context("a library has a directory")?)?;
            fs::copy(&library, to)?;
        }
        let enter = format!("root:{}", root.path().display());
        let (followed, done, _recorded) = record_all(|| {
            let exec = |program: &Path| format!("exec:{}", program.display());
            let actions = |program, rest: &str| {
                vec![
                    enter.clone(),
                    "space".into(),
                    exec(program),
                    rest.to_owned(),
                ]
            };
            in_turn(&[
                (Path::new(PROCTORTURE), actions(&fixed, "one:400")),
                (Path::new(PROCTORTURE), actions(&linked, "two:400")),
                (&fixed, vec!["one:400".to_owned()]),
            ])
        })?;
        let outside = |(_, output): &Done| anyhow::Ok(find_report(output, "space")?.pid);
        let pids = [outside(&done[0])?, outside(&done[1])?, done[2].0];
        let mut names = BTreeSet::new();
        for (pid, function) in pids
            .into_iter()
            .zip(["burn_inside", "burn_two", "burn_outside"])
        {
            let sub = followed.the(pid)?;
            let object = sub
                .main_object()
                .with_context(|| format!("{} has a load object", sub.name))?;
            let (_, ticks) = sub.user_ticks(|found| found == Some(&object));
            judge(
                &followed,
                &[sub],
                &format!("{object} in {}", sub.name),
                400,
                ticks as f64,
            )?;
            judge_function(&followed, sub, function, 400)?;
            let ends = followed.ends(sub)?;
            let complete = ends.get("complete").copied().unwrap_or(0) as f64;
            ensure!(
                complete >= 0.9 * sub.ticks() as f64,
                "{function}: {ends:?} of {}",
                sub.ticks()
            );
            names.insert(object);
        }
        ensure!(
            names.len() == 3,
            "the container's files and the host's are {names:?}"
        );
        Ok(())
    })
}

/// The files that a proctorture maps for execution and that are no part of it: the loader and the C
/// library.
fn libraries() -> Result<BTreeSet<String>> {
    let mut proctorture = start(PROCTORTURE, &["sleep:5000"])?;
    let maps = format!("/proc/{}/maps", proctorture.pid());
    let mut found = BTreeSet::new();
    proctorture.until("its libraries", || {
        let maps = fs::read_to_string(&maps).unwrap_or_default();
        found = maps
            .lines()
            .filter_map(|line| Some(line[line.find('/')?..].to_owned()))
            .filter(|path| path != PROCTORTURE)
            .collect();
        found.iter().any(|path| path.contains("libc"))
    })?;
    // The loader is asked for by the name in the program.
    found.insert("/lib64/ld-linux-x86-64.so.2".to_owned());
    for name in found.clone() {
        if let Some(name) = name.rsplit('/').next() {
            found.insert(format!("/lib/x86_64-linux-gnu/{name}"));
        }
    }
    found.retain(|path| Path::new(path).exists());
    Ok(found)
}
