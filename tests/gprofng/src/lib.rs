//! Stock `gprofng display text`: runs it on an experiment, parses its tables, collects its
//! complaints.
//!
//! gprofng exits with code 0 whatever happens, so its output decides. There are two ways to run it.
//! [`display`] passes options on the command line and accepts no output on stderr. [`script`]
//! passes commands in a script: gprofng reads the options of its command line before it opens the
//! experiment, and there it would refuse a filter that names a packet field of the experiment's own
//! (`KPID`).
//!
//! This is a package of its own so that the tests of every package can use it.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, anyhow, ensure};

/// The columns of [`Table`]: ticks of kcollect's founder, exclusive and inclusive, in seconds.
const METRICS: &str = "metrics e.kcpu:i.kcpu:name";

/// Reading a large experiment takes gprofng seconds; more than this is a defect of the experiment.
const LIMIT_S: &str = "60";

/// The output of gprofng.
#[derive(Clone, Debug)]
pub struct GprofngOutput {
    /// Its standard output, then its standard error.
    pub text: String,
}

/// A row of a table.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The numbers, in the order of the columns.
    pub values: Vec<f64>,
    /// The name of the row.
    pub name: String,
}

/// A table: functions, CPUs, threads, samples.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    /// The rows, in gprofng's order.
    pub rows: Vec<Row>,
}

impl GprofngOutput {
    /// Returns the lines in which gprofng complains about an experiment.
    pub fn complaints(&self) -> Vec<&str> {
        self.text
            .lines()
            .filter(|line| is_complaint(line))
            .collect()
    }

    /// Returns the output if it has no complaint.
    ///
    /// # Errors
    /// When it has one.
    pub fn content(self) -> Result<Self> {
        let complaints = self.complaints();
        ensure!(
            complaints.is_empty(),
            "gprofng complains: {complaints:#?}\nin\n{}",
            self.text
        );
        Ok(self)
    }

    /// Returns the rows of the tables with this number of numeric columns.
    pub fn table(&self, columns: usize) -> Table {
        Table {
            rows: self
                .text
                .lines()
                .filter_map(|line| row(line, columns))
                .collect(),
        }
    }
}

/// The beginnings of lines that repeat words of users: commands, programs, directories and names of
/// processes, in gprofng's header and in the comments kcollect writes.
const OF_USERS: [&str; 7] = [
    "Target command (",
    "command line: ",
    "command: ",
    "directory: ",
    "plan: ",
    "process: ",
    "program: ",
];

/// Returns whether a line is a complaint: gprofng has several prefixes for them. Three kinds of
/// lines only look like one: warnings of the collector (`*** Collector Warning: CPU 1 went
/// offline`) are part of the recording; a function may have any name, such as
/// `std::io::error::Error::kind`; and what users typed may have any words.
fn is_complaint(line: &str) -> bool {
    const WORDS: [&str; 9] = [
        "*** Warning",
        "*** Error",
        "WARNING",
        "Error:",
        "Warning:",
        "are missing",
        "XML parse error",
        "corrupt",
        "Unexpected",
    ];
    !line.starts_with("*** Collector ")
        && !OF_USERS.iter().any(|words| line.starts_with(words))
        && row(line, 1).is_none()
        && WORDS.iter().any(|word| line.contains(word))
}

/// Returns a row: this number of values, and the rest is the name. None for other lines.
fn row(line: &str, columns: usize) -> Option<Row> {
    let mut rest = line;
    let mut values = Vec::with_capacity(columns);
    for _ in 0..columns {
        let start = rest.trim_start();
        let (word, after) = start.split_once(' ')?;
        if !word.starts_with(|first: char| first.is_ascii_digit()) {
            return None;
        }
        values.push(word.parse().ok()?);
        rest = after;
    }
    let name = rest.trim();
    (!name.is_empty()).then(|| Row {
        values,
        name: name.to_owned(),
    })
}

impl Table {
    /// Returns the first number in the row of this name. 0 without such a row: gprofng leaves out
    /// rows without time.
    pub fn get(&self, name: &str) -> f64 {
        self.find(name).map_or(0.0, |row| row.values[0])
    }

    /// Returns the row of this name.
    pub fn find(&self, name: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.name == name)
    }

    /// Returns the first number of `<Total>`.
    ///
    /// # Errors
    /// When the table has no such row.
    pub fn total(&self) -> Result<f64> {
        Ok(self
            .find("<Total>")
            .ok_or_else(|| anyhow!("no row <Total> in {:?}", self.rows))?
            .values[0])
    }

    /// Returns all rows but `<Total>`.
    pub fn things(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(|row| row.name != "<Total>")
    }

    /// Returns the sum of the first numbers of the rows whose names pass.
    pub fn sum(&self, passes: impl Fn(&str) -> bool) -> f64 {
        self.things()
            .filter(|row| passes(&row.name))
            .map(|row| row.values[0])
            .sum()
    }
}

