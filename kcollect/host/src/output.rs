//! kcollect's own output: results on standard output, messages on standard error, or both appended
//! to the file of `-O`; and one line of progress on a terminal.
//!
//! All of it passes through here, and is made safe for a terminal here: names come from recorded
//! programs, and from experiments that may be made up. clippy refuses other ways to standard
//! output.

#![expect(
    clippy::disallowed_methods,
    reason = "this is the way to standard output"
)]

use std::fs::File;
use std::io::{self, IsTerminal as _, Write as _};
use std::path::Path;

use indicatif::{ProgressBar, ProgressStyle};
use types::text::{printable, printable_json, printable_lines};

use crate::written::append;

/// Where output goes.
#[derive(Debug)]
pub struct Output {
    file: Option<File>,
    progress: Option<ProgressBar>,
    verbose: bool,
    /// Why a result could not be written.
    failed: Option<io::Error>,
}

impl Output {
    /// Returns the output to standard output and standard error.
    #[must_use]
    pub fn standard() -> Output {
        Output {
            file: None,
            progress: None,
            verbose: false,
            failed: None,
        }
    }

    /// Returns the output to standard output and standard error, or to `file`, to which it is
    /// appended.
    ///
    /// # Errors
    /// The file cannot be opened for appending.
    pub fn new(file: Option<&Path>, verbose: bool) -> io::Result<Output> {
        Ok(Output {
            file: file.map(append).transpose()?,
            verbose,
            ..Output::standard()
        })
    }

    /// Writes a result to standard output.
    pub fn result(&mut self, text: &str) {
        self.write(&printable_lines(text));
    }

    /// Writes a result of one line to standard output, such as the name of a file.
    pub fn result_line(&mut self, text: &str) {
        self.write(&printable(text.as_bytes()));
    }

    /// Writes a result in JSON to standard output.
    pub fn json(&mut self, json: &str) {
        self.write(&printable_json(json));
    }

    fn write(&mut self, text: &str) {
        self.end_progress();
        let written = match &mut self.file {
            Some(file) => writeln!(file, "{text}"),
            None => writeln!(io::stdout(), "{text}"),
        };
        // A reader may close the pipe when it has enough.
        if let Err(error) = written
            && error.kind() != io::ErrorKind::BrokenPipe
        {
            self.failed.get_or_insert(error);
        }
    }

    /// Returns why a result could not be written, except that its reader has closed the pipe.
    pub fn take_failure(&mut self) -> Option<io::Error> {
        self.failed.take()
    }

    /// Writes a message about the run to standard error, on one line: a name with an end of line in
    /// it must not look like another message.
    pub fn say(&mut self, text: &str) {
        let line = printable(format!("kcollect: {text}").as_bytes());
        match (&mut self.file, &self.progress) {
            (Some(file), _) => {
                let _ = writeln!(file, "{line}");
            }
            (None, Some(bar)) => bar.println(line),
            (None, None) => {
                let _ = writeln!(io::stderr(), "{line}");
            }
        }
    }

    /// Writes a message with `-v`, and nothing without.
    pub fn detail(&mut self, text: &str) {
        if self.verbose {
            self.say(text);
        }
    }

    /// Shows the state of the run on one line of a terminal, in place of the state before.
    pub fn progress(&mut self, text: impl FnOnce() -> String) {
        if self.file.is_some() || !io::stderr().is_terminal() {
            return;
        }
        let bar = self.progress.get_or_insert_with(|| {
            let bar = ProgressBar::new_spinner();
            if let Ok(style) = ProgressStyle::with_template("{wide_msg}") {
                bar.set_style(style);
            }
            bar
        });
        bar.set_message(printable(text().as_bytes()));
    }

    /// Removes the line of progress.
    pub fn end_progress(&mut self) {
        if let Some(bar) = self.progress.take() {
            bar.finish_and_clear();
        }
    }

    /// Returns the columns that tables may take: the terminal's width. None: any number.
    #[must_use]
    pub fn width(&self) -> Option<u16> {
        if self.file.is_some() || !io::stdout().is_terminal() {
            return None;
        }
        terminal_size::terminal_size().map(|(width, _)| width.0)
    }
}
