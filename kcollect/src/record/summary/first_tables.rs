//! Where to look first: sentences and tables that are made from the experiment on disk by the code
//! that makes reports, so that a summary cannot show anything else than reports do.
//!
//! Names of user functions come from files of this machine, and a file system may not answer. So a
//! thread reads them. It is abandoned if it takes too long or the user presses Ctrl-C again.

use std::iter;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use analysis::load::lines::LookupPaths;
use analysis::model::Model;
use analysis::report::table::{self, Cell, Table};
use analysis::report::views;
use experiment_format::units::Nanos;
use host::exit::Failure;
use host::output::Output;

/// Max bytes of profile data that are read for a summary.
const MAX_READ_BYTES: u64 = 128 << 20;
/// The longest time that reading may take.
const MAX_READ_TIME: Duration = Duration::from_secs(5);
/// How often to check whether the user has given up.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Where to look first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FirstTables {
    /// The sentences and the tables, or why they are missing.
    pub text: String,
    /// The name of the process that leads.
    pub busiest: Option<String>,
}

impl FirstTables {
    /// Reads an experiment whose data are on disk, `bytes` of them, until `give_up` returns true.
    #[must_use]
    pub fn read(
        path: &Path,
        bytes: u64,
        mut give_up: impl FnMut() -> bool,
        output: &mut Output,
    ) -> FirstTables {
        if bytes > MAX_READ_BYTES {
            return FirstTables::missing(&format!("{} MiB were recorded", bytes >> 20));
        }
        let tables = match start(path.to_owned()) {
            Ok(tables) => {
                output.progress(|| "reading what was recorded  (Ctrl-C gives up)".to_owned());
                let tables = wait(&tables, &mut give_up);
                output.end_progress();
                tables
            }
            Err(error) => Err(format!("no thread to read what was recorded: {error}")),
        };
        match tables {
            Ok(first) => FirstTables {
                text: text(&first, output.width()),
                busiest: first.tables.iter().find_map(busiest),
            },
            Err(reason) => FirstTables::missing(&reason),
        }
    }

    fn missing(reason: &str) -> FirstTables {
        FirstTables {
            text: format!("{reason}: `kcollect report` shows processes, functions and waits"),
            ..FirstTables::default()
        }
    }
}

/// Returns the sentences and the tables as text.
fn text(first: &views::FirstTables, width: Option<u16>) -> String {
    let tables = first.tables.iter().map(|table| table.text(width));
    let headline = iter::once(table::sentences(&first.headline, width));
    let parts = headline.chain(tables).filter(|part| !part.is_empty());
    parts.collect::<Vec<_>>().join("\n")
}

type Tables = Result<views::FirstTables, Failure>;

/// Starts to make the tables.
fn start(path: PathBuf) -> std::io::Result<Receiver<Tables>> {
    let (sender, receiver) = channel();
    let read = move || {
        let tables = Model::load_named(&[path], &LookupPaths::default());
        // The receiver has given up.
        let _ = sender.send(tables.and_then(|model| views::first_tables(&model)));
    };
    thread::Builder::new()
        .name("first-tables".to_owned())
        .spawn(read)?;
    Ok(receiver)
}

/// Waits for the tables. The error says why they are missing.
fn wait(
    tables: &Receiver<Tables>,
    stop: &mut dyn FnMut() -> bool,
) -> Result<views::FirstTables, String> {
    let since = Instant::now();
    loop {
        match tables.recv_timeout(POLL_INTERVAL) {
            Ok(tables) => return tables.map_err(|failure| failure.to_string()),
            Err(RecvTimeoutError::Disconnected) => {
                return Err("what was recorded could not be read".to_owned());
            }
            Err(RecvTimeoutError::Timeout) if stop() => {
                return Err("given up".to_owned());
            }
            Err(RecvTimeoutError::Timeout) if since.elapsed() > MAX_READ_TIME => {
                return Err(format!(
                    "what was recorded could not be read in {} s",
                    MAX_READ_TIME.as_secs()
                ));
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

/// Returns the name of the process that was on a CPU, or waited for one, for the longest time. The
/// first row of the table may be of one that suffered other waits.
fn busiest(table: &Table) -> Option<String> {
    const BUSY: [&str; 4] = ["user_s", "system_s", "trap_s", "wait_s"];
    let position = |key: &str| table.columns.iter().position(|column| column.key == key);
    let busy: Vec<_> = BUSY.iter().filter_map(|key| position(key)).collect();
    let busy_ns = |row: &&Vec<Cell>| -> Nanos {
        let times = busy.iter().map(|column| match row.get(*column) {
            Some(Cell::Nanoseconds(ns)) => *ns,
            _ => Nanos::ZERO,
        });
        times.sum()
    };
    // Of rows without such times the first one.
    let row = table.rows.iter().rev().max_by_key(busy_ns)?;
    match row.get(position("name")?)? {
        // After it stands the number of processes.
        Cell::Text(text) if table.view == "processes" => text
            .split(" (")
            .next()
            .filter(|name| !name.is_empty())
            .map(str::to_owned),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reading_ends_when_the_user_gives_up() {
        let (sender, receiver) = channel();
        let given_up = wait(&receiver, &mut || true);
        assert_eq!(given_up.unwrap_err(), "given up");
        drop(sender);
        assert!(wait(&receiver, &mut || false).is_err());
    }
}
