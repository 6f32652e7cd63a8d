//! Finds the packages with the debug files of files on this machine, by dpkg or rpm.
//!
//! Only the installed package of a file is asked for, not whether the other can be had: that takes
//! the network. Paths are of an experiment, which may be anybody's: they are arguments, never parts
//! of a command line of a shell, and only an answer about exactly such a path counts.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::process::{Command, Stdio};

/// Maximum number of files that are asked for.
const MAX_FILES: usize = 64;

/// Returns the names of the packages with debug files, by the absolute paths of files that are of
/// an installed package. Nothing on a machine with neither dpkg nor rpm.
#[must_use]
pub fn debug_packages<'a>(paths: &[&'a str]) -> HashMap<&'a str, String> {
    let paths = || paths.iter().copied().take(MAX_FILES);
    // A file below /usr may be listed without it, from before the directories were merged.
    let asked = paths().flat_map(|path| [Some(path), path.strip_prefix("/usr")]);
    let asked: Vec<_> = asked
        .flatten()
        .filter(|path| path.starts_with('/'))
        .collect();
    if asked.is_empty() {
        return HashMap::new();
    }
    if let Some(answer) = answer("dpkg-query", ["--search", "--"].iter().chain(&asked)) {
        let owners: HashMap<_, _> = owners(&answer).collect();
        let owner = |path: &str| {
            let merged = path.strip_prefix("/usr").and_then(|path| owners.get(path));
            Some(debian(owners.get(path).or(merged)?))
        };
        return paths()
            .filter_map(|path| Some((path, owner(path)?)))
            .collect();
    }
    let of_rpm = |path| {
        let format = ["--query", "--queryformat", "%{NAME}-debuginfo", "--file"];
        let name = answer("rpm", format.iter().chain(&[path]))?;
        // If a file belongs to no package, the answer is a sentence.
        (!name.contains(' ')).then_some(name)
    };
    paths()
        .filter_map(|path| Some((path, of_rpm(path)?)))
        .collect()
}

/// Returns a program's output. None: there is no such program. Its exit code does not matter: it
/// says only that some file belongs to no package.
fn answer(program: &str, arguments: impl Iterator<Item = impl AsRef<OsStr>>) -> Option<String> {
    let output = Command::new(program)
        .args(arguments)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output();
    Some(String::from_utf8_lossy(&output.ok()?.stdout).into_owned())
}

/// Returns the path and the first package of each line `package:arch, package: /path`.
fn owners(answer: &str) -> impl Iterator<Item = (&str, &str)> {
    answer.lines().filter_map(|line| {
        let (packages, path) = line.split_once(": ")?;
        let package = packages.split([',', ':']).next()?;
        (!package.contains(' ') && path.starts_with('/')).then_some((path, package))
    })
}

/// Returns the name of Debian's package with the debug files of a package.
fn debian(package: &str) -> String {
    match package {
        "libc6" => "libc6-dbg".to_owned(),
        other => format!("{other}-dbgsym"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owners_of_files_are_read() {
        let answer = "libc6:amd64: /lib/x86_64-linux-gnu/libc.so.6\n\
                      diversion by dash from: /bin/sh\n\
                      bash: /bin/bash\n\
                      a, b:amd64: /usr/share/doc: of both\n\
                      nonsense\n";
        let owners: Vec<_> = owners(answer).collect();
        assert_eq!(
            owners,
            [
                ("/lib/x86_64-linux-gnu/libc.so.6", "libc6"),
                ("/bin/bash", "bash"),
                ("/usr/share/doc: of both", "a"),
            ]
        );
        assert_eq!(debian("libc6"), "libc6-dbg");
        assert_eq!(debian("libmariadb3"), "libmariadb3-dbgsym");
    }

    #[test]
    fn a_file_of_no_package_has_none() {
        assert!(debug_packages(&["/nowhere/at all", "relative", "/usr/*"]).is_empty());
        assert!(debug_packages(&[]).is_empty());
    }

    #[test]
    fn this_machines_programs_have_packages() {
        let known = debug_packages(&["/usr/bin/env"]);
        if Command::new("dpkg-query").arg("--version").output().is_ok() {
            assert_eq!(known["/usr/bin/env"], "coreutils-dbgsym");
        }
    }
}
