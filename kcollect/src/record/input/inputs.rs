//! The inputs: a clock and a side-band ring on each CPU that is online, the snapshot of what runs
//! at the start, and what is read on request. Their events are returned in time order.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;
use std::{fs, io};

use bpf::{
    AllocationSampling, KernelFunctions, KernelTypes, Programs, ReturnProbes, Sabotage, Settings,
    UserStackCapture,
};
use bpf_abi::layout::MAX_COUNTERS;
use bpf_abi::{CapturedStack, CodeFile, CpuCounts, Record, ThreadName};
use counters::names::event::CounterRequest;
use counters::perf::cpu_events::{open_clock, open_overflow, set_clock_period};
use counters::perf::order::TimeOrder;
use counters::perf::refusal::{OpenAttempt, PerfSettings, Refusal};
use counters::perf::scope::CounterScope;
use experiment_format::ids::Pid;
use experiment_format::units::Nanos;
use host::exit::{ExitKind, Failure};
use host::machine::{self, CpuList, CpuSet};

use user_collector::follow::Follow;
use user_collector::io_calls::traced_calls;
use user_collector::process::any_without_leader;
use user_collector::space::{Mapping, mapping_at};

use super::event::{InputEvent, Rotation};
use super::load_failure::bpf_failure;
use super::reader::{Bytes, Reader};
use super::rotation::first_returns;
use super::self_test::{Counts, Expected, Phases, Report, SelfTest};
use super::sideband::{self, SidebandEvent};
use super::snapshot;
use super::totals::{CpuTime, Totals};
use crate::plan::{HeapTracing, Plan};

/// Age at which all records have arrived, nanoseconds. A record gets its time first and is in
/// its ring a microsecond later, unless a hypervisor stops the CPU in between.
const SETTLED_NS: Nanos = Nanos::from_millis(100);

/// Longest time over which the starts of the clocks are spread, however long the interval is.
const MAX_CLOCK_SPREAD: Duration = Duration::from_millis(100);

/// A file whose unwind table the BPF programs did not have.
#[derive(Debug)]
pub struct MissingTable {
    /// The file as the kernel found it.
    pub file: CodeFile,
    /// A process that maps it.
    pub pid: Pid,
    /// The name of a thread of it.
    pub name: ThreadName,
    /// The mapping of the file in that process.
    pub mapping: Mapping,
}

/// The BPF programs, clocks, counters and side-band rings of all CPUs.
#[derive(Debug)]
pub struct Inputs {
    /// The programs in the kernel.
    pub programs: Programs,
    pub(super) reader: Reader,
    /// The bytes that were last read from the rings; kept to reuse their memory.
    bytes: Bytes,
    period_ns: Nanos,
    /// The number of tick boundaries for which a clock fires once.
    boundaries_per_firing: u32,
    /// The clocks' events; the BPF programs hold them too.
    pub(super) clock_events: BTreeMap<u32, OwnedFd>,
    pub(super) cpus: BTreeMap<u32, CpuTime>,
    /// The CPUs that are online.
    pub(super) online: CpuList,
    recording: bool,
    pub(super) order: TimeOrder<InputEvent>,
    /// Files whose unwind tables the BPF programs have missed since the last
    /// [`Inputs::take_missing_tables`]: for each, a process that maps it, the name of one of its
    /// threads, and an address in the mapping.
    missing_tables: HashMap<CodeFile, (Pid, ThreadName, u64)>,
    /// When user stacks are captured, if any process is followed.
    pub capture: Option<UserStackCapture>,
    /// Counters that overflow.
    pub counters: Vec<CounterRequest>,
    self_test: TestState,
}

/// The state of the self-test.
#[derive(Debug)]
enum TestState {
    /// It starts with the recording.
    Planned(Expected),
    Running(Box<SelfTest>),
    Done,
}

