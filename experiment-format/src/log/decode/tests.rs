//! What is encoded is decoded; foreign and malformed files are read or refused.

use super::*;
use crate::ids::{Pid, Tid};
use crate::log::System;
use proptest::prelude::*;

fn read(text: &str) -> Result<Log> {
    decode(Path::new("log.xml"), text.as_bytes())
}

fn text() -> impl Strategy<Value = String> {
    // Text of blanks alone is dropped by the format.
    "\\PC{0,20}x"
}

fn packets() -> impl Strategy<Value = Vec<PacketDecl>> {
    let kinds = prop::sample::select(vec![
        FieldType::Int32,
        FieldType::Uint64,
        FieldType::String,
        FieldType::Date,
    ]);
    let field =
        (text(), text(), kinds, any::<u16>()).prop_map(|(name, uname, kind, offset)| FieldDecl {
            name,
            uname,
            kind,
            offset: offset.into(),
        });
    let packet =
        (1u16.., text(), prop::collection::vec(field, 0..4)).prop_map(|(kind, uname, fields)| {
            PacketDecl {
                kind,
                uname,
                fields,
            }
        });
    prop::collection::vec(packet, 0..3)
}

fn header() -> impl Strategy<Value = LogHeader> {
    let cpu = (any::<u16>(), any::<u16>()).prop_map(|(id, mhz)| Cpu {
        id: id.into(),
        mhz: mhz.into(),
    });
    let system = (
        text(),
        any::<u16>(),
        any::<u32>(),
        prop::collection::vec(cpu, 0..4),
    )
        .prop_map(|(hostname, page_size, pages, cpus)| System {
            hostname,
            arch: "aarch64".into(),
            page_size: page_size.into(),
            pages: pages.into(),
            cpus,
        });
    let clock = |tick_us| {
        (any::<i16>(), packets()).prop_map(move |(states, packets)| {
            let states = NumStates::from(i32::from(states));
            ProfileDecl::Clock {
                tick_us,
                states,
                packets,
            }
        })
    };
    let other = || {
        ("[a-z]{1,5}x", text(), packets()).prop_map(|(name, value, packets)| {
            let attributes = vec![("interval".to_owned(), value)];
            ProfileDecl::Other {
                name,
                attributes,
                packets,
            }
        })
    };
    let profiles = any::<u16>().prop_flat_map(move |tick_us| {
        let names = Just(ProfileDecl::ThreadNames);
        prop::collection::vec(prop_oneof![clock(tick_us.into()), names, other()], 0..4)
    });
    let setting = prop_oneof![
        Just(Setting::NoIdle),
        any::<u32>().prop_map(|n| Setting::Limit(n.into())),
        any::<u32>().prop_map(Setting::SamplePeriod),
        any::<u32>().prop_map(Setting::DelayStart),
        any::<u32>().prop_map(Setting::Terminate),
        any::<u32>().prop_map(Setting::PauseSignal),
        text().prop_map(Setting::LineTrace),
    ];
    let settings = prop::collection::vec(setting, 0..5);
    let rest = (
        text(),
        prop::option::of(text()),
        prop::collection::vec(text(), 0..3),
    );
    let container = (text(), text()).prop_map(|(runtime, id)| Container { runtime, id });
    (
        system,
        (
            any::<u32>(),
            prop::array::uniform3(prop::option::of(any::<u32>())),
            prop::option::of(any::<u32>()),
            any::<bool>(),
            prop::option::of(container),
        ),
        profiles,
        settings,
        rest,
    )
        .prop_map(
            |(system, process, profiles, settings, (command_line, driver_version, comments))| {
                let (pid, relatives, mpi_rank, pack, container) = process;
                let [ppid, pgrp, sid] = relatives.map(|number| number.map(Pid));
                LogHeader {
                    collector: command_line.clone(),
                    system,
                    pid: Pid(pid),
                    ppid,
                    pgrp,
                    sid,
                    mpi_rank,
                    pack,
                    container,
                    command_line,
                    profiles,
                    driver_version,
                    settings,
                    comments,
                    ..LogHeader::default()
                }
            },
        )
}

