//! The table of processes.
//!
//! A process has the name of its leading thread: what `ps` shows, at most 15 bytes, changed by exec
//! and by `prctl(PR_SET_NAME)`. Events must come in time order; then [`ProcessTable::get`] answers
//! for the instant of the last event applied. A process that has exited keeps its name until its
//! number is used again, because its last moments in the kernel come after the exit record.
//!
//! Ranking of sources: the side-band is exact, since the event itself writes it. A snapshot entry
//! only fills what the side-band has not reported, as its reading of `/proc` has no exact instant.

use std::collections::HashMap;

use experiment_format::ids::Pid;

use super::ProcessInstance;

/// A process's name as the kernel has it: bytes, not text, without the final NUL.
pub type ProcessName = Box<[u8]>;

/// One process, from fork (or from the snapshot) to the reuse of its number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessInfo {
    /// Tells it from other processes that have its number.
    pub instance: ProcessInstance,
    /// The parent's pid, where known.
    pub parent: Option<Pid>,
    /// The name; `None` when neither side-band nor snapshot has reported it.
    pub name: Option<ProcessName>,
    /// The file it executes, where an exec was seen.
    pub executable: Option<Box<ExecutableFile>>,
    /// When its leading thread exited, nanoseconds of the events' clock.
    pub exited: Option<u64>,
    expects_executable: bool,
}

/// The file that a process executes: the first executable mapping after its exec.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecutableFile {
    /// Path as the process saw it; not UTF-8 by right.
    pub path: Box<[u8]>,
    /// The build id that the kernel read from the mapped file; empty when it has none.
    pub build_id: Box<[u8]>,
}

/// All processes seen so far.
#[derive(Clone, Debug, Default)]
pub struct ProcessTable {
    by_pid: HashMap<Pid, ProcessInfo>,
    /// Those whose number another process got, with the time of that: what they did may be written
    /// later.
    former: HashMap<ProcessInstance, (u64, ProcessInfo)>,
    last_serial: u64,
}

impl ProcessTable {
    /// Returns an empty table.
    #[must_use]
    pub fn new() -> ProcessTable {
        ProcessTable::default()
    }

    /// `parent` forked `pid` at `time`. The child begins with the parent's name and file.
    pub fn forked(&mut self, pid: Pid, parent: Pid, time: u64) {
        let (name, executable) = self
            .by_pid
            .get(&parent)
            .map(|parent| (parent.name.clone(), parent.executable.clone()))
            .unwrap_or_default();
        let process = ProcessInfo {
            instance: self.next_instance(pid),
            parent: Some(parent),
            name,
            executable,
            exited: None,
            expects_executable: false,
        };
        if let Some(former) = self.by_pid.insert(pid, process) {
            self.former.insert(former.instance, (time, former));
        }
    }

    /// The leading thread of `pid` got a new name; by exec if `exec`.
    pub fn named(&mut self, pid: Pid, name: &[u8], exec: bool) {
        let process = self.known(pid);
        process.name = Some(name.into());
        if exec {
            process.executable = None;
            process.expects_executable = true;
        }
    }

    /// `pid` mapped a file for execution; the first one after an exec is its program.
    pub fn mapped(&mut self, pid: Pid, path: &[u8], build_id: &[u8]) {
        let process = self.known(pid);
        if std::mem::take(&mut process.expects_executable) {
            process.executable = Some(Box::new(ExecutableFile {
                path: path.into(),
                build_id: build_id.into(),
            }));
        }
    }

    /// The leading thread of `pid` exited at `time`.
    pub fn exited(&mut self, pid: Pid, time: u64) {
        self.known(pid).exited = Some(time);
    }

    /// A snapshot found `pid` alive with this name. What the side-band has reported stands.
    pub fn found(&mut self, pid: Pid, name: &[u8]) {
        let process = self.known(pid);
        if process.name.is_none() {
            process.name = Some(name.into());
        }
    }

    /// A snapshot found that `pid` executes this file. What the side-band has reported stands.
    pub fn found_executing(&mut self, pid: Pid, path: &[u8]) {
        let process = self.known(pid);
        if process.executable.is_none() && !process.expects_executable {
            process.executable = Some(Box::new(ExecutableFile {
                path: path.into(),
                build_id: Box::default(),
            }));
        }
    }

    /// Returns the process that has the number `pid` at the instant of the last event.
    #[must_use]
    pub fn get(&self, pid: Pid) -> Option<&ProcessInfo> {
        self.by_pid.get(&pid)
    }

    /// Returns an instance, whichever process has its number by now; until
    /// [`ProcessTable::evict_exited`] evicts it.
    #[must_use]
    pub fn instance(&self, instance: ProcessInstance) -> Option<&ProcessInfo> {
        let holder = self.by_pid.get(&instance.pid());
        let former = || self.former.get(&instance).map(|(_, process)| process);
        holder
            .filter(|process| process.instance == instance)
            .or_else(former)
    }

