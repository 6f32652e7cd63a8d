use std::io::Read as _;

use experiment_format::ids::Pid;
use flate2::read::ZlibDecoder;
use proptest::prelude::*;
use serde_json::Value;

use super::*;
use crate::view::payload::{
    EventKind, PageFunction, PageProcess, PageSubject, PageThread, SubjectKind,
};

/// Decodes header and columns, as the page does.
fn decoded(payload: &Payload) -> (Value, Vec<(String, Vec<u64>)>) {
    let mut bytes = Vec::new();
    let stream = encode(payload).unwrap();
    ZlibDecoder::new(stream.as_slice())
        .read_to_end(&mut bytes)
        .unwrap();
    let length = u32::from_le_bytes(bytes[..4].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[4..4 + length]).unwrap();
    let mut at = 4 + length;
    let mut columns = Vec::new();
    for column in header["columns"].as_array().unwrap() {
        let width = column[1].as_u64().unwrap() as usize;
        let rows = column[2].as_u64().unwrap() as usize;
        let byte = |row, plane| u64::from(bytes[at + plane * rows + row]) << (8 * plane);
        let numbers = (0..rows).map(|row| (0..width).map(|plane| byte(row, plane)).sum());
        columns.push((column[0].as_str().unwrap().to_owned(), numbers.collect()));
        at += width * rows;
    }
    assert_eq!(at, bytes.len());
    (header, columns)
}

fn column<'a>(columns: &'a [(String, Vec<u64>)], name: &str) -> &'a [u64] {
    &columns.iter().find(|column| column.0 == name).unwrap().1
}

fn payload() -> Payload {
    let names = ["main", "work", "read", "vfs_read"];
    let functions = names.map(|name| PageFunction {
        name: name.into(),
        object: "a".into(),
        kernel: name == "vfs_read",
        jit: name == "work",
    });
    Payload {
        duration_ns: Nanos::from_millis(1),
        interval_us: 10,
        processes: vec![PageProcess::default()],
        threads: vec![PageThread::default(), PageThread::default()],
        functions: functions.to_vec(),
        ..Payload::default()
    }
}

fn tick(time_ns: Nanos, thread: u32, stack: u32, state: Microstate, ticks: u32) -> PageTick {
    PageTick {
        time_ns,
        thread,
        cpu: 3,
        stack,
        state,
        ticks,
        micros: u64::from(ticks) * 10,
        cause: None,
        waker: Tid(0),
    }
}

