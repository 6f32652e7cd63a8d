//! Values of single options: each function turns text into a quantity with a unit, or into an error
//! with the cure.
//!
//! Numbers are plain decimals without signs and exponents. They are parsed exactly, not as floating
//! point, so that rounding down to whole microseconds does not turn 1.001 ms into 1000 µs.

use std::time::Duration;

use counters::names::grammar::{self, OverflowSpec};
use experiment_format::ids::{Pid, Tid};
use experiment_format::packet::SyncThreshold;
use host::machine;
use user_collector::follow::{Follow, GroupRule, Pattern};

use super::{CliError, HostFacts};
use crate::plan::{Archive, CpuShare, Interval, Keep, Target};

const NANOS_PER_SECOND: u128 = 1_000_000_000;
/// The longest time of `-t` and `-q`: a century.
const MAX_SECONDS: u128 = 3_155_760_000;

/// The intervals that have a name, in microseconds. They are primes, so that no periodic work of
/// the machine stays in step with them.
const INTERVAL_ON_US: u32 = 10_007;
const INTERVAL_LOW_US: u32 = 100_003;
const INTERVAL_HIGH_US: u32 = 997;

/// Returns the error of an option's value.
pub(super) fn error(option: &str, typed: &str, what: &str, cure: &str) -> CliError {
    CliError::new(format!("{option} {typed}: {what}"), cure)
}

/// Returns a decimal number times 10⁹, truncated after the ninth place. None: not a number, or more
/// than 10¹⁸.
fn decimal(text: &str) -> Option<u128> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    if !whole
        .bytes()
        .chain(fraction.bytes())
        .all(|byte| byte.is_ascii_digit())
        || whole.len() > 18
    {
        return None;
    }
    let digits = |text: &str| {
        text.bytes()
            .fold(0u128, |sum, byte| sum * 10 + u128::from(byte - b'0'))
    };
    let fraction: String = fraction
        .chars()
        .chain("000000000".chars())
        .take(9)
        .collect();
    Some(digits(whole) * NANOS_PER_SECOND + digits(&fraction))
}

/// Returns the shortest interval that the machine permits.
fn shortest_interval(facts: &HostFacts) -> Interval {
    let by_rate = match facts.max_sample_rate {
        Some(rate) if rate > 0 => 1_000_000u64.div_ceil(rate),
        _ => 0,
    };
    let micros = by_rate.clamp(Interval::MIN.micros().into(), Interval::MAX.micros().into());
    u32::try_from(micros)
        .ok()
        .and_then(Interval::from_micros)
        .unwrap_or(Interval::MAX)
}

/// `-p`: the interval, None for off. Adds a notice where it is not what was typed.
pub(super) fn interval(
    typed: &str,
    facts: &HostFacts,
    notices: &mut Vec<String>,
) -> Result<Option<Interval>, CliError> {
    const CURE: &str =
        "type on, lo, hi, off, or a number of milliseconds such as 10, 2.5m or 500u, up to 1 s";
    let bad = |what| error("-p", typed, what, CURE);
    let typed_ns = match typed {
        "on" => u128::from(INTERVAL_ON_US) * 1000,
        "lo" | "low" => u128::from(INTERVAL_LOW_US) * 1000,
        "hi" | "high" => u128::from(INTERVAL_HIGH_US) * 1000,
        "off" => return Ok(None),
        _ if typed.starts_with('-') => {
            return Err(bad("a clock-profiling interval cannot be negative"));
        }
        _ => {
            let (number, unit) = match typed.strip_suffix('u') {
                Some(number) => (number, 1000),
                None => (typed.strip_suffix('m').unwrap_or(typed), 1_000_000),
            };
            decimal(number).ok_or_else(|| bad("not a clock-profiling interval"))? * unit
                / NANOS_PER_SECOND
        }
    };
    if typed_ns == 0 && is_zero(typed) {
        return Ok(None);
    }
    if typed_ns > Interval::MAX.nanos().into() {
        return Err(bad(
            "the clock-profiling interval is above the maximum of 1 s",
        ));
    }
    let shortest = shortest_interval(facts);
    let whole = u32::try_from(typed_ns / 1000)
        .ok()
        .and_then(Interval::from_micros)
        .filter(|interval| *interval >= shortest);
    let Some(interval) = whole else {
        notices.push(format!(
            "clock profiling at {} ms is not supported on this machine; minimum {} ms used",
            millis(typed_ns),
            millis(shortest.nanos().into())
        ));
        return Ok(Some(shortest));
    };
    if typed_ns % 1000 != 0 {
        notices.push(format!(
            "clock-profiling interval rounded from {} to {} ms (resolution 1 us)",
            millis(typed_ns),
            millis(interval.nanos().into())
        ));
    }
    Ok(Some(interval))
}

