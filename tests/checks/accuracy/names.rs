//! Every tick has the name that its process had at that moment: across fork and exec, for processes
//! that exited before `/proc` could be read, under hostile names, and for a reused pid.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::sync::mpsc::channel;
use std::thread::spawn;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use experiment_format::ids::Pid;
use experiment_format::log::LogEvent;
use experiment_format::reader::Experiment;
use experiment_format::text::printable;
use nix::sys::prctl::set_name;
use nix::unistd::gettid;
use tests::gprofng::{self, Table};
use tests::kcollect::{FinishedRecording, record};
use tests::machine::{Exclusive, alone, stolen_meanwhile, work_cpu};
use tests::oracle::statistics::Band;
use tests::workload;
use tests::workload::proctorture::{PROCTORTURE, find_report};
use tests::workload::truth::{Truth, spin_for_cpu};

const LIMIT: Duration = Duration::from_secs(40);

#[test]
fn root_alone_children_that_exec_are_named_before_and_after() -> Result<()> {
    alone(|| {
        let (recorded, truth) = run(workload!("spawner"), "2")?;
        let names = user_names(&gprofng::functions(&recorded.experiment()?, None)?);
        let mut as_true = 0;
        for pid in &truth.children {
            for name in names.get(pid).into_iter().flatten() {
                ensure!(
                    ["spawner", "true"].contains(&name.as_str()),
                    "child {pid} of the spawner is called {name}"
                );
                as_true += u32::from(name == "true");
            }
        }
        // Among thousands of children, each about half a millisecond in user mode, many have a tick
        // at an interval of 997 µs.
        ensure!(
            as_true >= 20,
            "{as_true} of {} children were seen as `true`",
            truth.children.len()
        );
        Ok(())
    })
}

#[test]
fn root_alone_processes_of_milliseconds_are_named() -> Result<()> {
    alone(|| {
        let (recorded, truth) = run(workload!("short_lived"), "2")?;
        let interval = gprofng::header(&recorded.experiment()?)?.interval_ns;
        let functions = gprofng::functions(&recorded.experiment()?, None)?;
        let names = user_names(&functions);
        for named in &truth.names {
            let wanted = printable(&named.name);
            for name in names.get(&named.pid).into_iter().flatten() {
                // Between fork and prctl a child has its parent's name.
                ensure!(
                    name == &wanted || name == "short_lived",
                    "{} is called {name}, not {wanted}",
                    named.pid
                );
            }
        }
        let recorded = functions.sum(|function| function.starts_with("<child")) * 1e9 / interval;
        let used_ns: f64 = truth.names.iter().map(|named| named.cpu_ns as f64).sum();
        Band::time(used_ns, truth.wall_ns() as f64, interval)
            .with_edges(stolen_meanwhile()? / interval)
            .judge("children under their own names", recorded)
    })
}

#[test]
fn root_alone_hostile_names_are_distinct_and_harmless() -> Result<()> {
    let _machine = Exclusive::take()?;
    let (recorded, truth) = run(workload!("renamer"), "4.5")?;
    let experiment = recorded.experiment()?;
    judge_names(&recorded, &truth)?;

    // The names are data and nothing else: no file or directory is called after them.
    for entry in std::fs::read_dir(&experiment)? {
        let name = entry?.file_name();
        ensure!(
            !name.as_encoded_bytes().starts_with(b"_"),
            "{name:?} was made in the experiment"
        );
    }
    let output = recorded.finished.stdout.clone() + &recorded.finished.stderr;
    ensure!(
        !output.contains("\x1b[2J"),
        "an escape sequence of a process name went to the terminal:\n{output:?}"
    );
    Ok(())
}

#[test]
fn root_alone_a_reused_pid_has_two_names() -> Result<()> {
    let _machine = Exclusive::take()?;
    let (recorded, truth) = run(workload!("pid_reuse"), "3")?;
    ensure!(
        truth.children[0] == truth.children[1],
        "the workload had no id twice: {truth:?}"
    );
    judge_names(&recorded, &truth)
}

