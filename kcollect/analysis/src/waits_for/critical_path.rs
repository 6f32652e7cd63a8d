//! The critical path: what the end of a process waited for, from the end back to the start.
//!
//! ```text
//! main     aa11111111a      the path, from the right:
//! worker   ..bb~~~22b       a in main, b in worker; the worker waited for the helper, which was
//! helper   ____cccccc       in c, and before that for its timer
//!
//! path     ____cccccba
//! ```
//!
//! While a thread ran or waited for a CPU, that is on the path. Where it was blocked, the path
//! continues in the thread that woke it, at the instant at which it did. Each instant is on the
//! path exactly once.

use std::ops::Range;

use super::timeline::{Doing, Reason, Timelines};
use crate::model::ThreadId;

/// Maximum number of steps. It takes a second or so.
pub const MAX_STEPS: u64 = 5_000_000;
/// How often the path may change to another thread at the same instant. More is a circle, due to
/// edges that are known within a tick.
const MAX_CHANGES: u32 = 16;

/// A part of the path, in which one thread did one thing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// The time, nanoseconds since the start of the recording.
    pub range: Range<u64>,
    /// The thread.
    pub thread: ThreadId,
    /// What it did.
    pub doing: Doing,
    /// Where it was: [`Interval::place`](super::timeline::Interval::place).
    pub place: u32,
}

/// Returns the segments of the path that leads to the end of `range` in a thread, in the order of
/// time. They have no hole and do not overlap.
#[must_use]
pub fn critical_path(
    timelines: &Timelines,
    last: ThreadId,
    range: Range<u64>,
    max_steps: u64,
) -> Vec<Segment> {
    let mut walk = Walk {
        segments: Vec::new(),
        thread: last,
        start_ns: range.start,
        at_ns: range.end,
        // A wait that is not over at the end of the time is followed to what ended it later.
        until_ns: u64::MAX,
        changes: 0,
    };
    // The threads that waited for the current one.
    let mut waiters: Vec<ThreadId> = Vec::new();
    let mut steps_left = max_steps;
    while walk.at_ns > walk.start_ns {
        if steps_left == 0 {
            walk.go_back(walk.start_ns, Doing::NotFollowed(Reason::Steps), 0);
            break;
        }
        steps_left -= 1;
        let Some(interval) = timelines.of(walk.thread).before(walk.at_ns) else {
            // It did not exist, so it was not this thread that the end waited for.
            match waiters.pop() {
                Some(waiter) => walk.change_to(waiter),
                None => walk.go_back(walk.start_ns, Doing::NotSampled, 0),
            }
            continue;
        };
        if interval.end_ns < walk.at_ns {
            walk.go_back(interval.end_ns, Doing::NotSampled, 0);
            continue;
        }
        let blocked = matches!(interval.doing, Doing::Blocked(_));
        // What ended the wait later than that, by more than the error, is not on the path. Neither
        // is what the thread did that it woke just now.
        let later_ns = interval.end_ns.saturating_sub(walk.until_ns);
        let in_turn = later_ns > 0 && walk.changes > 0 && interval.waker == waiters.last().copied();
        let ended = later_ns <= timelines.tick_ns && !in_turn;
        if let Some(waker) = interval.waker
            && blocked
            && ended
            && waker != walk.thread
            && walk.changes < MAX_CHANGES
        {
            waiters.push(walk.thread);
            walk.change_to(waker);
            walk.until_ns = walk.until_ns.min(interval.end_ns);
            continue;
        }
        // A thread was on a CPU when it woke another one, whatever the next interval says.
        let just_before = interval.start_ns.saturating_add(timelines.tick_ns) >= walk.at_ns;
        if blocked && walk.changes > 0 && !ended && just_before {
            walk.go_back(interval.start_ns, Doing::NotSampled, 0);
        } else {
            walk.go_back(interval.start_ns, interval.doing, interval.place);
        }
    }
    walk.segments.reverse();
    walk.segments
}

struct Walk {
    /// The last one first.
    segments: Vec<Segment>,
    thread: ThreadId,
    start_ns: u64,
    at_ns: u64,
    /// What happened after this is not on the path: it is now, or when a wait ended that is
    /// followed.
    until_ns: u64,
    /// Changes of the thread since the last segment.
    changes: u32,
}

impl Walk {
    fn change_to(&mut self, thread: ThreadId) {
        self.thread = thread;
        self.changes += 1;
    }

