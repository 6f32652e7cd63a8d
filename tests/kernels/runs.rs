//! The recordings in a virtual machine, and the names that host and guest share.

use std::collections::BTreeMap;
use std::time::Duration;

use experiment_format::ids::Pid;
use serde::{Deserialize, Serialize};

/// This program, in a machine: where the kernel looks for the first one.
pub(crate) const SELF: &str = "/init";
/// kcollect, in a machine.
pub(crate) const KCOLLECT: &str = "/kcollect";
/// Where the workloads are, in a machine.
pub(crate) const WORKLOADS: &str = "/workloads";
/// Where modules of the kernel are, in the order in which they are loaded.
pub(crate) const MODULES: &str = "/modules";
/// The word that makes this program the load of a recording.
pub(crate) const LOAD: &str = "load";
/// An environment variable with the names of the recordings that are made, separated by commas; all
/// if it is not set. The kernel hands it from its command line to the first process.
pub(crate) const CHOSEN_RUNS: &str = "RUNS";
/// An environment variable with the features that kcollect does without, likewise.
pub(crate) const WITHOUT: &str = "KCOLLECT_WITHOUT";
/// The last file of the results that is written.
pub(crate) const DONE: &str = "done";
/// The program whose events are counted, in a machine; how many pages it touches on one of two
/// paths, and how many calls it makes: on the other three times as many.
pub(crate) const OVERFLOWING: &str = "/overflowing";
pub(crate) const PAGES: &str = "200";
pub(crate) const CALLS: &str = "150";
/// For how long each workload works, seconds.
pub(crate) const SECONDS: &str = "0.6";

/// The recording of the workloads that report their states.
pub(crate) const STATES: &str = "states";
/// The recording of some of them, scheduled by a program of sched_ext.
pub(crate) const SCHED_EXT: &str = "sched_ext";
/// The directory that a kernel with sched_ext has.
pub(crate) const SCHED_EXT_DIRECTORY: &str = "/sys/kernel/sched_ext";
/// The scheduler, in a machine.
pub(crate) const SCHEDULER: &str = "/scheduler.bpf.o";
/// The recording that is several experiments.
pub(crate) const ROTATED: &str = "rotated";
/// The recording of programs that are followed.
pub(crate) const FOLLOWED: &str = "followed";
/// The recording of events that are counted.
pub(crate) const COUNTED: &str = "counted";
/// The recording of waits for locks that are traced.
pub(crate) const TRACED: &str = "traced";
/// The program that waits for locks, in a machine.
pub(crate) const LOCKED: &str = "/locked";
/// The recording of calls that do I/O.
pub(crate) const IO: &str = "io";
/// The program that makes them, in a machine.
pub(crate) const IO_CALLS: &str = "/io_calls";
/// The recording of a program that runs already, with a million descriptors.
pub(crate) const DESCRIPTORS: &str = "descriptors";
/// The recording of operations of `io_uring`.
pub(crate) const RING: &str = "ring";
/// The recordings of those on registered files, and of those for whose completions there is no
/// space.
pub(crate) const RING_REGISTERED: &str = "ring_registered";
pub(crate) const RING_OVERFLOW: &str = "ring_overflow";
/// The program that hands them over, in a machine.
pub(crate) const RING_IO: &str = "/ring_io";
/// The recording of blocks that are allocated.
pub(crate) const ALLOCATED: &str = "allocated";
/// The program that allocates them, in a machine.
pub(crate) const ALLOCATIONS: &str = "/allocations";
/// The recording of blocks that a program samples itself.
pub(crate) const OWN_SAMPLES: &str = "own_samples";
/// The program that does, in a machine.
pub(crate) const SAMPLED: &str = "/sampled";
/// The recording of what moves between two CPUs.
pub(crate) const MOVING: &str = "moving";

/// The recording of a machine of more CPUs.
pub(crate) const MANY_CPUS: &str = "many_cpus";
/// The recording of the same machine with nothing to do.
pub(crate) const IDLE_CPUS: &str = "idle_cpus";

/// The recordings on a kernel with PREEMPT_RT.
pub(crate) const REAL_TIME: [&str; 7] = [STATES, SCHED_EXT, FOLLOWED, TRACED, IO, RING, MOVING];

/// A recording.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    /// The name of its directory in the results.
    pub(crate) name: &'static str,
    /// kcollect's arguments, without the load.
    pub(crate) args: &'static [&'static str],
    /// The load.
    pub(crate) load: &'static [&'static str],
    /// A program that is started before, and ended after it. It prints a line once it is ready.
    pub(crate) alongside: &'static [&'static str],
}

