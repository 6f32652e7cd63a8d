//! Where events come from: on each CPU that is online a clock and a side-band ring, and the one
//! snapshot of the processes that were there first. CPUs may come and go.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};

use bpf::{Counted, CpuBooks, Emission, MOST_COUNTERS, Record, Settings, TickCollector};
use counters::names::event::CounterRequest;
use counters::perf::counter::Place;
use counters::perf::cpu_events::{open_clock, open_overflow};
use counters::perf::order::TimeOrder;
use counters::perf::refusal::{OpenAttempt, PerfSettings, Refusal};
use host::exit::{Failure, Kind};
use host::machine::{self, CpuSet};
use procfs::process::MMapPath;
use user_collector::maps::{MappedFile, Mapping};

use crate::record::input::reader::{Bytes, Reader};
use crate::record::input::sideband::{self, SidebandEvent};

/// A record is stamped first and put into its ring a microsecond later, unless a hypervisor takes
/// the CPU away in between. What is older than this, nanoseconds, has arrived.
const SETTLED: u64 = 100_000_000;

/// Long intervals are not waited for.
const LONGEST_SPREAD: Duration = Duration::from_millis(100);

/// Anything that happened at an instant.
#[derive(Clone, Debug)]
pub enum Event {
    /// A clock fired, a thread came back or ended.
    Record(Record),
    /// The side-band told something.
    Sideband(SidebandEvent),
    /// The snapshot found a process.
    Found {
        /// The process.
        pid: u32,
        /// Its name, bytes.
        name: Vec<u8>,
        /// What it has mapped for execution; nothing where nobody is followed.
        mappings: Vec<Mapping>,
    },
    /// The mappings of a process were read, which somebody asked for.
    Reread {
        /// The process.
        pid: u32,
        /// When the reading began, CLOCK_MONOTONIC nanoseconds. The event's own time is when it
        /// ended.
        began: u64,
        /// What it has mapped for execution; nothing if it is gone.
        mappings: Option<Vec<Mapping>>,
    },
    /// Data were taken from this time on, or no longer.
    Recording {
        /// Which of both.
        on: bool,
    },
    /// A sample was taken: all threads have told what they did until its time.
    Sample {
        /// Its time, CLOCK_MONOTONIC nanoseconds.
        at: u64,
        /// Why it was taken.
        label: &'static str,
    },
}

impl Event {
    /// What was going on when data stopped is told a moment later; it belongs to the instant at
    /// which they stopped.
    #[must_use]
    pub fn not_after(mut self, stopped: u64) -> Event {
        let head = match &mut self {
            Event::Record(Record::Absence(absence)) => &mut absence.head,
            Event::Record(Record::Tick(tick)) => &mut tick.head,
            _ => return self,
        };
        head.time = head.time.min(stopped);
        self
    }
}

/// A CPU as it was recorded.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuTime {
    /// For how long its ticks were taken, nanoseconds.
    pub recorded: u64,
    since: Option<u64>,
    has_clock: bool,
}

/// Clocks and side-band of all CPUs.
#[derive(Debug)]
pub struct Sources {
    /// The programs in the kernel.
    pub collector: TickCollector,
    reader: Reader,
    /// What was taken last.
    bytes: Bytes,
    period_ns: u64,
    cpus: BTreeMap<u32, CpuTime>,
    recording: bool,
    order: TimeOrder<Event>,
    follows: bool,
    /// Counters that overflow.
    pub counters: Vec<CounterRequest>,
    /// CPUs that came online or went, with the time at which it was noticed.
    pub hotplug: Vec<(u64, u32, bool)>,
}

