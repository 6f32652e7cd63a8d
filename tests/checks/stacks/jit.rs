//! JIT functions have their names and their shares of time, in stacks that go through them.
//!
//! A workload generates code and announces it in both ways, in a perf map and in a jitdump. node,
//! java and CPython are tried if they are installed; if one is not, a line says so.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use experiment_format::ids::Pid;
use serde_json::Value;
use tests::command::{Finished, run};
use tests::experiment::interval_ns;
use tests::gprofng::{Table, script};
use tests::kcollect::{FinishedRecording, command, record};
use tests::machine::Shared;
use tests::machine::disturbance::judge_times;
use tests::machine::{stolen_meanwhile, work_cpu};
use tests::oracle::statistics::Band;
use tests::workload;

const LIMIT: Duration = Duration::from_secs(60);

#[test]
fn root_alone_jit_code_has_its_names() -> Result<()> {
    judge_times(|| {
        for way in ["map", "dump", "forked-map", "forked-dump"] {
            judge_jit(way).with_context(|| format!("announced in a {way}"))?;
        }
        Ok(())
    })
}

/// Code in a file that is mapped is code of its process, whatever the file is, and keeps its names
/// when its protection changes.
#[test]
fn root_alone_jit_code_in_files_has_its_names() -> Result<()> {
    judge_times(|| {
        for way in ["file", "deleted", "shared", "memfd"] {
            judge_jit(way).with_context(|| format!("in a file: {way}"))?;
        }
        Ok(())
    })
}

/// Where a function is both in a perf map and in a jitdump, it has the name of the dump; others
/// have the map's names.
#[test]
fn root_jit_code_in_a_map_and_a_dump_is_named_once() -> Result<()> {
    let _machine = Shared::take()?;
    let cpu = work_cpu()?.to_string();
    let load = [workload!("jit_code"), "2", &cpu, "both"];
    let recorded = record_load(&["-p", "hi", "-F", "on"], &load)?;
    let part = format!("PID_{}.", recorded.truth()?.pid);
    let (functions, _) = functions_of(&recorded, &part)?;
    let total = functions.total()?;
    let loops = ["dumped_a", "dumped_b", "made_c"].map(|name| functions.get(name));
    ensure!(
        loops.iter().sum::<f64>() > 0.9 * total && loops.iter().all(|own| *own > 0.0),
        "{loops:?} of {total} s in the loops: {functions:?}"
    );
    for twice in ["made_a", "made_b", "made_caller"] {
        ensure!(
            functions.find(twice).is_none_or(|row| row.values[1] == 0.0),
            "{twice} is in the dump by another name: {functions:?}"
        );
    }
    Ok(())
}

fn judge_jit(way: &str) -> Result<()> {
    let cpu = work_cpu()?.to_string();
    let load = [workload!("jit_code"), "3", &cpu, way];
    let recorded = record_load(&["-p", "hi", "-F", "on"], &load)?;
    let (functions, interval) =
        functions_of(&recorded, &format!("PID_{}.", recorded.truth()?.pid))?;
    let own = |name: &str| functions.get(name) * 1e9 / interval;
    let all: f64 = ["made_a", "made_b", "made_c"].map(own).iter().sum();
    let total = functions.total()? * 1e9 / interval;
    ensure!(
        all > 0.9 * total && total > 200.0,
        "{all} of {total} ticks in the loops: {functions:?}"
    );
    for (name, share) in [("made_a", 0.6), ("made_b", 0.2), ("made_c", 0.2)] {
        // Stolen time is not spread evenly over them: it comes in large pieces.
        Band::of(all, share)
            .with_edges(stolen_meanwhile()? / interval)
            .judge(name, own(name))?;
    }
    // A function between a loop and `main` has the time of its callees, and `main` has all.
    let with_callees = |name: &str| {
        functions
            .find(name)
            .map_or(0.0, |row| row.values[1] * 1e9 / interval)
    };
    for (name, share) in [
        ("made_caller", 0.8),
        ("made_trampoline", 0.2),
        ("main", 1.0),
    ] {
        // The first ticks' stacks are copied, without the text that shows how a trampoline returns.
        Band::of(all, share)
            .with_edges(0.1 * all + stolen_meanwhile()? / interval)
            .judge(name, with_callees(name))?;
    }
    ensure!(
        functions.find("never").is_none(),
        "a function in a file's mapping got its name from a perf map"
    );
    ensure!(
        functions.find("later").is_none(),
        "a child has a function that its parent made after the fork"
    );
    Ok(())
}