/// Runs commands of gprofng's script language on an experiment. Returns the output.
///
/// # Errors
/// When gprofng does not run or fails. Its complaints are in the output.
pub fn script(commands: &[&str], experiment: &Path) -> Result<GprofngOutput> {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("script");
    std::fs::write(&path, commands.join("\n") + "\n")?;
    let (stdout, stderr) = run(experiment, &["-script".as_ref(), path.as_ref()])?;
    Ok(GprofngOutput {
        text: stdout + &stderr,
    })
}

/// Returns what gprofng printed on stdout, given options on its command line.
///
/// # Panics
/// When gprofng does not run, fails, or prints anything on stderr.
#[allow(clippy::panic, reason = "a helper of tests reports by panicking")]
pub fn display(experiment: &Path, options: &[&str]) -> String {
    let (stdout, stderr) = display_all(experiment, options);
    assert_eq!(stderr, "", "{options:?} on stderr");
    stdout
}

/// Returns what gprofng printed on stdout and on stderr, given options on its command line.
///
/// # Panics
/// When gprofng does not run or fails.
#[allow(clippy::panic, reason = "a helper of tests reports by panicking")]
pub fn display_all(experiment: &Path, options: &[&str]) -> (String, String) {
    let options: Vec<_> = options.iter().map(OsStr::new).collect();
    run(experiment, &options).unwrap_or_else(|error| panic!("{error:#}"))
}

/// Returns the columns of the line whose last column is `name`.
///
/// # Panics
/// When there is no such line.
#[allow(clippy::panic, reason = "a helper of tests reports by panicking")]
pub fn columns<'a>(text: &'a str, name: &str) -> Vec<&'a str> {
    let end = format!(" {name}");
    let line = text.lines().find(|line| line.trim_end().ends_with(&end));
    let line = line.unwrap_or_else(|| panic!("no {name:?} in:\n{text}"));
    line.split_whitespace().collect()
}

/// Runs gprofng under a time limit. Returns what it printed on stdout and on stderr.
fn run(experiment: &Path, options: &[&OsStr]) -> Result<(String, String)> {
    // A .gprofng.rc of the user or of the current directory would change the tables.
    let home = tempfile::tempdir()?;
    let Output {
        status,
        stdout,
        stderr,
    } = Command::new("timeout")
        .args([LIMIT_S, "gprofng", "display", "text"])
        .args(options)
        .arg(experiment)
        .stdin(Stdio::null())
        .env("HOME", home.path())
        // It opens the experiments of processes in four threads, and then hung once in some
        // hundreds of runs, with a thousand of them, whose other runs ended after a second.
        .env("GPROFNG_DBE_NTHREADS", "0")
        .current_dir(home.path())
        .output()
        .context("timeout is part of the package coreutils")?;
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    let (stdout, stderr) = (text(stdout), text(stderr));
    let advice = match status.code() {
        Some(124) => "it took more than the time limit",
        Some(127) => "install the package binutils (Debian: gprofng)",
        _ => "",
    };
    ensure!(
        status.success(),
        "gprofng display text {options:?} failed: {status} {advice}\n{stdout}\n{stderr}"
    );
    Ok((stdout, stderr))
}

/// Returns the functions of a founder, in exclusive and inclusive seconds. A filter such as
/// `KPID==7` selects some of them.
///
/// # Errors
/// When gprofng fails or complains.
pub fn functions(experiment: &Path, filter: Option<&str>) -> Result<Table> {
    let filter = filter
        .map(|filter| format!("filters {filter}"))
        .unwrap_or_default();
    Ok(script(&[METRICS, &filter, "functions"], experiment)?
        .content()?
        .table(2))
}

/// Returns the rows of a view of a founder that has exclusive numbers only: `cpus`, `threads`,
/// `samples`.
///
/// # Errors
/// When gprofng fails or complains.
pub fn objects(experiment: &Path, view: &str) -> Result<Table> {
    Ok(script(&[METRICS, view], experiment)?.content()?.table(1))
}

/// The content of the view `header`.
#[derive(Clone, Debug, PartialEq)]
pub struct Header {
    /// All of it.
    pub text: String,
    /// The clock interval, nanoseconds.
    pub interval_ns: f64,
    /// From the start to the end of the experiment, less the time it was paused, nanoseconds.
    pub duration_ns: f64,
    /// Whether it was closed properly: it has its `exit` event.
    pub closed: bool,
}

