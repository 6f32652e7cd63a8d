//! `log.xml`: who recorded what, when, on which machine.
//!
//! The file is a sequence of elements without a root: a header that never changes, then events in
//! the order in which they happened. The types here say what it means; what cannot be said in the
//! file, or what gprofng would misread, is refused when it is written, not silently altered.

use crate::Result;
use crate::error::Error;
use crate::microstate::NumStates;
use crate::packet::PacketDecl;
use crate::xml::{Element, is_name};

/// The format version that the writer claims and that gprofng 2.40 reads.
pub const FORMAT_VERSION: &str = "12.4";

/// One CPU of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cpu {
    /// Its number.
    pub id: u32,
    /// Its clock, in MHz.
    pub mhz: u32,
}

/// The machine, as the header of a report shows it.
///
/// There is no operating system here on purpose: with the attribute `os`, gprofng renumbers
/// threads 1, 2, 3… and real thread ids are lost. Put it into a comment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct System {
    /// Name of the host.
    pub hostname: String,
    /// `x86_64` or `aarch64`. gprofng reads the data of every other name big-endian, so a writer
    /// refuses them.
    pub arch: String,
    /// Bytes of a page.
    pub page_size: u32,
    /// Pages of memory.
    pub pages: u64,
    /// The CPUs.
    pub cpus: Vec<Cpu>,
}

/// Width of a stack word.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum WordSize {
    /// 4 bytes; only read, never written.
    Bits32,
    /// 8 bytes.
    #[default]
    Bits64,
}

/// A setting of the collector, shown in the header of a report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Setting {
    /// Ticks of idle CPUs were left out.
    NoIdle,
    /// Data were limited to this many megabytes.
    Limit(u64),
    /// Seconds between two samples.
    SamplePeriod(u32),
    /// Seconds before data were recorded.
    DelayStart(u32),
    /// Seconds after which data ended.
    Terminate(u32),
    /// The signal that toggles recording.
    PauseSignal(u32),
    /// Which descendants were followed.
    LineTrace(String),
    /// Any other one that a file held. A writer refuses it: gprofng prints a debug line on
    /// stderr for a name it does not know.
    Other {
        /// The attribute's name.
        name: String,
        /// Its value.
        value: String,
    },
}

/// A data table, declared with what its packets look like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProfileDecl {
    /// Clock ticks, in the file `profile`. More than one of these may stand in a header: each
    /// registers the metrics of its `states`, the last one's tick length counts.
    Clock {
        /// Length of a tick, in microseconds.
        tick_us: u32,
        /// Which metrics the reader offers.
        states: NumStates,
        /// The packets.
        packets: Vec<PacketDecl>,
    },
    /// Any other table.
    Other {
        /// Its name, for instance `heaptrace`.
        name: String,
        /// The remaining attributes, in order.
        attributes: Vec<(String, String)>,
        /// The packets.
        packets: Vec<PacketDecl>,
    },
}

/// All of `log.xml` that is known when recording starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// Version of the format.
    pub version: String,
    /// Name and version of the collector.
    pub collector: String,
    /// The machine.
    pub system: System,
    /// The process that was profiled; of a kernel experiment, the collector.
    pub pid: u32,
    /// Its parent.
    pub ppid: Option<u32>,
    /// Width of the words in the stacks.
    pub word_size: WordSize,
    /// The command line. Views show what follows the last `/` of its first word as the program's
    /// name: write a kernel thread `kworker/0:1` as `kworker:0:1`.
    pub command_line: String,
    /// The data tables.
    pub profiles: Vec<ProfileDecl>,
    /// What took the data in the kernel.
    pub driver_version: Option<String>,
    /// The collector's settings.
    pub settings: Vec<Setting>,
    /// Free text, one line each, shown in the header of a report.
    pub comments: Vec<String>,
}

impl Default for Header {
    fn default() -> Self {
        Header {
            version: FORMAT_VERSION.to_owned(),
            collector: String::new(),
            system: System::default(),
            pid: 0,
            ppid: None,
            word_size: WordSize::Bits64,
            command_line: String::new(),
            profiles: Vec::new(),
            driver_version: None,
            settings: Vec::new(),
            comments: Vec::new(),
        }
    }
}

/// The start of an experiment: the zero of all its relative times.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Run {
    /// Nanoseconds of the clock that packets carry too. Of 2^31 seconds at most.
    pub tstamp: u64,
    /// Wall clock: seconds since 1970.
    pub wall: i64,
    /// Seconds that the local time is *behind* UTC (the C library's `timezone`).
    pub tm_zone: i64,
}

