//! Times of day as they are typed: `03:10-03:15`, `03:12`, `2026-11-24T23:50-00:10`.

use std::ops::Range;
use std::str::FromStr;

use chrono::{DateTime, Days, FixedOffset, NaiveDate, NaiveDateTime, NaiveTime, TimeDelta};
use experiment_format::units::Nanos;

/// A range of times by a clock, with or without days.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockRange {
    from: Moment,
    to: Until,
}

/// A time of day, and the day if that is typed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Moment {
    day: Option<NaiveDate>,
    time: NaiveTime,
}

/// The end of a range, excluded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Until {
    Moment(Moment),
    /// The beginning was typed alone, and the range has this length.
    Length(TimeDelta),
}

/// The error of a text that is no range of times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotAClockRange;

impl FromStr for ClockRange {
    type Err = NotAClockRange;

    fn from_str(text: &str) -> Result<ClockRange, NotAClockRange> {
        // A day has hyphens too.
        let splits = text.match_indices('-').map(|(at, _)| text.split_at(at));
        let mut ranges = splits.filter_map(|(from, to)| {
            let (from, _) = moment(from)?;
            let (to, _) = moment(&to[1..])?;
            Some(ClockRange {
                from,
                to: Until::Moment(to),
            })
        });
        let range = ranges.next().or_else(|| {
            let (from, length) = moment(text)?;
            let to = Until::Length(length);
            Some(ClockRange { from, to })
        });
        range.filter(ClockRange::ascends).ok_or(NotAClockRange)
    }
}

/// Returns a time, and its precision.
fn moment(text: &str) -> Option<(Moment, TimeDelta)> {
    let (day, time) = match text.split_once(['T', ' ']) {
        Some((day, time)) => (Some(NaiveDate::parse_from_str(day, "%Y-%m-%d").ok()?), time),
        None => (None, text),
    };
    let minutes = NaiveTime::parse_from_str(time, "%H:%M").map(|time| (time, 60));
    let seconds = || NaiveTime::parse_from_str(time, "%H:%M:%S").map(|time| (time, 1));
    let (time, length) = minutes.or_else(|_| seconds()).ok()?;
    Some((Moment { day, time }, TimeDelta::seconds(length)))
}

impl ClockRange {
    /// Returns whether its end may be after its beginning: a range without days may be over
    /// midnight.
    fn ascends(&self) -> bool {
        let Until::Moment(to) = self.to else {
            return true;
        };
        match (self.from.day, to.day) {
            (_, None) => to.time != self.from.time,
            (Some(from), Some(day)) => day.and_time(to.time) > from.and_time(self.from.time),
            (None, Some(_)) => false,
        }
    }

    /// Returns the range in nanoseconds since 1970. Without a day it is the last one that began
    /// before `end`, in whose time zone it is. None: the clock has no such times.
    pub(super) fn before(&self, end: DateTime<FixedOffset>) -> Option<Range<Nanos>> {
        let ns = |local: NaiveDateTime| -> Option<Nanos> {
            let time = local.and_local_timezone(*end.offset()).single()?;
            time.timestamp_nanos_opt()?.try_into().ok().map(Nanos)
        };
        let today = end.date_naive();
        let day = match self.from.day {
            Some(day) => day,
            None if today.and_time(self.from.time) < end.naive_local() => today,
            None => today.checked_sub_days(Days::new(1))?,
        };
        let from = day.and_time(self.from.time);
        let to = match self.to {
            Until::Length(length) => from.checked_add_signed(length)?,
            Until::Moment(Moment {
                day: Some(day),
                time,
            }) => day.and_time(time),
            Until::Moment(Moment { time, .. }) if time > self.from.time => day.and_time(time),
            // Over midnight.
            Until::Moment(Moment { time, .. }) => {
                day.checked_add_days(Days::new(1))?.and_time(time)
            }
        };
        let range = ns(from)?..ns(to)?;
        // A leap second is a time of the clock, and of no length.
        (range.start < range.end).then_some(range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a range as it is before a time, in UTC+1.
    fn shown(text: &str, end: &str) -> Option<String> {
        let end = DateTime::parse_from_rfc3339(&format!("{end}+01:00")).unwrap();
        let range = text.parse::<ClockRange>().ok()?.before(end)?;
        let show = |ns: Nanos| {
            let time = DateTime::from_timestamp_nanos(i64::try_from(ns.0).unwrap());
            let time = time.with_timezone(end.offset());
            time.format("%d %H:%M:%S").to_string()
        };
        Some(format!("{} to {}", show(range.start), show(range.end)))
    }

    #[test]
    fn without_a_day_it_is_the_last_one_before_the_end() {
        let noon = |text| shown(text, "2026-11-25T12:00:00").unwrap();
        assert_eq!(noon("03:10-03:15"), "25 03:10:00 to 25 03:15:00");
        assert_eq!(noon("11:50-12:30"), "25 11:50:00 to 25 12:30:00");
        assert_eq!(noon("12:00-12:30"), "24 12:00:00 to 24 12:30:00");
        assert_eq!(noon("23:50-00:10"), "24 23:50:00 to 25 00:10:00");
        let early = shown("23:50-00:10", "2026-11-25T00:05:00").unwrap();
        assert_eq!(early, "24 23:50:00 to 25 00:10:00");
    }

    #[test]
    fn a_time_alone_is_a_minute_or_a_second() {
        let noon = |text| shown(text, "2026-11-25T12:00:00").unwrap();
        assert_eq!(noon("03:12"), "25 03:12:00 to 25 03:13:00");
        assert_eq!(noon("3:12:05"), "25 03:12:05 to 25 03:12:06");
        assert_eq!(noon("23:59"), "24 23:59:00 to 25 00:00:00");
    }

    #[test]
    fn a_day_may_be_typed_of_either_end() {
        let noon = |text| shown(text, "2026-11-25T12:00:00").unwrap();
        assert_eq!(noon("2026-11-20T03:12"), "20 03:12:00 to 20 03:13:00");
        assert_eq!(noon("2026-11-20 23:50-00:10"), "20 23:50:00 to 21 00:10:00");
        assert_eq!(
            noon("2026-11-20T23:50:01-2026-11-22T01:00"),
            "20 23:50:01 to 22 01:00:00"
        );
    }

    #[test]
    fn bad_ranges_are_refused() {
        for text in [
            "",
            "-",
            "3",
            "03:10-",
            "-03:10",
            "25:00",
            "03:60",
            "03:10-03:10",
            "yesterday",
            "2026-13-01T03:10",
            "2026-11-20T03:10-2026-11-20T03:00",
            "03:10-2026-11-20T03:00",
            "03:10:61",
            "2026-11-20",
            "03:10-03:20-03:30",
            "03:10 -03:20",
        ] {
            assert_eq!(text.parse::<ClockRange>(), Err(NotAClockRange), "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_text_panics(text in "\\PC{0,24}|[-0-9:T ]{0,40}", seconds in 0i64..4_000_000_000) {
            if let Ok(range) = text.parse::<ClockRange>() {
                let end = DateTime::from_timestamp(seconds, 0).unwrap();
                if let Some(range) = range.before(end.fixed_offset()) {
                    proptest::prop_assert!(range.start < range.end);
                }
            }
        }
    }
}
