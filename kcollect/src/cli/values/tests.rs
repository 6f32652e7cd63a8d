use std::time::Duration;

use experiment_format::ids::{Pid, Tid};
use proptest::prelude::*;
use user_collector::follow::Follow;

use super::*;
use crate::cli::HostFacts;
use crate::plan::{Interval, Keep, Target};

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
fn intervals_are_parsed() {
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
fn times_are_parsed() {
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
fn targets_are_parsed() {
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
