//! Compiles the unwinder natively, and the layouts of the C side for the test that compares them.

fn main() {
    // The directory, not each file: a new header must count too.
    println!("cargo::rerun-if-changed=c");
    cc::Build::new()
        .file("c/native.c")
        .flags(["-Wall", "-Wextra", "-Werror"])
        .compile("kcollect_abi");
}
