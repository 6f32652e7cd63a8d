//! The report of a view as a value, printed as text, CSV or JSON.

use std::cmp::Ordering;
use std::iter;

use experiment_format::text;
use experiment_format::units::Nanos;
use host::table::{Align, TextTable, width_of};
use serde_json::{Map, Value, json};

/// A column of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// The key in CSV and JSON: gprofng's word if there is one, such as `e.user`.
    pub key: String,
    /// The title in text.
    pub title: String,
    /// Whether the cells are numbers, which are aligned on the right.
    pub number: bool,
    /// Whether the column is left out of text.
    pub hidden: bool,
}

impl Column {
    /// Returns a column of numbers.
    pub fn number(key: impl Into<String>, title: impl Into<String>) -> Column {
        Column {
            key: key.into(),
            title: title.into(),
            number: true,
            hidden: false,
        }
    }

    /// Returns a column of text.
    pub fn text(key: impl Into<String>, title: impl Into<String>) -> Column {
        Column {
            number: false,
            ..Column::number(key, title)
        }
    }

    /// Returns the same column, left out of text.
    #[must_use]
    pub fn hidden(self) -> Column {
        Column {
            hidden: true,
            ..self
        }
    }
}

/// The content of a column in one row.
#[derive(Debug, Clone, PartialEq)]
pub enum Cell {
    /// Nothing.
    Empty,
    /// Text.
    Text(String),
    /// A count or an id.
    Count(u64),
    /// Microseconds of ticks, shown in seconds.
    Microseconds(i64),
    /// Exact nanoseconds, shown in seconds.
    Nanoseconds(Nanos),
    /// A share of the whole, shown in percent: 1 is the whole.
    Share(f64),
    /// A difference in microseconds of ticks, shown in seconds with its sign.
    Delta(i64),
    /// A quotient.
    Ratio(f64),
    /// An average.
    Average(f64),
}

impl Cell {
    /// Returns the share of `part` in `whole`, which is 0 if the whole is.
    #[must_use]
    pub fn share_of(part: i64, whole: i64) -> Cell {
        Cell::Share(match whole {
            0 => 0.0,
            whole => part as f64 / whole as f64,
        })
    }

    /// Returns the cell as gprofng prints it: seconds with three decimals, percent with two, and
    /// zero as `0.`.
    #[must_use]
    pub fn plain(&self) -> String {
        match self {
            Cell::Empty => String::new(),
            Cell::Text(text) => printable(text),
            Cell::Count(count) => count.to_string(),
            Cell::Microseconds(0) | Cell::Nanoseconds(Nanos::ZERO) => "0.".to_owned(),
            Cell::Microseconds(us) => format!("{:.3}", *us as f64 / 1e6),
            Cell::Nanoseconds(ns) => format!("{:.3}", ns.as_secs_f64()),
            Cell::Delta(0) => "0.".to_owned(),
            Cell::Delta(us) => format!("{:+.3}", *us as f64 / 1e6),
            Cell::Ratio(ratio) => format!("x {ratio:.3}"),
            Cell::Average(number) => format!("{number:.3}"),
            Cell::Share(share) if *share == 0.0 => "0.".to_owned(),
            Cell::Share(share) => format!("{:.2}", 100.0 * share),
        }
    }

    /// Returns the value unrounded: times in seconds, shares in percent.
    #[must_use]
    pub fn value(&self) -> Value {
        match self {
            Cell::Empty => Value::Null,
            Cell::Text(text) => json!(text),
            Cell::Count(count) => json!(count),
            Cell::Delta(us) | Cell::Microseconds(us) => json!(*us as f64 / 1e6),
            Cell::Nanoseconds(ns) => json!(ns.as_secs_f64()),
            Cell::Share(share) => json!(100.0 * share),
            Cell::Ratio(number) | Cell::Average(number) => json!(number),
        }
    }