impl Sources {
    /// Loads the programs and opens everything; data are not taken yet. `page_fault` is where the
    /// kernel handles page faults, `emission` how user sides are told, if anybody is followed;
    /// `counters` overflow.
    ///
    /// # Errors
    /// A [`Failure`] with its cure.
    pub fn open(
        period_ns: u64,
        record_idle: bool,
        page_fault: (u64, u64),
        emission: Option<Emission>,
        counters: &[CounterRequest],
    ) -> Result<Sources, Failure> {
        let possible = machine::possible_cpus().map_err(no_cpus)?;
        let online = machine::online_cpus().map_err(no_cpus)?;
        let listen = |cpu: &u32| match sideband::listen(*cpu, machine::page_size()) {
            Ok(ring) => Ok((*cpu, ring)),
            Err(error) => Err(refused("the side-band", *cpu, &error)),
        };
        let sideband: Vec<_> = online.iter().map(listen).collect::<Result<_, _>>()?;
        // After the side-band, which so tells the names of our own programs too.
        let (collector, rings) = TickCollector::load(&Settings {
            period_ns,
            record_idle,
            max_frames: max_frames(),
            page_fault,
            cpu_ids: possible.last().map_or(1, |last| last + 1),
            emission,
            counters: hit_intervals(counters),
        })
        .map_err(bpf_failure)?;
        let reader = Reader::new(rings).map_err(|error| {
            let cure = "raise the limit of open files (ulimit -n)";
            Failure::new(Kind::Unavailable, format!("no eventfd: {error}"), cure)
        })?;
        for (cpu, ring) in sideband {
            reader.listen(cpu, ring);
        }
        let mut sources = Sources {
            collector,
            reader,
            bytes: Bytes::default(),
            period_ns,
            cpus: BTreeMap::new(),
            recording: false,
            order: TimeOrder::default(),
            hotplug: Vec::new(),
            follows: emission.is_some(),
            counters: counters.to_vec(),
        };
        for number in 0..counters.len() {
            for (position, cpu) in online.iter().enumerate() {
                sources.open_counter(number, *cpu, position == 0)?;
            }
        }
        sources.snapshot();
        sources.start_clocks(online)?;
        Ok(sources)
    }

    /// From now on the rings are emptied by a thread that does nothing else, with the privileges
    /// that are left by now.
    ///
    /// # Errors
    /// As [`Reader::start`]; the rings are emptied nevertheless, if not as soon.
    pub fn read_apart(&mut self) -> io::Result<()> {
        self.reader.start()
    }

    /// Starts the clocks spread over an interval. A tick disturbs what runs: threads that hand each
    /// other work fall into step with it, and if the next CPU's tick came at a fixed short time
    /// after, it would find them at the same point again and again.
    fn start_clocks(&mut self, cpus: CpuSet) -> Result<(), Failure> {
        let spread = Duration::from_nanos(self.period_ns).min(LONGEST_SPREAD);
        let apart = spread / u32::try_from(cpus.len()).unwrap_or(u32::MAX).max(1);
        for cpu in cpus {
            self.start_clock(cpu)?;
            std::thread::sleep(apart);
        }
        Ok(())
    }

    /// Takes data from now on, or stops taking them. Gives the time of the change.
    ///
    /// # Errors
    /// When a CPU can't be asked for what it slept until now.
    pub fn set_recording(&mut self, on: bool) -> Result<u64, Failure> {
        let now = machine::now();
        self.collector.set_recording(on, now).map_err(bpf_failure)?;
        match on {
            true => self.collector.watch_threads().map_err(bpf_failure)?,
            false => {
                let told = self.collector.close_threads().map_err(bpf_failure)?;
                self.take(told);
            }
        }
        self.recording = on;
        for cpu in self.cpus.values_mut() {
            cpu.change(now, on && cpu.has_clock);
        }
        Ok(now)
    }

    /// Lets the stream of events tell of a change that [`Sources::set_recording`] made at a time.
    pub fn tell_recording(&mut self, on: bool, time: u64) {
        self.order.push(time, Event::Recording { on });
    }

    /// Takes a sample: it comes out of a round, after all that happened until its time.
    ///
    /// # Errors
    /// When the threads can't be asked.
    pub fn sample(&mut self, label: &'static str) -> Result<(), Failure> {
        let at = machine::now();
        if self.recording {
            let told = self.collector.tell_threads(at).map_err(bpf_failure)?;
            self.take(told);
        }
        self.order.push(machine::now(), Event::Sample { at, label });
        Ok(())
    }

    /// One round: takes what has come, and gives what is complete, in time order.
    ///
    /// # Errors
    /// When a ring can't be read.
    pub fn round(&mut self) -> Result<Vec<(u64, Event)>, Failure> {
        let began = machine::now();
        self.drain()?;
        Ok(self.order.release(began.saturating_sub(SETTLED)))
    }

    /// Reads what a process has mapped: it comes out of a later round, after all that happened
    /// until then.
    pub fn read_again(&mut self, pid: u32) {
        let began = machine::now();
        let mappings = Some(mapped_code(pid)).filter(|mappings| !mappings.is_empty());
        let reread = Event::Reread {
            pid,
            began,
            mappings,
        };
        self.order.push(machine::now(), reread);
    }

