//! The table of processes.
//!
//! A process has the name of its leading thread: what `ps` shows, at most 15 bytes, changed by exec
//! and by `prctl(PR_SET_NAME)`. Events must come in time order; [`ProcessTable::get`] returns the
//! state after the last one. A process that has exited keeps its name until its number is used
//! again, because its last time in the kernel comes after the exit record.
//!
//! The side-band comes before the snapshot: its records have exact times. A snapshot entry only
//! adds what the side-band has not reported, since a read of `/proc` has no exact time.

use experiment_format::ids::Pid;
use experiment_format::units::Nanos;
use rustc_hash::FxHashMap;

use super::ProcessInstance;

/// A process's name as the kernel has it: bytes, not text, without the final NUL.
pub type ProcessName = Box<[u8]>;

/// A process, from its fork (or from the snapshot) until its number is reused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessInfo {
    /// The instance, which distinguishes it from other processes with the same pid.
    pub instance: ProcessInstance,
    /// The parent's pid, where known.
    pub parent: Option<Pid>,
    /// The name; `None` if neither side-band nor snapshot has reported it.
    pub name: Option<ProcessName>,
    /// The file that it executes, if an exec was seen.
    pub executable: Option<Box<ExecutableFile>>,
    /// When its last thread exited, nanoseconds of the events' clock.
    pub exited_ns: Option<Nanos>,
    expects_executable: bool,
}

/// The file that a process executes: the first executable mapping after its exec.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecutableFile {
    /// Path as the process saw it; it may not be UTF-8.
    pub path: Box<[u8]>,
    /// The build id that the kernel read from the mapped file; empty when it has none.
    pub build_id: Box<[u8]>,
}

/// All processes seen so far.
#[derive(Clone, Debug, Default)]
pub struct ProcessTable {
    by_pid: FxHashMap<Pid, ProcessInfo>,
    /// Processes whose pid another one has by now, with the time since when: records of what they
    /// did may still come.
    previous: FxHashMap<ProcessInstance, (Nanos, ProcessInfo)>,
    last_instance_number: u64,
}

impl ProcessTable {
    /// Returns an empty table.
    #[must_use]
    pub fn new() -> ProcessTable {
        ProcessTable::default()
    }

