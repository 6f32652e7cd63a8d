//! The stacks of installed programs against `gdb`.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use anyhow::Result;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tempfile::TempDir;
use tests::gdb;
use tests::machine::Shared;

use crate::{Disagreement, Found, Sample, installed};

/// Programs of one recording.
const AT_A_TIME: usize = 40;
/// By then a program has printed its version and exits, or waits for something.
const UNTIL_THEY_WAIT: Duration = Duration::from_secs(3);

/// A program that is kept as it exits, until it is dropped.
struct Kept {
    child: Child,
    program: PathBuf,
}

impl Kept {
    fn start(program: &Path, home: &Path) -> Option<Kept> {
        // One that cannot be executed, such as a script without its interpreter, is left out.
        let child = Command::new(program)
            .arg("--version")
            .env("LD_PRELOAD", env!("STAY_PROGRAM"))
            .env("HOME", home)
            .current_dir(home)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .ok()?;
        let program = program.to_owned();
        Some(Kept { child, program })
    }

    fn is_there(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        // With the programs that it has started.
        let _ = killpg(
            Pid::from_raw(self.child.id().cast_signed()),
            Signal::SIGKILL,
        );
        let _ = self.child.wait();
    }
}

pub(crate) fn check(sample: &mut Sample) -> Result<Found> {
    let mut found = Found::default();
    if !gdb::is_installed() {
        found.skipped.push("gdb is not installed".to_owned());
        return Ok(found);
    }
    let _machine = Shared::take()?;
    let (mut incomplete, mut unjudged) = (0, 0);
    for some in sample.of(installed::programs()?).chunks(AT_A_TIME) {
        let home = TempDir::new()?;
        let started = some.iter().map(|program| Kept::start(program, home.path()));
        let mut kept: Vec<_> = started.flatten().collect();
        sleep(UNTIL_THEY_WAIT);
        kept.retain_mut(Kept::is_there);
        if kept.is_empty() {
            continue;
        }
        let pids: Vec<u32> = kept.iter().map(|kept| kept.child.id()).collect();
        let compared = gdb::compare(&pids)?;
        incomplete += compared.incomplete;
        unjudged += compared.unjudged;
        found.compared += compared.same + compared.different.len();
        for different in compared.different {
            let of = kept.iter().find(|kept| kept.child.id() == different.pid);
            let program = of.map(|kept| kept.program.display().to_string());
            found.disagreements.push(Disagreement {
                subject: program.unwrap_or_default(),
                ours: format!("{:x?}", different.ours),
                theirs: format!("{:x?}", different.theirs),
            });
        }
    }
    found.skipped.push(format!(
        "{incomplete} stacks that are not called complete, {unjudged} that gdb does not unwind"
    ));
    Ok(found)
}