#[test]
fn stacks_come_in_preorder_the_heaviest_sibling_first() {
    let mut payload = payload();
    let light = payload.stacks.stack([0, 1]);
    let heavy = payload.stacks.stack([0, 2, 3]);
    payload.ticks = vec![
        tick(Nanos(50_000), 0, light, Microstate::User, 1),
        tick(Nanos(90_000), 1, heavy, Microstate::System, 2),
    ];
    let (header, columns) = decoded(&payload);
    assert_eq!(column(&columns, "stack_depth"), [0, 1, 2, 3, 2]);
    assert_eq!(column(&columns, "stack_function")[1..], [0, 2, 3, 1]);
    assert_eq!(column(&columns, "stack"), [4, 3]);
    assert_eq!(column(&columns, "first"), [0, 1, 2]);
    assert_eq!(column(&columns, "end"), [50_000, 90_000]);
    let flags: Vec<&Value> = header["functions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|function| &function[2])
        .collect();
    assert_eq!(flags, [0, 2, 0, 1]);
}

#[test]
fn events_come_by_what_they_are_about_then_by_kind_and_time() {
    let mut payload = payload();
    let subject = |kind, name: &str| PageSubject {
        kind,
        name: name.into(),
        process: "server".into(),
        called: ["pthread_mutex_lock".into(), "work".into()],
    };
    payload.subjects = vec![
        subject(SubjectKind::Lock, "0x10"),
        subject(SubjectKind::File, "/tmp/a"),
    ];
    let event = |time_ns, thread, subject, kind| PageEvent {
        time_ns: Nanos(time_ns),
        thread,
        subject,
        kind,
        count: 1,
        took_ns: Nanos(700),
        bytes: 1 << 40,
    };
    payload.events = vec![
        event(30, 0, 1, EventKind::Write),
        event(40, 1, 1, EventKind::Read),
        event(20, 1, 0, EventKind::Wait),
        event(10, 0, 0, EventKind::Wait),
    ];
    let (header, columns) = decoded(&payload);
    assert_eq!(column(&columns, "event_subject"), [0, 0, 1, 1]);
    assert_eq!(column(&columns, "event_kind"), [0, 0, 1, 2]);
    assert_eq!(column(&columns, "event_end"), [10, 20, 40, 30]);
    assert_eq!(column(&columns, "event_thread"), [0, 1, 1, 0]);
    assert_eq!(column(&columns, "event_ns"), [700; 4]);
    assert_eq!(column(&columns, "event_bytes"), [1 << 40; 4]);
    let strings = header["strings"].as_array().unwrap();
    let text = |at: &Value| strings[at.as_u64().unwrap() as usize].as_str().unwrap();
    let file = &header["subjects"][1];
    assert_eq!(file[0], 1);
    let texts: Vec<_> = (1..5).map(|at| text(&file[at])).collect();
    assert_eq!(texts, ["/tmp/a", "server", "pthread_mutex_lock", "work"]);
    payload.events[2].subject = 2;
    assert_eq!(
        encode(&payload),
        Err(PayloadError::Event {
            event: 2,
            what: "subject",
            value: 2
        })
    );
}

#[test]
fn packets_of_one_time_follow_each_other_in_the_order_of_life() {
    let mut payload = payload();
    let all = [
        tick(Nanos(500_000), 0, 0, Microstate::System, 1),
        tick(Nanos(500_000), 0, 0, Microstate::Sleep, 20),
        tick(Nanos(500_000), 0, 0, Microstate::WaitCpu, 2),
    ];
    payload.ticks = all.to_vec();
    let (_, columns) = decoded(&payload);
    assert_eq!(column(&columns, "state"), [7, 8, 1]);
    assert_eq!(column(&columns, "ticks"), [20, 2, 1]);
    assert_eq!(column(&columns, "micros"), [200, 20, 10]);
    // 470 µs, 490 µs, 500 µs, as distances.
    assert_eq!(column(&columns, "end"), [470_000, 20_000, 10_000]);
}

#[test]
fn waits_have_the_numbers_of_their_causes_and_the_tids_of_their_wakers() {
    let mut payload = payload();
    let wait = |time_ns, cause, waker| PageTick {
        cause: Some(cause),
        waker: Tid(waker),
        ..tick(Nanos(time_ns), 0, 0, Microstate::Sleep, 1)
    };
    payload.ticks = vec![
        wait(100_000, Cause::Undecided, 0),
        wait(200_000, Cause::Answer, 4_194_303),
        tick(Nanos(300_000), 0, 0, Microstate::User, 1),
    ];
    let (header, columns) = decoded(&payload);
    assert_eq!(column(&columns, "cause"), [1, 8, 0]);
    assert_eq!(column(&columns, "waker"), [0, 4_194_303, 0]);
    let answer = &header["causes"][7];
    assert_eq!(
        (&answer[0], &answer[1]),
        (&"an answer".into(), &"suffered".into())
    );
    let reasons: std::collections::BTreeSet<_> = Cause::ALL.map(reason).into();
    assert_eq!(reasons.len(), Cause::COUNT);
}

#[test]
fn names_become_printable_and_are_stored_once() {
    let mut payload = payload();
    payload.processes = vec![
        PageProcess {
            pid: Pid(1),
            name: b"</script>\0\xff\"".to_vec(),
            lineage: Vec::new(),
            ..PageProcess::default()
        },
        PageProcess {
            pid: Pid(2),
            name: "\u{202e}txt".into(),
            lineage: b"</script>\0\xff\"".to_vec(),
            ..PageProcess::default()
        },
    ];
    let (header, _) = decoded(&payload);
    let strings = header["strings"].as_array().unwrap();
    let name = |process: usize, which: usize| {
        &strings[header["processes"][process][which].as_u64().unwrap() as usize]
    };
    assert_eq!(name(0, 0), "</script>\\x00\\xFF\"");
    assert_eq!(name(1, 0), "\\xE2\\x80\\xAEtxt");
    assert_eq!(name(1, 1), name(0, 0));
    // Name and lineage of two, a thread's, four functions', one object's: two processes share one.
    assert_eq!(strings.len(), 3 + 4 + 1);
}

#[test]
fn processes_have_their_groups_by_kind_each_name_stored_once() {
    let mut payload = payload();
    payload.groupings = vec!["unit", "user"];
    let groups = [["a.service", "0"], ["b.service", "0"], ["a.service", "33"]];
    payload.processes = groups
        .iter()
        .map(|groups| PageProcess {
            groups: groups.iter().map(|&group| group.into()).collect(),
            ..PageProcess::default()
        })
        .collect();
    let (header, _) = decoded(&payload);
    assert_eq!(header["groupings"], serde_json::json!(["unit", "user"]));
    let strings = header["strings"].as_array().unwrap();
    for (process, groups) in groups.iter().enumerate() {
        let numbers = header["processes"][process][4].as_array().unwrap();
        let names: Vec<_> = numbers
            .iter()
            .map(|number| strings[number.as_u64().unwrap() as usize].as_str().unwrap())
            .collect();
        assert_eq!(names, groups);
    }
    // Two units, two users, four functions, one object, and no name for all the rest.
    assert_eq!(strings.len(), 2 + 2 + 4 + 1 + 1);
}

#[test]
fn contradictions_are_said() {
    let broken = |change: fn(&mut Payload)| {
        let mut payload = payload();
        payload.ticks = vec![tick(Nanos(1), 0, 0, Microstate::User, 1)];
        change(&mut payload);
        encode(&payload).unwrap_err().to_string()
    };
    let messages = [
        broken(|it| it.interval_us = 0),
        broken(|it| it.duration_ns = Nanos::MAX),
        broken(|it| it.threads[1].process = 7),
        broken(|it| it.groupings = vec!["unit", "user"]),
        broken(|it| {
            it.stacks.stack([9]);
        }),
        broken(|it| {
            it.stacks.child(9, 0);
        }),
        broken(|it| it.ticks[0].thread = 2),
        broken(|it| it.ticks[0].stack = 1),
        broken(|it| it.ticks[0].state = Microstate::KernelCpu),
        broken(|it| it.ticks[0].time_ns = Nanos(1 << 60)),
    ];
    assert_eq!(
        messages,
        [
            "an impossible interval: 0",
            "an impossible duration: 18446744073709551615",
            "thread 1 refers to process 7, which does not exist",
            "process 0 belongs to 0 groups of 2 kinds",
            "stack 1 refers to function 9, which does not exist",
            "stack 1 has parent 9, which is not before it",
            "tick row 0 has an impossible thread: 2",
            "tick row 0 has an impossible stack: 1",
            "tick row 0 has an impossible state: 11",
            "tick row 0 has an impossible time: 1152921504606846976",
        ]
    );
}

proptest! {
    /// Rows are decoded as they were encoded: thread, stack, state, CPU and ticks.
    #[test]
    fn nothing_is_lost(rows in prop::collection::vec((0_u64..1_000_000, 0_u32..2, 0_usize..5, 0_usize..10, 1_u32..9), 0..60)) {
        let mut payload = payload();
        let stacks = [vec![], vec![0], vec![0, 1], vec![0, 2, 3], vec![2, 3]];
        for (time, thread, stack, state, ticks) in rows {
            let stack = payload.stacks.stack(stacks[stack].iter().copied());
            payload.ticks.push(tick(Nanos(time), thread, stack, Microstate::ALL[state], ticks));
        }
        let (_, columns) = decoded(&payload);
        let depths = column(&columns, "stack_depth");
        let functions = column(&columns, "stack_function");
        let path = |node: u64| {
            let (mut frames, mut depth) = (Vec::new(), depths[node as usize]);
            for at in (1..=node as usize).rev() {
                if depths[at] == depth && depth > 0 {
                    frames.push(functions[at]);
                    depth -= 1;
                }
            }
            frames
        };
        let original = |mut node: u32| {
            let mut frames = Vec::new();
            while node != 0 {
                frames.push(u64::from(payload.stacks.functions()[node as usize]));
                node = payload.stacks.parents()[node as usize];
            }
            frames
        };
        let mut expected: Vec<_> = payload.ticks.iter().map(|row| {
            (u64::from(row.thread), original(row.stack), u64::from(row.state.number()), u64::from(row.ticks))
        }).collect();
        let first = column(&columns, "first");
        let mut found: Vec<_> = (0..payload.ticks.len()).map(|row| {
            let thread = first.partition_point(|&first| first <= row as u64) as u64 - 1;
            let number = |name| column(&columns, name)[row];
            (thread, path(number("stack")), number("state"), number("ticks"))
        }).collect();
        expected.sort();
        found.sort();
        prop_assert_eq!(found, expected);
    }
}
