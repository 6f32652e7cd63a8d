//! An unprivileged user against a kcollect that runs as root. The user owns the profiled processes,
//! their files and arguments, and the directory in which the experiment is created, or the
//! experiment itself. Nothing is written outside of it, nothing that only root may read gets into
//! it, and kcollect neither hangs nor takes all memory.
//!
//! The user tries: a perf map that is a link to a secret, or a secret mounted there; a perf map and
//! a program without end, a pipe instead of a map; long arguments and environments; the experiment,
//! its archives, its files and its subexperiments exchanged for links to a directory of root's
//! while it is written.
//!
//! Other files have names that are not names, tables that lie and code in odd places
//! ([`processes`](processes.rs)), programs that may be executed and not read
//! ([`archives`](../format/archives.rs)), and bytes of all kinds ([`fuzz`](../../fuzz/main.rs)).

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use tempfile::TempDir;
use tests::command::{Finished, Running, copy_program};
use tests::experiment::files_below;
use tests::experiment::opened::opened;
use tests::kcollect::{Recording, command};
use tests::machine::Shared;
use tests::random::SplitMix;
use tests::workload::proctorture::PROCTORTURE;

const LIMIT: Duration = Duration::from_secs(60);

/// A user and a group without any rights.
const NOBODY: u32 = 65534;

/// Maximum memory that kcollect may take, bytes: more than an ordinary run takes.
const MAX_MEMORY_BYTES: u64 = 256 << 20;

/// The processes that the recordings below follow; others would cost time.
const PROCTORTURES: &str = "=^(proctorture|large)$";

/// A directory of this user, with a proctorture in it, and one of root's for what must not be
/// touched.
struct UserDirectory {
    own: TempDir,
    roots: TempDir,
}

impl UserDirectory {
    fn make() -> Result<Self> {
        let (own, roots) = (tempfile::tempdir()?, tempfile::tempdir()?);
        copy_program(PROCTORTURE, own.path().join("proctorture"))?;
        for path in [own.path(), roots.path(), &own.path().join("proctorture")] {
            fs::set_permissions(path, Permissions::from_mode(0o755))?;
        }
        chown(own.path(), Some(NOBODY), Some(NOBODY))?;
        Ok(Self { own, roots })
    }

    /// Starts a shell of this user; `$0` is root's directory.
    fn start(&self, script: &str) -> Result<Running> {
        let mut shell = Command::new("sh");
        shell.args(["-c", script]).arg(self.roots.path());
        shell.current_dir(self.own.path()).uid(NOBODY).gid(NOBODY);
        Running::start(&mut shell, LIMIT)
    }

    /// Starts kcollect, as root, into the user's directory.
    fn collect(&self, environment: &[(&str, &str)]) -> Result<Running> {
        let mut kcollect = command(["-p", "hi", "-F", "on", "-d"])?;
        kcollect
            .arg(self.own.path())
            .envs(environment.iter().copied());
        Running::start(kcollect.current_dir(self.roots.path()), LIMIT)
    }

    /// Checks that root's directory is as it was.
    fn untouched(&self, kcollect: &Finished) -> Result<()> {
        let found: Vec<_> = fs::read_dir(self.roots.path())?
            .map(|entry| Ok(entry?.file_name()))
            .collect::<Result<_>>()?;
        ensure!(found.is_empty(), "{found:?} was written: {kcollect}");
        Ok(())
    }
}

/// Returns what only root may read. This program is archived too, so it does not contain it.
fn secret() -> String {
    format!(
        "the_secret_{:016x}",
        SplitMix(u64::from(std::process::id())).any()
    )
}

/// Returns a perf map of all memory, in which each function has this name.
fn map_of_all(name: &str) -> String {
    let lines = (0x7e00_0000_0000_u64..0x8000_0000_0000).step_by(1 << 30);
    lines
        .map(|at| format!("{at:x} 40000000 {name}\n"))
        .collect()
}

/// Returns the files below a directory that have these bytes.
fn containing(directory: &Path, words: &str) -> Result<Vec<PathBuf>> {
    let words = words.as_bytes();
    let mut containing = Vec::new();
    for path in files_below(directory)? {
        if path.is_file() && fs::read(&path)?.windows(words.len()).any(|at| at == words) {
            containing.push(path);
        }
    }
    Ok(containing)
}

/// Returns the rows of followed processes in the summary, by process id.
fn followed_processes(experiment: &Path) -> Result<Vec<(i64, serde_json::Value)>> {
    let text = fs::read_to_string(experiment.join("kcollect.json"))?;
    let summary: serde_json::Value = serde_json::from_str(&text)?;
    let rows = summary["followed"]["processes"].as_array();
    let rows = rows.context("followed processes")?;
    rows.iter()
        .map(|row| Ok((row["pid"].as_i64().context("a pid")?, row.clone())))
        .collect()
}

