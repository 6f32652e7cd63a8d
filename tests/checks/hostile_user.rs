//! A user without privileges against a kcollect that runs as root. His are the profiled processes,
//! their files and their arguments, and the directory in which the experiment is made, or the
//! experiment itself. He gets nothing written outside of it, nothing of what only root may read
//! into it, and kcollect neither to hang nor to take all memory.
//!
//! Tried are: a perf map that is a link to a secret, or a secret mounted there; a perf map and a
//! program without end, a pipe in the place of a map; long arguments and environments; the
//! experiment, its archives, its files and its subexperiments exchanged for links to a directory of
//! root's while it is written.
//!
//! Elsewhere are names that are no names, tables that lie and code in odd places
//! ([`hostile_processes`](hostile_processes.rs)), programs that may be executed and not read
//! ([`archives`](archives.rs)), and bytes of all kinds ([`fuzz`](../fuzz/main.rs)).

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use tempfile::TempDir;
use tests::command::{Finished, Running};
use tests::experiment::files_below;
use tests::kcollect::{Recording, command};
use tests::machine::Exclusive;
use tests::opened::opened;
use tests::quarry::QUARRY;
use tests::random::SplitMix;

const LIMIT: Duration = Duration::from_secs(60);

/// A user and a group without any rights.
const NOBODY: u32 = 65534;

/// More than an ordinary run takes, bytes.
const MEMORY: u64 = 256 << 20;

/// Whom the recordings below follow: what else runs here costs time.
const QUARRIES: &str = "=^(quarry|large)$";

/// A directory of this user, with a quarry in it, and one of root's for what must not be touched.
struct Lair {
    own: TempDir,
    roots: TempDir,
}

