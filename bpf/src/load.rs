//! Loads the programs, attaches them to clock events and reads the books.
//!
//! The one writer, for a CPU that is offline, of the map `books`.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Read as _;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd as _, IntoRawFd as _, OwnedFd};
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};
use libbpf_rs::{ErrorKind, Iter, Link, MapCore as _, MapFlags, ProgramInput, ProgramMut};
use libbpf_sys::BPF_F_TEST_RUN_ON_CPU;

use crate::counters::{Attached, MOST_COUNTERS};
use crate::rings::{CPUS_PER_RING, Rings};
use crate::skeleton::{CollectorSkel, CollectorSkelBuilder};
use crate::tables::{Mapped, PageRows, PlacedTable, RULE_SIZE, TableId, TableUse, Tables};
use crate::verifier::with_log;
use crate::wire::{MAX_FRAMES, Record};
use crate::{CpuBooks, Error};

/// As in `c/maps.h`.
const SCRATCHES: u32 = 4;
/// Bytes of one ring. Eight busy CPUs at 1000 Hz with 25 frames each fill it in a second and a
/// half; the reader comes round five times a second, and is woken at a quarter.
const RING_SIZE: u32 = 2 << 20;
/// And with user stacks, of which those of brief programs are copied.
const RING_SIZE_WITH_USER: u32 = 4 << 20;

/// CLOCK_MONOTONIC nanoseconds: an end of all data that comes before every boundary. 0 would be no
/// end.
const BEFORE_ALL_DATA: u64 = 1;

/// What is fixed when the programs are loaded.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The clock interval, nanoseconds.
    pub period_ns: u64,
    /// Send the ticks of the idle task too (`-x off`).
    pub record_idle: bool,
    /// `kernel.perf_event_max_stack`: a stack of that many frames counts as truncated.
    pub max_frames: u32,
    /// First address and end of the kernel's page fault handler.
    pub page_fault: (u64, u64),
    /// One more than the largest CPU id that this machine can have.
    pub cpu_ids: u32,
    /// How threads' entries to user mode are told, if anybody asks for the user side of what they
    /// do.
    pub emission: Option<Emission>,
    /// If there are counters that overflow: of each that is a tracepoint after how many hits it
    /// does; 0 for others.
    pub counters: Option<[u64; MOST_COUNTERS]>,
}

/// When the user side of what was recorded in the kernel is told: the join is by thread and number
/// of the entry to user mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Emission {
    /// By a thread that was away itself, on its way to user mode; by a tick at once.
    OnEntry,
    /// When something is recorded and the thread is not at the place in user mode that was told
    /// last.
    AtPlace,
}

impl Emission {
    /// What the running kernel can do: whether its types tell of a callback on entry to user mode
    /// (`bpf_task_work_schedule_resume_impl`, Linux 6.18).
    #[must_use]
    pub fn probe() -> Emission {
        let types = libbpf_rs::btf::Btf::from_vmlinux();
        let callback = types.is_ok_and(|types| {
            types
                .type_by_name::<libbpf_rs::btf::types::Func<'_>>(
                    "bpf_task_work_schedule_resume_impl",
                )
                .is_some()
        });
        match callback {
            true => Emission::OnEntry,
            false => Emission::AtPlace,
        }
    }
}

impl fmt::Display for Emission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Emission::OnEntry => "by the thread, on its next entry to user mode",
            Emission::AtPlace => "when recorded, once for each place in user mode",
        })
    }
}

/// The loaded programs.
///
/// Dropping it detaches and unloads everything.
pub struct TickCollector {
    // Before the skeleton, so that no tick comes while it goes.
    links: BTreeMap<u32, Link>,
    pub(crate) attached: Attached,
    _hooks: [Link; 5],
    pub(crate) skel: CollectorSkel<'static>,
    tables: Tables,
    cpu_ids: u32,
}

impl fmt::Debug for TickCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TickCollector")
            .field("cpus", &self.links.keys())
            .finish_non_exhaustive()
    }
}