/// Returns the header of an experiment.
///
/// # Errors
/// When gprofng fails or complains, or a part of the header is missing.
pub fn header(experiment: &Path) -> Result<Header> {
    let text = script(&["header"], experiment)?.content()?.text;
    parse_header(&text).with_context(|| format!("no interval or no duration in\n{text}"))
}

fn parse_header(text: &str) -> Option<Header> {
    let after = |key: &str| {
        let rest = &text[text.find(key)? + key.len()..];
        rest.split_whitespace().next()?.parse::<f64>().ok()
    };
    Some(Header {
        text: text.to_owned(),
        interval_ns: after("Clock-profiling, interval = ")? * 1e3,
        duration_ns: after("Data Collection Duration:")? * 1e9,
        closed: !text.contains("not closed"),
    })
}

/// Returns the program counters of a founder, callers' included, as function and offset.
///
/// # Errors
/// When gprofng fails or complains.
pub fn pcs(experiment: &Path) -> Result<Vec<(String, u64)>> {
    let table = script(&[METRICS, "pcs"], experiment)?.content()?.table(2);
    Ok(table.things().filter_map(|row| pc(&row.name)).collect())
}

/// Returns the parts of `name + 0x00000010`. The name may have blanks.
fn pc(text: &str) -> Option<(String, u64)> {
    let (name, offset) = text.rsplit_once(" + 0x")?;
    Some((name.to_owned(), u64::from_str_radix(offset, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FUNCTIONS: &str = "\
Current metrics: e.kcpu:i.kcpu:name
Current Sort Metric: Exclusive Kernel CPU Time ( e.kcpu )
Functions sorted by metric: Exclusive Kernel CPU Time

Excl.     Incl.      Name
Kernel    Kernel
CPU sec.  CPU sec.
8.000     8.000      <Total>
2.000     2.000      <a b_PID_7>
0.        0.100      <static>@0x271c1 (<libc.so.6>)
";

    #[test]
    fn a_table_is_its_rows() {
        let table = GprofngOutput {
            text: FUNCTIONS.into(),
        }
        .content()
        .unwrap()
        .table(2);
        assert_eq!(table.rows.len(), 3);
        assert_eq!(table.total().unwrap(), 8.0);
        assert_eq!(table.get("<a b_PID_7>"), 2.0);
        assert_eq!(table.get("nothing"), 0.0);
        assert_eq!(
            table.find("<static>@0x271c1 (<libc.so.6>)").unwrap().values,
            [0.0, 0.1]
        );
    }

    #[test]
    fn program_counters_are_function_and_offset() {
        assert_eq!(
            pc("foo.isra.0 + 0x00000012"),
            Some(("foo.isra.0".into(), 0x12))
        );
        assert_eq!(pc("<IDLE>"), None);
    }

    #[test]
    fn a_header_has_interval_and_duration() {
        let header = parse_header(
            "  Clock-profiling, interval = 997 microsecs.\n\nData Collection Duration: 1.054448397\n",
        )
        .unwrap();
        assert_eq!(
            (header.interval_ns, header.duration_ns, header.closed),
            (997_000.0, 1_054_448_397.0, true)
        );
        assert_eq!(parse_header("nothing"), None);
    }

    #[test]
    fn complaints_are_found_and_notes_are_not() {
        let output = GprofngOutput {
            text: "No errors\n*** Note: x\n*** Collector Warning: y\n*** Warning: 57 frameinfo packets are missing\n\
                   Target command (64-bit): 'sh -c echo Error: corrupt'\n\
                   command line: bash -c 'echo Error: corrupt'\n"
                .to_owned(),
        };
        assert_eq!(output.complaints().len(), 1);
        assert!(output.content().is_err());
    }

    proptest! {
        #[test]
        fn rows_survive_their_printing(values in proptest::collection::vec(0u32..1_000_000, 1..4), name in "[<a-z][ -~]{0,20}[!-~]") {
            let mut line = String::new();
            for value in &values {
                line += &format!("{}.{:03}     ", value / 1000, value % 1000);
            }
            let row = row(&(line + &name), values.len()).unwrap();
            prop_assert_eq!(row.name, name.trim());
            for (got, put) in row.values.iter().zip(&values) {
                prop_assert!((got * 1000.0 - f64::from(*put)).abs() < 1e-6);
            }
        }

        #[test]
        fn any_line_is_taken(line in "\\PC*", columns in 1usize..4) {
            let _ = row(&line, columns);
            let _ = pc(&line);
        }
    }
}
