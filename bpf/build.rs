//! Compiles the BPF programs with clang and makes their skeletons, into `OUT_DIR`; and the pure C
//! headers natively, for the tests.

use std::env;
use std::path::{Path, PathBuf};

use libbpf_cargo::SkeletonBuilder;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // The directory, not each file: a new header must count too.
    println!("cargo::rerun-if-changed=c");
    println!("cargo::rerun-if-env-changed=CLANG");

    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?);
    let arch = match env::var("CARGO_CFG_TARGET_ARCH")?.as_str() {
        "x86_64" => "x86",
        "aarch64" => "arm64",
        other => return Err(format!("kcollect knows x86_64 and aarch64, not {other}").into()),
    };
    let libbpf_headers = env::var("DEP_BPF_INCLUDE")?;
    let here = env::var("CARGO_MANIFEST_DIR")?;
    let mut skeleton = SkeletonBuilder::new();
    if let Some(clang) = env::var_os("CLANG") {
        skeleton.clang(clang);
    }
    skeleton
        .source("c/collector.bpf.c")
        .clang_args([
            &format!("-D__TARGET_ARCH_{arch}"),
            // Named, because compilers differ in their default; every kernel since 5.1 has v3.
            "-mcpu=v3",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-Ic",
            &format!("-I{libbpf_headers}"),
            // BTF names the source of each line: without the directory that it was built in.
            &format!("-ffile-prefix-map={here}=bpf"),
            &format!("-ffile-prefix-map={libbpf_headers}=libbpf"),
        ])
        .build_and_generate(out.join("collector.skel.rs"))
        .map_err(|error| {
            format!("{error:#}\nclang is needed to build the BPF programs (package clang)")
        })?;

    native(Path::new("c/native.c"));
    Ok(())
}

fn native(source: &Path) {
    cc::Build::new()
        .file(source)
        .flags(["-Wall", "-Wextra", "-Werror"])
        .compile("kcollect_native");
}
