//! What kcollect says of the installed programs, next to what other tools say of them: `make wild`,
//! or as root `cargo test --workspace --test wild`. Options come after `--`.
//!
//! | check | kcollect | the other tool |
//! |---|---|---|
//! | names | demangled names of all symbols | `c++filt` |
//! | functions | the function at an address of each program and library | `readelf -sW` |
//! | perf | the functions at perf's samples, of each program and the kernel | `perf script` |
//! | stacks | the addresses of complete stacks, of each program as it exits | `gdb` |
//! | calls | `-i`: the calls of each program, and how many failed | `strace -f` |
//!
//! A seed and a share choose what is compared, so that a run can be repeated. CI compares a tenth;
//! another seed is another tenth. Each disagreement is kept as a file below `--cases`. Those that
//! are known, each with a reason, are in `known.txt`; any other makes the exit status 1.

mod calls;
mod functions;
mod installed;
mod names;
mod perf;
mod stacks;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result};
use clap::Parser;
use comfy_table::Table;
use comfy_table::presets::ASCII_MARKDOWN;

/// Disagreements that are known: a check, a subject, and the reason.
const KNOWN: &str = include_str!("known.txt");
/// Disagreements of a check that are printed.
const PRINTED: usize = 20;

/// Compares what kcollect says of the installed programs with what other tools say.
#[derive(Debug, Parser)]
#[command(bin_name = "cargo test --test wild --")]
struct Options {
    /// The share of all programs, libraries and names that is compared, percent
    #[arg(long, default_value_t = 100.0)]
    percent: f64,
    /// Which of them: the same number chooses the same ones
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only these checks
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Where each disagreement is kept, as CHECK/N.txt
    #[arg(long, default_value = "target/wild")]
    cases: PathBuf,
}

/// Chooses a share of what is installed.
pub(crate) struct Sample {
    share: f64,
    random: fastrand::Rng,
}

impl Sample {
    /// Keeps this sample's share of `all`, at least one.
    pub(crate) fn of<T>(&mut self, mut all: Vec<T>) -> Vec<T> {
        self.random.shuffle(&mut all);
        let count = (all.len() as f64 * self.share).ceil() as usize;
        all.truncate(count);
        all
    }
}

/// What two tools do not agree on.
pub(crate) struct Disagreement {
    /// A program, a library, a symbol.
    pub(crate) subject: String,
    pub(crate) ours: String,
    pub(crate) theirs: String,
}

/// What a check found.
#[derive(Default)]
pub(crate) struct Found {
    /// Number of names, addresses or calls that were compared.
    pub(crate) compared: usize,
    pub(crate) disagreements: Vec<Disagreement>,
    /// Why a part, or all, was not compared.
    pub(crate) skipped: Vec<String>,
}

type Check = fn(&mut Sample) -> Result<Found>;
const CHECKS: [(&str, Check); 5] = [
    ("names", names::check),
    ("functions", functions::check),
    ("perf", perf::check),
    ("stacks", stacks::check),
    ("calls", calls::check),
];

/// Known disagreements: reasons by check and subject. A subject that ends with `*` is a prefix.
fn known() -> Result<BTreeMap<(&'static str, &'static str), &'static str>> {
    let lines = KNOWN
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    let row = |line: &'static str| {
        let mut words = line.splitn(3, '\t');
        let row = (words.next(), words.next(), words.next());
        let (Some(check), Some(subject), Some(reason)) = row else {
            anyhow::bail!("known.txt: not a check, a subject and a reason: {line:?}");
        };
        Ok(((check, subject), reason))
    };
    lines.map(row).collect()
}

fn keep(directory: &Path, number: usize, found: &Disagreement) -> Result<()> {
    let path = directory.join(format!("{number}.txt"));
    let Disagreement {
        subject,
        ours,
        theirs,
    } = found;
    let text = format!("subject: {subject}\nkcollect: {ours}\nother:    {theirs}\n");
    fs::write(&path, text).with_context(|| path.display().to_string())
}

#[expect(clippy::print_stdout, reason = "the result of a program")]
fn main() -> Result<ExitCode> {
    let options = Options::parse();
    let known = known()?;
    let is_known = |check: &str, subject: &str| {
        known.keys().any(|(of, name)| {
            let same = match name.strip_suffix('*') {
                Some(prefix) => subject.starts_with(prefix),
                None => *name == subject,
            };
            *of == check && same
        })
    };
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN);
    table.set_header([
        "check", "compared", "disagree", "known", "agree %", "seconds",
    ]);
    let mut new = 0;
    let mut notes = Vec::new();
    for (name, check) in CHECKS {
        if !options.only.is_empty() && options.only.iter().all(|only| only != name) {
            continue;
        }
        let started = Instant::now();
        let mut sample = Sample {
            share: (options.percent / 100.0).clamp(0.0, 1.0),
            random: fastrand::Rng::with_seed(options.seed),
        };
        let found = check(&mut sample).with_context(|| name.to_owned())?;
        let (old, others): (Vec<_>, Vec<_>) = found
            .disagreements
            .iter()
            .partition(|one| is_known(name, &one.subject));
        let directory = options.cases.join(name);
        if directory.exists() {
            fs::remove_dir_all(&directory)?;
        }
        fs::create_dir_all(&directory)?;
        for (number, one) in others.iter().enumerate() {
            keep(&directory, number, one)?;
        }
        let shown = others.iter().take(PRINTED);
        notes.extend(shown.map(|one| {
            let Disagreement {
                subject,
                ours,
                theirs,
            } = one;
            format!("{name}: {subject}\n  kcollect {ours}\n  other    {theirs}")
        }));
        notes.extend(found.skipped.iter().map(|why| format!("{name}: {why}")));
        let different = found.disagreements.len();
        let agree = 1.0 - different as f64 / found.compared.max(1) as f64;
        table.add_row([
            name.to_owned(),
            found.compared.to_string(),
            others.len().to_string(),
            old.len().to_string(),
            format!("{:.3}", 100.0 * agree),
            format!("{:.0}", started.elapsed().as_secs_f64()),
        ]);
        new += others.len();
    }
    println!("{table}\n{}", notes.join("\n"));
    if new == 0 {
        return Ok(ExitCode::SUCCESS);
    }
    // No error of anyhow: its stack trace would be the end of what a CI shows.
    println!(
        "{new} new disagreements are kept in {}",
        options.cases.display()
    );
    Ok(ExitCode::FAILURE)
}
