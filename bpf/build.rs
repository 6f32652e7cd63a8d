//! Compiles the BPF programs with clang, one object for each subject, links them into one, and
//! generates its skeleton. Also compiles the pure C headers natively for the tests, and generates
//! their declarations. All goes into `OUT_DIR`.
//!
//! The object is made for each processor, whichever this is built for: it takes two seconds, the
//! code of the other one cannot rot, and `kernels/` checks both.

use std::env;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use libbpf_cargo::SkeletonBuilder;
use libbpf_rs::Linker;

/// The files `c/*.bpf.c`, in the order in which they are linked. `maps` comes first: its
/// head has the reason.
const SUBJECTS: [&str; 14] = [
    "maps",
    "clock",
    "sched",
    "page_fault",
    "user_unwind",
    "overflow",
    "task_iter",
    "exec",
    "wakeup",
    "waking",
    "deciding_words",
    "io_call",
    "io_uring",
    "heap",
];

fn main() -> Result<(), Box<dyn Error>> {
    // The directories, not each file: a new header must count too.
    println!("cargo::rerun-if-changed=c");
    println!("cargo::rerun-if-changed=abi/c");
    println!("cargo::rerun-if-env-changed=CLANG");
    // For src/tests/headers.rs.
    println!(
        "cargo::rustc-env=LIBBPF_INCLUDE={}",
        env::var("DEP_BPF_INCLUDE")?
    );

    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?);
    let target = match env::var("CARGO_CFG_TARGET_ARCH")?.as_str() {
        "x86_64" => "x86",
        "aarch64" => "arm64",
        other => return Err(format!("kcollect runs on x86_64 and aarch64, not on {other}").into()),
    };
    for arch in ["x86", "arm64"] {
        let out = out.join(arch);
        fs::create_dir_all(&out)?;
        let objects = SUBJECTS
            .iter()
            .map(|subject| compile(subject, arch, &out))
            .collect::<Result<Vec<_>, _>>()?;
        // The names of the maps of variables begin with the first eight letters of this name.
        link(&objects, &out.join("kcollect.o"))
            .map_err(|error| format!("cannot link the BPF programs: {error:#}"))?;
    }
    SkeletonBuilder::new()
        .obj(out.join(target).join("kcollect.o"))
        .generate(out.join("kcollect.skel.rs"))?;

    cc::Build::new()
        .file("c/native.c")
        .include("abi/c")
        .flags(["-Wall", "-Wextra", "-Werror"])
        .compile("kcollect_native");
    bindgen::builder()
        .header("c/native.c")
        .clang_arg("-Iabi/c")
        .allowlist_function("native_.*")
        .derive_default(true)
        .derive_eq(true)
        .rust_edition(bindgen::RustEdition::Edition2024)
        .generate()?
        .write_to_file(out.join("native.rs"))?;
    Ok(())
}

fn compile(subject: &str, arch: &str, out: &Path) -> Result<PathBuf, Box<dyn Error>> {
    let libbpf_headers = env::var("DEP_BPF_INCLUDE")?;
    let here = env::var("CARGO_MANIFEST_DIR")?;
    let source = format!("c/{subject}.bpf.c");
    let object = out.join(format!("{subject}.bpf.o"));
    let clang = env::var_os("CLANG").unwrap_or_else(|| "clang".into());
    // Not by `SkeletonBuilder::build`, which links each object by itself: it would define the maps
    // that are only declared in it.
    let status = Command::new(clang)
        .args(["-g", "-O2", "-target", "bpf", "-fno-stack-protector"])
        // Named, because compilers differ in their default; every kernel since 5.1 has v3.
        .arg("-mcpu=v3")
        .args(["-Wall", "-Wextra", "-Werror", "-Ic", "-Iabi/c"])
        .arg(format!("-D__TARGET_ARCH_{arch}"))
        .arg(format!("-I{libbpf_headers}"))
        // BTF has the source of each line: without the directory that it was built in.
        .arg(format!("-ffile-prefix-map={here}=bpf"))
        .arg(format!("-ffile-prefix-map={libbpf_headers}=libbpf"))
        .args(["-c", &source, "-o"])
        .arg(&object)
        .status()
        .map_err(|error| format!("clang builds the BPF programs (package clang): {error}"))?;
    if !status.success() {
        return Err(format!("clang refuses {source} for {arch}").into());
    }
    Ok(object)
}

fn link(objects: &[PathBuf], linked: &Path) -> libbpf_rs::Result<()> {
    let mut linker = Linker::new(linked)?;
    objects
        .iter()
        .try_for_each(|object| linker.add_file(object))?;
    linker.link()
}