/// If a map is too long to be written, the functions that run are written, though they come last,
/// and the summary says what was left out.
#[test]
fn root_functions_that_run_are_named_before_others() -> Result<()> {
    let _machine = Shared::take()?;
    let cpu = work_cpu()?.to_string();
    let load = [workload!("jit_code"), "2", &cpu, "many"];
    let recorded = record_load(&["-p", "hi", "-F", "on"], &load)?;
    let (functions, _) = functions_of(&recorded, &format!("PID_{}.", recorded.truth()?.pid))?;
    let loops = ["made_a", "made_b", "made_c"].map(|name| functions.get(name));
    let nameless = functions.get("<Unknown>");
    ensure!(
        loops.iter().all(|seconds| *seconds > 0.0),
        "{loops:?} s in the loops: {functions:?}"
    );
    ensure!(
        nameless <= 0.02 * loops.iter().sum::<f64>(),
        "{nameless} s without a name: {functions:?}"
    );
    let text = fs::read_to_string(recorded.experiment()?.join("kcollect.json"))?;
    let summary: Value = serde_json::from_str(&text)?;
    let rows = summary["followed"]["processes"].as_array();
    let mut unused = rows
        .into_iter()
        .flatten()
        .map(|row| &row["unused_functions"]);
    ensure!(unused.any(|count| count.as_u64() > Some(0)), "{text}");
    Ok(())
}

/// JIT code that calls on a stack of its own, as Erlang's does, has its callers there, and below
/// these the outermost function of the thread.
#[test]
fn root_code_on_a_stack_of_its_own_has_its_callers() -> Result<()> {
    let _machine = Shared::take()?;
    let cpu = work_cpu()?.to_string();
    let load = [workload!("jit_code"), "2", &cpu, "own-stack"];
    let recorded = record_load(&["-p", "hi", "-F", "on"], &load)?;
    let part = format!("PID_{}.", recorded.truth()?.pid);
    let (functions, interval) = functions_of(&recorded, &part)?;
    let ticks = |name: &str, value: usize| {
        let row = functions.find(name);
        row.map_or(0.0, |row| row.values[value] * 1e9 / interval)
    };
    let own = ticks("made_d", 0);
    ensure!(own > 200.0, "{own} ticks in the loop: {functions:?}");
    for caller in ["made_trampoline", "made_switch", "start_thread"] {
        let inclusive = ticks(caller, 1);
        // The thread begins and ends outside of this code.
        ensure!(
            inclusive > 0.97 * own && inclusive < 1.05 * own,
            "{caller} has {inclusive} ticks of {own}: {functions:?}"
        );
    }
    Ok(())
}

/// The instructions of `made_a`, as GNU's tools and ours write them.
const MADE_A: [&str; 6] = [
    "push %rbp",
    "mov %rsp,%rbp",
    "dec %rdi",
    "jne",
    "pop %rbp",
    "ret",
];

