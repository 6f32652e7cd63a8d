//! Findings as a table and as JSON.

use host::exit::ExitKind;
use host::table::{Align, TextTable};
use serde::Serializer;
use serde_json::json;

use super::{Finding, Verdict, exit_kind};

/// Narrower terminals get tables of this many columns.
const MIN_WIDTH: usize = 40;

/// Returns a table with a row for each finding and the hint below it, at most `width` columns wide.
/// None: lines of any length, for a pipe.
#[must_use]
pub fn table(findings: &[Finding], width: Option<u16>) -> String {
    let mut table = TextTable::new([Align::Left; 3]).indented(1);
    for finding in findings {
        let verdict = match finding.verdict {
            Verdict::Ok => "ok",
            Verdict::Warn => "warn",
            Verdict::Fail => "FAIL",
        };
        let text = match &finding.hint {
            Some(hint) => format!("{}\nhint: {hint}", finding.found),
            None => finding.found.clone(),
        };
        table.row([verdict, finding.name, &text]);
    }
    let table = table.text(width.map(|width| usize::from(width).max(MIN_WIDTH)));
    let last = match exit_kind(findings) {
        ExitKind::Ok => "This machine can be profiled.",
        _ => "Fix the FAILs to profile this machine.",
    };
    format!("{table}\n{last}\n")
}

/// Returns a JSON object: `ok` (no finding fails), `exit_code`, and `findings`, each with `name`,
/// `found`, `verdict` (`ok`, `warn` or `fail`), `hint` (text or null) and `exit_code`.
#[must_use]
pub fn json(findings: &[Finding]) -> String {
    let kind = exit_kind(findings);
    format!(
        "{:#}\n",
        json!({ "ok": kind == ExitKind::Ok, "exit_code": kind.code(), "findings": findings })
    )
}

/// Serializes a kind as its exit code.
#[allow(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes every field by reference"
)]
pub(super) fn exit_code<S: Serializer>(kind: &ExitKind, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u8(kind.code())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings() -> Vec<Finding> {
        vec![
            Finding::ok("kernel", "6.12.9-amd64"),
            Finding::fail(
                "privileges",
                ExitKind::NoPerm,
                "effective uid 1000, without CAP_BPF, CAP_PERFMON",
                "run it with sudo, or once: sudo setcap cap_bpf,cap_perfmon+ep kcollect",
            ),
            Finding::warn("gprofng", "not found", "sudo apt-get install binutils"),
        ]
    }

    #[test]
    fn tables_fit_the_terminal() {
        insta::assert_snapshot!("table_in_60_columns", table(&findings(), Some(60)));
        insta::assert_snapshot!("table_in_a_pipe", table(&findings(), None));
        for width in [40, 60, 80, 200] {
            let longest = table(&findings(), Some(width))
                .lines()
                .map(str::len)
                .max()
                .unwrap();
            assert!(
                longest <= usize::from(width),
                "{longest} columns of {width}"
            );
        }
    }

    #[test]
    fn json_has_every_field() {
        insta::assert_snapshot!(json(&findings()));
    }
}
