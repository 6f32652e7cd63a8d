//! The summary of a recording names the process that causes a problem of the machine, and the
//! reason for its waits. Its tables are the same as `kcollect report`'s.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use experiment_format::reader::Experiment;
use tests::command::run;
use tests::kcollect::{FinishedRecording, record, run_in};
use tests::machine::disturbance::{judge_times, not_judged};
use tests::machine::{Exclusive, Shared, cgroup, work_cpu};
use tests::workload;

const LIMIT: Duration = Duration::from_secs(40);

/// Returns the lines of a table of the summary.
fn table(recorded: &FinishedRecording, title: &str) -> Result<Vec<String>> {
    table_in(&recorded.finished.stdout, title)
}

/// Returns the lines of a table in a text, from its title to the empty line after its rows.
fn table_in(text: &str, title: &str) -> Result<Vec<String>> {
    let lines = || text.lines().skip_while(|line| !line.starts_with(title));
    ensure!(lines().count() > 2, "no table {title:?} in\n{text}");
    let rows = lines().skip(2).take_while(|line| !line.is_empty());
    Ok(rows.map(str::to_owned).collect())
}

#[test]
fn root_alone_a_quota_leads_the_summary_by_name() -> Result<()> {
    if let Err(error) = cgroup::possible() {
        not_judged(format_args!(
            "no control group with a quota can be made: {error:#}"
        ));
        return Ok(());
    }
    judge_times(a_quota_leads_the_summary_by_name)
}

fn a_quota_leads_the_summary_by_name() -> Result<()> {
    let cpu = work_cpu()?.to_string();
    let recorded = record(&["-p", "on"], &[workload!("throttled"), "3", &cpu], LIMIT)?;
    let rows = table(&recorded, "Processes")?;
    // Another check of this program waits for the machine meanwhile, and suffers.
    let mut processes = rows.iter().skip(1);
    let first = processes.find(|row| !row.contains(" reports-"));
    let first = first.context("no process")?;
    ensure!(
        first.contains(" throttled ")
            && first.contains("throttled 2.") | first.contains("throttled 1."),
        "{rows:#?}"
    );
    let next = recorded
        .finished
        .stdout
        .contains("--process throttled calltree");
    ensure!(next, "{}", recorded.finished.stdout);
    Ok(())
}

#[test]
fn root_alone_a_loop_of_processes_is_one_row_of_the_summary() -> Result<()> {
    let _machine = Exclusive::take()?;
    let script = "i=0; while [ $i -lt 1500 ]; do /bin/true; i=$((i+1)); done";
    let recorded = record(&["-p", "on"], &["/bin/sh", "-c", script], LIMIT)?;
    let rows = table(&recorded, "Processes")?;
    let row = rows.iter().take(5).find(|row| row.contains(" true ("));
    let row = row.with_context(|| format!("{rows:#?}"))?;
    let count = row.split(" true (").nth(1).unwrap_or_default();
    let count: u64 = count.split(' ').next().unwrap_or_default().parse()?;
    // The shell's own children are called `sh` until they execute the program.
    ensure!((1450..=1500).contains(&count), "{row}");
    let own = |row: &String| row.contains("kcollect");
    ensure!(!rows.iter().any(own), "{rows:#?}");
    let pid = Experiment::open(&recorded.experiment()?)?.header().pid;
    let line = recorded.finished.stdout.contains(&format!("PID {pid}"));
    ensure!(line, "{pid}: {}", recorded.finished.stdout);
    Ok(())
}

#[test]
fn root_alone_a_wait_for_a_lock_has_its_process_and_caller() -> Result<()> {
    judge_times(a_wait_for_a_lock_has_its_process_and_caller)
}

fn a_wait_for_a_lock_has_its_process_and_caller() -> Result<()> {
    let cpu = work_cpu()?.to_string();
    let load = [workload!("state_lock"), "3", &cpu, "mutex"];
    let options = ["-p", "on", "-F", "=state_lock"];
    let recorded = record(&options, &load, LIMIT)?;
    let rows = table(&recorded, "Where threads waited")?;
    // Other processes may wait longer, so this row need not be the first.
    let parts = [" lock ", " state_lock ", "futex", "state_lock::want_mutex"];
    ensure!(
        rows.iter()
            .any(|row| parts.iter().all(|part| row.contains(part))),
        "{rows:#?}"
    );
    // The report of the same experiment has the same table.
    let report = run_in(recorded.directory(), &["report"], LIMIT)?.succeeded()?;
    let reported = table_in(&report.stdout, "Where threads waited")?;
    ensure!(
        rows == reported,
        "{rows:#?} in the summary, {reported:#?} in the report"
    );
    Ok(())
}

/// The source of a program whose own functions are all inlined into its runtime's functions. Its
/// second thread waits for a lock.
const PARKED: &str = "
use std::sync::Mutex;
use std::time::Duration;

static LOCK: Mutex<()> = Mutex::new(());

#[inline(always)]
fn critical_section() {
    drop(LOCK.lock());
}

fn main() {
    let held = LOCK.lock();
    let waiting = std::thread::spawn(|| critical_section());
    std::thread::sleep(Duration::from_secs(3));
    drop(held);
    let _ = waiting.join();
}
";

#[test]
fn root_a_wait_in_an_inlined_function_has_its_caller() -> Result<()> {
    let _machine = Shared::take()?;
    let directory = tempfile::tempdir()?;
    let source = directory.path().join("parked.rs");
    let program = directory.path().join("parked_inlined");
    std::fs::write(&source, PARKED)?;
    let mut rustc = Command::new("rustc");
    rustc.args(["-g", "-C", "opt-level=3", "--edition", "2024", "-o"]);
    run(rustc.arg(&program).arg(&source), LIMIT)?.succeeded()?;
    let program = program.to_str().context("no text")?;
    let recorded = record(&["-p", "on", "-F", "=parked_inlined"], &[program], LIMIT)?;
    // Not the summary, whose rows cover the whole machine: other checks run at the same time.
    let report = ["report", "--process", "parked_inlined"];
    let report = run_in(recorded.directory(), &report, LIMIT)?.succeeded()?;
    let rows = table_in(&report.stdout, "Where threads waited")?;
    let own = |row: &&String| row.contains(" lock ") && row.contains(" parked_inlined ");
    ensure!(
        rows.iter()
            .filter(own)
            .any(|row| row.contains("parked::critical_section")),
        "{rows:#?}"
    );
    Ok(())
}
