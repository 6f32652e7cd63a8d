//! Compiles the workloads that cannot be written in Rust. Some have 32 bits: Rust's standard
//! library for such programs, and the C library below it, are not on every machine. Others need
//! what a C compiler leaves in a file: tables for unwinding and no frame pointers, or two libraries
//! that differ in nothing but names. clang is on every machine that builds kcollect, since the BPF
//! programs need it, and the linker of binutils supports i386.

use std::env;
use std::error::Error;
use std::path::PathBuf;
use std::process::Command;

/// The flags of every program.
const COMMON: &[&str] = &["-Wall", "-Wextra", "-Werror"];
/// The flags of programs without libraries.
const BARE: &[&str] = &[
    "-ffreestanding",
    "-nostdlib",
    "-static",
    "-fno-pic",
    "-fno-stack-protector",
    "-Wl,-z,noexecstack",
];
/// The flags of programs whose calls are all on the stack, to be found by unwind tables alone.
const CALLS: &[&str] = &[
    "-O1",
    "-fomit-frame-pointer",
    "-fno-optimize-sibling-calls",
    "-fasynchronous-unwind-tables",
];
/// The flags of optimised programs with threads: each function that is not inlined is in the call
/// tree.
const THREADED: &[&str] = &[
    "-O2",
    "-fomit-frame-pointer",
    "-fno-optimize-sibling-calls",
    "-pthread",
];
/// The flags of programs at fixed addresses.
const FIXED: &[&str] = &["-fno-pie", "-no-pie"];
/// The flags of 32-bit programs.
const NARROW: &[&str] = &["--target=i386-linux-gnu"];
/// The flags of shared libraries.
const LIBRARY: &[&str] = &["-shared", "-fPIC"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-env-changed=CLANG");
    println!("cargo::rerun-if-changed=workloads/clocks.h");
    println!("cargo::rerun-if-changed=workloads/subjects.h");
    compile("compat32", "compat32", &[NARROW, &["-O2"], BARE])?;
    compile("proctorture", "proctorture", &[CALLS])?;
    compile(
        "scheduler.bpf",
        "scheduler",
        &[&["--target=bpf", "-g", "-O2", "-c"]],
    )?;
    compile("overflowing", "overflowing", &[CALLS, FIXED])?;
    compile("io_stacks", "io_stacks", &[CALLS])?;
    compile("copied_code", "copied_code", &[CALLS])?;
    for name in [
        "server",
        "background_load",
        "locked",
        "io_calls",
        "interrupted",
        "exec_thread",
        "growth",
        "allocations",
        "leaderless",
        "shared_files",
        "other_stack",
        "sampled",
        "sick",
        "waits",
    ] {
        compile(name, name, &[THREADED])?;
    }
    compile("stay", "stay", &[LIBRARY])?;
    for (name, target) in [("narrow", NARROW), ("inside", &[]), ("outside", &[])] {
        let names = [format!("-DBURN=burn_{name}"), format!("-DCALL=call_{name}")];
        let names = [names[0].as_str(), names[1].as_str()];
        compile("bare", name, &[target, CALLS, BARE, &names])?;
    }
    for (name, buffer) in [("one", 24), ("two", 72)] {
        let names = [
            format!("-DLEAF=leaf_{name}"),
            format!("-DMIDDLE=middle_{name}"),
            format!("-DSTACK_BYTES={buffer}"),
        ];
        let names = [names[0].as_str(), names[1].as_str(), names[2].as_str()];
        compile(
            "swapped",
            &format!("swapped_{name}"),
            &[LIBRARY, CALLS, &names],
        )?;
    }
    Ok(())
}

/// Compiles `workloads/SOURCE.c`, and passes the program's path to rustc as `NAME_PROGRAM`.
fn compile(source: &str, name: &str, flags: &[&[&str]]) -> Result<(), Box<dyn Error>> {
    let source = format!("workloads/{source}.c");
    let variable = format!("{}_PROGRAM", name.to_uppercase());
    println!("cargo::rerun-if-changed={source}");
    if env::var("CARGO_CFG_TARGET_ARCH")? != "x86_64" {
        // No such path: what would run it says so.
        println!("cargo::rustc-env={variable}=");
        return Ok(());
    }
    let program = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?).join(name);
    let clang = env::var_os("CLANG").unwrap_or_else(|| "clang".into());
    let status = Command::new(&clang)
        .args(flags.concat())
        .args(COMMON)
        .arg(&source)
        .arg("-o")
        .arg(&program)
        .status()
        .map_err(|error| format!("cannot run {}: {error} (package clang)", clang.display()))?;
    if !status.success() {
        return Err(format!(
            "{source} is not compiled: clang, a linker for i386 and a C library are needed (packages clang, binutils and \
             libc6-dev)"
        )
        .into());
    }
    println!("cargo::rustc-env={variable}={}", program.display());
    Ok(())
}