impl TickCollector {
    /// Loads the programs and makes their rings; no clock runs yet, and
    /// [`TickCollector::set_recording`] is off.
    ///
    /// # Errors
    /// [`Error::Load`] with the verifier's log when the kernel refuses them, [`Error::Step`] when a
    /// ring can't be made.
    pub fn load(settings: &Settings) -> Result<(TickCollector, Rings), Error> {
        let (loaded, log) = with_log(|| open_and_load(settings));
        let skel = loaded.map_err(|source| Error::Load { source, log })?;

        let size = match settings.emission {
            Some(_) => RING_SIZE_WITH_USER,
            None => RING_SIZE,
        };
        let rings = Rings::make(&skel, settings.cpu_ids.div_ceil(CPUS_PER_RING), size)?;
        let hooks = [
            skel.progs.idle.attach(),
            skel.progs.on_switch.attach(),
            skel.progs.on_user_fault.attach(),
            skel.progs.on_kernel_fault.attach(),
            skel.progs.on_birth.attach(),
        ];
        let [idle, switch, user_fault, kernel_fault, birth] = hooks;
        let hooks = [
            idle.map_err(step("watch idle CPUs"))?,
            switch.map_err(step("watch changes of thread"))?,
            user_fault.map_err(step("watch page faults of user mode"))?,
            kernel_fault.map_err(step("watch page faults of the kernel"))?,
            birth.map_err(step("watch births of processes"))?,
        ];
        // So that this CPU has changed its thread once, by which its scheduler's clock is known.
        std::thread::sleep(Duration::from_millis(1));
        let collector = TickCollector {
            links: BTreeMap::new(),
            attached: Attached::default(),
            _hooks: hooks,
            skel,
            tables: Tables::default(),
            cpu_ids: settings.cpu_ids,
        };
        Ok((collector, rings))
    }

    /// Attaches the tick to a CPU's clock event and starts that clock, on a grid of its own. Gives
    /// the grid's beginning, CLOCK_MONOTONIC nanoseconds.
    ///
    /// The event closes when the CPU goes offline, the clocks are stopped or the collector dropped.
    ///
    /// # Errors
    /// [`Error::Step`] when the kernel refuses.
    pub fn attach(&mut self, cpu: u32, event: OwnedFd) -> Result<u64, Error> {
        run_on(&self.skel.progs.begin, cpu)
            .map_err(step(format!("begin the tick grid of CPU {cpu}")))?;
        let link = self
            .skel
            .progs
            .tick
            .attach_perf_event(event.as_raw_fd())
            .map_err(step(format!("attach the tick to the clock of CPU {cpu}")))?;
        // The link closes it from now on.
        let _ = event.into_raw_fd();
        self.links.insert(cpu, link);
        Ok(self.books(cpu)?.origin)
    }

    /// Forgets the clock and the grid of a CPU that has gone offline, keeping what its books have
    /// counted.
    ///
    /// # Errors
    /// [`Error::Step`] when the books can't be written.
    pub fn went_offline(&mut self, cpu: u32) -> Result<(), Error> {
        self.links.remove(&cpu);
        self.close_counters(cpu);
        // Or the time that it is away would pass on its old grid.
        let counted = CpuBooks {
            origin: 0,
            in_idle: 0,
            ..self.books(cpu)?
        };
        self.skel
            .maps
            .books
            .update(&cpu.to_ne_bytes(), &counted.encode(), MapFlags::ANY)
            .map_err(step(format!("forget the tick grid of CPU {cpu}")))
    }

    /// Stops all clocks.
    pub fn stop(&mut self) {
        self.links.clear();
    }

