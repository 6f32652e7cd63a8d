//! A process whose first thread has exited: most of its directory in `/proc` is empty, and is read
//! from another thread's.

use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use tests::command::{Running, run};
use tests::experiment::followed::Followed;
use tests::kcollect::{Recording, command, experiment_in, record};
use tests::machine::{Exclusive, Shared};
use tests::workload::proctorture::SWAPPED;

const LIMIT: Duration = Duration::from_secs(60);
/// The program (`workloads/leaderless.c`).
const LEADERLESS: &str = env!("LEADERLESS_PROGRAM");
/// The size of its blocks.
const BLOCK_BYTES: u64 = 12_345;

/// Makes the file that the program reads.
fn file_to_read() -> Result<tempfile::NamedTempFile> {
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), [b'x'; 16])?;
    Ok(file)
}

/// Checks the stacks, the names and the program of the only process that is followed.
fn judge_stacks(followed: &Followed) -> Result<()> {
    let sub = followed.subs.first().context("none is followed")?;
    ensure!(sub.name.contains("leaderless"), "{}", sub.name);
    let table = sub.functions(None)?;
    let seconds = |name: &str, value: usize| {
        let row = table.find(name);
        row.map_or(0.0, |row| row.values[value])
    };
    let total = table.total()?;
    let (hot, late) = (seconds("hot_worker", 0), seconds("leaf_one", 0));
    ensure!(
        hot > 0.05 * total && late > 0.05 * total && hot + late > 0.9 * total,
        "hot_worker {hot} s, leaf_one {late} s of {total} s: {table:?}"
    );
    let outermost = seconds("start_thread", 1);
    ensure!(
        outermost > 0.97 * (hot + late),
        "start_thread {outermost} s of {hot} s and {late} s"
    );
    let facts = std::fs::read_to_string(sub.path.join("log.xml"))?;
    ensure!(facts.contains(LEADERLESS), "no program: {facts}");
    Ok(())
}

/// Returns a view's rows.
fn rows(followed: &Followed, view: &str) -> Result<Vec<Value>> {
    let mut report = command(["report".as_ref(), followed.founder.as_os_str()])?;
    let text = run(report.args([view, "--json"]), LIMIT)?
        .succeeded()?
        .stdout;
    let table: Value = serde_json::from_str(&text)?;
    Ok(table["rows"].as_array().context("no rows")?.clone())
}

/// Checks that the file that the process reads has its name and the right number of reads.
fn judge_reads(followed: &Followed, file: &str, rounds: u64) -> Result<()> {
    let files = rows(followed, "files")?;
    let reads = files.iter().find(|row| row["file"] == file);
    ensure!(
        reads.and_then(|row| row["ioreadcnt"].as_u64()) >= Some(rounds),
        "no {rounds} reads of {file}: {files:?}"
    );
    Ok(())
}

#[test]
fn root_alone_a_process_without_its_first_thread_is_read_from_another() -> Result<()> {
    // With another such process, probes would be set in another way.
    let _machine = Exclusive::take()?;
    let file = file_to_read()?;
    let path = file.path().to_str().context("a path that is text")?;
    let load = [LEADERLESS, SWAPPED[0], path, "2000"];
    let traced = ["-p", "hi", "-F", "load", "-i", "on", "-H", "all"];
    let recorded = record(&traced, &load, LIMIT)?;
    let rounds = rounds_of(&recorded.finished.stdout)?;
    let followed = Followed::read(&recorded)?;
    judge_stacks(&followed)?;
    judge_reads(&followed, path, rounds)?;
    let bytes = allocated(&followed);
    ensure!(
        bytes >= rounds * BLOCK_BYTES,
        "{bytes} bytes allocated in {rounds} rounds"
    );
    Ok(())
}

/// The first thread has exited before the recording begins.
#[test]
fn root_alone_a_process_that_had_lost_its_first_thread_is_found() -> Result<()> {
    // Other recordings would set their probes in another way.
    let _machine = Exclusive::take()?;
    let file = file_to_read()?;
    let path = file.path().to_str().context("a path that is text")?;
    let mut program = Command::new(LEADERLESS);
    program.args([SWAPPED[0], path, "20000"]);
    let running = Running::start(&mut program, LIMIT)?;
    sleep(Duration::from_millis(500));
    let only = format!("={}", running.pid());
    let options = ["-p", "hi", "-i", "on", "-H", "all", "-F", &only];
    let mut recording = Recording::start(options, LIMIT)?;
    recording.until_running()?;
    sleep(Duration::from_secs(1));
    let recorded = recording.stop()?;
    let followed = Followed::read(&recorded)?;
    drop(running);
    let blocks = allocated(&followed) / BLOCK_BYTES;
    ensure!(blocks >= 10, "{blocks} blocks in a second");
    judge_stacks(&followed)?;
    judge_reads(&followed, path, 10)
}

/// Where the kernel has no probes for calls and returns together, they go with the thread by which
/// they were set, and are set by another one.
#[test]
fn root_probes_do_not_go_with_the_first_thread() -> Result<()> {
    let _machine = Shared::take()?;
    let file = file_to_read()?;
    let path = file.path().to_str().context("a path that is text")?;
    let directory = tempfile::TempDir::new()?;
    let traced = ["-p", "on", "-F", "load", "-H", "all", "--"];
    let load = [LEADERLESS, SWAPPED[0], path, "3000"];
    let mut kcollect = command([&traced[..], &load].concat())?;
    kcollect
        .env("KCOLLECT_WITHOUT", "uprobe-session")
        .current_dir(directory.path());
    let output = run(&mut kcollect, LIMIT)?.succeeded()?.stdout;
    let rounds = rounds_of(&output)?;
    let experiment = experiment_in(directory.path())?;
    let summary = std::fs::read_to_string(experiment.join("kcollect.json"))?;
    let summary: Value = serde_json::from_str(&summary)?;
    let bytes = summary["allocations"]["allocated_bytes"].as_u64();
    ensure!(
        bytes >= Some(rounds * BLOCK_BYTES * 7 / 10),
        "{bytes:?} bytes allocated in {rounds} rounds"
    );
    Ok(())
}

/// Returns how often the program read and allocated.
fn rounds_of(output: &str) -> Result<u64> {
    let rounds = output.lines().find_map(|line| line.strip_prefix("rounds "));
    Ok(rounds.context("no rounds")?.parse()?)
}

/// Returns the bytes of all blocks that were recorded.
fn allocated(followed: &Followed) -> u64 {
    let bytes = &followed.json["allocations"]["allocated_bytes"];
    bytes.as_u64().unwrap_or_default()
}
