//! The workspace's dependencies go one way: data flow from the kernel to the files, and nothing
//! flows back.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tests::command::run;

/// What each crate may depend on, of ours, in any section of its manifest.
const ARROWS: &[(&str, &[&str])] = &[
    ("kcollect-types", &[]),
    ("kcollect-elf", &[]),
    (
        "experiment-format",
        &["gprofng", "kcollect-elf", "kcollect-types"],
    ),
    ("bpf-abi", &[]),
    ("bpf", &["bpf-abi"]),
    ("gprofng", &[]),
    (
        "user-collector",
        &["experiment-format", "gprofng", "kcollect-elf", "bpf-abi"],
    ),
    ("host", &["kcollect-types"]),
    ("counters", &["kcollect-types", "host"]),
    ("analysis", &["experiment-format", "kcollect-elf", "host"]),
    (
        "kcollect",
        &[
            "experiment-format",
            "kcollect-elf",
            "bpf",
            "bpf-abi",
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
            "bpf-abi",
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
            "kcollect-elf",
            "bpf",
            "bpf-abi",
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

/// The modules of each package, in the order in which data go through them; ARCHITECTURE.md draws
/// it. A module may use its own layer and the layers below it.
const LAYERS: &[(&str, &[&[&str]])] = &[
    (
        "experiment-format/src",
        &[
            &["writer", "subexperiment"],
            &["reader", "functions", "packed", "copies"],
            &["directory", "file", "address_space"],
            &["map", "dynamic_code"],
            // Each declares in the log what its packets have.
            &["log", "packet", "stacks"],
            &["usage", "losses", "archive", "elf_image", "groups"],
            &["xml", "microstate", "kernel", "calls"],
            &["error", "ids"],
        ],
    ),
    (
        "bpf/abi/src",
        &[&["tests"], &["record"], &["unwind"], &["layout"]],
    ),
    (
        "bpf/src",
        &[
            &["tests"],
            // The programs, by what is done with them.
            &[
                "abilities",
                "load",
                "recording",
                "clocks",
                "counters",
                "cpu_stats",
                "allocations",
                "capture",
                "steal",
                "skipped",
                "io_uring",
            ],
            &["tables", "rings"],
            &["ring_buffer", "skeleton", "kernel_types", "error"],
            &["sabotage", "verifier"],
        ],
    ),
    (
        "kcollect/host/src",
        &[
            &["service", "signals", "load", "tree", "output", "memory"],
            &["machine", "table", "written", "exit", "root", "suggest"],
        ],
    ),
    (
        "tests/support",
        &[
            &["strace", "gdb"],
            &["experiment"],
            &["kcollect", "oracle"],
            &["workload", "machine"],
            &["command", "random"],
        ],
    ),
    (
        "kcollect/src",
        &[
            &["app"],
            &["cli"],
            // The session with its parts.
            &["record::session", "record::packing"],
            &["record::summary"],
            &["record::dispatch"],
            &["record::user"],
            &["record::route"],
            &["record::subexperiment"],
            &["record::kernel"],
            &["record::user_stacks"],
            &["record::archives"],
            &["record::activity"],
            &["record::input"],
            &["record::hardening"],
            &[
                "record::dry_run",
                "record::governor",
                "record::problem",
                "record::targets",
            ],
            &["doctor"],
            &["plan"],
        ],
    ),
    (
        "kcollect/analysis/src",
        &[
            &["list", "packing"],
            &["view", "flame", "report"],
            &["export"],
            &["sources", "aggregate"],
            &["filter"],
            &["load"],
            &["metric"],
            &["model"],
            &["symbol"],
            &["private_file", "palette"],
        ],
    ),
    (
        "kcollect/counters/src",
        &[
            &["track", "stat"],
            &["run"],
            &["rows"],
            &["perf"],
            &["names"],
        ],
    ),
    (
        "user-collector/src",
        &[
            &["collector"],
            &["loaded_code"],
            &["objects"],
            &["archive"],
            &["jit"],
            &["unwind", "join", "follow", "io_calls"],
            &["allocators", "memory"],
            &["process", "space"],
            &["files"],
        ],
    ),
];

#[test]
fn modules_use_only_what_is_below_them() -> Result<()> {
    for (source, layers) in LAYERS {
        let layer_of = |path: &[String]| {
            layers.iter().position(|layer| {
                layer.iter().any(|module| {
                    module
                        .split("::")
                        .eq(path.iter().take(module.split("::").count()))
                })
            })
        };
        let root = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("..")
            .join(source);
        let mut seen = BTreeSet::new();
        for file in rust_files(&root)? {
            let module = module_of(file.strip_prefix(&root)?);
            if module.is_empty() || module == ["record"] {
                continue;
            }
            let from = layer_of(&module)
                .with_context(|| format!("{source}: {} is in no layer", module.join("::")))?;
            seen.insert(from);
            for used in used_paths(&module, &std::fs::read_to_string(&file)?) {
                let Some(to) = layer_of(&used) else {
                    continue;
                };
                ensure!(
                    from <= to,
                    "{source}: {} uses {}, which is above it",
                    module.join("::"),
                    used.join("::")
                );
            }
        }
        ensure!(seen.len() == layers.len(), "{source}: a layer is empty");
    }
    Ok(())
}

fn rust_files(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            files.extend(rust_files(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    Ok(files)
}

/// Returns the path of the module in a file; empty for the root.
fn module_of(file: &Path) -> Vec<String> {
    let path = file.with_extension("");
    let mut module: Vec<String> = path
        .iter()
        .map(|part| part.to_string_lossy().into_owned())
        .collect();
    if module
        .last()
        .is_some_and(|last| ["lib", "main", "mod"].contains(&&**last))
    {
        module.pop();
    }
    module
}

/// Returns the paths below the crate's root that a module's code names, its unit tests left out.
fn used_paths(module: &[String], text: &str) -> Vec<Vec<String>> {
    let code: String = text
        .split("#[cfg(test)]\nmod")
        .next()
        .unwrap_or_default()
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .flat_map(|line| [line, "\n"])
        .collect();
    let mut paths = Vec::new();
    for word in ["crate::", "super::"] {
        for (at, _) in code.match_indices(word) {
            let before = code[..at].chars().next_back();
            if before.is_some_and(|before| before.is_alphanumeric() || "_:".contains(before)) {
                continue;
            }
            let mut base = match word {
                "crate::" => Vec::new(),
                _ => module[..module.len().saturating_sub(1)].to_vec(),
            };
            let mut rest = &code[at + word.len()..];
            while let Some(further) = rest.strip_prefix("super::") {
                base.pop();
                rest = further;
            }
            add_paths(&base, rest, &mut paths);
        }
    }
    paths
}

/// Adds the paths below `base` at the beginning of a text: one path, or a list in braces.
fn add_paths(base: &[String], text: &str, paths: &mut Vec<Vec<String>>) {
    let text = text.trim_start();
    let of_path = |character: char| character.is_alphanumeric() || "_:".contains(character);
    let end = text.find(|character| !of_path(character));
    let (path, rest) = text.split_at(end.unwrap_or(text.len()));
    let parts = path.split("::").filter(|part| !part.is_empty());
    let path: Vec<String> = base
        .iter()
        .cloned()
        .chain(parts.map(str::to_owned))
        .collect();
    match rest.strip_prefix('{') {
        Some(list) => {
            for item in list_items(list) {
                add_paths(&path, item, paths);
            }
        }
        None if path.len() > base.len() => paths.push(path),
        None => {}
    }
}

/// Returns the items of a list up to its closing brace. Each may contain a list.
fn list_items(list: &str) -> Vec<&str> {
    let (mut items, mut begin, mut depth) = (Vec::new(), 0, 0);
    for (at, character) in list.char_indices() {
        match character {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            ',' | '}' if depth == 0 => {
                items.push(&list[begin..at]);
                begin = at + 1;
                if character == '}' {
                    break;
                }
            }
            _ => {}
        }
    }
    items
}

#[test]
fn paths_are_found_in_code() {
    let module = ["a".to_owned(), "b".to_owned()];
    let text = "use crate::x::Y;\nuse super::{c::D, e};\n// crate::comment\nfn f() { super::super::z::g() }\n";
    let paths = |text| {
        let paths = used_paths(&module, text);
        let paths = paths.iter().map(|path| path.join("::"));
        paths.collect::<Vec<String>>()
    };
    assert_eq!(paths(text), ["x::Y", "a::c::D", "a::e", "z::g"]);
    let nested = "use crate::{\n    p::{self, q::{R, S}},\n    t,\n};\nfn f() {}\n";
    assert_eq!(
        paths(nested),
        ["p::self", "p::q::R", "p::q::S", "t"],
        "what follows a list in a list is found too"
    );
}
