//! Each C header includes what it uses, so that no file depends on the order of its includes.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};

fn headers(folder: &str) -> Result<Vec<PathBuf>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let mut headers = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "h") {
            headers.push(path);
        }
    }
    ensure!(!headers.is_empty(), "no headers");
    Ok(headers)
}

/// Compiles a file that includes one header and nothing else.
fn compile_alone(header: &Path, arguments: &[&str]) -> Result<()> {
    let clang = env::var_os("CLANG").unwrap_or_else(|| "clang".into());
    let compiled = Command::new(clang)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args(["-fsyntax-only", "-Wall", "-Wextra", "-Werror"])
        // Other files use what a header has.
        .args(["-Wno-unused-function", "-Iabi/c"])
        .args(arguments)
        .arg("-include")
        .arg(header)
        .args(["-x", "c", "/dev/null"])
        .output()?;
    ensure!(
        compiled.status.success(),
        "{} does not compile alone: {}",
        header.display(),
        String::from_utf8_lossy(&compiled.stderr)
    );
    Ok(())
}

#[test]
fn headers_of_programs_compile_alone() -> Result<()> {
    for header in headers("c")?.iter().chain(&headers("abi/c")?) {
        for arch in ["-D__TARGET_ARCH_x86", "-D__TARGET_ARCH_arm64"] {
            let libbpf = concat!("-I", env!("LIBBPF_INCLUDE"));
            compile_alone(header, &["-target", "bpf", arch, "-Ic", libbpf])?;
        }
    }
    Ok(())
}

#[test]
fn shared_headers_compile_alone_natively() -> Result<()> {
    headers("abi/c")?
        .iter()
        .try_for_each(|header| compile_alone(header, &[]))
}
