//! The programs and libraries of this machine.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// Where distributions install programs.
const PROGRAMS: [&str; 1] = ["/usr/bin"];
/// Where they install libraries.
const LIBRARIES: [&str; 2] = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu"];
/// Programs that are not asked for their version: they do something else instead, for ever or to
/// this machine.
const LEFT_OUT: [&str; 6] = ["yes", "reboot", "poweroff", "halt", "shutdown", "telinit"];
/// Larger files take seconds each in the other tools.
const MAX_BYTES: u64 = 256 << 20;

fn files_in(directories: &[&str]) -> Result<BTreeSet<PathBuf>> {
    let mut found = BTreeSet::new();
    for directory in directories {
        let Ok(entries) = fs::read_dir(directory) else {
            continue;
        };
        for entry in entries {
            // A link leads to a file that is compared once.
            let Ok(path) = fs::canonicalize(entry?.path()) else {
                continue;
            };
            let metadata = fs::metadata(&path)?;
            if metadata.is_file() && metadata.len() <= MAX_BYTES {
                found.insert(path);
            }
        }
    }
    Ok(found)
}

/// Programs and shared libraries, by path.
pub(crate) fn objects() -> Result<Vec<PathBuf>> {
    let all = files_in(&[&PROGRAMS[..], &LIBRARIES[..]].concat())?;
    Ok(all.into_iter().filter(|path| is_elf(path)).collect())
}

/// Programs and scripts that may be executed with `--version`, by path.
pub(crate) fn programs() -> Result<Vec<PathBuf>> {
    let executable = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| !LEFT_OUT.contains(&name))
            && fs::metadata(path).is_ok_and(|metadata| metadata.permissions().mode() & 0o111 != 0)
    };
    Ok(files_in(&PROGRAMS)?
        .into_iter()
        .filter(executable)
        .collect())
}

/// Makes a shell script, in a directory that they may fill, that asks programs for their versions.
pub(crate) fn versions(directory: &Path, programs: &[PathBuf]) -> Result<String> {
    let mut text = format!("cd {}\nHOME=$PWD\nexport HOME\n", directory.display());
    for program in programs {
        let program = program.display();
        // In a group of its own, whatever it does with signals.
        writeln!(
            text,
            "timeout -k 1 5 '{program}' --version </dev/null >/dev/null 2>&1"
        )?;
    }
    let script = directory.join("versions.sh");
    fs::write(&script, text + "exit 0\n")?;
    Ok(script.to_str().context("no UTF-8")?.to_owned())
}

fn is_elf(path: &Path) -> bool {
    use std::io::Read as _;
    let mut magic = [0; 4];
    let read = fs::File::open(path).and_then(|mut file| file.read_exact(&mut magic));
    read.is_ok() && magic == *b"\x7fELF"
}
