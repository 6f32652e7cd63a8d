//! The pauses of a recording are in each of its experiments, so that gprofng counts the same time
//! as recorded.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use tests::kcollect::record;
use tests::machine::{Shared, work_cpu};
use tests::workload;

/// Returns the elements of an experiment's log at which recording starts or stops.
fn pauses(experiment: &Path) -> Result<Vec<String>> {
    let log = std::fs::read_to_string(experiment.join("log.xml"))?;
    let lines = log.lines().map(str::trim);
    let pauses = lines.filter(|line| {
        line.starts_with("<event kind=\"pause\"") || line.starts_with("<event kind=\"resume\"")
    });
    Ok(pauses.map(str::to_owned).collect())
}

#[test]
fn root_subexperiments_have_the_pauses_of_their_founder() -> Result<()> {
    let _machine = Shared::take()?;
    let cpu = work_cpu()?.to_string();
    let recorded = record(
        &["-p", "on", "-F", "=mixed|spawner"],
        &[workload!("spawner"), "1.3", &cpu],
        Duration::from_secs(40),
    )?;
    let founder = recorded.experiment()?;
    let expected = pauses(&founder)?;
    ensure!(expected.len() >= 2, "{expected:?}");
    let mut subexperiments = 0;
    for entry in std::fs::read_dir(&founder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "er") {
            subexperiments += 1;
            let own = pauses(&path)?;
            // A process that exited before a pause has no later ones.
            ensure!(
                own.len() >= 2 && expected.starts_with(&own),
                "{own:?} {expected:?}"
            );
        }
    }
    ensure!(subexperiments > 0);
    Ok(())
}
