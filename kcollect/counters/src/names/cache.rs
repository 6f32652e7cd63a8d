//! Generic events of caches (`PERF_TYPE_HW_CACHE`) by the names that perf has for them.
//!
//! A name consists of a cache, an operation and a result: `L1-dcache-load-misses`. The kernel has a
//! number for each part.

use perf_event_open_sys::bindings as sys;

use crate::names::generic::{GenericEvent, NamedId};

/// The caches: names, title, number.
const CACHES: [NamedId; 7] = [
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

/// The operations on a cache: names, title, number.
const OPERATIONS: [NamedId; 3] = [
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

/// The results of an operation: names, title, number.
const RESULTS: [NamedId; 2] = [
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

/// Returns the event of a name such as `L1-dcache-load-misses`: a cache, then an operation and a
/// result, in either order and in any case. The default operation is loads, the default result all
/// accesses.
#[must_use]
pub fn find(name: &str) -> Option<GenericEvent> {
    let name = name.to_ascii_lowercase();
    let ((_, title, cache), mut rest) = leading_row(&CACHES, &name)?;
    let (mut operation, mut result) = (None, None);
    while !rest.is_empty() {
        let word = rest.strip_prefix('-')?;
        rest = match (leading_row(&OPERATIONS, word), leading_row(&RESULTS, word)) {
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
    Some(GenericEvent {
        kind: sys::PERF_TYPE_HW_CACHE,
        config: u64::from(*cache) | u64::from(*op_id) << 8 | u64::from(*result_id) << 16,
        title,
    })
}

/// Returns the row whose name `text` begins with, and the text after that name.
fn leading_row<'a>(rows: &'static [NamedId], text: &'a str) -> Option<(&'static NamedId, &'a str)> {
    rows.iter()
        .flat_map(|row| row.0.iter().map(move |name| (row, name)))
        .find_map(|(row, name)| Some((row, after(text, name)?)))
}

/// Returns the text after a leading word: nothing, or a hyphen and more.
fn after<'a>(text: &'a str, word: &str) -> Option<&'a str> {
    text.strip_prefix(word)
        .filter(|rest| rest.is_empty() || rest.starts_with('-'))
}

/// Returns the names of cache events as perf lists them (`L1-dcache-load-misses`), without those
/// that no CPU can have.
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
    fn cache_names_are_encoded_as_by_perf() {
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
