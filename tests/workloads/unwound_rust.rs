//! Closures, sorting, formatting, hashing and a caught panic, compiled with optimisation; for
//! `checks/stacks/unwinder.rs`.

use std::collections::{BTreeMap, HashMap};
use std::hint::black_box;
use std::panic::catch_unwind;

#[inline(never)]
fn deep(depth: u32, work: &mut dyn FnMut(u32) -> u64) -> u64 {
    if depth == 0 {
        return work(depth);
    }
    deep(depth - 1, &mut |n| work(n) + u64::from(depth))
}

#[inline(never)]
fn tables(seed: u64) -> usize {
    let mut words: Vec<String> = (0..40).map(|n| format!("{:x}", n * 7919 * seed)).collect();
    words.sort_by(|a, b| b.cmp(a));
    let hashed: HashMap<&str, usize> = words.iter().map(String::as_str).zip(0..).collect();
    let sorted: BTreeMap<usize, &str> = hashed.iter().map(|(k, v)| (*v, *k)).collect();
    sorted.values().map(|word| word.len()).sum()
}

fn main() {
    std::panic::set_hook(Box::new(|_| {}));
    for n in 1_u64.. {
        black_box(deep(20, &mut |d| u64::from(d) + n));
        black_box(tables(n));
        let caught = catch_unwind(|| {
            deep(5, &mut |d| {
                assert!(d > 0, "at the bottom");
                0
            })
        });
        black_box(caught.is_err());
    }
}