/// Ends a recording, and checks that it opens and has not taken more memory than it may.
fn ended(recording: Recording) -> Result<tests::kcollect::FinishedRecording> {
    let recorded = recording.stop()?;
    let experiment = recorded.experiment()?;
    opened(&experiment)?;
    let text = fs::read_to_string(experiment.join("kcollect.json"))?;
    let summary: serde_json::Value = serde_json::from_str(&text)?;
    let peak = summary["cost"]["peak_rss_bytes"]
        .as_u64()
        .context("a peak")?;
    ensure!(
        peak < MAX_MEMORY_BYTES,
        "{peak} bytes: {}",
        recorded.finished
    );
    Ok(recorded)
}

#[test]
fn root_a_perf_map_cannot_reveal_unreadable_files() -> Result<()> {
    let _machine = Shared::take()?;
    let user_directory = UserDirectory::make()?;
    let mut recording = Recording::start(["-p", "hi", "-F", PROCTORTURES], LIMIT)?;
    recording.until_running()?;
    // Written now: a map that is two seconds older than its process is one of an earlier process.
    let (file, name) = (user_directory.roots.path().join("secret"), secret());
    fs::write(&file, map_of_all(&name))?;
    fs::set_permissions(&file, Permissions::from_mode(0o600))?;
    // A map that the user may read is read the same way, so the attacks fail for the right reason.
    let harmless = name.replace("secret", "public");
    let own = user_directory.own.path().join("public");
    fs::write(&own, map_of_all(&harmless))?;
    chown(&own, Some(NOBODY), Some(NOBODY))?;
    // As another user of the same machine, who may mount files without reading them; not where
    // namespaces are for root alone.
    let mounted = |file: &str| {
        format!(
            "exec unshare -Urm sh -c 'touch /tmp/perf-$$.map && mount --bind {file} /tmp/perf-$$.map && \
             exec ./proctorture jit:1500' $0"
        )
    };
    let link = |to: &str| format!("ln -s {to} /tmp/perf-$$.map && exec ./proctorture jit:1500");
    let attacks = [
        (link("$0/secret"), Some("not_regular")),
        (link("/proc/self/root/$0/secret"), Some("not_regular")),
        (mounted("$0/secret"), Some("owner")),
        (mounted("./public"), None),
    ];
    let attacks = attacks.map(|(attack, refusal)| (user_directory.start(&attack), refusal));
    let (mut maps, mut refusals) = (Vec::new(), Vec::new());
    for (attack, refusal) in attacks {
        let attack = attack?;
        let pid = attack.pid();
        maps.push(PathBuf::from(format!("/tmp/perf-{pid}.map")));
        let finished = attack.finish()?;
        match finished.code() {
            0 => refusals.push((i64::from(pid.as_raw()), refusal)),
            _ => eprintln!("not tried here: {finished}"),
        }
    }
    let recorded = ended(recording)?;
    for map in maps {
        let _ = fs::remove_file(map);
    }
    let followed = followed_processes(&recorded.experiment()?)?;
    for (pid, refusal) in refusals {
        let process = followed.iter().find(|(of, _)| *of == pid);
        let (_, process) = process.with_context(|| format!("{pid} was not followed"))?;
        ensure!(
            process["jit"]["refusal_cause"].as_str() == refusal,
            "{pid} should be refused for {refusal:?}: {process}"
        );
        if refusal.is_none() {
            let found = containing(recorded.directory(), &harmless)?;
            ensure!(
                !found.is_empty(),
                "the user's own map was not read: {process}"
            );
        }
    }
    let found = containing(recorded.directory(), &name)?;
    ensure!(found.is_empty(), "{found:?} contain the secret");
    Ok(())
}

