//! What `kcollect track` and `kcollect stat` have in common: what was asked for, and where rows go.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::time::Duration;

use host::Root;
use host::exit::{Failure, Kind};

use crate::names::event::Event;
use crate::rows::Row;
use crate::rows::format::Style;

/// What is counted, how often it is told, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wish {
    /// The events as typed: what they are is the machine's to say. None: the default ones.
    pub events: Option<String>,
    /// From one tick to the next. None: no ticks.
    pub period: Option<Duration>,
    /// After so many ticks it ends.
    pub ticks: Option<u64>,
    /// With columns of how long the events were enabled and had their counters.
    pub times: bool,
    /// With a line above the rows that says what the columns are.
    pub header: bool,
    /// Where rows go. None: to standard output.
    pub output: Option<PathBuf>,
    /// Rows as JSON.
    pub json: bool,
    /// Say more, on standard error.
    pub verbose: bool,
}

/// What is counted where nothing is asked for: every kernel counts these, with or without a PMU.
pub const DEFAULT: &str = "task-clock,context-switches,cpu-migrations,page-faults";

impl Wish {
    /// The events.
    ///
    /// # Errors
    /// When this machine does not know one of them.
    pub fn events(&self) -> Result<Vec<Event>, Failure> {
        let text = self.events.as_deref().unwrap_or(DEFAULT);
        Ok(crate::names::parse_events(text, &Root::machine())?)
    }
}

/// Where rows go.
pub struct Sink {
    to: Box<dyn Write>,
    name: String,
    json: bool,
    gone: bool,
}

impl Sink {
    /// Opens it.
    ///
    /// # Errors
    /// When the file cannot be made.
    pub fn open(wish: &Wish) -> Result<Sink, Failure> {
        let (to, name): (Box<dyn Write>, _) = match &wish.output {
            None => (Box::new(io::stdout()), "standard output".to_owned()),
            Some(path) => {
                let file = File::create(path).map_err(|error| {
                    Failure::new(
                        Kind::CantCreate,
                        format!("cannot write {}: {error}", path.display()),
                        "name a file that can be written with -o",
                    )
                })?;
                (Box::new(file), path.display().to_string())
            }
        };
        Ok(Sink {
            to: Box::new(BufWriter::new(to)),
            name,
            json: wish.json,
            gone: false,
        })
    }

    /// The line above the rows; JSON has none.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn header(&mut self, style: &Style<'_>) -> Result<(), Failure> {
        match self.json {
            true => Ok(()),
            false => self.line(&style.header()),
        }
    }

    /// A row.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn row(&mut self, style: &Style<'_>, row: &Row) -> Result<(), Failure> {
        match self.json {
            true => self.line(&style.json(row).to_string()),
            false => self.line(&style.text(row)),
        }
    }

    fn line(&mut self, line: &str) -> Result<(), Failure> {
        let written = writeln!(self.to, "{line}");
        self.judge(written)
    }

    /// Passes on what was written so far.
    ///
    /// # Errors
    /// When that fails.
    pub fn flush(&mut self) -> Result<(), Failure> {
        let flushed = self.to.flush();
        self.judge(flushed)
    }

    /// Whoever read the rows has closed the pipe: nobody wants more of them.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.gone
    }

    fn judge(&mut self, written: io::Result<()>) -> Result<(), Failure> {
        match written {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => self.gone = true,
            Err(error) => {
                return Err(Failure::new(
                    Kind::IoErr,
                    format!("cannot write to {}: {error}", self.name),
                    "make room, or name another file with -o",
                ));
            }
            Ok(()) => {}
        }
        Ok(())
    }
}

impl std::fmt::Debug for Sink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sink")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}
