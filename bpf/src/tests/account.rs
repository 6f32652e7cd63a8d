//! Tests of `c/account.h`, compiled natively, as drawings of time.
//!
//! A drawing is a line of letters, one for each unit of time: `U` on a CPU, `H` there too, but the
//! hypervisor runs something else, `S` asleep, `L` at a lock, `W` waiting for a CPU from a wake-up
//! on; `P` too, because it was preempted, `T` because a quota was used up; `I` asleep for block
//! I/O. It is played to the account as the events that a scheduler would see: a wake-up shows only
//! in the sum of waits that the scheduler keeps, stolen time only in the CPU's sum.

use bpf_abi::layout::{Cause, Detail, LOCK_CAUSES, State};
use proptest::prelude::*;

use super::native::{
    account as Account, native_close, native_conserves_time, native_missed_switch_in,
    native_switch_in, native_switch_out, native_track, off_cpu as OffCpu,
};

const ON_CPU: u32 = State::User as u32;
const LOCK: u32 = State::UserLock as u32;
const SLEEP: u32 = State::Sleep as u32;
const WAIT: u32 = State::WaitCpu as u32;
const BLOCK_IO: u32 = Detail::BlockIo as u32;
const PREEMPTED: u32 = Detail::Preempted as u32;
const THROTTLED: u32 = Detail::Throttled as u32;
const STOLEN: u32 = Detail::Stolen as u32;
const NO_DETAIL: u32 = Detail::None as u32;

impl Account {
    fn track(now_ns: u64, state: (u32, u32), run_delay: u64) -> Account {
        let mut account = Account::default();
        account.track_again(now_ns, state, run_delay, 0);
        account
    }

    fn track_again(&mut self, now_ns: u64, state: (u32, u32), run_delay: u64, run_time: u64) {
        // SAFETY: a valid `struct account` for the call, which keeps no pointer.
        unsafe { native_track(self, now_ns, state.0, state.1, run_delay, run_time) };
    }

    fn switch_out(&mut self, now_ns: u64, state: (u32, u32), run_delay: u64, run_time: u64) {
        self.switch_out_of_stolen(now_ns, state, run_delay, run_time, 0);
    }

    fn switch_out_of_stolen(
        &mut self,
        now_ns: u64,
        state: (u32, u32),
        run_delay: u64,
        run_time: u64,
        stolen: u64,
    ) {
        // SAFETY: as in `track`.
        unsafe { native_switch_out(self, now_ns, state.0, state.1, run_delay, run_time, stolen) };
    }

    fn conserves_time(&self) -> bool {
        // SAFETY: as in `track`.
        unsafe { native_conserves_time(self) != 0 }
    }

    fn switch_in(&mut self, now_ns: u64, run_delay: u64, run_time: u64) -> OffCpu {
        // SAFETY: as in `track`.
        unsafe { native_switch_in(self, now_ns, run_delay, run_time) }
    }

    /// Does what the programs do at a switch-out when the switch-in was not seen.
    fn missed_switch_in(&mut self, arrival: u64, run_delay: u64) -> Option<OffCpu> {
        // SAFETY: as in `track`.
        (self.state != ON_CPU).then(|| unsafe { native_missed_switch_in(self, arrival, run_delay) })
    }

    /// Closes the account of a thread that exists on.
    fn close(&mut self, now_ns: u64, run_delay: u64, stolen: u64) -> OffCpu {
        self.exit(now_ns, run_delay, u64::MAX, stolen)
    }

    fn exit(&mut self, now_ns: u64, run_delay: u64, run_time: u64, stolen: u64) -> OffCpu {
        // SAFETY: as in `track`.
        unsafe { native_close(self, now_ns, run_delay, run_time, stolen) }
    }
}

/// State and detail of a thread that leaves its CPU.
fn state(letter: u8) -> (u32, u32) {
    match letter {
        b'U' | b'H' => (ON_CPU, NO_DETAIL),
        b'L' => (LOCK, NO_DETAIL),
        b'S' => (SLEEP, NO_DETAIL),
        b'I' => (SLEEP, BLOCK_IO),
        b'W' => (WAIT, NO_DETAIL),
        b'P' => (WAIT, PREEMPTED),
        b'T' => (WAIT, THROTTLED),
        other => panic!("{}", char::from(other)),
    }
}