/// A process that only waits is written when it is certain that it is not followed, and by then its
/// pid may have been used again.
#[test]
fn root_alone_a_reused_pid_has_two_names_when_it_is_written_late() -> Result<()> {
    let _machine = Exclusive::take()?;
    // At this interval they hardly have a tick on a CPU, by which they would be followed.
    let options = ["-p", "500", "-F", "on"];
    let recorded = record(&options, &[PROCTORTURE, "doze:1600", "sleep:1600"], LIMIT)?;
    let output = &recorded.finished.stdout;
    let (first, second) = (
        find_report(output, "first")?,
        find_report(output, "second")?,
    );
    ensure!(first.pid == second.pid, "no id was used twice: {output}");
    let experiment = Experiment::open(&recorded.experiment()?)?;
    for named in ["first", "second"] {
        let reported = experiment.events().iter().find_map(|event| match event {
            LogEvent::Thread {
                tid, name, group, ..
            } if *tid == first.pid.leader() && name == named => Some(group),
            _ => None,
        });
        let reported = reported.with_context(|| format!("{named} is not in the founder"))?;
        ensure!(
            *reported == format!("{named}, pid {}", first.pid),
            "{named} is of {reported:?}"
        );
    }
    Ok(())
}

fn run(program: &str, seconds: &str) -> Result<(FinishedRecording, Truth)> {
    let cpu = work_cpu()?.to_string();
    let recorded = record(&["-p", "hi", "-x", "off"], &[program, seconds, &cpu], LIMIT)?;
    let truth = recorded.truth()?;
    Ok((recorded, truth))
}

/// Checks that every name of the truth has its CPU time.
fn judge_names(recorded: &FinishedRecording, truth: &Truth) -> Result<()> {
    let experiment = recorded.experiment()?;
    let interval = gprofng::header(&experiment)?.interval_ns;
    let functions = gprofng::functions(&experiment, None)?;
    for named in &truth.names {
        let function = format!("<{}_PID_{}>", printable(&named.name), named.pid);
        // A name that was set again is another function of that name.
        let ticks = functions.sum(|name| name == function) * 1e9 / interval;
        Band::time(
            named.cpu_ns as f64,
            (named.until_ns - named.since_ns) as f64,
            interval,
        )
        // The kernel's part of that time is not under the name: some ticks are spent in interrupts.
        .with_edges(0.02 * named.cpu_ns as f64 / interval)
        .with_edges(stolen_meanwhile()? / interval)
        .judge(&function, ticks)
        .map_err(|error| error.context(format!("{:?}", user_names(&functions).get(&named.pid))))?;
    }
    Ok(())
}

/// Returns the names of all functions `<NAME_PID_pid>`, by process.
fn user_names(functions: &Table) -> BTreeMap<Pid, BTreeSet<String>> {
    let mut names: BTreeMap<Pid, BTreeSet<String>> = BTreeMap::new();
    for row in functions.things() {
        let inner = row
            .name
            .strip_prefix('<')
            .and_then(|name| name.strip_suffix('>'));
        if let Some((name, pid)) = inner.and_then(|inner| inner.rsplit_once("_PID_"))
            && let Ok(pid) = pid.parse()
        {
            names.entry(pid).or_default().insert(name.to_owned());
        }
    }
    names
}

/// gprofng shows threads by their real ids, their own names and their processes, kernel threads
/// too. A thread that changed its name has the last one.
#[test]
fn root_alone_threads_are_shown_by_name() -> Result<()> {
    alone(|| {
        let (reported, tids) = channel();
        let spinners: Vec<_> = ["kc-alpha", "kc beta<&>"]
            .into_iter()
            .map(|name| {
                let reported = reported.clone();
                spawn(move || -> Result<()> {
                    reported.send((gettid().as_raw(), name))?;
                    spin_for_cpu(300_000_000)?;
                    set_name(&CString::new(name)?)?;
                    spin_for_cpu(700_000_000)
                })
            })
            .collect();
        let recorded = record(&["-p", "hi", "-t", "1"], &[], Duration::from_secs(20));
        for spinner in spinners {
            spinner.join().ok().context("a spinner died")??;
        }
        let recorded = recorded?;
        let threads = gprofng::script(
            &["metrics e.total:name", "threads"],
            &recorded.experiment()?,
        )?;
        let text = threads.content()?.text;
        let own = std::process::id();
        for (tid, name) in tids.try_iter() {
            let label = format!("Thread {tid}, JThread ");
            let row = text.lines().find(|line| line.contains(&label));
            let row = row.with_context(|| format!("no thread {tid} in:\n{text}"))?;
            ensure!(
                row.contains(&format!("'{name}'")) && row.contains(&format!("pid {own}'")),
                "{name}, {tid}: {row}"
            );
        }
        ensure!(
            text.contains("'kthreadd', Group 'kthreadd, pid 2'"),
            "no thread of the kernel by name:\n{text}"
        );
        ensure!(
            !text.contains("JVM-System"),
            "a thread without a name:\n{text}"
        );
        Ok(())
    })
}
