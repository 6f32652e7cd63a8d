//! Processes, with their lives as lines of events.

use std::sync::Arc;

use proptest::prelude::*;
use user_collector::follow::{Follow, FollowRule};
use user_collector::space::{FileIdentity, MappedFile};

use super::*;

fn name(processes: &Processes, pid: Pid) -> Option<&str> {
    std::str::from_utf8(processes.get(pid)?.name.as_deref()?).ok()
}

/// A mapping of a file, at an address of its own.
fn mapping(path: &[u8], index: u64) -> Mapping {
    Mapping {
        start: 0x1000 * index,
        end: 0x1000 * index + 0x1000,
        offset: 0,
        file: Arc::new(MappedFile {
            path: path.into(),
            build_id: Box::default(),
            identity: FileIdentity::default(),
        }),
    }
}

/// A process's life as a line of events: `pid+parent` fork, `pid=name` rename, `pid!name` exec,
/// `pid-` exit, `pid?name` found by the snapshot, `pid:path` mapping;
/// `pid>name` asserts. The time of an event is its position.
fn replay(line: &str) -> Processes {
    let mut processes = Processes::default();
    for (at, event) in line.split_whitespace().enumerate() {
        let at_ns = Nanos(at as u64);
        let mark = event.find(|c: char| !c.is_ascii_digit()).unwrap();
        let (pid, rest) = (event[..mark].parse().unwrap(), &event[mark + 1..]);
        let bytes = rest.as_bytes();
        match &event[mark..=mark] {
            "+" => {
                processes.forked(pid, rest.parse().unwrap(), at_ns);
            }
            "=" => processes.known(pid).renamed(bytes),
            "!" => processes.known(pid).executed(bytes, at_ns, false),
            "-" => processes.known(pid).exited(at_ns),
            "?" => processes.known(pid).found(bytes, None),
            ":" => {
                let process = processes.known(pid);
                process.mapped(bytes, &[0xab]);
                let mapping = mapping(bytes, at as u64);
                process.stacks_mut().space.mapped(mapping, at_ns);
            }
            ">" => assert_eq!(
                name(&processes, pid).unwrap_or("unnamed"),
                rest,
                "in {line}"
            ),
            other => panic!("{other}"),
        }
    }
    processes
}

#[test]
fn a_child_has_its_parents_name_until_it_execs() {
    replay("7?bash 9+7 9>bash 9!true 9>true 9- 9>true 7>bash");
}

#[test]
fn a_reused_number_is_another_process() {
    let processes = replay("7?bash 9+7 9!true 9- 9>true 9+7 9>bash 9!cat 9>cat");
    let instance = ProcessInstance::new(Pid(9), 3);
    assert_eq!(processes.get(Pid(9)).unwrap().instance, instance);
    assert_eq!(processes.instance_of(Pid(9)), instance);
    assert_eq!(
        processes.instance_of(Pid(5)),
        ProcessInstance::unknown(Pid(5))
    );
}

#[test]
fn a_previous_holder_of_a_number_is_kept_until_it_is_evicted() {
    let mut processes = replay("7?bash 9+7 9!true 9- 9+7 9!cat");
    let instance = |number| ProcessInstance::new(Pid(9), number);
    let name = |processes: &Processes, number| {
        let process = processes.instance(instance(number))?;
        process.name.clone()
    };
    let named = |name: &[u8]| Some(Box::from(name));
    assert_eq!(name(&processes, 2), named(b"true"));
    assert_eq!(name(&processes, 3), named(b"cat"));
    assert_eq!(name(&processes, 0), None);
    assert!(!processes.has_its_number(instance(2)));
    assert!(processes.has_its_number(instance(3)));
    processes.evict(Nanos(4), |_| true);
    assert_eq!(name(&processes, 2), named(b"true"));
    // Its experiment is not closed.
    processes.instance_mut(instance(2)).unwrap().tracked = Some(Box::default());
    processes.evict(Nanos(5), |_| true);
    assert_eq!(name(&processes, 2), named(b"true"));
    processes.instance_mut(instance(2)).unwrap().tracked = None;
    processes.evict(Nanos(5), |_| true);
    assert_eq!(
        (name(&processes, 2), name(&processes, 3)),
        (None, named(b"cat"))
    );
}

