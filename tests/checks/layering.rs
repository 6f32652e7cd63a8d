//! The workspace's dependencies go one way: data flow from the kernel to the files, and nothing
//! flows back. Cargo refuses circles of packages, except through dev-dependencies, and no circle
//! of modules.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use proc_macro2::TokenTree;
use serde::Deserialize;
use syn::ext::IdentExt;
use syn::parse::{ParseStream, Parser};
use syn::{Attribute, Ident, Item, Token, braced, token};
use tests::command::run;

/// What each package may depend on, of ours, in any section of its manifest.
const ALLOWED_DEPENDENCIES: &[(&str, &[&str])] = &[
    ("kcollect-types", &[]),
    ("kcollect-elf", &[]),
    (
        "kcollect-experiment-format",
        &["gprofng", "kcollect-elf", "kcollect-types"],
    ),
    ("kcollect-bpf-abi", &[]),
    ("kcollect-bpf", &["kcollect-bpf-abi"]),
    ("gprofng", &[]),
    (
        "kcollect-user-collector",
        &[
            "kcollect-experiment-format",
            "gprofng",
            "kcollect-elf",
            "kcollect-bpf-abi",
        ],
    ),
    ("kcollect-host", &["kcollect-types"]),
    ("kcollect-counters", &["kcollect-types", "kcollect-host"]),
    (
        "kcollect-analysis",
        &[
            "kcollect-experiment-format",
            "kcollect-elf",
            "kcollect-host",
        ],
    ),
    (
        "kcollect",
        &[
            "kcollect-experiment-format",
            "kcollect-elf",
            "kcollect-bpf",
            "kcollect-bpf-abi",
            "kcollect-user-collector",
            "kcollect-host",
            "kcollect-counters",
            "kcollect-analysis",
        ],
    ),
    (
        "tests",
        &[
            "kcollect-experiment-format",
            "kcollect-bpf",
            "kcollect-bpf-abi",
            "gprofng",
            "kcollect-user-collector",
            "kcollect-host",
            "kcollect-counters",
            "kcollect-analysis",
            "kcollect",
        ],
    ),
    (
        "fuzz",
        &[
            "kcollect-experiment-format",
            "kcollect-elf",
            "kcollect-bpf",
            "kcollect-bpf-abi",
            "kcollect-user-collector",
            "kcollect-host",
            "kcollect-counters",
            "kcollect-analysis",
            "kcollect",
            "tests",
        ],
    ),
];

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
}

