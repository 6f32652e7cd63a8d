//! Profiles from a seed: processes with threads that work, sleep and wait.

use analysis::view::{PageFunction, PageProcess, PageThread, PageTick, Payload};
use experiment_format::cause::Cause;
use experiment_format::ids::{Pid, Tid};
use experiment_format::microstate::Microstate;
use experiment_format::units::Nanos;

/// Numbers that look random and are the same each time (splitmix64).
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Dice {
        Dice(seed)
    }

    /// Returns a number below `limit`.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }

    fn one<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len() as u64) as usize]
    }
}

const INTERVAL_US: u32 = 997;
const INTERVAL: u64 = INTERVAL_US as u64 * 1000;

/// The number of systemd units that the processes belong to.
const UNITS: u32 = 5;

const PROGRAMS: [&str; 12] = [
    "postgres",
    "nginx",
    "kworker/u8:3",
    "systemd-journald",
    "java",
    "python3",
    "rustc",
    "containerd-shim",
    "sshd",
    "a-name-that-is-much-too-long-for-the-space-it-has",
    "ld",
    "שלום",
];

/// User functions and the callees of each, as indices into this list.
const USER: [(&str, &[usize]); 12] = [
    ("_start", &[1]),
    ("main", &[2, 3, 9]),
    ("serve", &[3, 4, 5]),
    ("parse_request", &[5, 6, 8]),
    (
        "std::vector<std::pair<std::basic_string<char>, std::shared_ptr<Connection>>>::emplace_back",
        &[6],
    ),
    ("serde_json::de::Deserializer<R>::parse_value", &[6, 7]),
    ("malloc", &[7]),
    ("_int_malloc", &[]),
    ("memcpy", &[]),
    ("compress", &[8, 10]),
    ("deflate_fast", &[8]),
    ("read", &[]),
];
const KERNEL: [(&str, &[usize]); 10] = [
    ("entry_SYSCALL_64_after_hwframe", &[1]),
    ("do_syscall_64", &[2, 3, 4]),
    ("vfs_read", &[5, 6]),
    ("futex_wait", &[7]),
    ("do_epoll_wait", &[7]),
    ("ext4_file_read_iter", &[6, 7]),
    ("filemap_fault", &[7]),
    ("schedule", &[8]),
    ("__schedule", &[]),
    ("copy_page", &[]),
];

fn grow(dice: &mut Dice, graph: &[(&str, &[usize])], base: usize, stack: &mut Vec<u32>) {
    let mut at = 0;
    loop {
        stack.push((base + at) as u32);
        if graph[at].1.is_empty() || dice.below(9) == 0 {
            return;
        }
        at = *dice.one(graph[at].1);
    }
}

/// Returns a profile of `processes` and `threads` in all, with about `rows` rows of ticks,
/// `seconds` long.
pub(crate) fn profile(
    seed: u64,
    processes: u32,
    threads: u32,
    rows: usize,
    seconds: u64,
) -> Payload {
    let mut dice = Dice::new(seed);
    let function = |name: &str, kernel: bool| PageFunction {
        name: name.into(),
        object: if kernel { "vmlinux" } else { "server" }.into(),
        kernel,
        jit: name == "parse_request",
    };
    let mut payload = Payload {
        title: "ktest.1.er".to_owned(),
        start_unix_ms: 1_767_225_600_000,
        duration_ns: Nanos(seconds * 1_000_000_000),
        interval_us: INTERVAL_US,
        machine: "example · Linux 6.18 · 8 CPUs".to_owned(),
        groupings: vec!["unit", "user"],
        losses: "stacks cut after 127 frames: 3\nrecords without space in a ring: 0".to_owned(),
        functions: USER
            .iter()
            .map(|(name, _)| function(name, false))
            .chain(KERNEL.iter().map(|(name, _)| function(name, true)))
            .collect(),
        ..Payload::default()
    };
    for index in 0..processes {
        let name = PROGRAMS[index as usize % PROGRAMS.len()];
        payload.processes.push(PageProcess {
            pid: Pid(400 + 7 * index),
            name: name.into(),
            lineage: format!("systemd 1 → {name}").into(),
            held_up: Vec::new(),
            groups: vec![format!("unit{}.service", index % UNITS).into(), "0".into()],
        });
    }
    let stacks: Vec<[u32; 3]> = (0..300)
        .map(|_| {
            let mut frames = Vec::new();
            grow(&mut dice, &USER, 0, &mut frames);
            let user = payload.stacks.stack(frames.iter().copied());
            let mut called = frames.clone();
            grow(&mut dice, &KERNEL, USER.len(), &mut called);
            let system = payload.stacks.stack(called.iter().copied());
            frames.extend([12, 13, 15, 19, 20]);
            [user, system, payload.stacks.stack(frames)]
        })
        .collect();
    let mean = payload.duration_ns / INTERVAL * u64::from(threads) / (rows as u64 + 1);
    for index in 0..threads {
        // Many processes of one thread, some of many.
        let process = if index < processes {
            index
        } else {
            dice.below(u64::from(processes)) as u32 / 4
        };
        let pid = payload.processes[process as usize].pid;
        payload.threads.push(PageThread {
            process,
            tid: if index < processes {
                pid.leader()
            } else {
                Tid(100_000 + index)
            },
            name: if index < processes {
                Vec::new()
            } else {
                format!("worker-{index}").into()
            },
            exact_ns: None,
        });
        live(&mut dice, &mut payload, index, &stacks, mean.0);
    }
    // The order is not specified.
    for at in (1..payload.ticks.len()).rev() {
        let other = dice.below(at as u64 + 1) as usize;
        payload.ticks.swap(at, other);
    }
    payload
}