    /// Compares two cells of one column.
    #[must_use]
    pub fn order(&self, other: &Cell) -> Ordering {
        match (self, other) {
            (Cell::Text(a), Cell::Text(b)) => a.cmp(b),
            (Cell::Count(a), Cell::Count(b)) => a.cmp(b),
            (Cell::Microseconds(a), Cell::Microseconds(b)) => a.cmp(b),
            (Cell::Nanoseconds(a), Cell::Nanoseconds(b)) => a.cmp(b),
            (Cell::Share(a), Cell::Share(b)) => a.total_cmp(b),
            _ => Ordering::Equal,
        }
    }
}

/// A table with a title and notes.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Table {
    /// The name of the view.
    pub view: &'static str,
    /// The line above it in text.
    pub title: String,
    /// Its columns.
    pub columns: Vec<Column>,
    /// Its rows, each with a cell for each column.
    pub rows: Vec<Vec<Cell>>,
    /// Lines below it, such as the number of rows left out.
    pub notes: Vec<String>,
    /// Whether its lines are never wrapped and keep their blanks, as source code.
    pub verbatim: bool,
}

impl Table {
    /// Leaves out the rows after the first `limit`, with a note of their number.
    pub fn cut(&mut self, limit: usize) {
        let more = self.rows.len().saturating_sub(limit);
        self.rows.truncate(limit);
        self.notes.extend(left_out(more));
    }

    /// Leaves out the rows after the first one, which is the total, and `limit` others.
    pub fn cut_after_total(&mut self, limit: Option<usize>) {
        if let Some(limit) = limit {
            self.cut(limit.saturating_add(1));
        }
    }

    /// Returns the table as text, in lines no wider than `width` columns if numbers leave space for
    /// that. Without a width, lines are as wide as needed, which is right for a pipe.
    #[must_use]
    pub fn text(&self, width: Option<u16>) -> String {
        let mut out = String::new();
        if !self.title.is_empty() {
            out.push_str(&printable(&self.title));
            out.push_str("\n\n");
        }
        let shown = || self.columns.iter().filter(|column| !column.hidden);
        let aligns = shown().map(|column| {
            if column.number {
                Align::Right
            } else {
                Align::Left
            }
        });
        let mut table = TextTable::new(aligns);
        table.titles(shown().map(|column| column.title.as_str()));
        for row in &self.rows {
            let cells = row.iter().zip(&self.columns);
            let cells = cells.filter(|(_, column)| !column.hidden);
            table.row(cells.map(|(cell, _)| cell.plain()));
        }
        let width = width.filter(|_| !self.verbatim);
        out.push_str(&table.text(width.map(usize::from)));
        for note in &self.notes {
            out.push_str(&format!("\n{}\n", printable(note)));
        }
        out
    }

