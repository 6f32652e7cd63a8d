//! Return probes of others replace return addresses by a trampoline's. User stacks lead on to the
//! true callers: in those that the BPF programs unwind and in copies of the stack.

use std::ffi::CString;
use std::fs;
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use object::{Object as _, ObjectSegment as _, ObjectSymbol as _};
use perf_event_open_sys::bindings as sys;
use tests::command::copy_program;
use tests::experiment::followed::Followed;
use tests::kcollect::Recording;
use tests::machine::Shared;
use tests::workload::proctorture::{PROCTORTURE, finish, pid, start};

/// How many copies of the program run at the same time.
const COPIES: u64 = 16;
const LIMIT: Duration = Duration::from_secs(60);

/// The event source of probes in user programs.
const SOURCE: &str = "/sys/bus/event_source/devices/uprobe";

/// Returns where a function begins in a file.
fn offset_in(program: &Path, function: &str) -> Result<u64> {
    let bytes = fs::read(program)?;
    let file = object::File::parse(&*bytes)?;
    let symbol = file.symbols().find(|symbol| symbol.name() == Ok(function));
    let address = symbol.with_context(|| format!("no {function}"))?.address();
    let within = |segment: &object::Segment<'_, '_>| {
        (segment.address()..segment.address() + segment.size()).contains(&address)
    };
    let segment = file.segments().find(within).context("in no segment")?;
    Ok(segment.file_range().0 + address - segment.address())
}

/// Puts a return probe on a function, in all processes, until the result is dropped.
fn return_probe(program: &Path, function: &str) -> Result<OwnedFd> {
    let number = |file: &str| -> Result<String> {
        let path = format!("{SOURCE}/{file}");
        Ok(fs::read_to_string(&path).context(path)?.trim().to_owned())
    };
    let bit = number("format/retprobe")?;
    let bit: u32 = bit.strip_prefix("config:").context("no bit")?.parse()?;
    let path = CString::new(program.as_os_str().as_bytes())?;
    let mut attr = sys::perf_event_attr {
        type_: number("type")?.parse()?,
        size: size_of::<sys::perf_event_attr>() as u32,
        config: 1 << bit,
        ..Default::default()
    };
    attr.__bindgen_anon_3.uprobe_path = path.as_ptr().expose_provenance() as u64;
    attr.__bindgen_anon_4.probe_offset = offset_in(program, function)?;
    // SAFETY: attributes of the size they name, and a path, that live as long as the call.
    let fd = unsafe { perf_event_open_sys::perf_event_open(&raw mut attr, -1, 0, -1, 0) };
    ensure!(fd >= 0, "{function}: {}", std::io::Error::last_os_error());
    // SAFETY: a new descriptor, which nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[test]
fn root_return_probes_hide_no_caller() -> Result<()> {
    let _machine = Shared::take()?;
    // Stacks of a file are copied until its table is there, which is soon: so there are many files.
    let directory = tempfile::tempdir()?;
    let mut programs = vec![PathBuf::from(PROCTORTURE)];
    for number in 0..COPIES {
        let copy = directory.path().join(format!("proctorture{number}"));
        copy_program(PROCTORTURE, &copy)?;
        programs.push(copy);
    }
    let mut probes = Vec::new();
    for program in &programs {
        for function in ["call_one", "burn_one", "dig"] {
            probes.push(return_probe(program, function)?);
        }
    }

    let mut recording = Recording::start(["-p", "hi", "-F", "=proctorture[0-9]*"], LIMIT)?;
    recording.until_running()?;
    std::thread::sleep(Duration::from_millis(200));
    for program in &programs[1..] {
        finish(vec![start(program, &["deep:40,50"])?])?;
    }
    let running = vec![
        start(PROCTORTURE, &["one:1200"])?,
        start(PROCTORTURE, &["deep:40,1200"])?,
    ];
    let pids: Vec<_> = running.iter().map(pid).collect();
    finish(running)?;
    std::thread::sleep(Duration::from_millis(150));
    let recorded = recording.stop()?;
    let followed = Followed::read(&recorded)?;

    let unwound = &followed.json["followed"]["unwound"];
    for kind in ["in_kernel", "from_copies"] {
        ensure!(unwound[kind].as_u64() > Some(COPIES), "{unwound}");
    }
    let (mut all, mut complete) = (0, 0);
    for sub in &followed.subs {
        all += sub.ticks();
        complete += followed.ends(sub)?.get("complete").copied().unwrap_or(0);
    }
    ensure!(
        complete as f64 >= 0.97 * all as f64,
        "{complete} of {all} are complete; {unwound}"
    );
    for pid in pids {
        let sub = followed.the(pid)?;
        let ends = followed.ends(sub)?;
        let complete = ends.get("complete").copied().unwrap_or(0) as f64;
        ensure!(
            complete >= 0.97 * sub.ticks() as f64,
            "{}: {ends:?}",
            sub.name
        );
        // The callers of what is probed have its time.
        let table = sub.functions(None)?;
        let inclusive = |name: &str| table.find(name).map_or(0.0, |row| row.values[1]);
        let [probed, caller] = if inclusive("burn_deep") > 0.0 {
            ["burn_deep", "main"]
        } else {
            ["burn_one", "main"]
        };
        ensure!(
            inclusive(probed) > 0.5 && inclusive(caller) >= 0.97 * inclusive(probed),
            "{}: {probed} {} s, {caller} {} s",
            sub.name,
            inclusive(probed),
            inclusive(caller)
        );
    }
    Ok(())
}
