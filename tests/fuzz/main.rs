//! Fuzz tests: on any bytes, every reader ends soon, within bounded memory and without a panic, and
//! returns no more than the bytes can hold.
//!
//! Each target ([`targets`]) reads its corpus, the files of `corpora/NAME`: recorded input, and
//! inputs that once failed. Then it reads random mutations of them, always in the same order, for
//! two seconds or for `KCOLLECT_FUZZ_SECONDS`. `make fuzz` runs libFuzzer instead
//! ([`guided`](../guided.rs)), for any time; the inputs that it finds are added to a corpus.
//!
//! The first input that fails in each way is kept in a file, which the message names.

mod memory;
mod mutate;
mod targets;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, Once, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::time::{ClockId, clock_gettime};
use tests::random::SplitMix;

use targets::{TARGETS, Target};

const SECONDS_VARIABLE: &str = "KCOLLECT_FUZZ_SECONDS";
const DEFAULT_SECONDS: f64 = 2.0;

/// The CPU time that an input may take. More means that the time grows faster than the size of the
/// input. The time spent waiting for a CPU does not count.
const MAX_CPU_TIME: Duration = Duration::from_secs(5);
/// The memory that an input may take, in bytes, with what other tests take at that time.
const MAX_MEMORY_BYTES: usize = 1 << 30;

/// Makes a test of each target.
macro_rules! tests_of {
    ($($name:ident)*) => {
        $(
            #[test]
            fn $name() -> Result<()> {
                fuzz(stringify!($name))
            }
        )*
        const TESTED: &[&str] = &[$(stringify!($name)),*];
    };
}

tests_of! {
    log map packed packets stacks usage dynamic_code functions directory elf archive frames go
    perf_map jitdump sideband records facts names
}

#[test]
fn every_target_has_a_test_and_a_corpus() -> Result<()> {
    let mut known: Vec<_> = TARGETS.iter().map(|(name, _)| *name).collect();
    known.sort_unstable();
    let mut tested = TESTED.to_vec();
    tested.sort_unstable();
    ensure!(known == tested, "targets {known:?}, tests {tested:?}");
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

/// What has panicked, with its place, in any thread. Readers catch panics of libraries.
static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());
static HOOK: Once = Once::new();

fn panics() -> Vec<String> {
    let mut panics = PANICS.lock().unwrap_or_else(PoisonError::into_inner);
    std::mem::take(&mut panics)
}

fn fuzz(name: &str) -> Result<()> {
    HOOK.call_once(|| {
        std::panic::set_hook(Box::new(|panic| {
            let mut panics = PANICS.lock().unwrap_or_else(PoisonError::into_inner);
            panics.push(panic.to_string());
        }));
    });
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

    let mut failures = BTreeMap::new();
    let mut attempt = |bytes: &[u8]| -> Result<()> {
        if let Some(failure) = attempt(target, bytes)? {
            let next = failures.len();
            if let Entry::Vacant(new) = failures.entry(failure) {
                let path = std::env::temp_dir().join(format!("kcollect-fuzz-{name}-{next}"));
                fs::write(&path, bytes)?;
                new.insert(path);
            }
        }
        Ok(())
    };
    for bytes in corpus.iter().map(Vec::as_slice).chain([&[][..]]) {
        attempt(bytes)?;
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
        attempt(&mutate::mutated(&corpus, &mut random))?;
        inputs += 1;
    }
    println!("{name}: {} files, {inputs} inputs", corpus.len());
    let failures: Vec<_> = failures
        .iter()
        .map(|(failure, path)| format!("{name} {failure} on {}", path.display()))
        .collect();
    ensure!(failures.is_empty(), "{}", failures.join("\n"));
    Ok(())
}

/// Returns the CPU time of this thread so far.
fn thread_cpu_time() -> Result<Duration> {
    Ok(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?.into())
}

/// Runs a target once. Returns how it failed, in the same words for the same place.
fn attempt(target: Target, bytes: &[u8]) -> Result<Option<String>> {
    drop(panics());
    let start = thread_cpu_time()?;
    let held = memory::begin();
    let done = catch_unwind(AssertUnwindSafe(|| target(bytes)));
    let took = thread_cpu_time()?.saturating_sub(start);
    let grown = memory::highest().saturating_sub(held);
    let panics = panics();
    Ok(if done.is_err() || !panics.is_empty() {
        Some(panics.join("; "))
    } else if took > MAX_CPU_TIME {
        Some("took more time than it may".to_owned())
    } else if grown > MAX_MEMORY_BYTES {
        Some("took more memory than it may".to_owned())
    } else {
        None
    })
}