#[test]
fn root_jit_code_has_its_instructions() -> Result<()> {
    let _machine = Shared::take()?;
    for way in ["map", "dump"] {
        let recorded = record_code(way, &["-A", "on"])?;
        let founder = recorded.experiment()?;
        let (functions, left_out) = recorded_code(&founder, recorded.truth()?.pid)?;
        ensure!(
            (functions, left_out) == (7, 0),
            "{way}: code of {functions} functions, {left_out} left out"
        );
        let rows = rows_of(disassembled(&founder)?)?;
        let instructions: Vec<_> = rows
            .iter()
            .filter_map(|row| row["instruction"].as_str())
            .map(words)
            .collect();
        is_made_a(&instructions).with_context(|| format!("report, {way}"))?;
        ensure!(
            instructions[3].ends_with("<made_a+0x4>"),
            "{instructions:?}"
        );
        let theirs = script(&["metrics e.user:name", "disasm made_a 1"], &founder)?.text;
        let instructions: Vec<_> = theirs
            .lines()
            .filter_map(|line| line.rsplit_once(":  "))
            .map(|(_, instruction)| words(instruction))
            .collect();
        is_made_a(&instructions).with_context(|| format!("gprofng, {way}: {theirs}"))?;
        // The loop has nearly all of the time; and functions that were made at the same offsets
        // have none of it. How much there is depends on what else runs: fifty ticks are enough.
        let seconds = |row: &Value| row["e.totalcpu"].as_f64().unwrap_or(0.0);
        let all: f64 = rows.iter().map(seconds).sum();
        let in_loop: f64 = rows[2..4].iter().map(seconds).sum();
        ensure!(
            all > 0.05 && in_loop > 0.95 * all,
            "{in_loop} of {all} s: {rows:#?}"
        );
        let functions = report(
            &founder,
            &["functions", "-m", "e.totalcpu:name", "-n", "50"],
        )?;
        let functions = rows_of(functions)?;
        let made_a = functions.iter().find(|row| row["name"] == "made_a");
        let own = made_a.map_or(0.0, seconds);
        ensure!(
            (own - all).abs() < 1e-3,
            "{all} s by instruction, {own} s by function"
        );
    }
    Ok(())
}

fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn is_made_a(instructions: &[String]) -> Result<()> {
    let same = instructions
        .iter()
        .zip(MADE_A)
        .all(|(found, made)| found.starts_with(made));
    ensure!(
        same && instructions.len() == MADE_A.len(),
        "{instructions:?}"
    );
    Ok(())
}

#[test]
fn root_code_is_not_recorded_without_archives() -> Result<()> {
    let _machine = Shared::take()?;
    let founder = record_code("dump", &["-A", "off"])?;
    let refused = disassembled(&founder.experiment()?)?;
    ensure!(
        refused.status.code() == Some(66) && refused.stderr.contains("-A on"),
        "{refused}"
    );
    Ok(())
}

/// kcollect does not wait for a page that its process has to supply and does not (userfaultfd): the
/// code of that function is left out, and the others' is there.
#[test]
fn root_code_that_its_process_withholds_is_left_out() -> Result<()> {
    let _machine = Shared::take()?;
    let begun = Instant::now();
    let recorded = record_code("withheld", &["-A", "on"])?;
    let elapsed = begun.elapsed();
    let code = recorded_code(&recorded.experiment()?, recorded.truth()?.pid)?;
    ensure!(code == (7, 1), "functions with code and without: {code:?}");
    ensure!(elapsed < LIMIT / 2, "it took {elapsed:?}");
    Ok(())
}

/// Records a load, and removes the map of its code that it leaves: another process may get its
/// number.
fn record_load(options: &[&str], load: &[&str]) -> Result<FinishedRecording> {
    let recorded = record(options, load, LIMIT)?;
    let _ = fs::remove_file(format!("/tmp/perf-{}.map", recorded.truth()?.pid));
    Ok(recorded)
}

fn record_code(way: &str, args: &[&str]) -> Result<FinishedRecording> {
    let cpu = work_cpu()?.to_string();
    let load = [workload!("jit_code"), "2", &cpu, way];
    // The load alone: other checks run the same program at the same time, and stock gprofng would
    // show the first of several functions of a name.
    record_load(&[&["-p", "hi", "-F", "load"], args].concat(), &load)
}

fn disassembled(founder: &Path) -> Result<Finished> {
    report(founder, &["disasm", "made_a"])
}

fn report(founder: &Path, args: &[&str]) -> Result<Finished> {
    let mut report = command(["report".as_ref(), founder.as_os_str()])?;
    run(report.args(args).arg("--json"), LIMIT)
}

fn rows_of(report: Finished) -> Result<Vec<Value>> {
    let table: Value = serde_json::from_str(&report.succeeded()?.stdout)?;
    let rows = table["rows"].as_array().context("no rows")?;
    Ok(rows.clone())
}

