//! What is wrong with the recording. Each problem is reported once: at once to the user, in the
//! experiment, and in the summaries from then on.

use host::exit::Failure;
use host::machine::now;
use host::output::Output;

use crate::record::input::inputs::Inputs;
use crate::record::problem::Problem;
use crate::record::route::Router;
use crate::record::summary::Summary;

/// The problems that have been reported.
#[derive(Debug, Default)]
pub(super) struct Problems {
    reported: Vec<Problem>,
    /// A user stack of the self-test's thread has arrived.
    has_own_stack: bool,
}

impl Problems {
    /// Reports what the self-test has found, once it is over; `last`: no record follows.
    pub(super) fn poll_self_test(
        &mut self,
        last: bool,
        inputs: &mut Inputs,
        router: &mut Router,
        output: &mut Output,
    ) -> Result<(), Failure> {
        let Some(report) = inputs.poll_self_test(last)? else {
            return Ok(());
        };
        for check in &report.checks {
            output.detail(&format!("{}: {}", check.name, check.text));
        }
        self.has_own_stack = report.has_user_stack();
        self.report(report.problems, router, output);
        Ok(())
    }

    /// Looks for what makes a whole experiment implausible, and adds all problems to its summary.
    pub(super) fn add_to(
        &mut self,
        summary: &mut Summary,
        inputs: &Inputs,
        router: &mut Router,
        output: &mut Output,
    ) {
        let has_seen_switches = inputs.has_seen_switches().unwrap_or(true);
        let found = summary.implausible(has_seen_switches, self.has_own_stack);
        self.report(found, router, output);
        summary.problems = self.reported.clone();
    }

    /// Reports what no problem that is known explains.
    fn report(&mut self, found: Vec<Problem>, router: &mut Router, output: &mut Output) {
        for problem in found {
            if self.reported.iter().any(|known| known.explains(&problem)) {
                continue;
            }
            output.say(&problem.failure().to_string());
            router.warn(now(), problem.line());
            self.reported.push(problem);
        }
    }

    /// The failure with which the recording ends.
    pub(super) fn failure(&self) -> Option<Failure> {
        self.reported.first().map(Problem::failure)
    }
}
