//! Stories, told by records, and the rows that come of them.

use super::*;

/// Counters that have counted so much.
struct Seen(u64);

impl Reading for Seen {
    fn values(&self) -> Option<Vec<Value>> {
        Some(vec![count(self.0)])
    }
}

fn count(count: u64) -> Value {
    Value {
        count,
        enabled_ns: 10,
        running_ns: 10,
    }
}

fn fork(pid: u32, tid: u32, parent: u32) -> Record {
    Record::Fork {
        pid,
        tid,
        parent_pid: parent,
        parent_tid: parent,
    }
}

fn read(tid: u32, id: u64, value: u64) -> Record {
    let value = count(value);
    Record::Read {
        pid: 7,
        tid,
        id,
        value,
    }
}

/// Two CPUs, one event, a process 7.
fn lives(family: bool) -> Lives<Seen> {
    let mut lives = Lives::new(1, 2, family);
    lives.root(7, 7, Seen(100));
    lives
}

fn tell(lives: &mut Lives<Seen>, records: &[(u64, Record)]) -> String {
    let rows = records
        .iter()
        .flat_map(|(time, record)| lives.take(*time, record, |id| (id < 2).then_some(0)));
    show(rows)
}

fn show(rows: impl IntoIterator<Item = Row>) -> String {
    let show = |row: Row| {
        let count = row.values.map(|values| values[0].count);
        let part = if row.incomplete { " incomplete" } else { "" };
        format!(
            "{} {}/{} {:?} {count:?}{part}\n",
            row.time_ns,
            row.pid.unwrap_or(0),
            row.lwp.unwrap_or(0),
            row.what
        )
    };
    rows.into_iter().map(show).collect()
}