/// Returns the number of functions of a process whose code is in the experiment, and of those whose
/// code is not.
fn recorded_code(founder: &Path, pid: Pid) -> Result<(u64, u64)> {
    let text = std::fs::read_to_string(founder.join("kcollect.json"))?;
    let summary: Value = serde_json::from_str(&text)?;
    let processes = summary["followed"]["processes"]
        .as_array()
        .context("none followed")?;
    let jit = processes
        .iter()
        .find(|process| process["pid"] == pid.0)
        .with_context(|| format!("{pid} was not followed"))?;
    let count = |name: &str| {
        jit["jit"][name]
            .as_u64()
            .with_context(|| format!("no {name}: {jit}"))
    };
    Ok((count("code_functions")?, count("code_left_out")?))
}

/// For how long the programs below loop.
const LOOP: Duration = Duration::from_secs(4);

/// The same loop under two names, for a time that each measures, in one of three runtimes. It
/// prints the share of the first.
const NODE: &str = "
function hot(n) { let x = 1; for (let i = 0; i < n; i++) x = (x * 7 + i) % 1000003; return x; }
function cold(n) { let x = 1; for (let i = 0; i < n; i++) x = (x * 7 + i) % 1000003; return x; }
const spent = [0n, 0n], end = Date.now() + 4000;
let sum = 0;
while (Date.now() < end) {
  let t = process.hrtime.bigint(); sum += hot(3e6); spent[0] += process.hrtime.bigint() - t;
  t = process.hrtime.bigint(); sum += cold(1e6); spent[1] += process.hrtime.bigint() - t;
}
console.log('SHARE ' + Number(spent[0]) / Number(spent[0] + spent[1]));
";