fn events() -> impl Strategy<Value = LogEvent> {
    let at_ns = || 0..(1u64 << 31) * 1_000_000_000;
    let descendant = || {
        (at_ns(), text(), text(), any::<bool>(), text()).prop_map(
            |(at_ns, variant, lineage, follow, message)| Descendant {
                at_ns: Nanos(at_ns),
                variant,
                lineage,
                follow,
                message,
            },
        )
    };
    prop_oneof![
        at_ns().prop_map(|at_ns| LogEvent::Exit {
            at_ns: Nanos(at_ns)
        }),
        (at_ns(), any::<u32>(), text()).prop_map(|(at_ns, id, label)| LogEvent::Sample {
            at_ns: Nanos(at_ns),
            id,
            label
        }),
        (at_ns(), prop::option::of(text())).prop_map(|(at_ns, name)| LogEvent::Pause {
            at_ns: Nanos(at_ns),
            name
        }),
        at_ns().prop_map(|at_ns| LogEvent::Resume {
            at_ns: Nanos(at_ns)
        }),
        (at_ns(), text()).prop_map(|(at_ns, text)| LogEvent::Comment {
            at_ns: Nanos(at_ns),
            text
        }),
        (at_ns(), text()).prop_map(|(at_ns, text)| LogEvent::Warning {
            at_ns: Nanos(at_ns),
            text
        }),
        (at_ns(), text(), any::<i32>()).prop_map(|(at_ns, text, errno)| LogEvent::Error {
            at_ns: Nanos(at_ns),
            text,
            errno
        }),
        (at_ns(), any::<u32>(), text(), text()).prop_map(|(at_ns, tid, name, group)| {
            LogEvent::Thread {
                at_ns: Nanos(at_ns / 2),
                tid: Tid(tid),
                name,
                group,
            }
        }),
        descendant().prop_map(LogEvent::DescStart),
        descendant().prop_map(LogEvent::DescStarted),
        (text(), text()).prop_map(|(value, text)| LogEvent::Other {
            kind: "gc_start".into(),
            attributes: vec![("tid".into(), value)],
            text,
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn what_is_encoded_is_decoded(
        header in header(),
        tstamp in 0..(1u64 << 30) * 1_000_000_000,
        wall: i32,
        events in prop::collection::vec(events(), 0..10),
    ) {
        let run = StartTime { tstamp_ns: Nanos(tstamp), wall_s: wall.into(), wall_subsec_ns: wall.unsigned_abs() % 1_000_000_000, tm_zone_s: -3600 };
        let mut text = header.encode().unwrap() + &LogEvent::Start(run).encode(Nanos::ZERO).unwrap();
        for event in &events {
            text += &event.encode(Nanos(tstamp)).unwrap();
        }
        text.push('\n');
        let log = read(&text).unwrap();
        prop_assert_eq!(log.header, header);
        prop_assert_eq!(log.run, Some(run));
        prop_assert_eq!(log.events, events);
    }

    #[test]
    fn any_elements_are_read_or_refused(
        text in "(<(/?(event|profile|profpckt|field|process|system|setting))( (kind|id|tstamp|offset|type|name)=\"[a-z0-9.]{0,5}\"){0,3}/?>\n?){0,8}"
    ) {
        let _ = read(&text);
    }
}

#[test]
fn a_cut_between_events_loses_the_rest_and_one_inside_is_an_error() {
    let header = LogHeader {
        system: System {
            arch: "x86_64".into(),
            ..System::default()
        },
        ..LogHeader::default()
    };
    let mut text = header.encode().unwrap();
    text += &LogEvent::Start(StartTime::default())
        .encode(Nanos::ZERO)
        .unwrap();
    let begin = text.len();
    for at_ns in 1..4 {
        text += &LogEvent::Comment {
            at_ns: Nanos(at_ns),
            text: "x".into(),
        }
        .encode(Nanos::ZERO)
        .unwrap();
    }
    for cut in begin..text.len() {
        let whole = text[begin..cut].matches('\n').count();
        match read(&text[..cut]) {
            Ok(log) => assert_eq!(log.events.len(), whole, "cut at {cut}"),
            Err(Error::Malformed { offset, .. }) => assert!(offset >= begin as u64),
            Err(other) => panic!("{other}"),
        }
    }
}

#[test]
fn names_of_threads_count_from_the_start_wherever_that_stands() {
    let run = "<event kind=\"run\" tstamp=\"5.000000000\"/>\n";
    let of = |tstamp: &str, tid: &str| {
        format!("<event kind=\"jthread_start\" tstamp=\"{tstamp}\" tid=\"{tid}\" name=\"a\"/>\n")
    };
    let name = |at_ns, tid| LogEvent::Thread {
        at_ns,
        tid,
        name: "a".into(),
        group: String::new(),
    };
    let text = of("5.000000007", "12") + run + &of("1.000000000", "0xFFffFFff") + "\n";
    assert_eq!(
        read(&text).unwrap().events,
        [name(Nanos(7), Tid(12)), name(Nanos::ZERO, Tid(u32::MAX))]
    );
    // What is no thread id of Linux stays as it is.
    for tid in ["0x7f0000000000", ""] {
        let log = read(&(of("5.000000007", tid) + "\n")).unwrap();
        assert!(matches!(&log.events[..], [LogEvent::Other { .. }]), "{tid}");
    }
}

#[test]
fn a_declaration_of_java_with_a_version_is_more_than_names() {
    let profiles = |attributes: &str| {
        let text = format!("<profile name=\"jprofile\"{attributes}/>\n\n");
        read(&text).unwrap().header.profiles
    };
    assert_eq!(profiles(""), [ProfileDecl::ThreadNames]);
    let java = profiles(" jversion=\"17\"");
    assert!(matches!(&java[..], [ProfileDecl::Other { .. }]), "{java:?}");
}

#[test]
fn old_and_big_endian_data_is_refused() {
    let with = |version: &str, arch: &str| LogHeader {
        version: version.into(),
        system: System {
            arch: arch.into(),
            ..System::default()
        },
        ..LogHeader::default()
    };
    let check = |header: LogHeader| check(Path::new("log.xml"), &header).is_ok();
    assert!(check(with("12.4", "x86_64")) && check(with("13", "aarch64")));
    assert!(!check(with("11.9", "x86_64")) && !check(with("", "x86_64")));
    assert!(!check(with("12.4", "sparc")) && !check(with("12.4", "riscv64")));
}

#[test]
fn errors_are_placed() {
    for (text, offset) in [
        ("<event kind=\"run\"/>\n", 0),
        ("<process/>\n<event kind=\"exit\" tstamp=\"soon\"/>\n", 11),
        ("<profpckt kind=\"8\"/>\n", 0),
        ("<field offset=\"8\" type=\"INT32\"/>\n", 0),
        (
            "<profile name=\"profile\">\n<profpckt kind=\"70000\"/>\n",
            25,
        ),
    ] {
        match read(text) {
            Err(Error::Malformed { offset: found, .. }) => assert_eq!(found, offset, "{text}"),
            other => panic!("{text}: {other:?}"),
        }
    }
}