/// Returns whether all digits of a decimal are zeros: 0 means off, and 0.0000000001 the shortest
/// interval.
fn is_zero(typed: &str) -> bool {
    !typed.bytes().any(|byte| (b'1'..=b'9').contains(&byte))
}

/// Formats nanoseconds as milliseconds, with three decimals or more if needed.
fn millis(nanos: u128) -> String {
    let mut text = format!("{}.{:06}", nanos / 1_000_000, nanos % 1_000_000);
    while text.ends_with('0') && text.len() - text.find('.').unwrap_or(0) > 4 {
        text.pop();
    }
    text
}

/// Returns a time: a decimal in seconds (`s` or no suffix) or minutes (`m`).
fn seconds(text: &str) -> Option<Duration> {
    const UNITS: [(char, u128); 4] = [('s', 1), ('m', 60), ('h', 3600), ('d', 86_400)];
    let with_unit = |(suffix, unit)| Some((text.strip_suffix(suffix)?, unit));
    let (number, unit) = UNITS.into_iter().find_map(with_unit).unwrap_or((text, 1));
    let nanos = decimal(number)?.checked_mul(unit)?;
    // More than a century is a typing error, and sums with it would overflow.
    if nanos > MAX_SECONDS * NANOS_PER_SECOND {
        return None;
    }
    Some(Duration::new(
        u64::try_from(nanos / NANOS_PER_SECOND).ok()?,
        u32::try_from(nanos % NANOS_PER_SECOND).ok()?,
    ))
}

/// `-t`: the times at which data begin and at which the recording ends.
pub(super) fn time(typed: &str) -> Result<(Duration, Option<Duration>), CliError> {
    const CURE: &str = "type a duration (10, 90s, 5m), or start-end (2-10, 1m-5m, 2-0 for no end)";
    let bad = || error("-t", typed, "not a time", CURE);
    let (start, end) = match typed.split_once('-') {
        Some((start, end)) => (
            seconds(start).ok_or_else(bad)?,
            seconds(end).ok_or_else(bad)?,
        ),
        None => (Duration::ZERO, seconds(typed).ok_or_else(bad)?),
    };
    if end.is_zero() {
        return Ok((start, None));
    }
    if start >= end {
        return Err(error(
            "-t",
            typed,
            "the start has to be earlier than the end",
            CURE,
        ));
    }
    Ok((start, Some(end)))
}

/// `-q`: the time before and after the load.
pub(super) fn quiet(typed: &str) -> Result<Duration, CliError> {
    seconds(typed).ok_or_else(|| {
        error(
            "-q",
            typed,
            "not a time",
            "type a number of seconds, such as 2 or 0.5",
        )
    })
}

/// `-x`: whether ticks of idle CPUs are recorded, the opposite of the option's value.
pub(super) fn record_idle(typed: &str) -> Result<bool, CliError> {
    match typed {
        "on" => Ok(false),
        "off" => Ok(true),
        _ => Err(error(
            "-x",
            typed,
            "neither on nor off",
            "type on (leave out idle CPUs) or off (record them)",
        )),
    }
}

/// `-S`: the time between two samples, None for off.
pub(super) fn sample_period(typed: &str) -> Result<Option<Duration>, CliError> {
    match typed {
        "on" => Ok(Some(Duration::from_secs(1))),
        "off" => Ok(None),
        _ => match typed.parse::<u32>() {
            Ok(count) if count > 0 && !typed.starts_with('+') => {
                Ok(Some(Duration::from_secs(count.into())))
            }
            _ => Err(error(
                "-S",
                typed,
                "not a time between samples",
                "type on, off, or a whole number of seconds above 0",
            )),
        },
    }
}

/// `-L`: the limit in bytes, None for none.
pub(super) fn limit(typed: &str) -> Result<Option<u64>, CliError> {
    if matches!(typed, "unlimited" | "none") {
        return Ok(None);
    }
    typed
        .parse::<u64>()
        .ok()
        .filter(|count| *count > 0 && !typed.starts_with('+'))
        .and_then(|count| count.checked_mul(1024 * 1024))
        .map(Some)
        .ok_or_else(|| {
            error(
                "-L",
                typed,
                "not a size limit",
                "type a whole number of MiB above 0, or unlimited",
            )
        })
}

