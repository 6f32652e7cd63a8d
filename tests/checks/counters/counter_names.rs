//! Names of counters have the encodings that perf has for them, and the kernel accepts these.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use counters::names::CounterError;
use counters::names::event::PerfEvent;
use counters::perf::probe;
use host::Root;
use tempfile::TempDir;
use tests::command::{copy_program, run};
use tests::kcollect::{binary, command};
use tests::machine::Shared;

const LIMIT: Duration = Duration::from_secs(20);

/// The sysfs of other machines, and how perf 6.1 encoded names there.
const TREES: [(&str, &str); 2] = [
    (
        "skylake",
        include_str!("../../../kcollect/counters/tests/counters/skylake.txt"),
    ),
    (
        "zen3",
        include_str!("../../../kcollect/counters/tests/counters/zen3.txt"),
    ),
];
const ENCODINGS: &str = include_str!("../../../kcollect/counters/tests/counters/encodings.txt");

/// The lines of `perf_event_attr` that say what is counted, as perf prints them, and as
/// `encodings.txt` has them.
const COUNTED_BY: [(&str, &str); 9] = [
    ("config", "config"),
    ("{ bp_addr, config1 }", "config1"),
    ("{ bp_len, config2 }", "config2"),
    ("config3", "config3"),
    ("bp_type", "bp_type"),
    ("precise_ip", "precise_ip"),
    ("exclude_user", "exclude_user"),
    ("exclude_kernel", "exclude_kernel"),
    ("exclude_hv", "exclude_hv"),
];

/// Makes a directory that stands in for `/sys/bus/event_source/devices`.
fn devices(tree: &str) -> Result<TempDir> {
    let directory = tempfile::tempdir()?;
    for line in tree.lines().filter(|line| !line.starts_with(['#', '/'])) {
        let (path, text) = line.split_once(": ").context("a line without a colon")?;
        let path = directory.path().join(path);
        fs::create_dir_all(path.parent().context("no directory")?)?;
        fs::write(path, format!("{text}\n"))?;
    }
    Ok(directory)
}

/// Returns how perf encodes an event on a machine with these PMUs.
fn perfs(devices: &Path, event: &str) -> Result<BTreeSet<String>> {
    let mut perf = Command::new("unshare");
    perf.args(["--mount", "--propagation", "private", "sh", "-c"])
        .arg("mount --bind \"$1\" /sys/bus/event_source/devices && exec perf stat -vv -e \"$2\" true 2>&1")
        .arg("sh")
        .arg(devices)
        .arg(event);
    // The kernel refuses most of them afterwards.
    let output = run(&mut perf, LIMIT)?.stdout;
    let mut encodings = BTreeSet::new();
    for attr in output.split("perf_event_attr:\n").skip(1) {
        let lines = attr.lines().take_while(|line| !line.starts_with("---"));
        // Newer ones say names in parentheses after numbers.
        let fields: BTreeMap<&str, &str> = lines
            .filter_map(|line| line.trim().split_once("  "))
            .filter_map(|(name, value)| Some((name.trim(), value.split_whitespace().next()?)))
            .collect();
        let mut encoding = format!("type={}", fields.get("type").unwrap_or(&"0"));
        for (theirs, ours) in COUNTED_BY {
            match fields.get(theirs) {
                Some(value) => encoding.push_str(&format!(" {ours}={value}")),
                None if ours == "config" => encoding.push_str(" config=0"),
                None => {}
            }
        }
        encodings.insert(encoding);
    }
    ensure!(!encodings.is_empty(), "{event}: {output}");
    Ok(encodings)
}

#[test]
fn root_perf_encodes_names_as_recorded() -> Result<()> {
    let _machine = Shared::take()?;
    let mut compared = 0;
    for (name, tree) in TREES {
        let devices = devices(tree)?;
        let mut recorded: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
        for line in ENCODINGS.lines() {
            if let [of, event, encoding] = line.split(" | ").collect::<Vec<_>>()[..]
                && of == name
            {
                recorded
                    .entry(event)
                    .or_default()
                    .insert(encoding.to_owned());
            }
        }
        for (event, recorded) in recorded {
            let perfs = perfs(devices.path(), event)?;
            ensure!(
                perfs == recorded,
                "{event} on {name}: {perfs:?}, recorded {recorded:?}"
            );
            compared += 1;
        }
    }
    ensure!(compared > 60, "{compared}");
    Ok(())
}

