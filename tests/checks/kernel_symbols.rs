//! Every kernel function that gprofng shows for an address is one that `/proc/kallsyms` has there: with dots, cold
//! parts and aliases.

use std::time::Duration;

use anyhow::{Result, ensure};
use tests::gprofng;
use tests::kallsyms::{KERNEL, Kallsyms};
use tests::kcollect::record;
use tests::machine::{Exclusive, work_cpu};
use tests::workload;

#[test]
fn root_names_are_those_of_kallsyms() -> Result<()> {
    let _machine = Exclusive::take()?;
    let kallsyms = Kallsyms::running()?;
    let cpu = work_cpu()?.to_string();
    // Fork, exec, faults and exit go through much of the kernel.
    let recorded = record(
        &["-p", "hi", "-x", "off"],
        &[workload!("spawner"), "4", &cpu],
        Duration::from_secs(40),
    )?;
    let pcs = gprofng::pcs(&recorded.experiment()?)?;
    let kernel: Vec<_> = pcs
        .iter()
        .filter(|(address, ..)| *address >= KERNEL)
        .collect();
    ensure!(
        kernel.len() > 200,
        "only {} kernel addresses in {pcs:#x?}",
        kernel.len()
    );

    let mut wrong = Vec::new();
    let mut dotted = 0;
    for (address, _, shown) in kernel {
        let (name, offset) = shown.rsplit_once(" + 0x").unwrap_or((shown, "0"));
        let offset = u64::from_str_radix(offset, 16)?;
        let right = kallsyms
            .function(*address)
            .is_some_and(|(start, names)| names.contains(name) && start + offset == *address);
        if !right {
            wrong.push(format!(
                "{address:#x} {shown}: kallsyms has {:x?}",
                kallsyms.function(*address)
            ));
        }
        dotted += u32::from(name.contains('.'));
    }
    ensure!(
        wrong.is_empty(),
        "{} addresses have a wrong name: {wrong:#?}",
        wrong.len()
    );
    ensure!(
        dotted > 0,
        "no function with a dot in its name was hit: the check proves nothing about them"
    );
    Ok(())
}
