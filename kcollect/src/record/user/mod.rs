//! The user side of a recording: which processes are followed, their stacks, and the collectors
//! that write their subexperiments.
//!
//! What threads did comes here from the kernel's recorder, in time order, and waits for the
//! thread's user stack; then it goes to the process's collector, or back to the founder where
//! nobody follows the process. While it is open whether a process will be followed, what it did is
//! kept: a followed process is followed from its first moment on.

mod archives;
mod hand_over;
mod lives;
mod stack;
mod told;
mod unmapped;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bpf::unwind::End;
use bpf::{Entry, Head};
use experiment_format::layout::{ExperimentDir, printable};
use experiment_format::log::{Header, LogEvent, ProfileDecl, Run};
use experiment_format::map::MapEvent;
use experiment_format::microstate::{Microstate, NumStates};
use experiment_format::packet::Detail;
use experiment_format::stacks::StackEnd;
use experiment_format::usage::UsageRecord;
use experiment_format::{Error, Result};
use user_collector::collector::{Array, Collector, Place};
use user_collector::facts::{Container, Facts};
use user_collector::follow::{Candidate, Follow, FollowRule};
use user_collector::jit::{Counts as MadeCounts, JitWatch, Room};
use user_collector::join::{Join, Joined, Slot};
use user_collector::lineage::{DirectoryNames, Lineages};
use user_collector::maps::Mapping;
use user_collector::objects::Objects;
use user_collector::process::{Process, Processes};
use user_collector::spaces::{Code, Spaces};

pub use archives::begin as begin_archive;
use lives::{code_of, tell_mapped};
use told::relatives;

pub use hand_over::HandOver;
pub use stack::{Copied, StackCounts, UserStack};
use unmapped::Unmapped;

/// Copied stacks that wait for tables take at most so many bytes.
const MOST_COPIES: usize = 64 << 20;
/// Once none wait any more, what they took is given back if it was so much.
const MANY_COPIES: usize = 1 << 20;
/// So long is waited before data are taken for the tables of what runs.
const LONGEST_PREPARATION: Duration = Duration::from_millis(500);
/// So long is waited at the end for the tables that copied stacks need.
const LONGEST_WAIT: Duration = Duration::from_secs(3);
/// A forked process that was chosen has so long to execute its own program before its experiment
/// gets the name that its parent gave it, nanoseconds.
const BEFORE_EXEC: u64 = 50_000_000;
/// Things that processes did of which it is open whether they will be followed.
const MOST_HELD: usize = 200_000;

/// What a thread did in one state with one kernel stack.
#[derive(Clone, Debug)]
pub struct Stay {
    /// Who, when and where, and the number of its next entry to user mode.
    pub head: Head,
    /// Tells the process from others with its number.
    pub serial: u64,
    /// Kernel frames, leaf first, callers as addresses inside the call; none in user mode.
    pub kernel: Arc<[u64]>,
    /// There were more of them.
    pub truncated: bool,
    /// The state.
    pub state: Microstate,
    /// Interval boundaries in it.
    pub ticks: u32,
    /// What more is known.
    pub detail: Detail,
    /// It is no time at all, but a counter has overflowed.
    pub counted: Option<Counted>,
}

/// A counter has overflowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted {
    /// Which: [`experiment_format::log::CounterDecl::tag`].
    pub tag: u32,
    /// How many events that stands for.
    pub value: u64,
}

/// What becomes of a process.
#[derive(Debug, Default)]
struct Fate {
    pid: u32,
    chosen: bool,
    ticked: bool,
    /// When it was forked; nothing once it has executed a program, and for those that were there
    /// before.
    forked: Option<u64>,
    first: Option<First>,
    held: Vec<(Stay, Option<Arc<UserStack>>)>,
    followed: Option<Box<Followed>>,
    ended: Option<u64>,
    /// It has ended, and there is a sample of that.
    sampled_last: bool,
}

/// A chosen process when it did the first thing that belongs into its experiment.
#[derive(Clone, Debug)]
struct First {
    /// When that was.
    at: u64,
    /// What it was called.
    name: Vec<u8>,
    /// Its line of descent from the load, where it has one.
    descent: Option<String>,
}

#[derive(Debug)]
struct Followed {
    collector: Collector,
    jit: Option<JitWatch>,
    /// Of the programs that it executed before.
    made: Made,
    mpi_rank: Option<u32>,
    container: Option<Container>,
    counts: StackCounts,
    ticks: u64,
    /// The time of the last thing that it did.
    last: u64,
}

