//! Two kcollects at once each record the whole machine, into experiments of their own.

use std::time::Duration;

use anyhow::{Result, ensure};
use tests::command::Running;
use tests::gprofng;
use tests::kcollect::{Recording, command, experiments_in, run_in};
use tests::machine::{Exclusive, alone, online_cpus};
use tests::oracle::statistics::Band;

#[test]
fn root_alone_two_collectors_lose_no_ticks() -> Result<()> {
    alone(|| {
        let directory = tempfile::tempdir()?;
        let start = |interval: &str| {
            let mut command = command(["-p", interval, "-x", "off", "-t", "2"])?;
            Running::start(
                command.current_dir(directory.path()),
                Duration::from_secs(30),
            )
        };
        // Started at the same moment, in one directory: they race for a name, too.
        let (first, second) = (start("hi")?, start("on")?);
        first.finish()?.succeeded()?;
        second.finish()?.succeeded()?;

        let experiments = experiments_in(directory.path())?;
        ensure!(
            experiments.len() == 2,
            "two collectors made {experiments:?}"
        );
        for experiment in experiments {
            let header = gprofng::header(&experiment)?;
            ensure!(header.closed, "{} was not closed", experiment.display());
            let cpus = gprofng::objects(&experiment, "cpus")?;
            for cpu in online_cpus()? {
                let ticks = cpus.get(&format!("CPU {cpu}")) * 1e9 / header.interval_ns;
                // Starting and stopping a CPU's clock takes a moment; both do it at once.
                Band::time(header.duration_ns, header.duration_ns, header.interval_ns)
                    .with_edges(5e7 / header.interval_ns)
                    .judge(&format!("{}, CPU {cpu}", experiment.display()), ticks)?;
            }
        }
        Ok(())
    })
}

#[test]
fn root_alone_bpf_programs_that_come_and_go_are_harmless() -> Result<()> {
    let _machine = Exclusive::take()?;
    let mut recording = Recording::start(
        ["-p", "hi", "-x", "off", "-t", "4"],
        Duration::from_secs(30),
    )?;
    recording.until_running()?;
    // Each of these loads its programs where the previous one's were, or half over them.
    for _ in 0..4 {
        let directory = tempfile::tempdir()?;
        let arguments = ["-p", "hi", "-x", "off", "-A", "off", "-t", "0.3"];
        run_in(directory.path(), &arguments, Duration::from_secs(20))?.succeeded()?;
    }
    let recorded = recording.finish()?.succeeded()?;
    gprofng::script(&["functions", "objects", "header"], &recorded.experiment()?)?.content()?;
    Ok(())
}
