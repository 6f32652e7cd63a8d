//! kcollect holds what it needs and no more, in every thread, once it records; its load has exactly
//! what kcollect was started with; and five capabilities are enough, without root.

use std::collections::BTreeSet;
use std::fs::{self, DirEntry, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::unistd::Pid;
use tempfile::TempDir;
use tests::command::{Running, copy_program, run};
use tests::experiment::opened::opened;
use tests::kcollect::{binary, experiment_in};
use tests::machine::Shared;

const LIMIT: Duration = Duration::from_secs(30);

/// A user and a group without any rights.
const NOBODY: u32 = 65534;

// Numbers of linux/capability.h.
const CHOWN: u32 = 0;
const DAC_OVERRIDE: u32 = 1;
const DAC_READ_SEARCH: u32 = 2;
const FOWNER: u32 = 3;
const IPC_LOCK: u32 = 14;
const SYS_PTRACE: u32 = 19;
const SYS_ADMIN: u32 = 21;
const SYS_NICE: u32 = 23;
const SYSLOG: u32 = 34;
const PERFMON: u32 = 38;
const BPF: u32 = 39;
const CHECKPOINT_RESTORE: u32 = 40;

/// The capabilities that the README asks for.
const REQUIRED_CAPABILITIES: [u32; 5] = [BPF, PERFMON, SYS_PTRACE, SYSLOG, DAC_READ_SEARCH];
/// Capabilities that are also kept, if kcollect has them.
const OPTIONAL_CAPABILITIES: [u32; 3] = [CHECKPOINT_RESTORE, SYS_NICE, IPC_LOCK];
/// Capabilities that are also kept for an experiment of another user.
const FOR_OTHERS: [u32; 3] = [CHOWN, DAC_OVERRIDE, FOWNER];

/// The load's script: writes its own status into a file, and runs a little longer.
const SAYS: &str = "{ grep -E '^(Uid|Gid|Groups|Cap|NoNewPrivs|Seccomp|SigBlk)' /proc/self/status; ulimit -n; ulimit -Hn; } \
                    >\"$0.part\" && mv \"$0.part\" \"$0\"; sleep 0.7";

fn mask(bits: &[u32]) -> u64 {
    bits.iter().fold(0, |mask, bit| mask | 1 << bit)
}

/// Returns the capabilities that kcollect keeps as root on this machine.
fn kept() -> Result<u64> {
    let level = fs::read_to_string("/proc/sys/kernel/perf_event_paranoid")?;
    let paranoid = level.trim().parse::<i32>()? > 2;
    Ok(mask(&REQUIRED_CAPABILITIES)
        | mask(&OPTIONAL_CAPABILITIES)
        | if paranoid { 1 << SYS_ADMIN } else { 0 })
}

/// Returns a set of numbers from a thread's status.
fn set(status: &str, name: &str) -> Result<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let word = line.with_context(|| format!("no {name} in {status}"))?;
    Ok(u64::from_str_radix(word.trim(), 16)?)
}

/// Returns whether a process has the thread that starts the load. It ends after the load's start,
/// which the load can be ahead of.
fn starts_load(pid: Pid) -> bool {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"));
    let named = |task: &DirEntry| fs::read_to_string(task.path().join("comm"));
    let mut tasks = tasks.into_iter().flatten().flatten();
    tasks.any(|task| named(&task).is_ok_and(|name| name == "load\n"))
}

/// Checks that all threads of kcollect hold these capabilities and no other, and can gain none.
fn holds(pid: Pid, expected: u64) -> Result<()> {
    let mut threads = BTreeSet::new();
    for entry in fs::read_dir(format!("/proc/{pid}/task"))? {
        let status = match fs::read_to_string(entry?.path().join("status")) {
            // It has ended since the directory was read.
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            status => status?,
        };
        for name in ["CapEff:", "CapPrm:"] {
            let held = set(&status, name)?;
            ensure!(held == expected, "{expected:x} is needed: {status}");
        }
        ensure!(set(&status, "CapAmb:")? & !expected == 0, "{status}");
        ensure!(set(&status, "NoNewPrivs:")? == 1, "{status}");
        // 2 is a filter.
        ensure!(set(&status, "Seccomp:")? == 2, "{status}");
        let name = status.lines().next().unwrap_or_default();
        threads.insert(name.trim_start_matches("Name:\t").to_owned());
    }
    // The thread that started the load has ended, and the threads that read other users' files
    // exist.
    let due = ["archive", "unwind-tables"].map(str::to_owned);
    ensure!(
        !threads.contains("load") && due.iter().all(|name| threads.contains(name)),
        "its threads are {threads:?}"
    );
    Ok(())
}