#[test]
fn root_endless_and_unanswering_files_are_given_up() -> Result<()> {
    let _machine = Shared::take()?;
    let user_directory = UserDirectory::make()?;
    let mut recording = Recording::start(["-p", "hi", "-F", PROCTORTURES, "-A", "copy"], LIMIT)?;
    recording.until_running()?;
    let attacks = [
        "mkfifo /tmp/perf-$$.map; exec ./proctorture jit:1200",
        "truncate -s 100G /tmp/perf-$$.map; exec ./proctorture jit:1200",
        "cp proctorture large; truncate -s 100G large; exec ./large one:200 sleep:1000",
        "exec ./proctorture jit:100 say:$(head -c 100000 /dev/zero | tr '\\0' x) sleep:1000",
        "A=$(head -c 100000 /dev/zero | tr '\\0' '\\n') B=$A C=$A D=$A exec ./proctorture jit:100 sleep:1000",
    ];
    let attacks = attacks.iter().map(|attack| user_directory.start(attack));
    let attacks: Vec<_> = attacks.collect::<Result<_>>()?;
    let mut maps = Vec::new();
    for attack in attacks {
        maps.push(PathBuf::from(format!("/tmp/perf-{}.map", attack.pid())));
        attack.finish()?.succeeded()?;
    }
    let recorded = ended(recording)?;
    for map in maps {
        let _ = fs::remove_file(map);
    }
    // The pipe and the endless map are reported; the others need no report.
    let followed = followed_processes(&recorded.experiment()?)?;
    let refused =
        |(_, process): &(i64, serde_json::Value)| process["jit"]["refusal_cause"] == "not_regular";
    let unread = |(_, process): &(i64, serde_json::Value)| {
        process["jit"]["unread"].as_u64() > Some(90 << 30)
    };
    ensure!(
        followed.iter().any(refused) && followed.iter().any(unread),
        "{followed:?}"
    );
    let size: u64 = files_below(recorded.directory())?
        .iter()
        .map(|path| fs::symlink_metadata(path).map_or(0, |file| file.len()))
        .sum();
    ensure!(size < 1 << 30, "{size} bytes were written");
    Ok(())
}

/// Runs an attacker's script once the experiment is there, with the attacker's own pid as `$n`;
/// then ends the recording.
fn attacked(
    user_directory: &UserDirectory,
    environment: &[(&str, &str)],
    attack: &str,
) -> Result<Finished> {
    let mut kcollect = user_directory.collect(environment)?;
    let experiment = user_directory.own.path().join("ktest.1.er");
    kcollect.until("an experiment", || experiment.exists())?;
    let attacker = user_directory.start(&format!("n=$$\n{attack}"))?;
    attacker.finish()?.succeeded()?;
    kcollect.signal(Signal::SIGINT)?;
    let finished = kcollect.finish()?;
    ensure!(!finished.stderr.contains("panicked"), "{finished}");
    user_directory.untouched(&finished)?;
    Ok(finished)
}

#[test]
fn root_the_owner_of_the_directory_cannot_redirect_writes() -> Result<()> {
    let _machine = Shared::take()?;
    let user_directory = UserDirectory::make()?;
    // Other processes start and exit while the directory is elsewhere.
    let attack = "mv ktest.1.er taken.er && ln -s $0 ktest.1.er || exit 1\n\
                  ./proctorture one:300; ./proctorture one:300; sleep 0.5";
    let finished = attacked(&user_directory, &[], attack)?;
    ensure!(finished.code() == 74, "{finished}");
    ensure!(finished.stderr.contains("taken.er"), "{finished}");
    let opened = opened(&user_directory.own.path().join("taken.er"))?;
    ensure!(opened.closed && opened.ticks > 0, "{opened:?}");
    Ok(())
}

#[test]
fn root_the_owner_of_the_experiment_cannot_redirect_writes() -> Result<()> {
    let _machine = Shared::take()?;
    let sudo = [("SUDO_UID", "65534"), ("SUDO_GID", "65534")];
    let attacks = [
        // Its own subexperiment is a link already.
        "until [ -e ktest.1.er/log.xml ]; do sleep 0.01; done\n\
         ln -s $0 ktest.1.er/_proctorture_PID_$n.1.er && exec ./proctorture one:700",
        // So are the files that are made at the end, and the directory that copies go to.
        "until [ -e ktest.1.er/archives ]; do sleep 0.01; done; sleep 0.5\n\
         cd ktest.1.er && mv archives aside && ln -s $0 archives || exit 1\n\
         for f in kcollect.json threads.jsonl overview log.xml map.xml profile data.frameinfo; do\n\
         rm -f $f; ln -s $0/$f $f; done; cd ..\n./proctorture one:500",
        // Subexperiments that are written go elsewhere, and come back as links.
        "until [ -e ktest.1.er/log.xml ]; do sleep 0.01; done\n./proctorture one:500 sleep:700 & sleep 0.6\n\
         cd ktest.1.er; for d in _*.er; do mv $d gone$d && ln -s $0 $d; done; wait; sleep 0.3",
    ];
    for attack in attacks {
        let user_directory = UserDirectory::make()?;
        let finished =
            attacked(&user_directory, &sudo, attack).with_context(|| attack.to_owned())?;
        ensure!([0, 74].contains(&finished.code()), "{finished}");
    }
    Ok(())
}
