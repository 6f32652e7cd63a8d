//! The workspace's dependencies go one way: data flow from the kernel to the files, and nothing
//! flows back.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tests::command::run;

/// What each crate may depend on, of ours, in any section of its manifest.
const ARROWS: &[(&str, &[&str])] = &[
    ("experiment-format", &["gprofng"]),
    ("bpf", &[]),
    ("gprofng", &[]),
    ("user-collector", &["experiment-format", "gprofng"]),
    ("host", &[]),
    ("counters", &["host"]),
    ("analysis", &["experiment-format", "user-collector", "host"]),
    (
        "kcollect",
        &[
            "experiment-format",
            "bpf",
            "user-collector",
            "host",
            "counters",
            "analysis",
        ],
    ),
    (
        "tests",
        &[
            "experiment-format",
            "bpf",
            "gprofng",
            "user-collector",
            "host",
            "counters",
            "analysis",
            "kcollect",
        ],
    ),
    (
        "fuzz",
        &[
            "experiment-format",
            "bpf",
            "user-collector",
            "host",
            "counters",
            "analysis",
            "kcollect",
            "tests",
        ],
    ),
];

#[test]
fn dependencies_go_one_way() -> Result<()> {
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.toml");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args([
        "metadata",
        "--no-deps",
        "--offline",
        "--format-version",
        "1",
        "--manifest-path",
        manifest,
    ]);
    let metadata: serde_json::Value = serde_json::from_str(
        &run(&mut command, Duration::from_secs(60))?
            .succeeded()?
            .stdout,
    )?;

    let list = |value: &serde_json::Value| value.as_array().cloned().unwrap_or_default();
    let name = |value: &serde_json::Value| {
        value["name"]
            .as_str()
            .map(ToOwned::to_owned)
            .context("a name")
    };
    let allowed: BTreeMap<_, _> = ARROWS.iter().copied().collect();
    let packages = list(&metadata["packages"]);
    let members = packages.iter().map(name).collect::<Result<BTreeSet<_>>>()?;
    ensure!(
        members
            .iter()
            .map(String::as_str)
            .eq(allowed.keys().copied().collect::<BTreeSet<_>>()),
        "the workspace has other members than this check knows: {members:?}"
    );
    for package in &packages {
        let from = name(package)?;
        for dependency in list(&package["dependencies"]) {
            let to = name(&dependency)?;
            ensure!(
                !members.contains(&to) || allowed[from.as_str()].contains(&to.as_str()),
                "{from} depends on {to}, and may only on {:?}",
                allowed[from.as_str()]
            );
        }
    }
    Ok(())
}