impl Inputs {
    /// Loads the BPF programs and opens all inputs, without recording yet. `functions`
    /// are those of the kernel that the programs look for; `types` are the kernel's types;
    /// `capture` is when user stacks are captured, if any process is followed; `counters` are
    /// opened for their overflows.
    ///
    /// # Errors
    /// A [`Failure`] with its hint.
    pub fn open(
        plan: &Plan,
        functions: KernelFunctions,
        types: &KernelTypes,
        capture: Option<UserStackCapture>,
        counters: &[CounterRequest],
    ) -> Result<Inputs, Failure> {
        let possible = machine::possible_cpus().map_err(no_cpus)?;
        let list = CpuList::online().map_err(no_cpus)?;
        let online = list.read().map_err(no_cpus)?;
        let listen = |cpu: &u32| match sideband::listen(*cpu, machine::page_size()) {
            Ok(ring) => Ok((*cpu, ring)),
            Err(error) => Err(refused("the side-band", *cpu, &error)),
        };
        let sideband: Vec<_> = online.iter().map(listen).collect::<Result<_, _>>()?;
        // After the side-band, which then reports the names of kcollect's own programs too.
        let (programs, rings) = Programs::load(&Settings {
            types,
            period_ns: plan.tick_interval.nanos().0,
            record_idle: plan.record_idle,
            lock_threshold_ns: plan.tracing.lock_threshold.map(|threshold| {
                u64::try_from(threshold.duration().as_nanos()).unwrap_or(u64::MAX)
            }),
            traced_calls: traced_calls(plan.tracing.io, plan.tracing.heap == HeapTracing::Growth),
            allocations: plan
                .tracing
                .heap
                .mean_bytes()
                .map(|mean_bytes| AllocationSampling {
                    mean_bytes,
                    // Probes of sessions are set in a process by its first thread.
                    returns: if any_without_leader(Path::new("/proc")) {
                        ReturnProbes::Always
                    } else {
                        ReturnProbes::of(types)
                    },
                }),
            max_kernel_frames: max_frames(),
            functions,
            watch_wakers: plan.watch_wakers,
            cpu_ids: possible.last().map_or(1, |last| last + 1),
            user_stacks: capture,
            hit_intervals: hit_intervals(counters),
            sabotage: Sabotage::of_environment(),
        })
        .map_err(bpf_failure)?;
        let reader = Reader::new(rings).map_err(|error| {
            let hint = "raise the limit of open files (ulimit -n)";
            Failure::new(ExitKind::Unavailable, format!("no eventfd: {error}"), hint)
        })?;
        for (cpu, ring) in sideband {
            reader.listen(cpu, ring);
        }
        let kernel_faults = programs.notes_kernel_faults();
        let mut inputs = Inputs {
            programs,
            reader,
            bytes: Bytes::default(),
            period_ns: plan.tick_interval.nanos(),
            boundaries_per_firing: 1,
            clock_events: BTreeMap::new(),
            cpus: BTreeMap::new(),
            online: list,
            recording: false,
            order: TimeOrder::default(),
            missing_tables: HashMap::new(),
            capture,
            counters: counters.to_vec(),
            self_test: TestState::Planned(Expected {
                phases: Phases::AT_START,
                interval: plan.tick_interval.nanos(),
                kernel_faults,
                user_stacks: capture.is_some()
                    && matches!(plan.follow.follow, Follow::On | Follow::All),
            }),
        };
        for number in 0..counters.len() {
            for (position, cpu) in online.iter().enumerate() {
                inputs.open_counter(number, *cpu, position == 0)?;
            }
        }
        inputs.snapshot();
        inputs.start_clocks(online)?;
        Ok(inputs)
    }

    /// Starts the thread that empties the rings, with the privileges that are left.
    ///
    /// # Errors
    /// As [`Reader::start`]; the rings are emptied all the same, but not as soon.
    pub fn start_reader(&mut self) -> io::Result<()> {
        self.reader.start()
    }

