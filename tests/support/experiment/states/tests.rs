use super::*;

/// A workload of one thread that slept for three of its four seconds, and what kcollect says of
/// it.
fn slept() -> (States, Truth) {
    let mut truth = Truth {
        workload: "sleeper".into(),
        pid: Pid(7),
        end_ns: 4_000_000_000,
        user_ns: 1_000_000_000,
        threads: 1,
        tracked_s: 4.0,
        ..Truth::default()
    };
    truth.states_s[Microstate::User as usize] = 1.0;
    truth.states_s[Microstate::Sleep as usize] = 3.0;
    let row = ProcessTimes {
        pid: Pid(7),
        name: "sleeper".into(),
        threads: 1,
        ticks: 0,
        tracked_s: 4.0,
        states_s: truth.states_s,
        detail_s: None,
        waited_s: None,
    };
    let account = States {
        states: Vec::new(),
        interval_us: 997.0,
        elapsed_s: 4.0,
        processes: vec![row],
    };
    (account, truth)
}

fn busy(ticks: u64) -> RunSummary {
    let text = format!(
        r#"{{"interval_us": 997, "elapsed_s": 4, "ticks": 4012, "losses": {{}}, "cpus":
        [{{"cpu": 0, "recorded_ns": 4e9, "user": {ticks}, "kernel": 0, "idle": {}, "lost": 0}}]}}"#,
        4012 - ticks
    );
    RunSummary::parse(&text).unwrap()
}

#[test]
fn agreement_passes_and_start_up_may_be_in_any_state() {
    let (mut account, truth) = slept();
    account.agree(&truth).unwrap();
    account.conserve(&BTreeSet::from([Pid(7)])).unwrap();
    account.busy_time(&busy(1003)).unwrap();
    let row = &mut account.processes[0];
    row.tracked_s += 0.01;
    row.states_s[Microstate::Sleep as usize] += 0.04;
    row.states_s[Microstate::DataFault as usize] += 0.01;
    account.agree(&truth).unwrap();
}

#[test]
fn the_last_wait_may_be_long_and_nothing_else() {
    let (mut account, truth) = slept();
    let row = &mut account.processes[0];
    row.tracked_s += 0.1;
    row.states_s[Microstate::WaitCpu as usize] += 0.1;
    account.agree(&truth).unwrap();
    let row = &mut account.processes[0];
    row.states_s[Microstate::WaitCpu as usize] -= 0.1;
    row.states_s[Microstate::Sleep as usize] += 0.1;
    assert!(account.agree(&truth).is_err());
}

/// Each of these is one thing wrong, and the message names it.
#[test]
fn wrong_accounts_are_named() {
    type Spoil = fn(&mut ProcessTimes);
    let wrongs: [(Spoil, &str); 5] = [
        (|row| row.states_s[7] -= 0.05, "SLEEP"),
        (|row| row.states_s[6] += 0.05, "USER_LOCK"),
        (|row| row.states_s[0] += 0.01, "on CPU"),
        (|row| row.threads = 2, "threads"),
        (|row| row.tracked_s += 0.06, "lived"),
    ];
    for (spoil, name) in wrongs {
        let (mut account, truth) = slept();
        spoil(&mut account.processes[0]);
        let error = account.agree(&truth).unwrap_err().root_cause().to_string();
        assert!(error.contains(name), "{error}");
    }
}