#[test]
fn a_process_whose_number_is_used_again_has_exited() {
    let processes = replay("7?bash 9+7 9+7");
    let exited_ns = |number| {
        let process = processes.instance(ProcessInstance::new(Pid(9), number));
        process.unwrap().exited_ns()
    };
    assert_eq!((exited_ns(2), exited_ns(3)), (Some(Nanos(2)), None));
    let processes = replay("7?bash 9+7 9- 9+7");
    let first = processes.instance(ProcessInstance::new(Pid(9), 2));
    assert_eq!(first.unwrap().exited_ns(), Some(Nanos(2)));
}

#[test]
fn the_side_band_outranks_the_snapshot_whichever_comes_first() {
    replay("9=new 9?old 9>new");
    replay("9?old 9=new 9>new");
    replay("7?sh 9+7 9?sh-from-proc 9>sh");
}

#[test]
fn exit_before_anything_else_leaves_a_nameless_process() {
    replay("9- 9>unnamed 9?late 9>late");
}

#[test]
fn the_first_mapping_after_an_exec_is_the_program() {
    let program = |line| {
        let processes = replay(line);
        let process = processes.get(Pid(9)).unwrap();
        process.executable.as_ref().unwrap().path.clone()
    };
    let execs = "7?sh 9+7 9:/lib/early.so 9!true 9:/bin/true 9:/lib/ld.so";
    assert_eq!(&*program(execs), b"/bin/true");
    assert_eq!(&*program("7!sh 7:/bin/sh 9+7"), b"/bin/sh");
}

#[test]
fn a_child_has_its_parents_mappings_until_it_execs() {
    let mapped = |line, pid| {
        let processes = replay(line);
        let mappings = processes.mappings().filter(|(of, _)| *of == Pid(pid));
        let paths = mappings.map(|(_, mapping)| String::from_utf8_lossy(&mapping.file.path));
        paths.map(|path| path.into_owned()).collect::<Vec<_>>()
    };
    let line = "7!sh 7:/bin/sh 9+7 7:/lib/late.so 9:/lib/own.so";
    assert_eq!(mapped(line, 9), ["/bin/sh", "/lib/own.so"]);
    assert_eq!(mapped(line, 7), ["/bin/sh", "/lib/late.so"]);
    assert_eq!(mapped("7!sh 7:/bin/sh 9+7 9!true", 9), [""; 0]);
    assert_eq!(
        mapped("7!sh 7:/bin/sh 9+7 9!true 9:/bin/true", 9),
        ["/bin/true"]
    );
    // One that has its number no more has its own mappings still.
    assert_eq!(
        mapped("7!sh 7:/bin/sh 9+7 9+8 9:/lib/own.so", 9),
        ["/lib/own.so", "/bin/sh"]
    );
}

#[test]
fn processes_descend_from_the_load() {
    let mut policy = FollowPolicy::new(FollowRule {
        follow: Follow::On,
        pids: Vec::new(),
        descendants: true,
    });
    policy.add_load(Pid(7));
    let mut processes = replay("1?kcollect 7+1 8+1");
    let executes = |processes: &mut Processes, policy: &mut FollowPolicy, pid| {
        policy.executed(pid, &mut processes.known(pid).follow);
    };
    let descent = |processes: &Processes, pid| processes.get(Pid(pid))?.follow.descent();
    executes(&mut processes, &mut policy, Pid(7));
    assert_eq!(descent(&processes, 7), None);
    processes.forked(Pid(9), Pid(7), Nanos(1));
    executes(&mut processes, &mut policy, Pid(9));
    processes.forked(Pid(10), Pid(9), Nanos(2));
    processes.forked(Pid(11), Pid(8), Nanos(3));
    assert_eq!(descent(&processes, 9).as_deref(), Some("_f1_x1"));
    assert_eq!(descent(&processes, 10).as_deref(), Some("_f1_x1_f1"));
    assert_eq!(descent(&processes, 11), None);
    assert!(processes.may_follow(&policy, Pid(7)));
}