/// A followed process, for the summary.
#[derive(Clone, Debug, serde::Serialize)]
pub struct FollowedProcess {
    /// Its number.
    pub pid: u32,
    /// Its experiment's directory.
    pub experiment: String,
    /// Its rank in a parallel program (MPI).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mpi_rank: Option<u32>,
    /// The container that it was in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<Container>,
    /// Ticks of its threads that are in there.
    pub ticks: u64,
    /// Tick arrays that they are in.
    pub arrays: u64,
    /// How their user stacks ended.
    pub user_stacks: StackCounts,
    /// What it told of code that it made as it ran, where it told anything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub made: Option<Made>,
}

/// What a process told of the code that it made as it ran, in perf maps and jitdumps.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Made {
    /// How much that was, and how much of it is not in the experiment.
    #[serde(flatten)]
    pub counts: MadeCounts,
    /// Why a file was not read, or not any further: the last reason.
    pub refusal: Option<String>,
}

impl Made {
    fn add(&mut self, watch: &JitWatch) {
        self.counts += watch.counts();
        if let Some(refusal) = watch.refusal() {
            self.refusal = Some(refusal.to_string());
        }
    }
}

/// What the subexperiments have in common with the founder.
#[derive(Debug)]
pub struct Founding {
    /// The founder's header.
    pub header: Header,
    /// The zero of its times.
    pub run: Run,
    /// Where the kernel's load objects lie.
    pub kernel: Vec<MapEvent>,
}

/// The user side of a recording.
#[derive(Debug)]
pub struct UserSide {
    rule: FollowRule,
    founding: Founding,
    spaces: Spaces,
    /// Memory for functions that are made at run time.
    made: Room,
    /// The load objects.
    pub objects: Objects,
    join: Join<Stay, UserStack>,
    fates: BTreeMap<u64, Fate>,
    serials: HashMap<u32, u64>,
    held: usize,
    copies: Vec<(Slot, Copied)>,
    copied_bytes: usize,
    /// Some of them are to be walked without a new table.
    copies_due: bool,
    unmapped: Unmapped,
    names: DirectoryNames,
    /// The load until it executes its program: there its line of descent begins.
    load: Option<u32>,
    lineages: Option<Lineages>,
    gone: Vec<FollowedProcess>,
    bytes_gone: u64,
    hand_over: HandOver,
    /// Why a subexperiment could not be written.
    pub failed: Option<Error>,
    /// What could not be done.
    pub losses: UserLosses,
    /// How stacks were walked.
    pub walks: Walks,
}

/// User stacks by who walked them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Walks {
    /// The programs in the kernel.
    pub kernel: u64,
    /// We did, from a copy, because something was not known there yet.
    pub copied: u64,
}

/// What was lost of the user side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct UserLosses {
    /// Stacks that were copied and for which there was no room until a table was there.
    pub copies: u64,
    /// Processes that are in the founder for want of room while it was open whether they would be
    /// followed.
    pub unheld: u64,
    /// Frames that were walked by what was no longer mapped, and cut off.
    pub disbelieved: u64,
    /// Stacks with an address where nothing was known to be mapped, and the process was gone when
    /// its mappings were read for that.
    pub unread: u64,
}

impl UserSide {
    /// Nobody is followed yet.
    #[must_use]
    pub fn new(rule: FollowRule, objects: Objects, founding: Founding) -> UserSide {
        UserSide {
            rule,
            founding,
            spaces: Spaces::default(),
            made: Room::default(),
            objects,
            join: Join::default(),
            fates: BTreeMap::new(),
            serials: HashMap::new(),
            held: 0,
            copies: Vec::new(),
            copied_bytes: 0,
            copies_due: false,
            unmapped: Unmapped::default(),
            names: DirectoryNames::new(),
            load: None,
            lineages: None,
            gone: Vec::new(),
            bytes_gone: 0,
            hand_over: HandOver::default(),
            failed: None,
            losses: UserLosses::default(),
            walks: Walks::default(),
        }
    }

    /// A thread did something. Gives what is the founder's of all that became complete by that.
    pub fn stay(&mut self, dir: &ExperimentDir, processes: &Processes, stay: Stay) -> Vec<Stay> {
        let head = stay.head;
        let on_cpu = matches!(
            stay.state,
            Microstate::User | Microstate::System | Microstate::Trap
        );
        self.fate(processes, head.pid).ticked |= on_cpu;
        self.choose(processes, &head);
        let complete = self
            .join
            .recorded(head.tid, head.entry, u64::from(stay.ticks), stay);
        self.deliver(dir, processes, complete)
    }

