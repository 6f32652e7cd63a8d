//! Loads that are watched for a time instead of until they end: what a profiler takes in the long
//! run, when the cost of its start no longer matters. The time of the machine's work is measured by
//! the other loads.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use crate::setting::{Kind, Profiler, Setting};
use crate::took::Took;

/// The results of a setting.
#[derive(Debug)]
pub(crate) struct Watched {
    pub(crate) setting: String,
    pub(crate) rounds: Vec<Took>,
    /// Its share of one CPU while it watched, percent, in each round.
    pub(crate) percent: Vec<f64>,
    /// Why it did not run in some round.
    pub(crate) failure: Option<String>,
}

/// Measures a load under each setting of these kinds, in turn, in each round.
pub(crate) fn measure(
    settings: &[Setting],
    kinds: &[Kind],
    rounds: u16,
    mut watch: impl FnMut(&Setting) -> Result<(Took, Option<f64>)>,
) -> Result<Vec<Watched>> {
    let chosen: Vec<&Setting> = settings
        .iter()
        .filter(|setting| kinds.contains(&setting.kind))
        .collect();
    let mut all: Vec<Watched> = chosen
        .iter()
        .map(|setting| Watched {
            setting: setting.name.clone(),
            rounds: Vec::new(),
            percent: Vec::new(),
            failure: None,
        })
        .collect();
    for _ in 0..rounds {
        for (setting, watched) in chosen.iter().zip(&mut all) {
            match watch(setting) {
                Err(error) if setting.must_work() => return Err(error),
                Err(error) => watched.failure = Some(crate::in_short(&error)),
                Ok((took, percent)) => {
                    watched.rounds.push(took);
                    watched.percent.extend(percent);
                }
            }
        }
    }
    Ok(all)
}

/// Works for a time, by one run of `work` after the other. Returns the share of one CPU that the
/// profiler took meanwhile, percent.
pub(crate) fn while_working(
    profiler: &Profiler,
    time: Duration,
    mut work: impl FnMut() -> Result<()>,
) -> Result<Option<f64>> {
    let (start, before) = (Instant::now(), profiler.cpu()?);
    while start.elapsed() < time {
        work().context("the load")?;
    }
    let (watched, after) = (start.elapsed(), profiler.cpu()?);
    Ok(before
        .zip(after)
        .map(|(before, after)| 100.0 * (after - before).as_secs_f64() / watched.as_secs_f64()))
}