/// An event of `log.xml`. Every `at` is in nanoseconds since the start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogEvent {
    /// Recording started.
    Run(Run),
    /// The experiment was closed.
    Exit {
        /// When.
        at: u64,
    },
    /// A usage record was taken.
    Sample {
        /// When.
        at: u64,
        /// Which record of `overview` belongs to it; 0 is the start point.
        id: u32,
        /// Its label.
        label: String,
    },
    /// Recording paused.
    Pause {
        /// When.
        at: u64,
        /// Why, if named.
        name: Option<String>,
    },
    /// Recording resumed.
    Resume {
        /// When.
        at: u64,
    },
    /// A line for the header of a report.
    Comment {
        /// When.
        at: u64,
        /// The line.
        text: String,
    },
    /// A warning of the collector.
    Warning {
        /// When.
        at: u64,
        /// The warning.
        text: String,
    },
    /// An error of the collector.
    Error {
        /// When.
        at: u64,
        /// The message.
        text: String,
        /// The system's error number, 0 for none.
        errno: i32,
    },
    /// A descendant is about to be started (`desc_start`).
    DescStart(Descendant),
    /// A descendant was started (`desc_started`).
    DescStarted(Descendant),
    /// Any other event that a file held.
    Other {
        /// Its kind.
        kind: String,
        /// The remaining attributes, in order.
        attributes: Vec<(String, String)>,
        /// The text inside.
        text: String,
    },
}

/// A descendant process, as the log of its parent announces it. For information only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Descendant {
    /// When, in nanoseconds since the start.
    pub at: u64,
    /// The call: `fork`, `exec`, …
    pub variant: String,
    /// Name of its subexperiment without `.er`.
    pub lineage: String,
    /// Whether it is followed.
    pub follow: bool,
    /// More about it.
    pub message: String,
}

/// Message id with which gprofng prints the text of a warning or an error as it is.
const VERBATIM_WARNING: u32 = 47;
/// Message id with which gprofng prints the text of a comment as it is.
const VERBATIM_COMMENT: u32 = 400;
/// The seconds of a time stamp must fit in 31 bits.
const LAST_TIME: u64 = (1 << 31) * 1_000_000_000 - 1;

fn refused(what: impl Into<String>) -> Error {
    Error::unwritable("log.xml", what)
}

pub(crate) fn checked_time(file: &str, at: u64) -> Result<u64> {
    if at > LAST_TIME {
        return Err(Error::unwritable(
            file,
            format!("a time of {at} ns: its seconds exceed 31 bits"),
        ));
    }
    Ok(at)
}

impl Header {
    /// The elements of the header, `comments` included.
    pub(crate) fn encode(&self) -> Result<String> {
        let mut out = String::new();
        Element::begin(&mut out, "experiment")
            .attribute("version", &self.version)
            .children(|out| Element::begin(out, "collector").text(&self.collector));
        self.system.encode(&mut out)?;
        Element::begin(&mut out, "process")
            .number("pid", self.pid)
            .end();
        if let Some(ppid) = self.ppid {
            Element::begin(&mut out, "process")
                .number("ppid", ppid)
                .end();
        }
        if self.word_size != WordSize::Bits64 {
            return Err(refused("stack words of 32 bits"));
        }
        Element::begin(&mut out, "process")
            .number("wsize", 64)
            .end();
        Element::begin(&mut out, "process").text(&self.command_line);
        for setting in &self.settings {
            setting.encode(&mut out)?;
        }
        if let Some(version) = &self.driver_version {
            Element::begin(&mut out, "profile")
                .attribute("name", "dversion")
                .attribute("version", version)
                .end();
        }
        for profile in &self.profiles {
            profile.encode(&mut out)?;
        }
        for text in &self.comments {
            let comment = LogEvent::Comment {
                at: 0,
                text: text.clone(),
            };
            out.push_str(&comment.encode()?);
        }
        Ok(out)
    }
}

impl System {
    fn encode(&self, out: &mut String) -> Result<()> {
        if !matches!(self.arch.as_str(), "x86_64" | "aarch64") {
            return Err(refused(format!(
                "architecture {:?}: gprofng reads the data of any but x86_64 and aarch64 as \
                 big-endian; use one of these and name the true one in a comment",
                self.arch
            )));
        }
        Element::begin(out, "system")
            .attribute("hostname", &self.hostname)
            .attribute("arch", &self.arch)
            .number("pagesz", self.page_size)
            .number("npages", self.pages)
            .children(|out| {
                for cpu in &self.cpus {
                    Element::begin(out, "cpu")
                        .number("id", cpu.id)
                        .number("clk", cpu.mhz)
                        .end();
                }
            });
        Ok(())
    }
}

