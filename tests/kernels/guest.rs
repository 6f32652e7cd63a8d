//! The guest, as the first process: mounts file systems, runs kcollect, copies the results to a
//! disk, and turns the machine off. Errors are printed on the console, which the host shows.

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use nix::mount::{MsFlags, mount};
use nix::unistd::{dup2_stderr, dup2_stdout, sync};
use tests::command::{Running, run};
use tests::machine::{online_cpus, processes};

use crate::runs::{
    CHOSEN_RUNS, DONE, Glance, Glances, KCOLLECT, LIMIT, MODULES, RUNS, Run, SCHED_EXT,
    SCHED_EXT_DIRECTORY,
};

/// The directory of the results.
const OUT: &str = "/out";
/// The disk of files that have to be on a disk.
const DISK: &str = "/dev/vda";
/// The disk that the host reads when the machine is off.
const RESULT_DISK: &str = "/dev/vdb";

/// Runs the guest. It returns only if the kernel cannot turn the machine off.
pub(crate) fn main() -> Result<()> {
    if let Err(error) = work() {
        eprintln!("{error:#}");
    }
    sync();
    // SAFETY: the call ends the machine, and no other process is needed any more.
    let result = unsafe { libc::reboot(libc::RB_POWER_OFF) };
    bail!("cannot turn the machine off: {result}")
}

fn work() -> Result<()> {
    for (kind, place) in [
        ("devtmpfs", "/dev"),
        ("proc", "/proc"),
        ("sysfs", "/sys"),
        ("tmpfs", OUT),
        ("cgroup2", "/sys/fs/cgroup"),
    ] {
        attach(kind, kind, place)?;
    }
    // Not mounted: the workloads may be below it, at the paths where they were built.
    fs::create_dir_all("/tmp")?;
    let console = OpenOptions::new().write(true).open("/dev/console")?;
    dup2_stdout(&console)?;
    dup2_stderr(&console)?;
    let mut modules: Vec<_> = fs::read_dir(MODULES)?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<_>>()?;
    modules.sort();
    for module in modules {
        load(&module).with_context(|| module.display().to_string())?;
    }
    attach(DISK, "ext4", "/var/tmp")?;

    record("doctor", &["doctor", "--json"])?;
    let chosen = std::env::var(CHOSEN_RUNS).ok();
    for each in RUNS[online_cpus()?.len().min(RUNS.len()) - 1] {
        if chosen
            .as_ref()
            .is_some_and(|names| names.split(',').all(|name| name != each.name))
        {
            continue;
        }
        // In Linux 6.12 and newer, where it was configured.
        if each.name == SCHED_EXT && !Path::new(SCHED_EXT_DIRECTORY).exists() {
            continue;
        }
        let alongside = alongside(each).with_context(|| each.name.to_owned())?;
        record(each.name, &[each.args, each.load].concat())?;
        drop(alongside);
    }
    fs::write(Path::new(OUT).join(DONE), "")?;
    let mut pack = Command::new("/bin/tar");
    pack.args(["--sparse", "-cf", RESULT_DISK, "-C", OUT, "."]);
    run(&mut pack, LIMIT)?.succeeded()?;
    Ok(())
}

/// Mounts a file system. A missing directory is made.
fn attach(what: &str, kind: &str, place: &str) -> Result<()> {
    fs::create_dir_all(place)?;
    mount(
        Some(what),
        place,
        Some(kind),
        MsFlags::empty(),
        None::<&str>,
    )
    .with_context(|| format!("cannot mount {what} on {place}"))
}

/// Loads a module, compressed or not.
fn load(module: &Path) -> Result<()> {
    const COMPRESSED: libc::c_int = 4;
    let file = File::open(module)?;
    let flags = match module.extension() {
        Some(extension) if extension == "ko" => 0,
        _ => COMPRESSED,
    };
    // SAFETY: the kernel reads the file and the text, and nothing else.
    let result = unsafe {
        libc::syscall(
            libc::SYS_finit_module,
            file.as_raw_fd(),
            c"".as_ptr(),
            flags,
        )
    };
    ensure!(result == 0, std::io::Error::last_os_error());
    Ok(())
}

/// Starts what is to run alongside a recording, and waits until it is ready.
fn alongside(each: &Run) -> Result<Option<Running>> {
    let Some((program, args)) = each.alongside.split_first() else {
        return Ok(None);
    };
    let mut running = Running::start(Command::new(program).args(args), LIMIT)?;
    running.until_printed()?;
    Ok(Some(running))
}

/// Runs kcollect, and keeps its output and the list of processes. The host judges its exit code.
fn record(name: &str, args: &[&str]) -> Result<()> {
    let place = Path::new(OUT).join(name);
    fs::create_dir(&place)?;
    let before = glances()?;
    let mut command = Command::new(KCOLLECT);
    command.args(args).current_dir(&place).env("PATH", "/bin");
    let finished = run(&mut command, LIMIT).with_context(|| name.to_owned())?;
    let after = glances()?;
    fs::write(place.join("before"), serde_json::to_string(&before)?)?;
    fs::write(place.join("after"), serde_json::to_string(&after)?)?;
    fs::write(place.join("code"), finished.code().to_string())?;
    fs::write(place.join("stdout"), finished.stdout)?;
    fs::write(place.join("stderr"), finished.stderr)?;
    Ok(())
}

fn glances() -> Result<Glances> {
    let all = processes()?.into_iter().filter_map(|pid| {
        // A process that has exited by now is left out.
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        Some((pid, glance(&status)))
    });
    Ok(all.collect())
}

fn glance(status: &str) -> Option<Glance> {
    let value = |key: &str| {
        let of = |line: &'_ str| Some(line.strip_prefix(key)?.strip_prefix(':')?.trim().to_owned());
        status.lines().find_map(of)
    };
    let number = |key: &str| value(key)?.parse::<u64>().ok();
    (number("Threads")? == 1).then_some(())?;
    Some(Glance {
        state: value("State")?.chars().next()?,
        switches: number("voluntary_ctxt_switches")? + number("nonvoluntary_ctxt_switches")?,
        kernel: value("VmSize").is_none(),
    })
}