    /// Starts the clocks spread over an interval. A tick disturbs the threads that run: threads
    /// that exchange work synchronize with it. If the next CPU's tick followed after a fixed short
    /// time, it would sample them at the same point again and again.
    fn start_clocks(&mut self, cpus: CpuSet) -> Result<(), Failure> {
        let spread = Duration::from(self.period_ns).min(MAX_CLOCK_SPREAD);
        let apart = spread / u32::try_from(cpus.len()).unwrap_or(u32::MAX).max(1);
        for cpu in cpus {
            self.start_clock(cpu)?;
            std::thread::sleep(apart);
        }
        Ok(())
    }

    /// Starts or stops recording. Returns the time of the change.
    ///
    /// # Errors
    /// When the BPF programs can't be switched or the threads' times can't be read.
    pub fn set_recording(&mut self, on: bool) -> Result<Nanos, Failure> {
        let now = self
            .programs
            .set_recording(on, || machine::now().0)
            .map_err(bpf_failure)
            .map(Nanos)?;
        if on {
            self.begun(now)?;
            return Ok(now);
        }
        if let TestState::Running(test) = &mut self.self_test {
            test.interrupt();
        }
        let records = self.programs.close_threads().map_err(bpf_failure)?;
        self.take(records);
        self.recording = false;
        for cpu in self.cpus.values_mut() {
            cpu.change(now, false);
        }
        Ok(now)
    }

    /// Notes that recording has started.
    fn begun(&mut self, at_ns: Nanos) -> Result<(), Failure> {
        self.programs.track_threads().map_err(bpf_failure)?;
        self.recording = true;
        for cpu in self.cpus.values_mut() {
            cpu.change(at_ns, cpu.has_clock);
        }
        if let TestState::Planned(expected) = self.self_test {
            // Without a thread to spare nothing is tested.
            let test = SelfTest::start(expected);
            self.self_test =
                test.map_or(TestState::Done, |test| TestState::Running(Box::new(test)));
        }
        Ok(())
    }

    /// Sets how long the thread of the self-test does each thing. The recording has not started.
    pub fn set_self_test(&mut self, phases: Phases) {
        if let TestState::Planned(expected) = &mut self.self_test {
            expected.phases = phases;
        }
    }

    /// Returns the result of the self-test, once there is one; `last`: no record follows.
    ///
    /// # Errors
    /// When the counts of the BPF programs can't be read.
    pub fn poll_self_test(&mut self, last: bool) -> Result<Option<Report>, Failure> {
        let mut test = match std::mem::replace(&mut self.self_test, TestState::Done) {
            TestState::Running(test) => test,
            other => {
                self.self_test = other;
                return Ok(None);
            }
        };
        let report = test.poll(last, || self.test_counts())?;
        if report.is_none() {
            self.self_test = TestState::Running(test);
        }
        Ok(report)
    }

    fn test_counts(&self) -> Result<Counts, Failure> {
        let totals = self.totals()?;
        let lost = |stats: &CpuCounts| stats.lost + stats.off_cpu_lost + stats.thread_records_lost;
        Ok(Counts {
            untracked: totals.sum(|stats| stats.threads_untracked),
            lost: totals.cpus.iter().map(|(_, stats, _)| lost(stats)).sum(),
            user_returns_lost: totals.sum(|stats| stats.user_returns_lost),
            has_seen_switches: self.has_seen_switches()?,
        })
    }

    /// Returns whether the hook on context switches has ever run.
    ///
    /// # Errors
    /// When the statistics of a CPU can't be read.
    pub fn has_seen_switches(&self) -> Result<bool, Failure> {
        self.programs.has_seen_switches().map_err(bpf_failure)
    }

    /// Adds the event of a change that [`Inputs::set_recording`] made at a time.
    pub fn push_recording(&mut self, on: bool, time_ns: Nanos) {
        self.order.push(time_ns, InputEvent::Recording { on });
    }

    /// Takes a sample. Its event is returned by a later round, after all events before its time.
    ///
    /// # Errors
    /// When the threads' times can't be read.
    pub fn sample(&mut self, label: &'static str) -> Result<(), Failure> {
        let at_ns = machine::now();
        if self.recording {
            let records = self.programs.report_threads(at_ns.0).map_err(bpf_failure)?;
            self.take(records);
        }
        let sample = InputEvent::Sample { at_ns, label };
        self.order.push(machine::now(), sample);
        Ok(())
    }

