//! The user side of a recording: which processes are followed, their stacks, and the collectors that write their
//! subexperiments.
//!
//! What threads did comes here from the kernel's recorder, in time order, and waits for the thread's user stack; then it goes
//! to the process's collector, or back to the founder where nobody follows the process. While it is open whether a process will be
//! followed, what it did is kept: a followed process is followed from its first moment on.

mod archives;
mod hand_over;
mod stack;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bpf::unwind::{End, Registers};
use bpf::{Entry, Head, UserSide as Side};
use experiment_format::layout::{ExperimentDir, printable};
use experiment_format::log::{Header, LogEvent, ProfileDecl, Run};
use experiment_format::map::MapEvent;
use experiment_format::microstate::{Microstate, NumStates};
use experiment_format::packet::Detail;
use experiment_format::stacks::StackEnd;
use experiment_format::usage::UsageRecord;
use experiment_format::{Error, Result};
use user_collector::collector::{Array, Collector};
use user_collector::facts::Facts;
use user_collector::follow::{Candidate, Follow};
use user_collector::jit::JitWatch;
use user_collector::join::{Join, Joined, Slot};
use user_collector::lineage::{Birth, DirectoryNames, Lineages};
use user_collector::maps::Mapping;
use user_collector::objects::Objects;
use user_collector::process::{Process, Processes};
use user_collector::spaces::{Code, Spaces};

pub use archives::begin as begin_archive;
pub use hand_over::HandOver;
pub use stack::{Copied, StackCounts, UserStack};

/// Copied stacks that wait for tables take at most so many bytes.
const MOST_COPIES: usize = 64 << 20;
/// So long is waited before data are taken for the tables of what runs.
const LONGEST_PREPARATION: Duration = Duration::from_millis(500);
/// So long is waited at the end for the tables that copied stacks need.
const LONGEST_WAIT: Duration = Duration::from_secs(3);
/// A forked process that was chosen has so long to execute its own program before its experiment gets the name that its parent
/// gave it, nanoseconds.
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
}

/// What becomes of a process.
#[derive(Debug, Default)]
struct Fate {
    pid: u32,
    chosen: bool,
    ticked: bool,
    /// When it was forked; nothing once it has executed a program, and for those that were there before.
    forked: Option<u64>,
    first: Option<First>,
    held: Vec<(Stay, Option<Arc<UserStack>>)>,
    followed: Option<Box<Followed>>,
    ended: Option<u64>,
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
    /// Ticks of its threads that are in there.
    pub ticks: u64,
    /// Tick arrays that they are in.
    pub arrays: u64,
    /// How their user stacks ended.
    pub user_stacks: StackCounts,
}

/// Whom to follow.
#[derive(Debug)]
pub struct Rule {
    /// As `-F` says.
    pub follow: Follow,
    /// These, whatever it says.
    pub pids: Vec<u32>,
    /// And whoever is forked by one that is followed.
    pub descendants: bool,
}