/// Plays a drawing and returns the account, closed, and the off-CPU intervals. Events under a `-`
/// of `seen` are not seen.
fn play_seen(drawing: &str, seen: &str) -> (Account, Vec<OffCpu>) {
    let letters = drawing.as_bytes();
    let mut account = Account::track(0, state(letters[0]), 0);
    let mut off_cpu = Vec::new();
    let waits = |letter: u8| u64::from(b"WPT".contains(&letter));
    let on_cpu = |letter: u8| b"UH".contains(&letter);
    let mut delay = waits(letters[0]);
    let mut run_time = u64::from(letters[0] == b'U');
    let mut stolen = u64::from(letters[0] == b'H');
    let mut arrival = 0;
    for (now, pair) in letters.windows(2).enumerate() {
        let now = now + 1;
        let hidden = seen.as_bytes().get(now) == Some(&b'-');
        match (on_cpu(pair[0]), on_cpu(pair[1])) {
            (true, false) if !hidden => {
                off_cpu.extend(account.missed_switch_in(arrival, delay));
                let next = state(pair[1]);
                account.switch_out_of_stolen(now as u64, next, delay, run_time, stolen);
            }
            (false, true) => {
                (arrival, stolen) = (now as u64, 0);
                if !hidden {
                    off_cpu.push(account.switch_in(now as u64, delay, run_time));
                }
            }
            // On a CPU all the time, or asleep and then runnable: no event.
            _ => {}
        }
        delay += waits(pair[1]);
        run_time += u64::from(pair[1] == b'U');
        stolen += u64::from(pair[1] == b'H');
    }
    account.close(letters.len() as u64, delay, stolen);
    (account, off_cpu)
}

fn play(drawing: &str) -> (Account, Vec<OffCpu>) {
    play_seen(drawing, "")
}

fn count(drawing: &str, letter: char) -> u64 {
    drawing.chars().filter(|here| *here == letter).count() as u64
}

fn conserves(drawing: &str) {
    let (account, _) = play(drawing);
    let sums = [
        ("U", ON_CPU),
        ("L", LOCK),
        ("SI", SLEEP),
        ("WPTH", WAIT),
        ("I", BLOCK_IO),
        ("P", PREEMPTED),
        ("T", THROTTLED),
        ("H", STOLEN),
    ];
    for (letters, state) in sums {
        let drawn: u64 = letters.chars().map(|letter| count(drawing, letter)).sum();
        assert_eq!(account.ns[state as usize], drawn, "{letters} of {drawing}");
    }
    assert!(account.conserves_time());
    assert_eq!(account.tracked_ns, drawing.len() as u64);
    assert_eq!(account.tracking, 0);
}

#[test]
fn each_state_gets_its_time() {
    conserves("UUUUSSSSUUUU");
    conserves("UUSSSSWWUUWWUULLLLLLWUU");
    conserves("SSSSSSSS");
    conserves("WWWWUUUU");
    conserves("UUUUWWWW");
    conserves("UUUUSSSSWW");
}

#[test]
fn a_thread_that_exits_was_on_a_cpu_as_long_as_the_scheduler_says() {
    let mut account = Account::track(0, state(b'U'), 0);
    account.exit(100, 0, 70, 20);
    let times = [ON_CPU, WAIT, STOLEN].map(|slot| account.ns[slot as usize]);
    assert_eq!(times, [70, 30, 20]);
    assert!(account.conserves_time());
    assert_eq!(account.tracked_ns, 100);
}

#[test]
fn stolen_time_is_a_wait_of_the_thread_on_the_cpu() {
    conserves("UUHHUUSSSSHHUUPPUUHH");
    conserves("HHHHHH");
    let (_, off_cpu) = play("UUHHHUSSUU");
    assert_eq!((off_cpu[0].from_ns, off_cpu[0].to_ns), (6, 8));
}

/// The CPU's sum of stolen time may be of more than the thread's time there.
#[test]
fn no_more_is_stolen_than_the_scheduler_misses() {
    let mut account = Account::track(100, state(b'U'), 0);
    account.switch_out_of_stolen(150, state(b'S'), 0, 40, 1000);
    let times = [ON_CPU, WAIT, STOLEN].map(|slot| account.ns[slot as usize]);
    assert_eq!(times, [40, 10, 10]);
    account.switch_in(160, 0, 40);
    account.close(170, 0, 1000);
    let times = [ON_CPU, SLEEP, WAIT, STOLEN].map(|slot| account.ns[slot as usize]);
    assert_eq!(times, [40, 10, 20, 20]);
    assert!(account.conserves_time());
}