impl Lair {
    fn make() -> Result<Self> {
        let (own, roots) = (tempfile::tempdir()?, tempfile::tempdir()?);
        fs::copy(QUARRY, own.path().join("quarry"))?;
        for path in [own.path(), roots.path(), &own.path().join("quarry")] {
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

    /// Root's directory is as it was.
    fn untouched(&self, kcollect: &Finished) -> Result<()> {
        let found: Vec<_> = fs::read_dir(self.roots.path())?
            .map(|entry| Ok(entry?.file_name()))
            .collect::<Result<_>>()?;
        ensure!(found.is_empty(), "{found:?} was written: {kcollect}");
        Ok(())
    }
}

/// What nobody else may see. This program is archived too, and does not hold it.
fn secret() -> String {
    format!(
        "the_secret_{:016x}",
        SplitMix(u64::from(std::process::id())).any()
    )
}

/// A perf map of all memory, in which each function has this name.
fn map_of_all(name: &str) -> String {
    let lines = (0x7e00_0000_0000_u64..0x8000_0000_0000).step_by(1 << 30);
    lines
        .map(|at| format!("{at:x} 40000000 {name}\n"))
        .collect()
}

/// Which of the files below a directory have these bytes.
fn telling(directory: &Path, words: &str) -> Result<Vec<PathBuf>> {
    let words = words.as_bytes();
    let mut telling = Vec::new();
    for path in files_below(directory)? {
        if path.is_file() && fs::read(&path)?.windows(words.len()).any(|at| at == words) {
            telling.push(path);
        }
    }
    Ok(telling)
}

/// What kcollect says of the code that followed processes made as they ran, by process id.
fn made(experiment: &Path) -> Result<Vec<(i64, serde_json::Value)>> {
    let text = fs::read_to_string(experiment.join("kcollect.json"))?;
    let summary: serde_json::Value = serde_json::from_str(&text)?;
    let rows = summary["followed"]["processes"].as_array();
    let rows = rows.context("followed processes")?;
    rows.iter()
        .map(|row| Ok((row["pid"].as_i64().context("a pid")?, row["jit"].clone())))
        .collect()
}

/// Ends a recording, which opens, and has not taken more memory than it may.
fn ended(recording: Recording) -> Result<tests::kcollect::Recorded> {
    let recorded = recording.stop()?;
    let experiment = recorded.experiment()?;
    opened(&experiment)?;
    let text = fs::read_to_string(experiment.join("kcollect.json"))?;
    let summary: serde_json::Value = serde_json::from_str(&text)?;
    let peak = summary["cost"]["peak_rss_bytes"]
        .as_u64()
        .context("a peak")?;
    ensure!(peak < MEMORY, "{peak} bytes: {}", recorded.finished);
    Ok(recorded)
}

#[test]
fn root_secrets_in_the_place_of_maps_stay_secret() -> Result<()> {
    let _machine = Exclusive::take()?;
    let lair = Lair::make()?;
    let (file, name) = (lair.roots.path().join("secret"), secret());
    fs::write(&file, map_of_all(&name))?;
    fs::set_permissions(&file, Permissions::from_mode(0o600))?;
    // What he may read is read, the same way: the attacks fail for the right reason.
    let harmless = name.replace("secret", "public");
    let own = lair.own.path().join("public");
    fs::write(&own, map_of_all(&harmless))?;
    chown(&own, Some(NOBODY), Some(NOBODY))?;
    let mut recording = Recording::start(["-p", "hi", "-F", QUARRIES], LIMIT)?;
    recording.until_running()?;
    // As another user of the same machine, who may mount what he cannot read; not where namespaces
    // are for root alone.
    let mounted = |file: &str| {
        format!(
            "exec unshare -Urm sh -c 'touch /tmp/perf-$$.map && mount --bind {file} /tmp/perf-$$.map && \
             exec ./quarry jit:1500' $0"
        )
    };
    let link = |to: &str| format!("ln -s {to} /tmp/perf-$$.map; exec ./quarry jit:1500");
    let attacks = [
        (link("$0/secret"), "not a regular file"),
        (link("/proc/self/root/$0/secret"), "not a regular file"),
        (mounted("$0/secret"), "belongs to user 0"),
        (mounted("./public"), ""),
    ];
    let attacks = attacks.map(|(attack, refusal)| (lair.start(&attack), refusal));
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
    let made = made(&recorded.experiment()?)?;
    for (pid, refusal) in refusals {
        let made = made.iter().find(|(of, _)| *of == pid);
        let (_, made) = made.with_context(|| format!("{pid} was not followed"))?;
        let said = made["refusal"].as_str().unwrap_or_default();
        ensure!(
            said.contains(refusal) && said.is_empty() == refusal.is_empty(),
            "{pid} should be refused for {refusal:?}: {made}"
        );
        if refusal.is_empty() {
            let told = telling(recorded.directory(), &harmless)?;
            ensure!(!told.is_empty(), "the user's own map was not read: {made}");
        }
    }
    let told = telling(recorded.directory(), &name)?;
    ensure!(told.is_empty(), "{told:?} tell the secret");
    Ok(())
}

#[test]
fn root_files_without_end_or_answer_are_given_up() -> Result<()> {
    let _machine = Exclusive::take()?;
    let lair = Lair::make()?;
    let mut recording = Recording::start(["-p", "hi", "-F", QUARRIES, "-A", "copy"], LIMIT)?;
    recording.until_running()?;
    let attacks = [
        "mkfifo /tmp/perf-$$.map; exec ./quarry jit:1200",
        "truncate -s 100G /tmp/perf-$$.map; exec ./quarry jit:1200",
        "cp quarry large; truncate -s 100G large; exec ./large one:200 sleep:1000",
        "exec ./quarry jit:100 say:$(head -c 100000 /dev/zero | tr '\\0' x) sleep:1000",
        "A=$(head -c 100000 /dev/zero | tr '\\0' '\\n') B=$A C=$A D=$A exec ./quarry jit:100 sleep:1000",
    ];
    let attacks = attacks.iter().map(|attack| lair.start(attack));
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
    // The pipe and the map without end are told; of the others there is nothing to tell.
    let made = made(&recorded.experiment()?)?;
    let refused = |(_, made): &(i64, serde_json::Value)| {
        made["refusal"]
            .as_str()
            .is_some_and(|why| why.contains("not a regular file"))
    };
    let unread = |(_, made): &(i64, serde_json::Value)| made["unread"].as_u64() > Some(90 << 30);
    ensure!(
        made.iter().any(refused) && made.iter().any(unread),
        "{made:?}"
    );
    let size: u64 = files_below(recorded.directory())?
        .iter()
        .map(|path| fs::symlink_metadata(path).map_or(0, |file| file.len()))
        .sum();
    ensure!(size < 1 << 30, "{size} bytes were written");
    Ok(())
}

/// Lets an attacker loose on the experiment once it is there; `$n` is its own number. Then ends the
/// recording.
fn attacked(lair: &Lair, environment: &[(&str, &str)], attack: &str) -> Result<Finished> {
    let mut kcollect = lair.collect(environment)?;
    let experiment = lair.own.path().join("ktest.1.er");
    kcollect.until("an experiment", || experiment.exists())?;
    let attacker = lair.start(&format!("n=$$\n{attack}"))?;
    attacker.finish()?.succeeded()?;
    kcollect.signal(Signal::SIGINT)?;
    let finished = kcollect.finish()?;
    ensure!(!finished.stderr.contains("panicked"), "{finished}");
    lair.untouched(&finished)?;
    Ok(finished)
}

#[test]
fn root_who_owns_the_parent_leads_it_nowhere() -> Result<()> {
    let _machine = Exclusive::take()?;
    let lair = Lair::make()?;
    // Others come and go while it stands elsewhere.
    let attack = "mv ktest.1.er taken.er && ln -s $0 ktest.1.er || exit 1\n\
                  ./quarry one:300; ./quarry one:300; sleep 0.5";
    let finished = attacked(&lair, &[], attack)?;
    ensure!(finished.code() == 0, "{finished}");
    let opened = opened(&lair.own.path().join("taken.er"))?;
    ensure!(opened.closed && opened.ticks > 0, "{opened:?}");
    Ok(())
}

#[test]
fn root_who_owns_the_experiment_leads_it_nowhere() -> Result<()> {
    let _machine = Exclusive::take()?;
    let sudo = [("SUDO_UID", "65534"), ("SUDO_GID", "65534")];
    let attacks = [
        // Its own subexperiment is a link already.
        "until [ -e ktest.1.er/log.xml ]; do sleep 0.01; done\n\
         ln -s $0 ktest.1.er/_quarry_PID_$n.1.er && exec ./quarry one:700",
        // So are the files that are made at the end, and the directory that copies go to.
        "until [ -e ktest.1.er/archives ]; do sleep 0.01; done; sleep 0.5\n\
         cd ktest.1.er && mv archives aside && ln -s $0 archives || exit 1\n\
         for f in kcollect.json threads.jsonl overview log.xml map.xml profile data.frameinfo; do\n\
         rm -f $f; ln -s $0/$f $f; done; cd ..\n./quarry one:500",
        // Subexperiments that are written go elsewhere, and come back as links.
        "until [ -e ktest.1.er/log.xml ]; do sleep 0.01; done\n./quarry one:500 sleep:700 & sleep 0.6\n\
         cd ktest.1.er; for d in _*.er; do mv $d gone$d && ln -s $0 $d; done; wait; sleep 0.3",
    ];
    for attack in attacks {
        let lair = Lair::make()?;
        let finished = attacked(&lair, &sudo, attack).with_context(|| attack.to_owned())?;
        ensure!([0, 74].contains(&finished.code()), "{finished}");
    }
    Ok(())
}
