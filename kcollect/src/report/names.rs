//! Names of functions as people write them.

use std::fmt::Write as _;

/// Longest name that is taken apart, bytes, and longest that comes out: a mangled name can stand for one of any length.
const LONGEST: usize = 4096;
const LONGEST_PLAIN: usize = 16 * 1024;

/// Stops when there is too much.
struct Bounded(String);

impl std::fmt::Write for Bounded {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        if self.0.len() + text.len() > LONGEST_PLAIN {
            return Err(std::fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}

/// What stands behind a symbol that a linker or compiler made of another one: `@plt`, `.cold`, `.isra.0`.
fn split(symbol: &str) -> (&str, &str) {
    let end = symbol.find(['.', '@']).unwrap_or(symbol.len());
    symbol.split_at(end)
}

/// The name that a symbol of C++ or Rust stands for; none for others.
#[must_use]
pub fn demangle(symbol: &str) -> Option<String> {
    if !(symbol.starts_with("_Z") || symbol.starts_with("_R")) || symbol.len() > LONGEST {
        return None;
    }
    let mut out = Bounded(String::new());
    if let Ok(name) = rustc_demangle::try_demangle(symbol) {
        return write!(out, "{name:#}").is_ok().then_some(out.0);
    }
    let (base, rest) = split(symbol);
    let name = cpp_demangle::Symbol::new(base).ok()?;
    let options = cpp_demangle::DemangleOptions::default();
    name.structured_demangle(&mut out, &options).ok()?;
    if rest.starts_with('.') {
        write!(out, " [clone {rest}]").ok()?;
    } else {
        out.write_str(rest).ok()?;
    }
    Some(out.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_of_c_plus_plus_and_rust_are_taken_apart() {
        for (symbol, name) in [
            ("_ZN3foo3barEi", Some("foo::bar(int)")),
            (
                "_ZNSt6vectorIiSaIiEE9push_backEOi@plt",
                Some("std::vector<int, std::allocator<int> >::push_back(int&&)@plt"),
            ),
            (
                "_ZN4core3fmt5write17h0123456789abcdefE",
                Some("core::fmt::write"),
            ),
            ("_RNvC6_123foo3bar", Some("123foo::bar")),
            ("_ZN3foo3barEi.cold", Some("foo::bar(int) [clone .cold]")),
            ("main", None),
            ("_Zfoo", None),
        ] {
            assert_eq!(demangle(symbol).as_deref(), name, "{symbol}");
        }
    }

    proptest! {
        #[test]
        fn any_symbol_is_taken(symbol in "_[ZR][!-~]{0,60}") {
            let _ = demangle(&symbol);
        }
    }
}
