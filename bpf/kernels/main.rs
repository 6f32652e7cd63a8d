//! Checks the BPF object against the types of kernels, without loading it.
//!
//! ```console
//! $ make check-btf BTF=/sys/kernel/btf/vmlinux
//! ```
//!
//! `btf/` has the types of Debian's kernels that are looked up (made by `scripts/btf.sh`), and
//! `cargo test -p bpf` checks all of them.

mod btf;
mod check;
mod expected;
mod in_place;
mod object;
mod reduce;
mod resolve;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};

use crate::btf::Types;
use crate::check::{Name, check};
use crate::object::BpfObject;
use crate::resolve::Kernel;

/// The kernel with which a kernel that nobody has looked at is compared.
const NEWEST: &str = "7.3";

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let done = match arguments.iter().map(PathBuf::as_path).collect::<Vec<_>>()[..] {
        [command, file] if command == "check" => print_check(file),
        [command, from, to] if command == "reduce" => reduce_file(from, to).map(|()| true),
        _ => {
            eprintln!("usage: kernel-types check FILE | reduce FROM TO");
            return ExitCode::from(64);
        }
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("kernel-types: {error:#}");
            ExitCode::from(69)
        }
    }
}

fn read(file: &Path) -> Result<Types> {
    let bytes = std::fs::read(file).with_context(|| format!("{}", file.display()))?;
    let types = btf::find(&bytes).and_then(Types::parse);
    types.with_context(|| format!("{}", file.display()))
}

/// The processor that a kernel is for, by Debian's name: its registers have their names.
fn architecture(types: &Types) -> Result<&'static str> {
    let registers = in_place::composite(types, "pt_regs").context("there is no struct pt_regs")?;
    let has = |name| types.members(registers).any(|member| member.name == name);
    if has("orig_ax") {
        return Ok("amd64");
    }
    if has("orig_x0") {
        return Ok("arm64");
    }
    bail!("struct pt_regs is of neither x86-64 nor arm64")
}

/// Prints what an object does not find, and returns whether it works all the same.
fn print_check(file: &Path) -> Result<bool> {
    let types = read(file)?;
    let architecture = architecture(&types)?;
    let object = BpfObject::of(architecture)?;
    let name = file
        .file_name()
        .and_then(|name| Name::parse(name.to_str()?));
    let reference = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("kernels/btf")
        .join(format!("{NEWEST}-{architecture}.btf"));
    let reference = read(&reference).ok();
    let kernel = Kernel::new(types)?;
    let mut findings = check(&object, &kernel, name.as_ref(), reference.as_ref())?;
    findings.sort_by_key(|finding| finding.reason.is_some());
    for finding in &findings {
        println!("{finding}");
    }
    let faults = findings.iter().filter(|one| one.reason.is_none()).count();
    let relocations = object.relocations.len();
    println!("{architecture}: {relocations} relocations, {faults} faults");
    Ok(faults == 0)
}

/// Writes the types that are looked up to another file, and prints what an object does not find.
fn reduce_file(from: &Path, to: &Path) -> Result<()> {
    let kernel = Kernel::new(read(from)?)?;
    let mut names = BTreeSet::new();
    for architecture in ["amd64", "arm64"] {
        names.extend(reduce::needed_names(&BpfObject::of(architecture)?));
    }
    let object = BpfObject::of(architecture(&kernel.types)?)?;
    let before = resolve::resolve(&object, &kernel)?;
    let ways: BTreeSet<_> = before.iter().map(|one| (&one.root, &one.path)).collect();
    let on_the_way = ways
        .into_iter()
        .flat_map(|(root, path)| in_place::structs_on_the_way(&kernel.types, root, path));
    let reduced = reduce::reduce(&kernel.types, &names, &on_the_way.collect());
    std::fs::write(to, reduced.to_bytes()).with_context(|| format!("{}", to.display()))?;

    let after = resolve::resolve(&object, &Kernel::new(reduced)?)?;
    let changed = before
        .iter()
        .zip(&after)
        .find(|(before, after)| (&before.outcome, before.sizes) != (&after.outcome, after.sizes));
    if let Some((one, _)) = changed {
        bail!(
            "{}: {} resolves otherwise than with all types",
            to.display(),
            one.field()
        );
    }
    print_check(to).map(drop)
}