#[test]
fn parts_are_judged_where_they_are_recorded() {
    let (mut account, mut truth) = slept();
    let residents = BTreeSet::from([Pid(7)]);
    let row = &mut account.processes[0];
    row.states_s = [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 2.0, 0.0];
    truth.states_s = row.states_s;
    truth.throttled_s = 1.5;
    let parts = Detail {
        block_io: 1.0,
        preempted: 2.0,
        throttled: 1.45,
        stolen: 0.5,
    };
    row.detail_s = Some(parts.clone());
    account.throttled(&truth, 0).unwrap();
    account.conserve(&residents).unwrap();

    for (throttled, alone, in_company) in [(1.4, false, false), (1.6, false, true)] {
        account.processes[0].detail_s = Some(Detail {
            throttled,
            ..parts.clone()
        });
        assert_eq!(account.throttled(&truth, 0).is_ok(), alone);
        assert_eq!(account.throttled(&truth, 1).is_ok(), in_company);
    }
    for wrong in [
        Detail {
            block_io: 1.1,
            ..parts.clone()
        },
        Detail {
            preempted: 2.1,
            ..parts.clone()
        },
        Detail {
            stolen: 2.1,
            ..parts
        },
    ] {
        account.processes[0].detail_s = Some(wrong);
        assert!(account.conserve(&residents).is_err());
    }
}

#[test]
fn user_mode_is_compared_as_two_samples() {
    let (mut account, truth) = slept();
    account.agree_on_user_mode(&truth).unwrap();
    account.processes[0].states_s = [0.5, 0.5, 0.0, 0.0, 0.0, 0.0, 0.0, 3.0, 0.0, 0.0];
    account.agree(&truth).unwrap();
    assert!(account.agree_on_user_mode(&truth).is_err());
}

#[test]
fn a_workload_with_unexplained_time_is_refused() {
    let (account, mut truth) = slept();
    truth.states_s[Microstate::Sleep as usize] = 2.9;
    let error = account.agree(&truth).unwrap_err().to_string();
    assert!(error.contains("explains"), "{error}");
}

#[test]
fn a_program_that_comes_from_the_disk_starts_late() {
    let (mut account, mut truth) = slept();
    let row = &mut account.processes[0];
    row.tracked_s += 0.15;
    row.states_s[Microstate::Sleep as usize] += 0.15;
    assert!(account.agree(&truth).is_err());
    account.processes[0].detail_s = Some(Detail {
        block_io: 0.12,
        preempted: 0.0,
        throttled: 0.0,
        stolen: 0.0,
    });
    account.agree(&truth).unwrap();
    // Not all that a file system waits for is block I/O.
    account.processes[0].detail_s = None;
    truth.before_s = 0.12;
    account.agree(&truth).unwrap();
}

/// Half of it while the workload computed, half in a call that would block.
#[test]
fn stolen_time_is_a_wait_for_a_cpu() {
    let (mut account, mut truth) = slept();
    truth.states_s[Microstate::User as usize] -= 0.1;
    truth.user_ns -= 100_000_000;
    let row = &mut account.processes[0];
    row.states_s[Microstate::User as usize] -= 0.1;
    row.states_s[Microstate::Sleep as usize] -= 0.1;
    row.states_s[Microstate::WaitCpu as usize] += 0.2;
    assert!(account.agree(&truth).is_err());
    truth.stolen_s = 0.2;
    account.agree(&truth).unwrap();
    // It is in no other state.
    let row = &mut account.processes[0];
    row.states_s[Microstate::UserLock as usize] += 0.1;
    row.states_s[Microstate::WaitCpu as usize] -= 0.1;
    assert!(account.agree(&truth).is_err());
}

#[test]
fn time_that_is_missing_is_seen() {
    let residents = BTreeSet::from([Pid(7)]);
    let (account, _) = slept();
    assert!(account.busy_time(&busy(1300)).is_err());
    assert!(account.conserve(&BTreeSet::from([Pid(8)])).is_err());

    let (mut account, _) = slept();
    account.processes[0].states_s[7] -= 2e-6;
    assert!(account.conserve(&residents).is_err());

    let (mut account, _) = slept();
    account.elapsed_s = 4.2;
    assert!(account.conserve(&residents).is_err());

    let (mut account, _) = slept();
    let mut late = account.processes[0].clone();
    late.pid = Pid(8);
    late.states_s = [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 3.9, 0.0, 0.0];
    late.tracked_s = 3.9;
    account.processes.push(late);
    let residents = BTreeSet::from([Pid(7), Pid(8)]);
    assert!(account.conserve(&residents).is_err());
}
