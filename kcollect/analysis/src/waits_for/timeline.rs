//! Timelines: what each thread did when, made from its ticks.
//!
//! A tick says what a thread did at one instant, and a wait has one tick for each boundary of the
//! grid in it. So the edges of an interval are known within a tick:
//!
//! ```text
//! truth      |-- on a CPU --|------------ blocked -------------|-- on a CPU
//! boundaries    :      :       :      :      :      :      :      :      :
//! ticks         .      .                                   4      .      .
//! intervals  [  1  ][   1  ][           blocked            ][  1  ]
//! ```
//!
//! The end of a wait is exact, and its start is its ticks before that. A gap that is shorter than a
//! tick is no gap: it belongs to the ticks on a CPU before it, or else to what follows.

use std::ops::Range;

use experiment_format::cause::Cause;

use crate::model::ThreadId;

/// What a thread did in an interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Doing {
    /// It was on a CPU.
    OnCpu,
    /// It was runnable, and waited for a CPU.
    WaitsForCpu,
    /// It was blocked.
    Blocked(Cause),
    /// It was stopped, by a signal or a debugger.
    Stopped,
    /// It has no tick: it did several things within less than a tick, or did not exist.
    NotSampled,
    /// The wait is not followed to its waker.
    NotFollowed(Reason),
}

/// Why a wait is not followed to its waker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// No thread ended the wait, or it is not known which one.
    NoWaker,
    /// The waker is a thread whose wait is being followed already.
    Circle,
    /// The chain is too long.
    Depth,
    /// The limit of steps is reached.
    Steps,
}

/// A range of time in which a thread did one thing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interval {
    /// Start, nanoseconds since the start of the recording.
    pub start_ns: u64,
    /// End; not before the start.
    pub end_ns: u64,
    /// What the thread did.
    pub doing: Doing,
    /// The thread that ended the wait.
    pub waker: Option<ThreadId>,
    /// Where the thread was, as a number of the caller's choice.
    pub place: u32,
    /// Position of the ticks in [`Model::rows`](crate::model::Model::rows).
    pub row: u32,
}

/// The intervals of one thread, in order, none of which overlap.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Timeline {
    intervals: Vec<Interval>,
}

impl Timeline {
    /// Makes the timeline of ticks that are given as intervals: each with the time of its ticks as
    /// its end, and their length before that. Of several with the same end, which are parts of one
    /// absence from the CPU, each precedes the next.
    #[must_use]
    pub fn new(mut intervals: Vec<Interval>, tick_ns: u64) -> Timeline {
        intervals.sort_by_key(|interval| interval.end_ns);
        for same_end in intervals.chunk_by_mut(|a, b| a.end_ns == b.end_ns) {
            let mut end_ns = same_end.first().map_or(0, |first| first.end_ns);
            for interval in same_end.iter_mut().rev() {
                let length_ns = interval.end_ns - interval.start_ns;
                interval.end_ns = end_ns;
                interval.start_ns = end_ns.saturating_sub(length_ns);
                end_ns = interval.start_ns;
            }
        }
        for at in 1..intervals.len() {
            let [before, interval] = &mut intervals[at - 1..=at] else {
                continue;
            };
            interval.start_ns = interval.start_ns.max(before.end_ns);
            interval.end_ns = interval.end_ns.max(before.end_ns);
            if interval.start_ns - before.end_ns < tick_ns {
                if before.doing == Doing::OnCpu {
                    before.end_ns = interval.start_ns;
                } else {
                    interval.start_ns = before.end_ns;
                }
            }
        }
        Timeline { intervals }
    }

    /// The intervals. Some may be empty.
    #[must_use]
    pub fn intervals(&self) -> &[Interval] {
        &self.intervals
    }

    /// The intervals, for wakers to be filled in.
    pub(super) fn intervals_mut(&mut self) -> &mut [Interval] {
        &mut self.intervals
    }

    /// When the thread was first and last seen. None: it has no ticks.
    #[must_use]
    pub fn range(&self) -> Option<Range<u64>> {
        let (first, last) = (self.intervals.first()?, self.intervals.last()?);
        Some(first.start_ns..last.end_ns)
    }

    /// The last interval that starts before an instant.
    #[must_use]
    pub fn before(&self, at_ns: u64) -> Option<&Interval> {
        let next = self
            .intervals
            .partition_point(|interval| interval.start_ns < at_ns);
        self.intervals[..next].last()
    }

    /// The parts of a range of time with what the thread did then. None: no tick.
    pub fn parts(
        &self,
        range: Range<u64>,
    ) -> impl Iterator<Item = (Range<u64>, Option<&Interval>)> {
        let mut at_ns = range.start;
        let mut next = self
            .intervals
            .partition_point(|interval| interval.end_ns <= at_ns);
        std::iter::from_fn(move || {
            if at_ns >= range.end {
                return None;
            }
            while self
                .intervals
                .get(next)
                .is_some_and(|it| it.end_ns <= at_ns)
            {
                next += 1;
            }
            let following = self.intervals.get(next);
            let within = following.filter(|interval| interval.start_ns <= at_ns);
            let until_ns = match (within, following) {
                (Some(interval), _) => interval.end_ns,
                (None, Some(interval)) => interval.start_ns,
                (None, None) => range.end,
            };
            let part = at_ns..until_ns.min(range.end);
            at_ns = part.end;
            Some((part, within))
        })
    }
}