const JAVA: &str = "
public class Shares {
    static int hot(int n) { int x = 1; for (int i = 0; i < n; i++) x = (x * 7 + i) % 1000003; return x; }
    static int cold(int n) { int x = 1; for (int i = 0; i < n; i++) x = (x * 7 + i) % 1000003; return x; }
    public static void main(String[] words) {
        long end = System.nanoTime() + 4000000000L, hot = 0, cold = 0; int sum = 0;
        while (System.nanoTime() < end) {
            long t = System.nanoTime(); sum += hot(3000000); hot += System.nanoTime() - t;
            t = System.nanoTime(); sum += cold(1000000); cold += System.nanoTime() - t;
        }
        System.out.println(sum); System.out.println(\"SHARE \" + (double) hot / (hot + cold));
    }
}
";

const PYTHON: &str = "
import time
def hot(n):
    x = 1
    for i in range(n): x = (x * 7 + i) % 1000003
    return x
def cold(n):
    x = 1
    for i in range(n): x = (x * 7 + i) % 1000003
    return x
end, spent = time.monotonic() + 4, [0, 0]
while time.monotonic() < end:
    t = time.monotonic(); hot(60000); spent[0] += time.monotonic() - t
    t = time.monotonic(); cold(20000); spent[1] += time.monotonic() - t
print('SHARE', spent[0] / sum(spent))
";

#[test]
fn root_alone_functions_of_node() -> Result<()> {
    let Some(node) = installed("node") else {
        println!("skipped: node is not installed");
        return Ok(());
    };
    let (_directory, path) = source("shares.js", NODE)?;
    // Functions that were inlined have no name.
    let load = [
        node.as_os_str(),
        "--perf-basic-prof".as_ref(),
        "--no-turbo-inlining".as_ref(),
        path.as_os_str(),
    ];
    shares(&load, "_node_", |name, function| {
        name.contains(&format!("{function} ")) && name.contains("shares.js")
    })
}

#[test]
fn root_alone_functions_of_java() -> Result<()> {
    let Some(java) = installed("java") else {
        println!("skipped: java is not installed");
        return Ok(());
    };
    let (_directory, path) = source("Shares.java", JAVA)?;
    let load = [
        java.as_os_str(),
        "-XX:+PreserveFramePointer".as_ref(),
        "-XX:+UnlockDiagnosticVMOptions".as_ref(),
        "-XX:+DumpPerfMapAtExit".as_ref(),
        "-XX:CompileCommand=quiet".as_ref(),
        "-XX:CompileCommand=dontinline,Shares::*".as_ref(),
        path.as_os_str(),
    ];
    shares(&load, "_java_", |name, function| {
        name.contains(&format!("Shares.{function}("))
            || name.contains(&format!("Shares::{function}("))
    })
}

#[test]
fn root_alone_functions_of_python() -> Result<()> {
    let Some(python) = python()? else {
        println!("skipped: no python3 is installed that has -X perf (3.12 or later)");
        return Ok(());
    };
    let (_directory, path) = source("shares.py", PYTHON)?;
    let load = [
        python.as_os_str(),
        "-X".as_ref(),
        "perf".as_ref(),
        path.as_os_str(),
    ];
    shares(&load, "_python3", |name, function| {
        name.starts_with(&format!("py::{function}:"))
    })
}

/// Records it, and judges the share of `hot` of both functions by what the program says of itself;
/// `is` returns whether a function of the experiment is one of the program's.
fn shares(load: &[&OsStr], experiment: &str, is: impl Fn(&str, &str) -> bool) -> Result<()> {
    judge_times(|| {
        let args: Vec<_> = load.iter().filter_map(|word| word.to_str()).collect();
        let recorded = record(&["-p", "hi", "-F", "on"], &args, LIMIT)?;
        let output = &recorded.finished.stdout;
        let truth: f64 = output
            .lines()
            .find_map(|line| line.strip_prefix("SHARE "))
            .with_context(|| output.clone())?
            .parse()?;
        let (functions, interval) = functions_of(&recorded, experiment)?;
        // An interpreter's functions have no instructions of their own.
        let ticks = |function: &str| {
            let rows = functions.things().filter(|row| is(&row.name, function));
            rows.map(|row| row.values[1]).sum::<f64>() * 1e9 / interval
        };
        let (hot, cold) = (ticks("hot"), ticks("cold"));
        // Not of the process's time: what a runtime needs to start is its own affair.
        let all = LOOP.as_nanos() as f64 / interval;
        ensure!(
            hot + cold > 0.9 * all,
            "hot {hot}, cold {cold} ticks of {all}: {:#?}",
            functions.rows.iter().take(40).collect::<Vec<_>>()
        );
        // The time that it measured includes its preemptions, and the first rounds, which had no
        // name.
        Band::of(hot + cold, truth)
            .with_edges(0.03 * (hot + cold) + stolen_meanwhile()? / interval)
            .judge("hot", hot)
    })
}

/// Returns the functions of the one subexperiment whose name has this in it, with user time
/// exclusive and inclusive, seconds; and the interval, nanoseconds.
fn functions_of(recorded: &FinishedRecording, part: &str) -> Result<(Table, f64)> {
    let founder = recorded.experiment()?;
    let mut found = Vec::new();
    for entry in std::fs::read_dir(&founder)? {
        let path = entry?.path();
        let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
        if name.starts_with('_') && name.contains(part) {
            found.push(path);
        }
    }
    ensure!(found.len() == 1, "subexperiments with {part:?}: {found:?}");
    let commands = ["metrics e.user:i.user:name", "functions"];
    // Whether it finds all files is another check's.
    let functions = script(&commands, &found[0])?.table(2);
    Ok((functions, interval_ns(&founder)?))
}

fn source(name: &str, text: &str) -> Result<(tempfile::TempDir, PathBuf)> {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join(name);
    std::fs::write(&path, text)?;
    Ok((directory, path))
}

fn installed(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let found = std::env::split_paths(&path).map(|directory| directory.join(program));
    let usual = Path::new("/usr/bin").join(program);
    found.chain([usual]).find(|path| path.is_file())
}

/// Returns the path of a CPython with perf trampolines, if there is one.
fn python() -> Result<Option<PathBuf>> {
    const ASK: &str = "import sys; sys.activate_stack_trampoline('perf'); print(sys.executable)";
    let names = ["python3", "python3.12", "python3.13", "python3.14"];
    for python in names.iter().filter_map(|name| installed(name)) {
        let asked = run(Command::new(&python).args(["-c", ASK]), LIMIT)?;
        if asked.status.success() {
            return Ok(Some(asked.stdout.trim().into()));
        }
    }
    Ok(None)
}