#[test]
fn a_thread_is_what_its_counters_on_all_cpus_said() {
    let mut lives = lives(false);
    let told = tell(
        &mut lives,
        &[
            (1, fork(7, 8, 7)),
            (2, Record::Exit { pid: 7, tid: 8 }),
            (3, read(8, 0, 30)),
            // Of a counter that was given up.
            (3, read(8, 9, 1000)),
            (3, read(8, 1, 12)),
            (4, Record::Exit { pid: 7, tid: 7 }),
        ],
    );
    insta::assert_snapshot!(told, @r"
        1 7/8 LwpCreate None
        2 7/8 LwpExit Some(42)
        4 7/7 LwpExit Some(100)
        4 7/7 Exit Some(142)
        ");
    assert!(lives.is_empty());
    assert_eq!((lives.followed, lives.unheard), (2, 0));
    assert_eq!(lives.told()[0].count, 142);
    assert!(lives.newcomers().is_empty());
}

#[test]
fn forks_are_told_and_followed_if_wanted() {
    let story = [
        (1, fork(9, 9, 7)),
        (
            2,
            Record::Exec {
                pid: 9,
                name: (*b"true").into(),
            },
        ),
        (3, Record::Exit { pid: 9, tid: 9 }),
        (4, read(9, 0, 1)),
        (4, read(9, 1, 2)),
    ];
    insta::assert_snapshot!(tell(&mut lives(true), &story), @r#"
        1 7/7 Fork(9) None
        2 9/9 Exec("true") None
        3 9/9 LwpExit Some(3)
        3 9/9 Exit Some(3)
        "#);
    insta::assert_snapshot!(tell(&mut lives(false), &story[..1]), @"1 7/7 Fork(9) None");
}

#[test]
fn a_thread_that_execs_takes_its_process_id() {
    let mut lives = lives(false);
    let told = tell(
        &mut lives,
        &[
            (1, fork(7, 8, 7)),
            (2, Record::Exit { pid: 7, tid: 7 }),
            (
                3,
                Record::Exec {
                    pid: 7,
                    name: (*b"new").into(),
                },
            ),
            (4, Record::Exit { pid: 7, tid: 7 }),
            (5, read(7, 0, 1)),
            (5, read(7, 1, 4)),
        ],
    );
    insta::assert_snapshot!(told, @r#"
        1 7/8 LwpCreate None
        2 7/7 LwpExit Some(100)
        3 7/7 Exec("new") None
        4 7/7 LwpExit Some(5)
        4 7/7 Exit Some(105)
        "#);
}

#[test]
fn last_words_that_do_not_come_are_missed() {
    let mut lives = lives(false);
    tell(&mut lives, &[(1, fork(7, 8, 7)), (1, fork(7, 9, 7))]);
    assert_eq!(lives.newcomers(), [8, 9]);
    lives.adopt(8, Seen(20));
    let story = [
        (2, Record::Exit { pid: 7, tid: 8 }),
        (2, Record::Exit { pid: 7, tid: 9 }),
        (3, read(8, 0, 30)),
    ];
    assert_eq!(tell(&mut lives, &story), "");
    assert!(lives.overdue(PATIENCE).is_empty());
    insta::assert_snapshot!(show(lives.overdue(2 + PATIENCE)), @r"
        2 7/8 LwpExit Some(20) incomplete
        2 7/9 LwpExit None incomplete
        ");
    assert_eq!(lives.unheard, 2);
}

#[test]
fn last_words_that_contradict_each_other_are_none() {
    let mut lives = lives(false);
    let mut other = read(8, 1, 1000);
    if let Record::Read { value, .. } = &mut other {
        value.enabled_ns = 11;
    }
    let story = [
        (1, fork(7, 8, 7)),
        (2, Record::Exit { pid: 7, tid: 8 }),
        (3, read(8, 0, 30)),
        (3, other),
    ];
    insta::assert_snapshot!(tell(&mut lives, &story), @r"
        1 7/8 LwpCreate None
        2 7/8 LwpExit None incomplete
        ");
}

/// It was listed when it was being made, and opened: it has one end, and what it has inherited
/// counts.
#[test]
fn a_birth_may_be_told_when_the_thread_was_opened() {
    let mut lives = lives(false);
    lives.root(7, 8, Seen(3));
    assert!(lives.opened_unborn(8));
    let story = [
        (1, fork(7, 8, 7)),
        (2, Record::Exit { pid: 7, tid: 8 }),
        (3, read(8, 0, 30)),
        (3, read(8, 1, 12)),
        // The id is given again.
        (4, fork(7, 8, 7)),
    ];
    insta::assert_snapshot!(tell(&mut lives, &story), @r"
        1 7/8 LwpCreate None
        2 7/8 LwpExit Some(42)
        4 7/8 LwpCreate None
        ");
    assert_eq!((lives.followed, lives.unheard), (3, 0));
    assert!(!lives.opened_unborn(8) && !lives.opened_unborn(9));
}

#[test]
fn ticks_are_what_was_counted_since_the_last() {
    let mut lives = lives(false);
    insta::assert_snapshot!(show(lives.tick(|| 5)), @"5 7/7 Tick Some(100)");
    lives.adopt(7, Seen(130));
    insta::assert_snapshot!(show(lives.tick(|| 6)), @"6 7/7 Tick Some(30)");
    assert_eq!(lives.told()[0].count, 130);
}

#[test]
fn who_is_gone_unheard_has_an_end() {
    let mut lives = lives(false);
    tell(&mut lives, &[(1, fork(7, 8, 7)), (1, fork(7, 9, 7))]);
    assert_eq!(lives.living(), [(7, 7), (7, 8), (7, 9)]);
    assert!(lives.gone(8, 5).is_empty());
    // Told after all, and complete.
    let story = [
        (3, Record::Exit { pid: 7, tid: 8 }),
        (3, read(8, 0, 1)),
        (3, read(8, 1, 2)),
    ];
    insta::assert_snapshot!(tell(&mut lives, &story), @"3 7/8 LwpExit Some(3)");
    lives.gone(9, 6);
    insta::assert_snapshot!(show(lives.overdue(6 + PATIENCE)), @"6 7/9 LwpExit None incomplete");
}
