//! Stock gprofng, as the tests run it.

use std::path::Path;
use std::process::Command;

/// Runs gprofng and gives what it printed; it must have nothing to complain of.
pub(crate) fn display(experiment: &Path, arguments: &[&str]) -> String {
    let (text, errors) = run(experiment, arguments);
    assert_eq!(errors, "", "{arguments:?} on stderr");
    text
}

/// Runs gprofng and gives what it printed on stdout and on stderr.
pub(crate) fn run(experiment: &Path, arguments: &[&str]) -> (String, String) {
    let output = Command::new("gprofng")
        .args(["display", "text"])
        .args(arguments)
        .arg(experiment)
        // A .gprofng.rc of whoever runs the tests would change the columns.
        .env("HOME", experiment)
        .current_dir(experiment)
        .output()
        .unwrap_or_else(|error| {
            panic!("cannot run gprofng: {error}; install the package binutils (Debian: gprofng)")
        });
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.success(),
        "{arguments:?}: {}\n{text}\n{errors}",
        output.status
    );
    (text, errors)
}

/// The line whose last column is `name`, as columns.
pub(crate) fn row<'a>(text: &'a str, name: &str) -> Vec<&'a str> {
    let mut rows = text
        .lines()
        .filter(|line| line.trim_end().ends_with(&format!(" {name}")));
    let row = rows
        .next()
        .unwrap_or_else(|| panic!("no {name:?} in:\n{text}"));
    row.split_whitespace().collect()
}
