//! The options that `kcollect track` and `kcollect stat` have in common, and the output of their
//! rows.

use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use host::Root;
use host::exit::{ExitKind, Failure};
use host::written;
use types::text::{printable_json, printable_lines};

use crate::names::event::PerfEvent;
use crate::names::parse_events;
use crate::rows::CountRow;
use crate::rows::format::RowFormat;

/// What is counted, for how many ticks, and how rows are printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CountOptions {
    /// The events as typed. None: [`DEFAULT_EVENTS`].
    pub events: Option<String>,
    /// The number of ticks after which counting ends. None: no limit.
    pub ticks: Option<u64>,
    /// Whether there are columns of how long events were enabled and had a counter.
    pub times: bool,
    /// Whether the first line has the names of the columns.
    pub header: bool,
    /// The file for the rows. None: standard output.
    pub output: Option<PathBuf>,
    /// Whether rows are JSON.
    pub json: bool,
    /// Whether there are more messages on standard error.
    pub verbose: bool,
}

/// The default events, which every kernel counts, with or without a PMU.
pub const DEFAULT_EVENTS: &str = "task-clock,context-switches,cpu-migrations,page-faults";

impl CountOptions {
    /// Returns the events on this machine.
    ///
    /// # Errors
    /// When this machine does not have one of them.
    pub fn events(&self) -> Result<Vec<PerfEvent>, Failure> {
        let text = self.events.as_deref().unwrap_or(DEFAULT_EVENTS);
        Ok(parse_events(text, &Root::machine())?)
    }
}

/// The file or pipe that rows are written to.
pub struct RowWriter {
    to: Box<dyn Write>,
    name: String,
    json: bool,
    closed: bool,
}

impl RowWriter {
    /// Opens the output.
    ///
    /// # Errors
    /// When the file cannot be created.
    #[expect(clippy::disallowed_methods, reason = "each line is made safe")]
    pub fn open(options: &CountOptions) -> Result<RowWriter, Failure> {
        let (to, name): (Box<dyn Write>, _) = match &options.output {
            None => (Box::new(io::stdout()), "standard output".to_owned()),
            Some(path) => {
                let file = written::create(path).map_err(|error| {
                    Failure::new(
                        ExitKind::CantCreate,
                        format!("cannot write {}: {error}", path.display()),
                        "name a file that can be written with -o",
                    )
                })?;
                (Box::new(file), path.display().to_string())
            }
        };
        Ok(RowWriter {
            to: Box::new(BufWriter::new(to)),
            name,
            json: options.json,
            closed: false,
        })
    }

    /// Writes the line with the names of the columns. JSON has none.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn header(&mut self, format: &RowFormat<'_>) -> Result<(), Failure> {
        if self.json {
            Ok(())
        } else {
            self.line(&format.header())
        }
    }

    /// Writes a row.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn row(&mut self, format: &RowFormat<'_>, row: &CountRow) -> Result<(), Failure> {
        if self.json {
            self.line(&printable_json(&format.json(row).to_string()))
        } else {
            self.line(&printable_lines(&format.text(row)))
        }
    }

    fn line(&mut self, line: &str) -> Result<(), Failure> {
        let written = writeln!(self.to, "{line}");
        self.check(written)
    }

    /// Writes what is buffered.
    ///
    /// # Errors
    /// When that fails.
    pub fn flush(&mut self) -> Result<(), Failure> {
        let flushed = self.to.flush();
        self.check(flushed)
    }

    /// Whether the reader has closed the pipe, and no more rows are needed.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    fn check(&mut self, written: io::Result<()>) -> Result<(), Failure> {
        match written {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => self.closed = true,
            Err(error) => {
                return Err(Failure::new(
                    ExitKind::IoErr,
                    format!("cannot write to {}: {error}", self.name),
                    "make space, or name another file with -o",
                ));
            }
            Ok(()) => {}
        }
        Ok(())
    }
}

impl std::fmt::Debug for RowWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RowWriter")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}
