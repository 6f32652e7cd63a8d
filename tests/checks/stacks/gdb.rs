//! Stacks that are called complete are gdb's, frame by frame: of installed programs that wait for
//! their input, so that both see the same stack.

use std::collections::BTreeMap;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use experiment_format::reader::Experiment;
use experiment_format::stacks::StackEnd;
use tests::command::run;
use tests::experiment::followed::Followed;
use tests::kcollect::Recording;
use tests::machine::Shared;

const LIMIT: Duration = Duration::from_secs(60);
/// The lowest address of code.
const FIRST_CODE: u64 = 4096;
/// Programs that wait for their input, as far as they are installed.
const PROGRAMS: &[&[&str]] = &[
    &["cat"],
    &["sed", "p"],
    &["grep", "x"],
    &["sort"],
    &["tr", "a", "b"],
    &["cut", "-c1"],
    &["uniq"],
    &["wc"],
    &["od"],
    &["tee"],
    &["tail"],
    &["head"],
    &["md5sum"],
    &["gzip", "-c"],
    &["bzip2", "-c"],
    &["xz", "-c"],
    &["zstd", "-c"],
    &["xargs", "echo"],
    &["bash"],
    &["dash"],
    &["mawk", "1"],
    &["gawk", "1"],
    &["perl", "-ne", "1"],
    &["python3", "-c", "input()"],
    &["node", "-e", "require('fs').readSync(0, Buffer.alloc(1))"],
    &["ruby", "-e", "gets"],
    &["php", "-r", "fgets(STDIN);"],
    &["sqlite3"],
    &["openssl", "dgst"],
    &["bc"],
    &["ed"],
    &["make", "-f", "-"],
    &["tar", "-tf", "-"],
    &["git", "hash-object", "--stdin"],
    &["jq", "."],
    &["tclsh"],
    &["m4"],
    &["clang", "-xc", "-E", "-"],
    &["as", "-o", "/dev/null", "-"],
    &["java", "-version", "-"],
];
/// Prints each frame's pc. Inlined functions, and functions that jumped to another one, have no
/// frame on the stack.
const PRINT_FRAMES: &str = "\
python
import gdb
for thread in gdb.selected_inferior().threads():
    thread.switch()
    frame, pcs = gdb.newest_frame(), []
    while frame:
        if frame.type() not in (gdb.INLINE_FRAME, gdb.TAILCALL_FRAME):
            pcs.append('%x' % frame.pc())
        frame = frame.older()
    print('stack', thread.ptid[1], ','.join(pcs))
end
";

/// A program that waits until it is dropped.
struct Waiting(Child);

impl Drop for Waiting {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts those that are installed.
fn start() -> Result<Vec<Waiting>> {
    let mut waiting = Vec::new();
    for program in PROGRAMS {
        let mut command = Command::new(program[0]);
        command.args(&program[1..]).stdin(Stdio::piped());
        match command.stdout(Stdio::null()).stderr(Stdio::null()).spawn() {
            Ok(child) => waiting.push(Waiting(child)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(waiting)
}

/// Returns the last stack of each thread, and whether it is complete; without the kernel's frames.
fn stacks(followed: &Followed) -> Result<BTreeMap<u64, (Vec<u64>, bool)>> {
    let mut last = BTreeMap::new();
    for sub in &followed.subs {
        let experiment = Experiment::open(&sub.path)?;
        let stacks = experiment.stacks()?;
        for tick in experiment.ticks()? {
            let tick = tick?;
            let Some(stack) = tick.stack.and_then(|uid| stacks.get(uid)) else {
                continue;
            };
            let frames = stack.frames.into_iter().filter(|frame| frame >> 63 == 0);
            last.insert(
                tick.thread,
                (frames.collect(), stack.end == StackEnd::Complete),
            );
        }
    }
    Ok(last)
}

/// Returns gdb's stacks of a process, by thread.
fn gdb(pid: u32, script: &str) -> Result<BTreeMap<u64, Vec<u64>>> {
    let mut command = Command::new("gdb");
    command.args(["-nx", "-batch", "-iex", "set debuginfod enabled off"]);
    command.args([
        "-iex",
        "set auto-load off",
        "-ex",
        "set backtrace past-main on",
    ]);
    command.args(["-p", &pid.to_string(), "-x", script]);
    let output = run(&mut command, LIMIT)?.stdout;
    let mut stacks = BTreeMap::new();
    for line in output
        .lines()
        .filter_map(|line| line.strip_prefix("stack "))
    {
        let (tid, pcs) = line.split_once(' ').context("a line without frames")?;
        let pcs = pcs.split(',').map(|pc| u64::from_str_radix(pc, 16));
        stacks.insert(tid.parse()?, pcs.collect::<Result<_, _>>()?);
    }
    Ok(stacks)
}

/// Whether two stacks are the same. Ours has callers inside their call, and gdb's the return
/// address; where a function was interrupted, both have the instruction.
fn is_same(ours: &[u64], theirs: &[u64]) -> bool {
    let same = |(ours, theirs): (&u64, &u64)| ours == theirs || ours + 1 == *theirs;
    ours.len() == theirs.len() && ours.iter().zip(theirs).all(same)
}

#[test]
fn root_complete_stacks_are_those_of_gdb() -> Result<()> {
    let _machine = Shared::take()?;
    if Command::new("gdb").arg("--version").output().is_err() {
        println!("not judged: no gdb");
        return Ok(());
    }
    let waiting = start()?;
    sleep(Duration::from_secs(2));
    let pids: Vec<u32> = waiting.iter().map(|waiting| waiting.0.id()).collect();
    let only: Vec<String> = pids.iter().map(ToString::to_string).collect();
    let mut recording =
        Recording::start(["-p", "hi", "-F", &format!("=({})", only.join("|"))], LIMIT)?;
    recording.until_running()?;
    sleep(Duration::from_millis(500));
    let recorded = recording.stop()?;
    let ours = stacks(&Followed::read(&recorded)?)?;
    let script = tempfile::NamedTempFile::new()?;
    std::fs::write(script.path(), PRINT_FRAMES)?;
    let script = script.path().to_str().context("a path that is text")?;
    let (mut complete, mut other, mut unjudged, mut wrong) = (0, 0, 0, Vec::new());
    let both = pids.split_at(pids.len() / 2);
    let of =
        |pids: &[u32]| -> Result<Vec<_>> { pids.iter().map(|pid| gdb(*pid, script)).collect() };
    let theirs = std::thread::scope(|scope| -> Result<_> {
        let first = scope.spawn(|| of(both.0));
        let second = of(both.1)?;
        let first = first
            .join()
            .map_err(|_| anyhow!("gdb's thread panicked"))??;
        Ok([first, second].concat())
    })?;
    for stacks in theirs {
        for (tid, theirs) in stacks {
            match ours.get(&tid) {
                // gdb does not find the callers of code without tables, such as V8's.
                _ if theirs.iter().any(|pc| *pc < FIRST_CODE) => unjudged += 1,
                Some((frames, true)) if is_same(frames, &theirs) => complete += 1,
                Some((frames, true)) => wrong.push(format!("{tid}: {frames:x?}, gdb {theirs:x?}")),
                _ => other += 1,
            }
        }
    }
    println!(
        "{} programs: {complete} stacks, {other} not complete, {unjudged} that gdb cannot unwind, {wrong:#?}",
        pids.len()
    );
    ensure!(
        complete > pids.len() / 2,
        "{complete} stacks are complete, {other} not"
    );
    ensure!(wrong.is_empty(), "{wrong:#?}");
    Ok(())
}
