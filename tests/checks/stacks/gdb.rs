//! Stacks that are called complete are gdb's, frame by frame: of installed programs that wait for
//! their input, so that both see the same stack.

use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Result, ensure};
use tests::gdb;
use tests::machine::Shared;

/// Programs that wait for their input, as far as they are installed.
const PROGRAMS: &[&[&str]] = &[
    &["cat"],
    &["sed", "p"],
    &["grep", "x"],
    &["sort"],
    &["tr", "a", "b"],
    &["cut", "-c1"],
    &["uniq"],
    &["wc"],
    &["od"],
    &["tee"],
    &["tail"],
    &["head"],
    &["md5sum"],
    &["gzip", "-c"],
    &["bzip2", "-c"],
    &["xz", "-c"],
    &["zstd", "-c"],
    &["xargs", "echo"],
    &["bash"],
    &["dash"],
    &["mawk", "1"],
    &["gawk", "1"],
    &["perl", "-ne", "1"],
    &["python3", "-c", "input()"],
    &["node", "-e", "require('fs').readSync(0, Buffer.alloc(1))"],
    &["ruby", "-e", "gets"],
    &["php", "-r", "fgets(STDIN);"],
    &["sqlite3"],
    &["openssl", "dgst"],
    &["bc"],
    &["ed"],
    &["make", "-f", "-"],
    &["tar", "-tf", "-"],
    &["git", "hash-object", "--stdin"],
    &["jq", "."],
    &["tclsh"],
    &["m4"],
    &["clang", "-xc", "-E", "-"],
    &["as", "-o", "/dev/null", "-"],
    &["java", "-version", "-"],
];
/// A program that waits until it is dropped.
struct Waiting(Child);

impl Drop for Waiting {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts those that are installed.
fn start() -> Result<Vec<Waiting>> {
    let mut waiting = Vec::new();
    for program in PROGRAMS {
        let mut command = Command::new(program[0]);
        command.args(&program[1..]).stdin(Stdio::piped());
        match command.stdout(Stdio::null()).stderr(Stdio::null()).spawn() {
            Ok(child) => waiting.push(Waiting(child)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(waiting)
}

#[test]
fn root_complete_stacks_are_those_of_gdb() -> Result<()> {
    let _machine = Shared::take()?;
    if !gdb::is_installed() {
        println!("not judged: no gdb");
        return Ok(());
    }
    let waiting = start()?;
    sleep(Duration::from_secs(2));
    let pids: Vec<u32> = waiting.iter().map(|waiting| waiting.0.id()).collect();
    let compared = gdb::compare(&pids)?;
    println!("{} programs: {compared:#x?}", pids.len());
    ensure!(compared.same > pids.len() / 2, "{compared:#x?}");
    ensure!(compared.different.is_empty(), "{compared:#x?}");
    Ok(())
}
