//! The Firefox Profiler, read by its own loader and upgrader.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use flate2::read::GzDecoder;
use serde_json::Value;

use super::reader;

/// A script that loads a profile by the function that the profiler opens files with, which upgrades
/// it from its version to the current one. `FIREFOX_PROFILER_LOADER` names a bundle that exports
/// `unserializeProfileOfArbitraryFormat` of `src/profile-logic/process-profile.ts`.
const LOADER: &str = r#"
const { unserializeProfileOfArbitraryFormat } = require(process.argv[2]);
const { gunzipSync } = require("zlib");
const { readFileSync } = require("fs");
const text = gunzipSync(readFileSync(process.argv[1])).toString("utf8");
unserializeProfileOfArbitraryFormat(text, process.argv[1])
  .then((profile) => {
    const { libs, meta, threads } = profile;
    const lifetimes = threads.map((thread) =>
      [thread.processStartupTime, thread.registerTime, thread.unregisterTime]);
    console.log(JSON.stringify(
      { libs: libs.length, visible: meta.initialVisibleThreads, lifetimes }));
  })
  .catch((error) => { console.error(error); process.exit(1); });
"#;

/// Reads a profile, if there is a loader.
pub(super) fn read(file: &Path) -> Result<()> {
    let Some(loader) = std::env::var_os("FIREFOX_PROFILER_LOADER") else {
        eprintln!("FIREFOX_PROFILER_LOADER names no bundle: the profile is read by our test alone");
        return Ok(());
    };
    let mut node = Command::new("node");
    let Some(output) = reader(node.args(["-e", LOADER]).arg(file).arg(loader))? else {
        return Ok(());
    };
    let loaded: Value = serde_json::from_str(&output)?;
    let written: Value = serde_json::from_reader(GzDecoder::new(std::fs::File::open(file)?))?;
    let threads = written["threads"].as_array().context("no threads")?;
    let lifetimes = loaded["lifetimes"].as_array().context("no lifetimes")?;
    ensure!(lifetimes.len() == threads.len(), "{output}");
    for times in lifetimes {
        ensure!(
            times[0].as_f64().is_some() && times[0].as_f64() <= times[1].as_f64(),
            "{times}"
        );
        ensure!(
            times[2].is_null() || times[1].as_f64() <= times[2].as_f64(),
            "{times}"
        );
    }
    let libraries = written["libs"].as_array().context("no libs")?;
    ensure!(loaded["libs"] == libraries.len(), "{output}");
    ensure!(
        loaded["visible"] == written["meta"]["initialVisibleThreads"],
        "{output}"
    );
    Ok(())
}
