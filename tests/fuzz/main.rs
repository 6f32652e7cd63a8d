//! Fuzz tests: on any bytes, every reader ends soon, without a panic, and returns no more than the
//! bytes can hold.
//!
//! Each target ([`targets`]) reads its corpus, the files of `corpora/NAME`: recorded input, and
//! inputs that once failed. Then it reads random mutations of them, always in the same order, for
//! two seconds or for `KCOLLECT_FUZZ_SECONDS`. `make fuzz` runs libFuzzer instead
//! ([`guided`](../guided.rs)), for any time; the inputs that it finds are added to a corpus.
//!
//! An input that fails is kept in a file, which the message names.

mod mutate;
mod targets;

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::time::{ClockId, clock_gettime};
use tests::random::SplitMix;

use targets::{TARGETS, Target};

const SECONDS_VARIABLE: &str = "KCOLLECT_FUZZ_SECONDS";
const DEFAULT_SECONDS: f64 = 2.0;

/// The CPU time that an input may take. More means that the time grows faster than the size of the
/// input. The time spent waiting for a CPU does not count.
const MAX_CPU_TIME: Duration = Duration::from_secs(5);

#[test]
fn log() -> Result<()> {
    fuzz("log")
}

#[test]
fn map() -> Result<()> {
    fuzz("map")
}

#[test]
fn packets() -> Result<()> {
    fuzz("packets")
}

#[test]
fn stacks() -> Result<()> {
    fuzz("stacks")
}

#[test]
fn usage() -> Result<()> {
    fuzz("usage")
}

#[test]
fn functions() -> Result<()> {
    fuzz("functions")
}

#[test]
fn elf() -> Result<()> {
    fuzz("elf")
}

#[test]
fn archive() -> Result<()> {
    fuzz("archive")
}

#[test]
fn frames() -> Result<()> {
    fuzz("frames")
}

#[test]
fn go() -> Result<()> {
    fuzz("go")
}

#[test]
fn perf_map() -> Result<()> {
    fuzz("perf_map")
}

#[test]
fn jitdump() -> Result<()> {
    fuzz("jitdump")
}

#[test]
fn sideband() -> Result<()> {
    fuzz("sideband")
}

#[test]
fn records() -> Result<()> {
    fuzz("records")
}

#[test]
fn facts() -> Result<()> {
    fuzz("facts")
}

#[test]
fn every_target_has_a_corpus_and_every_corpus_a_target() -> Result<()> {
    let mut known: Vec<_> = TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
    known.sort();
    let mut found = Vec::new();
    for entry in fs::read_dir(corpora())? {
        found.push(entry?.file_name().to_string_lossy().into_owned());
    }
    found.sort();
    ensure!(known == found, "targets {known:?}, corpora {found:?}");
    Ok(())
}

fn corpora() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpora")
}

fn fuzz(name: &str) -> Result<()> {
    let target = targets::target(name).context("no such target")?;
    let directory = corpora().join(name);
    let mut paths = Vec::new();
    for entry in fs::read_dir(&directory).with_context(|| directory.display().to_string())? {
        paths.push(entry?.path());
    }
    paths.sort();
    let mut corpus = Vec::new();
    for path in paths {
        corpus.push(fs::read(path)?);
    }
    ensure!(!corpus.is_empty(), "{} is empty", directory.display());
    for bytes in corpus.iter().map(Vec::as_slice).chain([&[][..]]) {
        attempt(name, target, bytes)?;
    }

    let seconds =
        std::env::var(SECONDS_VARIABLE).map_or(Ok(DEFAULT_SECONDS), |seconds| seconds.parse())?;
    let start = Instant::now();
    let mut random = SplitMix(
        name.bytes()
            .fold(0, |seed, byte| seed << 8 | u64::from(byte)),
    );
    let mut inputs = 0_u64;
    while start.elapsed().as_secs_f64() < seconds {
        attempt(name, target, &mutate::mutated(&corpus, &mut random))?;
        inputs += 1;
    }
    println!("{name}: {} files, {inputs} inputs", corpus.len());
    Ok(())
}

/// Returns the CPU time of this thread so far.
fn thread_cpu_time() -> Result<Duration> {
    Ok(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?.into())
}

/// Runs a target once.
fn attempt(name: &str, target: Target, bytes: &[u8]) -> Result<()> {
    let start = thread_cpu_time()?;
    let done = catch_unwind(AssertUnwindSafe(|| target(bytes)));
    let took = thread_cpu_time()?.saturating_sub(start);
    if done.is_ok() && took < MAX_CPU_TIME {
        return Ok(());
    }
    let path = std::env::temp_dir().join(format!("kcollect-fuzz-{name}"));
    fs::write(&path, bytes)?;
    let outcome = if done.is_ok() {
        "took"
    } else {
        "panicked after"
    };
    bail!("{name} {outcome} {took:?} on {}", path.display());
}
