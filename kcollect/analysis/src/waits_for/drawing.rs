//! Drawings of timelines, for tests.

use experiment_format::cause::Cause;

use super::timeline::{Doing, Interval, Timeline, Timelines};
use crate::model::ThreadId;

/// The time of one character.
pub(super) const TICK_NS: u64 = 1000;

/// Makes the timelines of a drawing: a line for each thread, a character for each tick. The threads
/// are numbered from 0.
///
/// | character | the thread |
/// |---|---|
/// | `a` to `z` | was on a CPU, in the function of that letter, whose number is the letter's |
/// | `-` | waited for a CPU |
/// | `0` to `9` | waited for an answer, and the thread of that number gave it |
/// | `A` to `J` | waited for new work, and thread 0 to 9 gave it |
/// | `~` | waited for block I/O |
/// | `_` | waited for its timer |
/// | `.` | has no tick |
///
/// Equal characters are one interval.
pub(super) fn draw(drawing: &str) -> Timelines {
    let lines = drawing
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty());
    Timelines {
        threads: lines.map(timeline).collect(),
        tick_ns: TICK_NS,
    }
}

fn timeline(line: &str) -> Timeline {
    let mut intervals = Vec::new();
    let mut end_ns = 0;
    for same in line.as_bytes().chunk_by(|a, b| a == b) {
        let start_ns = end_ns;
        end_ns += same.len() as u64 * TICK_NS;
        let (doing, waker) = match same[0] {
            b'.' => continue,
            b'-' => (Doing::WaitsForCpu, None),
            b'~' => (Doing::Blocked(Cause::Device), None),
            b'_' => (Doing::Blocked(Cause::Timer), None),
            digit @ b'0'..=b'9' => (Doing::Blocked(Cause::Answer), Some(digit - b'0')),
            upper @ b'A'..=b'J' => (Doing::Blocked(Cause::NewWork), Some(upper - b'A')),
            _ => (Doing::OnCpu, None),
        };
        intervals.push(Interval {
            start_ns,
            end_ns,
            doing,
            waker: waker.map(|number| ThreadId(number.into())),
            place: if doing == Doing::OnCpu {
                same[0].into()
            } else {
                0
            },
            row: 0,
        });
    }
    Timeline::new(intervals, TICK_NS)
}

/// The character of a thing that a thread did, without wakers.
pub(super) fn letter(doing: Doing, place: u32) -> char {
    match doing {
        Doing::OnCpu => char::from_u32(place).unwrap_or('?'),
        Doing::WaitsForCpu => '-',
        Doing::Blocked(Cause::Device) => '~',
        Doing::Blocked(Cause::Timer) => '_',
        Doing::Blocked(Cause::NewWork) => 'W',
        Doing::Blocked(_) => 'w',
        Doing::NotSampled => '.',
        Doing::NotFollowed(_) => '!',
        Doing::Stopped => 's',
    }
}
