//! gprofng reads an experiment again and again while it is written: it never fails, and no total
//! ever shrinks.

use std::time::Duration;

use anyhow::{Result, ensure};
use tests::gprofng;
use tests::kcollect::Recording;
use tests::machine::disturbance::judge_times;
use tests::workload;

#[test]
fn root_alone_totals_grow_while_it_is_written() -> Result<()> {
    judge_times(|| {
        let limit = Duration::from_secs(60);
        let (mut recording, experiment) = Recording::of(workload!("spawner"), 6, limit)?;

        let mut totals: Vec<f64> = Vec::new();
        while !recording.running().ended()? {
            let output = gprofng::script(
                &["metrics e.kcpu:i.kcpu:name", "functions", "header"],
                &experiment,
            )?;
            // gprofng opens the stacks before the ticks, so those that were written in between are
            // missing to it: the only complaint that a live experiment may cause. Their time is in
            // the total all the same.
            let complaints: Vec<_> = output
                .complaints()
                .into_iter()
                .filter(|line| !line.contains("frameinfo packets are missing"))
                .collect();
            ensure!(
                complaints.is_empty(),
                "read number {}: {complaints:#?}\n{}",
                totals.len() + 1,
                output.text
            );
            let total = output.table(2).total()?;
            ensure!(
                totals.last().is_none_or(|last| *last <= total),
                "a total shrank: {totals:?}, then {total}"
            );
            totals.push(total);
        }
        let recorded = recording.finish()?.succeeded()?;
        let total = gprofng::functions(&recorded.experiment()?, None)?.total()?;
        ensure!(
            totals.last().is_none_or(|last| *last <= total),
            "the last total is {total}, after {totals:?}"
        );
        ensure!(
            totals.len() >= 4,
            "only {} reads while it was written",
            totals.len()
        );
        let grown = totals.windows(2).filter(|pair| pair[0] < pair[1]).count();
        ensure!(
            grown >= 3,
            "the experiment did not grow while it was written: {totals:?}"
        );
        Ok(())
    })
}
