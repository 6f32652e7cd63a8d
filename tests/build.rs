//! Compiles the workloads that are not in Rust.
//!
//! The 32-bit one cannot be: Rust's standard library for such programs, and the C library below it, are not on every machine.
//! Those that are watched in their call stacks and system calls are C, as the programs are that distributions compile, without
//! frame pointers. clang is there, since the BPF programs need it, and the linker of binutils knows i386.

use std::env;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What both kinds of programs are compiled with.
const STRICT: [&str; 4] = ["-O2", "-Wall", "-Wextra", "-Werror"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-env-changed=CLANG");
    let directory = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?);
    for name in ["server", "bystander"] {
        // Each function of the source is one of the call tree.
        let options = [
            "-fomit-frame-pointer",
            "-fno-optimize-sibling-calls",
            "-pthread",
        ];
        let program = directory.join(name);
        compile(name, &options, &program)?;
        println!(
            "cargo::rustc-env={}_PROGRAM={}",
            name.to_uppercase(),
            program.display()
        );
    }
    if env::var("CARGO_CFG_TARGET_ARCH")? != "x86_64" {
        // No such path: what would run it says so.
        println!("cargo::rustc-env=COMPAT32_PROGRAM=");
        return Ok(());
    }
    let program = directory.join("compat32");
    let options = [
        "--target=i386-linux-gnu",
        "-ffreestanding",
        "-nostdlib",
        "-static",
        "-fno-pic",
        "-fno-stack-protector",
        "-Wl,-z,noexecstack",
    ];
    compile("compat32", &options, &program)?;
    println!("cargo::rustc-env=COMPAT32_PROGRAM={}", program.display());
    Ok(())
}

fn compile(name: &str, options: &[&str], program: &Path) -> Result<(), Box<dyn Error>> {
    let source = format!("workloads/{name}.c");
    println!("cargo::rerun-if-changed={source}");
    let clang = env::var_os("CLANG").unwrap_or_else(|| "clang".into());
    let status = Command::new(&clang)
        .args(STRICT)
        .args(options)
        .args([&source, "-o"])
        .arg(program)
        .status()
        .map_err(|error| format!("cannot run {}: {error} (package clang)", clang.display()))?;
    if !status.success() {
        return Err(format!(
            "{source} is not compiled: clang, a linker that knows i386, and the C library's headers are needed \
             (packages clang, binutils and libc6-dev)"
        )
        .into());
    }
    Ok(())
}
