//! What kcollect says: results on standard output, the rest on standard error, or all of it
//! appended to the file of `-O`. While it records, one line on a terminal.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal as _, Write as _};
use std::path::Path;

use indicatif::{ProgressBar, ProgressStyle};

/// Where words go.
#[derive(Debug)]
pub struct Output {
    file: Option<File>,
    progress: Option<ProgressBar>,
    verbose: bool,
}

impl Output {
    /// To standard output and standard error.
    #[must_use]
    pub fn standard() -> Output {
        Output {
            file: None,
            progress: None,
            verbose: false,
        }
    }

    /// The same, or all of it appended to `file`.
    ///
    /// # Errors
    /// When the file can't be opened for appending.
    pub fn new(file: Option<&Path>, verbose: bool) -> io::Result<Output> {
        let file = file.map(|path| OpenOptions::new().append(true).create(true).open(path));
        Ok(Output {
            file: file.transpose()?,
            verbose,
            ..Output::standard()
        })
    }

    /// A result: standard output. A closed pipe or a full disk is not this run's failure.
    pub fn result(&mut self, text: &str) {
        self.end_progress();
        let _ = match &mut self.file {
            Some(file) => writeln!(file, "{text}"),
            None => writeln!(io::stdout(), "{text}"),
        };
    }

    /// A message about the run: standard error.
    pub fn say(&mut self, text: &str) {
        let line = format!("kcollect: {text}");
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

    /// A message for `-v` only.
    pub fn detail(&mut self, text: &str) {
        if self.verbose {
            self.say(text);
        }
    }

    /// The state of the run, on one line that is overwritten; only on a terminal.
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
        bar.set_message(text());
    }

    /// Takes the progress line away.
    pub fn end_progress(&mut self) {
        if let Some(bar) = self.progress.take() {
            bar.finish_and_clear();
        }
    }

    /// Columns for tables: the terminal's, or as many as they like.
    #[must_use]
    pub fn width(&self) -> Option<u16> {
        if self.file.is_some() || !io::stdout().is_terminal() {
            return None;
        }
        terminal_size::terminal_size().map(|(width, _)| width.0)
    }
}
