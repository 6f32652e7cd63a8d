use std::fs::File;
use std::io::{Seek as _, Write as _};
use std::process::Command;

use object::read::{Object as _, ObjectSymbol as _, ReadCache};
use proptest::prelude::*;

use super::demangle;

const MAX_BYTES: usize = 64 << 10;

#[test]
fn names_are_those_of_cxxfilt() {
    for (mangled, name) in [
        ("_Z3foov", "foo()"),
        ("_ZNK1A1fEi", "A::f(int) const"),
        ("_Z1fIiEvT_", "void f<int>(int)"),
        ("_Z1fIJicEEvDpOT_", "void f<int, char>(int&&, char&&)"),
        ("_Z1fPFvicE", "f(void (*)(int, char))"),
        ("_Z1fRA5_Kc", "f(char const (&) [5])"),
        ("_Z1fM1AKFviE", "f(void (A::*)(int) const)"),
        ("_Z1fILj16ELb1EEvv", "void f<16u, true>()"),
        ("_ZTV1A", "vtable for A"),
        ("_ZThn16_N1A1fEv", "non-virtual thunk to A::f()"),
        ("_ZN1AcviEv", "A::operator int()"),
        ("_ZN1AC2ERKS_", "A::A(A const&)"),
        (
            "_ZZ1fvENKUliE_clEi",
            "f()::{lambda(int)#1}::operator()(int) const",
        ),
        ("_ZN12_GLOBAL__N_11fEv", "(anonymous namespace)::f()"),
        ("_ZL1fv", "f()"),
        ("_ZN1A1fB5cxx11Ev", "A::f[abi:cxx11]()"),
        ("_ZplRK1AS1_", "operator+(A const&, A const&)"),
        ("_ZN1AIiEC1IcEET_", "A<int>::A<char>(char)"),
        (
            "_Z1fIiEDTplfp_Li1EET_",
            "decltype ({parm#1}+(1)) f<int>(int)",
        ),
        (
            "_ZNSt6vectorIiSaIiEE9push_backEOi",
            "std::vector<int, std::allocator<int> >::push_back(int&&)",
        ),
    ] {
        assert_eq!(
            demangle(mangled, MAX_BYTES).as_deref(),
            Some(name),
            "{mangled}"
        );
    }
    for other in ["_Z", "_Zwhat", "_ZN1A", "main", "_Z1fT_", "_ZS_"] {
        assert_eq!(demangle(other, MAX_BYTES), None, "{other}");
    }
}

/// Returns names of C++ in a library, if it is there.
fn names_in(path: &str) -> Vec<String> {
    let Ok(file) = File::open(path) else {
        return Vec::new();
    };
    let cache = ReadCache::new(file);
    let Ok(library) = object::File::parse(&cache) else {
        return Vec::new();
    };
    let names = library.dynamic_symbols().chain(library.symbols());
    names
        .filter_map(|symbol| symbol.name().ok().map(str::to_owned))
        .filter(|name| name.starts_with("_Z") && !name.contains("17h") && !name.contains('@'))
        .collect()
}

/// A sample of the names in libraries that may be installed is as `c++filt` has it. That fails for
/// some names, and prints some parameters of templates in another scope.
#[test]
fn names_of_large_libraries_are_those_of_cxxfilt() {
    const LIBRARIES: [&str; 5] = [
        "/usr/lib/x86_64-linux-gnu/libstdc++.so.6",
        "/usr/lib/x86_64-linux-gnu/libLLVM-14.so.1",
        "/usr/lib/x86_64-linux-gnu/libLLVM-15.so.1",
        "/usr/lib/x86_64-linux-gnu/libasan.so.8",
        "/usr/bin/node",
    ];
    let mut names: Vec<String> = LIBRARIES.into_iter().flat_map(names_in).collect();
    names.sort_unstable();
    names.dedup();
    let names: Vec<&str> = names.iter().step_by(7).map(String::as_str).collect();
    let mut file = tempfile::tempfile().unwrap();
    file.write_all((names.join("\n") + "\n").as_bytes())
        .unwrap();
    file.rewind().unwrap();
    let Ok(output) = Command::new("c++filt").stdin(file).output() else {
        // It is not installed.
        return;
    };
    let text = String::from_utf8_lossy(&output.stdout);
    let mut different = Vec::new();
    for (mangled, theirs) in names.iter().zip(text.lines()) {
        let ours = demangle(mangled, 1 << 20);
        if theirs != *mangled && ours.as_deref() != Some(theirs) {
            different.push(format!("{mangled}\n{ours:?}\n{theirs:?}"));
        }
    }
    assert!(
        different.len() * 1000 <= names.len(),
        "{} of {}: {}",
        different.len(),
        names.len(),
        different.join("\n")
    );
}

#[test]
fn deep_names_are_given_up() {
    for (piece, end) in [
        ("P", "i"),
        ("N1AI", ""),
        ("ZN", ""),
        ("1AI", "iE"),
        ("FP", "v"),
        ("Z1fI", ""),
    ] {
        for repeats in [100, 250, 2000] {
            let name = format!("_Z1f{}{end}", piece.repeat(repeats));
            let _ = demangle(&name, MAX_BYTES);
        }
    }
    for piece in ["ng", "dttl", "cl", "plL_Z1fE", "srN"] {
        for repeats in [100, 250, 2000] {
            let name = format!("_Z1fIX{}Li1EEvv", piece.repeat(repeats));
            let _ = demangle(&name, MAX_BYTES);
        }
    }
    let deep = format!("_Z1f{}i{}v", "I1A".repeat(200), "E".repeat(200));
    let _ = demangle(&deep, MAX_BYTES);
    let closed = format!("_Z1f{}i{}", "1AI".repeat(100), "E".repeat(100));
    assert!(demangle(&closed, MAX_BYTES).is_some());
}

proptest! {
    #[test]
    fn any_name_ends(name in "_Z(N|L|T[VIh]|Z|S)?[A-Za-z0-9_]{0,60}(E|v)?") {
        let found = demangle(&name, 4096);
        prop_assert!(found.is_none_or(|found| found.len() <= 4096));
    }
}
