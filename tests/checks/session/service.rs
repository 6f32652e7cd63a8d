//! The service of the package, below a real systemd: a user's manager that runs as root, for which
//! a directory says that systemd has booted the machine.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;
use tests::command::{Finished, Running, copy_program, run};
use tests::experiment::opened::opened;
use tests::experiment::summary::RunSummary;
use tests::kcollect::{binary, experiments_in};
use tests::machine::Shared;

const LIMIT: Duration = Duration::from_secs(100);

const SYSTEMD: &str = "/lib/systemd/systemd";
/// The directory of the package's files.
const PACKAGED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../service");
/// A script that mounts an empty `/run`, without the machine's systemd, and runs a manager.
const BEGIN: &str = "for group; do echo $$ >$group/cgroup.procs || exit; done; \
                     mount -t tmpfs tmpfs /run && mkdir -p -m 700 /run/systemd/system /run/user/0 && \
                     exec \"$0\" --user --log-target=console";

/// A systemd manager with the service.
struct Systemd {
    manager: Running,
    place: TempDir,
    groups: Vec<PathBuf>,
}

impl Systemd {
    fn start() -> Result<Self> {
        // Not in /tmp: a service has its own.
        let place = tempfile::tempdir_in("/var/lib")?;
        let units = place.path().join("config/systemd/user");
        let changes = units.join("kcollect.service.d");
        fs::create_dir_all(&changes)?;
        fs::create_dir(place.path().join("data"))?;
        fs::copy(
            Path::new(PACKAGED).join("kcollect.service"),
            units.join("kcollect.service"),
        )?;
        // A copy, since the program may be in a directory that the service cannot see.
        let program = place.path().join("kcollect");
        copy_program(binary()?, &program)?;
        let path = place.path().display();
        fs::write(
            changes.join("place.conf"),
            format!(
                "[Service]\nExecStart=\nExecStart={path}/kcollect --config {path}/kcollect.toml\n\
                 WorkingDirectory={path}/data\nReadWritePaths={path}/data\n\
                 WatchdogSec=3\nRestartSec=1\n"
            ),
        )?;
        let groups = groups()?;
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", BEGIN, SYSTEMD]);
        command.args(&groups);
        command.env("XDG_RUNTIME_DIR", "/run/user/0");
        command.env("XDG_CONFIG_HOME", place.path().join("config"));
        command.env("XDG_CACHE_HOME", place.path().join("cache"));
        let manager = Running::start(&mut command, LIMIT)?;
        let mut systemd = Systemd {
            manager,
            place,
            groups,
        };
        systemd.until("a manager", |systemd| {
            Ok(systemd.ctl(&["is-system-running"])?.code() == 0)
        })?;
        Ok(systemd)
    }

    fn settings(&self, text: &str) -> Result<()> {
        Ok(fs::write(self.place.path().join("kcollect.toml"), text)?)
    }

    fn data(&self) -> PathBuf {
        self.place.path().join("data")
    }

    /// Runs systemctl.
    fn ctl(&self, arguments: &[&str]) -> Result<Finished> {
        let mut command = Command::new("nsenter");
        command.args(["--mount", "--target", &self.manager.pid().to_string()]);
        command.args(["systemctl", "--user"]).args(arguments);
        run(command.env("XDG_RUNTIME_DIR", "/run/user/0"), LIMIT)
    }

    /// Returns the service's properties.
    fn shown(&self) -> Result<BTreeMap<String, String>> {
        let names = "ActiveState,StatusText,MainPID,NRestarts,Result,ExecMainStatus";
        let shown = self.ctl(&["show", "kcollect", "--property", names])?;
        let lines = shown.succeeded()?.stdout;
        let properties = lines.lines().filter_map(|line| line.split_once('='));
        Ok(properties
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect())
    }

