//! Tests of `c/grid.h`, compiled natively, as drawings of time.
//!
//! A drawing is a line of firings `^` under boundaries `|`; each firing's ticks are the boundaries
//! it must stand for.

use proptest::prelude::*;

use super::native::{
    grid as Grid, native_grid_advance, native_grid_align, native_grid_before, native_grid_stolen,
};

impl Grid {
    fn advance(&mut self, now_ns: u64, period: u64) -> u32 {
        // SAFETY: `self` is a valid `struct grid` for the call, which keeps no pointer.
        unsafe { native_grid_advance(self, now_ns, period) }
    }
}

/// Ticks of the firings in a drawing whose first column is the origin; boundaries lie four columns
/// apart.
fn firings(drawing: &str) -> Vec<u32> {
    let mut grid = Grid {
        origin_ns: 1000,
        index: 0,
    };
    drawing
        .bytes()
        .enumerate()
        .filter(|(_, mark)| *mark == b'^')
        .map(|(column, _)| grid.advance(1000 + column as u64, 4))
        .collect()
}

#[test]
fn a_timer_on_time_counts_one_each() {
    //                  0   |   |   |   |   |
    assert_eq!(firings("    ^   ^   ^   ^   ^"), [1, 1, 1, 1, 1]);
    assert_eq!(firings("     ^    ^  ^  ^"), [1, 1, 1, 1]);
}

#[test]
fn late_by_less_than_a_period_is_still_one_each() {
    //                  0   |   |   |   |   |
    assert_eq!(firings("    ^  ^ ^    ^ ^   "), [1, 0, 1, 1, 1]);
    assert_eq!(firings("       ^^      ^^   "), [1, 1, 1, 1]);
}

#[test]
fn boundaries_that_passed_without_a_firing_are_counted_by_the_next() {
    //                  0   |   |   |   |   |   |   |
    assert_eq!(firings("    ^               ^   ^"), [1, 4, 1]);
    assert_eq!(firings("              ^ ^"), [3, 1]);
}

#[test]
fn boundaries_counted_at_the_end_of_a_sleep_are_not_counted_again() {
    // Awake at the third column after a boundary; the timer, overdue, fires right after.
    //                  0   |   |   |   |   |
    assert_eq!(firings("    ^              ^^   ^"), [1, 3, 1, 1]);
    assert_eq!(firings("    ^            ^^     ^"), [1, 3, 0, 2]);
}

#[test]
fn before_the_origin_nothing_has_passed() {
    let mut grid = Grid {
        origin_ns: 1000,
        index: 0,
    };
    assert_eq!(grid.advance(900, 4), 0);
    assert_eq!(grid.advance(1003, 4), 0);
    assert_eq!(grid.advance(1004, 4), 1);
}

/// A thread left after boundary 3 was counted and came back after 7 was: how many of the four lie
/// before its wake-up.
#[test]
fn the_boundaries_of_an_off_cpu_interval_divide_at_its_wake_up() {
    let before = |woken| {
        // SAFETY: a pure function of numbers.
        unsafe { native_grid_before(1000, 3, 7, woken, 10) }
    };
    // 3 is at 1030, 7 at 1070; counted a little later.
    assert_eq!(before(1031), 0);
    assert_eq!(before(1039), 0);
    assert_eq!(before(1040), 1);
    assert_eq!(before(1069), 3);
    assert_eq!(before(1070), 4);
    assert_eq!(before(1075), 4);
    // Awake when 8 has passed and is not counted yet; and by a clock that lags.
    assert_eq!(before(1082), 4);
    assert_eq!(before(900), 0);
}

