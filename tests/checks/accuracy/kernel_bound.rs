//! A load of known CPU time has that time in the profile: kernel time in kernel functions, user
//! time under `<NAME_PID_pid>`.

use std::time::Duration;

use anyhow::{Result, ensure};
use tests::gprofng;
use tests::kcollect::record;
use tests::machine::disturbance::judge_times;
use tests::machine::{stolen_meanwhile, work_cpu};
use tests::oracle::statistics::{Band, Pair};
use tests::workload;
use tests::workload::truth::accounting_hz;

#[test]
fn root_alone_spin_user_has_its_time() -> Result<()> {
    has_its_time(workload!("spin_user"), "spin_user")
}

#[test]
fn root_alone_read_zero_has_its_time() -> Result<()> {
    has_its_time(workload!("read_zero"), "read_zero")
}

#[test]
fn root_alone_getdents_has_its_time() -> Result<()> {
    has_its_time(workload!("getdents"), "getdents")
}

fn has_its_time(program: &str, name: &str) -> Result<()> {
    judge_times(|| {
        let cpu = work_cpu()?;
        let recorded = record(
            &["-p", "hi", "-x", "off"],
            &[program, "2.5", &cpu.to_string()],
            Duration::from_secs(40),
        )?;
        let stolen = stolen_meanwhile()?;
        let truth = recorded.truth()?;
        let experiment = recorded.experiment()?;
        let interval = gprofng::header(&experiment)?.interval_ns;
        let functions = gprofng::functions(&experiment, Some(&format!("KPID=={}", truth.pid)))?;
        let ticks = functions.total()? * 1e9 / interval;

        // All of its CPU time, which is exact in the kernel's account.
        Band::time(truth.cpu_ns() as f64, truth.wall_ns() as f64, interval)
            .with_edges(stolen / interval)
            .judge(&format!("{name}, user and system"), ticks)?;

        // The share of user mode in the process's own ticks. The truth is a sample too, by a slower
        // clock.
        let artificial = format!("_PID_{}>", truth.pid);
        let user = functions.sum(|function| function.ends_with(&artificial)) * 1e9 / interval;
        let references = truth.cpu_ns() as f64 / 1e9 * accounting_hz();
        let share = truth.user_ns as f64 / truth.cpu_ns() as f64;
        let split = Pair {
            first: (user, ticks),
            second: (share * references, references),
        };
        ensure!(split.agree(), "{name}, share of user mode: {split}");

        // From exec on, user time is under the program's own name; what little there was before,
        // under kcollect's.
        let own = functions.get(&format!("<{name}{artificial}")) * 1e9 / interval;
        ensure!(
            user - own <= 3.0,
            "{name}: {} of {user} user ticks are under another name: {functions:?}",
            user - own
        );
        Ok(())
    })
}