    /// Returns the events up to the time before which all records have arrived, in time order.
    ///
    /// # Errors
    /// When a ring can't be read.
    pub fn round(&mut self) -> Result<Vec<(Nanos, InputEvent)>, Failure> {
        let began_ns = machine::now();
        self.drain()?;
        let mut events = self.order.release(began_ns.saturating_sub(SETTLED_NS));
        for at in 0..events.len() {
            let (before, after) = events.split_at_mut(at + 1);
            if let Some((_, InputEvent::Rotation(rotation))) = before.last_mut() {
                rotation.returns = first_returns(after.iter().chain(self.order.pending()));
            }
        }
        Ok(events)
    }

    /// The mappings of files whose tables the BPF programs have missed since the last call, if
    /// `is_missing` is true for the file and the process still runs. These are not events: a later
    /// round returns the records.
    pub fn take_missing_tables(
        &mut self,
        is_missing: impl Fn(CodeFile) -> bool,
    ) -> Vec<MissingTable> {
        let missing = std::mem::take(&mut self.missing_tables).into_iter();
        missing
            .filter(|(file, _)| is_missing(*file))
            .filter_map(|(file, (pid, name, address))| {
                let mappings = snapshot::mappings(pid);
                // The process may have executed another program meanwhile.
                let same =
                    |mapping: &&Mapping| mapping.file.identity.inode as u32 == file.inode as u32;
                let mapping = mapping_at(&mappings, address).filter(same)?;
                let reported = self.reported(pid, mapping).unwrap_or(mapping);
                Some(MissingTable {
                    file,
                    pid,
                    name,
                    mapping: reported.clone(),
                })
            })
            .collect()
    }

    /// Returns a mapping of a process as the side-band describes it, whose event was not returned
    /// yet: what is found by its description is found again when it is.
    fn reported(&self, pid: Pid, mapping: &Mapping) -> Option<&Mapping> {
        self.order.pending().find_map(|(_, event)| match event {
            InputEvent::Sideband(SidebandEvent::Map {
                pid: of,
                mapping: reported,
            }) if *of == pid
                && reported.start == mapping.start
                && reported.file.path == mapping.file.path =>
            {
                Some(reported)
            }
            _ => None,
        })
    }

    /// Reads the mappings of a process. The event is returned by a later round, after all events
    /// before it.
    pub fn read_mappings(&mut self, pid: Pid) {
        let began_ns = machine::now();
        let mappings = Some(snapshot::mappings(pid)).filter(|mappings| !mappings.is_empty());
        let read = InputEvent::MappingsRead {
            pid,
            began_ns,
            mappings,
        };
        self.order.push(machine::now(), read);
    }

    /// Stops the clocks. The recording has been stopped before.
    pub fn stop_clocks(&mut self) {
        self.programs.clocks().stop();
    }

    /// Returns all remaining events, when the clocks have been stopped.
    ///
    /// # Errors
    /// When a ring can't be read.
    pub fn rest(&mut self) -> Result<Vec<(Nanos, InputEvent)>, Failure> {
        self.drain()?;
        Ok(self.order.release_all())
    }

    /// Ends one experiment and begins the next at the same instant. A later round returns the
    /// event, between what was before and what was after.
    ///
    /// # Errors
    /// As [`Inputs::set_recording`] and [`Inputs::totals`].
    pub fn rotate(&mut self) -> Result<(), Failure> {
        let recording = self.recording;
        let at_ns = if recording {
            self.programs
                .end_experiment(|| machine::now().0)
                .map_err(bpf_failure)
                .map(Nanos)?
        } else {
            machine::now()
        };
        for cpu in self.cpus.values_mut() {
            cpu.change(at_ns, recording && cpu.has_clock);
        }
        let totals = if recording {
            self.totals_of(self.programs.ended_cpu_counts(at_ns.0))?
        } else {
            self.totals()?
        };
        if recording {
            let records = self.programs.begin_experiment();
            let records = records.map_err(bpf_failure)?;
            self.take(records);
        }
        let rotation = InputEvent::Rotation(Box::new(Rotation {
            at_ns,
            recording,
            totals,
            returns: Vec::new(),
        }));
        // After the records of that instant, many of which are still in the rings.
        self.order.push(at_ns + Nanos(1), rotation);
        Ok(())
    }