/// The timelines of all threads of a model.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Timelines {
    /// By [`ThreadId`].
    pub threads: Vec<Timeline>,
    /// The length of a tick: how exactly the edges of intervals are known.
    pub tick_ns: u64,
}

impl Timelines {
    /// The timeline of a thread.
    #[must_use]
    pub fn of(&self, thread: ThreadId) -> &Timeline {
        &self.threads[thread.index()]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::drawing::{TICK_NS, draw};
    use super::*;

    fn ticks(end_ns: u64, count: u64, doing: Doing) -> Interval {
        Interval {
            start_ns: end_ns.saturating_sub(count * TICK_NS),
            end_ns,
            doing,
            waker: None,
            place: 0,
            row: 0,
        }
    }

    fn ranges(intervals: Vec<Interval>) -> Vec<(u64, u64)> {
        let timeline = Timeline::new(intervals, TICK_NS);
        let all = timeline.intervals.iter();
        all.map(|it| (it.start_ns, it.end_ns)).collect()
    }

    const BLOCKED: Doing = Doing::Blocked(Cause::Lock);

    #[test]
    fn a_wait_for_a_cpu_follows_the_wait_with_the_same_end() {
        let rows = vec![ticks(9000, 4, BLOCKED), ticks(9000, 2, Doing::WaitsForCpu)];
        assert_eq!(ranges(rows), [(3000, 7000), (7000, 9000)]);
    }

    #[test]
    fn gaps_shorter_than_a_tick_are_closed() {
        // Until the wait, the thread was on the CPU.
        let rows = vec![ticks(1000, 1, Doing::OnCpu), ticks(4900, 3, BLOCKED)];
        assert_eq!(ranges(rows), [(0, 1900), (1900, 4900)]);
        // After a wait, the next tick on the CPU counts from its end.
        let rows = vec![ticks(4000, 3, BLOCKED), ticks(5900, 1, Doing::OnCpu)];
        assert_eq!(ranges(rows), [(1000, 4000), (4000, 5900)]);
        let rows = vec![ticks(1000, 1, Doing::OnCpu), ticks(5000, 3, BLOCKED)];
        assert_eq!(ranges(rows), [(0, 1000), (2000, 5000)]);
    }

    #[test]
    fn intervals_that_overlap_are_cut() {
        let rows = vec![ticks(4000, 3, BLOCKED), ticks(4200, 1, Doing::OnCpu)];
        assert_eq!(ranges(rows), [(1000, 4000), (4000, 4200)]);
        // A second wait has more ticks than there is time.
        let rows = vec![
            ticks(4000, 3, BLOCKED),
            ticks(4500, 1, BLOCKED),
            ticks(4500, 2, Doing::WaitsForCpu),
        ];
        assert_eq!(ranges(rows), [(1000, 4000), (4000, 4000), (4000, 4500)]);
    }

    #[test]
    fn parts_have_no_hole() {
        let timelines = draw("aa~~..bb");
        let parts = timelines.threads[0].parts(1500..9000);
        let parts: Vec<_> = parts
            .map(|(part, interval)| (part, interval.map(|interval| interval.doing)))
            .collect();
        let device = Doing::Blocked(Cause::Device);
        let expected = [
            (1500..2000, Some(Doing::OnCpu)),
            (2000..4000, Some(device)),
            (4000..6000, None),
            (6000..8000, Some(Doing::OnCpu)),
            (8000..9000, None),
        ];
        assert_eq!(parts, expected);
        assert_eq!(timelines.threads[0].parts(5..5).count(), 0);
        let before = |at| timelines.threads[0].before(at).map(|it| it.end_ns);
        assert_eq!(
            [before(0), before(1), before(4000)],
            [None, Some(2000), Some(4000)]
        );
    }

    proptest! {
        #[test]
        fn timelines_are_in_order_and_parts_add_up(
            rows in prop::collection::vec((0_u64..40, 0_u64..6, 0_u8..3), 0..20),
            (start, length) in (0_u64..50_000, 0_u64..50_000),
        ) {
            let doing = [Doing::OnCpu, Doing::WaitsForCpu, BLOCKED];
            let rows = rows.iter().map(|(end, count, which)| {
                ticks(end * 700, *count, doing[usize::from(*which)])
            });
            let timeline = Timeline::new(rows.collect(), TICK_NS);
            let mut at = 0;
            for interval in timeline.intervals() {
                prop_assert!(at <= interval.start_ns && interval.start_ns <= interval.end_ns);
                at = interval.end_ns;
            }
            let mut at = start;
            for (part, interval) in timeline.parts(start..start + length) {
                prop_assert!(part.start == at && part.end > at);
                at = part.end;
                if let Some(interval) = interval {
                    prop_assert!(interval.start_ns <= part.start && part.end <= interval.end_ns);
                }
            }
            prop_assert_eq!(at, start + length);
        }
    }
}
