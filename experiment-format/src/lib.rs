//! The gprofng experiment format: a directory that stock `gprofng display text` opens.
//!
//! An experiment is a profile with all that is needed to understand it later and elsewhere. This
//! crate writes and reads it: [`writer::ExperimentWriter`], for what is inside
//! [`subexperiment::SubexperimentWriter`], and [`reader::Experiment`]. All are for one machine
//! word: 64-bit, little-endian data of version 12.4.
//!
//! # The directory
//!
//! ```text
//! ktest.1.er/           made by layout::ExperimentDir: mode 0700, everything by descriptor
//!   log.xml             who recorded what and when: log
//!   map.xml             what lay where in memory, and when: map, replayed by space
//!   profile             the ticks, packets that log.xml describes: packet
//!   data.frameinfo      the call stacks that packets refer to: stacks
//!   overview            resource usage, one record per sample: usage
//!   archives/           copies of load objects: archive; those that never were files: image
//!   notes               text ahead of the header
//!   warnings.xml        more events
//!   kcollect.json       whatever the format has no place for
//!   _NAME_PID_n.1.er/   subexperiments, the same again without archives: subexperiment
//! ```
//!
//! # What holds at any time
//!
//! A reader may look while the writer is at work, and the writer may be killed. Elements of XML and
//! usage records are written whole or taken back; packets become visible by one store; a stack is
//! there before the first packet that refers to it. A disk that is full is an error for which
//! [`Error::is_disk_full`] holds; the experiment can still be closed and is then valid.
//!
//! # Example
//!
//! ```
//! use experiment_format::layout::{ExperimentDir, NameRequest};
//! use experiment_format::log::{Cpu, Header, ProfileDecl, Run, System};
//! use experiment_format::map::MapEvent;
//! use experiment_format::microstate::{Microstate, NumStates};
//! use experiment_format::packet::{ClockTick, Detail, TickArray};
//! use experiment_format::reader::Experiment;
//! use experiment_format::stacks::StackEnd;
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
//! let header = Header {
//!     collector: "example 1".into(),
//!     system: System {
//!         hostname: "db1".into(),
//!         arch: "x86_64".into(),
//!         page_size: 4096,
//!         pages: 1 << 20,
//!         cpus: vec![Cpu { id: 0, mhz: 2600 }],
//!     },
//!     pid: 4242,
//!     command_line: "kernel".into(),
//!     profiles: vec![
//!         // What CPUs did: the metric is "Kernel CPU Time", of ticks of 10 ms.
//!         ProfileDecl::Clock {
//!             tick_us: 10_000,
//!             states: NumStates::Kernel,
//!             packets: vec![ClockTick::declaration()],
//!         },
//!         // What threads did: ten metrics, one for each state. This table has to be the last.
//!         ProfileDecl::Clock {
//!             tick_us: 10_000,
//!             states: NumStates::Solaris,
//!             packets: vec![TickArray::declaration()],
//!         },
//!     ],
//!     ..Header::default()
//! };
//! let start = 1_000_000_000;
//! let run = Run { tstamp: start, wall: 1_795_205_070, tm_zone: 0 };
//! let mut writer = ExperimentWriter::create(dir, &header, run)?;
//! writer.map(&MapEvent::Function { at: 0, vaddr: 0x2000, size: 256, name: "<IDLE>".into() })?;
//! writer.sample(0, "start", &UsageRecord::default())?;
//! let stack = writer.stack(&[0x2000], StackEnd::Complete)?;
//! writer.tick(&ClockTick {
//!     cpu: 0,
//!     time: start + 10_000_000,
//!     stack,
//!     tid: 0,
//!     pid: 0,
//!     state: Microstate::KernelCpu,
//!     ticks: 1,
//! })?;
//! // A thread that slept 7 ticks, for a disk, and then ran to this stack.
//! let mut ticks = [0; Microstate::PER_THREAD];
//! ticks[Microstate::Sleep as usize] = 7;
//! let detail = Detail::BlockIo.number();
//! let (cpu, time) = (0, start + 15_000_000);
//! writer.tick_array(&TickArray { cpu, time, stack, tid: 12, pid: 12, ticks, detail })?;
//! let path = writer.close(20_000_000)?;
//!
//! let experiment = Experiment::open(&path)?;
//! assert!(experiment.is_closed());
//! let (stacks, space) = (experiment.stacks()?, experiment.address_space()?);
//! let mut archives = experiment.archives();
//! let mut slept = 0;
//! for tick in experiment.ticks()? {
//!     // One record for each state, whichever packet it comes from.
//!     let tick = tick?;
//!     if tick.state == Microstate::Sleep.number() {
//!         slept += tick.ticks;
//!     }
//!     let leaf = tick.stack.and_then(|uid| stacks.get(uid)).unwrap().frames[0];
//!     let at = tick.time - experiment.start().tstamp;
//!     let function = archives.function_at(&space, leaf, at)?.unwrap();
//!     assert_eq!(function.name, Some("<IDLE>"));
//! }
//! assert_eq!(slept, 7);
//! # Ok(())
//! # }
//! ```

mod append;
pub mod archive;
mod block;
pub mod error;
pub mod functions;
mod guard;
pub mod image;
pub mod kernel;
pub mod layout;
pub mod log;
pub mod losses;
pub mod map;
pub mod microstate;
pub mod packet;
pub mod reader;
pub mod space;
pub mod stacks;
pub mod subexperiment;
pub mod usage;
mod walk;
pub mod writer;
mod xml;

pub use error::Error;

/// What a fallible call of this crate returns.
pub type Result<T> = std::result::Result<T, Error>;