impl Setting {
    fn encode(&self, out: &mut String) -> Result<()> {
        let element = Element::begin(out, "setting");
        match self {
            Setting::NoIdle => element.number("noidle", 1),
            Setting::Limit(megabytes) => element.number("limit", megabytes),
            Setting::SamplePeriod(seconds) => element.number("sample_period", seconds),
            Setting::DelayStart(seconds) => element.number("delay_start", seconds),
            Setting::Terminate(seconds) => element.number("terminate", seconds),
            Setting::PauseSignal(signal) => element.number("pause_signal", signal),
            Setting::LineTrace(which) => element.attribute("linetrace", which),
            Setting::Other { name, .. } => return Err(refused(format!("setting {name:?}"))),
        }
        .end();
        Ok(())
    }
}

impl ProfileDecl {
    fn encode(&self, out: &mut String) -> Result<()> {
        let (element, name, packets) = match self {
            ProfileDecl::Clock {
                tick_us,
                states,
                packets,
            } => (
                Element::begin(out, "profile")
                    .attribute("name", "profile")
                    .number("ptimer", tick_us)
                    .number("numstates", states.number()),
                "profile",
                packets,
            ),
            ProfileDecl::Other {
                name,
                attributes,
                packets,
            } => {
                let mut element = Element::begin(out, "profile").attribute("name", name);
                for (key, value) in attributes {
                    if !is_name(key) {
                        return Err(refused(format!("attribute name {key:?}")));
                    }
                    element = element.attribute(key, value);
                }
                (element, name.as_str(), packets)
            }
        };
        if packets.is_empty() {
            element.end();
            return Ok(());
        }
        element.children(|out| {
            Element::begin(out, "profdata")
                .attribute("fname", name)
                .end();
            for packet in packets {
                packet.encode(out);
            }
        });
        Ok(())
    }
}

impl LogEvent {
    /// The one element that stands for the event.
    pub(crate) fn encode(&self) -> Result<String> {
        let mut out = String::new();
        let event = |out, kind| Element::begin(out, "event").attribute("kind", kind);
        let time = |at: &u64| checked_time("log.xml", *at);
        match self {
            LogEvent::Run(run) => event(&mut out, "run")
                .time("tstamp", time(&run.tstamp)?)
                .number("time", run.wall)
                .number("tm_zone", run.tm_zone)
                .end(),
            LogEvent::Exit { at } => event(&mut out, "exit").time("tstamp", time(at)?).end(),
            LogEvent::Sample { at, id, label } => event(&mut out, "sample")
                .time("tstamp", time(at)?)
                .number("id", id)
                .attribute("label", label)
                .end(),
            LogEvent::Pause { at, name } => {
                let pause = event(&mut out, "pause").time("tstamp", time(at)?);
                match name {
                    Some(name) => pause.attribute("name", name),
                    None => pause,
                }
                .end();
            }
            LogEvent::Resume { at } => event(&mut out, "resume").time("tstamp", time(at)?).end(),
            LogEvent::Comment { at, text } => event(&mut out, "comment")
                .time("tstamp", time(at)?)
                .number("id", VERBATIM_COMMENT)
                .text(text),
            LogEvent::Warning { at, text } => event(&mut out, "cwarn")
                .time("tstamp", time(at)?)
                .number("id", VERBATIM_WARNING)
                .text(text),
            LogEvent::Error { at, text, errno } => event(&mut out, "cerror")
                .time("tstamp", time(at)?)
                .number("id", VERBATIM_WARNING)
                .number("ec", errno)
                .text(text),
            LogEvent::DescStart(descendant) => {
                descendant.encode(event(&mut out, "desc_start"))?;
            }
            LogEvent::DescStarted(descendant) => {
                descendant.encode(event(&mut out, "desc_started"))?;
            }
            LogEvent::Other {
                kind,
                attributes,
                text,
            } => {
                let mut element = event(&mut out, kind);
                for (key, value) in attributes {
                    if !is_name(key) || key == "kind" {
                        return Err(refused(format!("attribute name {key:?}")));
                    }
                    element = element.attribute(key, value);
                }
                if text.is_empty() {
                    element.end();
                } else {
                    element.text(text);
                }
            }
        }
        Ok(out)
    }
}

impl Descendant {
    fn encode(&self, element: Element<'_>) -> Result<()> {
        element
            .time("tstamp", checked_time("log.xml", self.at)?)
            .attribute("variant", &self.variant)
            .attribute("lineage", &self.lineage)
            .number("follow", u8::from(self.follow))
            .attribute("msg", &self.message)
            .end();
        Ok(())
    }
}
