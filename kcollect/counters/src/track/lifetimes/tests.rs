//! Sequences of records, and the rows that come of them.

use types::ids::{Pid, Tid};

use super::*;

/// Counters with this count.
struct Fixed(u64);

impl LiveCounters for Fixed {
    fn values(&self) -> Option<Vec<CounterValue>> {
        Some(vec![count(self.0)])
    }
}

fn count(count: u64) -> CounterValue {
    CounterValue {
        count,
        enabled_ns: Nanos(10),
        running_ns: Nanos(10),
    }
}

fn fork(pid: u32, tid: u32, parent: u32) -> TaskRecord {
    TaskRecord::Fork {
        pid: Pid(pid),
        tid: Tid(tid),
        parent_pid: Pid(parent),
        parent_tid: Tid(parent),
    }
}

fn exit(pid: u32, tid: u32) -> TaskRecord {
    TaskRecord::Exit {
        pid: Pid(pid),
        tid: Tid(tid),
    }
}

fn exit_count(tid: u32, id: u64, value: u64) -> TaskRecord {
    let value = count(value);
    TaskRecord::ExitCount {
        pid: Pid(7),
        tid: Tid(tid),
        id,
        value,
    }
}

/// Two CPUs, one event, a process 7.
fn lifetimes(follow_forks: bool) -> ThreadLifetimes<Fixed> {
    let mut lifetimes = ThreadLifetimes::new(1, 2, follow_forks);
    lifetimes.add_opened(Pid(7), Tid(7), Fixed(100));
    lifetimes
}

fn apply(lifetimes: &mut ThreadLifetimes<Fixed>, records: &[(u64, TaskRecord)]) -> String {
    let rows = records.iter().flat_map(|(time, record)| {
        lifetimes.apply(Nanos(*time), record, |id| (id < 2).then_some(0))
    });
    show(rows)
}

fn show(rows: impl IntoIterator<Item = CountRow>) -> String {
    let show = |row: CountRow| {
        let count = row.values.map(|values| values[0].count);
        let part = if row.incomplete { " incomplete" } else { "" };
        format!(
            "{} {}/{} {:?} {count:?}{part}\n",
            row.time_ns,
            row.pid.unwrap_or_default(),
            row.lwp.unwrap_or_default(),
            row.kind
        )
    };
    rows.into_iter().map(show).collect()
}