    /// Adds the segment from `from_ns`, or from the start of the path, until now.
    fn go_back(&mut self, from_ns: u64, doing: Doing, place: u32) {
        let from_ns = from_ns.max(self.start_ns);
        let range = from_ns..self.at_ns;
        (self.at_ns, self.until_ns, self.changes) = (from_ns, from_ns, 0);
        match self.segments.last_mut() {
            Some(last) if (last.thread, last.doing, last.place) == (self.thread, doing, place) => {
                last.range.start = range.start;
            }
            _ => self.segments.push(Segment {
                range,
                thread: self.thread,
                doing,
                place,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::drawing::{TICK_NS, draw, letter};
    use super::*;

    /// Returns the path to the end of thread 0 as two lines: what was done in each tick, and by
    /// which thread.
    fn path(drawing: &str) -> [String; 2] {
        let end_ns = draw(drawing).threads[0]
            .range()
            .map_or(0, |range| range.end);
        path_to(drawing, end_ns)
    }

    fn path_to(drawing: &str, end_ns: u64) -> [String; 2] {
        let timelines = draw(drawing);
        let segments = critical_path(&timelines, ThreadId(0), 0..end_ns, 1000);
        let mut lines = [String::new(), String::new()];
        for segment in &segments {
            let ticks = (segment.range.end - segment.range.start) / TICK_NS;
            let letter = letter(segment.doing, segment.place).to_string();
            lines[0] += &letter.repeat(ticks as usize);
            lines[1] += &segment.thread.0.to_string().repeat(ticks as usize);
        }
        lines
    }

    #[test]
    fn the_path_goes_back_through_the_wakers() {
        let drawing = "aa11111111a
                       ..bb~~~22b
                       ____cccccc";
        assert_eq!(path(drawing), ["____cccccba", "22222222210"]);
    }

    #[test]
    fn a_wait_that_goes_on_at_the_end_is_followed() {
        let drawing = "aa11111111a
                       ..bb~~~222b
                       ____ccccccc";
        assert_eq!(path_to(drawing, 9000), ["____ccccc", "222222222"]);
        assert_eq!(path_to(drawing, 6000), ["aabb~~", "001111"]);
        // What ended the wait of thread 1 after thread 1 had woken thread 0 is not.
        assert_eq!(path_to("a111aaa\nbCCCCCC\nccccccc", 3000), ["bWW", "111"]);
    }

    #[test]
    fn a_thread_alone_is_its_own_path() {
        assert_eq!(path("ab--~~c..__d"), ["ab--~~c..__d", "000000000000"]);
    }

    #[test]
    fn the_path_does_not_follow_what_ended_later() {
        // Thread 1 woke thread 0 and then waited for new work itself, which is not on the path.
        assert_eq!(path("a111aaaaaa\nbbbbAAAAAA"), ["bbbbaaaaaa", "1111000000"]);
        // Its edge is a tick too early, by the error.
        assert_eq!(path("a111aaaaaa\nbbbAAAAAAA"), ["bbb.aaaaaa", "1111000000"]);
        // Thread 1 cannot have been blocked all the time; but that is all that is known.
        assert_eq!(path("a111aaaaaa\nbAAAAAAAAA"), ["bWWWaaaaaa", "1111000000"]);
    }

    #[test]
    fn before_a_thread_began_the_path_is_in_the_one_that_waited_for_it() {
        assert_eq!(path("aaaa1111a\n....bbbb."), ["aaaabbbba", "000011110"]);
        // Thread 1 made thread 2, and thread 0 made thread 1.
        let drawing = "aa111111a
                       ..bb222c.
                       ....ddd..";
        assert_eq!(path(drawing), ["aabbdddca", "001122210"]);
    }

    #[test]
    fn circles_end() {
        assert_eq!(path("a11111\nb00000"), ["awwwww", "000000"]);
        // Two that woke each other in turn.
        assert_eq!(path("a11a11a\nbbb0bb."), ["bbbabba", "1110110"]);
        // An edge is a tick too late.
        assert_eq!(path("a11a11a\nbb00bb."), ["bb.abba", "1110110"]);
    }

    #[test]
    fn the_limit_of_steps_is_shown() {
        let timelines = draw("abcdefgh");
        let segments = critical_path(&timelines, ThreadId(0), 0..8000, 3);
        let first = segments.first().map(|it| (it.range.clone(), it.doing));
        assert_eq!(first, Some((0..5000, Doing::NotFollowed(Reason::Steps))));
        assert_eq!(segments.len(), 4);
    }

    proptest! {
        #[test]
        fn the_path_covers_the_time_exactly_once(
            drawing in prop::collection::vec("[ab~_.0-4A-E-]{1,24}", 5..6),
            start in 0_u64..12_000,
            length in 0_u64..30_000,
            max_steps in 0_u64..100,
        ) {
            let timelines = draw(&drawing.join("\n"));
            let range = start..start + length;
            let segments = critical_path(&timelines, ThreadId(0), range.clone(), max_steps);
            let mut at = start;
            for segment in &segments {
                prop_assert!(segment.range.start == at && segment.range.end > at);
                at = segment.range.end;
            }
            prop_assert_eq!(at, range.end);
        }
    }
}