impl Rule {
    /// May anybody be followed at all?
    #[must_use]
    pub fn follows(&self) -> bool {
        !matches!(self.follow, Follow::Off) || !self.pids.is_empty()
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
    rule: Rule,
    founding: Founding,
    spaces: Spaces,
    /// The load objects.
    pub objects: Objects,
    join: Join<Stay, UserStack>,
    fates: BTreeMap<u64, Fate>,
    serials: HashMap<u32, u64>,
    held: usize,
    copies: Vec<(Slot, Copied)>,
    copied_bytes: usize,
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
    /// Processes that are in the founder for want of room while it was open whether they would be followed.
    pub unheld: u64,
    /// Frames that were walked by what was no longer mapped, and cut off.
    pub disbelieved: u64,
}

impl UserSide {
    /// Nobody is followed yet.
    #[must_use]
    pub fn new(rule: Rule, objects: Objects, founding: Founding) -> UserSide {
        UserSide {
            rule,
            founding,
            spaces: Spaces::default(),
            objects,
            join: Join::default(),
            fates: BTreeMap::new(),
            serials: HashMap::new(),
            held: 0,
            copies: Vec::new(),
            copied_bytes: 0,
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

    /// The load: followed unless a pattern decides, and the first of a line of descent.
    pub fn choose_load(&mut self, pid: u32) {
        if matches!(self.rule.follow, Follow::On | Follow::All) {
            self.rule.pids.push(pid);
        }
        if self.rule.descendants {
            self.load = Some(pid);
        }
    }

    /// `parent` forked `pid`, of which `processes` know.
    pub fn forked(
        &mut self,
        dir: &ExperimentDir,
        processes: &Processes,
        pid: u32,
        parent: u32,
        at: u64,
    ) {
        let by_followed = self.rule.descendants
            && self
                .serials
                .get(&parent)
                .and_then(|serial| self.fates.get(serial))
                .is_some_and(|fate| fate.chosen || fate.followed.is_some());
        if let Some(before) = self.serials.remove(&pid) {
            self.superseded(dir, processes, before, at);
        }
        self.spaces.forked(pid, parent, at);
        if let Some(lineages) = &mut self.lineages {
            lineages.forked(pid, parent, Birth::Fork);
        }
        self.hand_over.changed(pid);
        let fate = self.fate(processes, pid);
        fate.chosen |= by_followed;
        fate.forked = Some(at);
    }

    /// Another process gets the number. What the former one did may still wait for its user side; but what it had mapped is
    /// forgotten now, so that is told first.
    fn superseded(&mut self, dir: &ExperimentDir, processes: &Processes, serial: u64, at: u64) {
        self.begin_if_chosen(dir, processes, serial, u64::MAX);
        let Some(fate) = self.fates.get_mut(&serial) else {
            return;
        };
        fate.ended.get_or_insert(at);
        if let Some(followed) = &mut fate.followed {
            let told = tell_mapped(followed, &mut self.spaces, &mut self.objects, fate.pid);
            self.note(told);
        }
    }

    /// `pid` executes another program and is called by its name.
    pub fn executed(&mut self, pid: u32, name: &[u8], at: u64) {
        self.spaces.executed(pid, at);
        if self.load == Some(pid) {
            self.load = None;
            self.lineages = Some(Lineages::new(pid));
        } else if let Some(lineages) = &mut self.lineages {
            lineages.executed(pid);
        }
        self.hand_over.changed(pid);
        let descent = self.descent(pid);
        if let Some(serial) = self.serials.get(&pid)
            && let Some(fate) = self.fates.get_mut(serial)
            && let Some(forked) = fate.forked.take()
            && fate.followed.is_none()
            && at < forked.saturating_add(BEFORE_EXEC)
            && let Some(first) = &mut fate.first
        {
            first.name = name.to_vec();
            first.descent = descent;
        }
        if let Some(followed) = self.followed(pid)
            && let Some(watch) = followed.jit.take()
        {
            let ended = watch.end(at);
            let result = followed.collector.functions(&ended, &[]);
            followed.jit = JitWatch::open(pid, at).ok();
            self.note(result);
        }
    }

    /// `pid` maps something for execution.
    pub fn mapped(&mut self, pid: u32, mapping: Mapping, at: u64) {
        if let Some(followed) = self.followed(pid)
            && let Some(watch) = &mut followed.jit
            && !mapping.file.path.starts_with(b"//anon")
        {
            let ended = watch.mapped(at, mapping.start, mapping.end, &mapping.file.path);
            let result = followed.collector.functions(&ended, &[]);
            self.note(result);
        }
        self.spaces.mapped(pid, mapping, at);
        self.hand_over.changed(pid);
    }

    /// A snapshot found a process with its mappings.
    pub fn found(&mut self, pid: u32, mappings: Vec<Mapping>, at: u64) {
        if !mappings.is_empty() {
            self.spaces.found(pid, mappings, at);
            self.hand_over.changed(pid);
        }
    }

    /// Before data are taken: waits for the unwind tables of what runs, but not long.
    pub fn wait_for_tables(&mut self) {
        let began = Instant::now();
        while self.objects.waiting() > 0
            && let Some(left) = LONGEST_PREPARATION.checked_sub(began.elapsed())
        {
            let settled = self.objects.wait(left);
            self.hand_over.settled(&settled);
        }
    }

    /// The leading thread of `pid` exited.
    pub fn exited(&mut self, pid: u32, at: u64) {
        if let Some(serial) = self.serials.get(&pid)
            && let Some(fate) = self.fates.get_mut(serial)
        {
            fate.ended = Some(at);
            if let Some(followed) = &mut fate.followed
                && let Some(watch) = &mut followed.jit
            {
                let last = watch.last_poll(at);
                let code = code_of(&mut self.spaces, pid);
                let result = followed.collector.functions(&last, &code);
                self.note(result);
            }
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

    /// A thread told its user side. Gives what is the founder's of all that became complete by that.
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
        let Some(space) = self.spaces.get_mut(pid) else {
            return self.deliver(dir, processes, complete);
        };
        let stack = match entry.user {
            Side::Walked {
                frames,
                end,
                guessed,
                version,
            } => {
                self.walks.kernel += 1;
                let mut frames = frames.into_vec();
                // Where nothing was known of its mappings, and no room for a copy: at least where it was.
                if frames.is_empty() {
                    frames.push(entry.ip);
                }
                let believed = match version {
                    0 => frames.len(),
                    _ => space.believed(version, &frames),
                };
                let mut end = end;
                if believed < frames.len() {
                    self.losses.disbelieved += 1;
                    frames.truncate(believed);
                    end = End::NoMapping;
                }
                UserStack {
                    frames,
                    end,
                    guessed,
                }
            }
            Side::Copied { registers, stack } => {
                self.walks.copied += 1;
                let copied = Copied {
                    registers: Registers {
                        pc: entry.ip,
                        general: *registers,
                    },
                    stack,
                    code: space.code(),
                    pid,
                };
                match copied.walk(&mut self.objects, &relatives(processes, pid)) {
                    Some(stack) => stack,
                    None if self.copied_bytes + copied.bytes() <= MOST_COPIES => {
                        self.copied_bytes += copied.bytes();
                        self.copies.push((slot, copied));
                        return self.deliver(dir, processes, complete);
                    }
                    None => {
                        self.losses.copies += 1;
                        UserStack {
                            frames: vec![entry.ip],
                            end: End::NoTable,
                            guessed: false,
                        }
                    }
                }
            }
        };
        complete.extend(self.join.resolved(slot, Arc::new(stack)));
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

    /// Walks the stacks that were copied and whose tables are there now; all of them when `last`.
    pub fn walk_copies(
        &mut self,
        dir: &ExperimentDir,
        processes: &Processes,
        last: bool,
    ) -> Vec<Stay> {
        let mut settled = self.objects.take();
        let began = Instant::now();
        while last && !self.copies.is_empty() && self.objects.waiting() > 0 {
            match LONGEST_WAIT.checked_sub(began.elapsed()) {
                Some(left) => settled.extend(self.objects.wait(left)),
                None => break,
            }
        }
        self.hand_over.settled(&settled);
        if settled.is_empty() && !last {
            return Vec::new();
        }
        let mut complete = Vec::new();
        for (slot, copied) in std::mem::take(&mut self.copies) {
            let walked = copied.walk(&mut self.objects, &relatives(processes, copied.pid));
            let stack = match walked {
                Some(stack) => stack,
                None if !last => {
                    self.copies.push((slot, copied));
                    continue;
                }
                None => UserStack {
                    frames: vec![copied.registers.pc],
                    end: End::NoTable,
                    guessed: false,
                },
            };
            self.copied_bytes -= copied.bytes();
            complete.extend(self.join.resolved(slot, Arc::new(stack)));
        }
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

    /// Forgets processes that ended before `long_ago` and of which `processes` know no more; `usage` gives
    /// their last sample, by pid and serial. Gives what is the founder's.
    pub fn forget(
        &mut self,
        dir: &ExperimentDir,
        processes: &Processes,
        long_ago: u64,
        usage: impl Fn(u32, u64) -> Option<UsageRecord>,
    ) -> Vec<Stay> {
        // Its leading thread has ended; the others may live on.
        let lives = |serial: u64, pid| {
            processes
                .get(pid)
                .is_some_and(|process| process.serial == serial)
        };
        let gone: Vec<u64> = self
            .fates
            .iter()
            .filter(|(serial, fate)| {
                fate.ended.is_some_and(|ended| ended < long_ago) && !lives(**serial, fate.pid)
            })
            .map(|(serial, _)| *serial)
            .collect();
        let mut back = Vec::new();
        for serial in gone {
            self.begin_if_chosen(dir, processes, serial, u64::MAX);
            if let Some(fate) = self.fates.get(&serial)
                && self.serials.get(&fate.pid) == Some(&serial)
            {
                self.serials.remove(&fate.pid);
            }
            let mut at = 0;
            let mut sampled = Ok(());
            if let Some(fate) = self.fates.get_mut(&serial) {
                at = fate.ended.unwrap_or(0);
                if let Some(followed) = &mut fate.followed
                    && let Some(usage) = usage(fate.pid, serial)
                {
                    let usage = UsageRecord { time: at, ..usage };
                    sampled = followed.collector.sample(at, "exit", &usage);
                }
            }
            self.note(sampled);
            back.extend(self.end(dir, serial, at));
        }
        let serials = &self.serials;
        for pid in self
            .spaces
            .retain(|pid| serials.contains_key(&pid) || processes.get(pid).is_some())
        {
            self.hand_over.gone(pid);
        }
        back
    }

    /// Writes a sample of each followed process; `usage` gives its record, by pid and serial.
    pub fn sample(
        &mut self,
        at: u64,
        label: &str,
        usage: impl Fn(u32, u64) -> Option<UsageRecord>,
    ) {
        let mut result = Ok(());
        for (serial, fate) in &mut self.fates {
            if let Some(followed) = &mut fate.followed
                && let Some(usage) = usage(fate.pid, *serial)
            {
                result = result.and(followed.collector.sample(at, label, &usage));
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
        let mut result = Ok(());
        for fate in self.fates.values_mut() {
            if let Some(followed) = &mut fate.followed {
                result = result.and(followed.collector.kernel_objects(maps));
            }
        }
        self.note(result);
        self.founding.kernel.extend_from_slice(maps);
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

    fn fate(&mut self, processes: &Processes, pid: u32) -> &mut Fate {
        let serial = processes.get(pid).map_or(0, |process| process.serial);
        // Nobody knows of it: it is told apart from others without a serial by its number.
        let serial = if serial == 0 {
            u64::from(pid) << 32
        } else {
            serial
        };
        self.serials.insert(pid, serial);
        let chosen = self.rule.pids.contains(&pid);
        let fate = self.fates.entry(serial).or_default();
        fate.pid = pid;
        fate.chosen |= chosen;
        fate
    }

    fn followed(&mut self, pid: u32) -> Option<&mut Followed> {
        let serial = self.serials.get(&pid)?;
        self.fates.get_mut(serial)?.followed.as_deref_mut()
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
                let result = write(followed, &stay, stack.as_deref());
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

    /// A process did something: is it to be followed by now?
    fn choose(&mut self, processes: &Processes, head: &Head) {
        let fate = self.serials.get(&head.pid).copied();
        let Some((serial, fate)) = fate.and_then(|serial| Some((serial, self.fates.get(&serial)?)))
        else {
            return;
        };
        if fate.first.is_some() {
            return;
        }
        if fate.chosen || self.wants(processes, head.pid, fate.ticked) {
            let first = First {
                at: head.time,
                name: process_name(processes.get(head.pid), head),
                descent: self.descent(head.pid),
            };
            if let Some(fate) = self.fates.get_mut(&serial) {
                fate.chosen = true;
                fate.first = Some(first);
            }
            if let Some(space) = self.spaces.get_mut(head.pid) {
                space.keep_changes();
            }
        }
    }

    /// How a process descends from the load, if it does and is not the load.
    fn descent(&self, pid: u32) -> Option<String> {
        let descent = self.lineages.as_ref()?.get(pid)?;
        (!descent.is_empty()).then(|| descent.to_owned())
    }

    /// Is it followed, or may it be yet without being called otherwise?
    fn may_follow(&self, processes: &Processes, pid: u32) -> bool {
        let fate = self
            .serials
            .get(&pid)
            .and_then(|serial| self.fates.get(serial));
        matches!(self.rule.follow, Follow::On | Follow::All)
            || fate.is_some_and(|fate| fate.chosen)
            || self.wants(processes, pid, false)
    }

    /// Begins the experiment of a process that was chosen, unless it may still execute its own program at a time.
    fn begin_if_chosen(
        &mut self,
        dir: &ExperimentDir,
        processes: &Processes,
        serial: u64,
        now: u64,
    ) {
        let Some(fate) = self.fates.get(&serial) else {
            return;
        };
        let Some(first) = fate.first.clone().filter(|_| fate.followed.is_none()) else {
            return;
        };
        let executes_yet = |forked: u64| now < forked.saturating_add(BEFORE_EXEC);
        if fate.ended.is_none() && fate.forked.is_some_and(executes_yet) {
            return;
        }
        if let Err(error) = self.begin(dir, processes, (fate.pid, serial), &first) {
            self.failed.get_or_insert(error);
        }
    }

    /// Does the rule want it, as it is now?
    fn wants(&self, processes: &Processes, pid: u32, ticked: bool) -> bool {
        let process = processes.get(pid);
        self.rule.follow.wants(&Candidate {
            pid,
            name: process.and_then(|process| process.name.as_deref()),
            executable: process
                .and_then(|process| process.executable.as_deref())
                .map(|executable| &*executable.path),
            ticked,
        })
    }

    fn begin(
        &mut self,
        dir: &ExperimentDir,
        processes: &Processes,
        (pid, serial): (u32, u64),
        first: &First,
    ) -> Result<()> {
        let facts = Facts::read(pid);
        // By now another process may have the number.
        let facts = match facts.started_after(first.at) {
            true => Facts::default(),
            false => facts,
        };
        let mut header = self.founding.header.clone();
        header.pid = pid;
        header.command_line = facts
            .command_line
            .clone()
            .unwrap_or_else(|| printable(&first.name));
        header.profiles.retain(|profile| {
            !matches!(
                profile,
                ProfileDecl::Clock {
                    states: NumStates::Kernel,
                    ..
                }
            )
        });
        header.settings.clear();
        header.comments = described_by(&facts, &first.name);
        let directory = match &first.descent {
            Some(descent) => format!("{descent}.er"),
            None => self.names.next(&first.name, pid),
        };
        let mut collector = Collector::create(
            dir,
            &directory,
            &header,
            self.founding.run,
            &self.founding.kernel,
        )?;
        let nothing = UsageRecord {
            time: first.at,
            created: self.founding.run.tstamp,
            ..UsageRecord::default()
        };
        collector.sample(first.at, "start", &nothing)?;
        if self.objects.wants_used() {
            collector.watch_used();
        }
        let mut jit = JitWatch::open(pid, self.founding.run.tstamp).ok();
        let relatives = relatives(processes, pid);
        if let Some(space) = self.spaces.get_mut(pid) {
            let objects = &mut self.objects;
            let changes = space.take_changes();
            for mapping in space.code().iter() {
                if let Some(watch) = &mut jit
                    && !mapping.file.path.starts_with(b"//anon")
                {
                    watch.mapped(
                        self.founding.run.tstamp,
                        mapping.start,
                        mapping.end,
                        &mapping.file.path,
                    );
                }
            }
            collector.mapped(&changes, |mapping| {
                objects.followed(pid, &relatives, mapping)
            })?;
        }
        let Some(fate) = self.fates.get_mut(&serial) else {
            return Ok(());
        };
        let mut followed = Box::new(Followed {
            collector,
            jit,
            counts: StackCounts::default(),
            ticks: 0,
            last: 0,
        });
        for (stay, stack) in fate.held.drain(..) {
            self.held -= 1;
            write(&mut followed, &stay, stack.as_deref())?;
        }
        fate.followed = Some(followed);
        Ok(())
    }

    /// The process is no more, or the run.
    fn end(&mut self, dir: &ExperimentDir, serial: u64, at: u64) -> Vec<Stay> {
        let Some(fate) = self.fates.remove(&serial) else {
            return Vec::new();
        };
        self.held -= fate.held.len();
        if let Some(mut followed) = fate.followed {
            let (spaces, objects) = (&mut self.spaces, &mut self.objects);
            let told = match self.serials.get(&fate.pid).is_none_or(|of| *of == serial) {
                true => tell_mapped(&mut followed, spaces, objects, fate.pid),
                false => Ok(()),
            };
            archives::tell_all_used(&mut followed, objects);
            self.note(told);
            self.gone.push(describe(fate.pid, &followed));
            self.bytes_gone += followed.collector.bytes_written();
            let ended = fate.ended.unwrap_or(at).max(followed.last);
            let result = followed.collector.close(dir, ended);
            self.note(result);
        }
        fate.held.into_iter().map(|(stay, _)| stay).collect()
    }

    fn note(&mut self, result: Result<()>) {
        if let Err(error) = result {
            self.failed.get_or_insert(error);
        }
    }
}

/// Tells what the process has mapped and unmapped since.
fn tell_mapped(
    followed: &mut Followed,
    spaces: &mut Spaces,
    objects: &mut Objects,
    pid: u32,
) -> Result<()> {
    let changes = spaces
        .get_mut(pid)
        .map(|space| space.take_changes())
        .unwrap_or_default();
    followed
        .collector
        .mapped(&changes, |mapping| objects.followed(pid, &[], mapping))
}

/// What the process has mapped.
fn code_of(spaces: &mut Spaces, pid: u32) -> Code {
    spaces
        .get_mut(pid)
        .map(|space| space.code())
        .unwrap_or_default()
}

fn describe(pid: u32, followed: &Followed) -> FollowedProcess {
    FollowedProcess {
        pid,
        experiment: followed.collector.name().to_owned(),
        ticks: followed.ticks,
        arrays: followed.collector.arrays,
        user_stacks: followed.counts.clone(),
    }
}

/// Whoever is likely to see the same files: parents.
fn relatives(processes: &Processes, pid: u32) -> Vec<u32> {
    let parent = |pid: u32| processes.get(pid).and_then(|process| process.parent);
    std::iter::successors(parent(pid), |pid| parent(*pid))
        .take(3)
        .collect()
}

fn process_name(process: Option<&Process>, head: &Head) -> Vec<u8> {
    let name = process.and_then(|process| process.name.as_deref());
    name.unwrap_or(head.name.bytes()).to_vec()
}

/// What is known of a process, as comments of its experiment.
fn described_by(facts: &Facts, name: &[u8]) -> Vec<String> {
    let mut comments = vec![format!("process: {}", printable(name))];
    let mut tell = |what: &str, value: Option<String>| {
        comments.extend(value.map(|value| format!("{what}: {value}")));
    };
    tell("program", facts.executable.clone());
    tell("directory", facts.cwd.clone());
    tell("user id", facts.uid.map(|uid| uid.to_string()));
    tell(
        "container",
        facts
            .container
            .as_ref()
            .map(|container| format!("{:?} {}", container.runtime, container.id)),
    );
    tell("MPI rank", facts.mpi_rank.map(|rank| rank.to_string()));
    comments
}

fn write(followed: &mut Followed, stay: &Stay, stack: Option<&UserStack>) -> Result<()> {
    let (user, mark): (&[u64], _) = match stack {
        Some(stack) => (&stack.frames, stack.mark()),
        None => (&[], StackEnd::UnwindFailed),
    };
    let mark = match stay.truncated {
        true if mark == StackEnd::Complete => StackEnd::Truncated,
        _ => mark,
    };
    let frames: Vec<u64> = stay.kernel.iter().chain(user).copied().collect();
    let ticks = u64::from(stay.ticks);
    followed.counts.add(stack, ticks);
    followed.ticks += ticks;
    followed.last = followed.last.max(stay.head.time);
    followed.collector.array(&Array {
        at: stay.head.time,
        cpu: stay.head.cpu,
        tid: stay.head.tid,
        thread: stay.head.name.bytes(),
        frames: &frames,
        end: mark,
        state: stay.state,
        ticks: stay.ticks,
        detail: stay.detail,
    })
}
