//! pprof, read by `go tool pprof`.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use analysis::metric::BaseMetric;
use analysis::model::Sums;
use anyhow::{Context, Result, ensure};

use super::reader;

/// Reads a profile, if there is a program for it.
pub(super) fn read(file: &Path, totals: &Sums) -> Result<()> {
    let columns = reader(Command::new("go").args(["tool", "pprof", "-raw"]).arg(file))?;
    if let Some(raw) = columns {
        let sums = raw_sums(&raw)?;
        let expected = BaseMetric::Total.of(totals);
        ensure!(
            sums.get("total") == Some(&expected),
            "{sums:?}, not {expected}"
        );
        let mut top = Command::new("go");
        top.args(["tool", "pprof", "-top", "-sample_index=total"]);
        let output = reader(top.arg(file))?.context("go is gone")?;
        ensure!(output.contains("Type: total"), "{output}");
    }
    Ok(())
}

/// Returns the sums of the columns that `pprof -raw` prints, times in microseconds.
fn raw_sums(raw: &str) -> Result<BTreeMap<String, i64>> {
    let samples = raw.split_once("\nSamples:\n").context("no samples")?;
    let (samples, _) = samples.1.split_once("\nLocations\n").context("it is cut")?;
    let mut lines = samples.lines();
    let heading = lines.next().context("no samples")?;
    let names = heading.split_whitespace().map(|name| {
        let name = name.trim_end_matches("[dflt]");
        name.split_once('/').unwrap_or((name, ""))
    });
    let names: Vec<_> = names.collect();
    let mut sums = vec![0i64; names.len()];
    for line in lines {
        let Some((values, _)) = line.split_once(':') else {
            continue;
        };
        let values: Result<Vec<i64>, _> = values.split_whitespace().map(str::parse).collect();
        let Ok(values) = values else { continue };
        if values.len() == sums.len() {
            sums.iter_mut()
                .zip(values)
                .for_each(|(sum, value)| *sum += value);
        }
    }
    let sums = names.into_iter().zip(sums).map(|((name, unit), sum)| {
        let sum = if unit == "nanoseconds" {
            sum / 1000
        } else {
            sum
        };
        (name.to_owned(), sum)
    });
    Ok(sums.collect())
}
