//! Events of caches: `PERF_TYPE_HW_CACHE`, as perf calls them.
//!
//! A name is put together from a cache, what is done to it, and what comes of it:
//! `L1-dcache-load-misses`. The kernel has a number for each part.

use perf_event_open_sys::bindings as sys;

use crate::names::generic::{Generic, Row};

/// Caches: names, title, number.
const CACHES: [Row; 7] = [
    (
        &["l1-dcache", "l1-data", "l1-d", "l1d"],
        "L1 D-cache",
        sys::PERF_COUNT_HW_CACHE_L1D,
    ),
    (
        &["l1-icache", "l1-instruction", "l1-i", "l1i"],
        "L1 I-cache",
        sys::PERF_COUNT_HW_CACHE_L1I,
    ),
    (
        &["llc", "l2"],
        "Last-Level Cache",
        sys::PERF_COUNT_HW_CACHE_LL,
    ),
    (
        &["dtlb", "d-tlb", "data-tlb"],
        "DTLB",
        sys::PERF_COUNT_HW_CACHE_DTLB,
    ),
    (
        &["itlb", "i-tlb", "instruction-tlb"],
        "ITLB",
        sys::PERF_COUNT_HW_CACHE_ITLB,
    ),
    (
        &["branches", "branch", "bpu", "btb", "bpc"],
        "Branch Unit",
        sys::PERF_COUNT_HW_CACHE_BPU,
    ),
    (&["node"], "Node Memory", sys::PERF_COUNT_HW_CACHE_NODE),
];

/// What is done to a cache: names, title of one and of many, number.
const OPERATIONS: [Row; 3] = [
    (
        &["loads", "load", "read"],
        "Load",
        sys::PERF_COUNT_HW_CACHE_OP_READ,
    ),
    (
        &["stores", "store", "write"],
        "Store",
        sys::PERF_COUNT_HW_CACHE_OP_WRITE,
    ),
    (
        &[
            "prefetches",
            "prefetch",
            "speculative-read",
            "speculative-load",
        ],
        "Prefetch",
        sys::PERF_COUNT_HW_CACHE_OP_PREFETCH,
    ),
];

/// What comes of it: names, title, number.
const RESULTS: [Row; 2] = [
    (
        &["refs", "reference", "ops", "access"],
        "",
        sys::PERF_COUNT_HW_CACHE_RESULT_ACCESS,
    ),
    (
        &["misses", "miss"],
        "Misses",
        sys::PERF_COUNT_HW_CACHE_RESULT_MISS,
    ),
];

/// `L1-dcache-load-misses`: a cache, then what is done to it and what comes of it, in either order,
/// whatever the case. Where one is left out it is loads, or all accesses.
#[must_use]
pub fn find(name: &str) -> Option<Generic> {
    let name = name.to_ascii_lowercase();
    let ((_, title, cache), mut rest) = first(&CACHES, &name)?;
    let (mut operation, mut result) = (None, None);
    while !rest.is_empty() {
        let word = rest.strip_prefix('-')?;
        rest = match (first(&OPERATIONS, word), first(&RESULTS, word)) {
            (Some((row, rest)), _) if operation.is_none() => {
                operation = Some(row);
                rest
            }
            (None, Some((row, rest))) if result.is_none() => {
                result = Some(row);
                rest
            }
            _ => return None,
        };
    }
    let (_, operation, op_id) = operation.unwrap_or(&OPERATIONS[0]);
    let (_, result, result_id) = result.unwrap_or(&RESULTS[0]);
    let title = match (*operation, *result) {
        ("Prefetch", "") => format!("{title} Prefetches"),
        (operation, "") => format!("{title} {operation}s"),
        (operation, result) => format!("{title} {operation} {result}"),
    };
    Some(Generic {
        kind: sys::PERF_TYPE_HW_CACHE,
        config: u64::from(*cache) | u64::from(*op_id) << 8 | u64::from(*result_id) << 16,
        title,
    })
}

/// The row whose name `text` begins with, and what follows that.
fn first<'a>(rows: &'static [Row], text: &'a str) -> Option<(&'static Row, &'a str)> {
    rows.iter()
        .flat_map(|row| row.0.iter().map(move |name| (row, name)))
        .find_map(|(row, name)| Some((row, after(text, name)?)))
}

/// What follows a word at the beginning of `text`: nothing, or a hyphen and more.
fn after<'a>(text: &'a str, word: &str) -> Option<&'a str> {
    text.strip_prefix(word)
        .filter(|rest| rest.is_empty() || rest.starts_with('-'))
}

/// The names of caches' events as perf lists them, `L1-dcache-load-misses`, without those that no
/// CPU can have.
pub fn names() -> impl Iterator<Item = String> {
    const LOADS: &[&str] = &["load"];
    const FETCHES: &[&str] = &["load", "prefetch"];
    const ALL: &[&str] = &["load", "store", "prefetch"];
    let caches = [
        ("L1-dcache", ALL),
        ("L1-icache", FETCHES),
        ("LLC", ALL),
        ("dTLB", ALL),
        ("iTLB", LOADS),
        ("branch", LOADS),
        ("node", ALL),
    ];
    caches.into_iter().flat_map(|(cache, operations)| {
        operations.iter().flat_map(move |operation| {
            let plural = if *operation == "prefetch" { "es" } else { "s" };
            [
                format!("{cache}-{operation}{plural}"),
                format!("{cache}-{operation}-misses"),
            ]
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_cache_is_asked() {
        // Cache, operation << 8, result << 16: as `perf stat -vv` prints them.
        for (name, config, title) in [
            ("L1-dcache-loads", 0x0, "L1 D-cache Loads"),
            ("L1-dcache-load-misses", 0x10000, "L1 D-cache Load Misses"),
            ("l1d-misses-loads", 0x10000, "L1 D-cache Load Misses"),
            ("L1-dcache-stores", 0x100, "L1 D-cache Stores"),
            ("L1-dcache-prefetches", 0x200, "L1 D-cache Prefetches"),
            ("L1-icache-load-misses", 0x10001, "L1 I-cache Load Misses"),
            ("LLC-store-misses", 0x10102, "Last-Level Cache Store Misses"),
            ("dTLB-load-misses", 0x10003, "DTLB Load Misses"),
            ("iTLB-loads", 0x4, "ITLB Loads"),
            ("branch-load-misses", 0x10005, "Branch Unit Load Misses"),
            (
                "node-prefetch-misses",
                0x10206,
                "Node Memory Prefetch Misses",
            ),
            ("node", 0x6, "Node Memory Loads"),
        ] {
            let found = find(name).unwrap();
            assert_eq!(
                (found.config, found.title.as_str()),
                (config, title),
                "{name}"
            );
        }
        for name in [
            "",
            "-",
            "L1",
            "L1-dcachex",
            "L1-dcache-",
            "L1-dcache-loads-stores",
            "LLC-misses-miss",
            "tlb-loads",
        ] {
            assert_eq!(find(name), None, "{name}");
        }
        assert!(names().all(|name| find(&name).is_some()));
    }
}
