use proptest::prelude::*;

use super::*;

fn one(name: &str, attributes: &[(&str, u64)], interval: Interval) -> Wish {
    Wish::Counter(typed(name, attributes), interval)
}

fn typed(name: &str, attributes: &[(&str, u64)]) -> Counter {
    Counter {
        name: name.to_owned(),
        attributes: attributes
            .iter()
            .map(|(name, value)| ((*name).to_owned(), *value))
            .collect(),
    }
}

#[test]
fn what_follows_h() {
    use Interval::{Every, Hi, Lo, On};
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
        ("on", vec![Wish::Usual(On)]),
        ("hi", vec![Wish::Usual(Hi)]),
        ("low", vec![Wish::Usual(Lo)]),
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
        assert_eq!(wishes(text), Ok(expected), "{text}");
    }
}

#[test]
fn what_follows_c() {
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
        assert_eq!(counters(text), Ok(expected), "{text}");
    }
}

#[test]
fn what_is_refused() {
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
    let said = wrong_h
        .map(|text| (text, wishes(text).err()))
        .into_iter()
        .chain(wrong_c.map(|text| (text, counters(text).err())))
        .map(|(text, error)| match error {
            Some(error) => format!("{text:?}: {error}: {}", error.cure()),
            None => unreachable!("{text} was accepted"),
        });
    insta::assert_snapshot!(said.collect::<Vec<_>>().join("\n"));
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

fn interval_typed() -> impl Strategy<Value = Interval> {
    prop_oneof![
        Just(Interval::On),
        Just(Interval::Hi),
        Just(Interval::Lo),
        (1..=i64::MAX as u64).prop_map(Interval::Every),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn no_text_makes_it_panic_and_what_it_prints_means_the_same(text in text()) {
        if let Ok(meant) = wishes(&text) {
            prop_assert!(!meant.is_empty());
            let printed = meant.iter().map(Wish::to_string).collect::<Vec<_>>().join(",");
            prop_assert_eq!(wishes(&printed), Ok(meant), "{}", printed);
        }
        if let Ok(meant) = counters(&text) {
            let printed = meant.iter().map(Counter::to_string).collect::<Vec<_>>().join(",");
            prop_assert_eq!(counters(&printed), Ok(meant), "{}", printed);
        }
    }

    #[test]
    fn what_is_printed_parses_back(
        name in "[a-z][a-z0-9_-]{2,8}(:u)?|cpu/event=0x[0-9a-f]{1,2},[a-z]{1,4}/k?",
        attributes in prop::collection::vec(("[a-z]{1,5}", any::<u64>()), 0..3),
        interval in interval_typed(),
    ) {
        prop_assume!(!matches!(name.as_str(), "high" | "low"));
        let wish = Wish::Counter(Counter { name, attributes }, interval);
        prop_assert_eq!(wishes(&wish.to_string()), Ok(vec![wish]));
    }
}