fn one(text: &str) -> Result<PerfEvent> {
    let mut events = counters::names::parse_events(text, &Root::machine())?;
    ensure!(events.len() == 1, "{text}: {events:?}");
    events.pop().context("no event")
}

#[test]
fn root_the_kernel_accepts_its_own_events() -> Result<()> {
    let _machine = Shared::take()?;
    let aligned = 0u64;
    let here = &raw const aligned as usize;
    let breakpoint = format!("mem:{here:#x}/8:w");
    for text in [
        "task-clock",
        "page-faults:u",
        "context-switches",
        "migrations",
        "sched:sched_switch",
        "raw_syscalls:sys_enter",
        &breakpoint,
    ] {
        let event = one(text)?;
        ensure!(probe::exists(&event.encoding), "{event:?}");
    }
    for text in ["1:99", &format!("mem:{here:#x}/3:w")] {
        let event = one(text)?;
        ensure!(!probe::exists(&event.encoding), "{event:?}");
    }
    Ok(())
}

#[test]
fn root_tracepoints_are_numbered_without_a_mount() -> Result<()> {
    let _machine = Shared::take()?;
    let mounts = || fs::read_to_string("/proc/self/mountinfo");
    let before = mounts()?;
    let event = one("sched:sched_switch")?;
    ensure!(mounts()? == before, "something was mounted");
    let mut kernel = Command::new("unshare");
    kernel
        .args(["--mount", "--propagation", "private", "sh", "-c"])
        .arg("mount -t tracefs tracefs /mnt && cat /mnt/events/sched/sched_switch/id");
    let id: u64 = run(&mut kernel, LIMIT)?
        .succeeded()?
        .stdout
        .trim()
        .parse()?;
    ensure!(
        (event.encoding.kind, event.encoding.config) == (2, id),
        "{event:?}, but {id}"
    );
    match counters::names::parse_requests("sched:sched_swich", &Root::machine()) {
        Err(CounterError::NoEvent { nearest, .. }) => {
            ensure!(
                nearest
                    .first()
                    .is_some_and(|name| name == "sched:sched_switch"),
                "{nearest:?}"
            );
        }
        other => bail!("{other:?}"),
    }
    Ok(())
}

#[test]
fn root_a_symbol_of_the_kernel_is_an_address() -> Result<()> {
    let _machine = Shared::take()?;
    let symbols = fs::read_to_string("/proc/kallsyms")?;
    let line = symbols.lines().find(|line| line.ends_with(" T schedule"));
    let address = line
        .and_then(|line| line.split(' ').next())
        .context("no schedule")?;
    let event = one("mem:schedule:x")?;
    ensure!(
        event.encoding.config1 == u64::from_str_radix(address, 16)?,
        "{event:?}"
    );
    Ok(())
}

#[test]
fn root_an_unprivileged_user_reads_what_to_do() -> Result<()> {
    let _machine = Shared::take()?;
    // A copy, since other users may not enter the directory of the build.
    let directory = tempfile::tempdir()?;
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755))?;
    let program = directory.path().join("kcollect");
    copy_program(binary()?, &program)?;
    let unprivileged = |event: &str| {
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
            .arg(&program)
            .args(["-h", event]);
        run(command.current_dir(directory.path()), LIMIT)
    };
    for event in ["sched:sched_switch", "mem:schedule:x"] {
        let finished = unprivileged(event)?;
        ensure!([69, 77].contains(&finished.code()), "{finished}");
        ensure!(
            finished.stderr.contains("sudo"),
            "no hint is named: {finished}"
        );
    }
    let finished = unprivileged("pagefaults")?;
    ensure!(
        finished.code() == 64 && finished.stderr.contains("page-faults"),
        "{finished}"
    );
    Ok(())
}

#[test]
fn root_the_list_names_what_there_is() -> Result<()> {
    let _machine = Shared::take()?;
    let text = run(&mut command(["-h"])?, LIMIT)?.succeeded()?.stdout;
    for name in ["page-faults", "task-clock", "mem:0xADDRESS"] {
        ensure!(text.contains(name), "{name} is missing:\n{text}");
    }
    let json = run(&mut command(["-h", "--json"])?, LIMIT)?
        .succeeded()?
        .stdout;
    let json: serde_json::Value = serde_json::from_str(&json)?;
    ensure!(
        json["tracepoints"]
            .as_array()
            .is_some_and(|names| names.len() > 100),
        "{json:#}"
    );
    ensure!(
        json["software"]
            .as_array()
            .is_some_and(|events| events.len() >= 8),
        "{json:#}"
    );
    Ok(())
}