    fn until(&mut self, what: &str, holds: impl Fn(&Systemd) -> Result<bool>) -> Result<()> {
        while !holds(self)? {
            let ended = self.manager.ended()?;
            ensure!(!ended, "no {what}: {}", self.manager.output()?);
            self.manager
                .in_time()
                .with_context(|| format!("no {what}"))?;
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }
}

impl Drop for Systemd {
    fn drop(&mut self) {
        let _ = self.ctl(&["exit"]);
        let ended = |systemd: &mut Systemd| systemd.manager.ended().unwrap_or(true);
        while !ended(self) && self.manager.in_time().is_ok() {
            std::thread::sleep(Duration::from_millis(20));
        }
        remove(&self.groups);
    }
}

/// Makes the cgroups for a manager, one in each hierarchy in which systemd has processes. In a
/// cgroup with others it would move these into groups of its own.
fn groups() -> Result<Vec<PathBuf>> {
    let root = Path::new("/sys/fs/cgroup");
    let own = fs::read_to_string("/proc/self/cgroup")?;
    let of_hierarchy = |line: &str| -> Option<PathBuf> {
        let (hierarchy, path) = line.split_once("::").or_else(|| {
            let named = line.split_once(":name=systemd:")?;
            Some(("systemd", named.1))
        })?;
        // With a hierarchy of version 2 alone there are no other directories.
        let name = match hierarchy {
            "systemd" => "systemd",
            _ => "unified",
        };
        let place = Some(root.join(name)).filter(|place| place.is_dir());
        let place = place.unwrap_or_else(|| root.to_owned());
        Some(place.join(path.trim_start_matches('/')))
    };
    let name = format!("kcollect-service-{}", std::process::id());
    own.lines()
        .filter_map(of_hierarchy)
        .map(|place| {
            let group = place.join(&name);
            fs::create_dir(&group).with_context(|| group.display().to_string())?;
            Ok(group)
        })
        .collect()
}

/// Removes cgroups without processes, and cgroups of the same name in other hierarchies.
fn remove(groups: &[PathBuf]) {
    fn remove_all(group: &Path) {
        for entry in fs::read_dir(group).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                remove_all(&entry.path());
            }
        }
        let _ = fs::remove_dir(group);
    }
    let hierarchies = fs::read_dir("/sys/fs/cgroup")
        .into_iter()
        .flatten()
        .flatten();
    for hierarchy in hierarchies {
        for group in groups.iter().filter_map(|group| group.file_name()) {
            remove_all(&hierarchy.path().join(group));
        }
    }
    groups.iter().for_each(|group| remove_all(group));
}

#[test]
fn root_the_service_starts_rotates_is_watched_and_stops() -> Result<()> {
    let _machine = Shared::take()?;
    let mut systemd = Systemd::start()?;
    let packaged = fs::read_to_string(Path::new(PACKAGED).join("kcollect.toml"))?;
    systemd.settings(&packaged)?;
    systemd.ctl(&["start", "kcollect"])?.succeeded()?;

    // It reports that it has started when recording starts; the log's line may come later.
    let started = systemd.shown()?;
    systemd.until("data", |systemd| {
        let log = fs::read_to_string(systemd.data().join("ktest.1.er/log.xml"))?;
        Ok(log.contains("<event kind=\"resume\""))
    })?;
    ensure!(
        started["ActiveState"] == "active" && started["StatusText"] == "recording into ktest.1.er",
        "{started:?}"
    );
    let status = fs::read_to_string(format!("/proc/{}/status", started["MainPID"]))?;
    // BPF, PERFMON, SYSLOG, SYS_PTRACE and DAC_READ_SEARCH.
    for expected in ["CapEff:\t000000c400080004", "CapBnd:\t000000c400080004"] {
        ensure!(status.contains(expected), "{status}");
    }

    systemd.ctl(&["reload", "kcollect"])?.succeeded()?;
    systemd.until("next experiment", |systemd| {
        Ok(systemd.shown()?["StatusText"] == "recording into ktest.2.er")
    })?;
    ensure!(
        systemd.shown()?["MainPID"] == started["MainPID"],
        "reloaded"
    );
    // The kernel's code is there once.
    let image = |number: u32| -> Result<(u64, u64)> {
        let path = format!("ktest.{number}.er/archives/vmlinux_dbrs1000000");
        let file = fs::metadata(systemd.data().join(path))?;
        Ok((file.dev(), file.ino()))
    };
    ensure!(image(1)? == image(2)?, "two copies of the kernel");

    // The watchdog waits for three seconds, and the service starts again after one.
    let stopped = started["MainPID"].clone();
    run(Command::new("kill").args(["-STOP", &stopped]), LIMIT)?.succeeded()?;
    systemd.until("second start", |systemd| {
        let shown = systemd.shown()?;
        Ok(shown["NRestarts"] == "1" && shown["ActiveState"] == "active")
    })?;
    ensure!(
        !opened(&systemd.data().join("ktest.2.er"))?.closed,
        "killed"
    );

    // It continues for longer than the watchdog waits.
    std::thread::sleep(Duration::from_secs(4));
    ensure!(systemd.shown()?["NRestarts"] == "1", "it is alive");
    systemd.ctl(&["stop", "kcollect"])?.succeeded()?;
    let ended = systemd.shown()?;
    ensure!(ended["Result"] == "success", "{ended:?}");
    ensure!(experiments_in(&systemd.data())?.len() == 3, "{ended:?}");
    for closed in ["ktest.1.er", "ktest.3.er"] {
        let path = systemd.data().join(closed);
        ensure!(opened(&path)?.closed, "{closed} is not closed");
        RunSummary::of(&path)?.complete()?;
    }

    // Wrong settings are not tried again.
    systemd.settings("rotat = \"10m\"\n")?;
    ensure!(systemd.ctl(&["start", "kcollect"])?.code() != 0, "rotat");
    let failed = systemd.shown()?;
    ensure!(
        failed["ActiveState"] == "failed" && failed["ExecMainStatus"] == "64",
        "{failed:?}"
    );
    Ok(())
}
