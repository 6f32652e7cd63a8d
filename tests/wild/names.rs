//! Demangled names against `c++filt`.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Seek as _, Write as _};
use std::process::Command;

use analysis::symbol::demangle;
use anyhow::{Context, Result};
use object::{Object as _, ObjectSymbol as _};

use crate::{Disagreement, Found, Sample, installed};

/// How mangled names of C++, Rust and D begin.
const MANGLED: [&str; 3] = ["_Z", "_R", "_D"];

pub(crate) fn check(sample: &mut Sample) -> Result<Found> {
    let mut names = BTreeSet::new();
    for path in installed::objects()? {
        names.extend(mangled_in(&fs::read(&path)?));
    }
    let names = sample.of(names.into_iter().collect());
    let mut found = Found::default();
    // A D compiler's names only if it is told.
    let (of_d, others): (Vec<_>, Vec<_>) =
        names.into_iter().partition(|name| name.starts_with("_D"));
    for (names, style) in [(others, "auto"), (of_d, "dlang")] {
        compare(&names, style, &mut found)?;
    }
    Ok(found)
}

/// Compares with what `c++filt` prints for names of a style.
fn compare(names: &[String], style: &str, found: &mut Found) -> Result<()> {
    let mut file = tempfile::tempfile()?;
    file.write_all((names.join("\n") + "\n").as_bytes())?;
    file.rewind()?;
    let mut filter = Command::new("c++filt");
    let Ok(output) = filter.args(["-s", style]).stdin(file).output() else {
        found.skipped.push("c++filt is not installed".to_owned());
        return Ok(());
    };
    let text = String::from_utf8(output.stdout).context("c++filt's output")?;
    for (mangled, theirs) in names.iter().zip(text.lines()) {
        // What it does not understand it prints as it is; we may know more.
        if theirs == mangled {
            continue;
        }
        found.compared += 1;
        let ours = demangle(mangled);
        if ours != without_hash(mangled, theirs) {
            found.disagreements.push(Disagreement {
                subject: mangled.clone(),
                ours: ours.into_owned(),
                theirs: theirs.to_owned(),
            });
        }
    }
    Ok(())
}

/// The hash at the end of a legacy name of Rust, which kcollect leaves out.
fn without_hash<'a>(mangled: &str, name: &'a str) -> &'a str {
    let is_rust = mangled.len() > 20 && mangled[..mangled.len() - 1].contains("17h");
    match name.rsplit_once("::h") {
        Some((stem, hash))
            if is_rust && hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()) =>
        {
            stem
        }
        _ => name,
    }
}

fn mangled_in(bytes: &[u8]) -> BTreeSet<String> {
    let Ok(elf) = object::File::parse(bytes) else {
        return BTreeSet::new();
    };
    let symbols = elf.symbols().chain(elf.dynamic_symbols());
    let names = symbols.filter_map(|symbol| symbol.name().ok().map(str::to_owned));
    // A version after an `@` is the linker's.
    names
        .filter(|name| MANGLED.iter().any(|begin| name.starts_with(begin)) && !name.contains('@'))
        .collect()
}
