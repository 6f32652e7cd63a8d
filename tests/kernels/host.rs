//! The host: makes the machines, waits for them, and judges their results.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use tempfile::TempDir;
use tests::command::{Finished, run};
use tests::kcollect::binary;
use tests::workload::compat32;
use tests::workload::loads;
use tests::workload::{io_calls, locked, memory, proctorture};

use crate::cpus;
use crate::initramfs::Initramfs;
use crate::judge::{Verdict, judge};
use crate::kernel::{self, Kernel};
use crate::runs::{
    ALLOCATIONS, CHOSEN_RUNS, DONE, IO_CALLS, KCOLLECT, LOCKED, MODULES, OVERFLOWING, REAL_TIME,
    RING_IO, SAMPLED, SCHEDULER, SELF, WITHOUT, WORKLOADS,
};
use crate::tested;
use crate::verifier;

/// Maximum time that a machine runs: a minute and a half, if no other program wants the CPUs.
const LIMIT: Duration = Duration::from_secs(600);
/// Maximum time that a tool runs which handles files.
const TOOL_LIMIT: Duration = Duration::from_secs(60);

/// Arguments of qemu: half a billion instructions a second, without waits for sleeping CPUs.
const COUNTED: [&str; 6] = [
    "-smp",
    "1",
    "-accel",
    "tcg,thread=single",
    "-icount",
    "shift=1,sleep=off",
];
/// Arguments of qemu: two CPUs in one thread. Were each a thread of qemu, an instruction that one
/// of them replaces while the other runs it could be stale there: a kernel crashed at such an
/// `int3`, which it writes where a tracepoint is switched on.
const TWO_CPUS: [&str; 4] = ["-smp", "2", "-accel", "tcg,thread=single"];
/// The CPU of qemu with all its features, except an instruction after which qemu spoiled the flags.
const CPU_MODEL: &str = "max";
/// The kernel's arguments: it prints to the host, and the machine ends when it fails.
const KERNEL_WORDS: &str = "console=ttyS0 quiet panic=-1 tsc=reliable no_timer_check";

/// The size of the disk that files are written to, bytes. It is a sparse file.
const DISK_BYTES: u64 = 256 << 20;
/// The size of the disk of the results, bytes. It is a sparse file.
const RESULT_DISK_BYTES: u64 = 1 << 30;
/// The file that is the guest's second disk, to which it writes its results.
const RESULTS: &str = "results";

/// Runs the machines.
///
/// # Errors
/// When something is wrong on a kernel; the message says what.
pub(crate) fn main() -> Result<()> {
    let kernels = kernel::all()?;
    let common = common()?;
    if let Ok(cpus) = std::env::var("CPUS") {
        let newest = kernels.last().context("a kernel")?;
        return many_cpus(newest, &cpus, &common);
    }
    let one = try_on_each(&kernels, &COUNTED, &common);
    let two = try_on_each(&kernels, &TWO_CPUS, &common);
    let mut wrong = Vec::new();
    let mut costs = Vec::new();
    for ((kernel, one), two) in kernels.iter().zip(one).zip(two) {
        let release = &kernel.release;
        println!("\nLinux {release}");
        for (cpus, result) in [(1, one), (2, two)] {
            match result {
                Ok(verdict) => {
                    for line in verdict.notes {
                        println!("  {cpus} CPU: {line}");
                    }
                    let errors = verdict.wrong.into_iter();
                    wrong.extend(errors.map(|error| format!("Linux {release}: {error:#}")));
                    if !verdict.programs.is_empty() {
                        costs.push((release.clone(), verdict.programs));
                    }
                }
                Err(error) => wrong.push(format!("Linux {release}: {error:#}")),
            }
        }
    }
    println!("\n{}\n", verifier::table(&costs));
    if costs.len() < kernels.len() {
        wrong.push("not of every kernel it is known what the programs cost".to_owned());
    }
    if wrong.is_empty() {
        let releases: Vec<_> = kernels.iter().map(|kernel| &*kernel.release).collect();
        return tested::write(&releases);
    }
    bail!("{} things are wrong:\n{}", wrong.len(), wrong.join("\n"))
}

