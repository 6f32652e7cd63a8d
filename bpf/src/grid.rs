//! Tests of `c/grid.h`, compiled natively, as drawings of time.
//!
//! A drawing is a line of boundaries `|` four columns apart and a line of firings `^` under it; each firing's
//! ticks are the boundaries it must stand for.

use proptest::prelude::*;

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Grid {
    origin: u64,
    index: u64,
}

unsafe extern "C" {
    fn native_grid_advance(grid: *mut Grid, now: u64, period: u64) -> u32;
}

impl Grid {
    fn advance(&mut self, now: u64, period: u64) -> u32 {
        // SAFETY: `self` is a valid `struct grid` for the call, which keeps no pointer.
        unsafe { native_grid_advance(self, now, period) }
    }
}

/// Columns of the firings in a drawing, at 1000 + column.
fn firings(drawing: &str) -> Vec<u32> {
    let mut grid = Grid::default();
    drawing
        .bytes()
        .enumerate()
        .filter(|(_, mark)| *mark == b'^')
        .map(|(column, _)| grid.advance(1000 + column as u64, 4))
        .collect()
}

#[test]
fn a_timer_on_time_counts_one_each() {
    //                    |   |   |   |   |
    assert_eq!(firings("  ^   ^   ^   ^   ^"), [1, 1, 1, 1, 1]);
}

#[test]
fn late_by_less_than_a_period_is_still_one_each() {
    //                    |   |   |   |   |
    assert_eq!(firings("  ^   ^  ^^    ^^"), [1, 1, 1, 1, 1, 1]);
    assert_eq!(firings("  ^      ^  ^   ^"), [1, 1, 1, 1]);
}

#[test]
fn boundaries_that_the_kernel_skipped_are_made_up_for() {
    //                    |   |   |   |   |   |   |
    assert_eq!(firings("  ^   ^               ^   ^"), [1, 1, 4, 1]);
    assert_eq!(firings("  ^   ^            ^  ^"), [1, 1, 3, 1]);
}

#[test]
fn a_late_first_firing_only_places_the_grid_too_late_until_a_better_one_comes() {
    //                    |   |   |   |   |   |
    assert_eq!(firings("    ^ ^   ^   ^       ^"), [1, 1, 1, 1, 2]);
}

proptest! {
    /// Firings at every boundary that the kernel did not skip, each late by its own latency of less
    /// than a period: the sum of ticks is the boundaries passed, within the one that the first
    /// firing's own latency can hide.
    #[test]
    fn the_sum_of_ticks_is_the_boundaries_passed(
        period in 100_000_u64..1_000_000_000,
        steps in proptest::collection::vec((1_u64..5, 0.0_f64..0.95), 1..300),
    ) {
        let mut grid = Grid::default();
        let (mut boundary, mut ticks, mut first) = (0, 0, None);
        for (step, latency) in steps {
            boundary += step;
            let now = 1_000_000 + boundary * period + (latency * period as f64) as u64;
            ticks += u64::from(grid.advance(now, period));
            first.get_or_insert(boundary);
        }
        let passed = boundary - first.unwrap() + 1;
        prop_assert!(ticks.abs_diff(passed) <= 1, "{ticks} ticks for {passed} boundaries");
    }
}
