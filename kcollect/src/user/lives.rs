//! The lives of processes on the user side: they are forked, execute programs, map files and exit;
//! and at some moment it is known whether they are followed.

use super::*;
use crate::kernel::counters;

impl Fate {
    /// Writes a sample: of a process that has ended its last one, once.
    pub(super) fn sample(&mut self, at: u64, label: &str, usage: &UsageRecord) -> Result<()> {
        let Some(followed) = &mut self.followed else {
            return Ok(());
        };
        match self.ended {
            Some(ended) if usage.threads == 0 => {
                if std::mem::replace(&mut self.sampled_last, true) {
                    return Ok(());
                }
                let time = ended.max(followed.last);
                let usage = UsageRecord {
                    time,
                    ..usage.clone()
                };
                followed.collector.sample(time, "exit", &usage)
            }
            _ => followed.collector.sample(at, label, usage),
        }
    }
}

impl UserSide {
    /// The load: followed unless a pattern decides, and the first of a line of descent.
    pub fn choose_load(&mut self, pid: u32) {
        if matches!(self.rule.follow, Follow::On | Follow::All) {
            self.rule.pids.push(pid);
        }
        if self.rule.descendants {
            self.load = Some(pid);
        }
    }

    /// The parent of the process that is forked next under this number waits until it executes a
    /// program.
    pub fn combined(&mut self, pid: u32) {
        if let Some(lineages) = &mut self.lineages {
            lineages.combined(pid);
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
        self.stop_waiting(pid);
        self.spaces.forked(pid, parent, at);
        if let Some(lineages) = &mut self.lineages {
            lineages.forked(pid, parent);
        }
        self.hand_over.changed(pid);
        let fate = self.fate(processes, pid);
        fate.chosen |= by_followed;
        fate.forked = Some(at);
    }

    /// Another process gets the number. What the former one did may still wait for its user side;
    /// but what it had mapped is forgotten now, so that is told first.
    pub(super) fn superseded(
        &mut self,
        dir: &ExperimentDir,
        processes: &Processes,
        serial: u64,
        at: u64,
    ) {
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
        self.stop_waiting(pid);
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
        {
            // The thread that executes takes the place of the leading one, which was said to have
            // exited.
            fate.ended = None;
            if let Some(forked) = fate.forked.take()
                && fate.followed.is_none()
                && at < forked.saturating_add(BEFORE_EXEC)
                && let Some(first) = &mut fate.first
            {
                first.name = name.to_vec();
                first.descent = descent;
            }
        }
        let room = self.made.clone();
        if let Some(followed) = self.followed(pid)
            && let Some(watch) = followed.jit.take()
        {
            followed.made.add(&watch);
            let ended = watch.end(at);
            let result = followed.collector.functions(&ended, &[]);
            followed.jit = watch_code(pid, at, &room);
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

    /// Whose mappings are to be read, because stacks have an address where nothing is known to be
    /// mapped.
    pub fn take_unmapped(&mut self) -> Vec<u32> {
        self.unmapped.take_asked()
    }

    /// They were read, from an instant on until `now`; or not, because the process was gone.
    pub fn was_read(&mut self, pid: u32, began: u64, now: u64, mappings: Option<Vec<Mapping>>) {
        let (ran, waiting) = self.unmapped.was_read(pid);
        if mappings.is_none() {
            self.losses.unread += waiting.len() as u64;
        }
        let found = mappings.unwrap_or_default();
        let news = !waiting.is_empty() && self.spaces.learnt(pid, found, began, ran);
        self.unmapped.had_news(pid, now, news);
        if news {
            self.hand_over.changed(pid);
        }
        let code = code_of(&mut self.spaces, pid);
        self.walk_soon(waiting.into_iter().map(|(slot, copied)| {
            let code = Code::clone(&code);
            (slot, Copied { code, ..copied })
        }));
    }

    /// What waits for a process's mappings waits in vain.
    fn stop_waiting(&mut self, pid: u32) {
        let waiting = self.unmapped.forget(pid);
        self.walk_soon(waiting);
    }

    fn walk_soon(&mut self, copies: impl IntoIterator<Item = (Slot, Copied)>) {
        let before = self.copies.len();
        self.copies.extend(copies);
        self.copies_due |= self.copies.len() > before;
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

    /// The processes of which nothing can come any more: that ended before an instant until which
    /// all is known, by their numbers and serials. `lives` says whether a process with a number has
    /// threads.
    #[must_use]
    pub fn over(
        &self,
        processes: &Processes,
        known: u64,
        lives: impl Fn(u32) -> bool,
    ) -> Vec<(u32, u64)> {
        let awaited: HashSet<u32> = self
            .copies
            .iter()
            .map(|(_, copied)| copied.pid)
            .chain(self.unmapped.awaited())
            .collect();
        let may_do_more = |serial: u64, pid| {
            let holds = processes
                .get(pid)
                .is_some_and(|process| process.serial == serial);
            // Its leading thread has ended; the others may live on.
            awaited.contains(&pid) || holds && lives(pid)
        };
        self.fates
            .iter()
            .filter(|(_, fate)| fate.ended.is_some_and(|ended| ended < known))
            .map(|(serial, fate)| (fate.pid, *serial))
            .filter(|(pid, serial)| !may_do_more(*serial, *pid))
            .collect()
    }

    /// Closes the experiments of processes that are [over](UserSide::over) and forgets them;
    /// `usage` gives their last sample, by number and serial. Gives what is the founder's.
    pub fn forget(
        &mut self,
        dir: &ExperimentDir,
        processes: &Processes,
        over: &[(u32, u64)],
        usage: impl Fn(u32, u64) -> Option<UsageRecord>,
    ) -> Vec<Stay> {
        let mut back = Vec::new();
        for &(pid, serial) in over {
            self.begin_if_chosen(dir, processes, serial, u64::MAX);
            if self.serials.get(&pid) == Some(&serial) {
                self.serials.remove(&pid);
                if let Some(lineages) = &mut self.lineages {
                    lineages.ended(pid);
                }
            }
            let (mut at, mut sampled) = (0, Ok(()));
            if let Some(fate) = self.fates.get_mut(&serial) {
                at = fate.ended.unwrap_or(0);
                if fate.followed.is_some() && !fate.sampled_last {
                    let last = usage(pid, serial).map(|usage| UsageRecord {
                        threads: 0,
                        ..usage
                    });
                    sampled = last.map_or(Ok(()), |usage| fate.sample(at, "exit", &usage));
                }
            }
            self.note(sampled);
            back.extend(self.end(dir, serial, at));
        }
        back
    }

    /// Forgets what was mapped by processes that nobody knows any more.
    pub fn forget_mappings(&mut self, processes: &Processes) {
        let serials = &self.serials;
        for pid in self
            .spaces
            .retain(|pid| serials.contains_key(&pid) || processes.get(pid).is_some())
        {
            self.hand_over.gone(pid);
            self.stop_waiting(pid);
        }
    }

    pub(super) fn fate(&mut self, processes: &Processes, pid: u32) -> &mut Fate {
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

    pub(super) fn followed(&mut self, pid: u32) -> Option<&mut Followed> {
        let serial = self.serials.get(&pid)?;
        self.fates.get_mut(serial)?.followed.as_deref_mut()
    }

    /// A process did something: is it to be followed by now?
    pub(super) fn choose(&mut self, processes: &Processes, head: &RecordHeader) {
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
                at: head.time_ns,
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
    pub(super) fn descent(&self, pid: u32) -> Option<String> {
        let descent = self.lineages.as_ref()?.get(pid)?;
        (!descent.is_empty()).then(|| descent.to_owned())
    }

    /// Is it followed, or may it be yet without being called otherwise?
    pub(super) fn may_follow(&self, processes: &Processes, pid: u32) -> bool {
        let fate = self
            .serials
            .get(&pid)
            .and_then(|serial| self.fates.get(serial));
        matches!(self.rule.follow, Follow::On | Follow::All)
            || fate.is_some_and(|fate| fate.chosen)
            || self.wants(processes, pid, false)
    }

    /// Begins the experiment of a process that was chosen, unless it may still execute its own
    /// program at a time.
    pub(super) fn begin_if_chosen(
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
    pub(super) fn wants(&self, processes: &Processes, pid: u32, ticked: bool) -> bool {
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

    pub(super) fn begin(
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
        header.profiles.iter_mut().for_each(counters::of_process);
        header.settings.clear();
        header.comments = described_by(&facts, &first.name);
        header.mpi_rank = facts.mpi_rank;
        header.container = facts.container.clone().map(Into::into);
        let directory = match &first.descent {
            Some(descent) => format!("{descent}.er"),
            None => self.names.next(&first.name, pid),
        };
        let mut collector = Collector::create(dir, &directory, &header, self.founding.run)?;
        let nothing = UsageRecord {
            time: first.at,
            created: self.founding.run.tstamp,
            ..UsageRecord::default()
        };
        collector.sample(first.at, "start", &nothing)?;
        if self.objects.wants_used() {
            collector.watch_used();
        }
        let space = self.spaces.get_mut(pid);
        let since = space.map_or(0, |space| space.since());
        let since = since.max(self.founding.run.tstamp);
        let mut jit = watch_code(pid, since, &self.made);
        let relatives = relatives(processes, pid);
        if let Some(space) = self.spaces.get_mut(pid) {
            let objects = &mut self.objects;
            let changes = space.take_changes();
            for mapping in space.code().iter() {
                if let Some(watch) = &mut jit
                    && !mapping.file.path.starts_with(b"//anon")
                {
                    watch.mapped(since, mapping.start, mapping.end, &mapping.file.path);
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
            made: Made::default(),
            mpi_rank: facts.mpi_rank,
            container: facts.container,
            counts: StackCounts::default(),
            ticks: 0,
            last: 0,
        });
        for (stay, stack) in fate.held.drain(..) {
            self.held -= 1;
            write(
                &mut followed,
                &stay,
                stack.as_deref(),
                &self.founding.kernel,
            )?;
        }
        fate.followed = Some(followed);
        Ok(())
    }

    /// The process is no more, or the run.
    pub(super) fn end(&mut self, dir: &ExperimentDir, serial: u64, at: u64) -> Vec<Stay> {
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
}

/// Of a program that was started, or found, at an instant. What a former one had mapped ends at
/// that very instant, and functions, which must not overlap it, begin behind it.
fn watch_code(pid: u32, since: u64, room: &Room) -> Option<JitWatch> {
    JitWatch::open(pid, since + 1, room).ok()
}

pub(super) fn tell_mapped(
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

pub(super) fn code_of(spaces: &mut Spaces, pid: u32) -> Code {
    spaces
        .get_mut(pid)
        .map(|space| space.code())
        .unwrap_or_default()
}

pub(super) fn process_name(process: Option<&Process>, head: &RecordHeader) -> Vec<u8> {
    let name = process.and_then(|process| process.name.as_deref());
    name.unwrap_or(head.name.bytes()).to_vec()
}

pub(super) fn described_by(facts: &Facts, name: &[u8]) -> Vec<String> {
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
            .map(|container| format!("{} {}", container.runtime.name(), container.id)),
    );
    tell("MPI rank", facts.mpi_rank.map(|rank| rank.to_string()));
    comments
}