    /// Returns the table as CSV (RFC 4180): the keys, then the rows, unrounded.
    #[must_use]
    pub fn csv(&self) -> String {
        let mut writer = csv::Writer::from_writer(Vec::new());
        let keys = self.columns.iter().map(|column| column.key.clone());
        let rows = self.rows.iter().map(|row| {
            let cells = row.iter().map(|cell| match cell {
                Cell::Empty => String::new(),
                Cell::Text(text) => text.clone(),
                number => number.value().to_string(),
            });
            cells.collect::<Vec<_>>()
        });
        for record in std::iter::once(keys.collect()).chain(rows) {
            // Into memory no write fails, and every row has as many cells as there are columns.
            let _ = writer.write_record(&record);
        }
        let bytes = writer.into_inner().unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Returns the table as a JSON object: `view`, `columns` with key and title, and `rows`, one
    /// object each.
    #[must_use]
    pub fn json(&self) -> Value {
        let columns = self.columns.iter();
        let columns = columns
            .map(|column| json!({ "key": column.key, "title": column.title.replace('\n', " ") }));
        let rows = self.rows.iter().map(|row| {
            let keys = self.columns.iter().map(|column| column.key.clone());
            let cells = row.iter().map(Cell::value);
            Value::Object(keys.zip(cells).collect::<Map<_, _>>())
        });
        json!({
            "view": self.view,
            "title": self.title,
            "columns": columns.collect::<Vec<_>>(),
            "rows": rows.collect::<Vec<_>>(),
            "notes": self.notes,
        })
    }
}

/// Returns sentences as text, each on a line of its own, or on several if it does not fit into
/// `width` columns.
#[must_use]
pub fn sentences(sentences: &[String], width: Option<u16>) -> String {
    let mut table = TextTable::new([Align::Left]);
    for sentence in sentences {
        table.row([printable(sentence)]);
    }
    table.text(width.map(usize::from))
}

/// Returns the note about rows left out, if there are any.
#[must_use]
pub fn left_out(rows: usize) -> Option<String> {
    match rows {
        0 => None,
        1 => Some("1 more row is left out".to_owned()),
        _ => Some(format!("{rows} more rows are left out")),
    }
}

/// The key of a fact of a run that stands ahead of all else: its data may be wrong.
pub const PROBLEM: &str = "PROBLEM";

/// Several tables shown together.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TablePage {
    /// The name of the view.
    pub view: &'static str,
    /// Sentences that say the most important. A [`PROBLEM`] stands above them.
    pub headline: Vec<String>,
    /// The facts of each run: keys and values.
    pub runs: Vec<Vec<(&'static str, Cell)>>,
    /// The tables, each named by [`Table::view`].
    pub tables: Vec<Table>,
    /// Tables that are in JSON and CSV only.
    pub data: Vec<Table>,
}

impl TablePage {
    /// Returns the text of all tables: see [`Table::text`].
    #[must_use]
    pub fn text(&self, width: Option<u16>) -> String {
        let facts = |run: &Vec<(&str, Cell)>| -> String {
            let longest = run.iter().map(|(key, _)| key.len()).max().unwrap_or(0);
            let lines = run.iter();
            let lines = lines.map(|(key, cell)| format!("{key:longest$}  {}\n", cell.plain()));
            lines.collect()
        };
        let mut parts: Vec<_> = self.runs.iter().map(facts).collect();
        if !self.headline.is_empty() {
            let has_problem = |run: &Vec<(&str, Cell)>| run.iter().any(|(key, _)| *key == PROBLEM);
            let first = if self.runs.iter().any(has_problem) {
                parts.len()
            } else {
                0
            };
            parts.insert(first, sentences(&self.headline, width));
        }
        parts.extend(self.tables.iter().map(|table| table.text(width)));
        parts.join("\n")
    }

    /// Returns the tables as CSV, each with its name in the first column, separated by empty lines.
    /// Sentences and facts of runs are left out.
    #[must_use]
    pub fn csv(&self) -> String {
        let tables = self.tables.iter().chain(&self.data).map(|table| {
            let mut table = table.clone();
            table.columns.insert(0, Column::text("table", ""));
            for row in &mut table.rows {
                row.insert(0, Cell::Text(table.view.to_owned()));
            }
            table.csv()
        });
        tables.collect::<Vec<_>>().join("\n")
    }

    /// Returns a JSON object: `view`, `headline` if there are sentences, `runs`, and each table by
    /// its name.
    #[must_use]
    pub fn json(&self) -> Value {
        let runs = self.runs.iter().map(|run| {
            let facts = run.iter();
            let facts = facts.map(|(key, cell)| ((*key).to_owned(), cell.value()));
            Value::Object(facts.collect::<Map<_, _>>())
        });
        let mut page = json!({ "view": self.view, "runs": runs.collect::<Vec<_>>() });
        if !self.headline.is_empty() {
            page["headline"] = json!(self.headline);
        }
        for table in self.tables.iter().chain(&self.data) {
            page[table.view] = table.json();
        }
        page
    }
}

/// The result of a view: one table or several.
#[derive(Debug, Clone, PartialEq)]
pub enum Report {
    /// One table.
    Table(Table),
    /// Several tables.
    Page(TablePage),
}

impl Report {
    /// Returns the text of all tables: see [`Table::text`].
    #[must_use]
    pub fn text(&self, width: Option<u16>) -> String {
        match self {
            Report::Table(table) => table.text(width),
            Report::Page(page) => page.text(width),
        }
    }

