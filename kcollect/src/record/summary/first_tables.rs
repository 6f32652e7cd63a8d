//! Where to look first: tables that are made from the experiment on disk by the code that makes
//! reports, so that a summary cannot show anything else than they do.

use std::path::Path;

use analysis::model::Model;
use analysis::report::table::{Cell, Table};
use analysis::report::views;
use host::exit::Failure;
use host::output::Output;

/// The most data that are read for a summary, bytes. It is shown within a second of the end of the
/// recording.
const MAX_READ_BYTES: u64 = 128 << 20;

/// Where to look first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FirstTables {
    /// The tables, or why there are none.
    pub text: String,
    /// The name of the process that leads.
    pub busiest: Option<String>,
}

impl FirstTables {
    /// Reads an experiment whose data are on disk; `bytes` says how many.
    #[must_use]
    pub fn read(path: &Path, bytes: u64, output: &mut Output) -> FirstTables {
        if bytes > MAX_READ_BYTES {
            let text = format!(
                "{} MB were recorded: `kcollect report` shows processes, functions and waits",
                bytes >> 20
            );
            return FirstTables {
                text,
                busiest: None,
            };
        }
        output.progress(|| "reading what was recorded".to_owned());
        let tables = tables(path);
        output.end_progress();
        match tables {
            Ok(tables) => FirstTables {
                text: tables
                    .iter()
                    .map(|table| table.text(output.width()))
                    .collect::<Vec<_>>()
                    .join("\n"),
                busiest: tables.iter().find_map(busiest),
            },
            Err(failure) => FirstTables {
                text: failure.to_string(),
                busiest: None,
            },
        }
    }
}

fn tables(path: &Path) -> Result<Vec<Table>, Failure> {
    views::first_tables(&Model::load(&[path.to_owned()])?)
}

/// Returns the name in the first row of the table of processes.
fn busiest(table: &Table) -> Option<String> {
    let columns = &mut table.columns.iter();
    let name = columns.position(|column| column.key == "name")?;
    match table.rows.first()?.get(name)? {
        // Behind it stands the number of processes.
        Cell::Text(text) if table.view == "processes" => text
            .split(" (")
            .next()
            .filter(|name| !name.is_empty())
            .map(str::to_owned),
        _ => None,
    }
}
