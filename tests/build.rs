//! Compiles the 32-bit workload, which Rust cannot be for: its standard library for such programs, and the C library
//! below it, are not on every machine. clang is, since the BPF programs need it, and the linker of binutils knows i386.

use std::env;
use std::path::PathBuf;
use std::process::Command;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    const SOURCE: &str = "workloads/compat32.c";
    println!("cargo::rerun-if-changed={SOURCE}");
    println!("cargo::rerun-if-env-changed=CLANG");

    if env::var("CARGO_CFG_TARGET_ARCH")? != "x86_64" {
        // No such path: what would run it says so.
        println!("cargo::rustc-env=COMPAT32_PROGRAM=");
        return Ok(());
    }
    let program =
        PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?).join("compat32");
    let clang = env::var_os("CLANG").unwrap_or_else(|| "clang".into());
    let status = Command::new(&clang)
        .args([
            "--target=i386-linux-gnu",
            "-O2",
            "-Wall",
            "-Wextra",
            "-Werror",
        ])
        .args([
            "-ffreestanding",
            "-nostdlib",
            "-static",
            "-fno-pic",
            "-fno-stack-protector",
        ])
        .args(["-Wl,-z,noexecstack", SOURCE, "-o"])
        .arg(&program)
        .status()
        .map_err(|error| format!("cannot run {}: {error} (package clang)", clang.display()))?;
    if !status.success() {
        return Err(format!(
            "{SOURCE} is not compiled: clang and a linker for i386 are needed (packages clang and binutils)"
        )
        .into());
    }
    println!("cargo::rustc-env=COMPAT32_PROGRAM={}", program.display());
    Ok(())
}