#[test]
fn details_are_summed_next_to_their_state() {
    conserves("UUIIIIWWUUPPPUUSSSWWWUUTTTTUU");
    // A wake-up ends the wait for the disk: what follows is a wait for a CPU, and none of a
    // preemption.
    conserves("UUIIWWWW");
    conserves("UUPPPPPP");
}

#[test]
fn an_account_that_was_closed_continues_where_it_stopped() {
    let (mut account, _) = play("UUSSSSWWUU");
    account.track_again(100, state(b'S'), 50, 70);
    account.switch_in(108, 53, 70);
    assert!(account.conserves_time());
    account.close(110, 0, 0);
    assert_eq!(account.tracked_ns, 20);
    assert_eq!(account.ns[..10], [6, 0, 0, 0, 0, 0, 0, 9, 5, 0]);
}

#[test]
fn an_account_copied_while_it_changes_does_not_conserve_time() {
    let mut account = Account::track(0, state(b'U'), 0);
    account.switch_out(5, state(b'S'), 0, 5);
    assert!(account.conserves_time());
    account.since_ns = 9;
    assert!(!account.conserves_time());
}

#[test]
fn a_missed_switch_in_is_accounted_for_at_the_next_switch_out() {
    let (seen, expected) = play("UUSSSSWWUUUSSSSUU");
    let (hidden, found) = play_seen("UUSSSSWWUUUSSSSUU", "        -        ");
    assert_eq!(seen.ns, hidden.ns);
    assert_eq!(found, expected);
}

#[test]
fn a_missed_switch_out_counts_as_sleep() {
    let (account, _) = play_seen("UULLLLWWUUU", "  -        ");
    assert_eq!(account.ns[ON_CPU as usize], 5);
    assert_eq!(account.ns[SLEEP as usize], 4);
    assert_eq!(account.ns[WAIT as usize], 2);
}

#[test]
fn time_on_the_cpu_after_the_threads_work_is_not_the_threads() {
    let mut account = Account::track(100, state(b'U'), 0);
    account.switch_out(150, state(b'S'), 0, 40);
    let off_cpu = account.switch_in(200, 0, 40);
    assert_eq!((off_cpu.from_ns, off_cpu.to_ns), (140, 200));
    assert_eq!(account.ns[ON_CPU as usize], 40);
    assert_eq!(account.ns[SLEEP as usize], 60);
}

#[test]
fn an_off_cpu_interval_is_split_at_the_wake_up() {
    let (_, off_cpu) = play("UUSSSSWWUU");
    assert_eq!(
        off_cpu,
        [OffCpu {
            from_ns: 2,
            woken_ns: 6,
            to_ns: 8,
            state: SLEEP,
            detail: NO_DETAIL,
        }]
    );
    let (_, off_cpu) = play("UUPPPUU");
    assert_eq!(
        off_cpu,
        [OffCpu {
            from_ns: 2,
            woken_ns: 2,
            to_ns: 5,
            state: WAIT,
            detail: PREEMPTED,
        }]
    );
}

/// Plays waits of ten units each, from 10 units on a CPU to the next. Each is a state, its own
/// cause, and whether it continues the one before.
fn play_waits(waits: &[(u8, Cause, bool)]) -> Account {
    let mut account = Account::track(0, state(b'U'), 0);
    for (index, (letter, cause, continues)) in waits.iter().enumerate() {
        let (at, ran) = (20 * index as u64 + 10, 10 * (index as u64 + 1));
        account.switch_out(at, state(*letter), 0, ran);
        account.cause = *cause as u32;
        account.continues = (*continues).into();
        account.switch_in(at + 10, 0, ran);
        assert!(account.conserves_time());
    }
    account
}

#[test]
fn a_wait_counts_under_its_cause_and_locks_on_their_own() {
    let account = play_waits(&[
        (b'S', Cause::Device, false),
        (b'L', Cause::Lock, false),
        (b'S', Cause::Device, false),
    ]);
    assert_eq!(account.cause_ns[Cause::Device as usize], 20);
    assert_eq!(account.cause_ns[LOCK_CAUSES + Cause::Lock as usize], 10);
    assert_eq!(account.cause_ns[Cause::Lock as usize], 0);
}

