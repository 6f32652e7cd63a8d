//! Control groups: with a CPU quota, as a container has, with the name of a container, as a clock
//! of CPU time, and deep ones.
//!
//! Machines have control groups of version 1 or 2; the hierarchy that has the controller is used.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use experiment_format::ids::Pid;

/// The period of a quota, microseconds.
const PERIOD_US: u64 = 100_000;

/// The hierarchy of groups with a controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Hierarchy {
    /// Version 1: the directory of the controller's root group.
    V1(PathBuf),
    /// Version 2: the directory of the root group.
    V2(PathBuf),
}

/// A group with a quota. It is left by this process and removed when this value is dropped.
#[derive(Debug)]
pub struct Quota {
    hierarchy: Hierarchy,
    group: PathBuf,
    home: PathBuf,
    /// Whether groups had no CPU controller before.
    enabled: bool,
}

/// Passes if this process can have a group with a quota.
///
/// # Errors
/// When it cannot; the message says why.
pub fn possible() -> Result<()> {
    Quota::make(&own_name(), 100).map(drop)
}

impl Quota {
    /// Moves this process into a new group that may use `percent` percent of a CPU.
    ///
    /// # Errors
    /// When the kernel has no CPU controller, or its groups are not ours to make.
    pub fn enter(percent: u64) -> Result<Self> {
        let quota = Self::make(&own_name(), percent)?;
        quota.take(Pid(0))?;
        Ok(quota)
    }

    /// Makes a group like Docker's for the container with this id, with a quota that is never used
    /// up.
    ///
    /// # Errors
    /// As [`Quota::enter`].
    pub fn of_container(id: &str) -> Result<Self> {
        Self::make(&format!("docker-{id}.scope"), 100 * 1000)
    }

    /// Moves a process into it, 0 for this one.
    ///
    /// # Errors
    /// When it is not ours to move.
    pub fn take(&self, pid: Pid) -> Result<()> {
        write(&self.procs(), &pid.to_string())
    }

    /// Moves this process back to where it was.
    ///
    /// # Errors
    /// When it cannot be moved.
    pub fn leave(&self) -> Result<()> {
        write(&self.home.join("cgroup.procs"), "0")
    }

    /// The file into which the number of a process is written to move it here.
    #[must_use]
    pub fn procs(&self) -> PathBuf {
        self.group.join("cgroup.procs")
    }

    fn make(name: &str, percent: u64) -> Result<Self> {
        let hierarchy = hierarchy(&fs::read_to_string("/proc/self/mountinfo")?, "cpu")?;
        let root = hierarchy.root();
        let home = home(&hierarchy, &fs::read_to_string("/proc/self/cgroup")?);
        let mut enabled = false;
        if let Hierarchy::V2(_) = hierarchy {
            let control = root.join("cgroup.subtree_control");
            if !has_word(&control, "cpu") {
                write(&control, "+cpu")?;
                enabled = true;
            }
        }
        let group = root.join(name);
        fs::create_dir(&group).with_context(|| group.display().to_string())?;
        // From here on it is removed whatever happens.
        let quota = Self {
            hierarchy,
            group,
            home,
            enabled,
        };
        let share_us = PERIOD_US * percent / 100;
        match quota.hierarchy {
            Hierarchy::V1(_) => {
                write(
                    &quota.group.join("cpu.cfs_period_us"),
                    &PERIOD_US.to_string(),
                )?;
                write(&quota.group.join("cpu.cfs_quota_us"), &share_us.to_string())?;
            }
            Hierarchy::V2(_) => {
                write(
                    &quota.group.join("cpu.max"),
                    &format!("{share_us} {PERIOD_US}"),
                )?;
            }
        }
        Ok(quota)
    }

    /// Returns for how long the group was throttled, nanoseconds.
    ///
    /// # Errors
    /// When the kernel does not say.
    pub fn throttled_ns(&self) -> Result<u64> {
        let path = self.group.join("cpu.stat");
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        throttled_ns(&text).with_context(|| format!("{}: {text:?}", path.display()))
    }
}

