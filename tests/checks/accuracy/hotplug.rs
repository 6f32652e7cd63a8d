//! A CPU that goes offline and comes back during a recording has ticks for the time it was there.

use std::thread::sleep;
use std::time::Duration;

use anyhow::{Result, ensure};
use tests::experiment;
use tests::experiment::summary::RunSummary;
use tests::gprofng;
use tests::kcollect::Recording;
use tests::machine::disturbance::not_judged;
use tests::machine::{Offline, alone, online_cpus, work_cpu};
use tests::oracle::statistics::Band;
use tests::workload::truth::monotonic_ns;

/// Maximum time until a CPU that is back online is noticed, nanoseconds.
const MAX_UNNOTICED_NS: f64 = 1.2e9;

/// Maximum time that starting and stopping a CPU's clock takes, nanoseconds.
const EDGE_NS: f64 = 5e7;

#[test]
fn root_alone_a_cpu_goes_and_comes_back() -> Result<()> {
    alone(|| {
        let cpu = work_cpu()?;
        if !Offline::possible(cpu) {
            not_judged(format_args!(
                "CPU {cpu} of this machine cannot be taken offline"
            ));
            return Ok(());
        }
        // User stacks are captured, and no process is followed.
        let args = ["-p", "hi", "-x", "off", "-F", "=no such process"];
        let mut recording = Recording::start(args, Duration::from_secs(40))?;
        recording.until_running()?;
        sleep(Duration::from_secs(1));
        let going = monotonic_ns()?;
        let offline = Offline::take(cpu)?;
        let gone = monotonic_ns()?;
        sleep(Duration::from_secs(1));
        let coming = monotonic_ns()?;
        offline.back()?;
        let back = monotonic_ns()?;
        sleep(Duration::from_millis(1500));
        let recorded = recording.stop()?;

        let experiment = recorded.experiment()?;
        let header = gprofng::header(&experiment)?;
        ensure!(header.closed, "it was not closed: {}", header.text);
        let interval = header.interval_ns;
        let packets = experiment::packets(&experiment)?;
        let ticks = |cpu: usize, from: u64, to: u64| -> f64 {
            packets
                .iter()
                .filter(|packet| packet.cpu == cpu && (from..to).contains(&packet.time_ns))
                .map(|packet| packet.ticks as f64)
                .sum()
        };

        let away = ticks(cpu, gone, coming);
        ensure!(
            away == 0.0,
            "{away} ticks of CPU {cpu} while it was offline"
        );
        let start = experiment::began_ns(&experiment)?;
        let before = (going - start) as f64;
        Band::time(before, before, interval)
            .with_edges((EDGE_NS + (gone - going) as f64) / interval)
            .judge(
                &format!("CPU {cpu} before it went"),
                ticks(cpu, start, gone),
            )?;
        let after = start as f64 + header.duration_ns - back as f64 - MAX_UNNOTICED_NS / 2.0;
        Band::time(after, after, interval)
            .with_edges((EDGE_NS + MAX_UNNOTICED_NS / 2.0 + (back - coming) as f64) / interval)
            .judge(
                &format!("CPU {cpu} after it came back"),
                ticks(cpu, coming, u64::MAX),
            )?;

        // The summary has the time that it was online.
        for stats in &RunSummary::of(&experiment)?.cpus {
            // The CPU that was offline has two beginnings and two ends.
            stats.elapsed(interval, if stats.cpu == cpu { 2 } else { 1 })?;
        }

        // The ticks of the others have no gap.
        for other in online_cpus()?.into_iter().filter(|other| *other != cpu) {
            Band::time(header.duration_ns, header.duration_ns, interval)
                .with_edges(EDGE_NS / interval)
                .judge(&format!("CPU {other}"), ticks(other, 0, u64::MAX))?;
        }
        // What gprofng shows is what is in the file.
        let shown = gprofng::objects(&experiment, "cpus")?.total()? * 1e9 / interval;
        let all = experiment::ticks(&experiment)? as f64;
        ensure!(
            (shown - all).abs() < 1.0,
            "gprofng shows {shown} ticks of {all}"
        );
        Ok(())
    })
}
