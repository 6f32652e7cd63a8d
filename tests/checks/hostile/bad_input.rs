//! Whatever is wrong with the command line or the machine is a clear error with its hint and its
//! own exit code, and nothing is left over.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tests::command::{Finished, run};
use tests::kcollect::{binary, command, run_in};
use tests::machine::Shared;
use tests::machine::disturbance::not_judged;

const USAGE: i32 = 64;
const NO_INPUT: i32 = 66;
const UNAVAILABLE: i32 = 69;
const CANNOT_CREATE: i32 = 73;
const NO_PERMISSION: i32 = 77;

const LIMIT: Duration = Duration::from_secs(30);

/// Arguments, the exit code, and words of the message.
const WRONG: [(&[&str], i32, &str); 29] = [
    (&["-o", "experiment"], USAGE, ".er"),
    (&["-o", ".er"], USAGE, ".er"),
    (&["-g", "group"], USAGE, ".erg"),
    (&["-p", "2000"], USAGE, "-p 2000"),
    (&["-p", "-5"], USAGE, "-p -5"),
    (&["-p", "often"], USAGE, "-p often"),
    (&["-p", "nan"], USAGE, "-p nan"),
    (&["-p", "off"], USAGE, "-p off"),
    (&["-t", "5-2"], USAGE, "-t 5-2"),
    (&["-t", "soon"], USAGE, "-t soon"),
    (&["-l", "USR1", "-y", "USR1"], USAGE, "SIGUSR1"),
    (&["-l", "10", "-y", "SIGUSR1,r"], USAGE, "SIGUSR1"),
    (&["-y", "SIGNOPE"], USAGE, "SIGNOPE"),
    (&["-l", "999"], USAGE, "999"),
    (&["-y", "KILL"], USAGE, "SIGKILL"),
    (&["-y", "USR1,x"], USAGE, "-y USR1,x"),
    (&["-x", "maybe"], USAGE, "-x maybe"),
    (&["-S", "0"], USAGE, "-S 0"),
    (&["-L", "0"], USAGE, "-L 0"),
    (&["-L", "-1"], USAGE, "-L -1"),
    (&["-A", "some"], USAGE, "-A some"),
    (&["-q", "x"], USAGE, "-q x"),
    (&["-F", "maybe"], USAGE, "-F maybe"),
    (&["-F", "=ssh("], USAGE, "-F =ssh("),
    (&["-T", "init"], USAGE, "-T init"),
    (&["-T", "4194304"], NO_INPUT, "4194304"),
    (&["-T", "1/4194304"], NO_INPUT, "4194304"),
    (&["-d", "missing"], CANNOT_CREATE, "missing"),
    (&["--no-such-option"], USAGE, "--no-such-option"),
];

#[test]
fn root_wrong_command_lines_are_refused() -> Result<()> {
    let _machine = Shared::take()?;
    let directory = tempfile::tempdir()?;
    let mut wrong = Vec::new();
    for (args, code, fragment) in WRONG {
        // With a time limit, a word that is accepted by mistake does not record for ever.
        let arguments: Vec<&str> = if args.contains(&"-t") {
            vec![]
        } else {
            vec!["-t", "1"]
        };
        let arguments = [args, &arguments[..]].concat();
        let finished = run_in(directory.path(), &arguments, LIMIT)?;
        if let Err(error) =
            refused(&finished, code, fragment).and_then(|()| empty(directory.path()))
        {
            wrong.push(format!("{error:#}"));
        }
    }
    ensure!(
        wrong.is_empty(),
        "{} of {} are not refused well:\n{}",
        wrong.len(),
        WRONG.len(),
        wrong.join("\n\n")
    );
    Ok(())
}

#[test]
fn root_intervals_below_the_minimum_are_raised() -> Result<()> {
    let _machine = Shared::take()?;
    let directory = tempfile::tempdir()?;
    let finished = run_in(directory.path(), &["-n", "-p", "1u"], LIMIT)?.succeeded()?;
    let output = finished.stdout.clone() + &finished.stderr;
    ensure!(
        output.contains("0.001 ms") && output.contains("0.100 ms"),
        "{finished}"
    );
    empty(directory.path())
}