impl Drop for Quota {
    fn drop(&mut self) {
        // What fails here leaves an empty group over, which costs nothing.
        let _ = self.leave();
        let _ = fs::remove_dir(&self.group);
        if self.enabled {
            let _ = write(
                &self.hierarchy.root().join("cgroup.subtree_control"),
                "-cpu",
            );
        }
    }
}

/// A group whose CPU time the scheduler sums up, to the last instruction of every thread: a
/// thread's usage is added to its process's before its end. The group is removed when this value is
/// dropped.
#[derive(Debug)]
pub struct Clock {
    hierarchy: Hierarchy,
    group: PathBuf,
}

impl Clock {
    /// Makes an empty group.
    ///
    /// # Errors
    /// When the kernel has no groups with such a sum, or they are not ours to make.
    pub fn new() -> Result<Self> {
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        let hierarchy = hierarchy(&mounts, "cpuacct").or_else(|_| hierarchy(&mounts, "cpu"))?;
        let name = format!("kcollect-clock-{}", std::process::id());
        let group = hierarchy.root().join(name);
        fs::create_dir(&group).with_context(|| group.display().to_string())?;
        Ok(Self { hierarchy, group })
    }

    /// Returns the command line of a load in the group: a shell that enters it and executes the
    /// load.
    pub fn around(&self, load: &[&str]) -> Vec<String> {
        let enter = format!(
            "echo $$ > {} && exec \"$@\"",
            self.group.join("cgroup.procs").display()
        );
        let shell = ["sh", "-c", &enter, "sh"];
        let args = shell.iter().chain(load);
        args.map(|word| (*word).to_owned()).collect()
    }

    /// Returns the CPU time of its processes, seconds.
    ///
    /// # Errors
    /// When the kernel does not say.
    pub fn used_s(&self) -> Result<f64> {
        let (file, word, unit) = match self.hierarchy {
            Hierarchy::V1(_) => ("cpuacct.usage", 0, 1e9),
            Hierarchy::V2(_) => ("cpu.stat", 1, 1e6),
        };
        // In version 2 the file begins with `usage_usec N`.
        let text = fs::read_to_string(self.group.join(file))?;
        let number = text.split_ascii_whitespace().nth(word);
        let number: f64 = number
            .with_context(|| format!("{file}: {text:?}"))?
            .parse()?;
        Ok(number / unit)
    }
}

impl Drop for Clock {
    fn drop(&mut self) {
        // What fails here leaves an empty group over, which costs nothing.
        let _ = fs::remove_dir(&self.group);
    }
}

/// A group without a limit, some levels below the root. It is removed when this value is dropped.
#[derive(Debug)]
pub struct DeepGroup {
    root: PathBuf,
    path: String,
}

impl DeepGroup {
    /// Makes an empty group of this path in each kind of hierarchy that the machine has: of version
    /// 2, and of the first controller of version 1.
    ///
    /// # Errors
    /// When they are not ours to make.
    pub fn of_each_version(path: &str) -> Result<Vec<Self>> {
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        let root = |kind| {
            let mut all = mounts.lines().filter_map(mount);
            let of_kind = |(_, fields): &(PathBuf, Vec<&str>)| fields.first() == Some(&kind);
            all.find(of_kind).map(|(point, _)| point)
        };
        let roots = [root("cgroup2"), root("cgroup")].into_iter().flatten();
        let groups = roots.map(|root| {
            let group = root.join(path);
            fs::create_dir_all(&group).with_context(|| group.display().to_string())?;
            let path = path.to_owned();
            Ok(Self { root, path })
        });
        groups.collect()
    }

    /// The file into which the number of a process is written to move it here.
    #[must_use]
    pub fn procs(&self) -> PathBuf {
        self.root.join(&self.path).join("cgroup.procs")
    }
}

impl Drop for DeepGroup {
    fn drop(&mut self) {
        let mut levels = Path::new(&self.path).ancestors();
        // What fails here leaves an empty group over, which costs nothing. The last is the root.
        levels.all(|level| level != Path::new("") && fs::remove_dir(self.root.join(level)).is_ok());
    }
}

impl Hierarchy {
    pub(crate) fn root(&self) -> &Path {
        match self {
            Self::V1(root) | Self::V2(root) => root,
        }
    }
}