/// `--rotate`: the time after which another experiment begins.
pub(super) fn rotate(typed: &str) -> Result<Duration, CliError> {
    seconds(typed)
        .filter(|period| *period >= Duration::from_secs(1))
        .ok_or_else(|| {
            error(
                "--rotate",
                typed,
                "not a time of at least a second",
                "type a time such as 10m or 1h",
            )
        })
}

/// `--last`: how much of the end of a recording.
pub(super) fn last(typed: &str) -> Result<Duration, CliError> {
    seconds(typed)
        .filter(|length| !length.is_zero())
        .ok_or_else(|| {
            error(
                "--last",
                typed,
                "not a time",
                "type a time such as 10m or 2h",
            )
        })
}

/// `--keep`: how much of a series is kept.
pub(super) fn keep(typed: &str) -> Result<Keep, CliError> {
    const UNITS: [(char, u64); 3] = [('M', 1 << 20), ('G', 1 << 30), ('T', 1 << 40)];
    let size = UNITS.into_iter().find_map(|(suffix, unit)| {
        let number = typed.strip_suffix(suffix)?.parse::<u64>().ok()?;
        number.checked_mul(unit)
    });
    let age = || {
        let number = typed.ends_with(['s', 'm', 'h', 'd']).then_some(typed)?;
        seconds(number)
    };
    match size.filter(|bytes| *bytes > 0) {
        Some(bytes) => Ok(Keep::Bytes(bytes)),
        None => age().map(Keep::Age).ok_or_else(|| {
            error(
                "--keep",
                typed,
                "neither a size nor a time",
                "type a size such as 500M or 20G, or a time such as 12h or 7d",
            )
        }),
    }
}

/// `-A`: what is copied into the experiment.
pub(super) fn archive(typed: &str) -> Result<Archive, CliError> {
    match typed {
        "off" => Ok(Archive::Off),
        "on" | "copy" | "ldobjects" => Ok(Archive::LoadObjects),
        "usedldobjects" => Ok(Archive::UsedLoadObjects),
        "src" => Ok(Archive::Sources),
        "usedsrc" => Ok(Archive::UsedSources),
        "all" => Ok(Archive::All),
        _ => Err(error(
            "-A",
            typed,
            "not a choice of files",
            "type on, off, copy, ldobjects, usedldobjects, src, usedsrc or all",
        )),
    }
}

/// `--budget`: a share of one CPU, in percent.
pub(super) fn budget(typed: &str) -> Result<CpuShare, CliError> {
    const CURE: &str = "type a percentage of one CPU from 0.01% on, such as 1% or 0.5%";
    let bad = || error("--budget", typed, "not a share of a CPU", CURE);
    let number = typed.strip_suffix('%').unwrap_or(typed);
    // A percent is 10⁹ in a decimal, and 10⁴ millionths.
    let ppm = decimal(number).ok_or_else(bad)? / 100_000;
    match u32::try_from(ppm) {
        Ok(ppm @ 100..) => Ok(CpuShare { ppm }),
        _ => Err(bad()),
    }
}

/// `-i`.
pub(super) fn trace_io(typed: &str) -> Result<bool, CliError> {
    match typed {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(error("-i", typed, "neither on nor off", "type on or off")),
    }
}

/// `-H`.
pub(super) fn trace_memory(typed: &str) -> Result<bool, CliError> {
    match typed {
        "growth" => Ok(true),
        "off" => Ok(false),
        _ => Err(error(
            "-H",
            typed,
            "single allocations are not traced",
            "type growth (what the process gets from the kernel, and gives back) or off",
        )),
    }
}

/// `-s`: the shortest wait that is recorded.
pub(super) fn lock_threshold(
    typed: &str,
    facts: &HostFacts,
) -> Result<Option<SyncThreshold>, CliError> {
    match typed {
        "off" => Ok(None),
        "on" | "calibrate" => Ok(Some(SyncThreshold::Calibrated(facts.free_lock_time))),
        "all" => Ok(Some(SyncThreshold::Given(Duration::ZERO))),
        micros => match micros.parse::<u32>() {
            Ok(micros) if i32::try_from(micros).is_ok() => Ok(Some(SyncThreshold::Given(
                Duration::from_micros(micros.into()),
            ))),
            _ => Err(error(
                "-s",
                typed,
                "not a time",
                "type on, off, all, or a number of microseconds",
            )),
        },
    }
}