/// Returns the time that some ticks stand for, microseconds. It is another one than their length,
/// and not the same for each of them.
fn exact(ticks: u64) -> u64 {
    ticks * INTERVAL / 1000 * 9 / 7 + ticks % 5
}

/// Adds the ticks of one thread from its start to its exit: runs of work, of sleep that ends in a
/// wait for a CPU, of faults.
fn live(dice: &mut Dice, payload: &mut Payload, thread: u32, stacks: &[[u32; 3]], mean: u64) {
    let busy = dice.below(1000) * dice.below(1000) * dice.below(1000) / 1_000_000;
    let mut now = if dice.below(4) == 0 {
        dice.below(payload.duration_ns.0)
    } else {
        0
    };
    loop {
        let [user, system, asleep] = *dice.one(stacks);
        let cpu = if dice.below(50) == 0 {
            PageTick::NO_CPU
        } else {
            dice.below(8) as u16
        };
        let (state, stack, ticks) = match dice.below(1000) {
            roll if roll < busy => match dice.below(10) {
                0..6 => (Microstate::User, user, 1),
                6..9 => (Microstate::System, system, 1),
                _ => (Microstate::Trap, system, 1),
            },
            roll if roll < busy + 60 => {
                let states = [
                    Microstate::UserLock,
                    Microstate::UserLock,
                    Microstate::DataFault,
                    Microstate::TextFault,
                    Microstate::KernelFault,
                    Microstate::Stopped,
                ];
                (*dice.one(&states), asleep, 1 + dice.below(3 * mean))
            }
            _ => (Microstate::Sleep, asleep, 1 + dice.below(4 * mean)),
        };
        now += ticks * INTERVAL;
        let waited = if ticks > 1 { dice.below(3) } else { 0 };
        let end = now + waited * INTERVAL;
        if end > payload.duration_ns.0 {
            return;
        }
        let runs = matches!(
            state,
            Microstate::User | Microstate::System | Microstate::Trap | Microstate::Stopped
        );
        let cause = Cause::ALL[(end / INTERVAL) as usize % Cause::COUNT];
        let row = PageTick {
            time_ns: Nanos(end),
            thread,
            cpu,
            stack,
            state,
            ticks: ticks as u32,
            micros: exact(ticks),
            cause: (!runs).then_some(cause),
            waker: Tid(if runs { 0 } else { 100_000 + thread / 2 }),
        };
        payload.ticks.push(row);
        // In one array with the sleep that it ends.
        if waited > 0 {
            let ticks = waited as u32;
            payload.ticks.push(PageTick {
                state: Microstate::WaitCpu,
                ticks,
                micros: exact(waited),
                cause: None,
                waker: Tid(0),
                ..row
            });
        }
        now = end + dice.below(2) * dice.below(INTERVAL);
    }
}