    /// CPUs that have a clock, in order.
    pub fn cpus(&self) -> impl Iterator<Item = u32> + '_ {
        self.links.keys().copied()
    }

    /// Begins to take data, or stops, on all CPUs at the instant `now` (CLOCK_MONOTONIC
    /// nanoseconds): no boundary before or after it counts, whenever a CPU comes to count it.
    /// [`TickCollector::watch_threads`] or [`TickCollector::close_threads`] has to follow at once.
    ///
    /// # Errors
    /// [`Error::Step`] when a CPU can't be asked for what it has slept until now.
    pub fn set_recording(&mut self, on: bool, now: u64) -> Result<(), Error> {
        // Counted within the time in which their overflows are recorded.
        if !on {
            self.enable_counters(false)?;
        }
        let Some(bss) = self.skel.maps.bss_data.as_deref_mut() else {
            return Ok(());
        };
        if on {
            // Each is to be seen after the one before it.
            bss.begin_ns = now;
            fence(Ordering::Release);
            bss.recording = true;
            fence(Ordering::Release);
            bss.until_ns = 0;
            return self.enable_counters(true);
        }
        if !bss.recording {
            return Ok(());
        }
        bss.until_ns = now;
        fence(Ordering::Release);
        // Twice: the second time nothing counts any more, but when a CPU has come to it, no program
        // is at work there that still saw data being taken.
        for recording in [true, false] {
            bss.recording = recording;
            for cpu in self.links.keys() {
                match run_on(&self.skel.progs.settle, *cpu) {
                    // It has just gone offline: nothing sleeps there.
                    Err(error) if error.kind() == ErrorKind::Other => {}
                    other => other.map_err(step(format!("settle the books of CPU {cpu}")))?,
                }
            }
        }
        Ok(())
    }

    pub(crate) fn is_recording(&self) -> bool {
        self.skel
            .maps
            .bss_data
            .as_deref()
            .is_some_and(|bss| bss.recording)
    }

    /// Enters all threads that live. To be called when data have begun.
    ///
    /// # Errors
    /// [`Error::Step`] when the threads can't be walked.
    pub fn watch_threads(&mut self) -> Result<(), Error> {
        walk_threads(&self.skel.progs.watch_all).map(drop)
    }

    /// What each thread that lives has done until an instant, CLOCK_MONOTONIC nanoseconds, that has
    /// just passed. Threads that ended are told in the rings.
    ///
    /// # Errors
    /// [`Error::Step`] when the threads can't be walked, [`Error::Record`] as
    /// [`Record::decode_all`].
    pub fn tell_threads(&mut self, now: u64) -> Result<Vec<Record>, Error> {
        if let Some(bss) = self.skel.maps.bss_data.as_deref_mut() {
            bss.tell_ns = now;
        }
        walk_threads(&self.skel.progs.tell_all)
    }

    /// Closes the accounts of all threads that live, when data have stopped: what each has done,
    /// and the absences that go on.
    ///
    /// # Errors
    /// As [`TickCollector::tell_threads`].
    pub fn close_threads(&mut self) -> Result<Vec<Record>, Error> {
        walk_threads(&self.skel.progs.close_all)
    }

    /// More rules, numbered on from those that there are.
    pub fn add_rules(&mut self, encoded: impl Iterator<Item = [u8; RULE_SIZE]>) {
        self.tables.add_rules(&mut self.skel, encoded);
    }

    /// Hands an unwind table to the programs: its rows as the low half of an address and the number
    /// of a rule, by page; `row` gives each of them. Nothing where there is no room for it, or
    /// where it is empty, or its addresses lie more than 1 GiB apart.
    ///
    /// # Errors
    /// [`Error::Step`] when the kernel has no memory for it.
    pub fn place_table(
        &mut self,
        pages: &[PageRows],
        row: impl Fn(usize) -> [u16; 2],
    ) -> Result<Option<PlacedTable>, Error> {
        self.tables.place(&mut self.skel, pages, row)
    }

    /// Takes a table away. No process may have it any more, and nobody reads it: others get its
    /// place.
    pub fn remove_table(&mut self, table: TableId) {
        self.tables.remove(table);
    }

    /// Makes the code known that is mapped in a process, by rising start, while it executes its
    /// program of that number ([`crate::Entry::execution`]); or, where that is not known, what it
    /// executes when [`TickCollector::watch_threads`] is called next. Gives the version by which
    /// stacks say that they were walked by this; nothing where there is no room.
    ///
    /// # Errors
    /// [`Error::Step`] when the kernel has no memory for it.
    pub fn set_process(
        &mut self,
        pid: u32,
        execution: Option<u32>,
        mapped: &[Mapped],
    ) -> Result<Option<u32>, Error> {
        self.tables
            .set_process(&mut self.skel, pid, execution, mapped)
    }

    /// Nobody asks for the user side of a process, as long as it executes this program.
    ///
    /// # Errors
    /// As [`TickCollector::set_process`].
    pub fn ignore_process(&mut self, pid: u32, execution: u32) -> Result<(), Error> {
        self.tables.ignore_process(&self.skel, pid, execution)
    }

    /// A process is gone.
    pub fn forget_process(&mut self, pid: u32) {
        self.tables.forget_process(&self.skel, pid);
    }

    /// To be called once a round: what was replaced a round ago is used again.
    pub fn tidy_tables(&mut self) {
        self.tables.tidy();
    }

    /// How much the tables take.
    #[must_use]
    pub fn table_use(&self) -> TableUse {
        self.tables.in_use()
    }

    /// The books of one CPU.
    ///
    /// # Errors
    /// [`Error::Step`] when the map can't be read, [`Error::NoCpu`] for an id beyond the machine's.
    pub fn books(&self, cpu: u32) -> Result<CpuBooks, Error> {
        let bytes = self
            .skel
            .maps
            .books
            .lookup(&cpu.to_ne_bytes(), MapFlags::ANY)
            .map_err(step(format!("read the books of CPU {cpu}")))?;
        bytes
            .as_deref()
            .and_then(CpuBooks::decode)
            .ok_or(Error::NoCpu { cpu })
    }

    /// The books of every CPU that ever ticked, with its id.
    ///
    /// # Errors
    /// As [`TickCollector::books`].
    pub fn all_books(&self) -> Result<Vec<(u32, CpuBooks)>, Error> {
        (0..self.cpu_ids)
            .map(|cpu| Ok((cpu, self.books(cpu)?)))
            .filter(|entry| !matches!(entry, Ok((_, books)) if books.last == 0))
            .collect()
    }
}

