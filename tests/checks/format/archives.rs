//! What is in an experiment of the files of followed processes: all that stock gprofng needs to
//! name their functions, when the files are deleted and the experiment is elsewhere; nothing that
//! the user of `sudo` may not read; and no more than `-A` asks for.

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use experiment_format::archive::{ARCHIVES, archive_name};
use nix::sys::signal::Signal;
use serde_json::Value;
use tempfile::TempDir;
use tests::command::{POLL_INTERVAL, Running, run};
use tests::gprofng;
use tests::kcollect::{Recording, binary, command, experiment_in, record};
use tests::machine::disturbance::judge_times;
use tests::machine::{Shared, alone, has_btrfs};
use tests::workload::proctorture::PROCTORTURE;

const LIMIT: Duration = Duration::from_secs(60);

/// A directory in which programs are compiled.
struct Workshop {
    directory: TempDir,
}

impl Workshop {
    fn new() -> Result<Workshop> {
        let directory = TempDir::new()?;
        fs::set_permissions(directory.path(), Permissions::from_mode(0o755))?;
        // A copy, so that no other load object has its path.
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("workloads/archived.c");
        fs::copy(source, directory.path().join("archived.c"))?;
        Ok(Workshop { directory })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn compile(&self, name: &str, arguments: &[&str]) -> Result<()> {
        let compiler = std::env::var_os("CLANG").unwrap_or_else(|| "clang".into());
        let mut compile = Command::new(compiler);
        compile
            .current_dir(self.directory.path())
            .args(["-O1", "-gdwarf-4", "-Wl,--build-id", "-Wl,--no-as-needed"])
            .arg(self.path("archived.c"))
            .args(arguments)
            .arg("-o")
            .arg(self.path(name));
        run(&mut compile, LIMIT)?.succeeded()?;
        Ok(())
    }

    /// `program` and `libwork.so`, with functions of this name; and `libidle.so`, which is mapped,
    /// and in which nothing runs, not even at the start: C's libraries initialise themselves.
    fn make(&self, name: &str) -> Result<()> {
        let library = format!("-DIN_LIBRARY={name}_in_library");
        let own = format!("-DIN_PROGRAM={name}_in_program");
        self.compile("libwork.so", &["-DLIBRARY", "-shared", "-fPIC", &library])?;
        let idle = ["-DIDLE", "-shared", "-fPIC", "-nostdlib"];
        self.compile("libidle.so", &idle)?;
        let search = format!("-Wl,-rpath,{}", self.directory.path().display());
        self.compile(
            "program",
            &[&library, &own, "libwork.so", "libidle.so", &search],
        )
    }

    fn start(&self, seconds: &str) -> Result<Running> {
        Running::start(Command::new(self.path("program")).arg(seconds), LIMIT)
    }

    /// Records the program, with these options.
    fn record(&self, options: &[&str]) -> Result<(BTreeSet<String>, Value)> {
        let program = self.path("program");
        let load = [program.to_str().context("a path of text")?, "1"];
        let recorded = record(options, &load, LIMIT)?;
        let experiment = recorded.experiment()?;
        Ok((archived(&experiment)?, summary(&experiment)?))
    }
}

/// Returns the names of the files in `archives/`.
fn archived(experiment: &Path) -> Result<BTreeSet<String>> {
    let directory = experiment.join(ARCHIVES);
    if !directory.exists() {
        return Ok(BTreeSet::new());
    }
    fs::read_dir(directory)?
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect()
}

fn summary(experiment: &Path) -> Result<Value> {
    let text = fs::read_to_string(experiment.join("kcollect.json"))?;
    Ok(serde_json::from_str(&text)?)
}

/// Returns gprofng's table of user time by function, exclusive.
fn functions(experiment: &Path) -> Result<gprofng::Table> {
    let output = gprofng::script(&["metrics e.user:name", "functions"], experiment)?;
    Ok(output.content()?.table(1))
}

fn have_time(table: &gprofng::Table, names: &[&str]) -> Result<()> {
    for name in names {
        ensure!(
            table.get(name) > 0.02,
            "{name} has {} s of\n{table:#?}",
            table.get(name)
        );
    }
    Ok(())
}

#[test]
fn root_alone_names_outlive_the_files() -> Result<()> {
    alone(|| {
        let workshop = Workshop::new()?;
        workshop.make("one")?;
        let mut recording = Recording::start(["-p", "hi", "-F", "=^program$"], LIMIT)?;
        recording.until_running()?;
        let one = workshop.start("3")?;
        sleep(Duration::from_millis(1500));
        // Another program takes the path of one that runs.
        fs::remove_file(workshop.path("program"))?;
        fs::remove_file(workshop.path("libwork.so"))?;
        workshop.make("two")?;
        let two = workshop.start("2")?;
        one.finish()?.succeeded()?;
        two.finish()?.succeeded()?;
        drop(workshop);
        let recorded = recording.stop()?;
        let elsewhere = TempDir::new()?;
        let experiment = elsewhere.path().join("moved.er");
        fs::rename(recorded.experiment()?, &experiment)?;

        let table = functions(&experiment)?;
        have_time(
            &table,
            &[
                "one_in_program",
                "one_in_library",
                "two_in_program",
                "two_in_library",
                "__vdso_clock_gettime",
            ],
        )?;
        let of = |name: &str| {
            table.get(&format!("{name}_in_program")) + table.get(&format!("{name}_in_library"))
        };
        ensure!(of("one") > of("two"), "{table:#?}");
        let archive = &summary(&experiment)?["archive"];
        ensure!(
            archive["left_out"].as_array().is_some_and(Vec::is_empty),
            "{archive:#}"
        );
        let names = archived(&experiment)?;
        let programs = names.iter().filter(|name| name.starts_with("program"));
        ensure!(programs.count() == 2, "{names:?}");
        Ok(())
    })
}

#[test]
fn root_each_archive_option_copies_what_it_names() -> Result<()> {
    let _machine = Shared::take()?;
    let workshop = Workshop::new()?;
    workshop.make("it")?;
    let has =
        |names: &BTreeSet<String>, start: &str| names.iter().any(|name| name.starts_with(start));
    let options = |archive| ["-p", "hi", "-F", "load", "-A", archive];
    let source = archive_name(workshop.path("archived.c").to_str().context("text")?);

    let (off, summary) = workshop.record(&options("off"))?;
    ensure!(off.is_empty(), "-A off: {off:?}");
    ensure!(summary["archive"].is_null(), "{:#}", summary["archive"]);

    let (on, summary) = workshop.record(&options("on"))?;
    for name in [
        "program_",
        "libwork.so_",
        "libidle.so_",
        "[vdso]_",
        "vmlinux_",
    ] {
        ensure!(has(&on, name), "-A on without {name}: {on:?}");
    }
    ensure!(!on.contains(&source), "-A on has sources: {on:?}");
    ensure!(
        summary["archive"]["objects"].as_u64() >= Some(5),
        "{summary:#}"
    );

    // Others may be used: kcollect itself, by a tick between the load's fork and its execve.
    let (used, _) = workshop.record(&options("usedldobjects"))?;
    ensure!(
        has(&used, "program_") && has(&used, "libwork.so_") && !has(&used, "libidle.so_"),
        "-A usedldobjects: {used:?}"
    );

    for with_sources in ["src", "usedsrc", "all"] {
        let (names, summary) = workshop.record(&options(with_sources))?;
        ensure!(
            has(&names, "program_") && names.contains(&source),
            "-A {with_sources}: {names:?}\n{:#}",
            summary["archive"]
        );
    }
    Ok(())
}

#[test]
fn root_unreadable_programs_are_not_copied() -> Result<()> {
    let _machine = Shared::take()?;
    let workshop = Workshop::new()?;
    workshop.make("it")?;
    let program = workshop.path("program");
    let marker = b"the text of an archived program";
    for (mode, given) in [(0o711, false), (0o755, true)] {
        fs::set_permissions(&program, Permissions::from_mode(mode))?;
        let directory = TempDir::new()?;
        let mut kcollect = command(["-p", "hi", "-F", "on", "--"])?;
        kcollect
            .arg(&program)
            .arg("1")
            .current_dir(directory.path());
        kcollect.env("SUDO_UID", "65534").env("SUDO_GID", "65534");
        run(&mut kcollect, LIMIT)?.succeeded()?;
        let experiment = experiment_in(directory.path())?;
        let name = archive_name(program.to_str().context("a path of text")?);
        let copy = fs::read(experiment.join(ARCHIVES).join(name))?;
        let found = copy.windows(marker.len()).any(|bytes| bytes == marker);
        ensure!(found == given, "mode {mode:o}: its text is there: {found}");
        have_time(&functions(&experiment)?, &["it_in_program"])?;
        let archive = &summary(&experiment)?["archive"];
        let withheld = archive["names_only"].as_u64();
        ensure!((withheld == Some(0)) == given, "{archive:#}");
    }
    Ok(())
}

/// The files take longer to copy than the summary may take.
#[test]
fn root_alone_the_summary_does_not_wait_for_archives() -> Result<()> {
    judge_times(|| {
        const LARGE: u64 = 900 << 20;
        let workshop = Workshop::new()?;
        workshop.make("it")?;
        let search = format!("-Wl,-rpath,{}", workshop.directory.path().display());
        let mut args = vec![
            "-DIN_LIBRARY=it_in_library".to_owned(),
            "-DIN_PROGRAM=it_in_program".to_owned(),
            "libwork.so".to_owned(),
            search,
        ];
        for number in 0..4 {
            let name = format!("liblarge{number}.so");
            let function = format!("-DIN_LIBRARY=large_{number}");
            workshop.compile(&name, &["-DLIBRARY", "-shared", "-fPIC", &function])?;
            fs::File::options()
                .write(true)
                .open(workshop.path(&name))?
                .set_len(LARGE)?;
            args.push(name);
        }
        workshop.compile(
            "program",
            &args.iter().map(String::as_str).collect::<Vec<_>>(),
        )?;

        let mut recording = Recording::start(["-p", "hi", "-F", "=^program$"], LIMIT)?;
        recording.until_running()?;
        let program = workshop.start("20")?;
        sleep(Duration::from_millis(700));
        let stopped = Instant::now();
        recording.signal(Signal::SIGINT)?;
        while !recording.running().has_printed()? {
            ensure!(
                stopped.elapsed() < Duration::from_secs(2),
                "no summary after {:?}",
                stopped.elapsed()
            );
            sleep(POLL_INTERVAL);
        }
        println!("the summary came after {:?}", stopped.elapsed());
        let gave_up = Instant::now();
        recording.signal(Signal::SIGINT)?;
        let recorded = recording.finish()?.succeeded()?;
        let took = gave_up.elapsed();
        drop(program);
        ensure!(
            took < Duration::from_secs(3),
            "it gave up after {took:?}: {}",
            recorded.finished
        );
        let experiment = recorded.experiment()?;
        ensure!(gprofng::header(&experiment)?.closed, "not closed");
        let archive = &summary(&experiment)?["archive"];
        ensure!(archive["given_up"] == Value::Bool(true), "{archive:#}");
        let mut left_out = archive["left_out"].as_array().into_iter().flatten();
        let given_up = left_out.find(|row| row["cause"] == "given_up");
        let name = given_up.and_then(|row| row["name"].as_str());
        let name = name.with_context(|| format!("{archive:#}"))?;
        let log = fs::read_to_string(experiment.join("log.xml"))?;
        ensure!(log.contains(name), "{name}: {log}");
        let names = archived(&experiment)?;
        ensure!(
            !names.iter().any(|name| name.starts_with('.')),
            "a piece is left: {names:?}"
        );
        Ok(())
    })
}

/// The load has as many descriptors as kcollect was given, though kcollect takes more for the files
/// that it keeps open.
#[test]
fn root_the_load_has_the_resource_limits_of_its_caller() -> Result<()> {
    let _machine = Shared::take()?;
    let directory = TempDir::new()?;
    let kcollect = tests::kcollect::binary()?;
    let script = format!(
        "ulimit -Sn 500; exec {} -p hi -F off -- sh -c 'echo soft limit $(ulimit -Sn)'",
        kcollect.display()
    );
    let mut shell = Command::new("sh");
    shell.args(["-c", &script]).current_dir(directory.path());
    let finished = run(&mut shell, LIMIT)?;
    ensure!(finished.stdout.contains("soft limit 500"), "{finished}");
    Ok(())
}

/// On a file system that can share blocks, a copy takes only those that differ: its header and its
/// symbol table.
#[test]
fn root_a_copy_shares_the_blocks_of_its_file_where_it_can() -> Result<()> {
    if !has_btrfs()? {
        return Ok(());
    }
    let _machine = Shared::take()?;
    let directory = TempDir::new()?;
    let script = "cd \"$2\"; truncate -s 400M image; mkfs.btrfs -q image; mkdir files; \
         mount -o loop image files; cp \"$3\" files/sharing; sync; \
         \"$1\" -p on -F '=^sharing$' -d files -- files/sharing deep:40,1500 >&2; sync; \
         filefrag -v files/ktest.1.er/archives/sharing*";
    let mut in_mounts = Command::new("unshare");
    in_mounts.args(["-m", "sh", "-ec", script, "sh"]).args([
        &binary()?,
        directory.path(),
        Path::new(PROCTORTURE),
    ]);
    let extents = run(&mut in_mounts, LIMIT)?.succeeded()?;
    ensure!(extents.stdout.contains("shared"), "{extents}");
    Ok(())
}