/// `-F`: which processes are followed.
pub(super) fn follow(typed: &str) -> Result<Follow, CliError> {
    match typed {
        "off" => Ok(Follow::Off),
        "load" => Ok(Follow::Load),
        "on" => Ok(Follow::On),
        "all" => Ok(Follow::All),
        _ => {
            if let Some(group) = group(typed) {
                return group.map(Follow::Group);
            }
            let Some(pattern) = typed.strip_prefix('=').filter(|rest| !rest.is_empty()) else {
                return Err(error(
                    "-F",
                    typed,
                    "not a choice of processes",
                    "type on, off, all, load, =REGEXP for processes by name or number, as in -F '=nginx|1264', or \
                     unit:NAME, container:ID, cgroup:PATH, pod:UID, user:NAME",
                ));
            };
            Pattern::new(pattern).map(Follow::Matching).map_err(|wrong| {
                error(
                    "-F",
                    typed,
                    &wrong.to_string(),
                    "it has to match the whole of a process's name, of its program's file name, or of its number; quote it for \
                     the shell",
                )
            })
        }
    }
}

/// `-F KIND:NAME`; none if it is something else.
fn group(typed: &str) -> Option<Result<GroupRule, CliError>> {
    let (kind, name) = typed.split_once(':')?;
    if typed.starts_with('=') {
        return None;
    }
    let wrong = |cure: &str| Some(Err(error("-F", typed, "not a choice of processes", cure)));
    let name = name.to_owned();
    Some(Ok(match kind {
        "cgroup" if !name.starts_with('/') => {
            return wrong("type a path as in /proc/PID/cgroup, such as cgroup:/system.slice");
        }
        _ if name.is_empty() => return wrong("type a name behind the colon"),
        "cgroup" => GroupRule::Cgroup(name),
        "container" => GroupRule::Container(name),
        "unit" => GroupRule::Unit(name),
        "pod" => GroupRule::Pod(name),
        "user" => match machine::uid_of(&name) {
            Some(uid) => GroupRule::User(uid),
            None => return wrong("type the name of a user in /etc/passwd, or a number"),
        },
        _ => {
            return wrong(
                "before the colon type one of unit, container, cgroup, pod and user; a name with a colon is \
                 matched by =REGEXP",
            );
        }
    }))
}

/// `-h`: the counters of all occurrences of the option.
pub(super) fn counters(typed: &[String]) -> Result<Vec<OverflowSpec>, CliError> {
    let mut wishes = Vec::new();
    for text in typed {
        let more = grammar::parse_overflow_specs(text);
        wishes.extend(more.map_err(|wrong| CliError::new(format!("-h {wrong}"), wrong.cure()))?);
    }
    Ok(wishes)
}