    /// A thread told its user side. Gives what is the founder's of all that became complete by
    /// that.
    pub fn entry(&mut self, dir: &ExperimentDir, processes: &Processes, entry: Entry) -> Vec<Stay> {
        let head = entry.head;
        let pid = head.pid;
        let (slot, mut complete) = self.join.announced(head.tid, head.entry);
        if self.spaces.get_mut(pid).is_none() {
            self.spaces.found(pid, [], head.time);
        }
        let Some(space) = self.spaces.get_mut(pid) else {
            return self.deliver(dir, processes, complete);
        };
        if space.executes(entry.execution) {
            self.hand_over.changed(pid);
        }
        if !self.may_follow(processes, pid) {
            let nothing = UserStack {
                frames: Vec::new(),
                end: End::NoTable,
                guessed: false,
            };
            complete.extend(self.join.resolved(slot, Arc::new(nothing)));
            return self.deliver(dir, processes, complete);
        }
        if let Some(stack) = self.told(processes, slot, entry) {
            complete.extend(self.join.resolved(slot, Arc::new(stack)));
        }
        self.deliver(dir, processes, complete)
    }

    /// A thread ended. Gives what is the founder's.
    pub fn thread_ended(
        &mut self,
        dir: &ExperimentDir,
        processes: &Processes,
        tid: u32,
    ) -> Vec<Stay> {
        let complete = self.join.ended(tid);
        self.deliver(dir, processes, complete)
    }

    /// Once a round.
    pub fn tidy(&mut self, dir: &ExperimentDir, now: u64) {
        let mut result = Ok(());
        for (serial, fate) in &mut self.fates {
            let Some(followed) = &mut fate.followed else {
                continue;
            };
            let mut code = Code::default();
            if self.serials.get(&fate.pid) == Some(serial) {
                let (spaces, objects) = (&mut self.spaces, &mut self.objects);
                result = result.and(tell_mapped(followed, spaces, objects, fate.pid));
                code = code_of(spaces, fate.pid);
            }
            archives::tell_used(followed, &mut self.objects);
            if let Some(watch) = &mut followed.jit {
                let changes = watch.poll(now);
                result = result.and(followed.collector.functions(&changes, &code));
            }
            result = result.and(followed.collector.tidy(dir, now));
        }
        self.note(result);
    }

    /// Writes a sample of each followed process that lives or has ended since the sample before;
    /// `usage` gives its record, by pid and serial.
    pub fn sample(
        &mut self,
        at: u64,
        label: &str,
        usage: impl Fn(u32, u64) -> Option<UsageRecord>,
    ) {
        let mut result = Ok(());
        for (serial, fate) in &mut self.fates {
            if let Some(usage) = usage(fate.pid, *serial) {
                result = result.and(fate.sample(at, label, &usage));
            }
        }
        self.note(result);
    }

    /// Data were paused or resumed.
    pub fn log(&mut self, at: u64, event: impl Fn(u64) -> LogEvent) {
        let mut result = Ok(());
        for fate in self.fates.values_mut() {
            if let Some(followed) = &mut fate.followed {
                result = result.and(followed.collector.log(at, &event));
            }
        }
        self.note(result);
    }

    /// The kernel's load objects came by more.
    pub fn kernel_objects(&mut self, maps: &[MapEvent]) {
        self.founding.kernel.extend_from_slice(maps);
        let mut result = Ok(());
        for fate in self.fates.values_mut() {
            if let Some(followed) = &mut fate.followed {
                result = result.and(followed.collector.in_kernel(&[], &self.founding.kernel));
            }
        }
        self.note(result);
    }

    /// Nothing more will be told: walks what can be walked. Gives what is the founder's.
    pub fn finish(&mut self, dir: &ExperimentDir, processes: &Processes) -> Vec<Stay> {
        let mut back = self.walk_copies(dir, processes, true);
        let complete = self.join.close();
        back.extend(self.deliver(dir, processes, complete));
        let serials: Vec<u64> = self.fates.keys().copied().collect();
        for serial in serials {
            self.begin_if_chosen(dir, processes, serial, u64::MAX);
        }
        for fate in self.fates.values_mut() {
            self.held -= fate.held.len();
            back.extend(fate.held.drain(..).map(|(stay, _)| stay));
        }
        back
    }

