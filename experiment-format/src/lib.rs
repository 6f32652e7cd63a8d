//! The gprofng experiment format: a directory that stock `gprofng display text` opens.
//!
//! An experiment is a profile with all that is needed to analyze it later and on another machine.
//! This crate writes and reads experiments of 64-bit, little-endian data of format version 12.4.
//!
//! # The directory, and the module of each file
//!
//! ```text
//! ktest.1.er/           directory      names; made with mode 0700, files opened by descriptor
//!   log.xml             log            what was recorded, when, on which machine
//!   map.xml             map            what was mapped where, and when
//!   profile             packet         the ticks: packets that log.xml declares
//!   hwcounters          packet         the overflows of counters
//!   synctrace           packet         waits for locks
//!   iotrace             packet         system calls that do I/O
//!   heaptrace           packet         memory that came and went
//!   data.frameinfo      stacks         the call stacks that packets refer to
//!   overview            usage          resource usage, one record per sample
//!   dyntext             dynamic_code   machine code of functions that are in no file
//!   archives/           archive        copies of load objects
//!                       elf_image      load objects that never were files, such as the kernel
//!   notes               writer         text that gprofng prints ahead of the header
//!   warnings.xml        log            more events
//!   _NAME_PID_n.1.er/   writer         the experiment of a process: the same, without archives
//! ```
//!
//! Collectors may add files that are not of the format, such as `kcollect.json`; gprofng ignores
//! them.
//!
//! # The other modules
//!
//! * [`writer`] writes the directory; `file` holds the two kinds of files that it fills, `xml` the
//!   dialect of the text files.
//! * [`packed`] packs a directory into one file and unpacks it.
//! * [`reader`] reads it. [`address_space`] replays the map and [`functions`] reads the archives,
//!   to get from an address and a time to a function.
//! * [`losses`] counts what is missing from an experiment, and [`kernel`] has names that writers
//!   and readers of experiments of the kernel share.
//! * [`calls`] has the names and numbers of system calls.
//! * [`microstate`] has the states of a thread, which are columns of reports.
//! * [`groups`] matches units, containers and control groups of processes.
//! * [`ids`] has the types of the numbers of processes, threads and stacks.
//! * [`units`] has the types of times and ticks, and [`text`] makes names of processes safe to
//!   print. They are from the crate `kcollect-types`.
//!
//! # What holds at any time
//!
//! A reader may look while the writer runs, and the writer may be killed. Elements of XML and usage
//! records are written whole or taken back; packets become visible by one store; a stack is in its
//! file before the first packet that refers to it. A full disk is an error for which
//! [`Error::is_disk_full`] holds; the experiment can still be closed and is then valid.
//!
//! # Example
//!
//! ```
//! use experiment_format::cause::Cause;
//! use experiment_format::directory::{ExperimentDir, NameRequest};
//! use experiment_format::ids::{Pid, Tid};
//! use experiment_format::log::{Cpu, LogHeader, ProfileDecl, StartTime, System};
//! use experiment_format::map::MapEvent;
//! use experiment_format::microstate::{Microstate, NumStates};
//! use experiment_format::packet::{ClockTick, Detail};
//! use experiment_format::reader::Experiment;
//! use experiment_format::stacks::StackEnd;
//! use experiment_format::units::{Nanos, Ticks};
//! use experiment_format::usage::UsageRecord;
//! use experiment_format::writer::ExperimentWriter;
//!
//! # fn main() -> experiment_format::Result<()> {
//! # let tmp = tempfile::tempdir().unwrap();
//! # let parent = tmp.path();
//! let request = NameRequest::Series { stem: "ktest".into() };
//! let (dir, _) = ExperimentDir::create(parent, &request, None)?;
//! assert_eq!(dir.name(), "ktest.1.er");
//!
//! let header = LogHeader {
//!     collector: "example 1".into(),
//!     system: System {
//!         hostname: "db1".into(),
//!         arch: "x86_64".into(),
//!         page_size: 4096,
//!         pages: 1 << 20,
//!         cpus: vec![Cpu { id: 0, mhz: 2600 }],
//!     },
//!     pid: Pid(4242),
//!     command_line: "kernel".into(),
//!     profiles: vec![
//!         // The ticks of CPUs: the metric is "Kernel CPU Time", in ticks of 10 ms.
//!         ClockTick::table_of_cpus(10_000),
//!         // The ticks of threads: ten metrics, one for each state.
//!         ClockTick::table(10_000),
//!     ],
//!     ..LogHeader::default()
//! };
//! let start = Nanos::from_secs(1);
//! let run = StartTime { tstamp_ns: start, wall_s: 1_795_205_070, ..StartTime::default() };
//! let mut writer = ExperimentWriter::create(dir, &header, run)?;
//! let (at_ns, name) = (Nanos::ZERO, "<IDLE>".into());
//! writer.map(&MapEvent::Function { at_ns, vaddr: 0x2000, size: 256, name })?;
//! writer.sample(Nanos::ZERO, "start", &UsageRecord::default())?;
//! let stack = writer.stack(&[0x2000], StackEnd::Complete)?;
//! let of_cpu = ClockTick {
//!     cpu: 0,
//!     time_ns: start + Nanos::from_millis(10),
//!     stack,
//!     tid: Tid(0),
//!     pid: Pid(0),
//!     state: Microstate::KernelCpu,
//!     ticks: Ticks(1),
//!     detail: Detail::None.number(),
//!     cause: Cause::Undecided,
//!     waker: Tid(0),
//! };
//! writer.tick(&of_cpu)?;
//! // A thread that slept 7 ticks for a disk.
//! let (state, ticks, detail) = (Microstate::Sleep, Ticks(7), Detail::BlockIo.number());
//! let (tid, pid) = (Tid(12), Pid(12));
//! writer.tick(&ClockTick { tid, pid, state, ticks, detail, ..of_cpu })?;
//! let path = writer.close(Nanos::from_millis(20))?;
//!
//! let experiment = Experiment::open(&path)?;
//! assert!(experiment.is_closed());
//! let (stacks, space) = (experiment.stacks()?, experiment.address_space()?);
//! let mut archives = experiment.archives();
//! let mut slept = 0;
//! for tick in experiment.ticks()? {
//!     let tick = tick?;
//!     if tick.state == Microstate::Sleep.number() {
//!         slept += tick.ticks;
//!     }
//!     let leaf = tick.shared.stack.and_then(|uid| stacks.get(uid)).unwrap().frames[0];
//!     let at_ns = tick.shared.time_ns - experiment.start().tstamp_ns;
//!     let function = archives.function_at(&space, leaf, at_ns)?.unwrap();
//!     assert_eq!(function.name, Some("<IDLE>"));
//! }
//! assert_eq!(slept, 7);
//! # Ok(())
//! # }
//! ```

pub mod address_space;
pub mod archive;
pub mod calls;
pub mod cause;
pub mod copies;
pub mod directory;
pub mod dynamic_code;
pub mod elf_image;
pub mod error;
mod file;
pub mod functions;
pub mod groups;
pub mod ids;
pub mod kernel;
pub mod log;
pub mod losses;
pub mod map;
pub mod microstate;
pub mod packed;
pub mod packet;
pub mod reader;
pub mod stacks;
pub mod usage;
pub mod writer;
mod xml;

pub use error::Error;
pub use types::{text, units};

/// The result of a fallible call of this crate.
pub type Result<T> = std::result::Result<T, Error>;
