//! The self-test by itself, without an experiment: for `kcollect doctor`.

use std::thread::sleep;
use std::time::Duration;

use bpf::{KernelFunctions, KernelTypes, UserStackCapture};
use host::exit::{ExitKind, Failure};
use host::machine::now;

use super::{Check, Outcome, Phases, Report};
use crate::doctor::Finding;
use crate::plan::Plan;
use crate::record::input::inputs::Inputs;

/// How often the records are read.
const ROUND: Duration = Duration::from_millis(50);
/// How long the test may take on a machine that is busy.
const LONGEST: Duration = Duration::from_secs(20);

/// Records as planned for about a second and returns what the self-test has found, as findings.
#[must_use]
pub fn findings(
    plan: &Plan,
    functions: KernelFunctions,
    types: &KernelTypes,
    capture: UserStackCapture,
) -> Vec<Finding> {
    match run(plan, functions, types, capture) {
        Ok(report) => report
            .checks
            .iter()
            .map(|check| finding(check, &report))
            .collect(),
        Err(Failure {
            kind,
            message,
            hint,
        }) => vec![Finding::fail("self-test", kind, message, hint)],
    }
}

fn run(
    plan: &Plan,
    functions: KernelFunctions,
    types: &KernelTypes,
    capture: UserStackCapture,
) -> Result<Report, Failure> {
    let mut inputs = Inputs::open(plan, functions, types, Some(capture), &[])?;
    inputs.set_self_test(Phases::DOCTOR);
    let started = inputs.set_recording(true)?;
    let report = loop {
        sleep(ROUND);
        inputs.round()?;
        let is_last = now() > started + LONGEST.into();
        if let Some(report) = inputs.poll_self_test(is_last)? {
            break report;
        }
        if is_last {
            break Report::inconclusive("no thread could be made for it".to_owned());
        }
    };
    inputs.set_recording(false)?;
    Ok(report)
}

fn finding(check: &Check, report: &Report) -> Finding {
    let text = &check.text;
    match check.outcome {
        Outcome::Passed => Finding::ok(check.name, text),
        Outcome::Inconclusive => Finding::warn(
            check.name,
            format!("inconclusive: {text}"),
            "run it again when the machine is less busy",
        ),
        Outcome::Failed => {
            let mut problems = report.problems.iter();
            let problem = problems.find(|problem| problem.subject == check.subject);
            let (kind, hint) = problem.map_or((ExitKind::Software, ""), |problem| {
                (problem.kind, problem.hint)
            });
            Finding::fail(check.name, kind, text, hint)
        }
    }
}
