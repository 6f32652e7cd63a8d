//! The calls of installed programs against `strace`.

use std::process::Command;

use anyhow::{Context, Result};
use tempfile::TempDir;
use tests::machine::Shared;
use tests::strace::{calls_before, differences};

use crate::{Disagreement, Found, Sample, installed};

/// Programs of one recording.
const AT_A_TIME: usize = 100;
pub(crate) fn check(sample: &mut Sample) -> Result<Found> {
    let mut found = Found::default();
    if Command::new("strace").arg("-V").output().is_err() {
        found.skipped.push("strace is not installed".to_owned());
        return Ok(found);
    }
    let _machine = Shared::take()?;
    let before = calls_before()?;
    let programs = sample.of(installed::programs()?);
    for some in programs.chunks(AT_A_TIME) {
        let directory = TempDir::new()?;
        let script = installed::versions(directory.path(), some)?;
        let (traced, mut different) = differences(&["sh", &script])?;
        let first = traced.programs.first_key_value().context("no program")?.0;
        let own = different.remove(first).unwrap_or_default();
        found.compared += usize::try_from(traced.calls())?;
        let mut add = |subject: &str, counts: String| {
            found.disagreements.push(Disagreement {
                subject: subject.to_owned(),
                ours: counts,
                theirs: "as many more or fewer calls, and failed ones".to_owned(),
            });
        };
        if own != before {
            add("sh", format!("{own:?}, {before:?} expected"));
        }
        for (tid, counts) in &different {
            let program = traced.programs.get(tid).map_or("a thread", String::as_str);
            add(program, format!("{counts:?}"));
        }
    }
    Ok(found)
}
