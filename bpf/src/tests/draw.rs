//! Tests of `c/draw.h`, compiled natively, against the logarithm of the standard library.

use super::native::native_draw_bytes;
use crate::allocations::{draw_scale, log2_table};

fn draw(random: u32, mean_bytes: u64) -> u64 {
    let table = log2_table();
    // SAFETY: the table is as long as the function reads, and is not kept.
    unsafe { native_draw_bytes(random, draw_scale(mean_bytes), table.as_ptr()) }
}

#[test]
fn a_draw_is_the_logarithm() {
    let mean = 524_288;
    let exact = |random: u32| -(f64::from(random) + 1.0).log2() + 32.0;
    let numbers = (0..32).flat_map(|bit| [1_u32 << bit, (1 << bit) - 1, 3 << bit, 0x5555 << bit]);
    for random in numbers.chain([0, u32::MAX, u32::MAX - 1, 0x8000_0001]) {
        let expected = exact(random) * std::f64::consts::LN_2 * mean as f64;
        let difference = (draw(random, mean) as f64 - 1.0 - expected).abs();
        // The table's steps are straight lines: 3 in a million of 1.
        assert!(
            difference < 3.0 + 3e-6 * mean as f64,
            "{random:#x}: {difference}"
        );
    }
}

#[test]
fn the_mean_is_that_which_was_asked_for() {
    for mean in [1024_u64, 4096, 524_288, 1 << 30] {
        let draws = 1 << 16;
        let sum: f64 = (0..draws)
            .map(|step: u32| draw((step << 16) + (1 << 15), mean) as f64 - 1.0)
            .sum();
        let found = sum / f64::from(draws);
        // A draw is cut to whole bytes: half of one less. Evenly spaced numbers miss a part of the
        // last one's tail.
        let difference = (found + 0.5 - mean as f64).abs();
        assert!(difference < 0.5 + 1e-4 * mean as f64, "{mean}: {found}");
    }
}
