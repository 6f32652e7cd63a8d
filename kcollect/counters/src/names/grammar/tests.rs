use proptest::prelude::*;

use super::*;

fn one(name: &str, attributes: &[(&str, u64)], interval: OverflowInterval) -> OverflowSpec {
    OverflowSpec::Counter(typed(name, attributes), interval)
}

fn typed(name: &str, attributes: &[(&str, u64)]) -> CounterSpec {
    CounterSpec {
        name: name.to_owned(),
        attributes: attributes
            .iter()
            .map(|(name, value)| ((*name).to_owned(), *value))
            .collect(),
    }
}

#[test]
fn lists_with_intervals() {
    use OverflowInterval::{Every, Hi, Lo, On};
    let plain = |name, interval| one(name, &[], interval);
    for (text, expected) in [
        ("cycles", vec![plain("cycles", On)]),
        ("cycles,on", vec![plain("cycles", On)]),
        (
            "cycles,hi,insts,lo",
            vec![plain("cycles", Hi), plain("insts", Lo)],
        ),
        (
            "cycles,high,insts,low",
            vec![plain("cycles", Hi), plain("insts", Lo)],
        ),
        ("cycles,1000003", vec![plain("cycles", Every(1_000_003))]),
        ("cycles,0x10", vec![plain("cycles", Every(16))]),
        (
            "cycles,insts,hi",
            vec![plain("cycles", On), plain("insts", Hi)],
        ),
        (
            "cycles,,insts,,dcm",
            ["cycles", "insts", "dcm"]
                .map(|name| plain(name, On))
                .to_vec(),
        ),
        (" cycles , hi ", vec![plain("cycles", Hi)]),
        ("on", vec![OverflowSpec::Default(On)]),
        ("hi", vec![OverflowSpec::Default(Hi)]),
        ("low", vec![OverflowSpec::Default(Lo)]),
        (
            "cycles~user=0~system=1,hi",
            vec![one("cycles", &[("user", 0), ("system", 1)], Hi)],
        ),
        ("r01c2~edge", vec![one("r01c2", &[("edge", 1)], On)]),
        (
            "cpu/event=0x3c,umask=0/u,hi,page-faults",
            vec![
                plain("cpu/event=0x3c,umask=0/u", Hi),
                plain("page-faults", On),
            ],
        ),
        (
            "sched:sched_switch,7",
            vec![plain("sched:sched_switch", Every(7))],
        ),
        (
            "mem:0x1000/8:rw,cs",
            vec![plain("mem:0x1000/8:rw", On), plain("cs", On)],
        ),
        ("4:0x3c,5", vec![plain("4:0x3c", Every(5))]),
    ] {
        assert_eq!(parse_overflow_specs(text), Ok(expected), "{text}");
    }
}

#[test]
fn lists_without_intervals() {
    for (text, expected) in [
        (
            "cycles,insts",
            vec![typed("cycles", &[]), typed("insts", &[])],
        ),
        (
            "pic0=cycles,nouser,sys,pic1=insts",
            vec![
                typed("cycles", &[("user", 0), ("system", 1)]),
                typed("insts", &[]),
            ],
        ),
        ("r01c2,umask=0x4", vec![typed("r01c2", &[("umask", 4)])]),
        (
            "cpu/event=1,umask=2/,faults",
            vec![typed("cpu/event=1,umask=2/", &[]), typed("faults", &[])],
        ),
        ("cycles~user=0", vec![typed("cycles", &[("user", 0)])]),
    ] {
        assert_eq!(parse_counter_specs(text), Ok(expected), "{text}");
    }
}

#[test]
fn bad_lists_are_refused() {
    let wrong_h = [
        "",
        ",",
        "cycles,,,insts",
        "hi,cycles",
        "cycles,hi,hi",
        "cycles,0",
        "cycles,1x",
        "7",
        "cycles,9223372036854775808",
        "cycles,99999999999999999999",
        "cycles~",
        "cycles~user=",
        "cycles~user=x",
        "cycles~=1",
        "~user=0",
        "cycles/0",
        "cycles/0,insts/1",
        "+cycles",
        "{cycles,insts}",
        "cpu/event=0x3c",
        "two words",
    ];
    let wrong_c = [
        "",
        "nouser",
        "cycles,hi",
        "cycles,100",
        "cycles,umask=z",
        "cycles,",
    ];
    let messages = wrong_h
        .map(|text| (text, parse_overflow_specs(text).err()))
        .into_iter()
        .chain(wrong_c.map(|text| (text, parse_counter_specs(text).err())))
        .map(|(text, error)| match error {
            Some(error) => format!("{text:?}: {error}: {}", error.hint()),
            None => unreachable!("{text} was accepted"),
        });
    insta::assert_snapshot!(messages.collect::<Vec<_>>().join("\n"));
}

/// Names, numbers and signs in any order, or any text.
fn text() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        4 => prop::sample::select(vec![
            "cycles", "insts", "cpu/", "/", "mem:", ":u", ",", "~", "=", "on", "hi", "lo", "0x", "17", "pic0=", "nouser", "é", " ",
        ]).prop_map(str::to_owned),
        1 => "\\PC{0,3}",
    ];
    prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

fn interval_typed() -> impl Strategy<Value = OverflowInterval> {
    prop_oneof![
        Just(OverflowInterval::On),
        Just(OverflowInterval::Hi),
        Just(OverflowInterval::Lo),
        (1..=i64::MAX as u64).prop_map(OverflowInterval::Every),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn no_text_panics_and_printed_specs_parse_back(text in text()) {
        if let Ok(specs) = parse_overflow_specs(&text) {
            prop_assert!(!specs.is_empty());
            let printed = specs.iter().map(OverflowSpec::to_string).collect::<Vec<_>>().join(",");
            prop_assert_eq!(parse_overflow_specs(&printed), Ok(specs), "{}", printed);
        }
        if let Ok(specs) = parse_counter_specs(&text) {
            let printed = specs.iter().map(CounterSpec::to_string).collect::<Vec<_>>().join(",");
            prop_assert_eq!(parse_counter_specs(&printed), Ok(specs), "{}", printed);
        }
    }

    #[test]
    fn specs_parse_back(
        name in "[a-z][a-z0-9_-]{2,8}(:u)?|cpu/event=0x[0-9a-f]{1,2},[a-z]{1,4}/k?",
        attributes in prop::collection::vec(("[a-z]{1,5}", any::<u64>()), 0..3),
        interval in interval_typed(),
    ) {
        prop_assume!(!matches!(name.as_str(), "high" | "low"));
        let spec = OverflowSpec::Counter(CounterSpec { name, attributes }, interval);
        prop_assert_eq!(parse_overflow_specs(&spec.to_string()), Ok(vec![spec]));
    }
}
