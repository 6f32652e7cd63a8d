//! The names of functions that allocate and free blocks.

use bpf_abi::layout::AllocatorFunction;
use bpf_abi::layout::AllocatorFunction::{
    Calloc, Free, Malloc, Memalign, New, PosixMemalign, Realloc, Reallocarray,
};

/// The longest name that is looked at, bytes.
pub(super) const MAX_NAME_BYTES: usize = 64;

/// The function with which glibc and musl start a program; no other file has it.
pub(super) const STARTS_PROGRAMS: &[u8] = b"__libc_start_main";

/// What a name says of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) function: AllocatorFunction,
    /// The name has no prefix.
    pub(super) plain: bool,
    /// It is an operator of C++, which calls malloc where it is not an allocator's own.
    pub(super) operator: bool,
}

/// Functions of C.
const PLAIN: [(&[u8], AllocatorFunction); 11] = [
    (b"malloc", Malloc),
    (b"calloc", Calloc),
    (b"realloc", Realloc),
    (b"reallocarray", Reallocarray),
    (b"memalign", Memalign),
    (b"aligned_alloc", Memalign),
    (b"posix_memalign", PosixMemalign),
    (b"valloc", Malloc),
    (b"pvalloc", Malloc),
    (b"free", Free),
    (b"cfree", Free),
];

/// The prefixes with which jemalloc (by default, and in Rust), tcmalloc and mimalloc have them.
const PREFIXES: [&[u8]; 4] = [b"je_", b"_rjem_", b"tc_", b"mi_"];

/// Further functions of these allocators, with or without a prefix: jemalloc's take flags,
/// mimalloc's take an alignment after the size or fill the block with zeros.
const FURTHER: [(&[u8], AllocatorFunction); 13] = [
    (b"mallocx", Malloc),
    (b"rallocx", Realloc),
    (b"dallocx", Free),
    (b"sdallocx", Free),
    (b"malloc_aligned", Malloc),
    (b"zalloc", Malloc),
    (b"zalloc_aligned", Malloc),
    (b"calloc_aligned", Calloc),
    (b"realloc_aligned", Realloc),
    (b"reallocn", Reallocarray),
    (b"free_size", Free),
    (b"free_aligned", Free),
    (b"free_size_aligned", Free),
];

/// Operators of C++, as they are mangled.
const OPERATORS: [(&[u8], AllocatorFunction); 18] = [
    (b"_Znwm", New),
    (b"_Znam", New),
    (b"_ZnwmRKSt9nothrow_t", New),
    (b"_ZnamRKSt9nothrow_t", New),
    (b"_ZnwmSt11align_val_t", New),
    (b"_ZnamSt11align_val_t", New),
    (b"_ZnwmSt11align_val_tRKSt9nothrow_t", New),
    (b"_ZnamSt11align_val_tRKSt9nothrow_t", New),
    (b"_ZdlPv", Free),
    (b"_ZdaPv", Free),
    (b"_ZdlPvm", Free),
    (b"_ZdaPvm", Free),
    (b"_ZdlPvRKSt9nothrow_t", Free),
    (b"_ZdaPvRKSt9nothrow_t", Free),
    (b"_ZdlPvSt11align_val_t", Free),
    (b"_ZdaPvSt11align_val_t", Free),
    (b"_ZdlPvmSt11align_val_t", Free),
    (b"_ZdaPvmSt11align_val_t", Free),
];

/// What a function with this name does, if it is an allocator's.
pub(super) fn function_of(name: &[u8]) -> Option<Named> {
    let found = |names: &[(&[u8], AllocatorFunction)], name: &[u8]| {
        let mut names = names.iter();
        names.find_map(|(known, function)| (*known == name).then_some(*function))
    };
    let named = |function, plain, operator| Named {
        function,
        plain,
        operator,
    };
    if let Some(function) = found(&PLAIN, name) {
        return Some(named(function, true, false));
    }
    if let Some(function) = found(&OPERATORS, name) {
        return Some(named(function, true, true));
    }
    let rest = PREFIXES
        .iter()
        .find_map(|prefix| name.strip_prefix(*prefix));
    let further = rest.and_then(|rest| found(&PLAIN, rest).or_else(|| found(&FURTHER, rest)));
    // jemalloc has its further functions without a prefix too.
    let function = further.or_else(|| found(&FURTHER[..4], name))?;
    Some(named(function, false, false))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_and_without_a_prefix() {
        let shown = |name: &str| {
            function_of(name.as_bytes()).map(|named| (named.function, named.plain, named.operator))
        };
        assert_eq!(shown("malloc"), Some((Malloc, true, false)));
        assert_eq!(shown("_rjem_malloc"), Some((Malloc, false, false)));
        assert_eq!(shown("_rjem_sdallocx"), Some((Free, false, false)));
        assert_eq!(shown("mallocx"), Some((Malloc, false, false)));
        assert_eq!(shown("mi_realloc_aligned"), Some((Realloc, false, false)));
        assert_eq!(shown("_ZdlPvm"), Some((Free, true, true)));
        for none in [
            "",
            "je_",
            "malloc_stats",
            "xmalloc",
            "zalloc",
            "_Z",
            "tc__Znwm",
        ] {
            assert_eq!(shown(none), None, "{none}");
        }
    }

    #[test]
    fn names_are_no_longer_than_what_is_read() {
        let longest = |names: &[(&[u8], AllocatorFunction)]| {
            names.iter().map(|(name, _)| name.len()).max().unwrap()
        };
        let prefix = PREFIXES.iter().map(|prefix| prefix.len()).max().unwrap();
        let longest = [&PLAIN[..], &FURTHER, &OPERATORS].map(longest);
        assert!(longest.iter().all(|bytes| prefix + bytes <= MAX_NAME_BYTES));
    }
}