#[test]
fn packages_depend_only_on_what_they_may() -> Result<()> {
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.toml");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["metadata", "--no-deps", "--offline", "--format-version=1"]);
    command.args(["--manifest-path", manifest]);
    let finished = run(&mut command, Duration::from_secs(60))?.succeeded()?;
    let metadata: Metadata = serde_json::from_str(&finished.stdout)?;

    let allowed: BTreeMap<_, _> = ALLOWED_DEPENDENCIES.iter().copied().collect();
    let members: BTreeSet<&str> = metadata.packages.iter().map(|it| &*it.name).collect();
    assert_eq!(members, allowed.keys().copied().collect());
    for package in &metadata.packages {
        let allowed = allowed[&*package.name];
        for Dependency { name } in &package.dependencies {
            ensure!(
                !members.contains(&**name) || allowed.contains(&&**name),
                "{} depends on {name}, and may only on {allowed:?}",
                package.name
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
            &["writer"],
            &["reader", "functions", "packed", "copies"],
            &["directory", "file", "address_space"],
            &["map", "dynamic_code"],
            // Each declares in the log what its packets have.
            &["log", "packet", "stacks"],
            &["usage", "losses", "archive", "elf_image", "groups"],
            &["xml", "microstate", "cause", "kernel", "calls"],
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
                "causes",
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
            &["record::process_writer"],
            &["record::kernel"],
            &["record::processes"],
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
            &["sources", "aggregate", "waits", "waits_for"],
            &["filter"],
            &["wakers"],
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
            &["written_code"],
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
            let is_part = |module: &&str| {
                let module: Vec<_> = module.split("::").collect();
                path.len() >= module.len() && path[..module.len()] == module
            };
            layers.iter().position(|layer| layer.iter().any(is_part))
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
            let code = std::fs::read_to_string(&file)?;
            let used = UsedPaths::read(module.clone(), &code);
            for used in used.with_context(|| file.display().to_string())? {
                ensure!(
                    layer_of(&used).is_none_or(|to| from <= to),
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

/// The path of the module in a file; empty for the root.
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

/// Finds the paths of its own crate that a module's code names, in macros too, its unit tests left
/// out.
struct UsedPaths {
    module: Vec<String>,
    found: Vec<Vec<String>>,
}

impl UsedPaths {
    fn read(module: Vec<String>, code: &str) -> syn::Result<Vec<Vec<String>>> {
        let found = Vec::new();
        let mut paths = UsedPaths { module, found };
        (|input: ParseStream<'_>| paths.scan(input, None)).parse_str(code)?;
        Ok(paths.found)
    }

    /// Scans code; or the list in braces at the end of a path, `list`.
    fn scan(&mut self, input: ParseStream<'_>, list: Option<&[String]>) -> syn::Result<()> {
        while !input.is_empty() {
            let attributes = input.fork().call(Attribute::parse_outer);
            if attributes.is_ok_and(|attributes| attributes.iter().any(is_for_tests)) {
                input.parse::<Item>()?;
                continue;
            }
            match input.parse()? {
                TokenTree::Group(group) => {
                    (|input: ParseStream<'_>| self.scan(input, None)).parse2(group.stream())?;
                }
                TokenTree::Ident(first) => {
                    if let Some(start) = self.start_of(&first.to_string(), list) {
                        self.scan_path(input, start)?;
                    }
                }
                TokenTree::Punct(_) | TokenTree::Literal(_) => {}
            }
        }
        Ok(())
    }

    /// The path that the first name of a path stands for. None if it is of another crate.
    fn start_of(&self, first: &str, list: Option<&[String]>) -> Option<Vec<String>> {
        match (first, list) {
            ("crate", _) => Some(Vec::new()),
            ("super", _) => Some(self.module[..self.module.len() - 1].to_vec()),
            ("self", list) => Some(list.unwrap_or(&self.module).to_vec()),
            (name, list) => list.map(|list| [list, &[name.to_owned()]].concat()),
        }
    }

    fn scan_path(&mut self, input: ParseStream<'_>, mut path: Vec<String>) -> syn::Result<()> {
        while input.parse::<Option<Token![::]>>()?.is_some() {
            if input.peek(token::Brace) {
                let list;
                braced!(list in input);
                return self.scan(&list, Some(&path));
            }
            if !input.peek(Ident::peek_any) {
                break;
            }
            match input.call(Ident::parse_any)?.to_string() {
                name if name == "super" => drop(path.pop()),
                name => path.push(name),
            }
        }
        if input.parse::<Option<Token![as]>>()?.is_some() {
            input.parse::<TokenTree>()?;
        }
        self.found.push(path);
        Ok(())
    }
}

fn is_for_tests(attribute: &Attribute) -> bool {
    let condition = attribute.meta.require_list();
    attribute.path().is_ident("cfg")
        && condition.is_ok_and(|condition| condition.tokens.to_string() == "test")
}

#[test]
fn paths_are_found_in_code() -> Result<()> {
    let code = r#"
        use crate::x::Y;
        use super::{c::D, e};
        use crate::{p::{self, q::{R, S as T}}, *};
        use other::{u, v};
        // crate::comment
        fn f() -> Option<crate::g::G> { print!("crate::text {}", super::super::z::<u8>()) }
        #[cfg(test)]
        mod tests { use crate::h; }
        pub(crate) fn g(self) {}
    "#;
    let found = UsedPaths::read(vec!["a".to_owned(), "b".to_owned()], code)?;
    let found = found.iter().map(|path| path.join("::"));
    let expected = [
        "x::Y", "a::c::D", "a::e", "p", "p::q::R", "p::q::S", "g::G", "z",
    ];
    assert!(
        found
            .filter(|path| !["", "a::b"].contains(&&**path))
            .eq(expected)
    );
    Ok(())
}