#[test]
fn root_a_name_in_use() -> Result<()> {
    let _machine = Shared::take()?;
    let directory = tempfile::tempdir()?;
    fs::create_dir(directory.path().join("taken.er"))?;
    let finished = run_in(directory.path(), &["-o", "taken.er", "-t", "1"], LIMIT)?;
    refused(&finished, CANNOT_CREATE, "taken.er")?;

    // The number of an experiment of a series is one more than the largest.
    fs::create_dir(directory.path().join("ktest.1.er"))?;
    fs::create_dir(directory.path().join("ktest.7.er"))?;
    let arguments = ["-o", "ktest.1.er", "-p", "hi", "-x", "off", "-t", "1"];
    let finished = run_in(directory.path(), &arguments, LIMIT)?.succeeded()?;
    let output = finished.stdout.clone() + &finished.stderr;
    ensure!(
        output.contains("ktest.1.er") && output.contains("ktest.8.er"),
        "{finished}"
    );
    ensure!(
        directory.path().join("ktest.8.er/log.xml").is_file(),
        "{finished}"
    );
    Ok(())
}

#[test]
fn root_a_directory_that_is_a_file() -> Result<()> {
    let _machine = Shared::take()?;
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("file");
    fs::write(&file, "")?;
    let finished = run(
        &mut command(["-t".as_ref(), "1".as_ref(), "-d".as_ref(), file.as_os_str()])?,
        LIMIT,
    )?;
    refused(&finished, CANNOT_CREATE, "file")
}

#[test]
fn root_a_link_is_not_followed() -> Result<()> {
    let _machine = Shared::take()?;
    let directory = tempfile::tempdir()?;
    let elsewhere = tempfile::tempdir()?;
    std::os::unix::fs::symlink(elsewhere.path(), directory.path().join("link.er"))?;
    let finished = run_in(directory.path(), &["-o", "link.er", "-t", "1"], LIMIT)?;
    refused(&finished, CANNOT_CREATE, "link.er")?;
    empty(elsewhere.path())
}

#[test]
fn root_an_unprivileged_user_is_refused() -> Result<()> {
    let _machine = Shared::take()?;
    let directory = tempfile::tempdir()?;
    chown(directory.path(), Some(65534), Some(65534))?;
    // A copy, since other users may not enter the directory of the build.
    let program = directory.path().join("kcollect");
    fs::copy(binary()?, &program)?;
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(&program)
        .args(["-p", "on", "-t", "1"]);
    let finished = run(command.current_dir(directory.path()), LIMIT)?;
    refused(&finished, NO_PERMISSION, "sudo")?;
    fs::remove_file(&program)?;
    empty(directory.path())
}

#[test]
fn root_a_kernel_without_btf_is_refused() -> Result<()> {
    let _machine = Shared::take()?;
    let directory = tempfile::tempdir()?;
    let finished = run_behind("mount -t tmpfs none /sys/kernel/btf", directory.path())?;
    refused(&finished, UNAVAILABLE, "BTF")?;
    empty(directory.path())
}

#[test]
fn root_a_locked_down_kernel_is_refused() -> Result<()> {
    let _machine = Shared::take()?;
    if !Path::new("/sys/kernel/security").is_dir() {
        not_judged(format_args!("this kernel has no /sys/kernel/security"));
        return Ok(());
    }
    let directory = tempfile::tempdir()?;
    let lock = "mount -t tmpfs none /sys/kernel/security && \
                echo 'none integrity [confidentiality]' > /sys/kernel/security/lockdown";
    let finished = run_behind(lock, directory.path())?;
    refused(&finished, UNAVAILABLE, "lockdown")?;
    empty(directory.path())
}

/// Runs kcollect in mounts of its own, changed by a line of shell.
fn run_behind(change: &str, directory: &Path) -> Result<Finished> {
    let mut command = Command::new("unshare");
    let script = format!("{change} && exec \"$0\" \"$@\"");
    command
        .args(["--mount", "sh", "-c", &script])
        .arg(binary()?)
        .args(["-p", "on", "-t", "1"]);
    run(command.current_dir(directory), LIMIT)
}

/// Checks that it ended with this code and one line that has the words and a hint.
fn refused(finished: &Finished, code: i32, fragment: &str) -> Result<()> {
    ensure!(finished.code() == code, "code {code} was due: {finished}");
    let line = finished
        .stderr
        .lines()
        .find(|line| line.contains(fragment))
        .with_context(|| format!("there is no message of {fragment:?}: {finished}"))?;
    let form = line.starts_with("kcollect: ") && line.matches(": ").count() >= 2;
    ensure!(form, "the message has no hint: {finished}");
    ensure!(!finished.stderr.contains("panicked"), "{finished}");
    Ok(())
}

fn empty(directory: &Path) -> Result<()> {
    let left: Vec<_> = fs::read_dir(directory)?
        .flatten()
        .map(|entry| entry.file_name())
        .collect();
    ensure!(left.is_empty(), "{left:?} was left over");
    Ok(())
}