/// Runs the load alone and under kcollect, both by the same command before them, and checks that
/// its status is the same and that kcollect holds these capabilities. `load` is the shell.
fn judge(before: &[&str], kcollect: &[&str], load: &str, expected: u64, home: &Path) -> Result<()> {
    let start = |middle: &[&str], file: &Path| {
        let mut args = before.iter().chain(middle).copied();
        let mut command = Command::new(args.next().unwrap_or("env"));
        command.args(args).args([load, "-c", SAYS]).arg(file);
        command.current_dir(home).env("HOME", home);
        Running::start(&mut command, LIMIT)
    };
    let (alone, under) = (home.join("alone"), home.join("under"));
    start(&[], &alone)?.finish()?.succeeded()?;
    let mut running = start(kcollect, &under)?;
    running.until("the load's words", || under.exists())?;
    let pid = running.pid();
    running.until("end of the load's start", || !starts_load(pid))?;
    holds(pid, expected)?;
    running.finish()?.succeeded()?;
    let (alone, under) = (fs::read_to_string(alone)?, fs::read_to_string(under)?);
    ensure!(alone == under, "alone:\n{alone}under kcollect:\n{under}");
    let opened = opened(&experiment_in(home)?)?;
    ensure!(opened.closed && opened.ticks > 0, "{opened:?}");
    Ok(())
}

/// The arguments of a recording that follows and archives the load alone: others may be large, and
/// take long.
const RECORD: [&str; 7] = [
    "-p",
    "hi",
    "-x",
    "off",
    "-F",
    "=^(sh|shell|dash|bash|grep|sleep)$",
    "--",
];

/// Returns a directory of the user nobody, with a copy of kcollect: other users may not enter the
/// directory of the build.
fn nobodys() -> Result<(TempDir, String)> {
    let home = tempfile::tempdir()?;
    let program = home.path().join("kcollect");
    copy_program(binary()?, &program)?;
    fs::set_permissions(&program, Permissions::from_mode(0o755))?;
    chown(home.path(), Some(NOBODY), Some(NOBODY))?;
    Ok((home, program.to_string_lossy().into_owned()))
}

#[test]
fn root_unneeded_privileges_are_dropped() -> Result<()> {
    let _machine = Shared::take()?;
    let home = tempfile::tempdir()?;
    let kcollect = binary()?.to_string_lossy().into_owned();
    let args = [&[&*kcollect][..], &RECORD[..]].concat();
    let before = ["env", "-u", "SUDO_UID", "-u", "SUDO_GID"];
    judge(&before, &args, "/bin/sh", kept()?, home.path())
}

#[test]
fn root_under_sudo_two_more_capabilities_are_kept() -> Result<()> {
    let _machine = Shared::take()?;
    let (home, kcollect) = nobodys()?;
    fs::set_permissions(home.path(), Permissions::from_mode(0o700))?;
    // Root may execute this one by CAP_DAC_OVERRIDE alone.
    let shell = home.path().join("shell");
    copy_program("/bin/sh", &shell)?;
    fs::set_permissions(&shell, Permissions::from_mode(0o700))?;
    chown(&shell, Some(NOBODY), Some(NOBODY))?;
    let args = [&[&*kcollect][..], &RECORD[..]].concat();
    let ids = [format!("SUDO_UID={NOBODY}"), format!("SUDO_GID={NOBODY}")];
    let before = ["env", &*ids[0], &*ids[1]];
    let shell = shell.to_string_lossy();
    let expected = kept()? | mask(&FOR_OTHERS);
    judge(&before, &args, &shell, expected, home.path())?;
    let mut subexperiments = 0;
    for entry in fs::read_dir(experiment_in(home.path())?)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        let owner = (metadata.uid(), metadata.gid());
        ensure!(owner == (NOBODY, NOBODY), "{:?}: {owner:?}", entry.path());
        subexperiments += u32::from(metadata.is_dir() && entry.file_name() != "archives");
    }
    ensure!(subexperiments > 0, "no process was followed");
    Ok(())
}

#[test]
fn root_five_capabilities_are_enough() -> Result<()> {
    let _machine = Shared::take()?;
    let (home, kcollect) = nobodys()?;
    let names = REQUIRED_CAPABILITIES
        .map(|bit| format!("+cap_{bit}"))
        .join(",");
    let user = NOBODY.to_string();
    let (inherited, ambient) = (
        format!("--inh-caps={names}"),
        format!("--ambient-caps={names}"),
    );
    let before = [
        "setpriv",
        "--reuid",
        &*user,
        "--regid",
        &*user,
        "--clear-groups",
        &*inherited,
        &*ambient,
    ];
    let mut doctor = Command::new(before[0]);
    let doctor = run(
        doctor
            .args(&before[1..])
            .args([&*kcollect, "doctor", "--json"]),
        LIMIT,
    )?
    .succeeded()?;
    let doctor: serde_json::Value = serde_json::from_str(&doctor.stdout)?;
    let findings = doctor["findings"].as_array().context("findings")?;
    let has_privileges =
        |finding: &serde_json::Value| finding["name"] == "privileges" && finding["verdict"] == "ok";
    ensure!(findings.iter().any(has_privileges), "{doctor:#}");
    let args = [&[&*kcollect][..], &RECORD[..]].concat();
    judge(
        &before,
        &args,
        "/bin/sh",
        mask(&REQUIRED_CAPABILITIES),
        home.path(),
    )
}