    /// Returns the report as CSV: see [`Table::csv`] and [`TablePage::csv`].
    #[must_use]
    pub fn csv(&self) -> String {
        match self {
            Report::Table(table) => table.csv(),
            Report::Page(page) => page.csv(),
        }
    }

    /// Returns the report as JSON: see [`Table::json`] and [`TablePage::json`].
    #[must_use]
    pub fn json(&self) -> Value {
        match self {
            Report::Table(table) => table.json(),
            Report::Page(page) => page.json(),
        }
    }
}

/// Returns a text that is safe on a terminal, with blanks for tabs.
pub(crate) fn printable(text: &str) -> String {
    let mut parts = text.split('\t');
    let safe = |part: &str| text::printable(part.as_bytes());
    let mut out = parts.next().map(safe).unwrap_or_default();
    for part in parts {
        let blanks = TAB_COLUMNS - width_of(&out) % TAB_COLUMNS;
        out.extend(iter::repeat_n(' ', blanks));
        out.push_str(&safe(part));
    }
    out
}

/// The columns between two tab stops.
const TAB_COLUMNS: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        Table {
            view: "functions",
            title: "Functions".to_owned(),
            columns: vec![
                Column::number("e.user", "Excl.\nUser CPU\nsec."),
                Column::number("e.%user", "\n\n%"),
                Column::text("name", "Name"),
                Column::text("object", "Object").hidden(),
            ],
            rows: vec![
                vec![
                    Cell::Microseconds(1_234_567),
                    Cell::Share(1.0),
                    Cell::Text("<Total>".into()),
                    Cell::Empty,
                ],
                vec![
                    Cell::Microseconds(0),
                    Cell::Share(0.0),
                    Cell::Text("std::map<int, \"x\">::a very long name that does not fit into forty columns".into()),
                    Cell::Text("a".into()),
                ],
            ],
            notes: vec!["1 row more".to_owned()],
            verbatim: false,
        }
    }

    #[test]
    fn a_problem_stands_above_the_sentences() {
        let mut page = TablePage {
            headline: vec!["Nobody suffered.".to_owned()],
            runs: vec![vec![("host", Cell::Text("db1".to_owned()))]],
            ..TablePage::default()
        };
        assert_eq!(page.text(None), "Nobody suffered.\n\nhost  db1\n");
        page.runs[0].insert(0, (PROBLEM, Cell::Text("no clock".to_owned())));
        let text = page.text(None);
        assert_eq!(
            text,
            "PROBLEM  no clock\nhost     db1\n\nNobody suffered.\n"
        );
    }

    #[test]
    fn a_table_is_text_csv_and_json() {
        insta::assert_snapshot!("text", table().text(None));
        insta::assert_snapshot!("text_in_40_columns", table().text(Some(40)));
        for width in [40, 60, 80] {
            let text = table().text(Some(width));
            let longest = text.lines().map(width_of).max().unwrap();
            assert!(
                longest <= usize::from(width),
                "{longest} columns of {width}"
            );
        }
        let hostile = Cell::Text("a\u{1b}[2Jb\nc".to_owned());
        assert_eq!(hostile.plain(), "a\\x1B[2Jb\\x0Ac");
        assert_eq!(Cell::Text("a\tb".to_owned()).plain(), "a       b");
        insta::assert_snapshot!("csv", table().csv());
        insta::assert_snapshot!("json", format!("{:#}", table().json()));
    }
}