    /// Returns what has been counted until now.
    ///
    /// # Errors
    /// When it can't be read.
    pub fn totals(&self) -> Result<Totals, Failure> {
        self.totals_of(self.programs.cpu_counts())
    }

    fn totals_of(
        &self,
        stats: Result<Vec<(u32, CpuCounts)>, bpf::Error>,
    ) -> Result<Totals, Failure> {
        let stats = stats.map_err(bpf_failure)?;
        let time = |cpu| self.cpus.get(&cpu).copied().unwrap_or_default();
        let counted = |number: usize| self.programs.overflow_counts(number as u32);
        let counters = (0..self.counters.len()).map(counted);
        Ok(Totals {
            cpus: stats
                .into_iter()
                .map(|(cpu, stats)| (cpu, stats, time(cpu)))
                .collect(),
            counters: counters.collect::<Result<_, _>>().map_err(bpf_failure)?,
            late: self.order.late(),
            skipped_operations: self.programs.skipped_operations(),
        })
    }

    /// Returns a descriptor that becomes readable when a round should not wait.
    #[must_use]
    pub fn wake_fd(&self) -> BorrowedFd<'_> {
        self.reader.wake_fd()
    }

    /// Starts the clock of a CPU, unless it is offline by now.
    pub(super) fn start_clock(&mut self, cpu: u32) -> Result<(), Failure> {
        let clock = match open_clock(cpu, self.period_ns) {
            Ok(clock) => clock,
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => return Ok(()),
            Err(error) => return Err(refused("the clock", cpu, &error)),
        };
        let event = clock
            .try_clone()
            .map_err(|error| refused("the clock", cpu, &error))?;
        let begin = match self.programs.clocks().start(cpu, clock) {
            Ok(begin) => begin,
            // It went offline while its clock was being opened.
            Err(_)
                if self
                    .online
                    .read()
                    .is_ok_and(|online| !online.contains(&cpu)) =>
            {
                return Ok(());
            }
            Err(error) => return Err(bpf_failure(error)),
        };
        let time = self.cpus.entry(cpu).or_default();
        time.has_clock = true;
        time.change(Nanos(begin), self.recording);
        if self.boundaries_per_firing > 1 {
            self.set_period(cpu, event.as_fd())?;
        }
        self.clock_events.insert(cpu, event);
        Ok(())
    }

    /// Sets the number of tick boundaries for which the clocks fire once. The boundaries stay where
    /// they are, and each counts: a tick stands for several.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn set_boundaries_per_firing(&mut self, boundaries: u32) -> Result<(), Failure> {
        if self.boundaries_per_firing == boundaries {
            return Ok(());
        }
        self.boundaries_per_firing = boundaries;
        let mut events = self.clock_events.iter();
        events.try_for_each(|(cpu, event)| self.set_period(*cpu, event.as_fd()))
    }

    fn set_period(&self, cpu: u32, event: BorrowedFd<'_>) -> Result<(), Failure> {
        let period = self.period_ns * u64::from(self.boundaries_per_firing);
        set_clock_period(event, period).map_err(|error| refused("the clock", cpu, &error))
    }

    /// Opens a counter on a CPU that has it. `first` marks the first CPU, the only one on which a
    /// tracepoint is opened.
    pub(super) fn open_counter(
        &mut self,
        number: usize,
        cpu: u32,
        first: bool,
    ) -> Result<(), Failure> {
        let request = &self.counters[number];
        let tracepoint = request.event.is_tracepoint();
        let elsewhere = |cpus: &Vec<u32>| !cpus.contains(&cpu);
        if tracepoint && !first || request.event.cpus.as_ref().is_some_and(elsewhere) {
            return Ok(());
        }
        let event = match open_overflow(request, cpu) {
            Ok(event) => event,
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => return Ok(()),
            Err(error) => {
                let attempt = OpenAttempt {
                    event: &request.event,
                    scope: CounterScope::Cpu(cpu),
                    overflows: true,
                };
                let errno = error.raw_os_error().unwrap_or(0);
                return Err(Refusal::from_errno(errno, &attempt, &PerfSettings::read()).into());
            }
        };
        self.programs
            .counters()
            .attach(number as u32, cpu, event, tracepoint)
            .map_err(bpf_failure)
    }

    /// Returns the number of CPUs that have been recorded.
    #[must_use]
    pub fn cpus(&self) -> usize {
        self.cpus.len()
    }

    fn drain(&mut self) -> Result<(), Failure> {
        self.reader.take(&mut self.bytes);
        // Taken out, so that the rest can be changed meanwhile.
        let bytes = std::mem::take(&mut self.bytes);
        for record in Record::decode_all(&bytes.records) {
            self.push(record.map_err(|error| bpf_failure(error.into()))?);
        }
        self.bytes = bytes;
        let order = &mut self.order;
        sideband::records(&self.bytes.sideband, |time, event| {
            order.push(time, InputEvent::Sideband(event));
        });
        Ok(())
    }

    fn take(&mut self, records: Vec<Record>) {
        records.into_iter().for_each(|record| self.push(record));
    }

    fn push(&mut self, record: Record) {
        if let TestState::Running(test) = &mut self.self_test {
            test.observe(&record);
        }
        if let Record::UserReturn(stack) = &record
            && let CapturedStack::StackCopy {
                file, registers, ..
            } = &stack.stack
            && file.inode != 0
        {
            let place = (
                Pid(stack.header.pid),
                stack.header.name,
                registers.address(),
            );
            self.missing_tables.insert(*file, place);
        }
        self.order
            .push(Nanos(record.time_ns()), InputEvent::Record(record));
    }

    /// Adds the events of the processes that run now.
    pub(super) fn snapshot(&mut self) {
        for (time, event) in snapshot::processes(self.capture.is_some()) {
            self.order.push(time, event);
        }
    }
}