    /// Notes that `parent` forked `pid` at `time_ns`. The child begins with the parent's name and
    /// file.
    pub fn forked(&mut self, pid: Pid, parent: Pid, time_ns: Nanos) {
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
            exited_ns: None,
            expects_executable: false,
        };
        if let Some(previous) = self.by_pid.insert(pid, process) {
            self.previous.insert(previous.instance, (time_ns, previous));
        }
    }

    /// Notes a new name of the leading thread of `pid`; by exec if `exec`.
    pub fn named(&mut self, pid: Pid, name: &[u8], exec: bool) {
        let process = self.known(pid);
        process.name = Some(name.into());
        if exec {
            process.executable = None;
            process.expects_executable = true;
        }
    }

    /// Notes that `pid` mapped a file for execution; the first one after an exec is its program.
    pub fn mapped(&mut self, pid: Pid, path: &[u8], build_id: &[u8]) {
        let process = self.known(pid);
        if std::mem::take(&mut process.expects_executable) {
            process.executable = Some(Box::new(ExecutableFile {
                path: path.into(),
                build_id: build_id.into(),
            }));
        }
    }

    /// Notes that the last thread of `pid` exited at `time_ns`.
    pub fn exited(&mut self, pid: Pid, time_ns: Nanos) {
        self.known(pid).exited_ns = Some(time_ns);
    }

    /// Notes that a snapshot found `pid` with this name. What the side-band has reported stays.
    pub fn found(&mut self, pid: Pid, name: &[u8]) {
        let process = self.known(pid);
        if process.name.is_none() {
            process.name = Some(name.into());
        }
    }

    /// Notes that a snapshot found `pid` executing this file. What the side-band has reported
    /// stays.
    pub fn found_executing(&mut self, pid: Pid, path: &[u8]) {
        let process = self.known(pid);
        if process.executable.is_none() && !process.expects_executable {
            process.executable = Some(Box::new(ExecutableFile {
                path: path.into(),
                build_id: Box::default(),
            }));
        }
    }

    /// Returns the process that had the number `pid` at the last event.
    #[must_use]
    pub fn get(&self, pid: Pid) -> Option<&ProcessInfo> {
        self.by_pid.get(&pid)
    }

    /// Returns the process of an instance, also if another process has its pid by now, until
    /// [`ProcessTable::evict_exited`] evicts it.
    #[must_use]
    pub fn instance(&self, instance: ProcessInstance) -> Option<&ProcessInfo> {
        let holder = self.by_pid.get(&instance.pid());
        let previous = || self.previous.get(&instance).map(|(_, process)| process);
        holder
            .filter(|process| process.instance == instance)
            .or_else(previous)
    }

    /// Returns the number of processes in the table.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_pid.len()
    }

    /// Returns whether the table is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_pid.is_empty()
    }

    /// Evicts processes that exited before `time_ns` and are not `still_there`: a process whose
    /// leading thread exited first continues in its other threads.
    pub fn evict_exited(&mut self, time_ns: Nanos, mut still_there: impl FnMut(Pid) -> bool) {
        self.by_pid.retain(|pid, process| {
            process
                .exited_ns
                .is_none_or(|exited_ns| exited_ns >= time_ns)
                || still_there(*pid)
        });
        self.previous
            .retain(|_, (since_ns, _)| *since_ns >= time_ns);
    }

    fn known(&mut self, pid: Pid) -> &mut ProcessInfo {
        let last_instance_number = &mut self.last_instance_number;
        self.by_pid.entry(pid).or_insert_with(|| {
            *last_instance_number += 1;
            ProcessInfo {
                instance: ProcessInstance::new(pid, *last_instance_number),
                parent: None,
                name: None,
                executable: None,
                exited_ns: None,
                expects_executable: false,
            }
        })
    }

    fn next_instance(&mut self, pid: Pid) -> ProcessInstance {
        self.last_instance_number += 1;
        ProcessInstance::new(pid, self.last_instance_number)
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
        for (time_ns, event) in line.split_whitespace().enumerate() {
            let mark = event.find(|c: char| !c.is_ascii_digit()).unwrap();
            let (pid, rest) = (event[..mark].parse().unwrap(), &event[mark + 1..]);
            match &event[mark..=mark] {
                "+" => table.forked(pid, rest.parse().unwrap(), Nanos(time_ns as u64)),
                "=" => table.named(pid, rest.as_bytes(), false),
                "!" => table.named(pid, rest.as_bytes(), true),
                "-" => table.exited(pid, Nanos(time_ns as u64)),
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
    fn a_previous_holder_of_a_number_has_its_name_until_it_is_evicted() {
        let mut table = replay("7?bash 9+7 9!true 9- 9+7 9!cat");
        let name = |table: &ProcessTable, instance_number| {
            let process = table.instance(ProcessInstance::new(Pid(9), instance_number))?;
            process.name.clone()
        };
        let named = |name: &[u8]| Some(Box::from(name));
        assert_eq!(name(&table, 2), named(b"true"));
        assert_eq!(name(&table, 3), named(b"cat"));
        assert_eq!(name(&table, 0), None);
        table.evict_exited(Nanos(4), |_| true);
        assert_eq!(name(&table, 2), named(b"true"));
        table.evict_exited(Nanos(5), |_| true);
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
        table.evict_exited(Nanos(100), |pid| pid == Pid(9));
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
            for (time_ns, (pid, kind)) in events.into_iter().enumerate() {
                match kind {
                    0 => table.forked(Pid(pid), Pid((pid + 1) % 5), Nanos(time_ns as u64)),
                    1 => table.exited(Pid(pid), Nanos(time_ns as u64)),
                    2 => table.found(Pid(pid), b"found"),
                    3 => table.mapped(Pid(pid), b"/x", &[]),
                    _ => {
                        let said = time_ns.to_string();
                        table.named(Pid(pid), said.as_bytes(), time_ns % 2 == 0);
                        prop_assert_eq!(name(&table, Pid(pid)), Some(&*said));
                    }
                }
            }
        }
    }
}
