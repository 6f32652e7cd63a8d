//! Names of functions by address against `readelf`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use analysis::symbol::{CodeName, ObjectRef, SearchPaths, Symboliser, UnnamedCode};
use anyhow::{Context, Result};
use object::{Object as _, ObjectSegment as _};

use crate::{Disagreement, Found, Sample, installed};

/// Functions of each file that are compared.
const PER_FILE: usize = 200;

/// Functions at an address, as `readelf` has them.
type Functions = BTreeMap<u64, (u64, Vec<String>)>;

pub(crate) fn check(sample: &mut Sample) -> Result<Found> {
    let mut found = Found::default();
    let symboliser = Symboliser::new(SearchPaths::new(None));
    for path in sample.of(installed::objects()?) {
        let functions = match functions_of(&path) {
            Ok(functions) => functions,
            Err(error) => {
                found.skipped.push(format!("{}: {error:#}", path.display()));
                continue;
            }
        };
        compare(&symboliser, &path, &functions, &mut found)?;
    }
    Ok(found)
}

/// Compares the name in the middle of each function.
fn compare(
    symboliser: &Symboliser,
    path: &Path,
    functions: &Functions,
    found: &mut Found,
) -> Result<()> {
    let bytes = fs::read(path)?;
    let Ok(elf) = object::File::parse(&*bytes) else {
        return Ok(());
    };
    let offset = |address: u64| {
        elf.segments().find_map(|segment| {
            let (offset, size) = segment.file_range();
            let inside = address.checked_sub(segment.address())?;
            (inside < size).then_some(offset + inside)
        })
    };
    let step = functions.len().div_ceil(PER_FILE).max(1);
    let places: Vec<_> = functions
        .iter()
        .filter(|(_, (size, _))| *size > 0)
        .step_by(step)
        .filter_map(|(address, (size, _))| {
            let middle = address + size / 2;
            Some((middle, offset(middle)?))
        })
        .collect();
    let object = ObjectRef {
        name: path.display().to_string(),
        ..ObjectRef::default()
    };
    let wanted: Vec<_> = places
        .iter()
        .map(|(_, offset)| UnnamedCode {
            offset: *offset,
            begin: None,
        })
        .collect();
    let names = symboliser.names(&[(&object, &wanted)]);
    let names = names.first().map(|names| &names.names[..]);
    for ((address, _), name) in places.iter().zip(names.unwrap_or_default()) {
        found.compared += 1;
        let theirs = covering(functions, *address);
        let ours = match name {
            CodeName::Function { symbol, .. } => symbol.clone(),
            other => format!("{other:?}"),
        };
        if !theirs.contains(&ours.as_str()) {
            found.disagreements.push(Disagreement {
                subject: format!("{}+{address:#x}", path.display()),
                ours,
                theirs: theirs.join(" or "),
            });
        }
    }
    Ok(())
}

/// Names of the functions that cover an address. Functions may overlap: a part of one may have a
/// name of its own.
fn covering(functions: &Functions, address: u64) -> Vec<&str> {
    let before = functions.range(..=address).rev().take(64);
    let covering = before.filter(|(begin, (size, _))| address - **begin < *size);
    covering
        .flat_map(|(_, (_, names))| names.iter().map(String::as_str))
        .collect()
}

/// The functions of a file, by address.
fn functions_of(path: &Path) -> Result<Functions> {
    let output = Command::new("readelf").arg("-sW").arg(path).output();
    let output = output.context("readelf is not installed")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mut functions = Functions::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let [_, address, size, kind, _, _, section, name, ..] = words[..] else {
            continue;
        };
        if !matches!(kind, "FUNC" | "IFUNC") || section == "UND" {
            continue;
        }
        let Ok(address) = u64::from_str_radix(address, 16) else {
            continue;
        };
        let size = match size.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16),
            None => size.parse(),
        };
        let name = name.split('@').next().unwrap_or(name).to_owned();
        let (longest, names) = functions.entry(address).or_default();
        *longest = (*longest).max(size.unwrap_or_default());
        names.push(name);
    }
    Ok(functions)
}