    /// Returns how many are in the table.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_pid.len()
    }

    /// Returns whether the table is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_pid.is_empty()
    }

    /// Evicts those that exited before `time` and are not `still_there`: a process whose leader
    /// exited first goes on in its other threads.
    pub fn evict_exited(&mut self, time: u64, mut still_there: impl FnMut(Pid) -> bool) {
        self.by_pid.retain(|pid, process| {
            process.exited.is_none_or(|exited| exited >= time) || still_there(*pid)
        });
        self.former.retain(|_, (since, _)| *since >= time);
    }

    fn known(&mut self, pid: Pid) -> &mut ProcessInfo {
        let last_serial = &mut self.last_serial;
        self.by_pid.entry(pid).or_insert_with(|| {
            *last_serial += 1;
            ProcessInfo {
                instance: ProcessInstance::new(pid, *last_serial),
                parent: None,
                name: None,
                executable: None,
                exited: None,
                expects_executable: false,
            }
        })
    }

    fn next_instance(&mut self, pid: Pid) -> ProcessInstance {
        self.last_serial += 1;
        ProcessInstance::new(pid, self.last_serial)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn name(table: &ProcessTable, pid: Pid) -> Option<&str> {
        std::str::from_utf8(table.get(pid)?.name.as_deref()?).ok()
    }

    /// A process's life as a line of events: `pid+parent` fork, `pid=name` rename, `pid!name` exec,
    /// `pid-` exit, `pid?name` found by the snapshot, `pid:path` mapping; `pid>name` asserts.
    fn replay(line: &str) -> ProcessTable {
        let mut table = ProcessTable::new();
        for (time, event) in line.split_whitespace().enumerate() {
            let mark = event.find(|c: char| !c.is_ascii_digit()).unwrap();
            let (pid, rest) = (event[..mark].parse().unwrap(), &event[mark + 1..]);
            match &event[mark..=mark] {
                "+" => table.forked(pid, rest.parse().unwrap(), time as u64),
                "=" => table.named(pid, rest.as_bytes(), false),
                "!" => table.named(pid, rest.as_bytes(), true),
                "-" => table.exited(pid, time as u64),
                "?" => table.found(pid, rest.as_bytes()),
                ":" => table.mapped(pid, rest.as_bytes(), &[0xab]),
                ">" => assert_eq!(name(&table, pid).unwrap_or("unnamed"), rest, "in {line}"),
                other => panic!("{other}"),
            }
        }
        table
    }

    #[test]
    fn a_child_has_its_parents_name_until_it_execs() {
        replay("7?bash 9+7 9>bash 9!true 9>true 9- 9>true 7>bash");
    }

    #[test]
    fn a_reused_number_is_another_process() {
        let table = replay("7?bash 9+7 9!true 9- 9>true 9+7 9>bash 9!cat 9>cat");
        assert_eq!(
            table.get(Pid(9)).unwrap().instance,
            ProcessInstance::new(Pid(9), 3)
        );
    }

    #[test]
    fn a_former_holder_of_a_number_has_its_name_until_it_is_forgotten() {
        let mut table = replay("7?bash 9+7 9!true 9- 9+7 9!cat");
        let name = |table: &ProcessTable, serial| {
            let process = table.instance(ProcessInstance::new(Pid(9), serial))?;
            process.name.clone()
        };
        let named = |name: &[u8]| Some(Box::from(name));
        assert_eq!(name(&table, 2), named(b"true"));
        assert_eq!(name(&table, 3), named(b"cat"));
        assert_eq!(name(&table, 0), None);
        table.evict_exited(4, |_| true);
        assert_eq!(name(&table, 2), named(b"true"));
        table.evict_exited(5, |_| true);
        assert_eq!((name(&table, 2), name(&table, 3)), (None, named(b"cat")));
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
        let table = replay("7?sh 9+7 9:/lib/early.so 9!true 9:/bin/true 9:/lib/ld.so");
        assert_eq!(
            &*table.get(Pid(9)).unwrap().executable.as_ref().unwrap().path,
            b"/bin/true"
        );
        let table = replay("7!sh 7:/bin/sh 9+7");
        assert_eq!(
            &*table.get(Pid(9)).unwrap().executable.as_ref().unwrap().path,
            b"/bin/sh"
        );
    }

    #[test]
    fn the_long_gone_are_forgotten_but_not_leaderless_ones() {
        let mut table = replay("7?sh 8+7 9+7 8- 9-");
        table.evict_exited(100, |pid| pid == Pid(9));
        assert!(table.get(Pid(8)).is_none());
        assert!(table.get(Pid(9)).is_some());
        assert!(table.get(Pid(7)).is_some());
        assert_eq!(table.len(), 2);
    }

    proptest! {
        /// Whatever happens, a pid's name is what was said of it last, by rank.
        #[test]
        fn a_rename_always_shows(events in proptest::collection::vec((0_u32..5, 0_u8..5), 0..100)) {
            let mut table = ProcessTable::new();
            for (time, (pid, kind)) in events.into_iter().enumerate() {
                match kind {
                    0 => table.forked(Pid(pid), Pid((pid + 1) % 5), time as u64),
                    1 => table.exited(Pid(pid), time as u64),
                    2 => table.found(Pid(pid), b"found"),
                    3 => table.mapped(Pid(pid), b"/x", &[]),
                    _ => {
                        let said = time.to_string();
                        table.named(Pid(pid), said.as_bytes(), time % 2 == 0);
                        prop_assert_eq!(name(&table, Pid(pid)), Some(&*said));
                    }
                }
            }
        }
    }
}