/// `-T`: a process or a thread.
pub(super) fn target(typed: &str) -> Result<Target, CliError> {
    const CURE: &str = "type a process id (1264), process/thread (1264/1270), or 0/thread for a thread of the kernel";
    let bad = || error("-T", typed, "not a process or a thread", CURE);
    let id = |text: &str| match text.parse::<u32>() {
        Ok(id) if !text.starts_with('+') => Ok(id),
        _ => Err(bad()),
    };
    let target = match typed.split_once('/') {
        // On Linux each kernel thread is a process of its own; on Solaris all belong to process 0.
        Some(("0", thread)) => Target {
            pid: Pid(id(thread)?),
            tid: None,
        },
        Some((process, thread)) => Target {
            pid: Pid(id(process)?),
            tid: Some(Tid(id(thread)?)),
        },
        None => Target {
            pid: Pid(id(typed)?),
            tid: None,
        },
    };
    if target.pid == Pid(0) || target.tid == Some(Tid(0)) {
        return Err(bad());
    }
    Ok(target)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ANY: HostFacts = HostFacts {
        max_sample_rate: None,
        terminal_columns: None,
        free_lock_time: Duration::from_micros(3),
    };

    /// In microseconds.
    fn interval_us(typed: &str) -> Result<Option<u32>, CliError> {
        let interval = interval(typed, &ANY, &mut Vec::new())?;
        Ok(interval.map(Interval::micros))
    }

    #[test]
    fn intervals() {
        for (typed, expected_us) in [
            ("on", 10_007),
            ("lo", 100_003),
            ("low", 100_003),
            ("hi", 997),
            ("high", 997),
            ("10", 10_000),
            ("10m", 10_000),
            ("500u", 500),
            ("2.5", 2_500),
            (".5", 500),
            ("1.001", 1_001),
            ("1000", 1_000_000),
            ("1000000u", 1_000_000),
        ] {
            assert_eq!(interval_us(typed), Ok(Some(expected_us)), "{typed}");
        }
        for off in ["off", "0", "0.0", "0u", "00m"] {
            assert_eq!(interval_us(off), Ok(None), "{off}");
        }
        for bad in [
            "",
            "m",
            "u",
            ".",
            "+1",
            "-1",
            "-0",
            "1e3",
            "inf",
            "nan",
            "0x10",
            "1 ",
            "5um",
            "1.2.3",
            "1000.001",
            "1001",
            "999999999999999999",
            "9999999999999999999999",
            "ON",
            "hig",
        ] {
            assert!(interval_us(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_changed_interval_is_reported() {
        let notices_of = |typed: &str, max_sample_rate| {
            let mut notices = Vec::new();
            let facts = HostFacts {
                max_sample_rate,
                ..ANY
            };
            let interval = interval(typed, &facts, &mut notices).unwrap().unwrap();
            format!("{typed}: {} {notices:?}", interval.micros())
        };
        insta::assert_snapshot!([
            notices_of("50u", None),
            notices_of("0.0000000001", None),
            notices_of("1.0005", None),
            notices_of("99.9u", Some(100_000)),
            notices_of("hi", Some(500)),
            notices_of("hi", Some(997)),
            notices_of("on", Some(1)),
            notices_of("hi", Some(0)),
        ].join("\n"), @r#"
        50u: 100 ["clock profiling at 0.050 ms is not supported on this machine; minimum 0.100 ms used"]
        0.0000000001: 100 ["clock profiling at 0.000 ms is not supported on this machine; minimum 0.100 ms used"]
        1.0005: 1000 ["clock-profiling interval rounded from 1.0005 to 1.000 ms (resolution 1 us)"]
        99.9u: 100 ["clock profiling at 0.0999 ms is not supported on this machine; minimum 0.100 ms used"]
        hi: 2000 ["clock profiling at 0.997 ms is not supported on this machine; minimum 2.000 ms used"]
        hi: 1004 ["clock profiling at 0.997 ms is not supported on this machine; minimum 1.004 ms used"]
        on: 1000000 ["clock profiling at 10.007 ms is not supported on this machine; minimum 1000.000 ms used"]
        hi: 997 []
        "#);
    }

    #[test]
    fn times() {
        let s = Duration::from_secs;
        for (typed, start, end) in [
            ("10", s(0), Some(s(10))),
            ("90s", s(0), Some(s(90))),
            ("5m", s(0), Some(s(300))),
            ("0.5", s(0), Some(Duration::from_millis(500))),
            ("2-10", s(2), Some(s(10))),
            ("1m-90", s(60), Some(s(90))),
            ("90s-2m", s(90), Some(s(120))),
            ("2-0", s(2), None),
            ("0-0", s(0), None),
            ("0", s(0), None),
        ] {
            assert_eq!(time(typed), Ok((start, end)), "{typed}");
        }
        for bad in [
            "",
            "-",
            "5-2",
            "5-5",
            "1m-60",
            "-10",
            "10-",
            "1-2-3",
            "5w",
            "1ms",
            "ten",
            "4000000000",
        ] {
            assert!(time(bad).is_err(), "{bad}");
        }
        assert_eq!(quiet("1.5"), Ok(Duration::from_millis(1500)));
        assert!(quiet("-1").is_err());
    }

    #[test]
    fn a_series_is_kept_by_size_or_by_age() {
        assert_eq!(keep("20G"), Ok(Keep::Bytes(20 << 30)));
        assert_eq!(keep("500M"), Ok(Keep::Bytes(500 << 20)));
        assert_eq!(keep("7d"), Ok(Keep::Age(Duration::from_secs(604_800))));
        assert_eq!(keep("5m"), Ok(Keep::Age(Duration::from_secs(300))));
        for bad in ["20", "G", "0G", "-1G", "99999999999999T", "1.5G", "", "x"] {
            assert!(keep(bad).is_err(), "{bad}");
        }
        assert_eq!(rotate("10m"), Ok(Duration::from_secs(600)));
        assert!(rotate("0.9").is_err() && rotate("often").is_err());
    }

    #[test]
    fn processes_that_belong_together_are_followed() {
        let group = |typed| match follow(typed) {
            Ok(Follow::Group(group)) => group.to_string(),
            other => panic!("{other:?}"),
        };
        for (typed, expected) in [
            ("unit:nginx", "unit nginx"),
            ("container:0123456789ab", "container 0123456789ab"),
            ("cgroup:/system.slice", "control group /system.slice"),
            ("pod:8d2a-1c", "pod 8d2a-1c"),
            ("user:root", "user 0"),
            ("user:1000", "user 1000"),
        ] {
            assert_eq!(group(typed), expected);
        }
        let named = follow("=nginx: worker").unwrap();
        assert!(matches!(named, Follow::Matching(_)), "{named:?}");
        for bad in [
            "unit:",
            "cgroup:system.slice",
            "user:no such user",
            "name:x",
            "nginx:",
            ":",
        ] {
            let error = follow(bad).unwrap_err().to_string();
            assert!(error.starts_with(&format!("-F {bad}: ")), "{error}");
        }
    }

    #[test]
    fn switches_and_sizes() {
        assert_eq!(
            (record_idle("on"), record_idle("off")),
            (Ok(false), Ok(true))
        );
        assert!(record_idle("yes").is_err());
        assert_eq!(sample_period("on"), Ok(Some(Duration::from_secs(1))));
        assert_eq!(sample_period("off"), Ok(None));
        assert_eq!(sample_period("10"), Ok(Some(Duration::from_secs(10))));
        assert!(
            ["0", "-1", "+1", "1.5", ""]
                .iter()
                .all(|bad| sample_period(bad).is_err())
        );
        assert_eq!(limit("2"), Ok(Some(2_097_152)));
        assert_eq!((limit("unlimited"), limit("none")), (Ok(None), Ok(None)));
        assert!(
            ["0", "-1", "+1", "1.5", "", "99999999999999"]
                .iter()
                .all(|bad| limit(bad).is_err())
        );
        assert_eq!(archive("copy"), Ok(Archive::LoadObjects));
        assert_eq!(archive("usedsrc"), Ok(Archive::UsedSources));
        assert!(archive("yes").is_err());
    }

    #[test]
    fn targets() {
        assert_eq!(
            target("1264"),
            Ok(Target {
                pid: Pid(1264),
                tid: None
            })
        );
        assert_eq!(
            target("1264/1270"),
            Ok(Target {
                pid: Pid(1264),
                tid: Some(Tid(1270))
            })
        );
        assert_eq!(
            target("0/12"),
            Ok(Target {
                pid: Pid(12),
                tid: None
            })
        );
        for bad in [
            "",
            "0",
            "0/0",
            "1/0",
            "-1",
            "+1",
            "1/",
            "/1",
            "1/2/3",
            "sshd",
            "4294967296",
        ] {
            assert!(target(bad).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn no_value_panics(typed in "\\PC{0,12}|[-+0-9.,/a-z]{0,24}") {
            let _ = interval_us(&typed);
            let _ = time(&typed);
            let _ = quiet(&typed);
            let _ = sample_period(&typed);
            let _ = limit(&typed);
            let _ = target(&typed);
        }

        #[test]
        fn whole_microseconds_are_exact(micros in Interval::MIN.micros()..=Interval::MAX.micros()) {
            let typed = format!("{}.{:03}", micros / 1000, micros % 1000);
            let mut notices = Vec::new();
            let exact = Interval::from_micros(micros);
            prop_assert_eq!(interval(&typed, &ANY, &mut notices), Ok(exact));
            prop_assert_eq!(interval_us(&format!("{micros}u")), Ok(Some(micros)));
            prop_assert!(notices.is_empty());
        }

        #[test]
        fn an_interval_is_within_the_limits(typed in "[0-9]{0,4}[.]?[0-9]{0,4}[um]?", rate in proptest::option::of(0u64..200_000)) {
            let facts = HostFacts { max_sample_rate: rate, ..ANY };
            if let Ok(Some(interval)) = interval(&typed, &facts, &mut Vec::new()) {
                prop_assert!((Interval::MIN..=Interval::MAX).contains(&interval));
                if let Some(rate @ 1..) = rate {
                    prop_assert!(u64::from(interval.micros()) * rate >= 1_000_000);
                }
            }
        }
    }
}
