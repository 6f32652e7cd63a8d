//! Every kernel function that gprofng shows for an address is one that `/proc/kallsyms` has there:
//! with dots, cold parts and aliases.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use tests::command::run;
use tests::experiment;
use tests::gprofng;
use tests::kcollect::{Recording, command, record};
use tests::machine::{Exclusive, Shared};
use tests::oracle::kallsyms::{KERNEL, Kallsyms};
use tests::workload;

#[test]
fn root_alone_names_are_those_of_kallsyms() -> Result<()> {
    // BPF programs of other recordings would come and go.
    let _machine = Exclusive::take()?;
    // Fork, exec, faults and exit go through much of the kernel.
    let (recording, _) = Recording::of(workload!("spawner"), 4, Duration::from_secs(40))?;
    // Read now, it has kcollect's own programs.
    let kallsyms = Kallsyms::running()?;
    let recorded = recording.finish()?.succeeded()?;
    let experiment = recorded.experiment()?;
    let shown: BTreeSet<_> = gprofng::pcs(&experiment)?.into_iter().collect();
    let recorded: Vec<_> = experiment::addresses(&experiment)?
        .into_iter()
        .filter(|pc| *pc >= KERNEL)
        .collect();
    ensure!(
        recorded.len() > 200,
        "only {} kernel addresses were recorded",
        recorded.len()
    );

    let mut wrong = Vec::new();
    let mut dotted = 0;
    for address in recorded {
        // The two ends of a stack that was cut are marks, not addresses.
        let Some((start, names)) = kallsyms
            .function(address)
            .filter(|_| address < u64::MAX - 16)
        else {
            continue;
        };
        let right = names
            .iter()
            .find(|name| shown.contains(&((*name).clone(), address - start)));
        dotted += u32::from(right.is_some_and(|name| name.contains('.')));
        if right.is_none() {
            wrong.push(format!(
                "{address:#x} is in {names:?} + {:#x}",
                address - start
            ));
        }
    }
    ensure!(
        wrong.is_empty(),
        "gprofng shows {} addresses under other names than kallsyms: {:#?}",
        wrong.len(),
        &wrong[..wrong.len().min(20)]
    );
    ensure!(
        dotted > 0,
        "no function with a dot in its name was hit: the check proves nothing about them"
    );
    Ok(())
}

/// Without a copy of its symbols the kernel's functions are named by this machine, on which it
/// still runs.
#[test]
fn root_kernel_has_its_names_without_an_archive() -> Result<()> {
    const LIMIT: Duration = Duration::from_secs(60);
    let _machine = Shared::take()?;
    let load = [
        "sh",
        "-c",
        "for i in $(seq 300); do cat /proc/self/maps; done > /dev/null",
    ];
    let recorded = record(&["-p", "hi", "-A", "off", "-F", "off"], &load, LIMIT)?;
    let mut report = command(["report".as_ref(), recorded.experiment()?.as_os_str()])?;
    report.args(["functions", "-m", "e.total:name", "--json"]);
    let table: Value = serde_json::from_str(&run(&mut report, LIMIT)?.succeeded()?.stdout)?;
    let rows = table["rows"].as_array().context("no rows")?;
    let kernel = rows.iter().filter(|row| row["object"] == "vmlinux").count();
    let seconds = |name: &str| {
        let row = rows.iter().find(|row| row["name"] == name);
        row.and_then(|row| row["e.total"].as_f64()).unwrap_or(0.0)
    };
    // Modules and BPF programs have none.
    let (unknown, total) = (seconds("<Unknown>"), seconds("<Total>"));
    ensure!(
        kernel > 20 && unknown < 0.05 * total,
        "{kernel} functions have names, {unknown} s of {total} s have none: {rows:?}"
    );
    Ok(())
}
