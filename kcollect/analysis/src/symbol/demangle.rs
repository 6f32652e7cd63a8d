//! Demangles names of C++, Rust and D.
//!
//! A name may be hostile: by nested substitutions a hundred bytes can stand for gigabytes. The
//! demanglers bound their recursion; length is bounded here, before and after. A name that is too
//! long stays as it is.

use std::borrow::Cow;
use std::fmt::{self, Write};

use super::{dlang, itanium};

/// The longest name that is demangled. Expression templates have some thousands of bytes.
const MAX_MANGLED_BYTES: usize = 16 << 10;
/// The longest demangled name.
const MAX_DEMANGLED_BYTES: usize = 64 << 10;

/// Returns a mangled name of C++ (Itanium), Rust (legacy and v0) or D as in the source, Rust's
/// without the hash, and any other name as it is. A version or `plt` after an `@` is kept.
#[must_use]
pub fn demangle(name: &str) -> Cow<'_, str> {
    let (stem, version) = match name.find('@') {
        Some(at) => name.split_at(at),
        None => (name, ""),
    };
    if stem.len() > MAX_MANGLED_BYTES {
        return Cow::Borrowed(name);
    }
    // Rust first: its legacy names are valid names of C++ too.
    match rust(stem).or_else(|| cpp(stem)).or_else(|| d(stem)) {
        Some(mut demangled) => {
            demangled.push_str(version);
            Cow::Owned(demangled)
        }
        None => Cow::Borrowed(name),
    }
}

fn rust(name: &str) -> Option<String> {
    // The demangler takes any nested name for one of Rust's old form, whose names end in a hash.
    if name.trim_start_matches('_').starts_with("ZN") && !has_hash(name) {
        return None;
    }
    let demangled = rustc_demangle::try_demangle(name).ok()?;
    let mut out = Limited::default();
    write!(out, "{demangled:#}").ok()?;
    Some(out.0)
}

/// Whether a name has the hash of Rust's old mangling: 17 characters, an `h` and 16 digits, before
/// the `E` that ends it or is followed by what the linker added.
fn has_hash(name: &str) -> bool {
    name.match_indices("17h").any(|(at, mark)| {
        let rest = name.as_bytes()[at + mark.len()..].split_at_checked(16);
        rest.is_some_and(|(hash, rest)| {
            hash.iter().all(u8::is_ascii_hexdigit) && rest.first() == Some(&b'E')
        })
    })
}

fn cpp(name: &str) -> Option<String> {
    itanium::demangle(name, MAX_DEMANGLED_BYTES)
}

fn d(name: &str) -> Option<String> {
    dlang::demangle(name, MAX_DEMANGLED_BYTES)
}

/// A string of at most [`MAX_DEMANGLED_BYTES`] bytes.
#[derive(Default)]
struct Limited(String);

impl Write for Limited {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.0.len() + text.len() > MAX_DEMANGLED_BYTES {
            return Err(fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_are_as_in_the_source() {
        for (mangled, name) in [
            ("main", "main"),
            (
                "_ZN12_GLOBAL__N_112gUnicodeSetsE",
                "(anonymous namespace)::gUnicodeSets",
            ),
            (
                "_ZN4core3fmt5Write9write_fmt17h0123456789abcdefE",
                "core::fmt::Write::write_fmt",
            ),
            ("_RNvC6_123foo3bar", "123foo::bar"),
            ("_RINvNtC3std3mem8align_ofjE", "std::mem::align_of::<usize>"),
            (
                "_ZNSt6vectorIiSaIiEE9push_backEOi",
                "std::vector<int, std::allocator<int> >::push_back(int&&)",
            ),
            ("_ZN3fooC2Ev@plt", "foo::foo()@plt"),
            ("_ZSt4cout@GLIBCXX_3.4", "std::cout@GLIBCXX_3.4"),
            ("_Z3fooi.isra.0", "foo(int) [clone .isra.0]"),
            ("_Zwhat", "_Zwhat"),
            ("memcpy@@GLIBC_2.14", "memcpy@@GLIBC_2.14"),
            ("", ""),
        ] {
            assert_eq!(demangle(mangled), name);
        }
    }

    #[test]
    fn names_that_would_explode_stay_mangled() {
        // Each template argument is twice the one before.
        let mut bomb = "_Z1fI1AIiiE".to_owned();
        for number in 0..30 {
            let substitution = match number {
                0 => "S0_".to_owned(),
                number => format!(
                    "S{}_",
                    char::from_digit(number, 36).unwrap().to_ascii_uppercase()
                ),
            };
            bomb.push_str(&format!("1AI{substitution}{substitution}E"));
        }
        bomb.push_str("Evv");
        assert!(demangle(&bomb).len() <= MAX_DEMANGLED_BYTES);
        let deep = format!("_Z1f{}i", "P".repeat(10_000));
        assert_eq!(demangle(&deep), deep);
        let long = format!("_Z{}{}", 1 << 20, "x".repeat(1 << 20));
        assert_eq!(demangle(&long), long);
    }

    proptest! {
        #[test]
        fn any_name_has_an_end(name in "(_Z|_R|_ZN|_D3abc)[A-Z0-9a-zS_IE]{0,80}E?") {
            prop_assert!(demangle(&name).len() <= MAX_DEMANGLED_BYTES);
        }
    }
}