#[test]
fn waits_that_continue_have_the_cause_of_the_last_one() {
    let timer = (b'L', Cause::Timer, true);
    let account = play_waits(&[timer, timer, (b'L', Cause::Lock, false)]);
    assert_eq!(account.cause_ns[LOCK_CAUSES + Cause::Lock as usize], 30);
    // One that the thread did not continue has its own.
    let mut account = play_waits(&[timer, timer]);
    account.close(40, 0, 0);
    assert_eq!(account.cause_ns[LOCK_CAUSES + Cause::Timer as usize], 20);
    assert!(account.conserves_time());
    // So has one in another state.
    let account = play_waits(&[timer, (b'S', Cause::NewWork, false)]);
    assert_eq!(account.cause_ns[LOCK_CAUSES + Cause::Timer as usize], 10);
    assert_eq!(account.cause_ns[Cause::NewWork as usize], 10);
}

#[test]
fn a_wait_that_has_not_ended_says_so_unless_its_cause_is_known() {
    for (own, counted) in [
        (Cause::Undecided, Cause::NotEnded),
        (Cause::Child, Cause::Child),
    ] {
        let mut account = Account::track(0, state(b'U'), 0);
        account.switch_out(10, state(b'S'), 0, 10);
        account.cause = own as u32;
        account.close(50, 0, 0);
        assert_eq!(account.cause_ns[counted as usize], 40);
        assert_eq!(account.cause, own as u32, "it may end later");
        assert!(account.conserves_time());
    }
}

#[test]
fn clocks_that_differ_a_little_make_no_negative_time() {
    let mut account = Account::track(1000, state(b'U'), 0);
    account.switch_out(1010, state(b'S'), 0, 10);
    let off_cpu = account.switch_in(1008, 0, 10);
    assert_eq!((off_cpu.from_ns, off_cpu.to_ns), (1010, 1010));
    account.switch_out(1005, state(b'S'), 0, 11);
    account.close(1020, 0, 0);
    assert_eq!(account.ns[..10].iter().sum::<u64>(), 20);
    assert_eq!(account.tracked_ns, 20);
}

proptest! {
    /// Any sequence of states conserves time.
    #[test]
    fn any_drawing_conserves(
        spans in proptest::collection::vec(
            (0_u8..3, 1_usize..9, 0_usize..4, 1_usize..9, 0_usize..3), 1..60
        )
    ) {
        let drawing: String = spans.into_iter().map(|(kind, blocked, waiting, running, stolen)| {
            let blocked = match kind {
                0 => "S".repeat(blocked),
                1 => "L".repeat(blocked),
                _ => "W".repeat(blocked),
            };
            blocked + &"W".repeat(waiting) + &"H".repeat(stolen) + &"U".repeat(running)
        }).collect();
        conserves(&drawing);
    }

    /// Whatever times and sums a scheduler has, the states add up to the tracked time.
    #[test]
    fn any_events_conserve(
        events in proptest::collection::vec((0_u64..1000, 0_u64..2000, 3_u32..10, 10_u32..16), 1..100)
    ) {
        let (mut account, mut now, mut on_cpu) = (Account::track(5000, state(b'U'), 0), 5000_u64, true);
        for (step, delay, state, detail) in events {
            // Now and then a clock that lags.
            now = (now + step).saturating_sub(10);
            if on_cpu {
                    account.missed_switch_in(now.saturating_sub(3), delay);
                    let stolen = delay / 3;
                    account.switch_out_of_stolen(now, (state, detail), delay, delay / 2, stolen);
                } else { account.switch_in(now, delay, delay); }
            // Now and then an event that is not seen.
            if step % 7 != 0 {
                on_cpu = !on_cpu;
            }
        }
        prop_assert!(account.conserves_time());
        account.close(now, 0, 7);
        prop_assert_eq!(account.ns[..10].iter().sum::<u64>(), account.tracked_ns);
        // The time of a detail is part of its state.
        let [wait, preempted, throttled, stolen] =
            [WAIT, PREEMPTED, THROTTLED, STOLEN].map(|slot| account.ns[slot as usize]);
        let off_cpu = account.tracked_ns - account.ns[ON_CPU as usize];
        prop_assert!(preempted + throttled + stolen <= off_cpu);
        prop_assert!(wait <= account.tracked_ns);
    }
}