/// The recordings on a machine of one CPU, on one of two, and on one of more.
pub(crate) const RUNS: [&[Run]; 3] = [
    &[
        Run {
            name: STATES,
            args: &["-p", "hi", "-x", "off", "-F", "off", "-W", "on", "--"],
            load: &[SELF, LOAD],
            alongside: &[],
        },
        Run {
            name: SCHED_EXT,
            args: &["-p", "hi", "-x", "off", "-F", "off", "--"],
            load: &[SELF, LOAD, SCHED_EXT],
            alongside: &[],
        },
        Run {
            name: ROTATED,
            args: &["-p", "on", "-x", "off", "-F", "off", "--rotate", "1s", "--"],
            load: &["/workloads/spin_user", "3.5", "0"],
            alongside: &[],
        },
        Run {
            name: FOLLOWED,
            args: &["-p", "hi", "-F", "on", "--"],
            load: &["/bin/sh", "-eu", "-c", FOLLOWED_SCRIPT],
            alongside: &[],
        },
        Run {
            name: COUNTED,
            args: &[
                "-p",
                "hi",
                "-x",
                "off",
                "-F",
                "=overflowing",
                "-h",
                "page-faults,1,syscalls:sys_enter_getppid,1",
                "--",
            ],
            load: &[OVERFLOWING, PAGES, "0", CALLS, "0"],
            alongside: &[],
        },
        Run {
            name: TRACED,
            args: &["-p", "on", "-x", "off", "-s", "all", "--"],
            load: &[LOCKED, "1"],
            alongside: &[],
        },
        Run {
            name: IO,
            args: &["-p", "on", "-x", "off", "-i", "on", "--descendants", "--"],
            load: &[IO_CALLS, "/tmp", "10", "no sockets"],
            alongside: &[],
        },
        Run {
            name: RING,
            args: &["-p", "on", "-x", "off", "-i", "on", "--"],
            load: &[RING_IO, "/tmp", "10"],
            alongside: &[],
        },
        Run {
            name: RING_REGISTERED,
            args: &["-p", "on", "-x", "off", "-i", "on", "--"],
            load: &[RING_IO, "registered", "/tmp"],
            alongside: &[],
        },
        Run {
            name: RING_OVERFLOW,
            args: &["-p", "on", "-x", "off", "-i", "on", "--"],
            load: &[RING_IO, "overflow", "/tmp"],
            alongside: &[],
        },
        Run {
            name: ALLOCATED,
            args: &["-p", "on", "-x", "off", "-H", "all", "--"],
            load: &[ALLOCATIONS, "100"],
            alongside: &[],
        },
        Run {
            name: OWN_SAMPLES,
            args: &["-p", "on", "-x", "off", "-H", "on", "--"],
            load: &[SAMPLED, "400"],
            alongside: &[],
        },
    ],
    &[
        Run {
            name: MOVING,
            args: &["-p", "on", "-x", "off", "-F", "on", "-W", "on", "--"],
            load: &["/bin/sh", "-eu", "-c", MOVING_SCRIPT],
            alongside: &[],
        },
        Run {
            name: DESCRIPTORS,
            args: &[
                "-p",
                "on",
                "-x",
                "off",
                "-i",
                "on",
                "-F",
                "=io_calls",
                "-t",
                "3",
            ],
            load: &[],
            alongside: &[IO_CALLS, "wait", "1000", "1000000"],
        },
    ],
    &[
        Run {
            name: MANY_CPUS,
            args: &["-p", "on", "-x", "off", "-F", "on", "--"],
            load: &["/bin/sh", "-eu", "-c", MANY_CPUS_SCRIPT],
            alongside: &[],
        },
        Run {
            name: IDLE_CPUS,
            args: &["-p", "on", "-F", "on", "-A", "off", "--json", "-t", "3"],
            load: &[],
            alongside: &[],
        },
    ],
];

/// Maximum time that a recording takes, by the clock of the machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(150);

/// A script with recursion of an interpreter, calls of C, and programs that exit at once.
const FOLLOWED_SCRIPT: &str = r#"
/proctorture deep:100,400
if [ -x /python3 ]; then /python3 -I -S -c '
import time
def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)
end = time.process_time() + 0.4
while time.process_time() < end:
    fib(12)
'; fi
n=0
while [ $n -lt 40 ]; do /bin/true; n=$((n + 1)); done
"#;

/// A script with threads that migrate, start, wait for locks and for CPUs that others have.
const MOVING_SCRIPT: &str = r#"
/workloads/migrate 1 0 &
/workloads/thread_starts 1 1 fifo &
/workloads/state_lock 1 0 mutex &
/workloads/state_latency 1 1 &
/proctorture deep:100,200
wait
"#;

/// A script that is busy on all CPUs, half of the time in programs that exit at once.
const MANY_CPUS_SCRIPT: &str = r#"
read -r online < /sys/devices/system/cpu/online
cpus=$((${online#*-} + 1))
busy() {
    n=0
    while [ $n -lt 20000 ]; do n=$((n + 1)); done
    n=0
    while [ $n -lt 5 ]; do /bin/true; n=$((n + 1)); done
}
cpu=0
while [ $cpu -lt $cpus ]; do busy & cpu=$((cpu + 1)); done
wait
"#;

/// A line that the load of [`STATES`] prints in addition to the truths of its workloads.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LoadReport {
    /// The truths that follow are this workload's.
    Turn(String),
    /// The machine cannot run a workload.
    Impossible(String),
    /// The BPF programs that are loaded.
    Programs(Vec<VerifiedProgram>),
}

/// A BPF program.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct VerifiedProgram {
    /// Its name, as far as the kernel keeps it.
    pub(crate) name: String,
    /// How many instructions the verifier has checked.
    pub(crate) verified: u32,
}

/// The kernel's account of a process with one thread: two readings show whether it has slept all
/// the time in between.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Glance {
    /// The letter of its state.
    pub(crate) state: char,
    /// The number of its context switches.
    pub(crate) switches: u64,
    /// Whether it is a thread of the kernel.
    pub(crate) kernel: bool,
}

/// The glances at all processes. Those with several threads have none.
pub(crate) type Glances = BTreeMap<Pid, Option<Glance>>;
