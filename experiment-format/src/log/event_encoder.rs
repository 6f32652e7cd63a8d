//! Encodes the events of a log that is being written.

use crate::Result;
use crate::log::encode::refused;
use crate::log::{LogEvent, LogHeader, ProfileDecl, StartTime};
use crate::units::Nanos;

/// An encoder of log events that refuses events not allowed in its log.
#[derive(Debug)]
pub(crate) struct EventEncoder {
    /// The [`StartTime::tstamp_ns`].
    start_ns: Nanos,
    /// Whether the header declares names of threads.
    thread_names: bool,
    /// The number of samples written, which is the id of the next.
    samples: u32,
}

impl EventEncoder {
    /// Returns the encoder, and the text that the log begins with: its header and its start.
    pub(crate) fn begin(header: &LogHeader, start: StartTime) -> Result<(EventEncoder, String)> {
        let mut text = header.encode()?;
        text.push_str(&LogEvent::Start(start).encode(start.tstamp_ns)?);
        let events = EventEncoder {
            start_ns: start.tstamp_ns,
            thread_names: header.profiles.contains(&ProfileDecl::ThreadNames),
            samples: 0,
        };
        Ok((events, text))
    }

    /// Returns the text of an event. Refuses starts, samples and exits, which have methods of their
    /// own, and the name of a thread if the header does not declare [`ProfileDecl::ThreadNames`].
    pub(crate) fn event(&self, event: &LogEvent) -> Result<String> {
        match event {
            LogEvent::Start(_) | LogEvent::Sample { .. } | LogEvent::Exit { .. } => {
                Err(refused("a start, sample or exit among other events"))
            }
            LogEvent::Thread { tid, name, .. } if !self.thread_names => Err(refused(format!(
                "the name {name:?} of thread {tid}: the header does not declare ThreadNames"
            ))),
            other => other.encode(self.start_ns),
        }
    }

    /// Returns the text of a warning, for `warnings.xml`.
    pub(crate) fn warning(&self, at_ns: Nanos, text: &str) -> Result<String> {
        self.event(&LogEvent::Warning {
            at_ns,
            text: text.to_owned(),
        })
    }

    /// Returns the text of the next sample. Call [`EventEncoder::sampled`] once it is written.
    pub(crate) fn sample(&self, at_ns: Nanos, label: &str) -> Result<String> {
        let sample = LogEvent::Sample {
            at_ns,
            id: self.samples,
            label: label.to_owned(),
        };
        sample.encode(self.start_ns)
    }

    /// Counts a sample as written, with its usage record.
    pub(crate) fn sampled(&mut self) {
        self.samples += 1;
    }

    /// Returns the text of the end.
    pub(crate) fn exit(&self, at_ns: Nanos) -> Result<String> {
        LogEvent::Exit { at_ns }.encode(self.start_ns)
    }
}
