//! The machine and the time of a measurement: ratios hold on other machines, times do not.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use tests::command::run;
use tests::machine::online_cpus;

/// Returns the machine, the time, the programs and the command, one line each.
pub(crate) fn describe(kcollect: &Path) -> Result<Vec<(String, String)>> {
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let lines = [
        (
            "machine",
            format!(
                "{} CPUs ({}), {}, {}",
                online_cpus()?.len(),
                processor()?,
                if virtual_machine()? {
                    "a virtual machine"
                } else {
                    "not virtual"
                },
                if has_counters() {
                    "hardware counters"
                } else {
                    "no hardware counters"
                },
            ),
        ),
        ("kernel", format!("Linux {}", kernel.trim())),
        (
            "date",
            says(Command::new("date").args(["-u", "+%F %H:%M UTC"])),
        ),
        (
            "programs",
            format!(
                "{}, {}",
                says(Command::new(kcollect).arg("-V")),
                says(Command::new("perf").arg("--version"))
            ),
        ),
        ("command", command()),
    ];
    Ok(lines
        .into_iter()
        .map(|(name, text)| (name.to_owned(), text))
        .collect())
}

/// Returns the first line that a program prints, or why it prints nothing.
fn says(command: &mut Command) -> String {
    let finished = run(command, Duration::from_secs(10));
    match finished.map(|finished| finished.stdout.lines().next().map(str::to_owned)) {
        Ok(line) => line.unwrap_or_default(),
        Err(error) => error.to_string(),
    }
}

fn command() -> String {
    let options: Vec<_> = std::env::args()
        .skip(1)
        .filter(|word| word != "--bench")
        .collect();
    let dashes = if options.is_empty() { "" } else { " -- " };
    format!(
        "cargo bench -p tests --bench cost{dashes}{}",
        options.join(" ")
    )
}

fn processor() -> Result<String> {
    Ok(cpuinfo("model name")?.unwrap_or_else(|| std::env::consts::ARCH.to_owned()))
}

fn virtual_machine() -> Result<bool> {
    Ok(cpuinfo("flags")?.is_some_and(|flags| flags.split(' ').any(|flag| flag == "hypervisor")))
}

/// Returns whether the kernel has a driver for the counters of the CPUs: of its event sources,
/// theirs name their CPUs so, where these are of two kinds, or else are called `cpu`.
fn has_counters() -> bool {
    fs::read_dir("/sys/bus/event_source/devices").is_ok_and(|mut sources| {
        sources.any(|source| {
            source.is_ok_and(|source| {
                source.file_name() == "cpu" || source.path().join("cpus").exists()
            })
        })
    })
}

/// Returns a field of the first CPU.
fn cpuinfo(field: &str) -> Result<Option<String>> {
    Ok(fs::read_to_string("/proc/cpuinfo")?
        .lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.trim() == field)
        .map(|(_, value)| value.trim().to_owned()))
}