fn own_name() -> String {
    format!("kcollect-quota-{}", std::process::id())
}

/// Returns the mount point in a line of proc_pid_mountinfo(5), the fifth field, and what follows a
/// dash: type, source and options.
pub(crate) fn mount(line: &str) -> Option<(PathBuf, Vec<&str>)> {
    let (mount, kind) = line.split_once(" - ")?;
    let point = mount.split(' ').nth(4)?;
    Some((point.into(), kind.split(' ').collect()))
}

/// Returns the mounted hierarchy that has a controller.
pub(crate) fn hierarchy(mounts: &str, controller: &str) -> Result<Hierarchy> {
    let mut v2 = None;
    for (point, fields) in mounts.lines().filter_map(mount) {
        match fields[..] {
            ["cgroup", _, options] if options.split(',').any(|option| option == controller) => {
                return Ok(Hierarchy::V1(point));
            }
            ["cgroup2", ..] if has_word(&point.join("cgroup.controllers"), controller) => {
                v2 = Some(Hierarchy::V2(point));
            }
            _ => {}
        }
    }
    v2.ok_or_else(|| anyhow!("no control groups with a controller {controller} are mounted"))
}

/// Returns the group that this process is in, or the root where a container hides it.
fn home(hierarchy: &Hierarchy, groups: &str) -> PathBuf {
    let path = groups.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let controllers = fields.next()?;
        let path = fields.next()?;
        let it = match hierarchy {
            Hierarchy::V1(_) => controllers.split(',').any(|name| name == "cpu"),
            Hierarchy::V2(_) => controllers.is_empty(),
        };
        it.then_some(path)
    });
    let home = hierarchy
        .root()
        .join(path.unwrap_or_default().trim_start_matches('/'));
    if home.is_dir() {
        home
    } else {
        hierarchy.root().to_owned()
    }
}

pub(crate) fn has_word(path: &Path, word: &str) -> bool {
    fs::read_to_string(path).is_ok_and(|text| text.split_ascii_whitespace().any(|own| own == word))
}

pub(crate) fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("{}: {text:?}", path.display()))
}

/// Returns the throttled time in a `cpu.stat` of either version, nanoseconds.
fn throttled_ns(stat: &str) -> Option<u64> {
    stat.lines().find_map(|line| match line.split_once(' ')? {
        ("throttled_time", ns) => ns.parse().ok(),
        ("throttled_usec", us) => us.parse::<u64>().ok().map(|us| us * 1000),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_1_is_found_by_its_controller() {
        let mounts = "30 23 0:26 / /groups/cpuset rw - cgroup cgroup rw,cpuset\n\
                      31 23 0:27 / /groups/cpu rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n";
        let found = hierarchy(mounts, "cpu").unwrap();
        assert_eq!(found, Hierarchy::V1("/groups/cpu".into()));
        assert_eq!(
            home(&found, "4:cpu,cpuacct:/no/such\n0::/\n"),
            Path::new("/groups/cpu")
        );
        assert!(
            hierarchy(
                "30 23 0:26 / /groups/cpuset rw - cgroup cgroup rw,cpuset\n",
                "cpu"
            )
            .is_err()
        );
    }

    #[test]
    fn version_2_is_found_by_its_file() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("cgroup.controllers"), "cpuset cpu io\n").unwrap();
        fs::create_dir(root.path().join("home")).unwrap();
        let mounts = format!(
            "30 23 0:26 / {} rw - cgroup2 cgroup2 rw\n",
            root.path().display()
        );
        let found = hierarchy(&mounts, "cpu").unwrap();
        assert_eq!(found, Hierarchy::V2(root.path().into()));
        assert_eq!(home(&found, "0::/home\n"), root.path().join("home"));
    }

    #[test]
    fn both_versions_report_throttled_time() {
        assert_eq!(
            throttled_ns("nr_periods 3\nnr_throttled 2\nthrottled_time 5000\n"),
            Some(5000)
        );
        assert_eq!(
            throttled_ns("usage_usec 9\nthrottled_usec 5\nnr_bursts 0\n"),
            Some(5000)
        );
        assert_eq!(throttled_ns("usage_usec 9\n"), None);
    }
}