/// Boots a kernel with each of these numbers of CPUs, `8,16`, and prints what kcollect took.
fn many_cpus(kernel: &Kernel, numbers: &str, common: &Initramfs) -> Result<()> {
    let (mut taken, mut wrong) = (Vec::new(), Vec::new());
    for number in numbers.split(',') {
        let cpus = [&["-smp", number], &TWO_CPUS[2..]].concat();
        let verdict = try_on(kernel, &cpus, common)?;
        for line in verdict.notes {
            println!("  {number} CPUs: {line}");
        }
        let errors = verdict.wrong.into_iter();
        wrong.extend(errors.map(|error| format!("{number} CPUs: {error:#}")));
        taken.extend(verdict.taken);
    }
    println!("\n{}\n", cpus::table(&taken));
    ensure!(
        wrong.is_empty() && !taken.is_empty(),
        "wrong on Linux {}:\n{}",
        kernel.release,
        wrong.join("\n")
    );
    Ok(())
}

/// Returns the files of every machine: kcollect, this program, the workloads, and some programs of
/// the distribution.
fn common() -> Result<Initramfs> {
    let mut files = Initramfs::default();
    let own = std::env::current_exe()?;
    files.program(&own, SELF)?;
    files.program(&binary()?, KCOLLECT)?;
    let sibling = Path::new(env!("CARGO_BIN_EXE_mixed"));
    for load in loads::all() {
        let args = load.args(sibling, "", 0);
        let program = Path::new(&args[0]);
        let name = program.file_name().context("a program has a name")?;
        files.program(program, Path::new(WORKLOADS).join(name))?;
    }
    // It has the same path as in the build.
    files.program(Path::new(compat32::PROGRAM), compat32::PROGRAM)?;
    files.program(Path::new(proctorture::PROCTORTURE), "/proctorture")?;
    files.program(Path::new(env!("OVERFLOWING_PROGRAM")), OVERFLOWING)?;
    files.file(Path::new(env!("SCHEDULER_PROGRAM")), SCHEDULER)?;
    files.program(Path::new(locked::LOCKED), LOCKED)?;
    files.program(Path::new(io_calls::IO_CALLS), IO_CALLS)?;
    files.program(Path::new(env!("CARGO_BIN_EXE_ring_io")), RING_IO)?;
    files.program(Path::new(memory::ALLOCATIONS), ALLOCATIONS)?;
    files.program(Path::new(memory::SAMPLED), SAMPLED)?;
    for name in ["sh", "true", "tar"] {
        let path = PathBuf::from("/bin").join(name);
        files.program(&path, &path)?;
    }
    python(&mut files)?;
    Ok(files)
}

/// Adds the Python interpreter and the files that it reads at its start, if it is installed.
fn python(files: &mut Initramfs) -> Result<()> {
    const PYTHON: &str = "/usr/bin/python3";
    const READ: &str = "import sys, os, encodings.ascii, encodings.latin_1, encodings.utf_8
print(*[module.__file__ for module in sys.modules.values() if getattr(module, '__file__', None)], sep='\\n')";
    if !Path::new(PYTHON).exists() {
        return Ok(());
    }
    let mut python = Command::new(PYTHON);
    let output = run(python.args(["-I", "-S", "-c", READ]), TOOL_LIMIT)?.succeeded()?;
    files.program(Path::new(PYTHON), "/python3")?;
    for path in output.stdout.lines().map(Path::new) {
        files.file(path, path)?;
    }
    Ok(())
}

/// Tries all kernels, as many at once as this machine has CPUs: none takes more than one of them.
fn try_on_each(kernels: &[Kernel], cpus: &[&str], common: &Initramfs) -> Vec<Result<Verdict>> {
    let at_once = thread::available_parallelism().map_or(1, Into::into);
    let together = |some: &[Kernel]| -> Vec<_> {
        thread::scope(|scope| {
            let threads: Vec<_> = some
                .iter()
                .map(|kernel| scope.spawn(|| try_on(kernel, cpus, common)))
                .collect();
            let ended = threads.into_iter().map(|thread| thread.join());
            ended
                .map(|end| end.unwrap_or_else(|_| Err(anyhow!("a judge panicked"))))
                .collect()
        })
    };
    kernels.chunks(at_once).flat_map(together).collect()
}