    /// Closes all subexperiments. Gives what was written.
    pub fn close(&mut self, dir: &ExperimentDir, at: u64) {
        let serials: Vec<u64> = self.fates.keys().copied().collect();
        for serial in serials {
            self.end(dir, serial, at);
        }
    }

    /// The followed processes, those that ended included, by the number of their ticks.
    #[must_use]
    pub fn summary(&self) -> Vec<FollowedProcess> {
        let living = self.fates.values().filter_map(|fate| {
            let followed = fate.followed.as_ref()?;
            Some(describe(fate.pid, followed))
        });
        let mut all: Vec<_> = self.gone.iter().cloned().chain(living).collect();
        all.sort_by(|a, b| (b.ticks, &a.experiment).cmp(&(a.ticks, &b.experiment)));
        all
    }

    /// Bytes of all subexperiments.
    #[must_use]
    pub fn bytes_written(&self) -> u64 {
        let living = self
            .fates
            .values()
            .filter_map(|fate| fate.followed.as_ref());
        self.bytes_gone
            + living
                .map(|followed| followed.collector.bytes_written())
                .sum::<u64>()
    }

    /// What became of the ticks' user sides.
    #[must_use]
    pub fn joined(&self) -> Joined {
        self.join.joined()
    }

    /// Complete things go where they belong.
    fn deliver(
        &mut self,
        dir: &ExperimentDir,
        processes: &Processes,
        complete: Vec<(Stay, Option<Arc<UserStack>>)>,
    ) -> Vec<Stay> {
        let mut back = Vec::new();
        for (stay, stack) in complete {
            let serial = match stay.serial {
                0 => u64::from(stay.head.pid) << 32,
                serial => serial,
            };
            if !self.fates.contains_key(&serial) {
                back.push(stay);
                continue;
            }
            self.begin_if_chosen(dir, processes, serial, stay.head.time);
            let Some(fate) = self.fates.get_mut(&serial) else {
                continue;
            };
            if let Some(followed) = &mut fate.followed {
                let kernel = &self.founding.kernel;
                let result = write(followed, &stay, stack.as_deref(), kernel);
                self.note(result);
            } else if fate.first.is_none() && !matches!(self.rule.follow, Follow::On) {
                back.push(stay);
            } else if self.held < MOST_HELD {
                self.held += 1;
                fate.held.push((stay, stack));
            } else {
                self.losses.unheld += 1;
                back.push(stay);
            }
        }
        back
    }

    fn note(&mut self, result: Result<()>) {
        if let Err(error) = result {
            self.failed.get_or_insert(error);
        }
    }
}

fn describe(pid: u32, followed: &Followed) -> FollowedProcess {
    let mut made = followed.made.clone();
    followed.jit.iter().for_each(|watch| made.add(watch));
    FollowedProcess {
        pid,
        experiment: followed.collector.name().to_owned(),
        mpi_rank: followed.mpi_rank,
        container: followed.container.clone(),
        ticks: followed.ticks,
        arrays: followed.collector.arrays,
        user_stacks: followed.counts.clone(),
        made: (made != Made::default()).then_some(made),
    }
}

/// Writes a thread's ticks, with the kernel's frames above the user's. `kernel` says what lies
/// where in it.
fn write(
    followed: &mut Followed,
    stay: &Stay,
    stack: Option<&UserStack>,
    kernel: &[MapEvent],
) -> Result<()> {
    let (user, mark): (&[u64], _) = match stack {
        Some(stack) => (&stack.frames, stack.mark()),
        None if stay.head.exiting => (&[], StackEnd::Complete),
        None => (&[], StackEnd::UnwindFailed),
    };
    let mark = match stay.truncated {
        true if mark == StackEnd::Complete => StackEnd::Truncated,
        _ => mark,
    };
    let frames: Vec<u64> = stay.kernel.iter().chain(user).copied().collect();
    followed.last = followed.last.max(stay.head.time);
    followed.collector.in_kernel(&stay.kernel, kernel)?;
    let place = Place {
        at: stay.head.time,
        cpu: stay.head.cpu,
        tid: stay.head.tid,
        thread: stay.head.name.bytes(),
        frames: &frames,
        end: mark,
    };
    if let Some(Counted { tag, value }) = stay.counted {
        return followed.collector.counted(&place, tag, value);
    }
    let ticks = u64::from(stay.ticks);
    followed.counts.add(stack, stay.head.exiting, ticks);
    followed.ticks += ticks;
    followed.collector.array(&Array {
        place,
        state: stay.state,
        ticks: stay.ticks,
        detail: stay.detail,
    })
}