/// Boundaries at 1, 2, 3 and 4 ms, counted together by a firing at some time after the third or the
/// fourth.
#[test]
fn boundaries_under_the_hypervisor_are_stolen() {
    let stolen = |to, now, stolen| {
        // SAFETY: a pure function of numbers.
        unsafe { native_grid_stolen(0, 0, to, now, stolen, 1_000_000) }
    };
    // The CPU stood still from 0.9 to 3.6 ms.
    assert_eq!(stolen(3, 3_600_000, 2_700_000), 3);
    // From 1.9 ms on: before that, interrupts were off.
    assert_eq!(stolen(3, 3_600_000, 1_700_000), 2);
    // Until 3.99 ms: the last timer fired at once.
    assert_eq!(stolen(4, 4_010_000, 3_100_000), 3);
    // Nothing was stolen, and the timer is late for another reason.
    assert_eq!(stolen(3, 3_600_000, 0), 0);
    // Time was stolen earlier, and the timer fired in time.
    assert_eq!(stolen(1, 1_020_000, 900_000), 0);
    // More than there ever was.
    assert_eq!(stolen(3, 3_600_000, u64::MAX), 3);
}

/// A timer that was started late, boundaries being ten apart: they are moved to where it fires, by
/// the shorter way.
#[test]
fn boundaries_are_where_the_timer_fires() {
    let align = |due| {
        // SAFETY: a pure function of numbers.
        unsafe { native_grid_align(1000, due, 10) }
    };
    assert_eq!(align(1010), 1000);
    assert_eq!(align(1013), 1003);
    assert_eq!(align(1017), 997);
    assert_eq!(align(1_000_017), 997);
    // Nothing that was due before the grid began moves it.
    assert_eq!(align(993), 1000);
    assert_eq!(align(0), 1000);
}

/// A timer that the kernel restarts somewhat later each time: the boundaries follow it, and come
/// back before the time that they lose is a whole one.
#[test]
fn boundaries_do_not_drift() {
    let home = 1000;
    let mut grid = Grid {
        origin_ns: home,
        index: 0,
    };
    // Due every ten, and restarted three later after each second firing.
    let mut due = home;
    let counted: Vec<u32> = (1..=20)
        .map(|firing| {
            due += if firing % 2 == 0 { 13 } else { 10 };
            // SAFETY: a pure function of numbers.
            grid.origin_ns = unsafe { native_grid_align(home, due, 10) };
            grid.advance(due, 10)
        })
        .collect();
    // 230 have passed.
    assert_eq!(counted.iter().sum::<u32>(), 23);
    assert_eq!(
        counted,
        [1, 1, 1, 2, 1, 1, 1, 1, 1, 1, 1, 2, 1, 1, 1, 1, 1, 2, 1, 1]
    );
}

proptest! {
    /// However often and by how much the timer's phase moves, ticks are elapsed time.
    #[test]
    fn ticks_are_elapsed_time_give_or_take_one_and_a_half(
        period in 100_000_u64..1_000_000_000,
        delays in proptest::collection::vec(0_u64..3_000_000_000, 1..300),
    ) {
        let home = 1_u64 << 40;
        let mut grid = Grid { origin_ns: home, index: 0 };
        let (mut due, mut ticks) = (home, 0);
        for delay in delays {
            due += delay;
            // SAFETY: a pure function of numbers.
            grid.origin_ns = unsafe { native_grid_align(home, due, period) };
            ticks += u64::from(grid.advance(due, period));
            let intervals = (due - home) as f64 / period as f64;
            prop_assert!((ticks as f64 - intervals).abs() <= 1.5, "{ticks} ticks in {intervals}");
        }
    }

    #[test]
    fn an_aligned_grid_has_a_boundary_there(origin in 1_u64 << 40..1 << 50, after in 1_u64..1 << 50, period in 100_000_u64..1_000_000_000) {
        let at = origin + after;
        // SAFETY: a pure function of numbers.
        let aligned = unsafe { native_grid_align(origin, at, period) };
        prop_assert_eq!((at - aligned) % period, 0);
        prop_assert!(aligned.abs_diff(origin) <= period / 2);
    }

    /// However often they are counted, every boundary is counted once.
    #[test]
    fn the_sum_is_the_boundaries_passed(
        period in 100_000_u64..1_000_000_000,
        mut asked in proptest::collection::vec(0_u64..10_000_000_000_000, 1..300),
    ) {
        asked.sort_unstable();
        let mut grid = Grid { origin_ns: 1_000_000, index: 0 };
        let ticks: u64 = asked.iter().map(|at| u64::from(grid.advance(1_000_000 + at, period))).sum();
        prop_assert_eq!(ticks, asked.last().unwrap() / period);
    }
}