/// Boots a kernel, and judges what was recorded there.
fn try_on(kernel: &Kernel, cpus: &[&str], common: &Initramfs) -> Result<Verdict> {
    let place = TempDir::new()?;
    let path = |name: &str| place.path().join(name);
    let mut files = Initramfs::default();
    for (number, module) in kernel.modules.iter().enumerate() {
        let name = module.file_name().context("a module has a name")?;
        let name = format!("{number}-{}", name.to_string_lossy());
        files.file(module, Path::new(MODULES).join(name))?;
    }
    let archives = [common.encode(), files.encode()].concat();
    fs::write(path("initramfs"), archives)?;
    File::create(path("disk"))?.set_len(DISK_BYTES)?;
    // The directory is not in every user's PATH.
    let sbin = Path::new("/sbin/mkfs.ext4");
    let mut mkfs = Command::new(if sbin.exists() {
        sbin
    } else {
        Path::new("mkfs.ext4")
    });
    run(mkfs.arg("-q").arg(path("disk")), TOOL_LIMIT)?.succeeded()?;
    File::create(path(RESULTS))?.set_len(RESULT_DISK_BYTES)?;

    let ended = boot(kernel, cpus, place.path());
    let console = fs::read(path("console")).unwrap_or_default();
    let console = String::from_utf8_lossy(&console).into_owned();
    let ended = ended.with_context(|| format!("its console:\n{console}"))?;

    let results = path("unpacked");
    fs::create_dir(&results)?;
    let mut tar = Command::new("tar");
    tar.args(["--no-same-owner", "-xf"]).arg(path(RESULTS));
    let unpacked = run(tar.arg("-C").arg(&results), TOOL_LIMIT)?;
    ensure!(
        unpacked.code() == 0 && results.join(DONE).exists(),
        "the machine did not get to its end: {unpacked}\nits console:\n{console}"
    );
    if let Some(keep) = std::env::var_os("KEEP") {
        let keep = PathBuf::from(keep).join(format!("{}-{}", kernel.release, cpus[1]));
        fs::create_dir_all(&keep)?;
        run(
            Command::new("cp").arg("-a").arg(&results).arg(&keep),
            TOOL_LIMIT,
        )?
        .succeeded()?;
    }
    let mut verdict = judge(&results, kernel.is_real_time());
    verdict
        .notes
        .insert(0, format!("{:.0} s in qemu", ended.elapsed.as_secs_f64()));
    if !console.trim().is_empty() {
        verdict.notes.push(format!("console: {}", console.trim()));
    }
    Ok(verdict)
}

/// The kernel's command line.
fn kernel_words(kernel: &Kernel) -> String {
    let mut words = KERNEL_WORDS.to_owned();
    let chosen = std::env::var(CHOSEN_RUNS).ok();
    let chosen = chosen.or_else(|| kernel.is_real_time().then(|| REAL_TIME.join(",")));
    let environment = [
        (CHOSEN_RUNS, chosen),
        (WITHOUT, std::env::var(WITHOUT).ok()),
    ];
    for (name, value) in environment {
        if let Some(value) = value {
            words += &format!(" {name}={value}");
        }
    }
    words
}

fn boot(kernel: &Kernel, cpus: &[&str], place: &Path) -> Result<Finished> {
    let drive = |name: &str| {
        format!(
            "file={},format=raw,if=virtio,cache=unsafe",
            place.join(name).display()
        )
    };
    // It is killed when the process that started it exits.
    let mut qemu = Command::new("setpriv");
    qemu.args(["--pdeathsig", "KILL", "qemu-system-x86_64"])
        .args(["-no-user-config", "-nodefaults", "-no-reboot"])
        .args(["-display", "none", "-machine", "q35"])
        .args(cpus)
        .args(["-cpu", CPU_MODEL, "-m", "2G"])
        .arg("-kernel")
        .arg(&kernel.image)
        .arg("-initrd")
        .arg(place.join("initramfs"))
        .args(["-append", &kernel_words(kernel)])
        .arg("-serial")
        .arg(format!("file:{}", place.join("console").display()))
        .args(["-drive", &drive("disk"), "-drive", &drive(RESULTS)]);
    run(&mut qemu, LIMIT)?.succeeded()
}