fn open_and_load(settings: &Settings) -> libbpf_rs::Result<CollectorSkel<'static>> {
    // One object for the life of the process: a leak of a few words buys a skeleton without a
    // borrowed owner beside it.
    let object = Box::leak(Box::new(MaybeUninit::uninit()));
    let mut open = CollectorSkelBuilder::default().open(object)?;
    if let Some(bss) = open.maps.bss_data.as_deref_mut() {
        bss.until_ns = BEFORE_ALL_DATA;
    }
    if let Some(rodata) = open.maps.rodata_data.as_deref_mut() {
        rodata.period_ns = settings.period_ns;
        rodata.record_idle = settings.record_idle;
        rodata.tell_entries = settings.emission.is_some();
        rodata.callback_on_entry = settings.emission == Some(Emission::OnEntry);
        (rodata.page_fault_from, rodata.page_fault_to) = settings.page_fault;
        rodata.counting = settings.counters.is_some();
        rodata.own_pid = std::process::id();
        rodata.hit_interval = settings.counters.unwrap_or_default();
        rodata.max_frames = settings.max_frames.min(MAX_FRAMES as u32);
    }
    open.progs
        .overflow
        .set_autoload(settings.counters.is_some());
    open.progs.hit.set_autoload(settings.counters.is_some());
    open.maps.books.set_max_entries(settings.cpu_ids)?;
    if settings.emission.is_some() {
        open.maps
            .user_scratch
            .set_max_entries(settings.cpu_ids * SCRATCHES)?;
    }
    open.maps
        .rings
        .set_max_entries(settings.cpu_ids.div_ceil(CPUS_PER_RING))?;
    open.load()
}

/// Runs a program on a CPU, in its interrupt, and waits for it.
fn run_on(program: &ProgramMut<'_>, cpu: u32) -> libbpf_rs::Result<()> {
    let input = ProgramInput {
        cpu,
        flags: BPF_F_TEST_RUN_ON_CPU,
        ..Default::default()
    };
    program.test_run(input).map(drop)
}

/// Runs an iterator over all threads, and decodes what it writes.
fn walk_threads(program: &ProgramMut<'_>) -> Result<Vec<Record>, Error> {
    // Much less than the kernel buffers, or it runs a program twice for a thread that no longer
    // fitted.
    const AT_A_TIME: usize = 4096;
    let link = program.attach().map_err(step("walk the threads"))?;
    let mut walk = Iter::new(&link).map_err(step("walk the threads"))?;
    let (mut bytes, mut part) = (Vec::new(), [0; AT_A_TIME]);
    loop {
        match walk.read(&mut part) {
            Ok(0) => break,
            Ok(length) => bytes.extend_from_slice(&part[..length]),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            // Many threads in a row had nothing to say.
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(step("walk the threads")(error.into())),
        }
    }
    Record::decode_all(&bytes)
}

pub(crate) fn step(what: impl Into<String>) -> impl FnOnce(libbpf_rs::Error) -> Error {
    let what = what.into();
    move |source| Error::Step { what, source }
}

const _: () = assert!(CpuBooks::SIZE == 192);
