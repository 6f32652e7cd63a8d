//! The command line, in two steps: [`args`] is what was typed, [`plan`] is what will be done.
//!
//! The letters and their values are er_kernel's and collect's, each with a long name beside it. Only a [`Plan`] reaches
//! the session: it holds no text that still has to be understood. What resolution needs to know of the machine comes in
//! as a [`Machine`], so that the same words give the same plan in a test as on a server.

pub mod plan;

use std::ffi::OsString;

pub use plan::{
    Archive, CliError, Command, Machine, NameWish, PauseSignal, Plan, Target, check_targets,
};

/// Reads the command line, `argv[0]` included, and says what will be done.
///
/// # Errors
/// [`CliError`] names the option, what was typed and the cure. Nothing was touched or started.
pub fn parse(
    argv: impl IntoIterator<Item = OsString>,
    machine: &Machine,
) -> Result<Command, CliError> {
    let _ = (argv.into_iter().count(), machine);
    Err(CliError::new("not there yet", "wait"))
}