/// Returns `kernel.perf_event_max_stack`, or its default if it can't be read.
fn max_frames() -> u32 {
    let text = fs::read_to_string("/proc/sys/kernel/perf_event_max_stack");
    text.ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(127)
}

pub(super) fn no_cpus(error: io::Error) -> Failure {
    Failure::new(
        ExitKind::Unavailable,
        error.to_string(),
        "mount sysfs on /sys",
    )
}

/// Returns the interval of each tracepoint, whose hits the BPF programs count themselves; `None` if
/// there are no counters.
fn hit_intervals(counters: &[CounterRequest]) -> Option<[u64; MAX_COUNTERS]> {
    let mut intervals = [0; MAX_COUNTERS];
    for (interval, request) in intervals.iter_mut().zip(counters) {
        if request.event.is_tracepoint() {
            *interval = request.interval;
        }
    }
    (!counters.is_empty()).then_some(intervals)
}

pub(super) fn refused(what: &str, cpu: u32, error: &io::Error) -> Failure {
    let (kind, hint) = match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => (
            ExitKind::NoPerm,
            "run as root; `kcollect doctor` says what is missing",
        ),
        Some(libc::EMFILE | libc::ENFILE) => (
            ExitKind::Unavailable,
            "raise the limit of open files (ulimit -n)",
        ),
        _ => (
            ExitKind::Unavailable,
            "`kcollect doctor` says what is missing",
        ),
    };
    Failure::new(
        kind,
        format!("cannot open {what} of CPU {cpu}: {error}"),
        hint,
    )
}