#[test]
fn a_process_lives_until_its_last_thread_exits() {
    let mut processes = replay("9?java");
    let process = processes.get_mut(Pid(9)).unwrap();
    assert!(!process.lost_a_thread(false, Nanos(1)));
    assert!(process.lost_a_thread(true, Nanos(2)) && process.lost_a_thread(false, Nanos(3)));
    assert_eq!(
        (process.leaderless_ns(), process.exited_ns()),
        (Some(Nanos(3)), None)
    );
    // The thread that executes becomes the leading one.
    process.executed(b"java", Nanos(4), false);
    assert!(!process.lost_a_thread(false, Nanos(5)));
    process.exited(Nanos(6));
    assert_eq!(
        (process.leaderless_ns(), process.exited_ns()),
        (None, Some(Nanos(6)))
    );
}

#[test]
fn a_followed_child_is_named_by_the_program_that_it_executes_at_once() {
    let first = |exec_ns, has_experiment| {
        let mut processes = replay("7?bash");
        let child = processes.forked(Pid(9), Pid(7), Nanos(1));
        child.tracked = Some(Box::new(TrackedProcess {
            forked_ns: Some(Nanos(1)),
            first: Some(FirstRecord {
                at_ns: Nanos(2),
                name: b"bash".into(),
                descent: None,
            }),
            ..TrackedProcess::default()
        }));
        assert!(child.may_execute(Nanos(2)));
        child.executed(b"true", exec_ns, has_experiment);
        assert!(!child.may_execute(exec_ns));
        let tracked = child.tracked.take().unwrap();
        String::from_utf8(tracked.first.unwrap().name).unwrap()
    };
    assert_eq!(first(Nanos(3), false), "true");
    assert_eq!(first(Nanos(3), true), "bash");
    assert_eq!(first(Nanos::from_secs(1), false), "bash");
}

#[test]
fn the_long_gone_are_forgotten_but_not_leaderless_ones() {
    let mut processes = replay("7?sh 8+7 9+7 8- 9-");
    let evicted = processes.evict(Nanos(100), |pid| pid == Pid(9));
    assert_eq!(
        evicted
            .iter()
            .map(|process| process.pid())
            .collect::<Vec<_>>(),
        [Pid(8)]
    );
    assert!(processes.get(Pid(8)).is_none());
    assert!(processes.get(Pid(9)).is_some());
    assert!(processes.get(Pid(7)).is_some());
    assert_eq!(processes.iter().count(), 2);
}

#[test]
fn relatives_are_the_nearest_parents() {
    let processes = replay("1?init 2+1 3+2 4+3 5+4");
    assert_eq!(processes.relatives(Pid(5)), [4, 3, 2].map(Pid));
    assert_eq!(processes.relatives(Pid(2)), [Pid(1)]);
    assert!(processes.relatives(Pid(1)).is_empty());
}

proptest! {
    /// Whatever happens, a pid's name is what was said of it last, by rank.
    #[test]
    fn a_rename_always_shows(events in prop::collection::vec((0_u32..5, 0_u8..6), 0..100)) {
        let mut processes = Processes::default();
        for (at, (pid, kind)) in events.into_iter().enumerate() {
            let (at_ns, pid) = (Nanos(at as u64), Pid(pid));
            match kind {
                0 => {
                    processes.forked(pid, Pid((pid.0 + 1) % 5), at_ns);
                }
                1 => processes.known(pid).exited(at_ns),
                2 => processes.known(pid).found(b"found", None),
                3 => processes.known(pid).mapped(b"/x", &[]),
                said => {
                    let name_now = at.to_string();
                    match said {
                        4 => processes.known(pid).renamed(name_now.as_bytes()),
                        _ => processes.known(pid).executed(name_now.as_bytes(), at_ns, false),
                    }
                    prop_assert_eq!(name(&processes, pid), Some(&*name_now));
                }
            }
        }
    }
}
