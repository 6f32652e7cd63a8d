//! Encodes headers and events.

use crate::Result;
use crate::error::Error;
use crate::log::{
    CounterDecl, Descendant, HIDDEN_GROUP, LogEvent, LogHeader, ProfileDecl, Setting, StartTime,
    System, THREAD_NAMED, THREAD_NAMES, VERBATIM_COMMENT, VERBATIM_WARNING, WordSize,
};
use crate::packet::counter;
use crate::units::Nanos;
use crate::xml::write::{Element, is_name};

/// The largest time stamp: its seconds must fit in 31 bits.
const MAX_TIME_NS: Nanos = Nanos((1 << 31) * 1_000_000_000 - 1);

/// The number of counters that gprofng distinguishes.
const MAX_DECLARED_COUNTERS: u32 = 64;

/// Returns the error of a value that the file cannot hold.
pub(super) fn refused(what: impl Into<String>) -> Error {
    Error::unwritable("log.xml", what)
}

/// Refuses a time that `file` cannot hold.
pub(crate) fn checked_time(file: &str, at_ns: Nanos) -> Result<Nanos> {
    if at_ns > MAX_TIME_NS {
        return Err(Error::unwritable(
            file,
            format!("a time of {at_ns} ns: its seconds exceed 31 bits"),
        ));
    }
    Ok(at_ns)
}

impl LogHeader {
    /// Returns the elements of the header, `comments` included.
    pub(crate) fn encode(&self) -> Result<String> {
        let mut out = String::new();
        Element::begin(&mut out, "experiment")
            .attribute("version", &self.version)
            .children(|out| Element::begin(out, "collector").text(&self.collector));
        self.system.encode(&mut out)?;
        Element::begin(&mut out, "process")
            .number("pid", self.pid)
            .end();
        let relatives = [("ppid", self.ppid), ("pgrp", self.pgrp), ("sid", self.sid)];
        for (name, number) in relatives {
            if let Some(number) = number {
                Element::begin(&mut out, "process")
                    .number(name, number)
                    .end();
            }
        }
        if self.word_size != WordSize::Bits64 {
            return Err(refused("stack words of 32 bits"));
        }
        Element::begin(&mut out, "process")
            .number("wsize", 64)
            .end();
        if let Some(rank) = self.mpi_rank {
            Element::begin(&mut out, "process")
                .number("mpi_rank", rank)
                .end();
        }
        if self.pack {
            Element::begin(&mut out, "process").number("pack", 1).end();
        }
        if let Some(container) = &self.container {
            Element::begin(&mut out, "process")
                .attribute("container_runtime", &container.runtime)
                .attribute("container_id", &container.id)
                .end();
        }
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
        self.check_clocks()?;
        for profile in &self.profiles {
            profile.encode(&mut out)?;
        }
        for text in &self.comments {
            let comment = LogEvent::Comment {
                at_ns: Nanos::ZERO,
                text: text.clone(),
            };
            out.push_str(&comment.encode(Nanos::ZERO)?);
        }
        Ok(out)
    }

    /// Refuses clock tables that gprofng would misread: it takes the length of a tick from the last
    /// table, for all of them.
    fn check_clocks(&self) -> Result<()> {
        let mut lengths = self.profiles.iter().filter_map(|profile| match profile {
            ProfileDecl::Clock { tick_us, .. } => Some(tick_us),
            _ => None,
        });
        let Some(last) = lengths.clone().next_back() else {
            return Ok(());
        };
        match lengths.find(|length| *length != last) {
            Some(other) => Err(refused(format!(
                "clock tables with ticks of {other} and of {last} µs"
            ))),
            None => Ok(()),
        }
    }
}

