//! `storm SECONDS CPU KIND`: does one thing that a profiler records, as often as it can.
//!
//! * `turns`: maps its own program for execution and unmaps it again: each is an event, and none
//!   has a stack in it;
//! * `mappings`: the same, and leaves it mapped until no more can be;
//! * `files`: maps a new file with a long name, and leaves it mapped;
//! * `processes`: starts a process, which ends at once;
//! * `execs`: starts a process that replaces its program again and again, with an argument of 120
//!   KiB and an environment of nearly 1 MiB;
//! * `threads`: starts a thread, which ends at once;
//! * `names`: gives itself another name;
//! * `functions`: writes a line into its perf map.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::num::NonZeroUsize;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::thread;

use anyhow::{Context as _, Result, anyhow, bail};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use nix::sys::prctl::set_name;
use tests::workload::truth::{Work, variant};

const PAGE: NonZeroUsize = NonZeroUsize::new(4096).expect("a page has bytes");

/// The argument that makes the program exit at once.
const NOTHING: &str = "nothing";

/// The argument that makes the program execute itself as often as the next argument says.
const AGAIN: &str = "again";

/// How often a process replaces its program.
const EXECS: u64 = 400;

/// The length of a string for exec; the kernel accepts 128 KiB.
const LONG_STRING: usize = 120 << 10;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    match arguments.next().as_deref() {
        Some(NOTHING) => return Ok(()),
        Some(AGAIN) => return execute_again(&arguments.next().context("a number")?),
        _ => {}
    }
    let work = Work::start("storm")?;
    let done = match variant()?.as_str() {
        "turns" => mappings(&work, false),
        "mappings" => mappings(&work, true),
        "files" => files(&work),
        "processes" => repeat(&work, |_| {
            Command::new("/proc/self/exe").arg(NOTHING).status()?;
            Ok(())
        }),
        "execs" => execs(&work),
        "threads" => repeat(&work, |_| {
            let thread = thread::spawn(|| ());
            thread.join().map_err(|_| anyhow!("a thread panicked"))
        }),
        "names" => repeat(&work, |number| {
            Ok(set_name(&CString::new(format!("n{number}"))?)?)
        }),
        "functions" => functions(&work),
        other => bail!("no kind {other:?}"),
    };
    work.end(done?)
}

/// Repeats something until the time is over, and returns how often it was done.
fn repeat(work: &Work, mut once: impl FnMut(u64) -> Result<()>) -> Result<u64> {
    let mut count = 0;
    while !work.over()? {
        for _ in 0..16 {
            once(count)?;
            count += 1;
        }
    }
    Ok(count)
}

/// Maps a page of a file for execution.
fn map(file: &File, number: i64) -> nix::Result<std::ptr::NonNull<std::ffi::c_void>> {
    let access = ProtFlags::PROT_READ | ProtFlags::PROT_EXEC;
    // SAFETY: the kernel chooses a place where nothing is.
    unsafe {
        mmap(
            None,
            PAGE,
            access,
            MapFlags::MAP_PRIVATE,
            file,
            number * PAGE.get() as i64,
        )
    }
}

fn mappings(work: &Work, keep: bool) -> Result<u64> {
    let program = File::open("/proc/self/exe")?;
    let mut kept = Vec::new();
    let mut round = 0;
    repeat(work, |_| {
        let page = map(&program, round);
        if keep && let Ok(page) = page {
            kept.push(page);
            // Between two mappings of one file there is something else, or they would be one.
            let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_ANONYMOUS;
            // SAFETY: as above.
            let other = unsafe { mmap_anonymous(None, PAGE, ProtFlags::empty(), flags) };
            kept.extend(other);
            return Ok(());
        }
        // Beyond the system's limit there are no more, so all begins again, with another page: the
        // same one at the same place would be no change.
        round = (round + 1) % 8;
        for page in kept.drain(..).chain(page) {
            // SAFETY: nothing refers to the page.
            unsafe { munmap(page, PAGE.get()) }?;
        }
        Ok(())
    })
}

fn execs(work: &Work) -> Result<u64> {
    let long = "x".repeat(LONG_STRING);
    let mut count = 0;
    while !work.over()? {
        let environment = (0..8).map(|number| (format!("STORM_{number}"), &long));
        again(EXECS).envs(environment).status()?;
        count += EXECS;
    }
    Ok(count)
}

fn execute_again(left: &str) -> Result<()> {
    match left.parse::<u64>()?.checked_sub(1) {
        Some(left) => Err(again(left).exec().into()),
        None => Ok(()),
    }
}

fn again(left: u64) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.args([AGAIN, &left.to_string(), &"x".repeat(LONG_STRING)]);
    command
}

fn files(work: &Work) -> Result<u64> {
    // On a disk that others use there are few in a second.
    let in_memory = Path::new("/dev/shm");
    let directory = if can_map(in_memory) {
        in_memory
    } else {
        Path::new("/tmp")
    };
    let directory = directory.join(format!("storm-{}", std::process::id()));
    fs::create_dir(&directory).context("a directory")?;
    let done = repeat(work, |number| one_file(&directory, number));
    fs::remove_dir(&directory)?;
    done
}

/// Returns whether new files in a directory can be mapped for execution.
fn can_map(directory: &Path) -> bool {
    let path = directory.join(format!("storm-{}", std::process::id()));
    let mapped = File::create_new(&path).and_then(|file| {
        file.set_len(PAGE.get() as u64)?;
        Ok(map(&File::open(&path)?, 0)?)
    });
    let _ = fs::remove_file(&path);
    mapped.is_ok()
}

fn one_file(directory: &Path, number: u64) -> Result<()> {
    let path = directory.join(format!("{number:0>230}"));
    let file = File::create_new(&path)?;
    file.set_len(PAGE.get() as u64)?;
    let file = File::open(&path)?;
    // As above.
    let _ = map(&file, 0);
    Ok(fs::remove_file(&path)?)
}

fn functions(work: &Work) -> Result<u64> {
    // Without memory that can be executed, there is no function to be looked for.
    let modes = ProtFlags::PROT_READ | ProtFlags::PROT_EXEC;
    // SAFETY: the kernel chooses a place where nothing is.
    unsafe { mmap_anonymous(None, PAGE, modes, MapFlags::MAP_PRIVATE)? };
    let path = format!("/tmp/perf-{}.map", std::process::id());
    let mut map = BufWriter::new(File::create(&path)?);
    let done = repeat(work, |number| {
        let address = 0x7000_0000_0000 + number * 64;
        Ok(writeln!(map, "{address:x} 40 function_{number:0>200}")?)
    });
    drop(map);
    fs::remove_file(&path)?;
    done
}