    /// The last round: everything, after data have been stopped. The clocks are gone then.
    ///
    /// # Errors
    /// When a ring can't be read.
    pub fn finish(&mut self) -> Result<Vec<(u64, Event)>, Failure> {
        self.collector.stop();
        self.drain()?;
        Ok(self.order.release(u64::MAX))
    }

    /// Opens what came online, closes what went. Nothing tells of it but the list of CPUs, so this
    /// is asked once a round.
    ///
    /// # Errors
    /// When a CPU that came can't be opened for another reason than that it went again.
    pub fn follow_hotplug(&mut self) -> Result<(), Failure> {
        let online = machine::online_cpus().map_err(no_cpus)?;
        let clocked: CpuSet = self.collector.cpus().collect();
        if online == clocked {
            return Ok(());
        }
        let now = machine::now();
        for cpu in clocked.difference(&online) {
            self.collector.went_offline(*cpu).map_err(bpf_failure)?;
            // It ticked for the last time shortly before it went, which is nearer than "noticed
            // now".
            let last = self.collector.books(*cpu).map_err(bpf_failure)?.last;
            let time = self.cpus.entry(*cpu).or_default();
            time.has_clock = false;
            time.change(last.max(time.since.unwrap_or(0)), false);
            self.reader.unlisten(*cpu);
            self.hotplug.push((now, *cpu, false));
        }
        let came: Vec<_> = online.difference(&clocked).copied().collect();
        for cpu in &came {
            match sideband::listen(*cpu, machine::page_size()) {
                Ok(ring) => {
                    self.reader.listen(*cpu, ring);
                    self.start_clock(*cpu)?;
                    for number in 0..self.counters.len() {
                        self.open_counter(number, *cpu, false)?;
                    }
                }
                Err(error) if error.raw_os_error() == Some(libc::ENODEV) => continue,
                Err(error) => return Err(refused("the side-band", *cpu, &error)),
            }
            self.hotplug.push((now, *cpu, true));
        }
        if !came.is_empty() {
            // What began there before its side-band was open.
            self.snapshot();
        }
        Ok(())
    }

    /// The books of every CPU that ticked, with its recorded time.
    ///
    /// # Errors
    /// When they can't be read.
    pub fn books(&self) -> Result<Vec<(u32, CpuBooks, CpuTime)>, Failure> {
        let books = self.collector.all_books().map_err(bpf_failure)?;
        let time = |cpu| self.cpus.get(&cpu).copied().unwrap_or_default();
        Ok(books
            .into_iter()
            .map(|(cpu, books)| (cpu, books, time(cpu)))
            .collect())
    }

    /// Events that came after their time had been passed on.
    #[must_use]
    pub fn late(&self) -> u64 {
        self.order.late()
    }

    /// Becomes readable when a round should not wait.
    #[must_use]
    pub fn wake_fd(&self) -> BorrowedFd<'_> {
        self.reader.wake_fd()
    }

    fn start_clock(&mut self, cpu: u32) -> Result<(), Failure> {
        let clock = match open_clock(cpu, self.period_ns) {
            Ok(clock) => clock,
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => return Ok(()),
            Err(error) => return Err(refused("the clock", cpu, &error)),
        };
        let begin = match self.collector.attach(cpu, clock) {
            Ok(begin) => begin,
            // It went while it was being opened.
            Err(_) if machine::online_cpus().is_ok_and(|online| !online.contains(&cpu)) => {
                return Ok(());
            }
            Err(error) => return Err(bpf_failure(error)),
        };
        let time = self.cpus.entry(cpu).or_default();
        time.has_clock = true;
        time.change(begin, self.recording);
        Ok(())
    }

    /// Opens a counter on a CPU, if it is there; `first` of all CPUs, where tracepoints are opened.
    fn open_counter(&mut self, number: usize, cpu: u32, first: bool) -> Result<(), Failure> {
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
                    place: Place::Cpu(cpu),
                    overflows: true,
                };
                let errno = error.raw_os_error().unwrap_or(0);
                return Err(Refusal::from_errno(errno, &attempt, &PerfSettings::read()).into());
            }
        };
        self.collector
            .attach_counter(number as u32, cpu, event, tracepoint)
            .map_err(bpf_failure)
    }

    /// What became of the events of a counter, by its number in the order in which they were asked
    /// for.
    ///
    /// # Errors
    /// When it can't be read.
    pub fn counted(&self, number: u32) -> Result<Counted, Failure> {
        self.collector.counted(number).map_err(bpf_failure)
    }

    /// How many CPUs have been recorded.
    #[must_use]
    pub fn cpus(&self) -> usize {
        self.cpus.len()
    }

    fn drain(&mut self) -> Result<(), Failure> {
        self.reader.take(&mut self.bytes).map_err(bpf_failure)?;
        self.take(Record::decode_all(&self.bytes.records).map_err(bpf_failure)?);
        let order = &mut self.order;
        sideband::records(&self.bytes.sideband, |time, event| {
            order.push(time, Event::Sideband(event));
        });
        Ok(())
    }

    fn take(&mut self, records: Vec<Record>) {
        for record in records {
            self.order.push(record.time(), Event::Record(record));
        }
    }

    /// Every process there is, each at the time at which it was looked at. One that goes meanwhile
    /// is passed over: the side-band has it.
    fn snapshot(&mut self) {
        let Ok(entries) = fs::read_dir("/proc") else {
            return;
        };
        let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        for pid in pids {
            let time = machine::now();
            if let Ok(mut name) = fs::read(format!("/proc/{pid}/comm")) {
                name.pop();
                let mappings = match self.follows {
                    true => mapped_code(pid),
                    false => Vec::new(),
                };
                let found = Event::Found {
                    pid,
                    name,
                    mappings,
                };
                self.order.push(time, found);
            }
        }
    }
}

