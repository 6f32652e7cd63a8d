//! Names of functions by address against `readelf`. Each file is copied into an experiment as a
//! recording does, and the names are read from that copy.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result};
use experiment_format::archive::ARCHIVES;
use experiment_format::directory::{ExperimentDir, NameRequest};
use experiment_format::functions::Archives;
use object::{Object as _, ObjectSegment as _};
use user_collector::archive::archive_object;
use user_collector::files::InvokingUser;

use crate::{Disagreement, Found, Sample, installed};

/// Functions of each file that are compared.
const PER_FILE: usize = 200;

/// The end of a function and its names, as `readelf` has them, by address.
type Functions = BTreeMap<u64, (u64, Vec<String>)>;

pub(crate) fn check(sample: &mut Sample) -> Result<Found> {
    let mut found = Found::default();
    for path in sample.of(installed::objects()?) {
        let compared = compare(&path, &mut found);
        if let Err(error) = compared {
            found.skipped.push(format!("{}: {error:#}", path.display()));
        }
    }
    Ok(found)
}

/// Compares the name in the middle of each function.
fn compare(path: &Path, found: &mut Found) -> Result<()> {
    let functions = functions_of(path)?;
    let bytes = fs::read(path)?;
    let elf = object::File::parse(&*bytes)?;
    let offset = |address: u64| {
        elf.segments().find_map(|segment| {
            let (offset, size) = segment.file_range();
            let inside = address.checked_sub(segment.address())?;
            (inside < size).then_some(offset + inside)
        })
    };
    let name = path.to_str().context("no UTF-8")?;
    let directory = tempfile::tempdir()?;
    let request = NameRequest::Exactly("x.er".to_owned());
    let (dir, _) = ExperimentDir::create(directory.path(), &request, None)?;
    let root = InvokingUser {
        uid: 0,
        groups: Vec::new(),
    };
    let stop = AtomicBool::new(false);
    archive_object(&dir, name, &File::open(path)?, None, &root, &stop)?;
    let mut archives = Archives::new(dir.path().join(ARCHIVES));
    let copied = archives.functions(name)?;

    let with_size = functions.iter().filter(|(begin, (end, _))| end > begin);
    let step = with_size.clone().count().div_ceil(PER_FILE).max(1);
    for (begin, (end, _)) in with_size.step_by(step) {
        let middle = begin + (end - begin) / 2;
        let Some(offset) = offset(middle) else {
            continue;
        };
        found.compared += 1;
        let theirs = covering(&functions, middle);
        let ours = copied.and_then(|copied| copied.find(offset));
        if ours.is_none_or(|(name, _)| !theirs.contains(&name)) {
            found.disagreements.push(Disagreement {
                subject: format!("{name}+{middle:#x}"),
                ours: format!("{ours:?}"),
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
    let covering = before.filter(|(_, (end, _))| address < *end);
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
        let (end, names) = functions.entry(address).or_default();
        *end = (*end).max(address.saturating_add(size.unwrap_or_default()));
        names.push(name);
    }
    Ok(functions)
}
