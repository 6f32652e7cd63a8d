//! The events of a log that is being written, whoever writes it where.

use crate::Result;
use crate::log::encode::refused;
use crate::log::{Header, LogEvent, ProfileDecl, Run};

/// Makes text of events, and refuses what this log may not say.
#[derive(Debug)]
pub(crate) struct Events {
    /// The [`Run::tstamp`].
    start: u64,
    /// Whether threads may have names.
    thread_names: bool,
    /// Samples written, which is the id of the next.
    samples: u32,
}

impl Events {
    /// What a log begins with: its header and its start.
    pub(crate) fn begin(header: &Header, start: Run) -> Result<(Events, String)> {
        let mut text = header.encode()?;
        text.push_str(&LogEvent::Run(start).encode(start.tstamp)?);
        let events = Events {
            start: start.tstamp,
            thread_names: header.profiles.contains(&ProfileDecl::ThreadNames),
            samples: 0,
        };
        Ok((events, text))
    }

    /// An event of which there may be any number. The others are refused here, and so is the name
    /// of a thread in an experiment that does not declare [`ProfileDecl::ThreadNames`].
    pub(crate) fn event(&self, event: &LogEvent) -> Result<String> {
        match event {
            LogEvent::Run(_) | LogEvent::Sample { .. } | LogEvent::Exit { .. } => {
                Err(refused("a start, sample or exit among other events"))
            }
            LogEvent::Thread { tid, name, .. } if !self.thread_names => Err(refused(format!(
                "the name {name:?} of thread {tid}: the header does not declare ThreadNames"
            ))),
            other => other.encode(self.start),
        }
    }

    /// A warning, for `warnings.xml`.
    pub(crate) fn warning(&self, at: u64, text: &str) -> Result<String> {
        self.event(&LogEvent::Warning {
            at,
            text: text.to_owned(),
        })
    }

    /// The next sample. It counts once [`Events::sampled`] says so.
    pub(crate) fn sample(&self, at: u64, label: &str) -> Result<String> {
        let sample = LogEvent::Sample {
            at,
            id: self.samples,
            label: label.to_owned(),
        };
        sample.encode(self.start)
    }

    /// The sample was written, with its usage record.
    pub(crate) fn sampled(&mut self) {
        self.samples += 1;
    }

    /// The end.
    pub(crate) fn exit(&self, at: u64) -> Result<String> {
        LogEvent::Exit { at }.encode(self.start)
    }
}