/// What a process has mapped for execution; nothing if it is gone, or the kernel's own.
fn mapped_code(pid: u32) -> Vec<Mapping> {
    let maps = i32::try_from(pid)
        .ok()
        .and_then(|pid| procfs::process::Process::new(pid).ok()?.maps().ok());
    let executable = maps
        .into_iter()
        .flatten()
        .filter(|map| map.perms.contains(procfs::process::MMPermissions::EXECUTE));
    executable
        .map(|map| Mapping {
            start: map.address.0,
            end: map.address.1,
            offset: map.offset,
            file: Arc::new(MappedFile {
                path: path_of(&map.pathname),
                build_id: Box::default(),
                identity: (
                    libc::makedev(map.dev.0.cast_unsigned(), map.dev.1.cast_unsigned()),
                    map.inode,
                    0,
                ),
            }),
        })
        .collect()
}

/// As the side-band would tell it.
fn path_of(path: &MMapPath) -> Box<[u8]> {
    match path {
        MMapPath::Path(path) => path.as_os_str().as_bytes().into(),
        MMapPath::Vdso => b"[vdso]".as_slice().into(),
        MMapPath::Vsyscall => b"[vsyscall]".as_slice().into(),
        MMapPath::Heap => b"[heap]".as_slice().into(),
        _ => b"//anon".as_slice().into(),
    }
}

impl CpuTime {
    fn change(&mut self, now: u64, recording: bool) {
        if let Some(since) = self.since.take() {
            self.recorded += now.saturating_sub(since);
        }
        self.since = recording.then_some(now);
    }
}

/// `kernel.perf_event_max_stack`; its default where it can't be read.
fn max_frames() -> u32 {
    let text = fs::read_to_string("/proc/sys/kernel/perf_event_max_stack");
    text.ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(127)
}

fn no_cpus(error: io::Error) -> Failure {
    Failure::new(Kind::Unavailable, error.to_string(), "mount sysfs on /sys")
}

/// What the programs have to know of counters.
fn hit_intervals(counters: &[CounterRequest]) -> Option<[u64; MOST_COUNTERS]> {
    let mut intervals = [0; MOST_COUNTERS];
    for (interval, request) in intervals.iter_mut().zip(counters) {
        if request.event.is_tracepoint() {
            *interval = request.interval;
        }
    }
    (!counters.is_empty()).then_some(intervals)
}

fn refused(what: &str, cpu: u32, error: &io::Error) -> Failure {
    let (kind, cure) = match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => (
            Kind::NoPerm,
            "run as root; `kcollect doctor` says what is missing",
        ),
        Some(libc::EMFILE | libc::ENFILE) => (
            Kind::Unavailable,
            "raise the limit of open files (ulimit -n)",
        ),
        _ => (Kind::Unavailable, "`kcollect doctor` says what is missing"),
    };
    Failure::new(
        kind,
        format!("cannot open {what} of CPU {cpu}: {error}"),
        cure,
    )
}

fn bpf_failure(error: bpf::Error) -> Failure {
    let kind = if error.is_permission() {
        Kind::NoPerm
    } else {
        Kind::Unavailable
    };
    Failure::new(
        kind,
        error.to_string(),
        "`kcollect doctor` says what is missing",
    )
}