impl System {
    fn encode(&self, out: &mut String) -> Result<()> {
        if !matches!(self.arch.as_str(), "x86_64" | "aarch64") {
            return Err(refused(format!(
                "architecture {:?}: gprofng reads data of all but x86_64 and aarch64 as \
                 big-endian; use one of these and name the real one in a comment",
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
                    .number("numstates", i32::from(*states)),
                "profile",
                packets,
            ),
            ProfileDecl::ThreadNames => (
                Element::begin(out, "profile").attribute("name", THREAD_NAMES),
                THREAD_NAMES,
                &Vec::new(),
            ),
            ProfileDecl::Counters { counters, packets } => {
                Element::begin(out, "profdata")
                    .attribute("fname", counter::FILE)
                    .end();
                packets.iter().for_each(|packet| packet.encode(out));
                return counters.iter().try_for_each(|counter| counter.encode(out));
            }
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

impl CounterDecl {
    fn encode(&self, out: &mut String) -> Result<()> {
        let legal = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        if self.name.is_empty() || !self.name.bytes().all(legal) {
            return Err(refused(format!(
                "counter name {:?}: a keyword has letters, digits and _",
                self.name
            )));
        }
        if self.tag >= MAX_DECLARED_COUNTERS {
            return Err(refused(format!("counter tag {}", self.tag)));
        }
        // This kind of declaration can state a title and a unit.
        Element::begin(out, "profile")
            .attribute("name", "hwsimctr")
            .number("cpuver", 0)
            .attribute("hwcname", &self.name)
            .attribute("int_name", &self.name)
            .attribute("metric", &self.title)
            .number("reg_num", 0)
            .number("interval", self.interval)
            .number("timecvt", i64::from(self.unit))
            .number("memop", 0)
            .number("tag", self.tag)
            .end();
        Ok(())
    }
}

impl LogEvent {
    /// Returns the element of the event, in an experiment that began at `start_ns`.
    pub(crate) fn encode(&self, start_ns: Nanos) -> Result<String> {
        let mut out = String::new();
        let event = |out, kind| Element::begin(out, "event").attribute("kind", kind);
        let time = |at_ns: &Nanos| checked_time("log.xml", *at_ns);
        match self {
            LogEvent::Start(run) => run.encode(event(&mut out, "run"))?,
            LogEvent::Exit { at_ns } => event(&mut out, "exit").time("tstamp", time(at_ns)?).end(),
            LogEvent::Sample { at_ns, id, label } => event(&mut out, "sample")
                .time("tstamp", time(at_ns)?)
                .number("id", id)
                .attribute("label", label)
                .end(),
            LogEvent::Pause { at_ns, name } => {
                let pause = event(&mut out, "pause").time("tstamp", time(at_ns)?);
                match name {
                    Some(name) => pause.attribute("name", name),
                    None => pause,
                }
                .end();
            }
            LogEvent::Resume { at_ns } => {
                event(&mut out, "resume").time("tstamp", time(at_ns)?).end()
            }
            LogEvent::Thread {
                tid, name, group, ..
            } if group == HIDDEN_GROUP => {
                return Err(refused(format!(
                    "thread {tid} {name:?} in group {group:?}, which gprofng hides; name the group \
                     by its process id"
                )));
            }
            LogEvent::Thread {
                at_ns,
                tid,
                name,
                group,
            } => event(&mut out, THREAD_NAMED)
                .time("tstamp", time(&start_ns.saturating_add(*at_ns))?)
                .number("tid", tid)
                .attribute("name", name)
                .attribute("grpname", group)
                .end(),
            LogEvent::Comment { at_ns, text } => event(&mut out, "comment")
                .time("tstamp", time(at_ns)?)
                .number("id", VERBATIM_COMMENT)
                .text(text),
            LogEvent::Warning { at_ns, text } => event(&mut out, "cwarn")
                .time("tstamp", time(at_ns)?)
                .number("id", VERBATIM_WARNING)
                .text(text),
            LogEvent::Error { at_ns, text, errno } => event(&mut out, "cerror")
                .time("tstamp", time(at_ns)?)
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
            } => encode_other(event(&mut out, kind), attributes, text)?,
        }
        Ok(out)
    }
}

/// Ends the element of an event of another kind.
fn encode_other(
    mut element: Element<'_>,
    attributes: &[(String, String)],
    text: &str,
) -> Result<()> {
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
    Ok(())
}

impl StartTime {
    fn encode(&self, element: Element<'_>) -> Result<()> {
        let start = element
            .time("tstamp", checked_time("log.xml", self.tstamp_ns)?)
            .number("time", self.wall_s)
            .number("tm_zone", self.tm_zone_s);
        match self.wall_subsec_ns {
            0 => start,
            nanoseconds => start.number("time_nsec", nanoseconds),
        }
        .end();
        Ok(())
    }
}

impl Descendant {
    fn encode(&self, element: Element<'_>) -> Result<()> {
        element
            .time("tstamp", checked_time("log.xml", self.at_ns)?)
            .attribute("variant", &self.variant)
            .attribute("lineage", &self.lineage)
            .number("follow", u8::from(self.follow))
            .attribute("msg", &self.message)
            .end();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Tid;
    use crate::microstate::NumStates;
    use crate::packet::ClockTick;

    fn encoded(tables: &[(u32, NumStates)]) -> Result<String> {
        let clock = |(tick_us, states): &(u32, NumStates)| ProfileDecl::Clock {
            tick_us: *tick_us,
            states: *states,
            packets: vec![ClockTick::declaration()],
        };
        let header = LogHeader {
            system: System {
                arch: "x86_64".into(),
                ..System::default()
            },
            profiles: tables.iter().map(clock).collect(),
            ..LogHeader::default()
        };
        header.encode()
    }

    #[test]
    fn a_thread_that_gprofng_hides_or_whose_time_is_too_late_is_refused() {
        let encoded = |start, group: &str| {
            let (at_ns, tid, name, group) = (1_000_000_000, 12, "a<b".into(), group.into());
            let event = LogEvent::Thread {
                at_ns: Nanos(at_ns),
                tid: Tid(tid),
                name,
                group,
            };
            event.encode(start)
        };
        assert_eq!(
            encoded(Nanos(5), "systemd").unwrap(),
            "<event kind=\"jthread_start\" tstamp=\"1.000000005\" tid=\"12\" name=\"a&lt;b\" \
             grpname=\"systemd\"/>\n"
        );
        let error = encoded(Nanos(5), "system").unwrap_err().to_string();
        assert!(error.contains("thread 12 \"a<b\""), "{error}");
        for start in [MAX_TIME_NS, Nanos::MAX] {
            assert!(encoded(start, "x").is_err());
        }
    }

    #[test]
    fn clock_tables_that_gprofng_would_misread_are_refused() {
        let (cpus, threads) = (NumStates::Kernel, NumStates::Solaris);
        assert!(encoded(&[(997, cpus), (997, threads)]).is_ok());
        assert!(encoded(&[(997, threads)]).is_ok());
        assert!(encoded(&[]).is_ok());
        for wrong in [
            [(997, cpus), (10_007, threads)],
            [(10_007, threads), (997, cpus)],
        ] {
            let error = encoded(&wrong).unwrap_err().to_string();
            assert!(error.contains("997"), "{error}");
        }
    }
}
