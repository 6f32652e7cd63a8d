//! One recording, in three steps. Each hands all that it has to the next one:
//!
//! 1. `start` opens everything;
//! 2. `rounds` runs the loop until it is time to stop, and lets `series` begin the next experiment
//!    when that is due;
//! 3. `finish` closes everything.
//!
//! All of them drive one `recording`: the inputs, the dispatcher, and the current experiment.

mod archiving;
mod budget;
mod control;
mod directory;
mod finish;
mod keep;
mod load_phase;
mod pause;
mod problems;
mod process_limits;
mod recording;
mod rounds;
mod schedule;
mod series;
mod start;
mod wall_clock;

use counters::names::event::CounterRequest;
use host::exit::{Failure, spawn_code};
use host::load;
use host::output::Output;

use self::load_phase::cannot_start;
use self::start::Start;
use crate::plan::Plan;
use crate::record::dry_run;

/// Records as planned, with these counters. Returns the exit code: the load's, or 0.
///
/// # Errors
/// A [`Failure`] with its hint; what was recorded until then is a valid experiment, or nothing is
/// left over.
pub fn record(
    plan: &Plan,
    counters: &[CounterRequest],
    output: &mut Output,
) -> Result<u8, Failure> {
    for line in dry_run::describe(plan) {
        output.detail(&line);
    }
    if let Some((program, error)) = load::refused(&plan.load) {
        output.say(&cannot_start(program, &error));
        return Ok(spawn_code(&error));
    }
    let mut rounds = Start::open(plan, counters, output)?.begin(output)?;
    let run = rounds.run(output);
    // Whatever ended the run, what it recorded is closed and shown.
    let finished = rounds.finish().run(output);
    run.and(finished)
}