#[test]
fn a_thread_is_the_sum_of_its_counters_on_all_cpus() {
    let mut lifetimes = lifetimes(false);
    let rows = apply(
        &mut lifetimes,
        &[
            (1, fork(7, 8, 7)),
            (2, exit(7, 8)),
            (3, exit_count(8, 0, 30)),
            // From a counter that was closed.
            (3, exit_count(8, 9, 1000)),
            (3, exit_count(8, 1, 12)),
            (4, exit(7, 7)),
        ],
    );
    insta::assert_snapshot!(rows, @r"
        1 7/8 LwpCreate None
        2 7/8 LwpExit Some(42)
        4 7/7 LwpExit Some(100)
        4 7/7 Exit Some(142)
        ");
    assert!(lifetimes.is_empty());
    assert_eq!(
        (lifetimes.followed_threads, lifetimes.missing_exit_counts),
        (2, 0)
    );
    assert_eq!(lifetimes.counts_in_rows()[0].count, 142);
    assert!(lifetimes.take_new_threads().is_empty());
}

#[test]
fn forks_have_rows_and_are_followed_if_requested() {
    let records = [
        (1, fork(9, 9, 7)),
        (
            2,
            TaskRecord::Exec {
                pid: Pid(9),
                name: (*b"true").into(),
            },
        ),
        (3, exit(9, 9)),
        (4, exit_count(9, 0, 1)),
        (4, exit_count(9, 1, 2)),
    ];
    insta::assert_snapshot!(apply(&mut lifetimes(true), &records), @r#"
        1 7/7 Fork(Pid(9)) None
        2 9/9 Exec("true") None
        3 9/9 LwpExit Some(3)
        3 9/9 Exit Some(3)
        "#);
    insta::assert_snapshot!(apply(&mut lifetimes(false), &records[..1]), @"1 7/7 Fork(Pid(9)) None");
}

#[test]
fn a_thread_that_executes_a_program_gets_the_number_of_its_process() {
    let mut lifetimes = lifetimes(false);
    let rows = apply(
        &mut lifetimes,
        &[
            (1, fork(7, 8, 7)),
            (2, exit(7, 7)),
            (
                3,
                TaskRecord::Exec {
                    pid: Pid(7),
                    name: (*b"new").into(),
                },
            ),
            (4, exit(7, 7)),
            (5, exit_count(7, 0, 1)),
            (5, exit_count(7, 1, 4)),
        ],
    );
    insta::assert_snapshot!(rows, @r#"
        1 7/8 LwpCreate None
        2 7/7 LwpExit Some(100)
        3 7/7 Exec("new") None
        4 7/7 LwpExit Some(5)
        4 7/7 Exit Some(105)
        "#);
}

#[test]
fn missing_exit_counts_are_counted() {
    let mut lifetimes = lifetimes(false);
    apply(&mut lifetimes, &[(1, fork(7, 8, 7)), (1, fork(7, 9, 7))]);
    assert_eq!(lifetimes.take_new_threads(), [Tid(8), Tid(9)]);
    lifetimes.set_counters(Tid(8), Fixed(20));
    let records = [(2, exit(7, 8)), (2, exit(7, 9)), (3, exit_count(8, 0, 30))];
    assert_eq!(apply(&mut lifetimes, &records), "");
    assert!(lifetimes.finish_overdue(EXIT_COUNTS_TIMEOUT_NS).is_empty());
    insta::assert_snapshot!(show(lifetimes.finish_overdue(Nanos(2) + EXIT_COUNTS_TIMEOUT_NS)), @r"
        2 7/8 LwpExit Some(20) incomplete
        2 7/9 LwpExit None incomplete
        ");
    assert_eq!(lifetimes.missing_exit_counts, 2);
}

#[test]
fn contradictory_exit_counts_are_not_used() {
    let mut lifetimes = lifetimes(false);
    let mut other = exit_count(8, 1, 1000);
    if let TaskRecord::ExitCount { value, .. } = &mut other {
        value.enabled_ns = Nanos(11);
    }
    let records = [
        (1, fork(7, 8, 7)),
        (2, exit(7, 8)),
        (3, exit_count(8, 0, 30)),
        (3, other),
    ];
    insta::assert_snapshot!(apply(&mut lifetimes, &records), @r"
        1 7/8 LwpCreate None
        2 7/8 LwpExit None incomplete
        ");
}

/// The thread was listed and opened before its fork was recorded. It has one exit, with the counts
/// of its inherited counters.
#[test]
fn a_thread_may_be_opened_before_its_fork_is_recorded() {
    let mut lifetimes = lifetimes(false);
    lifetimes.add_opened(Pid(7), Tid(8), Fixed(3));
    assert!(lifetimes.opened_before_fork_record(Tid(8)));
    let records = [
        (1, fork(7, 8, 7)),
        (2, exit(7, 8)),
        (3, exit_count(8, 0, 30)),
        (3, exit_count(8, 1, 12)),
        // The number is used again.
        (4, fork(7, 8, 7)),
    ];
    insta::assert_snapshot!(apply(&mut lifetimes, &records), @r"
        1 7/8 LwpCreate None
        2 7/8 LwpExit Some(42)
        4 7/8 LwpCreate None
        ");
    assert_eq!(
        (lifetimes.followed_threads, lifetimes.missing_exit_counts),
        (3, 0)
    );
    assert!(
        !lifetimes.opened_before_fork_record(Tid(8))
            && !lifetimes.opened_before_fork_record(Tid(9))
    );
}

#[test]
fn ticks_have_what_was_counted_since_the_last() {
    let mut lifetimes = lifetimes(false);
    insta::assert_snapshot!(show(lifetimes.tick(|| Nanos(5))), @"5 7/7 Tick Some(100)");
    lifetimes.set_counters(Tid(7), Fixed(130));
    insta::assert_snapshot!(show(lifetimes.tick(|| Nanos(6))), @"6 7/7 Tick Some(30)");
    assert_eq!(lifetimes.counts_in_rows()[0].count, 130);
}

#[test]
fn a_thread_whose_exit_record_was_lost_has_an_exit() {
    let mut lifetimes = lifetimes(false);
    apply(&mut lifetimes, &[(1, fork(7, 8, 7)), (1, fork(7, 9, 7))]);
    assert_eq!(
        lifetimes.running_threads(),
        [7, 8, 9].map(|tid| (Pid(7), Tid(tid)))
    );
    assert!(lifetimes.exited(Tid(8), Nanos(5)).is_empty());
    // The record arrives after all, and the row is complete.
    let records = [
        (3, exit(7, 8)),
        (3, exit_count(8, 0, 1)),
        (3, exit_count(8, 1, 2)),
    ];
    insta::assert_snapshot!(apply(&mut lifetimes, &records), @"3 7/8 LwpExit Some(3)");
    lifetimes.exited(Tid(9), Nanos(6));
    insta::assert_snapshot!(show(lifetimes.finish_overdue(Nanos(6) + EXIT_COUNTS_TIMEOUT_NS)), @"6 7/9 LwpExit None incomplete");
}
